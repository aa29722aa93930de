"""The regression and survival queries of job files.

    [stats]                                       [stats]
    formula = "disease ~ age + C(sex)"            formula = "age + C(arm)"
    family = "binomial"                           time = "days"
    levels = { sex = ["f", "m"] }                 event = "died"

Levels that are not declared are discovered by a sum over all parties. `site` is a column of the tables here;
strata = "site" (logrank, cox) needs none: every party is a stratum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import BadJob
from ...parties.ledger import Ledger
from ...stats.curves import WEIGHTINGS
from ...stats.hazards_result import CoxModel
from ...stats.lifetimes import LifetimeProgram, check_grid
from ...stats.regression_result import Regression
from ...stats.site_logrank import SiteLogrankProgram
from ...stats.survival_result import Curves, LogRank
from . import cox as cox_job
from . import glm as glm_job
from . import private_glm, private_survival, survival
from .glm import SITE
from .queries import StatsVerb

DELTA = 1e-6


def _need(owner: str, **values: str) -> None:
    missing = [name for name, value in values.items() if not value]
    if missing:
        raise BadJob(f"{owner}: {', '.join(missing)} must be given.")


def _plain_levels(levels: Mapping[str, Any], owner: str) -> dict[str, list[Any]]:
    bad = [name for name, values in levels.items() if not isinstance(values, list | tuple) or not values]
    if bad:
        raise BadJob(f'{owner}: levels of {", ".join(map(repr, bad))} must be lists, like ["a", "b"].')
    return {str(name): list(values) for name, values in levels.items()}


@dataclass(frozen=True)
class GlmOptions:
    formula: str = ""
    family: str = "binomial"
    link: str | None = None
    alpha: float | None = None
    weights: str | None = None
    weight_kind: str = "variance"
    offset: str | None = None
    exposure: str | None = None
    l2: float = 0.0
    l1: float = 0.0
    firth: bool = False
    robust: str | None = None
    levels: dict = field(default_factory=dict)  # type: ignore[type-arg]  # checked by _plain_levels
    missing: str = "drop"
    max_rounds: int | None = None
    epsilon: float | None = None
    delta: float = DELTA
    bounds: dict = field(default_factory=dict)  # type: ignore[type-arg]  # checked by make_private


def _glm(o: GlmOptions, parties: int) -> Any:
    _need("stats.glm", formula=o.formula)
    program = glm_job.make_program(
        o.formula, o.family, o.link, o.alpha, o.weights, o.weight_kind, o.offset, o.exposure, o.l2, o.l1,
        o.firth, o.robust, _plain_levels(o.levels, "stats.glm"), o.missing, o.max_rounds,
    )  # fmt: skip
    if o.epsilon is None:
        return program
    return private_glm.make_private(program, parties, o.epsilon, o.delta, o.bounds)


def _fitted(o: GlmOptions, program: Any, found: Any, ledger: Ledger) -> Regression:
    if o.epsilon is None:
        return glm_job.conclude(program, found, ledger)
    return private_glm.conclude_private(program, found, ledger)


@dataclass(frozen=True)
class CurveOptions:
    time: str = ""
    event: str = ""
    by: str | None = None
    entry: str | None = None
    grid: float | list[float] = 1.0
    level: float = 0.95
    levels: dict = field(default_factory=dict)  # type: ignore[type-arg]
    missing: str = "drop"
    epsilon: float | None = None
    delta: float = DELTA


def _curve(o: CurveOptions, parties: int) -> Any:
    _need("stats.km", time=o.time, event=o.event)
    survival.check_level("stats.km", o.level)
    levels = _plain_levels(o.levels, "stats.km")
    if o.epsilon is not None:
        names = [str(k) for k in range(parties)]  # how many, for the noise; `by` needs declared levels here
        if o.by == SITE and SITE not in levels:
            raise BadJob("stats.km: declare the levels of 'site' with epsilon.")
        return private_survival.private_program(
            o.time, o.event, o.by, o.entry, o.grid, levels, o.missing, o.epsilon, o.delta, names
        )
    return _counts(o, (), "kaplan_meier", levels)


def _counts(o: Any, strata: Sequence[str], owner: str, levels: Mapping[str, Any]) -> LifetimeProgram:
    return LifetimeProgram(
        o.time,
        o.event,
        o.by,
        tuple(strata),
        o.entry,
        check_grid(o.grid, owner),
        (1,),
        levels,
        o.missing,
        owner,
    )


def _drawn(o: CurveOptions, program: Any, found: Any, ledger: Ledger) -> Curves:
    if o.epsilon is not None:
        return private_survival.conclude_private(program, found, ledger, o.level)
    return survival.conclude_survival(found, ledger, survival.say_opened(program, found, ledger), o.level)


@dataclass(frozen=True)
class LogrankOptions:
    time: str = ""
    event: str = ""
    by: str = ""
    strata: str | list[str] = field(default_factory=list)
    entry: str | None = None
    weighting: str = "logrank"
    grid: float | list[float] = 1.0
    levels: dict = field(default_factory=dict)  # type: ignore[type-arg]
    missing: str = "drop"


def _strata(strata: Any) -> tuple[str, ...]:
    return (strata,) if isinstance(strata, str) else tuple(strata)


def _ranked(o: LogrankOptions, parties: int) -> Any:
    _need("stats.logrank", time=o.time, event=o.event, by=o.by)
    if o.weighting not in WEIGHTINGS:
        raise BadJob(
            f"stats.logrank: weighting is {o.weighting!r}; it must be one of {', '.join(WEIGHTINGS)}."
        )
    levels = _plain_levels(o.levels, "stats.logrank")
    if _strata(o.strata) == (SITE,):
        return SiteLogrankProgram(o.time, o.event, o.by, o.entry, o.weighting, levels, o.missing)
    return _counts(o, _strata(o.strata), "logrank", levels)


def _tested(o: LogrankOptions, program: Any, found: Any, ledger: Ledger) -> LogRank:
    if isinstance(program, SiteLogrankProgram):
        return survival.conclude_by_site(found, ledger, o.weighting)
    notes = survival.say_opened(program, found, ledger)
    return survival.conclude_logrank(found, ledger, notes, o.weighting)


@dataclass(frozen=True)
class CoxOptions:
    formula: str = ""
    time: str = ""
    event: str = ""
    ties: str = "efron"
    strata: str | list[str] = field(default_factory=list)
    entry: str | None = None
    grid: float | list[float] = 1.0
    min_exits: int = 1
    l2: float = 0.0
    ph_transform: str | None = None
    levels: dict = field(default_factory=dict)  # type: ignore[type-arg]
    missing: str = "drop"
    max_rounds: int = 25


def _cox(o: CoxOptions, parties: int) -> Any:
    _need("stats.cox", formula=o.formula, time=o.time, event=o.event)
    by_site = _strata(o.strata) == (SITE,)
    return cox_job.make_program(
        o.formula, o.time, o.event, o.ties, () if by_site else _strata(o.strata), by_site, o.entry, o.grid,
        o.min_exits, o.l2, o.ph_transform, _plain_levels(o.levels, "stats.cox"), o.missing, o.max_rounds,
    )  # fmt: skip


def _hazards(o: CoxOptions, program: Any, found: Any, ledger: Ledger) -> CoxModel:
    return cox_job.conclude(program, found, ledger)


VERBS = {
    "glm": StatsVerb(GlmOptions, _glm, _fitted),
    "km": StatsVerb(CurveOptions, _curve, _drawn),
    "logrank": StatsVerb(LogrankOptions, _ranked, _tested),
    "cox": StatsVerb(CoxOptions, _cox, _hazards),
}
