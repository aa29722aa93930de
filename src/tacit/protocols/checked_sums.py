"""Steps that parties repeat: no coordinator chooses what a party is asked.

    leader (the first party)              coordinator                        every other party
      |--- SumKey(K) --------------------------------------------------------->|   sealed end to end
      |                                       |<== x_u, t_u: one sum over all =|
      |                                       |--- SumStep(i + 1, sum i) ----->|   T and its tags
      |                                       |                                |  checks the tags of T,
      |                                       |                                |  computes step i + 1 from T

A program's coordinator is a function of the opened sums. A party therefore computes each next step itself,
with the program that its owner agreed to, and answers only if the coordinator sends the same. Whole numbers
must be equal; numbers may differ by rounding (machines solve equations in another order). The answer is to
the party's own numbers: what a coordinator chooses within rounding has no effect.

A coordinator could state another sum T' than it opened. So every vector x has tags under a key K that all
parties have and the coordinator does not: t_u = ⟨r, x_u⟩ + s_u modulo a prime, with r and the pads s_u from K
and the step. Tags add up like vectors, and the sum of tags must be ⟨r, T⟩ + Σ s_u.

Claim: a coordinator alone gets a party to accept a T' ≠ T with probability at most 2^-61. r is pseudorandom
and, because of the pads, independent of all that the coordinator sees. Numbers of T' are in the range of a
sum and two primes of 31 bits exceed that range together, so T' differs from T modulo one of them, and each of
its two tags is then right with probability 2^-31. Tags show nothing of a vector: they are uniform.

A coordinator that colludes with a party has K, and a party can in any case add numbers of its choice, which
move the next step. What a step may then single out is bounded by a party's policy (`effective_rows`,
`rows_per_coefficient`), and what is asked twice by sum_program.py. With a `threshold` below 1 steps are not
checked: parties agree to that mode in the contract.

Of a program that is `CheckedAtFirst` only the first sums have tags. A party then repeats the coordinator's
part up to the step after them, and requires the vectors of that step, unchanged, in all later steps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch

from ..errors import ProtocolError, TacitError
from ..parties.message import Message
from .sum_steps import Down, SumProgram, read_vector

if TYPE_CHECKING:
    from ..parties.party import Party

PRIMES = (2147483647, 2147483629)  # below 2^31: products fit in 63 bits
ROWS = 2  # tags for each prime
TAGS = ROWS * len(PRIMES)
OPENED = "the sum before"  # the name under which a step is sent the sum of the step before
KEY_BYTES = 32
_NEAR = 1e-6  # of a number: far above rounding, far below what moves a row's weight
_ZERO = 1e-7  # of the largest number of a vector


class SumKey(Message, reveals="a key by which parties check opened sums; the coordinator does not have it"):
    key: bytes


@runtime_checkable
class Checks(Protocol):
    """What a party keeps to check sums, for as long as it keeps its answers."""

    def find_key(self) -> bytes | None: ...

    def keep_key(self, key: bytes) -> None: ...

    def find_opened(self, step: int) -> np.ndarray | None:
        """Return the sum of a step with its tags, if it was checked."""

    def keep_opened(self, step: int, total: np.ndarray) -> None: ...


def can_check(program: SumProgram[Any, Any], parties: int) -> bool:
    """Return whether tags fit: they are numbers of a vector, and its sums must differ modulo the primes."""
    return max(PRIMES) <= program.bound + 1 and 4 * parties * program.bound < PRIMES[0] * PRIMES[1]


# --- tags ---------------------------------------------------------------------------------------------------


def make_tags(key: bytes, step: int, parties: Sequence[str], party: str, vector: np.ndarray) -> np.ndarray:
    """Return the tags of one party's vector."""
    pads = _pads(key, step, len(parties))[sorted(parties).index(party)]
    return _reduce(_products(key, step, vector) + pads)


def are_right(key: bytes, step: int, parties: Sequence[str], total: np.ndarray, bound: int) -> bool:
    """Return whether a sum is the one whose tags it ends with."""
    body = total[:-TAGS]
    if len(body) and max(int(body.max()), -int(body.min())) > bound * len(parties):
        return False
    expected = _products(key, step, body) + _pads(key, step, len(parties)).sum(axis=0)
    return bool((_reduce(expected) == _reduce(total[-TAGS:])).all())


def _products(key: bytes, step: int, vector: np.ndarray) -> np.ndarray:
    stream = hashlib.shake_256(b"tacit sum rows" + key + step.to_bytes(4, "big"))
    rows = np.frombuffer(stream.digest(4 * TAGS * len(vector)), "<u4").reshape(TAGS, -1) & np.uint32(
        2**31 - 1
    )
    found = []
    for k, prime in enumerate(PRIMES):
        reduced = vector % prime
        found += [
            int((reduced * row.astype(np.int64) % prime).sum()) for row in rows[k * ROWS : (k + 1) * ROWS]
        ]
    return np.array(found, np.int64)


