"""`tacit.stats.kaplan_meier`, `nelson_aalen`, `aalen_johansen` and `logrank`: curves from counts on a
grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ...errors import BadData, QueryRefused
from ...parameters import bad
from ...parties.ledger import Ledger
from ...stats import curves
from ...stats.design import plain_level
from ...stats.disclosure import suppress
from ...stats.level_sketch import LEVEL_ROWS
from ...stats.lifetimes import LifetimeCounts, LifetimeProgram, check_grid
from ...stats.site_logrank import SiteLogrank, SiteLogrankProgram
from ...stats.survival_result import Curves, LogRank
from ...stats.tables import check_frames, check_levels, check_names, to_columns
from . import private_survival
from .describe import LEAST, check_count
from .glm import SITE, add_site, with_sites
from .run import run_sums

FEW = 5  # fewer people than this behind a difference of two opened sums is worth a note


def kaplan_meier(
    fed: Any,
    *,
    time: str,
    event: str,
    by: str | None = None,
    entry: str | None = None,
    grid: float | Sequence[float] = 1.0,
    level: float = 0.95,
    min_count: int = LEAST,
    min_level_rows: int = LEVEL_ROWS,
    levels: Mapping[str, Sequence[Any]] | None = None,
    missing: str = "drop",
    epsilon: float | None = None,
    delta: float = 1e-6,
    runtime: Any = "cohort",
    guard: Any = None,
) -> Curves:
    """Estimate survival over time, by group, with Greenwood's intervals.

    `time` and `event` (1 or True: event, 0: censored) name columns, `by` the groups (or "site"), `entry` the
    time of entry if it is not 0. Times are rounded up to a grid, which is opened: multiples of `grid`
    (default 1, one unit of time), or the times it lists. With `epsilon`, the counts are noisy, and `grid`
    must list the times.

    Rows of the table are joined until min_count people have left since the row before, with no event or
    min_count events. The estimates in a row are those of its time, from all times; `at_risk` is at the
    beginning of the row. min_count=1 shows every time. `levels` and `min_level_rows` are as for `glm`.
    """
    check_level("kaplan_meier", level)
    check_count("kaplan_meier", "min_count", min_count)
    if epsilon is not None:
        options = _private(time, event, by, entry, grid, levels, missing, epsilon, delta)
        found = private_survival.count_privately("kaplan_meier", fed, runtime, guard, **options)
        return private_survival.conclude_curves("survival", "kaplan_meier", *found, level)
    counts, ledger, notes = count_lifetimes(
        "kaplan_meier", fed, time, event, by, (), entry, grid, (1,), levels, missing, min_level_rows,
        runtime, guard,
    )  # fmt: skip
    return conclude_survival(counts, ledger, notes, level, min_count)


def conclude_survival(
    counts: LifetimeCounts, ledger: Ledger, notes: tuple[str, ...], level: float, least: int
) -> Curves:
    tables, medians = [], {}
    for k, group in enumerate(counts.groups):
        table = curves.survival_table(
            counts.times, counts.events[0, k, 0], counts.exits[0, k], counts.at_risk[0, k], level
        )
        medians[str(group)] = curves.median_time(table)
        tables.append(with_group(table, group))
    notes += curves.note_rounding(counts.events[0, :, 0], counts.exits[0], counts.at_risk[0])
    return _curves("survival", tables, counts, ledger, notes, medians, least)


def nelson_aalen(
    fed: Any,
    *,
    time: str,
    event: str,
    by: str | None = None,
    entry: str | None = None,
    grid: float | Sequence[float] = 1.0,
    level: float = 0.95,
    min_count: int = LEAST,
    min_level_rows: int = LEVEL_ROWS,
    smooth: bool = True,
    levels: Mapping[str, Sequence[Any]] | None = None,
    missing: str = "drop",
    epsilon: float | None = None,
    delta: float = 1e-6,
    runtime: Any = "cohort",
    guard: Any = None,
) -> Curves:
    """Estimate the cumulative hazard over time. `smooth`: tied events count one after the other.

    `epsilon` is as for `kaplan_meier`; tied events then count together.
    """
    check_level("nelson_aalen", level)
    check_count("nelson_aalen", "min_count", min_count)
    if epsilon is not None:
        options = _private(time, event, by, entry, grid, levels, missing, epsilon, delta)
        found = private_survival.count_privately("nelson_aalen", fed, runtime, guard, **options)
        return private_survival.conclude_curves("hazard", "nelson_aalen", *found, level)
    counts, ledger, notes = count_lifetimes(
        "nelson_aalen", fed, time, event, by, (), entry, grid, (1,), levels, missing, min_level_rows,
        runtime, guard,
    )  # fmt: skip
    return conclude_hazard(counts, ledger, notes, level, smooth, min_count)


def conclude_hazard(
    counts: LifetimeCounts, ledger: Ledger, notes: tuple[str, ...], level: float, smooth: bool, least: int
) -> Curves:
    tables = [
        with_group(
            curves.hazard_table(
                counts.times, counts.events[0, k, 0], counts.exits[0, k], counts.at_risk[0, k], level, smooth
            ),
            group,
        )
        for k, group in enumerate(counts.groups)
    ]
    return _curves("hazard", tables, counts, ledger, notes, {}, least)


def aalen_johansen(
    fed: Any,
    *,
    time: str,
    event: str,
    cause: Any,
    causes: Sequence[Any],
    by: str | None = None,
    entry: str | None = None,
    grid: float | Sequence[float] = 1.0,
    level: float = 0.95,
    min_count: int = LEAST,
    min_level_rows: int = LEVEL_ROWS,
    levels: Mapping[str, Sequence[Any]] | None = None,
    missing: str = "drop",
    epsilon: float | None = None,
    delta: float = 1e-6,
    runtime: Any = "cohort",
    guard: Any = None,
) -> Curves:
    """Estimate the cumulative incidence of one cause with competing risks.

    `event` has 0 for censored rows and else one of `causes`; `cause` is the one of interest. `epsilon` is as
    for `kaplan_meier`.
    """
    check_level("aalen_johansen", level)
    check_count("aalen_johansen", "min_count", min_count)
    plain = check_causes(cause, causes)
    if epsilon is not None:
        options = _private(time, event, by, entry, grid, levels, missing, epsilon, delta)
        found = private_survival.count_privately("aalen_johansen", fed, runtime, guard, plain, **options)
        place = plain.index(plain_level(cause))
        return private_survival.conclude_curves("incidence", "aalen_johansen", *found, level, place)
    counts, ledger, notes = count_lifetimes(
        "aalen_johansen", fed, time, event, by, (), entry, grid, tuple(plain), levels, missing,
        min_level_rows, runtime, guard,
    )  # fmt: skip
    return conclude_incidence(counts, ledger, notes, level, plain.index(plain_level(cause)), min_count)


def check_causes(cause: Any, causes: Sequence[Any]) -> list[Any]:
    if not isinstance(causes, list | tuple) or not causes:
        raise bad("aalen_johansen", "causes", causes, "a list of all causes in the event column, like [1, 2]")
    plain = [plain_level(c) for c in causes]
    if plain_level(cause) not in plain or 0 in plain:
        raise bad("aalen_johansen", "cause", cause, f"one of causes={list(causes)}, none of which is 0")
    return plain


def _private(
    time: str, event: str, by: str | None, entry: str | None, grid: Any, levels: Any, missing: str,
    epsilon: float, delta: float,
) -> dict[str, Any]:  # fmt: skip
    return {
        "time": time, "event": event, "by": by, "entry": entry, "grid": grid, "levels": levels,
        "missing": missing, "epsilon": epsilon, "delta": delta,
    }  # fmt: skip


def conclude_incidence(
    counts: LifetimeCounts, ledger: Ledger, notes: tuple[str, ...], level: float, which: int, least: int
) -> Curves:
    tables = [
        with_group(
            curves.incidence_table(
                counts.times, counts.events[0, k], counts.exits[0, k], counts.at_risk[0, k], which, level
            ),
            group,
        )
        for k, group in enumerate(counts.groups)
    ]
    return _curves("incidence", tables, counts, ledger, notes, {}, least)


def logrank(
    fed: Any,
    *,
    time: str,
    event: str,
    by: str,
    strata: str | Sequence[str] | None = None,
    entry: str | None = None,
    weighting: str = "logrank",
    grid: float | Sequence[float] = 1.0,
    min_count: int = LEAST,
    min_level_rows: int = LEVEL_ROWS,
    levels: Mapping[str, Sequence[Any]] | None = None,
    missing: str = "drop",
    epsilon: float | None = None,
    delta: float = 1e-6,
    runtime: Any = "cohort",
    guard: Any = None,
) -> LogRank:
    """Test whether groups have the same survival; `strata` are compared within themselves.

    `strata="site"`: every party computes its own differences, and only their sum over all parties is opened,
    no grid. `weighting`: "logrank", "wilcoxon", "tarone-ware" or "peto". `epsilon` is as for
    `kaplan_meier`: with a declared grid and levels, without strata. Events of a group are not shown if they
    are 1 to min_count − 1, nor those of one more group, which would follow from the total.
    """
    check_count("logrank", "min_count", min_count)
    check_count("logrank", "min_level_rows", min_level_rows)
    if weighting not in curves.WEIGHTINGS:
        raise bad("logrank", "weighting", weighting, ", ".join(map(repr, curves.WEIGHTINGS)))
    columns = to_columns("logrank", strata)
    check_names("logrank", time=time, event=event, by=by, entry_=entry)
    if epsilon is not None:
        check_no_strata(columns)
        options = _private(time, event, by, entry, grid, levels, missing, epsilon, delta)
        private = private_survival.count_privately("logrank", fed, runtime, guard, **options)
        return private_survival.conclude_logrank(*private, weighting)
    frames = check_frames(fed, "logrank")
    if columns == (SITE,) and not any(SITE in f.columns for f in frames.values()):
        program = SiteLogrankProgram(
            time, event, by, entry, weighting, dict(levels or {}), missing, min_level_rows
        )
        found, ledger = run_sums(program, add_site(frames), runtime=runtime, guard=guard, owner="logrank")
        return conclude_by_site(found, ledger, weighting, min_count)
    counts, ledger, notes = count_lifetimes(
        "logrank", fed, time, event, by, columns, entry, grid, (1,), levels, missing, min_level_rows,
        runtime, guard,
    )  # fmt: skip
    return conclude_logrank(counts, ledger, notes, weighting, min_count)


def check_no_strata(strata: Sequence[str]) -> None:
    if strata:
        raise bad(
            "logrank", "strata", strata, "none with epsilon: every stratum would divide the counts again"
        )


def conclude_by_site(found: SiteLogrank, ledger: Ledger, weighting: str, least: int) -> LogRank:
    ledger.stamp("logrank opened sums over all parties: observed, expected and covariances by group.")
    return _logrank(
        found.difference, found.covariance, found.groups, found.both, weighting,
        "none: every party used its own times", found.rows, found.dropped, found.parties, ledger, (), least,
    )  # fmt: skip


def conclude_logrank(
    counts: LifetimeCounts, ledger: Ledger, notes: tuple[str, ...], weighting: str, least: int
) -> LogRank:
    groups, risk = len(counts.groups), counts.at_risk
    difference, covariance, both = np.zeros(groups), np.zeros((groups, groups)), np.zeros((2, groups))
    for s in range(len(counts.strata)):
        parts = curves.logrank_parts(counts.events[s, :, 0], risk[s], weighting)
        difference, covariance, both = difference + parts[0], covariance + parts[1], both + parts[2]
    return _logrank(
        difference, covariance, counts.groups, both, weighting, counts.grid,
        counts.rows, counts.dropped, counts.parties, ledger, notes, least,
    )  # fmt: skip


def _logrank(
    difference: np.ndarray, covariance: np.ndarray, groups: Sequence[Any], both: np.ndarray, weighting: str,
    grid: str, rows: int, dropped: int, parties: int, ledger: Ledger, notes: tuple[str, ...],
    least: int,
) -> LogRank:  # fmt: skip
    statistic, freedom, p = curves.chi_square(difference, covariance)
    hidden = suppress(both[0], least)
    shown = np.where(hidden, np.nan, both)
    table = pd.DataFrame({"observed": shown[0], "expected": shown[1]}, index=pd.Index(groups, name="group"))
    if hidden.any():
        notes = (
            *notes,
            f"Events of groups with 1 to {least - 1}, or that would give these away, are not shown.",
        )
    return LogRank(statistic, freedom, p, table, weighting, grid, rows, dropped, parties, ledger, notes)


def count_lifetimes(
    owner: str, fed: Any, time: str, event: str, by: str | None, strata: tuple[str, ...], entry: str | None,
    grid: Any, causes: tuple[Any, ...], levels: Any, missing: str, min_level_rows: int, runtime: Any,
    guard: Any,
) -> tuple[LifetimeCounts, Ledger, tuple[str, ...]]:  # fmt: skip
    """Run the program of counts, and say in the ledger what grid was opened."""
    if missing not in ("drop", "error"):
        raise bad(owner, "missing", missing, "'drop' (complete cases) or 'error'")
    check_count(owner, "min_level_rows", min_level_rows)
    frames = check_frames(fed, owner)
    check_names(owner, time=time, event=event, by_=by, entry_=entry)
    words = " ".join(filter(None, (by, *strata)))
    program = LifetimeProgram(
        time, event, by, strata, entry, check_grid(grid, owner), causes,
        with_sites(levels, frames, frames, words), missing, owner, min_level_rows,
    )  # fmt: skip
    check_levels(owner, program.levels or {}, program.categories)
    counts, ledger = run_sums(program, add_site(frames), runtime=runtime, guard=guard, owner=owner)
    return counts, ledger, say_opened(program, counts, ledger)


def say_opened(program: LifetimeProgram, counts: LifetimeCounts, ledger: Ledger) -> tuple[str, ...]:
    """Say in the ledger what grid was opened; return notes."""
    owner, words = program.owner, program.categories
    if counts.events.sum() == 0 and owner != "nelson_aalen":
        raise BadData(f"{owner}: no party has an event ({program.event!r} = 1).")
    what = "events and departures" + (" and entries" if program.entry else "")
    groups = f", for each of {len(counts.groups)} groups" if program.by else ""
    ledger.stamp(
        f"{owner} opened counts of {what} of all parties together on the grid: {counts.grid}{groups}."
    )
    notes = []
    if counts.smallest < FEW:
        notes.append(
            f"At some grid points only {counts.smallest} of all parties' rows left. A coarser grid= "
            "opens less."
        )
    if SITE in words:
        notes.append("by site: the counts of each site alone were opened.")
        ledger.stamp(notes[-1])
    return tuple(notes)


def with_group(table: pd.DataFrame, group: Any) -> pd.DataFrame:
    table.insert(0, "group", group)
    return table


def check_level(owner: str, level: float) -> None:
    if not 0 < level < 1:
        raise bad(owner, "level", level, "a probability between 0 and 1")


def _curves(
    kind: str, tables: list[pd.DataFrame], counts: LifetimeCounts, ledger: Ledger, notes: tuple[str, ...],
    medians: dict[str, float], least: int,
) -> Curves:  # fmt: skip
    exits = [c[c > 0] for c in counts.exits[0]]
    joined = [curves.join_rows(table, left, least) for table, left in zip(tables, exits)]
    if any(len(a) < len(b) for a, b in zip(joined, tables)):
        notes = (*notes, f"Times are joined so that no count of events is 1 to {least - 1} (min_count).")
    hidden = [str(g) for g, table in zip(counts.groups, joined) if not len(table)]
    if len(hidden) == len(joined):
        raise QueryRefused(
            f"no group has {least} events, and smaller counts are not shown. Set min_count=1 if they may be."
        )
    if hidden:
        notes = (*notes, f"Not shown, because of counts below {least}: {', '.join(hidden)}.")
        medians = {group: value for group, value in medians.items() if group not in hidden}
    return Curves(
        kind, pd.concat(joined, ignore_index=True), counts.grid, counts.rows, counts.dropped, counts.parties,
        ledger, counts, medians, notes, least,
    )  # fmt: skip
