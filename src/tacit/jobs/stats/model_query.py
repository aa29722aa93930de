"""The regression and survival queries of job files.

    [stats]                                       [stats]
    formula = "disease ~ age + C(sex)"            formula = "age + C(arm)"
    family = "binomial"                           time = "days"
    levels = { sex = ["f", "m"] }                 event = "died"

Levels that are not declared are found by a sum over all parties (`min_level_rows`). `site` is the
party's name, unless its table has such a column.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import BadJob
from ...parties.ledger import Ledger
from ...stats.hazards_result import CoxModel
from ...stats.level_sketch import LEVEL_ROWS
from ...stats.regression_result import Regression
from . import cox as cox_job
from . import glm as glm_job
from . import private_cox, private_glm
from .describe import LEAST
from .glm import SITE
from .queries import StatsVerb

DELTA = 1e-6


def need_values(owner: str, **values: str) -> None:
    missing = [name for name, value in values.items() if not value]
    if missing:
        raise BadJob(f"{owner}: {', '.join(missing)} must be given.")


def plain_levels(levels: Mapping[str, Any], owner: str) -> dict[str, list[Any]]:
    bad = [name for name, values in levels.items() if not isinstance(values, list | tuple) or not values]
    if bad:
        raise BadJob(f'{owner}: levels of {", ".join(map(repr, bad))} must be lists, like ["a", "b"].')
    return {str(name): list(values) for name, values in levels.items()}


def add_party(table: Any, name: str) -> Any:
    """Return a party's table with its name as the column `site`, if it has no such column."""
    return table if SITE in table.columns else table.assign(**{SITE: name})


def with_parties(levels: dict[str, list[Any]], parties: Sequence[str], *words: str | None) -> dict[str, Any]:
    """Return the levels; those of `site` are the parties, where a formula or an option names it."""
    named = any(re.search(rf"\b{SITE}\b", word) for word in words if word)
    return {**levels, SITE: sorted(parties)} if named and SITE not in levels else levels


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
    levels: dict = field(default_factory=dict)  # type: ignore[type-arg]  # checked by plain_levels
    missing: str = "drop"
    max_rounds: int | None = None
    min_count: int = LEAST
    min_level_rows: int = LEVEL_ROWS
    positive: str | float | None = None  # the level of a text outcome that is the event
    epsilon: float | None = None
    delta: float = DELTA
    bounds: dict = field(default_factory=dict)  # type: ignore[type-arg]  # checked by make_private


def _glm(o: GlmOptions, parties: list[str]) -> Any:
    need_values("stats.glm", formula=o.formula)
    levels = with_parties(plain_levels(o.levels, "stats.glm"), parties, o.formula)
    program = glm_job.make_program(
        o.formula, o.family, o.link, o.alpha, o.weights, o.weight_kind, o.offset, o.exposure, o.l2, o.l1,
        o.firth, o.robust, levels, o.missing, o.max_rounds,
        o.min_count, o.positive, o.min_level_rows,
    )  # fmt: skip
    if o.epsilon is None:
        return program
    return private_glm.make_private(program, len(parties), o.epsilon, o.delta, o.bounds)


def _fitted(o: GlmOptions, program: Any, found: Any, ledger: Ledger) -> Regression:
    if o.epsilon is None:
        return glm_job.conclude(program, found, ledger)
    return private_glm.conclude_private(program, found, ledger)


def to_strata(strata: Any) -> tuple[str, ...]:
    return (strata,) if isinstance(strata, str) else tuple(strata)


@dataclass(frozen=True)
class CoxOptions:
    formula: str = ""
    time: str = ""
    event: str = ""
    ties: str = "efron"
    strata: str | list[str] = field(default_factory=list)
    entry: str | None = None
    weights: str | None = None
    grid: float | list[float] = 1.0
    min_exits: int = 1
    l2: float = 0.0
    ph_transform: str | None = None
    levels: dict = field(default_factory=dict)  # type: ignore[type-arg]
    missing: str = "drop"
    max_rounds: int = 25
    min_count: int = LEAST
    min_level_rows: int = LEVEL_ROWS
    epsilon: float | None = None
    delta: float = DELTA
    bounds: dict = field(default_factory=dict)  # type: ignore[type-arg]  # checked by make_private
    max_hazard: float = private_cox.MAX_HAZARD


def _cox(o: CoxOptions, parties: list[str]) -> Any:
    need_values("stats.cox", formula=o.formula, time=o.time, event=o.event)
    by_site = to_strata(o.strata) == (SITE,)
    levels = plain_levels(o.levels, "stats.cox")
    if not by_site:
        levels = with_parties(levels, parties, *to_strata(o.strata))
    levels = with_parties(levels, parties, o.formula)
    if o.epsilon is not None:
        private_cox.check_plain_options(o.ties, o.entry, o.min_exits, o.ph_transform, o.weights)
        return private_cox.make_private(
            o.formula, o.time, o.event, o.grid, len(parties), o.epsilon, o.delta, o.bounds,
            with_parties(levels, parties, *to_strata(o.strata)), to_strata(o.strata), o.l2, o.max_hazard,
            o.missing,
        )  # fmt: skip
    return cox_job.make_program(
        o.formula, o.time, o.event, o.ties, () if by_site else to_strata(o.strata), by_site, o.entry, o.grid,
        o.min_exits, o.l2, o.ph_transform, levels, o.missing, o.max_rounds, o.min_count, o.weights,
        o.min_level_rows,
    )  # fmt: skip


def _hazards(o: CoxOptions, program: Any, found: Any, ledger: Ledger) -> CoxModel:
    if o.epsilon is not None:
        return private_cox.conclude_private(program, found, ledger)
    return cox_job.conclude(program, found, ledger)


VERBS = {
    "glm": StatsVerb(GlmOptions, _glm, _fitted, by_name=True, prepare=add_party),
    "cox": StatsVerb(CoxOptions, _cox, _hazards, by_name=True, prepare=add_party),
}
