"""DP-FTRL: the tree, what it costs, and the order of the rows."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tacit.private import DPFTRL, DPSGD
from tacit.private.tree import Tree

from .world import N, epoch, sgd, world


def test_the_trees_prefix_sums_carry_the_nodes_of_their_binary_digits():
    """Leaves 1 … 13 with node noises 1, 2, 4, 8, …: after t steps the prefix holds one node for each 1 in t's
    digits; 13 = 8 + 4 + 1 holds three.
    """
    drawn = iter(torch.tensor([2.0**k]) for k in range(100))
    tree = Tree(lambda: next(drawn))
    total, prefixes = torch.zeros(1), []
    for _ in range(13):
        total = total + tree.next()
        prefixes.append(float(total))
    # node k is made at step k + 1; a prefix is the sum of the nodes made at steps 13 = {8, 12, 13}, 12 = {8,
    # 12}, 7 = {4, 6, 7}
    assert prefixes[12] == 2.0**7 + 2.0**11 + 2.0**12
    assert prefixes[11] == 2.0**7 + 2.0**11
    assert prefixes[6] == 2.0**3 + 2.0**5 + 2.0**6


def test_ftrl_costs_one_release_for_each_level_of_the_tree():
    """8 steps an epoch: a row is in at most ⌊log₂ 8⌋ + 1 = 4 nodes; two epochs are two trees. ε is that of
    one Gaussian of z/√8.
    """
    from tacit.accounting import gaussian_epsilon

    model, x, y = world()
    private = DPFTRL(noise_multiplier=10.0, delta=1e-5).attach(
        model, optimizer := sgd(model), (x, y), batch_size=25
    )
    for _ in range(2):
        epoch(private, model, optimizer)
    assert private.epsilon == pytest.approx(gaussian_epsilon(10 / math.sqrt(8), 1e-5))
    assert private.ledger.spent[0].sampling == "no"
    assert "binary-tree" in private.ledger.spent[0].mechanism


def test_ftrls_running_sum_has_less_noise_than_as_many_independent_ones():
    """63 steps of noise alone with lr 1: the tree's prefix holds 6 nodes, so its variance is 6 σ², not 63 σ²;
    measured on 20,002 parameters (within 6%, six standard errors).
    """
    ends = {}
    for kind in (DPSGD, DPFTRL):
        model = nn.Linear(20_001, 1)
        start = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        private = kind(noise_multiplier=1.0, clip=1.0, delta=1e-4).attach(
            model, optimizer, 630, batch_size=10
        )
        for _ in range(63):
            private.draw()
            optimizer.step()
        ends[kind] = (
            float((torch.cat([p.detach().flatten() for p in model.parameters()]) - start).var()) * 100
        )
    assert ends[DPFTRL] == pytest.approx(6, rel=0.06)
    assert ends[DPSGD] == pytest.approx(63, rel=0.06)


def test_ftrl_takes_the_rows_in_their_order():
    model, x, y = world()
    private = DPFTRL(epsilon=5.0, delta=1e-4).attach(
        model, optimizer := sgd(model), (x, torch.arange(N)), batch_size=64, epochs=1
    )
    seen = []
    for a, rows in private:
        seen += [] if private.is_checking else rows.tolist()
        F.cross_entropy(model(a), y[rows]).backward()
        optimizer.step()
    assert seen == list(range(N))
    assert 4.9 < private.epsilon <= 5.0
