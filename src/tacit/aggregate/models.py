"""Rules that look at the parties' models, and not only at how they moved: they are told the task, and every
round where the server stands.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..errors import BadParameter
from .stack import Each, Updates


@dataclass(frozen=True)
class OfModels(Each):
    """What becomes of the models is in `of_models`. Told nothing of the task, as outside a job, such a rule
    is the weighted mean it begins from.
    """

    def one(self, updates: Updates) -> dict[str, Tensor]:
        return updates.combined(updates.weights.double() / updates.weights.sum())

    def ready(self, tests: list[Tensor]) -> None:
        """Refuse here what cannot work, before anything starts. `tests` are the test rows of the runs side by
        side.
        """

    def with_task(self, task: Any, tests: list[Tensor]) -> Told:
        return Told(self, task, tests)

    @abstractmethod
    def of_models(
        self, updates: Updates, mean: dict[str, Tensor], models: Models, told: Told
    ) -> dict[str, Tensor]:
        """The `model` found, and its `buffers` where they are not the mean."""


class Told(Each):
    """A rule that knows the task, where the servers of all runs stand, and which of them it works for."""

    def __init__(self, rule: OfModels, task: Any, tests: list[Tensor]):
        self.rule, self.task, self.tests = rule, task, tests
        self.down: dict[str, Tensor] = {}
        self.run = 0

    def at(self, down: dict[str, Tensor]) -> Told:
        """`down` is what each run's server sent, [R, …]."""
        other = copy.copy(self)
        other.down = down
        return other

    def of_run(self, r: int) -> Told:
        other = copy.copy(self)
        other.run = r
        return other

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

    def one(self, updates: Updates) -> dict[str, Tensor]:
        sent = sorted(updates.chunks.keys() - {"buffers"})
        if sent not in (["delta"], ["w"]) or updates.shapes[sent[0]] != self.w.shape:
            raise BadParameter(
                f"aggregate: {type(self.rule).__name__} works on the parties' models, and in this algorithm "
                f"they send {', '.join(sent)}. "
                "Use one that sends a model or its change alone, such as FedAvg or FedProx."
            )
        mean = {k: v.to(self.w.device) for k, v in self.rule.one(updates).items()}
        models = Models(sent[0], self.w)
        found = self.rule.of_models(updates, mean, models, self)
        made = {
            **mean,
            **{k: v for k, v in found.items() if k == "buffers"},
            sent[0]: models.sent(found["model"]),
        }
        return {k: v.to(updates.weights.device) for k, v in made.items()}


class Models:
    """Models of what is sent, and the reverse: `delta` from the server's, or `w` itself."""

    def __init__(self, key: str, w: Tensor):
        self.key, self.w = key, w

    def of(self, sent: dict[str, Tensor]) -> Tensor:
        return self.w + sent["delta"] if self.key == "delta" else sent["w"]

    def sent(self, model: Tensor) -> Tensor:
        return model - self.w if self.key == "delta" else model

    def one(self, updates: Updates, i: int) -> dict[str, Tensor]:
        """Party i's `model`, and its `buffers` if it has any."""
        mine = {k: updates.row(k, i).to(self.w.device) for k in updates.chunks}
        return {"model": self.of(mine), **{k: v for k, v in mine.items() if k == "buffers"}}
