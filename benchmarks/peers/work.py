"""The workload of every contender: the same arrays, the same initial weights, the same rounds.

It imports only the standard library, numpy and torch, so that it loads in each peer's own environment.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Work:
    """One federated job. `rounds` is the length of the steady-state measurement; the first `warm` of them are not
    counted.
    """

    name: str
    title: str
    parties: int
    samples: int  # a party
    per_round: int
    batch: int
    lr: float
    shape: tuple[int, ...]
    rounds: int
    warm: int
    signal: float  # the distance of the class means, relative to noise of 1


WORKS = {
    # 100 local steps per round. 5×5 convolutions 3→32→64 and a hidden layer of 64: of the usual two-convolution
    # CIFAR networks the one whose cost is closest to the 1.15 s per round of the single-threaded loop for which the
    # goals were set.
    "cnn": Work(
        "cnn",
        "two-convolution CNN, 32×32×3, 100 parties × 200 samples, 10 per round, batch 20",
        100,
        200,
        10,
        20,
        0.05,
        (3, 32, 32),
        rounds=12,
        warm=2,
        signal=0.5,
    ),
    # 200 local steps per round with little arithmetic: this measures the overhead of a framework.
    "logistic": Work(
        "logistic",
        "logistic regression 784→10, 1,000 parties × 20 samples, 100 per round, batch 10",
        1000,
        20,
        100,
        10,
        0.05,
        (784,),
        rounds=40,
        warm=5,
        signal=0.12,
    ),
}
CLASSES, TEST_ROWS, LABEL_NOISE = 10, 2000, 0.2


def make(work: Work, folder: Path) -> None:
    """Write the arrays: a class mean plus unit noise, with a fifth of the labels random.

    The random labels give the loss a lower bound, so that contenders with other client samples can be compared to a
    few percent.
    """
    rng = np.random.default_rng(20)
    n = work.parties * work.samples
    means = work.signal * rng.standard_normal((CLASSES, *work.shape), dtype=np.float32)
    if len(work.shape) == 3:  # 8×8 patches of one color, which a convolution learns sooner than white noise
        means = means[:, :, ::8, ::8].repeat(8, 2).repeat(8, 3)
    label = rng.integers(0, CLASSES, n + TEST_ROWS)
    x = rng.standard_normal((n + TEST_ROWS, *work.shape), dtype=np.float32)
    for start in range(0, len(x), 1000):  # in chunks: means[label] at once would double the memory
        x[start : start + 1000] += means[label[start : start + 1000]]
    y = np.where(rng.random(len(label)) < LABEL_NOISE, rng.integers(0, CLASSES, len(label)), label)
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("x", x[:n]), ("y", y[:n]), ("xt", x[n:]), ("yt", y[n:])):
        np.save(folder / f"{work.name}-{name}.npy", rows)


def load(work: Work, folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, y, test x, test y; party k has rows k·samples to (k + 1)·samples. Mapped copy-on-write, so that processes share
    the pages.
    """
    return tuple(
        torch.from_numpy(np.load(folder / f"{work.name}-{part}.npy", mmap_mode="c"))
        for part in ("x", "y", "xt", "yt")
    )  # type: ignore[return-value]


def model(work: Work) -> nn.Module:
    """The same network with the same initial weights for every contender."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if work.name == "logistic":
            return nn.Sequential(nn.Flatten(), nn.Linear(784, CLASSES))
        return nn.Sequential(
            nn.Conv2d(3, 32, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 5 * 5, 64),
            nn.ReLU(),
            nn.Linear(64, CLASSES),
        )


@torch.no_grad()
def score(net: nn.Module, xt: Tensor, yt: Tensor) -> dict[str, float]:
    out = torch.cat([net(rows) for rows in xt.split(500)])
    return {
        "loss": float(nn.functional.cross_entropy(out, yt)),
        "accuracy": float((out.argmax(1) == yt).float().mean()),
    }


def since_launch() -> float:
    """Seconds since the kernel started this process, so that imports are included."""
    started = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19]) / os.sysconf(
        "SC_CLK_TCK"
    )
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def descendants(pid: int) -> list[int]:
    parent: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue  # ended in the meantime
            parent.setdefault(int(fields[1]), []).append(int(entry))
    found, queue = [], [pid]
    while queue:
        children = parent.get(queue.pop(), [])
        found += children
        queue += children
    return found


def cpu_seconds() -> float:
    """CPU seconds so far of this process and its children, including finished ones."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + ended.ru_utime + ended.ru_stime
    for pid in descendants(os.getpid()):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    return total


class Laps:
    """Round ends of one run. A round's time is from end to end, so everything between rounds is counted."""

    def __init__(self, work: Work) -> None:
        self.warm, self.ends, self.cpu = work.warm, [time.perf_counter()], [0.0, 0.0]
        self.first = 0.0

    def lap(self) -> None:
        self.ends.append(time.perf_counter())
        done = len(self.ends) - 1
        if done == 1:
            self.first = since_launch()
        if done == self.warm:
            self.cpu[0] = cpu_seconds()
            self.ends[-1] = time.perf_counter()  # the time for reading /proc is not the contender's

    def close(self) -> dict[str, Any]:
        self.cpu[1] = cpu_seconds()
        seconds = [after - before for before, after in zip(self.ends, self.ends[1:])]
        steady = seconds[self.warm :]
        return {
            "first": self.first,
            "seconds": seconds,
            "median": float(np.median(steady)),
            "min": min(steady),
            "mean": float(np.mean(steady)),
            "cpu": (self.cpu[1] - self.cpu[0]) / len(steady),
        }


def arguments(modes: Iterable[str] = ()) -> tuple[Work, argparse.Namespace]:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=list(WORKS))
    parser.add_argument("--data", type=Path, required=True, help="folder with the arrays")
    parser.add_argument("--rounds", type=int, help="default: the work's own")
    if modes:
        parser.add_argument("--mode", choices=list(modes), default=next(iter(modes)))
    args = parser.parse_args()
    work = WORKS[args.work]
    args.rounds = args.rounds or work.rounds
    if args.rounds <= work.warm:
        parser.error(
            f"--rounds must be more than the {work.warm} warm-up rounds of {work.name}; got {args.rounds}"
        )
    return work, args


def print_figures(**what: Any) -> None:
    """Print the one line of a runner for cohort.py."""
    print(json.dumps({**what, "torch": torch.__version__, "python": sys.version.split()[0]}), flush=True)
