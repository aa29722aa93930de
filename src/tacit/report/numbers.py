"""Numbers as people read them, and the two statistics the report is made of: mean ± standard error, worst decile."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard

NONE = "–"
LARGEST = 1e100  # beyond it a run has diverged, whatever floating point still says
SHARES = {"accuracy", "f1", "precision", "recall", "auc", "balanced_accuracy", "best_accuracy"}
WORDS = ("nan", "inf", "-inf")  # how a run writes these, for JSON has no such numbers
LOWER_IS_BETTER = {"loss", "mse", "mae", "rmse"}


def finite(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < LARGEST


def percent(value: Any, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f}%" if finite(value) else NONE


def significant(value: Any) -> str:
    """Three significant digits."""
    if not finite(value):
        return NONE
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else re.sub(r"e([+-])0*", lambda e: "e" + e[1].strip("+"), f"{value:.3g}")


def count(value: Any) -> str:
    return f"{value:,.0f}" if finite(value) else NONE


def size(value: Any) -> str:
    """Bytes, in powers of 1,000 as networks are sold."""
    if not finite(value):
        return NONE
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{value:.0f} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB"


def span(seconds: Any) -> str:
    if not finite(seconds):
        return NONE
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def shown(metric: str, value: Any) -> str:
    return percent(value) if metric in SHARES else significant(value)


def gap(metric: str, value: Any) -> str:
    """A difference without its sign: shares differ in points."""
    if not finite(value):
        return NONE
    if metric not in SHARES:
        return significant(abs(value))
    return f"{100 * abs(value):.1f} point" + ("" if f"{100 * abs(value):.1f}" == "1.0" else "s")


def plus_minus(metric: str, mean: Any, error: Any = None) -> str:
    if not finite(mean):
        return "diverged" if isinstance(mean, float) or mean in WORDS else NONE
    if not finite(error):
        return shown(metric, mean)
    return f"{100 * mean:.1f} ± {100 * error:.1f}%" if metric in SHARES else f"{significant(mean)} ± {significant(error)}"


def names(items: Sequence[str], most: int = 5) -> str:
    """'a, b and c', or the first few and how many more."""
    if len(items) > most:
        return f"{', '.join(items[:most])} and {count(len(items) - most)} more"
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else list(items))


def clipped(name: object, most: int = 22) -> str:
    name = str(name)
    return name if len(name) <= most else name[: most - 1] + "…"


def mean_error(values: Iterable[Any]) -> tuple[float, float | None]:
    """Mean and standard error over seeds; no error from a single one. A diverged seed makes the mean diverge: it is not dropped."""
    known = [float(v) for v in values if isinstance(v, (int, float)) or v in WORDS]
    if not known or not all(finite(v) for v in known):
        return math.nan, None
    mean = math.fsum(known) / len(known)
    if len(known) == 1:
        return mean, None
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in known) / (len(known) - 1) / len(known))


def worst_decile(values: Sequence[Any]) -> list[int]:
    """Positions of the lowest tenth (at least one) of the known values, lowest first."""
    order = sorted((i for i, v in enumerate(values) if finite(v)), key=lambda i: values[i])
    return order[: math.ceil(len(order) / 10)]
