"""The split-network studies of docs/papers.md.

    python benchmarks/split_studies.py breast | credit | mnist | leakage      (--data DIR, or TACIT_DATA: the folder of fate_vfl and mnist)

breast, credit: FATE's vertical tables (guest with the label, host). Each first loses a tenth of its rows,
different ones, and is shuffled; they are aligned by private set intersection. The split network is compared with
each party alone and with all columns in one place, three seeds; and logistic regression on secret shares with
scikit-learn's. mnist: 784-128-640 at the images, 640-10 at the labels, 10 epochs, against one network. leakage:
what the cut reveals, with and without guards.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import tacit
from tacit import data
from tacit.data.vertical import Columns, Vertical
from tacit.protocols.splitnn_guards import Marvell, NoiseRows, QuantizeRows
from tacit.protocols.splitnn_terms import SplitTerms

SETTINGS = {
    "breast": {"epochs": 30, "batch_size": 32, "lr": 0.05, "width": 16},
    "credit": {"epochs": 15, "batch_size": 256, "lr": 0.1, "width": 32},
}
RIDGE = 0.002  # l2 of the regressions
FILES = {
    "breast": ("breast_hetero_guest.csv", "breast_hetero_host.csv"),
    "credit": ("default_credit_hetero_guest.csv.gz", "default_credit_hetero_host.csv.gz"),
}


def tables(folder: Path, name: str, seed: int) -> dict[str, Columns]:
    """Guest and host, each without a tenth of its records and in its own order."""
    guest = Columns.of(
        data.from_csv(folder / FILES[name][0], label="y", id="id", test_fraction=0, fit="none")
    )
    host = data.from_csv(folder / FILES[name][1], id="id", fit="none")
    rng = np.random.default_rng(seed)
    return {
        who: c.take(rng.permutation(len(c))[: len(c) * 9 // 10])
        for who, c in (("guest", guest), ("host", host))
    }


def vertical(folder: Path, name: str, seeds: int) -> None:
    settings = SETTINGS[name]
    scores: dict[str, list[float]] = {}
    for seed in range(seeds):
        held = tables(folder, name, seed)
        began = time.process_time()
        run = tacit.splitnn(held, labels="guest", optimizer="sgd", momentum=0.9, seed=seed, **settings)
        print(f"seed {seed}: {run.notes[0]} {time.process_time() - began:.1f} s of CPU time")
        scores.setdefault("split, both", []).append(run.metrics["auc"])
        shared = tacit.align({who: c.ids.tolist() for who, c in held.items()})
        guest, host = (held[who].take(shared.rows[who]) for who in ("guest", "host"))
        whole = Columns(
            "pooled",
            guest.ids,
            torch.cat([guest.x, host.x], 1),
            (*guest.columns, *(f"host {c}" for c in host.columns)),
            None,
            guest.y,
            guest.classes,
            guest.labels,
        )
        alone = Columns("host", guest.ids, host.x, host.columns, None, guest.y, guest.classes, guest.labels)
        for what, columns in (
            ("guest alone", guest),
            ("host's columns alone, with labels", alone),
            ("pooled, one network", whole),
        ):
            one = tacit.splitnn(
                Vertical.of({"guest": columns}, "guest", seed=seed),
                optimizer="sgd",
                momentum=0.9,
                seed=seed,
                **settings,
            )
            scores.setdefault(what, []).append(one.metrics["auc"])
        if seed == 0:
            began = time.process_time()
            many = name == "credit"  # 4,860 test rows: more than the AUC on shares supports
            fitted = tacit.regress(held, labels="guest", l2=RIDGE, test_scores=many, seed=seed)
            print(
                f"regression on shares: AUC {fitted.metrics['auc']:.4f}, {time.process_time() - began:.1f} "
                "s of CPU time, "
                f"{sum(line.bytes for line in fitted.ledger.seen) / 1e6:.0f} MB"
            )
            print(
                "scikit-learn's over all columns in one place: AUC "
                f"{pooled(Vertical.of({'guest': whole}, 'guest', seed=seed)):.4f}"
            )
    for what, values in scores.items():
        print(
            f"{what:34} AUC {np.mean(values):.4f} ± "
            f"{np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0:.4f}"
        )


def pooled(rows: Vertical) -> float:
    """The AUC of scikit-learn's LogisticRegression with the same ridge penalty, on the same training and test rows."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = rows.parties["guest"].standardize(rows.train)[0].numpy(), rows.y.numpy()
    model = make_pipeline(
        StandardScaler(), LogisticRegression(C=1 / (RIDGE * len(rows.train)), max_iter=5000)
    ).fit(x[rows.train], y[rows.train])
    return float(roc_auc_score(y[rows.test], model.decision_function(x[rows.test])))


