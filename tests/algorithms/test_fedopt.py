"""FedAdagrad, FedAdam, FedYogi: Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan 2021,
Algorithm 2.
"""

from __future__ import annotations

import numpy as np
import pytest

from tacit.algorithms import FedAdagrad, FedAdam, FedYogi

from .world import Line, World, hold

SECOND = {
    FedAdagrad: lambda v, d, beta2: v + d**2,
    FedAdam: lambda v, d, beta2: beta2 * v + (1 - beta2) * d**2,
    FedYogi: lambda v, d, beta2: v - (1 - beta2) * d**2 * np.sign(v - d**2),
}


def paper(kind, lr, server_lr, beta1, beta2, tau, weighted=True):
    """m ← β₁m + (1 − β₁)Δ;  v as in SECOND, from v₋₁ = τ²;  x ← x + η m/(√v + τ). No bias correction."""

    def run(world):
        x, m, v = world.start, 0.0, np.full_like(world.start, tau**2)
        for r in range(world.rounds):
            chosen = world.sampled(r)
            p = world.n[chosen] if weighted else np.ones(len(chosen))
            delta = sum(p_k * (world.sgd(r, k, x, lr) - x) for p_k, k in zip(p / p.sum(), chosen))
            m = beta1 * m + (1 - beta1) * delta
            v = SECOND[kind](v, delta, beta2)
            x = x + server_lr * m / (np.sqrt(v) + tau)
            yield x

    return run


@pytest.mark.parametrize("kind", SECOND)
@pytest.mark.parametrize("weighted", [True, False])
def test_the_server_optimizer_is_the_papers(kind, weighted):
    betas = {} if kind is FedAdagrad else {"beta2": 0.95}
    algorithm = kind(lr=0.2, server_lr=0.05, beta1=0.8, tau=0.01, weighted=weighted, **betas)
    hold(algorithm, paper(kind, 0.2, 0.05, 0.8, 0.95, 0.01, weighted), World(rounds=7))


@pytest.mark.parametrize(
    ("algorithm", "wanted"),
    [
        (FedAdagrad(lr=0.25, server_lr=2.0, beta1=0.0, tau=1.5), 1.0),
        (FedAdam(lr=0.25, server_lr=24.0, beta1=0.5, beta2=0.5, tau=14.0), 1.0),
        (FedYogi(lr=0.25, server_lr=3.0, beta1=0.5, beta2=0.25, tau=1.0), 1.0),
    ],
    ids=lambda v: type(v).__name__,
)
def test_by_hand(algorithm, wanted):
    """Targets 0 and 8, w = 0, η_l = 1/4: the clients end at 0 and 4, Δ = 2. The other numbers are chosen so
    that the roots come out whole:

    FedAdagrad, τ = 1.5: v = 2.25 + 4 = 2.5², x = 2·2/(2.5 + 1.5) = 1.
    FedAdam, β₁ = β₂ = 1/2, τ = 14: m = 1, v = 98 + 2 = 10², x = 24·1/(10 + 14) = 1.
    FedYogi, β₂ = 1/4, τ = 1: m = 1, v = 1 − 3·sign(1 − 4) = 2², x = 3·1/(2 + 1) = 1.
    """
    np.testing.assert_allclose(Line(rounds=1).walk(algorithm), [wanted], atol=1e-6)
