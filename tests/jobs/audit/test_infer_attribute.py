"""Hidden columns of training rows."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
import torch

import tacit
from tacit import algorithms, audit, data, models, private
from tacit.audit import attributes
from tacit.errors import BadData, BadParameter

OPTIONS = {
    "model": models.MLP(hidden=(128,)),
    "algorithm": algorithms.FedAvg(lr=0.5),
    "rounds": 20,
    "local_epochs": 10,
    "batch_size": 16,
}


@pytest.fixture(scope="module")
def fed():
    """160 members and 160 others with random labels, and a random binary column: all must be memorized."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(400, 10)), rng.integers(0, 2, (400, 1))], 1).astype("float32")
    return data.from_arrays(x, rng.integers(0, 2, 400)).split(2, held_fraction=0.5, seed=0)


@pytest.fixture(scope="module")
def run(fed):
    return tacit.train(fed, **OPTIONS)


def test_a_memorized_column_is_guessed_for_members_only(run, tmp_path):
    """By chance below 1e-6 (two rates of 160)."""
    found = audit.infer_attribute(run, 10)
    assert found.p_value < 1e-6
    assert found.accuracy > 0.7
    assert found.accuracy_on_others < 0.65
    assert found.advantage == pytest.approx(found.accuracy - found.accuracy_on_others)
    assert found.values == 2
    assert "training rows" in found.report(tmp_path / "x.html").read_text()
    assert found.save(tmp_path / "x.json").exists()
    assert "advantage" in found._repr_html_()


def test_differential_privacy_stops_it(fed):
    """ε = 0.25: the advantage of any attack is at most (e^ε − 1)/(e^ε + 1) + 2δ < 0.13; with 160 rows of each,
    one above 0.13 + 0.34 has probability below 1e-8 (six standard errors of at most 0.056).
    """
    run = tacit.train(
        fed, **OPTIONS | {"rounds": 2, "local_epochs": 1}, private=private.DPSGD(epsilon=0.25, delta=1e-3)
    )
    found = audit.infer_attribute(run, 10)
    assert found.claim is not None
    assert found.advantage < 0.47


def test_what_the_population_tells_is_no_advantage():
    """The label follows from the column, for everyone."""
    rng = np.random.default_rng(1)
    x = rng.integers(0, 2, (600, 3)).astype("float32")
    fed = data.from_arrays(x, x[:, 0].astype(int)).split(2, held_fraction=0.5, seed=0)
    found = audit.infer_attribute(tacit.train(fed, **OPTIONS | {"rounds": 2}), 0)
    assert found.accuracy > 0.95
    assert found.accuracy_on_others > 0.95
    assert abs(found.advantage) < 0.05
    assert found.p_value > 0.01


def test_a_column_of_a_table_is_hidden_with_all_its_categories():
    rng = np.random.default_rng(2)
    frame = pandas.DataFrame(
        {
            "age": rng.integers(20, 60, 300),
            "town": rng.choice(list("abc"), 300),
            "ill": rng.integers(0, 2, 300),
        }
    )
    fed = data.from_frame(frame, label="ill").split(2, held_fraction=0.3, seed=0)
    run = tacit.train(fed, rounds=2)
    town, age = (audit.infer_attribute(run, name, values=4) for name in ("town", "age"))
    assert (town.values, age.values) == (3, 4)
    with pytest.raises(BadParameter, match="Did you mean 'town'"):
        audit.infer_attribute(run, "twon")


def test_guesses_maximize_the_posterior():
    """By hand: log P(y | v) + log P(v)."""
    x = torch.zeros(2, 2)
    values, prior = torch.tensor([[0.0], [1.0]]), torch.tensor([0.9, 0.1])
    found = attributes.guess_values(
        lambda tried: tried[:, 1] * torch.tensor([3.0, 1.0]), x, torch.tensor([1]), values, prior
    )
    assert found.tolist() == [1, 0]  # log 9 = 2.2: only the first row's likelihood outweighs it


def test_bad_arguments_are_refused(run):
    with pytest.raises(BadParameter, match="numbers from 0 to 10"):
        audit.infer_attribute(run, 11)
    with pytest.raises(BadParameter, match="most"):
        audit.infer_attribute(run, 0, most=3)
    constant = data.from_arrays(np.ones((200, 2), "float32"), np.arange(200) % 2).split(2, held_fraction=0.4)
    trained = tacit.train(constant, rounds=1)
    with pytest.raises(BadData, match="one value only"):
        audit.infer_attribute(trained, 0)
