"""How teachers' votes become labels, and what each label costs: LNMax, GNMax and Confident-GNMax.

N. Papernot and others: "Semi-supervised Knowledge Transfer for Deep Learning from Private Training Data",
ICLR 2017, Section 2.1; "Scalable Private Learning with PATE", ICLR 2018, Section 4.1 and Algorithm 1.

Votes are whole numbers, and so is the noise: discrete Laplace and discrete Gaussian numbers drawn exactly
from the operating system's randomness (`accounting/discrete.py`). Nothing is rounded after the noise, so
there are no lowest bits that tell the counts (Mironov, CCS 2012). The discrete laws have the guarantees of
the continuous ones at the same γ and σ: P(y)/P(y ± 1) ≤ e^γ, and λ/σ² at every order λ for two counts that
move by one (1/σ²-zCDP). A tie goes to the lower class, which is decided after the noise and costs nothing.
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


def exact(value: float) -> Fraction:
    """A decimal as it was written: 0.05 is 1/20, not the float nearest to it."""
    return Fraction(str(value))


def _gaussian(sigma: float, shape: tuple[int, ...], source: Source) -> np.ndarray:
    n = math.prod(shape)
    whole = float(sigma).is_integer()
    return (
        discrete.gaussian_whole(int(sigma), n, source)
        if whole
        else discrete.gaussian(exact(sigma) ** 2, n, source)
    ).reshape(shape)


@dataclass(frozen=True)
class Spent:
    """What answers cost. `independent` follows from how many there were; `dependent` from the votes too, and
    is as private as they are.
    """

    asked: int
    answered: int
    delta: float
    independent: float
    dependent: float | None = None
    released: float | None = (
        None  # `dependent` with noise; that it was drawn has its own cost, also where `capped` is less
    )
    capped: float | None = None  # the data-independent cost and that of the release

    @property
    def told(self) -> float:
        """The ε to tell."""
        return (
            self.independent
            if self.released is None or self.capped is None
            else min(self.released, self.capped)
        )


class Aggregator(ABC):
    """Counts in, labels out. Without looking at the counts, everything costs λ times a `price`, and prices
    add up.
    """

    distributed: ClassVar[bool] = True  # whether teachers can add the noise together

    @abstractmethod
    def decide(self, counts: np.ndarray, source: Source = os.urandom) -> np.ndarray:
        """The label of each row of counts, or UNANSWERED."""

    @abstractmethod
    def price(self, asked: int, answered: int, split: bool = False) -> float:
        """The data-independent cost, over the order. `split`: each class has its own noise at every step, as
        where the teachers add it.
        """

    def epsilon(self, asked: int, answered: int, delta: float, split: bool = False) -> float:
        """The data-independent ε."""
        return votes.gaussian_votes_epsilon(self.price(asked, answered, split), delta)

    @abstractmethod
    def curve(self, counts: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(data-dependent cost of these answers at each order, the orders)."""

    @abstractmethod
    def changes(self, counts: np.ndarray, labels: np.ndarray, at: int) -> np.ndarray:
        """How much that cost can change by one vote, 0, 1, … votes away."""

    def spent(
        self,
        counts: np.ndarray,
        labels: np.ndarray,
        delta: float,
        publish: bool = False,
        source: Source = os.urandom,
    ) -> Spent:
        """`publish` also draws a data-dependent ε that may be told, with smooth-sensitivity noise; half of δ
        pays for it.
        """
        asked, answered = len(labels), int((labels != UNANSWERED).sum())
        independent = self.epsilon(asked, answered, delta)
        cost, orders = self.curve(counts, labels)
        dependent = min(independent, votes.classic_epsilon(cost, orders, delta)) if asked else 0.0
        if not publish or not asked:
            return Spent(asked, answered, delta, independent, dependent)
        # the order must not depend on the votes: the best one if they made everything cost a quarter
        quarter = self.price(asked, answered) / 4
        at = int(np.argmin(np.abs(orders - (1 + math.sqrt(math.log(2 / delta) / quarter)))))
        told = smooth.release(
            float(cost[at]), self.changes(counts, labels, at), float(orders[at]), delta / 2, source=source
        )
        rest = told.own + math.log(2 / delta) / (told.order - 1)
        return Spent(
            asked,
            answered,
            delta,
            independent,
            dependent,
            max(0.0, told.cost) + rest,
            self.price(asked, answered) * told.order + rest,
        )


