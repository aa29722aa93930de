"""Evaluation of models on the global test set and on the parties' held-out rows."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data.federation import Federation, Rows
from ..data.inputs import Features, Stored
from ..data.subgroups import PARTY, Subgroups
from .intervals import intervals
from .losses import Objective, classes_last
from .metrics import Counts, describe, measure_all, per_class, predict_classes
from .other_counts import count_rows
from .own_metrics import OwnMetrics, RunningMetrics
from .subgroups import Tally, count_subgroups, measure_cell, measure_subgroups, merge_small
from .task import Task

MEMBERS = "member_losses"  # among the metrics of a round: the mean loss of each member
# the outputs for rows, in order, with the place of those rows: one chunk of all, or several
Chunks = Iterable[tuple[slice, Tensor]]


class Rules(NamedTuple):
    """What is reported of held-out rows, and how: the same for everyone in a run."""

    classes: int | None
    min_rows: int = 1  # a party, or a subgroup, with fewer held-out rows is not reported
    sums_only: bool = False  # the server learns only the sum over all parties
    threshold: float | None = None  # the probability from which the second of two classes is predicted
    scale: float = 1.0  # the unit of a regression's target, as errors are reported in
    objective: Objective | None = None  # None: the usual loss, cross-entropy or squared error
    own: OwnMetrics | None = None  # a user's own metrics
    members: int = 1  # several: the loss of each is reported, because each stops by its own

    def count_rows(self, out: Tensor, y: Tensor) -> Counts:
        """The counts of the outputs for some rows."""
        return count_rows(out, y, self.classes, self.objective, self.threshold)

    def returns_logits(self, out: Tensor, y: Tensor) -> bool:
        """Whether outputs have a number for each class, which is not so of every own loss."""
        if self.objective is None or not self.objective.is_own:
            return True
        of_classes = tuple(classes_last(out, y).shape) == (*y.shape, self.classes)
        return of_classes and not self.objective.outputs.columns

    def begin_own(self) -> RunningMetrics | None:
        """A user's own metrics of no rows yet."""
        several = None if self.objective is None else self.objective.outputs
        return None if self.own is None else self.own.begin(several)

    def begin_members(self) -> MemberLosses | None:
        """The losses of the members on no rows yet; None where they are not reported."""
        return MemberLosses(self) if self.members > 1 else None

    def report_members(self, tally: Tally) -> dict[str, list[float]]:
        """The mean loss of each member, in the unit of the model's; nothing where none is reported."""
        if not len(tally.members) or not float(tally.total.rows):
            return {}
        scale = self.scale**2 if self.classes is None and self.objective is None else 1.0
        return {MEMBERS: [scale * loss / float(tally.total.rows) for loss in tally.members.tolist()]}

    def report(self, counts: Counts) -> dict[str, Any]:
        """All metrics of these counts, with intervals."""
        return {
            **measure_all(counts, self.scale),
            **intervals(counts, self.scale),
            **describe(counts, self.min_rows),
        }


class MemberLosses:
    """The summed loss of each member of a model, over rows that are added a chunk at a time."""

    def __init__(self, rules: Rules):
        self.rules = rules._replace(threshold=None)
        self.sums = torch.zeros(rules.members, dtype=torch.float64)

    def of(self, chunks: Chunks, y: Tensor, shown: Tensor | None = None) -> Chunks:
        """Yield the outputs of the model for chunks with those of its members, whose losses are added up.

        `shown`: the rows that count (default: all).
        """
        for part, each in chunks:
            here = slice(None) if shown is None else shown[part]
            out, target = each[here], y[part][here]
            losses = [self._loss(out[:, k], target) for k in range(self.rules.members)]
            self.sums = self.sums + torch.stack(losses)
            yield part, each.mean(1)

    def _loss(self, out: Tensor, y: Tensor) -> Tensor:
        counts = count_rows(out, y, self.rules.classes, self.rules.objective, bins=1)
        return counts.loss.double()


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


def tally_chunks(
    chunks: Chunks, y: Tensor, rules: Rules, subgroups: Subgroups | None, codes: Tensor
) -> Tally:
    """The same of rows whose outputs are computed a chunk at a time: the sum of the chunks' counts."""
    each = (tally_rows(out, y[part], rules, subgroups, codes[part]) for part, out in chunks)
    return functools.reduce(Tally.add, each)


def tally_party(chunks: Chunks, y: Tensor, rules: Rules, subgroups: Subgroups | None) -> Tally:
    """The counts of one party's held-out rows, as they may leave it.

    In the clear, its own small subgroups are merged; in a hidden sum those of all parties are, afterwards.
    """
    codes = torch.zeros(0) if subgroups is None else subgroups.codes
    own, members = rules.begin_own(), rules.begin_members()
    chunks = chunks if members is None else members.of(chunks, y)
    chunks = chunks if own is None else _measured(chunks, y, own)
    tally = tally_chunks(chunks, y, rules, subgroups, codes)
    tally = tally if members is None else tally._replace(members=members.sums)
    tally = tally if own is None else tally._replace(own=own.sums())
    return _as_sent(tally, rules, subgroups)


