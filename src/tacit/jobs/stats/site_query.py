"""The queries of job files whose models know of sites: `gee`, `mixed` and `meta`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...parties.ledger import Ledger
from ...stats.meta_analysis import PARTY
from ...stats.regression_result import Regression
from ...stats.site_model import SiteModelProgram
from . import sites
from .model_query import need_values, plain_levels
from .queries import StatsVerb


@dataclass(frozen=True)
class GeeOptions:
    formula: str = ""
    family: str = "binomial"
    link: str | None = None
    levels: dict = field(default_factory=dict)  # type: ignore[type-arg]  # checked by plain_levels
    missing: str = "drop"
    max_rounds: int = 40
    epsilon: float | None = None


@dataclass(frozen=True)
class MixedOptions:
    formula: str = ""
    family: str = "binomial"
    levels: dict = field(default_factory=dict)  # type: ignore[type-arg]
    missing: str = "drop"
    max_rounds: int = 40
    epsilon: float | None = None


@dataclass(frozen=True)
class MetaOptions:
    formula: str = ""
    family: str = "binomial"
    link: str | None = None
    open_sites: bool = False
    effects: str = "random"
    levels: dict = field(default_factory=dict)  # type: ignore[type-arg]
    missing: str = "drop"
    epsilon: float | None = None


def _build(kind: str) -> Any:
    def build(o: Any, parties: list[str]) -> SiteModelProgram:
        need_values(f"stats.{kind}", formula=o.formula)
        if kind == "meta":
            sites.check_meta(o.open_sites, o.effects)
        return sites.make_program(
            kind,
            o.formula,
            o.family,
            None if kind == "mixed" else o.link,
            plain_levels(o.levels, f"stats.{kind}"),
            o.missing,
            1 if kind == "meta" else o.max_rounds,
            o.epsilon,
            parties,
        )

    return build


def _fitted(o: Any, program: SiteModelProgram, found: Any, ledger: Ledger) -> Regression:
    return sites.conclude(program, found, ledger, getattr(o, "effects", "random"))


VERBS = {
    "gee": StatsVerb(GeeOptions, _build("gee"), _fitted, by_name=True),
    "mixed": StatsVerb(MixedOptions, _build("mixed"), _fitted, by_name=True),
    "meta": StatsVerb(
        MetaOptions,
        _build("meta"),
        _fitted,
        by_name=True,
        prepare=lambda table, name: table.assign(**{PARTY: name}),
    ),
}
