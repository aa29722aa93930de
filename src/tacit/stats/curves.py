"""Survival curves and the log-rank test, from counts on a grid.

E. Kaplan and P. Meier 1958; M. Greenwood 1926; O. Aalen 1978; O. Aalen and S. Johansen 1978; N. Mantel 1966.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from .inference import chi2_p, normal_quantile

_CLEAR_RISK = 20  # with fewer at risk, one person more or less is as much as the rounding
_LARGE_ROUNDING = 0.02  # of a survival: half a standard error of some 500 people


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a / b, and 0 where b is 0."""
    out = np.zeros(np.broadcast(a, b).shape)
    np.divide(a, b, out=out, where=np.asarray(b) != 0)
    return out


def survival_table(
    times: np.ndarray, events: np.ndarray, exits: np.ndarray, at_risk: np.ndarray, level: float
) -> pd.DataFrame:
    """Return the Kaplan–Meier curve with Greenwood's errors at the times at which someone left.

    The intervals are those of log(−log S) (exponential Greenwood), as lifelines computes them. `extra` is the
    variance that noise adds to each hazard (0 for exact counts).
    """
    d, n = events.astype(float), at_risk.astype(float)
    survival = np.cumprod(1 - _ratio(d, n))
    greenwood = np.cumsum(_ratio(d, n * (n - d)))
    low, high = log_log_interval(survival, greenwood, level)
    table = pd.DataFrame(
        {
            "time": times,
            "at_risk": at_risk,
            "events": events,
            "censored": exits - events,
            "survival": survival,
            "se": survival * np.sqrt(greenwood),
            "low": low,
            "high": high,
        }
    )
    return table[exits > 0].reset_index(drop=True)


def note_rounding(events: np.ndarray, exits: np.ndarray, at_risk: np.ndarray) -> tuple[str, ...]:
    """Return a note if a curve would be much lower, were people at risk for half of their last cell.

    That is the life table (S. Cutler and F. Ederer 1958). On a grid, those who leave between two points count
    as at risk until the second. `events` and the others have a row for each group. The last cell with exits
    is left out: follow-up often ends at its point.
    """
    last = int(np.flatnonzero((exits > 0).any(axis=0)).max(initial=0))
    events, exits, at_risk = (counts[:, :last] for counts in (events, exits, at_risk))
    d, n = np.maximum(events, 0.0), np.maximum(at_risk, 0.0)
    c = np.clip(exits - d, 0.0, np.maximum(n - d, 0.0))
    enough = n >= _CLEAR_RISK
    curve, life = (np.cumprod(np.where(enough, 1 - _ratio(d, m), 1.0), axis=-1) for m in (n, n - c / 2))
    most = float((curve - life).max(initial=0.0))
    if most <= _LARGE_ROUNDING:
        return ()
    return (
        f"If times lie between points of the grid, survival is overestimated, by some {most:.2f} where it is "
        "worst: those who leave count as at risk until the next point. Declare more points.",
    )


def join_rows(table: pd.DataFrame, exits: np.ndarray, least: int) -> pd.DataFrame:
    """Return the curve at fewer times: in each row `least` people left, with no event or `least` events.

    A row is then about the people who left since the row before: `time` and the estimates are those of the
    last time, `events` (and `censored`) the people in between, `at_risk` those at risk at the first. The
    estimates are of all times. What is left at the end joins the rows before it; without enough people for
    one row there is none.
    """
    if least <= 1 or not len(table):
        return table
    events, at_risk = table["events"].to_numpy(), table["at_risk"].to_numpy()

    def is_large(a: int, b: int) -> bool:
        count = int(events[a:b].sum())
        return min(int(exits[a:b].sum()), int(at_risk[a])) >= least and (count == 0 or count >= least)

    bounds, start = [], 0
    for stop in range(1, len(table) + 1):
        if is_large(start, stop):
            bounds.append((start, stop))
            start = stop
    while start < len(table) and bounds:
        start = bounds.pop()[0]
        if is_large(start, len(table)):
            bounds.append((start, len(table)))
            break
    joined = table.iloc[[b - 1 for _, b in bounds]].reset_index(drop=True)
    joined["at_risk"] = [at_risk[a] for a, _ in bounds]
    joined["events"] = [events[a:b].sum() for a, b in bounds]
    if "censored" in joined:
        joined["censored"] = [(exits - events)[a:b].sum() for a, b in bounds]
    return joined


def log_log_interval(
    survival: np.ndarray, variance: np.ndarray, level: float
) -> tuple[np.ndarray, np.ndarray]:
    """The interval of S from the variance of log S; 1 where nobody had an event."""
    z = normal_quantile(level)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        v = np.log(survival)
        half = z * np.sqrt(variance) / v
        low = np.exp(-np.exp(np.log(-v) - half))
        high = np.exp(-np.exp(np.log(-v) + half))
    is_one = survival >= 1.0
    low, high = np.where(is_one, 1.0, low), np.where(is_one, 1.0, high)
    return np.nan_to_num(low, nan=1.0), np.nan_to_num(high, nan=1.0)


