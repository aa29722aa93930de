"""Compare six federated algorithms under four skews with three seeds and two baselines. `make demo` runs it.

It prints a table and a verdict, and writes a report. It runs offline, on the CPU, within two minutes on two
slow cores. Every run writes to a new directory: demo-run, demo-run-2, … tune_demo.py chose the learning
rates: twelve candidates for each algorithm, scored without the test set.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import tacit
from tacit import algorithms, data, models

SKEWS = (data.IID(), data.Dirichlet(alpha=0.3), data.LabelsPerParty(labels=2), data.Quantity(alpha=0.5))
ALGORITHMS = (
    algorithms.FedAvg(lr=0.4),
    algorithms.FedProx(lr=0.4, mu=0.001),
    algorithms.FedNova(lr=0.4),
    algorithms.Scaffold(lr=0.3),
    algorithms.FedAdam(lr=0.4, server_lr=0.1),
    algorithms.FedDyn(lr=0.4, alpha=0.03),
)
SETTINGS: dict[str, Any] = {
    "model": models.MLP(hidden=(64,)),
    "rounds": 20,
    "local_epochs": 3,
    "batch_size": 32,
    "min_rows": 1,
}  # min_rows: the digits are public, so metrics on few rows may be shown
SEEDS = 3


def federations(seed: int = 0) -> list[data.Federation]:
    digits = data.digits()
    return [digits.split(10, skew=skew, seed=seed) for skew in SKEWS]


def fresh(name: str = "demo-run") -> Path:
    """The first directory with this name that does not exist yet."""
    return next(
        path for n in itertools.count(1) if not (path := Path(name if n == 1 else f"{name}-{n}")).exists()
    )


class Progress:
    """Print a line after each tenth of the work, with the runs of the current stack.

    Runs with the same algorithm are trained together, as one stack.
    """

    def __init__(self, runs: int):
        self.start, self.total, self.done = time.perf_counter(), runs * SETTINGS["rounds"], 0
        self.stack: list[str] = []
        self.is_training = False

    def __call__(self, event: dict[str, Any]) -> None:
        if event["kind"] == "start":
            self.stack = [*([] if self.is_training else self.stack), event["label"]]
            self.is_training = False
        elif event["kind"] == "round" and event["round"]:
            self.is_training, before, self.done = True, self.done, self.done + 1
            if 10 * self.done // self.total > 10 * before // self.total:
                print(
                    f"{self.seconds:5.1f} s  {100 * self.done // self.total:3}%  "
                    f"{', '.join(dict.fromkeys(self.stack))}",
                    flush=True,
                )

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.start


def main() -> None:
    out, feds = fresh(), federations()
    runs, baselines = len(SKEWS) * len(ALGORITHMS) * SEEDS, sum(1 + len(fed) for fed in feds) * SEEDS
    print(
        f"1,797 handwritten digits, 10 parties; {len(SKEWS)} skews × {len(ALGORITHMS)} algorithms × {SEEDS} "
        f"seeds = {runs} runs, "
        f"and {baselines} short baseline runs."
    )
    progress = Progress(runs + baselines)
    comparison = tacit.compare(
        feds, algorithms=ALGORITHMS, seeds=SEEDS, landscape=True, out=out, watch=progress, **SETTINGS
    )
    report = comparison.report()
    print(f"{progress.seconds:5.1f} s  report written\n")
    print(
        f"Accuracy on the test set after {SETTINGS['rounds']} rounds, mean ± standard error over {SEEDS} "
        f"seeds:\n\n{comparison}\n"
    )
    print(f"Report: {report}\nOpen it in a browser; it needs no network and no server.")


if __name__ == "__main__":
    main()
