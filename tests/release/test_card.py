"""The model card: everything a reader needs, nothing that the small-count rule or an ε forbids."""

from __future__ import annotations

import pandas as pd
import pytest

import tacit
from tacit import data, guard, private
from tacit.errors import BadParameter
from tacit.report.card import render_card
from tacit.report.records import RunRecord

from .test_scoring import federation, patients


def test_the_card_states_use_model_data_metrics_ledger_and_versions(tmp_path):
    run = tacit.train(
        federation(patients(400)),
        model="logistic",
        rounds=2,
        seed=7,
        intended_use="Triage support. Not for children.",
        out=tmp_path / "run",
    )
    card = run.card()
    assert card == (tmp_path / "run" / "card.md").read_text()
    assert [line for line in card.splitlines() if line.startswith("## ")][:4] == [
        "## Intended use",
        "## Model",
        "## Data",
        "## Metrics",
    ]
    assert "Triage support. Not for children." in card
    assert "TO BE FILLED IN" not in card
    assert "- predicts: outcome" in card
    assert "- classes: ALIVE, DEAD" in card
    assert f"| accuracy | {run.metrics['accuracy']:.4g} |" in card
    assert f"| average precision of DEAD | {run.metrics['average_precision']:.4g} |" in card
    assert f"On {sum(map(sum, run.metrics['confusion']))} rows of the test set." in card
    assert "- seed: 7" in card
    assert f"- tacit: {tacit.__version__}" in card
    assert "- torch: " in card
    assert "one party's model update" in card
    assert "No differential privacy" in card
    page = run.report(tmp_path / "r.html").read_text()
    assert 'id="card"' in page
    assert "Triage support. Not for children." in page


def test_an_open_intended_use_is_marked():
    run = tacit.train(federation(patients(200)), model="logistic", rounds=1)
    assert "> **TO BE FILLED IN: who may use this model" in run.card()
    with pytest.raises(BadParameter, match="intended_use is 3; it must be a text"):
        tacit.train(federation(patients(200)), intended_use=3)


@pytest.mark.parametrize(
    "options",
    [
        {"private": private.DPSGD(epsilon=5.0, public_size=50)},
        {"guard": [guard.Clip(1.0), guard.Noise(multiplier=1.0)], "sampling": "poisson"},
    ],
    ids=["rows", "parties"],
)
def test_under_an_epsilon_the_card_has_no_exact_number_of_rows(options):
    fed = federation(patients(397))
    card = tacit.train(fed, model="logistic", rounds=1, evaluate_every=0, **options).card()
    assert "Numbers of rows are not stated" in card
    assert "ε = " in card
    sizes = {*fed.sizes.tolist(), int(fed.sizes.sum()), 397}
    words = set(card.replace("|", " ").replace(",", "").split())
    assert not {str(n) for n in sizes if n > 20} & words


def test_small_counts_are_not_stated():
    """Three rows of a class, and a party of six rows."""
    frame = patients(200)
    frame["outcome"] = ["DEAD"] * 3 + ["ALIVE"] * 197
    frame["site"] = ["a"] * 100 + ["b"] * 94 + ["c"] * 6
    fed = data.from_frame(frame[["age", "site", "outcome"]], "outcome", test_fraction=0.0).by("site")
    card = tacit.train(fed, model="logistic", rounds=1, evaluate_every=0).card()
    assert "| DEAD | fewer than 10 |" in card
    assert "| c | fewer than 10 |" in card
    assert "| a | 100 |" in card


def test_the_complement_of_a_small_count_is_not_stated_either():
    """With the total and all other parties, the small one would follow."""
    frame = patients(200)
    frame["site"] = ["a"] * 100 + ["b"] * 94 + ["c"] * 6
    fed = data.from_frame(frame[["age", "site", "outcome"]], "outcome", test_fraction=0.0).by("site")
    card = tacit.train(fed, model="logistic", rounds=1, evaluate_every=0).card()
    assert "- rows: about 200" in card


