"""The server's desk: who is at work on which version of the model, and what has come in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ..algorithms.plan import identify, mix

State = dict[str, Tensor]
_NEXT = 5  # what a hash is for: who is asked next. algorithms.plan and guarding use 1 to 4


class Order(NamedTuple):
    """One piece of work: the party's `number`-th, from 0, on the model of `version`; `serial` counts all
    orders of a run.
    """

    name: str
    number: int
    version: int
    begun: float
    serial: int


class Arrival(NamedTuple):
    """What came of an order: its weight, and its vectors in the form its pace works on (models, or the ways
    walked).
    """

    order: Order
    weight: float
    vectors: State


class Desk(ABC):
    """What every pace keeps. `asks`, `add` and `batch` are the pace's own."""

    def __init__(self, names: Sequence[str], at_once: int, seed: int):
        self.names, self.at_once, self.seed = tuple(names), at_once, seed
        self.ids = dict(zip(self.names, identify(self.names)))
        self.version = 0
        self.serial = 0
        self.works = dict.fromkeys(self.names, 0)  # pieces of work each party was given
        self.at_work: dict[str, Order] = {}
        self.waiting: list[Arrival] = []  # came, and is in no version yet
        self.closes: float | None = None  # when whatever has come must do
        self.dropped: dict[str, str] = {}  # {party: why its work was given up}, since the last version

    @abstractmethod
    def asks(self, now: float, there: Collection[str] | None = None) -> list[Order]:
        """Orders for those who are to begin now, each with the version at hand. Only of `there`, where not
        everyone is.
        """

    @abstractmethod
    def batch(self, now: State) -> list[Arrival] | None:
        """What makes the next version, once there is enough. `now` is the model at hand, by the names of the
        vectors that come.
        """

    def took(self, batch: list[Arrival]) -> list[Arrival]:
        """Whose work is new in the version this makes."""
        return batch

    def order(self, name: str, now: float) -> Order:
        made = self.at_work[name] = Order(name, self.works[name], self.version, now, self.serial)
        self.works[name] += 1
        self.serial += 1
        return made

    def done(self, name: str, number: int) -> Order | None:
        """The order this answers; None where it was given up meanwhile, or nobody gave it."""
        order = self.at_work.get(name)
        return self.at_work.pop(name) if order is not None and order.number == number else None

    def lost(self, name: str) -> None:
        """Its work is not waited for any longer."""
        self.at_work.pop(name, None)

    def ring(self, now: float) -> None:  # noqa: B027  # only a desk with a deadline has something to do
        """It is this late."""

    def add(self, arrival: Arrival) -> None:
        self.waiting.append(arrival)

    def moved(self) -> None:
        """There is a new version."""
        self.version += 1
        self.dropped = {}

    def idle(self, there: Collection[str] | None) -> list[str]:
        return [n for n in self.names if n not in self.at_work and (there is None or n in there)]

    def drawn(self, idle: list[str]) -> str:
        """One of them, each as likely: from (seed, serial) alone."""
        return idle[int(np.argmin(mix(self.seed, self.serial, _NEXT, np.array([self.ids[n] for n in idle]))))]

    # what a run that is resumed needs -----------------------------------------------------------------------

    def save(self) -> tuple[dict[str, Any], State]:
        """(plain values, tensors)."""
        tensors = {f"waiting.{i}.{k}": v for i, a in enumerate(self.waiting) for k, v in a.vectors.items()}
        return {
            "version": self.version,
            "serial": self.serial,
            "works": self.works,
            "at_work": [list(o) for o in self.at_work.values()],
            "waiting": [[list(a.order), a.weight] for a in self.waiting],
        }, tensors

    def load(self, said: Mapping[str, Any], tensors: State) -> None:
        self.version, self.serial, self.works = said["version"], said["serial"], dict(said["works"])
        self.at_work = {o[0]: Order(*o) for o in said["at_work"]}
        self.waiting = [
            Arrival(Order(*order), weight, under(f"waiting.{i}.", tensors))
            for i, (order, weight) in enumerate(said["waiting"])
        ]


def under(prefix: str, tensors: State) -> State:
    """The entries below a prefix, without it."""
    return {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
