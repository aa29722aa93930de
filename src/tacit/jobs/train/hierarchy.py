"""Training through edges: tacit.train(…, topology=tacit.Hierarchy(edges=4, period=2))."""

from __future__ import annotations

import dataclasses
import itertools
import json
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ... import aggregate
from ...aggregate.mean import combine
from ...algorithms.types import State
from ...config.train import algorithm_table
from ...data.federation import Rows
from ...data.inputs import blank_from, outline_of
from ...engine.task import Task
from ...errors import SumAborted
from ...pace.scheduler import under
from ...parameters import from_table, to_table
from ...parties.ledger import Ledger
from ...protocols import hierarchy as protocol
from ...protocols import rounds as below
from ...runs import Event
from ...runtimes.streaming import Emitter
from . import guards as guarding
from .plan import Plan
from .simulated import SimulatedTrainer
from .traffic import round_sizes
from .trainer import Records, RoundRecord, RunContext, evaluates

if TYPE_CHECKING:
    from ...guard import Guard
    from ...runtimes.processes import Processes
    from .hidden_sums import HiddenSum

SERVER = "server"


def names_of(p: Plan) -> list[list[str]]:
    """Return the names of the nodes of each level, from the clients up."""
    return [list(p.fed.parties), *p.topology.names, [SERVER]]


