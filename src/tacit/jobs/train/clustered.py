"""Training in clusters that are split during training: algorithms.CFL, in a simulation.

Each cluster is a run of its own; the server splits one in two by the updates of its parties. The version with
one program per party, in clustered_parties.py, uses the same `Clusters`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...algorithms.types import State
from ...engine.task import Task
from ...pace.scheduler import under
from ...runtimes.cohort import Cohort
from . import guards
from .plan import Plan
from .simulated import SimulatedTrainer, rule_for
from .trainer import RunContext


class Clusters:
    """Who is in which cluster, and what each party sent last.

    A cluster has an index in the list of current clusters, and a number in the tree of all there have been.
    """

    def __init__(self, p: Plan):
        self.plan = p
        self.of = np.zeros(len(p.fed), dtype=np.int64)  # the index of each party's cluster
        self.numbers = [0]
        self.total = 1  # clusters there have been
        self.reach = 0.0  # the largest median norm of a round's updates so far
        # each party's last update, and its weight; where not all take part, from earlier rounds too
        self.last: dict[int, tuple[Tensor, float]] = {}

    @property
    def members(self) -> list[np.ndarray]:
        return [np.flatnonzero(self.of == c) for c in range(len(self.numbers))]

    def share(self) -> Tensor:
        """Return the fraction of the parties that each cluster has: [clusters]."""
        return torch.from_numpy(np.bincount(self.of, minlength=len(self.numbers)) / len(self.of))

    def add(self, who: Sequence[int], weights: Sequence[float], deltas: Sequence[Tensor]) -> None:
        self.last |= {int(k): (delta, float(weight)) for k, weight, delta in zip(who, weights, deltas)}

    def split(self, participants: Sequence[int]) -> tuple[list[int], dict[str, Any]]:
        """Split clusters after a round.

        Returns the index each cluster's model comes from, and the facts of the round.
        """
        norms = [float(self.last[int(k)][0].norm()) for k in participants]
        self.reach = max(self.reach, float(np.median(norms)) if norms else 0.0)
        sources, splits = list(range(len(self.numbers))), []
        for c, who in enumerate(self.members):
            if not all(int(k) in self.last for k in who):
                continue  # not all of its parties have sent an update since it exists
            deltas, weights = zip(*(self.last[int(k)] for k in who))
            cut = self.plan.algorithm.split(torch.stack(deltas), torch.tensor(weights), self.reach)  # type: ignore[attr-defined]
            if cut is None:
                continue
            side, names = cut.side.numpy(), self.plan.fed.parties
            splits.append(
                {
                    "cluster": self.numbers[c],
                    "into": [self.total, self.total + 1],
                    "alike": round(cut.alike, 4),
                    "parties": [[names[k] for k in part] for part in (who[~side], who[side])],
                }
            )
            self.of[who[side]] = len(sources)
            self.numbers[c] = self.total
            self.numbers.append(self.total + 1)
            self.total += 2
            sources.append(c)
            for k in who:
                del self.last[int(k)]
        if self.plan.per_round == len(self.plan.fed):
            self.last.clear()  # everyone sends in every round: these updates are not needed again
        return sources, {"clusters": len(self.numbers), **({"splits": splits} if splits else {})}

    def save(self) -> State:
        updates = {f"book.last.{k}": delta.detach().cpu().clone() for k, (delta, _) in self.last.items()}
        weights = {
            f"book.weight.{k}": torch.tensor(weight, dtype=torch.float64)
            for k, (_, weight) in self.last.items()
        }
        return {
            "book.of": torch.from_numpy(self.of.copy()),
            "book.numbers": torch.tensor(self.numbers),
            "book.born": torch.tensor(self.total),
            "book.reach": torch.tensor(self.reach, dtype=torch.float64),
            **updates,
            **weights,
        }

    def load(self, saved: State, device: torch.device | str = "cpu") -> None:
        self.of, self.numbers = saved["book.of"].numpy().copy(), saved["book.numbers"].tolist()
        self.total, self.reach = int(saved["book.born"]), float(saved["book.reach"])
        who = [int(k.rpartition(".")[2]) for k in saved if k.startswith("book.last.")]
        self.last = {k: (saved[f"book.last.{k}"].to(device), float(saved[f"book.weight.{k}"])) for k in who}

    def states(self, saved: State) -> list[State]:
        """Return the state of each cluster, from that of the whole run."""
        return [under(f"cluster.{c}.", saved) for c in range(len(self.numbers))]


def cluster_mean(parts: Sequence[Tensor], share: Tensor) -> Tensor:
    """Return one model for all: the mean of the clusters' models, weighted by their parties."""
    return (
        parts[0]
        if len(parts) == 1
        else torch.einsum("n,n...->...", share.to(parts[0]), torch.stack(list(parts)))
    )


