"""SCAFFOLD: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh 2020, Algorithm 1."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.algorithms import SGD, Adam, Scaffold
from tacit.errors import BadParameter

from .world import Line, World, hold


def paper(lr, server_lr=1.0, option="ii"):
    """y ← y − η_l (g_k(y) + c − c_k);  c_k⁺ is (i) g_k(x) over the client's rows, (ii) c_k − c + (x − y)/(K
    η_l);

    x ← x + η_g mean(y − x);  c ← c + |S|/N mean(c_k⁺ − c_k).
    """

    def run(world):
        x, c, own = world.start, 0.0 * world.start, [0.0 * world.start] * world.parties
        for r in range(world.rounds):
            chosen = world.sampled(r)
            p = np.ones(len(chosen))
            p = p / p.sum()
            ways, changes = [], []
            for k in chosen:
                y = world.sgd(r, k, x, lr, pull=lambda _, k=k, c=c: c - own[k])
                steps = len(world.batches(r, k))
                new = (
                    world.grad(x, world.held_by[k]) if option == "i" else own[k] - c + (x - y) / (steps * lr)
                )
                ways.append(y - x)
                changes.append(new - own[k])
                own[k] = new
            x = x + server_lr * sum(p_k * way for p_k, way in zip(p, ways))
            c = c + len(chosen) / world.parties * sum(p_k * change for p_k, change in zip(p, changes))
            yield x

    return run


@pytest.mark.parametrize("option", ["i", "ii"])
@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_scaffold_is_the_papers(option, server_lr):
    hold(Scaffold(lr=0.2, server_lr=server_lr, option=option), paper(0.2, server_lr, option), World(rounds=8))


@pytest.mark.parametrize("option", ["i", "ii"])
def test_scaffold_with_full_participation_and_full_batches(option):
    hold(Scaffold(lr=0.2, option=option), paper(0.2, option=option), World(per_round=5, batch_size=None))


def test_by_hand():
    """Targets 0 and 8, x = 0, η_l = 1/4, two steps a round, option ii.

    Round 1, c = c_k = 0: party 0 stays at 0, c_0 = 0; party 1 goes 0 → 4 → 6, c_1 = (0 − 6)/(2/4) = −12. x =
    3, c = (0 − 12)/2 = −6. Round 2: party 0: 3 − (6 − 6 − 0)/4 = 3, again 3. Party 1: 3 − (−10 − 6 + 12)/4 =
    4, then 4 − (−8 − 6 + 12)/4 = 4.5. x = 3.75.
    """
    np.testing.assert_allclose(Line(epochs=(2, 2)).walk(Scaffold(lr=0.25)), [3.0, 3.75], atol=1e-6)


def test_by_hand_with_the_gradients_at_the_servers_model():
    """As above with option i: round 1: c_0 = 0, c_1 = ∇F_1(0) = −16, c = −8, x = 3. Round 2: g + c − c_k
    moves all parties together:

    party 0: 6 − 8 = −2: 3.5; 7 − 8: 3.75. Party 1: −10 − 8 + 16 = −2: 3.5; −9 + 8: 3.75. x = 3.75, half of
    the way to 4, twice.
    """
    np.testing.assert_allclose(
        Line(epochs=(2, 2)).walk(Scaffold(lr=0.25, option="i")), [3.0, 3.75], atol=1e-6
    )


@pytest.mark.parametrize("solver", [Adam(), SGD(momentum=0.9)], ids=repr)
def test_a_solver_whose_update_is_not_a_sum_of_gradients_is_refused_if_c_is_computed_from_the_update(solver):
    with pytest.raises(
        BadParameter, match=r"it must be SGD without momentum with option 'ii'.*Use option='i'"
    ):
        World().ours(Scaffold(solver=solver))
    World(rounds=1).ours(Scaffold(option="i", solver=solver))
