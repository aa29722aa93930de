"""Training with one program per party, over messages.

Real organizations run the same programs; here they run in one process, or, in networked.py, in several.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import selection
from ...aggregate.mean import combine_with_memory
from ...algorithms.types import Algorithm, State, fresh
from ...engine import evaluation
from ...engine.subgroups import Tally
from ...engine.task import Task
from ...pace.scheduler import under
from ...parties.ledger import Ledger
from ...parties.message import Message
from ...parties.party import Party
from ...protocols import picking
from ...protocols import rounds as protocol
from ...protocols.consent import OneSumEach
from ...runs import Event
from ...runtimes.inprocess import InProcess
from ...runtimes.streaming import Emitter
from ...selection import LossesNeeded, PartyInfo
from ..devices import placed
from .counts import blank_tally, unpack_tally
from .figures import estimate, fit_figures, warn
from .guards import chosen, fit
from .hidden_sums import HiddenCounts, HiddenSum, hidden_sizes, signing_keys
from .local import Member
from .plan import Plan, seconds_of
from .simulated import (
    SimulatedTrainer,
    all_parties,
    counts_subgroups,
    rule_for,
    tested_reveals,
    upload_reveals,
)
from .traffic import MessageSizes, look_sizes, round_sizes, wire_size
from .trainer import Records, RoundRecord, RunContext, Trainer, evaluates, kept_record, make_record

SERVER = "server"
SUBGROUPS = "SubgroupCounts"  # the kind, in a ledger, of the opened sum of counts by subgroup
OWN = "OwnMetrics"  # the same of counts with sums of a user's own metrics
Uploads = dict[str, tuple[float, State]] | protocol.SumResult


class MessageTrainer(Trainer):
    """The server's part of a run, and the programs of all parties in this process."""

    name = "in-process parties"
    within: float | None = None  # seconds that a round waits for answers
    at_least: int | None = None  # answers with which it continues then
    over_select: float = 1.0  # parties asked for each one that a round needs
    kinds: tuple[type[Message], ...] = (  # in the order of the ledger's lines
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

    def __init__(self, task: Task, starts: list[State], plans: list[Plan], context: RunContext):
        (p,) = plans
        self.plan, self.task, self.context = p, task, context
        self.guard = fit(p, task, starts[0])
        self.guards = [] if self.guard is None else [self.guard]
        self.figures = fit_figures(p, self.guard)
        self.notes = () if self.figures is None else warn(self.figures)
        self.hidden: HiddenSum | None = None
        self.counted: HiddenCounts | HiddenSum | None = None
        if self.guard is not None and self.guard.hiding is not None:
            keys, binding = signing_keys(p, self.guard), self.binding()
            self.hidden = HiddenSum(self.guard, binding, keys)
            self.counted = (
                None
                if p.client is not None  # parties' own loops evaluate
                else HiddenCounts(self.guard, len(p.fed), blank_tally(p), binding, keys)
                if self.figures is None
                else HiddenSum(self.figures, binding, keys)
            )
        self.parties: dict[str, Party] = {}  # those whose programs run in this process
        self.earlier_ledger = context.ledger
        self.seconds = seconds_of(p)
        self.clock = context.clock
        self.round = 0  # the current one, counted from 0
        self.facts: dict[str, Any] = {}  # of the current round
        self.dropped = {} if context.pending is None else dict(context.pending.dropped)
        self.sizes = MessageSizes()  # of the last round
        self.tested_bytes = 0  # bytes of counts that had reached the server before this evaluation
        self.hidden_test_bytes = 0  # bytes of the hidden sum of the last evaluation
        self.hidden_bytes = 0  # bytes of hidden sums that had reached the server before this round
        self.kept: Sequence[State] | None = None  # the model that is evaluated after the last round
        self.memory: State = {}  # what the aggregation rule remembers of earlier rounds
        self.server = starts[0] | p.algorithm.server_state(starts[0]["w"])
        self.fresh = fresh(p.algorithm, starts[0]) | ({} if self.guard is None else self.guard.client_state())
        self.client_states = {name: self.fresh for name in p.fed.parties}
        if context.states:
            (state,) = context.states
            self.load_server(state)
            self.load_clients(state)

    def binding(self) -> str:
        """Return what hidden sums are bound to, with the round and the model: in real runs, the contract."""
        return self.plan.fed.name

    def load_server(self, state: State) -> None:
        self.server = placed(self.task.x.device, under("server.", state))
        self.memory = under("rule.", state)
        if self.guard is not None:
            self.guard.load(under("guard.", state))

    def load_clients(self, state: State) -> None:
        for j, name in enumerate(self.plan.fed.parties):
            self.client_states[name] = {k: state[f"kept.{j}.{k}"].to(v.device) for k, v in self.fresh.items()}

    @property
    def weights(self) -> Tensor:
        return self.server["w"][None]

    @property
    def buffers(self) -> Tensor | None:
        return self.server["buffers"][None] if "buffers" in self.server else None

    # models that are sent -----------------------------------------------------------------------------------

    def down(self, r: int) -> State:
        """Return what a client is sent in round r."""
        keys = ("w", "buffers", *self.plan.algorithm.sends)
        return (
            {k: v.cpu() for k, v in self.server.items() if k in keys}
            | {"round": torch.tensor(float(r))}
            | ({} if self.guard is None else self.guard.server_message())
        )

    def round_models(self, r: int) -> State | protocol.ModelAssignment:
        """Return what everyone is sent in round r, or what each is."""
        return self.down(r)

    def test_models(self) -> State | protocol.ModelAssignment:
        """Return the model to be evaluated, or each party's."""
        keys = ("w", "buffers", *(self.plan.algorithm.sends if self.plan.algorithm.personalizes else ()))
        return {k: v.cpu() for k, v in self.server.items() if k in keys}

    def personal(self, i: int) -> list[State]:
        """Return each party's own model, from the one it would evaluate and its own state."""
        shared, p = self.test_models(), self.plan
        models = []
        for name in p.fed.parties:
            model = shared.models[shared.of[name]] if isinstance(shared, protocol.ModelAssignment) else shared
            down, own = placed(self.task.x.device, model), self.client_states[name]
            models.append({**down, **(p.algorithm.personal(self.task, down, own) if own else {})})
        return models

    # rounds -------------------------------------------------------------------------------------------------

    def run(self, rounds: range) -> Records:
        emitter = Emitter[list[RoundRecord]]()
        yield from self.stream(partial(self.serve, rounds, emitter), emitter)

    def serve(
        self, rounds: range, emitter: Emitter[list[RoundRecord]], me: Party, **network: Any
    ) -> Coroutine[Any, Any, None]:
        """Return the server's program, which emits the records of these rounds."""
        p, last = self.plan, rounds.stop
        record = self.context.pending or self.record(0, last, ())

        def choose(r: int) -> list[str] | protocol.Candidates:
            self.round, self.facts = r, {}
            self.context.spend(r)
            names, among = self.asked(), p
            if len(names) < len(p.fed) or self.over_select > 1:
                few = dataclasses.replace(p.fed, parties=names)
                invited = math.ceil(p.per_round * self.over_select)
                among = dataclasses.replace(p, fed=few, per_round=min(invited, len(names)))
            return [names[k] for k in chosen(among, r)] if p.select is None else self._select(r)

        async def merge(r: int, uploads: Uploads | picking.BestUpload | None) -> None:
            nonlocal record
            if uploads is None:
                self.facts["lost"] = True
                await self.after_merge(r, last, None)
                record = self.record(r + 1, last, ())
                await self.finish_round(emitter, record, {})
                return
            participants = self._merge_all(r, uploads)
            await self.after_merge(r, last, uploads)
            record = self.record(r + 1, last, participants, self.seconds is not None)
            await self.merged(emitter, record, evaluates(p, r + 1, last))

        async def model(r: int) -> State | protocol.ModelAssignment | None:
            if r == p.rounds:  # the weights kept of several rounds, as one model
                self.kept = self.context.kept()
                return None if self.kept is None else {k: v.cpu() for k, v in self.kept[0].items()}
            if not evaluates(p, r + 1, last):
                return None
            if not self.context.spend_evaluation(r + 1):
                await self.finish_round(emitter, record, {})
                return None
            if p.client is not None:  # parties' own loops evaluate; the server has the test set
                await tested(r, {})
                return None
            return self.test_models()

        async def tested(r: int, answers: dict[str, State] | protocol.SumResult | None) -> None:
            if self.counted is not None:
                self.hidden_test_bytes = self._count_hidden_bytes()  # those bytes belong to no update
            if r == p.rounds:
                await self._finish_kept(emitter, answers)
                return
            await self.finish_round(emitter, record, {} if answers is None else self._metrics(r + 1, answers))

        return protocol.server(
            me,
            self.asked(),
            self.until_stopped(rounds),
            choose,
            self.round_models,
            merge,
            model,
            tested,
            within=self.within,
            at_least=self.at_least,
            dropped=self.drop,
            aborted=lambda r, why: self.context.note(f"round {r + 1}: {why}"),
            hidden=self.hidden,
            counted=self.counted,
            scores=p.picks,
            meet=p.select is not None,
            pending=None if self.context.pending is None else rounds.start - 1,
            final=p.rounds if p.stops_members else None,
            testers=self.testers,
            wanted=lambda r: p.per_round if self.over_select > 1 else None,
            **network,
        )

    def record(
        self,
        r: int,
        last: int,
        participants: Sequence[str],
        has_clock: bool = False,
        orders: int | None = None,
    ) -> RoundRecord:
        return make_record(
            self.plan,
            self.guard,
            r,
            last,
            participants,
            self.sizes,
            facts=self.facts,
            orders=orders,
            clock=self.clock if has_clock else None,
            dropped=self.dropped,
        )

    async def merged(
        self, emitter: Emitter[list[RoundRecord]], record: RoundRecord, is_evaluated: bool
    ) -> None:
        """Emit a round whose model is merged: now if it is not evaluated, or has to be on disk before."""
        if not is_evaluated:
            await self.finish_round(emitter, record, {})
        elif self.saves_every_round:
            await emitter.emit([dataclasses.replace(record, is_complete=False)])

    async def finish_round(
        self, emitter: Emitter[list[RoundRecord]], record: RoundRecord, metrics: dict[str, Any]
    ) -> None:
        dropped, self.dropped = self.dropped, {}
        size = self._count_evaluation_bytes(record.round) if record.tested else 0
        record = dataclasses.replace(record, bytes_evaluation=size, is_complete=True)
        await emitter.emit([dataclasses.replace(record, metrics=metrics, dropped=dropped)])

    async def _finish_kept(
        self, emitter: Emitter[list[RoundRecord]], answers: dict[str, State] | protocol.SumResult | None
    ) -> None:
        assert self.kept is not None
        r, model = self.plan.rounds + 1, placed(self.task.x.device, self.kept[0])
        metrics = {} if answers is None else self._metrics(r, answers, model)
        record = kept_record(self.plan, r, metrics, self._count_evaluation_bytes(r))
        await emitter.emit([dataclasses.replace(record, dropped=self.dropped)])

    def drop(self, r: int, reasons: Mapping[str, str]) -> None:
        """Keep why parties are left out of the current round; the first reason of each counts."""
        self.dropped = {**reasons, **self.dropped}

    def testers(self) -> list[str]:
        """Return who holds back rows."""
        return [name for name, held in zip(self.plan.fed.parties, self.plan.fed.held.sizes.tolist()) if held]

    def asked(self) -> tuple[str, ...]:
        """Return the parties that rounds ask."""
        return self.plan.fed.parties

    def known(self, r: int) -> PartyInfo:
        """Return what the server knows of the parties before a round, except losses."""
        n = len(self.plan.fed)
        return PartyInfo(
            self.plan.sizes,
            lambda who: np.zeros(0),
            None if self.seconds is None else self.seconds(np.arange(n), np.full(n, r)),
        )

    def _select(self, r: int) -> list[str] | protocol.Candidates:
        """Choose who takes part by the plan's rule.

        A party whose loss the rule needs must report it first; without an answer it is not chosen.
        """
        p, names = self.plan, self.asked()
        seats = {name: k for k, name in enumerate(p.fed.parties)}
        at = np.array([seats[name] for name in names])
        per_round = min(p.per_round, len(names))
        losses: dict[int, float] = {}
        silent: set[int] = set()
        model = {k: v.cpu() for k, v in self.server.items() if k in ("w", "buffers")}

        def loss(who: np.ndarray) -> np.ndarray:
            if new := [int(k) for k in who if int(k) not in losses and int(k) not in silent]:
                raise LossesNeeded(np.array(new))
            return np.array([losses.get(int(k), -np.inf) for k in who])

        def settle(
            answers: Mapping[str, float], candidates: Sequence[int] = ()
        ) -> list[str] | protocol.Candidates:
            losses.update({k: answers[names[k]] for k in candidates if names[k] in answers})
            silent.update(k for k in candidates if names[k] not in answers)
            try:
                known = self.known(r)
                known = known._replace(
                    sizes=known.sizes[at],
                    loss=loss,
                    seconds=None if known.seconds is None else known.seconds[at],
                    there=None if known.there is None else known.there[at],
                )
                who = selection.select(p.select, p.seed, r, known, per_round)
            except LossesNeeded as request:
                some = request.who.tolist()
                self.facts["looked"] = self.facts.get("looked", 0) + len(some)
                look, loss_size = look_sizes(model)
                self.sizes = self.sizes._replace(look=look, loss=loss_size)
                return protocol.Candidates([names[k] for k in some], model, partial(settle, candidates=some))
            return [names[k] for k in who.tolist() if k not in silent]

        return settle({})

    # programs -----------------------------------------------------------------------------------------------

    def stream(self, server: Callable[..., Any], emitter: Emitter[list[RoundRecord]]) -> Records:
        """Run the server's program and those of the parties; yield the records that it emits."""

        def program(name: str, start: Callable[[Party], Any]) -> Any:
            def begin(me: Party) -> Any:
                self.parties[name] = me
                return start(me)

            return begin

        clients = {
            name: program(name, self.client(k, self._member(k, name)))
            for k, name in enumerate(self.plan.fed.parties)
        }
        runtime = InProcess(seed=self.plan.seed, start=self.clock)
        yield from runtime.stream({SERVER: program(SERVER, server), **clients}, emitter)

    def _member(self, k: int, name: str) -> Member:
        p, fed = self.plan, self.plan.fed.party(k)
        return Member(
            name,
            fed,
            self.task.on(*fed.at(0).to(self.task.x.device)),
            p.algorithm,
            p.seed,
            p.local_epochs[k],
            p.batch_size,
            p.local_steps,
            self.guard,
            p.party_rules,
        )

    def client(self, k: int, member: Member) -> Callable[[Party], Any]:
        """Return the program of party k, in this process."""
        before: dict[int, State] = {}  # a round that is tried again starts from the state before it

        def local(r: int, down: State) -> tuple[float, State]:
            start = before.get(r, self.client_states[member.name])
            before.clear()
            before[r] = start
            weight, vectors, self.client_states[member.name] = member.local(r, down, start)
            return weight, vectors

        def start(me: Party) -> Any:
            async def takes(r: int) -> None:
                if self.seconds is not None:
                    await me.clock.sleep(float(self.seconds(np.array([k]), np.array([r]))[0]))

            def test(r: int, down: State) -> State:
                return member.test(r, down, self.client_states[member.name], summed=self.hidden is not None)

            return protocol.client(
                me,
                local,
                test,
                server=SERVER,
                look=member.loss,
                hidden=lambda: self.hidden,
                counted=lambda: self.counted,
                scores=lambda: self.plan.picks,
                takes=takes,
                consent=OneSumEach(),
            )

        return start

    async def after_merge(self, r: int, last: int, uploads: Uploads | picking.BestUpload | None) -> None:
        """Do what follows a round's step, before its model is evaluated; None: the round was lost."""

    # the server's step --------------------------------------------------------------------------------------

    def _merge_all(self, r: int, uploads: Uploads | picking.BestUpload) -> list[str]:
        """Merge what came in round r; return who took part."""
        if isinstance(uploads, picking.BestUpload):
            participants, is_finite = list(uploads.scores), math.isfinite(uploads.scores[uploads.best])
            best = {"best": uploads.best} if is_finite else {}
            self.facts |= {"scored": len(participants), "uploaded": 1, **best}
            uploads = {uploads.best: uploads.upload}
        else:
            participants = list(uploads.included if isinstance(uploads, protocol.SumResult) else uploads)
        if self.seconds is not None:
            self.clock = self.parties[SERVER].clock.now()
        # under noise nobody may see that nobody took part
        if participants or (self.guard is not None and self.guard.noise is not None):
            self.merge(r, uploads, len(participants))
        return participants

    def merge(self, r: int, uploads: Uploads, n: int, among: int | None = None) -> None:
        """Take the server's step from the uploads of `n` parties, out of `among` (None: all)."""
        p = self.plan
        down, weight = self.down(r), float(n)
        there = placed(self.task.x.device, down)
        if isinstance(uploads, protocol.SumResult):
            assert self.guard is not None
            sizes = MessageSizes(
                hidden_sizes(p, self.guard, r + 1, down).down, self._count_hidden_bytes() // n
            )
            mean = self.guard.back(uploads.total, weight, there, r)
        else:
            # where nobody was sampled, an upload of the usual size: it must not show
            blank = {} if self.guard is None else self.guard.blank_upload()
            sizes = round_sizes(r + 1, down, max((up for _, up in uploads.values()), key=len, default=blank))
            mean = (
                self._combine(uploads, there)
                if self.guard is None
                else self.guard.decode_uploads(uploads, there, r)
            )
        self.sizes = sizes._replace(look=self.sizes.look, loss=self.sizes.loss)
        if self.guard is not None and self.guard.noise is not None:
            weight = self.guard.expected
        w = self.server["w"]
        self.server = server_step(p.algorithm, self.server, mean, weight / (among or len(self.asked())))
        if self.guard is not None:
            self.guard.after_step(w, self.server["w"])

    def _combine(self, uploads: Mapping[str, tuple[float, State]], down: State) -> State:
        """Combine uploads by the rule, whose memory of earlier rounds is part of the server's state."""
        rule = rule_for([self.plan], self.task).at_round({k: v[None] for k, v in down.items()})
        seats = {name: k for k, name in enumerate(self.plan.fed.parties)}
        mean, self.memory = combine_with_memory(
            list(uploads.values()),
            rule,
            [seats[name] for name in uploads],
            self.memory,
            {k: v.cpu() for k, v in down.items()},
        )
        return placed(self.task.x.device, mean)

    def _count_hidden_bytes(self) -> int:
        """Return the bytes of all messages of hidden sums that reached the server since the last call."""
        others = {m.kind for m in self.kinds}
        seen = self.parties[SERVER].ledger.seen
        before, self.hidden_bytes = self.hidden_bytes, sum(s.bytes for s in seen if s.kind not in others)
        return self.hidden_bytes - before

    def _count_evaluation_bytes(self, r: int) -> int:
        """Return the bytes by which the model after round r was evaluated: models down, counts up."""
        p, model = self.plan, self.test_models()
        if isinstance(model, protocol.ModelAssignment):
            down = sum(wire_size(protocol.Test(r - 1, model.models[model.of[n]])) for n in p.fed.parties)
        else:
            down = len(p.fed) * wire_size(protocol.Test(r - 1, model))
        if self.counted is not None:
            up, self.hidden_test_bytes = self.hidden_test_bytes, 0
            return down + up + len(p.fed) * self.counted.traffic(p.fed.parties)[1]
        before = self.tested_bytes
        seen = self.parties[SERVER].ledger.seen
        self.tested_bytes = sum(s.bytes for s in seen if s.kind == protocol.Tested.kind)
        return down + self.tested_bytes - before

    def _metrics(
        self, r: int, answers: dict[str, State] | protocol.SumResult, model: State | None = None
    ) -> dict[str, Any]:
        """Return the metrics of `model` (default: the server's) from the parties' counts."""
        p, model = self.plan, self.server if model is None else model
        if self.figures is not None:
            there = placed(self.task.x.device, {"w": self.server["w"]})
            mean = (
                self.figures.back(answers.total, float(len(answers.included)), there, r - 1)
                if isinstance(answers, protocol.SumResult)
                else self.figures.decode_uploads(
                    {name: (1.0, sent) for name, sent in answers.items()}, there, r - 1
                )
            )
            assert p.fed.classes is not None
            return estimate(self.figures, mean, p.fed.classes, p.algorithm.personalizes)
        is_sum = isinstance(answers, protocol.SumResult)
        counts: dict[str, Tally | None]
        if isinstance(answers, protocol.SumResult):
            assert isinstance(self.counted, HiddenCounts)
            counts = {"": self.counted.decode(answers.total)}
        else:
            blank = blank_tally(p)
            counts = {
                name: unpack_tally(answers[name], blank) if answers[name] else None
                for name in p.fed.parties
                if name in answers
            }
        rules = p.rules._replace(sums_only=is_sum or p.sums_only)
        metrics = evaluation.gather(
            self.task,
            model["w"],
            model.get("buffers"),
            p.fed.test_at(r),
            counts,
            rules,
            p.fed.subgroups,
            p.algorithm.personalizes,
        )
        is_judged_apart = p.patience is not None and len(p.fed.test.y)
        if is_judged_apart and (found := evaluation.validate_counts(counts, rules)):
            metrics["validation"] = found
        if "parties" in metrics:
            each = dict(zip(counts, metrics["parties"]["accuracy"]))
            metrics["parties"] = {"accuracy": [each.get(name) for name in p.fed.parties]}
        return metrics

    # what is saved, and reported ----------------------------------------------------------------------------

    def save(self, i: int) -> State:
        clients = {
            f"kept.{j}.{k}": v.to("cpu", copy=True)
            for j, name in enumerate(self.plan.fed.parties)
            for k, v in self.client_states[name].items()
        }
        return {**self.server_state(), **clients}

    def server_state(self) -> State:
        """Return what the server needs to resume."""
        guarded = {} if self.guard is None else {f"guard.{k}": v for k, v in self.guard.save().items()}
        return (
            {f"server.{k}": v.cpu() for k, v in self.server.items()}
            | {f"rule.{k}": v for k, v in self.memory.items()}
            | guarded
        )

    def checkpoint_metadata(self) -> dict[str, Any]:
        clock = {} if self.seconds is None else {"clock": self.clock}
        return {"ledger": self.ledger(0, []).to_dict(), **clock}

    def landscape(self, i: int) -> dict[str, Any]:
        start = {k: v for k, v in self.server.items() if k in ("w", "buffers")}
        unguarded = dataclasses.replace(self.plan, guard=())
        return SimulatedTrainer(self.task, [start], [unguarded], RunContext()).landscape(0)

    def ledgers(self) -> list[Ledger]:
        return [me.ledger for me in self.parties.values()]

    def ledger(self, i: int, events: list[Event]) -> Ledger:
        """Return what was seen so far. It is saved with the state, so that a resumed run's ledger is
        whole.
        """
        merged, ledger = Ledger(), Ledger()
        for part in (self.earlier_ledger, *self.ledgers()):
            merged.merge(part)
        order = {m.kind: k for k, m in enumerate(self.kinds)}
        seats = {name: k for k, name in enumerate((SERVER, *self.plan.fed.parties))}
        last = len(order) + len(seats)
        for s in sorted(  # the same order whether the run was resumed or not
            merged.seen,
            key=lambda s: (order.get(s.kind, last), seats.get(s.party, last), seats.get(s.sender, last)),
        ):
            reveals = s.reveals
            if s.kind in (protocol.Upload.kind, "Answer"):
                reveals = upload_reveals(self.plan, self.guard) or reveals
            if s.kind == protocol.Tested.kind and not self.plan.sums_only:
                reveals = tested_reveals(self.plan)
            ledger.record(s.party, s.sender, s.kind, reveals, count=s.count, bytes=s.bytes, how=s.how)
        kinds = {s.kind for s in merged.seen}
        # of sums that are more than the usual counts; a resumed run has the line
        more = SUBGROUPS if counts_subgroups(self.plan) else OWN if self.plan.party_rules.own else ""
        # between real parties, models to be tested are in the ledgers of their receivers
        was_tested = (protocol.Test.kind in kinds or self.plan.runtime == "parties") and more not in kinds
        if self.plan.sums_only and more and was_tested:
            what = tested_reveals(self.plan)
            ledger.record(SERVER, all_parties(self.plan), more, what, how="executed")
        return ledger


def server_step(algorithm: Algorithm, server: State, mean: State, fraction: float) -> State:
    """Return the server's state after a step from the mean of the updates of this fraction of the parties."""
    buffers = {"buffers": mean.pop("buffers")} if "buffers" in mean else {}
    state = {k: v for k, v in server.items() if k not in ("w", "buffers")}
    w, state = algorithm.merge(server["w"], state, mean, torch.tensor(fraction))
    return {"w": w, **buffers, **state}
