"""Five tables with synthetic ones that leak, each in its own way, for comparisons with Anonymeter.

All are drawn by numpy's generators from fixed seeds, or from tables that scikit-learn includes, so that they are
the same on every machine. Training and control table have the same number of rows, all different.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from .clinic import patients, shuffled


def copied() -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Half of the synthetic rows are training rows."""
    real, control = patients(1500, 0), patients(1500, 1)
    made = pd.concat([real.iloc[:750], patients(750, 2)], ignore_index=True)
    return real, made, control


def honest() -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Columns are shuffled: what is left are the values of single columns."""
    real, control = patients(1500, 0), patients(1500, 1)
    return real, shuffled(real, 3), control


def towns() -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Categories of one holder (as of issue 22): 150 towns have one inhabitant."""

    def people(seed: int) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        n = 2000
        town = np.array([f"T{i}" for i in rng.integers(0, 20, n)], dtype=object)
        town[:150] = [f"hamlet {seed}-{i}" for i in range(150)]
        return pd.DataFrame(
            {
                "town": town,
                "age": rng.integers(18, 95, n),
                "income": np.round(rng.lognormal(10, 0.8, n), 2),
                "sex": rng.choice(["f", "m"], n),
            }
        )

    real, control = people(10), people(11)
    made = real.assign(
        age=shuffled(real, 1)["age"], income=np.round(np.random.default_rng(2).lognormal(10, 0.8, 2000), 2)
    )
    return real, made, control


def tumors() -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Breast cancer of Wisconsin: the synthetic rows are training rows, blurred by 1% of the deviation."""
    from sklearn.datasets import load_breast_cancer

    frame = load_breast_cancer(as_frame=True).frame.iloc[:, [0, 1, 2, 3, 4, 5, 30]]
    frame = frame.iloc[np.random.default_rng(0).permutation(len(frame))].reset_index(drop=True)
    real, control = frame.iloc[:280].reset_index(drop=True), frame.iloc[280:560].reset_index(drop=True)
    rng = np.random.default_rng(4)
    made = real.copy()
    for name in made.columns[:-1]:
        made[name] = made[name] + rng.normal(0, 0.01 * made[name].std(), len(made))
    return real, made, control


def diabetes() -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Efron's diabetes patients, with missing values: a bootstrap of the training rows."""
    from sklearn.datasets import load_diabetes

    frame = load_diabetes(as_frame=True, scaled=False).frame.iloc[:, [0, 1, 2, 3, 4, 7, 10]]
    frame["sex"] = frame["sex"].map({1.0: "a", 2.0: "b"})
    rng = np.random.default_rng(5)
    frame = frame.iloc[rng.permutation(len(frame))].reset_index(drop=True)
    frame.loc[rng.random(len(frame)) < 0.1, "s1"] = np.nan
    real, control = frame.iloc[:220].reset_index(drop=True), frame.iloc[220:440].reset_index(drop=True)
    made = real.iloc[rng.integers(0, 220, 220)].reset_index(drop=True)
    return real, made, control


TABLES = {"copied": copied, "honest": honest, "towns": towns, "tumors": tumors, "diabetes": diabetes}


def load(name: str) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return the training, synthetic and control table."""
    return TABLES[name]()
