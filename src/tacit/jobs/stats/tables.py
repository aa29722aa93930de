"""Single statistics across parties: quantiles, histograms, cross-tabulations, correlations, rank tests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from ...parameters import bad
from ...parties.ledger import Ledger
from ...results import JobResult
from ...stats.columns import OTHER, is_number
from ...stats.comparisons import (
    GroupTest,
    chi_square,
    distributions,
)
from ...stats.comparisons import (
    mann_whitney as rank_test,
)
from ...stats.comparisons import (
    ttest as t_test,
)
from ...stats.counts import CorrelationProgram, CrosstabProgram, FrequentProgram, HistogramProgram
from ...stats.description import DescribeProgram, Descriptions
from ...stats.disclosure import suppress, suppress_table
from ...stats.noisy import NoisyHistogram, Z, check_privacy
from ...stats.noisy_crosstab import NoisyCrosstab, independence_test
from ...stats.table_one import few_rows
from ...stats.tables import check_frames
from .describe import (
    DELTA,
    LEAST,
    add_noise,
    check_bounds,
    check_count,
    check_quantiles,
    common_columns,
    levels,
    need_columns,
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
    epsilon: float | None = None,
    delta: float = DELTA,
    bounds: tuple[float, float] | None = None,
    runtime: Any = "cohort",
    guard: Any = None,
) -> Statistic:
    """Quantiles of a column over all parties' rows, of exact rank (type 7, as in pandas and R).

    `low` and `high` bound the value: the search ends at 0.012% of it, before one person's last digits. With
    `epsilon` and declared `bounds` they come from a noisy histogram of 4096 bins, with 95% intervals.
    """
    owner = "stats.quantile"
    wanted = [q] if isinstance(q, int | float) else list(q)
    check_quantiles(owner, wanted)
    frames = check_frames(fed, owner)
    need_columns(frames, [column, *([by] if by else [])], owner)
    group = None if by is None else levels(frames, by, None, owner)
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
    if epsilon is not None:
        return _noisy_histogram(frames, column, (low, high), bins, epsilon, delta, runtime, guard)
    program = HistogramProgram(column, low, high, bins)
    total, ledger = run_sums(program, frames, runtime=runtime, guard=guard, owner=owner)
    return conclude_histogram(program, total, ledger, min_count)


def conclude_histogram(program: HistogramProgram, total: np.ndarray, ledger: Ledger, least: int) -> Statistic:
    edges = [-math.inf, *np.linspace(program.low, program.high, program.bins + 1), math.inf]
    shown = np.where(suppress(total[0], least), math.nan, total[0])
    table = pd.DataFrame({"low": edges[:-1], "high": edges[1:], "n": shown})
    return Statistic(f"histogram of {program.column}", table, ledger, {"n": float(total.sum())})


def _noisy_histogram(
    frames: Any,
    column: str,
    bounds: tuple[float, float],
    bins: int,
    epsilon: float,
    delta: float,
    runtime: Any,
    guard: Any,
) -> Statistic:
    owner = "stats.histogram"
    plain = DescribeProgram((column,), (), None, ())
    noisy = add_noise(plain, len(frames), epsilon, delta, {column: bounds}, ("histogram",), owner, bins)
    program = NoisyHistogram(**{f.name: getattr(noisy, f.name) for f in fields(noisy)})
    counts, ledger = run_sums(program, frames, runtime=runtime, guard=guard, owner=owner)
    margin = Z * math.sqrt(program.variance(bins, 1))
    edges = np.linspace(*bounds, bins + 1)
    table = pd.DataFrame(
        {
            "low": edges[:-1],
            "high": edges[1:],
            "n": np.maximum(counts, 0),
            "low_n": np.maximum(counts - margin, 0),
            "high_n": np.maximum(counts + margin, 0),
        }
    )
    note = f"counts have noise of standard deviation {math.sqrt(program.variance(bins, 1)):.3g}"
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
    if epsilon is not None:
        missing = [c for c in (rows, columns) if c not in declared]
        if missing:
            raise bad(
                owner,
                "categories",
                categories,
                f"the levels of {' and '.join(map(repr, missing))} with epsilon: taken from rows, they would "
                "show that a level occurs",
            )
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


def correlation(
    fed: Any,
    columns: Sequence[str] | None = None,
    *,
    runtime: Any = "cohort",
    guard: Any = None,
) -> Statistic:
    """Pearson's correlations of numeric columns, over the rows where both are present."""
    owner = "stats.correlation"
    frames = check_frames(fed, owner)
    names = (
        list(columns)
        if columns is not None
        else [c for c in common_columns(frames, owner) if all(is_number(f[c]) for f in frames.values())]
    )
    need_columns(frames, names, owner)
    if len(set(names)) < 2:
        raise bad(owner, "columns", names, "at least two numeric columns")
    program = CorrelationProgram(tuple(names))
    found, ledger = run_sums(program, frames, runtime=runtime, guard=guard, owner=owner)
    return conclude_correlation(program, found, ledger)


