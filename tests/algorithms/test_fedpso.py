"""FedPSO (Park, Suh, Lee 2021): a swarm whose best member is the model.

By hand, with targets 0 and 8, η = 1/4 (a step halves the distance) and no attraction, from w = 2: the parties reach
1 and 5, with losses 1 and 9. The first is the best, so w = 1. They continue from their own models, to 1/2 and 6.5,
with losses 1/4 and 9/4: w = 1/2.
"""

from __future__ import annotations

import numpy as np
import pytest

import tacit
from tacit import aggregate, data
from tacit.algorithms import FedPSO
from tacit.algorithms import plan as plans
from tacit.errors import BadParameter
from tacit.jobs.train.plan import make_task
from tacit.runtimes.cohort import Cohort

from .test_fair import loss, seen
from .world import Line, World, hold


def draws(world, r, k):
    """The two uniform numbers of a party and round, from its plan's first key."""
    key = int(
        plans.plan(
            world.seed,
            r,
            plans.identify([world.names[k]]),
            np.array([world.sizes[k]]),
            world.epochs[k],
            world.batch_size,
        ).key[0, 0]
    )
    return (key % 2**24) / 2**24, (key // 2**24 % 2**24) / 2**24


def swarm(lr, inertia, own, pull, best):
    """`best`: whether the server takes the best party's, or the mean."""

    def run(world):
        w, at = world.start, np.inf
        x, v, p, score = ([first] * world.parties for first in (w, 0 * w, w, np.inf))
        for r in range(world.rounds):
            chosen = world.sampled(r)
            for k in chosen:
                r1, r2 = draws(world, r, k)
                if score[k] == np.inf:  # it has not taken part yet
                    x[k] = p[k] = w
                v[k] = inertia * v[k] + own * r1 * (p[k] - x[k]) + pull * r2 * (w - x[k])
                x[k] = world.sgd(r, k, x[k] + v[k], lr)
            now = {k: loss(world, x[k], seen(world, r, k)) for k in chosen}
            for k in chosen:
                if now[k] < score[k]:
                    p[k], score[k] = x[k], now[k]
            first = min(chosen, key=lambda k: now[k])
            share = {k: float(k == first) if best else world.n[k] / world.n[chosen].sum() for k in chosen}
            its = sum(share[k] * now[k] for k in chosen)
            if its < at:
                w, at = sum(share[k] * x[k] for k in chosen), its
            yield w

    return run


def test_with_the_mean_it_is_the_swarms_middle():
    hold(FedPSO(lr=0.2), swarm(0.2, 0.3, 0.7, 1.4, best=False), World(rounds=6))


def with_best(world, algorithm, engine):
    p = world.plan(algorithm, engine=engine, aggregate=aggregate.Best())
    task = make_task(p)
    cohort = Cohort(task, [task.initial()], [p.run()], engine, rule=p.aggregate)
    for r in range(world.rounds):
        cohort.round(r)
        yield cohort.w[0].double().numpy()


@pytest.mark.parametrize("engine", ["stack", "each"])
def test_with_the_best_it_is_the_papers(engine):
    world = World(rounds=6)
    wanted = list(swarm(0.2, 0.5, 0.9, 1.1, best=True)(world))
    for ours, theirs in zip(
        with_best(world, FedPSO(lr=0.2, inertia=0.5, own_pull=0.9, swarm_pull=1.1), engine), wanted
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=1e-5)
    assert np.abs(wanted[-1] - wanted[0]).max() > 1e-2


def test_by_hand():
    found = [
        float(w[0])
        for w in with_best(Line(at=2.0), FedPSO(lr=0.25, inertia=0.0, own_pull=0.0, swarm_pull=0.0), "stack")
    ]
    assert found == [1.0, 0.5]


def test_without_scores_there_is_no_best():
    fed = data.gaussian_blobs(rows=60, classes=3, features=5, seed=4).split(3, seed=0)
    with pytest.raises(
        BadParameter,
        match=r"aggregate: Best selects by the scores that parties send, and parties of FedAvg send none. "
        r"Use algorithms.FedPSO",
    ):
        tacit.train(fed, model="logistic", aggregate=aggregate.Best())
