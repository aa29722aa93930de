"""PATE aggregators: how noisy votes become labels, and what each label costs.

N. Papernot et al.: *Semi-supervised Knowledge Transfer for Deep Learning from Private Training Data*, ICLR
2017, Section 2.1 (LNMax); *Scalable Private Learning with PATE*, ICLR 2018, Section 4.1 and Algorithm 1
(GNMax, Confident-GNMax).

ε protects one row of a teacher's data, and even all rows of one teacher, exchanged for others: rows are
partitioned across teachers before training, so the exchange changes one teacher, and at most one vote per
query. It holds against whoever sees the labels and the student, with any background knowledge; not against
one who sees the counts without noise (a server that adds the noise) or a teacher's model. If rows are
partitioned at random, adding or removing one is not covered: the partition would move other rows, too.

Votes are integers, and so is the noise: discrete Laplace and discrete Gaussian numbers, drawn exactly from
the operating system's randomness (`accounting/discrete.py`). Nothing is rounded after the noise, so the
lowest bits reveal nothing (Mironov, CCS 2012). The discrete distributions have the guarantees of the
continuous ones at the same γ and σ: P(y)/P(y ± 1) ≤ e^γ, and λ/σ² at every order λ for two counts that change
by one (1/σ²-zCDP). Ties go to the lower class, which is decided after the noise and costs nothing.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from ..accounting import discrete, smooth, votes
from ..accounting.votes import ORDERS, WHOLE_ORDERS, CostTable
from ..parameters import Kind, bad, real

UNANSWERED = -1
Source = discrete.Source


def exact_fraction(value: float) -> Fraction:
    """Return a decimal as written: 0.05 is 1/20, not the nearest float."""
    return Fraction(str(value))


def _gaussian(sigma: float, shape: tuple[int, ...], source: Source) -> np.ndarray:
    n = math.prod(shape)
    return (
        discrete.gaussian_whole(int(sigma), n, source)
        if float(sigma).is_integer()
        else discrete.gaussian(exact_fraction(sigma) ** 2, n, source)
    ).reshape(shape)


@dataclass(frozen=True)
class VoteCost:
    """What answers cost.

    `independent` depends on the number of answers only; `dependent` also on the votes, and is as private as
    they are.
    """

    queries: int
    answers: int
    delta: float
    independent: float
    dependent: float | None = None
    released: float | None = None  # `dependent` with noise, including the cost of releasing it
    capped: float | None = None  # the data-independent cost plus that of the release

    @property
    def epsilon(self) -> float:
        """The ε to report."""
        return (
            self.independent
            if self.released is None or self.capped is None
            else min(self.released, self.capped)
        )


class Aggregator(ABC):
    """Turns vote counts into labels.

    The data-independent cost is λ times a `price`, and prices add up.
    """

    distributed: ClassVar[bool] = True  # whether teachers can add the noise together

    @abstractmethod
    def decide(self, counts: np.ndarray, source: Source = os.urandom) -> np.ndarray:
        """Return the label of each row of counts, or UNANSWERED."""

    @abstractmethod
    def price(self, queries: int, answers: int, split: bool = False) -> float:
        """Return the data-independent cost, divided by the order λ.

        `split`: each class has its own noise at every step, because the teachers add it.
        """

    def epsilon(self, queries: int, answers: int, delta: float, split: bool = False) -> float:
        """Return the data-independent ε."""
        return votes.gaussian_votes_epsilon(self.price(queries, answers, split), delta)

    @abstractmethod
    def curve(self, counts: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (data-dependent cost of these answers at each order, the orders)."""

    @abstractmethod
    def changes(self, counts: np.ndarray, labels: np.ndarray, at: int) -> np.ndarray:
        """Return how much that cost can change by one vote, at distance 0, 1, … votes."""

    def spent(
        self,
        counts: np.ndarray,
        labels: np.ndarray,
        delta: float,
        publish: bool = False,
        source: Source = os.urandom,
    ) -> VoteCost:
        """Return what these answers cost.

        `publish` also releases a data-dependent ε with smooth-sensitivity noise; half of δ pays for it.
        """
        queries, answers = len(labels), int((labels != UNANSWERED).sum())
        independent = self.epsilon(queries, answers, delta)
        cost, orders = self.curve(counts, labels)
        dependent = min(independent, votes.classic_epsilon(cost, orders, delta)) if queries else 0.0
        if not publish or not queries:
            return VoteCost(queries, answers, delta, independent, dependent)
        # the order must not depend on the votes: the best one at a quarter of the data-independent cost
        quarter = self.price(queries, answers) / 4
        at = int(np.argmin(np.abs(orders - (1 + math.sqrt(math.log(2 / delta) / quarter)))))
        release = smooth.release(
            float(cost[at]), self.changes(counts, labels, at), float(orders[at]), delta / 2, source=source
        )
        rest = release.own + math.log(2 / delta) / (release.order - 1)
        return VoteCost(
            queries,
            answers,
            delta,
            independent,
            dependent,
            max(0.0, release.cost) + rest,
            self.price(queries, answers) * release.order + rest,
        )


