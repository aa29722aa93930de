"""Testing models: on the global test set, and on every party's own held-out rows."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data.federation import Federation, Rows
from .metrics import Counts, count, measure, of_numbers
from .task import Task


class Held(NamedTuple):
    """The held-out rows of all parties, one after the other, whose each is, and what may be shown of them."""

    rows: Rows
    owner: Tensor
    parties: int
    reports: Tensor  # [parties], bool: whose counts reach the server
    sums_only: bool = False  # the server learns the sum over all parties and nothing of a single one


def reporting(fed: Federation, min_rows: int, sums_only: bool = False) -> Tensor:
    """[parties], bool: whose counts reach the server. Without a hidden sum a party with fewer than `min_rows`
    held-out rows reports nothing.
    """
    return torch.ones(len(fed), dtype=torch.bool) if sums_only else fed.held.sizes >= min_rows


def reported(fed: Federation, min_rows: int, sums_only: bool = False) -> Tensor:
    """The held-out rows whose counts reach the server."""
    return fed.held.index[reporting(fed, min_rows, sums_only)[fed.held.owner]]


def of_parties(fed: Federation, rows: Rows, min_rows: int = 1, sums_only: bool = False) -> Held:
    """The held-out rows of a federation, as `rows` are in this round."""
    index = fed.held.index
    return Held(
        Rows(rows.x[index], rows.y[index]),
        fed.held.owner,
        len(fed),
        reporting(fed, min_rows, sums_only),
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
        else:  # nobody may have a global test set: then the parties' own rows together are one
            seen = held[i].reports[held[i].owner]
            counts = count(on_held[i][seen], held[i].rows.y[seen], classes[i])
        results.append(
            {
                **measure(counts),
                **_numbers(on_test[i], tests[i], classes[i]),
                **of_single_parties(on_held[i], held[i], classes[i]),
            }
        )
    return results


def _numbers(out: Tensor, test: Rows, classes: int | None) -> dict[str, float]:
    """What a global test set tells of numbers besides their squared error, which is all that parties' own
    rows are counted for.
    """
    return of_numbers(out, test.y) if classes is None and len(test.y) else {}


def outputs(
    task: Task, w: Tensor, buffers: Tensor | None, xs: list[Tensor], stacked: bool = False
) -> list[Tensor]:
    """What model i gives on xs[i], on the CPU. With `stacked`, models that are asked about the same rows
    answer as one program.
    """
    same: dict[int, list[int]] = {}
    for i, x in enumerate(xs):
        same.setdefault(id(x), []).append(i)
    out: list[Tensor] = [torch.empty(0)] * len(xs)
    for group in same.values():
        x = xs[group[0]].to(w.device)
        if stacked and len(group) > 1 and len(x):
            answers = task.predict_stack(w[group], x, None if buffers is None else buffers[group])
        else:
            answers = torch.stack(
                [task.predict(w[i], x, None if buffers is None else buffers[i]).cpu() for i in group]
            )
        for i, answer in zip(group, answers):
            out[i] = answer
    return out


def _hits(out: Tensor, held: Held) -> tuple[Tensor, Tensor]:
    """[parties] each: labels there are (one a row, or one a token), and how many of them the model gets
    right.
    """
    hit, there = out.argmax(-1) == held.rows.y, held.rows.y >= 0
    if hit.dim() > 1:
        hit, there = hit.sum(1), there.sum(1)
    n, right = (torch.bincount(held.owner, weights=v.double(), minlength=held.parties) for v in (there, hit))
    return n, right


def of_single_parties(out: Tensor, held: Held, classes: int | None) -> dict[str, Any]:
    """What may be shown party by party: the accuracy of each one that reports, and how many do not. Those are
    in no other figure either, so that no difference of two figures is one of theirs.
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


def of_own_models(out: Tensor, held: Held, classes: int | None) -> dict[str, Any]:
    """The same where `out` is what each party's own model gives, with their mean and the worst; under a
    hidden sum, the accuracy over all rows together.
    """
    if classes is None:
        return {}
    if held.sums_only:
        n, right = _hits(out, held)
        return {"personal_accuracy": float(right.sum() / n.sum())}
    found = of_single_parties(out, held, classes)
    return {**found, **_spread(found["parties"]["accuracy"])}


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
    """The same from what parties counted themselves. A party that sent nothing, or counts on fewer than
    `min_rows` rows, is in no figure. Under a hidden sum the answers are only ever looked at together.
    `personal`: what was counted are the parties' own models.
    """
    shown = [a if a is not None and (sums_only or float(a.rows) >= min_rows) else None for a in answers]
    known = [a for a in shown if a is not None]
    total = functools.reduce(Counts.add, known) if known else None
    out = task.predict(w, test.x.to(w.device), buffers).cpu() if len(test.y) else torch.empty(0)
    counts = count(out, test.y, classes) if len(test.y) else total
    found: dict[str, Any] = {} if counts is None else {**measure(counts), **_numbers(out, test, classes)}
    if sums_only:
        pooled = None if total is None or classes is None or not personal else _accuracy(total)
        return found if pooled is None else {**found, "personal_accuracy": pooled}
    if classes is not None:
        each = [None if a is None else _accuracy(a) for a in shown]
        found |= {"parties": {"accuracy": each}, **(_spread(each) if personal else {})}
    return found if len(known) == len(shown) else {**found, "untested": len(shown) - len(known)}


def _accuracy(counts: Counts) -> float | None:
    return float(counts.confusion.diagonal().sum() / counts.rows) if counts.rows else None


def _spread(each: list[float | None]) -> dict[str, float]:
    """The mean and the worst of the parties whose accuracy is shown."""
    known = [a for a in each if a is not None]
    return {"personal_accuracy": sum(known) / len(known), "worst_party": min(known)} if known else {}
