"""The private generators on the discretized Adult (48,842 rows) at ε = 1, δ = 1e-9.

    TACIT_DATA=DIR .venv/bin/python benchmarks/private_synth.py [REPEATS]
    .venv/bin/python benchmarks/private_synth.py --wide 100 --rows 20000 --peer PEER/bin/python
    TACIT_DATA=DIR .venv/bin/python benchmarks/private_synth.py --by-epsilon --out error.svg

--wide: a made table of so many columns (2 to 64 values, ten factors), MST and AIM, and smartnoise's MST as the peer
in an environment of its own: `pip install 'mbi<2' disjoint-set opendp pyyaml antlr4-python3-runtime==4.9.3 graphviz
sqlalchemy` and `pip install --no-deps smartnoise-synth smartnoise-sql`; its other requirement, an Opacus of 2021,
is not needed for MST. --by-epsilon: the error of MST, AIM and DPARGN by ε, beside generators that are not private.

Prints the mean total variation distance over all pairs of columns, and CPU seconds. Three baselines give the
scale: uniform cells; noisy counts of single columns with the whole budget, independent columns; a bootstrap.

DIR/adult contains adult_pgm_discretised.csv.gz and adult_pgm_domain.json of ryan112358/private-pgm. There
are two sets of nine columns: the categorical ones, and one with age (85 values) and hours (99) without
binning. smartnoise-synth on nine columns, measured for issue 8 on another day: MST .125 in 57 s, DPCTGAN
.469; its AIM did not finish in 560 s.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from tacit.accounting import discrete
from tacit.report.svg import Axis, Rule, Series, plot
from tacit.synth import AIM, ARGN, DPARGN, DPCTGAN, DPGAN, MST, PATEGAN, Bayes, Cart, Column, categorical

PEER_SECONDS = 1200  # CPU seconds after which the peer is ended
ROOT = Path(os.environ.get("TACIT_DATA") or Path(__file__).parents[2] / "shared" / "data") / "adult"
SETS = {
    "nine categorical columns": (
        "workclass",
        "education-num",
        "marital-status",
        "occupation",
        "relationship",
        "race",
        "sex",
        "native-country",
        "income>50K",
    ),
    "nine with age and hours": (
        "age",
        "workclass",
        "education-num",
        "marital-status",
        "occupation",
        "race",
        "sex",
        "hours-per-week",
        "income>50K",
    ),
}


def two_way(real: np.ndarray, synthetic: np.ndarray, sizes: list[int]) -> float:
    errors = []
    for a, b in itertools.combinations(range(len(sizes)), 2):
        p, q = (
            np.bincount(x[:, a] * sizes[b] + x[:, b], minlength=sizes[a] * sizes[b]) / len(x)
            for x in (real, synthetic)
        )
        errors.append(0.5 * np.abs(p - q).sum())
    return float(np.mean(errors))


def evenly(rows: np.ndarray, sizes: list[int]) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.column_stack([rng.integers(0, size, len(rows)) for size in sizes])


def alone(rows: np.ndarray, sizes: list[int]) -> np.ndarray:
    """Each column from its noisy counts. Columns are independent, so noise for all of them costs (number of columns)
    / (2σ²).
    """
    variance = discrete.rational_above(len(sizes) / (2 * discrete.rho_of(1.0, 1e-9)))
    rng, synthetic = np.random.default_rng(0), []
    for j, size in enumerate(sizes):
        counts = np.maximum(np.bincount(rows[:, j], minlength=size) + discrete.gaussian(variance, size), 0)
        synthetic.append(rng.choice(size, len(rows), p=counts / counts.sum()))
    return np.column_stack(synthetic)


def bootstrap(rows: np.ndarray, sizes: list[int]) -> np.ndarray:
    return rows[np.random.default_rng(0).integers(0, len(rows), len(rows))]


def wide_table(columns: int, rows: int) -> tuple[pd.DataFrame, dict[str, Column]]:
    """Columns in groups of ten that share a factor; the first of each group has 64 values."""
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(rows, -(-columns // 10)))
    frame, domain = {}, {}
    for j in range(columns):
        values = 64 if j % 10 == 0 else (2, 3, 5, 8, 16, 2, 4, 6, 32)[j % 9]
        x = 0.8 * factors[:, j // 10] + 0.6 * rng.normal(size=rows)
        frame[f"c{j}"] = np.clip(((x + 3) / 6 * values).astype(int), 0, values - 1)
        domain[f"c{j}"] = categorical(range(values))
    return pd.DataFrame(frame), domain


def wide(columns: int, rows: int, peer: str | None) -> None:
    frame, domain = wide_table(columns, rows)
    sizes, real = [len(c.values) for c in domain.values()], frame.to_numpy()
    title = f"{columns} columns, {rows:,} rows"
    print(f"{'table':30s} {'generator':22s} {'two-way error':>14s} {'CPU s':>8s} {'MB':>6s}")
    for ruler in (alone, bootstrap):
        print(
            f"{title:30s} {ruler.__name__:22s} {two_way(real, ruler(real, sizes), sizes):14.4f}", flush=True
        )
    for generator in (MST(), AIM()):
        start = time.process_time()
        made = generator.fit(frame, domain).sample(rows).astype(int).to_numpy()
        seconds = time.process_time() - start
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        name = type(generator).__name__
        print(
            f"{title:30s} {name:22s} {two_way(real, made, sizes):14.4f} {seconds:8.1f} {memory:6.0f}",
            flush=True,
        )
    if peer is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "real.csv", Path(folder) / "made.csv"
        frame.to_csv(source, index=False)
        script = Path(__file__).parent / "peers" / "smartnoise_work.py"
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        # a limit on CPU seconds: the machine may be busy
        command = f"ulimit -t {PEER_SECONDS}; exec {peer} {script} {source} {target}"
        answer = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment)
        if answer.returncode:
            last = (answer.stderr.strip().splitlines() or ["ended"])[-1]
            print(f"{title:30s} {'MST of smartnoise':22s} no result within {PEER_SECONDS} CPU s: {last}")
            return
        told = json.loads(answer.stdout.splitlines()[-1])
        made = pd.read_csv(target).astype(int).to_numpy()
        error = two_way(real, made, sizes)
        print(
            f"{title:30s} {'MST of smartnoise':22s} {error:14.4f} {told['seconds']:8.1f} {told['megabytes']:6.0f}"
        )


def by_epsilon(epsilons: list[float], repeats: int, out: Path | None) -> None:
    """Print and draw the error by ε, beside the generators that are not private."""
    frame = pd.read_csv(ROOT / "adult_pgm_discretised.csv.gz")
    domain = json.loads((ROOT / "adult_pgm_domain.json").read_text())
    names = SETS["nine categorical columns"]
    part, sizes = frame[list(names)], [domain[n] for n in names]
    declared, real = {n: categorical(range(domain[n])) for n in names}, part.to_numpy()

    def error(generator: object) -> float:
        made = generator.fit(part, declared).sample(len(part))  # type: ignore[attr-defined]
        return two_way(real, made.astype(int).to_numpy(), sizes)

    series = []
    print("| generator | " + " | ".join(f"ε = {e:g}" for e in epsilons) + " |")
    print("|---|" + "---|" * len(epsilons))
    for k, kind in enumerate((AIM, MST, DPARGN)):
        errors = [[error(kind(epsilon=e)) for _ in range(repeats)] for e in epsilons]
        means = [float(np.mean(e)) for e in errors]
        print(f"| {kind.__name__} | " + " | ".join(f"{m:.4f}" for m in means) + " |", flush=True)
        low, high = ([f(e) for e in errors] for f in (min, max))
        series.append(Series(kind.__name__, epsilons, means, f"c{k}", low, high))
    rules = []
    for generator in (Bayes(), Cart(), ARGN(device="cpu")):
        name = f"{type(generator).__name__}, not private"
        rules.append(Rule(name, error(generator)))
        print(f"| {name} | {rules[-1].value:.4f}" + " |" * len(epsilons), flush=True)
    rules.append(Rule("bootstrap", two_way(real, bootstrap(real, sizes), sizes)))
    print(f"| bootstrap of the real rows | {rules[-1].value:.4f}" + " |" * len(epsilons))
    if out is not None:
        drawn = plot(
            "Error of pairs of columns by ε: Adult, nine columns",
            series,
            Axis("ε (δ = 1e-9)", log=True),
            Axis("mean total variation distance", log=True),
            rules=rules[:1] + rules[-1:],
        )
        print(drawn.save(out))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("repeats", type=int, nargs="?", default=3)
    parser.add_argument("--wide", type=int, metavar="COLUMNS")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--peer", metavar="PYTHON", help="python of an environment with smartnoise-synth")
    parser.add_argument("--by-epsilon", action="store_true")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 0.3, 1.0, 3.0, 10.0])
    parser.add_argument("--out", type=Path, help="with --by-epsilon: the figure, .svg")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.wide:
        wide(args.wide, args.rows, args.peer)
    elif args.by_epsilon:
        by_epsilon(args.epsilons, args.repeats, args.out)
    else:
        compare(args.repeats)


def compare(repeats: int) -> None:
    frame, domain = (
        pd.read_csv(ROOT / "adult_pgm_discretised.csv.gz"),
        json.loads((ROOT / "adult_pgm_domain.json").read_text()),
    )
    print(f"{'columns':26s} {'generator':22s} {'two-way error':>22s} {'fit and sample, CPU s':>22s}")
    for title, names in SETS.items():
        part, sizes = frame[list(names)], [domain[n] for n in names]
        declared, rows = {n: categorical(range(domain[n])) for n in names}, part.to_numpy()
        for ruler in (evenly, alone, bootstrap):
            print(f"{title:26s} {ruler.__name__:22s} {two_way(rows, ruler(rows, sizes), sizes):22.4f}")
        for generator in (MST(), AIM(), PATEGAN(), DPCTGAN(), DPGAN(epochs=5)):
            errors, seconds = [], []
            for _ in range(repeats):
                start = time.process_time()
                synthetic = generator.fit(part, declared).sample(len(part))
                seconds.append(time.process_time() - start)
                errors.append(two_way(rows, synthetic.astype(int).to_numpy(), sizes))
            spread = f"{np.mean(errors):.4f} ({min(errors):.4f}–{max(errors):.4f})"
            print(
                f"{title:26s} {type(generator).__name__:22s} {spread:>22s} {min(seconds):22.1f}", flush=True
            )


if __name__ == "__main__":
    main()
