"""Training whose clients are other processes, on this machine or on others: the server's side."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ... import __version__, models
from ...algorithms.plan import identify, plan
from ...algorithms.types import Batches, State
from ...data.inputs import blank_rows
from ...data.private_preparation import PrivatePreparation
from ...engine.task import Task
from ...errors import BadParameter, ProtocolError, TacitError
from ...files import write_atomic
from ...guard import Guard, Noise
from ...parameter_shapes import ParameterShapes
from ...parties.ledger import Ledger, Spend
from ...parties.message import Message
from ...parties.party import Party
from ...protocols import buffered, joining, picking, sum_program
from ...protocols import rounds as protocol
from ...runs import Event
from ...runtimes.processes import MainProgram, Processes
from ...runtimes.streaming import Emitter
from ...selection import PartyInfo
from ..devices import placed
from . import preparing
from .client import run_simulated
from .contract import Contract
from .counts import blank_tally, unpack_tally
from .elsewhere import Deployed, Elsewhere
from .from_job import code_spec, model_spec
from .guards import layout_of_plan as layout_of
from .member import member, run_alongside
from .messages import SERVER, MessageTrainer, Uploads
from .objective import balance_classes
from .own_loop import METRICS, own_names
from .party_rows import read_layout, save_rows
from .plan import Plan, digest_constants
from .preparing import PartyPreparation
from .trainer import Records, RoundRecord, RunContext

__all__ = ["Deployed", "Elsewhere", "NetworkedTrainer"]

FAREWELL = "farewell.json"  # in the state of a run of real parties: some may have read Stop, and ended


def _reason(error: BaseException) -> str:
    """Say to the parties why the run ends early.

    Texts of the protocol's own errors name parties and steps. Others may name files of the server.
    """
    if isinstance(error, ProtocolError):
        return str(error)
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        return "it was stopped"
    return f"an error at the server ({type(error).__name__}); its own log says more"


def check_over_selection(p: Plan) -> None:
    """Raise BadParameter where the first answers of a round cannot stand for all of them."""
    why = None
    if p.per_round >= len(p.fed):
        why = f"per_round is {p.per_round}, so that all {len(p.fed)} parties are asked. Set a smaller one"
    elif any(isinstance(s, Noise) for s in p.guard):
        why = "the noise of the guard assumes that who takes part is drawn at random. Leave it out"
    elif p.guard and any(s.hides for s in p.guard):
        why = "a hidden sum is over the parties that began it. Leave it out"
    elif p.select is not None or p.picks or p.pace is not None or p.algorithm.sees_each:
        why = "the job chooses parties by a rule of its own, or waits for single ones. Leave it out"
    if why is not None:
        raise BadParameter(f"party: over_select asks more parties than a round needs, and {why}.")


class NetworkedTrainer(MessageTrainer):
    """Each round is on disk before the next begins.

    A server that is killed and restarted resumes where it was, and asks for at most one round again.
    """

    saves_every_round = True
    preparation: PartyPreparation | None = None  # the program of sums before round 0
    prepared = ""  # the text of its result
    kinds = (
        *MessageTrainer.kinds,
        joining.Join,
        joining.Ready,
        joining.Unfit,
        joining.Free,
        joining.Call,
        joining.Work,
        joining.Refused,
        joining.GaveUp,
        joining.Final,
        sum_program.SumStep,
        sum_program.SumsOver,
        sum_program.SumRefused,
    )

    def __init__(self, task: Task, starts: list[State], plans: list[Plan], context: RunContext):
        super().__init__(task, starts, plans, context)
        self.through: Processes | Deployed = self.plan.through
        self.name = (
            "one process a party" if isinstance(self.through, Processes) else "parties on their own machines"
        )
        self.within, self.at_least = self.through.deadline, self.through.at_least
        if isinstance(self.through, Deployed) and self.through.over_select > 1:
            check_over_selection(self.plan)
            self.over_select = self.through.over_select
        self.run_id: str = context.metadata.get("run") or secrets.token_hex(8)
        self.client_ledger = Ledger()  # of clients on this machine
        self.rows: dict[str, int] = {}  # how many each party trains on, as it stated when it joined
        self.small: set[str] = set()  # parties with fewer rows than agreed: no round asks them
        layout = self.through.layout if isinstance(self.through, Deployed) else {}
        agreed = read_layout(layout) if layout else None  # rows that are not from a table have no layout
        self.min_rows = 0 if agreed is None or agreed.small != "drop" else agreed.min_rows
        self.shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] | None = None
        if isinstance(self.through, Deployed):
            waits = {"deadline": self.within, "at_least": self.at_least}
            self.start_events = {"contract": {"digest": self.contract.digest, **waits}}
            self.preparation = preparing.program_of(self.plan, self.through.layout)
            self.notes = (
                *self.notes,
                *preparing.notes_of(self.plan, self.through.layout, self.preparation),
            )
            if self.preparation is None and agreed is not None and agreed.recipe.is_fitted:
                self.pipeline = agreed.pipeline

    def binding(self) -> str:
        """Return the contract's digest and, after a preparation, that of the statistics."""
        return preparing.bind_statistics(self.contract.digest, self.prepared)

    @cached_property
    def contract(self) -> Contract:
        """Return the contract that every party has to agree to."""
        runtime = self.plan.through
        layout, server, above = (
            (runtime.layout, runtime.kit.server, runtime.kit.above)
            if isinstance(runtime, Deployed)
            else (None, SERVER, None)
        )
        p = self.plan
        has_table = isinstance(p.model, str | ParameterShapes | models.OwnModel)
        if p.client is not None and not has_table and type(p.model) not in models.ALL.values():
            p = replace(p, model=ParameterShapes.of(self.task.module))
        return Contract.of(p, layout, server, list(self.task.x.shape[1:]), above)

    def testers(self) -> list[str]:
        """Return who holds back rows, as stated when joining.

        That is everyone where figures are noisy, because the noise covers who holds back rows.
        """
        if self.figures is not None:
            return list(self.plan.fed.parties)
        return [
            name
            for name in self.plan.fed.parties
            if name not in self.small
            and (name not in self.admission.ready or self.admission.ready[name].held != 0)
        ]

    def asked(self) -> tuple[str, ...]:
        return tuple(name for name in self.plan.fed.parties if name not in self.small)

    def known(self, r: int) -> PartyInfo:
        """Return what parties stated when they joined, who is connected, and how long each last took."""
        names = self.plan.fed.parties
        sizes = (
            np.array([self.rows.get(name, 0) for name in names])
            if isinstance(self.through, Deployed)
            else self.plan.fed.train.sizes.numpy()
        )
        there = (
            None if self.within is None else np.isin(names, self.admission.available(busy=True))
        )  # without a deadline, the round waits for everyone
        return PartyInfo(
            sizes,
            lambda who: np.zeros(0),
            np.array([self.admission.durations.get(name, 0.0) for name in names]),
            there,
        )

    def load_clients(self, state: State) -> None:
        """Nothing: clients keep their states themselves."""

    def personal(self, i: int) -> list[State]:
        if self.fresh:
            raise BadParameter(
                f"models: with {type(self.plan.algorithm).__name__} a party's own model depends on the state "
                "that it keeps, which the server does not have. Ask the parties, or train with "
                "runtime='cohort'."
            )
        return super().personal(i)

    def save(self, i: int) -> State:
        return self.server_state()

    def checkpoint_metadata(self) -> dict[str, Any]:
        return {**super().checkpoint_metadata(), "run": self.run_id}

    def ledgers(self) -> list[Ledger]:
        return [*super().ledgers(), self.client_ledger]

    def ledger(self, i: int, events: list[Event]) -> Ledger:
        ledger = super().ledger(i, events)
        if isinstance(self.through, Deployed):
            program = self.preparation if self.prepared else None
            if isinstance(program, PrivatePreparation):
                ledger.spend(Spend(**program.spend))
            elif program is not None and len(self.plan.fed) == 2:
                ledger.stamp(preparing.TWO)
        return ledger

    # --- what parties are offered, and must answer ----------------------------------------------------------

    def offer(self, name: str) -> joining.Work:
        return joining.Work(self.contract.text, self.run_id, self.prepared)

    def fits(self, name: str, ready: joining.Ready) -> str | None:
        job = (list(self.task.x.shape[1:]), self.plan.fed.classes or 0, self.task.dim)
        if (ready.features, ready.classes, ready.parameters) != job:
            return (
                f"its rows have the shape {ready.features}, {ready.classes} classes, and its model "
                f"{ready.parameters} parameters; the job has {job[0]}, {job[1]} and {job[2]}"
            )
        if self.plan.client is None and ready.frozen != digest_constants(self.task):
            return (
                "the frozen part of its model is another than the server's. A function that builds a model "
                "must give the same frozen part in every process"
            )
        if ready.rows == joining.WITHHELD and self.plan.hides_sizes:
            return None
        if ready.rows == joining.TOO_FEW and self.min_rows:
            if name not in self.small:
                self.context.note(
                    f"{name!r} has fewer than {self.min_rows} rows (min_rows): it takes part in no round"
                )
            self.small.add(name)
            return None
        self.rows[name] = ready.rows
        return None if ready.rows >= 1 else "it has no rows to train on"

    def wrong(self, name: str, answer: Message) -> str | None:
        """Return what is wrong with a party's answer, if anything is.

        That is a vector that is missing, unexpected, of another shape or type, NaN or infinite.
        """
        if isinstance(answer, protocol.Loss | picking.Score):
            word, value = (
                ("loss", answer.loss) if isinstance(answer, protocol.Loss) else ("score", answer.score)
            )
            return (
                None
                if math.isfinite(value)
                else f"the {word} it states is {value}; it must be a finite number"
            )
        if isinstance(answer, protocol.Tested):
            if self.figures is not None:
                return self._unreadable(self.figures, answer.counts, self.round)
            return self._wrong_counts(answer.counts)
        assert isinstance(answer, protocol.Upload | buffered.Answer)
        got, expected = answer.vectors, self._uploads()
        if not 0 < answer.weight < float("inf"):
            return f"its update has the weight {answer.weight}; it must be a number above 0"
        if self.plan.client is not None and answer.weight > self.plan.client.max_rows:
            return f"its update is of {answer.weight:.0f} rows; the parties agreed on max_rows at most"
        if self.guard is not None:
            return self._guarded(
                name, got, answer.number if isinstance(answer, buffered.Answer) else self.round
            )
        for key in (*expected, *got):
            if key not in got or key not in expected:
                return f"its answer has {'no' if key in expected else 'an unexpected'} vector {key!r:.40}"
            shape, dtype = expected[key]
            if tuple(got[key].shape) != shape or got[key].dtype != dtype:
                return (
                    f"its vector {key!r} has the shape {tuple(got[key].shape)} and {got[key].dtype}; it "
                    f"must be {shape} and {dtype}"
                )
            if not torch.isfinite(got[key]).all():
                return f"its vector {key!r} contains NaN or infinity"
        return None

    def _guarded(self, name: str, sent: State, number: int) -> str | None:
        assert self.guard is not None
        if not sent:
            return (
                None if name in self.guard.last else "it sent no update, and there is no earlier one to reuse"
            )
        return self._unreadable(self.guard, sent, number)

    @staticmethod
    def _unreadable(guard: Guard, sent: State, number: int) -> str | None:
        try:
            guard.unpack(sent, number)
        except ProtocolError as error:
            return str(error)
        return None

    def _uploads(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return the shapes that an update must have: those of one computed here, on a row of zeros."""
        if self.shapes is None and self.plan.client is not None:
            metrics = len(self.plan.client.metrics)
            self.shapes = {
                **{
                    k: (s, torch.float32)
                    for k, s in layout_of(self.plan, self.task, self.server).shapes.items()
                },
                **({METRICS: ((metrics,), torch.float64)} if metrics else {}),
            }
        if self.shapes is None:
            p, x = self.plan, self.task.x
            one = self.task.on(blank_rows(x, 1), self.task.y.new_zeros(1, *self.task.y.shape[1:]))
            batches = plan(
                p.seed, 0, identify(["nobody"]), torch.ones(1, dtype=torch.int64).numpy(), 1, 1, 1
            ).of(0)
            with torch.no_grad():
                upload, _ = p.algorithm.local(
                    one,
                    placed(x.device, self.down(0)),
                    self.fresh,
                    Batches(*(t.to(x.device) for t in batches)),
                )
            self.shapes = {k: (tuple(v.shape), v.dtype) for k, v in upload.vectors.items()}
        return self.shapes

    def merge(self, r: int, uploads: Uploads, n: int, among: int | None = None) -> None:
        if self.plan.client is not None and self.plan.client.metrics and isinstance(uploads, Mapping):
            total = sum(weight for weight, _ in uploads.values())
            means = sum(weight / total * vectors[METRICS] for weight, vectors in uploads.values())
            self.facts |= dict(zip(own_names(self.plan.client), means.tolist()))  # type: ignore[union-attr]
            uploads = {
                name: (weight, {k: v for k, v in vectors.items() if k != METRICS})
                for name, (weight, vectors) in uploads.items()
            }
        super().merge(r, uploads, n, among)

    def _wrong_counts(self, sent: State) -> str | None:
        try:
            if sent:  # nothing: it holds back fewer than min_rows rows
                unpack_tally(sent, blank_tally(self.plan))
        except ProtocolError as error:
            return str(error).rstrip(".")
        return None

    # --- the programs ---------------------------------------------------------------------------------------

    def stream(self, server: Callable[..., Any], emitter: Emitter[list[RoundRecord]]) -> Records:
        async def program(me: Party) -> None:
            self.parties[SERVER] = me
            self.admission = joining.Admission(
                me,
                self.plan.fed.parties,
                __version__,
                self.offer,
                self.fits,
                self.context.note,
                everyone=self.within is None,
            )
            try:
                await run_alongside(self._prepare_and_run(server, me), self.admission.run())
            except BaseException as error:
                if isinstance(self.through, Deployed):  # nobody else tells them
                    with suppress(TacitError):  # the connection itself may be what failed
                        await self.admission.give_up(_reason(error))
                raise

        if isinstance(self.through, Processes):
            yield from self._stream_here(self.through, program, emitter)
        else:
            yield from emitter.stream(partial(self._connect, self.through, program))

    async def _prepare_and_run(self, server: Callable[..., Any], me: Party) -> None:
        if self.min_rows:
            await self._leave_small_out()
        if self.preparation is not None:
            await self._prepare(self.preparation, me)
        await server(me, admission=self.admission, wrong=self.wrong, farewell=partial(self._farewell, me))
        if self.small:  # the others were told by the last round
            await me.send(sorted(self.small), protocol.Stop())

    async def _leave_small_out(self) -> None:
        """Wait until all parties have said whether they are small; raise if too few are left."""
        names = self.plan.fed.parties
        await self.admission.wait_for_free(names, len(names), None)
        left = self.asked()
        exact = self.preparation is not None and not isinstance(self.preparation, PrivatePreparation)
        two = read_layout(self.plan.through.layout).fit == "federated"
        need = preparing.FEWEST if exact and not two else 2
        if len(left) < need:
            why = ": a sum over two would show each of them the other's part" if need > 2 else ""
            raise ProtocolError(
                f"the run cannot continue: {', '.join(map(repr, sorted(self.small)))} "
                f"{'has' if len(self.small) == 1 else 'have'} fewer than {self.min_rows} rows (min_rows), "
                f"and {len(left)} of {len(names)} parties are left, of {need} that are needed{why}"
            )

    async def _farewell(self, me: Party) -> None:
        """Have every party ready to read the end of the run, and send it the model.

        A run that was stopped after its last round was saved asks nobody again, so nothing else waits for its
        parties to join.
        """
        is_here = isinstance(self.through, Processes)
        mark = None if self.context.directory is None else self.context.directory / "state" / FAREWELL
        # processes of this machine start with the server; owners' may have read Stop, and ended
        if is_here or not (self.admission.has_asked or (mark is not None and mark.exists())):
            await self.admission.wait_for_joined(self.plan.fed.parties, self.within)
        if not is_here:
            if mark is not None:
                mark.parent.mkdir(exist_ok=True)
                write_atomic(mark, json.dumps({"run": self.run_id}))
            if self.context.result is not None:
                await self._send_final(me)

    async def _send_final(self, me: Party) -> None:
        """Send every party the model that the run returns: with early stopping, the best one."""
        assert self.context.result is not None
        model, metrics = self.context.result()
        # from figures over two parties and its own, each would know the other's
        is_shared = len(self.plan.fed) > 2
        shared = {k: float(v) for k, v in metrics.items() if is_shared and isinstance(v, int | float)}
        final = joining.Final(self.run_id, {k: v.cpu() for k, v in model.items()}, shared)
        await me.scope(joining.FINAL).send(self.plan.fed.parties, final)

    async def _prepare(self, program: PartyPreparation, me: Party) -> None:
        """Compute the statistics of the parties' tables, and bind all that follows to them."""
        digest, journal = (
            self.contract.digest,
            preparing.SumJournal(self.context.directory, self.contract.digest),
        )
        pipeline = await sum_program.server(
            me.scope(preparing.SCOPE),
            program,
            preparing.rules_of(digest, tuple(self.plan.fed.parties), self.within),
            admission=self.admission,
            sums=journal.sums,
            opened=lambda step, total, included: journal.keep(step, total),
            aborted=lambda step, why: self.context.note(f"preparation, step {step + 1}: {why}"),
            share=preparing.to_vectors,
        )
        self.pipeline, self.prepared = pipeline, preparing.to_text(pipeline)
        # errors of a regression are reported in the unit of the tables
        p = replace(self.plan, fed=replace(self.plan.fed, pipeline=pipeline))
        self.plan = balance_classes(p, pipeline)
        for hidden in (self.hidden, self.counted):
            if hidden is not None:
                hidden.federation = self.binding()
        self._count_hidden_bytes()  # those bytes belong to no round

    def _stream_here(self, runtime: Processes, program: Any, emitter: Emitter[list[RoundRecord]]) -> Records:
        """Run the clients as processes of this machine."""
        p = self.plan
        is_own = p.client is not None
        spec, code = ("", "") if is_own else (model_spec(p.model, "a client"), code_spec(p, "a client"))
        with tempfile.TemporaryDirectory(prefix="tacit-") as folder:
            # a run that can be resumed keeps its clients' states
            states = Path(folder) if self.context.directory is None else self.context.directory / "parties"
            programs: dict[str, Any] = {SERVER: program}
            for k, name in enumerate(p.fed.parties):
                place, state = Path(folder) / f"rows-{k}", str(states / str(k))
                if not isinstance(p.fed, Elsewhere):
                    save_rows(p.fed, k, place)
                if p.client is not None:
                    data = {} if isinstance(p.fed, Elsewhere) else {"folder": str(place)}
                    script, arguments = str(Path(p.client.path).resolve()), list(p.client.arguments)
                    run = partial(run_simulated, script=script, arguments=arguments, data=data, state=state)
                    programs[name] = MainProgram(run)
                    continue
                programs[name] = partial(
                    member,
                    data={"folder": str(place)},
                    state=state,
                    model=spec,
                    code=code,
                    device=p.device,
                )
            seeded = replace(runtime, seed=p.seed)
            ledger = Ledger()
            yield from seeded.stream(
                programs, emitter, here=(SERVER,), ledger=ledger, may_leave=p.fed.parties
            )
            for s in ledger.seen:  # the server's own lines are in its party's ledger
                if s.party != SERVER:
                    self.client_ledger.record(
                        s.party, s.sender, s.kind, s.reveals, count=s.count, bytes=s.bytes, how=s.how
                    )

    async def _connect(self, runtime: Deployed, program: Any) -> None:
        """Connect to the hub; the clients are with their owners."""
        from ...runtimes.link import Link

        async with Link(
            runtime.kit, seed=self.plan.seed, patience=runtime.patience, version=__version__
        ) as link:
            if runtime.on_link is not None:
                runtime.on_link(link)
            await link.run(program)
