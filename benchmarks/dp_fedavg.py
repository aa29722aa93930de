"""The cost of privacy by trust model: DP-FedAvg on MNIST, with the client as the unit.

    TACIT_DATA=… python benchmarks/dp_fedavg.py [--seeds 1] [--only central] [--out FILE.json]

6,000 clients have 10 digits each; logistic regression, 30 rounds of about 400 clients, 5 local epochs in
batches of 10, lr 0.1, updates clipped to an L2 norm of 0.5. All rows of the table have the same setting, near
the best of five tried by hand with a noise multiplier of 0.6 on seed 0; nothing is tuned for a budget. It takes
about ten minutes on two cores, nearly all for the 3 million exact discrete Gaussian numbers per round if each
client adds its own noise.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import tacit
from tacit import algorithms, data, guard

CLIENTS, PER_ROUND, ROUNDS, NORM, DELTA = 6000, 400, 30, 0.5, 1e-5


def rows() -> list[tuple[str, str, list[Any] | None, str]]:
    """(trusted parties, ε, the guard, the sampling)."""

    def central(epsilon: float) -> list[Any]:
        return [guard.Clip(NORM), guard.Noise(epsilon=epsilon, delta=DELTA)]

    hidden = [
        guard.Clip(NORM),
        guard.Noise(epsilon=8.0, delta=DELTA, placement="distributed"),
        guard.Quantize(bits=24),
        guard.SecAgg(threshold=0.6),
    ]
    skellam = [
        guard.Clip(NORM),
        guard.Noise(epsilon=8.0, delta=DELTA, placement="distributed", distribution="skellam"),
        guard.Quantize(bits=20),
        guard.SecAgg(threshold=0.6),
    ]
    local = [guard.Clip(NORM), guard.Noise(epsilon=8.0, delta=DELTA, placement="local")]
    return [
        ("everyone: no guard", "∞", None, "poisson"),
        ("everyone: clipped only", "∞", [guard.Clip(NORM)], "poisson"),
        *(("the server (central noise)", f"{e:g}", central(e), "poisson") for e in (3.0, 1.0, 0.25)),
        ("240 of 400 clients (distributed noise, secure sum)", "8", hidden, "fixed"),
        ("240 of 400 clients (the same, Skellam, 20 bits)", "8", skellam, "fixed"),
        ("nobody (local noise)", "8", local, "fixed"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help="only the rows whose first column contains this, such as 'central'",
    )
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    home = os.environ.get("TACIT_DATA")
    digits = data.mnist(data_dir=None if home is None else Path(home) / "mnist")
    results = []
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; δ = {DELTA:g}\n")
    print(f"{'trusted':52} {'ε':>4}  {'z':>6}  {'accuracy':>8}  {'seconds':>7}")
    for who, epsilon, stages, sampling in (row for row in rows() if args.only in row[0]):
        scores, spent, began = [], None, time.perf_counter()
        for seed in range(args.seeds):
            fed = digits.split(CLIENTS, seed=seed, held_fraction=0.0)
            run = tacit.train(
                fed,
                model="logistic",
                algorithm=algorithms.FedAvg(lr=0.1, weighted=False),
                rounds=ROUNDS,
                per_round=PER_ROUND,
                local_epochs=5,
                batch_size=10,
                sampling=sampling,
                guard=stages,
                evaluate_every=0,
                seed=seed,
            )
            scores.append(run.metrics["accuracy"])
            spent = run.ledger.spent[0] if run.ledger.spent else None
        z = "–" if spent is None else spent.mechanism.split(" of ")[1].split()[0]
        row = {
            "trusted": who,
            "epsilon": epsilon,
            "multiplier": z,
            "accuracy": scores,
            "seconds": time.perf_counter() - began,
            "spent": None
            if spent is None
            else {
                "epsilon": spent.epsilon,
                "delta": spent.delta,
                "unit": spent.unit,
                "against": spent.adversary,
                "sampling": spent.sampling,
                "mechanism": spent.mechanism,
            },
        }
        results.append(row)
        print(
            f"{who:52} {epsilon:>4}  {z:>6}  {sum(scores) / len(scores):>8.3f}  {row['seconds']:>7.0f}",
            flush=True,
        )
    if args.out is not None:
        args.out.write_text(json.dumps(results, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
