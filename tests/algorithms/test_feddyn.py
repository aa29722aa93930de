"""FedDyn: Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama 2021, Algorithm 1."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.algorithms import FedDyn

from .world import Line, World, hold


def paper(lr, alpha):
    """θ_k ≈ argmin L_k(θ) − ⟨g_k, θ⟩ + α/2‖θ − θ_t‖² by SGD;  g_k ← g_k − α(θ_k − θ_t);

    h ← h − α/m Σ_{k∈P}(θ_k − θ_t);  θ ← mean_{k∈P} θ_k − h/α.  m counts all devices.
    """

    def run(world):
        theta, h, own = world.start, 0.0, [0.0 * world.start] * world.parties
        for r in range(world.rounds):
            chosen = world.sampled(r)
            ends = [
                world.sgd(r, k, theta, lr, pull=lambda v, k=k, theta=theta: alpha * (v - theta) - own[k])
                for k in chosen
            ]
            for k, end in zip(chosen, ends):
                own[k] = own[k] - alpha * (end - theta)
            h = h - alpha / world.parties * sum(end - theta for end in ends)
            theta = np.mean(ends, axis=0) - h / alpha
            yield theta

    return run


@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_feddyn_is_the_papers(alpha):
    hold(FedDyn(lr=0.2, alpha=alpha), paper(0.2, alpha), World(rounds=6))


def test_feddyn_with_full_participation():
    hold(FedDyn(lr=0.2, alpha=0.5), paper(0.2, 0.5), World(per_round=5))


def test_by_hand():
    """Targets 0 and 8, θ = 0, η = 1/4, α = 2, one step a round.

    Round 1: ends 0 and 4; g_1 = −2·4 = −8; h = −2/2·4 = −4; θ = 2 + 4/2 = 4. Round 2: party 0: slope 8 − 0:
    2; party 1: slope −8 + 8 = 0: 4. h = −4 − 2/2·(−2) = −2; θ = 3 + 2/2 = 4. It has arrived.
    """
    np.testing.assert_allclose(Line().walk(FedDyn(lr=0.25, alpha=2.0)), [4.0, 4.0], atol=1e-6)
