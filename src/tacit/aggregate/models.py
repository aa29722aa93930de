"""Rules that combine the parties' models rather than their updates: they know the task and the server's
model.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch import Tensor

from ..errors import BadParameter
from .rule import State
from .stack import SeesEach, Updates


@dataclass(frozen=True)
class ModelRule(SeesEach):
    """A rule on models; subclasses implement `aggregate_models`.

    Without a task, outside a job, the rule is the weighted mean that it starts from.
    """

    works_on_models = True

    def aggregate(self, updates: Updates) -> State:
        return updates.weighted_sum(updates.weights.double() / updates.weights.sum())

    def check_uploads(self, shapes: Mapping[str, tuple[int, ...]], model: tuple[int, ...]) -> None:
        keys = sorted(shapes.keys() - {"buffers"})
        if keys not in (["delta"], ["w"]) or tuple(shapes[keys[0]]) != tuple(model):
            raise BadParameter(
                f"aggregate: {type(self).__name__} works on the parties' models, but with this "
                f"algorithm they send {', '.join(keys)}. "
                "Use an algorithm that sends only a model or its change, such as FedAvg or FedProx."
            )

    def with_task(self, task: Any, tests: list[Tensor]) -> BoundModelRule:
        return BoundModelRule(self, task, tests)

    @abstractmethod
    def aggregate_models(
        self, updates: Updates, mean: State, models: ModelCoding, bound: BoundModelRule
    ) -> State:
        """The new `model`, and its `buffers` where they differ from the mean."""


@dataclass(frozen=True, eq=False)
class BoundModelRule(SeesEach):
    """A rule on models with its task, what the servers sent in this round, and the run it works for."""

    rule: ModelRule
    task: Any
    tests: list[Tensor]
    down: State = field(default_factory=dict)
    run: int = 0
    works_on_models = True

    def at_round(self, down: State) -> BoundModelRule:
        return replace(self, down=down)

    def for_run(self, r: int) -> BoundModelRule:
        return replace(self, run=r)

    @property
    def w(self) -> Tensor:
        return self.down["w"][self.run]

    @property
    def buffers(self) -> Tensor | None:
        return self.down["buffers"][self.run] if "buffers" in self.down else None

    @property
    def round(self) -> int:
        return int(self.down["round"][self.run])

    @property
    def test(self) -> Tensor:
        return self.tests[self.run]

    def aggregate(self, updates: Updates) -> State:
        self.rule.check_uploads(updates.shapes, self.w.shape)
        (key,) = updates.shapes.keys() - {"buffers"}
        mean = {k: v.to(self.w.device) for k, v in self.rule.aggregate(updates).items()}
        models = ModelCoding(key, self.w)
        result = mean | self.rule.aggregate_models(updates, mean, models, self)
        result[key] = models.encode(result.pop("model"))
        return {k: v.to(updates.weights.device) for k, v in result.items()}


class ModelCoding(NamedTuple):
    """How updates encode models: `delta` relative to the server's model, or `w` itself."""

    key: str
    w: Tensor

    def decode(self, update: State) -> Tensor:
        """The model that an update encodes."""
        return self.w + update["delta"] if self.key == "delta" else update["w"]

    def encode(self, model: Tensor) -> Tensor:
        """The update that encodes a model."""
        return model - self.w if self.key == "delta" else model

    def of_party(self, updates: Updates, i: int) -> State:
        """The `model` of update i, and its `buffers` if it has any."""
        update = {k: updates.row(k, i).to(self.w.device) for k in updates.chunks}
        return {"model": self.decode(update), **{k: v for k, v in update.items() if k == "buffers"}}
