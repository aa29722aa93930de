"""Evaluation of models on the global test set and on the parties' held-out rows."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data.federation import Federation, Rows
from .metrics import Counts, count, measure, measure_regression
from .task import Task


class Held(NamedTuple):
    """The held-out rows of all parties, concatenated, their owners, and what may be reported of them."""

    rows: Rows
    owner: Tensor
    parties: int
    reports: Tensor  # [parties], bool: whose counts the server receives
    sums_only: bool = False  # the server learns only the sum over all parties


def who_reports(fed: Federation, min_rows: int, sums_only: bool = False) -> Tensor:
    """[parties], bool: whose counts the server receives.

    Without a hidden sum, a party with fewer than `min_rows` held-out rows reports nothing.
    """
    return torch.ones(len(fed), dtype=torch.bool) if sums_only else fed.held.sizes >= min_rows


def reported_rows(fed: Federation, min_rows: int, sums_only: bool = False) -> Tensor:
    """The held-out rows whose counts the server receives."""
    return fed.held.index[who_reports(fed, min_rows, sums_only)[fed.held.owner]]


def held_out(fed: Federation, rows: Rows, min_rows: int = 1, sums_only: bool = False) -> Held:
    """The held-out rows of a federation; `rows` are its rows in this round."""
    index = fed.held.index
    return Held(
        Rows(rows.x[index], rows.y[index]),
        fed.held.owner,
        len(fed),
        who_reports(fed, min_rows, sums_only),
        sums_only,
    )


def evaluate(
    task: Task,
    w: Tensor,
    buffers: Tensor | None,
    tests: list[Rows],
    held: list[Held],
    classes: list[int | None],
    stacked: bool = False,
) -> list[dict[str, Any]]:
    """The metrics of R models [R, D], each on its own test set and its own parties' rows."""
    on_held = outputs(task, w, buffers, [h.rows.x for h in held], stacked)
    on_test = outputs(task, w, buffers, [t.x for t in tests], stacked)
    results = []
    for i in range(len(w)):
        if len(tests[i].y):
            counts = count(on_test[i], tests[i].y, classes[i])
        else:  # without a global test set, the parties' held-out rows together are one
            shown = held[i].reports[held[i].owner]
            counts = count(on_held[i][shown], held[i].rows.y[shown], classes[i])
        results.append(
            {
                **measure(counts),
                **_regression(on_test[i], tests[i], classes[i]),
                **measure_parties(on_held[i], held[i], classes[i]),
            }
        )
    return results


def _regression(out: Tensor, test: Rows, classes: int | None) -> dict[str, float]:
    """Regression metrics of a global test set; of the parties' rows only the squared error is known."""
    return measure_regression(out, test.y) if classes is None and len(test.y) else {}


def outputs(
    task: Task, w: Tensor, buffers: Tensor | None, xs: list[Tensor], stacked: bool = False
) -> list[Tensor]:
    """The outputs of model i on xs[i], on the CPU; with `stacked`, models on the same rows run as one
    program.
    """
    same: dict[int, list[int]] = {}
    for i, x in enumerate(xs):
        same.setdefault(id(x), []).append(i)
    out: list[Tensor] = [torch.empty(0)] * len(xs)
    for group in same.values():
        x = xs[group[0]].to(w.device)
        if stacked and len(group) > 1 and len(x):
            stack = task.predict_stack(w[group], x, None if buffers is None else buffers[group])
        else:
            stack = torch.stack(
                [task.predict(w[i], x, None if buffers is None else buffers[i]).cpu() for i in group]
            )
        for i, result in zip(group, stack):
            out[i] = result
    return out


def _hits(out: Tensor, held: Held) -> tuple[Tensor, Tensor]:
    """[parties] each: the number of labels (of rows or tokens), and the number of correct predictions."""
    hit, there = out.argmax(-1) == held.rows.y, held.rows.y >= 0
    if hit.dim() > 1:
        hit, there = hit.sum(1), there.sum(1)
    n, right = (torch.bincount(held.owner, weights=v.double(), minlength=held.parties) for v in (there, hit))
    return n, right


def measure_parties(out: Tensor, held: Held, classes: int | None) -> dict[str, Any]:
    """What may be shown of single parties: the accuracy of each that reports, and how many do not.

    Parties that do not report are in no other metric either, so that the difference of two metrics reveals
    nothing about them.
    """
    if held.sums_only:
        return {}
    left_out = {} if held.reports.all() else {"untested": int((~held.reports).sum())}
    if classes is None:
        return left_out
    n, right = _hits(out, held)
    each = [
        r / m if m and reports else None
        for r, m, reports in zip(right.tolist(), n.tolist(), held.reports.tolist())
    ]
    return {"parties": {"accuracy": each}, **left_out}


def measure_own_models(out: Tensor, held: Held, classes: int | None) -> dict[str, Any]:
    """The metrics of the parties' own models, whose outputs are `out`, with their mean and minimum.

    With a hidden sum, only the accuracy over all rows.
    """
    if classes is None:
        return {}
    if held.sums_only:
        n, right = _hits(out, held)
        return {"personal_accuracy": float(right.sum() / n.sum())}
    metrics = measure_parties(out, held, classes)
    return {**metrics, **_spread(metrics["parties"]["accuracy"])}


def gather(
    task: Task,
    w: Tensor,
    buffers: Tensor | None,
    test: Rows,
    answers: Sequence[Counts | None],
    classes: int | None,
    min_rows: int = 1,
    sums_only: bool = False,
    personal: bool = False,
) -> dict[str, Any]:
    """The same metrics from the parties' own counts.

    A party that sent nothing, or counts of fewer than `min_rows` rows, is in no metric. With a hidden sum
    only the sum of the counts is used. `personal`: the counts are those of the parties' own models.
    """
    shown = [a if a is not None and (sums_only or float(a.rows) >= min_rows) else None for a in answers]
    known = [a for a in shown if a is not None]
    total = functools.reduce(Counts.add, known) if known else None
    out = task.predict(w, test.x.to(w.device), buffers).cpu() if len(test.y) else torch.empty(0)
    counts = count(out, test.y, classes) if len(test.y) else total
    metrics: dict[str, Any] = {} if counts is None else {**measure(counts), **_regression(out, test, classes)}
    if sums_only:
        pooled = None if total is None or classes is None or not personal else _accuracy(total)
        return metrics if pooled is None else {**metrics, "personal_accuracy": pooled}
    if classes is not None:
        each = [None if a is None else _accuracy(a) for a in shown]
        metrics |= {"parties": {"accuracy": each}, **(_spread(each) if personal else {})}
    return metrics if len(known) == len(shown) else {**metrics, "untested": len(shown) - len(known)}


def _accuracy(counts: Counts) -> float | None:
    return float(counts.confusion.diagonal().sum() / counts.rows) if counts.rows else None


def _spread(each: list[float | None]) -> dict[str, float]:
    """The mean and the minimum over the parties whose accuracy is shown."""
    known = [a for a in each if a is not None]
    return {"personal_accuracy": sum(known) / len(known), "worst_party": min(known)} if known else {}
