"""The only door to the data under differential privacy: declared cells, counts with exact noise, choices with
exact noise, and a budget.

Unit: one record, added or removed. It changes one cell of each marginal by one, so a marginal has L2
sensitivity 1, and noise of variance σ² costs 1/(2σ²) of zero-concentrated privacy (zCDP); a choice by the
exponential mechanism with ε costs ε²/8. Costs add up (Bun, Steinke, TCC 2016). The number of rows is a fact
about the data like any other: it is never read, only estimated from noisy marginals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from ..accounting import discrete
from ..errors import BadData
from ..parameters import bad
from ..parties.ledger import Ledger, Spend
from ..parties.secret import NOT_PRIVATE, Secret, SeededSecret
from .columns import Column, scalar
from .graphical import Clique, Measurement, Model, cells

if TYPE_CHECKING:
    import pandas as pd

# scores are computed on estimates rounded to 1/16 of a row: whole numbers, so that their sensitivity is exact
FINE = 16


@dataclass(frozen=True)
class Grid:
    """Declared columns cut into cells. A number with few possible values has a cell for each, one with many
    `bins` of equal width; a column that may be missing has one more cell for that.
    """

    columns: tuple[Column, ...]
    bins: int = 32

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
                    f"the column {column.name!r} has no declared domain. Under differential privacy "
                    "categories and bounds are written down by you, "
                    "from what is publicly known, never read off the data: a category that one person "
                    "holds, or the largest income, is a fact "
                    f"about that person. Declare it, for example as tacit.synth.{example}."
                )

    def _places(self, column: Column) -> int | None:
        """How many values the column's step allows, where it has one."""
        low, high = _ends(column)
        return math.floor((high - low) / column.step + 1e-9) + 1 if column.step else None

    def _cells(self, column: Column) -> int:
        if not column.is_number:
            return len(column.values)
        places = self._places(column)
        return min(self.bins, places) if places else self.bins

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self._cells(c) + c.missing for c in self.columns)

    def codes(self, frame: pd.DataFrame) -> np.ndarray:
        """Each row's cells. Numbers outside the bounds are moved to them. A value that was not declared, or
        is no number where one should be, counts as missing where the column may be missing; elsewhere its row
        is left out. Both treat each row by itself, and say nothing, for what they said would be about
        somebody.
        """
        out = self._placed(frame)
        return out[(out >= 0).all(axis=1)]

    def values(self, frame: pd.DataFrame) -> np.ndarray:
        """The same rows with their numbers uncut: a place in the list, a number between the bounds, NaN where
        missing.
        """
        codes = self._placed(frame)
        out = codes.astype(np.float64)
        for j, column in enumerate(self.columns):
            if column.is_number:
                out[:, j] = np.clip(column.numbers_apart(frame[column.name]), *_ends(column))
            if column.missing:
                out[codes[:, j] == self._cells(column), j] = np.nan
        return out[(codes >= 0).all(axis=1)]

    def _placed(self, frame: pd.DataFrame) -> np.ndarray:
        """Cells of all rows; −1 where a value was not declared."""
        out = np.empty((len(frame), len(self.columns)), np.int64)
        for j, column in enumerate(self.columns):
            last = self._cells(column)
            if column.is_number:
                x = column.numbers_apart(frame[column.name])
                code = np.where(
                    np.isnan(x), -1, self._bin(column, np.nan_to_num(x, posinf=np.inf, neginf=-np.inf))
                )
            else:
                code = _listed(column, frame[column.name])
            out[:, j] = np.where(code < 0, last if column.missing else -1, code)
        return out

    def _bin(self, column: Column, x: np.ndarray) -> np.ndarray:
        (low, high), k, places = _ends(column), self._cells(column), self._places(column)
        x = np.clip(x, low, high) - low
        if places:
            return np.clip(np.rint(x / (column.step or 1)), 0, places - 1).astype(np.int64) * k // places
        return np.minimum((x / ((high - low) or 1) * k).astype(np.int64), k - 1)

    def numbers(self, codes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Cells as the columns' numbers: a place in the list, a point drawn evenly from the bin, NaN where
        missing.
        """
        out = codes.astype(np.float64)
        for j, column in enumerate(self.columns):
            if column.is_number:
                (low, high), k, places = _ends(column), self._cells(column), self._places(column)
                if places:
                    first, end = (
                        -(-codes[:, j] * places // k),
                        -(-(codes[:, j] + 1) * places // k),
                    )  # places p with p·k // places = code
                    out[:, j] = low + (first + np.floor(rng.random(len(codes)) * (end - first))) * (
                        column.step or 1
                    )
                else:
                    out[:, j] = low + (codes[:, j] + rng.random(len(codes))) / k * (high - low)
            if column.missing:
                out[codes[:, j] == self._cells(column), j] = np.nan
        return out

    def labels(self, j: int, codes: np.ndarray) -> list[Any]:
        """What each cell of a column is called: its value, 'low … high' of a bin, or None for missing."""
        column, k = self.columns[j], self._cells(self.columns[j])
        if not column.is_number:
            return [None if code == k else column.values[code] for code in codes]
        (low, high), places, step = _ends(column), self._places(column), column.step or 1
        names: list[Any] = []
        for code in range(k):
            if places:
                first, end = (low + step * -(-c * places // k) for c in (code, code + 1))
                names.append(
                    column.shown(first)
                    if end - first <= step
                    else f"{column.shown(first)} … {column.shown(end - step)}"
                )
            else:
                first, end = (low + c * (high - low) / k for c in (code, code + 1))
                names.append(f"{column.shown(first)} … {column.shown(end)}")
        return [None if code == k else names[code] for code in codes]


def _ends(column: Column) -> tuple[float, float]:
    assert column.low is not None
    assert column.high is not None  # Grid refused it otherwise
    return column.low, column.high


def _listed(column: Column, series: Any) -> np.ndarray:
    import pandas as pd

    place = {value: i for i, value in enumerate(column.values)}
    # A list of words for a column of numbers is a slip of the pen, not a fact about a row: said by type,
    # before any row counts.
    if pd.api.types.is_numeric_dtype(series.dtype) and all(isinstance(v, str) for v in column.values):
        raise BadData(
            f"the column {column.name!r} is declared with words ({column.values[0]!r}, …) but holds "
            "numbers. Declare the numbers themselves."
        )

    def at(value: Any) -> int:
        try:
            return place.get(scalar(value), -1)
        except BadData:  # bytes, say: no category, and so none of those declared
            return -1

    try:
        codes, distinct = pd.factorize(series)
    except TypeError:  # a list in one cell, say
        return np.array([at(v) for v in series], np.int64)
    return np.array([at(v) for v in distinct] + [-1], np.int64)[codes]


@dataclass
class Curator:
    """Holds the rows and lets nothing out but by noise that is paid for."""

    codes: np.ndarray = field(repr=False)
    sizes: tuple[int, ...]
    rho: float
    secret: Secret = field(default_factory=Secret)
    spent: Fraction = Fraction(0)
    _known: dict[Clique, np.ndarray] = field(default_factory=dict, repr=False)

    @property
    def left(self) -> float:
        return max(0.0, float(Fraction(self.rho) - self.spent))

    def _pay(self, cost: Fraction) -> None:
        if self.spent + cost > Fraction(self.rho) * (
            1 + Fraction(1, 10**9)
        ):  # what 60 rounded shares may add up to
            raise bad(
                "Curator",
                "budget",
                float(self.spent + cost),
                f"at most ρ = {self.rho:.6g}",
                "This is a defect in tacit: a mechanism overspent.",
            )
        self.spent += cost

    def _counts(self, clique: Clique) -> np.ndarray:
        """Exact counts. Private in every sense: they leave this class with noise only."""
        if clique not in self._known:
            shape = [self.sizes[c] for c in clique]
            flat = np.ravel_multi_index(self.codes[:, list(clique)].T, shape)
            self._known[clique] = np.bincount(flat, minlength=cells(clique, self.sizes)).reshape(shape)
        return self._known[clique]

    def measure(self, clique: Clique, rho: float) -> Measurement:
        """The marginal with discrete Gaussian noise worth `rho`: variance 1/(2ρ), rounded up by less than a
        thousandth.
        """
        variance = discrete.rational_above(1 / (2 * rho))
        self._pay(1 / (2 * variance))
        exact = self._counts(clique)
        noise = discrete.gaussian(variance, exact.size, self.secret.bytes)
        return Measurement(clique, exact + noise.reshape(exact.shape), float(variance))

    def choose(
        self,
        candidates: Sequence[Clique],
        estimate: Callable[[Clique], np.ndarray],
        rho: float,
        *,
        weights: Sequence[int] | None = None,
        penalty: Callable[[Clique], float] = lambda clique: 0.0,
    ) -> Clique:
        """One candidate by the exponential mechanism worth `rho`, by weight × (L1 distance of its true counts
        from the estimate − penalty).

        Estimate and penalty are functions of what was released before, so one record moves a score by its
        weight at most.
        """
        epsilon = discrete.rational_below(math.sqrt(8 * rho))
        self._pay(epsilon**2 / 8)
        weight = list(weights) if weights is not None else [1] * len(candidates)
        scores = []
        for w, clique in zip(weight, candidates):
            far = int(
                np.abs(self._counts(clique) * FINE - np.rint(estimate(clique) * FINE).astype(np.int64)).sum()
            )
            scores.append(w * (far - round(penalty(clique) * FINE)))
        return candidates[discrete.exponential(scores, epsilon, FINE * max(weight), self.secret.bytes)]

    def narrowed(self, support: Support) -> Curator:
        """The same rows in merged cells, with what is left of the budget going on being counted here."""
        return Curator(support.merged(self.codes), support.sizes, self.rho, self.secret, self.spent)


@dataclass(frozen=True)
class Support:
    """Cells worth keeping apart: those whose noisy count is above the noise; the rest of a column is one
    cell, spread out again when sampling.
    """

    place: tuple[np.ndarray, ...]  # code → merged code
    rare: tuple[np.ndarray, ...]  # the codes behind the last merged code, where there is one

    @classmethod
    def of(cls, measured: Sequence[Measurement]) -> Support:
        """As McKenna et al. 2021 compress the domain: a cell is kept when its noisy count is at least 3σ."""
        place, rare = [], []
        for m in measured:
            kept = m.counts >= 3 * math.sqrt(m.variance)
            if (~kept).sum() <= 1:
                kept[:] = True
            codes = np.where(kept, np.cumsum(kept) - 1, kept.sum())
            place.append(codes)
            rare.append(np.flatnonzero(~kept))
        return cls(tuple(place), tuple(rare))

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(int(p.max()) + 1 for p in self.place)

    def merged(self, codes: np.ndarray) -> np.ndarray:
        return np.stack([p[codes[:, j]] for j, p in enumerate(self.place)], axis=1)

    def narrow(self, m: Measurement) -> Measurement:
        """A one-way measurement over the merged cells; the merged one's noise adds up, so each cell is given
        the mean variance.
        """
        j = m.clique[0]
        size = self.sizes[j]
        merged = np.bincount(self.place[j], weights=m.counts.astype(np.float64), minlength=size)
        return Measurement(m.clique, merged, m.variance * m.counts.size / size)

    def spread(self, codes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The merged cell as one of the cells behind it, each as likely as the others: nothing more is known
        of them.
        """
        out = np.empty_like(codes)
        for j, (place, rare) in enumerate(zip(self.place, self.rare)):
            alone = np.zeros(int(place.max()) + 1, np.int64)
            alone[place] = np.arange(len(place))
            out[:, j] = alone[codes[:, j]]
            if len(rare):
                hit = codes[:, j] == place[rare[0]]
                out[hit, j] = rng.choice(rare, int(hit.sum()))
        return out


def ledger_of(mechanism: str, epsilon: float, delta: float, curator: Curator) -> Ledger:
    """What was spent, of what was promised; a run from a seed is stamped."""
    ledger = Ledger()
    spent = float(curator.spent)
    ledger.spend(
        Spend(
            mechanism,
            epsilon,
            delta,
            unit="record (one row added or removed)",
            adversary="whoever sees the model, every sample and every released statistic, whatever else "
            "they know",
            sampling="no",
            note=f"ρ = {spent:.6g} of zero-concentrated privacy, which gives ε = "
            f"{discrete.epsilon_of(spent, delta):.4g} at this δ. "
            "The number of rows was not read but estimated from noisy counts. Domains are the declared ones.",
        )
    )
    if curator.secret.replayable:
        ledger.stamp(NOT_PRIVATE)
    return ledger


def secret_of(seed: int | None) -> Secret:
    return Secret() if seed is None else SeededSecret(seed)


def independent(model: Model) -> Callable[[Clique], np.ndarray]:
    """Expected counts if the columns had nothing to do with each other."""
    ways = {c: model.marginal((c,)) for c in range(len(model.sizes))}

    def estimate(clique: Clique) -> np.ndarray:
        out = np.array(model.total)
        for column in clique:
            out = np.multiply.outer(out, ways[column])
        return out

    return estimate
