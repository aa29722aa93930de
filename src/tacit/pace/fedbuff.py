"""FedBuff. J. Nguyen, K. Malik, H. Zhan, A. Yousefpour, M. Rabbat, M. Malek, D. Huba:
"Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..parameters import part, whole
from .desk import Arrival, Desk, Order, State
from .staleness import STALENESS, Polynomial


@dataclass(frozen=True)
class FedBuff:
    """So many parties are always at work; every K updates that come, of whatever age, make a new model.

    Δ̄ = Σ s(τ)·n·Δ / Σ n, where the paper has Σ s(τ)·Δ / K: the same with an algorithm that weighs all alike.
    """

    buffer: int = whole(10, least=1, doc="K, the updates that make a new model")
    staleness: Any = part(
        Polynomial(0.5), doc="s(τ), what an update counts that began τ versions ago", of=STALENESS
    )

    sends_models: ClassVar[bool] = False  # ways walked are added to wherever the model is by now

    def desk(self, names: Sequence[str], at_once: int, seed: int) -> Desk:
        return Buffer(names, at_once, seed, self.buffer)

    def moves(self, batch: list[Arrival], version: int, now: State) -> list[tuple[float, State]]:
        made = []
        for a in batch:
            s = self.staleness.weight(
                version - a.order.version
            )  # line 10, with τ_i(t) = t − the version it began with
            made.append((a.weight, {k: s * v for k, v in a.vectors.items()}))
        return made


class Buffer(Desk):
    """Whenever somebody has answered, somebody begins."""

    def __init__(self, names: Sequence[str], at_once: int, seed: int, size: int):
        super().__init__(names, at_once, seed)
        self.size = size

    def asks(self, now: float, there: Collection[str] | None = None) -> list[Order]:
        idle, made = self.idle(there), []  # line 3: keep the concurrency at M_c
        while idle and len(self.at_work) < self.at_once:
            name = idle[0] if len(idle) <= self.at_once - len(self.at_work) else self.drawn(idle)
            idle.remove(name)
            made.append(self.order(name, now))
        return made

    def batch(self, now: State) -> list[Arrival] | None:
        if len(self.waiting) < self.size:  # line 12: k = K
            return None
        full, self.waiting = self.waiting[: self.size], self.waiting[self.size :]
        return full
