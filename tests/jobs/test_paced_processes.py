"""Asynchronous training with a process for each party, over real sockets and under the real clock."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tacit
from tacit import algorithms, data, guard, pace
from tacit.errors import PartyFailed


def federation() -> data.Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 5))
    return data.from_arrays(x, (x @ rng.normal(size=(5, 3))).argmax(1), classes=3).split(
        3, skew=data.Quantity(0.7), seed=0
    )


def train(runtime: Any, **options: Any) -> tacit.Result:
    return tacit.train(
        federation(),
        **{"model": "logistic", "rounds": 4, "batch_size": 8, "evaluate_every": 2, **options},
        runtime=runtime,
    )


def vector(result: tacit.Result) -> torch.Tensor:
    return torch.cat([v.reshape(-1).double() for v in result.model.state_dict().values()])


def off(a: tacit.Result, b: tacit.Result) -> float:
    return float((vector(a) - vector(b)).abs().max())


class Fragile(nn.Linear):
    """Kills its process in the middle of its work, once, if that is not the test's own."""

    def __init__(self, marker: str, home: int):
        super().__init__(5, 3)
        self.marker, self.home, self.calls = Path(marker), home, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if os.getpid() != self.home and self.calls == 7 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), 9)
        return super().forward(x)


def fragile(marker: str, home: int) -> nn.Module:
    torch.manual_seed(0)
    return Fragile(marker, home)


def test_one_at_a_time_leaves_nothing_to_chance_and_equals_the_simulation() -> None:
    """One party is at work at a time, drawn from the seed: real clock or virtual, the same pieces of work in
    the same order.
    """
    options: dict[str, Any] = {"pace": pace.FedAsync(), "per_round": 1, "rounds": 5}
    there, here = train(tacit.Processes(), **options), train("cohort", **options)
    assert off(there, here) <= 1e-6
    assert [e["staleness"] for e in there.history] == [e["staleness"] for e in here.history] == [{"0": 1}] * 5


@pytest.mark.parametrize(
    "options",
    [{}, {"guard": [guard.Clip(0.5), guard.Quantize(12, stochastic=False)]}],
    ids=["bare", "guarded"],
)
def test_safa_that_waits_for_all_equals_the_simulation(options: dict[str, Any]) -> None:
    there, here = (
        train(runtime, pace=pace.SAFA(fraction=1.0), **options) for runtime in (tacit.Processes(), "cohort")
    )
    assert off(there, here) <= 1e-6
    assert {s.kind for s in there.ledger.seen} == {
        "Answer",
        "Tested",
        "Order",
        "Test",
        "Stop",
        "Join",
        "Ready",
        "Free",
        "Call",
        "Work",
    }
    assert all(s.how == "executed" for s in there.ledger.seen)


def test_a_buffer_over_the_network_has_staleness_and_time_in_its_events() -> None:
    run = train(tacit.Processes(), pace=pace.FedBuff(buffer=2), rounds=8)
    assert [e["round"] for e in run.history] == list(range(1, 9))
    assert all(sum(e["staleness"].values()) == 2 for e in run.history)
    clocks = [e["clock"] for e in run.history]
    assert clocks == sorted(clocks)
    assert clocks[0] > 0
    assert run.metrics["accuracy"] > 0.5  # of three classes; the model before training has 0.3


def test_a_run_resumes_and_requests_work_in_progress_again(tmp_path: Path) -> None:
    options: dict[str, Any] = {"pace": pace.FedAsync(), "per_round": 1, "rounds": 6}

    def stop(event: dict[str, Any]) -> None:
        if event["kind"] == "round" and event["round"] == 3:
            raise RuntimeError("stopped on purpose")

    with pytest.raises(RuntimeError, match="stopped on purpose"):
        train(tacit.Processes(), **options, out=tmp_path / "run", watch=stop)
    resumed = train(tacit.Processes(), **options, out=tmp_path / "run", resume=True)
    assert off(resumed, train("cohort", **options)) <= 1e-6
    clocks = [e["clock"] for e in resumed.history]
    assert clocks == sorted(clocks)


@pytest.mark.parametrize("how", [None, pace.SAFA(fraction=1.0)], ids=["synchronous", "asynchronous"])
def test_a_client_killed_at_its_work_is_started_again_and_the_model_is_the_same(
    how: Any, tmp_path: Path
) -> None:
    model = partial(fragile, marker=str(tmp_path / "died"), home=os.getpid())
    run = train(tacit.Processes(restart=True), model=model, pace=how)
    assert (tmp_path / "died").exists()
    assert any("was restarted" in e["text"] for e in run.events if e["kind"] == "note")
    assert off(run, train("inprocess", model=model, pace=how)) <= 1e-6


def test_an_absent_client_is_named_and_the_others_continue(tmp_path: Path) -> None:
    model = partial(fragile, marker=str(tmp_path / "died"), home=os.getpid())
    run = train(
        tacit.Processes(deadline=5.0, at_least=2),
        model=model,
        pace=pace.FedBuff(buffer=2),
        rounds=40,
        evaluate_every=0,
    )
    assert (tmp_path / "died").exists()
    assert [e["round"] for e in run.history] == list(range(1, 41))


def test_a_non_finite_update_is_refused_at_its_own_party() -> None:
    with pytest.raises(
        PartyFailed,
        match=r"party 'p\d' failed: BadData: the update of 'p\d' in round 1 holds NaN or infinity",
    ):
        train(tacit.Processes(), algorithm=algorithms.FedAvg(lr=3e38), local_epochs=10, pace=pace.FedBuff(2))
