"""Evaluation of rows that stay on disk or at the source: a chunk at a time, with the metrics of all at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from torch import Tensor, nn

import tacit
from tacit import algorithms, data, selection
from tacit.data.inputs import Features, Inputs, Stored
from tacit.engine import task as tasks
from tacit.jobs.train import resuming

ROWS = 260
MOST = 64  # rows that may be read at a time here; a training batch has 8


class Counted:
    """Rows in memory that are read as those of a file are; it refuses to read more than `MOST` at once."""

    def __init__(self, x: Tensor):
        self.x, self.largest, self.read_rows = x, 0, 0

    def __len__(self) -> int:
        return len(self.x)

    def read(self, rows: np.ndarray, change: Any = None) -> Tensor | Inputs:
        self.largest, self.read_rows = max(self.largest, len(rows)), self.read_rows + len(rows)
        return self.x[torch.from_numpy(rows)]

    def describe(self) -> str:
        return "rows that are counted"


def rows(kind: str) -> tuple[Tensor, Tensor, nn.Module, Any]:
    """Rows, labels, a model and the loss."""
    g = torch.Generator().manual_seed(5)
    x = torch.randn(ROWS, 6, generator=g)
    torch.manual_seed(0)
    if kind == "labels":
        return x, (x[:, :3] > 0).int(), nn.Linear(6, 3), None
    if kind == "numbers":
        return x, x[:, 0] * 2 + x[:, 1], nn.Linear(6, 1), None
    if kind == "tokens":
        x = torch.randn(ROWS, 5, 2, generator=g)
        y = (x.sum(2) > 0).int()
        y[::3, 3:] = -1
        return x, y, nn.Linear(2, 2), None
    y = (x[:, 0] > 0).long() + (x[:, 1] > 1).long()
    return x, y, nn.Linear(6, 3), spread if kind == "batch loss" else None


def spread(out: Tensor, y: Tensor) -> Tensor:
    """One number for a batch, undefined for one row."""
    return out.var(0).sum() + nn.functional.cross_entropy(out, y)


def mean_of_largest(out: Tensor, y: Tensor) -> Tensor:
    return out.max(-1).values.mean() - out.min()  # not a mean over rows: a function gets all of them


def federation(x: Features, y: Tensor, with_test: bool, classes: int | None) -> data.Federation:
    groups = {"party": np.repeat(["a", "b", "c"], [90, 60, 50])}
    made = data.from_arrays(
        x[:200],
        y[:200],
        test=(x[200:], y[200:]) if with_test else None,
        test_fraction=0.0,
        groups=groups,
        classes=classes,
    )
    return made.by("party", held_fraction=0.4, seed=1)


@pytest.mark.parametrize("runtime", ["cohort", "inprocess"])
@pytest.mark.parametrize("with_test", [True, False], ids=["test set", "held-out rows"])
@pytest.mark.parametrize("kind", ["classes", "labels", "numbers", "tokens", "batch loss"])
def test_metrics_of_chunks_are_those_of_all_rows(
    kind: str, with_test: bool, runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, model, loss = rows(kind)
    monkeypatch.setattr(tasks, "CHUNK", MOST)
    monkeypatch.setattr(resuming, "BLOCK", MOST)
    options: dict[str, Any] = {"loss": loss} if loss else {}
    if with_test or runtime == "cohort":
        options["metrics"] = {"largest": mean_of_largest} if kind != "numbers" else {}
    if kind == "classes" and runtime == "cohort":
        options["metrics"] |= {
            "f1_of_all": torchmetrics.F1Score("multiclass", num_classes=3, average="macro")
        }
    source = Counted(x)
    found, expected = (
        tacit.train(
            federation(of, y, with_test, 2 if kind == "tokens" else None),
            model=model,
            rounds=2,
            batch_size=8,
            engine="each",
            runtime=runtime,
            algorithm=algorithms.FedAvg(lr=0.1),
            seed=3,
            **options,
        )
        for of in (Stored.of(source), x)
    )
    assert 0 < source.largest <= MOST + 1, "a chunk takes one row more where it would be alone"
    assert source.read_rows > ROWS
    assert set(found.metrics) == set(expected.metrics)
    for name, value in expected.metrics.items():
        if isinstance(value, float):
            assert found.metrics[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
        elif name in ("confusion", "parties"):
            assert found.metrics[name] == value, name


@pytest.mark.parametrize(
    "options",
    [
        {"algorithm": algorithms.Ditto(lr=0.1)},
        {"patience": 2},
        {"select": selection.PowerOfChoice(candidates=3), "per_round": 2},
    ],
    ids=["own models", "early stopping", "losses of training rows"],
)
def test_what_else_is_evaluated_reads_chunks(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, model, _ = rows("classes")
    monkeypatch.setattr(tasks, "CHUNK", MOST)
    monkeypatch.setattr(resuming, "BLOCK", MOST)
    source = Counted(x)
    job = {"algorithm": algorithms.FedAvg(lr=0.1), **options}
    found, expected = (
        tacit.train(federation(of, y, True, None), model=model, rounds=3, batch_size=8, engine="each", **job)
        for of in (Stored.of(source), x)
    )
    assert 0 < source.largest <= MOST
    assert {k: v for k, v in found.metrics.items() if isinstance(v, float)} == pytest.approx(
        {k: v for k, v in expected.metrics.items() if isinstance(v, float)}, rel=1e-5
    )


def test_chunks_are_small_enough_for_what_a_row_and_its_outputs_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of 6 numbers has 24 bytes, its 40 outputs 160, and ten times that to count them: 4 rows in 6,400."""
    x, y, _, _ = rows("classes")
    monkeypatch.setattr(tasks, "READ", 6400)
    monkeypatch.setattr(resuming, "BLOCK", 4)
    source = Counted(x)
    torch.manual_seed(0)
    fed = federation(Stored.of(source), y, True, 40)
    tacit.train(fed, model=nn.Linear(6, 40), rounds=1, batch_size=4, engine="each")
    assert source.largest == 4
