"""Stopped commands resume: after a kill, Ctrl-C, or SIGTERM."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tacit
from tacit import cli, data
from tacit.errors import BadRun
from tests import warm

from .shell import ROOT, answer, process, run


def slow_job(folder: Path) -> Path:
    """Long enough to be stopped in the middle, and stateful: SCAFFOLD keeps something for the server and for
    every party.
    """
    file = folder / "slow.toml"
    file.write_text(
        '[data]\nname = "heart_disease"\nby = "hospital"\n[algorithm]\nname = "Scaffold"\nlr = 0.02\n'
        "[train]\nrounds = 120\nper_round = 3\nbatch_size = 16\nseed = 3\n",
        encoding="utf-8",
    )
    return file


def begun(started: warm.Popen, out: Path, rounds: int = 10) -> None:
    """Wait until some rounds are written down, and some state with them."""
    while True:
        if (out / "state" / "state.json").exists() and (out / "events.jsonl").read_bytes().count(
            b'"round"'
        ) > rounds:
            return
        assert started.poll() is None, started.communicate()
        time.sleep(0.01)


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


def test_ctrl_c_exits_with_130_and_prints_the_resume_command(folder, capsys):
    slow_job(folder)
    started = process("run", "slow.toml", "--out", "stop me", "--json", cwd=folder)
    begun(started, folder / "stop me")
    started.send_signal(signal.SIGINT)
    out, err = started.communicate()
    assert started.returncode == 130
    assert err.splitlines()[-1] == "tacit: stopped. Resume with: tacit run --resume 'stop me'"
    assert json.loads(out)["error"]["resume"] == "tacit run --resume 'stop me'"
    assert "Traceback" not in err
    assert answer(capsys, "run", "--resume", "stop me")["history"][-1]["round"] == 120


WORKS = """
import argparse, asyncio, sys, tempfile, time
from tacit import cli

def say(folder): print(folder, flush=True)  # from where it is told to end: a loop that has not begun yet warns of what was never awaited

async def wait(folder):
    say(folder)
    await asyncio.sleep(60)

def works(args):
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(wait(folder)) if sys.argv[1] == "asyncio" else (say(folder), time.sleep(60))

parser = argparse.ArgumentParser()
parser.add_argument("verb")
parser.set_defaults(do=works, debug=False, json=False)
cli._parser = lambda: parser
sys.exit(cli.main(["work"]))
"""


@pytest.mark.parametrize(
    ("how", "shell"),
    [("asyncio", signal.SIG_DFL), ("plain", signal.SIG_IGN)],
    ids=["in a loop", "in the background"],
)
def test_a_terminated_command_deletes_its_rows_and_keys_from_disk(how, shell):
    """By SIGTERM, as schedulers and containers say it; also where the shell switched Ctrl-C off."""
    started = subprocess.Popen(
        [sys.executable, "-c", WORKS, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, shell),
    )
    place = Path(started.stdout.readline().strip())
    assert place.is_dir()
    started.terminate()
    _, err = started.communicate()
    assert (started.returncode, err) == (130, "tacit: stopped.\n")
    assert not place.exists()


@pytest.mark.slow
def test_ctrl_c_in_a_comparison_says_what_is_left_and_what_can_be_done(folder, capsys):
    slow = (
        slow_job(folder)
        .read_text(encoding="utf-8")
        .replace("[algorithm]", "[[algorithms]]")
        .replace("seed = 3", "seeds = 2")
    )
    (folder / "slow.toml").write_text(slow + '[[algorithms]]\nname = "FedAvg"\n', encoding="utf-8")
    started = process("--json", "compare", "slow.toml", "--out", "stop me", cwd=folder)
    begun(started, folder / "stop me" / "runs" / "00-scaffold-by-hospital-0")
    started.send_signal(signal.SIGINT)
    out, err = started.communicate()
    assert started.returncode == 130
    left = len(list((folder / "stop me" / "runs").iterdir()))
    said = (
        f"stopped. 'stop me' contains {left} runs, 0 of them finished; see them with: tacit report "
        "'stop me'. "
        "Resume with: tacit compare --resume 'stop me'"
    )
    assert err.splitlines()[-1] == f"tacit: {said}"
    assert json.loads(out) == {
        "error": {"kind": "Stopped", "message": said, "resume": "tacit compare --resume 'stop me'"}
    }
    code, _, told = run(capsys, "compare", "slow.toml", "--out", "stop me")
    assert code == 2
    assert (
        "stop me already contains a comparison, which is never overwritten. Resume it with --resume 'stop "
        "me', or give another --out." in told
    )
    assert answer(capsys, "report", "stop me")["runs"] == left
    again = answer(capsys, "compare", "--resume", "stop me")
    whole = answer(capsys, "compare", "slow.toml", "--out", "not stopped")
    assert (again["rows"], again["table"], again["gain"]) == (whole["rows"], whole["table"], whole["gain"])
    Path("stop me/compare.json").write_text("{}", encoding="utf-8")
    assert (
        cli._left(Path("stop me"))
        == " The comparison itself is done and in 'stop me'; write its report with: tacit report 'stop me'"
    )


def test_a_run_that_was_started_from_python_is_reported_as_such(folder, capsys):
    fed = data.gaussian_blobs(rows=100).split(2)
    tacit.train(fed, model="logistic", rounds=1, out="py")
    with pytest.raises(BadRun) as refused:
        tacit.train(fed, model="logistic", rounds=1, out="py")
    assert (
        str(refused.value)
        == "py already contains a run. Resume it with resume=True, or choose another directory."
    )
    for argv, words in (
        (
            ["run", "job.toml", "--out", "py"],
            "py already contains a run, which is never overwritten. Give another --out.",
        ),
        (
            ["run", "py/job.toml"],
            "py/job.toml is the job of a run that was started from Python, with data that only that program "
            "has.",
        ),
        (
            ["run", "--resume", "py"],
            "py was started from Python, with data that only that program has. Resume it there",
        ),
    ):
        code, _, err = run(capsys, *argv)
        assert code == 2
        assert words in err
    assert run(capsys, "run", "job.toml", "--out", "x")[0] == 0
    with pytest.raises(
        BadRun,
        match=r"x already contains a run\. Resume it with resume=True \(`tacit run --resume x`\), or choose "
        r"another directory\.",
    ):
        tacit.train(fed, model="logistic", rounds=1, out="x")


def test_a_finished_run_may_be_resumed_and_stays_as_it_is(folder, capsys):
    first = answer(capsys, "run", "job.toml", "--out", "x")
    again = answer(capsys, "run", "--resume", "x")
    assert (again["metrics"], again["history"]) == (first["metrics"], first["history"])


def test_full_batches_are_resumed_as_full_batches(folder, capsys):
    answer(capsys, "run", "job.toml", "--out", "x", "--set", "train.batch_size=none")
    assert answer(capsys, "run", "--resume", "x")["job"]["train"]["batch_size"] == "none"


def test_a_run_cannot_be_resumed_as_another(folder, capsys):
    assert run(capsys, "run", "job.toml", "--out", "x")[0] == 0
    code, _, err = run(capsys, "run", "--resume", "x", "--rounds", "9")
    assert code == 2
    assert "--resume continues a run with its own job" in err
    code, _, err = run(capsys, "run", "job.toml", "--resume", "x", "--rounds", "1")
    assert code == 2
    assert "x holds another run: it differs in train.rounds" in err
