"""Guards in `tacit.compare`: a row each, each as if it had run alone, each with an account of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tacit
from tacit import aggregate, algorithms, data
from tacit.errors import BadParameter
from tacit.guard import Clip, LightSecAgg, Noise, Quantize, SecAgg

FED = data.gaussian_blobs(rows=240, seed=0).split(8, seed=0)
TOLD: dict[str, Any] = {"model": "logistic", "rounds": 3, "batch_size": 8}
GUARDS = {
    "open": None,
    "clipped": [Clip(0.5)],
    "hidden": [Clip(5.0), Quantize(bits=40, stochastic=False), SecAgg()],
    "short budget": [Clip(0.5), Noise(multiplier=2.0, epsilon=2.6)],
    "long budget": [Clip(0.5), Noise(multiplier=8.0, epsilon=40.0)],
}


def test_each_guard_has_a_row_that_is_the_run_by_itself_and_a_budget_ends_its_own_row_only() -> None:
    found = tacit.compare(FED, algorithms=[algorithms.FedAvg(lr=0.1)], guards=GUARDS, seeds=2, **TOLD)
    assert list(found.table().index) == [*GUARDS, "central", "local only"]
    for result in found.results:
        if result.config["train"]["seed"]:
            continue
        label = next(e["label"] for e in result.events if e["kind"] == "start")
        if label in ("open", "clipped", "hidden"):  # nothing in them is drawn
            alone = tacit.train(FED, algorithm=algorithms.FedAvg(lr=0.1), guard=GUARDS[label], **TOLD)
            assert [e["accuracy"] for e in result.history] == pytest.approx(
                [e["accuracy"] for e in alone.history]
            )
        assert len(result.history) == (1 if label == "short budget" else 3)
    rows = found.rows.set_index("label")["epsilon"]
    assert rows["short budget"].max() <= 2.6
    assert 0 < rows["long budget"].max() < 40
    assert np.isnan(rows["open"]).all()


def test_rows_are_named_by_their_guard_and_prefixed_by_the_algorithm_if_there_are_several() -> None:
    found = tacit.compare(
        FED,
        algorithms=[algorithms.FedAvg(lr=0.1), algorithms.Scaffold(lr=0.1)],
        guards=[None, [Clip(0.5), Noise(multiplier=1.0)]],
        **TOLD,
    )
    assert list(found.table().index)[:4] == [
        "FedAvg, no guard",
        "FedAvg, Clip(norm=0.5) → Noise(multiplier=1.0)",
        "Scaffold, no guard",
        "Scaffold, Clip(norm=0.5) → Noise(multiplier=1.0)",
    ]


def test_the_report_of_guarded_rows_draws_accuracy_against_epsilon(tmp_path: Any) -> None:
    found = tacit.compare(
        FED,
        algorithms=[algorithms.FedAvg(lr=0.1)],
        guards=[None, [Clip(0.5), Noise(multiplier=1.0)]],
        out=tmp_path / "study",
        **TOLD,
    )
    assert "Accuracy vs. ε" in found.report().read_text()


@pytest.mark.parametrize(
    ("guards", "words"),
    [
        ([], r"compare: guards is \[\]; it must be a list of guards such as"),
        ("Clip", "compare: guards is 'Clip'"),
        ([[Clip(1.0)], [Clip(1.0)]], r"compare: the same guard is listed twice: Clip\(norm=1\.0\)"),
        ([[Noise(multiplier=1.0)]], "guard: Noise needs a bound on each update"),
        ({1: [Clip(1.0)]}, "compare: guards is"),
    ],
)
def test_bad_guards_are_refused_before_anything_runs(guards: Any, words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        tacit.compare(FED, algorithms=[algorithms.FedAvg()], guards=guards, **TOLD)


def test_a_rule_that_sees_each_update_is_refused_with_a_guard_that_hides_them() -> None:
    with pytest.raises(
        BadParameter,
        match=r"guard: SecAgg hides each update from the server, and Median must see each of them",
    ):
        tacit.compare(
            FED,
            algorithms=[algorithms.FedAvg()],
            aggregates=[aggregate.Median()],
            guards=[[Clip(1.0), Quantize(), SecAgg()]],
            **TOLD,
        )
    with pytest.raises(
        BadParameter,
        match=r"guard: LightSecAgg hides each update from the server, and Median must see each of them",
    ):
        tacit.train(FED, aggregate=aggregate.Median(), guard=[Clip(1.0), Quantize(), LightSecAgg()], **TOLD)
