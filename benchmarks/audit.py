"""Attacks on models and updates: time of shadow models, quality of rebuilt rows, success by defense.

    python benchmarks/audit.py shadows      64 shadow models as one stack, against one after the other (digits)
    python benchmarks/audit.py inversion    McMahan's CNN, DLG's LeNet on MNIST and CIFAR-10, batches of 1
    python benchmarks/audit.py published    Geiping et al.'s network, attack and images, beside their mean
    python benchmarks/audit.py defenses     share of rows rebuilt and members found, by defense (digits)
    python benchmarks/audit.py curves       rebuilding by noise, rows, local epochs and parties in a sum (digits)
    python benchmarks/audit.py linkage      people of Adult found by matching, by k
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
from tacit.audit import scores
from tacit.data.cifar10 import CHANNELS
from tacit.jobs.audit.membership import _compare, _pool_of_rows
from tacit.jobs.audit.runs import plan_of
from tacit.jobs.audit.shadows import outputs, train_shadows
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


def lenet(channels: int, side: int) -> nn.Module:
    """The LeNet of the DLG paper."""
    sizes = ((channels, 2), (12, 2), (12, 1))
    layers = [nn.Sequential(nn.Conv2d(c, 12, 5, padding=2, stride=s), nn.Sigmoid()) for c, s in sizes]
    torch.manual_seed(0)
    made = nn.Sequential(*layers, nn.Flatten(), nn.Linear(12 * (side // 4) ** 2, 10))
    for q in made.parameters():
        nn.init.uniform_(q, -0.5, 0.5)
    return made


def mcmahan(channels: int, side: int, padding: int) -> nn.Module:
    """The CNN of McMahan et al. 2017, on any images; on MNIST with padding it is `models.CNN`."""
    torch.manual_seed(0)
    left = side // 4 if padding else ((side - 4) // 2 - 4) // 2
    return nn.Sequential(
        *(nn.Conv2d(channels, 32, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * left**2, 512), nn.ReLU(), nn.Linear(512, 10)),
    )


def inversion(images: int, data_dir: str | None) -> None:
    for name, rows in (
        ("MNIST", data.mnist(data_dir=data_dir).rows),
        ("CIFAR-10", data.cifar10(data_dir=data_dir).rows),
    ):
        channels, side = rows.x.shape[1], rows.x.shape[-1]
        cases = {
            "McMahan's CNN, layer by layer": (mcmahan(channels, side, 2), "layers", 200),
            "McMahan's CNN without padding, layer by layer": (mcmahan(channels, side, 0), "layers", 200),
            "McMahan's CNN, cosine and total variation": (mcmahan(channels, side, 2), "cosine", 200),
            "DLG's LeNet, layer by layer": (lenet(channels, side), "layers", 200),
            "DLG's LeNet, L-BFGS": (lenet(channels, side), "dlg", 600),
        }
        print(f"{name}, batches of one, the first {images} training images")
        for case, (model, method, steps) in cases.items():
            start, each, ssim = time.process_time(), [], []
            for k in range(images):
                one = (rows.x[k : k + 1], rows.y[k : k + 1])
                found = audit.invert(model, one, method=method, steps=steps)
                each.append(found.psnr)
                ssim.append(found.ssim or 0.0)
            seconds = (time.process_time() - start) / images
            share = sum(v > 30 for v in each)
            print(
                f"  {case}: PSNR median {statistics.median(each):.1f} dB, lowest {min(each):.1f}, above 30 dB "
                f"{share} of {images}, SSIM median {statistics.median(ssim):.3f}, {seconds:.1f} CPU s each",
                flush=True,
            )


def published(images: int, data_dir: str | None) -> None:
    """Geiping et al. 2020, Table 1: their attack on the untrained LeNet, the first images of the test set.

    Their weight of the total variation, 0.01 for normalized images, is 0.04 for pixels from 0 to 1.
    """
    rows, each = data.cifar10(data_dir=data_dir).test, []
    assert rows is not None
    start = time.process_time()
    for k in range(images):
        one = (rows.x[k : k + 1], rows.y[k : k + 1])
        each.append(audit.invert(lenet(3, 32), one, method="cosine", steps=1000, tv=0.04).psnr)
    seconds = (time.process_time() - start) / images
    print(
        f"LeNet (Zhu), the first {images} test images: PSNR {statistics.mean(each):.2f} ± "
        f"{statistics.pstdev(each):.2f} dB, {seconds:.1f} CPU s each; published for 100: 18.00 ± 3.33"
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


def curves() -> None:
    """What stops the rebuilding of rows, and where: one setting changed at a time from one row in the clear."""
    fed = data.digits().split(20, seed=0)
    settings = DIGITS | {"rounds": 1, "local_epochs": 1, "batch_size": None}

    def noise(z: float) -> dict[str, object]:
        return {"guard": [guard.Clip(0.5), guard.Noise(multiplier=z, placement="local")]}

    def secagg(parties: int) -> dict[str, object]:
        sums = [guard.Clip(1.0), guard.Quantize(16), guard.SecAgg()]
        return {"guard": sums, "fed": data.digits().split(parties, seed=0)}

    cases: dict[str, list[tuple[object, int, dict[str, object]]]] = {
        "noise of the party, times the clipping norm": [
            (z, 1, noise(z)) for z in (0.0001, 0.001, 0.01, 0.1, 1.0)
        ],
        "rows of the batch": [(n, n, {}) for n in (1, 2, 4, 8, 16, 32)],
        "local epochs, 8 rows in batches of 4": [
            (e, 8, {"local_epochs": e, "batch_size": 4}) for e in (1, 2, 5, 10)
        ],
        "parties in a hidden sum": [(k, 1, secagg(k)) for k in (3, 5, 10, 20)],
    }
    for name, points in cases.items():
        print(f"{name}: rows read exactly; PSNR of the search")
        for at, n, more in points:
            options = dict(more)
            run = tacit.train(options.pop("fed", fed), **settings | options)
            exact = audit.invert(run, n, method="analytic").rows_within
            search = audit.invert(run, n, method="cosine", steps=100).psnr
            print(f"  {at}: {exact:.0%}; {search:.1f} dB", flush=True)


def linkage(data_dir: str | None) -> None:
    """Matching of Adult, all people as background, by k."""
    quasi = ["age", "sex", "race", "marital-status", "education", "native-country"]
    people = data.adult(data_dir=data_dir).table.frame.reset_index(drop=True)[:10_000]
    quasi = [c for c in quasi if c in people.columns]
    people = people[quasi].astype(str)
    print(f"{len(people)} people of Adult, {', '.join(quasi)}: right matches, by matching and by class sizes")
    for k in (1, 2, 5, 10, 20):
        table = people if k == 1 else tacit.anonymize(people, quasi=quasi, k=k, method="mondrian")
        start = time.process_time()
        found = audit.linkage(people, table, quasi)
        seconds = time.process_time() - start
        rates = [
            f"{name} {getattr(found, name).rate:.2%} ({found.analytic[name]:.2%})"
            for name in ("prosecutor", "journalist", "marketer")
        ]
        print(f"  k = {k}: {', '.join(rates)}; {seconds:.1f} CPU s", flush=True)


PUBLISHED = (
    "published (Carlini et al. 2022, WRN-28-2, 25,000 of 50,000 rows, 256 shadow models, online): AUC 0.72, "
    "TPR 0.084 at FPR 0.001"
)


def lira(
    count: int, data_dir: str | None, packed: str | None, device: str, seconds: float, most: int
) -> None:
    """LiRA on a LeNet trained on half of CIFAR-10's training images, with as many rounds as fit the seconds."""
    start = time.perf_counter()

    def tell(text: str) -> None:
        print(f"[{time.perf_counter() - start:.0f} s] {text}", flush=True)

    fed = _half_of_cifar(data_dir, packed, most)
    tell(f"{len(fed.train.index)} members and {len(fed.held.index)} others of CIFAR-10, {device}")
    model, algorithm = models.CNN(), algorithms.FedAvg(lr=0.05)
    settings = {"model": model, "algorithm": algorithm, "batch_size": 32, "evaluate_every": 0}
    settings |= {"precision": "tf32"} if device == "cuda" else {}

    def train(rounds: int, engine: str = "auto") -> tacit.Result:
        return tacit.train(fed, **settings, rounds=rounds, device=device, engine=engine)

    p = plan_of(train(1))
    pool = _pool_of_rows(p, None, None, None, np.random.default_rng(0))

    def stack(rounds: int) -> tuple[float, list[nn.Module], np.ndarray]:
        began = time.perf_counter()
        found = train_shadows(p, rounds, pool, count, np.random.default_rng(1))
        _wait(device)
        return time.perf_counter() - began, *found

    first, third = stack(1)[0], stack(3)[0]
    each = max((third - first) / 2, 1e-3)
    left = seconds - (time.perf_counter() - start)
    # the target, one by one, and the scores take time too: 0.6 of what is left is for the stack
    rounds = max(2, min(ROUNDS, int((0.6 * left - (first - each)) / each)))
    tell(f"a round of {count} as one stack: {each:.2f} s; training {rounds} rounds")
    wall, shadows_of, inside = stack(rounds)
    tell(f"{count} shadow models as one stack: {wall:.1f} s, {1000 * wall / count:.1f} ms each")
    one_by_one = {}
    for engine, what in (("each", "a plain loop"), ("auto", "tacit's own engine")):
        times = []
        for few in (1, 3):
            began = time.perf_counter()
            train(few, engine)
            _wait(device)
            times.append(time.perf_counter() - began)
        one_by_one[what] = rounds * (times[1] - times[0]) / 2 + times[0]
        tell(
            f"one shadow model alone, {what}: {one_by_one[what]:.1f} s for {rounds} rounds (from 3 rounds), "
            f"{one_by_one[what] * count / wall:.0f} times the stack's"
        )
    run = train(rounds)
    p = plan_of(run)
    _wait(device)
    index = torch.cat(pool.units)
    out = outputs(run.model, pool.fed.rows.matrix("lira")[index].to(device))
    right = (out.argmax(-1) == pool.fed.rows.y[index]).double().numpy()
    inner, outer = right[pool.is_member].mean(), right[~pool.is_member].mean()
    tell(f"accuracy of the target on members {inner:.3f}, on others {outer:.3f}")
    y = pool.fed.rows.y[index]
    x = pool.fed.rows.matrix("lira")[index].to(device)
    others = torch.stack([scores.logit_confidence(outputs(m, x), y) for m in shadows_of])
    phi, was = scores.logit_confidence(out, y), torch.from_numpy(inside)
    tell("the shadow models' outputs are computed")
    for attack in ("lira", "lira_offline", "rmia", "loss"):
        found = (
            phi if attack == "loss" else _compare(phi, others, was, attack, pool, np.random.default_rng(2))
        )
        keep = ~torch.isnan(found).numpy()
        values = found.numpy()
        curve = audit.roc.Roc(values[pool.is_member & keep], values[~pool.is_member & keep])
        rates = ", ".join(f"{curve.tpr_at(rate):.4f} at FPR {rate:g}" for rate in (0.0001, 0.001, 0.01))
        tell(f"{attack}: AUC {curve.auc:.4f}, TPR {rates}")
    tell(PUBLISHED)


