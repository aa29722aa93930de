"""Bounds and categories of columns, estimated under differential privacy.

    kinds = {"age": synth.integer(), "job": synth.categorical()}
    estimated = synth.Domains(epsilon=0.3).estimate(frame, kinds)
    synth.MST(epsilon=1.0).fit(frame, estimated.table)        # both are in its ledger

Kinds are declared; what a declaration leaves open is estimated. One record is added or removed.

Numbers. Counts of fixed cells (sign and power of two; for times, years) with discrete Gaussian noise: the
cells above the noise give a coarse range. Within it, each open bound is a quantile close to the end, selected
by the exponential mechanism among 257 places (A. Smith: *Privacy-preserving statistical estimation with
optimal convergence rates*, STOC 2011).

Categories. Values that occur are counted with noise, and listed if the noisy count reaches a threshold
(A. Korolova, K. Kenthapadi, N. Mishra, A. Ntoulas: *Releasing search queries and clicks privately*, WWW
2009).
A value that only the added record has is listed with probability at most δ: its noisy count is 1 + Z.

Whether values are missing is one more cell of the same counts. Costs add up as zero-concentrated privacy; the
probabilities of the thresholds are added to δ (Bun, Steinke, TCC 2016, approximate zCDP).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd

from ..accounting import discrete
from ..accounting.gaussian import stability_threshold
from ..errors import BadData
from ..parameters import bad, check, real, whole
from ..parties.ledger import Ledger, Spend
from ..parties.secret import Secret
from .columns import Column, declared_dtype, is_missing, text_of
from .marginals import make_secret, private_ledger
from .table import Table

OTHER = "other"  # the category of all values that too few rows share
PLACES = 256  # steps between the ends of the coarse range, eight to each of 32 bins
# shares of the values beyond an estimated bound, which are clipped to it
LEAST_CUT, MOST_CUT = 0.001, 0.005
POWERS = (-32, 64)  # exponents of two with a cell of their own
YEARS = (1700, 2300)
FALSE_ALARM = 0.001  # probability that any empty cell of a column counts as a range of values
INSECURE_SEED = (
    "for tests only: makes the noise replayable, and the ledger is stamped NOT PRIVATE; None: randomness of "
    "the operating system"
)


@dataclass(frozen=True)
class Domains:
    """Estimates what the declaration of columns leaves open, with an (ε, δ) guarantee for one record."""

    epsilon: float = real(0.3, above=0, doc="ε for all open columns together")
    delta: float = real(1e-9, above=0, below=1, doc="δ: half of it is for categories of single rows")
    insecure_seed: int | None = whole(None, least=0, none=True, doc=INSECURE_SEED)

    def estimate(self, frame: pd.DataFrame, table: Table | Mapping[str, Column]) -> EstimatedDomains:
        """Return a table whose open columns are complete, and what was spent."""
        from .private import declared_table

        check(self)
        table = declared_table(table, frame, "Domains", estimates=True)
        frame = frame.set_axis([str(n) for n in frame.columns], axis=1)
        secret = make_secret(self.insecure_seed)
        estimate = estimate_domains(frame, table, self.epsilon, self.delta, secret)
        spend = Spend(
            f"domains of {', '.join(estimate.columns)} (noisy counts, exponential choice)",
            self.epsilon if estimate.columns else 0.0,
            self.delta if estimate.columns else 0.0,
            unit="record (one row added or removed)",
            adversary="whoever sees the domains, with any background knowledge",
            sampling="no",
            note=f"ρ = {float(estimate.rho):.6g} of zero-concentrated privacy, and δ = {estimate.delta:.3g} "
            "for categories of single rows.",
        )
        return EstimatedDomains(
            replace(estimate.table, spent=(spend,) if estimate.columns else ()), private_ledger(spend, secret)
        )


@dataclass
class EstimatedDomains:
    """Complete columns, and the privacy spent for them. All of it may be published."""

    table: Table
    ledger: Ledger

    def summary(self) -> pd.DataFrame:
        """Return one row per column: kind, domain, and whether values may be missing."""
        return pd.DataFrame(
            [
                {"column": c.name, "kind": c.kind, "domain": write_domain(c), "missing": c.missing}
                for c in self.table.columns
            ]
        ).set_index("column")


def write_domain(c: Column) -> str:
    """Write the domain of a complete column in one line."""
    if c.is_number:
        return f"{c.format_value(c.ends[0])} … {c.format_value(c.ends[1])}"
    return ", ".join(map(str, c.values)) if c.kind != "id" else ""


@dataclass
class DomainEstimate:
    """A completed table, the columns that were open, ρ, and the δ of the thresholds."""

    table: Table
    columns: list[str]
    rho: Fraction
    delta: float


def estimate_domains(
    frame: pd.DataFrame, table: Table, epsilon: float, delta: float, secret: Secret
) -> DomainEstimate:
    """Complete the open columns of a table; raise BadData for those that the noise hides."""
    open_columns = [c for c in table.columns if c.is_open]
    if not open_columns:
        return DomainEstimate(table, [], Fraction(0), 0.0)
    for c in open_columns:
        if c.kind == "ordinal":
            raise BadData(
                f"the order of the column {c.name!r} cannot be estimated. Declare ordinal(['low', 'high']), "
                "or estimate it as categorical()."
            )
    listed = [c for c in open_columns if not c.is_number]
    threshold_delta = delta / 2 if listed else 0.0
    rho = discrete.rho_of(epsilon, delta - threshold_delta)
    answers = NoisyAnswers(secret, rho)
    completed, hidden = {}, []
    for c in open_columns:
        share = rho / len(open_columns)
        try:
            if c.is_number:
                completed[c.name] = _estimate_bounds(c, frame[c.name], share, answers)
            else:
                completed[c.name] = _estimate_values(
                    c, frame[c.name], share, threshold_delta / len(listed), answers
                )
        except _Hidden as found:
            hidden.append(f"{c.name!r} (about {found.least} rows are needed)")
    if hidden:
        raise BadData(
            f"at ε = {epsilon:g} for {len(open_columns)} open columns, the noise hides the domain of "
            f"{', '.join(hidden)}. Declare these columns, or estimate fewer. ε = {epsilon:g} is spent "
            "nevertheless: this message depends on the rows."
        )
    columns = tuple(completed.get(c.name, c) for c in table.columns)
    columns = tuple(replace(c, dtype=declared_dtype(c)) for c in columns)
    return DomainEstimate(
        replace(table, columns=columns), [c.name for c in open_columns], answers.spent, threshold_delta
    )


class _Hidden(Exception):
    """No cell exceeds the noise."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least = least


