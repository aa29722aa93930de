"""What several rooms say of numbers: which one is a number at all, a mean with its error, an amount of
bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeGuard

NONE = "–"
LARGEST = 1e100  # beyond it a run has diverged, whatever floating point still says
WORDS = ("nan", "inf", "-inf")  # how a run writes these, for JSON has no such numbers


def is_finite(value: Any) -> TypeGuard[float]:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and abs(value) < LARGEST
    )


def size(value: Any) -> str:
    """Bytes, in powers of 1,000 as networks are sold."""
    if not is_finite(value):
        return NONE
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{value:.0f} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB"


def mean_error(values: Iterable[Any]) -> tuple[float, float | None]:
    """Mean and standard error over seeds; no error from a single one. A diverged seed makes the mean diverge:
    it is not dropped.
    """
    known = [float(v) for v in values if isinstance(v, (int, float)) or v in WORDS]
    if not known or not all(is_finite(v) for v in known):
        return math.nan, None
    mean = math.fsum(known) / len(known)
    if len(known) == 1:
        return mean, None
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in known) / (len(known) - 1) / len(known))
