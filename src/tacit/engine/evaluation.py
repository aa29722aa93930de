"""Evaluation of models on the global test set and on the parties' held-out rows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data.federation import Federation, Rows
from ..data.inputs import Features
from ..data.subgroups import PARTY, Subgroups
from .intervals import intervals
from .losses import Objective, classes_last
from .metrics import Counts, describe, measure_all, per_class, predict_classes
from .other_counts import count_rows
from .own_metrics import OwnMetrics
from .subgroups import Tally, count_subgroups, measure_cell, measure_subgroups, merge_small
from .task import Task


class Rules(NamedTuple):
    """What is reported of held-out rows, and how: the same for everyone in a run."""

    classes: int | None
    min_rows: int = 1  # a party, or a subgroup, with fewer held-out rows is not reported
    sums_only: bool = False  # the server learns only the sum over all parties
    threshold: float | None = None  # the probability from which the second of two classes is predicted
    scale: float = 1.0  # the unit of a regression's target, as errors are reported in
    objective: Objective | None = None  # None: the usual loss, cross-entropy or squared error
    own: OwnMetrics | None = None  # a user's own metrics

    def count_rows(self, out: Tensor, y: Tensor) -> Counts:
        """The counts of the outputs for some rows."""
        return count_rows(out, y, self.classes, self.objective, self.threshold)

    def report(self, counts: Counts) -> dict[str, Any]:
        """All metrics of these counts, with intervals."""
        return {
            **measure_all(counts, self.scale),
            **intervals(counts, self.scale),
            **describe(counts, self.min_rows),
        }


class Held(NamedTuple):
    """The held-out rows of all parties, concatenated, their owners, and what may be reported of them."""

    rows: Rows
    owner: Tensor
    names: tuple[str, ...]  # of all parties
    reports: Tensor  # [parties], bool: whose counts the server receives
    rules: Rules
    subgroups: Subgroups | None = None  # of these rows

    @property
    def parties(self) -> int:
        return len(self.names)

    @property
    def sums_only(self) -> bool:
        return self.rules.sums_only


def who_reports(fed: Federation, min_rows: int, sums_only: bool = False) -> Tensor:
    """[parties], bool: whose counts the server receives.

    Without a hidden sum, a party with fewer than `min_rows` held-out rows reports nothing.
    """
    return torch.ones(len(fed), dtype=torch.bool) if sums_only else fed.held.sizes >= min_rows


def reported_rows(fed: Federation, min_rows: int, sums_only: bool = False) -> Tensor:
    """The held-out rows whose counts the server receives."""
    return fed.held.index[who_reports(fed, min_rows, sums_only)[fed.held.owner]]


def held_out(fed: Federation, rows: Rows, rules: Rules) -> Held:
    """The held-out rows of a federation; `rows` are its rows in this round."""
    index = fed.held.index
    return Held(
        rows.take(index),
        fed.held.owner,
        fed.parties,
        who_reports(fed, rules.min_rows, rules.sums_only),
        rules,
        None if fed.subgroups is None else fed.subgroups.select(index),
    )


def tally_rows(out: Tensor, y: Tensor, rules: Rules, subgroups: Subgroups | None, codes: Tensor) -> Tally:
    """The counts of some rows, and of their subgroups by `codes`."""
    total = rules.count_rows(out, y)
    if subgroups is None or not subgroups.columns:
        return Tally(total)
    return Tally(
        total,
        count_subgroups(
            out, y, rules.classes, codes, subgroups.sizes, rules.threshold, objective=rules.objective
        ),
    )


def tally_party(out: Tensor, y: Tensor, rules: Rules, subgroups: Subgroups | None) -> Tally:
    """The counts of one party's held-out rows, as they may leave it.

    In the clear, its own small subgroups are merged; in a hidden sum those of all parties are, afterwards.
    """
    tally = tally_rows(out, y, rules, subgroups, torch.zeros(0) if subgroups is None else subgroups.codes)
    if tally.cells is None or subgroups is None or rules.sums_only:
        return tally
    return tally._replace(cells=merge_small(tally.cells, subgroups.sizes, rules.min_rows))


def evaluate(
    task: Task,
    w: Tensor,
    buffers: Tensor | None,
    tests: list[Rows],
    held: list[Held],
    stacked: bool = False,
    test_subgroups: Sequence[Subgroups | None] | None = None,
) -> list[dict[str, Any]]:
    """The metrics of R models [R, D], each on its own test set and its own parties' rows.

    `test_subgroups` are those of the rows of each test set.
    """
    on_held = outputs(task, w, buffers, [h.rows.x for h in held], stacked)
    on_test = outputs(task, w, buffers, [t.x for t in tests], stacked)
    results = []
    for i, h in enumerate(held):
        groups = None if test_subgroups is None else test_subgroups[i]
        if len(tests[i].y):
            codes = torch.zeros(0) if groups is None else groups.test
            tally = tally_rows(on_test[i], tests[i].y, h.rules, groups, codes)
        else:  # without a global test set, the parties' held-out rows together are one
            tally = _tally_held(on_held[i], h)
        results.append(
            {
                **h.rules.report(tally.total),
                **measure_parties(on_held[i], h),
                **_own_metrics(on_test[i], tests[i], on_held[i], h),
                **_subgroups(tally, h.subgroups, h.rules, lambda h=h, i=i: _each(on_held[i], h)),  # type: ignore[misc]
            }
        )
    return results


def validate(task: Task, w: Tensor, buffers: Tensor | None, held: Held) -> dict[str, float]:
    """The metrics of one model on the parties' held-out rows, where metrics are of a global test set.

    Early stopping chooses by these, so that nothing is chosen by the test set.
    """
    shown = held.reports[held.owner]
    out = task.predict(w, held.rows.x[shown].to(w.device), buffers).cpu()
    counts = held.rules.count_rows(out, held.rows.y[shown])
    return measure_all(counts, held.rules.scale)


def validate_counts(answers: Mapping[str, Tally | None], rules: Rules) -> dict[str, float]:
    """The same from the parties' own counts, or from their sum."""
    known = [
        a
        for a in answers.values()
        if a is not None and (rules.sums_only or float(a.total.rows) >= rules.min_rows)
    ]
    return measure_all(functools.reduce(Tally.add, known).total, rules.scale) if known else {}


