"""`tacit.boost.woe` where the outcome is at one party and columns are at others: counts on secret shares, or
under homomorphic encryption (`woe_programs.py`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...boost.count_noise import CountNoise
from ...boost.declared_bins import DeclaredColumns
from ...boost.scorecard import Scorecard, column_from_dict, find_bins, look_up
from ...boost.vertical_bins import OwnBins
from ...config.woe import WoeConfig
from ...errors import BadData, BadParameter
from ...parameters import bad, check, nearest
from ...parties.ledger import Ledger
from ...runtimes.choose import choose_runtime
from ...stats.columns import text_of
from ..boost.woe_result import ScorecardResult, WoeResult, choose_columns, note_flat, note_signs
from .boost_rows import BoostRows, arrange, to_tensor
from .regress import regress
from .woe_programs import cells_seen, check_totals, help_counts, hold_columns, hold_label

if TYPE_CHECKING:
    import pandas as pd

OWNER = "boost.woe"
SETTINGS = ("bins", "monotone", "min_share", "min_rows", "min_cell")  # that the programs agree on


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
        Bins with `epsilon` have no scorecard: `tacit.regress` adds no noise.
        """
        import pandas as pd

        if self.is_private:
            raise BadParameter(
                "scorecard: the bins have an ε, and a regression over columns of several parties adds no "
                "noise: its coefficients would show what the noise hides. Use bins without epsilon."
            )
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
    """Align the tables, count on shares or under encryption, and return the bins of each party's columns."""
    helper = helper or ""
    if guard is not None:
        raise bad(OWNER, "guard", guard, "None for vertical parties: secret shares need none")
    config = check(WoeConfig(**options), OWNER)
    _check_options(config)
    runtime = None if runtime == "cohort" else runtime
    ledger = Ledger()
    outcomes = [text_of(v) for v in config.labels or ()]
    rows = arrange(parties, "binary", on, config.label, runtime, ledger, outcomes)
    if config.epsilon is not None and any(rows.missing_codes.values()):
        raise bad(
            OWNER,
            "epsilon",
            config.epsilon,
            "None for tables with missing_codes",
            "Replace the codes by missing values in the tables.",
        )
    event, y = find_events(rows.y, rows.labels, rows.label, config.event)
    if config.epsilon is None:
        check_totals(int((1 - y).sum()), int(y.sum()), config.min_cell)
    names = [rows.label_at, *(n for n in rows.frames if n != rows.label_at)]
    if len(names) < 2 or helper in names:
        raise bad(OWNER, "parties", names, f"at least two, and none called {helper!r}")
    frames = _choose_columns(rows, config)
    settings = {k: v for k, v in asdict(config).items() if k in SETTINGS}
    declared = _declare(config, frames) if config.epsilon is not None else {}
    if declared:
        settings |= count_columns(declared) | {"epsilon": config.epsilon, "delta": config.delta}
    programs: dict[str, Any] = {}
    for who in names:
        shared: dict[str, Any] = {"names": names, "helper": helper, "settings": settings}
        if declared:
            shared |= prepare_private(frames[who], declared[who], config.first_bins, settings, who)
        else:
            chosen = [*rows.categories[who], *(c for c in config.categories or () if c in frames[who])]
            coded = rows.missing_codes.get(who)
            shared |= prepare(frames[who], chosen, config.first_bins, config.min_rows, who, coded)
        programs[who] = (
            functools.partial(
                hold_label,
                y=torch.from_numpy(y),
                declared={n: len(d.names) for n, d in declared.items()} or None,
                **shared,
            )
            if who == rows.label_at
            else functools.partial(hold_columns, label_at=rows.label_at, **shared)
        )
    if helper:
        programs[helper] = functools.partial(
            help_counts, names=names, label_at=rows.label_at, settings=settings, rows=len(y)
        )
    results = choose_runtime(OWNER, runtime, all_stay=True).run_sync(programs, ledger=ledger)
    ledger.spent[:] = list(dict.fromkeys(ledger.spent))  # all parties paid for one release
    found = {who: [column_from_dict(e) for e in results[who]["columns"]] for who in names}
    columns = [c for who in names for c in found[who]]
    others, events = results[rows.label_at]["totals"]
    return VerticalWoeResult(
        tuple(columns),
        ledger,
        rows.label,
        event,
        (int(others), int(events)),
        len(names),
        1,
        (*rows.notes, *note_flat(columns, config)),
        is_private=config.epsilon is not None,
        owners={c.name: who for who in names for c in found[who]},
        tables=frames,
        outcome=y,
        label_at=rows.label_at,
        runtime=runtime,
    )


