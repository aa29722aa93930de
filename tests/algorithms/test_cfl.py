"""Clustered federated learning (Sattler, Müller, Samek 2019): the cut, and when it is made.

By hand: two parties go one step right and two one step left, reach 1. The mean is 0 < ε₁, the longest 1 > ε₂;
across the cut the cosine is −1.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tacit
from tacit import data
from tacit.algorithms import CFL, FedAvg
from tacit.algorithms.cfl import bipartition, cosines
from tacit.errors import BadParameter


@settings(max_examples=150, deadline=None)
@given(st.integers(2, 8).flatmap(lambda n: hnp.arrays(np.float64, (n, n), elements=st.floats(-1, 1))))
def test_no_other_cut_has_less_in_common_across_it(a):
    """Algorithm 1 against all cuts there are."""
    alike = np.maximum(a, a.T)
    n = len(alike)
    cut = bipartition(torch.from_numpy(alike))
    side = cut.side.numpy()
    assert 0 < side.sum() < n
    everyone = set(range(n))
    best = min(
        max(alike[i, j] for i in some for j in everyone - set(some))
        for k in range(1, n)
        for some in itertools.combinations(range(n), k)
    )
    assert alike[side][:, ~side].max() == best == cut.alike


def test_it_is_single_linkage():
    """The same parts as scipy's, which joins the nearest first, where no two cosines are equal."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    for seed in range(20):
        x = torch.from_numpy(np.random.default_rng(seed).standard_normal((15, 3)))
        apart = 1 - cosines(x).numpy()
        wanted = fcluster(linkage(squareform((apart + apart.T) / 2, checks=False), "single"), 2, "maxclust")
        ours = bipartition(cosines(x)).side.numpy()
        assert {tuple(np.flatnonzero(ours)), tuple(np.flatnonzero(~ours))} == {
            tuple(np.flatnonzero(wanted == k)) for k in (1, 2)
        }


RIGHT_AND_LEFT = torch.tensor([[1.0, 0.0], [-1.0, 0.1], [1.0, 0.1], [-1.0, 0.0]])


def test_a_cut_by_hand():
    cut = CFL().split(RIGHT_AND_LEFT, torch.ones(4), 1.0)
    assert cut is not None
    assert cut.side.tolist() in ([False, True, False, True], [True, False, True, False])
    assert cut.alike < -0.98


@pytest.mark.parametrize(
    ("algorithm", "deltas", "reach"),
    [
        (
            CFL(),
            RIGHT_AND_LEFT + torch.tensor([1.0, 0.0]),
            1.0,
        ),  # the mean still moves, so the model has not come to rest
        (CFL(), 0.5 * RIGHT_AND_LEFT, 1.0),  # nobody pulls as hard as once, so there is nothing to part over
        (
            CFL(gamma=0.99),
            torch.tensor([[1.0, 0.0], [-0.5, 0.8], [-0.5, -0.8]]),
            1.0,
        ),  # noise of that size could explain it
        (CFL(), torch.tensor([[9.0, 0.0]]), 1.0),  # one party cannot part
    ],
    ids=["it moves", "nobody pulls", "noise explains it", "alone"],
)
def test_where_nothing_is_cut(algorithm, deltas, reach):
    assert algorithm.split(deltas, torch.ones(len(deltas)), reach) is None


def test_weights_count_in_the_mean():
    assert (
        CFL().split(RIGHT_AND_LEFT, torch.tensor([9.0, 1.0, 9.0, 1.0]), 1.0) is None
    )  # most rows go right: the model moves on


def test_in_one_cluster_it_is_fedavg():
    fed = data.gaussian_blobs(rows=200, classes=3, features=4, seed=3).split(4, skew=data.Dirichlet(0.5))
    one, other = (
        tacit.train(fed, model="mlp", algorithm=a, rounds=3) for a in (CFL(lr=0.1, eps1=1e-6), FedAvg(lr=0.1))
    )
    for a, b in zip(one.model.state_dict().values(), other.model.state_dict().values()):
        assert torch.equal(a, b)


def test_limits_that_contradict_each_other_are_refused():
    fed = data.gaussian_blobs(rows=60, classes=3, features=4, seed=3).split(3)
    with pytest.raises(BadParameter, match=r"CFL: eps2 is 0.2; it must be at least eps1, which is 0.5"):
        tacit.train(fed, algorithm=CFL(eps2=0.2))
