from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import BadRun
from tacit.report import read, read_run, tabulate

from . import made


def test_a_finished_run_is_read_whole(tmp_path: Path) -> None:
    record = read_run(made.run(tmp_path / "r", rounds=5))
    assert (record.label, record.seed, record.done, record.planned, record.is_finished) == (
        "FedAvg",
        0,
        5,
        5,
        True,
    )
    assert record.job["train"]["rounds"] == 5
    assert record.warnings == ()
    assert record.metrics["accuracy"] == record.rounds[-1]["accuracy"]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 400))
def test_cut_anywhere_in_its_last_lines_a_run_keeps_every_whole_line(cut: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        directory = made.run(Path(place) / "r", rounds=6, parties=3, names=["ä", "ö", "ü"])
        file = directory / "events.jsonl"
        kept = file.read_bytes()[:-cut]
        file.write_bytes(kept)
        record = read_run(directory)
        whole = kept.count(b"\n")
        assert len(record.events) in (whole, whole + 1)  # one more where only the newline is missing
        assert bool(record.warnings) == (not kept.endswith(b"\n") and len(record.events) == whole)


def test_a_torn_line_is_reported_and_the_best_so_far_is_still_known(tmp_path: Path) -> None:
    directory = made.run(tmp_path / "r", done=4)
    with (directory / "events.jsonl").open("a") as file:
        file.write('{"kind":"round","round":5,"lo')
    record = read_run(directory)
    (torn,) = record.warnings
    assert (
        torn
        == "The last line of events.jsonl (line 7) is incomplete, as after a run that was killed while writing; it "
        "was left out."
    )
    assert not record.is_finished
    assert record.done == 4
    assert record.metrics["best_accuracy"] == max(e["accuracy"] for e in record.rounds)


def test_a_round_done_again_after_a_resume_counts_once_and_the_later_line_wins(tmp_path: Path) -> None:
    directory = made.run(tmp_path / "r", done=3)
    with (directory / "events.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "round", "round": 3, "accuracy": 0.77, "loss": 0.1}) + "\n")
    record = read_run(directory)
    assert [e["round"] for e in record.rounds] == [0, 1, 2, 3]
    assert record.metrics["accuracy"] == 0.77


def test_divergence_is_the_first_round_whose_loss_is_not_finite(tmp_path: Path) -> None:
    assert read_run(made.run(tmp_path / "a", explode=6)).diverged == 7
    assert read_run(made.run(tmp_path / "b")).diverged is None


def test_a_seed_that_diverged_is_not_left_out_of_the_mean(tmp_path: Path) -> None:
    runs = [read_run(made.run(tmp_path / str(k), seed=k, explode=3 if k else None)) for k in range(2)]
    assert math.isnan(tabulate(runs, "loss")["table"]["mean"][0][0])


def test_a_comparison_without_its_table_is_built_from_the_runs_so_far(compared: Path, tmp_path: Path) -> None:
    import shutil

    place = shutil.copytree(compared, tmp_path / "c")
    (place / "compare.json").unlink()
    (place / "runs" / "99-not-begun").mkdir()
    runs, comparison = read(place)
    assert comparison is not None
    assert comparison["table"] == read(compared)[1]["table"]  # type: ignore[index]
    assert comparison["notes"] == [
        "99-not-begun has not started and was left out.",
        "The comparison is not finished: this table contains the runs so far.",
    ]
    assert len(runs) == 20


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("events.jsonl", None, "is not a run directory: it has no events.jsonl. Give a directory written by"),
        ("events.jsonl", "", "has no start event: the run was stopped before it began"),
        (
            "events.jsonl",
            '{"kind":"start"}\nrubbish\n{"kind":"end"}\n',
            "line 2 is not JSON. Only the last line may be incomplete",
        ),
        (
            "events.jsonl",
            '{"kind":"start"}\n[1]\n',
            "line 2 is not an event: an event is a JSON object with a kind",
        ),
        ("events.jsonl", '{"kind":"start"}\n{"kind":"round"}\n', "line 2 is a round without its number"),
        ("job.toml", "a = = 1", "job.toml is not TOML"),
        ("ledger.json", "{", "ledger.json is not JSON"),
        ("ledger.json", "[]", "must contain a JSON object, not a list"),
        ("ledger.json", '{"seen": 5}', "ledger.json is not a ledger"),
        ("ledger.json", '{"seen": [{"count": NaN}]}', "ledger.json is not a ledger"),
        ("ledger.json", '{"spent": ["x"]}', "ledger.json is not a ledger"),
        ("ledger.json", '{"stamps": [1]}', "ledger.json is not a ledger"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, file: str, content: str | None, says: str) -> None:
    directory = made.run(tmp_path / "r", rounds=2)
    (directory / file).unlink()
    if content is not None:
        (directory / file).write_text(content)
    with pytest.raises(BadRun) as error:
        read(directory)
    assert says in str(error.value)


def test_a_broken_comparison_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadRun, match="there is no directory"):
        read(tmp_path / "nowhere")
    (tmp_path / "runs").mkdir()
    with pytest.raises(BadRun, match="nor a run that has started"):
        read(tmp_path)
    (tmp_path / "compare.json").write_text('{"table": {"columns": ["a"], "index": ["b"], "mean": [[]]}}')
    with pytest.raises(BadRun, match="has no table with one mean per row of index and column"):
        read(tmp_path)
