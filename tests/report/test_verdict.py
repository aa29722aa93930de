from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

from tacit.report import read, read_run, render, verdict, write
from tacit.report.records import RunRecord

from . import made


def table(mean: list[list[Any]], error: list[list[Any]] | None = None, **more: Any) -> dict[str, Any]:
    index = ["FedAvg", "FedNova", "central"][: len(mean)]
    rows = [
        {"label": a, "skew": "IID()", "seed": s, "metrics": {"accuracy": m[0]}}
        for a, m in zip(index, mean)
        for s in (0, 1)
    ]
    return {
        "table": {"columns": ["IID()"], "index": index, "mean": mean, "error": error},
        "baselines": ["central"],
        "rows": rows,
    } | more


def test_a_lead_beyond_the_seeds_spread_is_a_win() -> None:
    said = verdict.comparison(table([[0.80], [0.90], [0.95]], [[0.01], [0.01], [0.01]]))
    assert (
        said[0]
        == "FedNova performs best under IID(). Compared with one central model, federated training costs 5.0 points."
    )
    assert (
        said[1]
        == "IID(): FedNova reaches 90.0 ± 1.0%, 5.0 points worse than the central model. FedAvg is second, 10.0 "
        "points behind."
    )


def test_a_lead_within_the_seeds_spread_is_called_chance() -> None:
    """The difference of two means has the standard error sqrt(0.01² + 0.01²) = 0.0141, more than the lead of
    0.01.
    """
    said = verdict.comparison(table([[0.89], [0.90], [0.90]], [[0.01], [0.01], [0.01]]))
    assert said[0].startswith("FedNova performs best under IID(), but the differences may be due to chance.")
    assert (
        "Its lead over FedAvg, 1.0 point, is within the variation between seeds and may be due to chance."
        in said[1]
    )
    assert "equal to the central model" in said[1]


def test_the_difference_from_the_central_model_has_the_sign_of_the_metric() -> None:
    """A worse model has a lower accuracy and a higher loss."""
    assert "−15.0 vs. central" in render([], table([[0.80], [0.90], [0.95]]))
    assert "+0.3 vs. central" in render([], table([[0.6], [0.4], [0.3]], metric="loss"))


def test_the_lower_loss_wins() -> None:
    assert verdict.comparison(table([[0.2], [0.3], [0.1]], metric="loss"))[0].startswith(
        "FedAvg performs best"
    )


def test_parties_that_did_better_alone_are_named_with_what_they_lost() -> None:
    gain = [
        {
            "label": "FedAvg",
            "skew": "IID()",
            "parties": ["a", "b", "c"],
            "local": [0.8, 0.9, 0.95],
            "federated": [0.8, 0.85, 0.8],
        }
    ]
    said = verdict.comparison(table([[0.8]], gain=gain))
    assert said[1] == (
        "IID(): FedAvg reaches 80.0%. On the global test set, 1 of 3 parties benefited from federated training; "
        "c and b did better alone (by up to 15.0 points)."
    )


def test_a_stated_distance_is_the_one_in_the_verdict() -> None:
    distance = [{"label": "FedAvg", "skew": "IID()", "to_central": -0.02}]
    assert (
        "2.0 points better than the central model" in verdict.comparison(table([[0.8]], distance=distance))[1]
    )


def test_an_algorithm_that_diverged_is_named_and_does_not_win() -> None:
    said = verdict.comparison(table([[float("nan")], [0.5], [0.9]]))
    assert said[0].startswith("FedNova performs best")
    assert said[-1] == "FedAvg diverged under at least one skew. Try a smaller learning rate first."


def test_if_all_diverged_there_is_no_winner_and_the_verdict_says_so() -> None:
    said = verdict.comparison(table([[float("nan")], ["nan"], [0.9]]))
    assert said[0] == "Every federated algorithm diverged: no accuracy or loss can be compared."
    assert (
        said[-1] == "FedAvg and FedNova diverged under at least one skew. Try a smaller learning rate first."
    )
    assert verdict.comparison(table([[None]], rows=[])) == ["No federated algorithm has a result yet."]


