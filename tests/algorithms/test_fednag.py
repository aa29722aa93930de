"""FedNAG: Yang, Bao, Yuan, Tran, Zomaya 2022, Algorithm 1: Nesterov at the clients, and the momenta are
averaged too.
"""

from __future__ import annotations

import numpy as np
import pytest

from tacit.algorithms import FedNAG

from .world import Line, hold


def paper(lr, gamma):
    """v_k ← γ v_k − η∇F_k(w_k);  w_k ← w_k + γ v_k − η∇F_k(w_k);  at the end of a round v ← Σ p_k v_k and w ←
    Σ p_k w_k, p_k = D_k/D.
    """

    def run(world):
        w, v = world.start, 0.0 * world.start
        for r in range(world.rounds):
            chosen = world.sampled(r)
            ends = []
            for k in chosen:
                w_k, v_k = w, v
                for rows in world.batches(r, k):
                    g = world.grad(w_k, rows)
                    v_k = gamma * v_k - lr * g
                    w_k = w_k + gamma * v_k - lr * g
                ends.append((w_k, v_k))
            p = world.n[chosen] / world.n[chosen].sum()
            w = sum(p_k * w_k for p_k, (w_k, _) in zip(p, ends))
            v = sum(p_k * v_k for p_k, (_, v_k) in zip(p, ends))
            yield w

    return run


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9])
def test_fednag_is_the_papers(gamma):
    hold(FedNAG(lr=0.1, gamma=gamma), paper(0.1, gamma))


def test_by_hand():
    """Targets 0 and 8, w = v = 0, η = 1/4, γ = 1/2, one step a round.

    Round 1: party 0 rests; party 1: v = 4, w = 2 + 4 = 6. Mean w = 3, v = 2. Round 2: party 0: v = 1 − 1.5 =
    −0.5, w = 3 − 0.25 − 1.5 = 1.25; party 1: v = 1 + 2.5 = 3.5, w = 3 + 1.75 + 2.5 = 7.25. Mean w = 4.25.
    """
    np.testing.assert_allclose(Line().walk(FedNAG(lr=0.25, gamma=0.5)), [3.0, 4.25], atol=1e-6)