def _check_options(config: WoeConfig) -> None:
    """Refuse, all at once, what vertical parties cannot have."""
    problems = []
    if config.missing_codes is not None:
        must_be = "left out for vertical parties: declare them with the table, data.from_frame(…)"
        problems.append(bad(OWNER, "missing_codes", config.missing_codes, must_be))
    if config.epsilon is None and config.cuts is not None:
        problems.append(bad(OWNER, "cuts", config.cuts, "left out for vertical parties without epsilon"))
    if config.epsilon is not None and config.labels is None:
        problems.append(bad(OWNER, "labels", None, "the two outcomes, with epsilon"))
    if problems:
        raise BadParameter("\n".join(map(str, problems)))


def find_events(y: np.ndarray, labels: Sequence[str], label: str, event: Any) -> tuple[str, np.ndarray]:
    """Return the event's name, and 1 for each row that is one."""
    name = labels[1] if event is None else text_of(event)
    if name not in labels:
        raise BadData(
            f"boost.woe: the event is {name!r}; the outcomes of {label!r} are "
            f"{' and '.join(map(repr, labels))}."
        )
    return name, (y == list(labels).index(name)).astype(np.int64)


def _choose_columns(rows: BoostRows, config: WoeConfig) -> dict[str, pd.DataFrame]:
    """Return the columns of each party that are binned; names must differ."""
    known = [str(c) for frame in rows.frames.values() for c in frame.columns]
    twice = sorted({c for c in known if known.count(c) > 1})
    if twice:
        raise BadData(f"boost.woe: several parties have a column {twice[0]!r}. Rename it at one of them.")
    for name in config.features or ():
        if name not in known:
            raise bad(OWNER, "features", name, "a column of a party", nearest(str(name), known))
    chosen = {
        who: frame[[c for c in frame.columns if config.features is None or c in config.features]]
        for who, frame in rows.frames.items()
    }
    for who, frame in chosen.items():
        if who != rows.label_at and not len(frame.columns):
            text = f"a column of {who!r}, too: or leave that party out"
            raise bad(OWNER, "features", config.features, text)
    return chosen


def _declare(config: WoeConfig, frames: Mapping[str, pd.DataFrame]) -> dict[str, DeclaredColumns]:
    """Return what is declared about each party's columns."""
    known = [str(c) for frame in frames.values() for c in frame.columns]
    declared = DeclaredColumns.read(config.bounds, config.cuts, config.categories, known, OWNER)
    return {who: declared.only(list(frame.columns)) for who, frame in frames.items()}


def count_columns(declared: Mapping[str, DeclaredColumns]) -> dict[str, int]:
    """Return what the noise depends on: the columns of all parties."""
    return {
        "columns": sum(len(d.names) for d in declared.values()),
        "searched": sum(len(d.bounds) for d in declared.values()),
    }


def prepare(
    frame: pd.DataFrame,
    categories: Sequence[str],
    most: int,
    min_rows: int,
    who: str,
    missing_codes: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """Return what a party's program takes of its columns: bins by quantiles, cells, cells with rows."""
    own = OwnBins.fit(frame, categories, most, min_rows, who, missing_codes)
    codes = to_tensor(own.encode(frame))
    return {"bins": own.to_dict(), "codes": codes, "seen": cells_seen(own, frame)}


def prepare_private(
    frame: pd.DataFrame, declared: DeclaredColumns, most: int, settings: Mapping[str, Any], who: str
) -> dict[str, Any]:
    """As `prepare`, of declared columns with an ε: what others see of the bins follows from noisy counts."""
    noise = CountNoise.read(settings)
    assert noise is not None
    table = declared.take(frame, who)
    own = declared.fit(table, most, noise, os.urandom)
    seen = [[True] * (f.width + 1) for f in own.bins.features]
    return {"bins": own.to_dict(), "codes": to_tensor(own.encode(table)), "seen": seen}
