"""A user's own metrics: functions of outputs and targets, or objects with `update` and `compute`.

A function is evaluated on the rows of the global test set; without one, on each party's held-out rows, and
the values are averaged with the numbers of rows as weights. That is the metric of all rows for means over
rows, and an approximation for others (an F1 score, a correlation).

An object, such as those of torchmetrics, is updated with one party after the other: the sum of the states
that each party would have. Objects that keep every prediction cannot be summed and need a test set.

Parties that send messages send sums (`RunningMetrics.sums`), as one vector that is added like their counts:
of a function its value times the rows, and the rows; of an object its states.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..errors import BadParameter
from .calling import SeveralOutputs


@dataclass(frozen=True, eq=False)
class OwnMetrics:
    """Functions and objects by name; `code` has the name and the digest of those that are approved code."""

    metrics: Mapping[str, Any]
    code: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.metrics)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.metrics)

    def begin(self, outputs: SeveralOutputs | None = None) -> RunningMetrics:
        """Metrics of no rows yet, to which rows are added; `outputs` of a model with several."""
        return RunningMetrics(self.metrics, outputs)

    def objects(self) -> list[str]:
        """The names of objects with states."""
        return [name for name, metric in self.metrics.items() if is_object(metric)]

    def unsummable(self) -> list[str]:
        """The names of objects that keep every prediction."""
        return [name for name, metric in self.metrics.items() if is_object(metric) and _keeps_rows(metric)]

    def unsendable(self) -> list[str]:
        """The names of objects whose states a party cannot send as sums."""
        return [name for name, metric in self.metrics.items() if is_object(metric) and not _has_sums(metric)]

    def from_sums(self, sums: Tensor) -> dict[str, float]:
        """The metrics of the sums of all parties; none of no rows."""
        running = self.begin()
        found: dict[str, float] = {}
        for name in sorted(running.order):
            if name in running.objects:
                metric, finite = running.objects[name], True
                for state, start in metric._defaults.items():
                    mine, sums = sums.split([start.numel(), len(sums) - start.numel()])
                    value = mine.view(start.shape)
                    if not start.is_floating_point():  # NaN and infinity have no whole number
                        finite = finite and bool(torch.isfinite(value).all())
                        value = value.nan_to_num(0.0, 0.0, 0.0).round()
                    setattr(metric, state, start + value.to(start.dtype))
                metric._update_count = 1  # torchmetrics warns where nothing was added
                value = running._call(name, metric.compute)
                found[name] = _as_number(name, value) if finite else math.nan
            else:
                (total, rows), sums = sums[:2].tolist(), sums[2:]
                if rows:
                    found[name] = total / rows
        return found


class RunningMetrics:
    """Metrics over rows that are added a chunk at a time, each with the party that has it.

    An object is updated with every chunk. A function takes all rows of a party at once: their outputs are
    kept.
    """

    def __init__(self, metrics: Mapping[str, Any], outputs: SeveralOutputs | None = None):
        self.outputs = outputs or SeveralOutputs()
        self.functions = {name: metric for name, metric in metrics.items() if not is_object(metric)}
        # copies: the user's objects stay as they are
        self.objects = {name: copy.deepcopy(metric) for name, metric in metrics.items() if is_object(metric)}
        self.order = tuple(metrics)
        self.kept: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self.shapes: tuple[Any, ...] = ()
        for name, metric in self.objects.items():
            self._call(name, metric.reset)

    def add(self, out: Tensor, y: Tensor, party: int = 0) -> None:
        """Add rows of a party: the model's outputs and the targets."""
        if not len(y):
            return
        self.shapes = self.shapes or (tuple(out.shape), tuple(y.shape))
        for name, metric in self.objects.items():
            self._call(name, metric.update, self.outputs.split(out), y)
        if self.functions:
            self.kept.setdefault(party, []).append((out, y))

    def measure(self) -> dict[str, float]:
        """The metrics of all rows that were added; none of no rows."""
        if not self.shapes:
            return {}
        parties = [
            (torch.cat([o for o, _ in each]), torch.cat([y for _, y in each])) if len(each) > 1 else each[0]
            for each in self.kept.values()
        ]
        rows = [len(y) for _, y in parties]
        found: dict[str, float] = {}
        for name in self.order:
            if name in self.objects:
                found[name] = _as_number(name, self._call(name, self.objects[name].compute))
            else:
                function = self.functions[name]
                values = [
                    _as_number(name, self._call(name, function, self.outputs.split(out), y))
                    for out, y in parties
                ]
                found[name] = math.fsum(v * n for v, n in zip(values, rows)) / sum(rows)
        return found

    def sums(self) -> Tensor:
        """What a party sends of its rows, as one vector of float64; zeros of no rows."""
        measured = {} if not self.shapes else self.measure()
        rows = float(sum(len(y) for parts in self.kept.values() for _, y in parts))
        parts: list[Tensor] = []
        for name in sorted(self.order):  # a contract does not keep the order
            if name in self.objects:
                metric = self.objects[name]
                for state, start in metric._defaults.items():
                    parts.append((getattr(metric, state) - start).detach().cpu().double().reshape(-1))
            else:
                value = measured.get(name, 0.0)
                parts.append(torch.tensor([value * rows if rows else 0.0, rows], dtype=torch.float64))
        return torch.cat(parts)

    def _call(self, name: str, function: Any, *values: Any) -> Any:
        try:
            return function(*values)
        except BadParameter:
            raise
        except Exception as error:
            of = "outputs of shape {} and targets of shape {}".format(*self.shapes) if self.shapes else "rows"
            raise BadParameter(
                f"metrics: {name!r} cannot be computed from {of}: {type(error).__name__}: {error}"
            ) from error


def is_object(metric: Any) -> bool:
    """Whether a metric is an object with a state, as those of torchmetrics are."""
    if isinstance(metric, type):
        return False
    return all(callable(getattr(metric, name, None)) for name in ("update", "compute", "reset"))


def _keeps_rows(metric: Any) -> bool:
    return any(isinstance(value, list) for value in getattr(metric, "_defaults", {}).values())


def _has_sums(metric: Any) -> bool:
    """Whether all states of an object are tensors that torchmetrics adds up over processes."""
    states, reductions = getattr(metric, "_defaults", {}), getattr(metric, "_reductions", {})
    children = metric.children() if isinstance(metric, torch.nn.Module) else ()
    return (
        bool(states)
        and all(isinstance(start, Tensor) for start in states.values())
        and all(getattr(reductions.get(name), "__name__", "") == "dim_zero_sum" for name in states)
        and not any(is_object(child) for child in children)  # a wrapper: its states are in other objects
    )


def _as_number(name: str, value: Any) -> float:
    if hasattr(value, "item") and math.prod(getattr(value, "shape", (2,))) == 1:  # a tensor, or of NumPy
        value = value.item()
    if not isinstance(value, int | float):
        what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
        raise BadParameter(f"metrics: {name!r} returns {what:.80}; it must return one number.")
    return float(value)
