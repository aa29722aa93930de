"""What a job computes that is a sequence of sums, and its ideal function.

`sum_program.py` runs such a job between parties. This file needs neither parties nor cryptography, so a
simulation runs without them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from functools import cache
from typing import Any, ClassVar, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T", contravariant=True)  # what a party holds
R = TypeVar("R", covariant=True)  # what the coordinator returns

Down = Mapping[str, Tensor]


def bytes_of(vector: Tensor) -> np.ndarray:
    """Return a vector's memory. numpy compares and joins it in this thread: torch starts others for more than
    32,768 numbers, which wait for each other longer than they work if the processor is busy.
    """
    found: np.ndarray = vector.contiguous().view(torch.uint8).numpy()
    return found


class SharedVectors(Mapping[str, Tensor]):
    """What a step was sent, as a program has it.

    Parties of one process share it, and the next step continues it. A tensor that is taken from here is
    a copy, and `read` gives arrays that nobody can write to: no program changes what another party reads, or
    what a later step is.
    """

    __slots__ = ("_arrays", "_vectors")

    def __init__(self, vectors: Mapping[str, Tensor], last: SharedVectors | None = None) -> None:
        self._vectors = vectors
        known = {} if last is None else last._arrays
        self._arrays: dict[str, tuple[Tensor, np.ndarray]] = {n: a for n, a in known.items() if n in vectors}

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._vectors[name]
        if not tensor.is_cpu:
            return tensor.clone()
        copied = torch.empty(tensor.shape, dtype=tensor.dtype)
        bytes_of(copied.reshape(-1))[:] = bytes_of(tensor.reshape(-1))
        return copied

    def __contains__(self, name: object) -> bool:
        return name in self._vectors

    def __iter__(self) -> Iterator[str]:
        return iter(self._vectors)

    def __len__(self) -> int:
        return len(self._vectors)

    def read(self, name: str) -> np.ndarray:
        """Return a vector, read-only: the same array for as long as steps repeat the vector."""
        tensor, known = self._vectors[name], self._arrays.get(name)
        if known is None or known[0] is not tensor:
            self._arrays[name] = known = tensor, _read_only(tensor)
        return known[1]


def read_vector(down: Down, name: str) -> tuple[object, np.ndarray]:
    """Return a vector that was sent, read-only, without a copy, and an object that is the same as long as the
    vector is.
    """
    if isinstance(down, SharedVectors):
        array = down.read(name)
        return array, array
    tensor = down[name]
    return tensor, _read_only(tensor)


def _read_only(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.numpy()
    array.flags.writeable = False
    return array


BEGIN_AGAIN, END = "begin again", "end"  # what a program does if parties leave (departures.py)


class SumProgram(Protocol[T, R]):
    """A job whose every step is one sum over all parties."""

    @property
    def max_steps(self) -> int:
        """The most steps that a party answers."""

    @property
    def bound(self) -> int:
        """The largest absolute value of an integer that one party contributes."""

    def length(self, step: int, down: Down) -> int:
        """How many integers a party contributes to this step."""

    def local(self, step: int, table: T, down: Down) -> np.ndarray:
        """Return what one party contributes: a vector of int64.

        What it takes from `down` is its own, or read-only (`read_vector`).
        """

    def coordinate(self) -> Generator[Down, np.ndarray, R]:
        """Yield what is sent down in each step, receive the sum, and return the result."""


@runtime_checkable
class Chained(Protocol):
    """A program whose steps repeat what earlier steps were sent: a party then checks that they agree."""

    def preceding(self, step: int, down: Down) -> Down:
        """Return what the step before was sent, if this step was sent `down`."""


@runtime_checkable
class Packed(Protocol):
    """A program whose vectors are added as fewer words of 64 bits, several numbers in a word.

    Words are added modulo 2^64. The sum of the words is a function of the sum of the vectors, so it shows no
    more than that.
    """

    def words(self, step: int, down: Down) -> int | None:
        """Return how many words a party contributes to this step; None: its numbers, one by one."""

    def local_words(self, step: int, table: Any, down: Down) -> np.ndarray:
        """Return the words of what `local` returns: a vector of int64."""

    def unpack(self, step: int, down: Down, total: np.ndarray) -> np.ndarray:
        """Return the sum of the vectors from the sum of the words."""


@runtime_checkable
class AsksOnce(Protocol):
    """A program with questions that a party answers in one step only, whatever the coordinator sends."""

    def once(self, down: Down) -> str | None:
        """Return the name of such a question, or None if steps may ask it again with other vectors."""


@runtime_checkable
class AboutOneSet(Protocol):
    """A program all of whose sums must be over the same parties."""

    if_left: ClassVar[str]  # BEGIN_AGAIN, or END: its answers are paid for once


@runtime_checkable
class Repeatable(Protocol):
    """A program whose coordinator is a function of the sums alone: parties repeat it (checked_sums.py)."""

    is_repeatable: ClassVar[bool]


@runtime_checkable
class CheckedAtFirst(Protocol):
    """A program of which parties check the first sums alone, and the step that follows from them.

    The vectors of that step are the same in all later ones.
    """

    @property
    def checked_sums(self) -> int:
        """How many."""


@runtime_checkable
class ByParty(Protocol):
    """A program with sums that are not those of the parties' rows in one table."""

    def is_by_party(self, step: int) -> bool:
        """Return whether the sum of this step depends on which party has which rows."""


def count_words(program: SumProgram[Any, Any], step: int, down: Down) -> int | None:
    """Return how many words the vectors of this step are added as; None: their numbers are, one by one."""
    return cast(Packed, program).words(step, down) if implements(type(program), Packed) else None


@cache
def implements(kind: type, protocol: Any) -> bool:
    """Whether a program has the methods of a protocol; isinstance looks at all of them every time."""
    return issubclass(kind, protocol)


def ideal(program: SumProgram[T, R], tables: Mapping[str, T], pooled: T | None = None) -> R:
    """Compute the same in one place: the ideal function.

    `pooled`: the rows of all tables in one, for the sums that do not depend on the partition.
    """
    together = tables if pooled is None else {"all": pooled}
    steps = program.coordinate()
    down = next(steps)
    for step in range(program.max_steps):
        by_party = pooled is not None and isinstance(program, ByParty) and program.is_by_party(step)
        parts = (tables if by_party else together).values()
        total = np.sum([program.local(step, table, down) for table in parts], axis=0)
        try:
            down = steps.send(total)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
    raise AssertionError(f"the program has more than its {program.max_steps} steps")
