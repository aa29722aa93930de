"""Training whose clients are other processes, on this machine or on others': the server's side."""

from __future__ import annotations

import math
import secrets
import tempfile
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ... import __version__
from ...algorithms.plan import identify, plan
from ...algorithms.types import Batches, State
from ...engine.task import Task
from ...errors import BadParameter, ProtocolError
from ...guard import Guard
from ...parties.ledger import Ledger
from ...parties.message import Message
from ...parties.party import Party
from ...protocols import buffered, joining, picking
from ...protocols import rounds as protocol
from ...runtimes.processes import Processes
from ...selection import PartyInfo
from ..devices import placed
from .contract import Contract
from .elsewhere import Deployed, Elsewhere
from .member import beside, deal, member, specified
from .messages import SERVER, Parties, blank_counts
from .plan import Plan

__all__ = ["Deployed", "Elsewhere", "Networked"]


class Networked(Parties):
    """Each round is on disk before the next begins: a server that is killed goes on where it was, and asks
    for one round again at most.
    """

    durable = True
    kinds = (
        *Parties.kinds,
        joining.Join,
        joining.Ready,
        joining.Unfit,
        joining.Free,
        joining.Call,
        joining.Work,
        joining.Refused,
    )

    def __init__(self, task: Task, starts: list[State], plans: list[Plan], saved: list[State | None]):
        super().__init__(task, starts, plans, saved)
        self.through: Processes | Deployed = self.plan.through
        self.name = (
            "one process a party" if isinstance(self.through, Processes) else "parties on their own machines"
        )
        self.within, self.at_least = self.through.deadline, self.through.at_least
        self.run_id = secrets.token_hex(8)
        self.place: Path | None = None
        self.theirs = Ledger()
        self.rows: dict[str, int] = {}  # how many each party said it trains on
        self.shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] | None = None

    def binding(self) -> str:
        return self.contract.digest

    @cached_property
    def contract(self) -> Contract:
        """What every party is asked to agree to."""
        at = self.plan.through
        layout, server = (at.layout, at.kit.server) if isinstance(at, Deployed) else (None, SERVER)
        return Contract.of(self.plan, layout, server, list(self.task.x.shape[1:]))

    def testers(self) -> list[str]:
        """As parties said when they joined; everyone where figures are noisy, because who holds back rows is
        covered by the noise.
        """
        if self.figures is not None:
            return list(self.plan.fed.parties)
        return [
            name
            for name in self.plan.fed.parties
            if name not in self.admission.ready or self.admission.ready[name].held != 0
        ]

    def known(self, r: int) -> PartyInfo:
        """As parties said when they joined, as they are there now, and by how long each took for its last
        round.
        """
        names = self.plan.fed.parties
        sizes = (
            np.array([self.rows.get(name, 0) for name in names])
            if isinstance(self.through, Deployed)
            else self.plan.fed.train.sizes.numpy()
        )
        there = (
            None if self.within is None else np.isin(names, self.admission.available(busy=True))
        )  # without a deadline, everybody is waited for
        return PartyInfo(
            sizes,
            lambda who: np.zeros(0),
            np.array([self.admission.durations.get(name, 0.0) for name in names]),
            there,
        )

    def go_on(self, at: State) -> None:
        """What clients keep, they keep themselves."""

    def personal(self, i: int) -> list[State]:
        if self.fresh:
            raise BadParameter(
                f"models: with {type(self.plan.algorithm).__name__} a party's own model is made of what it "
                "keeps, and here it keeps that to "
                "itself. Ask the parties, or train with runtime='cohort'."
            )
        return super().personal(i)

    def save(self, i: int) -> State:
        return self.of_server()

    def beside(self) -> dict[str, Any]:
        return {**super().beside(), "run": self.run_id}

    def ledgers(self) -> list[Ledger]:
        return [*super().ledgers(), self.theirs]

    # --- what parties are told, and held to -----------------------------------------------------------------

    def offer(self, name: str) -> joining.Work:
        return joining.Work(self.contract.text, self.run_id)

    def fits(self, name: str, ready: joining.Ready) -> str | None:
        want = (list(self.task.x.shape[1:]), self.plan.fed.classes or 0, self.task.dim)
        if (ready.features, ready.classes, ready.parameters) != want:
            return (
                f"its rows have the shape {ready.features}, {ready.classes} classes, and its model "
                f"{ready.parameters} parameters; the job has {want[0]}, "
                f"{want[1]} and {want[2]}"
            )
        if ready.rows == joining.UNTOLD and self.plan.hides_sizes:
            return None
        self.rows[name] = ready.rows
        return None if ready.rows >= 1 else "it has no rows to train on"

    def wrong(self, name: str, answer: Message) -> str | None:
        """What is wrong with a party's answer: a vector that should not be there, of another shape or kind,
        or one that is no finite number.
        """
        if isinstance(answer, protocol.Loss | picking.Score):
            word, stated = (
                ("loss", answer.loss) if isinstance(answer, protocol.Loss) else ("score", answer.score)
            )
            return (
                None
                if math.isfinite(stated)
                else f"the {word} it states is {stated}; it must be a finite number"
            )
        if isinstance(answer, protocol.Tested):
            if self.figures is not None:
                return self._unreadable(self.figures, answer.counts, self.at)
            if not answer.counts:
                return None  # it holds back fewer than min_rows rows
            got, want = answer.counts, self._counts()
        else:
            assert isinstance(answer, protocol.Upload | buffered.Answer)
            got, want = answer.vectors, self._uploads()
            if not 0 < answer.weight < float("inf"):
                return f"its update has the weight {answer.weight}; it must be a number above 0"
            if self.guard is not None:
                return self._guarded(
                    name, got, answer.number if isinstance(answer, buffered.Answer) else self.at
                )
        for key in (*want, *got):
            if key not in got or key not in want:
                return f"its answer has {'no' if key in want else 'a strange'} vector {key!r:.40}"
            shape, dtype = want[key]
            if tuple(got[key].shape) != shape or got[key].dtype != dtype:
                return (
                    f"its vector {key!r} has the shape {tuple(got[key].shape)} and {got[key].dtype}; it "
                    f"must be {shape} and {dtype}"
                )
            if not isinstance(answer, protocol.Tested) and not torch.isfinite(got[key]).all():
                return f"its vector {key!r} holds NaN or infinity"
        return None

    def _guarded(self, name: str, sent: State, number: int) -> str | None:
        assert self.guard is not None
        if not sent:
            return (
                None
                if name in self.guard.last
                else "it sent nothing, and nothing it sent before is there to be taken again"
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
        """The shapes an update must have: those of one made here, of a row of zeros."""
        if self.shapes is None:
            p, x = self.plan, self.task.x
            one = self.task.on(x.new_zeros(1, *x.shape[1:]), self.task.y.new_zeros(1, *self.task.y.shape[1:]))
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

    def _counts(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        return {
            k: (tuple(v.shape), v.dtype)
            for k, v in blank_counts(self.task, self.plan.fed.classes)._asdict().items()
        }

    # --- bringing everybody together ------------------------------------------------------------------------

    def perform(self, server: Callable[..., Any]) -> None:
        async def program(me: Party) -> None:
            self.here[SERVER] = me
            self.admission = joining.Admission(
                me,
                self.plan.fed.parties,
                __version__,
                self.offer,
                self.fits,
                self.note,
                everyone=self.within is None,
            )
            await beside(server(me, admission=self.admission, wrong=self.wrong), self.admission.run())

        if isinstance(self.through, Processes):
            self._on_this_machine(self.through, program)
        else:
            self._from_here(self.through, program)

    def _on_this_machine(self, runtime: Processes, program: Any) -> None:
        p = self.plan
        spec = specified(p.model, "a client")
        with tempfile.TemporaryDirectory(prefix="tacit-") as folder:
            place = (
                Path(folder) if self.place is None else self.place / "parties"
            )  # a run that can be resumed keeps what its clients remember
            programs: dict[str, Any] = {SERVER: program}
            for k, name in enumerate(p.fed.parties):
                deal(p.fed, k, Path(folder) / f"rows-{k}")
                programs[name] = partial(
                    member,
                    data={"dealt": str(Path(folder) / f"rows-{k}")},
                    state=str(place / str(k)),
                    model=spec,
                    device=p.device,
                )
            seeded = Processes(p.seed, runtime.deadline, runtime.at_least, runtime.restart, runtime.max_bytes)
            mine = Ledger()
            seeded.run_sync(programs, here=(SERVER,), ledger=mine, may_leave=p.fed.parties)
            for s in mine.seen:  # the server's own lines are in `here` already
                if s.party != SERVER:
                    self.theirs.record(
                        s.party, s.sender, s.kind, s.reveals, count=s.count, bytes=s.bytes, how=s.how
                    )

    def _from_here(self, at: Deployed, program: Any) -> None:
        import asyncio

        from ...runtimes.link import Link

        async def connected() -> None:
            async with Link(at.kit, seed=self.plan.seed, patience=at.patience, version=__version__) as link:
                await link.run(program)

        asyncio.run(connected())
