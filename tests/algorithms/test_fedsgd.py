"""FedSGD: McMahan, Moore, Ramage, Hampson, Agüera y Arcas 2017, section 2 ("FederatedSGD", C-fraction)."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.algorithms import FedSGD

from .world import Line, World, hold


def paper(lr):
    """g_k = ∇F_k(w_t) over all rows of k; w ← w − η Σ (n_k/n) g_k, n over those who take part."""

    def run(world):
        w = world.start
        for r in range(world.rounds):
            chosen = world.sampled(r)
            g = sum(world.n[k] * world.grad(w, world.held_by[k]) for k in chosen) / world.n[chosen].sum()
            w = w - lr * g
            yield w

    return run


@pytest.mark.parametrize(
    "world",
    [World(), World(batch_size=None), World(per_round=5, epochs=(1,) * 5), World(local_steps=2)],
    ids=["ragged", "full batch", "everyone", "asked for two steps"],
)
def test_fedsgd_is_the_papers(world):
    """Whatever the batch size, the epochs and the steps asked for, a client sends one gradient over all its
    rows.
    """
    hold(FedSGD(lr=0.5), paper(0.5), world)


def test_by_hand():
    """Targets 0 (1 row) and 8 (3 rows), w = 4: gradients 8 and −8, weighted mean (8 − 24)/4 = −4, w = 4 + 4/4
    = 5; then 10 and −6 give −2: 5.5.
    """
    np.testing.assert_allclose(Line(sizes=(1, 3), at=4.0).walk(FedSGD(lr=0.25)), [5.0, 5.5], atol=1e-6)
