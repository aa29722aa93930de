"""tacit.gossip: training without a server."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch
from torch import Tensor

from ...algorithms.types import State
from ...config.gossip import GOSSIP, SHARED
from ...config.signature import with_options
from ...config.train import algorithm_table
from ...data.federation import Federation
from ...engine.task import Task
from ...graphs import Graph
from ...parameters import bad
from ...parties.ledger import Ledger
from ...protocols import gossip as protocol
from ...results import Result
from ...runs import Event
from ...topologies import Gossip, senders
from .plan import Plan
from .simulated import SimulatedTrainer
from .traffic import MessageSizes, round_sizes
from .train import train
from .trainer import Records, RoundRecord, RunContext, evaluates, make_record

if TYPE_CHECKING:
    from ...config.types import GossipOptions

EACH = 100  # with more nodes than this, each one's accuracy is found after the last round only
LINES = 200  # with more links than this, the ledger has one line for all of them


@with_options(GOSSIP | SHARED)
def gossip(
    fed: Federation,
    *,
    graph: Graph,
    out: str | Path | None = None,
    resume: bool = False,
    data_job: dict[str, Any] | None = None,
    watch: Callable[[Event], None] | None = None,
    **options: Unpack[GossipOptions],
) -> Result:
    """Train without a server: each party has a model, and averages it with those of its neighbors in `graph`.

    `mode="average"` is decentralized SGD: local steps, then Θ ← WΘ, every `period` rounds. "push_sum" is for
    directed links. "push" is gossip learning: a node wakes every `wait` seconds and sends its model to one
    neighbor, which merges it and trains; with `churn`, nodes are offline for a share of the time. `secure`
    hides single models from neighbors. The result's model and metrics are those of the mean of all nodes'
    models; `history` has each node's accuracy and the consensus distance, √(mean ‖θ_k − θ̄‖²).
    """
    if not isinstance(graph, Graph):
        raise bad("gossip", "graph", graph, "a graph such as graphs.ring(16)")
    topology = Gossip(graph, **{name: v for name, v in options.items() if name in GOSSIP})  # type: ignore[arg-type]
    shared: Any = {name: v for name, v in options.items() if name in SHARED}
    return train(fed, **shared, topology=topology, out=out, resume=resume, data_job=data_job, watch=watch)


class GossipTrainer(SimulatedTrainer):
    """All nodes as one stack, or one program per node; in either case each node has a row of `theta`."""

    def __init__(self, task: Task, starts: list[State], plans: list[Plan], context: RunContext):
        (p,) = plans
        self.topology: Gossip = p.topology
        super().__init__(task, starts, plans, dataclasses.replace(context, states=()))
        n = len(p.fed)
        self.theta: State = {
            k: v.to(self.cohort.device).expand(n, *v.shape).clone() for k, v in starts[0].items()
        }
        self.share = torch.ones(n, device=self.cohort.device)  # push-sum's weight; in gossip learning the age
        if self.topology.mode == "push":
            self.share.zero_()
        self.works = np.zeros(n, dtype=np.int64)  # local updates so far (push)
        self.links = 0  # messages so far
        if context.states:
            (state,), device = context.states, self.cohort.device
            self.theta = {k: state[f"node.{k}"].to(device) for k in self.theta}
            self.share, self.works = state["node.share"].to(device), state["node.works"].numpy().copy()
            self.links = int(state["node.links"])
        self.recorded_links = self.links  # those that are in the records so far
        where = {
            "cohort": f"nodes {self.cohort.manner}",
            "inprocess": "in-process nodes",
        }
        self.name = f"gossip, {where.get(p.runtime, 'one process a node')}"
        graph = self.topology.graph
        self.notes = [
            *self.notes,
            f"{graph.name}, {n} nodes, {links(graph)} links an exchange, spectral gap {graph.gap():.3f}",
        ]
        edges = sorted({e for g in (graph.turns or (graph,)) for e in g.edges})
        self.start_events = {
            "graph": {
                "name": graph.name,
                "nodes": n,
                "gap": graph.gap(),
                "names": list(p.fed.parties) if n <= EACH else [],
                "edges": [list(e) for e in edges] if n <= EACH else [],
            }
        }
        self.node_ledger = Ledger()  # where each node has a program

    # the nodes' models --------------------------------------------------------------------------------------

    @property
    def models(self) -> State:
        """Each node's model, [n, …]."""
        return (
            self.theta
            if self.topology.mode != "push_sum"
            else {k: v / self.share.view(-1, *[1] * (v.dim() - 1)) for k, v in self.theta.items()}
        )

    @property
    def weights(self) -> Tensor:
        return self.models["w"].mean(0, keepdim=True)

    @property
    def buffers(self) -> Tensor | None:
        return self.models["buffers"].mean(0, keepdim=True) if "buffers" in self.theta else None

    def save(self, i: int) -> State:
        state = {
            "share": self.share,
            "works": torch.from_numpy(self.works),
            "links": torch.tensor(self.links),
            **self.theta,
        }
        return {f"node.{k}": v.detach().cpu().clone() for k, v in state.items()} | {
            "w": self.weights[0].cpu().clone()
        }

    def evaluate(self, r: int) -> list[dict[str, Any]]:
        (metrics,), (p,), nodes = super().evaluate(r), self.plans, self.models
        distance = (nodes["w"] - nodes["w"].mean(0)).square().sum(1).mean().sqrt()
        test = p.fed.test_at(r)
        if p.fed.classes is not None and len(test.y) and (len(p.fed) <= EACH or r == p.rounds):
            x, buffers = test.x.to(nodes["w"].device), nodes.get("buffers")
            outs = (
                self.task.predict(w, x, None if buffers is None else buffers[k])
                for k, w in enumerate(nodes["w"])
            )
            labels = int((test.y >= 0).sum())
            each = [int((out.argmax(-1).cpu() == test.y).sum()) / labels for out in outs]
            metrics |= {"nodes": {"accuracy": each}, "worst_node": min(each)}
        return [metrics | {"consensus": float(distance)}]

    # rounds -------------------------------------------------------------------------------------------------

    def run(self, rounds: range) -> Records:
        topology, last = self.topology, rounds.stop
        if rounds.start == 0 and evaluates(self.plans[0], 0, last):
            yield [self._record(0, last, ())]
        for r, share, theta in self._steps(rounds):
            self.share, self.theta = share, theta
            if topology.mode != "push" and (r + 1) % topology.period == 0:
                self.links += links(topology.graph.at((r + 1) // topology.period - 1))
            yield [self._record(r + 1, last, self.plans[0].fed.parties)]

    def _steps(self, rounds: range) -> Iterator[tuple[int, Tensor, State]]:
        """Compute these rounds; yield (round, share, theta) after each."""
        if self.plans[0].runtime != "cohort":
            return Programs(self, rounds).steps()
        if self.topology.mode == "push":
            return map(self._cycle, rounds)
        return protocol.ideal(
            rounds, self.topology.period, self._mixing_matrix, self._train, self.share, self.theta
        )

    def _record(self, r: int, last: int, nodes: Sequence[str]) -> RoundRecord:
        """Nodes receive from each other: what one sends is counted once, as sent."""
        p, new = self.plans[0], self.links - self.recorded_links
        self.recorded_links = self.links
        metrics = self.evaluate(r)[0] if evaluates(p, r, last) else {}
        size = round(self._model_size() * new / len(p.fed)) if r else 0  # a node's, on average
        return make_record(p, None, r, last, nodes, MessageSizes(up=size), metrics=metrics, orders=0)

    def _mixing_matrix(self, t: int) -> Tensor:
        w = torch.from_numpy(self.topology.graph.at(t).matrix()).to(self.cohort.device, torch.float32)
        sparse = len(w) > 64 and float((w != 0).double().mean()) < 0.1
        return w.to_sparse() if sparse else w

    def _train(self, r: int, theta: State) -> State:
        n = len(theta["w"])
        return self._train_nodes(r, np.arange(n), np.full(n, r), theta)

    def _train_nodes(self, r: int, who: np.ndarray, works: np.ndarray, theta: State) -> State:
        """Return the models after local training from these; an update is added to its starting point."""
        down = {**theta, "round": torch.full((len(who),), float(r), device=self.cohort.device)}
        models = self.cohort.train_separately(r, who, works, down)
        if "delta" in models:
            models["w"] = theta["w"] + models.pop("delta")
        return models

    def _cycle(self, r: int) -> tuple[int, Tensor, State]:
        """Compute one period of Δ of gossip learning: every node that is online sends once."""
        p, n = self.plans[0], len(self.plans[0].fed)
        schedules = [schedule_of(p, k, range(r, r + 1)) for k in range(n)]
        for wave in protocol.waves(protocol.pushes(schedules, self.topology.wait, r)):
            to, by = np.array([e.receiver for e in wave]), torch.tensor([e.sender for e in wave])
            at = torch.from_numpy(to).to(self.cohort.device)
            ages, theirs = self.share[at], self.share[by]
            part = torch.where(
                ages + theirs > 0, theirs / (ages + theirs).clamp(min=1), torch.full_like(ages, 0.5)
            )
            mixed = {
                k: v[at] + part.view(-1, *[1] * (v.dim() - 1)) * (v[by] - v[at])
                for k, v in self.theta.items()
            }
            for k, v in self._train_nodes(r, to, self.works[to], mixed).items():
                self.theta[k] = self.theta[k].index_copy(0, at, v)
            self.share = self.share.index_copy(0, at, torch.maximum(ages, theirs) + 1)
            self.works[to] += 1
            self.links += len(wave)
        return r, self.share, self.theta

    # reports ------------------------------------------------------------------------------------------------

    def _model_size(self) -> int:
        """Return the bytes of a node's model on the wire."""
        return round_sizes(1, {}, {k: v[0].cpu() for k, v in self.theta.items()}).up

    def ledger(self, i: int, events: list[Event]) -> Ledger:
        ledger, p = Ledger(), self.plans[0]
        if self.node_ledger.seen:
            ledger.merge(self.node_ledger)
            return ledger
        graph, names, one = self.topology.graph, p.fed.parties, self._model_size()
        pairs = sorted(
            {(k, j) for g in (graph.turns or (graph,)) for k in range(g.nodes) for j in senders(g, k)}
        )
        hidden = (
            "the weighted sum of a node's neighbors' models, and no single model"
            if self.topology.secure
            else None
        )
        if self.topology.mode == "push" or len(pairs) > LINES:
            ledger.record(
                f"{len(names)} nodes",
                "their neighbors",
                protocol.Model,
                hidden,
                count=self.links,
                bytes=self.links * one,
                how="ideal",
            )
            return ledger
        exchanges = max((e["round"] for e in events), default=0) // self.topology.period
        for k, j in pairs:
            times = sum(j in senders(graph.at(t), k) for t in range(exchanges)) if graph.turns else exchanges
            ledger.record(
                names[k], names[j], protocol.Model, hidden, count=times, bytes=times * one, how="ideal"
            )
        return ledger


def links(graph: Graph) -> int:
    """Return the messages of one exchange (of graphs that alternate, of the first)."""
    first = graph.at(0)
    return sum(len(senders(first, k)) for k in range(first.nodes))


def schedule_of(p: Plan, k: int, cycles: range) -> protocol.WakeSchedule:
    return protocol.wake_schedule(
        p.seed, k, p.topology.graph.neighbors()[k], cycles, p.topology.wait, p.topology.churn
    )


# one program per node ---------------------------------------------------------------------------------------


class Programs:
    """The same over messages, in one process or in one for each node."""

    def __init__(self, trainer: GossipTrainer, rounds: range):
        self.trainer, self.rounds, self.plan = trainer, rounds, trainer.plans[0]

    def steps(self) -> Iterator[tuple[int, Tensor, State]]:
        """Run all nodes to the end; then yield (round, share, theta) of each round, which they kept."""
        from .party_rows import save_rows

        p, t = self.plan, self.trainer
        with tempfile.TemporaryDirectory(prefix="tacit-") as folder:
            programs = {}
            for k, name in enumerate(p.fed.parties):
                save_rows(p.fed, k, Path(folder) / str(k))
                programs[name] = partial(
                    node,
                    place=str(Path(folder) / str(k)),
                    job=json.dumps(self._job(k)),
                    share=float(t.share[k]),
                    works=int(t.works[k]),
                    vectors={key: v[k].cpu() for key, v in t.theta.items()},
                )
            results = self._runtime().run_sync(programs, ledger=t.node_ledger)
        nodes, device = [results[name] for name in p.fed.parties], t.cohort.device
        if t.topology.mode == "push":
            t.links, t.works = sum(n["sent"] for n in nodes), np.array([n["works"] for n in nodes])
        for i, r in enumerate(self.rounds):
            theta = {k: torch.stack([n["steps"][i][1][k] for n in nodes]).to(device) for k in t.theta}
            yield r, torch.tensor([n["steps"][i][0] for n in nodes], device=device), theta

    def _runtime(self) -> Any:
        from ...runtimes.inprocess import InProcess

        if self.plan.runtime == "inprocess":
            return InProcess(seed=self.plan.seed)
        return dataclasses.replace(self.plan.through, seed=self.plan.seed)

    def _job(self, k: int) -> dict[str, Any]:
        from .from_job import code_spec, model_spec

        p, g = self.plan, self.plan.topology
        exchanges = []
        for t in range(len(g.graph.turns) or 1):
            w = g.graph.at(t).matrix()
            names = p.fed.parties
            takes = {
                i: {names[j]: float(w[i, j]) for j in range(len(names)) if w[i, j] or i == j}
                for i in range(len(names))
            }
            to = [i for i in range(len(names)) if i != k and w[i, k]]
            exchanges.append(
                {
                    "to": [names[i] for i in to],
                    "takes": takes[k],
                    "around": {names[i]: takes[i] for i in to} if g.secure else {},
                }
            )
        hears = [p.fed.parties[i] for i in range(len(p.fed)) if k in g.graph.at(0).neighbors()[i]]
        return {
            "k": k,
            "names": list(p.fed.parties),
            "mode": g.mode,
            "period": g.period,
            "wait": g.wait,
            "churn": g.churn,
            "secure": g.secure,
            "exchanges": exchanges,
            "neighbors": g.graph.at(0).neighbors()[k],
            "hears": hears,
            "first": self.rounds.start,
            "stop": self.rounds.stop,
            "seed": p.seed,
            "epochs": p.local_epochs[k],
            "batch_size": p.batch_size,
            "local_steps": p.local_steps,
            "precision": p.precision,
            "objective": p.objective.to_dict(),
            "algorithm": algorithm_table(p.algorithm),
            "model": p.job(None)["model"],
            "federation": p.fed.name,
            "spec": model_spec(p.model, "a node"),
            "code": code_spec(p, "a node"),
            "features": list(p.fed.rows.x.shape[1:]),
            "classes": p.fed.classes,
        }


async def node(me: Any, *, place: str, job: str, share: float, works: int, vectors: State) -> dict[str, Any]:
    """Run the program of a node: its own rows, its own model, its neighbors' names."""
    from .from_job import member_from_job

    settings = json.loads(job)
    member = member_from_job(me.name, place, settings)
    steps: list[tuple[float, State]] = []

    def train_locally(r: int, model: State, work: int | None = None) -> State:
        _, vectors, _ = member.local(r, {**model, "round": torch.tensor(float(r))}, {}, work)
        if "delta" in vectors:
            vectors["w"] = model["w"] + vectors.pop("delta")
        return vectors

    rounds = range(settings["first"], settings["stop"])
    if settings["mode"] == "push":
        wait, neighbors, names = settings["wait"], settings["neighbors"], settings["names"]
        schedule = protocol.wake_schedule(
            settings["seed"], settings["k"], neighbors, rounds, wait, settings["churn"]
        )
        sent = 0

        def count(r: int, model: State) -> State:
            nonlocal sent
            sent += 1
            return train_locally(min(settings["stop"] - 1, int(me.clock.now() / wait)), model, works + r)

        age, vectors = await protocol.pusher(
            me,
            schedule,
            names,
            wait,
            settings["first"],
            count,
            (share, vectors),
            [names[j] for j in neighbors],
            settings["hears"],
        )
        return {"steps": [(age, vectors)] * len(rounds), "works": works + sent, "sent": sent}

    def exchange(t: int) -> protocol.Exchange:
        e = settings["exchanges"][t % len(settings["exchanges"])]
        return protocol.Exchange(e["to"], e["takes"])

    async def mix(me: Any, t: int, e: protocol.Exchange, share: float, vectors: State) -> tuple[float, State]:
        if not settings["secure"]:
            return await protocol.average(me, t, e, share, vectors)
        around = settings["exchanges"][t % len(settings["exchanges"])]["around"]
        grid = protocol.FixedPoint(settings["federation"])
        return await protocol.hidden_average(me, t, e, around, vectors, grid)

    await protocol.node(
        me,
        rounds,
        settings["period"],
        exchange,
        train_locally,
        (share, vectors),
        mix,
        lambda r, s, v: steps.append((s, v)),
    )
    return {"steps": steps, "works": works, "sent": 0}
