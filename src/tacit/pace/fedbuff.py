"""FedBuff. J. Nguyen, K. Malik, H. Zhan, A. Yousefpour, M. Rabbat, M. Malek, D. Huba:
"Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..parameters import part, whole
from .scheduler import Arrival, Order, Pace, Scheduler, State
from .staleness import STALENESS, Polynomial, Staleness


@dataclass(frozen=True)
class FedBuff(Pace):
    """A fixed number of parties is always at work; every K updates, of any age, make a new version.

    Δ̄ = Σ s(τ)·n·Δ / Σ n, where the paper has Σ s(τ)·Δ / K: the same if the algorithm weights all parties
    equally.
    """

    buffer: int = whole(10, least=1, doc="K, the updates that make a new version")
    staleness: Staleness = part(
        Polynomial(0.5), doc="s(τ), the weight of an update computed τ versions ago", of=STALENESS
    )

    sends_models: ClassVar[bool] = False  # updates are added to the current model

    def scheduler(self, names: Sequence[str], at_once: int, seed: int) -> Buffer:
        return Buffer(names, at_once, seed, self.buffer)

    def updates(self, batch: list[Arrival], version: int, now: State) -> list[tuple[float, State]]:
        # line 10: τ_i(t) = t − the version it began with
        factors = [self.staleness.weight(version - a.order.version) for a in batch]
        return [(a.weight, {k: s * v for k, v in a.vectors.items()}) for a, s in zip(batch, factors)]


class Buffer(Scheduler):
    """Whenever a party has answered, another one starts."""

    def __init__(self, names: Sequence[str], at_once: int, seed: int, size: int):
        super().__init__(names, at_once, seed)
        self.size = size

    def next_orders(self, now: float, there: Collection[str] | None = None) -> list[Order]:
        idle, orders = self.idle(there), []  # line 3: keep the concurrency at M_c
        while idle and len(self.at_work) < self.at_once:
            name = idle[0] if len(idle) <= self.at_once - len(self.at_work) else self.draw(idle)
            idle.remove(name)
            orders.append(self.order(name, now))
        return orders

    def take_batch(self, now: State) -> list[Arrival] | None:
        if len(self.waiting) < self.size:  # line 12: k = K
            return None
        full, self.waiting = self.waiting[: self.size], self.waiting[self.size :]
        return full
