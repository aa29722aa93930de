"""Weights of evidence applied to a table, and points-based scorecards.

A logistic regression of the event on the columns' WOE has the coefficients a and b_j.

    ln(odds)   −(a + Σ_j b_j · WOE_j), the odds of others to one event
    score      offset + factor · ln(odds): factor = pdo / ln 2, offset = base_score − factor · ln(base_odds)
    points     −factor · b_j · WOE_j of a bin; the base points are offset − factor · a
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..errors import BadData
from ..files import write_atomic
from ..parameters import bad
from ..results import check_absent
from ..stats.tables import check_columns
from .bins import feature_from_dict
from .woe_bins import WoeBin, WoeColumn

FORMAT = 1
BASE = "base points"


def find_bins(columns: Sequence[WoeColumn], frame: pd.DataFrame) -> np.ndarray:
    """Return the bin of each row and column; −1: a value of a kind that no training row had."""
    if not isinstance(frame, pd.DataFrame):
        raise BadData(
            f"expected a pandas DataFrame with the columns of all bins; got {type(frame).__name__}."
        )
    check_columns(frame, [c.name for c in columns], "this table")
    out = np.empty((len(frame), len(columns)), dtype=np.int64)
    for k, column in enumerate(columns):
        out[:, k] = np.asarray(column.place)[column.feature.encode(frame)]
    return out


def look_up(values: Sequence[Sequence[float]], bins: np.ndarray) -> np.ndarray:
    """Return the value of each row's bin by column; 0 without a bin."""
    return np.column_stack(
        [np.where(b < 0, 0.0, np.asarray([*v, 0.0])[b]) for v, b in zip(values, bins.T)]
        or [np.zeros((len(bins), 0))]
    )


def describe_columns(columns: Sequence[WoeColumn], totals: tuple[int, int]) -> pd.DataFrame:
    """Return one row for each bin of each column."""
    rows = [
        {
            "column": c.name,
            "bin": b.name,
            "rows": b.rows,
            "events": b.events,
            "event_rate": b.events / b.rows,
            "share": b.rows / sum(totals),
            "woe": b.woe,
            "iv": b.iv,
        }
        for c in columns
        for b in c.bins
    ]
    names = ["column", "bin", "rows", "events", "event_rate", "share", "woe", "iv"]
    return pd.DataFrame(rows, columns=names)


def column_to_dict(column: WoeColumn) -> dict[str, Any]:
    feature = column.feature
    bins = [
        {"name": b.name, "others": b.others, "events": b.events, "woe": b.woe, "iv": b.iv}
        for b in column.bins
    ]
    return {"name": column.name, **feature.to_dict(), "place": list(column.place), "bins": bins}


def column_from_dict(entry: Mapping[str, Any]) -> WoeColumn:
    name = str(entry["name"])
    feature = feature_from_dict(entry)
    bins = tuple(
        WoeBin(str(b["name"]), int(b["others"]), int(b["events"]), float(b["woe"]), float(b["iv"]))
        for b in entry["bins"]
    )
    place = tuple(int(p) for p in entry["place"])
    if len(place) != feature.width + 1 or not all(-1 <= p < len(bins) for p in place):
        raise ValueError(f"the bins of {name!r} do not cover its values")
    return WoeColumn(feature, place, bins)


