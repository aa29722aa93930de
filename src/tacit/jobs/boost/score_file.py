"""`tacit predict MODEL.json new.csv`: score a file with a saved booster, or with a saved scorecard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...boost.bins import Feature
from ...boost.scorecard import Scorecard, is_scorecard, load_scorecard
from ...boost.xgboost_json import load
from ...data.cells import with_columns
from ...data.recipe import Recipe
from ...errors import BadData
from ...parameters import bad
from ...release.score import check_probability, name_classes
from ...release.score_file import FileModel, Scored, write_scores

SHARED = "as one level with all others that were not in training"
NO_BIN = "0 points"


def score_file(
    model: str | Path, path: str | Path, out: str | Path, *, threshold: float | None = None, **options: Any
) -> Scored:
    """Write a score for each row of a file.

    `model` is a file of `tacit boost` or `BoostResult.save`, or a scorecard's JSON. The columns written are
    those of `tacit predict` with a run: p(label) of each class and `prediction`, which is the value for a
    regression. A scorecard gives `score` and the probability of its event. `options` are those of
    `release.score_file.write_scores`.
    """
    file = Path(model)
    if is_scorecard(file):
        if threshold is not None:
            raise bad("predict", "threshold", threshold, "left out: a scorecard gives points")
        return write_scores(_from_card(load_scorecard(file)), path, out, **options)
    return write_scores(_from_booster(file, threshold), path, out, **options)


def _from_booster(file: Path, threshold: float | None) -> FileModel:
    booster = load(file)
    labels = booster.labels if booster.objective.name in ("binary", "multiclass") else ()
    limit = None if threshold is None else check_probability(threshold, labels)
    recipe = _recipe(booster.bins.features)

    def score(frame: pd.DataFrame) -> Mapping[str, Any]:
        found = booster.predict(_typed(frame, recipe))
        if not np.isfinite(found).all():
            raise BadData("predict: the model gives NaN or infinite numbers: its file was modified.")
        if not labels:
            return {"prediction": found}
        p = found if found.ndim == 2 else np.stack([1.0 - found, found], axis=1)
        return name_classes(p, labels, limit)

    return FileModel(recipe, labels, score, unseen=SHARED)


def _from_card(card: Scorecard) -> FileModel:
    recipe = _recipe([c.feature for c in card.columns])
    event = f"p({card.event})"

    def score(frame: pd.DataFrame) -> Mapping[str, Any]:
        rows = _typed(frame, recipe)
        return {"score": card.score(rows).to_numpy(), event: card.predict(rows).to_numpy()}

    return FileModel(recipe, (), score, unseen=NO_BIN, produced=("score", event))


def _recipe(features: Sequence[Feature]) -> Recipe:
    """Return what the columns of a table are; nothing else of a recipe is used."""
    levels = {f.name: f.levels for f in features if f.levels is not None}
    codes: dict[str, tuple[float | str, ...]] = {f.name: f.missing for f in features if f.missing}
    return Recipe(tuple(f.name for f in features if f.levels is None), levels, missing_codes=codes)


def _typed(frame: pd.DataFrame, recipe: Recipe) -> pd.DataFrame:
    """Return the table with its numbers as numbers; text among them is refused."""
    numbers = recipe.raw(frame)
    return with_columns(frame, {name: numbers[:, k] for k, name in enumerate(recipe.numbers)})
