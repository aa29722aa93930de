"""tacit.compare: rows as if each had run alone, two baselines, who gained, and what it cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import tacit
from tacit import algorithms, data, models
from tacit.errors import BadData, BadParameter, BadRun
from tacit.jobs.compare import _labels, _matched, _names
from tacit.jobs.train.plan import make_plan

FedAvg, FedProx, Scaffold = algorithms.FedAvg, algorithms.FedProx, algorithms.Scaffold


def dataset(rows: int = 120) -> data.Dataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 4))
    return data.from_arrays(
        x, (x @ rng.normal(size=(4, 3)) + 0.5 * rng.normal(size=(rows, 3))).argmax(1), classes=3
    )


def numbers() -> data.Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3))
    return data.from_arrays(x, x @ [1.0, -2.0, 0.5] + 0.1 * rng.normal(size=80)).split(3, seed=0)


def federations() -> list[data.Federation]:
    return [dataset().split(3, skew=data.IID(), seed=0), dataset().split(5, skew=data.Dirichlet(0.3), seed=0)]


def compare(feds: Any = None, **options: Any) -> tacit.Comparison:
    return tacit.compare(
        federations() if feds is None else feds,
        **{
            "algorithms": [FedAvg(lr=0.2), Scaffold(lr=0.2)],
            "model": "logistic",
            "rounds": 2,
            "batch_size": 8,
            **options,
        },
    )


# the table --------------------------------------------------------------------------------------------------


def test_the_table_has_algorithms_and_baselines_by_skews() -> None:
    result = compare(seeds=3)
    table = result.table()
    assert list(table.index) == ["FedAvg", "Scaffold", "central", "local only"]
    assert list(table.columns) == ["IID()", "Dirichlet(alpha=0.3)"]
    assert len(result.rows) == 4 * 2 * 3
    values = result.rows.query("label == 'FedAvg' and skew == 'IID()'")["accuracy"]
    mean, error = values.mean(), values.std(ddof=1) / 3**0.5
    assert table.loc["FedAvg", "IID()"] == f"{mean:.3f} ± {error:.3f}"
    assert result.table(numbers=True).loc["FedAvg", "IID()"] == pytest.approx(mean)
    assert str(result).startswith(table.to_string())
    assert result.verdict


def test_one_seed_has_no_error_bar() -> None:
    assert "±" not in compare(seeds=[4]).table().to_string()


@pytest.mark.parametrize(
    "model",
    [
        "logistic",
        lambda: torch.nn.Sequential(
            torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.2), torch.nn.Linear(6, 3)
        ),
    ],
    ids=["logistic", "norm and dropout"],
)
def test_every_row_is_what_train_gives_alone(model: Any) -> None:
    several = [
        FedAvg(lr=0.2),
        FedProx(lr=0.2, mu=0.1),
        FedProx(lr=0.2, mu=1.0),
        Scaffold(lr=0.1),
        algorithms.FedAdam(lr=0.1),
        algorithms.FedDyn(lr=0.1),
    ]
    options = {"model": model, "rounds": 3, "per_round": 2, "local_epochs": 2, "batch_size": 8}
    feds = federations()
    result = compare(feds, algorithms=several, seeds=[0, 7], **options)
    runs = {(e[0]["label"], e[0]["skew"], e[0]["seed"]): r for r in result.results for e in [r.events]}
    assert len(runs) == 6 * 2 * 2 + 2 * 2
    for algorithm, label in zip(several, _labels(several)):
        for fed in feds:
            for seed in (0, 7):
                alone, stacked = (
                    tacit.train(fed, algorithm=algorithm, seed=seed, **options),
                    runs[label, repr(fed.skew), seed],
                )
                for a, b in zip(alone.model.state_dict().values(), stacked.model.state_dict().values()):
                    assert torch.allclose(a.double(), b.double(), atol=1e-5)
                assert [r["accuracy"] for r in alone.history] == [r["accuracy"] for r in stacked.history]
                assert [r["bytes_up"] for r in alone.history] == [r["bytes_up"] for r in stacked.history]
                assert alone.config == stacked.config


# the baselines, by hand -------------------------------------------------------------------------------------


def descent(fed: data.Federation, rows: torch.Tensor, rounds: int, lr: float) -> float:
    """Full-batch gradient descent on these rows; the accuracy on the global test set."""
    layer = models.build("logistic", (4,), 3, 0)
    for _ in range(rounds):
        grads = torch.autograd.grad(
            F.cross_entropy(layer(fed.rows.x[rows]), fed.rows.y[rows]), list(layer.parameters())
        )
        with torch.no_grad():
            for p, g in zip(layer.parameters(), grads):
                p -= lr * g
    return float((layer(fed.test.x).argmax(1) == fed.test.y).double().mean())


def test_baselines_gain_and_distance_by_hand() -> None:
    """With full batches the central model and each party alone are plain gradient descent, written out
    above.
    """
    fed = dataset().split(3, skew=data.Dirichlet(0.3), seed=1)
    result = compare(fed, algorithms=[FedAvg(lr=0.5)], rounds=4, batch_size=None, min_rows=1)
    central, alone = (
        descent(fed, fed.train.index, 4, 0.5),
        [descent(fed, fed.train.of(k), 4, 0.5) for k in range(3)],
    )
    ours = tacit.train(fed, model="logistic", algorithm=FedAvg(lr=0.5), rounds=4, batch_size=None).metrics[
        "accuracy"
    ]
    (gain,), (distance,) = result.summary["gain"], result.summary["distance"]
    table = result.table(numbers=True).iloc[:, 0]
    assert table["central"] == pytest.approx(central)
    assert table["local only"] == pytest.approx(np.mean(alone))
    own = tacit.train(
        fed, model="logistic", algorithm=FedAvg(lr=0.5), rounds=4, batch_size=None, min_rows=1
    ).history[-1]["parties"]["accuracy"]
    assert {k: v for k, v in gain.items() if k != "local_own"} == {
        "label": "FedAvg",
        "skew": "Dirichlet(alpha=0.3)",
        "parties": list(fed.parties),
        "local": pytest.approx(alone),
        "federated": [pytest.approx(ours)] * 3,
        "federated_own": own,
    }
    assert len(gain["local_own"]) == 3
    assert distance["to_central"] == pytest.approx(central - ours)


def test_local_steps_give_the_central_model_as_many_passes_as_a_party_takes() -> None:
    fed = dataset().split(4, skew=data.IID(), seed=0)
    result = compare(fed, algorithms=[algorithms.LocalSGD(lr=0.1, local_steps=3)], batch_size=8)
    central = next(r for r in result.results if r.events[0]["label"] == "central")
    assert central.config["train"]["local_steps"] == 12


def test_a_regression_is_compared_by_r2() -> None:
    assert compare(numbers(), algorithms=[FedAvg(lr=0.05)], rounds=6).metric == "r2"


def test_a_comparison_by_an_error_prefers_the_smaller_one() -> None:
    result = compare(numbers(), algorithms=[FedAvg(lr=0.05)], rounds=6, metric="loss")
    assert result.summary["metric"] == "loss"
    table = result.table(numbers=True).iloc[:, 0]
    assert table["central"] < table["local only"]
    assert result.summary["distance"][0]["to_central"] == pytest.approx(
        table["FedAvg"] - table["central"]
    )  # above 0: federating lost
    better = sum(
        a >= b for a, b in zip(result.summary["gain"][0]["local"], result.summary["gain"][0]["federated"])
    )
    assert any(
        ("All 3 parties" if better == 3 else f"{better} of 3 parties benefited") in said
        for said in result.verdict
    ), result.verdict


# labels -----------------------------------------------------------------------------------------------------


def test_without_a_list_it_is_what_train_does_by_itself() -> None:
    assert list(tacit.compare(federations()[0], model="logistic", rounds=1).table().index) == [
        "FedAvg",
        "central",
        "local only",
    ]


def test_the_same_algorithm_twice_is_labeled_by_what_differs() -> None:
    assert _labels([FedProx(mu=0.1), FedProx(mu=1.0), FedAvg()]) == [
        "FedProx(mu=0.1)",
        "FedProx(mu=1.0)",
        "FedAvg",
    ]
    assert list(compare(algorithms=["FedAvg", FedAvg(lr=0.5)]).table().index)[:2] == [
        "FedAvg(lr=0.1)",
        "FedAvg(lr=0.5)",
    ]


@pytest.mark.parametrize(
    "twins", [[FedAvg(), FedAvg()], ["FedAvg", FedAvg(lr=0.1)], ["FedAvg", "Scaffold", "FedAvg"]], ids=str
)
def test_the_very_same_algorithm_twice_is_refused(twins: list[Any]) -> None:
    with pytest.raises(
        BadParameter,
        match=r"compare: the same algorithm is listed twice: .*\. Leave one out, or give them different "
        r"parameters\.",
    ):
        compare(algorithms=twins)


def test_federations_are_labeled_by_skew_then_size_then_seed() -> None:
    d = dataset()
    assert _names([d.split(3, seed=0), d.split(5, seed=0)]) == ["IID(), 3 parties", "IID(), 5 parties"]
    assert _names([d.split(3, seed=0), d.split(3, seed=1)]) == [
        "IID(), 3 parties, split with seed 0",
        "IID(), 3 parties, split with seed 1",
    ]
    assert _names([d.split(3, seed=0), data.iris().split(3, seed=0)]) == ["arrays, IID()", "iris, IID()"]
    with pytest.raises(
        BadParameter,
        match=r"compare: the same federation is listed twice: .*\. Leave one out, or split with another seed\.",
    ):
        _names([d.split(3, seed=0), d.split(3, seed=0)])


def test_two_splits_of_one_skew_are_two_columns() -> None:
    result = compare([dataset().split(3, seed=0), dataset().split(3, seed=1)])
    assert result.table().shape == (4, 2)
    assert [len(g["local"]) for g in result.summary["gain"]] == [3] * 4


# matched updates --------------------------------------------------------------------------------------------


def test_matching_makes_the_effective_update_the_same_on_every_federation() -> None:
    """u = η·E·|D|/(B·K): ten parties move a third as far as three, so they take three epochs, and the rest goes into η."""
    feds = [dataset().split(k, skew=data.IID(), seed=0) for k in (3, 10)]
    several = [
        FedAvg(lr=0.2),
        FedAvg(lr=0.05),
        algorithms.FedSGD(lr=0.1),
        algorithms.LocalSGD(lr=0.1, local_steps=2),
    ]
    free, matched = (compare(feds, algorithms=several, match=m) for m in (None, "effective_update"))

    def updates(result: tacit.Comparison) -> dict[str, list[float]]:
        out: dict[str, list[float]] = {}
        for e in (r.events[0] for r in result.results):
            out.setdefault(e["label"], []).append(e["effective_update"])
        return out

    for label in _labels(several):
        assert updates(matched)[label][0] == pytest.approx(
            updates(free)[label][0]
        )  # the first federation is the measure
        assert updates(matched)[label][1] == pytest.approx(updates(matched)[label][0])
    assert updates(free)["FedAvg(lr=0.2)"][1] != pytest.approx(updates(free)["FedAvg(lr=0.2)"][0])
    ten = next(
        r
        for r in matched.results
        if r.events[0]["label"] == "FedAvg(lr=0.2)" and "10 parties" in r.events[0]["skew"]
    )
    assert ten.config["train"]["local_epochs"] == 3


def test_what_already_matches_is_left_alone() -> None:
    p = make_plan(federations()[0], algorithm=FedAvg(lr=0.2), local_epochs=[1, 2, 3])
    assert _matched(p, p.effective_update) == p


# directory and report ---------------------------------------------------------------------------------------


def test_a_comparison_directory_has_a_run_for_every_row(tmp_path: Path) -> None:
    result = compare(seeds=2, out=tmp_path / "study", landscape=True)
    kept = json.loads((tmp_path / "study" / "compare.json").read_text())
    assert kept == json.loads(json.dumps(result.summary))
    for row in kept["rows"]:
        if row["label"] == "local only":
            assert row["run"] is None
            continue
        start, *_, end = [
            json.loads(line)
            for line in (tmp_path / "study" / row["run"] / "events.jsonl").read_text().splitlines()
        ]
        assert (start["label"], start["skew"], start["seed"]) == (row["label"], row["skew"], row["seed"])
        assert end["metrics"]["accuracy"] == row["metrics"]["accuracy"]
    pictures = {
        r.events[0]["label"] for r in result.results if any(e["kind"] == "landscape" for e in r.events)
    }
    assert pictures == {"FedAvg", "Scaffold"}
    assert "<html" in result.report().read_text()
    with pytest.raises(
        BadRun,
        match=r"already holds a comparison, or the beginning of one\. Resume it by resume=True, or give "
        r"another",
    ):
        compare(out=tmp_path / "study")


def test_a_report_is_written_to_the_given_path_also_for_a_diverged_comparison(tmp_path: Path) -> None:
    diverged = compare(algorithms=[FedAvg(lr=1e30), Scaffold(lr=0.1)], model="mlp", out=tmp_path / "study")
    assert diverged.report(tmp_path / "d.html").exists()
    json.loads((tmp_path / "study" / "compare.json").read_text(), parse_constant=pytest.fail)
    lost = compare(numbers(), algorithms=[FedAvg(lr=1e30), FedAvg(lr=0.05)])
    assert any("diverged" in said for said in lost.verdict)
    assert lost.report(tmp_path / "e.html").exists()


# refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"feds": dataset()},
            r"compare: feds is 'Dataset'; it must be a Federation \(data\.digits\(\)\.split\(10\)\), or a "
            r"list of them\.",
        ),
        ({"feds": ()}, r"compare: feds is 'tuple'; it must be a Federation"),
        ({"feds": [3]}, r"compare: feds is 'int'; it must be a Federation"),
        (
            {"feds": [numbers(), federations()[0]]},
            r"compare: some federations are classifications and some are regressions",
        ),
        ({"algorithms": []}, r"compare: algorithms is \[\]; it must be a list of algorithms such as"),
        (
            {"algorithms": "FedAvg"},
            r"compare: algorithms is 'FedAvg'; it must be a list of algorithms such as",
        ),
        ({"algorithms": FedAvg()}, r"compare: algorithms is FedAvg\(.*; it must be a list"),
        ({"algorithms": [3]}, r"compare: algorithm is 3; it must be an algorithm such as"),
        ({"algorithms": ["FedProxy"]}, r"compare: algorithm is 'FedProxy'; .* Did you mean 'FedProx'\?"),
        ({"algorithms": [FedAvg(lr=0)]}, r"FedAvg: lr is 0; it must be a number above 0\."),
        (
            {"seeds": 10**30},
            r"compare: seeds is 1000000000000000000000000000000; it must be a whole number from 1 to "
            r"10,000, or a list of different seeds\.",
        ),
        (
            {"seeds": 0},
            r"compare: seeds is 0; it must be a whole number from 1 to 10,000, or a list of different "
            r"seeds\.",
        ),
        ({"seeds": []}, r"compare: seeds is \[\]; it must be"),
        (
            {"seeds": [1, 1]},
            r"compare: seeds is \[1, 1\]; it must be a whole number from 1 to 10,000, or a list of "
            r"different seeds\.",
        ),
        ({"seeds": 1.5}, r"compare: seeds is 1\.5; it must be"),
        ({"seeds": True}, r"compare: seeds is True; it must be"),
        ({"seeds": [-1]}, r"train: seed is -1; it must be"),
        ({"match": "epochs"}, r"compare: match is 'epochs'; it must be None or 'effective_update'\."),
        ({"model": "mpl"}, r"train: model is 'mpl'; .* Did you mean 'mlp'\?"),
        ({"rounds": 0}, r"train: rounds is 0; it must be"),
        ({"per_round": 9}, r"train: per_round is 9; it must be"),
        ({"local_epochs": [1]}, r"train: local_epochs is \[1\]; it must be"),
        ({"local_steps": -1}, r"train: local_steps is -1; it must be"),
        ({"batch_size": 0}, r"train: batch_size is 0; it must be"),
        ({"device": "tpu"}, r"train: device is 'tpu'; it must be"),
        ({"precision": "fp8"}, r"train: precision is 'fp8'; it must be"),
        ({"engine": ""}, r"train: engine is ''; it must be"),
        ({"evaluate_every": 0.5}, r"train: evaluate_every is 0\.5; it must be"),
        ({"out": 7}, r"compare: out is 7; it must be a directory for the comparison"),
    ],
    ids=lambda v: str(v)[:50],
)
def test_every_bad_value_is_refused_and_nothing_is_written(
    options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(BadParameter, match=words):
        compare(**{"out": tmp_path / "study", **options})
    assert not list(tmp_path.iterdir())


def test_nothing_can_be_compared_without_rows_to_test_on() -> None:
    x = np.random.default_rng(0).normal(size=(20, 2))
    fed = data.from_arrays(x, x[:, 0] > 0, test_fraction=0.0).split(2, held_fraction=0.0)
    with pytest.raises(
        BadData,
        match=r"arrays has no test rows and no party holds any back, so nothing can be compared\. Split it "
        r"with held_fraction=0\.1\.",
    ):
        compare(fed)


def test_nothing_can_be_compared_on_fewer_rows_than_a_party_may_report_on() -> None:
    x = np.random.default_rng(0).normal(size=(40, 2))
    fed = data.from_arrays(x, x[:, 0] > 0, test_fraction=0.0).split(2, held_fraction=0.2)
    with pytest.raises(
        BadData,
        match=r"no party holds back at least min_rows=10 rows, so nothing can be compared\. Split it with a "
        r"larger held_fraction",
    ):
        compare(fed)
    assert compare(fed, min_rows=4).table(numbers=True).notna().all(axis=None)


# going on ---------------------------------------------------------------------------------------------------


def test_resuming_a_finished_comparison_gives_it_again_and_computes_nothing(tmp_path: Path) -> None:
    """Killed at any moment it comes out the same, too: test_resume.py."""
    first = compare(seeds=2, out=tmp_path / "study")
    before = {p: p.read_bytes() for p in (tmp_path / "study").rglob("*") if p.is_file()}
    seen: list[Any] = []
    again = compare(seeds=2, out=tmp_path / "study", resume=True, watch=seen.append)
    assert again.summary == first.summary
    assert all(
        torch.equal(v, b.model.state_dict()[k])
        for a, b in zip(first.results, again.results)
        for k, v in a.model.state_dict().items()
    )
    assert [r.history for r in again.results] == [r.history for r in first.results]
    assert not seen
    assert {p: p.read_bytes() for p in (tmp_path / "study").rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rounds": 4}, r"holds another run: it differs in train\.rounds"),
        (
            {"algorithms": ["FedProx"]},
            r"holds another comparison: it has runs/00-fedavg-.*, and this one does not\. Resume with the "
            r"same settings",
        ),
        ({"feds": numbers()}, r"holds another comparison: it has runs/"),
    ],
    ids=["rounds", "algorithms", "data"],
)
def test_another_comparison_is_not_resumed(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    compare(out=tmp_path / "study")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(BadRun, match=words):
        compare(**{"out": tmp_path / "study", "resume": True, **options})
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_there_must_be_a_comparison_to_resume(tmp_path: Path) -> None:
    with pytest.raises(
        BadRun,
        match=r"holds no comparison to resume: there is no folder runs in it\. Start it without resume\.",
    ):
        compare(out=tmp_path / "none", resume=True)
    with pytest.raises(
        BadParameter,
        match=r"compare: out is None; it must be the directory of the comparison to resume\. Or leave "
        r"out resume\.",
    ):
        compare(resume=True)
    assert not list(tmp_path.iterdir())
