"""SAFA. W. Wu, L. He, W. Lin, R. Mao, C. Maple, S. Jarvis: "SAFA: A Semi-Asynchronous Protocol for Fast
Federated Learning With Low Overhead", IEEE Transactions on Computers 2021 (arXiv 1910.01355).

Lag-tolerant distribution, selection after training (CFCFM), and aggregation of a cache of everyone's last
model in three steps. Where we differ: a party that has not answered yet counts for nothing, where the paper's
cache holds the first model for it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..parameters import real, whole
from .scheduler import Arrival, Order, Pace, Scheduler, State, under


@dataclass(frozen=True)
class SAFA(Pace):
    """All parties train, and a round ends with the first answers.

    Late parties keep working; only one that lags too far behind starts again.
    """

    fraction: float = real(0.5, above=0, most=1, doc="C, the share of the parties whose answers end a round")
    lag: int = whole(5, least=1, doc="τ, the lag in versions up to which a party keeps working")
    deadline: float | None = real(
        None,
        above=0,
        none=True,
        doc="T_lim, the seconds after which a round ends with the answers it has; None: it waits for enough",
    )

    sends_models: ClassVar[bool] = True

    def scheduler(self, names: Sequence[str], at_once: int, seed: int) -> Laps:
        quota = max(1, math.ceil(self.fraction * len(names) - 1e-9))
        return Laps(names, at_once, seed, quota, self.lag, self.deadline)

    def updates(self, batch: list[Arrival], version: int, now: State) -> list[tuple[float, State]]:
        # w(t) ← Σ n_k/n of the cache
        return [(a.weight, {k: v - now[k] for k, v in a.vectors.items()}) for a in batch]


class Laps(Scheduler):
    """Rounds, each as long as its fastest parties take. `take_batch` returns the cache."""

    def __init__(
        self, names: Sequence[str], at_once: int, seed: int, quota: int, lag: int, deadline: float | None
    ):
        super().__init__(names, at_once, seed)
        self.quota, self.lag, self.deadline = quota, lag, deadline
        self.late = False
        self.cache: dict[str, Arrival] = {}  # the last model of each party
        self.picked: list[str] = []  # who was in the last version
        self.open = False  # whether a round has begun
        self.undrafted: list[Arrival] = []
        self.deprecated: list[str] = []

    def next_orders(self, now: float, there: Collection[str] | None = None) -> list[Order]:
        if self.open:
            return []
        self.open = True
        self.closes = None if self.deadline is None else now + self.deadline
        orders = []
        for name in self.names:
            if there is not None and name not in there and name not in self.at_work:
                continue
            late = self.at_work.get(name)
            if late is not None:
                behind = self.version - late.version
                if behind <= self.lag:  # tolerable: it keeps working on its version
                    continue
                self.dropped[name] = (
                    f"its work began {behind} versions ago, and {self.lag} are tolerated: it starts again"
                )
                self.deprecated.append(name)
            orders.append(self.order(name, now))
        return orders

    def check_deadline(self, now: float) -> None:
        if self.closes is not None and now >= self.closes:
            self.late, self.closes = True, None

    def take_batch(self, now: State) -> list[Arrival] | None:
        # CFCFM: parties that were not in the last version come first
        first = [a for a in self.waiting if a.order.name not in self.picked]
        others = [a for a in self.waiting if a.order.name in self.picked]
        if not self.waiting or (len(first) < self.quota and self.at_work and not self.late):
            return None
        picked = (first + others)[: self.quota]
        self.picked = [a.order.name for a in picked]
        self.late, self.closes = False, None
        self.undrafted = (first + others)[self.quota :]
        self.waiting = []
        # step 1: the server's model replaces that of parties that lag too far behind
        self.cache |= {
            n: self.cache[n]._replace(vectors=dict(now)) for n in self.deprecated if n in self.cache
        }
        self.cache |= {a.order.name: a for a in picked}
        self.deprecated = []
        return [self.cache[n] for n in self.names if n in self.cache]

    def participants(self, batch: list[Arrival]) -> list[Arrival]:
        return [a for a in batch if a.order.name in self.picked]

    def advance(self) -> None:
        super().advance()
        # step 3: answers that were not picked for this version count in the next
        self.cache |= {a.order.name: a for a in self.undrafted}
        self.undrafted, self.open = [], False

    def give_up(self, name: str) -> None:
        super().give_up(name)
        # if nobody is left, the parties that are there get new orders
        self.open = self.open and bool(self.at_work or self.waiting)

    def save(self) -> tuple[dict[str, Any], State]:
        values, tensors = super().save()
        values |= {
            "late": self.late,
            "closes": self.closes,
            "picked": self.picked,
            "open": self.open,
            "deprecated": self.deprecated,
            "cache": [[list(a.order), a.weight] for a in self.cache.values()],
        }
        return values, tensors | {
            f"cache.{i}.{k}": v for i, a in enumerate(self.cache.values()) for k, v in a.vectors.items()
        }

    def load(self, values: Mapping[str, Any], tensors: State) -> None:
        super().load(values, tensors)
        self.late, self.closes = values["late"], values["closes"]
        self.picked, self.open = list(values["picked"]), values["open"]
        self.deprecated = list(values["deprecated"])
        self.cache = {
            order[0]: Arrival(Order(*order), weight, under(f"cache.{i}.", tensors))
            for i, (order, weight) in enumerate(values["cache"])
        }
