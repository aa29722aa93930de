"""Why SCAFFOLD diverges with very unequal parties: how far its correction alone moves each of them, with equal
epochs and with equal steps.

    python benchmarks/scaffold_drift.py --data-dir DATA            CIFAR-10, 10,000 rows, ten parties of 23 to 4,715; about ten CPU minutes
    python benchmarks/scaffold_drift.py --data-dir DATA --rows 1000 --epochs 3 --rounds 1         to try the script
    python benchmarks/scaffold_drift.py --data-dir DATA --hundred --rounds 160         the study's run of 100 parties under Dir(0.5); an hour on one core

The paper's Algorithm 1 has K local steps, the same for every party. If parties train for a number of *epochs*
instead, a small party takes few steps. Its gradient stays large, and so does c, the plain mean of all c_k. A
large party then adds c − c_k to each of its many steps. The line of a round shows the length of that,
η·K·|c − c_k|, for the party with the most steps. With `--hundred` the c_k of another party grows, the one with
the most skewed labels, and equal steps do not help: a line shows the largest c_k, its party, and how far its
correction would move a participant the next time.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from tacit import algorithms, data, models
from tacit.engine.task import Task
from tacit.runtimes.cohort import Cohort, Run

BATCH, LR, PARTIES = 64, 0.03, 10  # as in the study niid-bench


def prepare(
    fed: data.Federation, module: torch.nn.Module, epochs: int, alike: bool, per_round: int
) -> tuple[Cohort, np.ndarray]:
    """SCAFFOLD before its first round, and the number of steps of each party in a round."""
    sizes = fed.train.sizes.numpy()
    steps = np.full(len(fed), round(epochs * sizes.mean() / BATCH)) if alike else epochs * -(-sizes // BATCH)
    task = Task(module, fed.rows.x, fed.rows.y)
    run = Run(
        fed,
        algorithms.Scaffold(lr=LR),
        0,
        per_round,
        np.full(len(fed), epochs),
        BATCH,
        local_steps=int(steps[0]) if alike else None,
    )
    print(
        f"{'equal steps' if alike else 'equal epochs'}: rows {sizes.min()} to {sizes.max()}, "
        f"steps {steps.min()} to {steps.max()}",
        flush=True,
    )
    return Cohort(task, [task.initial()], [run], "each"), steps


def after(cohort: Cohort, rows: data.Rows) -> tuple[torch.Tensor, torch.Tensor, float]:
    """The model, every party's c_k, and the accuracy on these rows."""
    w, parties = cohort.w[0], len(cohort.runs[0].fed)
    return (
        w,
        cohort.states[0].get(np.arange(parties), cohort.initial[0])["c_k"],
        float((cohort.task.predict(w, rows.x).argmax(1) == rows.y).float().mean()),
    )


def walk(fed: data.Federation, epochs: int, alike: bool, rounds: int) -> None:
    torch.manual_seed(0)
    cohort, steps = prepare(fed, models.CNN(crop=4, flip=True).build((3, 32, 32), 10), epochs, alike, PARTIES)
    largest = int(steps.argmax())
    for r in range(rounds):
        cohort.round(r)
        w, own, right = after(cohort, fed.test)
        lengths, moved = (
            own.norm(dim=1),
            LR * steps[largest] * float((cohort.state["c"][0] - own[largest]).norm()),
        )
        print(
            f"  round {r + 1:2d}: accuracy {right:.3f}, |w| {float(w.norm()):.1f}, |c_k| "
            f"{float(lengths.min()):.2f} to {float(lengths.max()):.2f}, "
            f"the correction moves the party with most steps by {moved:.1f}",
            flush=True,
        )
        if not torch.isfinite(w).all() or float(w.norm()) > 1e3:
            print("  diverged")
            return


def hundred(whole: data.Dataset, alike: bool, rounds: int) -> None:
    fed = whole.split(100, skew=data.Dirichlet(0.5, variant="capped"), seed=0, held_fraction=0.0)
    sizes, tested = fed.train.sizes.numpy(), data.Rows(fed.test.x[::10], fed.test.y[::10])
    purest = [np.bincount(fed.rows.y[fed.train.of(k)].numpy()).max() / n for k, n in enumerate(sizes)]
    cohort, steps = prepare(
        fed, models.build(models.CNN(crop=4, flip=True), (3, 32, 32), 10, 0), 10, alike, 10
    )
    for r in range(rounds):
        before = cohort.state["c"][0].clone()
        chosen = cohort.round(r)[0]
        w, own, right = after(cohort, tested)
        lengths, moved = (
            own.norm(dim=1),
            LR * torch.from_numpy(steps[chosen]) * (before - own[chosen]).norm(dim=1),
        )
        most = int(lengths.argmax())
        print(
            f"  round {r + 1:3d}: accuracy {right:.3f}, |w| {float(w.norm()):.1f}, |c| "
            f"{float(before.norm()):.2f}, "
            f"|c_k| {float(lengths[most]):.2f} at most ({sizes[most]} rows, {purest[most]:.0%} of one "
            f"label), {float(lengths[lengths > 0].median()):.2f} "
            f"in the median; its correction would move a party by {float(moved.max()):.1f}",
            flush=True,
        )
        if not torch.isfinite(w).all():
            print("  diverged")
            return


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0, help="seed of the rows")
    parser.add_argument(
        "--hundred", action="store_true", help="100 parties under Dir(0.5), 10 per round, as in the study"
    )
    args = parser.parse_args()
    whole = data.cifar10(scale="standard", data_dir=args.data_dir)
    if args.hundred:
        for alike in (False, True):
            hundred(whole, alike, args.rounds)
        return
    some, tested = (
        np.sort(np.random.default_rng([args.seed, stream]).permutation(len(of.y))[:n])
        for of, stream, n in ((whole.rows, 11, args.rows), (whole.test, 12, 1000))
    )
    rows = data.from_arrays(
        whole.rows.x[some], whole.rows.y[some], test=(whole.test.x[tested], whole.test.y[tested]), classes=10
    )
    fed = rows.split(PARTIES, skew=data.Quantity(0.5), seed=0, held_fraction=0.0)
    for alike in (False, True):
        walk(fed, args.epochs, alike, args.rounds)


if __name__ == "__main__":
    main()
