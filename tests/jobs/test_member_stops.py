"""Early stopping of a model of several members: each keeps the weights of its own best round."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import tacit
from tacit import algorithms, guard, models
from tacit.engine.evaluation import MEMBERS
from tacit.jobs.train.counts import blank_tally
from tacit.jobs.train.plan import make_plan
from tacit.jobs.train.simulated import tested_reveals as reveals_of_tests
from tacit.jobs.train.stopping import EarlyStopping
from tacit.jobs.train.training import KEPT
from tacit.report.records import read_run
from tests.test_members import federation, frame, vector

FED = federation(held_fraction=0.3)
THREE = models.MLP((6, 4), members=3)
HIDDEN = [guard.Clip(norm=20.0), guard.Quantize(bits=24, stochastic=False), guard.SecAgg()]
# steps so long that the members' losses on held-out rows go up and down, each in its own rounds
STOPS: dict[str, Any] = {
    "model": THREE,
    "algorithm": algorithms.FedAdam(lr=0.1, server_lr=0.2, tau=1e-3),
    "rounds": 14,
    "local_steps": 1,
    "batch_size": 512,
    "evaluate_every": 1,
    "patience": 3,
    "stop_by": "loss",
    "min_rows": 1,
    "seed": 0,
}


def one(run: Any, kind: str) -> dict[str, Any]:
    (event,) = [e for e in run.events if e["kind"] == kind]
    return event


def losses(fed: Any, module: nn.Module) -> list[float]:
    """The mean loss of each member on all held-out rows."""
    x, y = fed.rows.x[fed.held.index], fed.rows.y[fed.held.index]
    with torch.no_grad():
        outs = [member(x) for member in module.members]
    if y.is_floating_point():
        return [float(nn.functional.mse_loss(out[:, 0].double(), y.double())) for out in outs]
    return [float(nn.functional.cross_entropy(out, y)) for out in outs]


@pytest.mark.parametrize("label", ["y", "cost"])
def test_every_member_has_the_weights_at_which_a_plain_loop_stops_it(label: str) -> None:
    """FedAdam with full batches, written out: each network alone keeps its best weights, until none improves."""
    fed, adam = federation(label, held_fraction=0.3), STOPS["algorithm"]
    run = tacit.train(fed, **STOPS)
    module = models.build(THREE, tuple(fed.rows.x.shape[1:]), 1 if label == "cost" else 2, seed=STOPS["seed"])
    x, y = fed.rows.x[fed.train.index], fed.rows.y[fed.train.index]
    moments = [
        [(torch.zeros_like(p), torch.full_like(p, adam.tau**2)) for p in member.parameters()]
        for member in module.members
    ]
    best = [(math.inf, 0, torch.zeros(0))] * 3
    waited = r = 0
    while waited < STOPS["patience"] and r < STOPS["rounds"]:
        r, waited = r + 1, waited + 1
        for member, state in zip(module.members, moments):
            parameters, out = list(member.parameters()), member(x)
            loss = (
                nn.functional.mse_loss(out[:, 0], y)
                if label == "cost"
                else nn.functional.cross_entropy(out, y)
            )
            for k, g in enumerate(torch.autograd.grad(loss, parameters)):
                m, v = state[k]
                state[k] = m, v = 0.9 * m - 0.1 * adam.lr * g, 0.99 * v + 0.01 * (adam.lr * g) ** 2
                parameters[k].data += adam.server_lr * m / (v.sqrt() + adam.tau)
        for k, value in enumerate(losses(fed, module)):
            if value < best[k][0]:
                best[k], waited = (value, r, vector(module.members[k]).clone()), 0
    stop, kept = one(run, "stop"), one(run, KEPT)
    assert stop["member_rounds"] == [at for _, at, _ in best]
    assert len({*stop["member_rounds"]}) > 1  # so that a common stop would be another model
    assert stop["round"] == r
    for member, (_, _, weights) in zip(run.model.members, best):
        assert torch.allclose(vector(member), weights, atol=1e-4)
    scale = fed.pipeline.target[1] ** 2 if label == "cost" else 1.0
    assert kept[MEMBERS] == pytest.approx([scale * v for v in losses(fed, run.model)], rel=1e-5)
    mean = evaluated(fed, run.model)
    assert run.metrics["loss"] == kept["loss"] == pytest.approx(scale * mean, rel=1e-5)
    assert stop["value"] == pytest.approx(scale * sum(v for v, _, _ in best) / 3, rel=1e-4)


def evaluated(fed: Any, module: nn.Module) -> float:
    x, y = fed.rows.x[fed.held.index], fed.rows.y[fed.held.index]
    with torch.no_grad():
        out = module(x)
    if y.is_floating_point():
        return float(nn.functional.mse_loss(out[:, 0].double(), y.double()))
    return float(nn.functional.cross_entropy(out, y))


@pytest.mark.parametrize(
    "how",
    [
        {"engine": "each"},
        {"runtime": "inprocess"},
        {"runtime": "processes"},
        {"guard": HIDDEN, "runtime": "inprocess"},
    ],
    ids=["each", "messages", "processes", "SecAgg"],
)
def test_real_parties_stop_every_member_where_a_simulation_does(how: dict[str, Any]) -> None:
    options = STOPS | {"rounds": 8} | ({"guard": HIDDEN} if "guard" in how else {})
    here, there = (
        tacit.train(FED, **options),
        tacit.train(FED, **options, **{k: v for k, v in how.items() if k != "guard"}),
    )
    a, b = one(here, "stop"), one(there, "stop")
    assert a["member_rounds"] == b["member_rounds"]
    assert len({*a["member_rounds"]}) > 1
    assert torch.allclose(vector(here.model), vector(there.model), atol=1e-4)
    assert there.metrics["loss"] == pytest.approx(here.metrics["loss"], rel=1e-5)
    kept = one(there, KEPT)
    assert kept[MEMBERS] == pytest.approx(one(here, KEPT)[MEMBERS], rel=1e-5)
    assert kept["loss"] <= sum(kept[MEMBERS]) / 3  # the loss is convex
    seen = [s for s in there.ledger.seen if s.party == "server"]
    lines = [s for s in seen if s.kind == "Tested"]
    evaluations = [e for e in there.events if e["kind"] in ("round", KEPT) and e["tested"]]
    if "guard" in how:
        assert not lines  # the losses are in the hidden sum
    else:
        assert sum(s.count for s in lines) == len(evaluations) * len(FED)
        assert all("the summed loss of each of the model's 3 members" in s.reveals for s in lines)


def test_a_test_set_does_not_choose_the_weights_of_a_member() -> None:
    table = frame().drop(columns="cost")
    fed = tacit.data.from_frame(table, label="y", groups=["site"]).by("site", held_fraction=0.3)
    runs = [tacit.train(fed, **STOPS, runtime=r) for r in ("cohort", "inprocess")]
    for run in runs:
        rounds = [e for e in run.events if e["kind"] == "round" and e["round"]]
        assert all(MEMBERS not in e and len(e["validation"][MEMBERS]) == 3 for e in rounds)
        chosen = [
            min(range(len(rounds)), key=lambda r: rounds[r]["validation"][MEMBERS][k]) + 1 for k in range(3)
        ]
        assert one(run, "stop")["member_rounds"] == chosen
        with torch.no_grad():
            out = run.model(fed.test.x)
        assert run.metrics["loss"] == pytest.approx(
            float(nn.functional.cross_entropy(out, fed.test.y)), rel=1e-5
        )
    assert runs[0].metrics["best_round"] == runs[1].metrics["best_round"]


@pytest.mark.parametrize(
    ("runtime", "at"),
    [
        ("cohort", "in the middle"),
        ("cohort", "before the last evaluation"),
        ("cohort", "after it"),
        ("processes", "before the last evaluation"),
    ],
)
def test_a_resumed_run_keeps_the_same_weights_of_every_member(tmp_path: Path, runtime: str, at: str) -> None:
    options = STOPS | {"rounds": 8, "runtime": runtime}
    whole = tacit.train(FED, **options)
    last = one(whole, "stop")["round"]

    class Stop(Exception):
        pass

    def interrupt(event: dict[str, Any]) -> None:
        here = (event["kind"], event.get("round"))
        if here == {"in the middle": ("round", 4), "before the last evaluation": ("round", last)}.get(
            at, (KEPT, last)
        ):
            raise Stop

    with pytest.raises(Stop):
        tacit.train(FED, **options, out=tmp_path / "run", watch=interrupt)
    run = tacit.train(FED, **options, out=tmp_path / "run", resume=True)
    assert torch.equal(vector(run.model), vector(whole.model))
    assert one(run, "stop") == one(whole, "stop")
    assert run.metrics == whole.metrics
    assert one(run, KEPT)["loss"] == run.metrics["loss"]


def test_what_is_saved_loaded_predicted_and_exported_are_the_members_best_weights(tmp_path: Path) -> None:
    run = tacit.train(FED, **STOPS, out=tmp_path / "run")
    assert len({*one(run, "stop")["member_rounds"]}) > 1
    new = frame(20).drop(columns=["y", "cost", "site"])
    encoded = torch.as_tensor(run.pipeline.encode(new))
    with torch.no_grad():
        expected = torch.stack([m(encoded) for m in run.model.members]).mean(0).softmax(-1).numpy()
    for scored in (run.predict(new), tacit.load(tmp_path / "run").predict(new)):
        np.testing.assert_allclose(scored[["p(ill)", "p(well)"]], expected, atol=1e-6)
    session = onnxruntime.InferenceSession(
        run.export(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"]
    )
    feed = {k: new[k].to_numpy(float)[:, None] for k in "abc"} | {
        "ward": new["ward"].to_numpy(object)[:, None]
    }
    (p,) = session.run(["probabilities"], feed)
    np.testing.assert_allclose(p, expected, atol=1e-6)
    assert "Its networks are those of rounds" in run.report().read_text()
    record = read_run(tmp_path / "run")
    assert record.party_accuracy == one(run, KEPT)["parties"]["accuracy"]
    counted = [e.get("bytes_evaluation", 0) for e in run.events if e["kind"] in ("round", KEPT)]
    assert record.total("bytes_evaluation") == sum(counted) > sum(counted[:-1])


def test_runs_side_by_side_are_those_alone() -> None:
    """A stack goes on until its last run has ended; what it trains meanwhile is not kept."""
    options = {k: v for k, v in STOPS.items() if k != "seed"}
    compared = tacit.compare(FED, seeds=2, algorithms=[options.pop("algorithm")], **options)
    for seed, run in enumerate(compared.results[:2]):
        alone = tacit.train(FED, **options, algorithm=STOPS["algorithm"], seed=seed)
        assert one(run, "stop")["member_rounds"] == one(alone, "stop")["member_rounds"]
        assert torch.allclose(vector(run.model), vector(alone.model), atol=1e-4)
        assert run.metrics["loss"] == pytest.approx(alone.metrics["loss"], rel=1e-4)


def feed(stopping: EarlyStopping, figures: list[list[float]]) -> list[bool]:
    """Rounds with these losses of two members, whose weights are the number of the round."""
    return [
        stopping.observe(
            {"round": r, "loss": sum(each) / 2, MEMBERS: each},
            lambda r=r: {"w": torch.full((4,), float(r))},  # type: ignore[misc]
        )
        for r, each in enumerate(figures, 1)
    ]


def test_training_goes_on_while_any_member_improves() -> None:
    two = {**STOPS, "model": models.MLP((3,), members=2), "patience": 2}
    stopping = EarlyStopping(make_plan(FED, **two), [slice(0, 2), slice(2, 4)])
    figures = [[3.0, 3.0], [2.0, 4.0], [5.0, 5.0], [2.5, 1.0], [9.0, math.nan]]
    assert feed(stopping, figures) == [True, True, False, True, False]
    assert not stopping.is_over
    assert (stopping.rounds, stopping.values) == ([2, 4], [2.0, 1.0])
    assert stopping.state["w"].tolist() == [2.0, 2.0, 4.0, 4.0]
    kept = stopping.saved()
    stopping.observe({"round": 6, "loss": 9.0, MEMBERS: [math.inf, 1.0]}, lambda: {"w": torch.zeros(4)})
    assert stopping.is_over
    again = EarlyStopping(make_plan(FED, **two), [slice(0, 2), slice(2, 4)])
    again.restore(
        [{"kind": "round", "round": r, "loss": 1.0, MEMBERS: each} for r, each in enumerate(figures, 1)], kept
    )
    assert (again.rounds, again.waited) == ([2, 4], 1)
    assert again.state["w"].tolist() == [2.0, 2.0, 4.0, 4.0]


def test_members_whose_best_round_is_the_same_are_not_evaluated_again() -> None:
    """Under SecAgg parties would refuse it: they count once for each model."""
    run = tacit.train(FED, **STOPS | {"rounds": 3, "algorithm": algorithms.FedAdam(lr=0.1, server_lr=0.003)})
    assert one(run, "stop")["member_rounds"] == [3, 3, 3]
    assert not [e for e in run.events if e["kind"] == KEPT]
    assert run.metrics["loss"] == run.history[-1]["loss"]


@pytest.mark.parametrize(
    ("options", "members"),
    [
        ({}, 3),
        ({"stop_by": None}, 1),  # by accuracy, which no party sends of a single member
        ({"stop_by": "auc"}, 1),
        ({"patience": None, "stop_by": None}, 1),
        ({"model": models.MLP((6,))}, 1),
    ],
    ids=["loss", "metric", "auc", "no patience", "one network"],
)
def test_losses_of_members_are_sent_only_where_members_stop_by_them(
    options: dict[str, Any], members: int
) -> None:
    p = make_plan(FED, **STOPS | {"min_rows": 10} | options)
    assert p.rules.members == members
    assert len(blank_tally(p).members) == (members if members > 1 else 0)
    assert ("each of the model's" in reveals_of_tests(p)) == (members > 1)


def test_parties_below_min_rows_send_no_losses_of_members() -> None:
    """With 21 and 49 held-out rows and min_rows=30, one party alone is in all figures."""
    few, many = FED.held.sizes.tolist()
    for runtime in ("cohort", "inprocess"):
        run = tacit.train(FED, **STOPS | {"min_rows": (few + many) // 2}, runtime=runtime)
        index = FED.held.of(1)
        with torch.no_grad():
            outs = [m(FED.rows.x[index]) for m in run.model.members]
        expected = [float(nn.functional.cross_entropy(out, FED.rows.y[index])) for out in outs]
        assert one(run, KEPT)[MEMBERS] == pytest.approx(expected, rel=1e-5)


def test_losses_that_are_not_finite_are_kept_and_read_again(tmp_path: Path) -> None:
    run = tacit.train(
        FED, **STOPS | {"algorithm": algorithms.FedAvg(lr=1e18), "rounds": 4}, out=tmp_path / "run"
    )
    lines = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert any("nan" in str(e.get(MEMBERS)) or "inf" in str(e.get(MEMBERS)) for e in lines)
    assert tacit.train(
        FED,
        **STOPS | {"algorithm": algorithms.FedAvg(lr=1e18), "rounds": 4},
        out=tmp_path / "run",
        resume=True,
    ).metrics == pytest.approx(run.metrics, nan_ok=True)
    assert math.isnan(run.metrics["loss"])


def test_a_perceptron_on_a_table_is_four_networks_unless_something_says_otherwise() -> None:
    four = models.MLP((64, 32), members=4)
    assert make_plan(FED, model="mlp").model == models.MLP(members=4)
    assert make_plan(FED, model=models.MLP((64, 32))).model == four
    assert make_plan(FED, model=models.MLP((64, 32)), patience=4, stop_by="loss").model == four
    for options in (
        {"model": models.MLP((64, 32), members=1)},
        {"model": models.MLP((64, 32)), "rounds": 20},  # who says how to train says all of it
        {"model": models.MLP((64, 32)), "metric": "auc"},  # no stop of their own
        {"model": models.MLP((64, 32)), "stop_by": "auc"},
        {"model": models.MLP((64, 32)), "patience": None},
        {"model": "table_network"},
        {"model": "logistic"},
    ):
        assert models.count_members(make_plan(FED, **options).model) == 1, options
    rows = tacit.data.digits().split(3)
    assert models.count_members(make_plan(rows, model="mlp").model) == 1
    note = next(
        e["text"]
        for e in tacit.train(FED, model=models.MLP((3,))).events
        if "chosen for" in e.get("text", "")
    )
    assert "model=MLP(hidden=(3,), members=4)" in note


@pytest.mark.parametrize("method", ["leave_one_out", "reconstructed"])
def test_all_parties_together_are_worth_what_the_model_of_the_members_has(method: str) -> None:
    run = tacit.train(FED, **STOPS | {"algorithm": algorithms.FedAvg(lr=3.0), "metric": "auc"})
    assert len({*one(run, "stop")["member_rounds"]}) > 1
    found = tacit.contribution(run, method=method)
    assert found.values.whole == pytest.approx(run.metrics["auc"], abs=1e-6)
