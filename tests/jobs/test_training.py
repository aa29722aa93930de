"""tacit.train: what it gives back, that a seed decides everything, and that it refuses in one sentence."""

from __future__ import annotations

import dataclasses
import json
import random
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import tacit
from tacit import algorithms, data
from tacit.data import Holdings, Rows
from tacit.errors import BadData, BadParameter, BadRun
from tacit.parties.codec import encode
from tacit.protocols.rounds import Down, Upload

PARTIES = 4


def federation(**options: Any) -> data.Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 5))
    return data.from_arrays(x, (x @ rng.normal(size=(5, 3))).argmax(1), classes=3).split(
        PARTIES, **{"skew": data.Quantity(0.7), "seed": 0, **options}
    )


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))


def train(**options: Any) -> tacit.Result:
    return tacit.train(
        options.pop("fed", None) or federation(),
        **{"model": "logistic", "rounds": 3, "batch_size": 8, "min_rows": 1, **options},
    )


def vector(result: tacit.Result) -> Tensor:
    return torch.cat([v.reshape(-1).double() for v in result.model.state_dict().values()])


# determinism ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"engine": "each"},
        {"runtime": "inprocess"},
        {"model": dropping},
        {"model": dropping, "algorithm": "Scaffold"},
    ],
    ids=lambda o: "-".join(o) or "plain",
)
def test_the_seed_decides_the_model_to_the_bit(options: dict[str, Any]) -> None:
    a, b, other = (train(seed=s, per_round=3, **options) for s in (1, 1, 2))
    assert torch.equal(vector(a), vector(b))
    assert not torch.equal(vector(a), vector(other))
    strip = [[{k: v for k, v in row.items() if k != "seconds"} for row in r.history] for r in (a, b)]
    assert strip[0] == strip[1]


FRESH = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
import test_training as t
for engine in ("stack", "each"):
    print(hashlib.sha256(t.vector(t.train(seed=1, model=t.dropping, engine=engine)).numpy().tobytes()).hexdigest())
