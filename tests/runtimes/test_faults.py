"""Processes that are killed: the final model is that of a run nobody disturbed, or those who were left out
are named.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import warm

KILLING = Path(__file__).with_name("killing.py")


def killing(*args: str, timeout: float) -> Any:
    done = warm.run([sys.executable, str(KILLING), *args], timeout=timeout)
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])


def check(told: dict[str, Any], kills: int) -> None:
    assert sum(told["struck"].values()) == kills
    assert {"hub", "server"} < set(told["struck"])
    for run in told["runs"]:
        assert run["off"] <= 1e-6, run
        assert run["rounds"] == list(range(26)), run
        assert run["dropped"] == []


def test_twenty_kills_of_random_roles_at_random_moments_change_nothing(tmp_path: Path) -> None:
    check(killing("rounds", str(tmp_path), "20", "1", timeout=500), 20)


def test_ten_kills_change_nothing_in_asynchronous_training_that_waits_for_all(tmp_path: Path) -> None:
    check(killing("paced", str(tmp_path), "10", "3", timeout=500), 10)


def test_ten_kills_change_nothing_where_only_the_best_sends_its_model(tmp_path: Path) -> None:
    check(killing("picked", str(tmp_path), "10", "4", timeout=500), 10)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_kills_change_nothing(tmp_path: Path) -> None:
    check(killing("rounds", str(tmp_path), "200", "2", timeout=3000), 200)


def test_a_killed_client_is_dropped_by_name_and_takes_part_again_when_it_returns(tmp_path: Path) -> None:
    told = killing("leave", str(tmp_path), timeout=500)
    gone = told["gone"]
    missed = told["dropped"].count([gone])
    assert told["dropped"] == [[], []] + [[gone]] * missed + [[]] * (148 - missed)
    assert 1 <= missed < 148
    assert told["sampled"] == [2 if dropped else 3 for dropped in told["dropped"]]
    assert told["why"] == "no answer within 4 s"
    assert any(f"{gone!r} was restarted" in n for n in told["notes"])
