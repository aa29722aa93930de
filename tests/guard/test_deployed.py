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
from tacit.errors import BadJob
from tacit.guard import Clip, Noise, Quantize, SecAgg
from tacit.jobs import guarding
from tacit.jobs.plan import make_plan, make_task

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
    for log in (deceived["client"], deceived["server"]):
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