"""


def test_a_fresh_process_gives_the_same_bits() -> None:
    import hashlib

    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(Path(__file__).parent)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    here = [
        hashlib.sha256(vector(train(seed=1, model=dropping, engine=e)).numpy().tobytes()).hexdigest()
        for e in ("stack", "each")
    ]
    assert done.stdout.split() == here


@pytest.mark.parametrize(
    "do",
    [
        lambda: train(model=dropping),
        lambda: train(model=dropping, engine="each"),
        lambda: train(runtime="inprocess"),
        lambda: train(landscape=True),
        lambda: tacit.compare(
            federation(), model=dropping, algorithms=["FedAvg", "Scaffold"], rounds=1, seeds=2
        ),
        lambda: federation(skew=data.Dirichlet(0.5)),
        lambda: federation(skew=data.FeatureNoise(0.5)),
    ],
    ids=["stack", "each", "inprocess", "landscape", "compare", "split", "noise"],
)
def test_the_callers_random_state_and_threads_are_left_as_they_were(do: Any) -> None:
    torch.manual_seed(11)
    before = (
        torch.get_rng_state(),
        np.random.get_state()[1].copy(),
        np.random.get_state()[2],
        random.getstate(),
        torch.get_float32_matmul_precision(),
    )
    torch.set_num_threads(2)
    try:
        do()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    after = (
        torch.get_rng_state(),
        np.random.get_state()[1],
        np.random.get_state()[2],
        random.getstate(),
        torch.get_float32_matmul_precision(),
    )
    assert torch.equal(before[0], after[0])
    assert (before[1] == after[1]).all()
    assert before[2:] == after[2:]


def test_threads_are_restored_when_a_run_fails() -> None:
    def interrupt(event: dict[str, Any]) -> None:
        if event["kind"] == "round":
            raise KeyboardInterrupt

    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyboardInterrupt):
            train(watch=interrupt)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


# what comes back --------------------------------------------------------------------------------------------


def test_the_history_has_a_row_a_round_with_everything_in_it() -> None:
    result = train(rounds=4, per_round=3)
    assert [row["round"] for row in result.history] == [1, 2, 3, 4]
    with_interval = ("loss", "accuracy", "precision", "recall", "f1", "auc", "average_precision", "brier")
    for row in result.history:
        assert {
            "round",
            *(f"{name}{end}" for name in with_interval for end in ("", "_low", "_high")),
            "majority",
            "auc_error",
            "average_precision_error",
            *(["confusion"] if row["round"] == 4 else []),
            "parties",
            "sampled",
            "tested",
            "bytes_up",
            "bytes_down",
            "bytes_evaluation",
            "seconds",
        } == set(row)
        assert len(row["parties"]["accuracy"]) == PARTIES
        assert row["sampled"] == 3
        assert row["tested"] == PARTIES
    start, before = result.events[:2]
    assert start["kind"] == "start"
    assert (before["round"], before["sampled"], before["bytes_up"], before["bytes_down"]) == (0, 0, 0, 0)
    assert result.events[-1]["kind"] == "end"
    assert result.events[-1]["metrics"] == result.metrics
    assert result.events[-1]["seconds"] == pytest.approx(
        sum(e["seconds"] for e in result.events if e["kind"] == "round")
    )
    assert start["model"] == {"name": "logistic", "parameters": 18}
    assert start["federation"]["parties"] == list(federation().parties)


def test_metrics_are_the_last_rounds_with_the_best() -> None:
    result = train(rounds=6, algorithm=algorithms.FedAvg(lr=3.0))
    last, best = result.history[-1], max(result.history, key=lambda row: row["accuracy"])
    assert result.metrics["accuracy"] == last["accuracy"]
    assert result.metrics["loss"] == last["loss"]
    assert result.metrics["best_accuracy"] == best["accuracy"]
    assert result.metrics["best_round"] == best["round"]
    rows = federation().test
    assert result.metrics["accuracy"] == pytest.approx(
        float((result.model(rows.x).argmax(1) == rows.y).double().mean())
    )


@pytest.mark.parametrize("runtime", ["cohort", "inprocess"])
@pytest.mark.parametrize(
    ("every", "tested"), [(0, [5]), (1, [0, 1, 2, 3, 4, 5]), (2, [0, 2, 4, 5]), (9, [0, 5])]
)
def test_evaluation_happens_as_scheduled_and_after_the_last_round(
    every: int, tested: list[int], runtime: str
) -> None:
    result = train(rounds=5, evaluate_every=every, runtime=runtime)
    assert [e["round"] for e in result.events if e["kind"] == "round" and "loss" in e] == tested
    assert len(result.history) == 5
    assert all(row["sampled"] == PARTIES and row["bytes_up"] > 0 for row in result.history)
    assert result.metrics["accuracy"] == result.history[-1]["accuracy"]


@pytest.mark.parametrize("algorithm", ["FedAvg", "Scaffold", "FedNova", "FedNAG"])
@pytest.mark.parametrize("model", ["logistic", dropping], ids=["plain", "with buffers"])
def test_bytes_are_those_that_parties_really_send(algorithm: str, model: Any) -> None:
    simulated, real = (
        train(algorithm=algorithm, model=model, per_round=3, runtime=r) for r in ("cohort", "inprocess")
    )
    for column, kind in (("bytes_up", "Upload"), ("bytes_down", "Down")):
        sent = sum(s.bytes for s in real.ledger.seen if s.kind == kind)
        times = sum(s.count for s in real.ledger.seen if s.kind == kind)
        assert times == 3 * 3
        for result in (simulated, real):
            assert sum(row[column] for row in result.history) == sent
        (line,) = [s for s in simulated.ledger.seen if s.kind == kind]
        assert (line.bytes, line.count) == (sent, times)


def test_a_frame_of_a_late_round_is_counted_with_its_longer_number() -> None:
    """By hand: what a Down of this model takes; only its head can grow with the round's number, in steps of
    eight.
    """
    row = train(evaluate_every=0, rounds=2).history[1]
    assert row["bytes_down"] == PARTIES * len(
        encode(Down(1, {"w": torch.zeros(18), "round": torch.tensor(1.0)}))
    )
    assert row["bytes_up"] == PARTIES * len(encode(Upload(25.0, {"delta": torch.zeros(18)})))


def test_ledgers_say_what_was_executed_and_what_is_ideal() -> None:
    simulated, real = train(), train(runtime="inprocess")
    assert {s.how for s in simulated.ledger.seen} == {"ideal"}
    assert {s.how for s in real.ledger.seen} == {"executed"}
    assert {(s.party, s.sender) for s in simulated.ledger.seen} == {
        ("server", "4 parties, together"),
        ("4 parties, together", "server"),
    }

    def totals(ledger: Any) -> dict[str, tuple[int, int]]:
        return {
            kind: (
                sum(s.count for s in ledger.seen if s.kind == kind),
                sum(s.bytes for s in ledger.seen if s.kind == kind),
            )
            for kind in ("Down", "Upload", "Test", "Tested")
        }

    assert totals(simulated.ledger) == totals(
        real.ledger
    )  # the model before training is tested too, by messages
    assert {s.party for s in real.ledger.seen} == {"server", *federation().parties}


@pytest.mark.parametrize(
    ("options", "u"),
    [
        ({"batch_size": 8, "local_epochs": 2}, 0.1 * 2 * 73 / (8 * 4)),
        ({"batch_size": None, "local_epochs": 3}, 0.1 * 3),
        ({"local_steps": 7}, 0.1 * 7),
        ({"batch_size": 8, "local_epochs": [1, 2, 3, 4]}, 0.1 * 2.5 * 73 / (8 * 4)),
        ({"algorithm": algorithms.FedAvg(lr=0.5), "local_steps": 1}, 0.5),
    ],
    ids=str,
)
def test_the_effective_update_is_eta_e_d_over_b_k(options: dict[str, Any], u: float) -> None:
    rows = int(federation().train.sizes.sum())
    result = train(rounds=1, **options)
    assert result.events[0]["effective_update"] == pytest.approx(
        u * rows / 73 if "local_steps" not in options and options["batch_size"] else u
    )


def test_a_run_directory_holds_the_run(tmp_path: Path) -> None:
    result = train(out=tmp_path / "r", landscape=True)
    assert {p.name for p in (tmp_path / "r").iterdir()} == {
        "job.toml",
        "events.jsonl",
        "ledger.json",
        "model.safetensors",
        "pipeline.json",
        "state",
    }
    again = tacit.models.build("logistic", (5,), 3, seed=9)
    again.load_state_dict(load_file(tmp_path / "r" / "model.safetensors"))
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), result.model.parameters()))
    job = tomllib.loads((tmp_path / "r" / "job.toml").read_text())
    assert job == result.config
    assert job["train"]["rounds"] == 3
    assert job["algorithm"]["lr"] == 0.1
    events = [json.loads(line) for line in (tmp_path / "r" / "events.jsonl").read_text().splitlines()]
    assert events == result.events
    assert json.loads((tmp_path / "r" / "ledger.json").read_text()) == result.ledger.to_dict()
    assert result.report() == tmp_path / "r" / "report.html"
    assert "<html" in (tmp_path / "r" / "report.html").read_text()


def test_a_report_is_written_to_the_given_path(tmp_path: Path) -> None:
    assert train().report(tmp_path / "x.html").read_text().startswith("<!")


def test_a_watcher_sees_every_event_as_it_happens() -> None:
    seen: list[dict[str, Any]] = []
    result = train(watch=seen.append)
    assert seen == result.events


@pytest.mark.parametrize("runtime", ["cohort", "inprocess"])
def test_a_run_that_diverges_says_so_and_still_reports(runtime: str, tmp_path: Path) -> None:
    result = train(
        model="mlp", algorithm=algorithms.FedAvg(lr=1e30), runtime=runtime, out=tmp_path / "r", landscape=True
    )
    (note,) = [e["text"] for e in result.events if e["kind"] == "note"]
    assert note.startswith("diverged: the model of FedAvg is no longer finite after round ")
    assert "Use a smaller learning rate (lr is 1e+30)" in note
    assert result.metrics["loss"] != result.metrics["loss"]
    for line in (tmp_path / "r" / "events.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)
    assert result.report().exists()


def test_a_regression_says_how_much_of_the_spread_it_explains(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(90, 3))
    run = tacit.train(data.from_arrays(x, x @ [1.0, -2.0, 0.5]).split(3, seed=0), model="logistic", rounds=20)
    assert run.metrics["r2"] > 0.99
    assert run.metrics["mae"] ** 2 <= run.metrics["loss"]
    page = run.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert f"FedAvg reaches an R² of {run.metrics['r2']:.3g} after 20 rounds" in page
    assert f"absolute error {run.metrics['mae']:.3g}" in page


def test_a_diverging_regression_of_large_numbers_suggests_scaling_them() -> None:
    x = np.random.default_rng(0).normal(size=(60, 3))
    fed = data.from_arrays(x, 1e6 * x[:, 0]).split(2)
    result = tacit.train(fed, model="mlp", algorithm=algorithms.FedAvg(lr=5.0), rounds=5)
    assert any("Or scale the target: it is not standardized." in e.get("text", "") for e in result.events)


def test_the_best_round_of_a_run_that_diverges_is_one_before_it_did() -> None:
    """The server's step is too large: the loss grows for some rounds before it is not finite."""
    result = train(model="mlp", rounds=12, algorithm=algorithms.FedAvg(lr=0.5, server_lr=40.0))
    finite = [row for row in result.history if row["accuracy"] == row["accuracy"]]
    assert 0 < len(finite) < 12
    assert result.metrics["accuracy"] != result.metrics["accuracy"]
    assert result.metrics["best_accuracy"] == max(row["accuracy"] for row in finite)
    assert "best_round" not in train(model="mlp", algorithm=algorithms.FedAvg(lr=1e38)).metrics


