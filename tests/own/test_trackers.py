"""A tracker with its real package: it gets what the journal has."""

from __future__ import annotations

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