@dataclass
class NoisyAnswers:
    """Answers questions about the rows with noise, and adds up what that costs."""

    secret: Secret
    rho: float
    spent: Fraction = field(default_factory=Fraction)

    def count(self, exact: np.ndarray, rho: float) -> tuple[np.ndarray, Fraction]:
        """Return counts of disjoint cells with noise, and its variance."""
        variance = discrete.rational_above(1 / (2 * rho))
        self._charge(1 / (2 * variance))
        return exact + discrete.gaussian(variance, exact.size, self.secret.bytes), variance

    def choose(self, scores: list[int], sensitivity: int, rho: float) -> int:
        """Select an index by the exponential mechanism."""
        epsilon = discrete.rational_below(math.sqrt(8 * rho))
        self._charge(epsilon**2 / 8)
        return discrete.exponential(scores, epsilon, sensitivity, self.secret.bytes)

    def _charge(self, cost: Fraction) -> None:
        self.spent += cost
        # rounded shares may exceed ρ by this factor
        if self.spent > Fraction(self.rho) * (1 + Fraction(1, 10**9)):
            raise bad(
                "Domains",
                "budget",
                float(self.spent),
                f"at most ρ = {self.rho:.6g}",
                "This is an internal error (please report it).",
            )


def _least_count(variance: Fraction, cells: int) -> int:
    """The count that the noise of no empty cell reaches, up to a false alarm."""
    return math.ceil(NormalDist().inv_cdf(1 - FALSE_ALARM / cells) * math.sqrt(variance)) + 1


def _estimate_bounds(c: Column, series: Any, rho: float, answers: NoisyAnswers) -> Column:
    """Coarse range from noisy counts of fixed cells, then a quantile for each open end."""
    x = c.to_numbers_or_nan(series)
    missing = np.isnan(x)
    most = 2.0 ** POWERS[1]  # infinite numbers count as the largest
    x = np.clip(x[~missing], -most if c.low is None else c.low, most if c.high is None else c.high)
    cell, edges = _year_cells(x) if c.kind == "datetime" else _power_cells(x)
    exact = np.r_[np.bincount(cell, minlength=len(edges)), missing.sum()]
    counts, variance = answers.count(exact, rho / 2)
    least = _least_count(variance, len(counts))
    above = np.flatnonzero(counts[:-1] >= least)
    if not len(above):
        raise _Hidden(least)
    ends = [c.low is None, c.high is None]
    low, high = edges[above[0]][0], edges[above[-1]][1]
    low, high = low if c.low is None else c.low, high if c.high is None else c.high
    places = _places(c, min(low, high), max(low, high))
    bounds = [c.low, c.high]
    share, total = rho / 2 / sum(ends), float(counts[above].sum())
    for side, is_open in enumerate(ends):
        if is_open:
            flip = 1.0 if side == 0 else -1.0  # an upper bound is a lower bound of the negatives
            scores = _score_places(np.sort(flip * x), flip * places, _cut_off(total, len(places), share))
            bounds[side] = float(places[answers.choose(scores, 1, share)])
    ordered = sorted(b for b in bounds if b is not None)
    return replace(
        c, low=ordered[0], high=ordered[1], missing=c.missing or bool(counts[-1] >= least), declared=True
    )


