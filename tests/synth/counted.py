"""Tables for the private generators' tests: a small made one, and the discretized Adult of the published
benchmarks.
"""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from tacit.synth import Column, categorical, continuous, integer

ROOT = Path(os.environ.get("TACIT_DATA") or Path(__file__).parents[3] / "shared" / "data")
ADULT_9 = (
    "workclass",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "native-country",
    "income>50K",
)
DOMAIN = {
    "age": integer(0, 120),
    "sex": categorical(["F", "M"]),
    "job": categorical(["cook", "nurse", "judge"]),
    "pay": continuous(0, 100),
}


def people(n: int = 4000, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    job = rng.choice(["cook", "nurse", "judge"], n, p=[0.5, 0.3, 0.2])
    pay = np.clip(
        20 * (job == "cook") + 40 * (job == "nurse") + 80 * (job == "judge") + rng.normal(0, 5, n), 0, 100
    )
    return pd.DataFrame(
        {"age": rng.integers(18, 80, n), "sex": rng.choice(["F", "M"], n), "job": job, "pay": pay}
    )


def two_way_error(real: np.ndarray, made: np.ndarray, sizes) -> float:
    """Mean total variation distance over all pairs of columns."""
    errors = []
    for a, b in itertools.combinations(range(len(sizes)), 2):
        p, q = (
            np.bincount(x[:, a] * sizes[b] + x[:, b], minlength=sizes[a] * sizes[b]) / len(x)
            for x in (real, made)
        )
        errors.append(0.5 * np.abs(p - q).sum())
    return float(np.mean(errors))


def named(domain: dict[str, Column]) -> tuple[Column, ...]:
    return tuple(replace(column, name=name) for name, column in domain.items())


def adult(columns=ADULT_9) -> tuple[pd.DataFrame, dict]:
    place = ROOT / "adult"
    domain = json.loads((place / "adult_pgm_domain.json").read_text())
    return pd.read_csv(place / "adult_pgm_discretised.csv.gz")[list(columns)], {
        c: categorical(range(domain[c])) for c in columns
    }
