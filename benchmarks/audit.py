"""Attacks on models and updates: time of shadow models, quality of rebuilt rows, success by defense.

    python benchmarks/audit.py shadows      64 shadow models as one stack, against one after the other (digits)
    python benchmarks/audit.py inversion    McMahan's CNN and DLG's LeNet on MNIST, batches of one: PSNR
    python benchmarks/audit.py defenses     share of rows rebuilt and members found, by defense (digits)
    python benchmarks/audit.py lira         LiRA with 256 shadow models of a CNN on CIFAR-10; a CUDA GPU

CPU seconds, one thread. MNIST's and CIFAR-10's files: --data-dir or TACIT_DATA.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time

import numpy as np
import torch
from torch import nn

import tacit
from tacit import algorithms, audit, data, guard, models, private
from tacit.jobs.audit.membership import _pool_of_rows
from tacit.jobs.audit.runs import plan_of
from tacit.jobs.audit.shadows import train_shadows
from tacit.jobs.train.train import train_side_by_side

DIGITS = {
    "model": models.MLP(hidden=(64,)),
    "algorithm": algorithms.FedAvg(lr=0.1),
    "rounds": 20,
    "local_epochs": 2,
}


def shadows(count: int) -> None:
    fed = data.digits().split(10, skew=data.Dirichlet(0.5), seed=0)
    run = tacit.train(fed, **DIGITS)
    p, rng = plan_of(run), np.random.default_rng(0)
    pool = _pool_of_rows(p, None, None, None, rng)
    start = time.process_time()
    train_shadows(p, p.rounds, pool, count, rng)
    together = (time.process_time() - start) / count
    few = 8
    start = time.process_time()
    for s in range(few):
        train_side_by_side([dataclasses.replace(p, seed=s, evaluate_every=0, engine="each")], [None])
    alone = (time.process_time() - start) / few
    print(f"{count} shadow models as one stack: {together:.3f} CPU s each; one by one {alone:.3f}")
    print(f"ratio {alone / together:.1f}")


def lenet() -> nn.Module:
    sizes = ((1, 2), (12, 2), (12, 1))
    layers = [nn.Sequential(nn.Conv2d(c, 12, 5, padding=2, stride=s), nn.Sigmoid()) for c, s in sizes]
    torch.manual_seed(0)
    made = nn.Sequential(*layers, nn.Flatten(), nn.Linear(12 * 49, 10))
    for q in made.parameters():
        nn.init.uniform_(q, -0.5, 0.5)
    return made


def inversion(images: int, data_dir: str | None) -> None:
    rows = data.mnist(data_dir=data_dir).rows
    cases = {
        "McMahan's CNN, cosine and total variation": (models.build("cnn", (1, 28, 28), 10, 0), "cosine", 200),
        "DLG's LeNet, L-BFGS": (lenet(), "dlg", 600),
    }
    print(f"MNIST, batches of one, the first {images} training images")
    for name, (model, method, steps) in cases.items():
        start, each, ssim = time.process_time(), [], []
        for k in range(images):
            found = audit.invert(model, (rows.x[k : k + 1], rows.y[k : k + 1]), method=method, steps=steps)
            each.append(found.psnr)
            ssim.append(found.ssim or 0.0)
        seconds = (time.process_time() - start) / images
        share = sum(v > 30 for v in each) / images
        print(
            f"{name}: PSNR median {statistics.median(each):.1f} dB, lowest {min(each):.1f}, above 30 dB "
            f"{share:.0%}, SSIM median {statistics.median(ssim):.3f}, {seconds:.1f} CPU s each"
        )


def defenses() -> None:
    fed = data.digits().split(10, seed=0)
    settings = DIGITS | {"rounds": 1, "local_epochs": 1, "batch_size": None}
    secagg = [guard.Clip(1.0), guard.Quantize(16), guard.SecAgg()]
    noisy = [guard.Clip(0.5), guard.Noise(multiplier=1.0, placement="local")]
    cases = {
        "none, 1 row": (1, {}),
        "none, 8 rows": (8, {}),
        "none, 32 rows": (32, {}),
        "none, 8 rows, 10 local epochs of batches of 4": (8, {"local_epochs": 10, "batch_size": 4}),
        "Clip, 1 row": (1, {"guard": [guard.Clip(0.5)]}),
        "Clip + Noise by the server, 1 row": (1, {"guard": [guard.Clip(0.5), guard.Noise(multiplier=1.0)]}),
        "Clip + Noise by the party, 1 row": (1, {"guard": noisy}),
        "SecAgg of 10 parties, 1 row": (1, {"guard": secagg}),
    }
    print("digits, MLP of 64 units: rows read exactly; PSNR of the search")
    for name, (n, options) in cases.items():
        run = tacit.train(fed, **settings | options)
        exact = audit.invert(run, n, method="analytic").rows_within
        search = audit.invert(run, n, method="cosine", steps=100).psnr
        print(f"  {name}: {exact:.0%}; {search:.1f} dB")
    digits, rng = data.digits(), torch.Generator().manual_seed(0)
    wrong = torch.rand(len(digits), generator=rng) < 0.5
    y = torch.where(wrong, torch.randint(0, 10, (len(digits),), generator=rng), digits.rows.y)
    small = data.from_arrays(digits.rows.x, y).split(2, held_fraction=0.9)
    fit = settings | {
        "algorithm": algorithms.FedAvg(lr=0.5),
        "rounds": 8,
        "local_epochs": 10,
        "batch_size": 16,
    }
    print("digits with half of the labels drawn anew, 144 members: AUC, TPR at 1% FPR")
    for name, options in {
        "none": {},
        "DP-SGD, ε = 8": {"private": private.DPSGD(epsilon=8.0, delta=1e-3)},
        "DP-SGD, ε = 1": {"private": private.DPSGD(epsilon=1.0, delta=1e-3)},
    }.items():
        run = tacit.train(small, **fit | options)
        for attack in ("loss", "lira", "rmia"):
            found = audit.membership(run, attack=attack, shadows=32 if not options else 8)
            print(
                f"  {name}, {attack}: {found.auc:.3f}, {found.tpr_at(0.01):.3f} (allowed {found.ceiling(0.01):.3f})"
            )


def lira(count: int, data_dir: str | None) -> None:
    """The full figure; not yet run."""
    fed = data.cifar10(data_dir=data_dir).split(1, held_fraction=0.5)
    settings = {"model": models.CNN(), "algorithm": algorithms.FedAvg(lr=0.05), "batch_size": 128}
    run = tacit.train(fed, **settings, rounds=50, device="cuda", evaluate_every=0)
    start = time.perf_counter()
    found = audit.membership(run, attack="lira", shadows=count)
    print(found)
    print(
        f"{time.perf_counter() - start:.0f} s for {count} shadow models; test accuracy {run.metrics['accuracy']:.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["shadows", "inversion", "defenses", "lira"])
    parser.add_argument("--shadows", type=int)
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--data-dir")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.what == "shadows":
        shadows(chosen.shadows or 64)
    elif chosen.what == "inversion":
        inversion(chosen.images, chosen.data_dir)
    elif chosen.what == "defenses":
        defenses()
    else:
        lira(chosen.shadows or 256, chosen.data_dir)


if __name__ == "__main__":
    main()
