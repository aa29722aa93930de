"""What training costs, by how its rows were drawn."""

from __future__ import annotations

import math

import pytest

from tacit.accounting import epsilon, gaussian_epsilon
from tacit.accounting.training import TRAINING, Training, training
from tacit.errors import BadParameter


def test_poisson_is_the_sampled_gaussian():
    one = training(multiplier=1.0, delta=1e-5, sampling="poisson", rate=0.01, per_epoch=100, steps=500)
    assert one.epsilon(500, 1e-5) == pytest.approx(
        epsilon(noise_multiplier=1.0, sampling_rate=0.01, steps=500, delta=1e-5), rel=2e-3
    )


def test_fixed_batches_are_a_row_exchanged_under_rdp():
    one = training(multiplier=2.0, delta=1e-5, sampling="fixed", rate=0.1, per_epoch=10, steps=50)
    assert one.epsilon(50, 1e-5) == pytest.approx(
        epsilon(
            noise_multiplier=1.0, sampling_rate=0.1, steps=50, delta=1e-5, accountant="rdp", sampling="fixed"
        )
    )


def test_an_epoch_of_shuffled_batches_is_one_release_begun_or_finished():
    one = training(multiplier=2.0, delta=1e-5, sampling="shuffle", rate=1.0, per_epoch=10, steps=50)
    assert one.epsilon(10, 1e-5) == one.epsilon(1, 1e-5) == pytest.approx(gaussian_epsilon(1.0, 1e-5))
    assert one.epsilon(11, 1e-5) == pytest.approx(gaussian_epsilon(1 / math.sqrt(2), 1e-5))


@pytest.mark.parametrize(("steps", "nodes"), [(1, 1), (2, 2), (3, 2), (4, 3), (7, 3), (8, 4), (1000, 10)])
def test_a_row_is_in_so_many_nodes_of_the_tree(steps, nodes):
    """Counted: a leaf of T is in the completed nodes of sizes 1, 2, 4, … that fit into T."""
    most = max(sum(1 for k in range(20) if 2**k * ((leaf >> k) + 1) <= steps) for leaf in range(steps))
    assert most == nodes
    one = training(multiplier=3.0, delta=1e-5, sampling="tree", rate=1.0, per_epoch=steps, steps=steps)
    assert one.epsilon(steps, 1e-5) == pytest.approx(gaussian_epsilon(3 / math.sqrt(nodes), 1e-5))


@pytest.mark.parametrize("sampling", TRAINING)
@pytest.mark.parametrize("target", [0.5, 4.0])
def test_the_noise_for_an_epsilon_costs_that_epsilon(sampling, target):
    one = training(
        epsilon=target,
        delta=1e-5,
        sampling=sampling,
        rate=0.02 if sampling in ("poisson", "fixed") else 1.0,
        per_epoch=50,
        steps=150,
    )
    assert 0.985 * target < one.epsilon(150, 1e-5) <= target
    assert one.epsilon(0, 1e-5) == 0


def test_an_accountant_of_another_sampling_is_refused():
    with pytest.raises(
        BadParameter,
        match=r"accountant is 'pld', which does not apply to sampling='shuffle'",
    ):
        training(
            multiplier=1.0, delta=1e-5, sampling="shuffle", rate=1.0, per_epoch=10, steps=10, accountant="pld"
        )
    assert Training(1.0).sampling == "poisson"
