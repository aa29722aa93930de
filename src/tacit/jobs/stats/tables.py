"""Single statistics across parties: quantiles, histograms, cross-tabulations, correlations, rank tests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from ...parties.ledger import Ledger
from ...results import JobResult
from ...stats.columns import OTHER
from ...stats.comparisons import (
    GroupTest,
    chi_square,
)
from ...stats.counts import CrosstabProgram, FrequentProgram, HistogramProgram
from ...stats.description import DescribeProgram, Descriptions
from ...stats.disclosure import suppress, suppress_table
from ...stats.noisy import NoisyHistogram, Z, check_privacy
from ...stats.noisy_crosstab import NoisyCrosstab, independence_test
from ...stats.noisy_frequent import NoisyFrequentProgram
from ...stats.table_one import few_rows
from ...stats.tables import check_frames
from .describe import (
    DELTA,
    LEAST,
    add_noise,
    check_bounds,
    check_count,
    check_quantiles,
    levels,
    need_columns,
    need_levels,
)
from .run import run_sums

FINE_BINS = 4096  # of the noisy histogram behind a quantile


@dataclass(frozen=True)
class Statistic(JobResult):
    """A table of numbers, with single values (`statistics`) such as a test's p."""

    title: ClassVar[str] = "Statistics"
    facts: ClassVar[tuple[str, ...]] = ("name", "statistics", "rows_of_table", "notes")

    name: str
    table: pd.DataFrame
    ledger: Ledger = field(repr=False)
    statistics: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def value(self) -> pd.DataFrame:
        return self.table

    @property
    def p(self) -> float:
        return float(self.statistics.get("p", math.nan))

    @property
    def rows_of_table(self) -> list[dict[str, Any]]:
        frame = self.table.reset_index() if self.table.index.name else self.table
        return [{str(k): v for k, v in row.items()} for row in frame.to_dict("records")]

    def _summary(self) -> str:
        single = [f"{k:12} {v:.6g}" for k, v in self.statistics.items()]
        return "\n".join([self.name, self.table.to_string(), *single, *self.notes])


def quantile(
    fed: Any,
    column: str,
    q: float | Sequence[float] = 0.5,
    *,
    by: str | None = None,
    groups: Sequence[Any] | None = None,
    epsilon: float | None = None,
    delta: float = DELTA,
    bounds: tuple[float, float] | None = None,
    runtime: Any = "cohort",
    guard: Any = None,
) -> Statistic:
    """Quantiles of a column over all parties' rows, of exact rank (type 7, as in pandas and R).

    `low` and `high` bound the value: the search ends at 0.012% of it, before one person's last digits. With
    `epsilon` and declared `bounds` they come from a noisy histogram of 4096 bins, with 95% intervals.
    `groups` are the levels of `by`, and must be declared with `epsilon`.
    """
    owner = "stats.quantile"
    wanted: list[Any] = list(q) if isinstance(q, Sequence | np.ndarray) else [q]
    check_quantiles(owner, wanted)
    frames = check_frames(fed, owner)
    need_columns(frames, [column, *([by] if by else [])], owner)
    if by is not None and epsilon is not None:
        need_levels([by], {} if groups is None else {by: groups}, owner)
    group = None if by is None else levels(frames, by, groups, owner)
    plain = DescribeProgram((column,), (), group, tuple(map(float, wanted)))
    ranges = None if bounds is None else {column: bounds}
    program: Any = (
        plain
        if epsilon is None
        else add_noise(plain, len(frames), epsilon, delta, ranges, ("histogram",), owner, FINE_BINS)
    )
    found, ledger = run_sums(program, frames, runtime=runtime, guard=guard, owner=owner)
    return conclude_quantiles(column, wanted, by, found, ledger)


def conclude_quantiles(
    column: str, wanted: Sequence[float], by: str | None, found: Descriptions, ledger: Ledger
) -> Statistic:
    moments = found.numbers[column]
    hidden = few_rows(moments, LEAST)
    rows = [
        {"group": g, "q": p, "value": value, "low": low, "high": high, "n": m.n}
        for g, m in moments.items()
        for p, (low, value, high) in m.quantiles.items()
        if not hidden[g]
    ]
    table = pd.DataFrame(rows, columns=["group", "q", "value", "low", "high", "n"])
    few = len(rows) < len(moments) * len(wanted)
    notes = (f"groups of fewer than {LEAST} rows are not shown",) if few else ()
    table = table.drop(columns="group") if by is None else table
    return Statistic(f"quantiles of {column}", table, ledger, notes=notes)


