"""Numbers as several packages need them: finiteness, mean with error, sizes in bytes, metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeGuard

NONE = "–"
LARGEST = 1e100  # a larger value means that the run diverged
WORDS = ("nan", "inf", "-inf")  # how runs write what JSON does not have


def is_finite(value: Any) -> TypeGuard[float]:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and abs(value) < LARGEST
    )


def bisect(holds: Callable[[float], bool], low: float, high: float, steps: int = 100) -> tuple[float, float]:
    """Halve [low, high] `steps` times around the point from which on `holds` is True; return its ends."""
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high


def size(value: Any) -> str:
    """Format a number of bytes, in powers of 1,000."""
    if not is_finite(value):
        return NONE
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{value:.0f} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB"


def mean_error(values: Iterable[Any]) -> tuple[float, float | None]:
    """Return mean and standard error over seeds, without an error for a single seed.

    A diverged seed makes the mean diverge: it is not dropped.
    """
    known = [float(v) for v in values if isinstance(v, (int, float)) or v in WORDS]
    if not known or not all(is_finite(v) for v in known):
        return math.nan, None
    mean = math.fsum(known) / len(known)
    if len(known) == 1:
        return mean, None
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in known) / (len(known) - 1) / len(known))


def each(unit: str) -> str:
    """Return 'each row' for what an ε protects, whether it is called 'row' or 'one row'."""
    return f"each {unit.removeprefix('one ')}"


MAJORITY = 0.65  # above this share of the largest class, accuracy says little
CHANCE = 0.5  # the AUC of scores that say nothing
LOWER_IS_BETTER = frozenset({"loss", "brier", "mse", "mae", "rmse"})


def judged_by(metrics: Mapping[str, Any], asked: str | None = None) -> str:
    """The metric that these metrics of a model are judged by.

    It is the one asked for; else R² for a regression, the AUC if the largest class has more than 65% of the
    rows, or accuracy. Where it is unknown (under ε only accuracy and loss are reported), the next one that
    is known.
    """
    majority = metrics.get("majority")
    is_skewed = is_finite(majority) and majority > MAJORITY
    default = ("r2",) if "r2" in metrics else ("auc", "accuracy") if is_skewed else ("accuracy",)
    return next((m for m in (asked, *default, "accuracy") if m in metrics), "loss")  # type: ignore[misc]


def is_better(metric: str, new: float, old: float) -> bool:
    """Whether `new` is a better value of this metric than `old`; NaN is never better."""
    return new < old if metric in LOWER_IS_BETTER else new > old
