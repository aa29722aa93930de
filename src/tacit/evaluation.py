"""Testing models: on the global test set, and on every party's own held-out rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .data.federation import Federation, Rows
from .metrics import Counts, count, measure, of_numbers
from .task import Task


class Held(NamedTuple):
    """The held-out rows of all parties, one after the other, and whose each is."""

    rows: Rows
    owner: Tensor
    parties: int


def of_parties(fed: Federation, rows: Rows) -> Held:
    index, owner = fed.held.index, fed.held.owner
    return Held(Rows(rows.x[index], rows.y[index]), owner, len(fed))


def evaluate(task: Task, w: Tensor, buffers: Tensor | None, tests: list[Rows], held: list[Held], classes: list[int | None],
             stacked: bool = False) -> list[dict[str, Any]]:
    """The metrics of R models [R, D], each on its own test set and its own parties' rows."""
    on_held = outputs(task, w, buffers, [h.rows.x for h in held], stacked)
    on_test = outputs(task, w, buffers, [t.x for t in tests], stacked)
    results = []
    for i in range(len(w)):
        each = accuracies(on_held[i], held[i], classes[i])
        # nobody may have a global test set: then the parties' own rows together are one
        counts = count(on_test[i], tests[i].y, classes[i]) if len(tests[i].y) else count(on_held[i], held[i].rows.y, classes[i])
        results.append({**measure(counts), **_numbers(on_test[i], tests[i], classes[i]), **({"parties": {"accuracy": each}} if each is not None else {})})
    return results


def _numbers(out: Tensor, test: Rows, classes: int | None) -> dict[str, float]:
    """What a global test set tells of numbers besides their squared error, which is all that parties' own rows are counted for."""
    return of_numbers(out, test.y) if classes is None and len(test.y) else {}


def outputs(task: Task, w: Tensor, buffers: Tensor | None, xs: list[Tensor], stacked: bool = False) -> list[Tensor]:
    """What model i gives on xs[i], on the CPU. With `stacked`, models that are asked about the same rows answer as one program."""
    same: dict[int, list[int]] = {}
    for i, x in enumerate(xs):
        same.setdefault(id(x), []).append(i)
    out: list[Tensor] = [torch.empty(0)] * len(xs)
    for group in same.values():
        x = xs[group[0]].to(w.device)
        if stacked and len(group) > 1 and len(x):
            answers = task.predict_stack(w[group], x, None if buffers is None else buffers[group])
        else:
            answers = torch.stack([task.predict(w[i], x, None if buffers is None else buffers[i]).cpu() for i in group])
        for i, answer in zip(group, answers):
            out[i] = answer
    return out


def accuracies(out: Tensor, held: Held, classes: int | None) -> list[float | None] | None:
    if classes is None:
        return None
    hit, there = out.argmax(-1) == held.rows.y, held.rows.y >= 0
    if hit.dim() > 1:
        hit, there = hit.sum(1), there.sum(1)
    n, right = (torch.bincount(held.owner, weights=v.double(), minlength=held.parties) for v in (there, hit))
    return [r / m if m else None for r, m in zip(right.tolist(), n.tolist())]


def gather(task: Task, w: Tensor, buffers: Tensor | None, test: Rows, answers: list[Counts], classes: int | None) -> dict[str, Any]:
    """The same from what parties counted themselves."""
    total = answers[0]
    for other in answers[1:]:
        total = total.add(other)
    out = task.predict(w, test.x.to(w.device), buffers).cpu() if len(test.y) else torch.empty(0)
    counts = count(out, test.y, classes) if len(test.y) else total
    if classes is None:
        return {**measure(counts), **_numbers(out, test, classes)}
    return {**measure(counts), "parties": {"accuracy": [float(a.confusion.diagonal().sum() / a.rows) if a.rows else None for a in answers]}}
