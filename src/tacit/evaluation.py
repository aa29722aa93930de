"""Testing models: on the global test set, and on every party's own held-out rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .data.federation import Federation, Rows
from .metrics import Counts, count, measure
from .task import Task


class Held(NamedTuple):
    """The held-out rows of all parties, one after the other, and whose each is."""

    rows: Rows
    owner: Tensor
    parties: int


def of_parties(fed: Federation, rows: Rows) -> Held:
    index, owner = fed.held.index, fed.held.owner
    return Held(Rows(rows.x[index], rows.y[index]), owner, len(fed))


def evaluate(task: Task, w: Tensor, buffers: Tensor | None, tests: list[Rows], held: list[Held], classes: list[int | None]) -> list[dict[str, Any]]:
    """The metrics of R models [R, D], each on its own test set and its own parties' rows."""
    device = w.device
    results = []
    for i in range(len(w)):
        b = None if buffers is None else buffers[i]
        out = task.predict(w[i], held[i].rows.x.to(device), b).cpu() if len(held[i].owner) else torch.zeros(0, classes[i] or 1)
        each = _accuracies(out, held[i], classes[i])
        if len(tests[i].y):
            counts = count(task.predict(w[i], tests[i].x.to(device), b).cpu(), tests[i].y, classes[i])
        else:  # nobody has a global test set: the parties' own rows together are one
            counts = count(out, held[i].rows.y, classes[i])
        results.append({**measure(counts), **({"parties": {"accuracy": each}} if each is not None else {})})
    return results


def _accuracies(out: Tensor, held: Held, classes: int | None) -> list[float | None] | None:
    if classes is None:
        return None
    hit = (out.argmax(-1) == held.rows.y).double()
    n = torch.bincount(held.owner, minlength=held.parties)
    right = torch.bincount(held.owner, weights=hit, minlength=held.parties)
    return [float(r) / int(m) if m else None for r, m in zip(right, n)]


def gather(task: Task, w: Tensor, buffers: Tensor | None, test: Rows, answers: list[Counts], classes: int | None) -> dict[str, Any]:
    """The same from what parties counted themselves."""
    total = answers[0]
    for other in answers[1:]:
        total = total.add(other)
    counts = count(task.predict(w, test.x, buffers), test.y, classes) if len(test.y) else total
    if classes is None:
        return measure(counts)
    return {**measure(counts), "parties": {"accuracy": [float(a.confusion.diagonal().sum() / a.rows) if a.rows else None for a in answers]}}
