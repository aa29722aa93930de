"""Format numbers for people; mean ± standard error, and the worst decile."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from ..numbers import LOWER_IS_BETTER, NONE, WORDS, is_finite, mean_error, size

__all__ = [
    "LOWER_IS_BETTER",
    "NONE",
    "SHARES",
    "count",
    "format_metric",
    "format_seconds",
    "gap",
    "is_finite",
    "mean_error",
    "metric_name",
    "metric_title",
    "names",
    "percent",
    "plus_minus",
    "significant",
    "size",
    "truncate",
    "worst_decile",
]

SHARES = {
    "accuracy",
    "f1",
    "precision",
    "recall",
    "auc",
    "average_precision",
    "balanced_accuracy",
    "majority",
    "best_accuracy",
}
NAMES = {
    "auc": "AUC",
    "average_precision": "average precision",
    "brier": "Brier score",
    "f1": "F1",
    "loss": "loss",
    "mae": "mean absolute error",
    "r2": "R²",
    "rmse": "root mean squared error",
}


def metric_name(metric: str) -> str:
    """Return the name of a metric in a sentence."""
    return NAMES.get(metric, metric.replace("_", " "))


def metric_title(metric: str) -> str:
    """Return the name of a metric at the beginning of a line."""
    name = metric_name(metric)
    return name[0].upper() + name[1:]


def percent(value: Any, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f}%" if is_finite(value) else NONE


def significant(value: Any) -> str:
    """Format a number with three significant digits."""
    if not is_finite(value):
        return NONE
    return (
        f"{value:,.0f}"
        if 1000 <= abs(value) < 1e6
        else re.sub(r"e([+-])0*", lambda e: "e" + e[1].strip("+"), f"{value:.3g}")
    )


def count(value: Any) -> str:
    return f"{value:,.0f}" if is_finite(value) else NONE


def format_seconds(seconds: Any) -> str:
    if not is_finite(seconds):
        return NONE
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def format_metric(metric: str, value: Any) -> str:
    return percent(value) if metric in SHARES else significant(value)


def gap(metric: str, value: Any) -> str:
    """Format a difference without its sign; shares differ in points."""
    if not is_finite(value):
        return NONE
    if metric not in SHARES:
        return significant(abs(value))
    return f"{100 * abs(value):.1f} point" + ("" if f"{100 * abs(value):.1f}" == "1.0" else "s")


def plus_minus(metric: str, mean: Any, error: Any = None) -> str:
    if not is_finite(mean):
        return "diverged" if isinstance(mean, float) or mean in WORDS else NONE
    if not is_finite(error):
        return format_metric(metric, mean)
    return (
        f"{100 * mean:.1f} ± {100 * error:.1f}%"
        if metric in SHARES
        else f"{significant(mean)} ± {significant(error)}"
    )


def names(items: Sequence[str], most: int = 5) -> str:
    """Return 'a, b and c', or the first few names and how many more there are."""
    if len(items) > most:
        return f"{', '.join(items[:most])} and {count(len(items) - most)} more"
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else list(items))


def truncate(name: object, most: int = 22) -> str:
    name = str(name)
    return name if len(name) <= most else name[: most - 1] + "…"


def worst_decile(values: Sequence[Any]) -> list[int]:
    """Return the positions of the lowest tenth (at least one) of the finite values."""
    order = sorted((i for i, v in enumerate(values) if is_finite(v)), key=lambda i: values[i])
    return order[: math.ceil(len(order) / 10)]
