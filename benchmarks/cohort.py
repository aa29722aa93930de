"""Federated averaging on two CPU cores: tacit, a hand-written loop, Flower and pfl-research, in one run on the
same workload.

    python benchmarks/cohort.py                  everything (about six minutes on two idle cores)
    python benchmarks/cohort.py --only peers     without tacit;  --only ours: tacit and the hand-written loop
    python benchmarks/cohort.py --works logistic --repeat 3 --json figures.json

Every contender runs alone in its own process. A peer without an environment under .venv-peers is skipped with
a message (benchmarks/peers/install.sh creates the environments). benchmarks/README.md explains the figures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "benchmarks" / "peers"
sys.path.insert(0, str(PEERS))

from work import WORKS, Work, descendants, make  # noqa: E402

JOB_ROUNDS = 10  # of the job that is timed end to end as a new process
Row = dict[str, Any]

# contender: its runner, its environment (None: this interpreter), its modes with their display names
# them
CONTENDERS: dict[str, tuple[str, str | None, dict[str, str]]] = {
    "tacit": ("ours.py", None, {"": "tacit"}),
    "loop": (
        "bare.py",
        None,
        {
            "one": "hand-written loop, 1 thread",
            "one-sgd": "  with torch.optim.SGD",
            "usual": "  as tutorials write it",
            "two": "  2 threads",
            "processes": "  2 processes",
        },
    ),
    "pfl": ("pfl.py", "pfl", {"one": "pfl-research, 1 thread", "two": "pfl-research, 2 threads"}),
    "flower": ("flower.py", "flower", {"": "Flower simulation"}),
}

# workload, figure, contender, its mode (None: its best), and the goal for its ratio to tacit
AIMS: list[tuple[str, str, str, str | None, float]] = [
    ("cnn", "median", "loop", "one", 1 / 0.55),
    ("cnn", "cpu", "loop", "one", 1.0),
    ("cnn", "job", "flower", None, 2.0),
    ("logistic", "median", "loop", "one", 7.0),
    ("logistic", "median", "loop", "usual", 7.0),
    ("logistic", "median", "pfl", None, 12.0),
    ("logistic", "median", "flower", None, 100.0),
    ("logistic", "job", "flower", None, 8.0),
]


class Memory(threading.Thread):
    """Peak memory of a process and its children: the sum of proportional set sizes, in which shared pages count
    once.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.peak, self.done = pid, 0, threading.Event()

    def run(self) -> None:
        while not self.done.wait(
            0.25
        ):  # often enough for lasting peaks, rarely enough not to affect the figures
            total = 0
            for pid in [self.pid, *descendants(self.pid)]:
                try:
                    line = next(
                        text
                        for text in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                        if text.startswith("Pss:")
                    )
                except (OSError, StopIteration):
                    continue  # ended in the meantime
                total += int(line.split()[1]) * 1024
            self.peak = max(self.peak, total)


def timed(
    command: list[str], limit: float, environment: dict[str, str] | None = None
) -> tuple[str, float, int, str]:
    """Run a command; return its standard output, wall seconds, peak memory, and the error if it failed."""
    begin = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            command, stdout=out, stderr=err, cwd=ROOT, env={**os.environ, **(environment or {})}
        )
        memory = Memory(process.pid)
        memory.start()
        try:
            code = process.wait(limit)
            wall = time.perf_counter() - begin
        except subprocess.TimeoutExpired:
            for pid in [*descendants(process.pid), process.pid]:  # Ray's daemons would outlive the driver
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
            code, wall = -9, limit
        memory.done.set()
        memory.join()
        out.seek(0)
        err.seek(0)
        text, complaint = out.read(), err.read().strip().splitlines()
    failure = (
        ""
        if code == 0
        else f"ended with {code} after {wall:.0f} s: {complaint[-1] if complaint else 'no message'}"
    )
    return text, wall, memory.peak, failure


def command(
    contender: str, mode: str, work: Work, data: Path, rounds: int | None = None
) -> tuple[list[str], dict[str, str]] | None:
    """The command line of a contender; None if it is not installed."""
    runner, environment, _ = CONTENDERS[contender]
    python = (
        sys.executable if environment is None else str(ROOT / ".venv-peers" / environment / "bin" / "python")
    )
    if not Path(python).exists():
        return None
    parts = [python, str(PEERS / runner), work.name, "--data", str(data)]
    parts += ["--mode", mode] if mode else []
    parts += ["--rounds", str(rounds)] if rounds else []
    return parts, {"PYTHONPATH": str(ROOT / "src")} if contender == "tacit" else {"PYTHONPATH": ""}


