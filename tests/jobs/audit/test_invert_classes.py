"""Rows of classes from confidences."""

from __future__ import annotations

import pytest
import torch

import tacit
from tacit import algorithms, audit, data, guard
from tacit.audit import class_inversion
from tacit.errors import BadParameter

OPTIONS = {"model": "logistic", "algorithm": algorithms.FedAvg(lr=0.3), "rounds": 8}


@pytest.fixture(scope="module")
def fed():
    return data.digits().split(5, seed=0)


@pytest.fixture(scope="module")
def run(fed):
    return tacit.train(fed, **OPTIONS)


def test_classes_are_recognized_from_weights(run, tmp_path):
    """9 of 10 by chance: at most 1/9! = 2.8e-6."""
    found = audit.invert_classes(run, steps=60)
    assert found.recognized >= 9
    assert found.p_value < 1e-5
    assert found.rebuilt.shape == (10, 64)
    assert 0 <= found.rebuilt.min() <= found.rebuilt.max() <= 1
    assert found.save_picture(tmp_path / "classes.png").read_bytes()[:4] == b"\x89PNG"
    assert found.report(tmp_path / "x.html").read_text().count("data:image/png") == 16 + 4
    assert "recognized" in found._repr_html_()


@pytest.mark.parametrize("access", ["probabilities", lambda shown: (shown * 10).round() / 10])
def test_confidences_suffice_even_rounded(run, access):
    """Rounding, the paper's countermeasure, does not stop queries at a distance."""
    assert audit.invert_classes(run, access=access, steps=60).recognized >= 8


def test_noise_on_the_model_stops_it(fed):
    """Noise for parties, with a fixed seed. 8 of 10 by chance: at most 1/8! = 2.5e-5."""
    noise = [guard.Clip(0.5), guard.Noise(multiplier=3.0)]
    run = tacit.train(fed, **OPTIONS, guard=noise, insecure_seed=0)
    found = audit.invert_classes(run, steps=60)
    assert found.recognized < 8
    assert found.p_value > 2.5e-5


def test_an_estimated_gradient_climbs_as_the_true_one():
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 3)
    start, y = torch.zeros(3, 6), torch.arange(3)
    true = class_inversion.climb(model, start, y, steps=20)
    found = class_inversion.estimate(lambda x: model(x).softmax(-1), start, y, steps=20, pairs=256)
    before = model(start).log_softmax(-1).diag()
    for x in (true, found):
        assert (model(x).log_softmax(-1).diag() > before + 0.2).all()


def test_columns_of_tables_have_their_own_range():
    from sklearn.datasets import load_wine

    x, y = load_wine(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    run = tacit.train(data.from_arrays(x.astype("float32"), y).split(3, seed=0), **OPTIONS)
    found = audit.invert_classes(run)
    assert found.recognized == 3
    assert found.pictures() is None


@pytest.mark.parametrize(
    ("options", "text"),
    [({"classes": [11]}, "classes"), ({"access": "all"}, "access"), ({"steps": 0}, "steps")],
)
def test_bad_arguments_are_refused(run, options, text):
    with pytest.raises(BadParameter, match=text):
        audit.invert_classes(run, **options)
