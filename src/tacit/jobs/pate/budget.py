"""The privacy budget of PATE: what queries cost, how many it covers, and what the ledger states."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...accounting.votes import gaussian_votes_epsilon
from ...errors import BadParameter
from ...parties.ledger import Spend
from ...private.pate import UNANSWERED, Aggregator, ConfidentGNMax, LNMax, VoteCost


@dataclass(frozen=True)
class Budget:
    """What may be spent: `epsilon` (None: no limit) at `delta`, of which earlier runs have spent a part.

    `earlier` is the price of the answers of earlier runs, `earlier_bound` an upper bound that does not depend
    on the votes. `split`: the teachers add the noise.
    """

    aggregator: Aggregator  # priced by the noise that the teachers add together
    epsilon: float | None
    delta: float
    earlier: float
    earlier_bound: float
    split: bool

    def total(self, queries: int, answers: int, earlier: float | None = None) -> float:
        """Return the data-independent ε, including earlier runs: prices add up."""
        earlier = self.earlier if earlier is None else earlier
        if not earlier:
            return self.aggregator.epsilon(queries, answers, self.delta, self.split)
        return gaussian_votes_epsilon(earlier + self.price(queries, answers), self.delta)

    def price(self, queries: int, answers: int) -> float:
        return self.aggregator.price(queries, answers, self.split)

    def affordable(self, queries: int) -> int:
        """Return how many queries the budget covers if all are answered; at least one, or raise."""
        if self.epsilon is None:
            return queries
        low, high = 0, queries + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.total(middle, middle) <= self.epsilon else (low, middle)
        if low:
            return low
        if self.earlier:
            was, more = (self.total(n, n) for n in (0, 1))
            raise BadParameter(
                f"pate: the budget ε = {self.epsilon:g} is spent: earlier runs cost ε = {was:.4g} at δ = "
                f"{self.delta:g}, and one more answer makes it {more:.4g}. These rows allow no further "
                "queries."
            )
        raise BadParameter(
            f"pate: the budget ε = {self.epsilon:g} does not cover one answer of {self.aggregator}, which "
            f"costs ε = {self.aggregator.epsilon(1, 1, self.delta, self.split):.4g} at δ = {self.delta:g}. "
            "Use a larger budget, or more noise and more teachers."
        )

    def covered(self, labels: np.ndarray) -> int:
        """Return how many queries, in their order, the budget covers.

        Each stop is decided by earlier answers, so the budget holds (a filter on zCDP).
        """
        if self.epsilon is None or not isinstance(self.aggregator, ConfidentGNMax):
            return len(labels)
        answered = 0
        for i, label in enumerate(labels):
            if self.total(i + 1, answered + 1) > self.epsilon:
                return i
            answered += label != UNANSWERED
        return len(labels)

    def guarantee(self, queries: int) -> tuple[float, float]:
        """Return (the largest possible price of this run, ε of all runs), before the first query.

        How many queries ConfidentGNMax answers depends on the votes, so the ε of the given answers is no
        (ε, δ) guarantee: it is not known in advance. What holds is the cost if all were answered, and the
        budget, since queries stop before it (a filter: R. Rogers, A. Roth, J. Ullman, S. Vadhan, *Privacy
        Odometers and Filters*, NeurIPS 2016; under zCDP costs may be chosen by earlier answers without loss).
        """
        all_answered = self.price(queries, queries)
        most = self.total(queries, queries, self.earlier_bound)
        if self.epsilon is None or most <= self.epsilon:
            return all_answered, most
        log = math.log(1 / self.delta)
        within = (math.sqrt(log + self.epsilon) - math.sqrt(log)) ** 2  # the price whose ε is the budget
        return min(all_answered, max(within - self.earlier, self.price(1, 1))), self.epsilon

    def spend_line(
        self, aggregator: Aggregator, spent: VoteCost, reported: float, used: float, parties: bool, runs: int
    ) -> Spend:
        """Return the line of the ledger; `runs` is the number of earlier ones."""
        noise = "discrete Laplace" if isinstance(aggregator, LNMax) else "discrete Gaussian"
        whom = "whoever sees labels and student"
        if self.split:
            whom += ", including the server if enough teachers add their noise"
        elif parties:
            whom += ", but not the server, which sees the counts"
        if spent.released is not None and reported == spent.released:
            basis = (
                "data-dependent, published with smooth-sensitivity noise: a bound for these votes, known "
                "only afterwards, not for all data."
            )
        elif spent.released is not None:
            basis = (
                "data-independent, including the cost of publishing a data-dependent one; known only "
                "afterwards."
            )
        elif not isinstance(aggregator, ConfidentGNMax):
            basis = "data-independent."
        else:
            is_budget = reported == self.epsilon
            what = "the budget, at which queries stop" if is_budget else "as if every query were answered"
            basis = (
                f"data-independent: {what}. The given answers cost ε = {used:.4g}, which depends on the "
                "votes and is no guarantee."
            )
        return Spend(
            f"{aggregator}: {spent.answers} answers to {spent.queries} queries, {noise} noise",
            reported,
            self.delta,
            "row of a teacher's data, or all of its rows, exchanged for others",
            whom,
            "no",
            f"{basis}{f' With {runs} earlier runs.' if runs else ''} The student only depends on the labels "
            "and public rows.",
        )
