"""Training with one program per party, over messages: what real organisations run, here in one process (or,
in networked.py, in many).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import selection
from ...aggregate.mean import combine_with_memory
from ...algorithms.plan import identify, plan
from ...algorithms.types import Algorithm, Batches, State, fresh
from ...data.federation import Federation
from ...engine import evaluation
from ...engine.metrics import Counts, count
from ...engine.task import LOSSES, Task
from ...guard import Guard
from ...parties.ledger import Ledger
from ...parties.message import Message
from ...parties.party import Party
from ...protocols import picking
from ...protocols import rounds as protocol
from ...protocols.consent import OneSumEach
from ...runs import Event
from ...runtimes.inprocess import InProcess
from ...selection import LossesNeeded, PartyInfo
from ..devices import placed
from .figures import estimate, fit_figures, warn
from .guards import chosen, fit
from .hidden_sums import HiddenCounts, HiddenSum, bytes_of, signing_keys
from .local_dp import PrivateTask
from .plan import MIN_ROWS, Plan, seconds_of
from .simulated import Simulated, fitted, look_bytes, of_tested, upload_reveals, wire_bytes

SERVER = "server"


class Parties:
    """The server's part of a run, and how all parties are brought to talk."""

    name = "in-process parties"
    notes: tuple[str, ...] = ()
    durable = False  # whether every round must be on disk before the next begins
    within: float | None = None
    at_least: int | None = None

    def __init__(self, task: Task, starts: list[State], plans: list[Plan], saved: list[State | None]):
        (p,) = plans
        self.plan, self.task = p, task
        self.sizes = 0, 0  # bytes of one Down and of one Upload of the last round
        self.looks = 0, 0  # and of one Look and one Loss
        self.earlier = Ledger()  # what was seen before this process took over
        self.here: dict[str, Party] = {}
        self.dropped: dict[str, str] = {}  # of the round at hand: {party: why it was left out}
        self.note: Callable[[str], None] = lambda text: None
        self.seconds = seconds_of(p)
        self.clock = 0.0  # what the virtual clock shows, where there is a speed
        self.told: list[dict[str, Any]] = [{}]  # what the round's event says besides
        at = saved[0]
        self.server = starts[0] | (
            {k: v for k, v in p.algorithm.server_state(starts[0]["w"]).items()} if at is None else {}
        )
        self.guard = fit(p, task, starts[0])
        self.guards = [] if self.guard is None else [self.guard]
        self.hidden: HiddenSum | None = None
        self.counted: HiddenCounts | HiddenSum | None = None
        self.figures = fit_figures(p, self.guard)
        self.notes = () if self.figures is None else warn(self.figures)
        if self.guard is not None and self.guard.hiding is not None:
            keys, binding = signing_keys(p, self.guard), self.binding()
            self.hidden = HiddenSum(self.guard, binding, keys)
            self.counted = (
                HiddenCounts(self.guard, len(p.fed), blank_counts(task, p.fed.classes), binding, keys)
                if self.figures is None
                else HiddenSum(self.figures, binding, keys)
            )
        self.heard = 0  # bytes the server had been sent before this round, where sums are hidden
        self.begin: Callable[[int], None] = lambda r: None  # called before anything of round r is computed
        self.begin_test: Callable[[int], bool] = lambda r: (
            True
        )  # called before the model after round r (counted from 1) is evaluated: whether it may be
        self.merged: Callable[[int, list[str]], None] = lambda r, names: (
            None
        )  # called with round r (from 1) when its model stands, before it is evaluated
        self.unevaluated: list[str] | None = (
            None  # who is in the model that a server which was killed had not evaluated yet
        )
        self.at = 0  # the round at hand
        self.memory: State = {}  # what the rule remembers of earlier rounds
        self.fresh = fresh(p.algorithm, starts[0]) | ({} if self.guard is None else self.guard.client_state())
        self.kept = {name: self.fresh for name in p.fed.parties}
        if at is not None:
            self.server = placed(task.x.device, {k[7:]: v for k, v in at.items() if k.startswith("server.")})
            self.memory = {k[5:]: v for k, v in at.items() if k.startswith("rule.")}
            if self.guard is not None:
                self.guard.load({k[6:]: v for k, v in at.items() if k.startswith("guard.")})
            self.go_on(at)

    def binding(self) -> str:
        """What hidden sums are bound to besides the round and what was sent down: between real parties, the
        contract.
        """
        return self.plan.fed.name

    def go_on(self, at: State) -> None:
        self.kept |= {
            name: {k: at[f"kept.{j}.{k}"].to(v.device) for k, v in self.fresh.items()}
            for j, name in enumerate(self.plan.fed.parties)
        }

    @property
    def w(self) -> Tensor:
        return self.server["w"][None]

    @property
    def buffers(self) -> Tensor | None:
        return self.server["buffers"][None] if "buffers" in self.server else None

    def bytes(self, r: int) -> tuple[int, int]:
        return self.sizes

    def down(self, r: int) -> State:
        keys = ("w", "buffers", *self.plan.algorithm.sends)
        return (
            {k: v.cpu() for k, v in self.server.items() if k in keys}
            | {"round": torch.tensor(float(r))}
            | ({} if self.guard is None else self.guard.sent())
        )

    def downs(self, r: int) -> State | protocol.ModelAssignment:
        """What everyone is sent, or what each is."""
        return self.down(r)

    def tests(self) -> State | protocol.ModelAssignment:
        """The model to be tested."""
        keys = ("w", "buffers", *(self.plan.algorithm.sends if self.plan.algorithm.personalizes else ()))
        return {k: v.cpu() for k, v in self.server.items() if k in keys}

    def personal(self, i: int) -> list[State]:
        """The model each party uses for itself, from what the server would have it test and what it keeps."""
        given, p = self.tests(), self.plan
        out = []
        for name in p.fed.parties:
            down = placed(
                self.task.x.device,
                given.models[given.of[name]] if isinstance(given, protocol.ModelAssignment) else given,
            )
            out.append(
                {
                    **down,
                    **(p.algorithm.personal(self.task, down, self.kept[name]) if self.kept[name] else {}),
                }
            )
        return out

    def run(self, rounds: range, due: Callable[[int], bool], after: Callable[..., None]) -> None:
        p = self.plan
        names = p.fed.parties
        took_part: list[str] = list(self.unevaluated or ())

        def choose(r: int) -> list[str] | protocol.Candidates:
            self.at, self.told = r, [{}]
            self.begin(r)
            return [names[k] for k in chosen(p, r)] if p.select is None else self._selected(r)

        async def merge(
            r: int, ups: dict[str, tuple[float, State]] | protocol.SumResult | picking.BestUpload | None
        ) -> None:
            if ups is None:
                self.told[0]["lost"] = True
                took_part.clear()
                after(r + 1, [[]], [{}])
                return
            if isinstance(ups, picking.BestUpload):
                took_part[:], found = ups.scores, math.isfinite(ups.scores[ups.best])
                self.told[0] |= {
                    "scored": len(took_part),
                    "uploaded": 1,
                    **({"best": ups.best} if found else {}),
                }
                ups = {ups.best: ups.upload}
            else:
                took_part[:] = ups.included if isinstance(ups, protocol.SumResult) else ups
            if self.seconds is not None:
                self.clock = self.here[SERVER].clock.now()
                self.told[0]["clock"] = self.clock
            if took_part or (
                self.guard is not None and self.guard.noise is not None
            ):  # under noise nobody may see that nobody came
                self.merge(r, ups, len(took_part))
            if not due(r + 1):
                after(r + 1, [list(took_part)], [{}])
            else:
                self.merged(r + 1, list(took_part))

        async def model(r: int) -> State | protocol.ModelAssignment | None:
            if not due(r + 1):
                return None
            if not self.begin_test(r + 1):
                after(r + 1, [list(took_part)], [{}])
                return None
            return self.tests()

        async def tested(r: int, answers: dict[str, State] | protocol.SumResult | None) -> None:
            if isinstance(answers, protocol.SumResult):
                self._sent_up()  # those bytes belong to no update
            after(r + 1, [list(took_part)], [{} if answers is None else self._metrics(r + 1, answers)])

        def without(r: int, who: Mapping[str, str]) -> None:
            self.dropped = {**who, **self.dropped}  # its first reason is the one that tells

        def start(me: Party, **network: Any) -> Any:
            return protocol.server(
                me,
                names,
                rounds,
                choose,
                self.downs,
                merge,
                model,
                tested,
                within=self.within,
                at_least=self.at_least,
                dropped=without,
                aborted=lambda r, why: self.note(f"round {r + 1}: {why}"),
                hidden=self.hidden,
                counted=self.counted,
                scores=p.picks,
                meet=p.select is not None,
                pending=None if self.unevaluated is None else rounds.start - 1,
                testers=self.testers,
                **network,
            )

        self.perform(start)

    def testers(self) -> list[str]:
        """Who holds back rows."""
        return [name for name, held in zip(self.plan.fed.parties, self.plan.fed.held.sizes.tolist()) if held]

    def known(self, r: int) -> PartyInfo:
        """What the server knows of the parties before a round, but for losses."""
        n = len(self.plan.fed)
        return PartyInfo(
            self.plan.sizes,
            lambda who: np.zeros(0),
            None if self.seconds is None else self.seconds(np.arange(n), np.full(n, r)),
        )

    def _selected(self, r: int) -> list[str] | protocol.Candidates:
        """Who is asked, by the plan's rule; whoever's loss it wants is asked for it first, and is not chosen
        if it stays silent.
        """
        p, names = self.plan, self.plan.fed.parties
        losses: dict[int, float] = {}
        silent: set[int] = set()
        model = {k: v.cpu() for k, v in self.server.items() if k in ("w", "buffers")}

        def loss(who: np.ndarray) -> np.ndarray:
            if new := [int(k) for k in who if int(k) not in losses and int(k) not in silent]:
                raise LossesNeeded(np.array(new))
            return np.array([losses.get(int(k), -np.inf) for k in who])

        def settle(
            answers: Mapping[str, float], asked: Sequence[int] = ()
        ) -> list[str] | protocol.Candidates:
            losses.update({k: answers[names[k]] for k in asked if names[k] in answers})
            silent.update(k for k in asked if names[k] not in answers)
            try:
                who = selection.select(p.select, p.seed, r, self.known(r)._replace(loss=loss), p.per_round)
            except LossesNeeded as wanted:
                some = wanted.who.tolist()
                self.told[0]["looked"] = self.told[0].get("looked", 0) + len(some)
                self.looks = look_bytes(model)
                return protocol.Candidates([names[k] for k in some], model, partial(settle, asked=some))
            return [names[k] for k in who.tolist() if k not in silent]

        return settle({})

    def perform(self, server: Callable[..., Any]) -> None:
        """Everybody in this process. What the clients keep is kept here and saved with the server's state."""
        p = self.plan
        device = self.task.x.device

        def program(name: str, start: Callable[[Party], Any]) -> Any:
            def begin(me: Party) -> Any:
                self.here[name] = me
                return start(me)

            return begin

        def member(k: int, name: str) -> Member:
            fed = p.fed.party(k)
            task = self.task.on(*(t.to(device) for t in fed.at(0)))
            return Member(
                name,
                fed,
                task,
                p.algorithm,
                p.seed,
                p.local_epochs[k],
                p.batch_size,
                p.local_steps,
                self.guard,
                p.min_rows,
            )

        clients = {
            name: program(name, self.client(k, member(k, name))) for k, name in enumerate(p.fed.parties)
        }
        InProcess(seed=p.seed, start=self.clock).run_sync({SERVER: program(SERVER, server), **clients})

    def client(self, k: int, mine: Member) -> Callable[[Party], Any]:
        """The program of party k, in this process."""
        before: dict[int, State] = {}  # a round that is tried again starts from what was kept before it

        def local(r: int, down: State) -> tuple[float, State]:
            start = before.get(r, self.kept[mine.name])
            before.clear()
            before[r] = start
            weight, vectors, self.kept[mine.name] = mine.local(r, down, start)
            return weight, vectors

        def start(me: Party) -> Any:
            async def takes(r: int) -> None:
                if self.seconds is not None:
                    await me.clock.sleep(float(self.seconds(np.array([k]), np.array([r]))[0]))

            def test(r: int, down: State) -> State:
                return mine.test(r, down, self.kept[mine.name], summed=self.hidden is not None)

            return protocol.client(
                me,
                local,
                test,
                boss=SERVER,
                look=mine.loss,
                hidden=lambda: self.hidden,
                counted=lambda: self.counted,
                scores=lambda: self.plan.picks,
                takes=takes,
                consent=OneSumEach(),
            )

        return start

    def merge(
        self,
        r: int,
        ups: dict[str, tuple[float, State]] | protocol.SumResult,
        n: int,
        among: int | None = None,
    ) -> None:
        """The server's step from what `n` parties sent, `among` so many."""
        p = self.plan
        down, counted = self.down(r), float(n)
        there = placed(self.task.x.device, down)
        if isinstance(ups, protocol.SumResult):
            assert self.guard is not None
            self.sizes = bytes_of(p, self.guard, r + 1, down)[0], self._sent_up() // n
            mean = self.guard.back(ups.total, counted, there, r)
        else:
            blank = (
                {} if self.guard is None else self.guard.blank()
            )  # where nobody was drawn, what somebody would have sent: it must not show
            self.sizes = wire_bytes(r + 1, down, max((up for _, up in ups.values()), key=len, default=blank))
            mean = self._made(ups, there) if self.guard is None else self.guard.take(ups, there, r)
        if self.guard is not None and self.guard.noise is not None:
            counted = self.guard.expected
        buffers = {"buffers": mean.pop("buffers")} if "buffers" in mean else {}
        state = {k: v for k, v in self.server.items() if k not in ("w", "buffers")}
        w, state = p.algorithm.merge(
            self.server["w"], state, mean, torch.tensor(counted / (among or len(p.fed)))
        )
        if self.guard is not None:
            self.guard.moved(self.server["w"], w)
        self.server = {"w": w, **buffers, **state}

    def _made(self, ups: Mapping[str, tuple[float, State]], down: State) -> State:
        """What the rule makes of the uploads; what it remembers of earlier rounds is the server's state,
        too.
        """
        rule = fitted([self.plan], self.task).at_round({k: v[None] for k, v in down.items()})
        seats = {name: k for k, name in enumerate(self.plan.fed.parties)}
        mean, self.memory = combine_with_memory(
            list(ups.values()),
            rule,
            [seats[name] for name in ups],
            self.memory,
            {k: v.cpu() for k, v in down.items()},
        )
        return placed(self.task.x.device, mean)

    def _sent_up(self) -> int:
        """Bytes of all the messages of a hidden sum that reached the server in this round."""
        others = {m.kind for m in self.kinds}
        before, self.heard = (
            self.heard,
            sum(s.bytes for s in self.here[SERVER].ledger.seen if s.kind not in others),
        )
        return self.heard - before

    def _metrics(self, r: int, answers: dict[str, State] | protocol.SumResult) -> dict[str, Any]:
        p = self.plan
        if self.figures is not None:
            there = placed(self.task.x.device, {"w": self.server["w"]})
            mean = (
                self.figures.back(answers.total, float(len(answers.included)), there, r - 1)
                if isinstance(answers, protocol.SumResult)
                else self.figures.take({name: (1.0, sent) for name, sent in answers.items()}, there, r - 1)
            )
            assert p.fed.classes is not None
            return estimate(self.figures, mean, p.fed.classes, p.algorithm.personalizes)
        if isinstance(answers, protocol.SumResult):
            assert isinstance(self.counted, HiddenCounts)
            total = self.counted.decode(answers.total)
            return evaluation.gather(
                self.task,
                self.server["w"],
                self.server.get("buffers"),
                p.fed.test_at(r),
                [total],
                p.fed.classes,
                p.min_rows,
                True,
                p.algorithm.personalizes,
            )
        came = [name for name in p.fed.parties if name in answers]
        counts = [Counts(**answers[name]) if answers[name] else None for name in came]
        found = evaluation.gather(
            self.task,
            self.server["w"],
            self.server.get("buffers"),
            p.fed.test_at(r),
            counts,
            p.fed.classes,
            p.min_rows,
            p.sums_only,
            p.algorithm.personalizes,
        )
        if "parties" in found:
            each = dict(zip(came, found["parties"]["accuracy"]))
            found["parties"] = {"accuracy": [each.get(name) for name in p.fed.parties]}
        return found

    def save(self, i: int) -> State:
        kept = {
            f"kept.{j}.{k}": v
            for j, name in enumerate(self.plan.fed.parties)
            for k, v in self.kept[name].items()
        }
        return {**self.of_server(), **{k: v.to("cpu", copy=True) for k, v in kept.items()}}

    def of_server(self) -> State:
        """What the server must have to go on."""
        guarded = {} if self.guard is None else {f"guard.{k}": v for k, v in self.guard.save().items()}
        return (
            {f"server.{k}": v.cpu() for k, v in self.server.items()}
            | {f"rule.{k}": v for k, v in self.memory.items()}
            | guarded
        )

    def beside(self) -> dict[str, Any]:
        return {
            "ledger": self.ledger(0, []).to_dict(),
            **({} if self.seconds is None else {"clock": self.clock}),
        }

    def proceed(self, beside: dict[str, Any]) -> None:
        """Go on from what was saved beside the state."""
        self.clock = beside.get("clock", 0.0)

    def landscape(self, i: int) -> dict[str, Any]:
        start = {k: v for k, v in self.server.items() if k in ("w", "buffers")}
        return Simulated(self.task, [start], [dataclasses.replace(self.plan, guard=())], [None]).landscape(0)

    def ledgers(self) -> list[Ledger]:
        return [me.ledger for me in self.here.values()]

    kinds: tuple[type[Message], ...] = (
        protocol.Upload,
        picking.Score,
        protocol.Loss,
        protocol.Tested,
        protocol.Down,
        picking.Pick,
        protocol.Look,
        protocol.Test,
        protocol.Stop,
    )

    def ledger(self, i: int, rounds: list[Event]) -> Ledger:
        """What has been seen so far; it is saved with the state, so that a resumed run's ledger is whole."""
        mixed, ledger = Ledger(), Ledger()
        for part in (self.earlier, *self.ledgers()):
            mixed.merge(part)
        order = {m.kind: k for k, m in enumerate(self.kinds)}
        place = {name: k for k, name in enumerate((SERVER, *self.plan.fed.parties))}
        last = len(order) + len(place)
        for s in sorted(
            mixed.seen,
            key=lambda s: (order.get(s.kind, last), place.get(s.party, last), place.get(s.sender, last)),
        ):  # whatever a resume did
            told = s.reveals
            if s.kind in (protocol.Upload.kind, "Answer"):
                told = upload_reveals(self.plan, self.guard) or told
            if s.kind == protocol.Tested.kind and not self.plan.sums_only:
                told = of_tested(self.plan)
            ledger.record(s.party, s.sender, s.kind, told, count=s.count, bytes=s.bytes, how=s.how)
        return ledger


