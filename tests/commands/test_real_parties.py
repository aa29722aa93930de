"""tacit provision, hub, party and simulate-parties, as a user types them."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.cli.shell import Role, provision, said

JOB = """
[data]
label = "sick"
labels = ["no", "yes"]
numbers = ["age", "chol"]
[model]
name = "logistic"
[algorithm]
name = "Scaffold"
lr = 0.2
[train]
rounds = 6
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Kits, a job and two files, with a free port for the hub."""
    monkeypatch.chdir(tmp_path)
    provision("a", "b")
    (tmp_path / "job.toml").write_text(JOB)
    rng = np.random.default_rng(0)
    for name, n in (("a", 110), ("b", 100)):  # a tenth of them held back: enough to report figures on
        age, chol = rng.normal(50, 10, n), rng.normal(200, 30, n)
        pd.DataFrame({"age": age, "chol": chol, "sick": np.where(age > 50, "yes", "no")}).to_csv(
            tmp_path / f"{name}.csv", index=False
        )
    return tmp_path


def test_plan_reads_the_job_of_real_parties_with_a_kit(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(capsys, "plan", "job.toml", "--kit", "kits/a")
    assert code == 0
    assert "2 parties, 2 a round, 6 rounds" in text
    assert "of each party with at least 10 of them (min_rows); a party with fewer reports none" in text
    guard = '[[guard]]\nname = "Clip"\nnorm = 1.0\n[[guard]]\nname = "Quantize"\n[[guard]]\nname = "SecAgg"\n'
    (place / "hidden.toml").write_text(JOB.replace("Scaffold", "FedAvg") + guard)
    code, text = said(capsys, "plan", "hidden.toml", "--kit", "kits/server")
    assert code == 2
    assert "max_rows" in text  # refused as `tacit party` would refuse it
    code, text = said(capsys, "plan", "job.toml")
    assert code == 0
    assert "without --kit the parties are not known: this is the plan for 3 clients" in text


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["party", "--kit", "kits/none", "--data", "a.csv"], 2, "there is no kit at kits/none"),
        (
            ["party", "--kit", "kits/hub"],
            2,
            "is the hub's kit, which is no party. Run it with `tacit hub --kit kits/hub`",
        ),
        (
            ["party", "--kit", "kits/hub", "--check", "--data", "a.csv"],
            2,
            "is the hub's kit, which is no party",
        ),
        (
            ["party", "--kit", "kits/a"],
            2,
            "'a' is a client, so it takes --data. Give --data with your own file",
        ),
        (
            ["party", "--kit", "kits/a", "--data", "a.csv", "--deadline", "3"],
            2,
            "--deadline is the server's, and 'a' is a client",
        ),
        (["party", "--kit", "kits/server"], 2, "the server needs a job"),
        (
            ["party", "--kit", "kits/server", "job.toml", "--data", "a.csv"],
            2,
            "'server' is the server, which has no rows of its own",
        ),
        (
            ["party", "--kit", "kits/server", "job.toml", "--device", "cpu"],
            2,
            "'server' is the server, which has no rows of its own",
        ),
        (
            ["party", "--kit", "kits/a", "--data", "a.csv", "--device", "gpu"],
            2,
            "party: device is 'gpu'; it must be 'cpu', 'cuda', 'cuda:0' and so on, or 'auto'",
        ),
        (
            ["party", "--kit", "kits/server", "job.toml", "--at-least", "1"],
            2,
            "at_least is 1; it must be None without a deadline",
        ),
        (
            ["party", "--kit", "kits/server", "job.toml", "--set", "train.rounds=0"],
            2,
            "tacit: job.toml, train: rounds is 0; it must be a whole number",
        ),
        (
            ["party", "--kit", "kits/server", "job.toml", "--set", "data.path=x.csv"],
            2,
            "for real parties it describes the columns of each party's own file, and has no key 'path'",
        ),
        (
            ["party", "--kit", "kits/server", "job.toml", "--set", "train.engine=stack"],
            2,
            "'engine' is for simulations",
        ),
        (
            ["party", "--kit", "kits/server", "job.toml", "--set", "speed=Constant"],
            2,
            "[speed] is for simulations. Leave it out here",
        ),
        (
            [
                "party",
                "--kit",
                "kits/server",
                "job.toml",
                "--set",
                "pace.name=FedBuff",
                "--set",
                "pace.buffer=0",
            ],
            2,
            "FedBuff: buffer is 0; it must be a whole number",
        ),
        (["party", "--kit", "kits/server", "nojob.toml"], 2, "there is no job file nojob.toml"),
        (["hub", "--kit", "kits/a"], 2, "a hub needs the hub's own kit"),
        (["party", "--kit", "kits/a", "--check", "--data", "a.csv", "job.toml"], 2, "nobody listens at"),
        (["provision", "federation.toml", "-o", "kits", "--revoke", "zz"], 2, "'zz' cannot be revoked"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    words: list[str], code: int, text: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    got, printed = said(capsys, *words)
    assert got == code
    assert text in printed


def test_a_run_across_processes_as_users_start_them_with_the_server_killed_in_the_middle(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = Role(place, "hub", "hub", "--kit", "kits/hub")
    try:
        clients = [Role(place, c, "party", "--kit", f"kits/{c}", "--data", f"{c}.csv") for c in ("a", "b")]
        words = ("party", "--kit", "kits/server", "job.toml", "--out", "run")
        Role(place, "server", *words, dies_at="round 1/6").wait_for_death()
        events = place / "run" / "events.jsonl"
        code, printed = said(
            capsys, "party", "--kit", "kits/a", "--data", "a.csv", "--check", "job.toml", "--json"
        )
        assert code == 0
        assert all(c["wrong"] is None for c in json.loads(printed)["checks"])
        pd.DataFrame({"age": [1], "sick": ["no"]}).to_csv(place / "bad.csv", index=False)
        code, printed = said(capsys, "party", "--kit", "kits/b", "--data", "bad.csv", "--check", "job.toml")
        assert code == 2
        assert "the recipe needs a column 'chol' and the table has none" in printed
        again = Role(
            place, "server", "party", "--kit", "kits/server", "job.toml", "--resume", "run", "--json"
        )
        assert again.wait() == 0, again.log.read_text()
        assert [c.wait() for c in clients] == [0, 0]
        rounds = [json.loads(line) for line in events.read_text().splitlines() if '"kind": "round"' in line]
        assert [e["round"] for e in rounds] == list(range(7))
        assert rounds[-1]["loss"] < rounds[0]["loss"]
        for c in ("a", "b"):
            seen: list[dict[str, Any]] = json.loads(
                (place / "kits" / c / "state" / "ledger.json").read_text()
            )["seen"]
            assert {s["party"] for s in seen} == {c}
            assert {s["sender"] for s in seen} == {"server"}
            assert (place / "kits" / c / "state" / "memory.safetensors").exists()
        assert (place / "run" / "report.html").exists()
    finally:
        hub.process.terminate()
        hub.wait()


def test_simulate_parties_trains_without_waiting_where_the_job_says_so(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "sim.toml").write_text(
        '[data]\nname = "iris"\nparties = 2\n[model]\nname = "logistic"\n[pace]\nname = '
        '"FedAsync"\n[train]\nrounds = 3\n'
    )
    code, printed = said(
        capsys, "simulate-parties", "sim.toml", "--set", "pace.alpha=0.5", "--out", "sim", "--quiet", "--json"
    )
    assert code == 0, printed
    value = json.loads(printed)
    assert value["job"]["pace"]["alpha"] == 0.5
    assert [sum(row["staleness"].values()) for row in value["history"]] == [1, 1, 1]
    assert 'id="time"' in (place / "sim" / "report.html").read_text()


def test_simulate_parties_runs_a_job_with_real_processes(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "sim.toml").write_text(
        '[data]\nname = "iris"\nparties = 2\n[model]\nname = "logistic"\n[train]\nrounds = 2\n'
    )
    code, printed = said(capsys, "simulate-parties", "sim.toml", "--out", "sim", "--quiet", "--json")
    assert code == 0, printed
    value = json.loads(printed)
    assert len(value["history"]) == 2
    assert value["dropped"] == {}
    assert {line["how"] for line in value["ledger"]["seen"]} == {"executed"}


def test_a_job_for_real_parties_says_how_updates_become_one_and_by_what_parties_are_chosen(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server learns the number of rows of each party when it joins, and asks for losses."""
    assert (
        said(capsys, "party", "--kit", "kits/server", "job.toml", "--set", "select.name=PowerOfChance")[0]
        == 2
    )
    changes = [
        "select.name=PowerOfChoice",
        "select.candidates=2",
        "aggregate.name=Momentum",
        "train.rounds=3",
        "train.per_round=1",
        "train.evaluate_every=0",
        "algorithm.name=FedAvg",
    ]
    hub = Role(place, "hub", "hub", "--kit", "kits/hub")
    try:
        server = Role(
            place,
            "server",
            "party",
            "--kit",
            "kits/server",
            "job.toml",
            "--out",
            "run",
            "--json",
            *(word for change in changes for word in ("--set", change)),
        )
        others = [
            Role(place, name, "party", "--kit", f"kits/{name}", "--data", f"{name}.csv")
            for name in ("a", "b")
        ]
        assert [role.wait() for role in (server, *others)] == [0, 0, 0], (place / "server.log").read_text()
    finally:
        hub.process.terminate()
        hub.wait()
    events = [json.loads(line) for line in (place / "run" / "events.jsonl").read_text().splitlines()]
    rounds = [e for e in events if e["kind"] == "round" and e["round"]]
    assert [(e["sampled"], e["looked"]) for e in rounds] == [(1, 2)] * 3
    seen = json.loads((place / "run" / "ledger.json").read_text())["seen"]
    assert sum(line["count"] for line in seen if line["kind"] == "Loss") == 6
    assert sum(line["count"] for line in seen if line["kind"] == "Upload") == 3


