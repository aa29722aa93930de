"""The ROC curve of a membership attack, and the ceiling that (ε, δ) puts on it.

For an (ε, δ)-private mechanism, every attack has TPR ≤ e^ε · FPR + δ and 1 − FPR ≤ e^ε · (1 − TPR) + δ
(P. Kairouz, S. Oh, P. Viswanath: "The Composition Theorem for Differential Privacy", ICML 2015, Theorem 2.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from ..errors import BadData
from ..parameters import bad
from ..report.svg import Axis, Figure, Series, Table, plot

FALSE_ALARMS = (0.001, 0.01, 0.1)  # the false-positive rates of tables
LEAST = 1e-4  # the left end of the drawn curve


@dataclass(frozen=True)
class Roc:
    """Scores of members and of non-members; a larger score means "member"."""

    inside: np.ndarray = field(repr=False)
    outside: np.ndarray = field(repr=False)

    def __post_init__(self) -> None:
        if not len(self.inside) or not len(self.outside):
            raise BadData("an ROC curve needs scores of at least one member and one non-member.")
        if not (np.isfinite(self.inside).all() and np.isfinite(self.outside).all()):
            raise BadData(
                "a membership score is NaN or infinite: the model or a shadow model diverged. Lower the "
                "learning rate of the run."
            )

    @property
    def auc(self) -> float:
        """P(score of a member > score of a non-member), ties count one half."""
        order = np.sort(self.outside)
        below = np.searchsorted(order, self.inside, "left") + np.searchsorted(order, self.inside, "right")
        return float(below.mean() / (2 * len(order)))

    @property
    def p_value(self) -> float:
        """P(an AUC of at least this | membership does not change scores): Mann and Whitney's normal limit."""
        m, n = len(self.inside), len(self.outside)
        _, ties = np.unique(np.concatenate([self.inside, self.outside]), return_counts=True)
        tied = float((ties.astype(float) ** 3 - ties).sum()) / ((m + n) * (m + n - 1))
        variance = (m + n + 1 - tied) / (12 * m * n)
        return 1.0 if variance <= 0 else 0.5 * math.erfc((self.auc - 0.5) / math.sqrt(2 * variance))

    def tpr_at(self, fpr: float) -> float:
        """The share of members found where at most `fpr` of the non-members are taken for members."""
        if isinstance(fpr, bool) or not isinstance(fpr, int | float) or not 0 <= fpr <= 1:
            raise bad("tpr_at", "fpr", fpr, "a rate between 0 and 1")
        k = math.floor(fpr * len(self.outside) + 1e-9)
        if k >= len(self.outside):
            return 1.0
        return float((self.inside > np.sort(self.outside)[::-1][k]).mean())

    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """(FPR, TPR) of every threshold, from (0, ·) to (1, 1)."""
        order = np.sort(self.outside)[::-1]
        cuts, rank = np.unique(order, return_index=True)
        cuts, rank = cuts[::-1], rank[::-1]
        found = len(self.inside) - np.searchsorted(np.sort(self.inside), cuts, "right")
        return (
            np.append(rank / len(order), 1.0),
            np.append(found / len(self.inside), 1.0),
        )


def ceiling(fpr: float | np.ndarray, epsilon: float, delta: float) -> np.ndarray:
    """The largest TPR of any attack on an (ε, δ)-private release at this FPR."""
    rate = np.asarray(fpr, float)
    if epsilon == math.inf:
        return np.ones_like(rate)
    with np.errstate(over="ignore"):
        first = math.exp(min(epsilon, 700.0)) * rate + delta
    return np.clip(np.minimum(first, 1 - math.exp(-epsilon) * (1 - delta - rate)), 0.0, 1.0)


def largest_auc(epsilon: float, delta: float) -> float:
    """The area under the ceiling."""
    rate = np.concatenate([[0.0], np.logspace(-12, 0, 4001)])
    height = ceiling(rate, epsilon, delta)
    return float(((height[1:] + height[:-1]) / 2 * np.diff(rate)).sum())


def draw(title: str, curves: dict[str, Roc], claim: tuple[float, float] | None = None) -> Figure:
    """ROC curves on logarithmic axes, with the ceiling of a claimed (ε, δ) and the diagonal of chance."""
    grid = np.logspace(math.log10(LEAST), 0, 61)
    series = []
    for k, (name, roc) in enumerate(curves.items()):
        fpr, tpr = roc.curve()
        words = [f"TPR {b:.3g} at FPR {a:.3g}" for a, b in zip(fpr, tpr)]
        keep = (tpr > 0) & (fpr >= LEAST)
        step = max(1, int(keep.sum()) // 400)  # a curve of ten thousand points is no better
        at = np.flatnonzero(keep)
        at = np.unique(np.append(at[::step], at[-1:]))
        series.append(
            Series(name, fpr[at].tolist(), tpr[at].tolist(), f"c{k % 8}", words=[words[i] for i in at])
        )
    series.append(Series("chance", grid.tolist(), grid.tolist(), "quiet", thin=True))
    if claim is not None:
        top = ceiling(grid, *claim)
        name = f"ceiling of ε = {claim[0]:.3g}, δ = {claim[1]:.1g}"
        series.append(Series(name, grid.tolist(), top.tolist(), "ink", thin=True))
    rows = [
        (name, f"{roc.auc:.3f}", *(f"{roc.tpr_at(rate):.3f}" for rate in FALSE_ALARMS))
        for name, roc in curves.items()
    ]
    return plot(
        title,
        series,
        Axis("false-positive rate", low=math.log10(LEAST), high=0.0, log=True, fixed=True),
        Axis("true-positive rate", low=math.log10(LEAST), high=0.0, log=True, fixed=True),
        table=Table(("attack", "AUC", *(f"TPR at FPR {rate:g}" for rate in FALSE_ALARMS)), rows),
    )
