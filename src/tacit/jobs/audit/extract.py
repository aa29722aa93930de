"""`tacit.audit.extract`: copy a model by asking it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ... import models
from ...audit.chance import binomial_tail, correlated
from ...audit.extraction import solve_linear, train_copy
from ...data.federation import Rows, check_one_label
from ...data.inputs import concatenate
from ...errors import BadData, BadParameter
from ...parameters import bad, refuse
from ...parties.ledger import Ledger
from ...report.svg import Axis, Figure, Rule, Series, Table, plot
from ...results import JobResult, Result
from ..train.plan import Plan
from .runs import open_run, plan_of
from .shadows import outputs

QUERIES = (10, 30, 100, 300, 1000)
ANSWERS = ("probabilities", "labels")
FEWEST = 20  # rows on which agreement is counted
Service = Callable[[Tensor], Tensor]


@dataclass
class Extraction(JobResult):
    """Copies of a model, by number of queries, and how often they answer as the model does."""

    title: ClassVar[str] = "Model extraction"
    facts: ClassVar[tuple[str, ...]] = (
        *("answers", "queries", "agreement", "accuracy", "constant", "judged", "method", "p_value", "notes"),
    )

    copy: nn.Module = field(repr=False)  # of the largest number of queries
    queries: tuple[int, ...]
    agreement_by_queries: tuple[float, ...]
    accuracy_by_queries: tuple[float, ...]  # on true labels
    constant: float  # the agreement of the best constant answer
    model_accuracy: float
    judged: int  # rows on which both were asked
    answers: str
    method: str
    ledger: Ledger = field(default_factory=Ledger, repr=False)
    is_regression: bool = False
    correlation: float = 0.0  # of a regression's copy with the model
    notes: tuple[str, ...] = ()

    @property
    def value(self) -> nn.Module:
        return self.copy

    @property
    def agreement(self) -> float:
        """The share of rows that copy and model label alike; of a regression, the share of variance."""
        return self.agreement_by_queries[-1]

    @property
    def accuracy(self) -> float:
        return self.accuracy_by_queries[-1]

    @property
    def p_value(self) -> float:
        """P(such an agreement | the copy is no better than the best constant, or uncorrelated)."""
        if self.is_regression:
            return correlated(self.correlation, self.judged)
        return binomial_tail(round(self.agreement * self.judged), self.judged, self.constant)

    def plot(self) -> Figure:
        """Agreement and accuracy by number of queries."""
        rows = [
            (str(n), f"{a:.3f}", f"{b:.3f}")
            for n, a, b in zip(self.queries, self.agreement_by_queries, self.accuracy_by_queries)
        ]
        return plot(
            "Copies of the model, by number of queries",
            [
                Series("agreement with the model", self.queries, self.agreement_by_queries, "c0"),
                Series("accuracy of the copy", self.queries, self.accuracy_by_queries, "c1"),
            ],
            Axis("queries", log=True),
            Axis("share of rows"),
            rules=[
                Rule("constant answer", self.constant, "quiet"),
                Rule("model's accuracy", self.model_accuracy),
            ],
            table=Table(("queries", "agreement", "accuracy"), rows),
        )

    def to_dict(self) -> dict[str, Any]:
        curve = zip(self.queries, self.agreement_by_queries, self.accuracy_by_queries)
        return {
            **super().to_dict(),
            "curve": [{"queries": n, "agreement": a, "accuracy": b} for n, a, b in curve],
        }

    def _page(self) -> str:
        from ...report.layout import Section, figure
        from ...report.result import render

        return render(self.title, self.to_dict(), [Section("curve", "By queries", figure(self.plot()))])


def extract(
    run: Result | str | Path,
    *,
    queries: Sequence[int] = QUERIES,
    rows: Any = None,
    answers: str | Service = "probabilities",
    model: Any = None,
    limit: int | None = None,
    steps: int = 500,
    seed: int = 0,
    watch: Callable[[int, int], bool | None] | None = None,
) -> Extraction:
    """Copy a run's model from its answers, as a client of a prediction service could.

    The attacker asks for `rows` (features only; default: half of the run's held-out and test rows, the
    others judge; "noise": rows of random numbers) and gets "probabilities", "labels", or what a function of
    the probabilities [n, C] returns, with which you test a defense. `limit` is the number of queries that the
    service answers. For each number of `queries` a copy is trained for `steps`: a `model` as in tacit.train
    (default: the run's), or solved for, if the answers are those of a logistic model. `watch(done, all)`
    follows the copies, and may return True to stop after one.

    The result has `.agreement` with the model, `.accuracy` on true labels, and both by number of queries.
    """
    _check(queries, answers, limit, steps)
    opened = open_run(run, "extract")
    p = plan_of(opened)
    check_one_label("extract", p.fed)
    rng = np.random.default_rng(seed)
    x, judge = _rows(p, rows, max(queries), rng)
    most = min(len(x), limit or len(x))
    asked = tuple(dict.fromkeys(min(n, most) for n in sorted(queries)))
    target = opened.model
    regression = p.fed.classes is None
    service = answers if callable(answers) else None
    given = _answer(outputs(target, x[:most]), answers, regression)
    judged = judge.matrix("extract")
    truth = outputs(target, judged)
    own = _accuracy(truth, judge.y, regression)
    copy, method = target, ""
    agreement, accuracy = [], []
    for k, n in enumerate(asked):
        solved = solve_linear(x[:n], given[:n]) if given.dim() > 1 and given.is_floating_point() else None
        method = "solved" if solved is not None else "trained"
        copy = solved if solved is not None else _train(p, model, x[:n], given[:n], steps, seed)
        out = outputs(copy, judged)
        agreement.append(_agree(out, truth, regression))
        accuracy.append(_accuracy(out, judge.y, regression))
        if watch is not None and watch(k + 1, len(asked)):
            break
    notes = []
    if limit is not None:
        notes.append(f"the service answers {limit} queries")
    if rows is None:
        notes.append("the attacker has rows like the run's own, without labels")
    return Extraction(
        copy,
        asked[: len(agreement)],
        tuple(agreement),
        tuple(accuracy),
        0.0 if regression else _constant(truth),
        own,
        len(judge.y),
        getattr(service, "__name__", "a function") if service is not None else str(answers),
        method,
        opened.ledger,
        regression,
        _correlation(out, truth) if regression else 0.0,
        tuple(notes),
    )


def _check(queries: Any, answers: Any, limit: Any, steps: Any) -> None:
    def whole(n: Any, least: int) -> bool:
        return isinstance(n, int) and not isinstance(n, bool) and n >= least

    fine = isinstance(queries, Sequence) and not isinstance(queries, str) and len(queries) > 0
    refuse(
        (
            not fine or not all(whole(n, 2) for n in queries),
            bad("extract", "queries", queries, "numbers of queries of at least 2, such as (10, 100, 1000)"),
        ),
        (
            not callable(answers) and answers not in ANSWERS,
            bad("extract", "answers", answers, "'probabilities', 'labels', or a function of probabilities"),
        ),
        (
            limit is not None and not whole(limit, 2),
            bad("extract", "limit", limit, "a whole number of at least 2, or None"),
        ),
        (not whole(steps, 1), bad("extract", "steps", steps, "a whole number of at least 1")),
    )


def _rows(p: Plan, given: Any, most: int, rng: np.random.Generator) -> tuple[Tensor, Rows]:
    """The attacker's rows, and rows with labels that copies are judged on."""
    held = p.fed.rows.take(p.fed.held.index)
    other = Rows(concatenate([held.x, p.fed.test.x]), torch.cat([held.y, p.fed.test.y]))
    order = torch.from_numpy(rng.permutation(len(other.y)))
    half = len(order) // 2 if given is None else 0
    if len(order) - half < FEWEST:
        raise BadData(
            f"extract: the run has {len(order)} held-out and test rows, and copies are judged on at least "
            f"{FEWEST}. Train it with test rows, or split with held_fraction=0.1."
        )
    x, judge = other.matrix("extract"), other.take(order[half:])
    if given is None:
        return x[order[:half]], judge
    if isinstance(given, str):
        if given != "noise" or not x.is_floating_point():
            raise bad("extract", "rows", given, "features [n, …], 'noise' for rows of numbers, or None")
        low, high = x.amin(0), x.amax(0)
        size = (most, *x.shape[1:])
        return low + (high - low) * torch.from_numpy(rng.random(size, np.float32)), judge
    own = torch.as_tensor(given).to(x.dtype)
    if own.shape[1:] != x.shape[1:] or len(own) < 2:
        raise bad(
            "extract",
            "rows",
            f"features of shape {tuple(own.shape)}",
            f"at least 2 rows of shape {tuple(x.shape[1:])}, encoded as those of the run",
        )
    return own, judge


def _answer(out: Tensor, answers: str | Service, regression: bool) -> Tensor:
    """What the service returns for the model's outputs: [n, C] probabilities, or [n] numbers."""
    if regression:
        numbers = out.reshape(len(out), -1)[:, 0]
        return answers(numbers).float() if callable(answers) else numbers
    shown = out.softmax(-1)
    if answers == "labels":
        return shown.argmax(-1)
    if not callable(answers):
        return shown
    made = answers(shown)
    if not isinstance(made, Tensor) or len(made) != len(shown):
        raise BadParameter(
            "extract: answers= must return a tensor with an answer for each row: [n, C], or [n] labels."
        )
    return made.float() if made.is_floating_point() else made


def _train(p: Plan, model: Any, x: Tensor, given: Tensor, steps: int, seed: int) -> nn.Module:
    # a module is copied with its values, which an attacker would not know: its layers are drawn anew
    made = models.build(p.model if model is None else model, tuple(x.shape[1:]), p.outputs, seed + 1)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed + 1)
        for m in made.modules():
            reset = getattr(m, "reset_parameters", None)
            if callable(reset):
                reset()
        return train_copy(made, x, given, steps=steps, seed=seed)


def _agree(out: Tensor, truth: Tensor, regression: bool) -> float:
    if regression:
        a, b = out.reshape(-1).double(), truth.reshape(-1).double()
        return float(1 - ((a - b) ** 2).mean() / b.var(correction=0).clamp(min=1e-30))
    return float((out.argmax(-1) == truth.argmax(-1)).double().mean())


def _accuracy(out: Tensor, y: Tensor, regression: bool) -> float:
    if regression:
        a, b = out.reshape(-1).double(), y.reshape(-1).double()
        return float(1 - ((a - b) ** 2).mean() / b.var(correction=0).clamp(min=1e-30))
    return float((out.argmax(-1) == y).double().mean())


def _correlation(out: Tensor, truth: Tensor) -> float:
    found = float(torch.corrcoef(torch.stack([out.reshape(-1), truth.reshape(-1)]).double())[0, 1])
    return found if np.isfinite(found) else 0.0


def _constant(truth: Tensor) -> float:
    counts = torch.bincount(truth.argmax(-1))
    return float(counts.max() / counts.sum())
