"""`tacit runs`, `tacit completion` and `tacit export --to`."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.report import made

from .shell import answer, refused, run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made.run(tmp_path / "runs" / "a", parties=2, rounds=3)
    made.run(tmp_path / "runs" / "b", parties=2, rounds=3, label="SCAFFOLD")
    return tmp_path


def test_runs_are_listed_searched_tagged_and_shown(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert {r["id"] for r in answer(capsys, "runs")["runs"]} == {"a", "b"}
    assert answer(capsys, "runs", "tag", "b", "--add", "best", "--add", "v1", "--remove", "v1")["tags"] == [
        "best"
    ]
    (found,) = answer(capsys, "runs", "list", "tag:best")["runs"]
    assert (found["id"], found["label"], found["state"], found["done"]) == ("b", "SCAFFOLD", "finished", 3)
    shown = answer(capsys, "runs", "show", "runs/b")
    assert shown["metrics"]["accuracy"] == found["value"]
    assert "no run 'c'" in refused(capsys, "runs", "show", "c")


def test_a_directory_is_listed_and_words_that_match_nothing_say_where(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before, the directory was a word to search for: "no runs match"."""
    made.run(here / "other" / "c", parties=2, rounds=3)
    assert {r["id"] for r in answer(capsys, "runs", "list", "other")["runs"]} == {"c"}
    assert answer(capsys, "runs", "list", "other")["directory"] == "other"
    assert {r["id"] for r in answer(capsys, "runs", str(here / "runs"), "SCAFFOLD")["runs"]} == {"b"}
    assert answer(capsys, "runs", "list", "other", "--in", "runs")["runs"] == []
    code, out, _ = run(capsys, "runs", "list", "absent")
    assert code == 0
    assert "no runs in runs match absent. A directory of runs is given with --in DIR." in out
    (here / "empty").mkdir()
    assert run(capsys, "runs", "list", "empty")[1] == "no runs in empty\n"


def test_runs_are_deleted_only_with_yes_and_all_or_none(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made.run(here / "runs" / "live", parties=2, done=1)
    assert answer(capsys, "runs", "rm", "a")["deleted"] is False
    assert "may be running" in refused(capsys, "runs", "rm", "a", "live", "--yes")
    assert "no run 'c'" in refused(capsys, "runs", "rm", "a", "c", "--yes")
    answer(capsys, "runs", "rm", "a", "live", "--yes", "--force")
    assert [p.name for p in (here / "runs").iterdir()] == ["b"]


def complete(script: str, *words: str) -> list[str]:
    """What bash offers for the last of these words."""
    line = 'COMP_WORDS=(tacit "$@"); COMP_CWORD=$#; _tacit; printf "%s\\n" "${COMPREPLY[@]}"'
    found = subprocess.run(
        ["bash", "-c", f"{script}\n{line}", "bash", *words],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    return found.stdout.split()


def test_bash_completes_verbs_options_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    script = answer(capsys, "completion", "bash")["script"]
    assert {"run", "runs"} <= set(complete(script, "run"))
    assert {"list", "show", "tag", "rm"} <= set(complete(script, "runs", ""))
    assert {"requests", "approve", "deny", "log"} <= set(complete(script, "party", ""))
    assert complete(script, "party", "log", "--ver") == ["--verify"]
    assert "--rounds" in complete(script, "--json", "run", "--")
    assert {"mlflow", "wandb"} <= set(complete(script, "export", "x", "--to", ""))


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_get_every_verb_and_option(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Their scripts are not run here: neither shell is part of the tests' machine."""
    from tacit.cli import _parser
    from tacit.cli.completion import read_nodes

    script = answer(capsys, "completion", shell)["script"]
    for node in read_nodes(_parser()):
        for name in (*node.verbs, *node.options):
            assert name.lstrip("-") in script
    code, out, _ = run(capsys, "completion", shell)
    assert code == 0
    assert out == script


def test_records_are_sent_to_tensorboard_as_during_the_run(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = answer(capsys, "export", "runs/a", "--to", "tensorboard", "--out", "tb")
    assert found["rounds"] == 4
    events = EventAccumulator("tb").Reload()
    metrics = answer(capsys, "runs", "show", "a")["metrics"]
    scalars = events.Scalars("accuracy")
    assert [s.step for s in scalars] == [0, 1, 2, 3]
    assert scalars[-1].value == pytest.approx(metrics["accuracy"], abs=1e-6)


def test_records_are_sent_to_mlflow(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"file:{here}/mlruns")
    try:
        _check_mlflow(mlflow, capsys)
    finally:
        mlflow.set_tracking_uri(before)


def _check_mlflow(mlflow: Any, capsys: pytest.CaptureFixture[str]) -> None:
    answer(capsys, "export", "runs/a", "--to", "mlflow")
    (found,) = mlflow.search_runs(output_format="list", search_all_experiments=True)
    assert found.info.run_name == "a"
    assert found.data.params["train.rounds"] == "3"
    assert "accuracy" in found.data.metrics


def test_an_export_says_what_is_missing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--out model.onnx" in refused(capsys, "export", "runs/a")
    assert "not a run directory" in refused(capsys, "export", "runs", "--to", "tensorboard")