class ClusteredTrainer(SimulatedTrainer):
    """A run of the cohort for every cluster; a split adds a run that starts from the cluster's model."""

    def __init__(self, task: Task, starts: list[State], plans: list[Plan], context: RunContext):
        (p,) = plans  # runs side by side would split at different times
        super().__init__(task, starts, plans, dataclasses.replace(context, states=()))
        self.plan, self.start, self.clusters = p, starts[0], Clusters(p)
        states = [self.cohort.save(0)]
        if context.states:
            self.clusters.load(context.states[0], self.cohort.device)
            states = self.clusters.states(context.states[0])
        self._rebuild(states)

    def _rebuild(self, states: list[State]) -> None:
        """Make the cohort of the current clusters, each with its state."""
        p, upload_shapes = self.plan, self.cohort.upload_shapes
        runs = [
            dataclasses.replace(
                dataclasses.replace(p, members=tuple(who.tolist())).run(), choose=partial(self._chosen, who)
            )
            for who in self.clusters.members
        ]
        if len(runs) != len(self.cohort.runs):
            self.cohort = Cohort(
                self.task, [self.start] * len(runs), runs, p.engine, rule=rule_for([p], self.task)
            )
            self.cohort.upload_shapes = upload_shapes
            self.task = self.cohort.task
        self.cohort.runs = runs
        self.cohort.load(states)

    def _chosen(self, members: np.ndarray, number: int) -> np.ndarray:
        """Return those of a cluster's parties that a server without clusters would have chosen."""
        return members[np.isin(members, guards.chosen(self.plan, number))]

    def step(self, r: int) -> list[np.ndarray]:
        def add(who: np.ndarray, weights: Tensor, vectors: State) -> None:
            self.clusters.add(who.tolist(), weights.tolist(), list(vectors["delta"]))

        self.cohort.on_upload = add
        who = np.sort(np.concatenate(self.cohort.round(r)))
        sources, self.facts[0] = self.clusters.split(who.tolist())
        if len(sources) > len(self.cohort.runs):
            self._rebuild([self.cohort.save(c) for c in sources])
        return [who]

    @property
    def weights(self) -> Tensor:
        return cluster_mean(list(self.cohort.w), self.clusters.share())[None]

    @property
    def buffers(self) -> Tensor | None:
        return (
            None
            if self.cohort.buffers is None
            else cluster_mean(list(self.cohort.buffers), self.clusters.share())[None]
        )

    def personal(self, i: int) -> list[State]:
        own = [self.cohort.personal(c) for c in range(len(self.clusters.numbers))]
        buffers = self.cohort.buffers
        return [
            own[c][k] if buffers is None else {"buffers": buffers[c], **own[c][k]}
            for k, c in enumerate(self.clusters.of)
        ]

    def save(self, i: int) -> State:
        states = {
            f"cluster.{c}.{k}": v
            for c in range(len(self.clusters.numbers))
            for k, v in self.cohort.save(c).items()
        }
        return states | self.clusters.save() | {"w": self.weights[0].detach().cpu().clone()}