def conclude_correlation(
    program: CorrelationProgram, found: tuple[np.ndarray, np.ndarray], ledger: Ledger
) -> Statistic:
    r, n = found
    names = list(program.columns)
    few = (n < LEAST) & ~np.eye(len(names), dtype=bool)
    return Statistic("correlation", pd.DataFrame(np.where(few, math.nan, r), names, names), ledger)


def ttest(
    fed: Any,
    column: str,
    by: str,
    *,
    equal_var: bool = False,
    runtime: Any = "cohort",
    guard: Any = None,
) -> Statistic:
    """Welch's t test (Student's with equal_var) of a column between the two groups of `by`."""
    owner = "stats.ttest"
    frames, groups = _two_groups(fed, column, by, owner)
    program = DescribeProgram((column,), (), groups, ())
    found, ledger = run_sums(program, frames, runtime=runtime, guard=guard, owner=owner)
    parts = [found.numbers[column][g] for g in groups[1]]
    n, mean, sd = [m.n for m in parts], [m.mean for m in parts], [m.sd for m in parts]
    _need_rows(n, groups, owner)
    test = t_test(n, mean, sd, equal_var)
    table = pd.DataFrame({"n": n, "mean": mean, "sd": sd}, pd.Index(groups[1], name=by))
    margin = float(distributions().t.ppf(0.975, test.df)) * abs((mean[0] - mean[1]) / test.statistic)
    difference = mean[0] - mean[1]
    statistics = {
        "difference": difference,
        "low": difference - margin,
        "high": difference + margin,
        "t": test.statistic,
        "df": test.df,
        "p": test.p,
    }
    return Statistic(f"{test.name} test of {column} by {by}", table, ledger, statistics)


def mann_whitney(
    fed: Any,
    column: str,
    by: str,
    bounds: tuple[float, float],
    bins: int = 1000,
    *,
    runtime: Any = "cohort",
    guard: Any = None,
) -> Statistic:
    """The Mann–Whitney U test between the two groups of `by`, by ranks over all parties.

    Ranks come from counts in equal bins of a declared range; values of one bin are ties. With a bin for
    every value (ages: bounds=(0, 120), bins=120) the test equals that of the pooled rows.
    """
    owner = "stats.mann_whitney"
    frames, groups = _two_groups(fed, column, by, owner)
    low, high = check_bounds(owner, bounds)
    program = HistogramProgram(column, low, high, bins, groups)
    total, ledger = run_sums(program, frames, runtime=runtime, guard=guard, owner=owner)
    return conclude_ranks(program, total, ledger)


def conclude_ranks(program: HistogramProgram, total: np.ndarray, ledger: Ledger) -> Statistic:
    assert program.by is not None
    n = total.sum(1).tolist()
    _need_rows(n, program.by, "stats.mann_whitney")
    test = rank_test(total[0], total[1])
    table = pd.DataFrame({"n": n}, pd.Index(program.by[1], name=program.by[0]))
    statistics = {"u": test.statistic, "p": test.p, "auc": test.statistic / (n[0] * n[1])}
    width = (program.high - program.low) / program.bins
    note = f"ranks from {program.bins} bins of width {width:g}; values of one bin are ties"
    title = f"Mann–Whitney test of {program.column} by {program.by[0]}"
    return Statistic(title, table, ledger, statistics, (note,))


def _two_groups(fed: Any, column: str, by: str, owner: str) -> tuple[Any, tuple[str, tuple[str, ...]]]:
    frames = check_frames(fed, owner)
    need_columns(frames, [column, by], owner)
    groups = levels(frames, by, None, owner)
    if len(groups[1]) != 2:
        raise bad(owner, f"the levels of {by!r}", list(groups[1]), "two groups")
    return frames, groups


def _need_rows(n: Sequence[int], groups: tuple[str, tuple[str, ...]], owner: str) -> None:
    if min(n) < LEAST:
        raise bad(
            owner,
            f"the smallest group of {groups[0]!r}",
            f"below {LEAST} rows",
            f"at least {LEAST}: its figures would be those of single people",
        )


def heavy_hitters(
    fed: Any,
    column: str,
    min_count: int = 20,
    *,
    longest: int = 32,
    most: int = 64,
    runtime: Any = "cohort",
    guard: Any = None,
) -> Statistic:
    """Values of a column with many levels (codes, drugs, places) that occur at least min_count times.

    They are found letter by letter, so that no party has to state its values. Values longer than `longest`
    bytes are cut off there; at most `most` prefixes are followed.
    """
    owner = "stats.heavy_hitters"
    frames = check_frames(fed, owner)
    need_columns(frames, [column], owner)
    for name, number in (("min_count", min_count), ("longest", longest), ("most", most)):
        check_count(owner, name, number)
    program = FrequentProgram(column, min_count, longest, most)
    found, ledger = run_sums(program, frames, runtime=runtime, guard=guard, owner=owner)
    return conclude_frequent(program, found, ledger)


def conclude_frequent(program: FrequentProgram, found: dict[str, int], ledger: Ledger) -> Statistic:
    table = pd.DataFrame({"n": list(found.values())}, pd.Index(list(found), name=program.column))
    return Statistic(f"values of {program.column} with at least {program.least} rows", table, ledger)
