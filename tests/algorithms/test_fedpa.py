"""FedPA (Al-Shedivat, Gillenwater, Xing, Rostamizadeh 2021): posterior averaging.

By hand, one weight, ℓ = 2, ρ = 1/2, x₀ = 0, samples 1 and 3: x̄ = 2, S = 2, ρ_ℓ = 1/(1 + 1/2) = 2/3, Σ̂ = 2/3
+ 1/3·2 = 4/3, Σ̂⁻¹(x₀ − x̄) = −3/2.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.algorithms import FedAvg, FedPA
from tacit.algorithms.fedpa import posterior_direction

from .world import World, hold, same


def shrunk(x0, x, rho):
    """Σ̂⁻¹(x₀ − x̄) with the matrix written out."""
    n, d = x.shape
    own = 1 / (1 + (n - 1) * rho)
    s = np.cov(x, rowvar=False).reshape(d, d) if n > 1 else np.zeros((d, d))
    return np.linalg.solve(own * np.eye(d) + (1 - own) * s, x0 - x.mean(0))


def posterior(lr, samples, rho, burn_in, server_lr=1.0, warmup=0):
    def run(world):
        w = world.start
        for r in range(world.rounds):
            ways, chosen = [], world.sampled(r)
            for k in chosen:
                x, seen = w, []
                for rows in world.batches(r, k):
                    x = x - lr * world.grad(x, rows)
                    seen.append(x)
                left = seen[int(burn_in * len(seen)) :]
                many = min(samples, len(left))
                blocks = [[s for i, s in enumerate(left) if i * many // len(left) == b] for b in range(many)]
                ways.append(
                    w - x if r < warmup else shrunk(w, np.stack([np.mean(b, axis=0) for b in blocks]), rho)
                )
            share = world.n[chosen] / world.n[chosen].sum()
            w = w - server_lr * sum(p * way for p, way in zip(share, ways))
            yield w

    return run


@pytest.mark.parametrize(
    ("samples", "rho", "burn_in"), [(1, 0.5, 0.0), (3, 0.0, 0.25), (4, 0.5, 0.5), (8, 3.0, 0.0)]
)
def test_it_is_the_papers(samples, rho, burn_in):
    hold(FedPA(lr=0.2, samples=samples, rho=rho, burn_in=burn_in), posterior(0.2, samples, rho, burn_in))


def test_the_servers_rate_and_the_first_rounds():
    hold(FedPA(lr=0.2, samples=3, rho=1.0, server_lr=0.7, warmup=2), posterior(0.2, 3, 1.0, 0.5, 0.7, 2))


def test_by_hand():
    found = posterior_direction(torch.zeros(1), torch.tensor([[1.0], [3.0]]), torch.tensor(2.0), 0.5)
    assert float(found) == pytest.approx(-1.5)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 7), st.integers(1, 6), st.sampled_from([0.0, 0.1, 1.0, 10.0]), st.integers(0, 1000))
def test_the_linear_program_is_the_inverse(samples, dim, rho, seed):
    rng = np.random.default_rng(seed)
    x0, x = rng.standard_normal(dim), rng.standard_normal((samples, dim))
    more = np.concatenate([x, np.zeros((2, dim))])  # places of samples that were not drawn
    found = posterior_direction(
        torch.from_numpy(x0), torch.from_numpy(more), torch.tensor(float(samples), dtype=torch.float64), rho
    )
    np.testing.assert_allclose(found.numpy(), shrunk(x0, x, rho), atol=1e-9)


def test_one_sample_of_the_last_step_is_fedavg():
    world = World(local_steps=4)
    same(world.ours(FedPA(lr=0.2, samples=1, burn_in=0.75)), world.ours(FedAvg(lr=0.2)))