def test_without_any_rows_to_test_on_there_are_no_metrics() -> None:
    fed = federation(held_fraction=0.0)
    result = train(fed=dataclasses.replace(fed, test=Rows(fed.test.x[:0], fed.test.y[:0])))
    assert result.metrics == {}
    assert len(result.history) == 3


@pytest.mark.parametrize("runtime", ["cohort", "inprocess"])
def test_a_party_that_held_nothing_back_has_no_accuracy(runtime: str) -> None:
    fed = federation()
    fed = dataclasses.replace(
        fed,
        held=Holdings.from_lists([fed.held.of(k) if k else [] for k in range(PARTIES)]),
        train=Holdings.from_lists(
            [fed.train.of(k) if k else torch.cat([fed.train.of(0), fed.held.of(0)]) for k in range(PARTIES)]
        ),
    )
    assert train(fed=fed, runtime=runtime).history[-1]["parties"]["accuracy"][0] is None


# refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"fed": 3},
            r"train: fed is 'int'; it must be a Federation: tacit\.data\.digits\(\)\.split\(10\), or "
            r"dataset\.by\(column\)\.",
        ),
        (
            {"fed": data.iris()},
            r"train: fed is 'Dataset'; it must be a Federation: .* A Dataset becomes one by \.split\(10\) "
            r"or \.by\(column\)\.",
        ),
        ({"model": "mpl"}, r"train: model is 'mpl'; it must be one of .* Did you mean 'mlp'\?"),
        (
            {"algorithm": "FedAvgg"},
            r"train: algorithm is 'FedAvgg'; it must be one of FedSGD, .* Did you mean 'FedAvg'\?",
        ),
        (
            {"algorithm": 3},
            r"train: algorithm is 3; it must be an algorithm such as algorithms\.FedAvg\(lr=0\.1\)\.",
        ),
        (
            {"algorithm": algorithms.FedAvg},
            r"train: algorithm is <class .*>; it must be an algorithm such as",
        ),
        ({"algorithm": algorithms.FedAvg(lr=-1)}, r"FedAvg: lr is -1; it must be a number above 0\."),
        (
            {"algorithm": algorithms.FedAvg(lr=float("nan"))},
            r"FedAvg: lr is nan; it must be a number above 0\.",
        ),
        (
            {"algorithm": algorithms.FedAvg(solver=algorithms.SGD(momentum=1.5))},
            r"SGD: momentum is 1\.5; it must be a number of at least 0 and below 1\.",
        ),
        (
            {"algorithm": algorithms.FedNova(solver=algorithms.Adam())},
            r"FedNova: solver is Adam.*; it must be SGD without weight decay",
        ),
        ({"rounds": 0}, r"train: rounds is 0; it must be a whole number of at least 1\."),
        ({"rounds": 2.5}, r"train: rounds is 2\.5; it must be a whole number of at least 1\."),
        ({"rounds": True}, r"train: rounds is True; it must be a whole number of at least 1\."),
        (
            {"per_round": 5},
            r"train: per_round is 5; it must be a whole number of at least 1 and at most 4, or None "
            r"\(everyone\)\.",
        ),
        ({"per_round": 0}, r"train: per_round is 0; it must be"),
        (
            {"local_epochs": 0},
            r"train: local_epochs is 0; it must be a whole number of at least 1, or a list of them",
        ),
        ({"local_epochs": 1.5}, r"train: local_epochs is 1\.5; it must be a whole number"),
        ({"local_epochs": "two"}, r"train: local_epochs is 'two'; it must be a whole number"),
        (
            {"local_epochs": [1, 2]},
            r"train: local_epochs is \[1, 2\]; it must be one whole number, or one for each of the 4 "
            r"parties\.",
        ),
        (
            {"local_epochs": [1, 2, 3, 1.5]},
            r"train: local_epochs is \[1, 2, 3, 1\.5\]; it must be a whole number",
        ),
        ({"local_epochs": [1, 2, 3, 0]}, r"train: local_epochs is \[1, 2, 3, 0\]; it must be"),
        (
            {"local_steps": 0},
            r"train: local_steps is 0; it must be a whole number of at least 1, or None \(epochs decide\)\.",
        ),
        (
            {"batch_size": 0},
            r"train: batch_size is 0; it must be a whole number of at least 1, or None \(all rows at "
            r"once\)\.",
        ),
        ({"batch_size": "8"}, r"train: batch_size is '8'; it must be"),
        ({"seed": -1}, r"train: seed is -1; it must be a whole number of at least 0"),
        ({"seed": 2**70}, r"train: seed is 1180591620717411303424; it must be"),
        (
            {"local_steps": 10**30},
            r"train: local_steps is 10+; it must be a whole number of at least 1, or None \(epochs "
            r"decide\)\. A whole number has 63 bits",
        ),
        (
            {"algorithm": algorithms.FedAvg(lr=10**30)},
            r"FedAvg: lr is 10+; it must be a number above 0\. A whole number has 63 bits at most here\.",
        ),
        (
            {"device": "cuda:one"},
            r"train: device is 'cuda:one'; it must be 'cpu', 'cuda', 'cuda:0' and so on, or 'auto'\.",
        ),
        (
            {"device": "gpu"},
            r"train: device is 'gpu'; it must be 'cpu', 'cuda', 'cuda:0' and so on, or 'auto'\.",
        ),
        ({"device": None}, r"train: device is None; it must be"),
        (
            {"precision": "float16"},
            r"train: precision is 'float16'; it must be one of 'float32', 'tf32', 'bf16'\.",
        ),
        (
            {"engine": "fast"},
            r"train: engine is 'fast'; it must be one of 'auto', 'stack', 'each', 'compile'\.",
        ),
        ({"engine": []}, r"train: engine is \[\]; it must be one of"),
        (
            {"runtime": "mpi"},
            r"train: runtime is 'mpi'; it must be one of 'cohort', 'inprocess', 'processes', or tacit",
        ),
        ({"runtime": None}, r"train: runtime is None; it must be one of"),
        ({"evaluate_every": -1}, r"train: evaluate_every is -1; it must be a whole number of at least 0\."),
        ({"min_rows": 0}, r"train: min_rows is 0; it must be a whole number of at least 1\."),
        ({"out": 3}, r"train: out is 3; it must be a directory for the run, or None \(keep it in memory\)\."),
    ],
    ids=lambda v: str(v)[:60],
)
def test_every_bad_value_is_refused_in_the_one_sentence_and_nothing_is_written(
    options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(BadParameter, match=words):
        train(**{"out": tmp_path / "r", **options})
    assert not list(tmp_path.iterdir())


def test_a_gpu_that_is_not_there_is_refused_and_auto_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        BadParameter,
        match=r"train: device is 'cuda', and torch finds no CUDA device here\. Use device='cpu', or 'auto'",
    ):
        train(device="cuda")
    assert train(device="auto").config["train"]["device"] == "cpu"


