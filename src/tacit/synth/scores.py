"""Metrics and scores: a metric declares its name and range, a score is one value of it."""

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
    """The declaration of a metric."""

    name: str
    facet: Facet
    about: str  # the property it measures, by which reports group metrics
    low: float
    high: float
    better: Literal["higher", "lower"]
    doc: str


@dataclass(frozen=True)
class MetricScore:
    """One value of a metric.

    `reference` is the value that real, unseen rows reach in place of the synthetic ones. `parts` are columns,
    pairs or models.
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


def wilson_interval(hits: float, n: int, level: float = 0.95) -> tuple[float, float, float]:
    """Return (center, low, high) of a rate: Wilson, JASA 1927.

    The center is never 0 or 1, as n observations cannot establish either.
    """
    z = NormalDist().inv_cdf(0.5 + level / 2)
    p = hits / n
    center = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return center, max(0.0, center - half), min(1.0, center + half)


def auc_with_interval(
    positive: np.ndarray, negative: np.ndarray, level: float = 0.95
) -> tuple[float, float, float]:
    """Return the AUC and its DeLong interval (Biometrics 1988).

    The score should be higher for `positive`.
    """
    both = np.concatenate([positive, negative])
    m, n = len(positive), len(negative)
    ranks, first, second = _ranks(both), _ranks(positive), _ranks(negative)
    over = (ranks[:m] - first) / n  # for each positive: the share of negatives below it
    under = 1 - (ranks[m:] - second) / m  # for each negative: the share of positives above it
    auc = float(over.mean())
    spread = math.sqrt((over.var(ddof=1) if m > 1 else 0.25) / m + (under.var(ddof=1) if n > 1 else 0.25) / n)
    half = NormalDist().inv_cdf(0.5 + level / 2) * spread
    if spread == 0:
        half = 3 / min(m, n)  # perfect separation has no variance: rule of three
    return auc, max(0.0, auc - half), min(1.0, auc + half)


def _ranks(x: np.ndarray) -> np.ndarray:
    """Return ranks from 1; ties share their mean rank."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def excess_risk(
    attack: tuple[float, float, float], control: tuple[float, float, float]
) -> tuple[float, float, float]:
    """Return the risk due to membership, (attack − control)/(1 − control), with its interval.

    M. Giomi, F. Boenisch, C. Wehmeyer, B. Tasnádi: *A Unified Framework for Quantifying Privacy Risk in
    Synthetic Data*, PETS 2023. Success on people who were never in the table is knowledge about the
    population, not about them.

    The interval is that of a ratio, 1 − (1 − attack)/(1 − control), from the two ends of each rate (A.
    Donner, G. Y. Zou: *Closed-form confidence intervals for functions of the normal mean and standard
    deviation*, Statistical Methods in Medical Research 2012). Propagation of errors, as in Anonymeter, gives
    the same for many predicates; with few it excludes 0 although the control's rate may be anything.
    """
    (a, a_low, a_high), (c, c_low, c_high) = attack, control
    if c >= 1:
        return 0.0, 0.0, 1.0
    x, x_low, x_high = 1 - a, 1 - a_high, 1 - a_low
    y, y_low, y_high = 1 - c, 1 - c_high, 1 - c_low
    largest, smallest = math.inf, 0.0  # ends of x / y
    if y_low > 0:
        root = math.sqrt(max(0.0, (x * y) ** 2 - x_high * y_low * (2 * x - x_high) * (2 * y - y_low)))
        largest = (x * y + root) / (y_low * (2 * y - y_low))
    if 2 * y > y_high:
        root = math.sqrt(max(0.0, (x * y) ** 2 - x_low * y_high * (2 * x - x_low) * (2 * y - y_high)))
        smallest = max(0.0, (x * y - root) / (y_high * (2 * y - y_high)))
    return max(0.0, 1 - x / y), max(0.0, 1 - largest), max(0.0, 1 - smallest)


def tvd(p: np.ndarray, q: np.ndarray) -> float:
    """Return the total variation distance."""
    return 0.5 * float(np.abs(p - q).sum())
