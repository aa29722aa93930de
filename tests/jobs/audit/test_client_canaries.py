"""Empirical ε for clients: a correct run is consistent with its claim, a run without noise is refuted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tacit
from tacit import algorithms, data, guard, models
from tacit.audit import client_canaries
from tacit.errors import BadParameter
from tacit.jobs.audit.client_canaries import _mix

OPTIONS = {
    "model": models.Logistic(),
    "algorithm": algorithms.FedAvg(lr=0.5),
    "rounds": 3,
    "batch_size": None,
    "evaluate_every": 0,
}


@pytest.fixture(scope="module")
def fed():
    return data.gaussian_blobs(rows=200, seed=0).split(20, held_fraction=0, seed=0)


def test_a_private_run_is_consistent_with_its_claim(fed):
    """The bound is wrong with probability below 1e-8 by its own confidence."""
    private = [guard.Clip(0.1), guard.Noise(multiplier=2.0)]
    found = client_canaries(
        fed, lambda f: tacit.train(f, **OPTIONS, guard=private), clients=60, confidence=1 - 1e-8
    )
    assert found.holds
    assert 0 < found.claimed < 20


def test_a_run_without_noise_is_refuted(fed):
    """The trace of each canary is there or is not, so that guesses are right unless fewer than 7 of 60 canaries
    are included, or excluded: with probability 1e-10. 14 right guesses of 14 refute ε = 0.5.
    """
    found = client_canaries(
        fed, lambda f: tacit.train(f, **OPTIONS, guard=[guard.Clip(0.1)]), clients=60, claimed=0.5, delta=1e-6
    )
    assert not found.holds
    assert "WRONG" in str(found)


@pytest.mark.parametrize("exchange", [True, False])
def test_canaries_are_parties_with_a_feature_of_their_own(fed, exchange):
    width = fed.rows.x.shape[1]
    canaries = torch.cat([torch.zeros(4, width), 10 * torch.eye(4)], 1)
    included = np.array([True, False, True, False])
    made = _mix(fed, canaries, torch.tensor([0, 1, 1, 0]), included, exchange)
    assert len(made) == len(fed) + (4 if exchange else 2)
    own = made.rows.x[:, width:]
    assert (own[: len(fed.rows.y)] == 0).all()
    assert own.sum() == 20  # of the included alone
    assert made.train.sizes[len(fed) :].tolist() == [1] * (len(made) - len(fed))


def test_a_run_that_states_no_epsilon_for_clients_is_refused(fed):
    with pytest.raises(BadParameter, match="states no ε for clients"):
        client_canaries(fed, lambda f: tacit.train(f, **OPTIONS), clients=10)
    with pytest.raises(BadParameter, match="clients"):
        client_canaries(fed, lambda f: None, clients=3)
