"""Access to private data: declared cells, exact noise, private selection, a budget.

The unit is one record, added or removed. It changes one cell of each marginal by one, so a marginal has L2
sensitivity 1, and noise of variance σ² costs 1/(2σ²) of zero-concentrated differential privacy (zCDP). A
selection by the exponential mechanism with ε costs ε²/8. Costs add up (Bun, Steinke, TCC 2016). The number
of rows is private too: it is only estimated from noisy marginals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd

from ..accounting import discrete
from ..errors import BadData
from ..parameters import bad
from ..parties.ledger import Ledger, Spend
from ..parties.secret import NOT_PRIVATE, Secret, SeededSecret
from .columns import Column, is_missing, is_number_text, map_values, scalar, text_of
from .graphical import Clique, Measurement, Model, count_cells

# scores use estimates rounded to 1/16 of a row: integers, so that their sensitivity is exact
FINE = 16
REMEMBERED = 20_000_000  # cells of exact counts that are kept for the next question, 160 MB
DECLARED = "Domains are the declared ones."  # the last sentence of a spend's note


@dataclass(frozen=True)
class Grid:
    """Declared columns divided into cells.

    A numeric column with few possible values has one cell per value, otherwise `bins` cells of equal width,
    or those of `knots` (by column index): the ends of parts of equal mass of each cell, [cells, parts + 1],
    all equal in a cell of one value. Ends are numbers, or multiples of the column's step above its lower
    bound. A column with missing values has one more cell for them.
    """

    columns: tuple[Column, ...]
    bins: int = 32
    knots: Mapping[int, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for column in self.columns:
            bounded = (
                column.low is not None and column.high is not None
                if column.is_number
                else bool(column.values)
            )
            if not (column.declared and bounded):
                example = "continuous(low=0, high=100)" if column.is_number else "categorical(['a', 'b'])"
                raise BadData(
                    f"the column {column.name!r} has no declared domain. Under differential privacy, "
                    "categories and bounds must come from public knowledge, not from the data: a category "
                    "that one person has, or the largest income, is a fact about that person. Declare it, "
                    f"for example as tacit.synth.{example}."
                )

    def count_values(self, j: int) -> int | None:
        """Return how many values the step of a numeric column allows, or None without a step."""
        column = self.columns[j]
        low, high = column.ends
        return math.floor((high - low) / column.step + 1e-9) + 1 if column.step else None

    def _cells(self, j: int) -> int:
        if not self.columns[j].is_number:
            return len(self.columns[j].values)
        if j in self.knots:
            return len(self.knots[j])
        places = self.count_values(j)
        return min(self.bins, places) if places else self.bins

    def get_knots(self, j: int) -> np.ndarray:
        """Return the ends of the parts of each cell of a numeric column.

        With a step, these are multiples of it above the lower bound; a part ends where the next one begins.
        """
        if j in self.knots:
            return self.knots[j]
        k, places, (low, high) = self._cells(j), self.count_values(j), self.columns[j].ends
        number = np.arange(k + 1)
        # values p with p·k // places = code
        ends = np.asarray(-(-number * places // k) if places else low + number / k * (high - low), float)
        return np.column_stack([ends[:-1], ends[1:]])

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self._cells(j) + c.missing for j, c in enumerate(self.columns))

    def codes(self, frame: pd.DataFrame) -> np.ndarray:
        """Return each row's cells, int64.

        Numbers outside the bounds are clipped. An undeclared or unreadable value counts as missing where the
        column allows that; otherwise its row is dropped. Each row is handled independently and silently: a
        message would reveal something about it.
        """
        out = self.assign(frame)
        return out[(out >= 0).all(axis=1)]

    def values(self, frame: pd.DataFrame) -> np.ndarray:
        """Return the same rows before discretization: level indices, clipped numbers, NaN."""
        codes = self.assign(frame)
        out = codes.astype(np.float64)
        for j, column in enumerate(self.columns):
            if column.is_number:
                out[:, j] = np.clip(column.to_numbers_or_nan(frame[column.name]), *column.ends)
            if column.missing:
                out[codes[:, j] == self._cells(j), j] = np.nan
        return out[(codes >= 0).all(axis=1)]

    def assign(self, frame: pd.DataFrame) -> np.ndarray:
        """Return the cells of all rows; −1 where a value is not declared."""
        out = np.empty((len(frame), len(self.columns)), np.int64)
        for j, column in enumerate(self.columns):
            last = self._cells(j)
            if column.is_number:
                place = self.places(j, frame[column.name])
                code = np.searchsorted(self.get_knots(j)[:, 0], place, side="right") - 1
                code[np.isnan(place)] = -1
            else:
                code = _encode_levels(column, frame[column.name])
            out[:, j] = np.where(code < 0, last if column.missing else -1, code)
        return out

    def places(self, j: int, series: pd.Series) -> np.ndarray:
        """Return a numeric column clipped to its bounds, NaN where it cannot be read.

        With a step, as multiples of it above the lower bound.
        """
        column, places = self.columns[j], self.count_values(j)
        low, high = column.ends
        x = np.clip(column.to_numbers_or_nan(series), low, high)
        return np.asarray(np.clip(np.rint((x - low) / (column.step or 1)), 0, places - 1) if places else x)

    def to_numbers(self, codes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Convert cells to column numbers: a level index, a uniform draw from the bin, or NaN."""
        out = codes.astype(np.float64)
        for j, column in enumerate(self.columns):
            if column.is_number:
                knots = self.get_knots(j)
                cell, parts = np.minimum(codes[:, j], len(knots) - 1), knots.shape[1] - 1
                at = rng.random(len(codes)) * parts
                part = at.astype(np.int64)
                first, end = knots[cell, part], knots[cell, part + 1]
                out[:, j] = first + (at - part) * (end - first)
                if self.count_values(j):
                    last = np.maximum(knots[cell, -1] - 1, knots[cell, 0])
                    out[:, j] = column.ends[0] + np.minimum(np.floor(out[:, j]), last) * (column.step or 1)
            if column.missing:
                out[codes[:, j] == self._cells(j), j] = np.nan
        return out

    def labels(self, j: int, codes: np.ndarray) -> list[Any]:
        """Name each cell of a column: its value, 'low … high' of a bin, or None for missing."""
        column, k = self.columns[j], self._cells(j)
        if not column.is_number:
            return [None if code == k else column.values[code] for code in codes]
        low, step = column.ends[0], column.step or 1
        names: list[Any] = []
        for first, end in self.get_knots(j)[:, [0, -1]]:
            if self.count_values(j):
                first, end = low + step * first, low + step * max(first, end - 1)
            names.append(
                column.format_value(first)
                if first == end
                else f"{column.format_value(first)} … {column.format_value(end)}"
            )
        return [None if code == k else names[code] for code in codes]


