"""Exact resume: a run that was killed, and went on, is the run that was never stopped."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tacit
from tacit import algorithms, data, guard
from tacit.errors import BadParameter, BadRun
from tests import warm


@pytest.mark.parametrize(
    ("algorithm", "runtime"),
    [
        ("FedAvg", "cohort"),
        ("Scaffold", "cohort"),
        ("FedAvg", "inprocess"),
        ("Scaffold", "inprocess"),
        ("FedBuff", "cohort"),
        ("SAFA", "inprocess"),
        ("early stopping", "inprocess"),
        ("compare", "cohort"),
    ],
)
@pytest.mark.parametrize("moments", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_a_run_killed_at_any_moment_resumes_to_the_same_bits(
    algorithm: str, runtime: str, moments: int, tmp_path: Path
) -> None:
    """SIGKILL before or after any write, after the last state, twice in a row, at a random time: the model,
    every event and the ledger come out the same.
    """
    program = Path(__file__).with_name("killed.py")
    done = warm.run(
        [sys.executable, str(program), str(tmp_path), algorithm, runtime, "7", str(moments)],
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert len(report) == moments + 4
    assert all(k for case in report[: moments + 3] for k in case["killed"]), report  # the axe did fall
    for case in report:
        assert case["model"], case
        assert case["told"], case


def federation() -> data.Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 4))
    return data.from_arrays(x, (x @ rng.normal(size=(4, 3))).argmax(1), classes=3).split(4, seed=0)


def run(out: Path, **options: Any) -> tacit.Result:
    return tacit.train(
        options.pop("fed", None) or federation(), **{"model": "logistic", "rounds": 3, "out": out, **options}
    )


def files(out: Path) -> dict[str, bytes]:
    return {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()}


@pytest.mark.parametrize("runtime", ["cohort", "inprocess"])
@pytest.mark.parametrize("pace", [None, tacit.pace.FedBuff(buffer=2)], ids=["rounds", "FedBuff"])
def test_resuming_a_finished_run_gives_it_again_and_changes_nothing(
    pace: tacit.pace.Pace | None, runtime: str, tmp_path: Path
) -> None:
    first = run(tmp_path / "a", runtime=runtime, pace=pace)
    before = files(tmp_path / "a")
    again = run(tmp_path / "a", runtime=runtime, pace=pace, resume=True)
    assert all(torch.equal(v, again.model.state_dict()[k]) for k, v in first.model.state_dict().items())
    assert again.metrics == first.metrics
    assert again.history == first.history
    assert again.ledger == first.ledger
    assert files(tmp_path / "a") == before


def test_an_existing_run_is_not_written_over(tmp_path: Path) -> None:
    run(tmp_path / "a")
    before = files(tmp_path / "a")
    with pytest.raises(
        BadRun, match=r"already contains a run\. Resume it with resume=True, or choose another directory\."
    ):
        run(tmp_path / "a")
    assert files(tmp_path / "a") == before


@pytest.mark.parametrize("name", ["job.toml", "model.safetensors", "report.html"])
def test_a_run_does_not_replace_files_of_its_user(tmp_path: Path, name: str) -> None:
    """Before, `tacit run job.toml --out .` replaced the job file, with all its comments."""
    (tmp_path / name).write_text("# my own")
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    before = files(tmp_path)
    with pytest.raises(BadRun, match=rf"has {name}, which a run there would overwrite\. Choose another dir"):
        run(tmp_path)
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"rounds": 2}, "train.rounds"),  # more of them are allowed
        ({"seed": 1}, "train.seed"),
        ({"batch_size": None}, "train.batch_size"),
        ({"model": "mlp"}, "model.name"),
        ({"algorithm": algorithms.FedAvg(lr=0.2)}, "algorithm.lr"),
        ({"algorithm": "Scaffold"}, "algorithm.name"),
        ({"runtime": "inprocess"}, "train.runtime"),
        ({"local_steps": 2}, "train.local_steps"),
        ({"guard": [guard.Clip(1.0)]}, "guard"),
        ({"adversaries": {"sign_flip": 0.4}}, "adversaries"),
    ],
    ids=lambda c: str(c),
)
def test_resuming_with_other_settings_is_refused_naming_the_key_and_changes_nothing(
    change: dict[str, Any], key: str, tmp_path: Path
) -> None:
    run(tmp_path / "a")
    with open(tmp_path / "a" / "events.jsonl", "ab") as file:
        file.write(b'{"torn')
    before = files(tmp_path / "a")
    with pytest.raises(
        BadRun,
        match=rf"holds another run: it differs in .*{key}.*\. Resume with the same settings, or start a new "
        r"directory\.",
    ):
        run(tmp_path / "a", resume=True, **change)
    assert files(tmp_path / "a") == before


def test_there_must_be_a_run_to_resume(tmp_path: Path) -> None:
    with pytest.raises(
        BadRun, match=r"holds no run to resume: there is no job\.toml in it\. Start it without resume\."
    ):
        run(tmp_path / "nothing", resume=True)
    assert not (tmp_path / "nothing").exists()
    with pytest.raises(
        BadParameter,
        match=r"train: out is None; it must be the directory of the run to resume\. Or leave out "
        r"resume\.",
    ):
        run(None, resume=True)  # type: ignore[arg-type]


def damage_missing(out: Path) -> str:
    (file,) = (out / "state").glob("round-*.safetensors")
    file.unlink()
    return r"round-000003\.safetensors cannot be read: it does not exist\."


def damage_tensors(out: Path) -> str:
    (file,) = (out / "state").glob("round-*.safetensors")
    file.write_bytes(file.read_bytes()[:-20])
    return r"round-000003\.safetensors cannot be read: "


def damage_state(out: Path) -> str:
    (out / "state" / "state.json").write_text("{")
    return r"state\.json cannot be read: "


def damage_state_key(out: Path) -> str:
    (out / "state" / "state.json").write_text("{}")
    return r"state\.json cannot be read: "


def damage_job(out: Path) -> str:
    (out / "job.toml").write_text("[train\n")
    return r"job\.toml cannot be read: "


def damage_events(out: Path) -> str:
    (out / "events.jsonl").write_text('{"kind": "start"\n')
    return r"events\.jsonl "


def damage_events_gone(out: Path) -> str:
    (out / "events.jsonl").unlink()
    return r"events\.jsonl has 0 lines, and the saved state was written after 6\."


@pytest.mark.parametrize(
    "damage",
    [
        damage_missing,
        damage_tensors,
        damage_state,
        damage_state_key,
        damage_job,
        damage_events,
        damage_events_gone,
    ],
    ids=lambda d: d.__name__,
)
def test_a_damaged_run_is_refused_with_advice(damage: Any, tmp_path: Path) -> None:
    run(tmp_path / "a")
    words = damage(tmp_path / "a")
    with pytest.raises(
        BadRun, match=words + r".*Restore it from a copy, or restart the run in another directory\."
    ):
        run(tmp_path / "a", resume=True)


def test_a_run_of_a_comparison_can_resume_alone(tmp_path: Path) -> None:
    """Its directory has the whole state, the control variates of every client included, though it ran in a
    stack with others.
    """
    options = {"model": "logistic", "rounds": 3, "per_round": 2}
    both = tacit.compare(
        federation(),
        algorithms=[algorithms.Scaffold(lr=0.1), algorithms.Scaffold(lr=0.2)],
        out=tmp_path / "study",
        **options,
    )
    row = next(r for r in both.summary["rows"] if r["label"] == "Scaffold(lr=0.2)")
    again = tacit.train(
        federation(),
        algorithm=algorithms.Scaffold(lr=0.2),
        out=tmp_path / "study" / row["run"],
        resume=True,
        **options,
    )
    assert again.metrics["loss"] == row["metrics"]["loss"]
    assert len(again.history) == 3


def test_a_diverged_run_resumes_to_the_same_numbers(tmp_path: Path) -> None:
    options = {"algorithm": algorithms.FedAvg(lr=1e30), "model": "mlp", "rounds": 4}
    first = run(tmp_path / "a", **options)
    assert np.isnan(first.metrics["loss"])
    again = run(tmp_path / "a", resume=True, **options)
    assert repr(again.metrics) == repr(first.metrics)
    assert repr(again.history) == repr(first.history)


def test_a_run_is_not_resumed_with_other_rows_or_another_model(tmp_path: Path) -> None:
    """job.toml cannot hold rows: their digests are kept, and what changed is named. Nothing is written
    then.
    """
    run(tmp_path / "a", rounds=2)
    before = (tmp_path / "a" / "events.jsonl").read_bytes()
    fed = federation()
    moved = dataclasses.replace(fed, rows=data.Rows(fed.rows.x + 1e-3, fed.rows.y))
    with pytest.raises(
        BadRun, match=r"cannot be resumed: the data \(rows, or who holds them\) changed since it was started"
    ):
        run(tmp_path / "a", fed=moved, rounds=2, resume=True)
    torch.manual_seed(5)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(fed.rows.x.shape[1], fed.classes or 0))
    run(tmp_path / "b", model=module, rounds=2)
    with torch.no_grad():
        module[1].bias += 1
    with pytest.raises(BadRun, match="the model it starts from changed"):
        run(tmp_path / "b", model=module, rounds=2, resume=True)
    assert (tmp_path / "a" / "events.jsonl").read_bytes() == before
