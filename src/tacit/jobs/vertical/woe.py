"""`tacit.boost.woe` where the outcome is at one party and columns are at others: counts on secret shares.

    holder of columns                                   holder of the outcome                       helper
      |            one sum of `mpc/histograms.py`: rows and events over each anonymous cell            |
      |<-- WoeCounts(bins of your columns, rows and events of each) --|

One word of each row is summed: a count in its upper bits, whether it is an event in its lower ones. Cells
have at least `min_rows` rows, and bins that are sent back at least `min_cell` events and others.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...boost.bins import Feature
from ...boost.encrypted_rows import add_encrypted_rows
from ...boost.kernels import multiply_words
from ...boost.scorecard import Scorecard, find_bins, look_up
from ...boost.vertical_bins import OwnBins, anonymous
from ...boost.woe_bins import MISSING, OTHER, WoeBin, WoeColumn, WoeRules, _intervals, bin_column
from ...config.woe import WOE_OPTIONS, WoeConfig
from ...errors import BadData, ProtocolError
from ...mpc import encrypted_histograms, histograms
from ...mpc.encrypted_histograms import EncryptedLabelSide
from ...mpc.histogram_terms import HistogramTerms, Layout, TreeShapes
from ...mpc.histograms import LabelSide
from ...parameters import bad, check
from ...parties.ledger import Ledger
from ...parties.message import Message
from ...parties.party import Party
from ...runtimes.choose import choose_runtime
from ...stats.columns import text_of
from ..boost.woe_result import ScorecardResult, WoeResult, choose_columns, note_flat, note_signs
from .boost_programs import ASSUMES, HE_ASSUMES, _shuffle
from .boost_rows import arrange, to_tensor
from .regress import regress

if TYPE_CHECKING:
    import pandas as pd

OWNER = "boost.woe"
SHIFT = 30  # of a row's count; with 2^20 rows at most, both sums fit in words of 59 bits
OPENED = (
    "OPENED: the holder of the outcome learned rows and events in each anonymous cell of the others' columns "
    "(at least {} rows). Each other party learned rows and events in each bin of its own columns (at least "
    "{} of both, where a column has several bins), and over all rows."
)
LEFT_OUT = ("cuts", "labels", "epsilon", "bounds", "features")


class WoeCounts(
    Message,
    reveals="rows and events in each bin of the receiver's own columns, and in all rows; no row's outcome",
):
    columns: list[str]  # JSON, in the receiver's own order
    totals: list[int]


def _terms(names: Sequence[str], label_at: str, helper: str, rows: int, text: str) -> HistogramTerms:
    return HistogramTerms(tuple(names), label_at, helper, rows, 1, 0, "sums", text)


def _refuse_splits(record: bytes) -> np.ndarray:
    raise ProtocolError("weights of evidence have no splits.")


async def hold_columns(
    me: Party,
    names: Sequence[str],
    label_at: str,
    helper: str,
    settings: Mapping[str, Any],
    codes: Tensor,
    bins: Mapping[str, Any],
    seen: Sequence[Sequence[bool]],
) -> dict[str, Any]:
    """A holder of columns: answers one sum, and returns its columns' bins."""
    own, cells = OwnBins.from_dict(bins), codes.numpy()
    terms = _terms(names, label_at, helper, len(cells), json.dumps(settings, sort_keys=True))
    _stamp(me, settings, helper)
    order = _shuffle(me, cells.shape[1])
    layout = Layout((own.bins.widths[order] + 1).tolist(), own.bins.is_category[order].tolist())
    if helper:
        await histograms.hold_columns(me, terms, cells[:, order], layout, _refuse_splits)
    else:
        await encrypted_histograms.hold_columns(
            me, terms, cells[:, order], layout, _refuse_splits, add_encrypted_rows
        )
    message = await me.recv(label_at, WoeCounts)
    if len(message.columns) != len(order) or len(message.totals) != 2:
        raise ProtocolError(f"{label_at!r} sent counts of {len(message.columns)} columns, not {len(order)}.")
    by_place = dict(zip(order.tolist(), message.columns))
    found = [_read_column(by_place[k], own, k, seen[k], len(cells), label_at) for k in range(len(order))]
    return {"columns": [_to_dict(c) for c in found], "totals": list(message.totals)}


