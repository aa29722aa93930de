"""Why FedNova collapses with very unequal parties: the ratio of its step to the parties' mean update, and the same
without it.

    python benchmarks/fednova_step.py --data-dir DATA            CIFAR-10, 5,000 rows, ten parties, three draws of their sizes; about ten CPU minutes
    python benchmarks/fednova_step.py --data-dir DATA --rows 500 --rounds 1         to try the script

The step is τ_eff Σ p_k Δ_k/τ_k, with τ_eff = Σ p_k τ_k: a weighted mean of the updates Δ_k, times S = Σ p_k
τ_k · Σ p_k/τ_k. If parties train the same number of epochs, τ_k is proportional to their rows, and S is the
number of parties times Σ p_k²: 1 for equal parties, up to 10 for ten. If all parties moved straight to one
point, the remaining distance would be multiplied by 1 − S in every round, so it grows if S is above 2.
`tau="harmonic"` uses τ_eff = 1 / Σ p_k/τ_k, and S is 1.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from tacit import algorithms, data, models
from tacit.engine.task import Task
from tacit.runtimes.cohort import Cohort, Run

BATCH, LR, MOMENTUM, PARTIES, EPOCHS = 64, 0.01, 0.9, 10, 10  # as in the study niid-bench
SEEDS = 3, 10, 9  # draws of the sizes with S below 2, slightly above it, and far above


def walk(fed: data.Federation, tau: str, rounds: int) -> None:
    torch.manual_seed(0)
    task = Task(models.CNN(crop=4, flip=True).build((3, 32, 32), 10), fed.rows.x, fed.rows.y)
    algorithm = algorithms.FedNova(lr=LR, solver=algorithms.SGD(momentum=MOMENTUM), tau=tau)
    cohort = Cohort(
        task, [task.initial()], [Run(fed, algorithm, 0, PARTIES, np.full(PARTIES, EPOCHS), BATCH)], "each"
    )
    right, lengths = [], []
    for r in range(rounds):
        cohort.round(r)
        right.append(float((task.predict(cohort.w[0], fed.test.x).argmax(1) == fed.test.y).float().mean()))
        lengths.append(float(cohort.w[0].norm()))
    print(
        f"  τ_eff {tau:8s} accuracy "
        + " ".join(f"{a:.3f}"[1:] for a in right)
        + f"; |w| {lengths[0]:.1f} to {lengths[-1]:.3g}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=12)
    args = parser.parse_args()
    whole = data.cifar10(scale="standard", data_dir=args.data_dir)
    some, tested = (
        np.sort(np.random.default_rng([0, stream]).permutation(len(of.y))[:n])
        for of, stream, n in ((whole.rows, 11, args.rows), (whole.test, 12, 1000))
    )
    rows = data.from_arrays(
        whole.rows.x[some], whole.rows.y[some], test=(whole.test.x[tested], whole.test.y[tested]), classes=10
    )
    for seed in SEEDS:
        fed = rows.split(PARTIES, skew=data.Quantity(0.5), seed=seed, held_fraction=0.0)
        n = fed.train.sizes.numpy()
        t = EPOCHS * -(-n // BATCH)
        a, p = (t - MOMENTUM * (1 - MOMENTUM**t) / (1 - MOMENTUM)) / (1 - MOMENTUM), n / n.sum()
        print(f"rows {n.min()} to {n.max()}: S = {p @ a * (p @ (1 / a)):.2f}", flush=True)
        for tau in ("mean", "harmonic"):
            walk(fed, tau, args.rounds)


if __name__ == "__main__":
    main()
