"""Comparisons of columns and groups across parties: correlations, t tests and rank tests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pandas as pd

from ...parameters import bad
from ...parties.ledger import Ledger
from ...stats.columns import is_number
from ...stats.comparisons import distributions
from ...stats.comparisons import mann_whitney as rank_test
from ...stats.comparisons import ttest as t_test
from ...stats.counts import CorrelationProgram, HistogramProgram
from ...stats.description import DescribeProgram, Descriptions
from ...stats.noisy import NoisyHistogram
from ...stats.noisy_tests import NoisyCorrelation, compare_means
from ...stats.noisy_tests import rank_test as noisy_rank_test
from ...stats.tables import check_frames
from .describe import (
    DELTA,
    LEAST,
    add_noise,
    check_bounds,
    check_list,
    common_columns,
    declare_numbers,
    levels,
    need_columns,
    need_levels,
)
from .run import run_sums
from .tables import Statistic

RANK_BINS, NOISY_RANK_BINS = 1000, 50  # of a rank test


def correlation(
    fed: Any,
    columns: Sequence[str] | None = None,
    *,
    epsilon: float | None = None,
    delta: float = DELTA,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    runtime: Any = "cohort",
    guard: Any = None,
) -> Statistic:
    """Pearson's correlations of numeric columns, over the rows where both are present.

    With `epsilon` and declared `bounds` of all columns they come from noisy sums of clipped numbers, and
    `statistics` has 95% intervals that include the noise ("low a, b", "high a, b").
    """
    owner = "stats.correlation"
    frames = check_frames(fed, owner)
    check_list(owner, "columns", columns)
    if epsilon is not None:
        frames = declare_numbers(frames, bounds)
    names = (
        list(columns)
        if columns is not None
        else [c for c in common_columns(frames, owner) if all(is_number(f[c]) for f in frames.values())]
    )
    need_columns(frames, names, owner)
    if len(set(names)) < 2:
        raise bad(owner, "columns", names, "at least two numeric columns")
    if epsilon is not None:
        noisy = noisy_correlation(names, len(frames), epsilon, delta, bounds)
        pairs, ledger = run_sums(noisy, frames, runtime=runtime, guard=guard, owner=owner)
        return conclude_noisy_correlation(noisy, pairs, ledger)
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


def noisy_correlation(
    names: Sequence[str], parties: int, epsilon: float, delta: float, bounds: Any
) -> NoisyCorrelation:
    plain = DescribeProgram(tuple(names), (), None, ())
    checked = add_noise(plain, parties, epsilon, delta, bounds, owner="stats.correlation")
    return NoisyCorrelation(parties, float(epsilon), float(delta), checked.numeric)


def conclude_noisy_correlation(
    program: NoisyCorrelation, found: Sequence[tuple[float, float, float, float]], ledger: Ledger
) -> Statistic:
    names = program.columns
    r = np.eye(len(names))
    statistics: dict[str, float] = {}
    for (i, j), (_, value, low, high) in zip(program.pairs, found):
        r[i, j] = r[j, i] = value
        statistics |= {f"low {names[i]}, {names[j]}": low, f"high {names[i]}, {names[j]}": high}
    note = f"sums have noise for ε = {program.epsilon:g}; 95% intervals include it"
    return Statistic("correlation", pd.DataFrame(r, names, names), ledger, statistics, (note,))


def ttest(
    fed: Any,
    column: str,
    by: str,
    *,
    equal_var: bool = False,
    groups: Sequence[Any] | None = None,
    epsilon: float | None = None,
    delta: float = DELTA,
    bounds: tuple[float, float] | None = None,
    runtime: Any = "cohort",
    guard: Any = None,
) -> Statistic:
    """Welch's t test (Student's with equal_var) of a column between the two groups of `by`.

    `groups` declares them. With `epsilon`, declared `groups` and `bounds`, counts, sums and squares have
    noise, and the interval of the difference and p include it.
    """
    owner = "stats.ttest"
    frames, pair = _two_groups(fed, column, by, owner, groups)
    plain = DescribeProgram((column,), (), pair, ())
    program = ttest_program(plain, len(frames), equal_var, epsilon, delta, bounds, groups)
    found, ledger = run_sums(program, frames, runtime=runtime, guard=guard, owner=owner)
    return conclude_ttest(plain, found, ledger, equal_var, epsilon)


def ttest_program(
    plain: DescribeProgram,
    parties: int,
    equal_var: bool,
    epsilon: float | None,
    delta: float,
    bounds: Any,
    groups: Any,
) -> Any:
    """The program of sums, with noise if there is an ε; raise BadParameter for what is not declared."""
    owner = "stats.ttest"
    assert plain.by is not None
    if epsilon is None:
        return plain
    need_levels([plain.by[0]], {} if groups is None else {plain.by[0]: groups}, owner)
    if equal_var:
        raise bad(owner, "equal_var", equal_var, "False with epsilon: the groups' variances have noise")
    ranges = None if bounds is None else {plain.numeric[0]: bounds}
    return add_noise(plain, parties, epsilon, delta, ranges, ("moments",), owner)


def conclude_ttest(
    program: DescribeProgram, found: Descriptions, ledger: Ledger, equal_var: bool, epsilon: float | None
) -> Statistic:
    assert program.by is not None
    owner, column, (by, _), groups = "stats.ttest", program.numeric[0], program.by, program.by
    if epsilon is not None:
        return _conclude_noisy_ttest(column, groups, found, ledger, epsilon)
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


def _conclude_noisy_ttest(
    column: str, groups: tuple[str, tuple[str, ...]], found: Descriptions, ledger: Ledger, epsilon: float
) -> Statistic:
    by, names = groups
    parts = [found.numbers[column][g] for g in names]
    test = compare_means(parts)
    table = pd.DataFrame(
        {"n": [m.n for m in parts], "mean": [m.mean for m in parts], "sd": [m.sd for m in parts]},
        pd.Index(names, name=by),
    )
    difference = parts[0].mean - parts[1].mean
    margin = math.nan
    if not math.isnan(test.statistic):
        error = math.sqrt(sum(m.se**2 for m in parts))
        margin = float(distributions().t.ppf(0.975, test.df)) * error
    statistics = {
        "difference": difference,
        "low": difference - margin,
        "high": difference + margin,
        "t": test.statistic,
        "df": test.df,
        "p": test.p,
    }
    note = f"sums have noise for ε = {epsilon:g}; the interval and p include it"
    return Statistic(f"{test.name} test of {column} by {by}", table, ledger, statistics, (note,))


def mann_whitney(
    fed: Any,
    column: str,
    by: str,
    bounds: tuple[float, float],
    bins: int | None = None,
    *,
    groups: Sequence[Any] | None = None,
    epsilon: float | None = None,
    delta: float = DELTA,
    runtime: Any = "cohort",
    guard: Any = None,
) -> Statistic:
    """The Mann–Whitney U test between the two groups of `by`, by ranks over all parties.

    Ranks come from counts in equal bins of a declared range; values of one bin are ties. With a bin for
    every value (ages: bounds=(0, 120), bins=120) the test equals that of the pooled rows. Default: 1000 bins.

    With `epsilon` and declared `groups` the counts have noise (default: 50 bins, because each has it), and p
    is the share of simulated pairs of equal groups, with the same noise, that differ as much.
    """
    owner = "stats.mann_whitney"
    frames, pair = _two_groups(fed, column, by, owner, groups)
    program = rank_program(column, bounds, bins, pair, len(frames), epsilon, delta, groups)
    total, ledger = run_sums(program, frames, runtime=runtime, guard=guard, owner=owner)
    return conclude_ranks(program, total, ledger)


def rank_program(
    column: str,
    bounds: Any,
    bins: int | None,
    pair: tuple[str, tuple[str, ...]],
    parties: int,
    epsilon: float | None,
    delta: float,
    groups: Any,
) -> HistogramProgram | NoisyHistogram:
    owner = "stats.mann_whitney"
    low, high = check_bounds(owner, bounds)
    if epsilon is None:
        return HistogramProgram(column, low, high, RANK_BINS if bins is None else bins, pair)
    need_levels([pair[0]], {} if groups is None else {pair[0]: groups}, owner)
    plain = DescribeProgram((column,), (), pair, ())
    noisy = add_noise(
        plain, parties, epsilon, delta, {column: bounds}, ("histogram",), owner, bins or NOISY_RANK_BINS
    )
    return NoisyHistogram(**{f.name: getattr(noisy, f.name) for f in fields(noisy)})


def conclude_ranks(
    program: HistogramProgram | NoisyHistogram, total: np.ndarray, ledger: Ledger
) -> Statistic:
    assert program.by is not None
    if isinstance(program, NoisyHistogram):
        return _conclude_noisy_ranks(program, total[:2].astype(float), ledger)
    n = total.sum(1).tolist()
    _need_rows(n, program.by, "stats.mann_whitney")
    test = rank_test(total[0], total[1])
    table = pd.DataFrame({"n": n}, pd.Index(program.by[1], name=program.by[0]))
    statistics = {"u": test.statistic, "p": test.p, "auc": test.statistic / (n[0] * n[1])}
    width = (program.high - program.low) / program.bins
    note = f"ranks from {program.bins} bins of width {width:g}; values of one bin are ties"
    title = f"Mann–Whitney test of {program.column} by {program.by[0]}"
    return Statistic(title, table, ledger, statistics, (note,))


def _conclude_noisy_ranks(program: NoisyHistogram, counts: np.ndarray, ledger: Ledger) -> Statistic:
    assert program.by is not None
    (column, low, high), (by, names) = program.numeric[0], program.by
    variance = program.variance(program.cells * program.bins, 1)
    u, share, p = noisy_rank_test(counts[0], counts[1], variance, np.random.default_rng(0))
    table = pd.DataFrame({"n": np.maximum(counts.sum(1), 0)}, pd.Index(names, name=by))
    notes = [
        f"ranks from {program.bins} bins of width {(high - low) / program.bins:g}, whose counts have noise "
        f"of standard deviation {math.sqrt(variance):.3g}; p includes it"
    ]
    if math.isnan(p):
        notes.append("a group has too few rows for this noise: use fewer bins, or a larger epsilon")
    return Statistic(
        f"Mann–Whitney test of {column} by {by}", table, ledger, {"u": u, "p": p, "auc": share}, tuple(notes)
    )


def _two_groups(
    fed: Any, column: str, by: str, owner: str, declared: Sequence[Any] | None = None
) -> tuple[Any, tuple[str, tuple[str, ...]]]:
    frames = check_frames(fed, owner)
    need_columns(frames, [column, by], owner)
    groups = levels(frames, by, declared, owner)
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
