"""Teachers: models on disjoint data, and their votes.

They are trained as one cohort (hundreds at once), or each by its own party.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import models
from ...algorithms import Adam, FedAvg
from ...algorithms.types import State
from ...data.federation import Federation, Holdings, Rows
from ...engine.task import Task
from ...private.pate_student import Lessons
from ...runtimes.cohort import Cohort, Run


def initial_weights(
    model: Any, fed: Federation, seed: int, device: str, names: tuple[str, ...]
) -> tuple[Task, list[State]]:
    """Return a task, and initial weights for each party of `fed`.

    They are the same wherever the party trains, and different for every party.
    """
    shape, classes = tuple(fed.rows.x.shape[1:]), fed.classes or 1
    task = Task(
        models.build(model, shape, classes, seed).to(device),
        fed.rows.matrix("pate").to(device),
        fed.rows.y.to(device),
    )
    at = {name: i for i, name in enumerate(names)}
    return task, [
        Task(models.build(model, shape, classes, seed + at[name]).to(device), task.x, task.y).initial()
        for name in fed.parties
    ]


def train(
    fed: Federation,
    model: Any,
    lessons: Lessons,
    seed: int,
    device: str,
    names: tuple[str, ...] | None = None,
) -> Ensemble:
    """Train all parties of `fed` at once, each on its own rows.

    `names` are all teachers, if these are only some of them.
    """
    task, first = initial_weights(model, fed, seed, device, names or fed.parties)
    k = len(fed)
    # one run per teacher with one member each, so its "mean" is that party's model, and all are one stack
    algorithm = FedAvg(lr=lessons.lr, option="I", weighted=False, solver=Adam())
    epochs = np.full(k, lessons.epochs)
    runs = [Run(fed, algorithm, seed, 1, epochs, lessons.batch_size, members=np.array([i])) for i in range(k)]
    cohort = Cohort(task, first, runs)
    cohort.round(0)
    return Ensemble(
        cohort.task, cohort.w, cohort.buffers, fed.classes or 1, cohort.engine, list(cohort.notes)
    )


@dataclass
class Ensemble:
    """Trained teachers. Single votes are private; only noisy counts may be released."""

    task: Task
    w: Tensor
    buffers: Tensor | None
    classes: int
    engine: str
    notes: list[str]

    def __len__(self) -> int:
        return len(self.w)

    def choices(self, x: Tensor) -> Tensor:
        """Return the class each teacher votes for, [teachers, rows]."""
        rows = x.to(self.w.device)
        return torch.stack(
            [
                self.task.predict(self.w[k], rows, None if self.buffers is None else self.buffers[k])
                .argmax(1)
                .cpu()
                for k in range(len(self))
            ]
        )

    def counts(self, x: Tensor) -> np.ndarray:
        """Return how many teachers vote for each class, [rows, classes]."""
        return tally(self.choices(x), self.classes)


def tally(choices: Tensor, classes: int) -> np.ndarray:
    """Count the votes for each class."""
    return torch.nn.functional.one_hot(choices, classes).sum(0).numpy()


def single_party(x: Tensor, y: Tensor, name: str, classes: int) -> Federation:
    """Return one party's rows as a federation of one."""
    rows = Rows(x, y)
    return Federation(
        name,
        rows,
        Holdings.from_lists([torch.arange(len(y))]),
        Holdings.from_lists([torch.arange(0)]),
        Rows(x[:0], y[:0]),
        classes,
        (name,),
    )