def _encode_levels(column: Column, series: Any) -> np.ndarray:
    """Return the index of each value, −1 if it is missing or not declared.

    Values are compared as text where that is unambiguous (`text_of`): how a file is read depends on all of
    its rows, and one person's entry must not change what those of others mean.
    """
    place = {value: i for i, value in enumerate(column.values)}
    texts = [text_of(value) for value in column.values]
    alike = {text: i for i, text in enumerate(texts) if texts.count(text) == 1}
    for number, word in (("0", "False"), ("1", "True")):  # pandas and Python treat them as equal
        both = dict.fromkeys((number, word), alike.get(number, alike.get(word, -1)))
        alike = {**{t: i for t, i in both.items() if i >= 0}, **alike}
    # A mismatch of types (words declared, numbers in the column) reveals nothing about a row: it is an error.
    if pd.api.types.is_numeric_dtype(series.dtype) and not any(map(is_number_text, texts)):
        raise BadData(
            f"the column {column.name!r} is declared with strings ({column.values[0]!r}, …) but contains "
            "numbers. Declare the numbers themselves."
        )
    unlisted = place[column.other] if column.other else -1

    def at(value: Any) -> int:
        try:
            found = place.get(scalar(value), -1)
            return found if found >= 0 else alike.get(text_of(value), unlisted)
        except BadData:  # for example bytes, which are never a declared category
            return -1

    try:
        return map_values(series, at)
    except TypeError:  # for example a list in one cell
        return np.array([-1 if is_missing(v) else at(v) for v in series], np.int64)


