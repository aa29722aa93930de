"""A metric declares its name, what it can be and what is better; a score is one value of it, with what it
rests on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Literal

import numpy as np

Facet = Literal["fidelity", "utility", "privacy"]


@dataclass(frozen=True)
class Metric:
    name: str
    facet: Facet
    about: str  # the property it measures; a report goes facet → property → column → plot
    low: float
    high: float
    better: Literal["higher", "lower"]
    doc: str


@dataclass(frozen=True)
class Score:
    """`reference` is what real, unseen rows reach in the place of the synthetic ones: the figure to compare
    with. `parts` are columns, pairs or models.
    """

    metric: Metric
    value: float
    reference: float | None = None
    interval: tuple[float, float] | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def name(self) -> str:
        return self.metric.name


def wilson(hits: float, n: int, level: float = 0.95) -> tuple[float, float, float]:
    """(centre, low, high) of a rate: Wilson, JASA 1927. Its centre is off 0 and 1, as n observations cannot
    show either.
    """
    z = NormalDist().inv_cdf(0.5 + level / 2)
    p = hits / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return centre, max(0.0, centre - half), min(1.0, centre + half)


def area(positive: np.ndarray, negative: np.ndarray, level: float = 0.95) -> tuple[float, float, float]:
    """The AUC of a score that should be higher for `positive`, with DeLong's interval (Biometrics 1988)."""
    both = np.concatenate([positive, negative])
    m, n = len(positive), len(negative)
    ranks, first, second = _ranks(both), _ranks(positive), _ranks(negative)
    over = (ranks[:m] - first) / n  # of each positive: the share of negatives below it
    under = 1 - (ranks[m:] - second) / m  # of each negative: the share of positives above it
    auc = float(over.mean())
    spread = math.sqrt((over.var(ddof=1) if m > 1 else 0.25) / m + (under.var(ddof=1) if n > 1 else 0.25) / n)
    half = NormalDist().inv_cdf(0.5 + level / 2) * spread
    if spread == 0:
        half = 3 / min(
            m, n
        )  # perfect separation shows no spread; the rule of three bounds what so few rows could have missed
    return auc, max(0.0, auc - half), min(1.0, auc + half)


def _ranks(x: np.ndarray) -> np.ndarray:
    """From 1, ties at their mean."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]


def excess(
    attack: tuple[float, float, float], control: tuple[float, float, float]
) -> tuple[float, float, float]:
    """The risk that is due to having been in the training table: (attack − control) / (1 − control), with its
    interval by propagation of errors.

    Giomi, Boenisch, Wehmeyer, Tasnádi: *A Unified Framework for Quantifying Privacy Risk in Synthetic Data*
    (PETS 2023): what also works on people who were never in the table is knowledge about the population, not
    about them.
    """
    (a, a_low, a_high), (c, c_low, c_high) = attack, control
    if c >= 1:
        return 0.0, 0.0, 1.0
    risk = (a - c) / (1 - c)
    half = math.hypot((a_high - a_low) / 2 / (1 - c), (c_high - c_low) / 2 * (1 - a) / (1 - c) ** 2)
    return max(0.0, risk), max(0.0, risk - half), min(1.0, max(0.0, risk + half))


def tvd(p: np.ndarray, q: np.ndarray) -> float:
    return 0.5 * float(np.abs(p - q).sum())
