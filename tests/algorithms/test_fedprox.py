"""FedProx: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith 2020, Algorithm 2."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tacit.algorithms import SGD, FedProx

from .world import Line, World, hold


def paper(lr, mu, weighted=True):
    """Each device moves on h_k(w; w_t) = F_k(w) + μ/2‖w − w_t‖² for as many steps as it has time for; the
    server averages.
    """

    def run(world):
        w = world.start
        for r in range(world.rounds):
            chosen = world.sampled(r)
            p = world.n[chosen] if weighted else np.ones(len(chosen))
            w = sum(
                p_k * world.sgd(r, k, w, lr, pull=lambda v, w=w: mu * (v - w))
                for p_k, k in zip(p / p.sum(), chosen)
            )
            yield w

    return run


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("mu", [0.01, 1.0])
def test_fedprox_is_the_papers(mu, weighted):
    hold(FedProx(lr=0.3, mu=mu, weighted=weighted), paper(0.3, mu, weighted))


def test_the_proximal_term_is_part_of_the_gradient_that_momentum_accumulates():
    """The local problem is h_k, so a solver with momentum sees ∇h_k: torch.optim on the same sum."""

    def run(world):
        w = torch.from_numpy(world.start)
        for r in range(world.rounds):
            ends = []
            for k in world.sampled(r):
                mine = w.clone().requires_grad_()
                optimizer = torch.optim.SGD([mine], lr=0.1, momentum=0.9)
                for rows in world.batches(r, k):
                    mine.grad = torch.from_numpy(world.grad(mine.detach().numpy(), rows)) + 0.5 * (
                        mine.detach() - w
                    )
                    optimizer.step()
                ends.append(world.n[k] * mine.detach())
            w = sum(ends) / world.n[world.sampled(r)].sum()
            yield w.numpy()

    hold(FedProx(lr=0.1, mu=0.5, solver=SGD(momentum=0.9)), run, World(rounds=3))


def test_by_hand():
    """Targets 0 and 8, w_t = 4, μ = 2, η = 1/4. A step goes half the way to the target and half the way back
    to 4.

    Party 0: 4 − 2 − 0 = 2, then 2 − 1 + 1 = 2: it has reached its leash's end. Party 1 alike: 6, 6. With 1
    and 3 rows (2 + 18)/4 = 5.
    """
    np.testing.assert_allclose(
        Line(sizes=(1, 3), epochs=(2, 2), at=4.0, rounds=1).walk(FedProx(lr=0.25, mu=2.0)), [5.0], atol=1e-6
    )