def _pads(key: bytes, step: int, parties: int) -> np.ndarray:
    """Return one row for each party, by name."""
    stream = hashlib.shake_256(b"tacit sum pads" + key + step.to_bytes(4, "big")).digest(8 * TAGS * parties)
    modulus = np.repeat(PRIMES, ROWS).astype(np.uint64)
    pads: np.ndarray = np.frombuffer(stream, "<u8").reshape(parties, TAGS) % modulus
    return pads.astype(np.int64)


def _reduce(tags: np.ndarray) -> np.ndarray:
    reduced: np.ndarray = tags % np.repeat(PRIMES, ROWS)
    return reduced


# --- a party ------------------------------------------------------------------------------------------------


class Checker:
    """Repeats the coordinator's part of a program at a party, all of it or up to the step after `sums`."""

    def __init__(
        self,
        name: str,
        program: SumProgram[Any, Any],
        parties: Sequence[str],
        kept: Checks,
        sums: int | None = None,
    ):
        self.name, self.program, self.parties, self.kept = name, program, tuple(parties), kept
        self.sums = program.max_steps if sums is None else sums
        self._repeated: dict[str, object] = {}
        self.steps = program.coordinate()
        self.step, self.down = 0, next(self.steps)

    async def exchange_key(self, scope: Party) -> None:
        """Send the key to all, as the leader, or receive it."""
        leader, key = min(self.parties), self.kept.find_key()
        if self.name == leader:
            if key is None:
                key = scope.secret.bytes(KEY_BYTES)
                self.kept.keep_key(key)
            await scope.send([p for p in self.parties if p != leader], SumKey(key))
            return
        received = (await scope.recv(leader, SumKey)).key
        if len(received) != KEY_BYTES or (key is not None and received != key):
            raise ProtocolError(
                f"{leader!r} sends {self.name!r} another key to check sums than before. Nothing was sent."
            )
        if key is None:
            self.kept.keep_key(received)

    def tag(self, step: int, vector: np.ndarray) -> np.ndarray:
        key = self.kept.find_key()
        assert key is not None  # it was exchanged when the session began
        return np.concatenate([vector, make_tags(key, step, self.parties, self.name, vector)])

    def check(self, step: int, down: Down) -> Down:
        """Return what this party computes for the step; raise unless the coordinator sent the same."""
        if 0 < step <= self.sums:
            self._keep_sum(step - 1, down)
        while self.step < min(step, self.sums):
            total = self.kept.find_opened(self.step)
            if total is None:
                raise ProtocolError(
                    f"the coordinator asks {self.name!r} for step {step + 1} and has not shown it the sum of "
                    f"step {self.step + 1}. Nothing was sent."
                )
            try:
                self.down = self.steps.send(total[:-TAGS])
            except StopIteration:
                raise self._refuse(step, "the agreed program has ended") from None
            except TacitError as error:
                raise self._refuse(step, f"the agreed program has failed: {error}") from None
            self.step += 1
        if step > self.sums:
            self._check_repeated(step, down)
            return down
        sent = {name: tensor for name, tensor in down.items() if name != OPENED}
        differ = find_difference(self.down, sent)
        if differ is not None:
            raise self._refuse(step, f"{differ!r} is not what follows")
        return self.down

    def _check_repeated(self, step: int, down: Down) -> None:
        for name, mine in self.down.items():
            key, found = read_vector(down, name) if name in down else (None, None)
            if found is not None and self._repeated.get(name) is key:
                continue  # the same, read-only array as in the last step
            if found is None or not torch.equal(mine, down[name]):
                raise self._refuse(step, f"{name!r} is not what followed before")
            self._repeated[name] = key

    def _keep_sum(self, step: int, down: Down) -> None:
        total = down[OPENED]
        if total.dtype != torch.int64 or total.dim() != 1 or len(total) < TAGS:
            raise ProtocolError(f"the coordinator sends {self.name!r} a sum of another form than it has.")
        found, key = total.numpy(), self.kept.find_key()
        kept = self.kept.find_opened(step)
        if kept is not None and np.array_equal(kept, found):
            return
        if kept is not None or key is None or not are_right(
            key, step, self.parties, found, self.program.bound
        ):  # fmt: skip
            raise ProtocolError(
                f"the sum of step {step + 1} that the coordinator sends {self.name!r} is not the sum of the "
                "parties' vectors: its tags are wrong. Nothing was sent."
            )
        self.kept.keep_opened(step, found)

    def _refuse(self, step: int, why: str) -> ProtocolError:
        return ProtocolError(
            f"what the coordinator sent {self.name!r} in step {step + 1} does not follow from the sums "
            f"before: {why}. Nothing was sent."
        )


def find_difference(own: Down, sent: Down) -> str | None:
    """Return the name of a vector that differs by more than rounding, or None."""
    if set(own) != set(sent):
        return min(set(own) ^ set(sent))
    for name, mine in own.items():
        theirs = sent[name]
        if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
            return name
        if not mine.is_floating_point():
            if not torch.equal(mine, theirs):
                return name
            continue
        largest = float(mine[mine.isfinite()].abs().max()) if mine.isfinite().any() else 0.0
        if not torch.allclose(theirs, mine, rtol=_NEAR, atol=_ZERO * largest, equal_nan=True):
            return name
    return None
