"""Training with all clients in one tensor program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import algorithms, evaluation
from ..algorithms.types import Algorithm, State
from ..data.federation import Rows
from ..parties.ledger import Ledger
from ..runs import Event
from ..runtimes.cohort import Cohort
from ..task import Task
from .plan import Plan


class Simulated:
    """Clients as one tensor program; several runs side by side."""

    def __init__(self, task: Task, starts: list[State], plans: list[Plan], saved: list[State | None]):
        self.plans = plans
        self.cohort = Cohort(task, starts, [p.run() for p in plans], plans[0].engine)
        if saved[0] is not None:
            self.cohort.load(saved[0])
        self.task, self.notes = self.cohort.base, self.cohort.notes
        self.name = f"cohort, clients {'stacked' if self.cohort.engine == 'stack' else 'one by one'}"
        self._bytes: tuple[int, int] | None = None

    @property
    def w(self) -> Tensor:
        return self.cohort.w

    @property
    def buffers(self) -> Tensor | None:
        return self.cohort.buffers

    def run(self, rounds: range, due: Callable[[int], bool], after: Callable[..., None]) -> None:
        for r in rounds:
            chosen = self.cohort.round(r)
            after(r + 1, chosen, self.evaluate(r + 1) if due(r + 1) else [{}] * len(self.plans))

    def evaluate(self, r: int) -> list[dict[str, Any]]:
        tests = [p.fed.test_at(max(r - 1, 0)) for p in self.plans]
        held = [evaluation.of_parties(p.fed, p.fed.at(max(r - 1, 0)), p.members) for p in self.plans]
        return evaluation.evaluate(self.task, self.w, self.buffers, tests, held, [p.fed.classes for p in self.plans])

    def save(self, i: int) -> State:
        return self.cohort.save() if len(self.plans) == 1 else {"w": self.w[i].detach().cpu()}

    @property
    def bytes(self) -> tuple[int, int]:
        """Bytes of one Down and of one Upload, as they would be on the wire."""
        if not self.cohort.upload_shapes:
            return 0, 0
        if self._bytes is None:
            down = {k: v[0] for k, v in self.cohort.down(0.0).items()}
            up = {k: torch.zeros(shape) for k, shape in self.cohort.upload_shapes.items()}
            self._bytes = wire_bytes(down), wire_bytes(up)
        return self._bytes

    def landscape(self, i: int) -> dict[str, Any]:
        """Where each party would walk from here, alone, in one more round."""
        from ..landscape import PARTIES, landscape

        p = self.plans[i]
        start = {"w": self.w[i]} | ({} if self.buffers is None else {"buffers": self.buffers[i]})
        alone = [dataclasses.replace(p, members=(k,), per_round=1, algorithm=plain(p.algorithm)) for k in range(min(len(p.fed), 3 * PARTIES))]
        more = Cohort(self.task, [start] * len(alone), [a.run() for a in alone], p.engine)
        more.round(p.rounds)
        test = p.fed.test if len(p.fed.test.y) else Rows(p.fed.rows.x, p.fed.rows.y)
        some = slice(0, 512)  # rows enough for a picture
        optima = {p.fed.parties[k]: more.w[j] for j, k in enumerate(range(len(alone)))}
        return landscape(self.task, self.w[i], optima, test.x[some].to(self.w.device), test.y[some].to(self.w.device), start.get("buffers"))

    def ledger(self, i: int, rounds: list[Event]) -> Ledger:
        from ..protocols.rounds import Down, Upload

        ledger, p = Ledger(), self.plans[i]
        times = sum(e["sampled"] for e in rounds)
        all_of = f"each of {len(p.fed)} parties" if len(p.fed) > 1 else p.fed.parties[0]
        ledger.record(all_of, "server", Down, count=times, bytes=sum(e["bytes_down"] for e in rounds), how="ideal")
        ledger.record("server", all_of, Upload, count=times, bytes=sum(e["bytes_up"] for e in rounds), how="ideal")
        return ledger


def plain(algorithm: Any) -> Algorithm:
    """FedAvg with this algorithm's learning rate and solver: what a party does that is left alone."""
    return algorithms.FedAvg(lr=algorithm.lr, solver=getattr(algorithm, "solver", algorithms.SGD()))


def wire_bytes(vectors: State) -> int:
    """What these vectors take on the wire. Without msgpack (a bare GPU machine) the numbers alone are counted."""
    try:
        from ..parties.codec import encode
        from ..protocols.rounds import Upload
    except ImportError:
        return sum(4 * v.numel() for v in vectors.values())
    return len(encode(Upload(1.0, {k: v.detach().cpu() for k, v in vectors.items()})))
