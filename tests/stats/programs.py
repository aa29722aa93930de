"""A program of sums for tests, and parties that are killed once, at a chosen point of a sum."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tacit.crypto import exact
from tacit.jobs.stats.parties import member
from tacit.protocols import sum_of_all


@dataclass(frozen=True)
class Variance:
    """The mean of a column in step 1, its variance about that mean in step 2."""

    column: str
    max_steps: int = 3
    bound: int = exact.BOUND

    def length(self, step, down):
        return 1 if step == 0 else exact.LIMBS

    def local(self, step, table, down):
        x = table[self.column].dropna().to_numpy(float)
        if step == 0:
            return np.array([len(x)])
        return exact.encode(np.array([x.sum() if step == 1 else ((x - float(down["mean"])) ** 2).sum()]))

    def coordinate(self):
        n = int((yield {})[0])
        mean = float(exact.decode((yield {}))[0]) / n
        squares = yield {"mean": torch.tensor(mean, dtype=torch.float64)}
        return mean, float(exact.decode(squares)[0]) / (n - 1)


async def dying_member(me, marker, moment, **arguments):
    """A party whose process is killed once in its second sum: before it computes the masks ("mask"), or when
    it is about to send the masked vector ("send")."""
    calls, name = [], {"mask": "mask_context", "send": "MaskedVector"}[moment]
    real = getattr(sum_of_all, name)

    def dies(*args):
        calls.append(1)
        if len(calls) == 2 and not Path(marker).exists():
            Path(marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args)

    setattr(sum_of_all, name, dies)
    return await member(me, **arguments)
