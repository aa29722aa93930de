"""Canaries in the text of a federation: 16 tokens, of which each has four successors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tacit
from tacit import algorithms, audit, data, guard, models
from tacit.audit import exposure
from tacit.errors import BadData, BadParameter

OPTIONS = {"algorithm": algorithms.FedAvg(lr=2.0), "rounds": 12, "local_epochs": 2, "batch_size": 8}


def text(every: bool):
    rng, rows = np.random.default_rng(0), np.zeros((300, 17), dtype=int)
    rows[:, 0] = rng.integers(0, 16, 300)
    for t in range(16):
        rows[:, t + 1] = (3 * rows[:, t] + rng.integers(0, 4, 300)) % 16
    y = rows[:, 1:] if every else rows[:, -1]
    return data.from_arrays(rows[:, :-1], y, tokens=True, classes=16, test_fraction=0.1).split(2, seed=0)


def run_of(every: bool = True, **options):
    model = models.LSTM(hidden=32, layers=1, every=every)
    return tacit.train(text(every), model=model, **OPTIONS | options)


@pytest.fixture(scope="module")
def run():
    return run_of()


def test_a_repeated_secret_is_exposed_and_extracted(run, tmp_path):
    """Two canaries before all of 500 candidates: by chance with probability 5.4e-5."""
    found = audit.memorization(run, copies=(1, 16), length=4, candidates=500)
    assert found.exposure == found.largest == pytest.approx(np.log2(501))
    assert found.p_value < 1e-4
    assert found.by_copies[1] < found.by_copies[16]
    assert sum(c.extracted for c in found.canaries if c.copies == 16) == 2
    assert found.secret_bits == pytest.approx(4 * np.log2(10))
    assert "16 copies" in found.report(tmp_path / "x.html").read_text()
    assert found.to_dict()["canaries"][0]["copies"] == 1
    assert found.save(tmp_path / "x.json").exists()
    assert "exposure" in found._repr_html_()


@pytest.mark.slow
def test_models_of_the_last_token_are_audited_too():
    found = audit.memorization(run_of(every=False), copies=(8,), canaries=1, length=4, candidates=200)
    assert found.exposure > 6
    assert found.p_value < 0.02


def test_noise_for_parties_stops_it():
    """The noise has a fixed seed. Two canaries among the first 5 of 500: by chance 1e-3."""
    noise = [guard.Clip(0.5), guard.Noise(multiplier=1.0)]
    noisy = run_of(guard=noise, insecure_seed=0)
    found = audit.memorization(noisy, copies=(16,), length=4, candidates=500)
    assert found.p_value > 1e-3
    assert found.extracted == 0
    assert found.claim is None  # a replayable seed is no privacy


def test_ranks_exposure_and_search_by_hand():
    others = torch.tensor([1.0, 2.0, 2.0, 3.0])
    assert [exposure.rank(v, others) for v in (0.5, 2.0, 9.0)] == [1, 4, 5]
    assert exposure.exposure(1, 3) == 2.0
    cost = torch.tensor([[0.1, 5.0], [0.2, 0.0]])  # of the first token, and of the second after it

    def surprise(secrets):
        second = torch.where(secrets[:, 1] == 1, cost[1, 1], cost[1, 0])
        return torch.stack([cost[0, secrets[:, 0]], second], 1)

    assert exposure.search(surprise, torch.arange(2), 2, width=2).tolist() == [0, 1]


def test_a_model_that_was_not_trained_on_them_exposes_nothing(run):
    """Places of secrets are uniform without training: Fisher's p-value is above 1e-4 with this seed."""
    found = audit.memorization(run, copies=(1,), canaries=3, length=4, candidates=100, rounds=1)
    assert found.p_value > 1e-4
    assert found.extracted == 0


def test_runs_and_arguments_that_do_not_fit_are_refused(run):
    with pytest.raises(BadData, match="at most half of them are replaced"):
        audit.memorization(run, copies=(200,))
    with pytest.raises(BadParameter, match="less than the 16 tokens"):
        audit.memorization(run, length=16)
    with pytest.raises(BadParameter, match=r"copies(.|\n)*candidates"):
        audit.memorization(run, copies=(), candidates=1)
    numbers = tacit.train(data.digits().split(2, seed=0), model="logistic", rounds=1, evaluate_every=0)
    with pytest.raises(BadParameter, match="models of text"):
        audit.memorization(numbers)
