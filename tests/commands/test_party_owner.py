"""tacit party requests, approve, deny and log, with real processes for the hub and every party."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.cli.shell import Role, answer, provision, refused, run, said

JOB = """
[data]
label = "sick"
labels = ["no", "yes"]
numbers = ["age", "chol"]
fit = "party"
[model]
name = "logistic"
[train]
rounds = 3
batch_size = 16
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    provision("a", "b")
    (tmp_path / "job.toml").write_text(JOB)
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        age, chol = rng.normal(50, 10, 110), rng.normal(200, 30, 110)
        pd.DataFrame({"age": age, "chol": chol, "sick": np.where(age > 50, "yes", "no")}).to_csv(
            tmp_path / f"{name}.csv", index=False
        )
    return tmp_path


def waiting(place: Path, capsys: pytest.CaptureFixture[str], *roles: Role) -> dict[str, Any]:
    """The request that waits at party a, once there is one."""
    while True:
        found = answer(capsys, "party", "requests", "--kit", "kits/a", "--waiting")["requests"]
        if found:
            (request,) = found
            return dict(request)
        for role in roles:
            assert role.process.poll() is None, role.log.read_text()
        time.sleep(0.05)


def test_a_run_waits_for_a_person_and_an_approval_is_for_this_job_only(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "kits" / "a" / "policy.toml").write_text("[jobs]\napproval = true\nmin_parties = 2\n")
    code, text = said(capsys, "party", "requests", "--kit", "kits/a")
    assert (code, text) == (0, "nothing was asked\n")
    hub = Role(place, "hub", "hub", "--kit", "kits/hub")
    roles = [Role(place, c, "party", "--kit", f"kits/{c}", "--data", f"{c}.csv") for c in ("a", "b")]
    server = Role(place, "server", "party", "--kit", "kits/server", "job.toml", "--out", "run")
    try:
        request = waiting(place, capsys, hub, server, *roles)
        assert request["by"] == "server"
        assert "train on columns age, chol, sick; no ε that this party accounts for" in request["about"]
        assert "3 rounds" in request["about"]
        assert "the server sees each update in the clear" in request["about"]
        assert not (place / "kits" / "a" / "state" / "accepted.jsonl").exists()
        code, text = said(capsys, "party", "requests", request["job"][:10], "--kit", "kits/a")
        assert code == 0
        assert '"batch_size": 16' in text
        # other processes write their logs meanwhile, so files are not compared
        code, _, err = run(capsys, "party", "approve", "0" * 12, "--kit", "kits/a")
        assert (code, "no request has this number" in err) == (2, True), err
        code, _, err = run(capsys, "party", "deny", "ab", "--kit", "kits/a")
        assert (code, "at least the first 8 digits" in err) == (2, True), err
        entry = answer(
            capsys, "party", "approve", request["job"][:12], "--kit", "kits/a", "--by", "Ada", "--note", "ok"
        )
        assert (entry["kind"], entry["job"], entry["by"]) == ("approved", request["job"], "Ada")
        assert server.wait() == 0, server.log.read_text()
        assert [role.wait() for role in roles] == [0, 0]
        log = answer(capsys, "party", "log", "--kit", "kits/a")["entries"]
        kinds = [e["kind"] for e in log]
        assert kinds[:4] == ["request", "waiting", "approved", "accepted"]
        assert kinds[-1] == "ended"
        updates = [e["what"] for e in log if e["kind"] == "answer" and "update" in e["what"]]
        assert updates == ["update of round 1", "update of round 2", "update of round 3"]
        # another job: the approval of the first is none of this one, and its refusal reaches the server
        server = Role(
            place,
            "again",
            "party",
            "--kit",
            "kits/server",
            "job.toml",
            "--out",
            "run2",
            "--set",
            "train.seed=5",
        )
        roles = [Role(place, c, "party", "--kit", f"kits/{c}", "--data", f"{c}.csv") for c in ("a", "b")]
        second = waiting(place, capsys, hub, server, *roles)
        assert second["job"] != request["job"]
        answer(capsys, "party", "deny", second["job"], "--kit", "kits/a")
        assert roles[0].wait() == 2
        assert "denied the job" in roles[0].log.read_text()
        assert server.wait() == 2
        assert "it has not agreed to this job" in server.log.read_text()
    finally:
        for role in (hub, server, *roles):
            role.process.kill()
            role.process.wait(300)
    last = [
        e for e in answer(capsys, "party", "log", "--kit", "kits/a")["entries"] if e["job"] == second["job"]
    ]
    assert [e["kind"] for e in last] == ["request", "waiting", "denied", "refused"]
    found = answer(capsys, "party", "log", "--kit", "kits/a", "--verify")
    assert (found["ok"], found["problems"]) == (True, [])
    page_of_the_officer(place, capsys, request["job"], found["head"])
    # the other party has no policy, and a log as well
    assert answer(capsys, "party", "log", "--kit", "kits/b", "--verify")["entries"] > 4
    file = place / "kits" / "a" / "audit.jsonl"
    file.write_text(file.read_text().replace('"by":"Ada"', '"by":"Bob"'))
    code, text = said(capsys, "party", "log", "--kit", "kits/a", "--verify", "--head", found["head"])
    assert code == 2
    assert "Line 3 was edited" in text
    assert "was modified" in refused(capsys, "party", "approve", request["job"], "--kit", "kits/a")
    assert "audit log of 'a' was modified" in refused(capsys, "dpo", "run", "--kit", "kits/a")


def page_of_the_officer(place: Path, capsys: pytest.CaptureFixture[str], job: str, head: str) -> None:
    """It says who approved this job and no other, and how the log can be recognized later."""
    code, text = said(capsys, "dpo", "run", "--kit", "kits/a", "--kit", "kits/b")
    assert code == 0, text
    page = (place / "run" / "dpo.html").read_text()
    approval = page.split('id="approval"')[1].split('id="evidence"')[0]
    assert "Ada" in approval
    assert approval.count("accepted by the party&#x27;s policy") == 2
    assert "denied" not in approval  # that was another job
    evidence = page.split('id="evidence"')[1]
    assert job in evidence
    assert head in evidence
    assert "over the network, encrypted, to a certified party" in page
    assert "age, chol" in page
    assert "is the hub" in refused(capsys, "dpo", "run", "--kit", "kits/hub")


def test_what_cannot_be_is_refused_in_a_sentence(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is the hub's kit" in refused(capsys, "party", "log", "--kit", "kits/hub")
    assert "--head is for --verify" in refused(capsys, "party", "log", "--kit", "kits/a", "--head", "00")
    assert json.loads(said(capsys, "party", "log", "--kit", "kits/a", "--json")[1])["entries"] == []
    # a job file with such a name is still one
    (place / "log").write_text(JOB)
    code, text = said(capsys, "party", "./log", "--kit", "kits/a", "--data", "a.csv", "--check")
    assert code == 2
    assert "nobody listens at" in text
