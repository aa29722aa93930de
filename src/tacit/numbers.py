"""Numbers as several packages need them: finiteness, mean with error, sizes in bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
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
