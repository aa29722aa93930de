"""Compiled loops work where their machine code cannot be kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import tacit

PROGRAM = """
import numpy as np
from tacit.boost.compiled import unpack_loop
unpack_loop(np.zeros(2, np.int64), 45, np.zeros((1, 3), np.int64))
from tacit.crypto import ot
out = np.zeros((1, 2), np.uint64)
ot.compiled().add_entries(out, np.array([[1, 2], [4, 8], [16, 32]], np.uint64), np.array([[0, 1, 2]], np.int32))
from tacit.boost import compiled, compiled_trees, lattice_loop
print(out.tolist())
"""


def test_loops_are_compiled_where_nothing_can_be_written(tmp_path: Path) -> None:
    """As in the containers and services of deploy/: a read-only installation, and no home. A file in the place
    of a directory stands for it, because tests may run as root. Matching and trees ended in numba's
    RuntimeError: no locator available.
    """
    place = tmp_path / "tacit"
    shutil.copytree(Path(tacit.__file__).parent, place, ignore=shutil.ignore_patterns("__pycache__"))
    for room in ("crypto", "boost"):
        (place / room / "__pycache__").touch()
    nowhere = str(tmp_path / "tacit" / "__init__.py")
    variables = {"PYTHONPATH": str(tmp_path), "HOME": nowhere, "XDG_CACHE_HOME": nowhere}
    kept = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "LOCALAPPDATA")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**kept, **variables, "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "[[21, 42]]\n", done.stderr
    assert done.stderr.count("Set NUMBA_CACHE_DIR") == 1


def test_that_loops_are_compiled_is_said_once_and_not_when_they_are_read_from_disk(tmp_path: Path) -> None:
    """The first call after an installation took 7.5 CPU seconds without a word."""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stderr
        for _ in range(2)
    ]
    assert outputs[0].count("compiling numerical loops") == 1
    assert str(tmp_path) in outputs[0]
    assert outputs[1] == ""
