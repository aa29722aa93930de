"""Schedules at work: round r of a run uses the rate of round r, in either engine and in every algorithm that
takes a solver.
"""

from __future__ import annotations

import numpy as np
import pytest

from tacit.algorithms import SGD, Cosine, Exponential, FedAvg, FedNova, FedProx, Inverse, Scaffold

from .world import Line, World, hold


@pytest.mark.parametrize(
    ("schedule", "factor"),
    [
        (Exponential(0.7), lambda r: 0.7**r),
        (Inverse(0.5), lambda r: 1 / (1 + 0.5 * r)),
        (Cosine(6), lambda r: (1 + np.cos(np.pi * r / 6)) / 2),
    ],
    ids=["exponential", "inverse", "cosine"],
)
def test_fedavg_under_a_schedule(schedule, factor):
    def run(world):
        w = world.start
        for r in range(world.rounds):
            chosen = world.sampled(r)
            w = sum(world.n[k] * world.sgd(r, k, w, 0.3 * factor(r)) for k in chosen) / world.n[chosen].sum()
            yield w

    hold(FedAvg(lr=0.3, solver=SGD(schedule=schedule)), run)


def test_by_hand():
    """Targets 0 and 8, w = 0, η = 1/4, then 1/8 (γ = 1/2). Round 1: ends 0 and 4: 2. Round 2: a quarter of
    the way: 1.5 and 3.5: 2.5.

    One step a round: FedProx does not feel its pull, FedNova normalizes by 1, Scaffold's c − c_k cancels in
    the mean: all move alike.
    """
    solver = SGD(schedule=Exponential(0.5))
    for algorithm in (
        FedAvg(lr=0.25, solver=solver),
        FedProx(lr=0.25, mu=1.0, solver=solver),
        FedNova(lr=0.25, solver=solver),
        Scaffold(lr=0.25, solver=solver),
    ):
        np.testing.assert_allclose(Line().walk(algorithm), [2.0, 2.5], atol=1e-6, err_msg=str(algorithm))


def test_a_rate_that_has_come_to_zero_leaves_the_model_where_it_is():
    """Also in Scaffold, whose option ii divides by the rate."""
    for kind in (FedAvg, FedNova, Scaffold):
        two, three, four = World(rounds=4).ours(kind(lr=0.3, solver=SGD(schedule=Cosine(2))))[1:]
        np.testing.assert_array_equal(two, three)
        np.testing.assert_array_equal(two, four)


def test_a_world_without_a_schedule_keeps_its_rate():
    """Cosine over very many rounds equals no schedule."""
    world = World(rounds=3)
    for a, b in zip(
        world.ours(FedAvg(lr=0.3)), world.ours(FedAvg(lr=0.3, solver=SGD(schedule=Cosine(10**9))))
    ):
        np.testing.assert_allclose(a, b, atol=1e-6)
