"""The server's schedule in asynchronous training: who works on which version of the model, and what
arrived.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from torch import Tensor

from ..algorithms.plan import identify, mix

State = dict[str, Tensor]
_NEXT = 5  # the purpose of a hash: who is asked next. algorithms.plan and guarding use 1 to 4


class Order(NamedTuple):
    """One piece of work: the party's `number`-th, from 0, on the model of `version`.

    `serial` counts all orders of a run.
    """

    name: str
    number: int
    version: int
    begun: float
    serial: int


class Arrival(NamedTuple):
    """The answer to an order: its weight, and its vectors in the form the pace needs (models or updates)."""

    order: Order
    weight: float
    vectors: State


class Pace(ABC):
    """A frozen dataclass that says when the server makes a new version of the model, and from what."""

    sends_models: ClassVar[bool]  # True: arrivals are models; False: updates
    buffer: int = 1  # the number of arrivals in a version, of which one party may send all

    @abstractmethod
    def scheduler(self, names: Sequence[str], at_once: int, seed: int) -> Scheduler:
        """The schedule of a run with these parties, of which at most `at_once` work at the same time."""

    @abstractmethod
    def updates(self, batch: list[Arrival], version: int, now: State) -> list[tuple[float, State]]:
        """(weight, update) of each arrival in a version; `now` is the server's model."""


class Scheduler(ABC):
    """The state of a schedule. A pace implements `next_orders` and `take_batch`."""

    def __init__(self, names: Sequence[str], at_once: int, seed: int):
        self.names, self.at_once, self.seed = tuple(names), at_once, seed
        self.ids = dict(zip(self.names, identify(self.names)))
        self.version = 0
        self.serial = 0
        self.works = dict.fromkeys(self.names, 0)  # the number of orders of each party
        self.at_work: dict[str, Order] = {}
        self.waiting: list[Arrival] = []  # arrivals that are in no version yet
        self.closes: float | None = None  # the time at which a version is made of what has arrived
        self.dropped: dict[str, str] = {}  # {party: why its work was given up}, since the last version

    @abstractmethod
    def next_orders(self, now: float, there: Collection[str] | None = None) -> list[Order]:
        """New orders at the time `now`, for the current version; only for parties in `there`, if given."""

    @abstractmethod
    def take_batch(self, now: State) -> list[Arrival] | None:
        """The arrivals that make the next version; None while there are too few.

        `now` is the server's model, with the keys of the arrivals.
        """

    def participants(self, batch: list[Arrival]) -> list[Arrival]:
        """The arrivals of a batch that are new in its version."""
        return batch

    def order(self, name: str, now: float) -> Order:
        """A new order for a party."""
        order = self.at_work[name] = Order(name, self.works[name], self.version, now, self.serial)
        self.works[name] += 1
        self.serial += 1
        return order

    def finish(self, name: str, number: int) -> Order | None:
        """End and return the order that an answer belongs to; None if it was given up or never made."""
        order = self.at_work.get(name)
        return self.at_work.pop(name) if order is not None and order.number == number else None

    def give_up(self, name: str) -> None:
        """Stop waiting for a party."""
        self.at_work.pop(name, None)

    def check_deadline(self, now: float) -> None:  # noqa: B027  # only a schedule with a deadline needs it
        """Note that it is the time `now`."""

    def add(self, arrival: Arrival) -> None:
        self.waiting.append(arrival)

    def advance(self) -> None:
        """Begin the next version."""
        self.version += 1
        self.dropped = {}

    def idle(self, there: Collection[str] | None) -> list[str]:
        return [n for n in self.names if n not in self.at_work and (there is None or n in there)]

    def draw(self, idle: list[str]) -> str:
        """One of the parties, uniformly: it follows from (seed, serial)."""
        return idle[int(np.argmin(mix(self.seed, self.serial, _NEXT, np.array([self.ids[n] for n in idle]))))]

    # for resuming a run -------------------------------------------------------------------------------------

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

    def load(self, values: Mapping[str, Any], tensors: State) -> None:
        self.version, self.serial, self.works = values["version"], values["serial"], dict(values["works"])
        self.at_work = {o[0]: Order(*o) for o in values["at_work"]}
        self.waiting = [
            Arrival(Order(*order), weight, under(f"waiting.{i}.", tensors))
            for i, (order, weight) in enumerate(values["waiting"])
        ]


def under(prefix: str, tensors: State) -> State:
    """The entries whose key starts with a prefix, without the prefix."""
    return {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
