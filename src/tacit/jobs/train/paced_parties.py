"""Asynchronous training with one program per party, over messages: in one process under a virtual clock, or
in many under the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ...algorithms.types import State
from ...engine.task import Task
from ...parties.codec import encode_parts
from ...parties.ledger import Ledger
from ...parties.message import Message
from ...parties.party import Party
from ...protocols import buffered
from ..devices import placed
from .messages import SERVER, Member, Parties
from .networked import Networked
from .paced import Merger
from .plan import Plan


class _Paced(Parties):
    """What the two share: the server's program is that of protocols.buffered."""

    def __init__(self, task: Task, starts: list[State], plans: list[Plan], saved: list[State | None]):
        super().__init__(task, starts, plans, saved)
        self.merger = Merger(
            self.plan, task, starts[0], self.guard, lambda: self.down(self.merger.desk.version), self._move
        )
        self.rest = saved[0]

    def proceed(self, beside: dict[str, Any]) -> None:
        super().proceed(beside)
        assert self.rest is not None
        self.merger.load(beside, {k: v for k, v in self.rest.items() if k.startswith(("desk.", "sent."))})
        self.rest = None

    def time(self) -> float:
        """What the run's clock shows: the virtual one of all parties."""
        return self.here[SERVER].clock.now()

    def _move(self, mean: State, fraction: float) -> None:
        mean = placed(self.task.x.device, mean)
        buffers = {"buffers": mean.pop("buffers")} if "buffers" in mean else {}
        state = {k: v for k, v in self.server.items() if k not in ("w", "buffers")}
        w, state = self.plan.algorithm.merge(self.server["w"], state, mean, torch.tensor(fraction))
        self.server = {"w": w, **buffers, **state}

    def run(self, rounds: range, due: Callable[[int], bool], after: Callable[..., None]) -> None:
        merger = self.merger
        if self.unevaluated is not None:
            merger.took = self.unevaluated

        async def merge() -> bool:
            if not merger.merge():
                return False
            self.clock = self.time()
            self.told = [{"clock": self.clock, **merger.told}]
            self.dropped = {**merger.dropped, **self.dropped}
            version = merger.desk.version
            if not due(version):
                after(version, [merger.took], [{}])
            else:
                self.merged(version, merger.took)
            return True

        def model(version: int) -> State | None:
            return (
                {k: v.cpu() for k, v in self.server.items() if k in ("w", "buffers")}
                if due(version + 1)
                else None
            )

        async def tested(version: int, answers: dict[str, State]) -> None:
            after(version + 1, [merger.took], [self._metrics(version + 1, answers)])

        def without(version: int, who: Mapping[str, str]) -> None:
            self.dropped = {**who, **self.dropped}

        def down(order: Any) -> State:
            self.time()  # which begins to run with the first order
            return merger.down(order)

        def start(me: Party, **network: Any) -> Any:
            return buffered.server(
                me,
                self.plan.fed.parties,
                merger.desk,
                rounds.stop,
                down,
                merger.came,
                merge,
                model,
                tested,
                within=self.within,
                at_least=self.at_least,
                dropped=without,
                pending=None if self.unevaluated is None else merger.desk.version - 1,
                **network,
            )

        self.perform(start)

    def save(self, i: int) -> State:
        return super().save(i) | self.merger.save()[1]

    def beside(self) -> dict[str, Any]:
        return {**super().beside(), **self.merger.save()[0], "clock": self.clock}

    def bytes(self, r: int) -> tuple[int, int]:
        return self.merger.bytes()


KINDS: tuple[type[Message], ...] = (
    buffered.Answer,
    buffered.Tested,
    buffered.Order,
    buffered.Test,
    buffered.Stop,
)


class PacedParties(_Paced):
    """Everybody in one process. A client sleeps on the virtual clock for as long as its work would take, then
    does it.
    """

    kinds = KINDS

    def beside(self) -> dict[str, Any]:
        """Orders that are under way will be given again by whoever goes on from here, so they are not counted
        yet.
        """
        again, ledger = {}, Ledger()
        for order in self.merger.desk.at_work.values():
            sent = {k: v.cpu() for k, v in self.merger.sent[order.version].items()}
            again[order.name] = sum(map(len, encode_parts(buffered.Order(order.number, order.version, sent))))
        for s in self.ledger(0, []).seen:
            size = again.get(s.party) if s.kind == buffered.Order.kind else None
            ledger.record(
                s.party,
                s.sender,
                s.kind,
                s.reveals,
                count=s.count - (size is not None),
                bytes=s.bytes - (size or 0),
                how=s.how,
            )
        return {**super().beside(), "ledger": ledger.to_dict()}

    def client(self, k: int, mine: Member) -> Callable[[Party], Any]:
        def start(me: Party) -> Any:
            async def work(number: int, version: int, down: State) -> tuple[float, State]:
                assert self.seconds is not None
                begun = self.merger.desk.at_work[
                    mine.name
                ].begun  # a run that is resumed goes on with work half done
                await me.clock.until(begun + float(self.seconds(np.array([k]), np.array([number]))[0]))
                weight, vectors, _ = mine.local(version, down, {}, number)
                return weight, vectors

            return buffered.client(me, work, mine.test, boss=SERVER)

        return start


class PacedNetworked(_Paced, Networked):
    """Parties where they are, under the real clock."""

    kinds = (*KINDS, *(kind for kind in Networked.kinds if kind not in Parties.kinds))

    def __init__(self, task: Task, starts: list[State], plans: list[Plan], saved: list[State | None]):
        super().__init__(task, starts, plans, saved)
        self.earlier_time = 0.0
        self.began: float | None = None

    def proceed(self, beside: dict[str, Any]) -> None:
        super().proceed(beside)
        self.earlier_time = self.clock

    def time(self) -> float:
        """Seconds of the run, those of earlier processes of this server included, from its first order on."""
        now = self.here[SERVER].clock.now()
        self.began = now if self.began is None else self.began
        return self.earlier_time + now - self.began