def _as_sent(tally: Tally, rules: Rules, subgroups: Subgroups | None) -> Tally:
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
    # where members stop by their own losses and there is no test set, they are those on these rows
    apart = [h.rules.members > 1 and not len(t.y) for h, t in zip(held, tests)]
    on_held = outputs(task, w, buffers, [h.rows.x for h in held], stacked, apart)
    on_test = outputs(task, w, buffers, [t.x for t in tests], stacked)
    results = []
    for i, h in enumerate(held):
        groups, test = None if test_subgroups is None else test_subgroups[i], tests[i]
        has_test = len(test.y) > 0
        members = h.rules.begin_members() if apart[i] else None
        if members is not None:
            on_held[i] = members.of(on_held[i], h.rows.y, h.reports[h.owner])
        # without a global test set, the parties' held-out rows together are one
        found = _pass_held(on_held[i], h, is_test=not has_test)
        own, tally = found.own, found.tally
        if has_test:
            own = h.rules.begin_own()
            codes = torch.zeros(0) if groups is None else groups.test
            chunks = on_test[i] if own is None else _measured(on_test[i], test.y, own)
            tally = tally_chunks(chunks, test.y, h.rules, groups, codes)
        assert tally is not None
        if members is not None:
            tally = tally._replace(members=members.sums)
        results.append(
            {
                **h.rules.report(tally.total),
                **h.rules.report_members(tally),
                **_report_parties(found.hits, h),
                **({} if own is None else own.measure()),
                **_subgroups(tally, h.subgroups, h.rules, found.each),
            }
        )
    return results


def _measured(chunks: Chunks, y: Tensor, own: RunningMetrics) -> Chunks:
    """The same chunks; a user's own metrics are computed of them on the way."""
    for part, out in chunks:
        own.add(out, y[part])
        yield part, out


class _OfHeld(NamedTuple):
    """What one pass over the outputs for the parties' held-out rows gives."""

    hits: tuple[Tensor, Tensor] | None  # [parties] each: labels, and correct predictions; None: a regression
    tally: Tally | None  # of all parties that report, if they are the test set
    each: Mapping[str, Counts]  # by party, where subgroups are the parties
    own: RunningMetrics | None  # if they are the test set


def _pass_held(chunks: Chunks, held: Held, is_test: bool) -> _OfHeld:
    """Sum up what is reported of the held-out rows, reading the outputs once."""
    rules, groups = held.rules, held.subgroups
    shows_hits = rules.classes is not None and not held.sums_only
    shows_each = groups is not None and groups.parties and not held.sums_only
    # small subgroups of a party are merged before they leave it
    by_party = is_test and groups is not None and len(groups.columns) > 0 and not held.sums_only
    own = rules.begin_own() if rules.own is not None and is_test else None
    shown = held.reports[held.owner]
    hits: tuple[Tensor, Tensor] | None = None
    tally: Tally | None = None
    tallies: dict[int, Tally] = {}
    each: dict[int, Counts] = {}
    for part, out in chunks:
        y, owner, here = held.rows.y[part], held.owner[part], shown[part]
        codes = torch.zeros(0) if groups is None else groups.codes[part]
        if shows_hits and rules.returns_logits(out, y):
            found = _hits(out, y, owner, held)
            hits = found if hits is None else (hits[0] + found[0], hits[1] + found[1])
        if is_test:
            here = here.new_zeros(len(here)) if by_party else here
            some = tally_rows(out[here], y[here], rules, groups, codes if groups is None else codes[here])
            tally = some if tally is None else tally.add(some)
        if not (by_party or shows_each or own is not None):
            continue
        for k in torch.unique(owner[shown[part]]).tolist():
            mine = owner == k
            if by_party:
                some = tally_rows(out[mine], y[mine], rules, groups, codes[mine])
                tallies[k] = some if k not in tallies else tallies[k].add(some)
            if shows_each:
                counts = rules.count_rows(out[mine], y[mine])
                each[k] = counts if k not in each else each[k].add(counts)
            if own is not None:
                own.add(out[mine], y[mine], k)
    if tally is not None:
        sent = (_as_sent(tallies[k], rules, groups) for k in sorted(tallies))
        tally = functools.reduce(Tally.add, sent, tally)
    return _OfHeld(hits, tally, {held.names[k]: each[k] for k in sorted(each)}, own)


def validate(task: Task, w: Tensor, buffers: Tensor | None, held: Held) -> dict[str, Any]:
    """The metrics of one model on the parties' held-out rows, where metrics are of a global test set.

    Early stopping chooses by these, so that nothing is chosen by the test set.
    """
    shown, rules = held.reports[held.owner], held.rules._replace(own=None)
    chunks = task.predict_in_chunks(w, held.rows.x[shown].to(w.device), buffers, apart=rules.members > 1)
    return _validate(tally_party(chunks, held.rows.y[shown], rules, None), rules)


def _validate(tally: Tally, rules: Rules) -> dict[str, Any]:
    return {**measure_all(tally.total, rules.scale), **rules.report_members(tally)}


