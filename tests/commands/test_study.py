"""`tacit study` on the command line: list, new, run, resume, diff, and error messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import answer, run

NAMES = ["cifar10-noniid", "convergence", "convergence-digits", "heart-disease", "mcmahan", "niid-bench"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_studies_of_the_field_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert [s["name"] for s in answer(capsys, "study", "list")["studies"]] == NAMES
    code, out, _ = run(capsys, "study", "list")
    assert code == 0
    assert all(name in out for name in NAMES)


def test_a_new_study_is_a_file_that_runs_resumes_and_compares(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    assert answer(capsys, "study", "new", "mine.toml") == {"file": "mine.toml"}
    part = answer(capsys, "study", "mine.toml", "--only", "FedProx")
    assert (part["done"], part["runs"]) == (8, 16)
    code, out, err = run(capsys, "study", "mine.toml")
    assert code == 0, err
    assert "mine: 16 runs, 8 of them done" in err
    assert "FedProx 0.01" in out
    assert "(.900)" in out  # the published figure, beside ours
    for name in ("results.csv", "curves.csv", "results.parquet", "summary.json", "report.html"):
        assert (here / "runs" / "study-mine" / name).stat().st_size > 0, name
    less = answer(
        capsys, "study", "mine.toml", "--out", "less", "--rounds", "1", "--rows", "200", "--seeds", "1"
    )
    assert less["done"] == 8
    both = answer(capsys, "study", "diff", "runs/study-mine", "less")
    assert len(both["cells"]) == 8
    code, out, _ = run(capsys, "study", "diff", "runs/study-mine", "less")
    assert code == 0
    assert "difference" in out
    answer(capsys, "study", "mine.toml", "--out", "part", "--quick", "--only", "FedAvg")
    code, out, _ = run(capsys, "study", "diff", "less", "part")
    assert "The first was run with 1 round, 200 rows, 1 seed." in out
    assert (
        "The second is a quick look, whose figures come from a few rows and rounds; the other is not." in out
    )
    assert "only in less: accuracy | FedProx 0.01 | IID; " in out
    assert out.rstrip().endswith("accuracy | central | IID and 1 more")
    page = (here / "less" / "report.html").read_text()
    assert "Run with 1 round, 200 rows, 1 seed, which differs from the study file." in page
    assert (
        "Run with 1 round, 200 rows, 1 seed: "
        in run(
            capsys, "study", "mine.toml", "--out", "less", "--rounds", "1", "--rows", "200", "--seeds", "1"
        )[1]
    )
    assert "Run with" not in (here / "runs" / "study-mine" / "report.html").read_text()
    assert "My study" in page
    assert "published 90.0%" in page


def test_a_new_study_may_begin_as_a_copy_of_one_that_is_there(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    answer(capsys, "study", "new", "hearts.toml", "heart-disease")
    from tacit.jobs.study import file

    assert file.load("hearts.toml").digest == file.load("heart-disease").digest
    code, _, err = run(capsys, "study", "new", "other.toml", "heart-diseases")
    assert code == 2
    assert "there is no study 'heart-diseases'. Did you mean 'heart-disease'?" in err
    assert not (here / "other.toml").exists()


def test_a_study_that_stops_or_cannot_be_written_says_how_to_resume(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tacit.jobs.study import run as studying

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    run(capsys, "study", "new", "mine.toml")
    with monkeypatch.context() as m:
        m.setattr(studying._Stack, "compute", stop)
        code, _, err = run(capsys, "study", "mine.toml", "--seeds", "1", "--only", "FedAvg | IID")
    again = "tacit study mine.toml --seeds 1 --out runs/study-mine --only 'FedAvg | IID'"
    assert code == 130
    assert err.endswith(f"tacit: stopped. Resume with: {again}\n")  # with --only, which was forgotten
    assert not (here / "runs" / "study-mine" / "report.html").exists()  # nothing is done yet
    (here / "runs" / "study-mine" / "results.csv").mkdir()
    code, out, err = run(capsys, "study", "mine.toml", "--seeds", "1", "--only", "FedAvg", "--json")
    assert code == 2
    assert json.loads(out)["error"]["resume"] == again.replace("'FedAvg | IID'", "FedAvg")
    assert "runs/study-mine cannot be written: " in err
    (here / "runs" / "study-mine" / "results.csv").rmdir()
    code, out, err = run(capsys, "study", "mine.toml", "--seeds", "1", "--only", "FedAvg")
    assert code == 0
    assert "2 of 8 runs are done. Resume with: tacit study mine.toml --seeds 1 --out runs/study-mine\n" in out
    with monkeypatch.context() as m:
        m.setattr(studying._Stack, "compute", stop)
        (here / "runs" / "study-mine" / "report.html").unlink()
        code, _, err = run(capsys, "study", "mine.toml", "--seeds", "1")
    assert code == 130
    assert err.endswith(
        "stopped. What is done is in runs/study-mine/report.html. Resume with: tacit study mine.toml --seeds "
        "1 --out runs/study-mine\n"
    )
    assert "2 of 8 runs" in (here / "runs" / "study-mine" / "report.html").read_text()
    code, out, _ = run(capsys, "study", "mine.toml", "--only", "nobody", "--json")
    assert code == 2
    assert "resume" not in json.loads(out)["error"]  # nothing was begun


def test_a_quick_study_says_that_its_figures_mean_nothing(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    code, out, _ = run(capsys, "study", "convergence-digits", "--quick", "--device", "cpu")
    assert code == 0
    assert "--quick: these figures come from a few rows and rounds" in out
    assert "20 parties" in out
    assert "Quick run with" in (here / "runs" / "study-convergence-digits-quick" / "report.html").read_text()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (
            ("nothing",),
            "there is no study 'nothing'. Known: cifar10-noniid, convergence, convergence-digits, "
            "heart-disease, mcmahan, niid-bench. A study of your "
            "own is a file",
        ),
        (("heart-diseases",), "there is no study 'heart-diseases'. Did you mean 'heart-disease'?"),
        (
            ("absent.toml",),
            "there is no study file absent.toml. Check the path, or start one with `tacit study new "
            "absent.toml`",
        ),
        (("broken.toml",), "broken.toml is not TOML: "),
        (("heart-disease", "--only", "["), "only is '['; it must be a regular expression"),
        (("unfit.toml",), "model 'cnn' needs images of shape (channels, height, width)"),
        (("new",), "study new: expected 1 arguments, got 0: `tacit study new FILE.toml`"),
        (("new", "broken.toml"), "broken.toml is there already, and is not written over. Give another name"),
        (
            ("new", "mine"),
            "mine is to be a study file, whose name ends in .toml. Write `tacit study new mine.toml`",
        ),
        (("diff", "a"), "study diff: expected 2 arguments, got 1: `tacit study diff A B`"),
        (
            ("diff", "a", "b"),
            "a holds no study: there is no summary.json in it. Give a directory that `tacit study` wrote",
        ),
        (
            ("heart-disease", "extra"),
            "'extra' after 'heart-disease' means nothing. Settings are options: --out DIR, --only REGEX",
        ),
        (("mcmahan", "--quick", "--data-dir", "empty"), "mnist: missing train-images-idx3-ubyte.gz"),
        (("heart-disease", "--seeds", "0"), "seeds is 0; it must be a whole number of at least 1"),
        (
            ("heart-disease", "--rows", "10"),
            "rows and test_rows sample a data set of arrays; heart_disease is a table",
        ),
    ],
)
def test_errors_are_one_sentence(
    argv: tuple[str, ...],
    words: str,
    capsys: pytest.CaptureFixture[str],
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import tacit.data.sources as sources

    def refused(*_: Any) -> None:
        raise ConnectionError("no network in a test")

    monkeypatch.setattr(sources, "download_file", refused)
    (here / "broken.toml").write_text("title = \n")
    (here / "unfit.toml").write_text(
        '[data]\nname = "iris"\nparties = 2\n[model]\nname = "cnn"\n[[tables]]\n[[tables.rows]]\nlabel = '
        '"FedAvg"\n'
    )
    code, out, err = run(capsys, "study", *argv)
    assert code == 2
    assert words in err
    assert out == ""
    assert not (here / "runs").exists()  # what is refused leaves nothing behind