def _cut_off(total: float, places: int, rho: float) -> int:
    """How many values should be beyond a bound: as many as tell it from places without any.

    The exponential mechanism with ε selects a place that is r values off with probability at most places ·
    exp(−ε r / 2). More than MOST_CUT would distort the column; then the bound may be too wide instead, by
    less than a factor of two.
    """
    told_apart = 2 / math.sqrt(8 * rho) * math.log(20 * places)
    return math.ceil(max(LEAST_CUT * total, min(told_apart, MOST_CUT * total), 1.0))


def _score_places(x: np.ndarray, places: np.ndarray, cut_off: int) -> list[int]:
    """How many values a lower bound is off: 0 if at most `cut_off` are below it, and so many up to it.

    One value more changes a score by at most one. `x` is sorted.
    """
    below, up_to = np.searchsorted(x, places), np.searchsorted(x, places, "right")
    off = np.maximum(np.maximum(below - cut_off, cut_off - up_to), 0)
    return [-int(o) for o in off]


def _places(c: Column, low: float, high: float) -> np.ndarray:
    """Places for a bound, from low to high; multiples of the column's step."""
    places = np.linspace(low, high, PLACES + 1)
    if c.step:
        places = np.round(np.round(places / c.step) * c.step, 9)
    return np.unique(np.clip(places, low, high))


def _power_cells(x: np.ndarray) -> tuple[np.ndarray, list[tuple[float, float]]]:
    """Return the cell of each number, and the ends of all cells, in ascending order."""
    first, last = POWERS
    size = np.clip(np.abs(x), 0, 2.0**last)
    exponent = np.clip(np.frexp(size)[1] - 1, first - 1, last - 1)  # 2^e ≤ |x| < 2^(e+1)
    rank = np.where(size < 2.0**first, 0, exponent - first + 1)
    n = last - first
    edges = [(2.0**e, 2.0 ** (e + 1)) for e in range(first, last)]
    cells = [*((-b, -a) for a, b in reversed(edges)), (0.0, 0.0), *edges]
    return (n + np.where(x < 0, -rank, rank)).astype(np.int64), cells


def _year_cells(x: np.ndarray) -> tuple[np.ndarray, list[tuple[float, float]]]:
    first, last = YEARS
    starts = np.array([f"{y}" for y in range(first, last + 1)], "datetime64[Y]").astype("datetime64[s]")
    edges = starts.astype(np.float64)
    cell = np.clip(np.searchsorted(edges, x, "right") - 1, 0, len(edges) - 2)
    return cell.astype(np.int64), list(zip(edges[:-1].tolist(), edges[1:].tolist()))


def _estimate_values(c: Column, series: Any, rho: float, delta: float, answers: NoisyAnswers) -> Column:
    """List values whose noisy count reaches a threshold that a single row nearly never does."""
    texts: dict[str, int] = {}
    missing = 0
    for value, count in _count_cells(series):
        try:
            text = text_of(value)
        except BadData:  # for example bytes
            missing += count
            continue
        texts[text] = texts.get(text, 0) + count
    names = sorted(texts)
    counts, variance = answers.count(np.array([missing, *(texts[t] for t in names)], np.int64), rho * 3 / 4)
    # 1 + Z ≥ threshold has probability at most δ
    threshold = 1 + stability_threshold(float(variance), delta)
    kept = [t for t, n in zip(names, counts[1:]) if n >= threshold]
    rest, rest_variance = answers.count(
        np.array([sum(n for t, n in texts.items() if t not in kept)], np.int64), rho / 4
    )
    if not kept:
        raise _Hidden(threshold)
    values: tuple[Any, ...] = _typed(kept)
    other = ""
    if isinstance(values[0], str) and rest[0] >= _least_count(rest_variance, 1):
        other = OTHER
        values = (*(v for v in values if v != OTHER), OTHER)
    has_missing = bool(counts[0] >= _least_count(variance, 1))
    return replace(c, values=values, other=other, missing=c.missing or has_missing, declared=True)


def _count_cells(series: Any) -> list[tuple[Any, int]]:
    """Return each distinct cell with its count; missing cells are bytes, which are no category."""
    counts: dict[Any, int] = {}
    for value in series:
        try:
            key = (type(value).__name__, b"" if is_missing(value) else value)
            counts[key] = counts.get(key, 0) + 1
        except TypeError:  # for example a list
            counts["", b""] = counts.get(("", b""), 0) + 1
    return [(value, n) for (_, value), n in counts.items()]


def _typed(texts: list[str]) -> tuple[Any, ...]:
    """Convert listed categories to numbers or booleans if all of them are; only listed ones decide."""
    if set(texts) <= {"True", "False"}:
        return tuple(t == "True" for t in texts)
    for kind in (int, float):
        try:
            numbers = [kind(t) for t in texts]
        except ValueError:
            continue
        if [text_of(n) for n in numbers] == texts:
            return tuple(sorted(numbers))
    return tuple(texts)
