"""FedBoost's idea (Hamer, Mohri, Suresh 2020): how far to believe each of several models is learned from what
the parties find, one number a model.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tacit
from tacit import algorithms, data, models
from tacit.errors import BadParameter

FED = data.gaussian_blobs(rows=300, classes=3, features=4, seed=1).split(4, seed=0)


def some(count):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return [
            torch.nn.Sequential(
                torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.5), torch.nn.Linear(6, 3)
            )
            for _ in range(count)
        ]


@pytest.mark.parametrize(
    "how",
    [{"engine": "stack"}, {"engine": "each"}, {"runtime": "inprocess"}],
    ids=["stack", "each", "parties"],
)
def test_the_weights_take_mirror_steps(how):
    """α_m ∝ α_m·exp(η·mean of p_m(y|x) / Σ α p(y|x)) over everybody's rows, which is the gradient of the log loss."""
    members, rate = some(3), 3.0
    index, y = FED.train.index, FED.rows.y[FED.train.index]
    with torch.no_grad():
        p = np.stack(
            [
                m.eval()(FED.rows.x[index]).double().softmax(-1).gather(1, y[:, None])[:, 0].numpy()
                for m in members
            ]
        )
    alpha = np.full(3, 1 / 3)
    for _ in range(3):
        alpha = alpha * np.exp(rate * (p / (alpha @ p)).mean(1))
        alpha /= alpha.sum()
    run = tacit.train(
        FED,
        model=models.Ensemble(members),
        algorithm=algorithms.FedSGD(lr=rate),
        rounds=3,
        evaluate_every=0,
        **how,
    )
    np.testing.assert_allclose(run.model.weights.numpy(), alpha, atol=1e-5)
    assert np.abs(alpha - 1 / 3).max() > 0.02


def test_a_random_member_loses_its_weight_and_one_number_per_member_is_sent():
    good = [tacit.train(FED, model="mlp", rounds=4, seed=s).model for s in (0, 1)]
    guess = models.MLP(hidden=(6,)).build((4,), 3)
    ensemble = models.Ensemble([*good, guess])
    run = tacit.train(FED, model=ensemble, algorithm=algorithms.FedSGD(lr=3.0), rounds=10)
    assert float(run.model.weights[2]) < 0.02
    assert run.metrics["loss"] < run.history[0]["loss"]
    assert run.history[-1]["bytes_up"] < 200 * len(FED)  # not the members' thousands of numbers
    assert not ensemble.state_dict().keys() - {"theta"}
    kept = [p for m in run.model.held for p in m.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(kept, (p for m in (*good, guess) for p in m.parameters())))


@pytest.mark.parametrize("members", [[], ["mlp"]])
def test_members_are_modules(members):
    with pytest.raises(
        BadParameter,
        match=r"Ensemble: members is .*; it must be a list of at least one nn.Module, such as the models of "
        r"earlier runs",
    ):
        models.Ensemble(members)
