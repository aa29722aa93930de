"""The command line as its users run it: in this process where that is enough, as a real process where a kill
or a start counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tacit import cli

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
    return subprocess.Popen(
        [sys.executable, "-m", "tacit", *argv],
        cwd=cwd,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **more,
    )
