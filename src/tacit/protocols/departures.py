"""What happens to a program of sums if parties leave after its first sum (a threshold below 1).

    coordinator                                             every party that remains
      |<=== sum of step k over the remaining parties =========|
      |---- SumStep(k + 1, {BEGAN: k + 1, step 0's vectors}) ->|   the program's first step, over them
      …  as from the beginning; step s is the program's step s − BEGAN

Sums of different steps over different rows are neither the model of all parties nor of those that remain. A
program that declares `AboutOneSet` never mixes them: it begins again over the remaining parties, so that its
result is what these parties alone would have got, with all checks of counts repeated; or it ends with an
error where a question is asked once (`AsksOnce`) or paid for once (an ε). Others, such as boosted trees, go
on: every later step is a step without the party.

What this opens: the sums before are with the party, the same sums after are without it, and the difference
is that party's own sums. A second query without the party would open the same. It is why `threshold` is 1 by
default, and why a party's policy may refuse a lower one (`only_checked`).

A party accepts a program that begins again only under a threshold below 1, as often as parties may leave,
each time from its first step, and goes on in the last beginning only. It keeps the beginnings: otherwise each
step could be the first one again, over everyone but another party.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from ..errors import ProtocolError, QueryRefused
from .sum_steps import BEGIN_AGAIN, AboutOneSet, AsksOnce, Down, SumProgram, implements

BEGAN = "the step at which the program began again"


def begins_again(program: SumProgram[Any, Any]) -> bool:
    return isinstance(program, AboutOneSet) and program.if_left == BEGIN_AGAIN


def mark(down: Down, first: int) -> dict[str, Tensor]:
    """Add to the vectors of a step where the program began, unless it was at the beginning."""
    return dict(down) | ({BEGAN: torch.tensor(first)} if first else {})


class Beginnings(Protocol):
    """The steps at which a program began again, as a party keeps them."""

    @property
    def begun(self) -> Sequence[int]:
        """In ascending order, without the beginning at step 0."""

    def begin(self, first: int) -> None:
        """Keep another one. It is durable when this returns."""


def read_first(
    program: SumProgram[Any, Any], may_leave: int, step: int, down: Down, kept: Beginnings
) -> tuple[int, Mapping[str, Tensor]]:
    """Return the step at which the program began, and the vectors without it; raise if it may not have."""
    if BEGAN not in down:
        if kept.begun:
            _check_beginning(may_leave, step, 0, kept)
        return 0, down
    tensor = down[BEGAN]
    first = int(tensor) if tensor.dtype == torch.int64 and tensor.ndim == 0 else -1
    most = may_leave * program.max_steps if begins_again(program) else 0
    if not 0 < first <= min(step, most):
        raise ProtocolError(
            f"the coordinator says in step {step + 1} that the agreed program began again at step "
            f"{first + 1}; so many parties cannot have left. Nothing was sent."
        )
    _check_beginning(may_leave, step, first, kept)
    return first, {name: vector for name, vector in down.items() if name != BEGAN}


def _check_beginning(may_leave: int, step: int, first: int, kept: Beginnings) -> None:
    """Keep a new beginning; raise if this is none, and the step does not belong to the last one before it."""
    begun = kept.begun
    if first == max((b for b in begun if b <= step), default=0):
        return
    if first != step or first < max(begun, default=0) or len(begun) >= may_leave:
        raise ProtocolError(
            f"the coordinator says in step {step + 1} that the agreed program began at step {first + 1}; it "
            f"began at {', '.join(str(b + 1) for b in (0, *begun))}, and begins again at most {may_leave} "
            "times, as so many parties may leave. Nothing was sent."
        )
    kept.begin(first)


class Questions:
    """The questions that were asked once, by which a program cannot begin again."""

    def __init__(self, program: SumProgram[Any, Any]) -> None:
        self.program, self.asked = program, False

    def add(self, down: Down) -> None:
        if implements(type(self.program), AsksOnce):
            self.asked |= cast(AsksOnce, self.program).once(down) is not None

    def check(self, step: int, left: Sequence[str]) -> None:
        """Raise if the program cannot begin again without these parties."""
        why = "a query with an ε is paid for once"
        if begins_again(self.program):
            if not self.asked:
                return
            why = "some of its questions, which are asked once, were asked"
        who = ", ".join(map(repr, left))
        raise QueryRefused(
            f"party {who} left in step {step + 1}. Earlier sums are with its rows, and the query cannot "
            f"begin again without them: {why}. There is no result; ask again with another `edition` in "
            "[data]."
        )
