"""Tables for tests of boosting: numbers, counts, categories and missing values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from tacit.boost.agreement import Terms
from tacit.boost.program import BoostProgram

COLUMNS = ("a", "b", "c", "d")


def make_table(rows: int = 2000, seed: int = 0) -> pd.DataFrame:
    """Numbers (a), whole numbers (b), a category (c) and an incomplete number (d), with four labels."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "a": rng.normal(size=rows).round(4),
            "b": rng.integers(0, 40, rows),
            "c": rng.choice(list("xyzuvw"), rows),
            "d": np.where(rng.random(rows) < 0.2, np.nan, rng.exponential(size=rows).round(4)),
        }
    )
    frame.loc[rng.random(rows) < 0.05, "c"] = None
    m = frame.a + (frame.c == "x") - 2.0 * (frame.c == "u") + np.sin(frame.b) + frame.d.fillna(1.5)
    noisy = m + rng.logistic(size=rows)
    frame["yes"] = np.where(noisy > 1, "yes", "no")
    frame["kind"] = np.select([noisy < 0, noisy < 2], ["low", "middle"], "top")
    frame["size"] = (m + rng.normal(size=rows)).round(3)
    frame["count"] = rng.poisson(np.exp(np.clip(m / 3, -3, 2)))
    return frame


LABELS = {"binary": "yes", "multiclass": "kind", "regression": "size", "poisson": "count"}


def divide(frame: pd.DataFrame, parties: int, seed: int = 1) -> dict[str, pd.DataFrame]:
    owner = np.random.default_rng(seed).integers(0, parties, len(frame))
    return {f"p{k}": frame[owner == k].reset_index(drop=True) for k in range(parties)}


def make_program(objective: str = "binary", **options: Any) -> BoostProgram:
    about = {k: options.pop(k) for k in ("labels", "levels", "cuts", "bins") if k in options}
    terms = Terms(COLUMNS, LABELS[objective], objective, ("c",), **about)
    return BoostProgram(terms.to_dict(), **{"trees": 5, "depth": 3, **options})