def blank_counts(task: Task, classes: int | None) -> Counts:
    """The counts of no rows: their shapes are those of every party's."""
    labels = tuple(task.y.shape[1:])  # one a row, or one a token
    return count(
        torch.zeros(0, *labels, classes or 1),
        torch.zeros(0, *labels, dtype=torch.int64 if classes else torch.float32),
        classes,
    )


class Member:
    """What one party does with its own rows. It never sees anyone else's."""

    def __init__(
        self,
        name: str,
        fed: Federation,
        task: Task,
        algorithm: Algorithm,
        seed: int,
        epochs: int,
        batch_size: int | None,
        local_steps: int | None,
        guard: Guard | None = None,
        min_rows: int = MIN_ROWS,
    ):
        self.guard, self.min_rows = guard, min_rows
        self.name, self.fed, self.task, self.algorithm = name, fed, task, algorithm
        self.seed, self.epochs, self.batch_size, self.local_steps = seed, epochs, batch_size, local_steps

    def local(self, r: int, down: State, mine: State, work: int | None = None) -> tuple[float, State, State]:
        """(weight, what is sent, what is kept) of round r. `work` counts instead of the round where training
        does not go by rounds.
        """
        number = r if work is None else work
        (x, y), device = self.fed.at(r + 1), self.task.x.device  # data that drifts counts its rounds from 1
        self.task.x, self.task.y = x.to(device), y.to(device)
        private = self.task if isinstance(self.task, PrivateTask) else None
        size = int(self.fed.train.sizes[0]) if private is None else private.public_size(self.name)
        plans = plan(
            self.seed,
            number,
            identify([self.name]),
            np.array([size]),
            self.epochs,
            self.batch_size,
            self.local_steps,
        )
        if private is not None:
            plans = private.redraw(plans, self.name, int(np.max(self.epochs)))
        batches = plans.of(0)
        batches = Batches(
            *(t.to(device) for t in batches._replace(index=self.fed.train.index[batches.index]))
        )
        with torch.no_grad():
            upload, kept = self.algorithm.local(self.task, placed(device, down), mine, batches)
        vectors = {k: v.cpu() for k, v in upload.vectors.items()}
        weight = float(upload.weight)
        return (
            (weight, vectors, kept)
            if self.guard is None
            else self.guard.give(self.name, number, weight, vectors, down, mine | kept)
        )

    def loss(self, r: int, down: State) -> float:
        """The mean loss of the server's model on the rows this party trains on in round r."""
        rows, index = self.fed.at(r + 1), self.fed.train.index
        out = self.task.predict(down["w"], rows.x[index].to(self.task.x.device), down.get("buffers")).cpu()
        return float(LOSSES[self.task.loss_name](out, rows.y[index]).mean())

    def test(self, r: int, down: State, mine: State | None = None, summed: bool = False) -> State:
        """What this party counts on the rows it held back: of the server's model, or of its own where the
        algorithm gives it one. Nothing where those are fewer than `min_rows`, unless `summed`: the server
        will see the counts in a hidden sum only.
        """
        if not summed and int(self.fed.held.sizes[0]) < self.min_rows:
            return {}
        if mine and self.algorithm.personalizes:
            down = placed(self.task.x.device, down)
            down |= self.algorithm.personal(self.task, down, mine)
        rows = self.fed.at(r + 1)
        x, y = rows.x[self.fed.held.index].to(self.task.x.device), rows.y[self.fed.held.index]
        return count(
            self.task.predict(down["w"], x, down.get("buffers")).cpu(), y, self.fed.classes
        )._asdict()
