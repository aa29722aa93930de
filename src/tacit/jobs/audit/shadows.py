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


def plan_shadows(
    p: Plan, rounds: int, pool: Pool, shadows: int, rng: np.random.Generator
) -> tuple[list[Plan], np.ndarray]:
    """The run's plan on random halves of the pool; and [S, N] who is in which."""
    inside = split_halves(len(pool.units), shadows, rng)
    plans, flat, sizes = [], torch.cat(pool.units), [len(u) for u in pool.units]
    noisy = any(isinstance(s, Noise) for s in p.guard)  # a budget is divided between rounds and evaluations
    for s in range(shadows):
        fed, inside[s] = _federation(pool, flat, sizes, inside[s], noisy)
        plans.append(
            dataclasses.replace(
                p,
                fed=fed,
                seed=p.seed + 1 + s,
                rounds=rounds,
                evaluate_every=p.evaluate_every if noisy else 0,
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
    return plans, inside


def train_shadows(
    p: Plan,
    rounds: int,
    pool: Pool,
    shadows: int,
    rng: np.random.Generator,
    watch: Callable[[int, int], None] | None = None,
) -> tuple[list[nn.Module], np.ndarray]:
    """Train the run's plan on random halves of the pool; return the models, and [S, N] who was in which."""
    plans, inside = plan_shadows(p, rounds, pool, shadows, rng)
    models: dict[int, nn.Module] = {}
    alone = p.pace is not None or p.topology is not None or p.private is not None
    groups = [[s] for s in range(shadows)] if alone else group_into_stacks(plans)
    for group in [g[i : i + STACK] for g in groups for i in range(0, len(g), STACK)]:
        runs = train_side_by_side([plans[i] for i in group], [None] * len(group))
        models |= {i: run.model for i, run in zip(group, runs)}
        if watch is not None:
            watch(len(models), shadows)
    return [models[s] for s in range(shadows)], inside


@dataclasses.dataclass(frozen=True, repr=False)
class _ShadowFederation(Federation):
    """The rows that one shadow trains on, among those of all shadows, which nobody holds."""

    def summary(self) -> dict[str, Any]:
        """No statistics: nobody reads the record of a shadow, and its rows may be many."""
        return self.outline()

    @property
    def owner(self) -> Tensor:
        owner = torch.zeros(len(self.rows.y), dtype=torch.int64)
        owner[self.train.index] = self.train.owner
        return owner


def _federation(
    pool: Pool, flat: Tensor, sizes: list[int], inside: np.ndarray, noisy: bool
) -> tuple[Federation, np.ndarray]:
    """The federation of one shadow, and the units that are really in it.

    Its other rows are held out if the run is `noisy`, so that its evaluations cost what those of the run do.
    """
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
            chosen = np.repeat(inside & (pool.owner == k), sizes)
            lists.append(torch.cat([rows, flat[torch.from_numpy(chosen)]]))
        kept = [k for k, rows in enumerate(lists) if len(rows)]
        names, lists = tuple(names[k] for k in kept), [lists[k] for k in kept]
    values = {f.name: getattr(fed, f.name) for f in dataclasses.fields(fed)}
    nobody = torch.empty(0, dtype=torch.int64)
    rest = torch.full((len(fed.rows.y),), noisy)
    rest[torch.cat(lists)] = False
    train = Holdings.from_lists(lists)
    held = Holdings.from_lists([torch.nonzero(rest)[:, 0], *([nobody] * (len(lists) - 1))])
    made = _ShadowFederation(**values | {"train": train, "held": held, "parties": tuple(names)})
    return made, inside


@torch.no_grad()
def outputs(model: nn.Module, x: Tensor) -> Tensor:
    """The model's outputs on the CPU, in evaluation mode; computed where the rows are."""
    before = next(model.parameters()).device
    model.to(x.device).eval()
    found = torch.cat([model(part).float().cpu() for part in x.split(AT_ONCE)])
    model.to(before)
    return found


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