def validate_counts(answers: Mapping[str, Tally | None], rules: Rules) -> dict[str, Any]:
    """The same from the parties' own counts, or from their sum."""
    known = [
        a
        for a in answers.values()
        if a is not None and (rules.sums_only or float(a.total.rows) >= rules.min_rows)
    ]
    return _validate(functools.reduce(Tally.add, known), rules) if known else {}


def _subgroups(
    tally: Tally, groups: Subgroups | None, rules: Rules, each: Mapping[str, Counts]
) -> dict[str, Any]:
    """{"subgroups": the metrics of each}, where subgroups are declared."""
    if groups is None:
        return {}
    found: dict[str, Any] = {}
    if tally.cells is not None:
        found |= measure_subgroups(tally.cells, groups.columns, groups.values, rules.min_rows, rules.scale)
    if groups.parties and not rules.sums_only:
        shown = {name: c for name, c in each.items() if float(c.rows)}
        if len(shown) > 1:
            found[PARTY] = {name: measure_cell(c, rules.scale) for name, c in shown.items()}
    return {"subgroups": found}


def outputs(
    task: Task,
    w: Tensor,
    buffers: Tensor | None,
    xs: Sequence[Features],
    stacked: bool = False,
    apart: Sequence[bool] = (),
) -> list[Chunks]:
    """The outputs of model i on xs[i], on the CPU; with `stacked`, models on the same rows run as one
    program. Those for rows that are read from files are computed a chunk at a time, while they are used.
    `apart` says whether they are those of each member.
    """
    same: dict[tuple[int, bool], list[int]] = {}
    for i, x in enumerate(xs):
        same.setdefault((id(x), bool(apart) and apart[i]), []).append(i)
    out: list[Chunks] = [()] * len(xs)
    for (_, is_apart), group in same.items():
        x = xs[group[0]].to(w.device)
        if isinstance(x, Stored) or is_apart:
            for i in group:
                own = None if buffers is None else buffers[i]
                out[i] = task.predict_in_chunks(w[i], x, own, apart=is_apart)
            continue
        if stacked and len(group) > 1 and len(x):
            stack = task.predict_stack(w[group], x, None if buffers is None else buffers[group])
        else:
            stack = torch.stack(
                [task.predict(w[i], x, None if buffers is None else buffers[i]).cpu() for i in group]
            )
        for i, result in zip(group, stack):
            out[i] = [(slice(0, len(x)), result)]
    return out


def _hits(out: Tensor, y: Tensor, owner: Tensor, held: Held) -> tuple[Tensor, Tensor]:
    """[parties] each: the number of labels (of rows or tokens), and the number of correct predictions."""
    out = classes_last(out, y)
    hit, there = predict_classes(out, held.rules.threshold) == y, y >= 0
    if hit.dim() > 1:
        hit, there = hit.flatten(1).sum(1), there.flatten(1).sum(1)
    n, right = (torch.bincount(owner, weights=v.double(), minlength=held.parties) for v in (there, hit))
    return n, right


def _report_parties(hits: tuple[Tensor, Tensor] | None, held: Held) -> dict[str, Any]:
    """What may be shown of single parties: the accuracy of each that reports, and how many do not.

    Parties that do not report are in no other metric either, so that the difference of two metrics reveals
    nothing about them.
    """
    if held.sums_only:
        return {}
    left_out = {} if held.reports.all() else {"untested": int((~held.reports).sum())}
    if hits is None:
        return left_out
    each = [
        right / n if n and reports else None
        for n, right, reports in zip(*(t.tolist() for t in hits), held.reports.tolist())
    ]
    return {"parties": {"accuracy": each}, **left_out}


def measure_own_models(chunks: Chunks, held: Held) -> dict[str, Any]:
    """The metrics of the parties' own models, by their outputs, with their mean and minimum.

    With a hidden sum, only the accuracy over all rows.
    """
    if held.rules.classes is None:
        return {}
    each = [
        _hits(out, held.rows.y[part], held.owner[part], held)
        for part, out in chunks
        if held.rules.returns_logits(out, held.rows.y[part])
    ]
    if not each:
        return {}
    n, right = (torch.stack(counts).sum(0) for counts in zip(*each))
    if held.sums_only:
        return {"personal_accuracy": float(right.sum() / n.sum())}
    metrics = _report_parties((n, right), held)
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
    tally, own = total, None
    if len(test.y):
        chunks: Chunks = task.predict_in_chunks(w, test.x.to(w.device), buffers)
        own = rules.begin_own()
        if own is not None:
            chunks = _measured(chunks, test.y, own)
        codes = torch.zeros(0) if subgroups is None else subgroups.test
        tally = tally_chunks(chunks, test.y, rules, subgroups, codes)
    metrics: dict[str, Any] = {} if tally is None else rules.report(tally.total)
    if tally is not None and tally is total:
        metrics |= rules.report_members(tally)
    if tally is not None:
        metrics |= _subgroups(tally, subgroups, rules, {n: a.total for n, a in known.items()})
    if own is not None:
        metrics |= own.measure()
    elif rules.own is not None and total is not None and float(total.total.rows):
        metrics |= rules.own.from_sums(total.own)
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
