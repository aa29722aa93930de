"""Survival curves and the log-rank test from noisy counts, with the noise in their errors.

Counts of events are used as they are, also below 0: raising each to 0 would add events that nobody had, the
more the finer the grid. The curve is made monotone at the end. What noise adds to the variance of a curve
f(events, exits) is, to first order,

    σ_d² Σ (∂f/∂d)²  +  σ_e² Σ (∂f/∂e)²

for independent noise in each count. Numbers at risk are sums of exits from a time on.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd

from .curves import chi_square, log_log_interval, logrank_parts
from .inference import normal_quantile

CLEAR = 4.0  # numbers at risk have to be this many standard deviations of their noise
MOST = 0.999  # of those at risk, who have an event at one time: the survival stays above 0

Variances = tuple[float, float]  # of a count of events, and of exits


def at_risk(exits: np.ndarray) -> np.ndarray:
    """Rows that leave at this grid point or later, at least 1."""
    found: np.ndarray = np.maximum(np.cumsum(exits[..., ::-1], axis=-1)[..., ::-1], 1.0)
    return found


def count_clear(risk: np.ndarray, variance: float) -> int:
    """How many cells come before the first in which a group's number at risk drowns in its noise."""
    cells = risk.shape[1]
    clear = (risk > CLEAR * np.sqrt(variance * np.arange(cells, 0, -1))).all(axis=0)
    return cells if clear.all() else int(np.argmin(clear))