def test_parties_that_cannot_train_are_named(tmp_path: Path) -> None:
    fed = federation()
    none = dataclasses.replace(
        fed, train=Holdings.from_lists([fed.train.of(k) if k != 1 else [] for k in range(PARTIES)])
    )
    with pytest.raises(
        BadData,
        match=r"arrays: party 'p1' has no training rows\. Give min_size=1 when splitting, or leave the "
        r"party out\.",
    ):
        train(fed=none, out=tmp_path / "r")
    named = dataclasses.replace(fed, parties=("a", "server", "b", "c"))
    with pytest.raises(
        BadParameter,
        match=r"runtime: arrays has a party called 'server', which is the server's own name in messages\. "
        r"Rename the party\.",
    ):
        train(fed=named, runtime="inprocess", out=tmp_path / "r")
    assert not list(tmp_path.iterdir())


def test_a_place_that_is_taken_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadRun, match=r"file is a file; a run needs a directory"):
        train(out=tmp_path / "file")


def test_numpy_numbers_are_numbers() -> None:
    result = train(
        rounds=np.int64(2),
        per_round=np.int32(2),
        local_epochs=np.array([1, 2, 1, 2]),
        batch_size=np.int64(8),
        seed=np.int64(1),
    )
    assert result.config["train"]["rounds"] == 2
    assert len(result.history) == 2
