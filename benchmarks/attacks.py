"""Attacks on models and rounds, by defense: GAN by a participant, and memorized text.

    python benchmarks/attacks.py gan            MNIST, one class for each of 10 parties: none, SecAgg, ε = 8 for parties
    python benchmarks/attacks.py gan-many       MNIST, one class for each of 1,000 parties: an ε = 8 that is useful
    python benchmarks/attacks.py memorization   canaries in Shakespeare, by number of copies; noise for parties

CPU seconds, one thread. The files of MNIST and Shakespeare: --data-dir or TACIT_DATA. --picture FILE writes a PNG.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from typing import Any

import torch

import tacit
from tacit import algorithms, audit, data, guard, models
from tacit.data.federation import Dataset

HIDDEN = [guard.Clip(1.0), guard.Quantize(16), guard.SecAgg()]
NOISY = [guard.Clip(0.5), guard.Noise(epsilon=8.0, delta=1e-3)]


def some(dataset: Dataset, rows: int) -> Dataset:
    """The data set with that many training rows, drawn with seed 0."""
    order = torch.randperm(len(dataset.rows.y), generator=torch.Generator().manual_seed(0))[:rows]
    return dataclasses.replace(dataset, rows=dataset.rows.take(order), groups={})


def gan(parties: int, rows: int, settings: dict[str, Any], cases: dict[str, Any], args: Any) -> None:
    fed = some(data.mnist(data_dir=args.data_dir), rows).split(
        parties, skew=data.LabelsPerParty(1), seed=0, held_fraction=0.0
    )
    print(f"MNIST, {rows} rows, {parties} parties with one class each, {settings['rounds']} rounds")
    for name, stages in cases.items():
        start = time.process_time()
        run = tacit.train(fed, **settings, guard=stages)
        trained = time.process_time() - start
        start = time.process_time()
        found = audit.gan(run)
        seconds = time.process_time() - start
        print(
            f"  {name}: accuracy {found.accuracy_before:.3f}, attacked {found.accuracy:.3f}; recognized "
            f"{found.recognized} of {len(found.victims)} (p = {found.p_value:.2g}), nearest row of the class "
            f"{found.share:.0%}, likeness {found.likeness:.2f}; {trained:.0f} + {seconds:.0f} CPU s",
            flush=True,
        )
        if args.picture and not stages:
            found.save_picture(args.picture)


def memorization(args: Any) -> None:
    text = data.shakespeare(least=400, data_dir=args.data_dir)
    fed = some(text, 1000).split(10, seed=0, held_fraction=0.0)
    settings = {
        "model": models.LSTM(hidden=128, layers=1, every=True),
        "algorithm": algorithms.FedAvg(lr=2.0),
        "rounds": args.rounds or 20,
        "local_epochs": 1,
        "batch_size": 10,
        "evaluate_every": 0,
    }
    print(f"Shakespeare, 1,000 lines, 10 parties, LSTM of 128 units, {settings['rounds']} rounds")
    for name, stages in {
        "none": [],
        "noise for parties, multiplier 1": [guard.Clip(1.0), guard.Noise(multiplier=1.0)],
    }.items():
        start = time.process_time()
        run = tacit.train(fed, **settings, guard=stages)
        found = audit.memorization(run, copies=(1, 4, 16), candidates=1000)
        shown = ", ".join(f"{n}: {bits:.1f}" for n, bits in found.by_copies.items())
        print(
            f"  {name}: bits of exposure by copies {shown} (at most {found.largest:.1f} of {found.secret_bits:.1f} "
            f"are measured), {found.extracted} of {len(found.canaries)} extracted, p = {found.p_value:.2g}; "
            f"{time.process_time() - start:.0f} CPU s",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["gan", "gan-many", "memorization"])
    parser.add_argument("--data-dir")
    parser.add_argument("--picture")
    parser.add_argument("--rounds", type=int)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "memorization":
        memorization(args)
        return
    many = args.what == "gan-many"
    settings = {
        "model": models.MLP(hidden=(64,)) if many else models.CNN(channels=(8, 16), hidden=(64,), padding=2),
        "algorithm": algorithms.FedAvg(lr=0.5 if many else 0.1),
        "rounds": args.rounds or 25,
        "batch_size": None if many else 32,
        "local_epochs": 1,
        "evaluate_every": 0,
    }
    few = {"none": [], "SecAgg": HIDDEN, "Noise, ε = 8 for a party": NOISY}
    all_ = {"none": [], "Noise, ε = 8 for a party": NOISY}
    gan(1000 if many else 10, 20_000 if many else 3000, settings, all_ if many else few, args)


if __name__ == "__main__":
    main()
