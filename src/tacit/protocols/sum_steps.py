"""What a job computes that is a sequence of sums, and its ideal function.

`sum_program.py` runs such a job between parties. This file needs neither parties nor cryptography, so a
simulation runs without them.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from functools import cache
from typing import Any, ClassVar, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
from torch import Tensor

T = TypeVar("T", contravariant=True)  # what a party holds
R = TypeVar("R", covariant=True)  # what the coordinator returns

Down = Mapping[str, Tensor]

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

        It does not change `down`, which parties of one process share.
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


def count_words(program: SumProgram[Any, Any], step: int, down: Down) -> int | None:
    """Return how many words the vectors of this step are added as; None: their numbers are, one by one."""
    return cast(Packed, program).words(step, down) if implements(type(program), Packed) else None


@cache
def implements(kind: type, protocol: Any) -> bool:
    """Whether a program has the methods of a protocol; isinstance looks at all of them every time."""
    return issubclass(kind, protocol)


def ideal(program: SumProgram[T, R], tables: Mapping[str, T]) -> R:
    """Compute the same in one place: the ideal function."""
    steps = program.coordinate()
    down = next(steps)
    for step in range(program.max_steps):
        total = np.sum([program.local(step, table, down) for table in tables.values()], axis=0)
        try:
            down = steps.send(total)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
    raise AssertionError(f"the program has more than its {program.max_steps} steps")
