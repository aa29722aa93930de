"""The command line, run as its users run it: in this process where that is enough, as a real process where a kill or a start counts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tacit
from tacit import algorithms, cli, data, doctor
from tacit.errors import BadRun

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))
SMALL = '''
[data]
name = "gaussian_blobs"
rows = 200
parties = 4
[model]
name = "logistic"
[train]
rounds = 3
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty place to work in, with a small job in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(SMALL, encoding="utf-8")
    return tmp_path


def run(capsys, *argv: str) -> tuple[int, str, str]:
    code = cli.main(list(argv))
    out, err = capsys.readouterr()
    return code, out, err


def answer(capsys, *argv: str):
    code, out, _ = run(capsys, *argv, "--json")
    assert code == 0
    return json.loads(out)


def process(*argv: str, cwd: Path, **more) -> subprocess.Popen:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen([sys.executable, "-m", "tacit.cli", *argv], cwd=cwd, env=env, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, **more)


# --- starting ---

@pytest.mark.parametrize("verb", ["run", "compare"])
def test_resume_promises_no_more_than_it_keeps(verb, capsys):
    """`guard.Quantize` and `guard.Noise` draw from the operating system: a guarded run does not come to the same bits again."""
    with pytest.raises(SystemExit):
        cli.main([verb, "--help"])
    assert "as if it had not been, but for what a guard draws" in " ".join(capsys.readouterr().out.split())


def test_help_loads_nothing_heavy(tmp_path):
    look = ("import sys; from tacit import cli\n"
            "try: cli.main(['--help'])\n"
            "except SystemExit as done: code = done.code\n"
            "print(code, sorted({'torch', 'numpy', 'pandas', 'sklearn', 'rich'} & set(sys.modules)), file=sys.stderr)")
    done = subprocess.run([sys.executable, "-c", look], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, text=True,
                          capture_output=True, check=True)
    assert done.stderr.strip() == "0 []"
    assert "compare" in done.stdout


def test_version(capsys):
    with pytest.raises(SystemExit) as done:
        cli.main(["--version"])
    assert (done.value.code, capsys.readouterr().out) == (0, f"tacit {tacit.__version__}\n")


@pytest.mark.parametrize("argv", [[], ["rnu"], ["run", "job.toml", "--ronds", "3"], ["run", "--out", "a", "--resume", "b"],
                                  ["compare", "job.toml", "--seed", "3"], ["run", "job.toml", "--jso"], ["doctor", "--deb"], ["--ver"]])
def test_a_command_that_cannot_be_parsed_ends_with_2_and_the_usage(argv, capsys):
    with pytest.raises(SystemExit) as done:
        cli.main(argv)
    assert done.value.code == 2
    assert "usage: tacit" in capsys.readouterr().err


@pytest.mark.parametrize(("argv", "sentence"), [
    (["run", "job.toml", "--ronds", "3"], "tacit run: error: unrecognized arguments: --ronds 3. Did you mean --rounds?"),
    (["synth", "t.csv", "--modle=mst"], "tacit synth: error: unrecognized arguments: --modle=mst. Did you mean --model?"),
    (["doctor", "--zzz"], "tacit doctor: error: unrecognized arguments: --zzz\n"),
    (["study"], "tacit study: error: the following arguments are required: name\n")])
def test_an_option_that_is_not_known_is_told_by_its_verb_with_the_nearest(argv, sentence, capsys):
    with pytest.raises(SystemExit):
        cli.main(argv)
    err = capsys.readouterr().err
    assert err.endswith(sentence if sentence.endswith("\n") else sentence + "\n")
    assert err.startswith(f"usage: tacit {argv[0]} ")


# --- run ---

def test_a_run_leaves_its_directory_and_says_where(folder, capsys):
    code, out, err = run(capsys, "run", "job.toml")
    assert code == 0
    assert "accuracy" in out
    assert f"report  {Path('runs/job/report.html')}" in out
    assert [line.split()[1] for line in err.splitlines() if line.startswith("round")] == ["0/3", "1/3", "2/3", "3/3"]
    assert {"job.toml", "events.jsonl", "ledger.json", "state", "report.html"} <= {p.name for p in Path("runs/job").iterdir()}


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


@pytest.mark.parametrize("argv", [["--json", "algorithms", "FedAvg"], ["algorithms", "FedAvg", "--json"], ["--json", "algorithms", "--json", "FedAvg"],
                                  ["--json", "data", "list"]])
def test_json_may_stand_before_the_verb_and_after_it(capsys, argv):
    code, out, _ = run(capsys, *argv)
    assert code == 0
    assert json.loads(out)


def test_debug_may_stand_before_the_verb(folder, capsys):
    assert "Traceback" in run(capsys, "--debug", "run", "jbo.toml")[2]
    assert "Traceback" not in run(capsys, "run", "jbo.toml")[2]


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
    value = answer(capsys, "run", "job.toml", "--rounds", "2", "--seed", "5", "--set", "algorithm.name=FedProx", "--set", "algorithm.mu=0.5",
                   "--set", "train.batch_size=none")
    assert value["job"]["train"]["rounds"] == 2
    assert value["job"]["train"]["seed"] == 5
    assert value["job"]["algorithm"]["mu"] == 0.5


@pytest.mark.parametrize(("changes", "model", "algorithm"), [
    (["model=logistic"], {"name": "logistic"}, {}),
    (["model=mlp", "model.hidden=[5]"], {"name": "mlp", "hidden": [5]}, {}),
    (["algorithm=FedProx", "algorithm.mu=.5"], {}, {"name": "FedProx", "mu": 0.5}),
    (["algorithm.lr=0.3"], {}, {"name": "FedAvg", "lr": 0.3}),
    (["algorithm.lr=0.3", "algorithm.name=FedNova"], {}, {"name": "FedNova", "lr": 0.3}),
    (["algorithm.solver.momentum=0.9"], {}, {"name": "FedAvg"}),
    (["algorithm.solver=Adam", "algorithm.solver.beta1=0.5"], {}, {"name": "FedAvg"})])
def test_a_change_may_name_what_the_job_leaves_to_the_default(folder, capsys, changes, model, algorithm):
    (folder / "bare.toml").write_text(SMALL.replace('[model]\nname = "logistic"\n', ""), encoding="utf-8")
    job = answer(capsys, "run", "bare.toml", "--rounds", "1", *(word for change in changes for word in ("--set", change)))["job"]
    assert job["model"] | model == job["model"]
    assert job["algorithm"] | algorithm == job["algorithm"]
    assert job["algorithm"]["solver"]["name"] == ("Adam" if "Adam" in changes[0] else "SGD")
    assert job["algorithm"]["solver"].get("momentum", 0) == (0.9 if "momentum" in changes[0] else 0)


def test_a_model_that_is_not_named_may_be_changed(folder, capsys):
    (folder / "bare.toml").write_text(SMALL.replace('[model]\nname = "logistic"\n', ""), encoding="utf-8")
    assert answer(capsys, "run", "bare.toml", "--rounds", "1", "--set", "model.hidden=[64]")["job"]["model"] == {"name": "mlp", "hidden": [64]}


def test_the_command_line_gives_what_python_gives(folder, capsys):
    value = answer(capsys, "run", "job.toml")
    fed = data.gaussian_blobs(rows=200).split(4, skew=data.IID())
    assert value["metrics"] == pytest.approx(tacit.train(fed, model="logistic", rounds=3).metrics, abs=0)


# --- what may go wrong ---

@pytest.mark.parametrize(("argv", "said"), [
    (["run", "jbo.toml"], "there is no job file jbo.toml. Did you mean 'job.toml'?"),
    (["run", "job.toml", "--set", "train.round=3"], "job.toml, train: 'round' is not known here. Did you mean 'rounds'?"),
    (["run", "job.toml", "--rounds", "many"], "job.toml, train: rounds is 'many'; it must be a whole number."),
    (["run", "job.toml", "--rounds", "0"], "rounds is 0; it must be a whole number of at least 1."),
    (["run", "job.toml", "--device", "gpu"], "device is 'gpu'"),
    (["run", "job.toml", "--set", "algorithm.lr=-1"], "FedAvg: lr is -1; it must be a number above 0."),
    (["run", "job.toml", "--set", "algorithm.lr=-.5"], "FedAvg: lr is -0.5; it must be a number above 0."),
    (["run", "job.toml", "--set", "algorithm.solver.momentum=2"], "SGD: momentum is 2; it must be a number at least 0 and below 1."),
    (["run", "job.toml", "--set", "modle=mlp"], "'modle=mlp' changes nothing: write it as TABLE.KEY=VALUE"),
    (["run", "job.toml", "--set", "model=mpl"], "job.toml, model: 'mpl' is not known here. Did you mean 'mlp'?"),
    (["run", "job.toml", "--set", "train=5"], "'train=5' changes nothing"),
    (["run", "job.toml", "--set", "train.engine=fast"], "engine is 'fast'; it must be one of 'auto', 'stack', 'each'."),
    (["run", "job.toml", "--set", "model.name=cnn"], "model 'cnn' needs images"),
    (["run", "bad.toml"], "bad.toml is not TOML"),
    (["run", "several.toml"], "several.toml lists several algorithms or skews. Compare them with `tacit compare several.toml`."),
    (["run"], "there is no job. Give a job file"),
    (["run", "--resume", "nowhere"], "nowhere holds no run to resume"),
    (["compare", "job.toml", "--set", "train.runtime=inprocess"], "'runtime' is for `tacit run`"),
    (["report", "nowhere"], "there is no directory nowhere"),
    (["report", "."], "is no run directory"),
    (["algorithms", "FedPros"], "'FedPros' is not known. Did you mean 'FedProx'?"),
    (["data", "show", "digitz"], "'digitz' is not a data set. Did you mean 'digits'?"),
    (["data", "show", "iris", "--skew", "Dirichlett"], "'Dirichlett' is not known here. Did you mean 'Dirichlet'?"),
    (["data", "show", "iris", "--skew", "Dirichlet", "--alfa", "1"], "'alfa' is not known here"),
    (["data", "show", "iris", "--parties", "1000"], "parties is 1000; it must be a whole number from 1 to 120"),
    (["data", "show", "iris", "alpha"], "'alpha' is not understood"),
    (["data", "show", "iris", "--alpha", ".5"], "data show: --alpha belongs to Dirichlet and Quantity, and no skew was asked for. Add --skew Dirichlet"),
    (["data", "show", "iris", "--skew", "iid", "--sigma", "1"], "--sigma belongs to FeatureNoise, and the skew is IID. Add --skew FeatureNoise"),
    (["data", "show", "iris", "--plot", "no/where.svg"], "no/where.svg cannot be written"),
])
def test_what_the_user_can_put_right_is_one_paragraph_and_exit_code_2(folder, capsys, argv, said):
    (folder / "bad.toml").write_text("[data\n", encoding="utf-8")
    (folder / "several.toml").write_text(SMALL + '[[algorithms]]\nname = "FedAvg"\n[[algorithms]]\nname = "FedNova"\n', encoding="utf-8")
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
    assert "something went wrong inside tacit: ZeroDivisionError" in err
    assert "--debug" in err
    assert "Traceback" not in err


def test_an_existing_run_is_never_written_over(folder, capsys):
    assert run(capsys, "run", "job.toml", "--out", "x")[0] == 0
    before = {p: p.read_bytes() for p in Path("x").rglob("*") if p.is_file()}
    code, _, err = run(capsys, "run", "job.toml", "--out", "x")
    assert code == 2
    assert "x already holds a run, which is never written over. Go on with it by --resume x, or give another --out." in err
    assert {p: p.read_bytes() for p in Path("x").rglob("*") if p.is_file()} == before


# --- stopping and going on ---

def slow_job(folder: Path) -> Path:
    """Long enough to be stopped in the middle, and stateful: SCAFFOLD keeps something for the server and for every party."""
    file = folder / "slow.toml"
    file.write_text('[data]\nname = "heart_disease"\nby = "hospital"\n[algorithm]\nname = "Scaffold"\nlr = 0.02\n'
                    '[train]\nrounds = 120\nper_round = 3\nbatch_size = 16\nseed = 3\n', encoding="utf-8")
    return file


def begun(started: subprocess.Popen, out: Path, rounds: int = 10) -> None:
    """Wait until some rounds are written down, and some state with them."""
    for _ in range(1200):
        if (out / "state" / "state.json").exists() and (out / "events.jsonl").read_bytes().count(b'"round"') > rounds:
            return
        assert started.poll() is None, started.communicate()
        time.sleep(0.05)
    raise AssertionError("the run did not begin within a minute")


def kept(out: Path) -> tuple[dict, list]:
    """The final state, and the rounds without how long they took."""
    from safetensors.torch import load_file

    state = load_file(out / "state" / json.loads((out / "state" / "state.json").read_text())["file"])
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    return state, [{k: v for k, v in e.items() if k != "seconds"} for e in events if e["kind"] == "round"]


def same(a: Path, b: Path) -> None:
    (state, rounds), (other, others) = kept(a), kept(b)
    assert rounds == others
    assert state.keys() == other.keys()
    for name in state:
        assert state[name].equal(other[name]), name


def test_a_killed_run_resumes_to_the_very_model_of_one_that_was_never_stopped(folder, capsys):
    slow_job(folder)
    started = process("run", "slow.toml", "--out", "killed", cwd=folder)
    begun(started, folder / "killed")
    started.kill()
    assert started.wait() == -signal.SIGKILL
    started.communicate()
    assert b'"end"' not in (folder / "killed" / "events.jsonl").read_bytes()  # or nothing was interrupted
    code, _, err = run(capsys, "run", "--resume", "killed")
    assert code == 0
    assert "round 120/120" in err
    assert "round 1/120" not in err  # it went on, and did not begin again
    assert run(capsys, "run", "slow.toml", "--out", "whole", "--quiet")[0] == 0
    same(folder / "killed", folder / "whole")


def test_ctrl_c_ends_with_130_and_the_command_that_goes_on(folder, capsys):
    slow_job(folder)
    started = process("run", "slow.toml", "--out", "stop me", "--json", cwd=folder)
    begun(started, folder / "stop me")
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=60)
    assert started.returncode == 130
    assert err.splitlines()[-1] == "tacit: stopped. Go on with: tacit run --resume 'stop me'"
    assert json.loads(out)["error"]["resume"] == "tacit run --resume 'stop me'"
    assert "Traceback" not in err
    assert answer(capsys, "run", "--resume", "stop me")["history"][-1]["round"] == 120


WORKS = '''
import argparse, asyncio, sys, tempfile, time
from tacit import cli

async def wait(): await asyncio.sleep(60)

def works(args):
    with tempfile.TemporaryDirectory() as folder:
        print(folder, flush=True)
        asyncio.run(wait()) if sys.argv[1] == "asyncio" else time.sleep(60)

parser = argparse.ArgumentParser()
parser.set_defaults(do=works, debug=False, json=False)
cli._parser = lambda: parser
sys.exit(cli.main([]))
'''


@pytest.mark.parametrize(("how", "shell"), [("asyncio", signal.SIG_DFL), ("plain", signal.SIG_IGN)], ids=["in a loop", "in the background"])
def test_a_command_told_to_end_takes_its_rows_and_keys_off_the_disk(how, shell):
    """By SIGTERM, as schedulers and containers say it; also where the shell switched Ctrl-C off."""
    started = subprocess.Popen([sys.executable, "-c", WORKS, how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, shell))
    place = Path(started.stdout.readline().strip())
    assert place.is_dir()
    started.terminate()
    _, err = started.communicate(timeout=60)
    assert (started.returncode, err) == (130, "tacit: stopped.\n")
    assert not place.exists()


@pytest.mark.slow
def test_ctrl_c_in_a_comparison_says_what_is_left_and_what_can_be_done(folder, capsys):
    slow = slow_job(folder).read_text(encoding="utf-8").replace("[algorithm]", "[[algorithms]]").replace("seed = 3", "seeds = 2")
    (folder / "slow.toml").write_text(slow + '[[algorithms]]\nname = "FedAvg"\n', encoding="utf-8")
    started = process("--json", "compare", "slow.toml", "--out", "stop me", cwd=folder)
    begun(started, folder / "stop me" / "runs" / "00-scaffold-bycolumn-column-hospital-0")
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=60)
    assert started.returncode == 130
    left = len(list((folder / "stop me" / "runs").iterdir()))
    said = (f"stopped. 'stop me' keeps the {left} runs begun, 0 of them finished; see them with: tacit report 'stop me'. "
            "Go on with: tacit compare --resume 'stop me'")
    assert err.splitlines()[-1] == f"tacit: {said}"
    assert json.loads(out) == {"error": {"kind": "Stopped", "message": said, "resume": "tacit compare --resume 'stop me'"}}
    code, _, told = run(capsys, "compare", "slow.toml", "--out", "stop me")
    assert code == 2
    assert "stop me already holds a comparison, which is never written over. Go on with it by --resume 'stop me', or give another --out." in told
    assert answer(capsys, "report", "stop me")["runs"] == left
    again = answer(capsys, "compare", "--resume", "stop me")
    whole = answer(capsys, "compare", "slow.toml", "--out", "not stopped")
    assert (again["rows"], again["table"], again["gain"]) == (whole["rows"], whole["table"], whole["gain"])
    Path("stop me/compare.json").write_text("{}", encoding="utf-8")
    assert cli._left(Path("stop me")) == " The comparison itself is done and in 'stop me'; write its report with: tacit report 'stop me'"


def test_a_run_that_was_started_from_python_is_said_to_be_one(folder, capsys):
    fed = data.gaussian_blobs(rows=100).split(2)
    tacit.train(fed, model="logistic", rounds=1, out="py")
    with pytest.raises(BadRun) as refused:
        tacit.train(fed, model="logistic", rounds=1, out="py")
    assert str(refused.value) == "py already holds a run. Go on with it by resume=True, or give another directory."
    for argv, words in ((["run", "job.toml", "--out", "py"], "py already holds a run, which is never written over. Give another --out."),
                        (["run", "py/job.toml"], "py/job.toml is the job of a run that was started from Python, with data that only that program has."),
                        (["run", "--resume", "py"], "py was started from Python, with data that only that program has. Resume it there")):
        code, _, err = run(capsys, *argv)
        assert code == 2
        assert words in err
    assert run(capsys, "run", "job.toml", "--out", "x")[0] == 0
    with pytest.raises(BadRun, match=r"x already holds a run\. Go on with it by resume=True \(`tacit run --resume x`\), or give another directory\."):
        tacit.train(fed, model="logistic", rounds=1, out="x")


def test_a_finished_run_may_be_resumed_and_stays_as_it_is(folder, capsys):
    first = answer(capsys, "run", "job.toml", "--out", "x")
    again = answer(capsys, "run", "--resume", "x")
    assert (again["metrics"], again["history"]) == (first["metrics"], first["history"])


def test_full_batches_are_resumed_as_full_batches(folder, capsys):
    answer(capsys, "run", "job.toml", "--out", "x", "--set", "train.batch_size=none")
    assert "batch_size" not in answer(capsys, "run", "--resume", "x")["job"]["train"]


def test_a_run_cannot_be_resumed_as_another(folder, capsys):
    assert run(capsys, "run", "job.toml", "--out", "x")[0] == 0
    code, _, err = run(capsys, "run", "--resume", "x", "--rounds", "9")
    assert code == 2
    assert "--resume goes on with a run as it was begun" in err
    code, _, err = run(capsys, "run", "job.toml", "--resume", "x", "--rounds", "9")
    assert code == 2
    assert "x holds another run: it differs in train.rounds" in err


# --- compare, report ---

def test_a_comparison_has_the_baselines_a_verdict_and_a_report(folder, capsys):
    (folder / "both.toml").write_text(SMALL + '[[data.skews]]\nname = "IID"\n[[data.skews]]\nname = "Quantity"\n'
                                      '[[algorithms]]\nname = "FedAvg"\n[[algorithms]]\nname = "FedNova"\n', encoding="utf-8")
    code, out, err = run(capsys, "compare", "both.toml", "--seeds", "2")
    assert code == 0
    for word in ("FedAvg", "FedNova", "central", "local only", "IID()", "Quantity(alpha=0.5)", "report      runs/both/report.html"):
        assert word in out
    assert "runs side by side" in err
    assert "FedNova" in Path("runs/both/report.html").read_text(encoding="utf-8")
    again = answer(capsys, "compare", "runs/both/job.toml", "--out", "again", "--quiet")  # the job it keeps is the job it was
    assert again["table"] == json.loads(Path("runs/both/compare.json").read_text())["table"]
    code, _, err = run(capsys, "compare", "both.toml", "--out", "again")
    assert code == 2
    assert "again already holds a comparison, which is never written over. Go on with it by --resume again, or give another --out." in err


def test_a_report_can_be_written_again_and_elsewhere(folder, capsys):
    assert run(capsys, "run", "job.toml", "--out", "x")[0] == 0
    Path("x/report.html").unlink()
    assert answer(capsys, "report", "x") == {"report": "x/report.html", "runs": 1, "finished": True}
    assert run(capsys, "report", "x", "-o", "y.html")[1] == "y.html\n"
    assert Path("y.html").read_text(encoding="utf-8").startswith("<!doctype html>")


# --- data, algorithms, doctor ---

def test_the_lists_name_every_member_of_the_rooms(capsys):
    value = answer(capsys, "data", "list")
    assert [s["name"] for s in value["datasets"]] == list(data.ALL)
    assert [s["name"] for s in value["skews"]] == list(data.SKEWS)
    assert [a["name"] for a in answer(capsys, "algorithms")["algorithms"]] == list(algorithms.ALL)
    _, out, _ = run(capsys, "data", "list")
    assert all(name in out for name in (*data.ALL, *data.SKEWS))
    _, out, _ = run(capsys, "algorithms")
    assert all(name in out for name in (*algorithms.ALL, *algorithms.PARTS))


@pytest.mark.parametrize("name", ["FedProx", "fedprox", "SGD", "Cosine"])
def test_one_algorithm_or_part_is_shown_with_its_paper_and_parameters(capsys, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "200")  # wide enough that no cell is broken over lines
    shown, = answer(capsys, "algorithms", name)["algorithms"]
    assert shown["name"].lower() == name.lower()
    _, out, _ = run(capsys, "algorithms", name)
    assert all(p["doc"] in out and p["allowed"] in out for p in shown["parameters"])
    assert shown["parameters"]


def test_data_show_counts_every_row_where_it_lies(capsys):
    value = answer(capsys, "data", "show", "digits", "--parties", "5", "--skew", "dirichlet", "--alpha", "0.3", "--seed=2", "--images", "true")
    fed = data.digits(images=True, seed=2).split(5, skew=data.Dirichlet(0.3), seed=2)
    assert value["counts"] == fed.summary()["counts"]
    assert value["features"] == [1, 8, 8]
    _, out, _ = run(capsys, "data", "show", "digits", "--parties", "5", "--skew", "Dirichlet", "--alpha", "0.3", "--seed", "2")
    first = next(line for line in out.splitlines() if line.startswith("p0"))
    assert first.split() == ["p0", str(value["sizes"][0]), f"{value['shift'][0]:.2f}", *(str(n) if n else "·" for n in value["counts"][0])]


def test_data_show_takes_the_natural_parties_where_there_are_some(capsys):
    assert answer(capsys, "data", "show", "heart_disease")["parties"] == ["cleveland", "hungarian", "switzerland", "va"]
    assert len(answer(capsys, "data", "show", "heart_disease", "--parties", "3")["parties"]) == 3
    assert len(answer(capsys, "data", "show", "iris")["parties"]) == 10


def test_data_show_reads_a_table_and_draws(folder, capsys):
    rows = "\n".join(f"{i % 7},{'ab'[i % 2]},{i % 3}" for i in range(90))
    (folder / "patients.csv").write_text(f"age,clinic,stage\n{rows}\n", encoding="utf-8")
    value = answer(capsys, "data", "show", "patients.csv", "--label", "stage", "--by", "clinic", "--plot", "who.svg")
    assert (value["parties"], value["labels"]) == (["a", "b"], ["0", "1", "2"])
    assert "<svg" in Path("who.svg").read_text(encoding="utf-8")


EVIL = ["[/b]", "[bold red]x", "\\[", "[link=file:///etc/passwd]y[/link]", "a\x1b[2Jb"]


@pytest.fixture
def evil(folder) -> Path:
    """A table whose columns, labels and hospitals have names that a terminal could take for something else."""
    rows = "\n".join(f'{i % 7},"{EVIL[i % 5]}","{EVIL[(i // 5) % 5]}"' for i in range(150))
    (folder / "evil[red].csv").write_text(f'age,"[/b]",stage\n{rows}\n', encoding="utf-8")
    return folder


def test_names_in_brackets_are_shown_as_they_are(evil, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")  # wide enough that no cell is cut
    code, out, _ = run(capsys, "data", "show", "evil[red].csv", "--label", "stage", "--by", "[/b]")
    assert code == 0
    for name in EVIL[:4]:
        assert out.count(name) >= 2, name  # as a party and as a label
    assert "\x1b" not in out
    code, out, _ = run(capsys, "algorithms", "FedAvg")
    assert code == 0


@pytest.mark.parametrize("terminal", [False, True])
def test_a_run_and_a_comparison_of_parties_named_in_brackets_get_through(evil, capsys, monkeypatch, terminal):
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    (evil / "evil.toml").write_text('[data]\npath = "evil[red].csv"\nlabel = "stage"\nby = "[/b]"\n[model]\nname = "logistic"\n[train]\nrounds = 2\n',
                                    encoding="utf-8")
    code, out, err = run(capsys, "run", "evil.toml", "--out", "x[red]")
    assert (code, "Markup" in err) == (0, False)
    assert "x[red]" in out
    code, out, _ = run(capsys, "report", "x[red]")
    assert (code, out) == (0, "x[red]/report.html\n")
    code, out, err = run(capsys, "compare", "evil.toml", "--out", "both")
    assert (code, "Markup" in err) == (0, False)
    assert "ByColumn(column='[/b]')" in out
    assert terminal or "\x1b" not in out + err


def test_data_show_says_when_parties_are_left_out(capsys):
    _, out, _ = run(capsys, "data", "show", "digits", "--parties", "50")
    assert "… and 10 more parties" in out


def test_the_doctor_finds_this_machine_and_that_it_works(capsys):
    value = answer(capsys, "doctor")
    assert value["self_test"]["ok"]
    assert value["cores"] >= 1
    assert "data" in value["missing_extras"]
    assert not any(value["missing_extras"].values())  # `make test` installs every extra
    assert set(value["data"]) == set(data.ALL)


def test_the_doctor_gives_the_line_that_installs_what_is_missing(monkeypatch):
    monkeypatch.setattr(doctor, "_installed", lambda package: package != "pyarrow")
    monkeypatch.setattr(doctor, "self_test", lambda: {"ok": True, "text": ""})
    assert ("extra data", "missing pyarrow: pip install 'tacit[data]'") in doctor.examine()["lines"]


def test_a_machine_that_computes_wrongly_is_told_and_exit_code_1(capsys, monkeypatch):
    honest = algorithms.FedSGD.merge
    monkeypatch.setattr(algorithms.FedSGD, "merge", lambda self, w, *rest: (honest(self, w, *rest)[0] + 0.01, rest[0]))
    code, out, _ = run(capsys, "doctor")
    assert code == 1
    assert "FAILED: FedAvg with one full step differs from FedSGD" in out


def test_a_reader_that_has_enough_is_no_error(tmp_path):
    started = process("algorithms", cwd=tmp_path)
    started.stdout.close()
    assert started.wait(timeout=60) == 1
    assert started.stderr.read() == ""
    started.stderr.close()


# --- what we ship ---

@pytest.mark.parametrize("file", EXAMPLES, ids=lambda f: f.stem)
def test_every_shipped_job_runs(file, folder, capsys):
    several = "[[" in file.read_text(encoding="utf-8")
    value = answer(capsys, "compare" if several else "run", str(file), "--rounds", "1", *(["--seeds", "1"] if several else []))
    assert Path(value["report"]).is_file()


def test_there_is_a_job_of_each_kind_to_start_from():
    assert {"quickstart", "compare", "hospitals"} <= {file.stem for file in EXAMPLES}