def test_a_client_shows_its_progress_and_says_at_the_end_what_it_contributed(place: Path) -> None:
    hub = Role(place, "hub", "hub", "--kit", "kits/hub")
    try:
        server = Role(place, "server", "party", "--kit", "kits/server", "job.toml", "--out", "run")
        clients = [Role(place, c, "party", "--kit", f"kits/{c}", "--data", f"{c}.csv") for c in ("a", "b")]
        assert [role.wait() for role in (server, *clients)] == [0, 0, 0], server.log.read_text()
    finally:
        hub.process.terminate()
        hub.wait()
    log = clients[0].log.read_text()
    assert "waiting for the server 'server' …" in log
    for r in range(1, 7):
        assert f"round {r}/6  sent " in log
    assert "the run is over: a answered 6 of 6 rounds and 7 evaluations\nit sent " in log
    assert "what a saw and remembers is in kits/a/state" in log
    digest = hashlib.sha256((place / "run" / "model.safetensors").read_bytes()).hexdigest()
    for role in clients:
        assert f"its SHA-256 is {digest}; compare it with the other parties'" in role.log.read_text()


def test_a_hub_on_a_loopback_address_is_not_reached_through_another(place: Path) -> None:
    """127.0.0.2 is this machine, too: it would be reached if the hub listened on 0.0.0.0."""
    port = tomllib.loads((place / "kits" / "hub" / "party.toml").read_text())["listen"].rpartition(":")[2]
    hub = Role(place, "hub", "hub", "--kit", "kits/hub")
    try:
        hub.wait_for(f"listens on 127.0.0.1:{port}")
        socket.create_connection(("127.0.0.1", int(port)), timeout=30).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", int(port)), timeout=30)
    finally:
        hub.process.terminate()
        hub.wait()


