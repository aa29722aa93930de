"""The report's section on how good the model is, from a real run."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import tacit
from tacit import algorithms, data
from tacit.report import judging, verdict
from tacit.report.records import RunRecord, read_run


def patients(
    n: int = 900, sick: float = 1.6, labels: tuple[str, str] = ("alive", "<b>dead</b>")
) -> data.Federation:
    rng = np.random.default_rng(0)
    age, score = rng.integers(20, 90, n), rng.normal(size=n)
    is_sick = score + rng.normal(size=n) > sick
    frame = pandas.DataFrame(
        {
            "age": age,
            "score": score,
            "sex": rng.choice(["f", "m"], n),
            "outcome": np.where(is_sick, labels[1], labels[0]),
        }
    )
    return data.from_frame(frame, label="outcome").split(3, seed=0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tacit.Result:
    return tacit.train(
        patients(),
        model="logistic",
        algorithm=algorithms.FedAvg(lr=0.5),
        rounds=4,
        subgroups=["sex", "age: 40, 65"],
        out=tmp_path_factory.mktemp("judged") / "run",
    )


def record_of(run: tacit.Result) -> RunRecord:
    return RunRecord(run.config, run.events, run.ledger.to_dict())


def test_the_section_shows_metrics_intervals_confusion_curves_and_subgroups(run: tacit.Result) -> None:
    page = run.report().read_text()
    section = page[page.index('id="judging"') :]
    section = section[: section.index("</section>")]
    m = run.metrics
    assert run.metric == "auc"
    within = f"{100 * m['auc_low']:.1f}% to {100 * m['auc_high']:.1f}%"
    assert section.index("AUC") < section.index("average precision") < section.index("accuracy")
    assert within in section
    assert f"always predicting the largest class: {100 * m['majority']:.1f}%" in section
    for count in (n for row in m["confusion"] for n in row):
        assert f"<td>{count}</td>" in section
    assert "predicted &lt;b&gt;dead&lt;/b&gt;" in section  # a label of a table is text
    for chart in ("Calibration", "ROC curve", "Precision and recall"):
        assert chart in section
    for value, of in m["subgroups"]["sex"].items():
        assert re.search(rf'scope="row">{value}</th><td>{of["rows"]}</td>', section)
    assert "By age, with 95% intervals" in section


def test_the_drawings_are_xml_and_their_points_are_those_of_the_run(run: tacit.Result) -> None:
    record = record_of(run)
    for draw in (judging.calibration, judging.roc, judging.precision_recall):
        figure = draw(record)
        assert figure is not None
        ET.fromstring(figure.svg)
        assert figure.table is not None
    table = judging.calibration(record).table
    assert [row[2] for row in table.rows] == [f"{n:,.0f}" for *_, n in run.metrics["calibration"]]


def test_a_directory_has_the_same_section_as_the_run_in_memory(run: tacit.Result) -> None:
    again = read_run(run.directory)
    assert again.metric == run.metric
    assert again.metrics["confusion"] == run.metrics["confusion"]
    assert verdict.run(again) == verdict.run(record_of(run))


def test_the_verdict_names_the_metric_its_interval_and_the_bytes_of_evaluations(run: tacit.Result) -> None:
    said = " ".join(verdict.run(record_of(run)))
    m = run.metrics
    assert f"FedAvg reaches an AUC of {100 * m['auc']:.1f}% after 4 rounds (95% interval" in said
    assert f"Its average precision for alive is {100 * m['average_precision']:.1f}%" in said
    assert "to evaluate models" in said


@pytest.mark.parametrize(
    ("metric", "metrics", "words"),
    [
        (
            "accuracy",
            {"accuracy": 0.80, "majority": 0.85},
            "does not beat always predicting the largest class, 85.0%.",
        ),
        (
            "auc",
            {"accuracy": 0.85, "majority": 0.85, "auc": 0.7},
            "its scores rank rows, but at its threshold it does not find the smaller class",
        ),
        (
            "accuracy",
            {"accuracy": 0.90, "accuracy_low": 0.84, "majority": 0.85},
            "is not clearly above always predicting the largest class, 85.0%: the 95% interval begins at 84.0%",
        ),
        ("accuracy", {"accuracy": 0.95, "accuracy_low": 0.92, "majority": 0.85}, ""),
        (
            "auc",
            {"accuracy": 0.9, "majority": 0.85, "auc": 0.4, "auc_high": 0.48},
            "Its AUC, 40.0%, is clearly below 50.0%, that of chance: its scores rank rows in the wrong order",
        ),
        ("auc", {"accuracy": 0.9, "majority": 0.85, "auc": 0.45, "auc_high": 0.52}, ""),  # it may be chance
        ("r2", {"r2": -0.1}, "does not beat always predicting the mean"),
        ("r2", {"r2": 0.3}, ""),
        ("accuracy", {"accuracy": 0.5}, ""),
    ],
)
def test_a_model_that_does_not_beat_the_baseline_is_called_out(
    metric: str, metrics: dict[str, Any], words: str
) -> None:
    said = verdict.baseline(metric, metrics)
    assert words in said
    assert bool(words) == bool(said)


def test_a_regression_is_judged_by_r2_and_never_called_accurate(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    fed = data.from_arrays(x, x[:, 0] + 0.3 * rng.normal(size=300)).split(3, seed=0)
    run = tacit.train(fed, model="mlp", algorithm=algorithms.FedAvg(lr=0.1), rounds=4)
    page = run.report(tmp_path / "page.html").read_text()
    assert run.metric == "r2"
    assert "FedAvg reaches an R² of" in page
    assert "ccuracy" not in page[page.index('id="verdict"') : page.index('id="ledger"')]
    assert "mean absolute error" in page
