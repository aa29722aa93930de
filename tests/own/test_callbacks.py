"""Callbacks: they may stop a run, keep its best model, add metrics to its records and track it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file

import tacit
from tacit import algorithms, callbacks, data, guard
from tacit.callbacks import BestCheckpoint, Callback, EarlyStopping, Evaluate, Stop, TensorBoard
from tacit.errors import BadParameter, BadRun, MissingExtra

FED = data.gaussian_blobs(rows=90, seed=0).split(3, seed=0)
OPTIONS: dict[str, Any] = {"model": "logistic", "batch_size": 16}


def weights(model: Any) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def stop_at(r: int) -> Any:
    return lambda record, model: record["round"] == r


def raise_at(r: int) -> Any:
    def callback(record: Any, model: Any) -> None:
        if record["round"] == r:
            raise Stop

    return callback


@pytest.mark.parametrize("how", [stop_at, raise_at])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"runtime": "inprocess"},
        {"runtime": "processes"},
        {"pace": "FedAsync"},
        {"topology": tacit.Hierarchy(edges=2)},
    ],
    ids=["cohort", "inprocess", "processes", "pace", "hierarchy"],
)
def test_a_callback_ends_a_run_with_the_model_of_that_round(how: Any, more: dict[str, Any]) -> None:
    if how is raise_at and more:
        return  # they differ in the first case only
    seen: dict[int, torch.Tensor] = {}

    def keep(record: Any, model: Any) -> None:
        seen[record["round"]] = weights(model)

    run = tacit.train(FED, rounds=6, callbacks=[how(2), keep], **OPTIONS, **more)
    assert [row["round"] for row in run.history] == [1, 2] == list(seen)
    assert torch.equal(weights(run.model), seen[2])
    assert run.metrics["loss"] == run.history[-1]["loss"]
    assert run.events[-1]["kind"] == "end"
    assert any(e.get("text") == "a callback ended training after round 2" for e in run.events)
    if not more:
        assert torch.equal(weights(run.model), weights(tacit.train(FED, rounds=2, **OPTIONS).model))


def test_early_stopping_waits_as_long_as_it_says() -> None:
    values = iter([0.5, 0.4, 0.45, 0.39, 0.395, 0.41, 0.1])
    stop = EarlyStopping("score", patience=2, mode="min")
    measure = Evaluate({"score": lambda model: next(values)})
    run = tacit.train(FED, rounds=7, callbacks=[measure, stop], **OPTIONS)
    assert [row["score"] for row in run.history] == [0.5, 0.4, 0.45, 0.39, 0.395, 0.41]
    assert (stop.best, stop.waited) == (0.39, 2)
    assert run.metrics["score"] == 0.41


def test_the_best_round_is_kept_as_safetensors(tmp_path: Path) -> None:
    values = iter([0.2, 0.9, 0.4])
    seen: list[torch.Tensor] = []
    best = BestCheckpoint(tmp_path / "best.safetensors", "score")  # more is better
    run = tacit.train(
        FED,
        rounds=3,
        callbacks=[
            Evaluate({"score": lambda model: next(values)}),
            best,
            lambda record, model: seen.append(weights(model)),
        ],
        **OPTIONS,
    )
    assert (best.round, best.value) == (2, 0.9)
    module = type(run.model)  # a Sequential
    assert module is not None
    stored = torch.cat([v.reshape(-1) for v in load_file(best.path).values()])
    assert sorted(stored.tolist()) == sorted(seen[1].tolist())


def test_hooks_are_called_in_their_order_and_the_report_shows_their_metrics(tmp_path: Path) -> None:
    calls: list[Any] = []

    class Own(Callback):
        names = ("norm",)

        def on_start(self, run: Any) -> None:
            calls.append(run["train"]["rounds"])

        def measure(self, record: Any, model: Any) -> Any:
            assert "loss" in record
            return {"norm": float(weights(model).norm())}

        def on_round_end(self, record: Any, model: Any) -> None:
            calls.append((record["round"], record["norm"]))

        def on_end(self, result: Any) -> None:
            calls.append(result)

    run = tacit.train(FED, rounds=2, callbacks=[Own()], out=tmp_path / "run", **OPTIONS)
    assert calls == [2, *((row["round"], row["norm"]) for row in run.history), run]
    assert "your own metric" in run.report().read_text()


def test_an_exception_in_a_callback_has_the_result() -> None:
    def fail(record: Any, model: Any) -> None:
        raise ZeroDivisionError("of the user's own")

    with pytest.raises(ZeroDivisionError) as caught:
        tacit.train(FED, rounds=3, callbacks=[fail], **OPTIONS)
    once = tacit.train(FED, rounds=1, **OPTIONS)
    assert torch.equal(weights(caught.value.result.model), weights(once.model))  # type: ignore[attr-defined]


def test_an_object_with_on_round_end_alone_is_a_callback() -> None:
    class Watcher:
        seen: ClassVar[list[int]] = []

        def on_round_end(self, record: Any, model: Any) -> bool:
            self.seen.append(record["round"])
            return len(self.seen) == 2

    run = tacit.train(FED, rounds=5, callbacks=[Watcher()], **OPTIONS)
    assert len(Watcher.seen) == 2
    assert run.history[-1]["round"] == Watcher.seen[-1] < 5
    Watcher.on_end = lambda self, result: None  # type: ignore[attr-defined]
    with pytest.raises(BadParameter, match=r"on_end would not be called: extend tacit\.callbacks\.Callback"):
        tacit.train(FED, rounds=5, callbacks=[Watcher()], **OPTIONS)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (EarlyStopping(), "it must be a list of callbacks"),
        ([EarlyStopping], "it must be an object of tacit.callbacks"),
        ([Evaluate({"loss": lambda model: 1.0})], "the name of a metric is 'loss'"),
        ([EarlyStopping("acuracy")], "there is no metric 'acuracy'. Known: accuracy,"),
        ([lambda record, model: torch.ones(3)], "a function returned tensor.*; it must return True"),
        ([lambda record, model: "yes"], "a function returned 'yes'; it must return True"),
    ],
)
def test_callbacks_that_cannot_be_used_are_refused(given: Any, words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        tacit.train(FED, rounds=2, callbacks=given, **OPTIONS)


def test_an_unknown_mode_of_a_checkpoint_is_refused() -> None:
    with pytest.raises(BadParameter, match="mode is 'mn'; it must be 'min', 'max' or None"):
        BestCheckpoint("best.safetensors", "loss", mode="mn")


# trackers ---------------------------------------------------------------------------------------------------


def test_tensorboard_reads_every_number_of_the_records(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tacit.train(FED, rounds=3, callbacks=[TensorBoard(tmp_path)], **OPTIONS)
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    assert [e.step for e in found.Scalars("loss")] == [1, 2, 3]
    assert [e.value for e in found.Scalars("loss")] == pytest.approx([row["loss"] for row in run.history])
    assert "bytes_up" in found.Tags()["scalars"]


@pytest.mark.parametrize(("kind", "module"), [("MLflow", "mlflow"), ("WandB", "wandb")])
def test_a_tracker_that_is_not_installed_says_how_to_install_it(
    kind: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'tacit\[{module}\]'"):
        getattr(callbacks, kind)()


# more rounds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "algorithm", [algorithms.FedAvg(lr=0.1), algorithms.Scaffold(lr=0.1)], ids=["FedAvg", "Scaffold"]
)
def test_a_run_that_ended_is_resumed_with_more_rounds(algorithm: Any, tmp_path: Path) -> None:
    options = {**OPTIONS, "algorithm": algorithm}
    first = tacit.train(FED, rounds=2, out=tmp_path / "run", **options)
    more = tacit.train(FED, rounds=5, resume=first, **options)
    whole = tacit.train(FED, rounds=5, **options)
    assert torch.equal(weights(more.model), weights(whole.model))
    assert [row["round"] for row in more.history] == [1, 2, 3, 4, 5]
    assert more.metrics == whole.metrics
    assert sum(e["kind"] == "end" for e in more.events) == 1
    again = tacit.train(FED, rounds=6, resume=tmp_path / "run", **options)
    assert len(again.history) == 6
    assert tacit.load(tmp_path / "run").config["train"]["rounds"] == 6


def test_what_cannot_have_more_rounds_is_refused_and_stays_as_it_was(tmp_path: Path) -> None:
    noisy = {**OPTIONS, "guard": [guard.Clip(1.0), guard.Noise(multiplier=1.0)], "insecure_seed": 1}
    tacit.train(FED, rounds=2, out=tmp_path / "noisy", **noisy)
    before = {f: f.read_bytes() for f in (tmp_path / "noisy").rglob("*") if f.is_file()}
    with pytest.raises(BadRun, match="its noise and its ε are for the rounds it was started with"):
        tacit.train(FED, rounds=4, resume=tmp_path / "noisy", **noisy)
    assert {f: f.read_bytes() for f in (tmp_path / "noisy").rglob("*") if f.is_file()} == before
    run = tacit.train(FED, rounds=3, out=tmp_path / "run", **OPTIONS)
    with pytest.raises(BadRun, match=r"differs in train\.rounds"):
        tacit.train(FED, rounds=2, resume=run, **OPTIONS)
    with pytest.raises(BadParameter, match="resume is 'a run in memory'"):
        tacit.train(FED, rounds=2, resume=tacit.train(FED, rounds=1, **OPTIONS), **OPTIONS)