@dataclass(frozen=True)
class Scorecard:
    """Points for each bin of each column; the score is their sum and the base points.

    `coefficients` are those of the logistic regression of the event on WOE, the intercept first.
    """

    columns: tuple[WoeColumn, ...]
    coefficients: tuple[float, ...]
    event: str
    pdo: float
    base_score: float
    base_odds: float
    rounded: bool = True

    @property
    def factor(self) -> float:
        return self.pdo / math.log(2)

    @property
    def base(self) -> float:
        """The points of a row before any column."""
        points = self.base_score - self.factor * (math.log(self.base_odds) + self.coefficients[0])
        return float(round(points)) if self.rounded else points

    @property
    def points(self) -> list[list[float]]:
        """The points of each bin, by column."""
        each = [
            [-self.factor * b * part.woe for part in c.bins]
            for c, b in zip(self.columns, self.coefficients[1:])
        ]
        return [[float(round(p)) for p in row] for row in each] if self.rounded else each

    def table(self) -> pd.DataFrame:
        """Return `column bin points woe`, the base points first."""
        rows: list[tuple[str, str, float, float]] = [(BASE, "", self.base, math.nan)]
        for column, points in zip(self.columns, self.points):
            rows += [(column.name, b.name, p, b.woe) for b, p in zip(column.bins, points)]
        out = pd.DataFrame(rows, columns=["column", "bin", "points", "woe"])
        return out.astype({"points": "int64"}) if self.rounded else out

    def score(self, frame: pd.DataFrame) -> pd.Series:
        """Return the score of each row."""
        total = self.base + look_up(self.points, find_bins(self.columns, frame)).sum(axis=1)
        out = pd.Series(total, index=frame.index, name="score")
        return out.astype("int64") if self.rounded else out

    def predict(self, frame: pd.DataFrame) -> pd.Series:
        """Return the probability of the event by the regression, without rounding."""
        woe = look_up([[b.woe for b in c.bins] for c in self.columns], find_bins(self.columns, frame))
        eta = self.coefficients[0] + woe @ np.asarray(self.coefficients[1:])
        return pd.Series(1 / (1 + np.exp(-eta)), index=frame.index, name=self.event)

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "event": self.event,
            "pdo": self.pdo,
            "base_score": self.base_score,
            "base_odds": self.base_odds,
            "rounded": self.rounded,
            "coefficients": list(self.coefficients),
            "base_points": self.base,
            "points": self.points,
            "columns": [column_to_dict(c) for c in self.columns],
        }

    def save(self, path: str | Path) -> Path:
        """Write the card to a new file: JSON, which `tacit.boost.load_scorecard` reads, or a CSV table."""
        file = check_absent(path)
        if file.suffix not in (".json", ".csv"):
            raise bad("save", "path", str(file), "a name that ends in .json or .csv")
        if file.suffix == ".json":
            write_atomic(file, json.dumps(self.to_dict(), ensure_ascii=False, indent=1))
            return file
        text = io.StringIO()
        out = csv.writer(text, lineterminator="\n")
        out.writerow(["column", "bin", "points", "woe"])
        for row in self.table().itertuples(index=False):
            out.writerow([row[0], row[1], row[2], "" if math.isnan(row[3]) else repr(row[3])])
        write_atomic(file, text.getvalue())
        return file


def is_scorecard(path: str | Path) -> bool:
    """Whether a file is JSON with the points of a scorecard; `load_scorecard` checks the rest."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(data, dict) and "base_points" in data


def load_scorecard(path: str | Path) -> Scorecard:
    """Read a card that `save` wrote as JSON; its scores are the same."""
    file = Path(path)
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise BadData(f"{file} was written by another version of tacit (format {data['format']}).")
        card = Scorecard(
            tuple(column_from_dict(entry) for entry in data["columns"]),
            tuple(float(v) for v in data["coefficients"]),
            str(data["event"]),
            float(data["pdo"]),
            float(data["base_score"]),
            float(data["base_odds"]),
            bool(data["rounded"]),
        )
    except OSError as error:
        raise BadData(f"{file} cannot be read: {error.strerror}.") from None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise BadData(
            f"{file} is not a scorecard that tacit saved ({type(error).__name__}: {error})."
        ) from None
    if len(card.coefficients) != len(card.columns) + 1 or not all(map(math.isfinite, card.coefficients)):
        raise BadData(
            f"{file} is not a scorecard that tacit saved: its coefficients are not those of its columns."
        )
    return card
