"""Files of clinics that train together, for tests with real parties."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd


def write_files(folder: Path, sizes: Mapping[str, int]) -> None:
    """One table a clinic: the sick are mostly older than 50."""
    rng = np.random.default_rng(0)
    for name, n in sizes.items():
        age, chol = rng.normal(50, 10, n), rng.normal(200, 30, n)
        pd.DataFrame(
            {"age": age, "chol": chol, "sick": np.where(age + rng.normal(0, 5, n) > 50, "yes", "no")}
        ).to_csv(folder / f"{name}.csv", index=False)
