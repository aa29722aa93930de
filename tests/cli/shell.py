"""The command line as its users run it: in this process where that is enough, as a real process where a kill
or a start counts.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tacit import cli
from tests import warm
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))
SMALL = """
[data]
name = "gaussian_blobs"
rows = 200
parties = 4
[model]
name = "logistic"
[train]
rounds = 3
"""


TACIT = [sys.executable, "-m", "tacit"]


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """The exit code of a command, what it printed and its messages."""
    code = cli.main(list(argv))
    out, err = capsys.readouterr()
    return code, out, err


def answer(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    code, out, err = run(capsys, *argv, "--json")
    assert code == 0, err
    return json.loads(out)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit code of a command, and all it printed; not what was printed before."""
    capsys.readouterr()
    code, out, err = run(capsys, *words)
    return code, err + out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The message of a command that is refused: it prints nothing and changes no file of the directory."""
    capsys.readouterr()
    before = {file: file.is_file() and file.read_bytes() for file in Path.cwd().rglob("*")}
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    assert {file: file.is_file() and file.read_bytes() for file in Path.cwd().rglob("*")} == before
    return err


def provision(*clients: str) -> None:
    """Write kits/ for these clients into the current directory, with a free port for the hub."""
    Path("federation.toml").write_text(
        f'name = "f"\nhub = "127.0.0.1:{free_port()}"\nclients = {json.dumps(clients)}\n', encoding="utf-8"
    )
    assert cli.main(["provision", "federation.toml", "-o", "kits"]) == 0


def process(*argv: str, cwd: Path) -> warm.Popen:
    """A command as a process whose output is read."""
    return warm.Popen([*TACIT, *argv], cwd=cwd, text=True, stdout=warm.PIPE, stderr=warm.PIPE)


def finish(process: warm.Popen) -> Any:
    """What a process with --json printed, when it has ended well."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-2000:]
    return json.loads(out)


# A command that is killed as soon as it has printed a text: another process, which reads its log, may be too late
# and find that it has ended.
DIES = """
import os, signal, sys
from tacit import cli

class Stream:
    printed = ""

    def __init__(self, stream):
        self.stream = stream

    def write(self, text):
        self.stream.write(text)
        Stream.printed = (Stream.printed + text)[-1000:]
        if sys.argv[1] in Stream.printed:
            self.stream.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    def __getattr__(self, name):
        return getattr(self.stream, name)

sys.stdout, sys.stderr = Stream(sys.stdout), Stream(sys.stderr)
sys.exit(cli.main(sys.argv[2:]))
"""


class Role:
    """A command as a process that writes to a log; `dies_at`: it is killed when it has printed this text."""

    def __init__(self, place: Path, name: str, *words: str, dies_at: str | None = None):
        self.log = place / f"{name}-{time.monotonic_ns()}.log"
        argv = [*TACIT, *words] if dies_at is None else [sys.executable, "-c", DIES, dies_at, *words]
        with open(self.log, "wb") as log:
            self.process = warm.Popen(argv, cwd=place, stdout=log, stderr=log)

    def wait(self, seconds: float = 300) -> int:
        return self.process.wait(seconds)

    def wait_for_death(self) -> None:
        """Return when it was killed, as `dies_at` says."""
        assert self.wait() == -signal.SIGKILL, self.log.read_text()

    def wait_for(self, text: str) -> None:
        """Return when its log contains `text`."""
        while True:
            has_ended = (
                self.process.poll() is not None
            )  # first: it may write the text and end after it is read
            if text in (log := self.log.read_text()):
                return
            assert not has_ended, log
            time.sleep(0.01)
