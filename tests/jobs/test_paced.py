"""Asynchronous training: what it must come out equal to, what goes with it and what does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tacit
from tacit import algorithms, data, guard, pace, speeds
from tacit.algorithms.plan import identify, plan
from tacit.config import job as config
from tacit.errors import BadJob, BadParameter


def federation(parties: int = 4) -> data.Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 5))
    return data.from_arrays(x, (x @ rng.normal(size=(5, 3))).argmax(1), classes=3).split(
        parties, skew=data.Quantity(0.7), seed=0
    )


def train(fed: data.Federation | None = None, **options: Any) -> tacit.Result:
    return tacit.train(
        fed or federation(),
        **{"model": "logistic", "rounds": 8, "batch_size": 8, "evaluate_every": 3, "min_rows": 1, **options},
    )


def vector(result: tacit.Result) -> torch.Tensor:
    return torch.cat([v.reshape(-1).double() for v in result.model.state_dict().values()])


def off(a: tacit.Result, b: tacit.Result) -> float:
    return float((vector(a) - vector(b)).abs().max())


def told(result: tacit.Result) -> list[dict[str, Any]]:
    """What was said of each round, but for how long this machine took and the last digits of the metrics."""
    floats = ("seconds", "loss", "auc", "brier", "average_precision", "precision", "recall", "f1")
    return [
        {k: v for k, v in e.items() if not k.startswith(floats)}
        for e in result.events
        if e["kind"] == "round"
    ]


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


SLOW = speeds.Lognormal(sigma=1.0)
PACES = [pace.FedBuff(buffer=3), pace.FedAsync(), pace.SAFA(fraction=0.5, lag=1, deadline=0.8)]


# what it must equal -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", ["cohort", "inprocess"])
@pytest.mark.parametrize(
    "algorithm",
    [
        algorithms.FedAvg(),
        algorithms.FedAvg(option="I"),
        algorithms.FedProx(mu=0.1),
        algorithms.FedAvgM(),
        algorithms.FedAdam(),
        algorithms.FedSGD(),
        algorithms.FedNAG(),
    ],
    ids=lambda a: type(a).__name__ + getattr(a, "option", ""),
)
def test_a_buffer_of_everyone_at_equal_speed_is_synchronous_training(algorithm: Any, runtime: str) -> None:
    speed = speeds.Constant(2.5)
    rounds, buffered = (
        train(algorithm=algorithm, runtime=runtime, speed=speed, pace=p, rounds=4)
        for p in (None, pace.FedBuff(buffer=4))
    )
    assert off(rounds, buffered) <= 1e-6
    assert (
        [e["clock"] for e in rounds.history]
        == [e["clock"] for e in buffered.history]
        == [2.5, 5.0, 7.5, 10.0]
    )
    assert [e["staleness"] for e in buffered.history] == [{"0": 4}] * 4


@pytest.mark.parametrize("model", ["logistic", normed], ids=["logistic", "batch norm"])
def test_safa_that_waits_for_all_at_equal_speed_is_synchronous_training(model: Any) -> None:
    assert (
        off(train(model=model, rounds=4), train(model=model, rounds=4, pace=pace.SAFA(fraction=1.0))) <= 2e-6
    )


def test_fedasync_is_the_papers_algorithm_written_out() -> None:
    """Three parties that take 1, 1.7 and 3.3 s; every arrival mixed in by hand, with plain torch and no
    engine of ours.
    """
    fed, seconds, lr, alpha = federation(3), (1.0, 1.7, 3.3), 0.2, 0.7
    ours = train(
        fed,
        rounds=9,
        algorithm=algorithms.FedAvg(lr=lr),
        speed=speeds.Given(seconds),
        pace=pace.FedAsync(alpha, pace.Polynomial(0.5)),
        seed=3,
    )

    def walked(w: dict[str, torch.Tensor], k: int, number: int) -> dict[str, torch.Tensor]:
        rows = fed.train.index[fed.train.start[k] : fed.train.start[k + 1]]
        plans = plan(3, number, identify([fed.parties[k]]), np.array([len(rows)]), 1, 8).of(0)
        w = {name: v.clone().requires_grad_() for name, v in w.items()}
        for index, live in zip(plans.index, plans.live):
            some = rows[index[live > 0]]
            logits = fed.rows.x[some] @ w["weight"].T + w["bias"]
            grads = torch.autograd.grad(
                nn.functional.cross_entropy(logits, fed.rows.y[some]), list(w.values())
            )
            w = {name: (v - lr * g).detach().requires_grad_() for (name, v), g in zip(w.items(), grads)}
        return {name: v.detach() for name, v in w.items()}

    first = [
        v.clone()
        for v in train(fed, rounds=1, algorithm=algorithms.FedAvg(lr=1e-30), seed=3)
        .model.state_dict()
        .values()
    ]
    w = dict(zip(("weight", "bias"), first))
    work = [
        (seconds[k], k, 0, 0, w) for k in range(3)
    ]  # (due, party, its piece of work, the version it began with, that version)
    stale = []
    for t in range(9):
        work.sort(key=lambda piece: piece[:2])
        now, k, number, began, base = work.pop(0)
        mixed = alpha * (t - began + 1) ** -0.5  # α_t = α·s(t − τ)
        new = walked(base, k, number)
        w = {name: (1 - mixed) * w[name] + mixed * new[name] for name in w}
        stale.append(t - began)
        work.append((now + seconds[k], k, number + 1, t + 1, w))
    assert [list(e["staleness"]) for e in ours.history] == [[str(s)] for s in stale]
    assert max(stale) >= 3
    theirs = torch.cat([v.reshape(-1).double() for v in w.values()])
    assert (vector(ours) - theirs).abs().max() <= 1e-6


@pytest.mark.parametrize("one", PACES, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("model", ["logistic", normed], ids=["logistic", "batch norm"])
def test_simulation_and_one_program_a_party_are_one(one: Any, model: Any) -> None:
    some = {} if isinstance(one, pace.SAFA) else {"per_round": 3}
    stacked, each, parties = (
        train(model=model, pace=one, speed=SLOW, **some, **how)
        for how in ({}, {"engine": "each"}, {"runtime": "inprocess"})
    )
    assert off(stacked, parties) <= 2e-6
    assert off(stacked, each) <= 2e-6
    assert told(stacked) == told(parties)


def test_drifting_rows_are_those_of_the_current_version() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 5))
    fed = data.from_arrays(x, (x @ rng.normal(size=(5, 3))).argmax(1), classes=3).split(
        3, skew=data.ConceptDrift(every=2), seed=0
    )
    both = [
        train(fed, pace=pace.FedBuff(2), speed=SLOW, runtime=runtime) for runtime in ("cohort", "inprocess")
    ]
    assert off(*both) <= 2e-6


@pytest.mark.parametrize("runtime", ["cohort", "inprocess"])
def test_the_same_seed_gives_the_same_bits(runtime: str) -> None:
    a, b, c = (
        train(pace=pace.FedBuff(2), speed=speeds.Exponential(), runtime=runtime, seed=seed)
        for seed in (0, 0, 1)
    )
    assert torch.equal(vector(a), vector(b))
    assert told(a) == told(b)
    assert [e["clock"] for e in a.history] != [e["clock"] for e in c.history]


@pytest.mark.parametrize("runtime", ["cohort", "inprocess"])
@pytest.mark.parametrize("one", PACES, ids=lambda p: type(p).__name__)
def test_a_run_resumes_to_the_same_bits(one: Any, runtime: str, tmp_path: Path) -> None:
    """Stopped after its fourth version, with work half done and answers that wait."""
    options: dict[str, Any] = {"pace": one, "speed": SLOW, "runtime": runtime}

    def stop(event: dict[str, Any]) -> None:
        if event["kind"] == "round" and event["round"] == 5:
            raise RuntimeError("stopped on purpose")

    whole = train(**options, out=tmp_path / "whole")
    with pytest.raises(Exception, match="stopped on purpose"):
        train(**options, out=tmp_path / "run", watch=stop)
    state = json.loads((tmp_path / "run" / "state" / "state.json").read_text())
    assert state["round"] < 8
    resumed = train(**options, out=tmp_path / "run", resume=True)
    assert torch.equal(vector(whole), vector(resumed))
    assert told(whole) == told(resumed)


def test_synchronous_rounds_take_as_long_as_their_slowest_party() -> None:
    speed = speeds.Given((1.0, 2.0, 3.0, 4.0))
    here, there = (train(speed=speed, per_round=2, runtime=runtime) for runtime in ("cohort", "inprocess"))
    assert [e["clock"] for e in here.history] == [e["clock"] for e in there.history]
    steps = np.diff([0.0, *(e["clock"] for e in here.history)])
    assert set(steps) <= {2.0, 3.0, 4.0}
    assert off(here, train(per_round=2)) == 0  # time changes nothing else


def test_a_synchronous_run_with_a_speed_resumes_its_clock(tmp_path: Path) -> None:
    def stop(event: dict[str, Any]) -> None:
        if event["kind"] == "round" and event["round"] == 5:
            raise RuntimeError("stopped on purpose")

    for runtime in ("cohort", "inprocess"):
        out = tmp_path / runtime
        with pytest.raises(Exception, match="stopped on purpose"):
            train(speed=SLOW, out=out, watch=stop, runtime=runtime)
        assert told(train(speed=SLOW, out=out, resume=True, runtime=runtime)) == told(
            train(speed=SLOW, runtime=runtime)
        )


def test_asynchronous_training_is_sooner_where_parties_are_of_different_speed() -> None:
    """What the paper is about: with one party ten times slower, eight versions of three updates come before
    two synchronous rounds are over.
    """
    speed = speeds.Given((1.0, 1.1, 1.2, 10.0))
    rounds, buffered = train(speed=speed), train(speed=speed, pace=pace.FedBuff(buffer=3))
    assert buffered.history[-1]["clock"] < rounds.history[1]["clock"]


# guards -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stages",
    [
        [guard.Clip(0.05)],
        [guard.Sparsify(top_k=0.3, feedback=False), guard.Clip(1.0), guard.Quantize(8, stochastic=False)],
    ],
    ids=["clip", "three"],
)
def test_stages_that_look_at_one_update_go_with_a_pace(stages: list[Any]) -> None:
    one = pace.FedBuff(2)
    bare, here, there = (
        train(pace=one, speed=SLOW),
        *(train(pace=one, speed=SLOW, guard=stages, runtime=runtime) for runtime in ("cohort", "inprocess")),
    )
    assert off(here, there) <= 2e-6
    assert off(bare, here) > 1e-3
    assert told(here) == told(there)


def test_an_update_is_clipped_however_old_it_is() -> None:
    """Every version moves by the mean of three updates of norm at most 0.01."""
    seen: list[torch.Tensor] = []
    for rounds in (3, 4):
        seen.append(vector(train(pace=pace.FedBuff(3), speed=SLOW, guard=[guard.Clip(0.01)], rounds=rounds)))
    assert 0 < float((seen[1] - seen[0]).norm()) <= 0.01 + 1e-6


@pytest.mark.parametrize(
    ("stages", "why"),
    [
        (
            [guard.Clip(1.0), guard.Noise(multiplier=1.0)],
            "Noise needs to know how many parties are in a round",
        ),
        (
            [guard.Clip(1.0), guard.Quantize(8), guard.SecAgg()],
            "SecAgg agrees on masks or keys among the parties of one round, and here there are no rounds",
        ),
        ([guard.Sparsify(top_k=0.1)], "Sparsify keeps at the client what it left out, for the next round"),
        ([guard.Clip(1.0, quantile=0.5)], "Clip follows how many updates of a round are clipped"),
    ],
    ids=["noise", "secagg", "feedback", "quantile"],
)
def test_stages_that_need_a_round_are_refused_with_the_reason(stages: list[Any], why: str) -> None:
    with pytest.raises(
        BadParameter,
        match=f"guard: {why}.*, so it cannot be combined with FedBuff. Leave one of the two out; Clip and "
        "Quantize can be combined with it.",
    ):
        train(pace=pace.FedBuff(2), guard=stages)


# what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"algorithm": "Scaffold"},
            "the clients of Scaffold keep state from round to round, and FedBuff has no rounds",
        ),
        (
            {"algorithm": "FedNova"},
            "FedBuff gives old updates less weight, and an update of FedNova cannot be scaled",
        ),
        (
            {"algorithm": "FedSGD", "pace": pace.FedAsync()},
            "FedAsync mixes models, and clients of FedSGD send",
        ),
        (
            {"pace": "slow"},
            r"train: pace is 'slow'; it must be one of FedBuff, FedAsync, SAFA",
        ),
        ({"pace": pace.FedBuff(0)}, "FedBuff: buffer is 0; it must be a whole number of at least 1"),
        ({"pace": pace.FedAsync(1.5)}, "FedAsync: alpha is 1.5; it must be a number above 0 and at most 1"),
        ({"pace": pace.FedBuff(staleness=3)}, "FedBuff: staleness is 3; it must be a staleness function"),
        (
            {"pace": pace.SAFA(), "per_round": 2},
            "per_round: with SAFA every party trains. Leave it out, and set SAFA's fraction",
        ),
        (
            {"sampling": "poisson", "per_round": 2},
            "sampling: FedBuff asks whichever party is free. Use sampling='fixed'",
        ),
        (
            {"pace": None, "speed": speeds.Constant(), "topology": tacit.Hierarchy(2)},
            "topology: a Hierarchy has synchronous rounds and no clock. Leave out pace and speed.",
        ),
        ({"speed": 3}, r"train: speed is 3; it must be a speed: Constant\(…\)"),
        ({"speed": speeds.Given((1.0, 2.0))}, "it must be of 4 numbers, one for each party"),
        (
            {"speed": speeds.Constant(), "runtime": "processes"},
            "speed: it sets the virtual clock of a simulation",
        ),
    ],
    ids=lambda o: None if isinstance(o, str) else "-".join(o),
)
def test_what_does_not_go_together_is_refused_before_anything_starts(
    options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(BadParameter, match=said):
        train(**{"pace": pace.FedBuff(2), **options}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# job files --------------------------------------------------------------------------------------------------

JOB = """
[data]
name = "iris"
parties = 3
[model]
name = "logistic"
[pace]
name = "FedBuff"
buffer = 2
staleness = { name = "Hinge", a = 2.0, b = 1 }
[speed]
name = "Given"
seconds = [1.0, 2.0, 4.0]
[train]
rounds = 3
"""


def test_a_job_file_with_pace_and_speed_round_trips(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(JOB)
    job = config.load(file)
    assert job.options["pace"] == pace.FedBuff(2, pace.Hinge(2.0, 1))
    assert job.options["speed"] == speeds.Given((1.0, 2.0, 4.0))
    assert config.from_tables(job.resolved(), file) == job
    (fed,) = job.federations()
    run = tacit.train(fed, **job.train(), out=tmp_path / "run")
    again = config.of_run(tmp_path / "run")
    assert [again.options[k] for k in ("pace", "speed")] == [job.options[k] for k in ("pace", "speed")]
    assert [e["round"] for e in run.history] == [1, 2, 3]


def test_a_value_of_a_pace_is_changed_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(JOB)
    assert config.load(file, ["pace.buffer=3"]).options["pace"].buffer == 3
    assert config.load(file, ["pace=FedAsync"]).options["pace"] == pace.FedAsync()
    assert config.load(file, ["pace=FedAsync", "pace.alpha=0.3", "pace.staleness.name=Constant"]).options[
        "pace"
    ] == pace.FedAsync(0.3, pace.Constant())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("pace.buffr=3", "FedBuff has no parameter 'buffr'. Did you mean 'buffer'?"),
        (
            "pace=FedBuf",
            "pace is 'FedBuf'; it must be one of FedBuff, FedAsync, SAFA. Did you mean 'FedBuff'?",
        ),
        ("pace.buffer=0", "FedBuff: buffer is 0"),
        ("speed.seconds=[1.0, -2.0, 3.0]", "Given: seconds is"),
    ],
)
def test_a_wrong_pace_in_a_job_file_is_named(line: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(JOB)
    with pytest.raises(BadJob) as told:
        config.load(file, [line])
    assert said in str(told.value)
    assert str(file) in str(told.value)
