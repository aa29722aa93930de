"""The run directory: one writer, many readers, and nothing lost or half written by a crash."""

from __future__ import annotations

import json
import math
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import BadRun
from tacit.runs import Journal, encode_nonfinite, next_directory, rounds_of, write_atomic


class Crash(BaseException):
    """Simulates a power failure: it is not caught."""


@pytest.mark.parametrize("at", ["fsync", "replace"])
def test_a_crash_before_the_rename_leaves_the_old_file_whole(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f.json"
    write_atomic(path, "old")

    def crash(*_: Any) -> None:
        raise Crash

    monkeypatch.setattr(os, at, crash)
    with pytest.raises(Crash):
        write_atomic(path, "new and longer")
    monkeypatch.undo()
    assert path.read_text() == "old"
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["f.json"]


def test_events_are_on_disk_line_by_line_as_they_happen(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    journal = Journal.create(tmp_path / "r", {"train": {"rounds": 2}}, seen.append)
    journal.event("start", label="x")
    assert (tmp_path / "r" / "events.jsonl").read_text() == '{"kind": "start", "label": "x"}\n'
    journal.event("round", round=1, loss=float("nan"), parties={"accuracy": [float("inf"), None, -math.inf]})
    journal.close({"seen": []})
    lines = (tmp_path / "r" / "events.jsonl").read_text().splitlines()
    assert json.loads(lines[1], parse_constant=pytest.fail) == {
        "kind": "round",
        "round": 1,
        "loss": "nan",
        "parties": {"accuracy": ["inf", None, "-inf"]},
    }
    assert [e["kind"] for e in seen] == ["start", "round"]
    assert tomllib.loads((tmp_path / "r" / "job.toml").read_text()) == {"train": {"rounds": 2}}
    assert json.loads((tmp_path / "r" / "ledger.json").read_text()) == {"seen": []}
    assert [r["round"] for r in rounds_of(seen)] == [1]


NUMBERS = st.one_of(st.floats(), st.integers(-9, 9), st.none(), st.booleans())


@settings(max_examples=40, deadline=None)
@given(
    value=st.recursive(
        NUMBERS,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_every_number_can_be_written_as_json(value: Any) -> None:
    json.loads(json.dumps(encode_nonfinite(value), allow_nan=False))


def test_a_resumed_journal_is_wound_back_to_its_last_saved_state(tmp_path: Path) -> None:
    path = tmp_path / "r"
    journal = Journal.create(path, {})
    journal.event("start", parties=["nan"])
    journal.event("round", round=1, loss=float("nan"))
    journal.save(1, lambda: {"w": torch.ones(2)}, lambda: {"more": 5}, force=True)
    journal.event("round", round=2, loss=0.5)
    journal.close()
    with open(path / "events.jsonl", "ab") as file:
        file.write(b'{"kind": "rou')
    again, state, beside = Journal.resume(path)
    assert state is not None
    assert torch.equal(state["w"], torch.ones(2))
    assert (beside["round"], beside["more"]) == (1, 5)
    assert again.events[0] == {"kind": "start", "parties": ["nan"]}  # a name, not a number
    assert math.isnan(again.events[1]["loss"])
    assert len(again.events) == 2
    again.event("round", round=2, loss=0.25)
    again.close()
    assert [json.loads(line)["kind"] for line in (path / "events.jsonl").read_text().splitlines()] == [
        "start",
        "round",
        "round",
    ]


def test_only_the_newest_state_is_kept_and_no_more_than_one_a_second_is_written(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path / "r", {})
    for r in range(1, 6):
        journal.save(r, lambda r=r: {"w": torch.full((1,), float(r))})  # type: ignore[misc]
    assert [p.name for p in (tmp_path / "r" / "state").glob("*.safetensors")] == ["round-000001.safetensors"]
    journal.save(6, lambda: {"w": torch.zeros(1)}, force=True)
    assert [p.name for p in (tmp_path / "r" / "state").glob("*.safetensors")] == ["round-000006.safetensors"]
    journal.close()


def test_a_run_killed_before_its_first_state_starts_from_the_beginning(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path / "r", {})
    journal.event("start")
    journal.close()
    again, state, beside = Journal.resume(tmp_path / "r")
    assert (again.events, state, beside) == ([], None, None)
    again.close()
    assert (tmp_path / "r" / "events.jsonl").read_text() == ""


def test_places_that_cannot_hold_a_run_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadRun, match=r"file is a file; a run needs a directory\. Choose another one\."):
        Journal.create(tmp_path / "file", {})
    with pytest.raises(BadRun, match=r"cannot be written to: Not a directory\. Choose another directory\."):
        Journal.create(tmp_path / "file" / "below", {})
    with pytest.raises(BadRun, match=r"contains no run: it has no job\.toml\."):
        Journal.resume(tmp_path / "nothing")


def test_without_a_directory_events_stay_in_memory() -> None:
    journal = Journal.create(None, {})
    journal.event("note", text="x")
    journal.save(1, lambda: pytest.fail("nothing to save"), force=True)
    journal.close({})
    assert journal.events == [{"kind": "note", "text": "x"}]


def test_the_next_directory_is_the_first_that_does_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert next_directory("jobs/study.v2.toml") == Path("runs/study.v2")
    (tmp_path / "runs" / "job").mkdir(parents=True)
    (tmp_path / "runs" / "job-2").write_text("a file is in the way, too")
    assert next_directory(tmp_path / "job.toml") == Path("runs/job-3")
