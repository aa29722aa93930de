"""Shadow models: the run, trained again on random halves of the audited rows or parties, as one stack.

Shadows come in pairs. The audited units (members and as many non-members) are shuffled; the first half is in
one shadow's training set, the second half in the other's. So every unit is in exactly half of the shadows,
and every shadow trains on as many units as the run. Rows that are not audited are in every shadow, as if the
adversary knew them: the worst case, which a claimed ε must withstand, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ...audit.canaries import TrainingResult
from ...data.federation import Federation, Holdings, Rows
from ...errors import BadParameter
from ...guard import Noise
from ..stacks import group_into_stacks
from ..train.plan import Plan
from ..train.train import train_side_by_side

AT_ONCE = 4096  # rows that a model is evaluated on together
STACK = 256  # shadows in one stack


class Pool(NamedTuple):
    """Audited units in one federation: their rows, and which of them are members of the run."""

    fed: Federation  # `rows` are all rows; `train` is not used
    fixed: list[Tensor]  # [parties]: rows of each party that every shadow trains on
    units: list[Tensor]  # [units]: the rows of each audited unit
    owner: np.ndarray  # [units]: the party that a unit's rows belong to; −1: the unit is a party
    is_member: np.ndarray  # [units]


def split_halves(units: int, shadows: int, rng: np.random.Generator) -> np.ndarray:
    """[S, N]: which units are in which shadow; each is in exactly half of them."""
    inside = np.zeros((shadows, units), dtype=bool)
    for s in range(0, shadows, 2):
        order = rng.permutation(units)
        inside[s, order[: units // 2]] = True
        inside[s + 1] = ~inside[s]
    return inside


def train_shadows(
    p: Plan,
    rounds: int,
    pool: Pool,
    shadows: int,
    rng: np.random.Generator,
    watch: Callable[[int, int], None] | None = None,
) -> tuple[list[nn.Module], np.ndarray]:
    """Train the run's plan on random halves of the pool; return the models, and [S, N] who was in which."""
    inside = split_halves(len(pool.units), shadows, rng)
    plans = []
    for s in range(shadows):
        fed, inside[s] = _federation(pool, inside[s])
        plans.append(
            dataclasses.replace(
                p,
                fed=fed,
                seed=p.seed + 1 + s,
                rounds=rounds,
                # noise is divided between rounds and evaluations
                evaluate_every=p.evaluate_every if any(isinstance(s, Noise) for s in p.guard) else 0,
                patience=None,
                callbacks=(),
                landscape=False,
                adversaries=None,
                metrics=None,
                runtime="cohort",
                through=None,
                insecure_seed=None if p.insecure_seed is None else p.insecure_seed + 1 + s,
                local_epochs=(p.local_epochs * len(fed))[: len(fed)],
                public_sizes=None if p.public_sizes is None else tuple(fed.train.sizes.tolist()),
                label=f"shadow {s}",
            )
        )
    models: dict[int, nn.Module] = {}
    alone = p.pace is not None or p.topology is not None or p.private is not None
    groups = [[s] for s in range(shadows)] if alone else group_into_stacks(plans)
    for group in [g[i : i + STACK] for g in groups for i in range(0, len(g), STACK)]:
        runs = train_side_by_side([plans[i] for i in group], [None] * len(group))
        models |= {i: run.model for i, run in zip(group, runs)}
        if watch is not None:
            watch(len(models), shadows)
    return [models[s] for s in range(shadows)], inside


def _federation(pool: Pool, inside: np.ndarray) -> tuple[Federation, np.ndarray]:
    """The federation of one shadow, and the units that are really in it."""
    fed = pool.fed
    if pool.owner[0] < 0:  # units are parties
        chosen = np.flatnonzero(inside)
        names = tuple(fed.parties[i] for i in chosen)
        lists = [pool.units[i] for i in chosen]
    else:
        inside = inside.copy()
        names, lists = fed.parties, []
        for k, rows in enumerate(pool.fixed):
            mine = np.flatnonzero(pool.owner == k)
            if not len(rows) and len(mine) and not inside[mine].any():
                inside[mine[0]] = True  # a party without rows cannot train
            lists.append(torch.cat([rows, *(pool.units[i] for i in mine if inside[i])]))
        kept = [k for k, rows in enumerate(lists) if len(rows)]
        names, lists = tuple(names[k] for k in kept), [lists[k] for k in kept]
    rest = torch.ones(len(fed.rows.y), dtype=torch.bool)
    rest[torch.cat(lists)] = False
    held = torch.nonzero(rest)[:, 0]  # every row of a federation is somebody's
    made = dataclasses.replace(
        fed,
        train=Holdings.from_lists(lists),
        held=Holdings.from_lists([held, *([torch.empty(0, dtype=torch.int64)] * (len(lists) - 1))]),
        parties=names,
    )
    return made, inside


@torch.no_grad()
def outputs(model: nn.Module, x: Tensor) -> Tensor:
    """The model's outputs on the CPU, in evaluation mode."""
    device = next(model.parameters()).device
    model.eval()
    return torch.cat([model(part.to(device)).float().cpu() for part in x.split(AT_ONCE)])


def train_by(
    train: Callable[[Rows, int], Any],
    rows: Rows,
    fixed: Tensor,
    units: list[Tensor],
    shadows: int,
    rng: np.random.Generator,
    watch: Callable[[int, int], None] | None = None,
) -> tuple[list[nn.Module], np.ndarray]:
    """Train shadows one by one by a user's function of (rows, seed)."""
    inside, models = split_halves(len(units), shadows, rng), []
    for s in range(shadows):
        index = torch.cat([fixed, *(units[i] for i in np.flatnonzero(inside[s]))])
        made = train(Rows(rows.x[index], rows.y[index]), s + 1)
        model = made.model if isinstance(made, TrainingResult) else made
        if not isinstance(model, nn.Module):
            raise BadParameter(
                f"membership: train= returned a {type(made).__name__}; expected an nn.Module, or a result "
                "with a .model."
            )
        models.append(model)
        if watch is not None:
            watch(s + 1, shadows)
    return models, inside
