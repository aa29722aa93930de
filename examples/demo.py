"""Six federated algorithms, four ways the rows may lie, three seeds, two baselines: a table, a verdict and a
report. `make demo` runs it.

Offline, on the CPU, within two minutes on two slow cores. Every run writes to a fresh directory: demo-run,
demo-run-2, … The learning rates were chosen by tune_demo.py: twelve tries for each algorithm, scored without
the test set.
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
}  # the digits are public: figures on a few of them may be shown
SEEDS = 3


def federations(seed: int = 0) -> list[data.Federation]:
    digits = data.digits()
    return [digits.split(10, skew=skew, seed=seed) for skew in SKEWS]


def fresh(name: str = "demo-run") -> Path:
    """The first directory of that name that is not there yet."""
    return next(
        path for n in itertools.count(1) if not (path := Path(name if n == 1 else f"{name}-{n}")).exists()
    )


class Progress:
    """A line for each tenth of the work, and which runs are at it: those that share an algorithm train side
    by side, as one stack.
    """

    def __init__(self, runs: int):
        self.began, self.total, self.done = time.perf_counter(), runs * SETTINGS["rounds"], 0
        self.stack: list[str] = []
        self.at_work = False

    def __call__(self, event: dict[str, Any]) -> None:
        if event["kind"] == "start":
            self.stack = [*([] if self.at_work else self.stack), event["label"]]
            self.at_work = False
        elif event["kind"] == "round" and event["round"]:
            self.at_work, before, self.done = True, self.done, self.done + 1
            if 10 * self.done // self.total > 10 * before // self.total:
                print(
                    f"{self.seconds:5.1f} s  {100 * self.done // self.total:3}%  "
                    f"{', '.join(dict.fromkeys(self.stack))}",
                    flush=True,
                )

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began


def main() -> None:
    out, feds = fresh(), federations()
    runs, baselines = len(SKEWS) * len(ALGORITHMS) * SEEDS, sum(1 + len(fed) for fed in feds) * SEEDS
    print(
        f"1,797 handwritten digits, 10 parties; {len(SKEWS)} skews × {len(ALGORITHMS)} algorithms × {SEEDS} "
        f"seeds = {runs} runs, "
        f"and {baselines} short ones for the baselines."
    )
    progress = Progress(runs + baselines)
    found = tacit.compare(
        feds, algorithms=ALGORITHMS, seeds=SEEDS, landscape=True, out=out, watch=progress, **SETTINGS
    )
    report = found.report()
    print(f"{progress.seconds:5.1f} s  the report is written\n")
    print(
        f"Accuracy on the test set after {SETTINGS['rounds']} rounds, mean ± standard error over {SEEDS} "
        f"seeds:\n\n{found}\n"
    )
    print(
        f"The report: {report}\nLook at it: open that file in any browser; it needs no network and no server."
    )


if __name__ == "__main__":
    main()
