"""Shares of rows with a property that the label is not about."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tacit
from tacit import algorithms, audit, data, guard, models
from tacit.audit.properties import MetaClassifier, draw_rows, largest_size
from tacit.errors import BadData, BadParameter

OPTIONS = {
    "model": models.MLP(hidden=(16,)),
    "algorithm": algorithms.FedAvg(lr=0.3),
    "rounds": 8,
    "local_epochs": 4,
    "batch_size": 32,
    "evaluate_every": 0,
}


def has(rows):
    return rows.x[:, 0] > 0.5


@pytest.fixture(scope="module")
def fed():
    """Column 2 has another effect on the label for rows with the property, of which are half."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1600, 8)).astype("float32")
    x[:, 0] = rng.random(1600) < 0.5
    y = x[:, 1] + 0.8 * x[:, 2] * (2 * x[:, 0] - 1) + 0.3 * rng.normal(size=1600) > 0
    return data.from_arrays(x, y.astype(int), test_fraction=0.1).split(4, seed=0)


@pytest.fixture(scope="module")
def run(fed):
    return tacit.train(fed, **OPTIONS)


def test_the_share_is_told_from_the_model(run, tmp_path):
    """At least 15 of 16 by chance: 2.6e-4."""
    found = audit.infer_property(run, has)
    assert found.right >= 15
    assert found.p_value < 3e-4
    assert (found.tested, found.shadows) == (16, 24)
    assert found.share == pytest.approx(0.5, abs=0.03)
    assert found.guess in (0.2, 0.8)
    assert "20%" in found.report(tmp_path / "x.html").read_text()
    assert found.save(tmp_path / "x.json").exists()
    assert "accuracy" in found._repr_html_()


def test_the_run_of_a_share_is_guessed(fed):
    """A run on rows of which 85% have the property is nearer to 80% than to 20%."""
    index = torch.cat([torch.nonzero(has(fed.rows))[:, 0], torch.nonzero(~has(fed.rows))[:130, 0]])
    skewed = data.from_arrays(fed.rows.x[index].numpy(), fed.rows.y[index].numpy(), test_fraction=0.1)
    found = audit.infer_property(tacit.train(skewed.split(4, seed=0), **OPTIONS), has, tests=4)
    assert found.share > 0.8
    assert found.guess == 0.8


def test_the_share_is_told_from_an_update_and_not_behind_noise_of_the_party(fed):
    """Noise with a fixed seed; 15 of 16 by chance: 2.6e-4."""
    settings = OPTIONS | {"rounds": 1, "local_epochs": 1}
    plain = audit.infer_property(tacit.train(fed, **settings), has, view="update")
    assert plain.right >= 15
    assert (plain.seen, plain.guess, plain.rows) == ("this party's update", None, 200)
    noise = [guard.Clip(0.5), guard.Noise(multiplier=1.0, placement="local")]
    noisy = tacit.train(fed, **settings, guard=noise, insecure_seed=0)
    found = audit.infer_property(noisy, has, view="update")
    assert found.right < 15
    assert found.p_value > 3e-4
    assert found.seen == "this party's update after Clip → Noise"


def test_a_property_that_changes_nothing_is_not_told(run):
    """A column that the label does not depend on; 15 of 16 by chance: 2.6e-4, and the seed is fixed."""
    assert audit.infer_property(run, lambda rows: rows.x[:, 7] > 0, seed=1).right < 15


def test_the_attack_is_tested_on_rows_that_it_does_not_have():
    rng = np.random.default_rng(0)
    mask = rng.random(100) < 0.3
    assert largest_size(mask, (0.2, 0.8)) == int(mask.sum() / 0.8)
    rows = draw_rows(mask, 20, 0.8, rng)
    assert len(set(rows.tolist())) == 20
    assert mask[rows].sum() == 16


def test_the_classifier_equals_ridge_regression():
    from sklearn.linear_model import Ridge

    rng = np.random.default_rng(0)
    x, kind = rng.normal(size=(12, 30)), np.arange(12) % 2 == 1
    found = MetaClassifier.fit(torch.from_numpy(x), torch.from_numpy(kind))
    z = (x - x.mean(0)) / x.std(0, ddof=1)
    ridge = 0.1 * (z**2).sum(1).mean()
    expected = Ridge(alpha=ridge, fit_intercept=False).fit(z, kind * 2 - 1)
    assert np.allclose(found.score(torch.from_numpy(x)), expected.predict(z), atol=1e-6)


def test_bad_arguments_are_refused(run):
    with pytest.raises(BadParameter, match=r"where= failed on the rows \(TypeError.*rows\.x, of shape"):
        audit.infer_property(run, lambda table: table["age"] > 3)
    with pytest.raises(BadParameter, match="one bool for each row"):
        audit.infer_property(run, lambda rows: rows.y[:3])
    with pytest.raises(BadParameter, match=r"shares(.|\n)*view"):
        audit.infer_property(run, has, shares=(0.5, 0.5), view="all")
    with pytest.raises(BadParameter, match="have the property"):
        audit.infer_property(run, has, size=5000)
    with pytest.raises(BadData, match="or none has"):
        audit.infer_property(run, lambda rows: rows.x[:, 0] > 99)
