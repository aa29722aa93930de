"""Masking without hierarchies: top and bottom coding, microaggregation, sampling.

Top and bottom coding, sampling: Hundepool et al.: "Statistical Disclosure Control", Wiley 2012.
Microaggregation: J. Domingo-Ferrer, V. Torra: "Ordinal, Continuous and Heterogeneous k-Anonymity through
Microaggregation", Data Mining and Knowledge Discovery 11, 2005 (MDAV-generic). Sampling before suppression:
N. Li, W. Qardaji, D. Su: "On Sampling, Anonymization, and Differential Privacy", ASIACCS 2012.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence

import numpy as np
import pandas

from ..errors import BadData
from ..parameters import bad


def code_extremes(
    series: pandas.Series, *, bottom: float | None = None, top: float | None = None, words: bool = False
) -> pandas.Series:
    """Top and bottom coding: clip numbers to [bottom, top]. Nulls stay nulls.

    With words=True, they become "≥ 90" and "≤ 17".
    """
    _check_numeric("code_extremes", series)
    if bottom is None and top is None:
        raise bad("code_extremes", "top", None, "a number, unless bottom is one")
    if bottom is not None and top is not None and bottom > top:
        raise bad("code_extremes", "bottom", bottom, f"at most top, which is {top}")
    if not words:
        return series.clip(bottom, top)
    coded = series.astype("str")
    if bottom is not None:
        coded = coded.mask(series <= bottom, f"≤ {bottom:g}")
    if top is not None:
        coded = coded.mask(series >= top, f"≥ {top:g}")
    return coded


def microaggregate(
    frame: pandas.DataFrame, columns: Sequence[str], *, k: int, summary: str = "mean"
) -> pandas.DataFrame:
    """Replace these columns by the mean (or median) of groups of k to 2k − 1 similar rows.

    The table is then k-anonymous in these columns. The mean preserves their sums.
    """
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise bad("microaggregate", "k", k, "a whole number of at least 1")
    if summary not in ("mean", "median"):
        raise bad("microaggregate", "summary", summary, "one of 'mean', 'median'")
    if len(frame) < k:
        raise BadData(
            f"The table has {len(frame):,} rows, fewer than k = {k}. Use a smaller k, or more rows."
        )
    for name in columns:
        _check_numeric("microaggregate", frame[name])
        if frame[name].isna().any():
            raise BadData(f"Column {name!r} has nulls, which have no mean. Fill them in, or drop these rows.")
    x = frame[list(columns)].to_numpy(dtype=float)
    spread = x.std(axis=0)
    group = mdav((x - x.mean(axis=0)) / np.where(spread > 0, spread, 1), k)
    out = frame.copy(deep=False)
    for name in columns:
        out[name] = frame[name].astype(float).groupby(group).transform(summary)
    return out


def mdav(x: np.ndarray, k: int) -> np.ndarray:
    """The group of each row of x, with standardized columns. MDAV-generic; lines as in the paper."""
    group = np.full(len(x), -1)
    left = np.arange(len(x))
    number = 0

    def take(center: np.ndarray, n: int) -> None:
        nonlocal left, number
        near = np.argsort(_distance(x[left], center), kind="stable")[:n]
        group[left[near]] = number
        number += 1
        left = np.delete(left, near)

    while len(left) >= 3 * k:  # line 1
        r = x[
            left[np.argmax(_distance(x[left], x[left].mean(axis=0)))]
        ]  # a: the most distant from the average
        s = x[left[np.argmax(_distance(x[left], r))]]  # b: the most distant from r
        take(r, k)  # c
        take(s, k)
    if len(left) >= 2 * k:  # line 2
        r = x[left[np.argmax(_distance(x[left], x[left].mean(axis=0)))]]
        take(r, k)
    if len(left):
        take(x[left].mean(axis=0), len(left))  # the rest, k to 2k − 1 rows
    return group


def _distance(x: np.ndarray, center: np.ndarray) -> np.ndarray:
    return np.asarray(((x - center) ** 2).sum(axis=1))


def sample(frame: pandas.DataFrame, fraction: float, *, seed: int | None = None) -> pandas.DataFrame:
    """Keep each row with this probability.

    Without a seed the operating system's randomness is used, and the sample cannot be repeated. Use a seed
    for experiments only.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction <= 1:
        raise bad("sample", "fraction", fraction, "a number above 0 and at most 1")
    if seed is None:
        return frame[draw_coins(len(frame), fraction)]
    return frame[np.random.default_rng(seed).random(len(frame)) < fraction]


def draw_coins(n: int, rate: float) -> np.ndarray:
    """n independent coins, True with this probability up to 2⁻⁶³, from the operating system's randomness."""
    bits = np.frombuffer(secrets.token_bytes(8 * n), dtype="<u8")
    return np.asarray(bits < np.uint64(min(int(rate * 2**64), 2**64 - 1)))


def k_for(epsilon: float, delta: float, fraction: float) -> int:
    """The smallest k for (ε, δ)-differential privacy by sampling and suppression (Li, Qardaji, Su 2012).

    Rows are sampled at `fraction`, generalized to levels fixed in advance, and classes of fewer than k rows
    are suppressed. Levels that depend on the table (`method="optimal"`, "datafly" and others) void the
    guarantee; the model `DifferentialPrivacy` refuses them.
    """
    for name, value, least, most in (
        ("epsilon", epsilon, 0, math.inf),
        ("delta", delta, 0, 1),
        ("fraction", fraction, 0, 1),
    ):
        if isinstance(value, bool) or not isinstance(value, int | float) or not least < value < most:
            raise bad("k_for", name, value, f"a number above {least} and below {most}")
    if epsilon < -math.log(1 - fraction):
        raise bad(
            "k_for",
            "epsilon",
            epsilon,
            f"at least −ln(1 − fraction) = {-math.log(1 - fraction):.4f}",
            "Sample a smaller fraction.",
        )
    gamma = (math.exp(epsilon) - 1 + fraction) / math.exp(epsilon)
    k = 1
    while _worst_tail(k, fraction, gamma) > delta:
        k += 1
    return k


def _worst_tail(k: int, beta: float, gamma: float) -> float:
    """max over n ≥ ⌈k/γ − 1⌉ of P(Binomial(n, β) > γ n).

    It decreases exponentially in n, so the maximum is among the first few n.
    """
    first = max(1, math.ceil(k / gamma - 1))
    return max(
        _tail(n, math.floor(gamma * n) + 1, beta) for n in range(first, first + math.ceil(2 / gamma) + 8)
    )


def _tail(n: int, least: int, p: float) -> float:
    """P(Binomial(n, p) ≥ least)."""
    logs = [
        math.lgamma(n + 1)
        - math.lgamma(j + 1)
        - math.lgamma(n - j + 1)
        + j * math.log(p)
        + (n - j) * math.log1p(-p)
        for j in range(least, n + 1)
    ]
    return math.fsum(math.exp(x) for x in logs)


def _check_numeric(owner: str, series: pandas.Series) -> None:
    if not pandas.api.types.is_numeric_dtype(series.dtype) or pandas.api.types.is_bool_dtype(series.dtype):
        raise BadData(
            f"{owner}: column {series.name!r} is {series.dtype}, not numeric. Convert it with "
            "pandas.to_numeric."
        )