def job_file(work: Work, data: Path) -> Path:
    """The job of tacit, as a user would write it: the same rows as bytes, in the file formats of MNIST and
    CIFAR-10.
    """
    import numpy as np

    x, y, xt, yt = (
        np.load(data / f"{work.name}-{part}.npy", mmap_mode="r") for part in ("x", "y", "xt", "yt")
    )

    def pixels(
        rows: np.ndarray,
    ) -> np.ndarray:  # noise of 1 is ±4 at most, and `scale = "half"` reads bytes back as −1 to 1
        return ((rows / 4 + 1) * 127.5).clip(0, 255).astype(np.uint8)

    if work.name == "cnn":
        name, model = "cifar10", 'name = "cnn"\nchannels = [32, 64]\nhidden = [64]'
        batches = [
            *zip((f"data_batch_{i}" for i in range(1, 6)), np.array_split(x, 5), np.array_split(y, 5)),
            ("test_batch", xt, yt),
        ]
        for file, rows, labels in batches:
            np.c_[labels.astype(np.uint8), pixels(rows).reshape(len(rows), -1)].tofile(data / f"{file}.bin")
    else:
        name, model = "mnist", 'name = "logistic"'
        for part, rows, labels in (("train", x, y), ("t10k", xt, yt)):
            arrays = {
                f"{part}-images-idx3-ubyte": pixels(rows).reshape(-1, 28, 28),
                f"{part}-labels-idx1-ubyte": labels.astype(np.uint8),
            }
            for file, array in arrays.items():
                (data / file).write_bytes(
                    bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()
                )
    path = data / f"{work.name}.toml"
    path.write_text(f"""\
[data]
name = "{name}"
scale = "half"
data_dir = "{data}"
verify = false  # not the published pictures, but files of the same format
parties = {work.parties}
held_fraction = 0

[model]
{model}

[algorithm]
name = "FedAvg"
lr = {work.lr}

[train]
rounds = {JOB_ROUNDS}
per_round = {work.per_round}
local_epochs = 1
batch_size = {work.batch}
evaluate_every = 0
""")
    return path


def job(contender: str, mode: str, work: Work, data: Path) -> Row:
    """Wall seconds of a ten-round job as a new process, from start to exit."""
    if contender == "tacit":
        start = [
            sys.executable,
            "-m",
            "tacit",
            "run",
            str(job_file(work, data)),
            "--out",
            tempfile.mkdtemp(prefix="job-", dir=data) + "/run",
        ]
        _, wall, peak, failure = timed(start, 300, {"PYTHONPATH": str(ROOT / "src")})
    else:
        launch = command(contender, mode, work, data, JOB_ROUNDS)
        assert launch is not None
        _, wall, peak, failure = timed(launch[0], 300, launch[1])
    return {"job": wall, "job_peak": peak} if not failure else {"job_failure": failure}


def measure(contender: str, mode: str, work: Work, data: Path, repeat: int) -> Row:
    """The best of `repeat` runs by its median: the one with the least interference."""
    best: Row = {}
    for _ in range(repeat):
        launch = command(contender, mode, work, data)
        if launch is None:
            return {"failure": "not installed: benchmarks/peers/install.sh"}
        text, wall, peak, failure = timed(launch[0], 600, launch[1])
        if failure:
            return {"failure": failure}
        row = {**json.loads(text.strip().splitlines()[-1]), "wall": wall, "peak": peak}
        if not best or row["median"] < best["median"]:
            best = row
    return best


