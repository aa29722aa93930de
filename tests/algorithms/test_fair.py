"""q-FedAvg (Li, Sanjabi, Beirami, Smith 2020, Algorithm 2) and agnostic federated learning (Mohri, Sivek,
Suresh 2019): fairness among parties.
"""

from __future__ import annotations

import numpy as np
import pytest

import tacit
from tacit import algorithms, data
from tacit.algorithms import AFL, FedAvg, QFedAvg

from .world import World, hold


def loss(world, w, rows):
    f, h, c = world.features, world.hidden, world.classes
    w1, b1, w2, b2 = np.split(w, np.cumsum([h * f, h, c * h]))
    z = np.tanh(world.x[rows] @ w1.reshape(h, f).T + b1) @ w2.reshape(c, h).T + b2
    return float(
        np.mean(
            np.log(np.exp(z - z.max(1, keepdims=True)).sum(1))
            + z.max(1)
            - z[np.arange(len(rows)), world.y[rows]]
        )
    )


def seen(world, r, k):
    """The rows of a party's plan, as often as they are in it."""
    return np.concatenate(world.batches(r, k))


def fair(lr, q):
    def run(world):
        w = world.start
        for r in range(world.rounds):
            deltas, hs = [], []
            for k in world.sampled(r):
                f = loss(world, w, seen(world, r, k))
                way = (w - world.sgd(r, k, w, lr)) / lr
                deltas.append(f**q * way)
                hs.append(q * f ** (q - 1) * (way @ way) + f**q / lr)
            w = w - sum(deltas) / sum(hs)
            yield w

    return run


@pytest.mark.parametrize("q", [0.0, 0.5, 2.0])
def test_qfedavg_is_the_papers(q):
    hold(QFedAvg(lr=0.2, q=q), fair(0.2, q), World(rounds=6))


def test_without_fairness_it_is_fedavg_with_equal_weights():
    world = World()
    ours, plain = (world.ours(a) for a in (QFedAvg(lr=0.2, q=0.0), FedAvg(lr=0.2, weighted=False)))
    for a, b in zip(ours, plain):
        np.testing.assert_allclose(a, b, atol=1e-5)


def agnostic(lr, rate):
    def run(world):
        w, log = world.start, np.zeros(world.parties)
        for r in range(world.rounds):
            chosen = world.sampled(r)
            for k in chosen:
                log[k] += rate * loss(world, w, seen(world, r, k))
            mix = np.exp(log[chosen]) / np.exp(log[chosen]).sum()
            w = w + sum(m * (world.sgd(r, k, w, lr) - w) for m, k in zip(mix, chosen))
            yield w

    return run


@pytest.mark.parametrize("rate", [0.1, 2.0])
def test_agnostic_weights_are_multiplied_by_the_losses(rate):
    hold(AFL(lr=0.2, mixture_lr=rate), agnostic(0.2, rate), World(rounds=6))


def test_the_worst_party_is_looked_after():
    """Nine parties agree; the tenth calls the classes otherwise, and a mean leaves it behind."""
    import dataclasses

    fed = data.gaussian_blobs(rows=1000, classes=3, features=5, seed=4).split(10, held_fraction=0.3, seed=0)
    y = fed.rows.y.clone()
    odd = fed.owner == 9
    y[odd] = (y[odd] + 1) % 3
    fed = dataclasses.replace(fed, rows=fed.rows._replace(y=y))
    job = dict(model="logistic", rounds=40)
    own = {
        type(a).__name__: tacit.train(fed, algorithm=a, **job).history[-1]["parties"]["accuracy"][9]
        for a in (algorithms.FedAvg(lr=0.3), AFL(lr=0.3, mixture_lr=1.0), QFedAvg(lr=0.3, q=5.0))
    }
    assert own["AFL"] > own["FedAvg"] + 0.2
    assert own["QFedAvg"] >= own["FedAvg"]