def halves() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 640), nn.ReLU(), nn.Linear(640, 10))


def mnist(epochs: int) -> None:
    digits = data.mnist()
    x, xt = (r.x.reshape(len(r.y), -1) for r in (digits.rows, digits.test))
    net, terms = halves(), SplitTerms((), (len(x),), (0,), batch_size=64)
    bottom, top = tacit.cut(halves(), 4)
    began = time.process_time()
    run = tacit.splitnn(
        {"images": x},
        {"labels": digits.rows.y},
        test=({"images": xt}, digits.test.y),
        bottoms=bottom,
        top=top,
        configuration="vanilla",
        epochs=epochs,
        batch_size=64,
        lr=0.1,
    )
    print(
        "split, accuracy after each epoch:",
        " ".join(f"{row['accuracy']:.4f}" for row in run.history),
        f"({time.process_time() - began:.0f} s of CPU time)",
    )
    step = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(epochs):
        for rows in terms.batches(epoch, 0):
            step.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), digits.rows.y[rows]).backward()
            step.step()
    with torch.no_grad():
        right = float((net(xt).argmax(1) == digits.test.y).float().mean())
    off = max(
        float((run.shares["images"].state[f"bottom.{k}"] - v).abs().max())
        for k, v in tacit.cut(net, 4)[0].state_dict().items()
    )
    print(f"one network: {right:.4f}; weights differ by at most {off:.1e}")


def leakage(out: Path) -> None:
    digits = data.mnist()
    x, xt = (r.x.reshape(len(r.y), -1) for r in (digits.rows, digits.test))
    y, yt = ((r.y == 0).long() for r in (digits.rows, digits.test))  # zero or not: two classes, one in ten
    few, own = slice(0, 6000), slice(20000, 26000)
    for what, guards in (
        ("plain", {}),
        ("NoPeek, α = 1", {"nopeek": 1.0}),
        ("noise, σ = 1", {"guard": NoiseRows(1.0)}),
        ("2 bits", {"guard": QuantizeRows(2)}),
        ("Marvell, s = 4", {"protect": Marvell(4.0)}),
    ):
        torch.manual_seed(0)
        run = tacit.splitnn(
            {"images": x[few]},
            {"labels": y[few]},
            test=({"images": xt}, yt),
            configuration="vanilla",
            epochs=5,
            batch_size=64,
            lr=0.1,
            bottoms=nn.Sequential(nn.Linear(784, 64), nn.ReLU()),
            top=nn.Sequential(nn.Linear(64, 2)),
            **guards,
        )
        audit = run.audit({"images": xt[:500]}, yt[:500], {"images": x[own]})
        m, lab, r = audit.measures["images"], audit.labels["images"], audit.rebuilt["images"]
        print(
            f"{what:15} accuracy {run.metrics['accuracy']:.4f}  distance correlation "
            f"{m['distance_correlation']:.3f}  explained variance {r.variance:.3f}  "
            f"recognized {r.recognized:.3f}  labels by norm {lab['norm']:.3f}, direction "
            f"{lab['direction']:.3f}, spectral {lab['spectral']:.3f}"
        )
        run.report(out / f"leakage {what.split(',')[0]}.html", audit)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("study", choices=["breast", "credit", "mnist", "leakage"])
    parser.add_argument("--data", default=os.environ.get("TACIT_DATA", "../shared/data"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--out", default=".", help="where leakage writes its reports")
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("TACIT_DATA", args.data)
    if args.study in FILES:
        vertical(Path(args.data) / "fate_vfl", args.study, args.seeds)
    elif args.study == "mnist":
        mnist(args.epochs)
    else:
        leakage(Path(args.out))


if __name__ == "__main__":
    main()
