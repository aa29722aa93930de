"""Guards between organizations: the job file of the commands, parties that say only at the door how many rows
they have, a server that is killed in a sum.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit import data
from tacit.crypto.digest import Digests
from tacit.errors import BudgetSpent, ProtocolError
from tacit.guard import Clip, Noise, Quantize, SecAgg
from tacit.jobs.train import client_work, guards, party_rows
from tacit.jobs.train.contract import Agreement, Contract, NotAgreed
from tacit.jobs.train.elsewhere import Deployed
from tacit.jobs.train.plan import make_plan, make_task
from tacit.protocols import joining
from tests import warm

ROOT = Path(__file__).parents[2]


def test_a_weighted_signed_sum_between_organizations_survives_a_killed_server_and_is_the_unguarded_run(
    tmp_path: Path,
) -> None:
    """40, 25 and 12 rows: the mean is weighted, and nobody's weight is seen in a round. The clients leave the
    sum that the dead server began.
    """
    done = warm.run(
        [sys.executable, "-m", "tests.guard.organizations", str(tmp_path)],
        cwd=ROOT,
        timeout=500,
    )
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
    assert "to which this party agreed, in guard (agreed: " in deceived["client"]
    assert "Nothing was read or sent" in deceived["client"]
    assert "it has not agreed to this job" in deceived["server"]


FED = data.gaussian_blobs(rows=60, seed=0).split(6, seed=0)
RING = [Clip(1.0), Quantize(bits=24)]


def contract_of(stages: list[Any], **more: Any) -> Contract:
    return Contract.of(
        make_plan(FED, model="logistic", rounds=5, guard=stages, **more),
        None,
        "server",
        list(FED.rows.x.shape[1:]),
    )


@pytest.mark.parametrize(
    "stages",
    [
        [*RING, SecAgg(threshold=0.7, adversary="active", max_rows=64)],
        [Clip(1.0), Noise(epsilon=3.0, placement="local")],
        [Clip(1.0), Noise(epsilon=3.0, placement="distributed"), Quantize(bits=24), SecAgg(max_rows=64)],
    ],
    ids=["signed", "local", "distributed"],
)
def test_a_party_comes_to_the_servers_guard_from_the_contract_alone(stages: list[Any]) -> None:
    """This includes the noise: the server does not send its amount."""
    p = make_plan(FED, model="logistic", rounds=5, guard=stages, runtime=Deployed(None, {}))
    task = make_task(p)
    contract = contract_of(stages)
    again = Contract.read(contract.text).plan()
    assert Contract.of(again, None, "server", list(FED.rows.x.shape[1:])).digest == contract.digest
    mine, theirs = guards.fit(again, task, task.initial()), guards.fit(p, task, task.initial())
    assert mine.stages == theirs.stages
    assert (mine.clients, mine.expected) == (theirs.clients, theirs.expected)


@pytest.mark.parametrize(
    ("agreed", "named"),
    [
        (
            [*RING, SecAgg(threshold=0.7, adversary="active", max_rows=64)],
            [*RING, SecAgg(threshold=0.7, max_rows=64)],
        ),
        ([*RING, SecAgg(max_rows=64)], RING),
        (RING, [*RING, SecAgg(max_rows=64)]),
        (
            [Clip(1.0), Noise(epsilon=3.0, placement="local")],
            [Clip(1.0), Noise(multiplier=0.1, epsilon=3.0, placement="local")],
        ),
        (
            [Clip(1.0), Noise(multiplier=2.0, placement="local")],
            [Clip(1.0), Noise(multiplier=1.9, placement="local")],
        ),
    ],
    ids=["curious", "open", "hidden", "less noise for its ε", "less noise"],
)
def test_a_party_refuses_another_guard_than_it_agreed_to(agreed: list[Any], named: list[Any]) -> None:
    ours = Agreement(FED.name, "server", FED.parties, contract_of(agreed), "agreed.toml")
    with pytest.raises(
        NotAgreed,
        match=r"differs from agreed\.toml, to which this party agreed, in guard \(agreed: .*offered: .*\)\. "
        r"Nothing was read",
    ):
        ours.check_offer(contract_of(named))


def test_a_party_refuses_to_hide_among_fewer_than_it_agreed_to() -> None:
    ours = Agreement(
        FED.name, "server", FED.parties, contract_of([*RING, SecAgg(max_rows=64)]), "agreed.toml"
    )
    with pytest.raises(NotAgreed, match=r"in train\.per_round \(agreed: 6, offered: 3\)\."):
        ours.check_offer(contract_of([*RING, SecAgg(max_rows=64)], per_round=3))


@pytest.mark.parametrize("hides", [False, True], ids=["local", "distributed"])
def test_a_party_gives_no_answer_beyond_the_rounds_and_the_epsilon_it_agreed_to(
    hides: bool, tmp_path: Path
) -> None:
    """Whatever the server asks for, after the party's process was restarted, and under another name of the
    run.
    """
    noise = Noise(epsilon=3.0, placement="distributed" if hides else "local")
    p = make_plan(
        FED,
        model="logistic",
        rounds=3,
        guard=[Clip(1.0), noise, *([Quantize(bits=24), SecAgg(max_rows=64)] if hides else [])],
    )
    task = make_task(p)
    down = start = task.initial()
    contract = Contract.of(p, None, "server", list(FED.rows.x.shape[1:]))
    party_rows.save_rows(FED, 0, tmp_path / "rows")

    def started(run: str) -> client_work.ClientWork:
        ours = Agreement(FED.name, "server", FED.parties, contract, "agreed.toml")
        made = client_work.ClientWork(
            FED.parties[0], {"folder": str(tmp_path / "rows")}, tmp_path / "state", "", ours
        )
        made.prepare(joining.Work(contract.text, run))
        return made

    def answer(work: client_work.ClientWork, r: int) -> None:
        down = {"w": start["w"] + r}
        assert work.admit("update", r, Digests(down))
        work.local(r, down)
        if hides:
            assert work.commit("update", r).upload(list(FED.parties))
            assert work.commit("update", r).upload(
                list(FED.parties)
            )  # a try that nobody opened is paid for once
            assert work.commit("update", r).reveal()

    work = started("run")
    with pytest.raises(ProtocolError, match=r"for a loss of round 1, which is not part of the contract"):
        work.admit("loss", 0, Digests(down))
    answer(work, 0)
    answer(work, 1)
    answer(started("another"), 2)
    for work in (started("run"), started("a third")):
        with pytest.raises(ProtocolError, match="for a update of round 4, which is not part of the contract"):
            work.admit("update", 3, Digests(down))
        if hides:
            assert not work.admit("update", 2, Digests({"w": start["w"] + 2}))
        else:
            with pytest.raises(
                BudgetSpent, match=r"has answered 3 of the 3 times it agreed to.* Nothing more was sent"
            ):
                work.local(2, down)
