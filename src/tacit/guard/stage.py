"""What passes between the stages of a guard, and what every stage can do.

A stage is a frozen dataclass. `out` runs at the clients, on a stack of them (one client is a stack of
one); `back` runs at the server, on the sum, in reverse. What a stage needs to know about the vector it
gets stands in a `Form`: a stage's `form` turns the form it receives into the form it leaves, or refuses.
Stages do not import each other; `Guard` puts them in order.

    real     float64 vectors [S, D]
    ring     whole numbers (int64) [S, D], each worth `step`; where single vectors will be hidden, their sum is taken modulo `modulus`
    masked   whole numbers modulo `modulus`, each row uniform for whoever lacks the masks
    cipher   bytes
    counts   whole numbers that count people, for Laplace and RandomizedResponse
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
    """A client's vector as one stage hands it to the next."""

    space: str = "real"
    dimension: int = 0
    clients: int = 1  # at most this many vectors are summed
    least: int = 1  # at least this many are in a sum that is released
    bound: float = math.inf  # L2 norm of one client's vector, in real units
    layers: tuple[
        int, ...
    ] = ()  # lengths of the pieces of the vector: the model's layers, one after the other
    hidden: bool = (
        False  # a later stage hides single vectors, so that only their sum, taken in the ring, is seen
    )
    # standard deviation of the noise that the sum will carry, in multiples of `bound` as it is after rounding
    noise: float = 0.0
    own_noise: float = 0.0  # the same, of what one client adds to its own vector: room that Quantize leaves
    slack: int = (
        0  # units that the tails of a client's own noise reach beyond TAIL·σ: room that Quantize leaves
    )
    # ring: what one unit is worth; 0 where every client has a scale of its own, sent along as the last number
    step: float = 0.0
    limit: int = 0  # ring: no client's whole numbers lie outside ± this
    bits: int = 32  # what one number takes on the wire
    # ring, masked: sums are taken modulo this, which is more than 2 · clients · limit; 0 where they are plain
    # sums
    modulus: int = 0
    round: int = 0
    shared: int = 0  # the job's seed: what everybody may derive alike, and nobody may take for a secret


@dataclass
class Clients:
    """The `me` of `out`: who the rows of the stack are, what they keep, and their randomness."""

    names: tuple[str, ...]
    round: int = 0
    memory: State = field(
        default_factory=dict
    )  # [S, …]: what each client keeps between rounds; a stage replaces its entries
    state: State = field(default_factory=dict)  # what the server sent to all of them
    secret_seed: int | None = None  # for tests only: replayable
    events: dict[str, int] = field(
        default_factory=dict
    )  # counts of what was done knowingly: updates clipped, uploads skipped

    def sources(self, what: str) -> list[Source]:
        """Randomness for each row: the operating system's; with a seed, a stream of each client's own, the
        same in a stack and alone.
        """
        return [source(self.secret_seed, what, self.round, name) for name in self.names]

    def draw(self, what: str, make: Callable[[int, Source], np.ndarray], n: int) -> np.ndarray:
        """`make(n, source)` for each row, [S, n]; from the operating system all rows are made at once."""
        if self.secret_seed is None:
            return make(len(self.names) * n, os.urandom).reshape(len(self.names), n)
        return (
            np.stack([make(n, s) for s in self.sources(what)]) if self.names else np.zeros((0, n), np.int64)
        )


def source(secret_seed: int | None, *what: Any) -> Source:
    """The operating system's randomness, or, for tests, a stream that follows from the seed and what it is
    for.
    """
    if secret_seed is None:
        return os.urandom
    seed, count = repr((secret_seed, *what)).encode(), [0]

    def replay(n: int) -> bytes:
        count[0] += 1
        return hashlib.shake_256(b"tacit guard|%d|%s" % (count[0], seed)).digest(n)

    return replay


class Stage:
    """One step around an update. `place` orders the stages; no two of one guard may share it."""

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

    def beside(self, others: tuple[Stage, ...]) -> None:
        """Refuse what cannot stand in one guard with this stage."""

    def form(self, form: Form, state: State) -> Form:
        """The form this stage leaves, given the one it receives; BadParameter where it cannot work on
        that.
        """
        return form

    def survivors(self, clients: int) -> int:
        """At least this many vectors are in any sum that the stage lets out."""
        return 1

    def client_state(self, form: Form) -> State:
        """What each client keeps between rounds, before its first."""
        return {}

    def server_state(self, form: Form) -> State:
        """What the server keeps between rounds and sends to all clients."""
        return {}

    def out(self, vector: Tensor, me: Clients, form: Form) -> Tensor:
        """The clients' rows [S, D], in the form received (`form`) → in the form left."""
        return vector

    def back(self, total: Tensor, n: float, form: Form, state: State) -> tuple[Tensor, State]:
        """The sum [D] of about `n` rows, in the form left → in the form received (`form`); and what the
        server keeps.
        """
        return total, state

    def moved(self, state: State, before: Tensor, after: Tensor) -> State:
        """The server's model went from `before` to `after`."""
        return state


def refuse(stage: Stage, why: str) -> BadParameter:
    """One sentence for every wrong guard: which stage, why not, and the order that works."""
    return BadParameter(f"guard: {type(stage).__name__} {why} The order is {ORDER}.")


def needs(stage: Stage, form: Form, *spaces: str) -> None:
    if form.space not in spaces:
        raise refuse(stage, f"works on {' or '.join(spaces)} vectors, and gets a {form.space} one.")
