"""PATE on MNIST with 250 teachers, compared with the figures of the two papers.

    TACIT_DATA=… python benchmarks/pate.py --device cuda [--teachers 250] [--steps 2000] [--out FILE.json]

As in the papers: 60,000 training rows are private and divided among 250 teachers, 240 each; the first 9,000
test rows are public, the last 1,000 test the student. Teachers and students are CNNs of two convolutions (32
and 64 channels of 5×5) and a layer of 128; teachers train for 40 epochs. γ, σ, T, the numbers of queries and
δ = 1e-5 are those of the papers. One seed; the noise comes from the operating system, so no two runs give
the same labels.

There is no peer: the papers' code is for TensorFlow 1. About two minutes on one H200; hours on two CPU
cores.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tacit
from tacit import data, models
from tacit.accounting.votes import classic_epsilon
from tacit.jobs.pate.teachers import Ensemble
from tacit.private import ConfidentGNMax, Lessons, LNMax, Student

DELTA, CUT = 1e-5, 9000
PUBLISHED = {"LNMax 100": (2.04, 0.980), "LNMax 1000": (8.03, 0.981), "Confident-GNMax": (1.97, 0.985)}


def line(name: str, *values: Any) -> None:
    print(
        f"{name:34}" + "".join(f"{v:>12}" if isinstance(v, str) else f"{v:>12.4g}" for v in values),
        flush=True,
    )


def capped(run: Any, ask: Any) -> float | None:
    """ε from the votes with moments of at most 8, as in the first paper's code."""
    if not isinstance(ask, LNMax):
        return None
    cost, orders = ask.curve(run.confidential["counts"], run.labels)
    return classic_epsilon(cost[orders <= 9], orders[orders <= 9], DELTA)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--teachers", type=int, default=250)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--steps", type=int, default=2000, help="steps of every student")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    home = os.environ.get("TACIT_DATA")
    digits = data.mnist(data_dir=None if home is None else Path(home) / "mnist")
    model = models.CNN(channels=(32, 64), hidden=(128,), kernel=5, padding=2)
    n = args.teachers
    confident = ConfidentGNMax(0.8 * n, 0.6 * n, 0.16 * n)  # T = 200, σ₁ = 150, σ₂ = 40 with 250 teachers
    rows: list[tuple[str, Any, int, str]] = [
        ("Confident-GNMax", confident, 640, "vat"),
        ("LNMax 100", LNMax(0.05), 100, "vat"),
        ("LNMax 1000", LNMax(0.05), 1000, "vat"),
        ("Confident-GNMax, labels alone", confident, 640, "supervised"),
    ]
    teachers: Any = args.teachers
    results = []
    line("", "answers", "right", "ε", "ε by votes", "l ≤ 8", "published", "student", "published", "seconds")
    for name, ask, queries, method in rows:
        began = time.perf_counter()
        run = tacit.pate(
            digits,
            teachers=teachers,
            queries=queries,
            aggregator=ask,
            model=model,
            public=CUT / len(digits.test.y),
            delta=DELTA,
            lessons=Lessons(epochs=args.epochs),
            student=Student(method=method, steps=args.steps, radius=0.3, ramp=0.0),
            device=args.device,
        )
        if not isinstance(teachers, Ensemble):
            teachers = run.teachers
            votes = teachers.choices(digits.test.x[:CUT])
            alone = (votes == digits.test.y[:CUT]).float().mean(1)
            print(
                f"{len(teachers)} teachers: {alone.mean():.4f} correct on average ({alone.min():.3f} … "
                f"{alone.max():.3f}), agreeing with "
                f"{run.confidential['consensus']:.3f} of the votes on a query; this is known because "
                "MNIST is public",
                flush=True,
            )
        seconds = time.perf_counter() - began
        published = PUBLISHED.get(name, ("–", "–"))
        few = capped(run, ask)
        line(
            name,
            float((run.labels >= 0).sum()),
            run.metrics["label_accuracy"],
            run.used,
            run.confidential["epsilon"],
            "–" if few is None else few,
            published[0],
            run.metrics["accuracy"],
            published[1],
            seconds,
        )
        spent = ask.spent(run.confidential["counts"], run.labels, DELTA, publish=True)
        results.append(
            {
                "name": name,
                "asked": len(run.labels),
                "answers": int((run.labels >= 0).sum()),
                "right": run.metrics["label_accuracy"],
                "epsilon": run.used,
                "guaranteed": run.epsilon,
                "by_votes": run.confidential["epsilon"],
                "moments_to_8": few,
                "published_with_smooth_noise": spent.released,
                "accuracy": run.metrics["accuracy"],
                "seconds": seconds,
            }
        )
    module = models.build(model, (1, 28, 28), 10, 0)
    x, y = (t.to(args.device) for t in digits.rows)
    student = Student(method="supervised", steps=args.steps, batch_size=256).teach(module, x, y, x[:0], 0)
    with torch.no_grad():
        right = float(
            (student(digits.test.x[CUT:].to(args.device)).argmax(1).cpu() == digits.test.y[CUT:])
            .float()
            .mean()
        )
    line("the same network, nothing private", "", "", "", "", "", "", right, 0.992)
    results.append({"name": "not private", "accuracy": right})
    print(
        "smooth-sensitivity release: "
        + ", ".join(f"{r['name']} {r['published_with_smooth_noise']:.3g}" for r in results[:3])
    )
    if args.out is not None:
        args.out.write_text(
            json.dumps(
                {
                    "rows": results,
                    "teachers": len(teachers),
                    "torch": torch.__version__,
                    "numpy": np.__version__,
                    "device": torch.cuda.get_device_name() if args.device != "cpu" else "cpu",
                },
                indent=1,
                ensure_ascii=False,
            )
        )


if __name__ == "__main__":
    main()
