"""Training with one program per party, over messages: what real organisations run, here in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import evaluation
from ..aggregate.mean import Mean, combine
from ..algorithms.plan import identify, plan, sample
from ..algorithms.types import Batches, State
from ..metrics import Counts, count
from ..parties.ledger import Ledger
from ..parties.party import Party
from ..protocols import rounds as protocol
from ..runs import Event
from ..runtimes.inprocess import InProcess
from ..task import Task
from .plan import Plan
from .simulated import Simulated, wire_bytes

SERVER = "server"


class Parties:
    """One program per party, over messages: what real organisations run, here in one process."""

    name, notes = "in-process parties", ()

    def __init__(self, task: Task, starts: list[State], plans: list[Plan], saved: list[State | None]):
        (p,) = plans
        self.plan, self.task = p, task
        self.sizes = 0, 0  # bytes of one Down and of one Upload of the last round
        self.earlier = Ledger()  # what was seen before this process took over
        self.here: dict[str, Party] = {}
        at = saved[0]
        self.server = starts[0] | ({k: v for k, v in p.algorithm.server_state(starts[0]["w"]).items()} if at is None else {})
        fresh = p.algorithm.client_state(starts[0]["w"])
        self.kept = {name: fresh for name in p.fed.parties}
        if at is not None:
            self.server = {k[7:]: v for k, v in at.items() if k.startswith("server.")}
            self.kept |= {name: {k: at[f"kept.{j}.{k}"] for k in fresh} for j, name in enumerate(p.fed.parties)}

    @property
    def w(self) -> Tensor:
        return self.server["w"][None]

    @property
    def buffers(self) -> Tensor | None:
        return self.server["buffers"][None] if "buffers" in self.server else None

    def bytes(self, r: int) -> tuple[int, int]:
        return self.sizes

    def run(self, rounds: range, due: Callable[[int], bool], after: Callable[..., None]) -> None:
        p = self.plan
        names = p.fed.parties
        ids = identify(names)
        chosen: list[str] = []

        def choose(r: int) -> list[str]:
            chosen[:] = [names[k] for k in sample(p.seed, r, ids, p.per_round)]
            return chosen

        def down(r: int) -> State:
            keys = ("w", "buffers", *p.algorithm.sends)
            return {k: v.cpu() for k, v in self.server.items() if k in keys} | {"round": torch.tensor(float(r))}

        def merge(r: int, ups: dict[str, tuple[float, State]]) -> None:
            self.sizes = wire_bytes(r + 1, down(r), next(iter(ups.values()))[1])
            mean = {k: v.to(self.task.x.device) for k, v in combine(list(ups.values()), Mean()).items()}
            buffers = {"buffers": mean.pop("buffers")} if "buffers" in mean else {}
            state = {k: v for k, v in self.server.items() if k not in ("w", "buffers")}
            w, state = p.algorithm.merge(self.server["w"], state, mean, torch.tensor(len(ups) / len(names)))
            self.server = {"w": w, **buffers, **state}
            if not due(r + 1):
                after(r + 1, [list(chosen)], [{}])

        def model(r: int) -> State | None:
            return {k: v.cpu() for k, v in self.server.items() if k in ("w", "buffers")} if due(r + 1) else None

        def tested(r: int, answers: dict[str, State]) -> None:
            after(r + 1, [list(chosen)], [self._metrics(r + 1, [Counts(**answers[name]) for name in names])])

        def program(name: str, mine: _Client | None) -> Any:
            def start(me: Party) -> Any:
                self.here[name] = me
                return (protocol.server(me, names, rounds, choose, down, merge, model, tested) if mine is None
                        else protocol.client(me, mine.local, mine.test, boss=SERVER))

            return start

        InProcess(seed=p.seed).run_sync({SERVER: program(SERVER, None), **{name: program(name, _Client(self, k)) for k, name in enumerate(names)}})

    def _metrics(self, r: int, answers: list[Counts]) -> dict[str, Any]:
        p = self.plan
        return evaluation.gather(self.task, self.server["w"], self.server.get("buffers"), p.fed.test_at(r), answers, p.fed.classes)

    def save(self, i: int) -> State:
        kept = {f"kept.{j}.{k}": v for j, name in enumerate(self.plan.fed.parties) for k, v in self.kept[name].items()}
        return {**{f"server.{k}": v for k, v in self.server.items()}, **{k: v.clone() for k, v in kept.items()}}

    def beside(self) -> dict[str, Any]:
        return {"ledger": self.ledger(0, []).to_dict()}

    def landscape(self, i: int) -> dict[str, Any]:
        start = {k: v for k, v in self.server.items() if k in ("w", "buffers")}
        return Simulated(self.task, [start], [self.plan], [None]).landscape(0)

    def ledger(self, i: int, rounds: list[Event]) -> Ledger:
        """What has been seen so far; it is saved with the state, so that a resumed run's ledger is whole."""
        mixed, ledger = Ledger(), Ledger()
        for part in (self.earlier, *(me.ledger for me in self.here.values())):
            mixed.merge(part)
        kinds = [m.kind for m in (protocol.Upload, protocol.Tested, protocol.Down, protocol.Test, protocol.Stop)]
        place = {name: k for k, name in enumerate((SERVER, *self.plan.fed.parties))}
        for s in sorted(mixed.seen, key=lambda s: (kinds.index(s.kind), place[s.party], place[s.sender])):  # whatever was seen before a resume
            ledger.record(s.party, s.sender, s.kind, s.reveals, count=s.count, bytes=s.bytes, how=s.how)
        return ledger


class _Client:
    """What one party does with its own rows. It never sees anyone else's."""

    def __init__(self, parties: Parties, k: int):
        self.parties, self.plan, self.k = parties, parties.plan, k
        self.name = parties.plan.fed.parties[k]
        self.fed = parties.plan.fed.party(k)
        device = parties.task.x.device
        self.task = parties.task.on(*(t.to(device) for t in self.fed.at(0)))

    def local(self, r: int, down: State) -> tuple[float, State]:
        p, (x, y), device = self.plan, self.fed.at(r + 1), self.task.x.device  # data that drifts counts its rounds from 1
        self.task.x, self.task.y = x.to(device), y.to(device)
        size = np.array([int(self.fed.train.sizes[0])])
        batches = plan(p.seed, r, identify([self.name]), size, p.local_epochs[self.k], p.batch_size, p.local_steps).of(0)
        batches = Batches(*(t.to(device) for t in batches._replace(index=self.fed.train.index[batches.index])))
        down = {k: v.to(device) for k, v in down.items()}
        with torch.no_grad():
            upload, self.parties.kept[self.name] = p.algorithm.local(self.task, down, self.parties.kept[self.name], batches)
        return float(upload.weight), {k: v.cpu() for k, v in upload.vectors.items()}

    def test(self, r: int, down: State) -> State:
        rows = self.fed.at(r + 1)
        x, y = rows.x[self.fed.held.index].to(self.task.x.device), rows.y[self.fed.held.index]
        return count(self.task.predict(down["w"], x, down.get("buffers")).cpu(), y, self.fed.classes)._asdict()
