"""A tracker with its real package: it gets what the journal has."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

import tacit
from tacit import algorithms, callbacks, data

FED = data.gaussian_blobs(rows=120, seed=0).split(3, seed=0)
OPTIONS: dict[str, Any] = {"model": "logistic", "algorithm": algorithms.FedAvg(lr=0.3)}


@pytest.mark.filterwarnings("ignore")  # of their own imports
def test_mlflow_has_every_number_of_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the skinny package has no database
    import mlflow

    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"file:{tmp_path / 'runs'}")
    try:
        run = tacit.train(FED, rounds=3, callbacks=[callbacks.MLflow(run_name="mine")], **OPTIONS)
        store = mlflow.MlflowClient()
        (found,) = store.search_runs(["0"])
        assert (found.info.run_name, found.info.status) == ("mine", "FINISHED")
        assert found.data.params["train.rounds"] == "3"
        assert mlflow.active_run() is None
        for name in ("loss", "accuracy", "bytes_up"):
            history = store.get_metric_history(found.info.run_id, name)
            assert [(m.step, m.value) for m in history] == [(row["round"], row[name]) for row in run.history]
        with mlflow.start_run(run_name="outer") as outer:  # the user's own run stays open
            tacit.train(FED, rounds=1, callbacks=[callbacks.MLflow()], **OPTIONS)
            assert mlflow.active_run().info.run_id == outer.info.run_id
    finally:
        mlflow.set_tracking_uri(before)


def read_run(file: Path) -> list[Any]:
    """The records of a run of Weights & Biases: a log in LevelDB's format, of blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2

    content, at, part, records = file.read_bytes(), 7, b"", []
    assert content.startswith(b":W&B")
    while at < len(content):
        left = 32768 - at % 32768
        if left < 7:  # the header of a fragment does not fit: the rest of a block is empty
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", content[at : at + 7])
        part += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or the last of its fragments
            records.append(wandb_internal_pb2.Record.FromString(part))
            part = b""
    return records


def read_items(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


@pytest.mark.filterwarnings("ignore")  # of its own imports
def test_wandb_has_every_number_of_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the package itself, which writes a file where it is offline."""
    monkeypatch.setenv("WANDB_SILENT", "true")
    import wandb

    tracker = callbacks.WandB(mode="offline", dir=str(tmp_path), project="mine")
    run = tacit.train(FED, rounds=3, callbacks=[tracker], **OPTIONS)
    wandb.teardown()  # waits for the process that writes the file
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    records = read_run(file)
    rows = [read_items(r.history.item) for r in records if r.WhichOneof("record_type") == "history"]
    config = [read_items(r.config.update) for r in records if r.WhichOneof("record_type") == "config"]
    assert [row["_step"] for row in rows] == [1, 2, 3]
    for name in ("loss", "accuracy", "bytes_up"):
        assert [row[name] for row in rows] == [row[name] for row in run.history]
    assert config[0]["train.rounds"] == 3
    assert records[-1].WhichOneof("record_type") == "exit"  # the run is finished
