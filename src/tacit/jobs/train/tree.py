"""Training over a hierarchy of real parties: the server above, and the edges, which are servers themselves.

An edge has two kits: that of the server of its own federation, and that of a client of the federation above,
whose parties are the edges. Each federation has a hub and an authority of its own, so that no message of a
client leaves its edge's federation.

What an edge sends upward is a request to the owner of its kit there: that kit's policy.toml may refuse it or
let a person decide, and its log and ledger have every exchange.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ... import __version__
from ...algorithms.types import State
from ...engine.task import Task
from ...errors import BadKit, BadParameter, TacitError
from ...parameters import real, whole
from ...parties.ledger import Ledger
from ...parties.party import Party
from ...protocols import picking
from ...protocols import rounds as below
from ...protocols import tree as protocol
from ...runs import Event
from ...runtimes.kits import Kit
from ...runtimes.link import Link
from ...runtimes.streaming import Emitter
from ..devices import placed
from ..ledger_file import record_command
from ..owner import Owner, Request, digest_of
from .contract import Contract
from .contract_request import request_of
from .elsewhere import Deployed
from .messages import SERVER, Uploads
from .networked import NetworkedTrainer
from .plan import Plan
from .preparing import program_of
from .traffic import wire_size
from .trainer import Records, RoundRecord, RunContext

OWN = (
    "federation",
    "server",
    "above",
    "parties",
    "preparation",
)  # entries of a contract that are an edge's own


@dataclass(frozen=True)
class Edge:
    """What makes a server an edge: its kit in the federation above, and rounds between two exchanges."""

    kit: Any
    period: int = whole(1, least=1, doc="rounds between two exchanges with the server above")


@dataclass(frozen=True)
class Top:
    """What makes a server the one above edges."""

    period: int = whole(1, least=1, doc="rounds of the edges between two exchanges")
    # no default: only the operator knows how many rows an edge can have
    max_weight: float = real(
        1.0, above=0, doc="most rows (clients, under a hidden sum) of an edge in a round"
    )


def check_plan(p: Plan) -> None:
    """Raise BadParameter for what edges cannot exchange."""
    why = None
    if p.pace is not None:
        why = (
            "pace: an exchange is after a number of rounds, and asynchronous training has none. Leave it out"
        )
    elif p.algorithm.sees_each:
        name = type(p.algorithm).__name__
        why = f"{name}: it forms clusters, and edges would form different ones. Use another algorithm"
    elif p.picks:
        name = type(p.algorithm).__name__
        why = f"{name}: only one client of an edge sends a model, which no weight says. Use another algorithm"
    elif p.patience is not None:
        why = "patience: edges would stop at different rounds. Leave it out"
    elif program_of(p, p.through.layout) is not None:
        why = (
            "a federated preparation: each edge would scale its columns differently. Declare mean and std in "
            '[data], or give fit = "party" or "none"'
        )
    if why is not None:
        raise BadParameter(f"a hierarchy of real parties cannot have this job: {why}.")


def check_above(kit: Kit, upper: Kit) -> None:
    """Raise BadKit unless the kits of an edge's federation name the federation that gets its model."""
    if kit.above == upper.federation:
        return
    says = "name no federation above" if kit.above is None else f"name {kit.above!r} as the federation above"
    raise BadKit(
        f"the kits of {kit.federation!r} {says}, and --under gives the kit of {upper.federation!r}. Parties "
        f'are told who else gets the model: write above = "{upper.federation}" into the federation file of '
        f"{kit.federation!r}, run `tacit provision` again, and give each party its party.toml."
    )


def text_of_job(contract: Contract, parent: tuple[str, str, tuple[str, ...]], period: int) -> str:
    """Return what the server above and all edges must have in common; they compare its digest."""
    common = {k: v for k, v in contract.tables.items() if k not in OWN}
    common["train"] = {k: v for k, v in common["train"].items() if k != "per_round"}
    federation, server, edges = parent
    common |= {"above": [federation, server, list(edges)], "period": period}
    return json.dumps(common, sort_keys=True)


def exchange_after(r: int, period: int, last: int) -> int | None:
    """Return which exchange (from 0) follows round r (from 0) of `last`; None: no exchange."""
    return r // period if (r + 1) % period == 0 or r + 1 == last else None