def _stamp(me: Party, settings: Mapping[str, Any], helper: str) -> None:
    me.ledger.stamp(ASSUMES if helper else HE_ASSUMES)
    me.ledger.stamp(OPENED.format(settings["min_rows"], settings["min_cell"]))


async def hold_label(
    me: Party,
    names: Sequence[str],
    helper: str,
    settings: Mapping[str, Any],
    codes: Tensor,
    bins: Mapping[str, Any],
    seen: Sequence[Sequence[bool]],
    y: Tensor,
) -> dict[str, Any]:
    """The holder of the outcome (`y`: 1 for an event): returns the bins of its own columns."""
    own, events = OwnBins.from_dict(bins), y.numpy().astype(np.int64)
    terms = _terms(names, me.name, helper, len(events), json.dumps(settings, sort_keys=True))
    _stamp(me, settings, helper)
    side: Any = LabelSide(me, terms, multiply_words) if helper else EncryptedLabelSide(me, terms)
    await side.start()
    sums = await side.sums((events + (1 << SHIFT))[None, :])
    await side.finish(TreeShapes([], [], []), "")
    totals = np.array([len(events) - events.sum(), events.sum()])
    share = round(float(settings["min_share"]) * len(events))
    rules = WoeRules(
        settings["bins"], settings["monotone"], share, settings["min_rows"], settings["min_cell"]
    )
    for name in terms.holders:
        layout, row = side.layouts[name], sums[name][0]
        counts = np.stack([(row >> SHIFT) - (row & ((1 << SHIFT) - 1)), row & ((1 << SHIFT) - 1)], axis=1)
        columns = []
        for feature, start, width in zip(
            anonymous(layout.widths, layout.is_category), layout.offsets.tolist(), layout.widths
        ):
            part = counts[start : start + width]
            if (part < 0).any() or (part.sum(axis=0) != totals).any():
                raise ProtocolError(
                    f"the counts of {name!r} do not add up to all rows: it, or the helper, did not follow "
                    "the protocol."
                )
            columns.append(json.dumps(_to_dict(bin_column(feature, part, totals, rules))))
        await me.send(name, WoeCounts(columns, totals.tolist()))
    found, own_codes = [], codes.numpy()
    for k, feature in enumerate(own.bins.features):
        cells = np.bincount(own_codes[:, k] * 2 + events, minlength=2 * (feature.width + 1)).reshape(-1, 2)
        column = bin_column(feature, cells, totals, rules)
        found.append(_follow_merges(column, feature, own.merge[k], seen[k]))
    return {"columns": [_to_dict(c) for c in found], "totals": totals.tolist()}


def _to_dict(column: WoeColumn) -> dict[str, Any]:
    f = column.feature
    about: dict[str, Any] = {"cuts": list(f.cuts)} if f.cuts is not None else {"levels": list(f.levels or ())}
    bins = [[b.name, b.others, b.events, b.woe, b.iv] for b in column.bins]
    return {"name": f.name, **about, "place": list(column.place), "bins": bins}


def _from_dict(entry: Mapping[str, Any]) -> WoeColumn:
    name = str(entry["name"])
    feature = (
        Feature(name, levels=tuple(map(str, entry["levels"])))
        if "levels" in entry
        else Feature(name, tuple(float(v) for v in entry["cuts"]))
    )
    bins = tuple(WoeBin(str(n), int(o), int(e), float(w), float(v)) for n, o, e, w, v in entry["bins"])
    return WoeColumn(feature, tuple(int(p) for p in entry["place"]), bins)


