"""Programs of one sum (or few): histograms, cross-tabulations, correlations, rank tests, frequent values."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
import torch

from ..crypto import exact
from ..errors import ProtocolError
from ..protocols.sum_steps import BEGIN_AGAIN, Down
from .columns import codes, level_sets, numbers, text_of
from .tables import check_columns


def count_cells(values: np.ndarray, low: float, high: float, bins: int) -> np.ndarray:
    """Counts in equal bins of [low, high], below it and above it: bins + 2 numbers."""
    if not len(values):
        return np.zeros(bins + 2, np.int64)
    edges = np.linspace(low, high, bins + 1)
    place = np.searchsorted(edges, values, side="right")  # 0: below; bins + 1: at the end or above
    place = np.where((place == bins + 1) & (values == high), bins, place)
    return np.bincount(place, minlength=bins + 2)


@dataclass(frozen=True)
class HistogramProgram:
    """Counts of a column in equal bins of a declared range, by group: groups × (bins + 2)."""

    column: str
    low: float
    high: float
    bins: int
    by: tuple[str, tuple[str, ...]] | None = None
    max_steps: int = 1
    bound: int = (1 << 31) - 1

    @property
    def groups(self) -> int:
        return 1 if self.by is None else len(self.by[1])

    def length(self, step: int, down: Down) -> int:
        return self.groups * (self.bins + 2)

    def local(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
        check_columns(table, [self.column, *([self.by[0]] if self.by else [])], "this party")
        x = numbers(table, self.column)
        group = np.zeros(len(table), np.int64) if self.by is None else codes(table, *self.by)
        parts = [
            count_cells(x[(group == g) & ~np.isnan(x)], self.low, self.high, self.bins)
            for g in range(self.groups)
        ]
        return np.concatenate(parts)

    def row_sets(self, table: pd.DataFrame) -> dict[str, np.ndarray]:
        """All rows, and those of each group: what a party's history of queries compares."""
        check_columns(table, [self.column, *([self.by[0]] if self.by else [])], "this party")
        groups = {} if self.by is None else level_sets(table, *self.by)
        return {"all rows": np.ones(len(table), bool), **groups}

    def coordinate(self) -> Generator[Down, np.ndarray, np.ndarray]:
        total = yield {}
        return total.reshape(self.groups, self.bins + 2)


