"""A hundred clients of a small CNN on one GPU: samples per second of tacit, and of a loop over clients on the
same GPU.

    PYTHONPATH=src python benchmarks/cohort_gpu.py            needs only torch and numpy
    … --data cifar.npz        rows x [N, 3, 32, 32] and y [N] instead of random ones of that shape (the arithmetic is the same)
    … --device cpu --parties 4 --samples 64                   to try the script without a GPU

Convolutions with 6 and 16 channels and layers of 120, 84 and 10 (62,006 parameters), 100 parties × 500
samples, batch 32, one local epoch, full participation. Rates are the wall time of a long run minus that of a
short one, with the GPU idle at both ends: startup and graph recording are reported separately (`before`), and
everything between rounds is included.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

BATCH = 32
AIM = {
    "FedAvg": (900_000, 60.0),
    "FedAvg, Adam": (600_000, None),
    "FedProx": (600_000, None),
}  # samples/s, ratio to the loop; goals for an H200


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def rows(args: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    n = args.parties * args.samples
    if args.data:
        with np.load(args.data, allow_pickle=False) as file:
            x, y = file["x"][:n].astype(np.float32), file["y"][:n].astype(np.int64)
        if len(x) < n:
            raise SystemExit(
                f"{args.data} has {len(x)} rows, {n} are needed: give more, or fewer --parties or --samples"
            )
        return x, y
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, 3, 32, 32), dtype=np.float32), rng.integers(0, 10, n)


def idle(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def loop(x: Tensor, y: Tensor, args: argparse.Namespace, adam: bool, mu: float) -> Callable[[int], Any]:
    """FedAvg, one client at a time, with everything on the GPU, one fused update per step, and no synchronization
    within a round.
    """
    net = model().to(x.device)
    parameters = list(net.parameters())
    start = [p.detach().clone() for p in parameters]
    optimizer = torch.optim.Adam(parameters, lr=1e-3, foreach=True) if adam else None

    @torch.no_grad()
    def run(rounds: int) -> None:
        w = [s.clone() for s in start]
        for _ in range(rounds):
            total = [torch.zeros_like(value) for value in w]
            for k in range(args.parties):
                torch._foreach_copy_(parameters, w)
                if optimizer is not None:
                    optimizer.state.clear()  # each client's Adam is reset
                mine = slice(k * args.samples, (k + 1) * args.samples)
                order = torch.randperm(args.samples, device=x.device)
                xs, ys = x[mine][order], y[mine][order]
                for xb, yb in zip(xs.split(BATCH), ys.split(BATCH)):
                    with torch.enable_grad():
                        loss = cross_entropy(net(xb), yb)
                    gradients = list(torch.autograd.grad(loss, parameters))
                    if mu:
                        torch._foreach_add_(gradients, torch._foreach_sub(parameters, w), alpha=mu)
                    if optimizer is None:
                        torch._foreach_add_(parameters, gradients, alpha=-0.05)
                    else:
                        for p, g in zip(parameters, gradients):
                            p.grad = g
                        optimizer.step()
                torch._foreach_add_(total, parameters)
            w = torch._foreach_div(total, args.parties)

    return run


def rate(run: Callable[[int], Any], args: argparse.Namespace, short: int, long: int) -> dict[str, float]:
    """Samples per second, and the seconds before the steady rounds."""
    device = torch.device(args.device)
    marks = [idle(device)]
    for rounds in (short, short, long):  # the first includes startup and is not used for the rate
        run(rounds)
        marks.append(idle(device))
    first, brief, full = (b - a for a, b in pairwise(marks))
    a_round = (full - brief) / (long - short)
    return {
        "samples/s": args.parties * args.samples / a_round,
        "seconds a round": a_round,
        "before": first - short * a_round,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--parties", type=int, default=100)
    parser.add_argument("--samples", type=int, default=500, help="samples per party")
    parser.add_argument("--rounds", type=int, default=40, help="rounds of the long run of tacit")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--only", choices=["all", "loop", "ours"], default="all")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(
        f"{name}, torch {torch.__version__}; {args.parties} parties × {args.samples} samples, batch {BATCH}, "
        f"{sum(p.numel() for p in model().parameters()):,} parameters, float32",
        flush=True,
    )
    x, y = rows(args)
    figures: dict[str, dict[str, float]] = {}

    def report(label: str, figure: dict[str, float]) -> None:
        figures[label] = figure
        speed, a_round, before = figure["samples/s"], figure["seconds a round"], figure["before"]
        print(
            f"{label:24}{speed:>14,.0f} samples/s {a_round:>10.4f} s/round, {before:>6.1f} s before",
            flush=True,
        )

    if args.only != "ours":
        on_card = torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)
        for label, adam, mu in (
            ("FedAvg", False, 0.0),
            ("FedAvg, Adam", True, 0.0),
            ("FedProx", False, 0.01),
        ):
            report(f"{label}: loop", rate(loop(*on_card, args, adam, mu), args, 1, 3))
        del on_card
    if args.only != "loop":
        import tacit
        from tacit import algorithms, data

        fed = data.from_arrays(x, y, test=(x[:1000], y[:1000])).split(
            args.parties, skew=data.IID(), seed=0, held_fraction=0
        )
        chosen = {
            "FedAvg": algorithms.FedAvg(lr=0.05),
            "FedAvg, Adam": algorithms.FedAvg(lr=1e-3, solver=algorithms.Adam()),
            "FedProx": algorithms.FedProx(lr=0.05, mu=0.01),
        }
        for label, algorithm in chosen.items():

            def run(rounds: int, algorithm: Any = algorithm) -> Any:
                return tacit.train(
                    fed,
                    model=model(),
                    algorithm=algorithm,
                    rounds=rounds,
                    per_round=args.parties,
                    local_epochs=1,
                    batch_size=BATCH,
                    seed=0,
                    device=args.device,
                    evaluate_every=0,
                )

            report(f"{label}: ours", rate(run, args, max(1, args.rounds // 8), args.rounds))
    for label, (least, times) in AIM.items():
        ours, theirs = figures.get(f"{label}: ours"), figures.get(f"{label}: loop")
        if ours is None:
            continue
        line = (
            f"{label}: {ours['samples/s']:,.0f} samples/s, goal ≥ {least:,}: "
            f"{'reached' if ours['samples/s'] >= least else 'MISSED'}"
        )
        if theirs is not None:
            ratio = ours["samples/s"] / theirs["samples/s"]
            line += f"; {ratio:.1f}× the loop"
            line += f", goal ≥ {times:.0f}×: {'reached' if ratio >= times else 'MISSED'}" if times else ""
        print(line)
    if args.json:
        args.json.write_text(
            json.dumps({"device": name, "torch": torch.__version__, "figures": figures}, indent=1)
        )


if __name__ == "__main__":
    main()
