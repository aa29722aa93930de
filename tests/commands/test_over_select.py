"""`tacit party --over-select`: real processes, and what cannot be combined with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import clinics
from tests.cli.shell import Role, provision, said

SIZES = {"a": 60, "b": 60, "c": 60, "d": 60}
JOB = """[data]
label = "sick"
labels = ["no", "yes"]
numbers = ["age", "chol"]
mean = [50.0, 200.0]
std = [10.0, 30.0]
[model]
name = "logistic"
[algorithm]
name = "FedAvg"
lr = 0.5
[train]
rounds = 5
per_round = 2
"""
MASKED = 'weighted = false\n[train]\nrounds = 5\nper_round = 3\n[[guard]]\nname = "Clip"\nnorm = 1.0\n[[guard]]\nname = "Quantize"\n[[guard]]\nname = "SecAgg"\n'


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    provision(*SIZES)
    clinics.write_files(tmp_path, SIZES)
    (tmp_path / "job.toml").write_text(JOB)
    return tmp_path


def test_three_of_four_parties_are_asked_and_two_are_taken(place: Path) -> None:
    words = ("party", "--kit", "kits/server", "job.toml", "--out", "run", "--quiet")
    hub = Role(place, "hub", "hub", "--kit", "kits/hub")
    roles = [Role(place, "server", *words, "--over-select", "1.5", "--deadline", "120")]
    roles += [Role(place, k, "party", "--kit", f"kits/{k}", "--data", f"{k}.csv", "--quiet") for k in SIZES]
    try:
        for role in roles:
            assert role.wait() == 0, role.log.read_text()
    finally:
        for role in (hub, *roles):
            if role.process.poll() is None:
                role.process.kill()
            role.wait()
    events = [json.loads(line) for line in Path("run/events.jsonl").read_text().splitlines()]
    trained = [e for e in events if e["kind"] == "round" and e["round"]]
    assert len(trained) == 5
    assert all(e["sampled"] == 2 for e in trained)
    first = trained[0]["dropped"]
    assert list(first.values()) == ["2 others had answered"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (("per_round = 2", ""), "so that all 4 parties are asked"),
        (
            ("lr = 0.5\n[train]\nrounds = 5\nper_round = 2\n", MASKED),
            "a hidden sum is over the parties that began it",
        ),
        (("[train]", '[select]\nname = "PowerOfChoice"\n[train]'), "by a rule of its own"),
    ],
)
def test_what_over_selection_cannot_be_combined_with_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], text: str
) -> None:
    (place / "other.toml").write_text(JOB.replace(*change))
    over = ("--over-select", "1.3", "--deadline", "9")
    code, words = said(capsys, "party", "--kit", "kits/server", "other.toml", *over, "--out", "run")
    assert code == 2
    assert text in words
    assert not Path("run").exists()
