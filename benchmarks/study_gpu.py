"""Stacked runs on one GPU, as in a study: samples per second by number of clients, precision, and gradient
method.

    PYTHONPATH=src python benchmarks/study_gpu.py             needs only torch and numpy
    … --device cpu --rows 96 --runs 2                         to try the script without a GPU

Each run has three parties of 352 rows, the CNN with 62,006 parameters on 3×32×32, batches of 32, FedProx with its
own μ and local Adam. With autograd, `patches` copies every patch of a filter and `bands` multiplies whole rows
by a band matrix; `written` is the written-out gradient (tacit.engine.pooled), which networks of this kind use.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from tacit import algorithms, data, models
from tacit.engine import layers, task
from tacit.runtimes.cohort import Cohort, Run


def idle(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


KINDS = {"patches": 0, "bands": 16, "written": 16}
WRITTEN = task.network_of


def rate(
    fed: data.Federation, runs: int, kind: str, precision: str, device: torch.device, rounds: int
) -> float:
    layers.FEW, task.network_of = KINDS[kind], WRITTEN if kind == "written" else lambda *_: None
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    module = models.build("cnn", (3, 32, 32), 10, 0).to(device)
    model_task = task.Task(module, fed.rows.x.to(device), fed.rows.y.to(device))
    many = [
        Run(
            fed,
            algorithms.FedProx(lr=1e-3, mu=0.001 * i, solver=algorithms.Adam()),
            i,
            3,
            np.ones(3, dtype=np.int64),
            32,
        )
        for i in range(runs)
    ]
    cohort = Cohort(model_task, [model_task.initial()] * runs, many, "stack")
    cohort.round(0)  # records the graphs
    began = idle(device)
    for r in range(1, rounds + 1):
        cohort.round(r)
    return rounds * runs * int(fed.train.sizes.sum()) / (idle(device) - began)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, default=1056)
    parser.add_argument("--runs", type=int, nargs="+", default=[18, 90])
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    device, rng = torch.device(args.device), np.random.default_rng(0)
    x, y = rng.standard_normal((args.rows, 3, 32, 32), dtype=np.float32), rng.integers(0, 10, args.rows)
    fed = data.from_arrays(x, y, test=(x[:10], y[:10]), classes=10).split(3, seed=0, held_fraction=0.0)
    print(
        f"{torch.cuda.get_device_name(device) if device.type == 'cuda' else 'CPU'}, torch {torch.__version__}"
    )
    for runs in args.runs:
        for name in KINDS:
            for precision in ("float32", "tf32"):
                print(
                    f"{3 * runs:4d} clients, {name:8} {precision:8} "
                    f"{rate(fed, runs, name, precision, device, args.rounds):>12,.0f} samples/s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
