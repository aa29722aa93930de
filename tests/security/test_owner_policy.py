"""What a party's owner requires of every job, and what a server gets that nobody approved: nothing."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tacit.errors import BadParameter, PartyFailed
from tacit.jobs.owner import (
    JobRefused,
    Owner,
    OwnerPolicy,
    Request,
    check_request,
    digest_of,
    read_owner_policy,
)
from tacit.jobs.stats import deployed as stats
from tacit.jobs.stats.queries import read_query
from tacit.jobs.train import client_work, deployed
from tacit.jobs.train.member import member
from tacit.parties.party import Party
from tacit.protocols import joining, sum_program
from tacit.protocols.sum_program import KeptAnswers, SumRules, SumStep
from tacit.runtimes import kits
from tacit.runtimes.inprocess import InProcess
from tests.cli.shell import provision
from tests.clinics import write_files
from tests.runtimes.net import Net
from tests.security.lying_server import GUARDED, JOB, LOCAL_NOISE, SIZES, Attacker
from tests.security.test_server_contract import offered
from tests.stats.test_departures import GLM
from tests.stats.test_departures import TABLES as PATIENTS

NOON = datetime(2026, 11, 18, 12, 0)  # a Wednesday
SOME = 'columns = ["age", "chol", "sick"]'
TABLES = {"train": {"seed": 1, "rounds": 3}, "server": "s"}
REQUEST = Request(
    "party",
    ("s",),
    ("a", "b", "c"),
    json.dumps(TABLES),
    "a job",
    ("age", "sick"),
    ("Clip", "SecAgg"),
    2.0,
    lambda file: {**TABLES, "train": {"seed": 9, "rounds": 3}},
)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"coordinators": ("t",)}, "'s' may not ask (coordinators)"),
        ({"verbs": ("psi",)}, "`tacit party` is not allowed (verbs)"),
        ({"min_parties": 4}, "it has 3 parties, and 4 are required (min_parties)"),
        ({"columns": ("age",)}, "it reads 'sick', which is not allowed (columns)"),
        ({"guards": ("SecAgg", "Noise", "private")}, "it lacks Noise, private (guards)"),
        ({"epsilon": 1.5}, "it has ε = 2, and at most 1.5 is allowed (epsilon)"),
        ({"contracts": ("0" * 12,)}, "it is not one of the allowed jobs (contracts)"),
        ({"templates": ("t.toml",)}, "it differs from t.toml in train.seed (templates)"),
        ({"hours": "12:01-18:00"}, "it is 12:00, and this party answers from 12:01-18:00 only"),
        ({"hours": "18:00-12:00"}, "it is 12:00, and this party answers from 18:00-12:00 only"),
        ({"days": ("thu", "fri")}, "today is wed, and this party answers on thu, fri only"),
    ],
)
def test_each_key_of_the_policy_refuses_what_it_does_not_allow(policy: dict[str, Any], words: str) -> None:
    with pytest.raises(JobRefused) as refused:
        check_request(OwnerPolicy(**policy), REQUEST, now=NOON)
    assert words in str(refused.value)
    assert refused.value.outside == "it has not agreed to this job"  # other parties get no reason


def test_the_same_keys_allow_what_they_name() -> None:
    policy = OwnerPolicy(
        coordinators=("s",),
        verbs=("party",),
        contracts=(REQUEST.digest[:12],),
        columns=("age", "sick", "more"),
        min_parties=3,
        guards=("SecAgg",),
        epsilon=2.0,
        hours="12:00-12:01",
        days=("wed",),
    )
    check_request(policy, REQUEST, now=NOON)
    check_request(replace(policy, contracts=(), templates=("t",), free=("train.seed",)), REQUEST, now=NOON)
    check_request(OwnerPolicy(hours="18:00-12:01"), REQUEST, now=NOON)  # through the night


def test_a_job_without_an_epsilon_is_refused_if_the_policy_has_one() -> None:
    with pytest.raises(JobRefused, match="it has no ε that this party enforces, and ε ≤ 3 is required"):
        check_request(OwnerPolicy(epsilon=3.0), replace(REQUEST, epsilon=None), now=NOON)


def test_a_policy_that_cannot_be_meant_is_refused_with_every_problem(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(
        '[jobs]\nhours = "8 to 6"\ndays = ["monday"]\nguards = ["SecAg"]\ncontracts = ["abc"]\nfree = ["train"]\n'
    )
    with pytest.raises(BadParameter) as error:
        read_owner_policy(tmp_path)
    for words in (
        "write them like '08:00-18:00'",
        "'monday'",
        "Did you mean 'SecAgg'",
        "'abc'",
        "free needs",
    ):
        assert words in str(error.value)


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    (tmp_path / "policy.toml").write_text("[jobs]\napproval = true\n")
    return Owner(tmp_path, "a")


def test_a_decision_is_about_one_job_and_the_last_one_counts(owner: Owner) -> None:
    other = replace(REQUEST, text=json.dumps({**TABLES, "server": "t"}))
    assert not owner.ask(REQUEST)
    assert not owner.ask(other)
    owner.decide(owner.find(REQUEST.digest[:8]), "approved", by="Ada")
    assert owner.may_answer(REQUEST.digest)
    assert not owner.may_answer(other.digest)
    owner.decide(REQUEST.digest, "denied")
    for digest in (REQUEST.digest,):
        with pytest.raises(JobRefused, match="denied the job"):
            owner.check_running(digest)
    with pytest.raises(JobRefused, match="is not approved"):
        owner.check_running(other.digest)
    assert [r["state"] for r in owner.requests()] == ["waiting", "denied"]
    assert owner.log.verify().problems == ()


def test_a_decision_written_into_the_log_by_hand_counts_for_nothing(owner: Owner) -> None:
    owner.ask(REQUEST)
    entry = json.loads(owner.log.file.read_text().splitlines()[-1])
    with owner.log.file.open("a") as file:
        file.write(json.dumps(entry | {"kind": "approved", "n": entry["n"] + 1}) + "\n")
    with pytest.raises(Exception, match="was modified"):
        owner.may_answer(REQUEST.digest)


def test_a_job_that_was_changed_after_it_was_shown_cannot_be_approved(owner: Owner) -> None:
    owner.ask(REQUEST)
    file = owner.kit / "requests" / f"{REQUEST.digest}.json"
    assert owner.text_of(REQUEST.digest) == REQUEST.text
    file.write_text(REQUEST.text.replace("3", "2"))
    with pytest.raises(BadParameter, match="was modified"):
        owner.text_of(REQUEST.digest)


def test_a_server_cannot_fill_the_disk_with_requests(owner: Owner) -> None:
    for n in range(50):
        owner.ask(replace(REQUEST, text=json.dumps({"n": n})))
    with pytest.raises(JobRefused, match="50 requests wait for a decision already"):
        owner.ask(replace(REQUEST, text=json.dumps({"n": 50})))
    assert len(list((owner.kit / "requests").iterdir())) == 50


# --- against a server of any kind ---------------------------------------------------------------------------


def attack(
    folder: Path, job: str, policy: str, program: Any, decide: Any = None, agreed: bool = True
) -> tuple[Any, Any, Owner]:
    """(what the server gained, how party a ended, a's owner). `decide(owner)` is what the owner does meanwhile."""
    write_files(folder, SIZES)
    (folder / "job.toml").write_text(job)
    (folder / "kit").mkdir()
    (folder / "kit" / "policy.toml").write_text(policy)
    owner = Owner(folder / "kit", "a")

    async def run() -> tuple[Any, Any]:
        async with Net.of("server", "a", "b", "c", "d") as net, asyncio.timeout(300):
            kit = replace(net.kits["a"], directory=folder / "kit")
            ours = deployed.agreement(kit, folder / "job.toml" if agreed else None)
            client = asyncio.create_task(
                net.party(
                    "a",
                    lambda me: member(
                        me,
                        {"table": str(folder / "a.csv")},
                        str(folder / "state"),
                        agreement=ours,
                        owner=owner,
                    ),
                )
            )
            server = asyncio.create_task(
                net.party("server", lambda me: program(Attacker(me, net.kits["server"], folder / "job.toml")))
            )
            deciding = asyncio.create_task(decide(owner)) if decide is not None else None
            await asyncio.wait([client, server], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([server], timeout=0 if deciding is not None else 120)
            gained = server.result() if server.done() else None
            if deciding is None:
                await asyncio.wait([client], timeout=120)
            for task in (client, server, *([deciding] if deciding else [])):
                task.cancel()
            ended, *_ = await asyncio.gather(client, server, return_exceptions=True)
            return gained, ended

    return *asyncio.run(run()), owner


@pytest.mark.parametrize(
    ("policy", "job", "words"),
    [
        ('guards = ["Noise"]', GUARDED, "it lacks Noise (guards)"),
        ('coordinators = ["boss"]', GUARDED, "'server' may not ask"),
        ('columns = ["age", "sick"]', GUARDED, "it reads 'chol', which is not allowed"),
        # columns that choose rows are read as well
        (SOME, GUARDED.replace("[model]", 'drop_rows = { ward = ["7"] }\n[model]'), "it reads 'ward', which"),
        (
            SOME,
            GUARDED.replace("[model]", 'group = "ward"\n[model]'),
            "it reads 'ward', which is not allowed",
        ),
        ("epsilon = 1.0", JOB + LOCAL_NOISE + "epsilon = 4.0\n", "it has ε = 4, and at most 1 is allowed"),
        ("epsilon = 9.0", JOB + LOCAL_NOISE + "multiplier = 4.0\n", "it has no ε that this party enforces"),
        ("min_parties = 5", GUARDED, "it has 4 parties, and 5 are required"),
        ("min_rows = 1000", GUARDED, "its policy requires 1000 (policy.toml, [jobs] min_rows)"),
    ],
)
def test_the_policy_outranks_the_job_file_that_the_party_was_started_with(
    policy: str, job: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "min_rows" not in policy:
        monkeypatch.setattr(client_work, "read_party_table", lambda *given: pytest.fail("rows were read"))

    async def program(server: Attacker) -> Any:
        return await server.offer(["a"])

    gained, ended, owner = attack(tmp_path, job, f"[jobs]\n{policy}\n", program)
    assert isinstance(gained["a"], joining.Unfit)
    assert words not in gained["a"].reason
    assert words in str(ended)
    kinds = [e["kind"] for e in owner.log.read()]
    assert kinds[0] == "request"
    assert "refused" in kinds
    assert "answer" not in kinds


def test_a_job_that_nobody_approved_gets_nothing_and_approving_a_does_not_approve_b(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner approves job A while the server waits with job B, and offers A only afterwards."""
    reads: list[str] = []
    real = client_work.read_party_table
    monkeypatch.setattr(client_work, "read_party_table", lambda *g: (reads.append("rows"), real(*g))[1])
    waiting, approved = asyncio.Event(), asyncio.Event()
    seen: dict[str, Any] = {}

    async def program(server: Attacker) -> Any:
        other = offered(server, train__seed=7)
        seen["a"], seen["b"] = server.contract.digest, digest_of(other)
        offering = asyncio.create_task(server.offer(["a"], other))
        await approved.wait()
        # the party answers a call while it waits, so what it has not said until now it did not want to say
        await server.door.send("a", joining.Call())
        seen["answered B"] = offering.done()
        offering.cancel()
        seen["rows read for B"] = list(reads)
        return await server.offer(["a"])

    async def decide(owner: Owner) -> None:
        while not any(r["state"] == "waiting" for r in owner.requests()):
            await asyncio.sleep(0.01)
        waiting.set()
        owner.decide(seen["a"], "approved", by="Ada")  # job A, which has not been asked yet
        approved.set()
        await asyncio.Event().wait()

    gained, _, owner = attack(tmp_path, GUARDED, "[jobs]\napproval = true\n", program, decide, agreed=False)
    assert seen["answered B"] is False
    assert seen["rows read for B"] == []
    assert isinstance(gained["a"], joining.Ready)
    states = {r["job"]: r["state"] for r in owner.requests()}
    assert states == {seen["a"]: "ended", seen["b"]: "waiting"}
    assert owner.log.verify().problems == ()


def test_a_query_that_is_denied_while_it_runs_is_answered_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tacit party deny`: also of a running job, nothing more is answered."""
    monkeypatch.chdir(tmp_path)
    provision("a", "b", "c")
    kit, asked = kits.load(Path("kits/a")), list[str]()
    Path("q.toml").write_text('[stats]\nnumbers = ["age"]\n')
    (tmp_path / "kits" / "a" / "policy.toml").write_text("[jobs]\napproval = true\n")
    digest = stats.agree(kit, read_query("describe", "q.toml"), "q.toml")[1].digest
    Owner(tmp_path / "kits" / "a", "a").decide(digest, "approved")

    async def party(*args: Any, allow: Any, **more: Any) -> dict[str, Any]:
        allow(0)  # the owner approved
        Owner(tmp_path / "kits" / "a", "a").decide(digest, "denied")
        asked.append(digest)
        allow(1)
        raise AssertionError

    monkeypatch.setattr(stats, "party", party)
    monkeypatch.setattr(stats, "connect", lambda kit, client, *rest, **more: asyncio.run(client(None, None)))
    with pytest.raises(JobRefused, match="denied the job"):
        stats.take_part(kit, "describe", "q.toml", "a.csv")
    assert asked == [digest]


def test_a_sum_that_is_not_allowed_is_not_answered_and_the_server_gets_a_fixed_sentence() -> None:
    answers, replies = KeptAnswers(), list[str]()
    rules = SumRules("contract", ("east", "north", "south"))

    def allow(step: int) -> None:
        raise JobRefused("the owner denied it, for a reason of his own")

    async def party(me: Party) -> None:
        await sum_program.client(me, GLM, PATIENTS["east"], rules, answers=answers, allow=allow)

    async def server(me: Party) -> None:
        await me.send("east", SumStep(0, bytes(8), bytes(8), dict(next(GLM.coordinate()))))
        replies.append((await me.recv("east", sum_program.SumRefused)).reason)

    with pytest.raises(PartyFailed):
        InProcess().run_sync({"east": party, "server": server})
    assert replies == ["it has not agreed to this job"]
    assert answers.find(0) is None


def test_a_step_of_a_preparation_is_in_the_log_before_it_is_answered(owner: Owner) -> None:
    work = object.__new__(client_work.ClientWork)
    work.owner, work.contract = owner, SimpleNamespace(digest=REQUEST.digest)  # type: ignore[assignment]
    owner.ask(REQUEST)
    with pytest.raises(JobRefused, match="is not approved"):
        work.allow_step(0, 3)
    owner.decide(REQUEST.digest, "approved")
    work.allow_step(0, 3)
    owner.decide(REQUEST.digest, "denied")
    with pytest.raises(JobRefused, match="denied the job"):
        work.allow_step(1, 3)
    found = [(e["kind"], e.get("what", e.get("reason", ""))[:26]) for e in owner.log.read()[2:]]
    assert [kind for kind, _ in found] == ["refused", "approved", "answer", "denied", "refused"]
    assert found[2][1] == "preparation, step 1 of 3"
