"""The options of a comparison, declared once: what it adds to those of a training run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from .. import aggregate, algorithms
from ..parameters import component
from .train import OPTIONS, keep

AXES: dict[str, tuple[str, Mapping[str, type]]] = {  # tables of a job file: [[algorithms]] lists several
    "algorithms": ("algorithm", algorithms.ALL),
    "aggregates": ("aggregate", aggregate.ALL),
    "variants": ("variant", {}),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareConfig:
    """What `compare` takes besides the options of a training run that all its rows share."""

    algorithms: Sequence[Any] = component(
        ("FedAvg",), keep, takes="Sequence[str | Algorithm]", doc="algorithms to compare, a row each"
    )
    seeds: int | Sequence[int] = component(
        1, keep, takes="int | Sequence[int]", doc="how many seeds each row is run with, or which"
    )
    match: str | None = component(
        None,
        keep,
        takes="str | None",
        doc="'effective_update' adjusts local epochs, then the learning rate, so that u = η·E·|D|/(B·K) is "
        "the same on every federation",
    )
    baseline: Any = component(
        None,
        keep,
        takes="str | Algorithm | None",
        doc="algorithm whose learning rate and solver the baselines use; None: the first with local steps",
    )
    aggregates: Sequence[Any] | None = component(
        None, keep, takes="Sequence[str | Rule] | None", doc="aggregation rules to compare, a row each"
    )
    guards: Any = component(
        None,
        keep,
        takes="Sequence[Any] | Mapping[str, Any] | None",
        doc="guards to compare, a row each: a list (None: no guard), or a dict by label",
    )
    variants: Mapping[str, Mapping[str, Any]] | None = component(
        None,
        keep,
        takes="Mapping[str, Mapping[str, Any]] | None",
        doc="settings that rows have for themselves, by label: {'five steps': {'local_steps': 5}}",
    )

    @staticmethod
    def options() -> dict[str, Any]:
        """Return its own options by name."""
        return {f.name: f for f in dataclasses.fields(CompareConfig)}

    @staticmethod
    def shared() -> dict[str, Any]:
        """Return the options of a training run that `compare` takes as they are."""
        return {name: f for name, f in OPTIONS.items() if f.metadata.get("compare", True) is True}
