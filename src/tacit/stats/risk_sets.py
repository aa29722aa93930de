"""Sums over risk sets, and what follows from them: Cox's partial likelihood with Breslow's or Efron's ties.

D. Cox 1972; N. Breslow 1974; B. Efron, "The Efficiency of Cox's Likelihood Function for Censored Data", 1977.

Positions 0 … K−1 are the grid points with an event, stratum after stratum. A row is at risk at the positions
from `enter` to `leave` − 1; with an event, its event is at `leave` − 1. Sums at position k:

    S0 = Σ exp(xβ), S1 = Σ x exp(xβ) over the risk set      E0, E1 the same over those who have the event at k
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from .rare_rows import sum_powers

PAIRS = 50_000_000  # compared one by one; with more, scores are compared by bin
BINS = 1000


@dataclass
class RiskRows:
    """One party's rows by position. `starts` has the first position of each stratum, and K."""

    x: np.ndarray
    enter: np.ndarray
    leave: np.ndarray
    stratum: np.ndarray
    event: np.ndarray  # bool
    starts: np.ndarray
    weights: np.ndarray | None = None

    @cached_property
    def powers(self) -> np.ndarray:
        return sum_powers(self.x)

    @property
    def count(self) -> int:
        return int(self.starts[-1])

    @property
    def position(self) -> np.ndarray:
        """The position of the events."""
        return self.leave[self.event] - 1  # type: ignore[no-any-return]

    def hazards(self, beta: np.ndarray) -> np.ndarray:
        """Return w·exp(xβ) of each row."""
        risk: np.ndarray = np.exp(np.minimum(self.x @ beta, 700.0))
        return risk if self.weights is None else self.weights * risk

    def sum_deaths(self) -> np.ndarray:
        """Return the weight of the events at each position: how many they are, without weights."""
        one = np.ones(int(self.event.sum())) if self.weights is None else self.weights[self.event]
        return self.sum_events(one)

    def sum_events(self, values: np.ndarray) -> np.ndarray:
        """Return Σ values over the events at each position."""
        return np.bincount(self.position, values, minlength=self.count)[: self.count]

    def sum_risk(self, values: np.ndarray) -> np.ndarray:
        """Return Σ values over the risk set of each position."""
        first = self.starts[self.stratum]
        out = self._after(self.leave, values, self.leave > first)
        late = self.enter > first
        return out - self._after(self.enter, values, late) if late.any() else out

    def _after(self, edge: np.ndarray, values: np.ndarray, use: np.ndarray) -> np.ndarray:
        """Sum values at positions before `edge`: cumulated from the last position, stratum by stratum."""
        if use.all():
            out = np.bincount(edge - 1, values, minlength=self.count)
        else:
            out = np.bincount(edge[use] - 1, values[use], minlength=self.count)
        for a, b in pairwise(self.starts.tolist()):
            out[a:b] = np.cumsum(out[a:b][::-1])[::-1]
        return out


class RiskSums(NamedTuple):
    s0: np.ndarray
    s1: np.ndarray
    e0: np.ndarray
    e1: np.ndarray


def sum_risk_sets(rows: RiskRows, beta: np.ndarray, efron: bool) -> RiskSums:
    """Return one party's sums at each position; E0 and E1 are 0 for Breslow's ties."""
    p, k = rows.x.shape[1], rows.count
    risk = rows.hazards(beta)
    s0 = rows.sum_risk(risk)
    s1 = np.empty((k, p))
    e0, e1 = np.zeros(k), np.zeros((k, p))
    if efron:
        e0 = rows.sum_events(risk[rows.event])
    for j in range(p):
        values = risk * rows.x[:, j]
        s1[:, j] = rows.sum_risk(values)
        if efron:
            e1[:, j] = rows.sum_events(values[rows.event])
    return RiskSums(s0, s1, e0, e1)


class Ties(NamedTuple):
    """Σ over the tied events l = 0 … d−1 of powers of c = l/d (0 for Breslow) and of φ = S0 − c·E0.

    With weights, S0 and E0 have them, and each of the d terms has the mean weight of the events.
    """

    log: float  # Σ log φ
    a: np.ndarray  # Σ 1/φ
    b: np.ndarray  # −Σ c/φ
    aa: np.ndarray  # Σ 1/φ²
    ab: np.ndarray
    bb: np.ndarray


