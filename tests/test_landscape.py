"""The picture of the loss between and around the local optima."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import tacit
from tacit import algorithms, data
from tacit.engine.landscape import PARTIES, POINTS, SIDE, normalize_filters
from tacit.engine.task import Task


def federation(parties: int) -> data.Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4))
    return data.from_arrays(x, (x @ rng.normal(size=(4, 3))).argmax(1), classes=3).split(
        parties, skew=data.Dirichlet(0.5), seed=0
    )


def event(parties: int, **options: object) -> tuple[tacit.Result, dict]:
    result = tacit.train(
        federation(parties),
        model="logistic",
        algorithm=algorithms.FedAvg(lr=0.3),
        rounds=2,
        landscape=True,
        **options,
    )  # type: ignore[arg-type]
    (found,) = [e for e in result.events if e["kind"] == "landscape"]
    return result, found


@pytest.mark.parametrize("parties", [1, 2, 7])
def test_the_event_has_the_shapes_it_promises_and_meets_the_global_loss_at_its_centre(parties: int) -> None:
    result, found = event(parties)
    line, plane = found["line"], found["plane"]
    shown = min(parties, PARTIES)
    assert len(line["t"]) == len(line["global"]) == POINTS
    assert [len(curve) for curve in line["loss"]] == [POINTS] * shown
    assert line["names"] == list(result.events[0]["federation"]["parties"])[:shown]
    assert len(plane["a"]) == len(plane["b"]) == SIDE, normalize_filters
    assert [len(row) for row in plane["loss"]] == [SIDE] * SIDE, normalize_filters
    assert [p["name"] for p in plane["points"]] == ["global", *line["names"]]
    here = line["t"].index(min(line["t"], key=abs))
    assert line["t"][here] == pytest.approx(0, abs=1e-6)
    for curve in (*line["loss"], line["global"]):
        assert curve[here] == pytest.approx(result.metrics["loss"], abs=1e-4)
    assert plane["loss"][SIDE // 2][SIDE // 2] == pytest.approx(result.metrics["loss"], abs=1e-4)
    for point in plane["points"]:  # every optimum lies inside the picture
        assert min(plane["a"]) <= point["a"] <= max(plane["a"])
        assert min(plane["b"]) <= point["b"] <= max(plane["b"])


def test_both_runtimes_draw_the_same_picture() -> None:
    a, b = event(3)[1], event(3, runtime="inprocess")[1]
    assert np.allclose(a["line"]["loss"], b["line"]["loss"], atol=1e-4)


def test_a_model_with_batch_norm_is_drawn_with_its_statistics() -> None:
    result = tacit.train(
        federation(3),
        model=lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)),
        rounds=2,
        landscape=True,
    )
    (found,) = [e for e in result.events if e["kind"] == "landscape"]
    assert found["line"]["global"][5] == pytest.approx(result.metrics["loss"], abs=1e-4)


def test_directions_are_filter_normalized() -> None:
    """Every filter (row of a weight, kernel of a convolution) and every bias gets the length it has in the
    model.
    """
    module = nn.Sequential(nn.Conv2d(1, 3, 2), nn.Flatten(), nn.Linear(12, 2))
    task = Task(module, torch.zeros(2, 1, 3, 3), torch.zeros(2, dtype=torch.int64))
    w = task.initial()["w"]
    out = normalize_filters(task, torch.randn(task.dim, generator=torch.Generator().manual_seed(0)), w)
    made = task.module_at(out).state_dict()
    for name, value in module.state_dict().items():
        flat = (len(value), -1) if value.dim() > 1 else (1, -1)
        assert torch.allclose(
            made[name].reshape(flat).norm(dim=1), value.reshape(flat).norm(dim=1), rtol=1e-4
        ), name