@dataclass
class Curator:
    """Holds the rows and releases only noisy answers that the budget covers."""

    codes: np.ndarray = field(repr=False)
    sizes: tuple[int, ...]
    rho: float
    secret: Secret = field(default_factory=Secret)
    spent: Fraction = Fraction(0)
    _known: dict[Clique, np.ndarray] = field(default_factory=dict, repr=False)
    _known_cells: int = field(default=0, repr=False)
    _columns: list[np.ndarray] | None = field(default=None, repr=False)  # codes, column by column

    @property
    def left(self) -> float:
        return max(0.0, float(Fraction(self.rho) - self.spent))

    def _charge(self, cost: Fraction) -> None:
        # 60 rounded shares may exceed ρ by this factor
        if self.spent + cost > Fraction(self.rho) * (1 + Fraction(1, 10**9)):
            raise bad(
                "Curator",
                "budget",
                float(self.spent + cost),
                f"at most ρ = {self.rho:.6g}",
                "This is an internal error (please report it): a mechanism exceeded its budget.",
            )
        self.spent += cost

    def _counts(self, clique: Clique, keep: bool = True) -> np.ndarray:
        """Return exact counts. Callers in this class add noise before anything is released."""
        if clique in self._known:
            return self._known[clique]
        if self._columns is None:
            self._columns = [np.ascontiguousarray(column) for column in self.codes.T]
        flat = self._columns[clique[0]]
        for c in clique[1:]:
            flat = flat * self.sizes[c] + self._columns[c]
        cells = count_cells(clique, self.sizes)
        counts = np.bincount(flat, minlength=cells).reshape([self.sizes[c] for c in clique])
        # the pairs of a hundred columns with large domains would not fit into memory
        if keep and self._known_cells + cells <= REMEMBERED:
            self._known[clique] = counts
            self._known_cells += cells
        return counts

    def measure(self, clique: Clique, rho: float) -> Measurement:
        """Release a marginal with discrete Gaussian noise that costs `rho`.

        The variance is 1/(2ρ), rounded up by less than a thousandth.
        """
        variance = discrete.rational_above(1 / (2 * rho))
        self._charge(1 / (2 * variance))
        exact = self._counts(clique)
        return Measurement(
            clique,
            exact + discrete.gaussian(variance, exact.size, self.secret.bytes).reshape(exact.shape),
            float(variance),
        )

    def choose(
        self,
        candidates: Sequence[Clique],
        estimate: Callable[[Clique], np.ndarray],
        rho: float,
        *,
        weights: Sequence[int] | None = None,
        penalty: Callable[[Clique], float] = lambda clique: 0.0,
    ) -> Clique:
        """Select one candidate by the exponential mechanism, at cost `rho`.

        The score is weight × (L1 distance of the true counts from the estimate − penalty). Estimate and
        penalty depend only on earlier releases, so one record changes a score by at most its weight.
        """
        distances = [self.distance(clique, estimate(clique)) for clique in candidates]
        return self.choose_by(candidates, distances, rho, weights=weights, penalty=penalty)

    def distance(self, clique: Clique, estimate: np.ndarray, keep: bool = True) -> int:
        """Return the L1 distance of the true counts from an estimate, in 1/16 of a row: **not private**.

        Only for `choose_by`, which may use it several times: an estimate from earlier releases stays one.
        `keep`: the counts will be asked for again.
        """
        return int(
            np.abs(self._counts(clique, keep) * FINE - np.rint(estimate * FINE).astype(np.int64)).sum()
        )

    def choose_by(
        self,
        candidates: Sequence[Clique],
        distances: Sequence[int],
        rho: float,
        *,
        weights: Sequence[int] | None = None,
        penalty: Callable[[Clique], float] = lambda clique: 0.0,
    ) -> Clique:
        """`choose` by distances that are known already."""
        epsilon = discrete.rational_below(math.sqrt(8 * rho))
        self._charge(epsilon**2 / 8)
        weight = list(weights) if weights is not None else [1] * len(candidates)
        scores = [
            w * (far - round(penalty(clique) * FINE)) for w, clique, far in zip(weight, candidates, distances)
        ]
        return candidates[discrete.exponential(scores, epsilon, FINE * max(weight), self.secret.bytes)]

    def narrow_to(self, support: Support) -> Curator:
        """Return a curator of the same rows in merged cells that continues this budget."""
        return Curator(support.merge(self.codes), support.sizes, self.rho, self.secret, self.spent)