def test_a_model_that_diverged_has_no_accuracy_and_the_comparison_says_so(tmp_path: Path) -> None:
    """A real comparison: at a learning rate of 1e38 the weights overflow. Always guessing the first class is
    no result.
    """
    import tacit
    from tacit import algorithms, data

    fed = data.gaussian_blobs(rows=90, classes=3, seed=0).split(3, seed=0)
    found = tacit.compare(
        fed,
        model="logistic",
        algorithms=[algorithms.FedAvg(lr=0.1), algorithms.FedProx(lr=1e38)],
        rounds=2,
        out=tmp_path / "c",
    )
    broken = next(r for r in found.results if r.config["algorithm"]["name"] == "FedProx")
    assert math.isnan(broken.metrics["accuracy"])
    assert found.verdict[0].startswith("FedAvg performs best")
    assert "FedProx diverged under at least one skew. Try a smaller learning rate first." in found.verdict
    assert found.table().loc["FedProx"].tolist() == ["diverged"]
    assert math.isnan(found.table(numbers=True).loc["FedProx"].iloc[0])
    for page in (
        found.report(tmp_path / "a.html").read_text(),
        write(tmp_path / "b.html", *read(tmp_path / "c")).read_text(),
    ):
        assert re.search(r'<th scope="row">FedProx</th><td[^>]*>diverged', page)
        assert "Diverged (loss NaN or infinite): FedProx under IID(), seed 0, round" in page
        assert "FedProx diverged under at least one skew" in page


def test_a_single_run_states_last_and_best_with_the_caveat(tmp_path: Path) -> None:
    said = " ".join(verdict.run(read_run(made.run(tmp_path / "r"))))
    assert "Accuracy is 85.5% in the last round and 85.8% in the best round (18)." in said
    assert verdict.caveat() in said
    assert "the worst decile (p7) 60.8%" in said


def test_without_a_mechanism_it_says_plainly_who_saw_the_updates(tmp_path: Path) -> None:
    bare = read_run(made.run(tmp_path / "a"))
    spent = read_run(
        made.run(tmp_path / "b", book=made.ledger(["p0"], spent=[{"mechanism": "Gaussian", "epsilon": 2.0}]))
    )
    endless = read_run(
        made.run(
            tmp_path / "c", book=made.ledger(["p0"], spent=[{"mechanism": "Gaussian", "epsilon": "inf"}])
        )
    )
    assert verdict.privacy([bare]) == [
        "No differential privacy: updates were visible in plaintext to the server."
    ]
    assert verdict.privacy([spent]) == []
    assert verdict.privacy([endless]) == verdict.privacy([bare])
    hidden = dataclasses.replace(bare, job={**bare.job, "guard": [{"name": "Clip"}, {"name": "SecAgg"}]})
    assert verdict.privacy([hidden]) == [
        "No differential privacy: there is no bound on what the messages below reveal."
    ]


def test_gain_is_stated_on_the_global_test_set_and_on_each_partys_own_rows():
    """Under label skew a party alone has never seen most labels: everyone gains on the global test set, and
    that is not its own question.
    """
    data = {
        "metric": "accuracy",
        "rows": [{"label": "FedAvg", "skew": "S", "seed": 0}],
        "baselines": ["central", "local only"],
        "table": {"columns": ["S"], "index": ["FedAvg"], "mean": [[0.8]], "error": [[None]]},
        "gain": [
            {
                "label": "FedAvg",
                "skew": "S",
                "parties": ["a", "b"],
                "local": [0.2, 0.3],
                "federated": [0.8, 0.8],
                "local_own": [0.9, 0.7],
                "federated_own": [0.8, 0.75],
            }
        ],
    }
    assert (
        "All 2 parties do at least as well on the global test set as alone. On their own held-out rows, 1 of "
        "2 do at least as well as alone." in verdict.comparison(data)[1]
    )


def ending(record: RunRecord, metrics: dict[str, Any]) -> RunRecord:
    return dataclasses.replace(record, events=[*record.events, {"kind": "end", "metrics": metrics}])


def test_figures_that_drown_in_noise_are_not_quoted(tmp_path: Path) -> None:
    record = read_run(made.run(tmp_path / "r"))
    noisy = {**record.metrics, "accuracy": 1.0, "accuracy_error": 6.74}
    said = verdict.run(ending(record, noisy))
    assert "cannot be reported: its privacy noise has a standard error of 674.0%" in said[0]
    assert not any("100" in line for line in said[:2])
    small = {**noisy, "accuracy": 0.8, "accuracy_error": 0.02}
    assert "80.0 ± 2.0%" in verdict.run(ending(record, small))[0]
