"""A party's rows in training: labels, cells, and where they are in the trees.

Which rows are held out or sampled follows from a hash of the row's own values, the seed and the round, so it
does not depend on how rows are partitioned, and equal rows are always on the same side.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..errors import BadData
from ..parameters import propose
from ..stats.columns import numbers, text_of
from . import kernels, trees
from .bins import Bins
from .model import leaf_values
from .objectives import Binary, Objective

_GOLDEN = 0x9E3779B97F4A7C15


def mix(x: np.ndarray) -> np.ndarray:
    """Return well-mixed 64-bit hashes (splitmix64)."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def hash_rows(frame: pd.DataFrame, numeric: Sequence[str], texts: Sequence[str]) -> np.ndarray:
    """Return a hash of each row: numbers by their float64, others by their text."""
    state = np.zeros(len(frame), dtype=np.uint64)
    for name in numeric:
        values = numbers(frame, name) + 0.0  # −0 becomes 0; and the table's own memory is not changed
        values[np.isnan(values)] = np.nan  # one NaN
        state = mix(state + np.uint64(_GOLDEN) + values.view(np.uint64))
    for name in texts:
        column = frame[name]
        known = {v: text_of(v) for v in column.unique() if not pd.isna(v)}
        words = pd.Series(list(known.values()) or [""], dtype=object)
        hashes = dict(zip(known, pd.util.hash_array(words.to_numpy(), categorize=False)))
        found = np.array([hashes.get(v, 0) for v in column.to_numpy(dtype=object, na_value=None)], np.uint64)
        state = mix(state + np.uint64(_GOLDEN) + found)
    return state


def draw(hashes: np.ndarray, seed: int, what: int, share: float) -> np.ndarray:
    """Return which rows are drawn with this probability."""
    salt = mix(np.array([seed * 1_000_003 + what + 1], dtype=np.uint64))[0]
    return np.asarray((mix(hashes ^ salt) >> np.uint64(11)) < np.uint64(round(share * 2**53)))


def read_label(frame: pd.DataFrame, label: str, labels: Sequence[str], advice: str = "") -> np.ndarray:
    """Return the class of each row as a number, or its value if there are no classes.

    `advice` ends the error about a class that is not among `labels`.
    """
    column = frame[label]
    if column.isna().any():
        raise BadData(
            f"{int(column.isna().sum())} rows have no label ({label!r}). Remove them before training.",
            outside=f"rows of its table have no label {label!r}",
        )
    if not labels:
        return numbers(frame, label, f"if it has classes, set {propose('objective', 'multiclass')}")
    place = {name: float(i) for i, name in enumerate(labels)}
    codes, values = pd.factorize(column)
    found = [place.get(text_of(v)) for v in values]
    unknown = sorted(text_of(v) for v, code in zip(values, found) if code is None)
    if unknown:
        raise BadData(
            f"the label {label!r} has the value {unknown[0]!r}, which is not one of the agreed classes: "
            f"{', '.join(map(repr, labels))}.{advice}",
            outside=f"its label {label!r} has values that are not among the agreed classes",
        )
    return np.asarray(np.array(found, dtype=np.float64)[codes])