class HierarchicalTrainer(SimulatedTrainer):
    """One run of the cohort for every edge; their models are averaged after each level's period."""

    def __init__(self, task: Task, starts: list[State], plans: list[Plan], context: RunContext):
        (p,) = plans
        self.plan, self.hierarchy = p, p.topology
        self.groups = p.topology.groups(len(p.fed))
        clients, n = self.groups[0], len(self.groups[0])
        self.edges = p.edges()
        super().__init__(task, starts * n, self.edges, dataclasses.replace(context, states=()))
        self.plans, self.seconds = [p], [None]
        for i, members in enumerate(clients):
            self.cohort.runs[i] = dataclasses.replace(
                self.cohort.runs[i], choose=partial(self._chosen, np.array(members))
            )
        # behind each edge since each level's last exchange
        self.edge_weights = np.zeros((len(self.hierarchy.levels), n))
        self.rows = np.array([float(p.fed.train.sizes[torch.tensor(c)].sum()) for c in clients])
        where = {"cohort": self.name, "inprocess": "in-process parties"}
        self.name = f"hierarchy, {where.get(p.runtime, 'one process a party')}"
        self.sent = [0] * len(self.hierarchy.levels)  # models that went up from each level
        self.party_ledger = Ledger()  # where each party has a program
        if p.runtime != "cohort":
            shapes = guarding.layout_of(task, p.algorithm, starts[0]).shapes
            self.cohort.upload_shapes = {k: torch.Size(s) for k, s in shapes.items()}
        if context.states:
            (state,) = context.states
            self.cohort.load([under(f"edge.{i}.", state) for i in range(n)])
            self.edge_weights = state["hierarchy.weights"].numpy().copy()
            self.sent = state["hierarchy.sent"].tolist()

    def _chosen(self, members: np.ndarray, number: int) -> np.ndarray:
        """Return those of an edge's clients that a server without edges would have chosen."""
        return members[np.isin(members, guarding.chosen(self.plan, number))]

    @property
    def weights(self) -> Tensor:
        return self._mean(self.cohort.w)

    @property
    def buffers(self) -> Tensor | None:
        return None if self.cohort.buffers is None else self._mean(self.cohort.buffers)

    def _mean(self, of_edges: Tensor) -> Tensor:
        """Return what the server would have if it averaged the edges now."""
        weights = self.edge_weights[-1] if self.edge_weights[-1].sum() else self.rows
        share = torch.from_numpy(weights / weights.sum()).to(of_edges)
        return of_edges[:1].clone() if bool((of_edges == of_edges[:1]).all()) else (share @ of_edges)[None]

    def run(self, rounds: range) -> Records:
        if self.plan.runtime == "cohort":
            yield from super().run(rounds)
            return
        if rounds.start == 0 and evaluates(self.plan, 0, rounds.stop):
            yield self.records(0, rounds.stop, [np.arange(0)])
        yield from Programs(self, rounds).stream()

    def step(self, r: int) -> list[np.ndarray]:
        chosen = self.cohort.round(r)
        for i, c in enumerate(chosen):
            weighted = self.plan.algorithm.weighted
            self.edge_weights[:, i] += (
                float(self.plan.fed.train.sizes[torch.from_numpy(c)].sum()) if weighted else len(c)
            )
        self._exchange(r + 1, is_last=r + 1 == self.last)
        return [np.concatenate(chosen)]

    def _exchange(self, rounds: int, is_last: bool) -> None:
        """Average the models below each node of every level whose period is over; after the last round, of
        all.
        """
        below = [[e] for e in range(len(self.groups[0]))]
        for i, (level, period) in enumerate(zip(self.groups[1:], self.hierarchy.periods)):
            children = below
            below = [sorted(e for child in node for e in children[child]) for node in level]
            if rounds % period and not is_last:
                return
            self.sent[i] += len(children)
            for edges in below:
                at = torch.tensor(edges)
                weight = torch.from_numpy(self.edge_weights[i][edges])
                share = (
                    weight / weight.sum() if float(weight.sum()) else torch.full_like(weight, 1 / len(edges))
                ).to(self.cohort.w)
                state = {"w": self.cohort.w, **self.cohort.state} | (
                    {} if self.cohort.buffers is None else {"buffers": self.cohort.buffers}
                )
                for v in state.values():
                    v[at] = torch.einsum("n,n...->...", share, v[at])[None].expand_as(v[at])
            self.edge_weights[i] = 0

    @property
    def message_plan(self) -> Plan:
        return self.edges[0]

    def save(self, i: int) -> State:
        edges = {
            f"edge.{e}.{k}": v for e in range(len(self.groups[0])) for k, v in self.cohort.save(e).items()
        }
        return edges | {
            "hierarchy.weights": torch.from_numpy(self.edge_weights.copy()),
            "hierarchy.sent": torch.tensor(self.sent),
            "w": self.weights[0].cpu().clone(),
        }

    def landscape(self, i: int) -> dict[str, Any]:
        start = {"w": self.weights[0]} | ({} if self.buffers is None else {"buffers": self.buffers[0]})
        flat = dataclasses.replace(self.plan, guard=(), topology=None)
        return SimulatedTrainer(self.task, [start], [flat], RunContext()).landscape(0)

    def ledger(self, i: int, events: list[Event]) -> Ledger:
        p, ledger = self.plan, Ledger()
        if self.party_ledger.seen:
            ledger.merge(self.party_ledger)
            return ledger
        names, sizes = names_of(p), self.sizes(1)
        reveals = guarding.reveals(self.guards[0]) if self.guards else None
        for e, members in zip(names[1], self.groups[0]):
            steps = sum(e["sampled"] for e in events) * len(members) // len(p.fed)
            ledger.record(
                e,
                f"its {len(members)} clients",
                below.Upload,
                reveals,
                count=steps,
                bytes=steps * sizes.up,
                how="ideal",
            )
            ledger.record(
                f"the {len(members)} clients of {e}",
                e,
                below.Down,
                count=steps,
                bytes=steps * sizes.down,
                how="ideal",
            )
        one = round_sizes(1, {}, {"w": self.weights[0].cpu()}).up
        for i, sent in enumerate(self.sent):
            for name, children in zip(names[i + 2], self.groups[i + 1]):
                times, who = (
                    sent * len(children) // len(names[i + 1]),
                    ", ".join(names[i + 1][k] for k in children),
                )
                ledger.record(name, who, protocol.Below, count=times, bytes=times * one, how="ideal")
                ledger.record(who, name, protocol.Above, count=times, bytes=times * one, how="ideal")
        return ledger


# one program per party --------------------------------------------------------------------------------------