def median_time(table: pd.DataFrame) -> float:
    """The first time at which survival is at most one half; infinite if it stays above."""
    below = table[table["survival"] <= 0.5 + 1e-12]
    return float(below["time"].iloc[0]) if len(below) else float("inf")


def hazard_table(
    times: np.ndarray, events: np.ndarray, exits: np.ndarray, at_risk: np.ndarray, level: float, smooth: bool
) -> pd.DataFrame:
    """Return the Nelson–Aalen cumulative hazard. `smooth`: tied events one after the other, as
    lifelines does.
    """
    d, n = events.astype(int), at_risk.astype(int)
    if smooth:
        harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, n.max() + 2))])
        squares = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, n.max() + 2) ** 2)])
        steps, variances = harmonic[n] - harmonic[n - d], squares[n] - squares[n - d]
    else:
        steps = _ratio(d.astype(float), n.astype(float))
        variances = (1 - steps) * _ratio(steps, n.astype(float))
    hazard, variance = np.cumsum(steps), np.cumsum(variances)
    spread = normal_quantile(level) * _ratio(np.sqrt(variance), hazard)
    table = pd.DataFrame(
        {
            "time": times,
            "at_risk": at_risk,
            "events": events,
            "hazard": hazard,
            "se": np.sqrt(variance),
            "low": hazard * np.exp(-spread),
            "high": hazard * np.exp(spread),
        }
    )
    return table[exits > 0].reset_index(drop=True)


def incidence_table(
    times: np.ndarray, events: np.ndarray, exits: np.ndarray, at_risk: np.ndarray, cause: int, level: float
) -> pd.DataFrame:
    """Return the Aalen–Johansen cumulative incidence of one cause; `events` is cause × cell."""
    every, own = events.sum(axis=0).astype(float), events[cause].astype(float)
    n = at_risk.astype(float)
    survival = np.cumprod(1 - _ratio(every, n))
    before = np.concatenate([[1.0], survival[:-1]])
    incidence = np.cumsum(before * _ratio(own, n))
    # Var F(t) = Σ (F(t) − F(s))² a + b − 2 (F(t) − F(s)) c over s ≤ t: three running sums each
    a = _ratio(every, n * (n - every))
    b = before**2 * _ratio(own * (n - own), n**3)
    c = before * _ratio(own, n**2)
    sa, sfa, sffa = (np.cumsum(incidence**k * a) for k in (0, 1, 2))
    sc, sfc = np.cumsum(c), np.cumsum(incidence * c)
    variance = incidence**2 * sa - 2 * incidence * sfa + sffa + np.cumsum(b) - 2 * (incidence * sc - sfc)
    variance = np.maximum(variance, 0.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        log = np.log(incidence)
        half = normal_quantile(level) * np.sqrt(variance) / (incidence * np.abs(log))
        low = np.exp(-np.exp(np.log(-log) + half))
        high = np.exp(-np.exp(np.log(-log) - half))
    is_zero = incidence <= 0
    table = pd.DataFrame(
        {
            "time": times,
            "at_risk": at_risk,
            "events": events[cause],
            "incidence": incidence,
            "se": np.sqrt(variance),
            "low": np.where(is_zero, 0.0, low),
            "high": np.where(is_zero, 0.0, high),
        }
    )
    return table[exits > 0].reset_index(drop=True)


WEIGHTINGS = ("logrank", "wilcoxon", "tarone-ware", "peto")


def logrank_parts(
    events: np.ndarray, at_risk: np.ndarray, weighting: str = "logrank"
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return observed − expected, its covariance, and (observed, expected) by group, for one stratum.

    `events` and `at_risk` are group × cell.
    """
    d, n = events.sum(axis=0).astype(float), at_risk.sum(axis=0).astype(float)
    share = _ratio(at_risk.astype(float), n)
    w = np.ones(len(d))
    if weighting == "wilcoxon":
        w = n
    elif weighting == "tarone-ware":
        w = np.sqrt(n)
    elif weighting == "peto":
        w = np.cumprod(1 - _ratio(d, n + 1))  # Peto and Peto's estimate of survival
    expected = share * d
    difference = ((events - expected) * w).sum(axis=1)
    factor = w**2 * d * _ratio(n - d, n - 1)
    covariance = np.diag((share * factor).sum(axis=1)) - (share * factor) @ share.T
    return difference, covariance, np.stack([events.sum(axis=1).astype(float), expected.sum(axis=1)])


def chi_square(difference: np.ndarray, covariance: np.ndarray) -> tuple[float, int, float]:
    """Return the statistic of the differences, its degrees of freedom, and p."""
    freedom = len(difference) - 1
    part = covariance[:freedom, :freedom]
    statistic = float(difference[:freedom] @ np.linalg.pinv(part, hermitian=True) @ difference[:freedom])
    return statistic, freedom, chi2_p(statistic, freedom)