def _own_metrics(on_test: Tensor, test: Rows, on_held: Tensor, held: Held) -> dict[str, float]:
    """A user's own metrics: of the test set, or of the parties that report."""
    own = held.rules.own
    if not own:
        return {}
    if len(test.y):
        return own.measure(on_test, test.y)
    whose = [held.owner == k for k in torch.nonzero(held.reports).flatten().tolist()]
    return own.measure_parties([(on_held[mine], held.rows.y[mine]) for mine in whose])


def _tally_held(out: Tensor, held: Held) -> Tally:
    """The sum of what all parties count, from all their rows."""
    shown = held.reports[held.owner]
    groups = held.subgroups
    if groups is None or not groups.columns or held.sums_only:
        codes = torch.zeros(0) if groups is None else groups.codes[shown]
        return tally_rows(out[shown], held.rows.y[shown], held.rules, groups, codes)
    tallies = [
        tally_party(out[mine], held.rows.y[mine], held.rules, groups.select(mine))
        for k in torch.nonzero(held.reports).flatten().tolist()
        for mine in [torch.nonzero(held.owner == k).flatten()]
    ]
    nobody = shown.new_zeros(len(shown))
    none = tally_rows(out[nobody], held.rows.y[nobody], held.rules, groups, groups.codes[nobody])
    return functools.reduce(Tally.add, tallies, none)


def _each(out: Tensor, held: Held) -> dict[str, Counts]:
    """The counts of each party that reports."""
    found = {}
    for k in torch.nonzero(held.reports).flatten().tolist():
        mine = held.owner == k
        found[held.names[k]] = held.rules.count_rows(out[mine], held.rows.y[mine])
    return found


def _subgroups(
    tally: Tally, groups: Subgroups | None, rules: Rules, each: Callable[[], Mapping[str, Counts]]
) -> dict[str, Any]:
    """{"subgroups": the metrics of each}, where subgroups are declared."""
    if groups is None:
        return {}
    found: dict[str, Any] = {}
    if tally.cells is not None:
        found |= measure_subgroups(tally.cells, groups.columns, groups.values, rules.min_rows, rules.scale)
    if groups.parties and not rules.sums_only:
        shown = {name: c for name, c in each().items() if float(c.rows)}
        if len(shown) > 1:
            found[PARTY] = {name: measure_cell(c, rules.scale) for name, c in shown.items()}
    return {"subgroups": found}


