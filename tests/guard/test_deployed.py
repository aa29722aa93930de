"""Guards between organisations: the job file of the commands, parties that say only at the door how many rows they have, a server that is killed in a sum."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit import data
from tacit.errors import BadJob, ProtocolError
from tacit.guard import Clip, Noise, Quantize, SecAgg
from tacit.jobs import guarding
from tacit.jobs import member as members
from tacit.jobs.plan import make_plan, make_task
from tacit.parameters import to_table

ROOT = Path(__file__).parents[2]


def test_a_weighted_signed_sum_between_organisations_survives_a_killed_server_and_is_the_unguarded_run(tmp_path: Path) -> None:
    """40, 25 and 12 rows: the mean is weighted, and nobody's weight is seen in a round. The clients leave the sum that the dead server began."""
    done = subprocess.run([sys.executable, "-m", "tests.guard.organisations", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    plain, guarded = found["plain"], found["guarded"]
    assert (plain["codes"], guarded["codes"]) == ([0], [-signal.SIGKILL, 0])
    assert plain["clients"] == guarded["clients"] == [0, 0, 0]
    assert guarded["rounds"] == plain["rounds"]
    assert "Upload" in plain["seen"]
    assert {"MaskedVector", "AgreedSurvivors"} < set(guarded["seen"])
    assert "Upload" not in guarded["seen"]
    assert np.abs(np.array(plain["model"]) - np.array(guarded["model"])).max() < 2e-5
    deceived = found["deceived"]
    assert all(deceived["codes"])
    assert deceived["clients"]
    for log in (*deceived["clients"], deceived["server"]):
        assert "the server's job has the guard no guard, and this party agreed to Clip(norm=20.0" in log


FED = data.gaussian_blobs(rows=60, seed=0).split(6, seed=0)
RING = [Clip(1.0), Quantize(bits=24)]


def told(stages: list[Any], **more: Any) -> tuple[Any, Any]:
    """(the plan of a job, the guard that its server tells its parties)."""
    p = make_plan(FED, model="logistic", rounds=5, guard=stages, **more)
    task = make_task(p)
    return p, guarding.heard(json.loads(json.dumps(guarding.told(guarding.fit(p, task, task.initial()), "fed"))), task, p.algorithm, p.seed)


@pytest.mark.parametrize("stages", [[*RING, SecAgg(threshold=0.7, adversary="active")], [Clip(1.0), Noise(epsilon=3.0, placement="local")],
                                    [Clip(1.0), Noise(epsilon=3.0, placement="distributed"), Quantize(bits=24), SecAgg()]],
                         ids=["signed", "local", "distributed"])
def test_a_party_takes_the_guard_it_agreed_to_also_with_the_noise_that_was_found_for_it(stages: list[Any]) -> None:
    guarding.holds(*told(stages))


@pytest.mark.parametrize(("agreed", "named"), [
    ([*RING, SecAgg(threshold=0.7, adversary="active")], [*RING, SecAgg(threshold=0.7)]), ([*RING, SecAgg()], RING), (RING, [*RING, SecAgg()]),
    ([Clip(1.0), Noise(epsilon=3.0, placement="local")], [Clip(1.0), Noise(multiplier=0.1, epsilon=3.0, placement="local")]),
    ([Clip(1.0), Noise(multiplier=2.0, placement="local")], [Clip(1.0), Noise(multiplier=1.9, placement="local")])],
    ids=["curious", "open", "hidden", "less noise for its ε", "less noise"])
def test_a_party_refuses_another_guard_than_it_agreed_to(agreed: list[Any], named: list[Any]) -> None:
    with pytest.raises(BadJob, match=r"the server's job has the guard Clip\(norm=1\.0.* and this party agreed to Clip\(norm=1\.0.*Nothing was sent"):
        guarding.holds(told(agreed)[0], told(named)[1])


def test_a_party_refuses_to_hide_among_fewer_than_it_agreed_to() -> None:
    stages = [*RING, SecAgg()]
    with pytest.raises(BadJob, match=r"the server's job has 3 clients in a round \(3 expected\), and this party agreed to 6: the fewer there are"):
        guarding.holds(told(stages)[0], told(stages, per_round=3)[1])


def test_a_party_refuses_noise_that_is_enough_for_its_epsilon_only_on_a_finer_grid() -> None:
    stages = [Clip(1.0), Noise(epsilon=3.0, placement="local"), Quantize(bits=12)]
    p, guard = told(stages)
    guarding.holds(p, guard)
    fine = told([Clip(1.0), Noise(epsilon=3.0, placement="local")])[1].noise.multiplier  # what the Gaussian would need; on twelve bits it costs ε = 3.25
    with pytest.raises(BadJob, match=r"the server's job has the guard Clip\(norm=1\.0.*Nothing was sent"):
        guarding.holds(p, told([Clip(1.0), Noise(multiplier=fine, epsilon=3.0, placement="local"), Quantize(bits=12)])[1])


@pytest.mark.parametrize("hides", [False, True], ids=["local", "distributed"])
def test_a_party_gives_no_answer_beyond_the_epsilon_it_agreed_to_and_no_loss_that_noise_does_not_cover(hides: bool, tmp_path: Path) -> None:
    """Whatever the server asks for, after the party's process was started anew, and under another name of the run. A hidden sum tried again counts once."""
    noise = Noise(epsilon=3.0, placement="distributed" if hides else "local")
    p = make_plan(FED, model="logistic", rounds=3, guard=[Clip(1.0), noise, *([Quantize(bits=24), SecAgg()] if hides else [])])
    task = make_task(p)
    down = task.initial()
    members.deal(FED, 0, tmp_path / "rows")

    def job(run: str) -> str:
        return json.dumps({"run": run, "model": p.job(None)["model"], "algorithm": to_table(p.algorithm), "seed": 0, "epochs": 1, "batch_size": 8,
                           "local_steps": None, "precision": p.precision, "paced": False, "scores": False, "features": list(FED.rows.x.shape[1:]),
                           "classes": FED.classes, "data": None, "guard": guarding.told(guarding.fit(p, task, down), "fed")})

    def started() -> members.Work:
        made = members.Work(FED.parties[0], {"dealt": str(tmp_path / "rows")}, tmp_path / "state", "",
                            lambda _, guard: guarding.own_account(p, guard))
        made.prepare(job("run"))
        return made

    work = started()
    with pytest.raises(ProtocolError, match=r"asks .* for its loss, which no noise covers, in a job whose guard is to add noise. Nothing was sent"):
        work.look(0, down)
    work.local(0, down)
    if hides:
        work.local(0, down)
    work.local(1, down)
    work = started()
    work.local(2, down)
    work.prepare(job("another"))
    for again in (work, started()):
        with pytest.raises(BadJob, match=r"has answered 3 times: once more would cost ε = 3\.\d+, and it agreed to 3\. Nothing more was sent"):
            again.local(3, down)
