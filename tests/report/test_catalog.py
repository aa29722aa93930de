"""The list of runs that `tacit runs` and `tacit ui` show."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tacit.errors import BadParameter, BadRun
from tacit.report import catalog
from tacit.report.catalog import Catalog, change_tags, remove

from . import made


def test_states_follow_from_what_is_written(tmp_path: Path) -> None:
    made.run(tmp_path / "done", parties=2)
    made.run(tmp_path / "deep" / "er" / "going", parties=2, done=3)
    made.run(tmp_path / "boom", parties=2, explode=5)
    silent = made.run(tmp_path / "silent", parties=2, done=3)
    long_ago = time.time() - 10 * catalog.SILENT
    os.utime(silent / "events.jsonl", (long_ago, long_ago))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "events.jsonl").write_bytes(b'\xff{"kind": 3}\n[]\n')
    made.comparison(tmp_path / "many", labels=("FedAvg", "central"), skews=("IID()",), seeds=1)
    found = {e.id: e for e in Catalog(tmp_path).entries()}
    assert {k: e.state for k, e in found.items()} == {
        "done": "finished",
        "deep/er/going": "running",
        "boom": "diverged",
        "silent": "stopped",
        "broken": "running",  # nothing in it can be read yet
        "many": "finished",
    }
    assert (found["deep/er/going"].done, found["deep/er/going"].planned) == (3, 20)
    assert found["many"].kind == "comparison"
    assert found["many"].done == 40
    assert 2 <= len(found["done"].curve) <= 2 * catalog.POINTS


def test_the_value_is_that_of_the_last_round_also_of_a_long_run(tmp_path: Path) -> None:
    """Only some lines of a long file are parsed: the first, the last, and some between."""
    run = made.run(tmp_path / "long", parties=2, rounds=500)
    entry = Catalog(tmp_path).get("long")
    last = json.loads((run / "events.jsonl").read_text().splitlines()[-1])
    assert entry.value == last["metrics"]["accuracy"]
    assert entry.done == 500
    assert entry.curve[0][0] == 0
    assert entry.curve[-1][0] == 500
    assert len(entry.curve) <= catalog.POINTS + 8


def test_what_has_not_changed_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for k in range(3):
        made.run(tmp_path / f"r{k}", parties=2)
    runs = Catalog(tmp_path)
    before = runs.entries()
    monkeypatch.setattr(catalog, "_lines", lambda file: pytest.fail(f"{file} was read again"))
    assert runs.entries() == before


@pytest.mark.parametrize("id", ["../x", "a/../../x", "", "/etc", "a\0b", "none"])
def test_an_id_never_leads_out_of_the_directory(tmp_path: Path, id: str) -> None:
    made.run(tmp_path / "x", parties=2)
    made.run(tmp_path / "root" / "a", parties=2)
    with pytest.raises(BadRun):
        Catalog(tmp_path / "root").get(id)


def test_tags_are_kept_and_searched(tmp_path: Path) -> None:
    run = made.run(tmp_path / "a", parties=2)
    made.run(tmp_path / "b", parties=2)
    assert change_tags(run, add=["baseline", "v 2"]) == ("baseline", "v 2")
    assert change_tags(run, add=["new"], remove=["v 2"]) == ("baseline", "new")
    found = Catalog(tmp_path).entries()
    assert [e.id for e in found if e.matches(["tag:baseline", "fedavg"])] == ["a"]
    assert [e.id for e in found if e.matches(["state:finished"])] == ["b", "a"]
    with pytest.raises(BadParameter, match="printable"):
        change_tags(run, add=["a\nb"])


def test_a_running_run_is_not_removed_without_force(tmp_path: Path) -> None:
    made.run(tmp_path / "r", parties=2, done=2)
    entry = Catalog(tmp_path).get("r")
    with pytest.raises(BadRun, match="may be running"):
        remove(entry)
    remove(entry, even_running=True)
    assert not (tmp_path / "r").exists()
