"""The graphical model against the joint table written out: on few columns every marginal can be summed by
hand.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import BadParameter
from tacit.synth.graphical import (
    JunctionTree,
    Measurement,
    count_cells,
    estimate_total,
    fit_model,
    propagate_beliefs,
    triangulate,
)

SIZES = (2, 3, 2, 4, 3)


def joint_of(potentials) -> np.ndarray:
    """exp(Σ θ) over all count_cells, normalized: the definition, with no tree in it."""
    log = np.zeros(SIZES)
    for clique, theta in potentials.items():
        log += theta.reshape([SIZES[c] if c in clique else 1 for c in range(len(SIZES))])
    p = np.exp(log - log.max())
    return p / p.sum()


def summed(joint: np.ndarray, columns) -> np.ndarray:
    order = sorted(columns)
    flat = joint.sum(axis=tuple(c for c in range(joint.ndim) if c not in columns))
    return np.transpose(flat, [order.index(c) for c in columns])


cliques = st.lists(
    st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True).map(lambda c: tuple(sorted(c))),
    min_size=1,
    max_size=6,
    unique=True,
)


@settings(max_examples=40, deadline=None)
@given(cliques, st.integers(0, 2**32 - 1))
def test_every_marginal_of_any_field_is_that_of_the_joint_table(sets, seed):
    rng = np.random.default_rng(seed)
    potentials = {c: rng.normal(0, 2, [SIZES[i] for i in c]) for c in sets}
    model = propagate_beliefs(JunctionTree.over(potentials, SIZES), SIZES, potentials, 1.0)
    joint = joint_of(potentials)
    for r in range(1, 4):
        for columns in itertools.permutations(range(5), r):
            assert np.allclose(model.marginal(columns), summed(joint, columns), atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(cliques)
def test_a_junction_tree_holds_every_set_and_runs_in_one_piece(sets):
    tree = JunctionTree.over(sets, SIZES)
    assert set().union(*tree.cliques) == set(range(5))
    assert all(any(set(s) <= set(c) for c in tree.cliques) for s in sets)
    for column in range(5):  # the running intersection property: cliques with a column in them are connected
        holding = [k for k, c in enumerate(tree.cliques) if column in c]
        roots = [k for k in holding if k == 0 or column not in tree.separator[k]]
        assert len(roots) == 1
    for k in range(1, len(tree.cliques)):
        assert set(tree.separator[k]) == set(tree.cliques[k]) & set(tree.cliques[tree.parent[k]])


def test_a_cycle_is_triangulated_and_a_tree_is_left_alone():
    assert triangulate([(0, 1), (1, 2), (2, 3)], (2,) * 4) == [(0, 1), (1, 2), (2, 3)]
    assert all(len(c) == 3 for c in triangulate([(0, 1), (1, 2), (2, 3), (0, 3)], (2,) * 4))
    assert count_cells(range(80), [10] * 80) == 10**80  # a Python integer, not an overflow


def test_exact_marginals_are_fitted_exactly_and_the_rest_has_maximum_entropy():
    """Of a chain 0–1–2 measured without noise: the pairs are met, and columns 0 and 2 are independent given
    1.
    """
    rng = np.random.default_rng(1)
    joint = rng.dirichlet(np.ones(24)).reshape(2, 3, 4)
    sizes = (2, 3, 4)
    measured = [Measurement(c, summed(joint, c) * 1000, 1.0) for c in ((0, 1), (1, 2))]
    model = fit_model(measured, sizes, steps=3000, tolerance=0)
    assert model.total == pytest.approx(1000)
    for c in ((0, 1), (1, 2)):
        assert np.abs(model.marginal(c) - summed(joint, c)).max() < 1e-4
    given_1 = (
        summed(joint, (0, 1))[:, :, None] * summed(joint, (1, 2))[None] / summed(joint, (1,))[None, :, None]
    )
    assert np.abs(model.marginal((0, 1, 2)) - given_1).max() < 1e-4


def test_noisy_marginals_that_disagree_are_reconciled_by_their_precision():
    """Two measurements of one column, one with a quarter of the other's variance: the answer is the weighted
    mean, (4·60 + 1·50)/5 = 58.
    """
    measured = [
        Measurement((0,), np.array([60.0, 40.0]), 1.0),
        Measurement((0,), np.array([50.0, 50.0]), 4.0),
    ]
    model = fit_model(measured, (2,), steps=2000, tolerance=0)
    assert model.marginal((0,))[0] == pytest.approx(0.58, abs=1e-4)
    assert estimate_total(measured) == pytest.approx(100)


def test_negative_counts_become_no_negative_probabilities():
    model = fit_model([Measurement((0, 1), np.array([[-20.0, 60.0], [40.0, -5.0]]), 100.0)], (2, 2))
    assert (model.marginal((0, 1)) >= 0).all()
    assert model.marginal((0, 1)).sum() == pytest.approx(1)


def test_a_sample_follows_the_model_also_where_nothing_was_measured():
    """The trap: a sampler that fills measured cells in order makes unmeasured pairs dependent. Columns 0 and
    2 meet only through 1, and 3 is alone. Rounding is below one row a cell and group; against independent
    draws of 40,000 rows a TVD of .02 would be ten standard errors.
    """
    rng = np.random.default_rng(3)
    potentials = {
        (0, 1): rng.normal(0, 1, (6, 5)),
        (1, 2): rng.normal(0, 1, (5, 7)),
        (3,): rng.normal(0, 1, 4),
    }
    sizes = (6, 5, 7, 4)
    model = propagate_beliefs(JunctionTree.over(potentials, sizes), sizes, potentials, 1.0)
    rows = model.sample(40_000, rng)
    for r in (1, 2, 3):
        for columns in itertools.combinations(range(4), r):
            shape = [sizes[c] for c in columns]
            seen = np.bincount(
                np.ravel_multi_index(rows[:, list(columns)].T, shape), minlength=int(np.prod(shape))
            ).reshape(shape) / len(rows)
            assert 0.5 * np.abs(seen - model.marginal(columns)).sum() < (0.02 if r < 3 else 0.05), columns


def test_a_sample_in_order_would_be_caught():
    """The same test fails a sampler that does not shuffle within groups: sorted values of two columns that
    should be independent.
    """
    rng = np.random.default_rng(3)
    potentials = {(0,): np.zeros(4), (1,): np.zeros(4)}
    model = propagate_beliefs(JunctionTree.over(potentials, (4, 4)), (4, 4), potentials, 1.0)
    good = model.sample(4000, rng)
    bad = np.sort(good, axis=0)

    def far(rows):
        seen = np.bincount(rows[:, 0] * 4 + rows[:, 1], minlength=16).reshape(4, 4) / len(rows)
        return 0.5 * np.abs(seen - model.marginal((0, 1))).sum()

    assert far(good) < 0.05
    assert far(bad) > 0.5


def test_columns_that_do_not_exist_and_fits_of_nothing_are_refused():
    model = fit_model([Measurement((0,), np.array([1.0, 2.0]), 1.0)], (2, 2))
    with pytest.raises(
        BadParameter, match=r"columns are \(0, 7\); they must be distinct numbers from 0 to 1"
    ):
        model.marginal((0, 7))
    with pytest.raises(
        BadParameter, match="there are no measurements; at least one noisy marginal is needed"
    ):
        fit_model([], (2,))


def test_more_columns_than_numpy_has_letters():
    sizes = (2,) * 70
    measured = [Measurement((k, k + 1), np.array([[30.0, 20.0], [20.0, 30.0]]), 1.0) for k in range(69)]
    model = fit_model(measured, sizes, steps=300)
    assert model.marginal((0, 69)).sum() == pytest.approx(1)
    assert model.marginal((0, 1))[0, 0] == pytest.approx(0.3, abs=0.01)
