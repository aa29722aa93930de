"""A network split over two real processes, against the same network in one: seconds per epoch, and equality of the
weights after the first.

    python benchmarks/splitnn.py [--epochs 3] [--batch 256] [--rows 60000] [--slices 1 2 4] [--random]

MNIST (or, with `--random`, random images of its size: the arithmetic costs the same), 784-128-640 at the holder of the images and 640-10 at the holder of the labels, SGD. Each holder has a
process, a certificate, an encrypted channel, and one thread; the network in one process has one
thread, and, for comparison, all of them. Evaluation is not timed. `slices` splits a batch into pieces that are
sent and computed concurrently; 1 sums in the same order as one network. On a busy machine the wall-time ratio
favors the contender with more processes. CPU seconds per epoch (both parties and the hub, without startup) do
not, and bound the wall-time ratio on an idle machine. Each is measured twice: through a hub, as between
organizations, and directly, as `runtime="processes"` does on one machine.
"""

from __future__ import annotations

import argparse
import math
import os
import threading
import time
from pathlib import Path

import torch
from torch import nn

import tacit
from tacit.protocols.splitnn_terms import SplitTerms


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 640), nn.ReLU(), nn.Linear(640, 10))


def images(rows: int, is_random: bool) -> tuple[torch.Tensor, torch.Tensor]:
    if is_random:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(rows, 784, generator=generator)
        return x, (x @ torch.randn(784, 10, generator=generator)).argmax(1)
    mnist = tacit.data.mnist()
    return mnist.rows.x.reshape(len(mnist.rows.y), -1)[:rows].contiguous(), mnist.rows.y[:rows]


def central(
    x: torch.Tensor, y: torch.Tensor, batch: int, epochs: int, threads: int
) -> tuple[float, float, nn.Module]:
    torch.set_num_threads(threads)
    net, terms = network(), SplitTerms((), (len(x),), (0,), batch_size=batch)
    step = torch.optim.SGD(net.parameters(), lr=0.1)
    took, used = [], []
    for epoch in range(epochs):
        began, spent = time.perf_counter(), time.process_time()
        for rows in terms.batches(epoch, 0):
            step.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            step.step()
        took.append(time.perf_counter() - began)
        used.append(time.process_time() - spent)
    return min(took), min(used), net


class Descendants:
    """CPU seconds of all descendants of this process, from /proc, as last seen."""

    def __init__(self) -> None:
        self.used: dict[int, float] = {}
        self.over = threading.Event()
        self.watch = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Descendants:
        self.watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.watch.join()

    def _look(self) -> None:
        tick = os.sysconf("SC_CLK_TCK")
        while not self.over.wait(0.05):
            parents: dict[int, tuple[int, float]] = {}
            for entry in Path("/proc").glob("[0-9]*/stat"):
                try:
                    text = entry.read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                parents[int(entry.parent.name)] = (int(text[1]), (int(text[11]) + int(text[12])) / tick)
            for pid, (up, seconds) in parents.items():
                while up not in (0, 1, os.getpid()) and up in parents:
                    up = parents[up][0]
                if up == os.getpid():
                    self.used[pid] = seconds

    @property
    def total(self) -> float:
        return sum(self.used.values())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rows", type=int, default=60000)
    parser.add_argument("--slices", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--random", action="store_true", help="random images, where MNIST is not available")
    args = parser.parse_args()
    x, y = images(args.rows, args.random)
    cores = os.cpu_count() or 1
    print(
        f"{len(x)} images, batch {args.batch}, best of {args.epochs} epochs, {cores} cores, load "
        f"{os.getloadavg()[0]:.1f}"
    )
    one, cpu, _ = central(x, y, args.batch, args.epochs, 1)
    net = central(x, y, args.batch, 1, 1)[2]
    many, _, _ = central(x, y, args.batch, args.epochs, cores)
    torch.set_num_threads(1)
    print(f"in one place, 1 thread        {one:6.2f} s an epoch           {cpu:.2f} CPU seconds")
    print(f"in one place, {cores} threads       {many:6.2f} s an epoch   {many / one:.2f} ×")
    bottom, top = tacit.cut(network(), 4)
    for slices in args.slices:
        for through_hub in (True, False):
            spent, best = [], math.inf
            for epochs in (args.epochs, 1):
                with Descendants() as below:
                    run = tacit.splitnn(
                        {"images": x},
                        {"labels": y},
                        bottoms=bottom,
                        top=top,
                        configuration="vanilla",
                        epochs=epochs,
                        batch_size=args.batch,
                        lr=0.1,
                        optimizer="sgd",
                        patience=0,
                        test_fraction=0.0,
                        slices=slices,
                        runtime=tacit.Processes(through_hub=through_hub),
                    )
                spent.append(below.total)
                best = min([best, *(row["seconds"] for row in run.history)])
                sent = sum(line.bytes for line in run.ledger.seen) / epochs / 1e6
            each = (spent[0] - spent[1]) / (args.epochs - 1)
            off = max(
                float((run.shares["images"].state[f"bottom.{k}"] - v).abs().max())
                for k, v in tacit.cut(net, 4)[0].state_dict().items()
            )
            way = (
                f"{'through a hub' if through_hub else 'directly'}, {slices} slice{'s' if slices > 1 else ''}"
            )
            print(
                f"{way:27}   {best:6.2f} s an epoch   {best / one:.2f} ×   {each:.2f} CPU seconds   "
                f"{each / cpu:.2f} ×   {sent:.0f} MB   weights differ by {off:.1e}"
            )


if __name__ == "__main__":
    main()
