"""Data sets that statsmodels and lifelines ship, split among parties, and fits of the pooled rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import tacit
from tacit.data.heart_disease import COLUMNS

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


def quiet(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call an independent implementation, whose own warnings are not under test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*args, **options)


def split(frame: pd.DataFrame, parties: int = 3, seed: int = 0) -> dict[str, pd.DataFrame]:
    """Split rows among parties of very different sizes."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(frame))
    cuts = np.cumsum(rng.dirichlet(np.ones(parties)) * (len(frame) - 2 * parties)).astype(int)[:-1]
    cuts = cuts + 2 * np.arange(1, parties)
    return {f"p{k}": frame.iloc[rows].reset_index(drop=True) for k, rows in enumerate(np.split(order, cuts))}


def sm_data(name: str) -> pd.DataFrame:
    import statsmodels.api as sm

    frame: pd.DataFrame = quiet(lambda: getattr(sm.datasets, name).load_pandas().data)
    return frame


def ll_data(name: str) -> pd.DataFrame:
    datasets = quiet(__import__, "lifelines.datasets", fromlist=["datasets"])
    frame: pd.DataFrame = quiet(getattr(datasets, f"load_{name}"))
    return frame


def heart_disease() -> dict[str, pd.DataFrame]:
    """The four hospitals; two thirds of their rows have a missing value somewhere."""
    folder = Path(tacit.data.__file__).parent / "files" / "heart_disease"
    fed = {}
    for name in HOSPITALS:
        frame = pd.read_csv(folder / f"processed.{name}.data", names=COLUMNS, na_values="?")
        fed[name] = frame.assign(
            disease=(frame["num"] > 0).astype(int), sex=np.where(frame["sex"] == 1, "male", "female")
        )
    return fed


def pool(fed: dict[str, pd.DataFrame]) -> pd.DataFrame:
    return pd.concat([frame.assign(site=name) for name, frame in fed.items()], ignore_index=True)