@dataclass(frozen=True)
class LNMax(Aggregator):
    """The plurality of the votes, each count with Laplace noise of scale 1/γ."""

    gamma: float = real(
        0.05,
        above=0,
        most=10,
        doc="γ, the inverse scale of the noise; each answer is (2γ, 0)-private by itself",
    )
    distributed: ClassVar[bool] = False

    @property
    def _grid(self) -> tuple[int, int]:
        """(scale, step): 1/γ = scale/step, so that counts times `step` have noise of a whole scale."""
        return exact(self.gamma).denominator, exact(self.gamma).numerator

    def decide(self, counts: np.ndarray, source: Source = os.urandom) -> np.ndarray:
        scale, step = self._grid
        return (counts * step + discrete.laplace(scale, counts.size, source).reshape(counts.shape)).argmax(1)

    def price(self, asked: int, answered: int, split: bool = False) -> float:
        return 2 * self.gamma**2 * answered

    def epsilon(self, asked: int, answered: int, delta: float, split: bool = False) -> float:
        return votes.laplace_votes_epsilon(self.gamma, answered, delta)

    @cached_property
    def _price(self) -> CostTable:
        return CostTable("laplace", self.gamma, WHOLE_ORDERS)

    def curve(self, counts: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._price.of(self._gaps(counts).other(counts)).sum(0), WHOLE_ORDERS

    def _gaps(self, counts: np.ndarray) -> votes.NoiseGaps:
        return votes.laplace_gaps(*self._grid, int(counts.sum(1).max(initial=0)) + 2)

    def changes(self, counts: np.ndarray, labels: np.ndarray, at: int) -> np.ndarray:
        gaps = self._gaps(counts)
        return smooth.change_of_votes(self._price, gaps, counts.shape[1], gaps.other(counts), at, gaps.reach)


@dataclass(frozen=True)
class GNMax(Aggregator):
    """The plurality of the votes, each count with Gaussian noise of deviation σ."""

    sigma: float = real(40.0, above=0, most=1e6, doc="σ, the deviation of the noise, in votes")

    def decide(self, counts: np.ndarray, source: Source = os.urandom) -> np.ndarray:
        return (counts + _gaussian(self.sigma, counts.shape, source)).argmax(1)

    def price(self, asked: int, answered: int, split: bool = False) -> float:
        return answered / self.sigma**2

    @cached_property
    def _price(self) -> CostTable:
        return CostTable("gaussian", self.sigma**2, ORDERS)

    def _gaps(self, counts: np.ndarray) -> votes.NoiseGaps:
        return votes.gaussian_gaps(exact(self.sigma) ** 2, int(counts.sum(1).max(initial=0)) + 2)

    def curve(self, counts: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._price.of(self._gaps(counts).other(counts)).sum(0), ORDERS

    def changes(self, counts: np.ndarray, labels: np.ndarray, at: int) -> np.ndarray:
        gaps = self._gaps(counts)
        return smooth.change_of_votes(self._price, gaps, counts.shape[1], gaps.other(counts), at, gaps.reach)


@dataclass(frozen=True)
class ConfidentGNMax(Aggregator):
    """GNMax for the questions on which enough teachers agree; the others are not answered, and the check is
    what they cost. Algorithm 1.
    """

    threshold: float = real(200.0, above=0, doc="T, the votes that the noisy largest count must reach")
    sigma1: float = real(150.0, above=0, most=1e6, doc="σ₁, the deviation of the check's noise, in votes")
    sigma2: float = real(40.0, above=0, most=1e6, doc="σ₂, the deviation of the answer's noise, in votes")

    def check(self) -> None:
        if self.sigma1 < self.sigma2:
            raise bad(
                "ConfidentGNMax",
                "sigma1",
                self.sigma1,
                f"at least sigma2 = {self.sigma2:g}",
                "Every question pays for the check and only some for an answer: the check must be the "
                "cheaper one.",
            )

    def decide(self, counts: np.ndarray, source: Source = os.urandom) -> np.ndarray:
        labels = np.full(len(counts), UNANSWERED)
        sure = counts.max(1) + _gaussian(self.sigma1, (len(counts),), source) >= math.ceil(
            self.threshold
        )  # line 1
        labels[sure] = GNMax(self.sigma2).decide(counts[sure], source)  # line 2
        return labels

    def price(self, asked: int, answered: int, split: bool = False) -> float:
        # The largest count moves by at most 1, λ/(2σ₁²). Teachers that add noise to every count tell all of
        # them, which costs twice that.
        return asked / ((1 if split else 2) * self.sigma1**2) + answered / self.sigma2**2

    @cached_property
    def _check_price(self) -> CostTable:
        return CostTable("gaussian", 2 * self.sigma1**2, ORDERS)

    @cached_property
    def _answers(self) -> GNMax:
        return GNMax(self.sigma2)

    def _checks(self, teachers: int) -> np.ndarray:
        """[count, order]: the cost of the check by the largest count."""
        answer = votes.gaussian_above(
            exact(self.sigma1) ** 2, math.ceil(self.threshold) - np.arange(teachers + 1)
        )
        return self._check_price.of(np.minimum(answer, 1 - answer) * votes.ROUNDING)

    def curve(self, counts: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        teachers = int(counts.sum(1).max(initial=0))
        of_checks = self._checks(teachers)[counts.max(1)].sum(0)
        answered = labels != UNANSWERED
        return of_checks + (
            self._answers.curve(counts[answered], labels[answered])[0] if answered.any() else 0.0
        ), ORDERS

    def changes(self, counts: np.ndarray, labels: np.ndarray, at: int) -> np.ndarray:
        teachers = int(counts.sum(1).max(initial=0))
        total = smooth.change_of_check(self._checks(teachers)[:, at], counts.max(1), teachers + 2)
        answered = labels != UNANSWERED
        return total + (
            self._answers.changes(counts[answered], labels[answered], at) if answered.any() else 0.0
        )


ALL: dict[str, Any] = {"LNMax": LNMax, "GNMax": GNMax, "ConfidentGNMax": ConfidentGNMax}
AGGREGATOR = Kind("an aggregator", ALL, Aggregator)
