"""The descriptive queries of job files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...errors import BadJob
from ...parameters import bad, nearest, to_line
from ...parties.ledger import Ledger
from ...stats.columns import text_of
from ...stats.counts import CrosstabProgram, FrequentProgram, HistogramProgram
from ...stats.description import DescribeProgram
from ...stats.noisy import NoisyHistogram, check_privacy
from ...stats.noisy_crosstab import NoisyCrosstab
from . import tables
from .describe import (
    DELTA,
    LEAST,
    Description,
    add_noise,
    check_bounds,
    check_count,
    check_quantiles,
    conclude,
)
from .queries import StatsVerb
from .tables import Statistic


def declared_levels(owner: str, column: str, categories: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    values = categories.get(column)
    if not isinstance(values, list | tuple) or not values:
        raise BadJob(
            f"{owner}: the levels of {column!r} are not declared. Add them: "
            f"{to_line('categories', {column: ['a', 'b']})}. "
            f"{nearest(column, list(categories)) if categories else ''}"
        )
    names = tuple(map(text_of, values))
    if len(set(names)) < len(names):
        raise BadJob(str(bad(owner, f"categories.{column}", list(values), "different values")))
    return column, names


@dataclass(frozen=True)
class DescribeOptions:
    numbers: list[str] = field(default_factory=list)
    categories: dict = field(default_factory=dict)  # type: ignore[type-arg]  # checked by declared_levels
    by: str | None = None
    quantiles: list[float] = field(default_factory=lambda: [0.25, 0.5, 0.75])
    min_count: int = LEAST
    epsilon: float | None = None
    delta: float = DELTA
    bounds: dict = field(default_factory=dict)  # type: ignore[type-arg]  # checked by add_noise


def _describe(options: DescribeOptions, parties: int) -> Any:
    plain = _plain(options)
    if options.epsilon is None:
        return plain
    return add_noise(plain, parties, options.epsilon, options.delta, options.bounds)


def _plain(options: DescribeOptions) -> DescribeProgram:
    owner = "stats.describe"
    check_quantiles(owner, options.quantiles)
    check_count(owner, "min_count", options.min_count)
    if not options.numbers and not options.categories:
        raise BadJob(
            f"{owner}: nothing to describe. Declare {to_line('numbers', ['age'])} or "
            f"{to_line('categories', {'sex': ['f', 'm']})}."
        )
    names = [c for c in options.categories if c != options.by]
    by = None if options.by is None else declared_levels(owner, options.by, options.categories)
    found = tuple(declared_levels(owner, c, options.categories) for c in names)
    return DescribeProgram(tuple(options.numbers), found, by, tuple(map(float, options.quantiles)))


def _described(options: DescribeOptions, program: Any, found: Any, ledger: Ledger) -> Description:
    return conclude(_plain(options), found, ledger, options.min_count, options.epsilon)


@dataclass(frozen=True)
class QuantileOptions:
    column: str = ""
    q: list[float] = field(default_factory=lambda: [0.5])
    by: str | None = None
    categories: dict = field(default_factory=dict)  # type: ignore[type-arg]
    epsilon: float | None = None
    delta: float = DELTA
    bounds: list[float] | None = None


def _quantile(options: QuantileOptions, parties: int) -> Any:
    owner = "stats.quantile"
    need_columns(owner, column=options.column)
    check_quantiles(owner, options.q)
    by = None if options.by is None else declared_levels(owner, options.by, options.categories)
    plain = DescribeProgram((options.column,), (), by, tuple(map(float, options.q)))
    if options.epsilon is None:
        return plain
    ranges = {} if options.bounds is None else {options.column: options.bounds}
    return add_noise(
        plain, parties, options.epsilon, options.delta, ranges, ("histogram",), owner, tables.FINE_BINS
    )


@dataclass(frozen=True)
class HistogramOptions:
    column: str = ""
    bounds: list[float] = field(default_factory=list)
    bins: int = 20
    min_count: int = LEAST
    epsilon: float | None = None
    delta: float = DELTA


def _histogram(options: HistogramOptions, parties: int) -> HistogramProgram | NoisyHistogram:
    need_columns("stats.histogram", column=options.column)
    check_count("stats.histogram", "bins", options.bins)
    check_count("stats.histogram", "min_count", options.min_count)
    bounds = check_bounds("stats.histogram", options.bounds)
    if options.epsilon is None:
        return HistogramProgram(options.column, *bounds, options.bins)
    return tables.noisy_histogram(
        options.column, bounds, options.bins, parties, options.epsilon, options.delta
    )


def _conclude_histogram(program: Any, found: Any, ledger: Any, options: HistogramOptions) -> Any:
    if isinstance(program, NoisyHistogram):
        return tables.conclude_noisy_histogram(program, found, ledger)
    return tables.conclude_histogram(program, found, ledger, options.min_count)


@dataclass(frozen=True)
class CrosstabOptions:
    rows: str = ""
    columns: str = ""
    categories: dict = field(default_factory=dict)  # type: ignore[type-arg]
    min_count: int = LEAST
    epsilon: float | None = None
    delta: float = DELTA


def _crosstab(options: CrosstabOptions, parties: int) -> CrosstabProgram | NoisyCrosstab:
    owner = "stats.crosstab"
    need_columns(owner, rows=options.rows, columns=options.columns)
    check_count(owner, "min_count", options.min_count)
    a, b = (declared_levels(owner, c, options.categories) for c in (options.rows, options.columns))
    if options.epsilon is None:
        return CrosstabProgram(a, b)
    check_privacy(owner, options.epsilon, options.delta)
    return NoisyCrosstab(parties, float(options.epsilon), options.delta, categories=(a, b))


def _conclude_crosstab(program: Any, found: Any, ledger: Any, options: CrosstabOptions) -> Any:
    if isinstance(program, NoisyCrosstab):
        return tables.conclude_noisy_crosstab(program, found, ledger)
    return tables.conclude_crosstab(program, found, ledger, options.min_count)


@dataclass(frozen=True)
class FrequentOptions:
    column: str = ""
    min_count: int = 20
    longest: int = 32
    most: int = 64
    min_cell: int = LEAST
    epsilon: float | None = None
    delta: float = DELTA


def _frequent(options: FrequentOptions, parties: int) -> FrequentProgram:
    need_columns("stats.heavy_hitters", column=options.column)
    for name in ("min_count", "longest", "most", "min_cell"):
        check_count("stats.heavy_hitters", name, getattr(options, name))
    return tables.frequent_program(
        options.column,
        options.min_count,
        options.longest,
        options.most,
        parties,
        options.epsilon,
        options.delta,
        options.min_cell,
    )


def need_columns(owner: str, **values: str) -> None:
    missing = [name for name, value in values.items() if not value]
    if missing:
        raise BadJob(f"{owner}: {', '.join(missing)} must be given, the name of a column.")


def conclude_as(conclude_one: Any) -> Any:
    """Adapt a function of (program, outcome, ledger, options) that the Python interface uses too."""

    def conclude_query(options: Any, program: Any, found: Any, ledger: Ledger) -> Statistic:
        result: Statistic = conclude_one(program, found, ledger, options)
        return result

    return conclude_query


VERBS = {
    "describe": StatsVerb(DescribeOptions, _describe, _described),
    "quantile": StatsVerb(
        QuantileOptions,
        _quantile,
        conclude_as(lambda p, f, ledger, o: tables.conclude_quantiles(o.column, list(o.q), o.by, f, ledger)),
    ),
    "histogram": StatsVerb(
        HistogramOptions,
        _histogram,
        conclude_as(_conclude_histogram),
    ),
    "crosstab": StatsVerb(
        CrosstabOptions,
        _crosstab,
        conclude_as(_conclude_crosstab),
    ),
    "heavy-hitters": StatsVerb(
        FrequentOptions,
        _frequent,
        conclude_as(lambda p, f, ledger, o: tables.conclude_frequent(p, f, ledger)),
    ),
}
