"""A hierarchy of real parties: three hubs, a server, two edges and four parties, each a process."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

import tacit
from tacit import algorithms, cli, data
from tacit.data.federation import Holdings
from tacit.jobs.train.contract import Contract, NotAgreed
from tacit.jobs.train.deployed import agreement
from tacit.jobs.train.party_rows import read_party_table
from tacit.runtimes import kits
from tests import clinics
from tests.cli.shell import Role, refused, said
from tests.ports import free_port

SIZES = {"a": 90, "b": 60, "c": 120, "d": 80}
EDGES = {"north": ("a", "b"), "south": ("c", "d")}
ROUNDS, PERIOD = 20, 2
LAYOUT = """label = "sick"
labels = ["no", "yes"]
numbers = ["age", "chol"]
mean = [50.0, 200.0]
std = [10.0, 30.0]
held_fraction = 0.0
"""
JOB = f"""[data]
{LAYOUT}
[model]
name = "logistic"
[algorithm]
name = "FedAvg"
lr = 0.5
[train]
rounds = {ROUNDS}
l2 = 0.0
"""


def provision(folder: str, federation: str, clients: tuple[str, ...], above: str = "") -> None:
    Path(f"{folder}.toml").write_text(
        f'name = "{federation}"\nhub = "127.0.0.1:{free_port()}"\nclients = {json.dumps(clients)}\n'
        + (f'above = "{above}"\n' if above else "")
    )
    assert cli.main(["provision", f"{folder}.toml", "-o", folder]) == 0


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three federations, each with its own authority and hub, and the parties' files."""
    monkeypatch.chdir(tmp_path)
    provision("top", "above", tuple(EDGES))
    for edge, clients in EDGES.items():
        provision(edge, f"clinics {edge}", clients, "above")
    clinics.write_files(tmp_path, SIZES)
    (tmp_path / "job.toml").write_text(JOB)
    return tmp_path


def provision_again(folder: str, federation: str, clients: tuple[str, ...], above: str) -> None:
    """Write the federation file anew; keys and certificates stay."""
    key = Path(folder, clients[0], "party.key").read_bytes()
    provision(folder, federation, clients, above)
    assert Path(folder, clients[0], "party.key").read_bytes() == key


def in_rounds(run: str, least: int, role: Role) -> None:
    """Wait until a run has so many rounds on disk."""
    events = Path(run) / "events.jsonl"
    while not events.exists() or sum('"kind": "round"' in x for x in events.read_text().splitlines()) < least:
        assert role.process.poll() is None, role.log.read_text()
        time.sleep(0.005)


def simulated(place: Path) -> torch.nn.Module:
    """The model of the simulated hierarchy of the same rows."""
    layout = tomllib.loads(LAYOUT)
    tables = [read_party_table(k, place / f"{k}.csv", layout, 0).encode() for k in SIZES]
    rows = [t.rows.take(t.train.index) for t in tables]
    x, y = torch.cat([r.x for r in rows]).numpy(), torch.cat([r.y for r in rows]).numpy()
    parties = np.repeat(list(SIZES), [len(r.y) for r in rows])
    fed = data.from_arrays(x, y, test=(x, y), groups={"clinic": parties}).by("clinic", held_fraction=0.0)
    # in the order in which each party has its rows, on which its batches depend
    blocks = torch.arange(len(y)).split([len(r.y) for r in rows])
    fed = dataclasses.replace(fed, train=Holdings.from_lists(list(blocks)))
    return tacit.train(
        fed,
        model="logistic",
        algorithm=algorithms.FedAvg(lr=0.5),
        rounds=ROUNDS,
        l2=0.0,
        topology=tacit.Hierarchy(edges=2, period=PERIOD),
    ).model


def vector(run: str) -> torch.Tensor:
    return torch.cat([p.detach().ravel() for p in tacit.load(run).model.parameters()])


