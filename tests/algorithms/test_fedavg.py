"""FedAvg: McMahan et al. 2017, Algorithm 1. Local SGD: Stich 2019, Algorithm 1. Parallel SGD: the same with H
= 1.
"""

from __future__ import annotations

import numpy as np
import pytest

from tacit.algorithms import SGD, Adam, FedAvg, LocalSGD, ParallelSGD
from tacit.errors import BadParameter

from .world import Line, World, hold


def paper(lr, server_lr=1.0, weighted=True):
    """ClientUpdate: w ← w − η∇ℓ(w; b) over E epochs of batches b. Server: w ← Σ n_k/m_t w_k, here written as
    w + η_g Σ p_k (w_k − w).
    """

    def run(world):
        w = world.start
        for r in range(world.rounds):
            chosen = world.sampled(r)
            p = world.n[chosen] if weighted else np.ones(len(chosen))
            ends = [world.sgd(r, k, w, lr) for k in chosen]
            w = w + server_lr * sum(p_k * (w_k - w) for p_k, w_k in zip(p / p.sum(), ends))
            yield w

    return run


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("option", ["I", "II"])
def test_fedavg_is_the_papers(option, weighted):
    """With η_g = 1 averaging the models (I) and averaging the updates (II) are the same thing."""
    hold(FedAvg(lr=0.3, option=option, weighted=weighted), paper(0.3, weighted=weighted))


def test_the_servers_learning_rate_stretches_the_mean_update():
    hold(FedAvg(lr=0.3, server_lr=1.7), paper(0.3, server_lr=1.7))


@pytest.mark.parametrize(
    "world",
    [
        World(batch_size=None),
        World(batch_size=1, rounds=3),
        World(batch_size=100),
        World(per_round=1),
        World(local_steps=6),
        World(sizes=(11,), epochs=(3,), per_round=1),
    ],
    ids=["full batch", "B=1", "B>n", "one a round", "six steps", "one party"],
)
def test_fedavg_in_every_shape_of_round(world):
    hold(FedAvg(lr=0.3), paper(0.3), world)


@pytest.mark.parametrize("h", [1, 3, 7])
def test_local_sgd_takes_h_steps_then_averages_uniformly(h):
    """Seven steps of four rows go round a party's rows more than once."""
    hold(LocalSGD(lr=0.3, local_steps=h), paper(0.3, weighted=False), World(local_steps=h))


def test_parallel_sgd_steps_on_the_mean_of_the_parties_batches():
    def mini_batch_sgd(world):
        w = world.start
        for r in range(world.rounds):
            w = w - 0.3 * np.mean([world.grad(w, world.batches(r, k)[0]) for k in world.sampled(r)], axis=0)
            yield w

    hold(ParallelSGD(lr=0.3), mini_batch_sgd, World(local_steps=1))


def test_by_hand():
    """Targets 0 (1 row, 2 epochs) and 8 (3 rows, 1 epoch), w = 4, η = 1/4: a step halves the way. 4 → 2 → 1
    and 4 → 6.

    Weighted (1·1 + 3·6)/4 = 4.75; all alike 3.5; with η_g = 2 the weighted mean update 0.75 counts twice:
    5.5.
    """
    line = Line(sizes=(1, 3), epochs=(2, 1), at=4.0, rounds=1)
    for algorithm, wanted in [
        (FedAvg(lr=0.25), 4.75),
        (FedAvg(lr=0.25, option="I"), 4.75),
        (FedAvg(lr=0.25, weighted=False), 3.5),
        (FedAvg(lr=0.25, server_lr=2.0), 5.5),
        (LocalSGD(lr=0.25, local_steps=2), 4.0),
        (ParallelSGD(lr=0.25), 4.0),
    ]:
        np.testing.assert_allclose(line.walk(algorithm), [wanted], atol=1e-6, err_msg=str(algorithm))


def test_solvers_and_schedules_work_inside():
    """Every round resets the solver's state, as a new torch optimizer would."""
    import torch

    for solver, make in [
        (
            SGD(momentum=0.9, weight_decay=0.01),
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        ),
        (Adam(), lambda p: torch.optim.Adam(p, lr=0.1)),
    ]:

        def run(world, make=make):
            w = torch.from_numpy(world.start)
            for r in range(world.rounds):
                ends = []
                for k in world.sampled(r):
                    mine = w.clone().requires_grad_()
                    optimizer = make([mine])
                    for rows in world.batches(r, k):
                        mine.grad = torch.from_numpy(world.grad(mine.detach().numpy(), rows))
                        optimizer.step()
                    ends.append(world.n[k] * mine.detach())
                w = sum(ends) / world.n[world.sampled(r)].sum()
                yield w.numpy()

        hold(FedAvg(lr=0.1, solver=solver), run, World(rounds=3))


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (FedAvg(lr=0.0), "FedAvg: lr is 0.0; it must be a number above 0"),
        (FedAvg(option="III"), "it must be one of 'I', 'II'"),
        (FedAvg(option="I", server_lr=2.0), "FedAvg: server_lr is 2.0; it must be 1 with option 'I'"),
        (LocalSGD(local_steps=0), "LocalSGD: local_steps is 0; it must be a whole number of at least 1"),
        (
            ParallelSGD(local_steps=2),
            "ParallelSGD: local_steps is 2; it must be a whole number of at least 1 and at most 1",
        ),
    ],
    ids=repr,
)
def test_what_makes_no_sense_is_refused(algorithm, words):
    with pytest.raises(BadParameter, match=words):
        World().ours(algorithm)
