"""Guards between organisations: the job file of the commands, parties that say only at the door how many rows they have, a server that is killed in a sum."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

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
