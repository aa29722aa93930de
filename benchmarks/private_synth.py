"""The private generators on the discretized Adult (48,842 rows) at ε = 1, δ = 1e-9.

    TACIT_DATA=DIR .venv/bin/python benchmarks/private_synth.py [REPEATS]

Prints the mean total variation distance over all pairs of columns, and CPU seconds. Three baselines give the
scale: uniform cells; noisy counts of single columns with the whole budget, independent columns; a bootstrap.

DIR/adult contains adult_pgm_discretised.csv.gz and adult_pgm_domain.json of ryan112358/private-pgm. There
are two sets of nine columns: the categorical ones, and one with age (85 values) and hours (99) without
binning. smartnoise-synth on nine columns, measured for issue 8 on another day: MST .125 in 57 s, DPCTGAN
.469; its AIM did not finish in 560 s.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from tacit.accounting import discrete
from tacit.synth import AIM, DPCTGAN, DPGAN, MST, PATEGAN, categorical

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


def main() -> None:
    torch.set_num_threads(1)
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
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