def histogram(
    fed: Any,
    column: str,
    bounds: tuple[float, float],
    bins: int = 20,
    *,
    min_count: int = LEAST,
    epsilon: float | None = None,
    delta: float = DELTA,
    runtime: Any = "cohort",
    guard: Any = None,
) -> Statistic:
    """Counts in equal bins of a declared range; rows below and above it are counted at the ends.

    With `epsilon` counts have noise, `low_n` and `high_n` bound them (95%), and rows outside the range are
    in its first and last bin.
    """
    owner = "stats.histogram"
    frames = check_frames(fed, owner)
    need_columns(frames, [column], owner)
    low, high = check_bounds(owner, bounds)
    check_count(owner, "bins", bins)
    check_count(owner, "min_count", min_count)
    if epsilon is not None:
        noisy = noisy_histogram(column, (low, high), bins, len(frames), epsilon, delta)
        found, ledger = run_sums(noisy, frames, runtime=runtime, guard=guard, owner=owner)
        return conclude_noisy_histogram(noisy, found, ledger)
    program = HistogramProgram(column, low, high, bins)
    total, ledger = run_sums(program, frames, runtime=runtime, guard=guard, owner=owner)
    return conclude_histogram(program, total, ledger, min_count)


def conclude_histogram(program: HistogramProgram, total: np.ndarray, ledger: Ledger, least: int) -> Statistic:
    edges = [-math.inf, *np.linspace(program.low, program.high, program.bins + 1), math.inf]
    hidden = suppress(total[0], least)
    shown = np.where(hidden, math.nan, total[0])
    table = pd.DataFrame({"low": edges[:-1], "high": edges[1:], "n": shown})
    notes = (f"counts below {least} are not shown",) if hidden.any() else ()
    return Statistic(f"histogram of {program.column}", table, ledger, {"n": float(total.sum())}, notes)


def noisy_histogram(
    column: str, bounds: tuple[float, float], bins: int, parties: int, epsilon: float, delta: float
) -> NoisyHistogram:
    plain = DescribeProgram((column,), (), None, ())
    noisy = add_noise(
        plain, parties, epsilon, delta, {column: bounds}, ("histogram",), "stats.histogram", bins
    )
    return NoisyHistogram(**{f.name: getattr(noisy, f.name) for f in fields(noisy)})


def conclude_noisy_histogram(program: NoisyHistogram, found: np.ndarray, ledger: Ledger) -> Statistic:
    (column, low, high), bins, counts = program.numeric[0], program.bins, found[0]
    deviation = math.sqrt(program.variance(bins, 1))
    edges = np.linspace(low, high, bins + 1)
    table = pd.DataFrame(
        {
            "low": edges[:-1],
            "high": edges[1:],
            "n": np.maximum(counts, 0),
            "low_n": np.maximum(counts - Z * deviation, 0),
            "high_n": np.maximum(counts + Z * deviation, 0),
        }
    )
    note = f"counts have noise of standard deviation {deviation:.3g}"
    return Statistic(f"histogram of {column}", table, ledger, {"n": float(counts.sum())}, (note,))


def crosstab(
    fed: Any,
    rows: str,
    columns: str,
    *,
    categories: Mapping[str, Sequence[Any]] | None = None,
    min_count: int = LEAST,
    epsilon: float | None = None,
    delta: float = DELTA,
    runtime: Any = "cohort",
    guard: Any = None,
) -> Statistic:
    """Counts by two columns, with Pearson's χ² test; rows with a missing value are left out.

    Counts of 1 to min_count − 1 are not shown, and then neither is the test. With `epsilon` and declared
    `categories` of both columns, counts have noise, `margin` bounds it (95%), and p comes from simulated
    independent tables with the same noise.
    """
    owner, declared = "stats.crosstab", categories or {}
    frames = check_frames(fed, owner)
    need_columns(frames, [rows, columns], owner)
    check_count(owner, "min_count", min_count)
    if epsilon is not None:
        need_levels((rows, columns), declared, owner)
        check_privacy(owner, epsilon, delta)
        pair = tuple(levels(frames, c, declared[c], owner) for c in (rows, columns))
        noisy = NoisyCrosstab(len(frames), float(epsilon), delta, categories=pair)
        total, ledger = run_sums(noisy, frames, runtime=runtime, guard=guard, owner=owner)
        return conclude_noisy_crosstab(noisy, total, ledger)
    a, b = (levels(frames, c, declared.get(c), owner) for c in (rows, columns))
    program = CrosstabProgram(a, b)
    total, ledger = run_sums(program, frames, runtime=runtime, guard=guard, owner=owner)
    return conclude_crosstab(program, total, ledger, min_count)


