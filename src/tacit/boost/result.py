"""The result of training: a booster with its ledger."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..files import write_atomic
from ..parties.ledger import Ledger
from ..results import JobResult, check_absent
from .model import Booster
from .xgboost_json import to_json


@dataclass
class BoostResult(JobResult):
    """Boosted trees over parties.

    `booster` is the model, `losses` are the mean losses of held-out rows after each round.
    """

    title = "Boosted trees across parties"
    facts = (
        "objective",
        "label",
        "rows",
        "parties",
        "trees",
        "leaves",
        "steps",
        "best_round",
        "loss",
        "importances",
        "losses",
        "notes",
    )

    booster: Booster = field(repr=False)
    ledger: Ledger = field(repr=False)
    label: str
    rows: int
    parties: int
    steps: int
    losses: list[float] = field(default_factory=list, repr=False)
    best_round: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def value(self) -> Booster:
        return self.booster

    @property
    def objective(self) -> str:
        return self.booster.objective.name

    @property
    def trees(self) -> int:
        return len(self.booster.trees)

    @property
    def leaves(self) -> int:
        return sum((len(tree) + 1) // 2 for tree in self.booster.trees)

    @property
    def loss(self) -> float | None:
        """The mean loss of held-out rows of the model that is kept."""
        return self.losses[self.booster.rounds] if len(self.losses) > self.booster.rounds else None

    @property
    def importances(self) -> list[dict[str, Any]]:
        gain = self.importance()
        return [{"feature": name, "gain": float(value)} for name, value in gain.items()]

    def predict(self, frame: pd.DataFrame, *, margin: bool = False, trees: int | None = None) -> np.ndarray:
        """Return a prediction for each row of a table with the columns of training.

        With two classes the probability of the second, with more classes one column for each, otherwise the
        value. `margin` returns what comes before the sigmoid, softmax or exponential; `trees` uses the first
        rounds only.
        """
        return self.booster.predict(frame, margin=margin, trees=trees)

    def importance(self, kind: str = "gain") -> pd.Series:
        """Return a number for each feature: mean "gain" of its splits, "weight" (how many), "cover", …"""
        return self.booster.importance(kind)

    def encode(self, frame: pd.DataFrame) -> np.ndarray:
        """Return rows as the saved model takes them in XGBoost: categories as codes, NaN where missing."""
        return self.booster.bins.to_matrix(frame)

    def save(self, path: str | Path, force: bool = False) -> Path:
        """Write the model as XGBoost's JSON, which `xgboost.Booster` and `tacit.boost.load` read.

        `force` overwrites an existing file.
        """
        file = Path(path) if force else check_absent(path)
        write_atomic(file, self.to_text())
        return file

    def to_text(self) -> str:
        """Return the text of the file that `save` writes."""
        return json.dumps(to_json(self.booster), ensure_ascii=False)
