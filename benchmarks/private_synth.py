"""MST, AIM and DPGAN on the discretised Adult (48,842 rows), ε = 1, δ = 1e-9: mean total variation distance over all pairs of columns, and seconds.

    TACIT_DATA=DIR .venv/bin/python benchmarks/private_synth.py [REPEATS]

DIR/adult holds adult_pgm_discretised.csv.gz and adult_pgm_domain.json of ryan112358/private-pgm. Two sets of nine columns: the categorical ones, and one with
age (85 values) and hours (99) uncut. smartnoise-synth's MST on nine columns, measured for issue 8 on another day: .125 in 57 s; its AIM did not end in 560 s.
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

from tacit.synth import AIM, DPGAN, MST, categorical

ROOT = Path(os.environ.get("TACIT_DATA") or Path(__file__).parents[2] / "shared" / "data") / "adult"
SETS = {"nine categorical columns": ("workclass", "education-num", "marital-status", "occupation", "relationship", "race", "sex", "native-country",
                                     "income>50K"),
        "nine with age and hours": ("age", "workclass", "education-num", "marital-status", "occupation", "race", "sex", "hours-per-week", "income>50K")}


def two_way(real: np.ndarray, made: np.ndarray, sizes: list[int]) -> float:
    errors = []
    for a, b in itertools.combinations(range(len(sizes)), 2):
        p, q = (np.bincount(x[:, a] * sizes[b] + x[:, b], minlength=sizes[a] * sizes[b]) / len(x) for x in (real, made))
        errors.append(0.5 * np.abs(p - q).sum())
    return float(np.mean(errors))


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    frame, domain = pd.read_csv(ROOT / "adult_pgm_discretised.csv.gz"), json.loads((ROOT / "adult_pgm_domain.json").read_text())
    print(f"{'columns':26s} {'generator':10s} {'two-way error':>20s} {'fit and sample, s':>18s}")
    for title, names in SETS.items():
        part, sizes = frame[list(names)], [domain[n] for n in names]
        declared = {n: categorical(range(domain[n])) for n in names}
        for generator in (MST(), AIM(), DPGAN(epochs=5)):
            errors, seconds = [], []
            for _ in range(repeats):
                start = time.perf_counter()
                made = generator.fit(part, declared).sample(len(part))
                seconds.append(time.perf_counter() - start)
                errors.append(two_way(part.to_numpy(), made.astype(int).to_numpy(), sizes))
            spread = f"{np.mean(errors):.4f} ({min(errors):.4f}–{max(errors):.4f})"
            print(f"{title:26s} {type(generator).__name__:10s} {spread:>20s} {np.mean(seconds):18.2f}", flush=True)


if __name__ == "__main__":
    main()
