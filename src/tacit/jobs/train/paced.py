"""Asynchronous training: from an answer to a new version of the model, simulated under a virtual clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ...aggregate.mean import Mean, combine
from ...algorithms.types import State
from ...engine.task import Task
from ...guard import Guard
from ...pace.scheduler import Arrival, Order, under
from ...parties.ledger import Ledger
from ...protocols import buffered
from ...protocols.rounds import Test, Tested
from ...runs import Event
from ..devices import placed
from .guards import layout_of, reveals
from .plan import Plan
from .simulated import SimulatedTrainer, all_parties, tested_reveals
from .traffic import MessageSizes, wire_size
from .trainer import Records, RoundRecord, RunContext, evaluates, make_record

WAY = "delta"  # the one vector that is an update of `w`, and so can become a model again


class Merger:
    """The server's side of a pace.

    `current` returns the current model, with which an order is sent; `move` takes the mean of what came.
    """

    def __init__(
        self,
        p: Plan,
        task: Task,
        start: State,
        guard: Guard | None,
        current: Callable[[], State],
        move: Callable[[State, float], None],
    ):
        self.plan, self.pace, self.guard, self.current, self.move = p, p.pace, guard, current, move
        self.scheduler = p.pace.scheduler(p.fed.parties, p.per_round, p.seed)
        self.known = set(layout_of(task, p.algorithm, start).known)
        self.sent: dict[int, State] = {}  # the versions that parties are training on
        self.participants: list[str] = []  # of the last version
        self.dropped: dict[str, str] = {}
        self.facts: dict[str, Any] = {}  # of the last version
        self.new_orders = 0  # since the version before
        self.orders = 0  # in all versions so far
        self.example: tuple[Order, State, State] | None = None  # an order and its vectors, to count bytes

    def down(self, order: Order) -> State:
        """Return what goes with an order.

        The version is kept until nobody trains on it: an update is the difference to its starting point.
        """
        if order.version not in self.sent:
            self.sent[order.version] = self.current()
        return self.sent[order.version]

    def came(self, order: Order, weight: float, vectors: State) -> None:
        base = self.sent[order.version]
        self.example = order, base, vectors
        device = base["w"].device
        if self.guard is not None:
            vectors = self.guard.decode_uploads(
                {order.name: (weight, vectors)}, placed(device, base), order.number
            )
        vectors = placed(device, vectors)
        if self.pace.sends_models:
            vectors = {k: v if k in self.known else base["w"] + v for k, v in vectors.items()}
        else:
            vectors = {k: v - base[k] if k in self.known else v for k, v in vectors.items()}
        self.scheduler.add(Arrival(order, weight, vectors))
        needed = {self.scheduler.version, *(o.version for o in self.scheduler.at_work.values())}
        self.sent = {version: down for version, down in self.sent.items() if version in needed}

    def merge(self) -> bool:
        """Make a new version, if enough has come; return whether it has."""
        if not self.scheduler.waiting:
            return False
        down, (like, *_) = self.current(), self.scheduler.waiting
        current = {k: down[k] if k in self.known else down["w"] for k in like.vectors}
        batch = self.scheduler.take_batch(current)
        if batch is None:
            return False
        version = self.scheduler.version
        mean = combine(self.pace.updates(batch, version, current), Mean())
        new = self.scheduler.participants(batch)
        self.participants = [a.order.name for a in new]
        staleness = Counter(version - a.order.version for a in new)
        self.facts = {"staleness": {str(s): staleness[s] for s in sorted(staleness)}}
        self.dropped = dict(self.scheduler.dropped)
        self.new_orders, self.orders = self.scheduler.serial - self.orders, self.scheduler.serial
        self.move(
            {k: v + current[k] if k in self.known else v for k, v in mean.items()},
            len(new) / len(self.plan.fed),
        )
        self.scheduler.advance()
        return True

    def sizes(self) -> MessageSizes:
        """Return the sizes of one order and one answer; without msgpack, of the numbers alone."""
        if self.example is None:
            return MessageSizes()
        order, *both = self.example
        down, up = ({k: v.cpu() for k, v in part.items()} for part in both)
        return MessageSizes(
            wire_size(
                buffered.Order(order.number, order.version, down), sum(4 * v.numel() for v in down.values())
            ),
            wire_size(buffered.Answer(order.number, 1.0, up), sum(4 * v.numel() for v in up.values())),
        )

    def save(self) -> tuple[dict[str, Any], State]:
        """Return (plain values, tensors)."""
        values, tensors = self.scheduler.save()
        sent = {f"sent.{version}.{k}": v for version, down in self.sent.items() for k, v in down.items()}
        state = {f"desk.{k}": v for k, v in tensors.items()} | sent
        return {"desk": values, "asked": self.orders}, {
            k: v.detach().cpu().clone(memory_format=torch.contiguous_format) for k, v in state.items()
        }

    def load(self, values: Mapping[str, Any], state: State, device: torch.device | str = "cpu") -> None:
        tensors = placed(device, {k: v for k, v in state.items() if k.startswith(("desk.", "sent."))})
        self.scheduler.load(values["desk"], under("desk.", tensors))
        self.orders = values["asked"]
        versions = {int(k.split(".")[1]) for k in tensors if k.startswith("sent.")}
        self.sent = {version: under(f"sent.{version}.", tensors) for version in versions}


class PacedTrainer(SimulatedTrainer):
    """Clients as tensor programs.

    Those that began with the same version and are not done are computed as one stack, when the first is due.
    """

    def __init__(self, task: Task, starts: list[State], plans: list[Plan], context: RunContext):
        (p,) = plans  # runs side by side share their rounds, and here there are none
        super().__init__(task, starts, plans, context)
        self.merger = Merger(
            p, self.task, starts[0], self.guards[0] if self.guards else None, self._current, self._move
        )
        self.answers: dict[int, tuple[float, State]] = {}  # by serial: computed, and not due yet
        self.seats = {name: k for k, name in enumerate(p.fed.parties)}
        if context.states:
            (state,), device = context.states, self.weights.device
            self.merger.load(context.metadata, state, device)
            self.answers = {
                serial: (weight, placed(device, under(f"made.{serial}.", state)))
                for serial, weight in context.metadata["made"]
            }

    def _current(self) -> State:
        return {k: v[0] for k, v in self.cohort.down(float(self.merger.scheduler.version)).items()}

    def _move(self, mean: State, fraction: float) -> None:
        if "buffers" in mean:
            self.cohort.buffers = mean.pop("buffers")[None]
        self.cohort.step({k: v[None] for k, v in mean.items()}, [fraction])

    def run(self, rounds: range) -> Records:
        merger = self.merger
        if rounds.start == 0 and evaluates(self.plans[0], 0, rounds.stop):
            yield [self._record(0, rounds.stop)]
        for now in buffered.ideal(
            merger.scheduler,
            rounds.stop,
            self._seconds,
            self._answer,
            merger.came,
            merger.merge,
            self.clocks[0],
        ):
            self.clocks = [now]
            yield [self._record(merger.scheduler.version, rounds.stop)]

    def _record(self, version: int, last: int) -> RoundRecord:
        (p,), merger = self.plans, self.merger
        is_due = evaluates(p, version, last)
        return make_record(
            p,
            merger.guard,
            version,
            last,
            merger.participants,
            merger.sizes()._replace(evaluation=sum(self.evaluation_sizes(0)) if is_due else 0),
            metrics=self.evaluate(version)[0] if is_due else {},
            facts=merger.facts,
            orders=merger.new_orders,
            clock=self.clocks[0] if version else None,
            dropped=merger.dropped,
        )

    def _seconds(self, orders: Sequence[Order]) -> Sequence[float]:
        (takes,) = self.seconds
        assert takes is not None
        for order in orders:
            self.merger.down(order)
        if not orders:
            return ()
        who, numbers = np.array([self.seats[o.name] for o in orders]), np.array([o.number for o in orders])
        return [float(s) for s in takes(who, numbers)]

    def _answer(self, order: Order) -> tuple[float, State]:
        if order.serial not in self.answers:
            same = [
                o
                for o in self.merger.scheduler.at_work.values()
                if o.version == order.version and o.serial not in self.answers
            ]
            orders = sorted([order, *same], key=lambda o: o.serial)
            down = self.merger.sent[order.version]
            who, works = np.array([self.seats[o.name] for o in orders]), np.array([o.number for o in orders])
            for row, weight, vectors in self.cohort.train_from(order.version, who, works, down):
                self.answers[orders[row].serial] = weight, vectors
        weight, vectors = self.answers.pop(order.serial)
        if self.guards:
            plain = {k: v.cpu() for k, v in self.merger.sent[order.version].items()}
            weight, vectors, _ = self.guards[0].encode_upload(
                order.name, order.number, weight, {k: v.cpu() for k, v in vectors.items()}, plain, {}
            )
        return weight, vectors

    def save(self, i: int) -> State:
        answers = {
            f"made.{serial}.{k}": v.detach().cpu().clone()
            for serial, (_, vectors) in self.answers.items()
            for k, v in vectors.items()
        }
        return super().save(i) | self.merger.save()[1] | answers

    def checkpoint_metadata(self) -> dict[str, Any]:
        answers = [[serial, weight] for serial, (weight, _) in self.answers.items()]
        return {**super().checkpoint_metadata(), **self.merger.save()[0], "made": answers}

    def ledger(self, i: int, events: list[Event]) -> Ledger:
        """Return the messages that real parties would have exchanged, one line per kind."""
        ledger, p = Ledger(), self.plans[i]
        tests = sum(e["tested"] for e in events)
        test, tested = self.evaluation_sizes(i)
        evaluations = sum(bool(e["tested"]) for e in events)
        answers, up = sum(e["sampled"] for e in events), sum(e["bytes_up"] for e in events)
        down = sum(e["bytes_down"] for e in events)
        to_server, to_all = ("server", all_parties(p)), (all_parties(p), "server")
        what = reveals(self.guards[i]) if self.guards else None
        ledger.record(*to_server, buffered.Answer, what, count=answers, bytes=up, how="ideal")
        ledger.record(
            *to_server,
            Tested,
            tested_reveals(p),
            count=tests,
            bytes=evaluations * tested,
            how="ideal",
        )
        ledger.record(*to_all, buffered.Order, count=self.merger.scheduler.serial, bytes=down, how="ideal")
        ledger.record(*to_all, Test, count=tests, bytes=evaluations * test, how="ideal")
        return ledger
