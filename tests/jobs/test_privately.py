"""tacit.train_private, in Python, as a job file and on the command line."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import tacit
from tacit import cli
from tacit.config.private import load
from tacit.errors import BadJob, BadParameter


@pytest.fixture(scope="module")
def digits():
    return tacit.data.digits()


def test_it_learns_within_its_budget(digits, tmp_path):
    """90% on most runs with these settings; below 75% would be more than ten standard deviations of the runs
    we saw.
    """
    run = tacit.train_private(
        digits,
        model="mlp",
        epsilon=3.0,
        delta=1e-5,
        epochs=12,
        lr=1.0,
        clip=1.0,
        batch_size=256,
        public_size=1500,
        out=tmp_path / "run",
    )
    assert run.metrics["accuracy"] > 0.75
    (line,) = run.ledger.spent
    assert line.epsilon == run.metrics["epsilon"] <= 3.0
    assert line.delta == 1e-5
    assert [e["round"] for e in run.history] == list(range(1, 13))
    spent = [e["epsilon"] for e in run.history]
    assert spent == sorted(spent)
    assert len((tmp_path / "run" / "spent.jsonl").read_text().splitlines()) == 12 * 6
    assert torch.equal(load_file(tmp_path / "run" / "model.safetensors")["5.bias"], run.model[5].bias)
    page = run.report().read_text()
    assert "Accuracy vs. ε" in page
    assert "discrete Gaussian noise" in page
    assert json.loads((tmp_path / "run" / "ledger.json").read_text())["spent"][0]["sampling"].startswith(
        "Poisson"
    )


@pytest.mark.parametrize(
    "more",
    [
        {"clipping": "automatic"},
        {"clipping": "per-layer"},
        {"sampling": "shuffle"},
        {"sampling": "fixed"},
        {"sampling": "order"},
        {"optimizer": "adam"},
        {"micro_batch": 50},
        {"method": "functional"},
        {"momentum": 0.5},
    ],
    ids=lambda m: str(next(iter(m.values()))),
)
def test_every_sampling_and_clipping(digits, more):
    run = tacit.train_private(digits, model="logistic", epsilon=5.0, epochs=2, evaluate_every=0, **more)
    assert run.ledger.spent[0].epsilon <= 5.0
    assert all(torch.isfinite(p).all() for p in run.model.parameters())
    assert all(p.requires_grad for p in run.model.parameters())


@pytest.mark.parametrize("model", ["cnn", "resnet8"])
def test_models_of_ours_on_images(model):
    images = tacit.data.digits(images=True)
    run = tacit.train_private(images, model=model, noise_multiplier=1.0, epochs=1, batch_size=64)
    assert run.metrics["epsilon"] > 0


def test_a_regression():
    x = torch.randn(300, 4)
    data = tacit.data.from_arrays(x, x @ torch.tensor([1.0, -1.0, 0.5, 0.0]) + 0.01, regression=True)
    run = tacit.train_private(data, model="logistic", epsilon=8.0, delta=1e-4, epochs=20, lr=0.2, clip=2.0)
    assert run.metrics["loss"] < 1.0  # a model that says nothing has 2.25


def patients(gaps=True):
    """Two measurements of very different size, of which one decides, a category, and cells that are
    missing.
    """
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "dose": rng.normal(40_000, 9_000, 400).round(),
            "age": rng.normal(50, 9, 400).round(),
            "sex": rng.choice(["f", "m"], 400),
        }
    )
    frame["ill"] = np.where(frame.dose > 40_000, "yes", "no")
    if gaps:
        frame.loc[::20, "age"] = np.nan
    return frame


def test_a_table_is_encoded_before_it_is_trained_on_and_the_ledger_says_what_that_looked_at():
    """It was once trained without encoding: with a missing cell every weight became NaN."""
    table = tacit.data.from_frame(patients(), label="ill")
    assert abs(table.centralize().rows.x[:, 0].mean()) < 1e-4
    run = tacit.train_private(table, model="logistic", noise_multiplier=0.5, epochs=10)
    assert run.metrics["accuracy"] > 0.8  # chance has 0.5; 0.95 and more in twenty runs
    assert "from the private rows, which ε does not cover" in run.ledger.spent[0].note
    assert [e["text"] for e in run.events if e["kind"] == "note"] == [run.ledger.spent[0].note]


def test_a_declared_encoding_reads_no_row():
    recipe = tacit.data.Recipe(
        numbers=("dose", "age"), categories={"sex": ("f", "m")}, mean=(40_000.0, 50.0), std=(10_000.0, 10.0)
    )
    table = tacit.data.from_frame(patients(gaps=False), label="ill", fit=recipe)
    run = tacit.train_private(table, model="logistic", noise_multiplier=0.5, epochs=10)
    assert run.metrics["accuracy"] > 0.8
    assert "from the private rows" not in run.ledger.spent[0].note
    assert "it does not cover which rows were held out" in run.ledger.spent[0].note
    assert "The number of rows was released with Gaussian noise" in run.ledger.spent[0].note


def test_noise_zero_is_stamped(digits):
    run = tacit.train_private(digits, model="logistic", noise_multiplier=0.0, epochs=1, evaluate_every=0)
    assert run.ledger.spent == []
    assert run.ledger.stamps == ["NOT PRIVATE: no noise was added; nothing is guaranteed."]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"clip": 0}, "train_private: clip is 0; it must be a number above 0"),
        ({"epochs": 0}, "epochs is 0; it must be a whole number of at least 1"),
        (
            {"batch_size": 10**6},
            "batch_size is 1000000; it must be a whole number between 1 and the number of rows",
        ),
        ({"optimizer": "lbfgs"}, "optimizer is 'lbfgs'; it must be one of 'sgd', 'adam'"),
        ({"sampling": "weighted"}, "sampling is 'weighted'"),
        ({"epsilon": None}, "neither epsilon nor noise_multiplier is given"),
        ({"lr": 0}, "lr is 0; it must be a number above 0"),
        ({"model": "transformer"}, "model is 'transformer'"),
        (
            {"model": nn.Linear(64, 9)},
            r"train_private: model 'linear' returns outputs of shape \(9,\); digits has 10 classes, so it "
            r"must return 10 logits per row",
        ),
        (
            {"model": nn.Sequential(nn.Linear(64, 10), nn.Softmax(-1))},
            "train_private: model 'sequential' returns probabilities; .*Remove the softmax",
        ),
    ],
)
def test_bad_values_are_one_sentence(digits, given, words):
    with pytest.raises(BadParameter, match=words):
        tacit.train_private(digits, **{"model": "logistic", "epsilon": 3.0, **given})


def test_a_seed_does_not_make_the_noise_replayable_and_an_insecure_seed_is_stamped(digits, tmp_path):
    def weights(**seeds):
        run = tacit.train_private(digits, model="logistic", epsilon=3.0, epochs=1, evaluate_every=0, **seeds)
        return torch.cat([p.detach().flatten() for p in run.model.parameters()]), run

    (one, run), (two, _) = (weights(seed=4) for _ in range(2))
    assert not torch.equal(one, two)
    assert run.ledger.stamps == []
    (one, run), (two, _) = (weights(seed=4, insecure_seed=1) for _ in range(2))
    assert torch.equal(one, two)
    assert run.ledger.stamps[0].startswith("NOT PRIVATE")
    assert "NOT PRIVATE" in run.report(tmp_path / "report.html").read_text()


def test_a_federation_is_not_one_holder(digits):
    with pytest.raises(BadParameter, match=r"dataset is 'Federation'; it must be a Dataset"):
        tacit.train_private(digits.split(3))


def test_a_delta_too_large_warns(digits):
    with pytest.warns(UserWarning, match="δ ≥ 1/rows"):
        tacit.train_private(digits, model="logistic", epsilon=3.0, delta=0.01, epochs=1, evaluate_every=0)


JOB = """
[data]
name = "digits"
[model]
name = "mlp"
hidden = [16]
[private]
epsilon = 3.0
delta = 1e-5
epochs = 2
batch_size = 128
"""


def test_a_job_file_on_the_command_line(tmp_path, capsys):
    (tmp_path / "job.toml").write_text(JOB)
    assert (
        cli.main(
            [
                "train-private",
                str(tmp_path / "job.toml"),
                "--out",
                str(tmp_path / "run"),
                "--epochs",
                "1",
                "--json",
            ]
        )
        == 0
    )
    said = json.loads(capsys.readouterr().out)
    assert said["ledger"]["spent"][0]["epsilon"] <= 3.0
    assert len(said["history"]) == 1
    assert said["job"]["private"]["batch_size"] == 128
    again, settings = load(tmp_path / "run" / "job.toml")
    assert again.model.hidden == (16,)
    assert settings["epsilon"] == 3.0
    assert (tmp_path / "run" / "report.html").exists()
    assert (
        cli.main(
            ["train-private", str(tmp_path / "job.toml"), "--out", str(tmp_path / "other"), "--epochs", "0"]
        )
        == 2
    )
    assert (
        "job.toml, private: epochs is 0; it must be a whole number of at least 1" in capsys.readouterr().err
    )
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (JOB.replace("epsilon", "epsilom"), "it has no key 'epsilom'. Did you mean 'epsilon'?"),
        (JOB.replace("[private]", "[train]"), "is a job of `tacit run`, not of this command"),
        (JOB.replace('[data]\nname = "digits"', ""), r"there is no \[data\] table"),
        (JOB.replace("digits", "digitz"), "'digitz' is not a data set"),
        (JOB.replace("epochs = 2", 'epochs = "two"'), "epochs is 'two'; it must be a whole number"),
    ],
)
def test_a_wrong_job_file_names_the_place(tmp_path, text, words):
    (tmp_path / "job.toml").write_text(text)
    with pytest.raises(BadJob, match=words.replace("?", r"\?")):
        load(tmp_path / "job.toml")


def test_the_shipped_job_loads():
    from pathlib import Path

    _, settings = load(Path(__file__).parents[2] / "examples" / "private" / "digits.toml")
    assert settings["epsilon"] == 3.0


def test_bf16_is_near_float32_and_rows_are_clipped_in_float32(digits):
    """With the same rows and noise, the models are nearly the same: bf16 rounds by 2⁻⁹."""
    options = {"epochs": 2, "noise_multiplier": 0.5, "insecure_seed": 1, "batch_size": 128, "lr": 0.5}
    full, half = (
        tacit.train_private(digits, model="mlp", precision=precision, **options)
        for precision in ("float32", "bf16")
    )
    a, b = (torch.cat([p.detach().reshape(-1) for p in run.model.parameters()]) for run in (full, half))
    assert 0 < float((a - b).norm()) < 0.05 * float(a.norm())
    assert abs(full.metrics["loss"] - half.metrics["loss"]) < 0.05
    with pytest.raises(BadParameter, match="precision is 'half'; it must be one of 'float32', 'bf16'"):
        tacit.train_private(digits, precision="half", epsilon=1.0)
