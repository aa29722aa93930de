"""Simulations beyond one process: ranks beside one process, and a federation of a million parties.

    python benchmarks/scale.py                                  one and two ranks on the CPU, then a million parties
    PYTHONPATH=src python benchmarks/scale.py --device cuda --ranks 1 2 4 --only ranks --budget 80
                                                                ranks that share one GPU; needs torch and numpy

`ranks` runs two works with each number of ranks, as torchrun starts them: `cnn` (McMahan-like clients of a CNN of
62,006 parameters; 100 parties × 250 rows on a GPU, 16 × 100 on a CPU) and `crowd` (10,000 clients a round, 610
parameters, five epochs over 10 rows each). A figure is a long run minus a short one, divided by the rounds between, so that start and
warm-up do not count. `seconds` depend on what else the machine does. `CPU s` are those of the busiest rank, which the
kernel counts; on a CPU `times one` compares these. On a GPU it compares the seconds. The models are compared, too: on a
CPU they must have the same bits.

`million` trains a logistic model for rounds of 10,000 of 1,000,000 parties, and prints the peak memory.

What a hub costs is measured by many_parties.py, a killed rank and its resumption by tests/runtimes/test_ranks.py.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

AIM_CPU = 1.7  # two ranks on two cores
AIM_GPU = 1.0  # ranks that share a GPU
SLACK = 0.95  # of the aim on a GPU: two runs of one configuration differ by a few percent


def cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU()),
        *(nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def work(name: str, device: str) -> tuple[Any, dict[str, Any]]:
    """Return (federation, options of train)."""
    from tacit import algorithms, data

    rng = np.random.default_rng(0)
    if name == "cnn":
        parties, rows = (16, 100) if device == "cpu" else (100, 250)
        x, model = rng.standard_normal((parties * rows, 3, 32, 32), dtype=np.float32), cnn()
        options = {"model": model, "batch_size": 20 if device == "cpu" else 32}
    else:
        parties, rows = 10_000, 10
        x = rng.standard_normal((parties * rows, 60), dtype=np.float32)
        options = {"model": "logistic", "batch_size": 5, "local_epochs": 5}
    y = rng.integers(0, 10, len(x))
    y[:10] = range(10)
    fed = data.from_arrays(x, y, test=(x[:1000], y[:1000])).split(
        parties, skew=data.IID(), seed=0, held_fraction=0
    )
    options |= {"algorithm": algorithms.FedAvg(lr=0.05), "per_round": parties, "seed": 0, "device": device}
    return fed, {**options, "evaluate_every": 0, "min_rows": 1}


# one rank ---------------------------------------------------------------------------------------------------


def busy() -> float:
    mine = resource.getrusage(resource.RUSAGE_SELF)
    return mine.ru_utime + mine.ru_stime


def rank(names: list[str], device: str, short: int, long: int, out: Path) -> None:
    """Run the works in this rank; rank 0 writes the models, every rank prints its figures."""
    print(json.dumps({name: measure(name, device, short, long, out) for name in names}), flush=True)


def measure(name: str, device: str, short: int, long: int, out: Path) -> dict[str, float]:
    import tacit

    fed, options = work(name, device)

    def run(rounds: int) -> tuple[float, float, Any]:
        if device != "cpu":
            torch.cuda.synchronize()
        wall, cpu = time.perf_counter(), busy()
        result = tacit.train(fed, **options, rounds=rounds)
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - wall, busy() - cpu, result

    _, _, result = run(short)  # includes start and warm-up
    brief, full = run(short)[:2], run(long)[:2]
    if os.environ.get("RANK", "0") == "0":
        np.save(
            out / f"{name}.npy",
            np.concatenate([p.detach().cpu().numpy().ravel() for p in result.model.parameters()]),
        )
    seconds, cpu = ((b - a) / (long - short) for a, b in zip(brief, full))
    return {"seconds": seconds, "cpu": cpu, "rows": len(fed.rows.y)}


def start(size: int, arguments: list[str], until: float) -> list[dict[str, dict[str, float]]] | str:
    """Run so many ranks, as torchrun does; return their figures, or why there are none."""
    store = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=300)
    )
    ranks = []
    for q in range(size):
        # one process has all cores, as a user starts it; each of several ranks has its share
        threads = max(1, (os.cpu_count() or 1) // size)
        env = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
        if size > 1:
            env |= {
                "RANK": str(q),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": str(q),
                "LOCAL_WORLD_SIZE": str(size),
            }
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "GLOO_SOCKET_IFNAME": "lo"}
            env["TORCHELASTIC_USE_AGENT_STORE"] = "True"
        command = [sys.executable, __file__, "--rank", *arguments]
        ranks.append(
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True)
        )
    figures = []
    try:
        for q, process in enumerate(ranks):
            out, _ = process.communicate(timeout=max(1.0, until - time.monotonic()))
            if process.returncode:
                return f"rank {q} ended with status {process.returncode}"
            figures.append(json.loads(out.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return "not finished when the budget was over"
    finally:
        for process in ranks:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return figures


# what is printed --------------------------------------------------------------------------------------------


def compare(args: argparse.Namespace, until: float) -> None:
    on = torch.cuda.get_device_name() if args.device != "cpu" else f"CPU, {os.cpu_count()} cores"
    print(f"{on}, torch {torch.__version__}, load {os.getloadavg()[0]:.1f}")
    print(
        f"{'work':8}{'ranks':>6}{'s/round':>10}{'CPU s':>9}{'rows/s':>14}{'times one':>14}   model",
        flush=True,
    )
    aim = AIM_CPU if args.device == "cpu" else AIM_GPU * SLACK
    short = args.rounds // 8 or 1
    one: dict[str, tuple[float, np.ndarray]] = {}
    for size in args.ranks:
        with tempfile.TemporaryDirectory() as folder:
            figures = start(
                size, [",".join(args.works), args.device, str(short), str(args.rounds), folder], until
            )
            if isinstance(figures, str):
                print(f"{'':8}{size:>6}   {figures}", flush=True)
                continue
            models = {name: np.load(Path(folder) / f"{name}.npy") for name in args.works}
        for name, model in models.items():
            seconds, cpu = figures[0][name]["seconds"], max(f[name]["cpu"] for f in figures)
            cost = cpu if args.device == "cpu" else seconds
            if size == 1:
                one[name] = cost, model
            times = same = ""
            if name in one:
                ratio, other = one[name][0] / cost, one[name][1]
                verdict = "" if size == 1 else " met" if ratio >= aim else " MISSED"
                times = f"{ratio:.2f}×{verdict}"
                same = (
                    "same bits"
                    if np.array_equal(model, other)
                    else f"differs by {abs(model - other).max():.1e}"
                )
            speed = figures[0][name]["rows"] / seconds
            print(
                f"{name:8}{size:>6}{seconds:>10.4f}{cpu:>9.4f}{speed:>14,.0f}{times:>14}   {same}", flush=True
            )


def million(parties: int, per_round: int, rounds: int) -> None:
    """Train on many parties in this process."""
    import tacit
    from tacit import algorithms, data

    rng = np.random.default_rng(0)
    x = rng.standard_normal((4 * parties, 16), dtype=np.float32)
    y = (x @ rng.standard_normal(16) > 0).astype(np.int64)
    fed = data.from_arrays(x, y, test=(x[:1000], y[:1000])).split(
        parties, skew=data.IID(), seed=0, held_fraction=0
    )
    began = busy()
    options = {
        "algorithm": algorithms.FedAvg(lr=0.3),
        "batch_size": 2,
        "evaluate_every": rounds,
        "min_rows": 1,
    }
    result = tacit.train(fed, model="logistic", rounds=rounds, per_round=per_round, **options)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{parties:,} parties, {per_round:,} a round, {rounds} rounds: {(busy() - began) / rounds:.2f} CPU s a "
        f"round, accuracy {result.metrics['accuracy']:.3f}, peak {peak:.2f} GiB, of which the rows are "
        f"{(x.nbytes + y.nbytes) / 2**30:.2f}"
    )


def main() -> None:
    if sys.argv[1:2] == ["--rank"]:
        names, device, short, long, out = sys.argv[2:]
        rank(names.split(","), device, int(short), int(long), Path(out))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=[1, 2], help="numbers of ranks (default: 1 2)"
    )
    parser.add_argument("--works", nargs="+", default=["cnn", "crowd"], choices=["cnn", "crowd"])
    parser.add_argument("--rounds", type=int, default=24, help="rounds of the long run (default: 24)")
    parser.add_argument("--only", choices=["ranks", "million"])
    parser.add_argument("--parties", type=int, default=1_000_000, help="of `million` (default: 1,000,000)")
    parser.add_argument("--budget", type=float, default=3600.0, help="seconds after which ranks are ended")
    args = parser.parse_args()
    until = time.monotonic() + args.budget
    if args.only != "million":
        compare(args, until)
    if args.only != "ranks":
        million(args.parties, min(args.parties, 10_000), 5)


if __name__ == "__main__":
    main()