def conclude_crosstab(program: CrosstabProgram, total: np.ndarray, ledger: Ledger, least: int) -> Statistic:
    (rows, a), (columns, b) = program.rows, program.columns
    counts = total[:-1, :-1]
    hidden = suppress_table(counts, least)
    table = pd.DataFrame(
        np.where(hidden, math.nan, counts.astype(float)),
        pd.Index([*a, OTHER], name=rows),
        pd.Index([*b, OTHER], name=columns),
    ).loc[counts.sum(1) > 0, counts.sum(0) > 0]
    test = GroupTest("χ²", math.nan, math.nan) if hidden.any() else chi_square(counts)
    statistics = {"n": float(counts.sum()), "chi_square": test.statistic, "df": test.df, "p": test.p}
    note = f"counts below {least} are not shown, nor the test that they would enter"
    return Statistic(f"{rows} by {columns}", table, ledger, statistics, (note,) if hidden.any() else ())


def conclude_noisy_crosstab(program: NoisyCrosstab, total: np.ndarray, ledger: Ledger) -> Statistic:
    (rows, a), (columns, b) = program.categories
    counts, variance = total[:-1, :-1].astype(float), program.variance(total.size, 1)
    table = pd.DataFrame(
        np.maximum(counts, 0), pd.Index([*a, OTHER], name=rows), pd.Index([*b, OTHER], name=columns)
    )
    statistic, p = independence_test(counts[:-1, :-1], variance, np.random.default_rng(0))
    statistics = {
        "n": float(counts.sum()),
        "chi_square": statistic,
        "p": p,
        "margin": Z * math.sqrt(variance),
    }
    notes = [f"counts have noise of standard deviation {math.sqrt(variance):.3g}"]
    if math.isnan(p):
        notes.append("the test needs expected counts of at least 5 in all declared cells")
    else:
        notes.append("p: share of simulated independent tables with the same noise and as large a χ²")
    return Statistic(f"{rows} by {columns}", table, ledger, statistics, tuple(notes))


def heavy_hitters(
    fed: Any,
    column: str,
    min_count: int = 20,
    *,
    longest: int = 32,
    most: int = 64,
    min_cell: int = LEAST,
    epsilon: float | None = None,
    delta: float = DELTA,
    runtime: Any = "cohort",
    guard: Any = None,
) -> Statistic:
    """Values of a column with many levels (codes, drugs, places) that occur at least min_count times.

    They are found letter by letter, so that no party has to state its values. Values longer than `longest`
    bytes are cut off there; at most `most` prefixes are followed. With `epsilon` all counts have noise, of
    which a smaller `longest` needs less; values within the noise are not found. Without it, a party leaves
    values out that it has fewer than `min_cell` times, so that no such count is opened: counts are lower
    bounds, too low by at most min_cell − 1 rows of each party. `min_cell=1` counts all rows.
    """
    owner = "stats.heavy_hitters"
    frames = check_frames(fed, owner)
    need_columns(frames, [column], owner)
    given = {"min_count": min_count, "longest": longest, "most": most, "min_cell": min_cell}
    for name, number in given.items():
        check_count(owner, name, number)
    program = frequent_program(column, min_count, longest, most, len(frames), epsilon, delta, min_cell)
    found, ledger = run_sums(program, frames, runtime=runtime, guard=guard, owner=owner)
    return conclude_frequent(program, found, ledger)


def frequent_program(
    column: str,
    least: int,
    longest: int,
    most: int,
    parties: int,
    epsilon: float | None,
    delta: float,
    min_cell: int = LEAST,
) -> FrequentProgram:
    if epsilon is None:
        return FrequentProgram(column, least, longest, most, cell=min_cell)
    check_privacy("stats.heavy_hitters", epsilon, delta)
    return NoisyFrequentProgram(
        column, least, longest, most, parties=parties, epsilon=float(epsilon), delta=float(delta)
    )


def conclude_frequent(program: FrequentProgram, found: dict[str, int], ledger: Ledger) -> Statistic:
    table = pd.DataFrame({"n": list(found.values())}, pd.Index(list(found), name=program.column))
    title = f"values of {program.column} with at least {program.least} rows"
    if not isinstance(program, NoisyFrequentProgram):
        fewest = "few as they may be" if program.cell == 1 else f"at least {program.cell} rows of each party"
        ledger.stamp(
            f"heavy_hitters opened, for every beginning of at least {program.least} values, how many go on "
            f"with each letter, {fewest}. With epsilon they have noise."
        )
        note = (
            f"counts are lower bounds: parties left out values that they have 1 to {program.cell - 1} times"
        )
        return Statistic(title, table, ledger, {}, (note,) if program.cell > 1 else ())
    deviation = program.deviation(1)
    note = (
        f"counts have noise of standard deviation {deviation:.3g}; values of fewer than about "
        f"{program._threshold(1):.0f} rows are not found"
    )
    return Statistic(title, table, ledger, {"margin": Z * deviation}, (note,))
