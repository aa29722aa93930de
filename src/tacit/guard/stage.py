"""The interface of a guard stage, and the types that pass between stages.

A stage is a frozen dataclass. `out` runs at the clients, on a stack of them (one client is a stack of one);
`back` runs at the server, on the sum, in reverse. A `Form` describes the vector: a stage's `form` maps the
form of its input to the form of its output, or raises. Stages do not import each other; `Guard` puts them
in order.

    real     float64 vectors [S, D]
    ring     integers (int64) [S, D] in units of `step`; where single vectors will be hidden, their sum is
             taken modulo `modulus`
    masked   integers modulo `modulus`; without the masks, each row is uniform
    cipher   bytes
    counts   numbers of people, for Laplace and RandomizedResponse
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from ..errors import BadParameter

State = dict[str, Tensor]
Source = Callable[[int], bytes]
ORDER = "Lazy → Sparsify → Clip → Noise → Quantize → SecAgg, LightSecAgg or Encrypt"


@dataclass(frozen=True)
class Form:
    """A description of a client's vector between two stages."""

    space: str = "real"
    dimension: int = 0
    clients: int = 1  # the largest number of vectors in a sum
    least: int = 1  # the smallest number of vectors in a released sum
    bound: float = math.inf  # L2 norm of one client's vector, in real units
    layers: tuple[int, ...] = ()  # the number of values of each layer of the model, in order
    hidden: bool = False  # whether a later stage hides single vectors, so that only their sum is seen
    # standard deviation of the noise in the sum, in multiples of `bound` after rounding
    noise: float = 0.0
    own_noise: float = 0.0  # of the noise that one client adds to its own vector; Quantize leaves room for it
    slack: int = (
        0  # units by which the tails of a client's own noise exceed TAIL·σ; Quantize leaves room for it
    )
    # ring: the value of one unit; 0 if every client has its own scale, sent as the last number
    step: float = 0.0
    limit: int = 0  # ring: the largest absolute value of a client's integers
    bits: int = 32  # the size of one number in a message
    # ring, masked: sums are taken modulo this, which is more than 2 · clients · limit; 0 for plain sums
    modulus: int = 0
    round: int = 0
    shared: int = 0  # the job's seed: it is public, and everybody derives the same numbers from it


@dataclass
class Clients:
    """The clients of a stack, their state and their randomness: the `me` of `out`."""

    names: tuple[str, ...]
    round: int = 0
    memory: State = field(default_factory=dict)  # [S, …]: the clients' state; a stage replaces its entries
    state: State = field(default_factory=dict)  # what the server sent to all of them
    insecure_seed: int | None = None  # only for tests: it makes the randomness reproducible
    events: dict[str, int] = field(
        default_factory=dict
    )  # counts, such as of clipped updates and skipped uploads

    def sources(self, what: str) -> list[Source]:
        """The randomness of each client: the operating system's, or with a seed a stream for each client."""
        return [source(self.insecure_seed, what, self.round, name) for name in self.names]

    def draw(self, what: str, make: Callable[[int, Source], np.ndarray], n: int) -> np.ndarray:
        """[S, n]: `make(n, source)` for each client; from the operating system for all clients at once."""
        if self.insecure_seed is None:
            return make(len(self.names) * n, os.urandom).reshape(len(self.names), n)
        return (
            np.stack([make(n, s) for s in self.sources(what)]) if self.names else np.zeros((0, n), np.int64)
        )


def source(insecure_seed: int | None, *what: Any) -> Source:
    """The operating system's randomness, or, for tests, a stream that follows from the seed and the
    purpose.
    """
    if insecure_seed is None:
        return os.urandom
    seed, count = repr((insecure_seed, *what)).encode(), [0]

    def replay(n: int) -> bytes:
        count[0] += 1
        return hashlib.shake_256(b"tacit guard|%d|%s" % (count[0], seed)).digest(n)

    return replay


class Stage:
    """One stage of a guard. `place` orders the stages; two stages of a guard must not have the same."""

    place: ClassVar[int]
    # whether it hides single vectors from the server (secure aggregation, encryption)
    hides: ClassVar[bool] = False
    # whether clients may send nothing, so that the server reuses their last upload
    skips: ClassVar[bool] = False
    # whether most numbers of its output are zero, at positions that each client chooses
    sparse: ClassVar[bool] = False

    # parameters that a stage may declare as fields; guards and jobs read them
    adversary: str = ""  # of a stage that hides: "curious" or "active"
    max_rows: int | None = None  # of a stage that hides: the largest weight of a client, in rows
    placement: str | None = None  # of a stage that adds noise: "central", "local" or "distributed"
    quantile: float | None = None  # of a stage that clips: the quantile that the norm follows
    stochastic: bool = False  # whether it rounds at random
    feedback: bool = False  # whether clients keep what was not sent, for their next upload

    def check_with(self, others: tuple[Stage, ...]) -> None:
        """Raise BadParameter if this stage cannot be combined with the other stages of a guard."""

    def form(self, form: Form, state: State) -> Form:
        """The form of the output for this form of the input; BadParameter if the stage cannot process it."""
        return form

    def survivors(self, clients: int) -> int:
        """The smallest number of vectors in a sum that the stage releases."""
        return 1

    def client_state(self, form: Form) -> State:
        """A client's state before its first round."""
        return {}

    def server_state(self, form: Form) -> State:
        """The server's state before the first round; it is sent to all clients."""
        return {}

    def out(self, vector: Tensor, me: Clients, form: Form) -> Tensor:
        """Process the clients' rows [S, D]; `form` is the form of the input."""
        return vector

    def back(self, total: Tensor, n: float, form: Form, state: State) -> tuple[Tensor, State]:
        """Undo `out` on the sum [D] of about `n` rows; return it in the form `form`, and the server's
        state.
        """
        return total, state

    def after_step(self, state: State, before: Tensor, after: Tensor) -> State:
        """The server's state after the model changed from `before` to `after`."""
        return state


def refuse(stage: Stage, why: str) -> BadParameter:
    """The error for an invalid guard: which stage, why, and the order of stages."""
    return BadParameter(f"guard: {type(stage).__name__} {why} The order is {ORDER}.")


def needs(stage: Stage, form: Form, *spaces: str) -> None:
    if form.space not in spaces:
        raise refuse(stage, f"works on {' or '.join(spaces)} vectors, but its input is a {form.space} one.")
