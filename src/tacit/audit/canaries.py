"""Empirical lower bounds on ε: canaries that are in the training set or not, and a guess for each.

One run: T. Steinke, M. Nasr, M. Jagielski: "Privacy Auditing with One (1) Training Run", NeurIPS 2023,
Algorithm 1 and Theorem 5.2. Each of m canaries is included with probability ½ and gets a score from the
trained model. The canaries with the highest scores are guessed to be included, those with the lowest to be
excluded. If the run is (ε, δ)-private, the number of correct guesses among r rarely exceeds a binomial with
e^ε/(1 + e^ε), so that many correct guesses rule out a small ε.

Many runs: with one canary and without it, and a threshold between their scores. The confidence limits of
the error rates give ε (M. Jagielski, J. Ullman, A. Oprea: "Auditing Differentially Private Machine
Learning", NeurIPS 2020, Algorithm 2; Clopper and Pearson 1934).

A lower bound above the claimed ε proves the claim wrong, at the stated confidence. One below it proves
nothing, because the canaries may be weak.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F

from ..data.federation import Dataset, Rows, check_one_label
from ..errors import BadParameter
from ..numbers import bisect
from ..parameters import bad

SHARES = (0.1, 0.25, 0.5, 1.0)  # of the canaries that are guessed; each gets a quarter of the allowed error


@runtime_checkable
class TrainingResult(Protocol):
    """A model with the ledger that states its ε."""

    model: Any
    ledger: Any


@dataclass(frozen=True)
class Audited:
    """The result of an audit: ε is at least `lower`, with this confidence."""

    lower: float
    claimed: float
    delta: float
    confidence: float
    guesses: int
    right: int
    canaries: int

    @property
    def holds(self) -> bool:
        """Whether the bound is consistent with the claim: False refutes it, True does not prove it."""
        return self.lower <= self.claimed

    def __str__(self) -> str:
        bound = (
            f"ε ≥ {self.lower:.3g} with {self.confidence:.0%} confidence ({self.right} of {self.guesses} "
            f"guesses correct, {self.canaries} canaries, "
            f"δ = {self.delta:g})"
        )
        if self.holds:
            return f"{bound}: consistent with the claimed ε = {self.claimed:.3g}."
        return (
            f"{bound}: the claimed ε = {self.claimed:.3g} is WRONG. Look for missing noise, gradients that "
            "are not clipped, or another sampling of rows."
        )


def one_run(
    dataset: Dataset,
    train: Callable[[Dataset], Any],
    *,
    canaries: int = 500,
    kind: str = "column",
    size: float = 10.0,
    claimed: float | None = None,
    delta: float | None = None,
    confidence: float = 0.95,
    start: Callable[[Dataset], Any] | None = None,
) -> Audited:
    """Audit a training procedure by running it once on the data set with about half of the canaries added.

    `train` takes a data set and returns a result with `.model` and `.ledger`, as `tacit.train_private`
    does, or a model (then set `claimed` and `delta`). Canaries of kind "column" have a feature of their
    own, of size `size`, and detect any unbounded influence of a row; they need flat features, to which
    `canaries` columns are added. Canaries of kind "label" are rows of the data set with a random label, for
    any data. `start` returns the initial model, which an adversary knows: canaries are then scored by the
    decrease of their loss.
    """
    if kind not in ("column", "label"):
        raise bad("one_run", "kind", kind, "'column' or 'label'")
    if isinstance(canaries, bool) or not isinstance(canaries, int) or canaries < 10:
        raise bad("one_run", "canaries", canaries, "a whole number of at least 10")
    if dataset.classes is None:
        raise BadParameter(
            "one_run: the data set has no classes, and canaries need a label. Audit a classifier."
        )
    check_one_label("one_run", dataset)
    if not 0 < confidence < 1:
        raise bad("one_run", "confidence", confidence, "a probability above 0 and below 1")
    # secret: the training procedure must not know which canaries are included
    bits = np.unpackbits(np.frombuffer(secrets.token_bytes(-(-canaries // 8)), np.uint8))
    included = bits[:canaries].astype(bool)
    labels = torch.tensor([secrets.randbelow(dataset.classes) for _ in range(canaries)])
    wide, rows = _make_canaries(dataset, canaries, kind, size)
    inside = torch.from_numpy(included)
    mixed = replace(
        wide,
        rows=Rows(
            torch.cat([wide.rows.matrix("one_run"), rows[inside]]), torch.cat([wide.rows.y, labels[inside]])
        ),
        groups={},
    )
    before = None if start is None else _losses(start(mixed), rows, labels)
    result = train(mixed)
    model, ledger = (result.model, result.ledger) if isinstance(result, TrainingResult) else (result, None)
    if claimed is None or delta is None:
        if ledger is None or not ledger.spent:
            raise BadParameter("one_run: the run states no ε. Set claimed= and delta=.")
        claimed = sum(s.epsilon for s in ledger.spent) if claimed is None else claimed
        delta = sum(s.delta for s in ledger.spent) if delta is None else delta
    scores = -_losses(model, rows, labels)  # training decreases the loss of a row
    return from_scores(
        scores if before is None else before + scores,
        included,
        claimed=claimed,
        delta=delta,
        confidence=confidence,
    )


@torch.no_grad()
def _losses(model: Any, rows: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    return F.cross_entropy(model(rows), labels, reduction="none").double().numpy()


def _make_canaries(dataset: Dataset, m: int, kind: str, size: float) -> tuple[Dataset, torch.Tensor]:
    dataset = dataset.centralize()
    x = dataset.rows.matrix("one_run")
    if kind == "label":
        return dataset, x[torch.tensor([secrets.randbelow(len(x)) for _ in range(m)])]
    if x.dim() != 2 or not x.is_floating_point():
        raise BadParameter(
            "one_run: canaries of kind 'column' need flat features, and these rows have shape "
            f"{tuple(x.shape[1:])}. Use "
            f"kind='label'."
        )

    def widen(rows: Rows) -> Rows:
        return Rows(torch.cat([rows.matrix("one_run"), torch.zeros(len(rows.x), m)], 1), rows.y)

    wide = replace(dataset, rows=widen(dataset.rows), test=widen(dataset.test), columns=(), table=None)
    return wide, torch.cat([torch.zeros(m, x.shape[1]), size * torch.eye(m)], 1)


def from_scores(
    scores: Any, included: Any, *, claimed: float, delta: float, confidence: float = 0.95
) -> Audited:
    """The bound from scores (higher: more likely included) and which canaries were included.

    The numbers of guesses are fixed in advance: each of `SHARES`, with an equal part of the allowed error.
    """
    scores, included = np.asarray(scores, float), np.asarray(included, bool)
    m = len(scores)
    order = np.argsort(scores, kind="stable")
    best: tuple[float, int, int] = (0.0, 0, 0)
    for share in SHARES:
        k = max(1, int(share * m) // 2)
        right = int(included[order[-k:]].sum() + (~included[order[:k]]).sum())
        best = max(best, (lower_bound(m, 2 * k, right, delta, (1 - confidence) / len(SHARES)), 2 * k, right))
    lower, guesses, right = best if best[1] else (0.0, 2 * k, right)
    return Audited(lower, claimed, delta, confidence, guesses, right, m)


def p_value(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """An upper bound on P(at least v of r guesses are correct) for an (ε, δ)-private run.

    Steinke, Nasr, Jagielski 2023, Theorem 5.2.
    """
    q = 1 / (1 + math.exp(-epsilon))
    k = np.arange(r + 1)
    log_choose = math.lgamma(r + 1) - np.array([math.lgamma(i + 1) + math.lgamma(r - i + 1) for i in k])
    with np.errstate(divide="ignore"):
        mass = (
            np.exp(log_choose + k * math.log(q) + (r - k) * (math.log1p(-q) if q < 1 else -math.inf))
            if q < 1
            else (k == r).astype(float)
        )
    beta = float(mass[v:].sum())
    below = np.cumsum(mass[:v][::-1])  # P(v − i ≤ W < v) for i = 1 … v
    alpha = float((below / np.arange(1, v + 1)).max()) if v else 0.0
    return min(1.0, beta + 2 * m * delta * alpha)


def lower_bound(m: int, r: int, v: int, delta: float, error: float) -> float:
    """The largest ε that v correct guesses of r rule out, with this probability of error."""
    if p_value(m, r, v, 0.0, delta) > error:
        return 0.0
    low, high = 0.0, 1.0
    while p_value(m, r, v, high, delta) <= error and high < 64:
        low, high = high, 2 * high
    return bisect(lambda epsilon: p_value(m, r, v, epsilon, delta) > error, low, high, 50)[0]


def many_runs(
    inside: Sequence[float],
    outside: Sequence[float],
    *,
    claimed: float,
    delta: float,
    confidence: float = 0.95,
) -> Audited:
    """The bound from the canary's scores in runs with it and without it.

    The first half of the runs chooses the threshold, the second half is counted.
    """
    a, b = np.asarray(inside, float), np.asarray(outside, float)
    if len(a) < 4 or len(b) < 4:
        raise bad(
            "many_runs", "the number of runs", (len(a), len(b)), "at least 4 with the canary and 4 without"
        )
    first = np.concatenate([a[: len(a) // 2], b[: len(b) // 2]])
    cut = max(first, key=lambda t: (a[: len(a) // 2] >= t).mean() - (b[: len(b) // 2] >= t).mean())
    a, b = a[len(a) // 2 :], b[len(b) // 2 :]
    error = (1 - confidence) / 2
    hit, false = int((a >= cut).sum()), int((b >= cut).sum())
    sure, most = _lower_limit(hit, len(a), error), 1 - _lower_limit(len(b) - false, len(b), error)
    lower = max(0.0, math.log((sure - delta) / most)) if sure > delta and most > 0 else 0.0
    return Audited(lower, claimed, delta, confidence, len(a) + len(b), hit + len(b) - false, 1)


def _lower_limit(k: int, n: int, error: float) -> float:
    """The Clopper–Pearson lower confidence limit for k of n, with this error."""

    def tail(p: float) -> float:
        return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))

    return bisect(lambda p: tail(p) >= error, 0.0, 1.0, 60)[0] if k else 0.0
