"""Runs side by side as one tensor program: which of them can share a stack, and the baselines among them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..algorithms.types import Algorithm
from ..data.federation import Holdings
from ..engine import evaluation
from ..engine.stacking import can_share_stack
from ..guard import Noise
from ..report.records import ALONE, CENTRAL
from .train.plan import Plan
from .train.table_defaults import for_one_party


def group_into_stacks(
    plans: Sequence[Plan], algorithm_of: Callable[[Plan], Any] = lambda p: p.algorithm
) -> list[list[int]]:
    """Return the indices of the plans, grouped so that each group can be computed as one stack.

    `algorithm_of` replaces algorithms for this decision, where one is a special case of another.
    """
    groups: list[list[int]] = []
    for i, p in enumerate(plans):
        for group in groups:
            q = plans[group[0]]
            if (
                _stack_key(p) == _stack_key(q)
                and can_share_stack(algorithm_of(p), algorithm_of(q))
                and not p.algorithm.sees_each  # clusters are split at different times
            ):
                group.append(i)
                break
        else:
            groups.append([i])
    return groups


def _stack_key(p: Plan) -> tuple[Any, ...]:
    """Return what runs must share to be stacked: the model, the length, the batches, the guard."""
    has_budget = any(isinstance(s, Noise) and s.epsilon is not None for s in p.guard)
    return (
        p.model if isinstance(p.model, str) else repr(p.model),
        tuple(p.fed.rows.x.shape[1:]),
        p.fed.classes,
        p.rounds,
        p.batch_size,
        p.local_steps,
        p.evaluate_every,
        p.device,
        p.precision,
        p.objective,
        p.patience,
        p.stop_by,
        p.engine,
        repr(p.aggregate),
        p.guard,
        p.sampling,
        p.skew if has_budget else "",  # a budget ends the runs of its own federation only
    )


def central_baseline(p: Plan, algorithm: Algorithm) -> Plan:
    """Return the run with all rows in one place: what federating gives up by not being allowed to."""
    n = len(p.fed.train.index)
    fed = dataclasses.replace(
        p.fed,
        train=Holdings(p.fed.train.index, p.fed.train.start[[0, -1]]),
        parties=("everyone",),
        held=Holdings(p.fed.held.index, p.fed.held.start[[0, -1]]),
    )
    assert int(fed.train.start[-1]) == n
    held = evaluation.reported_rows(p.fed, p.min_rows, p.sums_only)
    if len(held) < len(p.fed.held.index) and not len(p.fed.test.y):
        # the central model is evaluated on the rows that the federated model is evaluated on, and no others
        index = torch.cat([p.fed.train.index, held])
        fed = dataclasses.replace(
            fed,
            rows=p.fed.rows.take(index),
            train=Holdings.from_lists([torch.arange(n)]),
            held=Holdings.from_lists([torch.arange(n, len(index))]),
        )
    # H steps of a party are H steps for each party here, unless a step already is a whole pass
    steps = p.local_steps if p.local_steps is None or p.batch_size is None else p.local_steps * len(p.fed)
    return dataclasses.replace(
        p,
        fed=fed,
        **for_one_party(p, algorithm, n),
        per_round=1,
        local_epochs=(round(float(np.mean(p.local_epochs))),),
        local_steps=steps,
        landscape=False,
        pooled=True,
        label=CENTRAL,
    )


def alone_baselines(p: Plan, algorithm: Algorithm) -> list[Plan]:
    """Return a run for each party by itself: what it has without federating."""
    return [
        dataclasses.replace(
            p,
            **for_one_party(p, algorithm, int(p.fed.train.sizes[k])),
            per_round=1,
            members=(k,),
            landscape=False,
            label=ALONE,
        )
        for k in range(len(p.fed))
    ]