def sum_ties(sums: RiskSums, deaths: np.ndarray, efron: bool, weights: np.ndarray | None = None) -> Ties:
    """Return the sums over tied events at each position; `weights` are the sums of their weights."""
    d = deaths.astype(np.int64)
    k = np.repeat(np.arange(len(d)), d)
    c = (np.arange(len(k)) - np.repeat(np.cumsum(d) - d, d)) / d[k] if efron else np.zeros(len(k))
    phi = sums.s0[k] - c * sums.e0[k]
    one = 1.0 / phi
    unit = np.ones(len(k)) if weights is None else (weights / np.maximum(d, 1))[k]

    def add(values: np.ndarray) -> np.ndarray:
        return np.bincount(k, unit * values, minlength=len(d))

    return Ties(
        float(unit @ np.log(phi)), add(one), add(-c * one), add(one**2), add(-c * one**2), add(c**2 * one**2)
    )


def gram_weights(rows: RiskRows, beta: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return each row's weight in Σ_k a_k S2_k + b_k E2_k, a sum of x xᵀ over rows."""
    reach = np.concatenate([[0.0], np.cumsum(a)])
    weight = reach[rows.leave] - reach[rows.enter]
    weight[rows.event] += b[rows.position]
    return weight * rows.hazards(beta)  # type: ignore[no-any-return]


def weighted_gram(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return x.T @ (weights[:, None] * x)  # type: ignore[no-any-return]


class Partial(NamedTuple):
    value: float
    gradient: np.ndarray
    hessian: np.ndarray  # of the negative log-likelihood


def partial_likelihood(
    sums: RiskSums, ties: Ties, gram: np.ndarray, event_x: np.ndarray, beta: np.ndarray
) -> Partial:
    """Return the partial log-likelihood; `event_x` is Σ x over all events, `gram` Σ_k a_k S2_k + b_k E2_k."""
    s1, e1 = sums.s1, sums.e1
    gradient = event_x - ties.a @ s1 - ties.b @ e1
    cross = (s1 * ties.ab[:, None]).T @ e1
    means = (s1 * ties.aa[:, None]).T @ s1 + cross + cross.T + (e1 * ties.bb[:, None]).T @ e1
    return Partial(float(event_x @ beta) - ties.log, gradient, gram - means)


# --- concordance --------------------------------------------------------------------------------------------


def count_bins(rows: RiskRows, score: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return how many rows leave at each position in each bin of scores: with an event, and without."""
    bins = np.searchsorted(edges, score)
    out = np.zeros((2, rows.count, len(edges) + 1), dtype=np.int64)
    use = rows.leave > rows.starts[rows.stratum]  # those who left before the first event are in no pair
    kind = np.where(rows.event, 0, 1)
    np.add.at(out, (kind[use], rows.leave[use] - 1, bins[use]), 1)
    return out


def concordance(counts: np.ndarray, starts: np.ndarray) -> tuple[float, float]:
    """Return Harrell's concordance from `count_bins`, and the largest error by scores of the same bin."""
    agree = tied = pairs = 0.0
    for a, b in pairwise(starts.tolist()):
        events, others = counts[0, a:b].astype(float), counts[1, a:b].astype(float)
        later = (
            np.cumsum((events + others)[::-1], axis=0)[::-1] - events
        )  # comparable with the events of a row
        below = np.cumsum(later, axis=1) - later  # with lower risk: concordant
        agree += float((events * below).sum())
        tied += float((events * later).sum())
        pairs += float((events * later.sum(axis=1, keepdims=True)).sum())
    return ((agree + tied / 2) / pairs, tied / 2 / pairs) if pairs else (float("nan"), 0.0)


def count_pairs(rows: RiskRows, score: np.ndarray) -> tuple[float, float, float]:
    """Return concordant, tied and comparable pairs of one party's rows."""
    who = np.flatnonzero(rows.event)
    if len(who) * len(score) > PAIRS:
        edges = np.unique(np.quantile(score, np.linspace(0, 1, BINS + 1)[1:-1]))
        counts = count_bins(rows, score, edges)
        pairs = 0.0
        agree = tied = 0.0
        for a, b in pairwise(rows.starts.tolist()):
            events = counts[0, a:b].astype(float)
            later = np.cumsum(counts[:, a:b].sum(axis=0)[::-1], axis=0)[::-1] - events
            agree += float((events * (np.cumsum(later, axis=1) - later)).sum())
            tied += float((events * later).sum())
            pairs += float((events * later.sum(axis=1, keepdims=True)).sum())
        return agree, tied, pairs
    agree = tied = pairs = 0.0
    for i in who:
        others = (rows.stratum == rows.stratum[i]) & (rows.leave >= rows.leave[i])
        others &= ~(rows.event & (rows.leave == rows.leave[i]))
        difference = score[i] - score[others]
        agree += float((difference > 0).sum())
        tied += float((difference == 0).sum())
        pairs += len(difference)
    return agree, tied, pairs