def table(work: Work, rows: dict[tuple[str, str], Row]) -> None:
    print(f"\n{work.name}: {work.title}; {work.rounds} rounds, the first {work.warm} not counted")
    print(
        f"{'':34}{'s/round':>10}{'(min':>9}{'mean)':>9}{'CPU s':>9}{'first round':>13}{'peak MB':>9}{'job s':>8}{'test loss':>11}"
    )
    for (contender, mode), row in rows.items():
        name = CONTENDERS[contender][2][mode]
        if "failure" in row:
            print(f"{name:34} {row['failure']}")
            continue
        print(
            f"{name:34}{row['median']:>10.4f}{row['min']:>9.4f}{row['mean']:>9.4f}{row['cpu']:>9.4f}{row['first']:>11.1f} "
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            "s"
            f"{row['peak'] / 1e6:>9.0f}{row['job'] if 'job' in row else float('nan'):>8.1f}{row['loss']:>11.4f}"
        )
        if "job_failure" in row:
            print(f"{'':34} the {JOB_ROUNDS}-round job {row['job_failure']}")
    losses = {key: row["loss"] for key, row in rows.items() if "loss" in row}
    if losses:
        spread = max(losses.values()) / min(losses.values()) - 1
        print(
            f"final test losses are within {spread:.1%}"
            + ("" if spread < 0.05 else ": MORE THAN 5%, they did not do the same work")
        )


def ratios(work: Work, rows: dict[tuple[str, str], Row]) -> None:
    ours = rows.get(("tacit", ""), {})
    if "median" not in ours:
        return
    for contender, (_, _, modes) in CONTENDERS.items():
        for mode, name in modes.items():
            row = rows.get((contender, mode), {})
            if contender != "tacit" and "median" in row:
                name = name if name[0] != " " else f"hand-written loop, {name.strip()}"
                wall, cpu = ours["median"] / row["median"], ours["cpu"] / row["cpu"]
                print(
                    f"  ours / {name}: {wall:.3f} of its wall time per round ({1 / wall:.1f}× as fast), {cpu:.3f} "
                    "of its CPU"
                )
    for at, what, contender, mode, aim in AIMS:
        of = [
            row
            for (c, m), row in rows.items()
            if c == contender and (mode is None or m == mode) and what in row
        ]
        if at != work.name or not of or what not in ours:
            continue
        theirs = min(row[what] for row in of)
        ratio = theirs / ours[what]
        label = {
            "median": "wall a round",
            "cpu": "CPU a round",
            "job": f"{JOB_ROUNDS}-round job from the command line",
        }[what]
        verdict = "reached" if ratio >= aim else "MISSED"
        print(
            f"  {label}, {contender}{f' ({mode})' if mode else ''} / ours: {ratio:.2f}   goal ≥ {aim:.2f}: "
            f"{verdict}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--works", nargs="+", choices=list(WORKS), default=list(WORKS))
    parser.add_argument("--only", choices=["all", "peers", "ours"], default="all")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each contender; the fastest counts")
    parser.add_argument("--no-jobs", action="store_true", help="skip the end-to-end jobs")
    parser.add_argument("--json", type=Path, help="also write every figure to this file")
    args = parser.parse_args()
    chosen = {"all": list(CONTENDERS), "peers": ["loop", "pfl", "flower"], "ours": ["tacit", "loop"]}[
        args.only
    ]

    load = os.getloadavg()[0]
    print(
        f"{os.cpu_count()} cores, load {load:.2f} before the start"
        + (": NOT QUIET, the figures are worth little" if load > 0.5 else "")
    )
    figures: Row = {}
    with tempfile.TemporaryDirectory(prefix="cohort-") as folder:
        data = Path(folder)
        for work in (WORKS[name] for name in args.works):
            make(work, data)
            rows: dict[tuple[str, str], Row] = {}
            for contender in chosen:
                for mode in CONTENDERS[contender][2]:
                    rows[contender, mode] = measure(contender, mode, work, data, args.repeat)
                ran = {
                    mode: rows[contender, mode]
                    for mode in CONTENDERS[contender][2]
                    if "median" in rows[contender, mode]
                }
                if ran and not args.no_jobs:
                    fastest = min(ran, key=lambda mode: ran[mode]["median"])
                    ran[fastest] |= job(contender, fastest, work, data)
            table(work, rows)
            ratios(work, rows)
            figures[work.name] = {
                f"{contender} {mode}".strip(): row for (contender, mode), row in rows.items()
            }
            sys.stdout.flush()
    if args.json:
        args.json.write_text(
            json.dumps({"cores": os.cpu_count(), "load": load, "figures": figures}, indent=1)
        )


if __name__ == "__main__":
    main()
