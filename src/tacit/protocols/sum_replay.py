"""The coordinator's steps of a sum program, over sums that were opened and sums that it asks for.

A coordinator that restarts continues after the sums on its disk; with all of them it has the result.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from .checked_sums import OPENED
from .departures import Questions, mark
from .sum_steps import AboutOneSet, Down, Packed, R, SumProgram, count_words
from .summing import SumOutcome

if TYPE_CHECKING:
    from .sum_program import SumRules

Opened = Sequence[tuple[np.ndarray, Sequence[str]]]  # sums, and the parties in each
# asks for a sum: of (step, what is sent down, (the program's own step, its vectors), the remaining parties)
Ask = Callable[[int, Down, tuple[int, Down], list[str]], Coroutine[Any, Any, SumOutcome]]


def with_parties(rules: SumRules, sums: Sequence[np.ndarray], included: Sequence[Sequence[str]]) -> Opened:
    return list(zip(sums, included or [rules.parties] * len(sums), strict=True))


def replay(
    program: SumProgram[Any, R],
    rules: SumRules,
    sums: Sequence[np.ndarray],
    included: Sequence[Sequence[str]] = (),
) -> R | None:
    """Return the result of a program from its sums alone; None: not all of them were opened."""

    async def ask(step: int, sent: Down, asked: tuple[int, Down], names: list[str]) -> SumOutcome:
        raise _Missing

    try:
        run_steps(program, rules, with_parties(rules, sums, included), ask).send(None)
    except StopIteration as end:  # a coroutine that awaits nothing ends at once
        return end.value  # type: ignore[no-any-return]
    except _Missing:
        return None
    raise AssertionError


class _Missing(Exception):
    pass


async def run_steps(
    program: SumProgram[Any, R],
    rules: SumRules,
    sums: Opened,
    ask: Ask,
) -> R:
    """Run the program on the sums that were opened, and on those it asks for after them."""
    steps, remaining = program.coordinate(), list(rules.parties)
    down, total, questions = dict(next(steps)), np.zeros(0, np.int64), Questions(program)
    first = 0  # the step at which the program began
    for step in range(program.max_steps * (1 + rules.may_leave)):
        own = step - first
        if own == program.max_steps:
            break
        questions.add(down)
        sent = mark(down, first)
        if 0 < step <= rules.checked:
            sent[OPENED] = torch.from_numpy(total)
        if step < len(sums):
            total, present = np.asarray(sums[step][0], dtype=np.int64), sums[step][1]
        else:
            outcome = await ask(step, sent, (own, down), remaining)
            total, present = outcome.total.numpy(), outcome.included
        left = [p for p in remaining if p not in present]
        remaining = [p for p in remaining if p in present]
        if left and own and isinstance(program, AboutOneSet):
            questions.check(step, left)
            steps, first = program.coordinate(), step + 1
            down = dict(next(steps))
            continue
        numbers = total[: len(total) - rules.tags(step)]
        if not rules.tags(step) and count_words(program, own, down) is not None:
            numbers = cast(Packed, program).unpack(own, down, total)
        try:
            down = dict(steps.send(numbers))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
    raise AssertionError(f"the program has more than its {program.max_steps} steps")