def test_clients_are_told_at_once_when_the_operator_stops_the_server(place: Path) -> None:
    hub = Role(place, "hub", "hub", "--kit", "kits/hub")
    try:
        long = ("--set", "train.rounds=1000")
        server = Role(place, "server", "party", "--kit", "kits/server", "job.toml", "--out", "run", *long)
        clients = [Role(place, c, "party", "--kit", f"kits/{c}", "--data", f"{c}.csv") for c in ("a", "b")]
        clients[0].wait_for("round 2/1000")
        os.kill(server.process.pid, signal.SIGINT)
        assert server.wait() == 130, server.log.read_text()
        assert [c.wait() for c in clients] == [2, 2]
        for client in clients:
            assert "the server 'server' ended the run early: it was stopped." in client.log.read_text()
    finally:
        hub.process.terminate()
        hub.wait()


def test_a_client_is_told_at_once_that_another_cannot_take_part(place: Path) -> None:
    pd.DataFrame({"age": [1.0], "sick": ["no"]}).to_csv(place / "bad.csv", index=False)
    hub = Role(place, "hub", "hub", "--kit", "kits/hub")
    try:
        server = Role(place, "server", "party", "--kit", "kits/server", "job.toml", "--out", "run")
        a = Role(place, "a", "party", "--kit", "kits/a", "--data", "a.csv")
        b = Role(place, "b", "party", "--kit", "kits/b", "--data", "bad.csv", "job.toml")
        assert [role.wait() for role in (server, a, b)] == [2, 2, 2]
        assert "the run cannot continue: 'b': its file has no column 'chol'" in a.log.read_text()
        late = Role(place, "a", "party", "--kit", "kits/a", "--data", "a.csv", "--patience", "1")
        late.wait_for("party 'b' stopped with an error")  # it connects when all the others are gone
        assert late.wait() == 2
        log = late.log.read_text()
        assert "s ago, because its data do not fit the job (by the hub's word" in log
        assert "party 'server' stopped with an error" in log
        assert "It did not start again within 1 s." in log
    finally:
        hub.process.terminate()
        hub.wait()