ROUNDS = 40  # epochs


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _half_of_cifar(data_dir: str | None, packed: str | None, most: int) -> data.Federation:
    """Half of the training images in a federation of one party; the other half held out."""
    if packed is None:
        rows = data.cifar10("standard", data_dir=data_dir).rows
        x, y = rows.x, rows.y
    else:
        from cifar_packed import load

        pixels, labels = load(packed)
        x, y = torch.from_numpy(pixels).float() / 255, torch.from_numpy(labels)
        mean, std = (torch.tensor(v).view(3, 1, 1) for v in CHANNELS)
        x = (x - mean) / std
    return data.from_arrays(x[:most], y[:most], test_fraction=0).split(1, held_fraction=0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "what",
        choices=["shadows", "inversion", "published", "defenses", "curves", "linkage", "lira"],
    )
    parser.add_argument("--shadows", type=int)
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--data-dir")
    parser.add_argument("--packed", help="CIFAR-10 of cifar_packed.py, for lira")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="of lira")
    parser.add_argument("--seconds", type=float, default=210, help="of lira, about")
    parser.add_argument("--rows", type=int, default=50_000, help="of lira: members and others together")
    chosen = parser.parse_args()
    if chosen.device == "cpu":
        torch.set_num_threads(1)
    if chosen.what == "shadows":
        shadows(chosen.shadows or 64)
    elif chosen.what == "inversion":
        inversion(chosen.images, chosen.data_dir)
    elif chosen.what == "published":
        published(chosen.images, chosen.data_dir)
    elif chosen.what == "defenses":
        defenses()
    elif chosen.what == "curves":
        curves()
    elif chosen.what == "linkage":
        linkage(chosen.data_dir)
    else:
        lira(
            chosen.shadows or 256,
            chosen.data_dir,
            chosen.packed,
            chosen.device,
            chosen.seconds,
            chosen.rows,
        )


if __name__ == "__main__":
    main()
