"""95% confidence intervals of metrics, from the same summed counts.

| metric | interval |
|---|---|
| accuracy | Wilson (1927) |
| precision, recall, F1 (macro) | delta method on the multinomial confusion matrix |
| AUC | DeLong, DeLong and Clarke-Pearson (1988), rows of a bin as ties; wider by `auc_error` |
| average precision | logit interval of Boyd, Eng and Page (2013), wider by its binning error |
| log loss, Brier score, MAE | normal, from the sum of squares |
| RMSE | square root of the normal interval of the mean squared error |
| R² | delta method on the moments of errors and targets |

AUC and average precision of more than two classes are means over classes that share rows; the half-width of
such a mean is at most the mean of the half-widths, which is what is reported.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .metrics import Counts, average_precision, is_condensed, measure_all, per_class

Z = 1.959963984540054  # the two-sided 95% quantile of the normal distribution
Interval = tuple[float, float]


def intervals(counts: Counts, scale: float = 1.0) -> dict[str, float]:
    """`<metric>_low` and `<metric>_high` of each metric of `measure_all` that has an interval."""
    metrics = measure_all(counts, scale)
    if not metrics or not math.isfinite(metrics["loss"]):
        return {}
    if counts.confusion.numel():
        found = _of_classes(counts, metrics)
    elif "r2" in metrics:
        found = _of_regression(counts, metrics, scale)
    else:
        return {}
    ends = {
        name: pair
        for name, pair in found.items()
        if name in metrics and pair is not None and all(map(math.isfinite, pair))
    }
    return {f"{name}_{end}": pair[i] for name, pair in ends.items() for i, end in enumerate(("low", "high"))}


def wilson(hits: float, n: float) -> Interval:
    """The Wilson interval of the share hits/n."""
    share, z2 = hits / n, Z * Z
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    reach = Z / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, middle - reach), min(1.0, middle + reach)


def _of_classes(counts: Counts, metrics: dict[str, float]) -> dict[str, Interval | None]:
    n, matrix = float(counts.rows), counts.confusion.cpu()
    losses, brier, briers = counts.moments.cpu().tolist() or [math.nan] * 3
    ends: dict[str, Interval | None] = {
        "loss": _mean(float(counts.loss), losses, n, (0.0, math.inf)),
        "brier": _mean(brier, briers, n, (0.0, 1.0 if len(matrix) == 2 else 2.0)),
        "accuracy": wilson(float(per_class(matrix)[0].sum()), n),
    }
    if is_condensed(matrix):  # the other intervals need the pairs of true and predicted classes
        return ends
    # a row more of each class, spread over all predictions: shares of 0 and 1 are not certain
    smooth = matrix + (matrix.sum(1, keepdim=True) > 0) / len(matrix)
    for name, slope in _slopes(smooth).items():  # the metrics do not change if all counts are doubled,
        error = math.sqrt(float((smooth * slope**2).sum()))  # so the mean of the slopes is 0
        ends[name] = _around(metrics[name], error, (0.0, 1.0))
    if "auc" in metrics:
        ends["auc"] = _auc(counts.positive.cpu(), counts.negative.cpu(), metrics)
    if "average_precision" in metrics:
        ends["average_precision"] = _average_precision(counts.positive.cpu(), counts.negative.cpu())
    return ends


def _slopes(matrix: Tensor) -> dict[str, Tensor]:
    """The derivatives of macro precision, recall and F1 by each cell of the confusion matrix."""
    hit, actual, predicted = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
    there = (actual > 0).double()
    a, p = actual.clamp(min=1), predicted.clamp(min=1)
    s = (actual + predicted).clamp(min=1)
    k = there.sum()

    def slope(per_hit: Tensor, per_actual: Tensor, per_predicted: Tensor) -> Tensor:
        cells = -(per_actual * there)[:, None] - (per_predicted * there)[None, :]
        return (cells + torch.diag(per_hit * there)) / k

    none = torch.zeros_like(hit)
    return {
        "precision": slope(1 / p, none, hit / p**2),
        "recall": slope(1 / a, hit / a**2, none),
        "f1": slope(2 / s, 2 * hit / s**2, 2 * hit / s**2),
    }


def _auc(positive: Tensor, negative: Tensor, metrics: dict[str, float]) -> Interval | None:
    reach = []
    for up, down in zip(positive, negative):
        m, n = float(up.sum()), float(down.sum())
        if not m or not n:
            continue
        if min(m, n) < 2:
            return None  # one row has no variance
        below, above = down.cumsum(0) - down / 2, m - (up.cumsum(0) - up / 2)
        v10, v01 = below / n, above / m  # of a positive, and of a negative, in each bin
        area = float((up * v10).sum()) / m
        var10 = float((up * (v10 - area) ** 2).sum()) / (m - 1)
        var01 = float((down * (v01 - area) ** 2).sum()) / (n - 1)
        error = math.sqrt(var10 / m + var01 / n)
        # perfectly separated rows have no variance; as Wilson's interval of min(m, n) hits out of as many
        reach.append(Z * error if error else Z * Z / (min(m, n) + Z * Z))
    if not reach:
        return None
    half = sum(reach) / len(reach) + metrics["auc_error"]
    return max(0.0, metrics["auc"] - half), min(1.0, metrics["auc"] + half)


def _average_precision(positive: Tensor, negative: Tensor) -> Interval:
    n = positive.sum(1)
    there = n > 0
    value, low, high = (v[there] for v in average_precision(positive, negative))
    n = n[there]
    inside = value.clamp(1 / (2 * n + 2), 1 - 1 / (2 * n + 2))  # the logit of 0 and 1 is infinite
    middle, reach = torch.logit(inside), Z / torch.sqrt(n * inside * (1 - inside))
    ends = torch.sigmoid(middle - reach) - (value - low), torch.sigmoid(middle + reach) + (high - value)
    return max(0.0, float(ends[0].mean())), min(1.0, float(ends[1].mean()))


def _of_regression(counts: Counts, metrics: dict[str, float], scale: float) -> dict[str, Interval | None]:
    n = float(counts.rows)
    absolute, fourth, y1, y2, y3, y4, ey, eyy, *other = (v / n for v in counts.moments.cpu().tolist())
    squares = other[0] * n if other else float(counts.loss)  # the loss is another one
    mse = _mean(squares, fourth * n, n, (0.0, math.inf))
    mae = _mean(absolute * n, squares, n, (0.0, math.inf))
    m, v = squares / n, y2 - y1 * y1
    ends: dict[str, Interval | None] = {
        "loss": None if mse is None or other else (scale**2 * mse[0], scale**2 * mse[1]),
        "mae": None if mae is None else (scale * mae[0], scale * mae[1]),
        "rmse": None if mse is None else (scale * math.sqrt(mse[0]), scale * math.sqrt(mse[1])),
    }
    if (
        n < 2 or v <= 1e-9 * y2
    ):  # the fourth power of a mean that is 30,000 deviations away has no digits left
        return ends
    # a row changes R² = 1 − m/v by −(e² − m)/v + m/v²·((y − ȳ)² − v)
    var_e = fourth - m * m
    centered4 = y4 - 4 * y1 * y3 + 6 * y1**2 * y2 - 3 * y1**4
    var_y = centered4 - v * v
    both = eyy - 2 * y1 * ey + y1**2 * m - m * v
    variance = (var_e - 2 * (m / v) * both + (m / v) ** 2 * var_y) / v**2 / (n - 1)
    if variance > 0:
        ends["r2"] = _around(metrics["r2"], math.sqrt(variance), (-math.inf, 1.0))
    return ends


def _mean(total: float, squares: float, n: float, limits: Interval) -> Interval | None:
    """The normal interval of a mean, from the sums of the values and of their squares."""
    if n < 2:
        return None
    mean = total / n
    return _around(mean, math.sqrt(max(squares / n - mean * mean, 0.0) / (n - 1)), limits)


def _around(value: float, error: float, limits: Interval) -> Interval:
    return max(limits[0], value - Z * error), min(limits[1], value + Z * error)
