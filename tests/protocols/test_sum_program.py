"""Programs of sums: the ideal function."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tacit.crypto import exact
from tacit.protocols.sum_program import ideal


class Mean:
    """The mean in two steps: the number of rows, then the sum of the values divided by it."""

    max_steps, bound = 2, exact.BOUND

    def length(self, step, down):
        return 1 if step == 0 else exact.LIMBS

    def local(self, step, table, down):
        return (
            np.array([len(table)]) if step == 0 else exact.encode(np.array([sum(table) / float(down["n"])]))
        )

    def coordinate(self):
        n = yield {}
        total = yield {"n": torch.tensor(float(n[0]))}
        return float(exact.decode(total)[0])


def test_the_ideal_function_sends_down_what_follows_from_the_sum_before():
    assert ideal(Mean(), {"a": [1.0, 2.0], "b": [6.0]}) == 3.0


def test_a_program_with_more_steps_than_it_declares_is_an_error():
    program = Mean()
    program.max_steps = 1
    with pytest.raises(AssertionError, match="more than its 1 steps"):
        ideal(program, {"a": [1.0]})
