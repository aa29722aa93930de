"""Training in clusters that part as it goes on: algorithms.CFL, in a simulation. Each cluster is a run of its
own; the server cuts one in two by the updates of its parties. For a program a party it is in
clustered_parties.py, by the same book.
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
from ...runtimes.cohort import Cohort
from . import guards
from .plan import Plan
from .simulated import Simulated, fitted


class Book:
    """Who is in which cluster, and what each party sent last. A cluster is known by its place in the list,
    and in the tree by its number.
    """

    def __init__(self, p: Plan):
        self.plan = p
        self.of = np.zeros(len(p.fed), dtype=np.int64)  # the place of each party's cluster
        self.numbers = [0]
        self.born = 1  # clusters there have been
        self.reach = 0.0  # the largest median length of a round's updates so far
        self.last: dict[
            int, tuple[Tensor, float]
        ] = {}  # what each party sent last, and its weight: where not all take part, of earlier rounds too

    @property
    def members(self) -> list[np.ndarray]:
        return [np.flatnonzero(self.of == c) for c in range(len(self.numbers))]

    def share(self) -> Tensor:
        """[clusters]: what part of the parties each has."""
        return torch.from_numpy(np.bincount(self.of, minlength=len(self.numbers)) / len(self.of))

    def hear(self, who: Sequence[int], weights: Sequence[float], deltas: Sequence[Tensor]) -> None:
        self.last |= {int(k): (delta, float(weight)) for k, weight, delta in zip(who, weights, deltas)}

    def sort(self, took_part: Sequence[int]) -> tuple[list[int], dict[str, Any]]:
        """Cut what is to be cut, after a round. (the place each cluster's model comes from, what the round's
        event says).
        """
        now = [float(self.last[int(k)][0].norm()) for k in took_part]
        self.reach = max(self.reach, float(np.median(now)) if now else 0.0)
        come_from, splits = list(range(len(self.numbers))), []
        for c, who in enumerate(self.members):
            if not all(int(k) in self.last for k in who):
                continue  # not all of its parties have been heard since it was made
            deltas, weights = zip(*(self.last[int(k)] for k in who))
            cut = self.plan.algorithm.split(torch.stack(deltas), torch.tensor(weights), self.reach)  # type: ignore[attr-defined]
            if cut is None:
                continue
            side, names = cut.side.numpy(), self.plan.fed.parties
            splits.append(
                {
                    "cluster": self.numbers[c],
                    "into": [self.born, self.born + 1],
                    "alike": round(cut.alike, 4),
                    "parties": [[names[k] for k in part] for part in (who[~side], who[side])],
                }
            )
            self.of[who[side]] = len(come_from)
            self.numbers[c] = self.born
            self.numbers.append(self.born + 1)
            self.born += 2
            come_from.append(c)
            for k in who:
                del self.last[int(k)]
        if self.plan.per_round == len(self.plan.fed):
            self.last.clear()  # everybody is heard in every round: nothing of this one is needed any more
        return come_from, {"clusters": len(self.numbers), **({"splits": splits} if splits else {})}

    def save(self) -> State:
        kept = {f"book.last.{k}": delta.detach().cpu().clone() for k, (delta, _) in self.last.items()}
        weights = {
            f"book.weight.{k}": torch.tensor(weight, dtype=torch.float64)
            for k, (_, weight) in self.last.items()
        }
        return {
            "book.of": torch.from_numpy(self.of.copy()),
            "book.numbers": torch.tensor(self.numbers),
            "book.born": torch.tensor(self.born),
            "book.reach": torch.tensor(self.reach, dtype=torch.float64),
            **kept,
            **weights,
        }

    def load(self, saved: State, device: torch.device | str = "cpu") -> None:
        self.of, self.numbers = saved["book.of"].numpy().copy(), saved["book.numbers"].tolist()
        self.born, self.reach = int(saved["book.born"]), float(saved["book.reach"])
        heard = [int(k.rpartition(".")[2]) for k in saved if k.startswith("book.last.")]
        self.last = {k: (saved[f"book.last.{k}"].to(device), float(saved[f"book.weight.{k}"])) for k in heard}


def mean_of(parts: Sequence[Tensor], share: Tensor) -> Tensor:
    """One model for those who ask for one: the mean of the clusters', by their parties."""
    return (
        parts[0]
        if len(parts) == 1
        else torch.einsum("n,n...->...", share.to(parts[0]), torch.stack(list(parts)))
    )


class Clustered(Simulated):
    """A run of the cohort for every cluster; a cut is one run more, from where the cluster stood."""

    def __init__(self, task: Task, starts: list[State], plans: list[Plan], saved: list[State | None]):
        (p,) = plans  # runs side by side would part at different times
        super().__init__(task, starts, plans, [None])
        self.plan, self.begun_with, self.book = p, starts[0], Book(p)
        at = saved[0]
        if at is not None:
            self.book.load(at, self.cohort.device)
        self._seat(
            [self.cohort.save(0)]
            if at is None
            else [
                {k.split(".", 2)[2]: v for k, v in at.items() if k.startswith(f"cluster.{c}.")}
                for c in range(len(self.book.numbers))
            ]
        )

    def _seat(self, states: list[State]) -> None:
        """A cohort of the clusters as the book has them, each where its state says."""
        p, heard = self.plan, self.cohort.upload_shapes
        runs = [
            dataclasses.replace(
                dataclasses.replace(p, members=tuple(who.tolist())).run(), choose=partial(self._there, who)
            )
            for who in self.book.members
        ]
        if len(runs) != len(self.cohort.runs):
            self.cohort = Cohort(
                self.task, [self.begun_with] * len(runs), runs, p.engine, rule=fitted([p], self.task)
            )
            self.cohort.upload_shapes = heard
            self.task = self.cohort.task
        self.cohort.runs = runs
        self.cohort.load(states)

    def _there(self, members: np.ndarray, number: int) -> np.ndarray:
        """Those of a cluster's parties that a server without clusters would have asked."""
        return members[np.isin(members, guards.chosen(self.plan, number))]

    def step(self, r: int) -> list[np.ndarray]:
        def hear(who: np.ndarray, weights: Tensor, vectors: State) -> None:
            self.book.hear(who.tolist(), weights.tolist(), list(vectors["delta"]))

        self.cohort.on_upload = hear
        who = np.sort(np.concatenate(self.cohort.round(r)))
        come_from, self.told[0] = self.book.sort(who.tolist())
        if len(come_from) > len(self.cohort.runs):
            self._seat([self.cohort.save(c) for c in come_from])
        return [who]

    @property
    def w(self) -> Tensor:
        return mean_of(list(self.cohort.w), self.book.share())[None]

    @property
    def buffers(self) -> Tensor | None:
        return (
            None
            if self.cohort.buffers is None
            else mean_of(list(self.cohort.buffers), self.book.share())[None]
        )

    def personal(self, i: int) -> list[State]:
        own = [self.cohort.personal(c) for c in range(len(self.book.numbers))]
        buffers = self.cohort.buffers
        return [
            own[c][k] if buffers is None else {"buffers": buffers[c], **own[c][k]}
            for k, c in enumerate(self.book.of)
        ]

    def save(self, i: int) -> State:
        states = {
            f"cluster.{c}.{k}": v
            for c in range(len(self.book.numbers))
            for k, v in self.cohort.save(c).items()
        }
        return states | self.book.save() | {"w": self.w[0].detach().cpu().clone()}
