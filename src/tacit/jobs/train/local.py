"""What one party computes with its own rows in a round, whoever runs its program."""

from __future__ import annotations

import numpy as np
import torch

from ...algorithms.plan import identify, plan
from ...algorithms.types import Algorithm, Batches, State, fresh
from ...data.federation import Federation
from ...engine.evaluation import Rules, tally_party
from ...engine.subgroups import Tally
from ...engine.task import Task
from ...guard import Guard
from ..devices import placed
from .counts import pack_tally
from .local_dp import PrivateTask
from .plan import MIN_ROWS


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
        rules: Rules | None = None,
    ):
        self.guard = guard
        self.rules = Rules(fed.classes, MIN_ROWS) if rules is None else rules
        self.name, self.fed, self.task, self.algorithm = name, fed, task, algorithm
        self.seed, self.epochs, self.batch_size, self.local_steps = seed, epochs, batch_size, local_steps

    def fresh_state(self) -> State:
        """Return the state of a party that has not trained yet."""
        return fresh(self.algorithm, self.task.initial()) | (
            {} if self.guard is None else self.guard.client_state()
        )

    def local(self, r: int, down: State, mine: State, work: int | None = None) -> tuple[float, State, State]:
        """Train in round r; return (weight, vectors to send, the party's new state).

        `work` counts instead of the round where training has no rounds.
        """
        number = r if work is None else work
        (x, y), device = self.fed.at(r + 1), self.task.x.device  # data that drifts counts its rounds from 1
        self.task.x, self.task.y = x.to(device), y.to(device)
        private = self.task if isinstance(self.task, PrivateTask) else None
        size = int(self.fed.train.sizes[0]) if private is None else private.public_size(self.name)
        plans = plan(
            self.seed,
            0 if self.algorithm.repeats_batches else number,
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
            upload, state = self.algorithm.local(self.task, placed(device, down), mine, batches)
        vectors = {k: v.cpu() for k, v in upload.vectors.items()}
        weight = float(upload.weight)
        return (
            (weight, vectors, state)
            if self.guard is None
            else self.guard.encode_upload(self.name, number, weight, vectors, down, mine | state)
        )

    def loss(self, r: int, down: State) -> float:
        """Return the mean loss of the server's model on the rows this party trains on in round r."""
        rows, index = self.fed.at(r + 1), self.fed.train.index
        x, y = rows.x[index].to(self.task.x.device), rows.y[index]
        chunks = self.task.predict_in_chunks(down["w"], x, down.get("buffers"))
        return float(torch.cat([self.task.row_losses(out, y[part]) for part, out in chunks]).mean())

    def test(self, r: int, down: State, mine: State | None = None, summed: bool = False) -> State:
        """Return the counts of the server's model, or of the party's own one, on its held-out rows.

        They are empty for fewer than `min_rows` rows, unless `summed`: the server sees a hidden sum only.
        """
        tally = self.tally(r, down, mine, summed)
        return {} if tally is None else pack_tally(tally)

    def tally(self, r: int, down: State, mine: State | None = None, summed: bool = False) -> Tally | None:
        """Return what `test` sends, before it is packed."""
        if not summed and int(self.fed.held.sizes[0]) < self.rules.min_rows:
            return None
        if mine and self.algorithm.personalizes:
            down = placed(self.task.x.device, down)
            down |= self.algorithm.personal(self.task, down, mine)
        rows, index = self.fed.at(r + 1), self.fed.held.index
        x = rows.x[index].to(self.task.x.device)
        apart = self.rules.members > 1
        chunks = self.task.predict_in_chunks(down["w"], x, down.get("buffers"), apart)
        groups = None if self.fed.subgroups is None else self.fed.subgroups.select(index)
        return tally_party(chunks, rows.y[index], self.rules._replace(sums_only=summed), groups)