class PluralityVote(Aggregator):
    """Aggregators that add noise to each count and return the class of the largest."""

    @property
    @abstractmethod
    def _price(self) -> CostTable:
        """The cost of an answer by the probability of another outcome."""

    @abstractmethod
    def _gaps(self, counts: np.ndarray) -> votes.NoiseGaps:
        """Return the distribution of the difference of two classes' noise."""

    def curve(self, counts: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._price.of(self._gaps(counts).other(counts)).sum(0), self._price.orders

    def changes(self, counts: np.ndarray, labels: np.ndarray, at: int) -> np.ndarray:
        gaps = self._gaps(counts)
        return smooth.change_of_votes(self._price, gaps, counts.shape[1], gaps.other(counts), at, gaps.reach)


@dataclass(frozen=True)
class LNMax(PluralityVote):
    """The plurality of the votes, with Laplace noise of scale 1/γ on each count."""

    gamma: float = real(
        0.05,
        above=0,
        most=10,
        doc="γ, the inverse scale of the noise; each answer is (2γ, 0)-private",
    )
    distributed: ClassVar[bool] = False

    @property
    def _grid(self) -> tuple[int, int]:
        """(scale, step) with 1/γ = scale/step, so that counts times `step` have integer scale."""
        return exact_fraction(self.gamma).denominator, exact_fraction(self.gamma).numerator

    def decide(self, counts: np.ndarray, source: Source = os.urandom) -> np.ndarray:
        scale, step = self._grid
        noise = discrete.laplace(scale, counts.size, source).reshape(counts.shape)
        return np.asarray((counts * step + noise).argmax(1))

    def price(self, queries: int, answers: int, split: bool = False) -> float:
        return 2 * self.gamma**2 * answers

    def epsilon(self, queries: int, answers: int, delta: float, split: bool = False) -> float:
        return votes.laplace_votes_epsilon(self.gamma, answers, delta)

    @cached_property
    def _price(self) -> CostTable:
        return CostTable("laplace", self.gamma, WHOLE_ORDERS)

    def _gaps(self, counts: np.ndarray) -> votes.NoiseGaps:
        return votes.laplace_gaps(*self._grid, int(counts.sum(1).max(initial=0)) + 2)


@dataclass(frozen=True)
class GNMax(PluralityVote):
    """The plurality of the votes, with Gaussian noise of standard deviation σ on each count."""

    sigma: float = real(40.0, above=0, most=1e6, doc="σ, the standard deviation of the noise, in votes")

    def decide(self, counts: np.ndarray, source: Source = os.urandom) -> np.ndarray:
        return np.asarray((counts + _gaussian(self.sigma, counts.shape, source)).argmax(1))

    def price(self, queries: int, answers: int, split: bool = False) -> float:
        return answers / self.sigma**2

    @cached_property
    def _price(self) -> CostTable:
        return CostTable("gaussian", self.sigma**2, ORDERS)

    def _gaps(self, counts: np.ndarray) -> votes.NoiseGaps:
        return votes.gaussian_gaps(exact_fraction(self.sigma) ** 2, int(counts.sum(1).max(initial=0)) + 2)


@dataclass(frozen=True)
class ConfidentGNMax(Aggregator):
    """GNMax for queries on which enough teachers agree. Algorithm 1.

    The other queries are not answers and only cost the check.
    """

    threshold: float = real(200.0, above=0, doc="T, the threshold of the noisy largest count")
    sigma1: float = real(
        150.0, above=0, most=1e6, doc="σ₁, the standard deviation of the check's noise, in votes"
    )
    sigma2: float = real(
        40.0, above=0, most=1e6, doc="σ₂, the standard deviation of the answer's noise, in votes"
    )

    def check(self) -> None:
        if self.sigma1 < self.sigma2:
            raise bad(
                "ConfidentGNMax",
                "sigma1",
                self.sigma1,
                f"at least sigma2 = {self.sigma2:g}",
                "Every query pays for the check and only some for an answer, so the check must be cheaper.",
            )

    def decide(self, counts: np.ndarray, source: Source = os.urandom) -> np.ndarray:
        labels = np.full(len(counts), UNANSWERED)
        noisy = counts.max(1) + _gaussian(self.sigma1, (len(counts),), source)
        confident = noisy >= math.ceil(self.threshold)  # line 1
        labels[confident] = self._answers.decide(counts[confident], source)  # line 2
        return labels

    def price(self, queries: int, answers: int, split: bool = False) -> float:
        # The largest count changes by at most 1, λ/(2σ₁²). Teachers that add noise to every count release all
        # of them, which costs twice that.
        return queries / ((1 if split else 2) * self.sigma1**2) + answers / self.sigma2**2

    @cached_property
    def _check_price(self) -> CostTable:
        return CostTable("gaussian", 2 * self.sigma1**2, ORDERS)

    @cached_property
    def _answers(self) -> GNMax:
        return GNMax(self.sigma2)

    def _checks(self, counts: np.ndarray) -> np.ndarray:
        """Return the cost of the check by the largest count, [count, order]."""
        teachers = int(counts.sum(1).max(initial=0))
        answer = votes.gaussian_above(
            exact_fraction(self.sigma1) ** 2, math.ceil(self.threshold) - np.arange(teachers + 1)
        )
        return self._check_price.of(np.minimum(answer, 1 - answer) * votes.ROUNDING)

    def curve(self, counts: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        total = self._checks(counts)[counts.max(1)].sum(0)
        is_answered = labels != UNANSWERED
        if is_answered.any():
            total = total + self._answers.curve(counts[is_answered], labels[is_answered])[0]
        return total, ORDERS

    def changes(self, counts: np.ndarray, labels: np.ndarray, at: int) -> np.ndarray:
        cost = self._checks(counts)[:, at]
        total = smooth.change_of_check(cost, counts.max(1), len(cost) + 1)
        is_answered = labels != UNANSWERED
        if is_answered.any():
            total = total + self._answers.changes(counts[is_answered], labels[is_answered], at)
        return total


ALL: dict[str, Any] = {"LNMax": LNMax, "GNMax": GNMax, "ConfidentGNMax": ConfidentGNMax}
AGGREGATOR = Kind("an aggregator", ALL, Aggregator)
