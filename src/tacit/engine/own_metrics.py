"""A user's own metrics: functions of outputs and targets, or objects with `update` and `compute`.

A function is evaluated on the rows of the global test set; without one, on each party's held-out rows, and
the values are averaged with the numbers of rows as weights. That is the metric of all rows for means over
rows, and an approximation for others (an F1 score, a correlation).

An object, such as those of torchmetrics, is updated with one party after the other: the sum of the states
that each party would have. Objects that keep every prediction cannot be summed and need a test set.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import BadParameter


@dataclass(frozen=True, eq=False)
class OwnMetrics:
    """Functions and objects by name."""

    metrics: Mapping[str, Any]

    def __bool__(self) -> bool:
        return bool(self.metrics)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.metrics)

    def measure(self, out: Tensor, y: Tensor) -> dict[str, float]:
        """The metrics of rows that are in one place."""
        return self.measure_parties([(out, y)])

    def measure_parties(self, parties: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
        """The metrics over the rows of several parties, each with the outputs and targets of its rows."""
        there = [(out, y) for out, y in parties if len(y)]
        if not there:
            return {}
        return {name: _measure(name, metric, there) for name, metric in self.metrics.items()}

    def unsummable(self) -> list[str]:
        """The names of objects that keep every prediction."""
        return [name for name, metric in self.metrics.items() if is_object(metric) and _keeps_rows(metric)]


def is_object(metric: Any) -> bool:
    """Whether a metric is an object with a state, as those of torchmetrics are."""
    if isinstance(metric, type):
        return False
    return all(callable(getattr(metric, name, None)) for name in ("update", "compute", "reset"))


def _keeps_rows(metric: Any) -> bool:
    return any(isinstance(value, list) for value in getattr(metric, "_defaults", {}).values())


def _measure(name: str, metric: Any, parties: list[tuple[Tensor, Tensor]]) -> float:
    try:
        if is_object(metric):
            fresh = copy.deepcopy(metric)  # the user's object stays as it is
            fresh.reset()
            for out, y in parties:
                fresh.update(out, y)
            return _as_number(name, fresh.compute())
        values = [_as_number(name, metric(out, y)) for out, y in parties]
    except BadParameter:
        raise
    except Exception as error:
        raise BadParameter(
            f"metrics: {name!r} cannot be computed from outputs of shape {tuple(parties[0][0].shape)} and "
            f"targets of shape {tuple(parties[0][1].shape)}: {type(error).__name__}: {error}"
        ) from error
    rows = [len(y) for _, y in parties]
    return math.fsum(v * n for v, n in zip(values, rows)) / sum(rows)


def _as_number(name: str, value: Any) -> float:
    if hasattr(value, "item") and math.prod(getattr(value, "shape", (2,))) == 1:  # a tensor, or of NumPy
        value = value.item()
    if not isinstance(value, int | float):
        what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
        raise BadParameter(f"metrics: {name!r} returns {what:.80}; it must return one number.")
    return float(value)
