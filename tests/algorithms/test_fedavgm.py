"""FedAvgM: Hsu, Qi, Brown 2019, section 4: FedAvg with momentum at the server."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.algorithms import FedAvgM

from .world import Line, World, hold


def paper(lr, server_lr, beta, weighted=True):
    """Δw = Σ n_k/n (w_t − w_k);  v ← β v + Δw;  w ← w − η_g v  (the paper: η_g = 1)."""

    def run(world):
        w, v = world.start, 0.0
        for r in range(world.rounds):
            chosen = world.sampled(r)
            p = world.n[chosen] if weighted else np.ones(len(chosen))
            v = beta * v + sum(p_k * (w - world.sgd(r, k, w, lr)) for p_k, k in zip(p / p.sum(), chosen))
            w = w - server_lr * v
            yield w

    return run


@pytest.mark.parametrize(
    ("server_lr", "beta", "weighted"), [(1.0, 0.9, True), (0.5, 0.7, True), (1.0, 0.9, False)]
)
def test_fedavgm_is_the_papers(server_lr, beta, weighted):
    hold(
        FedAvgM(lr=0.2, server_lr=server_lr, beta=beta, weighted=weighted),
        paper(0.2, server_lr, beta, weighted),
        World(rounds=6),
    )


def test_by_hand():
    """Targets 0 and 8, w = 0, η = 1/4, β = 1/2. Round 1: ends 0 and 4, mean change 2, v = 2, w = 2. Round 2:
    ends 1 and 5, change 1, v = 1 + 1, w = 4.
    """
    np.testing.assert_allclose(Line().walk(FedAvgM(lr=0.25, beta=0.5)), [2.0, 4.0], atol=1e-6)
