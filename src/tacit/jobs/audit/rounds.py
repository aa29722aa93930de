"""Membership from the models of all rounds: what the server of a federated run sees, and each of its parties.

A row that is trained on stands out while the model learns it, not only in the end: the attack averages its
statistic over the models of all rounds, each on its own scale (after O. Zari, C. Xu, G. Neglia: "Efficient
Passive Membership Inference Attack in Federated Learning", 2021, which trains a classifier on the same
sequence).

The run is trained again by its own plan, with its own seed, so that its models come out equal. Noise and
masks from the operating system do not: then it is another run of the same job, with the same members.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...callbacks import Callback
from ...errors import BadData
from ...guard import Noise
from ...parameters import nearest
from ..train.plan import Plan
from ..train.train import train_side_by_side
from .shadows import Pool, outputs

Statistic = Callable[[Tensor, Tensor], Tensor]


class _EachRound(Callback):
    """Keeps a statistic of some rows under the model of every round."""

    def __init__(self, x: Tensor, y: Tensor, statistic: Statistic):
        self.x, self.y, self.statistic = x, y, statistic
        self.found: list[Tensor] = []

    def on_round_end(self, record: Mapping[str, Any], model: nn.Module) -> bool | None:
        self.found.append(self.statistic(outputs(model, self.x), self.y))
        return None


def score_rounds(p: Plan, rounds: int, x: Tensor, y: Tensor, statistic: Statistic) -> Tensor:
    """[N]: the mean over rounds of the rows' statistic, standardized over the rows in each round."""
    watch = _EachRound(x, y, statistic)
    plan = dataclasses.replace(
        p, rounds=rounds, callbacks=(watch,), patience=None, landscape=False, metrics=None, label="again"
    )
    train_side_by_side([plan], [None])
    each = torch.stack(watch.found)
    spread = each.std(1, keepdim=True).clamp(min=1e-12)
    return ((each - each.mean(1, keepdim=True)) / spread).mean(0)


def without_party(p: Plan, pool: Pool, party: str | None) -> np.ndarray:
    """[units]: those that a party does not know to be its own; with None, all."""
    if party is None:
        return np.ones(len(pool.units), dtype=bool)
    if party not in p.fed.parties:
        raise BadData(f"membership: there is no party {party!r}. {nearest(party, list(p.fed.parties[:50]))}")
    others = pool.owner != p.fed.parties.index(party)
    if not (others & pool.is_member).any() or not (others & ~pool.is_member).any():
        raise BadData(f"membership: all attacked rows are those of {party!r}, which knows them.")
    return others


def notes_on(p: Plan, party: str | None) -> list[str]:
    """What the adversary of this attack is, for people."""
    who = "the server" if party is None else f"party {party!r}, about the rows of the others"
    notes = [f"the adversary is {who}, with the models of all rounds"]
    if any(isinstance(s, Noise) for s in p.guard) or p.private is not None:
        notes.append("the noise was drawn again: this is another run of the same job, with the same members")
    return notes