def rising(curve: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """The nearest curve that never falls, by distance over variance: pool adjacent violators."""
    means: list[float] = []
    weights: list[float] = []
    sizes: list[int] = []
    for value, weight in zip(curve, 1 / np.maximum(variance, 1e-300)):
        means.append(float(value))
        weights.append(float(weight))
        sizes.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            w = weights[-2] + weights[-1]
            means[-2] = (means[-2] * weights[-2] + means[-1] * weights[-1]) / w
            weights[-2], sizes[-2] = w, sizes[-2] + sizes[-1]
            del means[-1], weights[-1], sizes[-1]
    return np.repeat(means, sizes)


def noise_variance(
    curve: Callable[[np.ndarray, np.ndarray], np.ndarray],
    events: np.ndarray,
    exits: np.ndarray,
    variances: Variances,
) -> np.ndarray:
    """Return the covariance that noise adds to what `curve` computes, by differences about the counts."""
    total: np.ndarray | None = None
    for counts, variance, which in ((events, variances[0], 0), (exits, variances[1], 1)):
        for place in np.ndindex(counts.shape):
            ends = []
            for step in (0.5, -0.5):
                moved = counts.copy()
                moved[place] += step
                ends.append(curve(moved, exits) if which == 0 else curve(events, moved))
            slope = np.atleast_1d(ends[0] - ends[1])
            total = variance * np.outer(slope, slope) + (0.0 if total is None else total)
    assert total is not None
    return total


def survival_table(
    times: np.ndarray, events: np.ndarray, exits: np.ndarray, variances: Variances, level: float
) -> pd.DataFrame:
    """The Kaplan–Meier curve. log S has Greenwood's variance and that of the noise, in closed form:

    Σ_j σ_d² / (n_j − d_j)²  +  Σ_k σ_e² G(min(k, t))²,   G(k) = Σ_{j ≤ k} d_j / (n_j (n_j − d_j))
    """
    n = at_risk(exits)
    d = np.minimum(events, MOST * n)
    step = np.maximum(d, 0.0) / (n * (n - d))
    greenwood = np.cumsum(step)
    count = len(times)
    by_events = np.cumsum(variances[0] / (n - d) ** 2)
    by_exits = variances[1] * (np.cumsum(greenwood**2) + (count - 1 - np.arange(count)) * greenwood**2)
    variance = greenwood + by_events + by_exits
    raw = np.cumprod(1 - d / n)
    survival = np.clip(-rising(-raw, raw**2 * variance), 0.0, 1.0)
    # a curve at 1 or 0 has no log(−log S); a thousandth from there it has a wide interval
    inner = np.clip(survival, 1e-3, 1 - 1e-3)
    low, high = log_log_interval(inner, variance, level)
    low, high = np.minimum(low, survival), np.maximum(high, survival)
    se = survival * np.sqrt(variance)
    # where the number at risk drowns in noise, the curve is known to be below its last clear value only
    last = count_clear(n[None], variances[1])
    top, limit = (survival[last - 1], high[last - 1]) if last else (1.0, 1.0)
    low[last:], high[last:] = 0.0, np.maximum(limit, survival[last:])
    se[last:] = np.maximum(se[last:], top / 2)
    return pd.DataFrame(
        {
            "time": times,
            "at_risk": n,
            "events": np.maximum(events, 0.0),
            "censored": np.maximum(exits - events, 0.0),
            "survival": survival,
            "se": se,
            "low": low,
            "high": high,
        }
    )


def hazard_table(
    times: np.ndarray, events: np.ndarray, exits: np.ndarray, variances: Variances, level: float
) -> pd.DataFrame:
    """The Nelson–Aalen cumulative hazard Σ d/n; tied events count together."""
    n = at_risk(exits)
    hazard = np.cumsum(events / n)
    slope = np.cumsum(np.maximum(events, 0.0) / n**2)  # of H(t) in an exit at t or later, with minus
    count = len(times)
    variance = (
        slope
        + np.cumsum(variances[0] / n**2)
        + variances[1] * (np.cumsum(slope**2) + (count - 1 - np.arange(count)) * slope**2)
    )
    hazard = np.maximum(rising(hazard, variance), 0.0)
    half = normal_quantile(level) * np.sqrt(variance)
    return pd.DataFrame(
        {
            "time": times,
            "at_risk": n,
            "events": np.maximum(events, 0.0),
            "hazard": hazard,
            "se": np.sqrt(variance),
            "low": np.maximum(hazard - half, 0.0),
            "high": hazard + half,
        }
    )


def incidence_table(
    times: np.ndarray, events: np.ndarray, exits: np.ndarray, cause: int, variances: Variances, level: float
) -> pd.DataFrame:
    """The Aalen–Johansen cumulative incidence of one cause; `events` is cause × cell."""
    n = at_risk(exits)
    incidence = _incidence(events, exits, cause)
    every, own = np.maximum(events.sum(axis=0), 0.0), np.maximum(events[cause], 0.0)
    every = np.minimum(every, MOST * n)
    survival = np.cumprod(1 - every / n)
    before = np.concatenate([[1.0], survival[:-1]])
    a, b = every / (n * (n - every)), before**2 * own * np.maximum(n - own, 0.0) / n**3
    c = before * own / n**2
    sampling = np.array(
        [
            float(
                ((incidence[t] - incidence[: t + 1]) ** 2 * a[: t + 1]).sum()
                + b[: t + 1].sum()
                - 2 * ((incidence[t] - incidence[: t + 1]) * c[: t + 1]).sum()
            )
            for t in range(len(times))
        ]
    )
    noise = np.diag(noise_variance(lambda d, e: _incidence(d, e, cause), events, exits, variances))
    variance = np.maximum(sampling, 0.0) + noise
    curve = np.clip(rising(incidence, variance), 0.0, 1.0)
    half = normal_quantile(level) * np.sqrt(variance)
    return pd.DataFrame(
        {
            "time": times,
            "at_risk": n,
            "events": own,
            "incidence": curve,
            "se": np.sqrt(variance),
            "low": np.clip(curve - half, 0.0, 1.0),
            "high": np.clip(curve + half, 0.0, 1.0),
        }
    )


def _incidence(events: np.ndarray, exits: np.ndarray, cause: int) -> np.ndarray:
    n = at_risk(exits)
    survival = np.cumprod(1 - np.minimum(events.sum(axis=0), MOST * n) / n)
    before = np.concatenate([[1.0], survival[:-1]])
    return np.cumsum(before * events[cause] / n)


def logrank_test(
    events: np.ndarray, exits: np.ndarray, variances: Variances, weighting: str
) -> tuple[float, int, float, np.ndarray]:
    """Return χ², its degrees of freedom, p, and (observed, expected), from counts by group and cell.

    Only the times before one group's number at risk drowns in its noise are compared. NaN without any.
    """
    last = count_clear(at_risk(exits), variances[1])
    if last == 0:
        return math.nan, len(events) - 1, math.nan, np.full((2, len(events)), math.nan)

    def difference(d: np.ndarray, e: np.ndarray) -> np.ndarray:
        return logrank_parts(d[:, :last], at_risk(e)[:, :last], weighting)[0]

    found, covariance, both = logrank_parts(events[:, :last], at_risk(exits)[:, :last], weighting)
    # single counts below 0 may give a sum of variances below 0: then the noise is all there is
    values, vectors = np.linalg.eigh(covariance)
    sampling = (vectors * np.maximum(values, 0.0)) @ vectors.T
    statistic, freedom, p = chi_square(found, sampling + noise_variance(difference, events, exits, variances))
    return statistic, freedom, p, both