class Programs:
    """The server's program here; edges, levels and clients in this process or each in one of its own."""

    def __init__(self, trainer: HierarchicalTrainer, rounds: range):
        self.trainer, self.rounds, self.plan = trainer, rounds, trainer.plan
        self.emitter = Emitter[list[RoundRecord]]()

    def stream(self) -> Records:
        """Run the programs; yield the records that the server emits."""
        from ...runtimes.inprocess import InProcess
        from .hidden_sums import signing_keys
        from .party_rows import save_rows

        p, t = self.plan, self.trainer
        names, periods = names_of(p), p.topology.periods
        keys = signing_keys(p, t.guards[0] if t.guards else None)
        blocks = [
            range(a, min(a + periods[0], self.rounds.stop))
            for a in range(self.rounds.start, self.rounds.stop, periods[0])
        ]
        per = [periods[0], *(b // a for a, b in itertools.pairwise(periods))]
        with tempfile.TemporaryDirectory(prefix="tacit-") as folder:
            programs: dict[str, Any] = {}
            for e, members in enumerate(t.groups[0]):
                boss = _above(t.groups[1], names[2], e)
                programs[names[1][e]] = partial(
                    edge,
                    boss=boss,
                    blocks=[[b.start, b.stop] for b in blocks],
                    job=json.dumps(self._job(e)),
                    server={k: v.cpu() for k, v in self._state(e).items()},
                    chosen=self._chosen(e),
                )
                for k in members:
                    save_rows(p.fed, k, Path(folder) / str(k))
                    programs[p.fed.parties[k]] = partial(
                        client,
                        place=str(Path(folder) / str(k)),
                        job=json.dumps(self._job(e) | {"epochs": p.local_epochs[k]}),
                        boss=names[1][e],
                        identities=keys,
                    )
            exchanges = len(blocks)
            for i in range(1, len(p.topology.levels)):
                for k, name in enumerate(names[i + 1]):
                    programs[name] = partial(
                        middle,
                        boss=_above(t.groups[i + 1], names[i + 2], k),
                        below=[names[i][j] for j in t.groups[i][k]],
                        exchanges=exchanges,
                        period=per[i],
                    )
                exchanges = -(-exchanges // per[i])

            async def top(me: Any) -> None:
                await protocol.level(me, None, names[-2], exchanges, 1, self._emit)

            programs[SERVER] = top
            if p.runtime == "inprocess":
                yield from InProcess(seed=p.seed).stream(programs, self.emitter, ledger=t.party_ledger)
            else:
                runtime: Processes = dataclasses.replace(p.through, seed=p.seed)
                yield from runtime.stream(programs, self.emitter, ledger=t.party_ledger, here=(SERVER,))

    async def _emit(self, t: int, vectors: State) -> None:
        """Give the server's new model to all edges, and emit the rounds that led to it."""
        cohort, step = self.trainer.cohort, self.plan.topology.periods[-1]
        for k, v in vectors.items():
            there = v.to(cohort.device)[None].expand(len(cohort.w), *v.shape).clone()
            if k == "w":
                cohort.w = there
            elif k == "buffers":
                cohort.buffers = there
            else:
                cohort.state[k] = there
        for r in range(
            self.rounds.start + t * step, min(self.rounds.start + (t + 1) * step, self.rounds.stop)
        ):
            await self.emitter.emit(
                self.trainer.records(r + 1, self.rounds.stop, [guarding.chosen(self.plan, r)])
            )

    def _state(self, e: int) -> State:
        c = self.trainer.cohort
        return {"w": c.w[e], **{k: v[e] for k, v in c.state.items()}} | (
            {} if c.buffers is None else {"buffers": c.buffers[e]}
        )

    def _chosen(self, e: int) -> list[list[str]]:
        members = np.array(self.trainer.groups[0][e])
        return [[self.plan.fed.parties[k] for k in self.trainer._chosen(members, r)] for r in self.rounds]

    def _job(self, e: int) -> dict[str, Any]:
        from .from_job import code_spec, model_spec

        p, guards = self.plan, self.trainer.guards
        members = [p.fed.parties[k] for k in self.trainer.groups[0][e]]
        return {
            "clients": members,
            "first": self.rounds.start,
            "stop": self.rounds.stop,
            "seed": p.seed,
            "epochs": 1,
            "batch_size": p.batch_size,
            "local_steps": p.local_steps,
            "precision": p.precision,
            "objective": p.objective.to_dict(),
            "algorithm": algorithm_table(p.algorithm),
            "model": p.job(None)["model"],
            "spec": model_spec(p.model, "a client"),
            "code": code_spec(p, "a client"),
            "federation": f"{p.fed.name}, edge {e}",
            "features": list(p.fed.rows.x.shape[1:]),
            "inputs": outline_of(p.fed.rows.x),
            "labels": list(p.fed.rows.y.shape[1:]),
            "classes": p.fed.classes,
            "rule": to_table(p.aggregate),
            "guard": guarding.to_message(guards[e], f"{p.fed.name}, edge {e}") if guards else None,
        }


def _above(groups: list[list[int]], names: list[str], k: int) -> str:
    return next(name for name, below in zip(names, groups) if k in below)


async def client(
    me: Any, *, place: str, job: str, boss: str, identities: Mapping[str, Any] | None = None
) -> None:
    """Run the program of a client: that of rounds.py, with its edge as the server."""
    from .from_job import member_from_job

    settings = json.loads(job)
    member = member_from_job(me.name, place, settings)
    hidden, state = _hidden_sum(member.guard, settings, identities), member.fresh_state()

    def local(r: int, down: State) -> tuple[float, State]:
        nonlocal state
        weight, vectors, state = member.local(r, down, state)
        return weight, vectors

    await below.client(me, local, member.test, boss, hidden=lambda: hidden)


def _hidden_sum(
    guard: Guard | None, settings: dict[str, Any], identities: Mapping[str, Any] | None = None
) -> HiddenSum | None:
    from .hidden_sums import HiddenSum

    if guard is None or guard.hiding is None:
        return None
    return HiddenSum(guard, settings["guard"]["federation"], identities)


async def edge(
    me: Any, *, boss: str, blocks: list[list[int]], job: str, server: State, chosen: list[list[str]]
) -> None:
    """Run the program of an edge: a server to its clients, and a client of the level above."""
    from .from_job import algorithm_from_job, task_from_job
    from .messages import server_step

    settings = json.loads(job)
    algorithm = algorithm_from_job(settings)
    x = blank_from(settings["inputs"], 2)
    y = torch.zeros(2, *settings["labels"], dtype=torch.int64 if settings["classes"] else torch.float32)
    task = task_from_job(settings, Rows(x, y))  # an edge has no rows: it needs the model's layers alone
    rule = from_table(settings["rule"], aggregate.ALL, "aggregate").with_layers(
        tuple(s.stop - s.start for s in task.parameters)
    )
    guard = guarding.from_message(settings["guard"], task, algorithm, settings["seed"])
    hidden = _hidden_sum(guard, settings)
    state, weight, clients = dict(server), 0.0, settings["clients"]  # weight: since the last exchange

    def down(r: int) -> State:
        return (
            {k: v for k, v in state.items() if k in ("w", "buffers", *algorithm.sends)}
            | {"round": torch.tensor(float(r))}
            | ({} if guard is None else guard.server_message())
        )

    async def merge(r: int, uploads: Any) -> None:
        nonlocal state, weight
        if uploads is None:
            raise SumAborted(
                f"round {r + 1} was lost at {me.name!r} after updates had been masked. Start the run again.",
                spent=True,
            )
        if isinstance(uploads, below.SumResult):
            assert guard is not None
            n = len(uploads.included)
            mean, weight = guard.back(uploads.total, float(n), down(r), r), weight + n
        elif uploads:
            n, weight = len(uploads), weight + float(sum(w for w, _ in uploads.values()))
            mean = (
                combine(list(uploads.values()), rule)
                if guard is None
                else guard.decode_uploads(uploads, down(r), r)
            )
        else:
            return
        state = server_step(algorithm, state, mean, n / len(clients))

    async def no_model(r: int) -> None:
        """An edge has no model tested."""

    async def untested(r: int, answers: Any) -> None:
        raise AssertionError("an edge has no model tested")

    async def serve(block: range) -> None:
        await below.server(
            me,
            clients,
            block,
            lambda r: chosen[r - settings["first"]],
            down,
            merge,
            no_model,
            untested,
            hidden=hidden,
            stop=block.stop == settings["stop"],
        )

    def stand() -> tuple[float, State]:
        nonlocal weight
        total, weight = weight, 0.0
        return total, state

    def take(vectors: State) -> None:
        nonlocal state
        state = dict(vectors)

    await protocol.edge(me, boss, [range(a, b) for a, b in blocks], serve, stand, take)


async def middle(me: Any, *, boss: str, below: list[str], exchanges: int, period: int) -> None:
    await protocol.level(me, boss, below, exchanges, period)
