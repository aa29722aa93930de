"""When a device takes part: charging, idle, unmetered, and a rule of its owner's own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from tacit.errors import TacitError
from tacit.jobs import eligibility
from tacit.jobs.eligibility import Eligibility, read_eligibility
from tests import clinics
from tests.cli.shell import Role, provision
from tests.commands.test_over_select import JOB

SIZES = {"a": 40, "b": 40}


def supply(folder: Path, name: str, **files: str) -> None:
    (folder / name).mkdir(parents=True)
    for file, text in files.items():
        (folder / name / file).write_text(text + "\n")


@pytest.mark.parametrize(
    ("supplies", "eligible"),
    [
        ([], True),  # a server
        ([{"type": "Mains", "online": "0"}], True),  # without a battery
        ([{"type": "Battery", "status": "Discharging"}], False),
        ([{"type": "Battery", "status": "Discharging"}, {"type": "Mains", "online": "0"}], False),
        ([{"type": "Battery", "status": "Discharging"}, {"type": "USB", "online": "1"}], True),
        ([{"type": "Battery", "status": "Charging"}], True),
        ([{"type": "Battery", "status": "Discharging", "scope": "Device"}], True),  # of a mouse
    ],
)
def test_a_device_on_its_battery_is_not_charging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, supplies: list[dict[str, str]], eligible: bool
) -> None:
    tmp_path.joinpath("power").mkdir()
    monkeypatch.setattr(eligibility, "POWER", tmp_path / "power")
    for i, files in enumerate(supplies):
        supply(tmp_path / "power", f"s{i}", **files)
    why = Eligibility(charging=True).why_not()
    assert why == ("" if eligible else "it runs on its battery (charging)")
    assert not Eligibility().why_not()


def test_power_supplies_that_cannot_be_read_are_not_eligible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eligibility, "POWER", tmp_path / "gone")
    assert Eligibility(charging=True).why_not().startswith("its power supplies cannot be read: ")


def test_a_busy_device_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (3.0, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert not Eligibility(idle=0.75).why_not()
    assert Eligibility(idle=0.5).why_not() == "its load is 0.75 for each core, above 0.5 (idle)"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("echo no; echo 'no (guessed)'; echo unknown", ""),
        ("echo no; echo 'yes (guessed)'", "its network is metered (unmetered)"),
        ("exit 8", "nmcli does not say whether the network is metered"),
    ],
)
def test_a_metered_network_counts_as_such_and_so_does_one_of_which_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, why: str
) -> None:
    program = tmp_path / "nmcli"
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert Eligibility(unmetered=True).why_not().startswith(why)
    assert bool(Eligibility(unmetered=True).why_not()) == bool(why)


def test_the_owners_command_decides_and_says_why() -> None:
    def rule(code: str) -> str:
        return Eligibility(command=(sys.executable, "-c", code)).why_not()

    assert not rule("print('fine')")
    assert rule("print('at the hairdresser'); exit(1)") == "at the hairdresser (command)"
    assert rule("exit(3)") == "its command ended with 3 (command)"
    assert "its command failed" in Eligibility(command=("/",)).why_not()


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("charging = 1", "charging is 1"),
        ("idle = 0", "idle is 0"),
        ('comand = ["x"]', "a policy has no key 'comand'. Did you mean 'command'?"),
        ('command = ["no-such-program"]', "command: there is no program 'no-such-program'"),
        ("charging = true", "charging cannot be read here"),
    ],
)
def test_a_rule_that_cannot_be_followed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, text: str
) -> None:
    monkeypatch.setattr(eligibility, "POWER", tmp_path / "nothing")
    (tmp_path / "policy.toml").write_text(f"[eligible]\n{table}\n")
    with pytest.raises(TacitError, match="eligible") as error:
        read_eligibility(tmp_path)
    assert text in str(error.value)


def test_without_a_rule_a_party_always_takes_part(tmp_path: Path) -> None:
    assert read_eligibility(None) == read_eligibility(tmp_path) == Eligibility()
    asyncio.run(Eligibility().wait("a"))


def test_a_device_is_asked_in_a_round_only_while_it_is_eligible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second look finds it not eligible: before it joins, and after each of its answers."""
    monkeypatch.chdir(tmp_path)
    provision(*SIZES)
    clinics.write_files(tmp_path, SIZES)
    (tmp_path / "job.toml").write_text(JOB.replace("rounds = 5\nper_round = 2", "rounds = 2"))
    script = tmp_path / "rule.sh"
    script.write_text(
        f'echo x >> {tmp_path}/looks; [ $(($(wc -l < {tmp_path}/looks) % 2)) = 0 ] || {{ echo "resting"; exit 1; }}\n'
    )
    rule = f'[eligible]\ncommand = ["/bin/sh", "{script}"]\nlook_again = 0.01\n'
    (tmp_path / "kits" / "a" / "policy.toml").write_text(rule)
    roles = [Role(tmp_path, "hub", "hub", "--kit", "kits/hub")]
    roles += [Role(tmp_path, k, "party", "--kit", f"kits/{k}", "--data", f"{k}.csv") for k in SIZES]
    roles += [
        Role(tmp_path, "server", "party", "--kit", "kits/server", "job.toml", "--out", "run", "--quiet")
    ]
    try:
        for role in roles[1:]:
            assert role.wait() == 0, role.log.read_text()
    finally:
        for role in roles:
            if role.process.poll() is None:
                role.process.kill()
            role.wait()
    events = [json.loads(line) for line in Path("run/events.jsonl").read_text().splitlines()]
    assert [e["round"] for e in events if e["kind"] == "round"] == list(range(3))
    # two looks each, a refusal and a permission: to join, and after 2 updates and 3 tests but the last
    looks = len((tmp_path / "looks").read_text().splitlines())
    assert looks >= 2 * (1 + 4)
