"""tacit stats between real parties, one of which is killed and stays away: everybody ends with its name and
with what to do, nothing is half-written, and the query resumes when it is back.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tacit
from tacit.jobs.ledger_file import read_ledger_file
from tests import warm
from tests.cli.shell import Role, provision
from tests.stats.tables import heart

CLIENTS = ("cleveland", "hungarian", "va")
GLM = '[stats]\nformula = "sick ~ age"\n'
# the command of a party whose machine fails when it has answered step 2
DIES = """
import os, signal, sys
from tacit import cli
from tacit.cli import sums
sums._progress = lambda args: lambda done, most: done < 2 or os.kill(os.getpid(), signal.SIGKILL)
cli.main(sys.argv[1:])
"""


def words(name: str, patience: float) -> list[str]:
    more = ["--out", "report.html", "--json"] if name == "server" else ["--data", f"{name}.csv"]
    return ["stats", "glm", "glm.toml", "--kit", f"kits/{name}", *more, "--patience", str(patience)]


class Place:
    """A directory with kits and tables, and what runs there."""

    def __init__(self, path: Path):
        self.path, self.running = path, [Role(path, "hub", "hub", "--kit", "kits/hub")]
        self.running[0].wait_for("listens on")  # the patience of 1 s is not for its start

    def start(self, name: str, patience: float = 1.0) -> Role:
        self.running.append(Role(self.path, name, *words(name, patience)))
        return self.running[-1]

    def start_dying(self, name: str) -> Role:
        role = Role.__new__(Role)
        role.log = self.path / f"{name}-dies.log"
        with open(role.log, "wb") as log:
            role.process = warm.Popen(
                [sys.executable, "-c", DIES, *words(name, 1.0)], cwd=self.path, stdout=log, stderr=log
            )
        self.running.append(role)
        return role

    def resume(self) -> dict:
        """Start the same command at all parties, and return the result."""
        roles = [self.start(name, 300) for name in ("server", *CLIENTS)]
        assert [role.wait() for role in roles] == [0] * 4, [role.log.read_text() for role in roles]
        assert (self.path / "report.html").exists()
        text = roles[0].log.read_text()
        return json.loads(text[text.index("{\n") :])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.chdir(tmp_path)
    provision(*CLIENTS)
    for name, frame in tables().items():
        frame.to_csv(f"{name}.csv", index=False)
    Path("glm.toml").write_text(GLM)
    place = Place(tmp_path)
    yield place
    for role in place.running:
        if role.process.poll() is None:
            role.process.kill()
        role.wait()


def tables() -> dict:
    return {n: heart()[n][["age"]].assign(sick=(heart()[n]["disease"] == "yes") * 1) for n in CLIENTS}


def check_ended(place: Place, roles: dict[str, Role]) -> None:
    """All who were not killed ended by themselves, know who left and what to do, and wrote no result."""
    assert {name: role.wait() for name, role in roles.items()} == dict.fromkeys(roles, 2)
    for name, role in roles.items():
        text = role.log.read_text()
        assert "party 'va' has been disconnected for" in text, text
        assert "start the same command at all parties: they resume after the last sum" in text, text
        assert "Traceback" not in text
        assert "'va' has been disconnected" in read_ledger_file(f"kits/{name}/ledger.jsonl")[-1].failed
    assert not list(place.path.glob("report*"))


def check_equal(found: dict) -> None:
    twin = tacit.stats.glm(tables(), "sick ~ age").to_dict()
    assert found | {"ledger": None, "report": None} == json.loads(json.dumps(twin)) | {
        "ledger": None,
        "report": None,
    }


def test_a_party_that_is_killed_before_the_first_sum_ends_the_query_for_all(place: Place) -> None:
    """One more party has not started, so there is no sum yet."""
    roles = {name: place.start(name) for name in ("server", "cleveland", "va")}
    for name in ("cleveland", "va"):  # each has accepted the contract and read its rows
        while not Path(f"kits/{name}/state/row-sets.jsonl").exists():
            assert roles[name].process.poll() is None, roles[name].log.read_text()
            time.sleep(0.01)
    killed = roles.pop("va")
    os.kill(killed.process.pid, signal.SIGKILL)
    check_ended(place, roles)
    assert not list(place.path.glob("kits/server/state/opened-*/*"))
    check_equal(place.resume())


def test_a_party_that_is_killed_between_two_sums_ends_the_query_for_all(place: Place) -> None:
    roles = {name: place.start(name) for name in ("server", "cleveland", "hungarian")}
    assert place.start_dying("va").wait() == -signal.SIGKILL
    check_ended(place, roles)
    opened = {file: file.read_bytes() for file in place.path.glob("kits/server/state/opened-*/*")}
    assert 1 <= len(opened) <= 2
    check_equal(place.resume())
    assert {file: file.read_bytes() for file in opened} == opened  # resumed, not asked again


@pytest.mark.slow  # a party is given 20 s to answer, so that a busy machine loses none of the others
def test_with_a_threshold_the_model_is_that_of_the_remaining_parties(place: Place) -> None:
    Path("glm.toml").write_text(GLM + "[sums]\nthreshold = 0.6\nwithin = 20.0\n")
    for name in CLIENTS:  # two of three parties are enough for this sum
        (place.path / "kits" / name / "policy.toml").write_text("[stats]\nmin_parties = 2\n")
    roles = [place.start(name, 300) for name in ("server", "cleveland", "hungarian")]
    assert place.start_dying("va").wait() == -signal.SIGKILL
    assert [role.wait() for role in roles] == [0] * 3, [role.log.read_text() for role in roles]
    log = roles[0].log.read_text()
    found = json.loads(log[log.index("{\n") :])
    assert any("party 'va' left: sums from step " in text for text in found["ledger"]["stamps"])
    assert "all figures are about the rows of cleveland, hungarian" in " ".join(log.split())
    rest = {name: table for name, table in tables().items() if name != "va"}
    twin = json.loads(json.dumps(tacit.stats.glm(rest, "sick ~ age").to_dict()))
    for key in ("coefficients", "n", "aic", "parties"):
        assert found[key] == twin[key]
    assert found["n"] == sum(map(len, rest.values()))


def test_parties_end_if_the_coordinator_is_killed_and_stays_away(place: Place) -> None:
    roles = {name: place.start(name) for name in ("server", "cleveland", "va")}
    for name in ("cleveland", "va"):
        roles[name].wait_for("the encrypted channel with 'server' is open")
    os.kill(roles.pop("server").process.pid, signal.SIGKILL)
    assert [role.wait() for role in roles.values()] == [2, 2]
    assert all("'server' has been disconnected for" in role.log.read_text() for role in roles.values())
    check_equal(place.resume())


@pytest.mark.parametrize(("name", "late"), [("server", "'cleveland', 'hungarian', 'va'"), ("va", "'server'")])
def test_a_wait_ends_if_the_others_do_not_start(place: Place, name: str, late: str) -> None:
    role = Role(place.path, name, *words(name, 300), "--wait", "0.2")
    place.running.append(role)
    assert role.wait() == 2
    text = " ".join(role.log.read_text().split())
    assert f"{late} did not start within 0.2 s, so '{name}' stopped" in text, text
    assert not list(place.path.glob("kits/*/state/*"))