def test_edges_as_processes_have_the_model_of_the_simulated_hierarchy_although_two_servers_are_killed(
    place: Path,
) -> None:
    """An edge is killed, and then the server above; both resume. Parties and hubs run on."""
    of_tree = ("--period", str(PERIOD), "--quiet")
    root = ("party", "--kit", "top/server", "job.toml", "--edges", "--max-weight", "1000", *of_tree)
    edge = {e: ("party", "--kit", f"{e}/server", "job.toml", "--under", f"top/{e}", *of_tree) for e in EDGES}
    hubs = [Role(place, f"hub-{k}", "hub", "--kit", f"{k}/hub") for k in ("top", *EDGES)]
    roles: dict[str, Role] = {}
    try:
        for hub in hubs:
            hub.wait_for("listens on")
        roles["root"] = Role(place, "root", *root, "--out", "root")
        for e, clients in EDGES.items():
            roles[e] = Role(place, e, *edge[e], "--out", f"run-{e}")
            for c in clients:
                words = ("party", "--kit", f"{e}/{c}", "--data", f"{c}.csv", "job.toml", "--quiet")
                roles[c] = Role(place, c, *words)
        in_rounds("run-north", 3, roles["north"])
        os.kill(roles["north"].process.pid, signal.SIGKILL)
        assert roles["north"].wait() == -signal.SIGKILL
        roles["north"] = Role(place, "north", *edge["north"], "--resume", "run-north")
        in_rounds("root", 4, roles["root"])
        os.kill(roles["root"].process.pid, signal.SIGKILL)
        assert roles["root"].wait() == -signal.SIGKILL
        roles["root"] = Role(place, "root", *root, "--resume", "root")
        for role in roles.values():
            assert role.wait() == 0, role.log.read_text()
    finally:
        for role in (*hubs, *roles.values()):
            if role.process.poll() is None:
                role.process.kill()
            role.wait()
    expected = torch.cat([p.detach().ravel() for p in simulated(place).parameters()])
    for run in ("root", *(f"run-{e}" for e in EDGES)):
        torch.testing.assert_close(vector(run), expected, atol=1e-6, rtol=0)
    seen = json.loads(Path("root/ledger.json").read_text())["seen"]
    about = {(s["party"], s["sender"]) for s in seen}
    assert about <= {("server", e) for e in EDGES} | {(e, "server") for e in EDGES}  # nothing of a party
    kinds = {s["kind"] for s in seen if s["party"] == "server"}
    assert {"EdgeModel", "EdgeDone"} <= kinds <= {"EdgeHere", "EdgeModel", "EdgeDone"}
    for e in EDGES:  # the owner of an edge's kit above has what left with it
        log = [json.loads(line) for line in Path(f"top/{e}/audit.jsonl").read_text().splitlines()]
        assert [x["kind"] for x in log[:2]] == ["request", "accepted"]
        assert log[0]["about"].startswith(
            "send 'server' the model of this edge's parties every 2 rounds: train on"
        )
        answers = [x["what"] for x in log if x["kind"] == "answer"]
        assert set(answers) == {f"the model of exchange {t + 1}" for t in range(ROUNDS // PERIOD)}
        assert (log[-1]["kind"], log[-1]["reason"]) == ("ended", "")
        assert "EdgeTurn" in Path(f"top/{e}/ledger.jsonl").read_text()


def test_an_owner_reads_that_the_model_goes_to_the_federation_above(place: Path) -> None:
    """A server cannot leave it out, or name another: the party's kit says it."""
    ours = agreement(kits.load("north/a"), "job.toml")
    assert ours.agreed is not None
    assert "which sends the model to the federation 'above'" in ours.agreed.describe()
    within_limits = dataclasses.replace(ours, agreed=None)
    for lie in (None, "elsewhere"):
        offered = Contract({**ours.agreed.tables, "above": lie})
        with pytest.raises(NotAgreed, match=r'in above .agreed: "above"'):
            ours.check_offer(offered)
        with pytest.raises(NotAgreed, match="names another federation above than this party's kit"):
            within_limits.check_offer(offered)
    with pytest.raises(NotAgreed, match="above is 5; it must be text"):
        Contract.read(json.dumps({**ours.agreed.tables, "above": 5}))


def test_an_edge_whose_parties_do_not_know_the_federation_above_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kit = ("--kit", "north/server", "job.toml", "--under", "top/north", "--out", "run")
    for above, text in (
        ("", "name no federation above"),
        ("others", "name 'others' as the federation above"),
    ):
        provision_again("north", "clinics north", EDGES["north"], above)
        code, words = said(capsys, "party", *kit)
        assert (code, text in words, 'write above = "above"' in words) == (2, True, True), words
        assert not Path("run").exists()


POLICIES = {
    'verbs = ["psi"]': "`tacit party` is not allowed (verbs)",
    'guards = ["SecAgg"]': "it lacks SecAgg (guards)",
    "min_parties = 3": "it has 2 parties, and 3 are required",
}


def test_the_policy_of_an_edges_kit_above_is_asked_before_anything_is_sent(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before, it was not read: whoever had the kit sent models upward, and its log knew nothing of it."""
    hubs = [Role(place, f"hub-{k}", "hub", "--kit", f"{k}/hub") for k in ("top", "north")]
    kit = ("--kit", "north/server", "job.toml", "--under", "top/north", "--quiet")
    try:
        for hub in hubs:
            hub.wait_for("listens on")
        for k, (policy, why) in enumerate(POLICIES.items()):
            (place / "top" / "north" / "policy.toml").write_text(f"[jobs]\n{policy}\n")
            code, words = said(capsys, "party", *kit, "--out", f"run-{k}")
            assert (code, why in words) == (2, True), words
    finally:
        for hub in hubs:
            hub.process.kill()
            hub.wait()
    log = [json.loads(line) for line in Path("top/north/audit.jsonl").read_text().splitlines()]
    assert [x["kind"] for x in log] == ["request", "refused"] * len(POLICIES)
    entries = [json.loads(line) for line in Path("top/north/ledger.jsonl").read_text().splitlines()]
    assert [e["failed"].split(":")[0] for e in entries] == ["JobRefused"] * len(POLICIES)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("top/server", "--edges"), "give --max-weight, the most rows"),
        (
            ("top/server", "--edges", "--max-weight", "5", "--deadline", "3"),
            "an exchange waits for all edges",
        ),
        (("top/server", "--edges", "--max-weight", "0"), "above 0"),
        (("top/server", "--edges", "--max-weight", "5", "--period", "0"), "period"),
        (("top/server", "--edges", "--under", "top/north"), "Give one of them"),
        (("north/server", "--under", "south/server"), "is the kit of a server"),
        (("north/server", "--period", "2"), "Give --under KIT or --edges"),
        (("north/server", "--max-weight", "2"), "Give --edges, too"),
        (("north/a", "--data", "a.csv", "--edges"), "--edges is the server's"),
    ],
)
def test_options_that_make_no_hierarchy_are_refused(
    place: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], text: str
) -> None:
    kit, *more = words
    assert text in refused(capsys, "party", "--kit", kit, "job.toml", *more)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (("mean = [50.0, 200.0]\nstd = [10.0, 30.0]", 'fit = "federated"'), "a federated preparation"),
        (
            ("rounds = 20", "rounds = 20\npatience = 2\nevaluate_every = 1"),
            "edges would stop at different rounds",
        ),
    ],
)
def test_jobs_that_edges_cannot_share_are_refused(
    place: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], text: str
) -> None:
    (place / "other.toml").write_text(JOB.replace(*change))
    kit = ("--kit", "north/server", "--under", "top/north")
    code, words = said(capsys, "party", *kit, "other.toml", "--out", "run")
    assert code == 2
    assert text in words
    assert not Path("run").exists()
