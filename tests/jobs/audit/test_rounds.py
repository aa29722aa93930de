"""Membership from the models of all rounds: by the server, and by one party."""

from __future__ import annotations

import pytest
import torch

import tacit
from tacit import algorithms, audit, data, guard, models
from tacit.errors import BadData, BadParameter
from tacit.jobs.audit.membership import _pool_of_rows
from tacit.jobs.audit.rounds import _EachRound


@pytest.fixture(scope="module")
def overfitted():
    """A network that memorizes: half of the labels are drawn anew."""
    digits, random = data.digits(), torch.Generator().manual_seed(0)
    wrong = torch.rand(len(digits), generator=random) < 0.5
    y = torch.where(wrong, torch.randint(0, 10, (len(digits),), generator=random), digits.rows.y)
    fed = data.from_arrays(digits.rows.x, y).split(3, held_fraction=0.9, seed=0)
    return tacit.train(
        fed,
        model=models.MLP(hidden=(64,)),
        algorithm=algorithms.FedAvg(lr=0.5),
        rounds=6,
        local_epochs=10,
        batch_size=16,
    )


def test_the_models_of_all_rounds_tell_members(overfitted):
    found = audit.membership(overfitted, attack="rounds")
    assert found.p_value < 1e-5
    assert found.auc > 0.6
    assert any("the server, with the models of all rounds" in note for note in found.notes)


def test_a_party_attacks_the_rows_of_the_others_alone(overfitted):
    found = audit.membership(overfitted, attack="rounds", party="p1")
    assert found.p_value < 1e-5
    import numpy as np

    pool = _pool_of_rows(overfitted.origin, None, None, None, np.random.default_rng(0))
    others = pool.owner != 1
    assert found.members == int((others & pool.is_member).sum()) < int(pool.is_member.sum())
    assert len(found.curve.outside) == int((others & ~pool.is_member).sum())


def test_the_repeated_run_has_the_models_of_the_run(overfitted, monkeypatch):
    seen = []
    before = _EachRound.on_round_end
    monkeypatch.setattr(
        _EachRound,
        "on_round_end",
        lambda self, record, model: (seen.append(model), before(self, record, model))[1],
    )
    audit.membership(overfitted, attack="rounds", most=20)
    assert len(seen) == len(overfitted.history)
    assert all(torch.equal(a, b) for a, b in zip(seen[-1].parameters(), overfitted.model.parameters()))


def test_a_model_that_was_not_trained_on_them_tells_nothing():
    """Labels at random and one tiny step: P(p < 1e-6) is 1e-6 by construction of the test."""
    fed = data.digits().split(3, seed=0)
    run = tacit.train(fed, model=models.MLP(hidden=(8,)), algorithm=algorithms.FedAvg(lr=1e-4), rounds=2)
    assert audit.membership(run, attack="rounds").p_value > 1e-6


def test_noise_is_drawn_again_and_said():
    fed = data.digits().split(4, seed=0)
    run = tacit.train(
        fed,
        model=models.Logistic(),
        algorithm=algorithms.FedAvg(lr=0.1),
        rounds=2,
        guard=[guard.Clip(0.5), guard.Noise(multiplier=1.0)],
    )
    found = audit.membership(run, attack="rounds", most=50)
    assert any("another run of the same job" in note for note in found.notes)


def test_bad_adversaries_are_refused(overfitted):
    with pytest.raises(BadData, match="there is no party 'p9'"):
        audit.membership(overfitted, attack="rounds", party="p9")
    with pytest.raises(BadParameter, match="party= is the adversary"):
        audit.membership(overfitted, attack="loss", party="p1")
