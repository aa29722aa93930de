"""The types that algorithms, the server, the clients and the engine share. Nothing here does I/O."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

State = dict[str, Tensor]
Carry = TypeVar("Carry")


class Batch(NamedTuple):
    """The rows of one local step.

    `index` are rows of the party's data. `live` is 0 for padding, which comes after the live rows. `key`
    seeds dropout.
    """

    index: Tensor  # type: ignore[assignment]  # the rows, not tuple.index
    live: Tensor
    key: Tensor


class Batches(NamedTuple):
    """A client's batches for one round, which follow from (seed, round, its name): T steps of B rows."""

    index: Tensor  # type: ignore[assignment]  # [T, B] int64
    live: Tensor  # [T, B] float
    key: Tensor  # [T] int64
    size: Tensor  # [] float: the number of rows the client trains on, n_k in the papers

    def fold(self, step: Callable[..., Carry], carry: Carry, *fixed: Any) -> Carry:
        """carry ← step(carry, batch, *fixed), over the T batches in order.

        `step` must use nothing but its arguments (its own `self` included). An engine can then run one step
        for all stacked clients as one tensor program, or record the step once and replay it.
        """
        for t in range(self.index.shape[0]):
            carry = step(carry, Batch(self.index[t], self.live[t], self.key[t]), *fixed)
        return carry


class Upload(NamedTuple):
    """What a client sends: vectors to be averaged with this weight.

    Sums of weight·vector and of weight suffice, so that secure aggregation can compute the mean.
    """

    weight: Tensor
    vectors: dict[str, Tensor]


class LocalState(NamedTuple):
    """The state of a client's local loop."""

    w: Tensor  # the weights
    buffers: State  # {} or {"buffers": …}: batch-norm statistics, which are averaged like the weights
    memory: State  # of the solver, such as a momentum
    steps: Tensor  # the number of steps so far


class LocalTask(Protocol):
    """What an algorithm uses of a task: a model, its loss and the party's rows."""

    @property
    def module(self) -> nn.Module: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def dim(self) -> int: ...
    @property
    def parameters(self) -> Sequence[Any]: ...
    def gradient(self, current: LocalState, batch: Batch) -> tuple[Tensor, LocalState]: ...
    @property
    def penalized(self) -> Tensor: ...
    def loss(self, w: Tensor, batch: Batch, buffers: State | None = None) -> Tensor: ...
    def logits(self, w: Tensor, batch: Batch, buffers: State | None = None) -> Tensor: ...
    def features(self, w: Tensor, batch: Batch, buffers: State | None = None) -> Tensor: ...
    def labels(self, batch: Batch) -> Tensor: ...
    def sums_of_models(
        self, models: Tensor, current: LocalState, batch: Batch, live: Tensor, left_out: Tensor
    ) -> tuple[Tensor, LocalState]: ...


class Solver(ABC):
    """How a client turns a gradient into a step. A solver is a frozen dataclass."""

    # The L2 penalty; a model with frozen layers is refused unless it is 0.
    weight_decay: float = 0.0
    # Whether steps of many clients can be computed as one tensor program.
    stacks: ClassVar[bool] = True

    @abstractmethod
    def start(self, down: State) -> LocalState:
        """The local state before the first step, from what the server sent."""

    def rate(self, lr: float, down: State) -> Any:
        """The learning rate in this round (a number or a tensor)."""
        return lr

    @abstractmethod
    def step(self, current: LocalState, g: Tensor, lr: Any) -> LocalState:
        """One step along the gradient `g`."""


class Algorithm(ABC):
    """A federated algorithm: `local` at a client and `merge` at the server, pure functions of one flat
    vector.

    An algorithm is a frozen dataclass. `down` is what the server sends: `w`, the number of the `round`, the
    model's `buffers` if it has any, and the parts of the server's state that `sends` names. `mine` is the
    state that this client kept from the last round in which it took part. `mean` is the weighted mean of
    the clients' uploads, and `fraction` the share of all parties that took part.
    """

    # parameters that an algorithm may declare as fields; training and comparisons read them
    # η, the clients' learning rate. Every algorithm has one.
    lr: float
    # η_g, the factor on the mean update.
    server_lr: float = 1.0
    # Whether clients are weighted by their number of rows.
    weighted: bool = True
    # The local epochs of every client; None: the job decides.
    local_epochs: int | None = None
    # The local steps of every client, which replace epochs; None: the job decides.
    local_steps: int | None = None
    # The local solver; None: the algorithm has none.
    solver: Solver | None = None

    # The parts of the server's state that are sent to clients.
    sends: ClassVar[tuple[str, ...]] = ()
    # Whether scaling an upload's vectors reduces its influence, as asynchronous training needs.
    scales: ClassVar[bool] = True
    # Whether the server divides by a value that clients send, which a guard could bring near zero.
    divides: ClassVar[bool] = False
    # Whether clients move from the server's model; False if they only evaluate it, as in FedSGD.
    takes_steps: ClassVar[bool] = True
    # Whether a client's batches are the same in every round.
    repeats_batches: ClassVar[bool] = False
    # Whether baselines (all rows in one place, a party alone) train by it, too; else by FedAvg's local steps.
    is_own_baseline: ClassVar[bool] = False
    # Whether `personal` gives each party its own model.
    personalizes: ClassVar[bool] = False
    # Whether clients send a `score`, their loss, for a rule that selects the best.
    scores: ClassVar[bool] = False
    # Whether the server looks at single updates, to `split` the parties into clusters.
    sees_each: ClassVar[bool] = False
    # Whether a client keeps the model's buffers, as `buffers` in its state.
    own_buffers: ClassVar[bool] = False

    def server_state(self, w: Tensor) -> State:
        """The server's state before the first round."""
        return {}

    def client_state(self, w: Tensor) -> State:
        """A client's state before its first round."""
        return {}

    @abstractmethod
    def local(self, task: LocalTask, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        """What a client sends, and its new state."""

    def personal(self, task: LocalTask, down: State, mine: State) -> State:
        """The model that a party uses itself: `w`, and `buffers` if it has its own."""
        return {"w": down["w"]}

    @abstractmethod
    def merge(self, w: Tensor, state: State, mean: State, fraction: Tensor | float) -> tuple[Tensor, State]:
        """The server's next model and state."""


def fresh(algorithm: Algorithm, start: State) -> State:
    """The state of a client that has not taken part yet; `start` is the first model."""
    own = {"buffers": start["buffers"]} if algorithm.own_buffers and "buffers" in start else {}
    return algorithm.client_state(start["w"]) | own


def share(batches: Batches, weighted: bool) -> Tensor:
    """A client's weight in the mean: its number of rows n_k, or one."""
    return batches.size if weighted else torch.ones_like(batches.size)
