"""The programs of `tacit.boost.woe` where the outcome is at one party and columns are at others.

    holder of columns                                   holder of the outcome                       helper
      |            one sum of `mpc/histograms.py`: rows and events over each anonymous cell            |
      |<-- WoeCounts(bins of your columns, rows and events of each) --|

One word of each row is summed: a count in its upper bits, whether it is an event in its lower ones. Cells
have at least `min_rows` rows, and bins that are sent back at least `min_cell` events and others.

With ε (`boost/count_noise.py`) cells are declared and may have any number of rows. The holder of columns adds
noise to the sums before they are opened, against the holder of the outcome; that one adds noise of its own to
all counts before it bins them, against the others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ...boost.bins import Feature
from ...boost.count_noise import TOTAL_SHARE, CountNoise
from ...boost.encrypted_rows import add_encrypted_rows
from ...boost.kernels import multiply_words
from ...boost.scorecard import column_from_dict, column_to_dict
from ...boost.vertical_bins import OwnBins, anonymous
from ...boost.woe_bins import MISSING, OTHER, WoeBin, WoeColumn, WoeRules, _intervals, bin_column, weigh
from ...errors import BadData, ProtocolError
from ...mpc import encrypted_histograms, histograms
from ...mpc.encrypted_histograms import EncryptedLabelSide
from ...mpc.histogram_terms import HistogramTerms, Layout, TreeShapes
from ...mpc.histograms import LabelSide
from ...parties.message import Message
from ...parties.party import Party
from .boost_programs import ASSUMES, HE_ASSUMES, _shuffle

if TYPE_CHECKING:
    import pandas as pd

SHIFT = 30  # of a row's count; with 2^20 rows at most, both sums fit in words of 59 bits
LOW = (1 << SHIFT) - 1
HALF = 1 << (SHIFT - 1)
MOST_ROWS = 1 << 20
OPENED = (
    "OPENED: the holder of the outcome learned rows and events in each anonymous cell of the others' columns "
    "(at least {} rows). Each other party learned rows and events in each bin of its own columns (at least "
    "{} of both, where a column has several bins), and over all rows."
)
NOISY = (
    "OPENED: the holder of the outcome learned rows and events in each anonymous cell of the others' "
    "columns, with their noise. Each other party learned rows and events in each bin of its own columns, and "
    "over all rows, with the noise of the holder of the outcome. How many people are shared, and who, has no "
    "noise."
)


class WoeCounts(
    Message,
    reveals="rows and events in each bin of the receiver's own columns, and in all rows; no row's outcome",
):
    columns: list[str]  # JSON, in the receiver's own order
    totals: list[int]


def _terms(names: Sequence[str], label_at: str, helper: str, rows: int, text: str) -> HistogramTerms:
    return HistogramTerms(tuple(names), label_at, helper, rows, 1, 0, "sums", text)


def _refuse_splits(records: np.ndarray) -> np.ndarray:
    raise ProtocolError("weights of evidence have no splits.")


def pack(others: np.ndarray, events: np.ndarray) -> np.ndarray:
    """Return counts as one word each."""
    return np.asarray(((others + events) << SHIFT) + events)


def unpack(words: np.ndarray) -> np.ndarray:
    """Return words as (others, events); with noise either may be negative."""
    events = ((words + HALF) & LOW) - HALF
    return np.stack([((words - events) >> SHIFT) - events, events], axis=-1)


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
    noise = CountNoise.read(settings)
    _stamp(me, settings, helper, noise)
    order = _shuffle(me, cells.shape[1])
    layout = Layout((own.bins.widths[order] + 1).tolist(), own.bins.is_category[order].tolist())
    draw = None if noise is None else _drawer(me, noise)
    if helper:
        await histograms.hold_columns(me, terms, cells[:, order], layout, _refuse_splits, draw)
    else:
        await encrypted_histograms.hold_columns(
            me, terms, cells[:, order], layout, _refuse_splits, add_encrypted_rows, draw
        )
    message = await me.recv(label_at, WoeCounts)
    if len(message.columns) != len(order):
        raise ProtocolError(f"{label_at!r} sent counts of {len(message.columns)} columns, not {len(order)}.")
    totals, rows = list(message.totals), len(cells)
    if len(totals) != 2 or min(totals) < 1 or (noise is None and sum(totals) != rows):
        raise ProtocolError(f"{label_at!r} sent {totals} others and events; there are {rows} shared people.")
    by_place = dict(zip(order.tolist(), message.columns))
    found = [
        _read_column(by_place[k], own, k, seen[k], rows if noise is None else None, totals, label_at)
        for k in range(len(order))
    ]
    return {"columns": [column_to_dict(c) for c in found], "totals": totals}


def _drawer(me: Party, noise: CountNoise) -> Callable[[tuple[int, int]], np.ndarray]:
    """Return a function that draws noise of others and events, as words."""

    def draw(shape: tuple[int, int]) -> np.ndarray:
        others, events = noise.draw(noise.cell_share, (2, *shape), me.secret.bytes)
        return pack(others, events)

    return draw


def _stamp(me: Party, settings: Mapping[str, Any], helper: str, noise: CountNoise | None) -> None:
    me.ledger.stamp(ASSUMES if helper else HE_ASSUMES)
    if noise is None:
        me.ledger.stamp(OPENED.format(settings["min_rows"], settings["min_cell"]))
        return
    me.ledger.stamp(NOISY)
    me.ledger.spend(noise.spend)


async def hold_label(
    me: Party,
    names: Sequence[str],
    helper: str,
    settings: Mapping[str, Any],
    codes: Tensor,
    bins: Mapping[str, Any],
    seen: Sequence[Sequence[bool]],
    y: Tensor,
    declared: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The holder of the outcome (`y`: 1 for an event): returns the bins of its own columns.

    `declared`, with ε: how many columns each other party has, for which noise was calculated.
    """
    own, events = OwnBins.from_dict(bins), y.numpy().astype(np.int64)
    if len(events) > MOST_ROWS:
        raise BadData(f"boost.woe: {len(events)} people are shared; at most {MOST_ROWS} can be counted.")
    terms = _terms(names, me.name, helper, len(events), json.dumps(settings, sort_keys=True))
    noise = CountNoise.read(settings)
    if noise is None:
        check_totals(len(events) - events.sum(), events.sum(), settings["min_cell"])
    _stamp(me, settings, helper, noise)
    side: Any = LabelSide(me, terms, multiply_words) if helper else EncryptedLabelSide(me, terms)
    await side.start()
    for name in terms.holders if declared is not None else ():
        if len(side.layouts[name].widths) != (declared or {})[name]:
            raise ProtocolError(
                f"{name!r} has {len(side.layouts[name].widths)} columns, and declared "
                f"{(declared or {})[name]}: the ε is for these. Nothing about outcomes was sent."
            )
    sums = await side.sums((events + (1 << SHIFT))[None, :])
    await side.finish(TreeShapes([], [], []), "")
    totals = _add_noise(me, np.array([[len(events) - events.sum(), events.sum()]]), noise, TOTAL_SHARE)[0]
    check_totals(
        int(totals[0]), int(totals[1]), settings["min_cell"], "" if noise is None else ", counted with noise"
    )
    share = round(float(settings["min_share"]) * len(events))
    rules = WoeRules(
        settings["bins"], settings["monotone"], share, settings["min_rows"], settings["min_cell"]
    )
    for name in terms.holders:
        layout, counts = side.layouts[name], unpack(sums[name][0])
        columns = []
        for feature, start, width in zip(
            anonymous(layout.widths, layout.is_category), layout.offsets.tolist(), layout.widths
        ):
            part = counts[start : start + width]
            if noise is None and ((part < 0).any() or (part.sum(axis=0) != totals).any()):
                raise ProtocolError(
                    f"the counts of {name!r} do not add up to all rows: it, or the helper, did not follow "
                    "the protocol."
                )
            part = _add_noise(me, part, noise, noise.cell_share if noise else 0.0)
            columns.append(json.dumps(column_to_dict(_bin(feature, part, totals, rules))))
        await me.send(name, WoeCounts(columns, totals.tolist()))
    found, own_codes = [], codes.numpy()
    for k, feature in enumerate(own.bins.features):
        cells = np.bincount(own_codes[:, k] * 2 + events, minlength=2 * (feature.width + 1)).reshape(-1, 2)
        cells = _add_noise(me, cells, noise, noise.cell_share if noise else 0.0)
        column = _bin(feature, cells, totals, rules)
        found.append(_follow_merges(column, feature, own.merge[k], seen[k]))
    return {"columns": [column_to_dict(c) for c in found], "totals": totals.tolist()}