def test_private_training_between_real_parties_is_accounted_by_each_and_survives_a_killed_server(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = JOB.replace('"chol"]', '"chol"]\nmean = [50, 200]\nstd = [10, 30]').replace("Scaffold", "FedAvg")
    (place / "job.toml").write_text(job + "[private]\nepsilon = 5.0\ndelta = 1e-3\n")
    code, text = said(capsys, "plan", "job.toml", "--kit", "kits/a")
    assert code == 0, text
    assert "ε = 5 at δ = 0.001 (budget 5) for each row of any party, present or not, after 6 rounds" in text
    hub = Role(place, "hub", "hub", "--kit", "kits/hub")
    try:
        code, text = said(
            capsys, "party", "--kit", "kits/a", "--data", "a.csv", "--check", "job.toml"
        )  # the hub may not be up yet, which is another line
        assert "DP-SGD at each party: ε ≤ 5 at δ = 0.001 for each of its training rows" in text
        clients = [
            Role(place, c, "party", "--kit", f"kits/{c}", "--data", f"{c}.csv", "job.toml")
            for c in ("a", "b")
        ]
        words = ("party", "--kit", "kits/server", "job.toml", "--out", "run")
        Role(place, "server", *words, dies_at="round 2/6").wait_for_death()
        again = Role(place, "server", "party", "--kit", "kits/server", "job.toml", "--resume", "run")
        assert again.wait() == 0, again.log.read_text()
        assert [c.wait() for c in clients] == [0, 0], clients[0].log.read_text()
    finally:
        hub.process.terminate()
        hub.wait()
    for c in ("a", "b"):
        (line,) = json.loads((place / "kits" / c / "state" / "ledger.json").read_text())["spent"]
        assert line["unit"] == f"row of {c}, present or not"
        assert 4.8 < line["epsilon"] <= 5.0 * (1 + 1e-9)
        assert "not this party's counts on its held-out rows" in line["adversary"]
    assert [line["epsilon"] for line in json.loads((place / "run" / "ledger.json").read_text())["spent"]] == [
        5.0,
        5.0,
    ]
    assert "a answered 6 of 6 rounds" in clients[0].log.read_text()
    assert "its account is at ε = 4.9" in clients[0].log.read_text()
