"""The interface of an aggregation rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from torch import Tensor

State = dict[str, Tensor]
Total = dict[str, Any]


class Rule(ABC):
    """An aggregation rule: how the server combines the updates of one round.

    A rule is a frozen dataclass with `add` and `result`, two pure functions. R runs may be aggregated
    together; tensors of results then have a leading dimension R. Everything else below has a default.
    """

    # False only for a weighted mean, which secure aggregation can compute from masked updates.
    sees_each: ClassVar[bool] = True

    # True if the rule needs the task and the model of every party (`check_data`, `with_task`, `at_round`).
    works_on_models: ClassVar[bool] = False

    # True if the result depends on earlier rounds (`result_with_memory`).
    remembers: ClassVar[bool] = False

    def start(self) -> Total:
        """The total before the first update."""
        return {}

    @abstractmethod
    def add(self, total: Total, weights: Tensor, vectors: State) -> Total:
        """Add updates [S, …] with weights [R, S]; `weights[r]` is zero for clients of other runs."""

    @abstractmethod
    def result(self, total: Total) -> State:
        """The aggregate of each run, [R, …]."""

    def result_with_memory(
        self, total: Total, parties: Tensor, memories: list[Total], down: State
    ) -> tuple[State, list[Total]]:
        """The aggregate of each run, and what the rule keeps of it for later rounds.

        `parties` [S] are the indices of the parties, in the order of their updates. `memories` has one
        entry for each run, {} before the first round. `down` is what the servers sent, [R, …].
        """
        return self.result(total), memories

    def check_data(self, tests: list[Tensor]) -> None:  # noqa: B027  # optional
        """Raise if the rule cannot work with these test rows, one tensor for each run."""

    def check_parties(self, counts: Iterable[int]) -> None:  # noqa: B027  # optional
        """Raise if the rule cannot combine the updates of so many parties, for each of `counts`."""

    def check_uploads(self, shapes: Mapping[str, tuple[int, ...]], model: tuple[int, ...]) -> None:  # noqa: B027
        """Raise if the rule cannot combine vectors of these names and shapes; `model` is the model's."""

    def with_layers(self, layers: tuple[int, ...]) -> Rule:
        """The rule for a model whose layers have this many parameters."""
        return self

    def with_task(self, task: Any, tests: list[Tensor]) -> Rule:
        """The rule for this task; `tests` are the test rows of each run."""
        return self

    def at_round(self, down: State) -> Rule:
        """The rule for a round in which the servers sent `down`, [R, …]."""
        return self
