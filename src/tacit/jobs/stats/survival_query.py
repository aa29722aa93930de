"""The queries of job files about survival: curves and the log-rank test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import BadJob
from ...parties.ledger import Ledger
from ...stats.curves import WEIGHTINGS
from ...stats.design import plain_level
from ...stats.level_sketch import LEVEL_ROWS
from ...stats.lifetimes import LifetimeProgram, check_grid
from ...stats.site_logrank import SiteLogrankProgram
from ...stats.survival_result import Curves, LogRank
from ...stats.tables import check_levels
from . import private_survival, survival
from .describe import LEAST, check_count
from .glm import SITE
from .model_query import DELTA, add_party, need_values, plain_levels, to_strata, with_parties
from .queries import StatsVerb


@dataclass(frozen=True)
class CurveOptions:
    time: str = ""
    event: str = ""
    by: str | None = None
    entry: str | None = None
    grid: float | list[float] = 1.0
    level: float = 0.95
    min_count: int = LEAST
    min_level_rows: int = LEVEL_ROWS
    levels: dict = field(default_factory=dict)  # type: ignore[type-arg]  # checked by plain_levels
    missing: str = "drop"
    epsilon: float | None = None
    delta: float = DELTA


@dataclass(frozen=True)
class HazardOptions(CurveOptions):
    smooth: bool = True


@dataclass(frozen=True)
class IncidenceOptions(CurveOptions):
    cause: int | str | None = None
    causes: list[int] | list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LogrankOptions:
    time: str = ""
    event: str = ""
    by: str = ""
    strata: str | list[str] = field(default_factory=list)
    entry: str | None = None
    weighting: str = "logrank"
    grid: float | list[float] = 1.0
    min_count: int = LEAST
    min_level_rows: int = LEVEL_ROWS
    levels: dict = field(default_factory=dict)  # type: ignore[type-arg]
    missing: str = "drop"
    epsilon: float | None = None
    delta: float = DELTA


def _causes(o: Any) -> list[Any]:
    if not isinstance(o, IncidenceOptions):
        return [1]
    if not o.causes or o.cause is None:
        raise BadJob("stats.aalen_johansen: cause and causes must be given, like cause = 1, causes = [1, 2].")
    return survival.check_causes(o.cause, o.causes)


def _build(o: Any, parties: list[str], owner: str, strata: Sequence[str] = ()) -> Any:
    need_values(f"stats.{owner}", time=o.time, event=o.event)
    check_count(f"stats.{owner}", "min_level_rows", o.min_level_rows)
    levels = with_parties(plain_levels(o.levels, f"stats.{owner}"), parties, o.by, *strata)
    if o.epsilon is not None:
        return private_survival.private_program(
            owner, o.time, o.event, o.by, o.entry, o.grid, levels, o.missing, o.epsilon, o.delta, parties,
            _causes(o),
        )  # fmt: skip
    return _counts(o, strata, owner, levels)


def _counts(o: Any, strata: Sequence[str], owner: str, levels: Mapping[str, Any]) -> LifetimeProgram:
    program = LifetimeProgram(
        o.time,
        o.event,
        o.by,
        tuple(strata),
        o.entry,
        check_grid(o.grid, owner),
        tuple(_causes(o)),
        levels,
        o.missing,
        owner,
        o.min_level_rows,
    )
    check_levels(f"stats.{owner}", levels, program.categories)
    return program


def _curve(owner: str) -> Any:
    def build(o: CurveOptions, parties: list[str]) -> Any:
        survival.check_level(f"stats.{owner}", o.level)
        check_count(f"stats.{owner}", "min_count", o.min_count)
        return _build(o, parties, owner)

    return build


def _drawn(o: CurveOptions, program: Any, found: Any, ledger: Ledger) -> Curves:
    if o.epsilon is not None:
        return private_survival.conclude_curves("survival", "kaplan_meier", program, found, ledger, o.level)
    notes = survival.say_opened(program, found, ledger)
    return survival.conclude_survival(found, ledger, notes, o.level, o.min_count)


def _cumulated(o: HazardOptions, program: Any, found: Any, ledger: Ledger) -> Curves:
    if o.epsilon is not None:
        return private_survival.conclude_curves("hazard", "nelson_aalen", program, found, ledger, o.level)
    notes = survival.say_opened(program, found, ledger)
    return survival.conclude_hazard(found, ledger, notes, o.level, o.smooth, o.min_count)


def _incidence(o: IncidenceOptions, program: Any, found: Any, ledger: Ledger) -> Curves:
    which = _causes(o).index(plain_level(o.cause))
    if o.epsilon is not None:
        return private_survival.conclude_curves(
            "incidence", "aalen_johansen", program, found, ledger, o.level, which
        )
    notes = survival.say_opened(program, found, ledger)
    return survival.conclude_incidence(found, ledger, notes, o.level, which, o.min_count)


def _ranked(o: LogrankOptions, parties: list[str]) -> Any:
    need_values("stats.logrank", time=o.time, event=o.event, by=o.by)
    if o.weighting not in WEIGHTINGS:
        raise BadJob(
            f"stats.logrank: weighting is {o.weighting!r}; it must be one of {', '.join(WEIGHTINGS)}."
        )
    check_count("stats.logrank", "min_count", o.min_count)
    strata = to_strata(o.strata)
    if o.epsilon is not None:
        survival.check_no_strata(strata)
    if strata == (SITE,):
        levels = plain_levels(o.levels, "stats.logrank")
        check_count("stats.logrank", "min_level_rows", o.min_level_rows)
        return SiteLogrankProgram(
            o.time, o.event, o.by, o.entry, o.weighting, levels, o.missing, o.min_level_rows
        )
    return _build(o, parties, "logrank", strata)


def _tested(o: LogrankOptions, program: Any, found: Any, ledger: Ledger) -> LogRank:
    if o.epsilon is not None:
        return private_survival.conclude_logrank(program, found, ledger, o.weighting)
    if isinstance(program, SiteLogrankProgram):
        return survival.conclude_by_site(found, ledger, o.weighting, o.min_count)
    notes = survival.say_opened(program, found, ledger)
    return survival.conclude_logrank(found, ledger, notes, o.weighting, o.min_count)


VERBS = {
    "km": StatsVerb(CurveOptions, _curve("kaplan_meier"), _drawn, by_name=True, prepare=add_party),
    "nelson-aalen": StatsVerb(
        HazardOptions, _curve("nelson_aalen"), _cumulated, by_name=True, prepare=add_party
    ),
    "aalen-johansen": StatsVerb(
        IncidenceOptions, _curve("aalen_johansen"), _incidence, by_name=True, prepare=add_party
    ),
    "logrank": StatsVerb(LogrankOptions, _ranked, _tested, by_name=True, prepare=add_party),
}
