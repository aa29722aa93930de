"""Verbs and options, runs, comparisons and their reports, and what a user can put right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tacit
from tacit import cli, data

from .shell import ROOT, SMALL, answer, run


@pytest.mark.parametrize("verb", ["run", "compare"])
def test_resume_promises_no_more_than_it_keeps(verb, capsys):
    """`guard.Quantize` and `guard.Noise` draw from the operating system: a guarded run does not come to the
    same bits again.
    """
    with pytest.raises(SystemExit):
        cli.main([verb, "--help"])
    assert "as without the stop, except for the randomness of a guard" in " ".join(
        capsys.readouterr().out.split()
    )


def test_help_loads_nothing_heavy(tmp_path):
    look = (
        "import sys; from tacit import cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit as done: code = done.code\n"
        "print(code, sorted({'torch', 'numpy', 'pandas', 'sklearn', 'rich'} & set(sys.modules)), "
        "file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", look],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        text=True,
        capture_output=True,
        check=True,
    )
    assert done.stderr.strip() == "0 []"
    assert "compare" in done.stdout


def test_version(capsys):
    with pytest.raises(SystemExit) as done:
        cli.main(["--version"])
    assert (done.value.code, capsys.readouterr().out) == (0, f"tacit {tacit.__version__}\n")


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["rnu"],
        ["run", "job.toml", "--ronds", "3"],
        ["run", "--out", "a", "--resume", "b"],
        ["compare", "job.toml", "--seed", "3"],
        ["run", "job.toml", "--jso"],
        ["doctor", "--deb"],
        ["--ver"],
    ],
)
def test_a_command_that_cannot_be_parsed_ends_with_2_and_the_usage(argv, capsys):
    with pytest.raises(SystemExit) as done:
        cli.main(argv)
    assert done.value.code == 2
    assert "usage: tacit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (
            ["run", "job.toml", "--ronds", "3"],
            "tacit run: error: unrecognized arguments: --ronds 3. Did you mean --rounds?",
        ),
        (
            ["synth", "t.csv", "--modle=mst"],
            "tacit synth: error: unrecognized arguments: --modle=mst. Did you mean --model?",
        ),
        (["rnu"], "tacit: error: argument VERB: 'rnu' is not known. Did you mean 'run'?"),
        (["data", "shwo"], "tacit data: error: argument VERB: 'shwo' is not known. Did you mean 'show'?"),
        (["doctor", "--zzz"], "tacit doctor: error: unrecognized arguments: --zzz\n"),
        (["study"], "tacit study: error: the following arguments are required: name\n"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_one_of_its_verb(argv, sentence, capsys):
    with pytest.raises(SystemExit):
        cli.main(argv)
    err = capsys.readouterr().err
    assert err.endswith(sentence if sentence.endswith("\n") else sentence + "\n")
    assert err.startswith("usage: tacit " + (f"{argv[0]} " if argv != ["rnu"] else ""))


def test_a_bare_command_prints_the_help(capsys):
    with pytest.raises(SystemExit) as done:
        cli.main([])
    out, err = capsys.readouterr()
    assert (done.value.code, out) == (2, "")
    assert "Train one model from a job file." in err


def test_a_new_run_in_a_directory_to_resume_is_refused_in_the_words_of_the_command_line(folder, capsys):
    Path("runs/b").mkdir(parents=True)
    for verb, words in (
        ("run", "holds no run to resume: it contains no job.toml."),
        ("compare", "holds no comparison to resume: it contains no runs."),
    ):
        code, _, err = run(capsys, verb, "job.toml", "--resume", "runs/b")
        assert code == 2
        assert f"{Path('runs/b')} {words} Start it without --resume." in err


def test_an_option_of_train_outside_of_any_table_is_told_its_table(folder, capsys):
    """'seed' was answered with "Did you mean 'speed'?"."""
    Path("top.toml").write_text("rounds = 3\nseed = 1\nseeds = 2\n" + SMALL)
    code, _, err = run(capsys, "run", "top.toml")
    assert code == 2
    for name in ("rounds", "seed", "seeds"):
        assert f"top.toml: {name!r} is an option of [train]. Write it below that line." in err


def test_every_verb_that_writes_takes_o_and_out():
    from argparse import _SubParsersAction

    def parsers(parser):
        for action in parser._actions:
            if isinstance(action, _SubParsersAction):
                for each in action.choices.values():
                    yield each
                    yield from parsers(each)

    names = [set(a.option_strings) for p in parsers(cli._parser()) for a in p._actions]
    writing = [n for n in names if n & {"-o", "--out", "--output"}]
    assert len(writing) > 20
    assert all({"-o", "--out"} <= n for n in writing)


def test_the_unknown_keys_of_all_tables_are_listed_at_once(folder, capsys):
    Path("wrong.toml").write_text(
        SMALL.replace("parties", "partis") + "round = 2\n[algorithm]\nname = 'FedProx'\nmuh = 1\n[tarin]\n"
    )
    code, _, err = run(capsys, "run", "wrong.toml")
    assert code == 2
    for words in (
        "wrong.toml: 'tarin' is not known here. Did you mean 'train'?",
        "wrong.toml, data: 'partis' is not known here. Did you mean 'parties'?",
        "wrong.toml, train: 'round' is not known here. Did you mean 'rounds'?",
        "FedProx has no parameter 'muh'. Did you mean 'mu'?",
    ):
        assert words in err
    assert len(err.splitlines()) == 4


def test_a_run_leaves_its_directory_and_says_where(folder, capsys):
    code, out, err = run(capsys, "run", "job.toml")
    assert code == 0
    assert "accuracy" in out
    assert f"report  {Path('runs/job/report.html')}" in out
    assert [line.split()[1] for line in err.splitlines() if line.startswith("round")] == [
        "0/3",
        "1/3",
        "2/3",
        "3/3",
    ]
    assert {"job.toml", "events.jsonl", "ledger.json", "state", "report.html"} <= {
        p.name for p in Path("runs/job").iterdir()
    }


def test_the_same_job_again_goes_to_a_new_directory(folder, capsys):
    first, second = (answer(capsys, "run", "job.toml") for _ in range(2))
    assert (first["run"], second["run"]) == ("runs/job", "runs/job-2")
    assert first["metrics"] == second["metrics"]


def test_json_is_one_document_with_the_result_and_progress_goes_elsewhere(folder, capsys):
    code, out, err = run(capsys, "run", "job.toml", "--out", "x", "--json")
    value = json.loads(out)
    assert code == 0
    assert [row["round"] for row in value["history"]] == [1, 2, 3]
    assert value["metrics"]["accuracy"] == value["history"][-1]["accuracy"]
    assert value["job"]["data"]["name"] == "gaussian_blobs"
    assert value["ledger"]["seen"]
    assert "round 3/3" in err


@pytest.mark.parametrize(
    "argv",
    [
        ["--json", "algorithms", "FedAvg"],
        ["algorithms", "FedAvg", "--json"],
        ["--json", "algorithms", "--json", "FedAvg"],
        ["--json", "data", "list"],
    ],
)
def test_json_is_accepted_before_and_after_the_verb(capsys, argv):
    code, out, _ = run(capsys, *argv)
    assert code == 0
    assert json.loads(out)


def test_debug_is_accepted_before_the_verb(folder, capsys):
    assert "Traceback" in run(capsys, "--debug", "run", "jbo.toml")[2]
    assert "Traceback" not in run(capsys, "run", "jbo.toml")[2]


def test_a_quiet_comparison_says_its_result(folder, capsys):
    code, out, err = run(capsys, "compare", "job.toml", "--quiet", "--out", "silent")
    assert (code, err) == (0, "")
    summary = json.loads(Path("silent/compare.json").read_text())
    assert out.splitlines() == summary["verdict"]


def test_quiet_says_nothing(folder, capsys):
    assert run(capsys, "run", "job.toml", "--quiet") == (0, "", "")


def test_a_terminal_gets_one_moving_line(folder, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, _, err = run(capsys, "run", "job.toml", "--rounds", "4")
    assert code == 0
    assert "FedAvg" in err
    assert "eta" in err
    assert "round 1/4  accuracy" not in err.splitlines()  # no line of its own for each round


def test_the_command_line_changes_what_the_file_says(folder, capsys):
    value = answer(
        capsys,
        "run",
        "job.toml",
        "--rounds",
        "2",
        "--seed",
        "5",
        "--set",
        "algorithm.name=FedProx",
        "--set",
        "algorithm.mu=0.5",
        "--set",
        "train.batch_size=none",
    )
    assert value["job"]["train"]["rounds"] == 2
    assert value["job"]["train"]["seed"] == 5
    assert value["job"]["algorithm"]["mu"] == 0.5


@pytest.mark.parametrize(
    ("changes", "model", "algorithm"),
    [
        (["model=logistic"], {"name": "logistic"}, {}),
        (["model=mlp", "model.hidden=[5]"], {"name": "mlp", "hidden": [5]}, {}),
        (["algorithm=FedProx", "algorithm.mu=.5"], {}, {"name": "FedProx", "mu": 0.5}),
        (["algorithm.lr=0.3"], {}, {"name": "FedAvg", "lr": 0.3}),
        (["algorithm.lr=0.3", "algorithm.name=FedNova"], {}, {"name": "FedNova", "lr": 0.3}),
        (["algorithm.solver.momentum=0.9"], {}, {"name": "FedAvg"}),
        (["algorithm.solver=Adam", "algorithm.solver.beta1=0.5"], {}, {"name": "FedAvg"}),
    ],
)
def test_a_change_may_name_what_the_job_leaves_to_the_default(folder, capsys, changes, model, algorithm):
    (folder / "bare.toml").write_text(SMALL.replace('[model]\nname = "logistic"\n', ""), encoding="utf-8")
    job = answer(
        capsys,
        "run",
        "bare.toml",
        "--rounds",
        "1",
        *(word for change in changes for word in ("--set", change)),
    )["job"]
    assert job["model"] | model == job["model"]
    assert job["algorithm"] | algorithm == job["algorithm"]
    assert job["algorithm"]["solver"]["name"] == ("Adam" if "Adam" in changes[0] else "SGD")
    assert job["algorithm"]["solver"].get("momentum", 0) == (0.9 if "momentum" in changes[0] else 0)


def test_a_model_that_is_not_named_may_be_changed(folder, capsys):
    (folder / "bare.toml").write_text(SMALL.replace('[model]\nname = "logistic"\n', ""), encoding="utf-8")
    assert answer(capsys, "run", "bare.toml", "--rounds", "1", "--set", "model.hidden=[64]")["job"][
        "model"
    ] == {"name": "mlp", "hidden": [64]}


def test_the_command_line_gives_what_python_gives(folder, capsys):
    value = answer(capsys, "run", "job.toml")
    fed = data.gaussian_blobs(rows=200).split(4, skew=data.IID())
    assert value["metrics"] == tacit.train(fed, model="logistic", rounds=3).metrics


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["run", "jbo.toml"], "there is no job file jbo.toml. Did you mean 'job.toml'?"),
        (
            ["run", "job.toml", "--set", "train.round=3"],
            "job.toml, train: 'round' is not known here. Did you mean 'rounds'?",
        ),
        (
            ["run", "job.toml", "--rounds", "many"],
            "job.toml, train: rounds is 'many'; it must be a whole number.",
        ),
        (
            ["run", "job.toml", "--rounds", "0"],
            "job.toml, train: rounds is 0; it must be a whole number of at least 1.",
        ),
        (
            ["plan", "job.toml", "--set", "train.rounds=0"],
            "job.toml, train: rounds is 0; it must be a whole number of at least 1.",
        ),
        (
            ["compare", "job.toml", "--rounds", "0"],
            "job.toml, train: rounds is 0; it must be a whole number of at least 1.",
        ),
        (
            ["simulate-parties", "job.toml", "--set", "train.rounds=0"],
            "job.toml, train: rounds is 0; it must be a whole number of at least 1.",
        ),
        (["run", "job.toml", "--device", "gpu"], "job.toml, train: device is 'gpu'"),
        (["run", "job.toml", "--set", "algorithm.lr=-1"], "FedAvg: lr is -1; it must be a number above 0."),
        (
            ["run", "job.toml", "--set", "algorithm.lr=-.5"],
            "FedAvg: lr is -0.5; it must be a number above 0.",
        ),
        (
            ["run", "job.toml", "--set", "algorithm.solver.momentum=2"],
            "SGD: momentum is 2; it must be a number of at least 0 and below 1.",
        ),
        (
            ["run", "job.toml", "--set", "modle=mlp"],
            "expected TABLE.KEY=VALUE, got 'modle=mlp'",
        ),
        (
            ["run", "job.toml", "--set", "model=mpl"],
            "job.toml, model: 'mpl' is not known here. Did you mean 'mlp'?",
        ),
        (["run", "job.toml", "--set", "train=5"], "expected TABLE.KEY=VALUE, got 'train=5'"),
        (
            ["run", "job.toml", "--set", "train.engine=fast"],
            "job.toml, train: engine is 'fast'; it must be one of 'auto', 'stack', 'each', 'compile'.",
        ),
        (["run", "job.toml", "--set", "model.name=cnn"], "model 'cnn' needs images"),
        (["run", "bad.toml"], "bad.toml is not TOML"),
        (
            ["run", "several.toml"],
            "several.toml lists several algorithms or skews. Compare them with `tacit compare several.toml`.",
        ),
        (["run"], "there is no job. Give a job file"),
        (["run", "--resume", "nowhere"], "--resume nowhere: there is no such directory."),
        (
            ["run", "--resume", "job.toml"],
            "--resume job.toml: this is a file. --resume takes the directory of a run. Start a new run from a "
            "job file without it: `tacit run job.toml`.",
        ),
        (["compare", "job.toml", "--set", "train.runtime=inprocess"], "'runtime' is for `tacit run`"),
        (["report", "nowhere"], "there is no directory nowhere"),
        (["report", "."], "is not a run directory"),
        (["algorithms", "FedPros"], "'FedPros' is not known. Did you mean 'FedProx'?"),
        (["data", "show", "digitz"], "'digitz' is not a data set. Did you mean 'digits'?"),
        (
            ["data", "show", "iris", "--skew", "Dirichlett"],
            "'Dirichlett' is not known here. Did you mean 'Dirichlet'?",
        ),
        (["data", "show", "iris", "--skew", "Dirichlet", "--alfa", "1"], "'alfa' is not known here"),
        (
            ["data", "show", "iris", "--parties", "1000"],
            "parties is 1000; it must be a whole number from 1 to 120",
        ),
        (
            ["data", "show", "iris", "alpha"],
            "expected --NAME VALUE, a parameter of the data set or the skew, got 'alpha'",
        ),
        (
            ["data", "show", "iris", "--alpha", ".5"],
            "data show: --alpha belongs to Dirichlet and Quantity, and no skew was given. Add --skew "
            "Dirichlet",
        ),
        (
            ["data", "show", "iris", "--skew", "iid", "--sigma", "1"],
            "--sigma belongs to FeatureNoise, and the skew is IID. Add --skew FeatureNoise",
        ),
        (["data", "show", "iris", "--plot", "no/where.svg"], "no/where.svg cannot be written"),
    ],
)
def test_what_the_user_can_put_right_is_one_paragraph_and_exit_code_2(folder, capsys, argv, said):
    (folder / "bad.toml").write_text("[data\n", encoding="utf-8")
    (folder / "several.toml").write_text(
        SMALL + '[[algorithms]]\nname = "FedAvg"\n[[algorithms]]\nname = "FedNova"\n', encoding="utf-8"
    )
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("tacit: ")
    assert len(err.splitlines()) == 1
    assert not (folder / "runs").exists()
    code, out, _ = run(capsys, *argv, "--json")
    assert code == 2
    assert said in json.loads(out)["error"]["message"]


def test_debug_shows_where_it_happened(folder, capsys):
    _, _, err = run(capsys, "run", "jbo.toml", "--debug")
    assert "Traceback" in err
    assert "there is no job file" in err


def test_a_fault_of_our_own_ends_with_1_and_asks_for_a_report(folder, capsys, monkeypatch):
    monkeypatch.setattr("tacit.report.read", lambda path: 1 / 0)
    code, out, err = run(capsys, "report", ".")
    assert (code, out) == (1, "")
    assert "internal error (please report it): ZeroDivisionError" in err
    assert "--debug" in err
    assert "Traceback" not in err


def test_an_existing_run_is_never_written_over(folder, capsys):
    assert run(capsys, "run", "job.toml", "--out", "x")[0] == 0
    before = {p: p.read_bytes() for p in Path("x").rglob("*") if p.is_file()}
    code, _, err = run(capsys, "run", "job.toml", "--out", "x")
    assert code == 2
    assert (
        "x already contains a run, which is never overwritten. Resume it with --resume x, or give another "
        "--out." in err
    )
    assert {p: p.read_bytes() for p in Path("x").rglob("*") if p.is_file()} == before


def test_a_comparison_has_the_baselines_a_verdict_and_a_report(folder, capsys):
    (folder / "both.toml").write_text(
        SMALL + '[[data.skews]]\nname = "IID"\n[[data.skews]]\nname = "Quantity"\n'
        '[[algorithms]]\nname = "FedAvg"\n[[algorithms]]\nname = "FedNova"\n',
        encoding="utf-8",
    )
    code, out, err = run(capsys, "compare", "both.toml", "--seeds", "2")
    assert code == 0
    for word in (
        "FedAvg",
        "FedNova",
        "central",
        "local only",
        "IID()",
        "Quantity(alpha=0.5)",
        "report      runs/both/report.html",
    ):
        assert word in out
    assert "runs side by side" in err
    assert "FedNova" in Path("runs/both/report.html").read_text(encoding="utf-8")
    again = answer(
        capsys, "compare", "runs/both/job.toml", "--out", "again", "--quiet"
    )  # the job it keeps is the job it was
    assert again["table"] == json.loads(Path("runs/both/compare.json").read_text())["table"]
    code, _, err = run(capsys, "compare", "both.toml", "--out", "again")
    assert code == 2
    assert (
        "again already contains a comparison, which is never overwritten. Resume it with --resume again, or "
        "give another --out." in err
    )


def test_a_report_can_be_written_again_and_elsewhere(folder, capsys):
    assert run(capsys, "run", "job.toml", "--out", "x")[0] == 0
    Path("x/report.html").unlink()
    assert answer(capsys, "report", "x") == {"report": "x/report.html", "runs": 1, "finished": True}
    assert run(capsys, "report", "x", "-o", "y.html")[1] == "y.html\n"
    assert Path("y.html").read_text(encoding="utf-8").startswith("<!doctype html>")