def outputs(
    task: Task, w: Tensor, buffers: Tensor | None, xs: Sequence[Features], stacked: bool = False
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
    out = classes_last(out, held.rows.y)
    hit, there = predict_classes(out, held.rules.threshold) == held.rows.y, held.rows.y >= 0
    if hit.dim() > 1:
        hit, there = hit.flatten(1).sum(1), there.flatten(1).sum(1)
    n, right = (torch.bincount(held.owner, weights=v.double(), minlength=held.parties) for v in (there, hit))
    return n, right


def measure_parties(out: Tensor, held: Held) -> dict[str, Any]:
    """What may be shown of single parties: the accuracy of each that reports, and how many do not.

    Parties that do not report are in no other metric either, so that the difference of two metrics reveals
    nothing about them.
    """
    if held.sums_only:
        return {}
    left_out = {} if held.reports.all() else {"untested": int((~held.reports).sum())}
    if held.rules.classes is None:
        return left_out
    n, right = _hits(out, held)
    each = [
        r / m if m and reports else None
        for r, m, reports in zip(right.tolist(), n.tolist(), held.reports.tolist())
    ]
    return {"parties": {"accuracy": each}, **left_out}


def measure_own_models(out: Tensor, held: Held) -> dict[str, Any]:
    """The metrics of the parties' own models, whose outputs are `out`, with their mean and minimum.

    With a hidden sum, only the accuracy over all rows.
    """
    if held.rules.classes is None:
        return {}
    if held.sums_only:
        n, right = _hits(out, held)
        return {"personal_accuracy": float(right.sum() / n.sum())}
    metrics = measure_parties(out, held)
    return {**metrics, **_spread(metrics["parties"]["accuracy"])}


def gather(
    task: Task,
    w: Tensor,
    buffers: Tensor | None,
    test: Rows,
    answers: Mapping[str, Tally | None],
    rules: Rules,
    subgroups: Subgroups | None = None,
    personal: bool = False,
) -> dict[str, Any]:
    """The same metrics from the parties' own counts, by party; of a hidden sum there is one entry.

    A party that sent nothing, or counts of fewer than `min_rows` rows, is in no metric. With a hidden sum
    only the sum of the counts is used. `personal`: the counts are those of the parties' own models.
    """
    classes, least = rules.classes, rules.min_rows
    shown = {
        name: a if a is not None and (rules.sums_only or float(a.total.rows) >= least) else None
        for name, a in answers.items()
    }
    known = {name: a for name, a in shown.items() if a is not None}
    total = functools.reduce(Tally.add, known.values()) if known else None
    tally = total
    if len(test.y):
        out = task.predict(w, test.x.to(w.device), buffers).cpu()
        tally = tally_rows(
            out, test.y, rules, subgroups, torch.zeros(0) if subgroups is None else subgroups.test
        )
    metrics: dict[str, Any] = {} if tally is None else rules.report(tally.total)
    if tally is not None:
        metrics |= _subgroups(tally, subgroups, rules, lambda: {n: a.total for n, a in known.items()})
    if len(test.y) and rules.own:
        metrics |= rules.own.measure(out, test.y)
    if rules.sums_only:
        pooled = None if total is None or classes is None or not personal else _accuracy(total.total)
        return metrics if pooled is None else {**metrics, "personal_accuracy": pooled}
    if classes is not None:
        each = [None if a is None else _accuracy(a.total) for a in shown.values()]
        metrics |= {"parties": {"accuracy": each}, **(_spread(each) if personal else {})}
    return metrics if len(known) == len(shown) else {**metrics, "untested": len(shown) - len(known)}


def _accuracy(counts: Counts) -> float | None:
    return float(per_class(counts.confusion)[0].sum() / counts.rows) if counts.rows else None


def _spread(each: list[float | None]) -> dict[str, float]:
    """The mean and the minimum over the parties whose accuracy is shown."""
    known = [a for a in each if a is not None]
    return {"personal_accuracy": sum(known) / len(known), "worst_party": min(known)} if known else {}
