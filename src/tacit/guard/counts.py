"""Counts that each person, or each party, can deny: for questionnaires, tallies and confusion matrices rather
than for models.

Laplace: C. Dwork, F. McSherry, K. Nissim, A. Smith: "Calibrating Noise to Sensitivity in Private Data
Analysis", TCC 2006, on whole numbers (the discrete Laplace of Canonne, Kamath, Steinke 2020, Algorithm 2).
Randomised response: S. L. Warner, JASA 1965; with more than two answers as in P. Kairouz, K. Bonawitz, D.
Ramage: "Discrete Distribution Estimation under Local Privacy", ICML 2016.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ..accounting import discrete
from ..errors import BadData
from ..parameters import bad, check, real, whole
from .stage import Source


@dataclass(frozen=True)
class Laplace:
    """Add discrete Laplace noise to counts: ε-differential privacy when one person changes all counts
    together by at most `sensitivity`.
    """

    epsilon: float = real(above=0, doc="ε")
    sensitivity: int = whole(
        1, least=1, doc="by how much one person can change the counts, summed over all of them (L1)"
    )

    @property
    def scale(self) -> Fraction:
        """t = sensitivity/ε, rounded up to a rational of small parts."""
        check(self)
        return discrete.rational_above(self.sensitivity / self.epsilon)

    def out(self, counts: np.ndarray, source: Source = os.urandom) -> np.ndarray:
        counts = _whole(counts)
        t = self.scale
        return counts + _laplace(t, counts.size, source).reshape(counts.shape)


@dataclass(frozen=True)
class RandomizedResponse:
    """Each person's own answer, kept with probability e^ε/(e^ε + answers − 1) and else any other alike:
    ε-differential privacy against everyone.
    """

    epsilon: float = real(above=0, doc="ε")
    answers: int = whole(2, least=2, doc="how many answers there are, counted from 0")

    @property
    def keep(self) -> Fraction:
        """The probability of telling the truth, in parts of 2³²: one part below what ε allows, so that
        rounding never exceeds it nor makes it certain, and never less than guessing.
        """
        check(self)
        true = math.exp(min(self.epsilon, 700.0))
        return max(
            Fraction(1, self.answers),
            Fraction(math.floor(true / (true + self.answers - 1) * 2**32) - 1, 2**32),
        )

    def out(self, given: np.ndarray, source: Source = os.urandom) -> np.ndarray:
        """Answers as whole numbers 0 … answers − 1, each randomised by itself."""
        given = _whole(given)
        if given.size and (given.min() < 0 or given.max() >= self.answers):
            raise BadData(
                f"RandomizedResponse: answers lie in {given.min()} … {given.max()}; they must lie in 0 … "
                f"{self.answers - 1}."
            )
        truth = discrete.uniform(self.keep.denominator, given.size, source) < self.keep.numerator
        other = discrete.uniform(self.answers - 1, given.size, source)
        flat = given.reshape(-1)
        return np.where(truth, flat, other + (other >= flat)).reshape(given.shape)

    def back(self, told: np.ndarray) -> np.ndarray:
        """How many gave each answer, right on average; single numbers may lie below 0."""
        told = _whole(told).reshape(-1)
        p, n, k = float(self.keep), len(told), self.answers
        q = (1 - p) / (k - 1)
        if p == q:
            raise bad(
                "RandomizedResponse",
                "epsilon",
                self.epsilon,
                "larger: at this value every answer is a guess, and nothing can be counted",
            )
        return (np.bincount(told, minlength=k) - n * q) / (p - q)


def _laplace(t: Fraction, n: int, source: Source) -> np.ndarray:
    """P(y) ∝ exp(−|y|/t) for a rational t = a/b: Algorithm 2 with s = b, which takes ⌊·/b⌋ of the draw of scale a."""
    parts, have = [], 0
    while have < n:
        raw = discrete.laplace(t.numerator, int((n - have) * 1.3) + 16, source)
        size, negative = abs(raw) // t.denominator, raw < 0
        drawn = np.where(negative, -size, size)[
            ~(negative & (size == 0))
        ]  # −0 is not counted beside 0; the draw has dropped that of |raw| = 0
        parts.append(drawn)
        have += len(drawn)
    return np.concatenate(parts)[:n]


def _whole(counts: np.ndarray) -> np.ndarray:
    counts = np.asarray(counts)
    if counts.dtype.kind not in "iu":
        raise BadData(
            f"counts are whole numbers, not {counts.dtype}. Count first, or cast to int64 knowingly."
        )
    return counts.astype(np.int64)