@dataclass(frozen=True)
class CrosstabProgram:
    """Counts by the levels of two columns; levels that were not declared, and missing values, come last."""

    rows: tuple[str, tuple[str, ...]]
    columns: tuple[str, tuple[str, ...]]
    max_steps: int = 1
    bound: int = (1 << 31) - 1

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows[1]) + 2, len(self.columns[1]) + 2

    def length(self, step: int, down: Down) -> int:
        return math.prod(self.shape)

    def local(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
        check_columns(table, [self.rows[0], self.columns[0]], "this party")
        place = codes(table, *self.rows) * self.shape[1] + codes(table, *self.columns)
        return np.bincount(place, minlength=math.prod(self.shape))

    def row_sets(self, table: pd.DataFrame) -> dict[str, np.ndarray]:
        """All rows, and those of each level of both columns."""
        check_columns(table, [self.rows[0], self.columns[0]], "this party")
        groups = level_sets(table, *self.rows) | level_sets(table, *self.columns)
        return {"all rows": np.ones(len(table), bool), **groups}

    def coordinate(self) -> Generator[Down, np.ndarray, np.ndarray]:
        total = yield {}
        return total.reshape(self.shape)


@dataclass(frozen=True)
class CorrelationProgram:
    """Pearson's correlations over the rows where both columns are present, as in pandas.

    Step 1 sums each column; step 2 sums products about these means over each pair's complete rows.
    """

    if_left: ClassVar[str] = BEGIN_AGAIN
    is_repeatable: ClassVar[bool] = True
    columns: tuple[str, ...]
    max_steps: int = 2
    bound: int = exact.BOUND

    @property
    def pairs(self) -> list[tuple[int, int]]:
        p = len(self.columns)
        return [(i, j) for i in range(p) for j in range(i + 1, p)]

    def length(self, step: int, down: Down) -> int:
        p = len(self.columns)
        return p * (1 + exact.LIMBS) if step == 0 else len(self.pairs) * (1 + 5 * exact.LIMBS)

    def local(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
        check_columns(table, list(self.columns), "this party")
        x = np.stack([numbers(table, c) for c in self.columns], 1)
        present = ~np.isnan(x)
        if step == 0:
            sums = [math.fsum(x[present[:, j], j]) for j in range(x.shape[1])]
            return np.concatenate([present.sum(0), exact.encode(np.array(sums))])
        mean = down["mean"]
        if mean.dtype != torch.float64 or tuple(mean.shape) != (x.shape[1],):
            raise ProtocolError("the coordinator sends means of another form than the agreed query has.")
        centered = x - mean.numpy()
        counts, sums = [], []
        for i, j in self.pairs:
            a, b = (centered[present[:, i] & present[:, j], k] for k in (i, j))
            counts.append(len(a))
            sums += [math.fsum(v) for v in (a, b, a * a, b * b, a * b)]
        return np.concatenate([np.array(counts, np.int64), exact.encode(np.array(sums))])

    def summed_values(self, table: pd.DataFrame) -> list[np.ndarray]:
        check_columns(table, list(self.columns), "this party")
        columns = (numbers(table, c) for c in self.columns)
        return [x[~np.isnan(x)] for x in columns]

    def coordinate(self) -> Generator[Down, np.ndarray, tuple[np.ndarray, np.ndarray]]:
        p = len(self.columns)
        total = yield {}
        mean = exact.decode(total[p:]) / np.maximum(total[:p], 1)
        total = yield {"mean": torch.from_numpy(mean)}
        pairs = self.pairs
        n, r = np.zeros((p, p), np.int64), np.eye(p)
        sums = exact.decode(total[len(pairs) :]).reshape(-1, 5)
        for (i, j), count, (a, b, aa, bb, ab) in zip(pairs, total, sums):
            k = max(int(count), 1)
            spread = math.sqrt(max(aa - a * a / k, 0.0) * max(bb - b * b / k, 0.0))
            n[i, j] = n[j, i] = int(count)
            r[i, j] = r[j, i] = (ab - a * b / k) / spread if spread and count > 1 else math.nan
        return r, n


@dataclass(frozen=True)
class FrequentProgram:
    """Values that occur at least `least` times, found letter by letter.

    In each step parties count, for every prefix found so far, the rows that continue with each of 256 bytes
    or end there. Prefixes of fewer rows than `least` are not continued, and at most `most` are.

    A party leaves the rows of values out that it has fewer than `cell` times. Every opened count, and every
    difference of a prefix and some of its continuations, is then a sum of counts of at least `cell`, or 0.
    """

    if_left: ClassVar[str] = BEGIN_AGAIN
    is_repeatable: ClassVar[bool] = True
    column: str
    least: int
    longest: int = 32
    most: int = 64
    bound: int = (1 << 31) - 1
    cell: int = 1

    @property
    def max_steps(self) -> int:
        return self.longest + 1

    def length(self, step: int, down: Down) -> int:
        return int(down["lengths"].numel()) * 257

    def local(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
        check_columns(table, [self.column], "this party")
        prefixes = self._prefixes(step, down)
        found = self._values(table)
        place = {prefix: i for i, prefix in enumerate(prefixes)}
        counts = np.zeros((len(prefixes), 257), np.int64)
        for value, count in found[found >= self.cell].items():
            text = str(value).encode()
            i = place.get(text[:step])
            if i is not None and len(text) >= step:
                counts[i, text[step] if len(text) > step else 256] += count
        return counts.reshape(-1)

    def _values(self, table: pd.DataFrame) -> pd.Series:
        """How often each value occurs."""
        return table[self.column].dropna().map(text_of).value_counts()

    def _prefixes(self, step: int, down: Down) -> list[bytes]:
        text = bytes(down["prefixes"].to(torch.uint8).tolist())
        count = int(down["lengths"].numel())
        prefixes = [text[i * step : (i + 1) * step] for i in range(count)]
        if count > self.most or len(text) != count * step or len(set(prefixes)) < count or not count:
            raise ProtocolError("the coordinator asks for prefixes that the agreed search does not need.")
        return prefixes

    def _read_counts(self, total: np.ndarray, step: int) -> np.ndarray:
        return total

    def _threshold(self, prefixes: int) -> float:
        return self.least

    def coordinate(self) -> Generator[Down, np.ndarray, dict[str, int]]:
        found: dict[str, int] = {}
        prefixes = [b""]
        for step in range(self.max_steps):
            total = yield {
                "prefixes": torch.tensor(list(b"".join(prefixes)), dtype=torch.uint8),
                "lengths": torch.full((len(prefixes),), step, dtype=torch.int64),
            }
            counts = self._read_counts(total, step).reshape(-1, 257)
            least = self._threshold(len(prefixes))
            found |= {
                prefix.decode("utf-8", "replace"): int(row[256])
                for prefix, row in zip(prefixes, counts)
                if row[256] >= least
            }
            longer = [
                (int(row[c]), prefix + bytes([c]))
                for prefix, row in zip(prefixes, counts)
                for c in range(256)
                if row[c] >= least
            ]
            prefixes = sorted(p for _, p in sorted(longer, reverse=True)[: self.most])
            if not prefixes or step + 1 == self.max_steps:
                break
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))
