"""Heart disease: 740 patients of four hospitals, FLamby's Fed-Heart-Disease.

A. Janosi, W. Steinbrunn, M. Pfisterer, R. Detrano 1989, UCI, CC BY 4.0. Preprocessed as in FLamby (J. Ogier
du Terrail et al. 2022): the three columns that most hospitals did not fill in (slope, ca, thal) are dropped,
then every patient with a missing value, which leaves 303 + 261 + 46 + 130 patients. The label is any disease
(1 to 4 in the files) or none. The test set is 34% of each hospital, rounded up: 104, 89, 16 and 45 patients.
The four files (40 kB) are part of this package; `data_dir` or TACIT_DATA may point to others.
"""

from __future__ import annotations

import io
import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..errors import MissingExtra
from ..parameters import bad
from .arrays import sample_stratified, select_rows
from .federation import Dataset, check_fraction
from .recipe import FITS, Recipe
from .sources import Published, contents, folders
from .tables import from_frame

FILES = {
    "cleveland": Published(
        "processed.cleveland.data", inside="a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8"
    ),
    "hungarian": Published(
        "processed.hungarian.data", inside="d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796"
    ),
    "switzerland": Published(
        "processed.switzerland.data",
        inside="834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
    ),
    "va": Published(
        "processed.va.data", inside="e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f"
    ),
}
COLUMNS = (
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
    "num",
)
SPARSE = ("slope", "ca", "thal")
RECIPE = Recipe(
    ("age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak"),
    {"cp": ("1", "2", "3", "4"), "restecg": ("0", "1", "2")},
)  # declared: nothing is read across hospitals


def heart_disease(
    fit: str = "federated",
    test_fraction: float = 0.34,
    seed: int = 0,
    split: str = "seeded",
    data_dir: str | os.PathLike[str] | None = None,
    verify: bool = True,
) -> Dataset:
    """Heart disease: 740 patients of four hospitals, FLamby's Fed-Heart-Disease.

    15 features, two labels, `.by("hospital")`.
    `split="flamby"` has the very test patients of FLamby (needs scikit-learn).
    """
    import pandas as pd

    if split not in ("seeded", "flamby"):
        raise bad("heart_disease", "split", split, "one of 'seeded', 'flamby'")
    if fit not in FITS:
        raise bad("heart_disease", "fit", fit, f"one of {', '.join(map(repr, FITS))}")
    check_fraction("heart_disease", "test_fraction", test_fraction)
    places = [*folders("heart_disease", data_dir), Path(__file__).parent / "files" / "heart_disease"]
    files = contents("heart_disease", tuple(FILES.values()), places, verify, download=False)
    tables = [pd.read_csv(io.BytesIO(data), header=None, names=COLUMNS, na_values="?") for data in files]
    frames = [table.drop(columns=list(SPARSE)).dropna() for table in tables]
    hospital = np.repeat(list(FILES), [len(f) for f in frames])
    frame = pd.concat(frames, ignore_index=True).assign(
        num=lambda f: (f["num"] > 0).astype(int), hospital=hospital
    )
    recipe = replace(RECIPE, fit=fit)
    data = from_frame(frame, "num", name="heart_disease", groups=("hospital",), fit=recipe, test_fraction=0)
    sick, rng = frame["num"].to_numpy(), np.random.default_rng([seed, 7])
    tested = []
    for name in FILES:
        here = np.flatnonzero(hospital == name)
        count = math.ceil(test_fraction * len(here))
        tested.append(
            here[_flamby(sick[here]) if split == "flamby" else sample_stratified(sick[here], count, rng)]
        )
    out = np.concatenate(tested)
    return select_rows(data, np.delete(np.arange(len(frame)), out), out)


def _flamby(sick: np.ndarray) -> np.ndarray:
    """Return FLamby's test patients of one hospital.

    Two thirds are for training, shuffled with seed 43, stratified if there are three of each label.
    """
    try:
        from sklearn.model_selection import train_test_split
    except ImportError:
        raise MissingExtra("heart_disease(split='flamby')", "data", "scikit-learn") from None
    strata = sick if np.bincount(sick, minlength=2).min() > 2 else None
    rows = np.arange(len(sick))
    halves = train_test_split(rows, test_size=1 - 0.66, train_size=0.66, random_state=43, stratify=strata)
    return np.asarray(halves[1])