class EdgeTrainer(NetworkedTrainer):
    """A server of real parties that exchanges its model with a server above."""

    def __init__(self, task: Task, starts: list[State], plans: list[Plan], context: RunContext):
        super().__init__(task, starts, plans, context)
        check_plan(self.plan)
        self.edge: Edge = self.through.tree  # type: ignore[union-attr]
        check_above(self.through.kit, self.edge.kit)  # type: ignore[union-attr]
        self.name = "an edge of parties on their own machines"
        self.weight = float(context.metadata.get("edge weight", 0.0))  # since the last exchange
        self.upper = Ledger()
        self.owner: Owner | None = None  # of the kit above, once it allows this

    def checkpoint_metadata(self) -> dict[str, Any]:
        return {**super().checkpoint_metadata(), "edge weight": self.weight}

    def ledgers(self) -> list[Ledger]:
        return [*super().ledgers(), self.upper]

    async def _prepare_and_run(self, server: Any, me: Party) -> None:
        kit, owner = self.edge.kit, Owner.of(self.edge.kit)
        request = self._request()
        patience = self.through.patience  # type: ignore[union-attr]
        async with Link(kit, patience=patience, version=__version__, needs=(kit.server,)) as link:
            self.upper = link.mailbox.ledger

            async def run(above: Party) -> None:
                if owner is not None:
                    await self._ask(owner, request)
                shapes = protocol.shapes_of(self._sent())
                self.uplink = protocol.Uplink(above, kit.server, request.digest, shapes)
                await self.uplink.start()
                await NetworkedTrainer._prepare_and_run(self, server, me)
                await self.uplink.finish()

            with record_command(kit.directory, self.upper, "party", kit.name):
                try:
                    await link.run(run)
                except BaseException as error:
                    if self.owner is not None:
                        self.owner.end(request.digest, f"{type(error).__name__}: {error}")
                    raise
                if self.owner is not None:
                    self.owner.end(request.digest, "")

    def _request(self) -> Request:
        """What the owner of the kit above decides about."""
        kit, period = self.edge.kit, self.edge.period
        edges = tuple(name for name in kit.parties if name != kit.server)
        text = text_of_job(self.contract, (kit.federation, kit.server, edges), period)
        below = request_of(self.contract, self.plan, None)
        about = f"send {kit.server!r} the model of this edge's parties every {period} rounds: {below.about}"
        return replace(below, askers=(kit.server,), parties=edges, text=text, about=about)

    async def _ask(self, owner: Owner, request: Request) -> None:
        try:
            await owner.admit(request)
        except TacitError as error:
            owner.refuse(request.digest, str(error))
            raise
        self.owner = owner

    def _sent(self) -> State:
        return {k: v.detach().cpu() for k, v in self.server.items()}

    async def after_merge(self, r: int, last: int, uploads: Uploads | picking.BestUpload | None) -> None:
        if isinstance(uploads, below.SumResult):
            self.weight += len(uploads.included)
        elif isinstance(uploads, Mapping):
            self.weight += float(sum(w for w, _ in uploads.values()))
        t = exchange_after(r, self.edge.period, last)
        if t is not None:
            if self.owner is not None:
                self.owner.check_running(self.uplink.job)
                self.owner.answer(self.uplink.job, f"the model of exchange {t + 1}")
            mean = await self.uplink.exchange(t, self.weight, self._sent())
            self.server, self.weight = placed(self.task.x.device, mean), 0.0
            self.facts["exchange"] = t + 1


class TopTrainer(NetworkedTrainer):
    """The server above edges: one record for each exchange. It has no rows, and evaluates nothing."""

    def __init__(self, task: Task, starts: list[State], plans: list[Plan], context: RunContext):
        (p,) = plans
        check_plan(p)
        super().__init__(task, starts, [replace(p, guard=())], context)
        self.top: Top = self.through.tree  # type: ignore[union-attr]
        self.name = "edges on their own machines"
        self.asked_job = p

    def run(self, rounds: range) -> Records:
        emitter = Emitter[list[RoundRecord]]()
        assert isinstance(self.through, Deployed)
        program = partial(self._exchange, rounds, emitter)
        yield from emitter.stream(partial(self._connect, self.through, program))

    async def _exchange(self, rounds: range, emitter: Emitter[list[RoundRecord]], me: Party) -> None:
        self.parties[SERVER] = me
        period, last = self.top.period, self.plan.rounds
        done, exchanges = -(-rounds.start // period), -(-last // period)
        kit, edges = self.through.kit, self.plan.fed.parties  # type: ignore[union-attr]
        contract = Contract.of(self.asked_job, self.through.layout, kit.server, list(self.task.x.shape[1:]))  # type: ignore[union-attr]
        job = digest_of(text_of_job(contract, (kit.federation, kit.server, edges), period))
        state = {k: v.detach().cpu() for k, v in self.server.items()}

        async def merged(t: int, weights: Mapping[str, float], mean: State, wrong: Mapping[str, str]) -> None:
            self.server = placed(self.task.x.device, mean)
            self.facts = {"exchange": t + 1, "weights": dict(weights)}
            for name, why in wrong.items():
                self.context.note(f"exchange {t + 1}: the model of edge {name!r} was left out: {why}")
            self.drop(t, wrong)
            record = replace(
                self.record(min((t + 1) * period, last), last, list(weights)),
                tested=0,
                bytes_up=len(edges) * wire_size(protocol.EdgeModel(t, 1.0, mean)),
                bytes_down=len(edges) * wire_size(protocol.EdgeTurn(job, t + 1, mean)),
            )
            await self.finish_round(emitter, record, {})

        most = self.top.max_weight * period
        shapes = protocol.shapes_of(state)
        await protocol.server(
            me, edges, job, range(done, exchanges), state if done else {}, shapes, most, merged
        )

    def ledger(self, i: int, events: list[Event]) -> Ledger:
        ledger = Ledger()
        for one in self.ledgers():
            ledger.merge(one)
        return ledger

    def personal(self, i: int) -> list[State]:
        raise BadParameter("models: the server above edges has no parties' models. Ask the edges' parties.")

    def landscape(self, i: int) -> dict[str, Any]:
        raise BadParameter("landscape: the server above edges has no rows. Leave it out.")
