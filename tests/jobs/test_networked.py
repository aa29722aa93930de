"""tacit.train with a process for each party: the same model, over real sockets; client state on disk;
resume.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import tacit
from tacit import algorithms, data, guard, models, pace
from tacit.errors import BadParameter, BadRun, PartyFailed
from tacit.jobs.train import networked, training
from tacit.jobs.train.client_memory import Memory
from tacit.jobs.train.party_rows import load_rows, save_rows
from tacit.jobs.train.training import KEPT

# steps so long that two networks have their best rounds apart
UNEVEN = {"algorithm": algorithms.FedAvg(lr=10.0), "rounds": 9, "min_rows": 1, "seed": 1}


def federation(parties: int = 3) -> data.Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 5))
    return data.from_arrays(x, (x @ rng.normal(size=(5, 3))).argmax(1), classes=3).split(
        parties, skew=data.Quantity(0.7), seed=0
    )


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))


def vector(result: tacit.Result) -> torch.Tensor:
    return torch.cat([v.reshape(-1).double() for v in result.model.state_dict().values()])


def train(runtime: Any, **options: Any) -> tacit.Result:
    return tacit.train(
        federation(),
        **{"model": "logistic", "rounds": 3, "per_round": 2, "batch_size": 8, **options},
        runtime=runtime,
    )


@pytest.mark.parametrize(
    "options",
    [{"algorithm": algorithms.Scaffold(lr=0.1)}, {"model": dropping, "evaluate_every": 2}],
    ids=["scaffold", "own model"],
)
def test_a_process_for_each_party_gives_the_model_of_one_process_for_all(options: dict[str, Any]) -> None:
    here, there = train("inprocess", **options), train(tacit.Processes(), **options)
    assert (vector(here) - vector(there)).abs().max() <= 1e-6
    for a, b in zip(here.history, there.history):
        assert {k: v for k, v in a.items() if k != "seconds"} == {
            k: v for k, v in b.items() if k != "seconds"
        }
    lines = {(s.party, s.sender, s.kind): (s.count, s.bytes) for s in there.ledger.seen}
    for s in here.ledger.seen:  # nobody saw more of the rounds, or less; the joining stands beside them
        assert lines[s.party, s.sender, s.kind] == (s.count, s.bytes)
    assert {k for _, _, k in lines} == {
        "Upload",
        "Tested",
        "Down",
        "Test",
        "Stop",
        "Join",
        "Ready",
        "Free",
        "Call",
        "Work",
    }
    assert all(s.how == "executed" for s in there.ledger.seen)


def test_a_run_across_processes_resumes(tmp_path: Path) -> None:
    """Stopped after its second round; what the clients remember (SCAFFOLD's c_k) is on their disks, not in
    the server's state.
    """
    options: dict[str, Any] = {"algorithm": algorithms.Scaffold(lr=0.1), "rounds": 4}

    def stop(event: dict[str, Any]) -> None:
        if event["kind"] == "round" and event["round"] == 2:
            raise RuntimeError("stopped on purpose")

    whole = train("inprocess", **options)
    with pytest.raises(RuntimeError, match="stopped on purpose"):
        train(tacit.Processes(), **options, out=tmp_path / "run", watch=stop)
    assert list((tmp_path / "run" / "parties").rglob("memory.safetensors"))
    resumed = train(tacit.Processes(), **options, out=tmp_path / "run", resume=True)
    assert (vector(whole) - vector(resumed)).abs().max() <= 1e-6
    state = next((tmp_path / "run" / "state").glob("*.safetensors")).read_bytes()
    assert b"c_k" not in state


@pytest.mark.parametrize(
    "options",
    [
        {"algorithm": algorithms.Scaffold(lr=0.1)},
        {
            "guard": [guard.Clip(20.0), guard.Quantize(bits=40, stochastic=False), guard.SecAgg()],
            "per_round": 3,
        },
        {"pace": pace.SAFA(fraction=1.0), "per_round": None},
    ],
    ids=["clear", "hidden", "paced"],
)
def test_a_server_stopped_during_an_evaluation_resumes_with_that_model(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parties have seen the model of round 2: another one in its place would be refused. It is on disk before
    they see it, and is tested again.
    """
    options = {**options, "rounds": 3}
    whole = train("inprocess", **options)
    count = networked.NetworkedTrainer._metrics

    def broken(self: Any, r: int, answers: Any) -> Any:
        if r == 2:
            raise RuntimeError("stopped on purpose")
        return count(self, r, answers)

    with monkeypatch.context() as patch:
        patch.setattr(networked.NetworkedTrainer, "_metrics", broken)
        with pytest.raises(PartyFailed, match="stopped on purpose"):
            train(tacit.Processes(), **options, out=tmp_path / "run")
    resumed = train(tacit.Processes(), **options, out=tmp_path / "run", resume=True)
    assert (vector(whole) - vector(resumed)).abs().max() <= 1e-6
    assert [row["round"] for row in resumed.history] == [1, 2, 3]
    tested = [row["round"] for row in resumed.history if "loss" in row]
    assert tested == (
        [1, 3] if "guard" in options else [1, 2, 3]
    )  # a hidden sum of counts was opened, and is not opened again


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"algorithm": algorithms.FedAvg(lr=1e-9), "patience": 1, "rounds": 9}, "round"),
        ({"pace": pace.SAFA(fraction=1.0), "per_round": None, "rounds": 2}, "round"),
        ({"model": models.MLP((4,), members=2), "patience": 1, "stop_by": "loss", **UNEVEN}, KEPT),
    ],
    ids=["early", "last, paced", "of several rounds"],
)
def test_a_run_stopped_after_its_last_state_was_saved_resumes_and_its_parties_end(
    options: dict[str, Any], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No round is left to ask anybody for, so that nothing but the end of the run waits for the parties."""
    whole = train("inprocess", **options)
    last = max(e["round"] for e in whole.events if e["kind"] == "round")
    assert last < 9
    assert (KEPT in {e["kind"] for e in whole.events}) == ("stop_by" in options)
    save = training.Training._save

    def stop(self: Any, i: int, r: int, force: bool) -> None:
        save(self, i, r, force)
        if r == last and kind in {e["kind"] for e in self.journals[i].events if e.get("round") == last}:
            raise RuntimeError("stopped on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(training.Training, "_save", stop)
        with pytest.raises(RuntimeError, match="stopped on purpose"):
            train(tacit.Processes(), **options, out=tmp_path / "run")
    before = json.loads((tmp_path / "run" / "state" / "state.json").read_text())
    assert before["round"] == last
    resumed = train(tacit.Processes(), **options, out=tmp_path / "run", resume=True)
    assert (vector(whole) - vector(resumed)).abs().max() <= 1e-6
    assert resumed.metrics["loss"] == pytest.approx(whole.metrics["loss"])
    kinds = [e["kind"] for e in whole.events if e["kind"] != "note"]
    assert [e["kind"] for e in resumed.events if e["kind"] != "note"] == kinds
    stops = {s.party: s.count for s in resumed.ledger.seen if s.kind == "Stop"}
    assert stops == dict.fromkeys(federation().parties, 1)


def test_a_client_remembers_the_last_round_from_before_and_after(tmp_path: Path) -> None:
    one, two, three = ({"c_k": torch.full((3,), float(v))} for v in (1, 2, 3))
    memory = Memory(tmp_path, "run", one)
    memory.keep(0, memory.before(0), two)
    memory.keep(1, memory.before(1), three)
    again = Memory(tmp_path, "run", one)  # after a restart
    assert torch.equal(
        again.before(1)["c_k"], two["c_k"]
    )  # asked for the same round again: from where it was
    assert torch.equal(again.before(2)["c_k"], three["c_k"])
    assert torch.equal(Memory(tmp_path, "another run", one).before(5)["c_k"], one["c_k"])
    with pytest.raises(BadRun, match="it was set back by more than one round"):
        again.before(0)
    (tmp_path / "memory.safetensors").write_bytes(b"damaged")
    with pytest.raises(BadRun, match="cannot be read"):
        Memory(tmp_path, "run", one)


def test_a_party_receives_all_of_its_rows_and_no_others(tmp_path: Path) -> None:
    fed = data.from_arrays(np.arange(40.0).reshape(20, 2), np.arange(20) % 2).split(
        2, skew=data.ConceptDrift(every=2), seed=1
    )
    save_rows(fed, 1, tmp_path)
    mine, alone = fed.party(1), load_rows(tmp_path)
    for r in (0, 2, 5):
        assert torch.equal(mine.at(r).x, alone.at(r).x)
        assert torch.equal(mine.at(r).y, alone.at(r).y)
    assert torch.equal(mine.train.index, alone.train.index)
    others = {tuple(row) for row in fed.party(0).rows.x.tolist()}
    assert not others & {tuple(row) for row in alone.rows.x.tolist()}
    assert json.loads((tmp_path / "rows.json").read_text())["party"] == fed.parties[1]


def test_what_cannot_be_found_by_another_process_is_refused_before_anything_starts() -> None:
    with pytest.raises(BadParameter, match="which another process cannot import"):
        train(tacit.Processes(), model=lambda: nn.Linear(5, 3))
    with pytest.raises(
        BadParameter,
        match=r"runtime is 3; it must be one of 'cohort', 'inprocess', 'processes', or tacit\.Processes",
    ):
        train(3)


def test_a_non_finite_update_is_refused_at_its_own_party() -> None:
    with pytest.raises(
        PartyFailed,
        match=r"party 'p\d' failed: BadData: the update of 'p\d' in round 1 holds NaN or infinity",
    ):
        train(tacit.Processes(), algorithm=algorithms.FedAvg(lr=3e38), local_epochs=10)


def test_run_gives_what_each_program_returned() -> None:
    async def name(me: Any) -> str:
        return me.name

    assert tacit.run_programs({"alice": name, "bob": name}) == {"alice": "alice", "bob": "bob"}
    with pytest.raises(
        BadParameter, match=r"run_programs: runtime is 'cohort'; it must be one of 'inprocess'"
    ):
        tacit.run_programs({"alice": name}, runtime="cohort")
    with pytest.raises(
        BadParameter, match=r"run_programs: programs is .*; it must be a program for each party by its name"
    ):
        tacit.run_programs([name])  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["logistic", "linear"])
def test_processes_with_federated_preparation_give_the_pipeline_of_the_simulation(kind: str) -> None:
    """The statistics have the same bits, and so have the rows of each party."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"age": rng.normal(50, 10, 90), "dose": np.exp(rng.normal(3, 2, 90)), "site": list("abc") * 30}
    )
    frame["sick"] = np.where(frame["age"] + rng.normal(0, 5, 90) > 50, "yes", "no")
    frame["cost"] = frame["dose"] + rng.normal(0, 5, 90)
    label, other = ("sick", "cost") if kind == "logistic" else ("cost", "sick")
    fed = data.from_frame(frame, label=label, drop=[other], regression=kind == "linear").by("site")
    options: dict[str, Any] = {"model": kind, "rounds": 2, "batch_size": 8}
    here, there = (tacit.train(fed, runtime=runtime, **options) for runtime in ("inprocess", "processes"))
    assert here.pipeline is not None
    assert here.pipeline.recipe.fit == "federated"
    assert here.pipeline.recipe.limits  # the dose has heavy tails
    assert here.pipeline == there.pipeline
    assert torch.equal(vector(here), vector(there))