def check_totals(others: int, events: int, least: int, how: str = "") -> None:
    """Raise BadData if there are too few events, or others."""
    if min(others, events) < least:
        raise BadData(
            f"boost.woe: the shared people have {events} events and {others} others{how}; at least {least} "
            "of each are needed (min_cell)."
        )


def _add_noise(me: Party, counts: np.ndarray, noise: CountNoise | None, share: float) -> np.ndarray:
    """Return counts (cells × 2) with this party's noise, those below 0 as 0."""
    if noise is None:
        return counts
    drawn = noise.draw(share, counts.shape, me.secret.bytes)
    return np.asarray(np.clip(counts + drawn, 0, 2 * MOST_ROWS))


def _bin(feature: Feature, counts: np.ndarray, totals: np.ndarray, rules: WoeRules) -> WoeColumn:
    column = bin_column(feature, counts, totals, rules)
    if not column.bins:
        raise BadData(
            "boost.woe: all counts of a column are 0 after noise was added. Use a larger epsilon, fewer "
            "columns or fewer bins."
        )
    return column


def _read_column(
    text: str,
    own: OwnBins,
    k: int,
    seen: Sequence[bool],
    rows: int | None,
    totals: Sequence[int],
    sender: str,
) -> WoeColumn:
    """Return a column's bins with its own cuts and levels; what was sent knows only their places.

    `rows`: how many the bins have together; None: counts have noise. WOE and IV follow from the counts.
    """
    feature = own.bins.features[k]
    try:
        sent = column_from_dict(json.loads(text))
        counts = np.array([[b.others, b.events] for b in sent.bins], dtype=np.int64).reshape(-1, 2)
        if not len(counts) or counts.min() < 0 or (rows is not None and counts.sum() != rows):
            raise ValueError("counts of other rows")
        if feature.cuts is not None:
            places = [int(c) for c in sent.feature.cuts or ()]
            if places != sorted(set(places)) or not all(0 <= p < len(feature.cuts) for p in places):
                raise ValueError("cuts that the column does not have")
            cuts = tuple(feature.cuts[p] for p in places)
            names = dict(zip(_intervals(sent.feature.cuts or ()), _intervals(cuts)))
            real, width = replace(feature, cuts=cuts), len(cuts) + 2
        else:
            levels = feature.levels or ()
            names = {str(p): level for p, level in enumerate(levels)}
            real, width = feature, feature.width + 1
        if len(sent.place) != width:
            raise ValueError("bins that do not cover the column")
        woe, iv = weigh(counts, np.asarray(totals))
        bins = tuple(
            WoeBin(_rename(b.name, names), b.others, b.events, float(w), float(v))
            for b, w, v in zip(sent.bins, woe, iv)
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
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


def cells_seen(own: OwnBins, frame: pd.DataFrame) -> list[list[bool]]:
    """Which cells of each column have rows."""
    codes = own.bins.encode(frame)
    return [
        (np.bincount(codes[:, k], minlength=f.width + 1) > 0).tolist()
        for k, f in enumerate(own.bins.features)
    ]


async def help_counts(
    me: Party, names: Sequence[str], label_at: str, settings: Mapping[str, Any], rows: int
) -> None:
    """The helper: deals the randomness of one sum."""
    terms = _terms(names, label_at, me.name, rows, json.dumps(settings, sort_keys=True))
    me.ledger.stamp(ASSUMES)
    await histograms.help_sums(me, terms, multiply_words)
