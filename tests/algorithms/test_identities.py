"""Known identities: algorithms compared with each other, not with a reference."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.algorithms import (
    SGD,
    FedAdagrad,
    FedAvg,
    FedAvgM,
    FedDyn,
    FedNAG,
    FedNova,
    FedProx,
    FedSGD,
    LocalSGD,
    ParallelSGD,
    Scaffold,
)

from .world import Line, World, same

RAGGED, ONE_STEP = World(), World(batch_size=None, epochs=(1,) * 5, per_round=5)


def descent(world, lr):
    """Gradient descent on everybody's rows in one place."""
    w = world.start
    for _ in range(world.rounds):
        w = w - lr * world.grad(w, np.concatenate(world.held_by))
        yield w


@pytest.mark.parametrize(
    ("a", "b", "world"),
    [
        (FedProx(lr=0.3, mu=0.0), FedAvg(lr=0.3), RAGGED),
        (FedAvg(lr=0.3, option="I"), FedAvg(lr=0.3, option="II"), RAGGED),
        (FedAvgM(lr=0.3, beta=0.0), FedAvg(lr=0.3), RAGGED),
        (FedAvgM(lr=0.3, beta=0.0, server_lr=0.5), FedAvg(lr=0.3, server_lr=0.5), RAGGED),
        (FedNAG(lr=0.3, gamma=0.0), FedAvg(lr=0.3), RAGGED),
        (LocalSGD(lr=0.3, local_steps=1), ParallelSGD(lr=0.3), RAGGED),
        (LocalSGD(lr=0.3, local_steps=3), FedAvg(lr=0.3, weighted=False), World(local_steps=3)),
        (FedNova(lr=0.3), FedAvg(lr=0.3), World(local_steps=3)),
        (
            FedNova(lr=0.1, solver=SGD(momentum=0.9)),
            FedAvg(lr=0.1, solver=SGD(momentum=0.9)),
            World(local_steps=3),
        ),
        (FedNova(lr=0.3, mu=0.5), FedProx(lr=0.3, mu=0.5), World(local_steps=3)),
        (FedAvg(lr=0.3), FedSGD(lr=0.3), ONE_STEP),
        (Scaffold(lr=0.3), FedAvg(lr=0.3, weighted=False), World(rounds=1)),
        (Scaffold(lr=0.3, option="i"), FedAvg(lr=0.3, weighted=False), World(rounds=1)),
        (Scaffold(lr=0.3), FedAvg(lr=0.3), World(sizes=(9,), epochs=(2,), per_round=1)),
    ],
    ids=[
        "FedProx μ=0 is FedAvg",
        "option I is option II",
        "FedAvgM β=0 is FedAvg",
        "FedAvgM β=0 is FedAvg, η_g",
        "FedNAG γ=0 is FedAvg",
        "LocalSGD H=1 is ParallelSGD",
        "LocalSGD is uniform FedAvg of H steps",
        "FedNova with equal τ is FedAvg",
        "FedNova with equal τ and momentum is FedAvg with momentum",
        "FedNova with equal τ and μ is FedProx",
        "FedAvg with one full step is FedSGD",
        "Scaffold's first round is uniform FedAvg",
        "Scaffold's first round is uniform FedAvg (i)",
        "Scaffold alone is SGD",
    ],
)
def test_the_same_by_another_name(a, b, world):
    same(world.ours(a), world.ours(b))


@pytest.mark.parametrize(
    "algorithm", [FedSGD(lr=0.5), FedAvg(lr=0.5), FedProx(lr=0.5, mu=1.0), FedNova(lr=0.5)], ids=repr
)
def test_one_full_step_with_full_participation_is_centralized_gradient_descent(algorithm):
    """Σ n_k/n ∇F_k = ∇F. In one step a proximal pull is not felt."""
    same(ONE_STEP.ours(algorithm), list(descent(ONE_STEP, 0.5)))


@pytest.mark.parametrize(
    "algorithm",
    [
        FedSGD(lr=0.5),
        FedAvg(lr=0.5),
        FedNova(lr=0.5),
        Scaffold(lr=0.5),
        Scaffold(lr=0.5, option="i"),
        FedNAG(lr=0.5, gamma=0.0),
        FedAvgM(lr=0.5, beta=0.0),
        LocalSGD(lr=0.5),
    ],
    ids=repr,
)
def test_one_party_is_training_in_one_place(algorithm):
    world = World(sizes=(17,), epochs=(1,), per_round=1, batch_size=None)
    same(world.ours(algorithm), list(descent(world, 0.5)))


def test_different_algorithms_are_distinguished():
    """The comparisons above can fail: unequal τ, a real μ and a later round of Scaffold all show."""
    plain = RAGGED.ours(FedAvg(lr=0.3))
    for other in (
        FedNova(lr=0.3),
        FedProx(lr=0.3, mu=0.5),
        FedAvg(lr=0.3, weighted=False),
        FedAvgM(lr=0.3),
        FedDyn(lr=0.3),
        Scaffold(lr=0.3),
        FedAdagrad(lr=0.3),
    ):
        with pytest.raises(AssertionError, match="after round"):
            same(RAGGED.ours(other), plain, atol=1e-3)


def test_scaffold_and_feddyn_find_the_optimum_that_fedavg_misses():
    """Targets 0 (one step a round) and 8 (three), η = 1/4. FedAvg rests where w = (w/2 + 8 − (8 − w)/8)/2, at
    56/11 ≈ 5.09, not at the optimum 4.
    """
    line = Line(epochs=(1, 3), rounds=60)
    rests = [
        line.walk(a)[-1]
        for a in (
            FedAvg(lr=0.25),
            Scaffold(lr=0.25),
            Scaffold(lr=0.25, option="i"),
            FedDyn(lr=0.25, alpha=1.0),
        )
    ]
    np.testing.assert_allclose(rests, [56 / 11, 4, 4, 4], atol=1e-4)