def _read_column(text: str, own: OwnBins, k: int, seen: Sequence[bool], rows: int, sender: str) -> WoeColumn:
    """Return a column's bins with its own cuts and levels; what was sent knows only their places."""
    feature = own.bins.features[k]
    try:
        sent = _from_dict(json.loads(text))
        size = len(sent.bins)
        if sum(b.rows for b in sent.bins) != rows or min(b.others for b in sent.bins) < 0:
            raise ValueError("counts of other rows")
        if feature.cuts is not None:
            places = [int(c) for c in sent.feature.cuts or ()]
            if places != sorted(set(places)) or not all(0 <= p < len(feature.cuts) for p in places):
                raise ValueError("cuts that the column does not have")
            cuts = tuple(feature.cuts[p] for p in places)
            names = dict(zip(_intervals(sent.feature.cuts or ()), _intervals(cuts)))
            real, width = Feature(feature.name, cuts), len(cuts) + 2
        else:
            levels = feature.levels or ()
            names = {str(p): level for p, level in enumerate(levels)}
            real, width = feature, feature.width + 1
        if len(sent.place) != width or not all(-1 <= p < size for p in sent.place):
            raise ValueError("bins that do not cover the column")
        bins = tuple(
            WoeBin(_rename(b.name, names), b.others, b.events, float(b.woe), float(b.iv)) for b in sent.bins
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise ProtocolError(f"{sender!r} sent no bins of {feature.name!r}: {error!r:.200}.") from None
    return _follow_merges(WoeColumn(real, sent.place, bins), feature, own.merge[k], seen)


def _rename(name: str, names: Mapping[str, str]) -> str:
    pieces = re.findall(r"\[[^)]*\)|[^,\s\[]+", name)
    return ", ".join(names.get(p, p) for p in pieces)


def _follow_merges(
    column: WoeColumn, feature: Feature, merge: Sequence[int], seen: Sequence[bool]
) -> WoeColumn:
    """Give cells that were merged, as they have few rows, the bin of the cell that they became.

    `seen`: the cells that had any rows before they were merged.
    """
    place, bins = list(column.place), list(column.bins)
    if feature.cuts is None:
        joined = [place[merge[k]] if seen[k] else -1 for k in range(len(place))]
        for name, k in ((OTHER, len(place) - 2), (MISSING, len(place) - 1)):
            if seen[k] and merge[k] != k and name not in bins[joined[k]].name.split(", "):
                bins[joined[k]] = replace(bins[joined[k]], name=f"{bins[joined[k]].name}, {name}")
        return WoeColumn(column.feature, tuple(joined), tuple(bins))
    missing, became = feature.width, merge[feature.width]
    if became != missing and seen[missing]:
        cut = feature.cuts[became - 1] if became else -np.inf  # the lower end of the cell
        to = place[int(np.searchsorted(np.asarray(column.feature.cuts), cut, side="right"))]
        place[-1] = to
        bins[to] = replace(bins[to], name=f"{bins[to].name}, {MISSING}")
    return WoeColumn(column.feature, tuple(place), tuple(bins))


def _cells_seen(own: OwnBins, frame: pd.DataFrame) -> list[list[bool]]:
    """Which cells of each column have rows."""
    codes = own.bins.encode(frame)
    return [
        (np.bincount(codes[:, k], minlength=f.width + 1) > 0).tolist()
        for k, f in enumerate(own.bins.features)
    ]


@dataclass
class VerticalWoeResult(WoeResult):
    """Bins of the columns of several parties. `owners`: whose each column is.

    They are in one object only because this is one process: a party of its own has its own columns.
    """

    title = "Weight of evidence over columns of several parties"
    owners: dict[str, str] = field(default_factory=dict)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict, repr=False)
    outcome: np.ndarray = field(default_factory=lambda: np.zeros(0), repr=False)
    label_at: str = ""
    runtime: Any = field(default=None, repr=False)

    def scorecard(  # type: ignore[override]  # no `fed`, `l2` and `epsilon`
        self,
        pdo: float = 20,
        base_score: float = 600,
        base_odds: float = 50,
        *,
        features: list[str] | None = None,
        min_iv: float = 0.02,
        rounded: bool = True,
    ) -> ScorecardResult:
        """Fit a logistic regression of the event on WOE on secret shares, and turn it into points.

        As for parties with the same columns; `tacit.regress` fits it. Its ledger says what was opened.
        """
        import pandas as pd

        chosen = choose_columns(self.columns, features, min_iv, pdo, base_odds)
        names = {c.name: f"x{k}" for k, c in enumerate(chosen)}
        frames: dict[str, pd.DataFrame] = {}
        for party, table in self.tables.items():
            own = [c for c in chosen if self.owners[c.name] == party]
            woe = look_up([[b.woe for b in c.bins] for c in own], find_bins(own, table))
            frames[party] = pd.DataFrame(woe, columns=[names[c.name] for c in own])
        frames[self.label_at]["event"] = self.outcome
        frames = {p: f for p, f in frames.items() if len(f.columns)}
        fit = regress(frames, family="binomial", label="event", publish=True, runtime=self.runtime)
        found = {n: float(w) for p, of in fit.columns.items() for n, w in zip(of, fit.weights[p])}
        coefficients = (float(fit.intercept), *(found[names[c.name]] for c in chosen))
        numbers = float(pdo), float(base_score), float(base_odds)
        card = Scorecard(chosen, coefficients, self.event, *numbers, rounded)
        return ScorecardResult(card, fit, fit.ledger, note_signs(chosen, coefficients))


