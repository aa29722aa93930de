"""Bins of one party's columns with an ε: ranges, cuts and levels are declared, and no row sets one.

A value means the same whatever the other rows are: numbers that cannot be read are missing, and levels that
are not declared share the cell "other". To refuse them would show that somebody has such a value.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ..errors import BadData
from ..parameters import nearest
from ..stats.columns import text_of
from .bins import Bins, Feature, refuse_dates
from .bounded_cells import CELLS, choose_cuts, count_cells
from .count_noise import CountNoise, Source
from .vertical_bins import OwnBins

LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class DeclaredColumns:
    """What is known of a party's columns before a row is read."""

    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    cuts: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [*self.bounds, *self.cuts, *self.levels]

    def only(self, names: Sequence[str]) -> DeclaredColumns:
        """Return the declarations about some columns, in their order."""
        return DeclaredColumns(
            {n: self.bounds[n] for n in names if n in self.bounds},
            {n: self.cuts[n] for n in names if n in self.cuts},
            {n: self.levels[n] for n in names if n in self.levels},
        )

    @classmethod
    def read(
        cls,
        bounds: Mapping[str, Any] | None,
        cuts: Mapping[str, Any] | None,
        categories: Mapping[str, Any] | Sequence[str] | None,
        known: Sequence[str] | None,
        where: str,
    ) -> DeclaredColumns:
        """Return the declarations about the columns `known` (None: about any); raise BadData with all
        problems.
        """
        problems = []
        levels = dict(categories) if isinstance(categories, Mapping) else {}
        bare = [] if isinstance(categories, Mapping) else list(categories or ())
        if bare:
            problems.append(f"the levels of {', '.join(map(repr, bare))} are not declared")
        for name, pair in (bounds or {}).items():
            if not _is_range(pair):
                problems.append(f"bounds of {name!r} must be [low, high] with low < high, got {pair!r}")
        for name, values in (cuts or {}).items():
            if not _is_ascending(values):
                problems.append(f"cuts of {name!r} must be ascending numbers, got {values!r}")
        for name, values in levels.items():
            if not isinstance(values, list | tuple) or not values:
                problems.append(f"the levels of {name!r} must be a list, got {values!r}")
        tables = [("bounds", bounds or {}), ("cuts", cuts or {}), ("categories", levels)]
        for k, (first, one) in enumerate(tables):
            for second, other in tables[k + 1 :]:
                problems += [f"{name!r} has both {first} and {second}" for name in one if name in other]
        if known is not None:
            missing = [n for n in known if not any(n in table for _, table in tables) and n not in bare]
            if missing:
                problems.append(
                    f"{', '.join(map(repr, missing))} must have bounds, cuts or levels: with epsilon they "
                    "are declared, not taken from rows"
                )
            unknown = [n for _, table in tables for n in table if n not in known]
            problems += [f"there is no column {n!r}. {nearest(n, list(known))}".strip() for n in unknown]
        if problems:
            raise BadData(f"{where}: {'; '.join(problems)}.")
        return cls(
            {str(k): (float(v[0]), float(v[1])) for k, v in (bounds or {}).items()},
            {str(k): tuple(float(np.float32(c)) for c in v) for k, v in (cuts or {}).items()},
            {str(k): tuple(dict.fromkeys(text_of(w) for w in v)) for k, v in levels.items()},
        )

    def take(self, frame: pd.DataFrame, who: str) -> pd.DataFrame:
        """Return the declared columns, numbers as numbers; nothing is refused because of a value."""
        out = {}
        for name in self.names:
            column = frame[name]
            refuse_dates(column, who)
            if name in self.levels:
                out[name] = column
                continue
            values = pd.to_numeric(column, errors="coerce").to_numpy(np.float64, na_value=np.nan)
            out[name] = np.clip(values, -LARGEST, LARGEST)  # NaN stays NaN
        return pd.DataFrame(out, index=frame.index)

    def fit(self, frame: pd.DataFrame, most: int, noise: CountNoise, source: Source) -> OwnBins:
        """Return the bins of columns that `take` returned; cuts that are not declared from noisy counts."""
        features = []
        for name in self.names:
            if name in self.levels:
                features.append(Feature(name, levels=self.levels[name]))
                continue
            cuts = self.cuts.get(name)
            if cuts is None:
                bounds = self.bounds[name]
                counts = count_cells(frame[name].to_numpy(), bounds)
                counts = counts + noise.draw(noise.bin_share, (CELLS,), source)
                cuts = choose_cuts(np.maximum(counts, 0).astype(np.float64), bounds, most)
            features.append(Feature(name, cuts))
        bins = Bins(tuple(features))
        return OwnBins(bins, tuple(tuple(range(f.width + 1)) for f in features))


def _is_range(pair: Any) -> bool:
    return isinstance(pair, list | tuple) and len(pair) == 2 and _is_ascending(pair)


def _is_ascending(values: Any) -> bool:
    if not isinstance(values, list | tuple) or not values:
        return False
    if not all(isinstance(v, int | float) and not isinstance(v, bool) and np.isfinite(v) for v in values):
        return False
    small = [float(np.float32(v)) for v in values]
    return all(a < b for a, b in itertools.pairwise(small))