class RowState:
    """Margins of the finished trees, and the node of each row in the trees that grow.

    What is computed depends on the rows and on the trees that were sent, not on earlier steps: these are only
    remembered, and everything is computed again if other trees are sent.
    """

    def __init__(
        self,
        codes: np.ndarray,
        y: np.ndarray,
        bins: Bins,
        objective: Objective,
        base: float,
        weight: np.ndarray,
    ):
        self.codes, self.y, self.bins, self.objective = codes, y, bins, objective
        self.base, self.weight = base, weight
        self._places: tuple[np.ndarray, np.ndarray] | None = None  # the columns counted last, and their words
        self._restart()

    def _restart(self) -> None:
        self.rounds = 0
        self.margin = np.full((len(self.codes), self.objective.outputs), self.base)
        self.finished = b""
        self._open: trees.SentTrees | None = None  # those whose leaves the rows are in
        self.node = np.zeros((self.objective.outputs, len(self.codes)), dtype=np.int32)
        self._gradients: tuple[np.ndarray, np.ndarray] | None = None

    def finish(self, data: bytes) -> None:
        """Bring the margins to what the finished trees give."""
        if data == self.finished:
            return
        if not data.startswith(self.finished):
            self._restart()
        added = np.frombuffer(data, dtype=np.uint8)[len(self.finished) :]
        outputs = self.objective.outputs
        new = trees.SentTrees(added, self.bins, max(1, len(added) // trees.SMALLEST))
        if len(new) % outputs:
            raise BadData("boost: the trees of a round are incomplete.")
        self.rounds += len(new) // outputs
        for t in range(len(new)):
            k = t % outputs
            if t >= outputs:  # a party that was restarted is sent several rounds at once
                self.node[k], self._open = 0, None
            if kernels.has_numba():
                kernels.add_leaves(new, t, self._open, k, self.codes, self.node[k], self.margin)
            else:
                self._start_unless_extended(k, new.nodes[t])
                self.margin[:, k] += leaf_values(new.nodes[t], self.codes, self.bins, self.node[k])
        self.finished, self._open, self._gradients = data, None, None
        self.node[:] = 0

    def grow(self, growing: trees.SentTrees) -> None:
        """Move every row to its leaf of the growing trees."""
        for k, tree in enumerate(growing.nodes):
            self._start_unless_extended(k, tree)
            if len(tree.feature) > 1:
                kernels.descend(self.codes, tree, self.bins, self.node[k])
        self._open = growing

    def grow_and_count(
        self,
        growing: trees.SentTrees,
        slots: Sequence[np.ndarray],
        counts: Sequence[int],
        used: np.ndarray,
        columns: np.ndarray,
        bins: Bins,
        scale: tuple[float, float],
    ) -> list[np.ndarray]:
        """As `grow`; return the words of the histograms over these columns. Needs numba."""
        g, h = self.gradients(scale)
        places = self._word_places(columns, bins)
        found = [
            kernels.route_and_count(
                growing, self._open, k, self.codes, self.node[k], slots[k], used, places, g[k], h[k],
                (counts[k], bins.cells),
            )
            for k in range(len(growing))
        ]  # fmt: skip
        self._open = growing
        return found

    def _word_places(self, columns: np.ndarray, bins: Bins) -> np.ndarray:
        """Return kernels.word_places of these columns, which are those of a round or of all."""
        kept = self._places
        if kept is None or not (kept[0] is columns or np.array_equal(kept[0], columns)):
            self._places = kept = columns, kernels.word_places(self.codes[:, columns], bins.offsets)
        return kept[1]

    def _start_unless_extended(self, k: int, tree: trees.Nodes) -> None:
        """Rows are in the leaves of the open tree: they begin at the root unless this one extends it."""
        if self._open is None or k >= len(self._open) or not tree.extends(self._open.nodes[k]):
            self.node[k] = 0

    def gradients(self, scale: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
        """Return g and h of each row as integers, outputs × rows, clipped to ±UNITS."""
        if self._gradients is None and isinstance(self.objective, Binary) and kernels.has_numba():
            self._gradients = kernels.logistic_integers(self.margin, self.y, self.weight, scale, UNITS)
        if self._gradients is None:
            g, h = self.objective.gradients(self.margin, self.y)
            self._gradients = tuple(  # type: ignore[assignment]
                kernels.to_integers(values, self.weight, s, UNITS) for values, s in zip((g, h), scale)
            )
        assert self._gradients is not None
        return self._gradients

    def losses(self, rows: np.ndarray) -> np.ndarray:
        return self.objective.loss(self.margin[rows], self.y[rows])


UNITS = 1 << 26  # a gradient has 26 bits beside its sign, more than a float32
