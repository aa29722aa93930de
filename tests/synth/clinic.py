"""A table with something to learn, something to copy and a target; and what good, bad and dishonest
generators make of it.
"""

from __future__ import annotations

import numpy as np
import pandas as pd


def patients(n: int, seed: int) -> pd.DataFrame:
    """`ill` depends on age, weight and smoking; `noise` on nothing. Numbers are fine enough that no two rows
    are equal by chance.
    """
    rng = np.random.default_rng(seed)
    age = rng.normal(50, 15, n)
    weight = 60 + 0.3 * age + rng.normal(0, 8, n)
    smokes = rng.choice(["no", "yes", "gave up"], n, p=[0.6, 0.25, 0.15])
    risk = 0.08 * (age - 50) + 0.1 * (weight - 75) + 1.5 * (smokes == "yes") - 0.5
    ill = np.where(rng.random(n) < 1 / (1 + np.exp(-risk)), "yes", "no")
    return pd.DataFrame(
        {
            "age": age,
            "weight": weight,
            "smokes": smokes,
            "noise": rng.normal(size=n),
            "ward": rng.choice(list("ABCDE"), n),
            "ill": ill,
        }
    )


def shuffled(frame: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Every column shuffled separately: correct marginals, no dependence, and no real row."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame({c: frame[c].to_numpy()[rng.permutation(len(frame))] for c in frame})