def weigh_vertical(
    parties: Any, options: Mapping[str, Any], on: str | None, helper: str | None, runtime: Any, guard: Any
) -> VerticalWoeResult:
    """Align the tables, count on shares, and return the bins of each party's columns."""
    options = dict(options)
    helper = helper or ""
    if guard is not None:
        raise bad(OWNER, "guard", guard, "None for vertical parties: secret shares need none")
    given = [n for n in LEFT_OUT if options.get(n) is not None]
    if given:
        allowed = ", ".join(n for n in WOE_OPTIONS if n not in LEFT_OUT)
        raise bad(OWNER, given[0], options[given[0]], f"left out for vertical parties, which have {allowed}")
    categories = list(options.pop("categories", None) or [])
    config = check(WoeConfig(**options), OWNER)
    runtime = None if runtime == "cohort" else runtime
    ledger = Ledger()
    rows = arrange(parties, "binary", on, config.label, runtime, ledger)
    event = rows.labels[1] if config.event is None else text_of(config.event)
    if event not in rows.labels:
        raise BadData(
            f"boost.woe: the event is {event!r}; the outcomes of {rows.label!r} are "
            f"{' and '.join(map(repr, rows.labels))}."
        )
    y = (rows.y == rows.labels.index(event)).astype(np.int64)
    if min(y.sum(), len(y) - y.sum()) < config.min_cell:
        raise BadData(
            f"boost.woe: the shared people have {y.sum()} events ({event!r}) and {len(y) - y.sum()} others; "
            f"at least {config.min_cell} of each are needed (min_cell)."
        )
    names = [rows.label_at, *(n for n in rows.frames if n != rows.label_at)]
    if len(names) < 2 or helper in names:
        raise bad(OWNER, "parties", names, f"at least two, and none called {helper!r}")
    keys = ("bins", "monotone", "min_share", "min_rows", "min_cell")
    settings = {k: v for k, v in asdict(config).items() if k in keys}
    programs: dict[str, Any] = {}
    for who in names:
        frame = rows.frames[who]
        chosen = [*rows.categories[who], *(c for c in categories if c in frame.columns)]
        own = OwnBins.fit(frame, chosen, config.first_bins, config.min_rows, who)
        shared: dict[str, Any] = {"names": names, "helper": helper, "settings": settings}
        shared |= {"bins": own.to_dict(), "codes": to_tensor(own.encode(frame))}
        shared["seen"] = _cells_seen(own, frame)
        programs[who] = (
            functools.partial(hold_label, y=torch.from_numpy(y), **shared)
            if who == rows.label_at
            else functools.partial(hold_columns, label_at=rows.label_at, **shared)
        )
    if helper:
        programs[helper] = functools.partial(
            help_counts, names=names, label_at=rows.label_at, settings=settings, rows=len(y)
        )
    results = choose_runtime(OWNER, runtime, all_stay=True).run_sync(programs, ledger=ledger)
    found = {who: [_from_dict(e) for e in results[who]["columns"]] for who in names}
    columns = [c for who in names for c in found[who]]
    twice = sorted({c.name for c in columns if sum(d.name == c.name for d in columns) > 1})
    if twice:
        raise BadData(f"boost.woe: several parties have a column {twice[0]!r}. Rename it at one of them.")
    totals = int((1 - y).sum()), int(y.sum())
    return VerticalWoeResult(
        tuple(columns),
        ledger,
        rows.label,
        event,
        totals,
        len(names),
        1,
        (*rows.notes, *note_flat(columns, config)),
        owners={c.name: who for who in names for c in found[who]},
        tables={who: rows.frames[who] for who in names},
        outcome=y,
        label_at=rows.label_at,
        runtime=runtime,
    )


async def help_counts(
    me: Party, names: Sequence[str], label_at: str, settings: Mapping[str, Any], rows: int
) -> None:
    """The helper: deals the randomness of one sum."""
    terms = _terms(names, label_at, me.name, rows, json.dumps(settings, sort_keys=True))
    me.ledger.stamp(ASSUMES)
    await histograms.help_sums(me, terms, multiply_words)
