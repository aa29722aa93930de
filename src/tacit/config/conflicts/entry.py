"""One conflict, and what several entries ask of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ...guard import Noise, Stage

if TYPE_CHECKING:
    from ...jobs.train.plan import Plan


class Conflict(NamedTuple):
    """Two options of a run that cannot be combined."""

    option: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.option}: {self.why}. {self.remedy}"


def name_of(component: Any) -> str:
    return type(component).__name__


def hiding_stage(p: Plan) -> Stage | None:
    """Return the stage that hides single updates, if there is one."""
    return next((stage for stage in p.guard if stage.hides), None)


def has_noise(p: Plan) -> bool:
    return any(isinstance(stage, Noise) for stage in p.guard)


def is_declared(layout: Mapping[str, Any]) -> bool:
    """Whether rows of real parties are encoded without statistics of theirs."""
    return bool(layout.get("mean")) or layout.get("fit") == "none"


def layout_of(p: Plan) -> Mapping[str, Any]:
    """[data] of a job for real parties; empty in a simulation."""
    return p.through.layout if p.runtime == "parties" else {}
