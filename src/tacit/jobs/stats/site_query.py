"""The queries of job files whose models know of sites: `gee`, `mixed` and `meta`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...parties.ledger import Ledger
from ...stats.level_sketch import LEVEL_ROWS
from ...stats.meta_analysis import add_name
from ...stats.regression_result import Regression
from . import private_sites, sites
from .describe import LEAST
from .model_query import DELTA, need_values, plain_levels
from .queries import StatsVerb


@dataclass(frozen=True)
class GeeOptions:
    formula: str = ""
    family: str = "binomial"
    link: str | None = None
    levels: dict = field(default_factory=dict)  # type: ignore[type-arg]  # checked by plain_levels
    missing: str = "drop"
    max_rounds: int = 150
    min_count: int = LEAST
    min_level_rows: int = LEVEL_ROWS
    epsilon: float | None = None


@dataclass(frozen=True)
class MixedOptions:
    formula: str = ""
    family: str = "binomial"
    levels: dict = field(default_factory=dict)  # type: ignore[type-arg]
    missing: str = "drop"
    max_rounds: int = 40
    min_count: int = LEAST
    min_level_rows: int = LEVEL_ROWS
    epsilon: float | None = None
    delta: float = DELTA
    bounds: dict = field(default_factory=dict)  # type: ignore[type-arg]  # checked by make_private


@dataclass(frozen=True)
class MetaOptions:
    formula: str = ""
    family: str = "binomial"
    link: str | None = None
    open_sites: bool = False
    effects: str = "random"
    levels: dict = field(default_factory=dict)  # type: ignore[type-arg]
    missing: str = "drop"
    min_count: int = LEAST
    min_level_rows: int = LEVEL_ROWS
    epsilon: float | None = None
    delta: float = DELTA
    bounds: dict = field(default_factory=dict)  # type: ignore[type-arg]


def _build(kind: str) -> Any:
    def build(o: Any, parties: list[str]) -> Any:
        need_values(f"stats.{kind}", formula=o.formula)
        if kind == "meta":
            sites.check_meta(o.open_sites, o.effects)
        link = None if kind == "mixed" else o.link
        levels = plain_levels(o.levels, f"stats.{kind}")
        if o.epsilon is not None:
            delta, bounds = (None, None) if kind == "gee" else (o.delta, o.bounds)
            return private_sites.make_private(
                kind, o.formula, o.family, link, levels, o.missing, parties, o.epsilon, delta, bounds
            )
        return sites.make_program(
            kind,
            o.formula,
            o.family,
            link,
            levels,
            o.missing,
            1 if kind == "meta" else o.max_rounds,
            parties,
            o.min_count,
            o.min_level_rows,
        )

    return build


def _fitted(o: Any, program: Any, found: Any, ledger: Ledger) -> Regression:
    if o.epsilon is not None:
        return private_sites.conclude_private(program, found, ledger, getattr(o, "effects", "random"))
    return sites.conclude(program, found, ledger, getattr(o, "effects", "random"))


VERBS = {
    "gee": StatsVerb(GeeOptions, _build("gee"), _fitted, by_name=True),
    "mixed": StatsVerb(MixedOptions, _build("mixed"), _fitted, by_name=True, prepare=add_name),
    "meta": StatsVerb(MetaOptions, _build("meta"), _fitted, by_name=True, prepare=add_name),
}
