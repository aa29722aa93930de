"""A model matrix of declared size: columns clipped to declared bounds, terms scaled to [−1, 1], rows to √p.

One row then changes a sum by a known amount whatever the formula computes. Bounds and levels are declared,
and the range of a term follows from them, not from anybody's rows.

A row is never a reason to refuse: that a party refused would tell of the row without noise. Rows with values
that are not declared are left out, and where a formula has no value, a row is in the middle of all ranges.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from ..errors import ProtocolError
from . import design
from .declared import level_codes, to_numbers
from .lifetimes import read_times
from .newton import INTERCEPT

log = logging.getLogger("tacit.party")
PROBES = 512  # rows that show the range of a term over the declared bounds
MOST = 1e250  # of a coefficient: predictors of scaled terms do not overflow


@dataclass(frozen=True)
class BoundedDesign:
    """`columns` are those of the formula, the outcome first if it has one.

    `is_free` drops the intercept, because others stand for it (a baseline hazard, the sites' intercepts);
    terms are centered as if it were there.
    """

    formula: str
    columns: tuple[str, ...]
    bounds: Mapping[str, Sequence[float]]
    levels: Mapping[str, Sequence[Any]]
    is_free: bool = False

    @cached_property
    def agreement(self) -> design.Agreement:
        """Levels are declared, not discovered."""
        used = {
            name: tuple(design.plain_level(v) for v in self.levels[name])
            for name in self.columns
            if name in self.levels
        }
        return design.Agreement(used)

    @cached_property
    def every(self) -> list[str]:
        return design.term_names(self.formula, self.columns, self.agreement)

    @cached_property
    def terms(self) -> list[str]:
        return [name for name in self.every if not (self.is_free and name == INTERCEPT)]

    @property
    def _kept(self) -> list[int]:
        return [k for k, name in enumerate(self.every) if not (self.is_free and name == INTERCEPT)]

    @cached_property
    def ranges(self) -> tuple[np.ndarray, np.ndarray]:
        """The middle and half of the range of each term over the declared bounds, found on made-up rows."""
        rng = np.random.default_rng(0)
        probe = {}
        for name in self.columns:
            if name in self.agreement.levels:
                levels = self.agreement.levels[name]
                codes = rng.integers(0, len(levels), PROBES)
                codes[: len(levels)] = np.arange(len(levels))[:PROBES]
                probe[name] = pd.Series([levels[c] for c in codes])
            else:
                low, high = self.bounds[name]
                probe[name] = pd.Series(rng.choice([low, (low + high) / 2, high], PROBES))
        _, x = design.model_matrix(self.formula, self.columns, self.agreement, pd.DataFrame(probe))
        x = x[:, self._kept]
        low, high = x.min(axis=0), x.max(axis=0)
        middle, half = (low + high) / 2, (high - low) / 2
        where = [k for k, name in enumerate(self.terms) if name == INTERCEPT]
        middle[where], half[where] = 0.0, 1.0
        if not where and not self.is_free:
            middle, half = np.zeros_like(middle), np.maximum(np.abs(low), np.abs(high))
        return middle, np.where(half > 0, half, 1.0)

    def read(self, frame: pd.DataFrame) -> tuple[np.ndarray | None, np.ndarray]:
        """Return the outcome (None without one) and the scaled matrix of rows without missing values."""
        p = len(self.terms)
        if not len(frame):
            return np.zeros(0), np.zeros((0, p))
        clipped = frame.assign(
            **{
                name: np.clip(to_numbers(frame[name]), self.bounds[name][0], self.bounds[name][1])
                for name in self.columns
                if name not in self.agreement.levels
            }
        )
        y, x = design.model_matrix(self.formula, self.columns, self.agreement, clipped, every_row=True)
        middle, half = self.ranges
        x = (x[:, self._kept] - middle) / half
        has_none = ~(np.isfinite(x).all(axis=1) & (True if y is None else np.isfinite(y)))
        x[has_none] = 0.0
        y = None if y is None else np.where(has_none, 0.0, y)
        size = np.sqrt((x**2).sum(axis=1))
        return y, x * np.minimum(1.0, np.sqrt(p) / np.maximum(size, 1e-300))[:, None]


def declared_rows(
    table: pd.DataFrame, names: Sequence[str], levels: Mapping[str, Sequence[Any]]
) -> pd.DataFrame:
    """Return the rows that have a declared level, or else a number, in each of these columns.

    Each cell is read by itself (declared.py). Columns with levels are categories of exactly these.
    """
    columns: dict[str, Any] = {}
    is_number, is_level = np.ones(len(table), dtype=bool), np.ones(len(table), dtype=bool)
    for name in dict.fromkeys(names):
        if name in levels:
            known = list(levels[name])
            codes = level_codes(table[name], known, truth_is_number=True)
            is_level &= codes != len(known)
            is_number &= codes != len(known) + 1
            columns[name] = pd.Categorical.from_codes(np.where(codes < len(known), codes, -1), known)
        else:
            columns[name] = to_numbers(table[name])
            is_number &= ~np.isnan(columns[name])
    frame = pd.DataFrame(columns, index=pd.RangeIndex(len(table)))
    frame, is_level = leave_out(frame, ~is_number, "missing values, or no numbers"), is_level[is_number]
    return leave_out(frame, ~is_level, "values that are not among the declared levels")


def declared_exits(
    table: pd.DataFrame,
    names: Sequence[str],
    levels: Mapping[str, Sequence[Any]],
    time: str,
    event: str,
    causes: Sequence[Any],
) -> pd.DataFrame:
    """As `declared_rows`, of the rows with a time of at least 0 and a declared event."""
    frame = declared_rows(table, names, {**levels, event: (0, *causes)})
    return leave_out(frame, read_times(frame, time) < 0, "negative times")


def leave_out(frame: pd.DataFrame, rows: np.ndarray, why: str) -> pd.DataFrame:
    """Return the other rows; this party's own log says how many were left out."""
    if not rows.any():
        return frame
    log.warning("%d rows were left out of a private query: %s", int(rows.sum()), why)
    return frame[~rows]


def check_coefficients(sent: np.ndarray, length: int) -> np.ndarray:
    """Return coefficients that a coordinator sent; refuse those with which a predictor may overflow.

    The sensitivity holds at any point, but not where x @ β overflows: inf − inf is no number for some rows
    only, and the refusal of a sum that has one would tell, without noise, that there are such rows.
    """
    if sent.shape != (length,) or not (np.abs(sent) <= MOST).all():
        raise ProtocolError(
            "the coordinator sends coefficients that are not those of the agreed model. Nothing was sent."
        )
    return sent
