"""Processes of tests that are forked from a warm one behave as those of `subprocess`."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm


def test_a_program_has_its_own_streams_directory_environment_and_exit_code(tmp_path: Path) -> None:
    code = "import os, sys; print(os.getcwd(), os.environ['WORD'], sys.argv[1:]); sys.exit('refused')"
    done = warm.run([sys.executable, "-c", code, "a b"], cwd=tmp_path, env={**os.environ, "WORD": "w"})
    assert done.returncode == 1
    assert done.stdout == f"{tmp_path} w ['a b']\n"
    assert done.stderr == "refused\n"


def test_an_error_is_a_traceback_and_code_1() -> None:
    done = warm.run([sys.executable, "-c", "1 / 0"])
    assert done.returncode == 1
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_is_its_return_code(number: int) -> None:
    code = "import time; print('ready'); time.sleep(600)"
    process = warm.Popen(
        [sys.executable, "-c", code], stdout=warm.PIPE, stderr=warm.DEVNULL, stdin=warm.DEVNULL, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    os.kill(process.pid, number)
    assert process.wait(300) == -number
    process.stdout.close()


def test_input_is_read_until_it_is_closed() -> None:
    with warm.Popen(
        [sys.executable, "-c", "import sys; print(sys.stdin.read().upper())"],
        stdin=warm.PIPE,
        stdout=warm.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        process.stdin.write("word")
        assert process.communicate()[0] == "WORD\n"
    assert process.returncode == 0


def test_what_a_failed_test_has_left_is_ended_with_its_streams() -> None:
    """Otherwise the test after it fails for files that are not closed."""
    before = len(warm.started)
    process = warm.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], stdout=warm.PIPE, stderr=warm.PIPE, text=True
    )
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=0.01)  # as where a process is waited for in vain
    warm.end_since(before)
    assert process.returncode == -signal.SIGKILL
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.closed
    assert process.stderr.closed
    assert len(warm.started) == before


def test_a_file_keeps_its_number_whatever_that_is() -> None:
    """A worker of pytest has many open files; the number 103 was taken for a copy, and closed."""
    code = "import os, sys; os.write(int(sys.argv[1]), b'here')"
    for number in (100, 101, 102, 103, 104, 250):
        read, write = os.pipe()
        high = fcntl.fcntl(write, fcntl.F_DUPFD, number)
        os.close(write)
        process = warm.Popen([sys.executable, "-c", code, str(high)], pass_fds=[high])
        os.close(high)
        assert process.wait(300) == 0
        with open(read, "rb") as file:
            assert file.read() == b"here"
