"""The queries of job files that compare columns and groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...errors import BadJob
from ...parameters import bad
from ...parties.ledger import Ledger
from ...stats.counts import CorrelationProgram
from ...stats.description import DescribeProgram
from ...stats.noisy_tests import NoisyCorrelation
from . import comparing
from .describe import DELTA
from .describe_query import conclude_as, declared_levels, need_columns
from .queries import StatsVerb
from .tables import Statistic


@dataclass(frozen=True)
class CorrelationOptions:
    numbers: list[str] = field(default_factory=list)
    epsilon: float | None = None
    delta: float = DELTA
    bounds: dict = field(default_factory=dict)  # type: ignore[type-arg]  # checked by add_noise


def _correlation(options: CorrelationOptions, parties: int) -> CorrelationProgram | NoisyCorrelation:
    names = list(options.numbers)
    if len(set(names)) < 2:
        raise BadJob(str(bad("stats.correlation", "numbers", names, "at least two numeric columns")))
    if options.epsilon is not None:
        return comparing.noisy_correlation(names, parties, options.epsilon, options.delta, options.bounds)
    return CorrelationProgram(tuple(names))


def _correlated(program: Any, found: Any, ledger: Ledger, options: CorrelationOptions) -> Statistic:
    if isinstance(program, NoisyCorrelation):
        return comparing.conclude_noisy_correlation(program, found, ledger)
    return comparing.conclude_correlation(program, found, ledger)


@dataclass(frozen=True)
class TtestOptions:
    column: str = ""
    by: str = ""
    categories: dict = field(default_factory=dict)  # type: ignore[type-arg]  # checked by declared_levels
    equal_var: bool = False
    epsilon: float | None = None
    delta: float = DELTA
    bounds: list[float] | None = None


def _pair(owner: str, options: Any) -> tuple[str, tuple[str, ...]]:
    need_columns(owner, column=options.column, by=options.by)
    groups = declared_levels(owner, options.by, options.categories)
    if len(groups[1]) != 2:
        raise BadJob(str(bad(owner, f"the levels of {options.by!r}", list(groups[1]), "two groups")))
    return groups


def _plain_ttest(options: TtestOptions) -> DescribeProgram:
    return DescribeProgram((options.column,), (), _pair("stats.ttest", options), ())


def _ttest(options: TtestOptions, parties: int) -> Any:
    plain = _plain_ttest(options)
    assert plain.by is not None
    return comparing.ttest_program(
        plain, parties, options.equal_var, options.epsilon, options.delta, options.bounds, plain.by[1]
    )


def _compared(options: TtestOptions, program: Any, found: Any, ledger: Ledger) -> Statistic:
    return comparing.conclude_ttest(_plain_ttest(options), found, ledger, options.equal_var, options.epsilon)


@dataclass(frozen=True)
class RankOptions:
    column: str = ""
    by: str = ""
    categories: dict = field(default_factory=dict)  # type: ignore[type-arg]
    bounds: list[float] = field(default_factory=list)
    bins: int | None = None
    epsilon: float | None = None
    delta: float = DELTA


def _ranks(options: RankOptions, parties: int) -> Any:
    pair = _pair("stats.mann_whitney", options)
    return comparing.rank_program(
        options.column, options.bounds, options.bins, pair, parties, options.epsilon, options.delta, pair[1]
    )


VERBS = {
    "correlation": StatsVerb(CorrelationOptions, _correlation, conclude_as(_correlated)),
    "ttest": StatsVerb(TtestOptions, _ttest, _compared),
    "mann-whitney": StatsVerb(
        RankOptions,
        _ranks,
        conclude_as(lambda p, f, ledger, o: comparing.conclude_ranks(p, f, ledger)),
    ),
}
