"""Asynchronous training: from an answer to a new version of the model, and the simulation of it under a
virtual clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ...aggregate.mean import Mean, combine
from ...algorithms.types import State
from ...engine.task import Task
from ...errors import BadParameter
from ...guard import Guard
from ...pace.scheduler import Arrival, Order, under
from ...parties.ledger import Ledger
from ...runs import Event
from ..devices import placed
from .guards import layout_of, reveals
from .plan import Plan
from .simulated import Simulated, of_tested, test_bytes, tests_bytes

WAY = "delta"  # the one vector that is a way walked from `w`, and so can be made a model again


def agree(p: Plan, task: Task, start: State) -> None:
    """A pace that mixes models needs algorithms whose clients send one."""
    layout = layout_of(task, p.algorithm, start)
    strange = [k for k in layout.shapes if k not in layout.known and k != WAY]
    if p.pace.sends_models and strange:
        raise BadParameter(
            f"train: {type(p.pace).__name__} works on the models that parties arrive at, and "
            f"{type(p.algorithm).__name__} sends {strange[0]!r}. "
            "Use FedAvg or FedProx with it, or FedBuff, which works on updates."
        )


class Merger:
    """The server's side of a pace. `now` gives the model at hand (what an order is sent with), `move` takes
    the mean of what came.
    """

    def __init__(
        self,
        p: Plan,
        task: Task,
        start: State,
        guard: Guard | None,
        now: Callable[[], State],
        move: Callable[[State, float], None],
    ):
        self.plan, self.pace, self.guard, self.now, self.move = p, p.pace, guard, now, move
        self.desk = p.pace.scheduler(p.fed.parties, p.per_round, p.seed)
        self.known = set(layout_of(task, p.algorithm, start).known)
        self.sent: dict[int, State] = {}  # the versions that somebody is at work on
        self.took: list[str] = []  # who is in the last version
        self.dropped: dict[str, str] = {}
        self.told: dict[str, Any] = {}
        self.asked = 0  # orders given so far
        self.example: tuple[Order, State, State] | None = (
            None  # an order with what went down and up, for counting bytes
        )

    def down(self, order: Order) -> State:
        """What goes with an order. The version is kept until nobody works on it: an answer is measured from
        where it began.
        """
        if order.version not in self.sent:
            self.sent[order.version] = self.now()
        return self.sent[order.version]

    def came(self, order: Order, weight: float, vectors: State) -> None:
        base = self.sent[order.version]
        self.example = order, base, vectors
        here = placed(base["w"].device, base)
        if self.guard is not None:
            vectors = self.guard.take({order.name: (weight, vectors)}, here, order.number)
        vectors = placed(base["w"].device, vectors)
        if self.pace.sends_models:
            vectors = {k: v if k in self.known else base["w"] + v for k, v in vectors.items()}
        else:
            vectors = {k: v - base[k] if k in self.known else v for k, v in vectors.items()}
        self.desk.add(Arrival(order, weight, vectors))
        at = {o.version for o in self.desk.at_work.values()}
        self.sent = {
            version: down
            for version, down in self.sent.items()
            if version in at or version == self.desk.version
        }

    def merge(self) -> bool:
        """A new version, if enough has come."""
        if not self.desk.waiting:
            return False
        down, (like, *_) = self.now(), self.desk.waiting
        now = {k: down[k] if k in self.known else down["w"] for k in like.vectors}
        batch = self.desk.take_batch(now)
        if batch is None:
            return False
        version = self.desk.version
        mean = combine(self.pace.updates(batch, version, now), Mean())
        took = self.desk.participants(batch)
        self.took = [a.order.name for a in took]
        stale = Counter(version - a.order.version for a in took)
        self.dropped = dict(self.desk.dropped)
        self.told = {
            "staleness": {str(s): stale[s] for s in sorted(stale)},
            "asked": self.desk.serial - self.asked,
        }
        self.asked = self.desk.serial
        self.move(
            {k: v + now[k] if k in self.known else v for k, v in mean.items()}, len(took) / len(self.plan.fed)
        )
        self.desk.advance()
        return True

    def bytes(self) -> tuple[int, int]:
        """Of one order and one answer, as they are on the wire; without msgpack (a bare GPU machine) the
        numbers alone are counted.
        """
        if self.example is None:
            return 0, 0
        order, down, up = self.example
        try:
            from ...parties.codec import encode_parts
            from ...protocols.buffered import Answer
            from ...protocols.buffered import Order as Ordered
        except ImportError:
            return sum(4 * v.numel() for v in down.values()), sum(4 * v.numel() for v in up.values())
        there, back = ({k: v.cpu() for k, v in part.items()} for part in (down, up))
        return (
            sum(map(len, encode_parts(Ordered(order.number, order.version, there)))),
            sum(map(len, encode_parts(Answer(order.number, 1.0, back)))),
        )

    def save(self) -> tuple[dict[str, Any], State]:
        said, tensors = self.desk.save()
        kept = {f"sent.{version}.{k}": v for version, down in self.sent.items() for k, v in down.items()}
        whole = {f"desk.{k}": v for k, v in tensors.items()} | kept
        return {"desk": said, "asked": self.asked}, {
            k: v.detach().cpu().clone(memory_format=torch.contiguous_format) for k, v in whole.items()
        }

    def load(self, said: dict[str, Any], tensors: State, device: torch.device | str = "cpu") -> None:
        there = placed(device, tensors)
        self.desk.load(said["desk"], under("desk.", there))
        self.asked = said["asked"]
        versions = {int(k.split(".")[1]) for k in there if k.startswith("sent.")}
        self.sent = {version: under(f"sent.{version}.", there) for version in versions}


class PacedSimulation(Simulated):
    """Clients as tensor programs: those that began with the same version and are not done are worked out as
    one stack, when the first of them is due.
    """

    def __init__(self, task: Task, starts: list[State], plans: list[Plan], saved: list[State | None]):
        (p,) = plans  # what runs side by side shares its rounds, and here there are none
        super().__init__(task, starts, plans, saved)
        self.merger = Merger(
            p, self.task, starts[0], self.guards[0] if self.guards else None, self._now, self._move
        )
        self.made: dict[int, tuple[float, State]] = {}  # by serial: worked out, and not due yet
        self.seat = {name: k for k, name in enumerate(p.fed.parties)}
        self.rest = saved[0]

    def proceed(self, beside: dict[str, Any]) -> None:
        super().proceed(beside)
        assert self.rest is not None
        self.merger.load(
            beside, {k: v for k, v in self.rest.items() if k.startswith(("desk.", "sent."))}, self.w.device
        )
        self.made = {
            serial: (weight, {k: v.to(self.w.device) for k, v in under(f"made.{serial}.", self.rest).items()})
            for serial, weight in beside["made"]
        }
        self.rest = None

    def _now(self) -> State:
        return {k: v[0] for k, v in self.cohort.down(float(self.merger.desk.version)).items()}

    def _move(self, mean: State, fraction: float) -> None:
        if "buffers" in mean:
            self.cohort.buffers = mean.pop("buffers")[None]
        self.cohort.move({k: v[None] for k, v in mean.items()}, [fraction])

    def run(self, rounds: range, due: Callable[[int], bool], after: Callable[..., None]) -> None:
        from ...protocols.buffered import ideal

        merger = self.merger
        if rounds.start == 0 and due(0):
            after(0, [[]], self.evaluate(0))

        def tell(now: float) -> None:
            version = merger.desk.version
            self.clocks, self.told = [now], [{"clock": now, **merger.told}]
            self.dropped = merger.dropped
            after(version, [merger.took], self.evaluate(version) if due(version) else [{}])

        for now in ideal(
            merger.desk,
            rounds.stop,
            self._seconds,
            self._answer,
            merger.came,
            merger.merge,
            self.clocks[0],
        ):
            tell(now)

    def _seconds(self, orders: Sequence[Order]) -> Sequence[float]:
        (takes,) = self.seconds
        assert takes is not None
        for order in orders:
            self.merger.down(order)
        if not orders:
            return ()
        return [
            float(s)
            for s in takes(
                np.array([self.seat[o.name] for o in orders]), np.array([o.number for o in orders])
            )
        ]

    def _answer(self, order: Order) -> tuple[float, State]:
        if order.serial not in self.made:
            live = [
                o
                for o in self.merger.desk.at_work.values()
                if o.version == order.version and o.serial not in self.made
            ]
            orders = sorted([order, *live], key=lambda o: o.serial)
            down = self.merger.sent[order.version]
            who, works = np.array([self.seat[o.name] for o in orders]), np.array([o.number for o in orders])
            for row, weight, vectors in self.cohort.answers(order.version, who, works, down):
                self.made[orders[row].serial] = weight, vectors
        weight, vectors = self.made.pop(order.serial)
        if self.guards:
            plain = {k: v.cpu() for k, v in self.merger.sent[order.version].items()}
            weight, vectors, _ = self.guards[0].give(
                order.name, order.number, weight, {k: v.cpu() for k, v in vectors.items()}, plain, {}
            )
        return weight, vectors

    def save(self, i: int) -> State:
        kept = {
            f"made.{serial}.{k}": v.detach().cpu().clone()
            for serial, (_, vectors) in self.made.items()
            for k, v in vectors.items()
        }
        return super().save(i) | self.merger.save()[1] | kept

    def beside(self) -> dict[str, Any]:
        return {
            **super().beside(),
            **self.merger.save()[0],
            "made": [[serial, weight] for serial, (weight, _) in self.made.items()],
        }

    def bytes(self, r: int) -> tuple[int, int]:
        return self.merger.bytes()

    def ledger(self, i: int, rounds: list[Event]) -> Ledger:
        """The messages that real parties would have exchanged, one line a kind."""
        from ...protocols.buffered import Answer, Order, Test, Tested

        ledger, p = Ledger(), self.plans[i]
        everyone = f"{len(p.fed)} parties, together" if len(p.fed) > 1 else p.fed.parties[0]
        tests = sum(e["tested"] for e in rounds)
        test, tested = test_bytes(
            {k: v[i] for k, v in self.cohort.down(0.0).items() if k in ("w", "buffers")}, p.fed.classes
        )
        ledger.record(
            "server",
            everyone,
            Answer,
            reveals(self.guards[i]) if self.guards else None,
            count=sum(e["sampled"] for e in rounds),
            bytes=sum(e["bytes_up"] for e in rounds),
            how="ideal",
        )
        ledger.record(
            "server",
            everyone,
            Tested,
            of_tested(p),
            count=tests,
            bytes=tests_bytes(rounds, tested),
            how="ideal",
        )
        ledger.record(
            everyone,
            "server",
            Order,
            count=self.merger.desk.serial,
            bytes=sum(e["bytes_down"] for e in rounds),
            how="ideal",
        )
        ledger.record(everyone, "server", Test, count=tests, bytes=tests * test, how="ideal")
        return ledger
