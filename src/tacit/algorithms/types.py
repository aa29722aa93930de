"""What passes between a server, a client and the engine that runs them. Nothing here does any I/O."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

State = dict[str, Tensor]


class Batch(NamedTuple):
    """One local step's rows: `index` into the party's data, `live` is 0 where a short batch was padded,
    behind the live rows; `key` seeds dropout.
    """

    index: Tensor  # type: ignore[assignment]  # the rows, not tuple.index
    live: Tensor
    key: Tensor


class Batches(NamedTuple):
    """A client's plan for one round, made from (seed, round, its name) alone: T steps of B rows."""

    index: Tensor  # type: ignore[assignment]  # [T, B] int64
    live: Tensor  # [T, B] float
    key: Tensor  # [T] int64
    size: Tensor  # [] float: how many rows the client trains on, n_k in the papers

    def fold(self, step: Callable[..., Any], carry: Any, *fixed: Any) -> Any:
        """carry ← step(carry, batch, *fixed), over the T batches in order.

        `step` may use nothing but its arguments (its own `self` included): then an engine that stacks clients
        can run one step for all of them as one tensor program, or record it once and replay it.
        """
        for t in range(self.index.shape[0]):
            carry = step(carry, Batch(self.index[t], self.live[t], self.key[t]), *fixed)
        return carry


class Upload(NamedTuple):
    """What leaves a client: vectors to be averaged with this weight. A secure sum of weight·vector and of
    weight suffices.
    """

    weight: Tensor
    vectors: dict[str, Tensor]


class Walk(NamedTuple):
    """Where a client stands in its local loop: the weights, the model's buffers, what the solver remembers,
    steps done.
    """

    w: Tensor
    buffers: State  # {} or {"buffers": …}: batch-norm statistics ride along and are averaged like the weights
    memory: State
    steps: Tensor


class Solver(Protocol):
    """How a client turns a direction into a step. `start` makes its memory, `rate` its learning rate in this
    round.
    """

    def start(self, down: State) -> Walk: ...
    def rate(self, lr: float, down: State) -> Any: ...
    def step(self, walk: Walk, g: Tensor, lr: Any) -> Walk: ...


class Algorithm(ABC):
    """Two pure functions over one flat vector: `local` at a client, `merge` at the server.

    `down` is what the server sends: `w`, the number of the `round`, the model's `buffers` if it has any, and
    those parts of the server's state that `sends` names. `mine` is what this client keeps from the last round
    it took part in. `mean` is the weighted mean of the clients' uploads, and `fraction` the share of all
    parties that took part.
    """

    sends: ClassVar[tuple[str, ...]] = ()
    scales: ClassVar[bool] = (
        # False: an upload that counts for less cannot be had by scaling its vectors, as asynchronous training
        # does
        True
    )
    divides: ClassVar[bool] = (
        False  # True: the server divides by something that clients send, which a guard could bring near zero
    )
    walks: ClassVar[bool] = True  # False: clients only look at the model where it stands, as in FedSGD

    personalises: ClassVar[bool] = False  # True: `personal` gives each party a model of its own
    scores: ClassVar[bool] = (
        False  # True: clients send a `score`, how large their loss is, for a rule that picks the best
    )
    sees_each: ClassVar[bool] = (
        False  # True: the server looks at each update, to `split` parties among models of their own
    )
    own_buffers: ClassVar[bool] = (
        False  # True: a client keeps the model's buffers, as `buffers` in what it keeps
    )

    def server_state(self, w: Tensor) -> State:
        return {}

    def client_state(self, w: Tensor) -> State:
        return {}

    @abstractmethod
    def local(self, task: Any, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        """What a client computes: what it sends, and what it keeps."""

    def personal(self, task: Any, down: State, mine: State) -> State:
        """The model a party uses for itself: `w`, and `buffers` if it has its own. The server's, unless the
        algorithm personalises.
        """
        return {"w": down["w"]}

    @abstractmethod
    def merge(self, w: Tensor, state: State, mean: State, fraction: Any) -> tuple[Tensor, State]:
        """What the server does with the mean: its next model and state."""


def fresh(algorithm: Algorithm, start: State) -> State:
    """What a client that has not taken part yet keeps, where `start` is the first model."""
    own = {"buffers": start["buffers"]} if algorithm.own_buffers and "buffers" in start else {}
    return algorithm.client_state(start["w"]) | own


def share(batches: Batches, weighted: bool) -> Tensor:
    """A client's weight in the mean: its number of rows n_k, or one."""
    return batches.size if weighted else torch.ones_like(batches.size)
