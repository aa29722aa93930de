"""The cost of gossip and of robust aggregation rules.

    python benchmarks/topologies.py gossip                 1,000 nodes with a logistic model on an exponential graph, 100 rounds, against a plain loop
    python benchmarks/topologies.py rules [Median …] [--updates 1000 --size 1000000]   rules in bounded memory, against plain numpy

Each rule runs in its own process; *anonymous MB* is its peak memory without mapped files (which the system
reclaims when it needs them). The naive versions keep all updates in one array, which is included.
"""

from __future__ import annotations

import argparse
import copy
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch


def anonymous() -> float:
    """MB of this process that are not backed by a file."""
    return (
        next(
            int(line.split()[1])
            for line in Path("/proc/self/status").read_text().splitlines()
            if line.startswith("RssAnon")
        )
        / 1024
    )


class Peak:
    def __enter__(self) -> Peak:
        self.most, self.on = 0.0, True
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def _watch(self) -> None:
        while self.on:
            self.most = max(self.most, anonymous())
            time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        self.on = False
        self.thread.join()


# gossip -----------------------------------------------------------------------------------------------------


def gossip(nodes: int, rounds: int) -> None:
    import tacit
    from tacit import algorithms, data, graphs

    fed = data.gaussian_blobs(rows=nodes * 20, classes=10, features=64, seed=0).split(
        nodes, seed=0, held_fraction=0.0
    )
    graph = graphs.exponential(nodes)
    graph.gap()  # not part of the rounds
    step = algorithms.FedAvg(lr=0.1, weighted=False)
    job = dict(graph=graph, model="logistic", algorithm=step, batch_size=10, evaluate_every=0)
    tacit.gossip(fed, rounds=1, **job)
    begin = time.process_time(), time.perf_counter()
    run = tacit.gossip(fed, rounds=rounds, **job)
    ours = time.process_time() - begin[0], time.perf_counter() - begin[1]
    begin = time.process_time(), time.perf_counter()
    few = max(1, rounds // 10)
    w = loop(fed, graph, few)
    theirs = (time.process_time() - begin[0]) * rounds / few, (time.perf_counter() - begin[1]) * rounds / few
    same = tacit.gossip(fed, rounds=few, **job)
    got = torch.cat([p.detach().reshape(-1) for p in same.model.parameters()])
    print(
        f"{nodes} nodes, {rounds} rounds: ours {ours[0]:.1f} CPU-s ({ours[1]:.1f} s), a plain loop "
        f"{theirs[0]:.1f} CPU-s ({theirs[1]:.1f} s, from {few} "
        f"rounds): {theirs[0] / ours[0]:.1f}× ; accuracy {run.metrics['accuracy']:.3f}"
    )
    print(
        f"the loop's mean model lies {float((w.mean(0) - got).norm() / got.norm()):.1%} from ours (it draws "
        "its own batches)"
    )


def loop(fed, graph, rounds: int) -> torch.Tensor:
    """A plain loop over nodes and neighbors."""
    torch.set_num_threads(1)
    n = len(fed)
    torch.manual_seed(0)
    from tacit import models

    first = models.build("logistic", tuple(fed.rows.x.shape[1:]), fed.classes, 0)
    nets = [copy.deepcopy(first) for _ in range(n)]
    takes = [[(j, float(w)) for j, w in enumerate(row) if w] for row in graph.matrix()]
    for _ in range(rounds):
        for k, net in enumerate(nets):
            rows = fed.train.of(k)[torch.randperm(int(fed.train.sizes[k]))]
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for part in rows.split(10):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(net(fed.rows.x[part]), fed.rows.y[part]).backward()
                optimizer.step()
        flat = [torch.nn.utils.parameters_to_vector(net.parameters()).detach() for net in nets]
        for k, net in enumerate(nets):
            torch.nn.utils.vector_to_parameters(sum(w * flat[j] for j, w in takes[k]), net.parameters())
    return torch.stack([torch.nn.utils.parameters_to_vector(net.parameters()).detach() for net in nets])


# rules ------------------------------------------------------------------------------------------------------


def chunks(n: int, size: int, of: int = 20):
    """Updates in chunks. Normal numbers are drawn once and shifted from chunk to chunk: drawing a billion would take
    longer than any rule.
    """
    rng = np.random.default_rng(0)
    drawn = rng.standard_normal((of, size), dtype=np.float32) + 1
    for i in range(0, n, of):
        yield np.roll(drawn, int(rng.integers(size)), axis=1)[: min(of, n - i)]


def distances(x: np.ndarray) -> np.ndarray:
    squares = (x * x).sum(1)
    return squares[:, None] + squares[None] - 2 * x @ x.T


def naive(name: str, x: np.ndarray) -> np.ndarray:
    """The rule with its usual parameters, written plainly over one array of all updates."""
    n = len(x)
    f = int(0.2 * n)
    match name:
        case "Mean":
            return x.mean(0)
        case "ClippedMean":
            norms = np.linalg.norm(x, axis=1)
            return (x * np.minimum(1, np.median(norms) / norms)[:, None]).mean(0)
        case "NormBound":
            norms = np.linalg.norm(x, axis=1)
            return x[norms <= 2 * np.median(norms)].mean(0)
        case "CenteredClip":
            tau, v = np.median(np.linalg.norm(x, axis=1)), np.zeros_like(x[0])
            for _ in range(5):
                away = x - v
                v = v + (away * np.minimum(1, tau / np.linalg.norm(away, axis=1))[:, None]).mean(0)
            return v
        case "Median":
            return np.median(x, axis=0)
        case "TrimmedMean":
            return np.sort(x, axis=0)[f : n - f].mean(0)
        case "Krum" | "MultiKrum":
            score = np.sort(distances(x), axis=1)[:, 1 : n - f - 1].sum(1)
            return x[np.argmin(score)] if name == "Krum" else x[np.argsort(score)[: n - f]].mean(0)
        case "Bulyan":
            d, left, chosen = distances(x), list(range(n)), []
            for _ in range(n - 2 * f):
                here = d[np.ix_(left, left)]
                chosen.append(
                    left.pop(int(np.sort(here, axis=1)[:, 1 : max(2, len(left) - f - 1)].sum(1).argmin()))
                )
            selected = np.sort(x[chosen], axis=0)
            middle, near = np.median(selected, axis=0), n - 4 * f
            order = np.argsort(np.abs(selected - middle), axis=0)[:near]
            return np.take_along_axis(selected, order, axis=0).mean(0)
        case "FoolsGold":
            unit = x / np.linalg.norm(x, axis=1)[:, None]
            alike = unit @ unit.T
            np.fill_diagonal(alike, -1)
            most = alike.max(1)
            pardon = np.where(most[None] > most[:, None], most[:, None] / np.maximum(most[None], 1e-12), 1)
            share = np.clip(1 - (alike * pardon).max(1), 0, 1)
            share = np.clip(share / share.max(), 1e-12, 1 - 1e-6)
            share = np.clip(np.log(share / (1 - share)) + 0.5, 0, 1)
            return (share / share.sum()) @ x
        case "SignMajority":
            up, down = (x > 0).sum(0), (x < 0).sum(0)
            rise, fall = np.where(x > 0, x, 0).sum(0), np.where(x < 0, x, 0).sum(0)
            return np.where(
                up > down, rise / np.maximum(up, 1), np.where(down > up, fall / np.maximum(down, 1), 0)
            )
    z = x.mean(0)
    for _ in range(10):  # the geometric median: Weiszfeld, ten steps
        far = np.maximum(1e-6, np.linalg.norm(x - z, axis=1))
        z = (x / far[:, None]).sum(0) / (1 / far).sum()
    return z


RULES = (
    "Mean",
    "ClippedMean",
    "NormBound",
    "CenteredClip",
    "Median",
    "TrimmedMean",
    "Krum",
    "MultiKrum",
    "Bulyan",
    "GeometricMedian",
    "FoolsGold",
    "SignMajority",
)
ROOM = 20e9  # bytes the naive version may use; with copies it uses up to four times the size of the array
COPIES = {"Bulyan": 4}  # the others make one or two


def rule(name: str, n: int, size: int, who: str) -> None:
    from tacit import aggregate

    torch.set_num_threads(1)
    cpu = wall = 0.0

    def timed(work):
        nonlocal cpu, wall
        begin = time.process_time(), time.perf_counter()
        result = work()
        cpu, wall = cpu + time.process_time() - begin[0], wall + time.perf_counter() - begin[1]
        return result

    with Peak() as peak:
        if who == "ours":  # receiving an update is part of the work; creating it is not
            make = aggregate.ALL[name]()
            total = make.start()
            for c in chunks(n, size):
                total = timed(
                    lambda c=c, total=total: make.add(
                        total, torch.ones(1, len(c)), {"delta": torch.from_numpy(c)}
                    )
                )
            out = timed(lambda: make.result(total))["delta"][0].numpy()
        else:
            x, at = np.empty((n, size), np.float32), 0
            for c in chunks(n, size):
                x[at : at + len(c)], at = c, at + len(c)
            out = timed(lambda: naive(name, x))
    print(f"{cpu:.2f} {wall:.2f} {peak.most:.0f} {float(out[:1000].mean()):.4f}")


def rules(n: int, size: int, names: list[str]) -> None:
    print(f"{n} updates of {size:,} numbers ({4 * n * size / 1e9:.1f} GB)")
    for name in names or RULES:
        figures = []
        few = (
            size if 4 * n * size * (1 + COPIES.get(name, 2)) <= ROOM else size // 4
        )  # if it does not fit, a quarter of the numbers; the line states it
        for who, many in (("ours", size), ("naive", few)):
            done = subprocess.run(
                [sys.executable, __file__, "rule", name, str(n), str(many), who],
                capture_output=True,
                text=True,
                check=True,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )  # one core for each
            figures.append([float(v) for v in done.stdout.split()])
        (a, wa, ma, va), (b, wb, mb, vb) = figures
        small = "" if few == size else f" (on {few:,} numbers)"
        print(
            f"{name:16} ours {a:6.1f} CPU-s {wa:6.1f} s {ma:6.0f} anonymous MB | naive {b:6.1f} CPU-s "
            f"{wb:6.1f} s {mb:6.0f} MB{small} | "
            f"{b * size / few / max(a, 0.01):.1f}× ; first coordinates' mean {va:.4f} and {vb:.4f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("gossip", "rules", "rule"))
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--size", type=int, default=1_000_000)
    args = parser.parse_args()
    if args.what == "gossip":
        gossip(args.nodes, args.rounds)
    elif args.what == "rules":
        rules(args.updates, args.size, args.rest)
    else:
        name, n, size, who = args.rest
        rule(name, int(n), int(size), who)


if __name__ == "__main__":
    main()
