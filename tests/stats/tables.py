"""Real tables by party: heart disease by hospital (UCI), lung cancer by institution (lifelines)."""

from __future__ import annotations

import functools
from pathlib import Path

import pandas as pd
from lifelines.datasets import load_lung  # type: ignore[import-untyped]

import tacit
from tacit.data.heart_disease import COLUMNS


@functools.cache
def lung() -> dict[str, pd.DataFrame]:
    """18 institutions of 2 to 36 patients, with missing values."""
    frame = load_lung().dropna(subset=["inst"])
    frame["arm"] = frame["sex"].map({1: "male", 2: "female"})
    return {f"inst {int(k)}": part.drop(columns="inst") for k, part in frame.groupby("inst")}


@functools.cache
def heart() -> dict[str, pd.DataFrame]:
    """Four hospitals as they are published: codes as numbers, many missing values."""
    folder = Path(tacit.__file__).parent / "data" / "files" / "heart_disease"
    frames = {}
    for name in ("cleveland", "hungarian", "switzerland", "va"):
        frame = pd.read_csv(folder / f"processed.{name}.data", names=COLUMNS, na_values="?")
        frame["disease"] = (frame["num"] > 0).map({True: "yes", False: "no"})
        frames[name] = frame
    return frames


def pooled(frames: dict[str, pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(frames.values(), ignore_index=True)