@dataclass(frozen=True)
class Support:
    """Cells whose noisy count exceeds the noise; the others of a column are merged into one.

    The merged cell is expanded again when sampling.
    """

    place: tuple[np.ndarray, ...]  # code → merged code
    rare: tuple[np.ndarray, ...]  # the codes behind the last merged code, if any

    @classmethod
    def from_measurements(cls, measured: Sequence[Measurement]) -> Support:
        """Keep cells whose noisy count is at least 3σ (McKenna et al. 2021)."""
        place, rare = [], []
        for m in measured:
            keep = m.counts >= 3 * math.sqrt(m.variance)
            if (~keep).sum() <= 1:
                keep[:] = True
            place.append(np.where(keep, np.cumsum(keep) - 1, keep.sum()))
            rare.append(np.flatnonzero(~keep))
        return cls(tuple(place), tuple(rare))

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(int(p.max()) + 1 for p in self.place)

    def merge(self, codes: np.ndarray) -> np.ndarray:
        return np.stack([p[codes[:, j]] for j, p in enumerate(self.place)], axis=1)

    def narrow(self, m: Measurement) -> Measurement:
        """Convert a one-way measurement to the merged cells.

        The noise of the merged cell adds up; every cell is assigned the mean variance.
        """
        j = m.clique[0]
        size = self.sizes[j]
        merged = np.bincount(self.place[j], weights=m.counts.astype(np.float64), minlength=size)
        return Measurement(m.clique, merged, m.variance * m.counts.size / size)

    def expand(self, codes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Replace the merged cell by one of its original cells, uniformly: nothing more is known."""
        out = np.empty_like(codes)
        for j, (place, rare) in enumerate(zip(self.place, self.rare)):
            alone = np.zeros(int(place.max()) + 1, np.int64)
            alone[place] = np.arange(len(place))
            out[:, j] = alone[codes[:, j]]
            if len(rare):
                hit = codes[:, j] == place[rare[0]]
                out[hit, j] = rng.choice(rare, int(hit.sum()))
        return out


def marginal_spend(
    mechanism: str, epsilon: float, delta: float, curator: Curator, thresholds: float = 0.0
) -> Spend:
    """Return the ledger line of a curator's releases; `thresholds` is the part of δ for listed values."""
    rho = float(curator.spent)
    listed = f" ({thresholds:.3g} of it for values that a single row has)" if thresholds else ""
    return Spend(
        mechanism,
        epsilon,
        delta,
        unit="record (one row added or removed)",
        adversary="whoever sees the model, every sample and every released statistic, with any background "
        "knowledge",
        sampling="no",
        note=f"ρ = {rho:.6g} of zero-concentrated privacy, which gives ε = "
        f"{discrete.epsilon_of(rho, delta - thresholds):.4g} at this δ{listed}. "
        f"The number of rows was estimated from noisy counts. {DECLARED}",
    )


def private_ledger(spend: Spend, secret: Secret) -> Ledger:
    """Return a ledger with one spend, stamped NOT PRIVATE if the secret can be replayed."""
    ledger = Ledger()
    ledger.spend(spend)
    if secret.replayable:
        ledger.stamp(NOT_PRIVATE)
    return ledger


def make_secret(insecure_seed: int | None) -> Secret:
    """Return the operating system's randomness, or, for tests only, a replayable source."""
    return Secret() if insecure_seed is None else SeededSecret(insecure_seed)


def independent_counts(model: Model) -> Callable[[Clique], np.ndarray]:
    """Return a function that computes expected counts under independent columns."""
    ways = {c: model.marginal((c,)) for c in range(len(model.sizes))}

    def estimate(clique: Clique) -> np.ndarray:
        out = np.array(model.total)
        for column in clique:
            out = np.multiply.outer(out, ways[column])
        return out

    return estimate