def test_intervals_subgroups_and_calibration_are_shown():
    events = [
        {"kind": "start", "label": "FedAvg", "rounds": 1, "federation": {"name": "icu", "parties": ["a"]}},
        {
            "kind": "round",
            "round": 1,
            "loss": 0.4,
            "calibration": [[0.1, 0.12, 40], [0.9, 1.0, 3]],
            "subgroups": {
                "sex": {"f": {"rows": 44, "auc": 0.81, "auc_low": 0.7, "auc_high": 0.9}, "m": {"auc": 0.79}}
            },
        },
        {
            "kind": "end",
            "metrics": {"accuracy": 0.7, "majority": 0.8, "auc": 0.8, "auc_low": 0.75, "auc_high": 0.85},
        },
    ]
    card = render_card(RunRecord({}, events, {"seen": [], "spent": [], "stamps": []}))
    assert "| AUC | 0.8 | 0.75 to 0.85 |" in card
    assert "not above 0.800, that of always guessing the majority class" in card
    assert "| f | 44 | 0.81 (0.7 to 0.9) |" in card
    assert "| 0.1 | 0.12 | 40 |" in card
    assert "| 0.9 |" not in card  # three rows are too few
    # with early stopping the model is not that of the last round, and neither are its curves
    events[-1]["metrics"] |= {"calibration": [[0.2, 0.25, 50]], "subgroups": {"sex": {"f": {"auc": 0.5}}}}
    card = render_card(RunRecord({}, events, {"seen": [], "spent": [], "stamps": []}))
    assert "| 0.2 | 0.25 | 50 |" in card
    assert "| 0.1 | 0.12 | 40 |" not in card
    assert "0.81" not in card


def test_names_of_others_are_displayed_literally():
    events = [
        {
            "kind": "start",
            "label": "x",
            "federation": {"name": "<b>|*a*\n# h", "parties": ["[l](http://e)"], "sizes": [50]},
        }
    ]
    card = render_card(RunRecord({"train": {"intended_use": "<script>"}}, events, None))
    assert "\\<b\\>\\|\\*a\\* \\# h" in card
    assert "\\[l\\](http://e)" in card
    assert "<script>" not in card


def test_a_model_of_one_holder_can_be_used(tmp_path):
    frame = patients(300).drop(columns=["patient", "site"])
    dataset = data.from_frame(frame, "outcome", categories=["grade"])
    run = tacit.train_private(
        dataset, model="logistic", epsilon=5.0, epochs=1, public_size=240, out=tmp_path / "run"
    )
    again = tacit.load(tmp_path / "run")
    scored = again.predict(frame.iloc[:9])
    pd.testing.assert_frame_equal(scored, run.predict(frame.iloc[:9]))
    assert list(scored.columns) == ["p(ALIVE)", "p(DEAD)", "prediction"]
    assert "ε = " in again.card()


def test_the_card_and_the_plan_say_what_no_epsilon_covers(tmp_path):
    """Before, the card gave the ε of a run with a replayable seed, or with exact means, without a word."""
    fed = data.heart_disease().by("hospital")
    options = {"model": "logistic", "rounds": 1, "private": {"epsilon": 3.0, "public_size": 100}}
    covered = "ε does not cover the statistics by which the table was encoded, which are exact."
    run = tacit.train(fed, **options, insecure_seed=1)
    privacy = run.card().split("## Privacy and ledger")[1]
    assert privacy.index(covered) < privacy.index("NOT PRIVATE") < privacy.index("ε = ")
    assert covered in str(tacit.plan(fed, **options))
    recipe = data.Recipe(numbers=("age",), categories={"sex": ("0", "1")}, mean=(50.0,), std=(10.0,))
    frame = data.heart_disease().table.frame[["age", "sex", "hospital", "num"]]
    declared = data.from_frame(frame, label="num", groups=["hospital"], fit=recipe).by("hospital")
    assert covered not in tacit.train(declared, **options).card() + str(tacit.plan(declared, **options))
