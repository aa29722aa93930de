"""Made visits of patients: attributes, irregular times, a ward that depends on the one before."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tacit.synth import categorical, continuous, timestamp

DECLARED = {
    "sex": categorical(["F", "M"]),
    "date": timestamp("2015-01-01", "2021-01-01", days=True),
    "ward": categorical(["A", "B", "C"]),
    "pressure": continuous(60, 220, step=1),
}
STAY = 0.8  # probability that the next visit is to the same ward


def visits(patients: int = 3000, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    sex = rng.choice(["F", "M"], patients)
    number = np.minimum(1 + rng.poisson(np.where(sex == "F", 5, 2)), 12)
    who = np.repeat(np.arange(patients), number)
    rank = np.arange(len(who)) - np.repeat(np.cumsum(number) - number, number)
    gap = np.where(rank == 0, rng.integers(0, 600, len(who)), rng.geometric(1 / 40, len(who)))
    days = pd.Series(gap).groupby(who).cumsum().to_numpy()
    ward = rng.integers(0, 3, len(who))
    for k in range(1, 12):
        at = np.flatnonzero((rank == k) & (rng.random(len(who)) < STAY))
        ward[at] = ward[at - 1]
    frame = pd.DataFrame(
        {
            "patient": [f"P{i}" for i in who],
            "sex": sex[who],
            "date": pd.Timestamp("2015-02-01") + pd.to_timedelta(days, unit="D"),
            "ward": np.array(list("ABC"))[ward],
            "pressure": np.round(np.clip(100 + 25 * ward + rng.normal(0, 8, len(who)), 60, 220)),
        }
    )
    return frame.sample(frac=1, random_state=seed).reset_index(drop=True)
