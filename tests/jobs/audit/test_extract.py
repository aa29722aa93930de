"""Copies of models from their answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tacit
from tacit import algorithms, audit, data
from tacit.audit.extraction import solve_linear
from tacit.errors import BadParameter

CHANCE = 1e-8


@pytest.fixture(scope="module")
def fed():
    return data.digits().split(5, seed=0)


@pytest.fixture(scope="module")
def run(fed):
    return tacit.train(fed, model="mlp", algorithm=algorithms.FedAvg(lr=0.3), rounds=8)


def test_more_queries_copy_more(run, tmp_path):
    """Agreement above a constant answer by chance: binomial, below 1e-8."""
    found = audit.extract(run, queries=(5, 150), steps=150)
    assert found.agreement_by_queries[0] + 0.2 < found.agreement
    assert found.agreement > 0.9
    assert found.p_value < CHANCE
    assert found.method == "trained"
    assert "agreement" in found.report(tmp_path / "x.html").read_text()
    assert found.to_dict()["curve"][1]["queries"] == 150
    assert found.save(tmp_path / "copy.safetensors").exists()
    assert "agreement" in found._repr_html_()


def test_labels_alone_copy_less_than_probabilities(run):
    one, two = (audit.extract(run, queries=(100,), answers=a, steps=150) for a in ("probabilities", "labels"))
    assert two.p_value < CHANCE
    assert two.agreement < one.agreement


def test_a_logistic_model_is_solved_exactly(fed):
    """d + 1 = 65 equations and 5 to check; the weights are those of the model, up to a constant per row."""
    run = tacit.train(fed, model="logistic", algorithm=algorithms.FedAvg(lr=0.3), rounds=3)
    found = audit.extract(run, queries=(70,))
    assert (found.method, found.agreement) == ("solved", 1.0)
    (own,) = (m.weight for m in run.model.modules() if isinstance(m, torch.nn.Linear))
    (copy,) = (m.weight for m in found.copy.modules() if isinstance(m, torch.nn.Linear))
    seen = fed.rows.x.std(0) > 0.05  # of pixels that are always 0, no query tells the weight
    assert torch.allclose((own - own[:1])[:, seen], copy[:, seen], atol=0.02)
    assert audit.extract(run, queries=(60,), steps=20).method == "trained"


def test_answers_that_are_not_linear_are_not_solved():
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    shown = (x @ torch.ones(5, 3) * x[:, :1].abs() * torch.arange(3.0)).softmax(-1)
    assert solve_linear(x, shown) is None
    assert solve_linear(x[:8], (x[:8] @ torch.ones(5, 3)).softmax(-1)) is None  # too few rows to check


def test_labels_drawn_at_random_with_a_limit_stop_it(run):
    """Randomized response with ε = 0.1 for a query, 20 queries: a copy that exceeds the constant answer with
    p < 1e-8 has 78 of 252 right; with seeds fixed, this draws nothing from the system.
    """
    rng = np.random.default_rng(0)

    def randomized(shown):
        keep = np.exp(0.1) / (np.exp(0.1) + shown.shape[1] - 1)
        other = torch.from_numpy(rng.integers(0, shown.shape[1], len(shown)))
        return torch.where(torch.from_numpy(rng.random(len(shown)) < keep), shown.argmax(-1), other)

    found = audit.extract(run, queries=(20, 1000), answers=randomized, limit=20, steps=100)
    assert found.queries == (20,)
    assert found.p_value > CHANCE
    assert found.agreement < 0.35
    assert found.answers == "randomized"


def test_the_attacker_needs_no_rows(run):
    assert audit.extract(run, queries=(600,), rows="noise", steps=200).p_value < CHANCE


def test_a_regression_is_copied_too():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 4)).astype("float32")
    fed = data.from_arrays(x, (x[:, 0] * x[:, 1]).astype("float32")).split(2, held_fraction=0.4, seed=0)
    run = tacit.train(fed, model="mlp", algorithm=algorithms.FedAvg(lr=0.05), rounds=5, local_epochs=5)
    found = audit.extract(run, queries=(60,), steps=300)
    assert found.agreement > 0.5
    assert found.p_value < CHANCE


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queries": ()}, "queries"),
        ({"answers": "all"}, "answers"),
        ({"limit": 0}, "limit"),
        ({"rows": np.zeros((5, 3))}, "encoded as those of the run"),
        ({"answers": lambda shown: shown[:2]}, "an answer for each row"),
    ],
)
def test_bad_arguments_are_refused(run, options, text):
    with pytest.raises(BadParameter, match=text):
        audit.extract(run, **options)
