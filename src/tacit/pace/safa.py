"""SAFA. W. Wu, L. He, W. Lin, R. Mao, C. Maple, S. Jarvis: "SAFA: A Semi-Asynchronous Protocol for Fast
Federated Learning With Low Overhead", IEEE Transactions on Computers 2021 (arXiv 1910.01355).

Lag-tolerant distribution, selection after training (CFCFM), and aggregation over a cache of everyone's last
model in three steps. Where we differ: a party that was never heard counts for nothing, where the paper's
cache has it stand for the first model.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..parameters import real, whole
from .desk import Arrival, Desk, Order, State, under


@dataclass(frozen=True)
class SAFA:
    """Everybody trains; a round takes the first of them. Who is late keeps working, and only one that lags
    too far has to begin anew.
    """

    fraction: float = real(0.5, above=0, most=1, doc="C, the share of the parties whose answers end a round")
    lag: int = whole(5, least=1, doc="τ, the lag in versions up to which a party works on undisturbed")
    deadline: float | None = real(
        None,
        above=0,
        none=True,
        doc="T_lim, the seconds after which a round does with who has come; None: it waits for enough",
    )

    sends_models: ClassVar[bool] = True

    def desk(self, names: Sequence[str], at_once: int, seed: int) -> Desk:
        return Laps(
            names,
            at_once,
            seed,
            max(1, math.ceil(self.fraction * len(names) - 1e-9)),
            self.lag,
            self.deadline,
        )

    def moves(self, batch: list[Arrival], version: int, now: State) -> list[tuple[float, State]]:
        return [
            (a.weight, {k: v - now[k] for k, v in a.vectors.items()}) for a in batch
        ]  # w(t) ← Σ n_k/n of the cache


class Laps(Desk):
    """One round after the other, each as long as its quickest. `batch` is the cache: everybody's last model
    that counts.
    """

    def __init__(
        self, names: Sequence[str], at_once: int, seed: int, quota: int, lag: int, deadline: float | None
    ):
        super().__init__(names, at_once, seed)
        self.quota, self.lag, self.deadline = quota, lag, deadline
        self.late = False
        self.cache: dict[str, Arrival] = {}
        self.picked: list[str] = []  # who was in the last version
        self.open = False  # whether a round is under way
        self.undrafted: list[Arrival] = []
        self.deprecated: list[str] = []

    def asks(self, now: float, there: Collection[str] | None = None) -> list[Order]:
        if self.open:
            return []
        self.open = True
        self.closes = None if self.deadline is None else now + self.deadline
        made = []
        for name in self.names:
            if there is not None and name not in there and name not in self.at_work:
                continue
            late = self.at_work.get(name)
            if late is not None:
                behind = self.version - late.version
                if behind <= self.lag:  # tolerable: it works on with what it has
                    continue
                self.dropped[name] = (
                    f"its work began {behind} versions ago, and {self.lag} are tolerated: it begins anew"
                )
                self.deprecated.append(name)
            made.append(self.order(name, now))
        return made

    def ring(self, now: float) -> None:
        if self.closes is not None and now >= self.closes:
            self.late, self.closes = True, None

    def batch(self, now: State) -> list[Arrival] | None:
        first = [
            a for a in self.waiting if a.order.name not in self.picked
        ]  # CFCFM: who was left out last time comes first
        others = [a for a in self.waiting if a.order.name in self.picked]
        if not self.waiting or (len(first) < self.quota and self.at_work and not self.late):
            return None
        chosen = (first + others)[: self.quota]
        self.picked = [a.order.name for a in chosen]
        self.late, self.closes = False, None
        self.undrafted = (first + others)[self.quota :]
        self.waiting = []
        self.cache |= {
            n: self.cache[n]._replace(vectors=dict(now)) for n in self.deprecated if n in self.cache
        }  # step 1: the server's own model instead
        self.cache |= {a.order.name: a for a in chosen}
        self.deprecated = []
        return [self.cache[n] for n in self.names if n in self.cache]

    def took(self, batch: list[Arrival]) -> list[Arrival]:
        return [a for a in batch if a.order.name in self.picked]

    def moved(self) -> None:
        super().moved()
        self.cache |= {
            a.order.name: a for a in self.undrafted
        }  # step 3: who was not picked for this version counts in the next
        self.undrafted, self.open = [], False

    def lost(self, name: str) -> None:
        super().lost(name)
        self.open = self.open and bool(
            self.at_work or self.waiting
        )  # nobody is left: whoever is there is asked anew

    def save(self) -> tuple[dict[str, Any], State]:
        said, tensors = super().save()
        said |= {
            "late": self.late,
            "closes": self.closes,
            "picked": self.picked,
            "open": self.open,
            "deprecated": self.deprecated,
            "cache": [[list(a.order), a.weight] for a in self.cache.values()],
        }
        return said, tensors | {
            f"cache.{i}.{k}": v for i, a in enumerate(self.cache.values()) for k, v in a.vectors.items()
        }

    def load(self, said: Mapping[str, Any], tensors: State) -> None:
        super().load(said, tensors)
        self.late, self.closes = said["late"], said["closes"]
        self.picked, self.open, self.deprecated = list(said["picked"]), said["open"], list(said["deprecated"])
        self.cache = {
            order[0]: Arrival(Order(*order), weight, under(f"cache.{i}.", tensors))
            for i, (order, weight) in enumerate(said["cache"])
        }
