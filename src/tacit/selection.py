"""Who is asked in a round: tacit.train(…, per_round=10, select=selection.PowerOfChoice(candidates=30)).

Without `select`, `per_round` parties are drawn alike from all. What a rule may look at is what a server can
be told before the round: sizes, who is there, how fast each is, and the loss of the current model on a
party's rows. Over messages a loss is asked for, and everybody asked has been sent the model. A rule that
`fills` a round takes as many as are wanted and can be had: without `per_round` it would choose nobody out,
and is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .parameters import Kind, real, whole


class Known(NamedTuple):
    """What is known of the parties before a round."""

    sizes: np.ndarray  # rows each trains on
    loss: Callable[
        [np.ndarray], np.ndarray
    ]  # of the current model on the rows of these parties: each has to work it out and say it
    seconds: (
        np.ndarray | None
        # that each would take for this round, where the run has a speed; of real parties, that each took last
        # (0:
        # not known yet)
    )
    there: np.ndarray | None = None  # who is, where a run may go on without some


@dataclass(frozen=True)
class BySize:
    """Drawn without replacement with chances in proportion to a party's rows, as in Li et al., "On the
    Convergence of FedAvg on Non-IID Data", ICLR 2020.
    """

    fills: ClassVar[bool] = True

    def choose(self, known: Known, per_round: int, rng: np.random.Generator) -> np.ndarray:
        return _drawn(rng, known.sizes / known.sizes.sum(), per_round)


@dataclass(frozen=True)
class PowerOfChoice:
    """Candidates are drawn by size, and those with the largest losses are asked. Y. J. Cho, J. Wang, G.
    Joshi: "Towards Understanding Biased Client Selection in Federated Learning", AISTATS 2022.
    """

    fills: ClassVar[bool] = True
    candidates: int = whole(
        20, least=1, doc="d: how many are asked for their loss; at least as many as take part"
    )

    def choose(self, known: Known, per_round: int, rng: np.random.Generator) -> np.ndarray:
        among = _drawn(rng, known.sizes / known.sizes.sum(), self.candidates)
        return among[np.argsort(-known.loss(among), kind="stable")[:per_round]]


@dataclass(frozen=True)
class Available:
    """Each party is there with some probability, and those that are there are drawn from alike; fewer than
    asked for may come. Of real parties that may stay away (a deadline is given), those that are not connected
    are not asked, whatever the probability.
    """

    probability: float = real(0.8, above=0, most=1, doc="how often a party is there")

    def choose(self, known: Known, per_round: int, rng: np.random.Generator) -> np.ndarray:
        there = rng.random(len(known.sizes)) < self.probability
        return rng.permutation(np.flatnonzero(there if known.there is None else there & known.there))[
            :per_round
        ]


@dataclass(frozen=True)
class Fast:
    """As many as can be done by a deadline, drawn in random order; the rest of the round's places stay empty.
    T. Nishio, R. Yonetani: "Client Selection for Federated Learning with Heterogeneous Resources in Mobile
    Edge", ICC 2019 (FedCS's idea: no round is longer than the deadline).
    """

    needs_speed: ClassVar[bool] = True
    deadline: float = real(
        1.0, above=0, doc="seconds on the run's virtual clock; of real parties, by the server's own"
    )

    def choose(self, known: Known, per_round: int, rng: np.random.Generator) -> np.ndarray:
        assert known.seconds is not None  # a plan with Fast has a speed
        able = np.flatnonzero(known.seconds <= self.deadline)
        return rng.permutation(able)[:per_round]


def _drawn(rng: np.random.Generator, chances: np.ndarray, many: int) -> np.ndarray:
    return rng.choice(len(chances), min(many, int((chances > 0).sum())), replace=False, p=chances)


class Wanted(Exception):
    """A rule wants to know the losses of `who`."""

    def __init__(self, who: np.ndarray):
        self.who = who


def chosen(rule: Any, seed: int, number: int, known: Known, per_round: int) -> np.ndarray:
    """Who is asked in round `number`, in ascending order. A rule that is asked again draws the same: once
    losses are there that it wanted, it goes on.
    """
    return np.sort(
        rule.choose(known, per_round, np.random.default_rng([seed, number, 0x5E1]))
    )  # 0x5E1: another use than that of other draws


ALL = {"BySize": BySize, "PowerOfChoice": PowerOfChoice, "Available": Available, "Fast": Fast}
SELECTION = Kind("a way to choose who is asked", ALL, ("choose",))
