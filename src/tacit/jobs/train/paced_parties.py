"""Asynchronous training with one program per party, over messages: in one process under a virtual clock, or
in many under the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np

from ...algorithms.types import State
from ...engine.task import Task
from ...pace.scheduler import Order
from ...parties.ledger import Ledger
from ...parties.message import Message
from ...parties.party import Party
from ...protocols import buffered
from ...protocols.rounds import Stop, Test, Tested
from ...runtimes.streaming import Emitter
from ..devices import placed
from .local import Member
from .messages import SERVER, MessageTrainer, server_step
from .networked import NetworkedTrainer
from .paced import Merger
from .plan import Plan
from .traffic import wire_size
from .trainer import Records, RoundRecord, RunContext, evaluates


class _Paced(MessageTrainer):
    """What the two share: the server's program is that of protocols.buffered."""

    def __init__(self, task: Task, starts: list[State], plans: list[Plan], context: RunContext):
        super().__init__(task, starts, plans, context)
        self.merger = Merger(
            self.plan,
            task,
            starts[0],
            self.guard,
            lambda: self.down(self.merger.scheduler.version),
            self._move,
        )
        if context.states:
            self.merger.load(context.metadata, context.states[0])

    def time(self) -> float:
        """Return the time on the run's clock: the virtual one of all parties."""
        return self.parties[SERVER].clock.now()

    def _move(self, mean: State, fraction: float) -> None:
        mean = placed(self.task.x.device, mean)
        self.server = server_step(self.plan.algorithm, self.server, mean, fraction)

    def serve(
        self, rounds: range, emitter: Emitter[list[RoundRecord]], me: Party, **network: Any
    ) -> Coroutine[Any, Any, None]:
        merger, p, last = self.merger, self.plan, rounds.stop
        record = self.context.pending or self.record(0, last, ())

        async def merge() -> bool:
            nonlocal record
            if not merger.merge():
                return False
            self.clock, self.facts, self.sizes = self.time(), merger.facts, merger.sizes()
            self.dropped = {**merger.dropped, **self.dropped}
            version = merger.scheduler.version
            record = self.record(version, last, merger.participants, True, merger.new_orders)
            await self.merged(emitter, record, evaluates(p, version, last))
            return True

        def model(version: int) -> State | None:
            if not evaluates(p, version + 1, last):
                return None
            return {k: v.cpu() for k, v in self.server.items() if k in ("w", "buffers")}

        async def tested(version: int, answers: dict[str, State]) -> None:
            await self.finish_round(emitter, record, self._metrics(version + 1, answers))

        def down(order: Order) -> State:
            self.time()  # which starts to run with the first order
            return merger.down(order)

        return buffered.server(
            me,
            p.fed.parties,
            merger.scheduler,
            last,
            down,
            merger.came,
            merge,
            model,
            tested,
            within=self.within,
            at_least=self.at_least,
            dropped=self.drop,
            pending=None if self.context.pending is None else merger.scheduler.version - 1,
            **network,
        )

    def save(self, i: int) -> State:
        return super().save(i) | self.merger.save()[1]

    def checkpoint_metadata(self) -> dict[str, Any]:
        return {**super().checkpoint_metadata(), **self.merger.save()[0], "clock": self.clock}


KINDS: tuple[type[Message], ...] = (
    buffered.Answer,
    Tested,
    buffered.Order,
    Test,
    Stop,
)


class PacedMessageTrainer(_Paced):
    """Everybody in one process. A client sleeps on the virtual clock while it would work, then does it."""

    kinds = KINDS

    def run(self, rounds: range) -> Records:
        """Run the rounds. A resumed run sends the orders under way again, so each is counted once: here."""
        self.earlier_ledger = self._without_orders_under_way(self.earlier_ledger)
        yield from super().run(rounds)

    def _without_orders_under_way(self, earlier: Ledger) -> Ledger:
        sizes, ledger = {}, Ledger()
        for order in self.merger.scheduler.at_work.values():
            sent = {k: v.cpu() for k, v in self.merger.sent[order.version].items()}
            sizes[order.name] = wire_size(buffered.Order(order.number, order.version, sent))
        for s in earlier.seen:
            size = sizes.get(s.party) if s.kind == buffered.Order.kind else None
            ledger.record(
                s.party,
                s.sender,
                s.kind,
                s.reveals,
                count=s.count - (size is not None),
                bytes=s.bytes - (size or 0),
                how=s.how,
            )
        return ledger

    def client(self, k: int, member: Member) -> Callable[[Party], Any]:
        def start(me: Party) -> Any:
            async def work(number: int, version: int, down: State) -> tuple[float, State]:
                assert self.seconds is not None
                begun = self.merger.scheduler.at_work[
                    member.name
                ].begun  # a resumed run continues work half done
                await me.clock.until(begun + float(self.seconds(np.array([k]), np.array([number]))[0]))
                weight, vectors, _ = member.local(version, down, {}, number)
                return weight, vectors

            return buffered.client(me, work, member.test, server=SERVER)

        return start


class PacedNetworkedTrainer(_Paced, NetworkedTrainer):
    """Parties where they are, under the real clock."""

    kinds = (*KINDS, *(kind for kind in NetworkedTrainer.kinds if kind not in MessageTrainer.kinds))

    def __init__(self, task: Task, starts: list[State], plans: list[Plan], context: RunContext):
        super().__init__(task, starts, plans, context)
        self.started: float | None = None

    def time(self) -> float:
        """Return the seconds of the run from its first order on, with those of earlier processes."""
        now = self.parties[SERVER].clock.now()
        self.started = now if self.started is None else self.started
        return self.context.clock + now - self.started
