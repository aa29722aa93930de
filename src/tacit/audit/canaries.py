"""How private a training run is at least not: canaries that are trained on or not, by a coin each, and a
guess for each which it was.

One run: T. Steinke, M. Nasr, M. Jagielski: "Privacy Auditing with One (1) Training Run", NeurIPS 2023,
Algorithm 1 and Theorem 5.2. m canaries, each included with probability ½; from the trained model every one
gets a score, the highest are guessed to have been in and the lowest to have been out. Were the run (ε,
δ)-private, the number of right guesses among r would hardly exceed a binomial of r and e^ε/(1 + e^ε); so many
right ones rule a small ε out.

Many runs: two worlds, with one canary and without, and a threshold between their scores; the error rates'
confidence limits give ε (M. Jagielski, J. Ullman, A. Oprea: "Auditing Differentially Private Machine
Learning", NeurIPS 2020, Algorithm 2; Clopper and Pearson 1934).

A lower bound above the claimed ε proves the claim wrong, up to the stated confidence. One below it proves
nothing: weak canaries see little.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ..data.federation import Dataset, Rows, check_one_label
from ..errors import BadParameter
from ..parameters import bad

SHARES = (
    0.1,
    0.25,
    0.5,
    1.0,
)  # of the canaries that are guessed; each is tried, and each pays a quarter of the error allowed


@dataclass(frozen=True)
class Audited:
    """What the canaries say: ε is at least `lower`, with this confidence."""

    lower: float
    claimed: float
    delta: float
    confidence: float
    guesses: int
    right: int
    canaries: int

    @property
    def holds(self) -> bool:
        """Whether the claim survives: False is a proof against it, True is none for it."""
        return self.lower <= self.claimed

    def __str__(self) -> str:
        found = (
            f"ε ≥ {self.lower:.3g} with {self.confidence:.0%} confidence ({self.right} of {self.guesses} "
            f"guesses right, {self.canaries} canaries, "
            f"δ = {self.delta:g})"
        )
        if self.holds:
            return f"{found}: nothing speaks against the claimed ε = {self.claimed:.3g}."
        return (
            f"{found}: the claimed ε = {self.claimed:.3g} is WRONG. Look for noise that is not added, "
            "gradients that are not clipped, or rows drawn "
            "in another way."
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
    """Audit a training procedure by running it once on the data set with about half of `canaries` rows mixed
    in.

    `train` takes a data set and gives a result with `.model` and `.ledger`, as `tacit.train_private` does, or
    a model (then give `claimed` and `delta`). Canaries of kind "column" have a feature of their own, `size`
    large, and see every way in which a row's influence is not bounded; they need flat features, which grow by
    `canaries` columns. Those of kind "label" are rows of the data set with a random label, for any data.
    `start` gives the model that training begins with, which an adversary knows: canaries are then scored by
    how far their loss fell.
    """
    if kind not in ("column", "label"):
        raise bad("one_run", "kind", kind, "'column' or 'label'")
    if isinstance(canaries, bool) or not isinstance(canaries, int) or canaries < 10:
        raise bad("one_run", "canaries", canaries, "a whole number of at least 10")
    if dataset.classes is None:
        raise BadParameter(
            "one_run: the data set has no classes, and canaries carry a label. Audit a classifier."
        )
    check_one_label("one_run", dataset)
    if not 0 < confidence < 1:
        raise bad("one_run", "confidence", confidence, "a probability above 0 and below 1")
    coins = np.unpackbits(np.frombuffer(secrets.token_bytes(-(-canaries // 8)), np.uint8))[:canaries].astype(
        bool
    )  # secret: whoever trains may not know them
    labels = torch.tensor([secrets.randbelow(dataset.classes) for _ in range(canaries)])
    wide, rows = _made(dataset, canaries, kind, size)
    inside = torch.from_numpy(coins)
    mixed = replace(
        wide,
        rows=Rows(torch.cat([wide.rows.x, rows[inside]]), torch.cat([wide.rows.y, labels[inside]])),
        groups={},
    )
    before = None if start is None else _losses(start(mixed), rows, labels)
    result = train(mixed)
    model, ledger = getattr(result, "model", result), getattr(result, "ledger", None)
    if claimed is None or delta is None:
        if ledger is None or not ledger.spent:
            raise BadParameter(
                "one_run: the run claims no ε, so there is nothing to hold it to. Give claimed= and delta=."
            )
        claimed = sum(s.epsilon for s in ledger.spent) if claimed is None else claimed
        delta = sum(s.delta for s in ledger.spent) if delta is None else delta
    fallen = -_losses(model, rows, labels)  # a row that was trained on has the smaller loss
    return of_scores(
        fallen if before is None else before + fallen,
        coins,
        claimed=claimed,
        delta=delta,
        confidence=confidence,
    )


@torch.no_grad()
def _losses(model: Any, rows: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    return F.cross_entropy(model(rows), labels, reduction="none").double().numpy()


def _made(dataset: Dataset, m: int, kind: str, size: float) -> tuple[Dataset, torch.Tensor]:
    dataset = dataset.centralize()
    x = dataset.rows.x
    if kind == "label":
        return dataset, x[torch.tensor([secrets.randbelow(len(x)) for _ in range(m)])]
    if x.dim() != 2 or not x.is_floating_point():
        raise BadParameter(
            "one_run: canaries with a column of their own need flat features, and these rows have shape "
            f"{tuple(x.shape[1:])}. Use "
            f"kind='label'."
        )

    def widened(rows: Rows) -> Rows:
        return Rows(torch.cat([rows.x, torch.zeros(len(rows.x), m)], 1), rows.y)

    wide = replace(dataset, rows=widened(dataset.rows), test=widened(dataset.test), columns=(), table=None)
    return wide, torch.cat([torch.zeros(m, x.shape[1]), size * torch.eye(m)], 1)


def of_scores(
    scores: Any, included: Any, *, claimed: float, delta: float, confidence: float = 0.95
) -> Audited:
    """The bound from scores (higher: likelier trained on) and the coins. How many are guessed is settled
    before looking: each of `SHARES`, which share the error allowed.
    """
    scores, included = np.asarray(scores, float), np.asarray(included, bool)
    m = len(scores)
    order = np.argsort(scores, kind="stable")
    best: tuple[float, int, int] = (0.0, 0, 0)
    for share in SHARES:
        k = max(1, int(share * m) // 2)
        right = int(included[order[-k:]].sum() + (~included[order[:k]]).sum())
        found = lower_bound(m, 2 * k, right, delta, (1 - confidence) / len(SHARES))
        best = max(best, (found, 2 * k, right))
    lower, guesses, right = best if best[1] else (0.0, 2 * k, right)
    return Audited(lower, claimed, delta, confidence, guesses, right, m)


def p_value(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """How likely v or more of r guesses are right at most, were the run (ε, δ)-private. Steinke, Nasr,
    Jagielski 2023, Theorem 5.2.
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
    """The largest ε that v right guesses of r rule out, with this probability of being wrong."""
    if p_value(m, r, v, 0.0, delta) > error:
        return 0.0
    low, high = 0.0, 1.0
    while p_value(m, r, v, high, delta) <= error and high < 64:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(m, r, v, middle, delta) <= error else (low, middle)
    return low


def many_runs(
    inside: Sequence[float],
    outside: Sequence[float],
    *,
    claimed: float,
    delta: float,
    confidence: float = 0.95,
) -> Audited:
    """The bound from the canary's scores in runs with it and runs without it. The first half of each chooses
    the threshold, the second half is counted.
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
    sure, most = _least(hit, len(a), error), 1 - _least(len(b) - false, len(b), error)
    lower = max(0.0, math.log((sure - delta) / most)) if sure > delta and most > 0 else 0.0
    return Audited(lower, claimed, delta, confidence, len(a) + len(b), hit + len(b) - false, 1)


def _least(k: int, n: int, error: float) -> float:
    """Clopper and Pearson's lower limit: the least probability with which k or more of n come about with at
    least this error.
    """
    if not k:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(60):
        p = (low + high) / 2
        tail = sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))
        low, high = (p, high) if tail < error else (low, p)
    return low
