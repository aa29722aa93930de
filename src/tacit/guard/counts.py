"""Differentially private counts: for surveys, tallies and confusion matrices rather than for models.

Laplace: C. Dwork, F. McSherry, K. Nissim, A. Smith: "Calibrating Noise to Sensitivity in Private Data
Analysis", TCC 2006, on integers (the discrete Laplace of Canonne, Kamath, Steinke 2020, Algorithm 2).
Randomized response: S. L. Warner, JASA 1965; with more than two answers as in P. Kairouz, K. Bonawitz, D.
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
    """Discrete Laplace noise on counts: ε-differential privacy.

    One person must change the counts by at most `sensitivity`, summed over all counts.
    """

    epsilon: float = real(above=0, doc="ε")
    sensitivity: int = whole(
        1, least=1, doc="the most that one person can change the counts by, summed over all (L1)"
    )

    @property
    def scale(self) -> Fraction:
        """t = sensitivity/ε, rounded up to a fraction of small integers."""
        check(self)
        return discrete.rational_above(self.sensitivity / self.epsilon)

    def out(self, counts: np.ndarray, source: Source = os.urandom) -> np.ndarray:
        counts = _as_integers(counts)
        noisy: np.ndarray = counts + _laplace(self.scale, counts.size, source).reshape(counts.shape)
        return noisy


@dataclass(frozen=True)
class RandomizedResponse:
    """Randomized response: ε-differential privacy of each person's answer against everyone.

    The true answer is kept with probability e^ε/(e^ε + answers − 1), otherwise replaced by another,
    uniformly.
    """

    epsilon: float = real(above=0, doc="ε")
    answers: int = whole(2, least=2, doc="the number of possible answers, counted from 0")

    @property
    def keep(self) -> Fraction:
        """The probability of the true answer, in units of 2⁻³².

        It is one unit below what ε allows, so that rounding never exceeds it or makes it 1, and never below
        that of guessing.
        """
        check(self)
        true = math.exp(min(self.epsilon, 700.0))
        return max(
            Fraction(1, self.answers),
            Fraction(math.floor(true / (true + self.answers - 1) * 2**32) - 1, 2**32),
        )

    def out(self, answers: np.ndarray, source: Source = os.urandom) -> np.ndarray:
        """Randomize answers 0 … answers − 1, each by itself."""
        answers = _as_integers(answers)
        if answers.size and (answers.min() < 0 or answers.max() >= self.answers):
            raise BadData(
                f"RandomizedResponse: answers are in {answers.min()} … {answers.max()}; they must be in 0 … "
                f"{self.answers - 1}."
            )
        truth = discrete.uniform(self.keep.denominator, answers.size, source) < self.keep.numerator
        other = discrete.uniform(self.answers - 1, answers.size, source)
        flat = answers.reshape(-1)
        return np.where(truth, flat, other + (other >= flat)).reshape(answers.shape)

    def back(self, answers: np.ndarray) -> np.ndarray:
        """Unbiased estimates of how many people have each answer; they may be below 0."""
        answers = _as_integers(answers).reshape(-1)
        p, n, k = float(self.keep), len(answers), self.answers
        q = (1 - p) / (k - 1)
        if p == q:
            raise bad(
                "RandomizedResponse",
                "epsilon",
                self.epsilon,
                "larger: at this value every answer is random, and nothing can be estimated",
            )
        return (np.bincount(answers, minlength=k) - n * q) / (p - q)


def _laplace(t: Fraction, n: int, source: Source) -> np.ndarray:
    """P(y) ∝ exp(−|y|/t) for a fraction t = a/b: Algorithm 2 with s = b, ⌊·/b⌋ of a draw of scale a."""
    parts, have = [], 0
    while have < n:
        raw = discrete.laplace(t.numerator, int((n - have) * 1.3) + 16, source)
        size, negative = abs(raw) // t.denominator, raw < 0
        # −0 must not count in addition to 0; the draw has already dropped that of |raw| = 0
        values = np.where(negative, -size, size)[~(negative & (size == 0))]
        parts.append(values)
        have += len(values)
    return np.concatenate(parts)[:n]


def _as_integers(counts: np.ndarray) -> np.ndarray:
    counts = np.asarray(counts)
    if counts.dtype.kind not in "iu":
        raise BadData(f"counts must be integers, not {counts.dtype}. Count first, or cast to int64.")
    return counts.astype(np.int64)
