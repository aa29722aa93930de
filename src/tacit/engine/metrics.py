"""Metrics from sums over the parties' counts: the same as from the pooled predictions, which nobody sends.

A party sends its confusion matrix, its summed loss, a few other sums, and histograms of scores. Accuracy,
precision, recall, F1, log loss, Brier score, R² and the errors of a regression are exact. The AUC and the
average precision are exact up to the order within a bin: `auc_error` and `average_precision_error` bound the
difference from the values of the pooled scores. `intervals.py` computes 95% confidence intervals from the
same counts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..numbers import LOWER_IS_BETTER as LOWER_IS_BETTER
from ..numbers import MAJORITY
from ..numbers import is_better as is_better
from ..numbers import judged_by as judged_by

BINS = 1024  # of the score histograms: a bin is about 0.1% of probability wide
SUBGROUP_BINS = 128  # of a subgroup: there may be many, and their intervals are wider than a bin's error
CLASSIFICATION = ("accuracy", "auc", "average_precision", "brier", "f1", "precision", "recall", "loss")
# with more classes, as in the vocabulary of a language model, a matrix of all pairs would take gigabytes:
# rows are counted by true class and by predicted class, and histograms of scores are left out
MANY_CLASSES = 1000
REGRESSION = ("r2", "mae", "rmse", "loss")


def choose_metric(classes: int | None, label_counts: Sequence[float] | Tensor) -> str:
    """The metric that a model is judged by if none was chosen.

    R² for a regression; for classes the AUC if the largest has more than 65% of the rows, else accuracy.
    """
    if classes is None:
        return "r2"
    counts = torch.as_tensor(label_counts, dtype=torch.float64)
    total = float(counts.sum())
    return "auc" if total and float(counts.max()) > MAJORITY * total else "accuracy"


class Counts(NamedTuple):
    """Sums over rows. Those of two parties are added with `add`; there may be leading dimensions.

    Of two classes only the scores of the second are counted: those of the first mirror them.
    """

    loss: Tensor  # summed
    rows: Tensor
    # [C, C], true × predicted; [0, 0] for regression. With many classes [3, C]: rows of each true class that
    # are predicted correctly, and wrongly, and rows of each predicted class
    confusion: Tensor
    positive: Tensor  # [C, bins] scores of rows of the class; [1, bins] for two classes
    negative: Tensor  # [C, bins] scores of the other rows
    moments: Tensor  # sums of the terms below

    def add(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(self, other)))


# the terms of a row: its log loss ℓ and Brier score b; the error e of a regression and its target y
CLASS_MOMENTS = ("ℓ²", "b", "b²")
REGRESSION_MOMENTS = ("|e|", "e⁴", "y", "y²", "y³", "y⁴", "e²y", "e²y²")


def is_condensed(confusion: Tensor) -> bool:
    """Whether rows are counted by true and by predicted class, not by pairs of them."""
    return confusion.shape[-1] > MANY_CLASSES


def per_class(confusion: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[C] each: the rows of a class that are predicted correctly, its rows, and those predicted as it."""
    if is_condensed(confusion):
        hit, miss, predicted = confusion.unbind(-2)
        return hit, hit + miss, predicted
    return confusion.diagonal(dim1=-2, dim2=-1), confusion.sum(-1), confusion.sum(-2)


def count(
    out: Tensor,
    y: Tensor,
    classes: int | None,
    curves: bool = True,
    threshold: float | None = None,
    bins: int = BINS,
) -> Counts:
    """The counts of the outputs for some rows.

    If a row has a label for each of its tokens, tokens are counted, without curves: with so many classes
    they would take ten times as long as the rest. With more than 1,000 classes rows are counted by true and
    by predicted class, not by pairs. Of two classes, the second is predicted from the
    probability `threshold` on (None: if it is the more probable one).
    """
    if y.dim() > 1:
        is_labeled = y >= 0
        out, y, curves = out[is_labeled], y[is_labeled], False
    rows = torch.tensor(float(len(y)), device=out.device)
    empty = torch.zeros(0, 0)
    if classes is None:
        target = y.double()
        e = out.double().reshape(y.shape) - target
        ee, yy = e**2, target**2
        terms = (e.abs(), ee**2, target, yy, yy * target, yy**2, ee * target, ee * yy)
        moments = torch.stack([t.sum() for t in terms])
        return Counts(ee.sum(), rows, empty, empty, empty, moments)
    if classes > MANY_CLASSES:
        return _count_many(out, y, classes)
    losses = F.cross_entropy(out, y, reduction="none").double()
    share = torch.softmax(out.float(), -1)
    guess = predict_classes(out, threshold)
    confusion = (
        torch.bincount(y * classes + guess, minlength=classes * classes).view(classes, classes).double()
    )
    off = share.double() - F.one_hot(y, classes)
    brier = off.square().sum(-1) / (2 if classes == 2 else 1)  # of two classes, (p − y)²
    moments = torch.stack([losses.square().sum(), brier.sum(), brier.square().sum()])
    positive = negative = empty
    if curves:
        first = 1 if classes == 2 else 0  # the first class whose scores are counted
        kinds = classes - first
        # [N, kinds]; the scores of a diverged model are 0
        score = (share[:, first:].nan_to_num(0.0) * bins).long().clamp(max=bins - 1)
        place = score + torch.arange(kinds, device=out.device) * bins
        is_class = F.one_hot(y, classes)[:, first:].bool()
        positive = torch.bincount(place[is_class], minlength=kinds * bins).view(kinds, bins).double()
        negative = torch.bincount(place[~is_class], minlength=kinds * bins).view(kinds, bins).double()
    return Counts(losses.sum(), rows, confusion, positive, negative, moments)


def _count_many(out: Tensor, y: Tensor, classes: int) -> Counts:
    """The counts of rows with many classes, in blocks: the outputs alone may take most of the memory."""
    table = torch.zeros(3, classes, dtype=torch.float64)
    moments, total = torch.zeros(3, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    block = max(1, 2**24 // classes)
    for part, label in zip(out.split(block), y.split(block)):
        logs = torch.log_softmax(part.float(), -1)
        own = logs.gather(-1, label[:, None])[:, 0].double()
        # Σ (p − onehot)² = Σ p² − 2·p_y + 1
        brier = logs.exp_().square_().sum(-1).double() - 2 * own.exp() + 1
        guess = part.argmax(-1)
        hits = guess == label
        for i, which in enumerate((label[hits], label[~hits], guess)):
            table[i] += torch.bincount(which, minlength=classes).cpu()
        total += -own.sum().cpu()
        moments += torch.stack([own.square().sum(), brier.sum(), brier.square().sum()]).cpu()
    empty = torch.zeros(0, 0)
    return Counts(total, torch.tensor(float(len(y))), table, empty, empty, moments)


def predict_classes(out: Tensor, threshold: float | None = None) -> Tensor:
    """The class predicted for each row or token: the most probable, or of two by the threshold."""
    if threshold is None or out.shape[-1] != 2:
        return out.argmax(-1)
    return (torch.softmax(out.float(), -1)[..., 1] >= threshold).long()


def measure(counts: Counts) -> dict[str, float]:
    """Loss, accuracy, macro precision, recall and F1, and the one-vs-rest macro AUC with its error."""
    n = float(counts.rows)
    if n == 0:
        return {}
    result: dict[str, Any] = {"loss": float(counts.loss) / n}
    matrix = counts.confusion.cpu()
    if matrix.numel() == 0:
        return result
    if not math.isfinite(
        result["loss"]
    ):  # the argmax of NaN is class 0, which must not count as a prediction
        return result | dict.fromkeys(("accuracy", "precision", "recall", "f1"), math.nan)
    hit, actual, predicted = per_class(matrix)
    there = actual > 0  # classes without test rows have no recall
    precision, recall = hit / predicted.clamp(min=1), hit / actual.clamp(min=1)
    f1 = 2 * precision * recall / (precision + recall).clamp(min=1e-12)
    result |= {
        "accuracy": float(hit.sum()) / n,
        "precision": float(precision[there].mean()),
        "recall": float(recall[there].mean()),
        "f1": float(f1[there].mean()),
    }
    if counts.positive.numel():
        area, error = _auc(counts.positive.cpu(), counts.negative.cpu())
        if area is not None:
            result |= {"auc": area, "auc_error": error}
    return result


def measure_all(counts: Counts, scale: float = 1.0) -> dict[str, float]:
    """Every metric that these counts give: those of `measure`, and

    - of classes: `average_precision` with its binning error (of the second of two classes, else the mean
      over classes), `brier`, and `majority`, the accuracy of always predicting the largest class;
    - of a regression: `r2`, `mae` and `rmse`, the latter two in units of `scale`. Its `loss` is rmse².
    """
    metrics, n = measure(counts), float(counts.rows)
    if not metrics:
        return {}
    sums = counts.moments.cpu().tolist()
    if not counts.confusion.numel():
        return metrics | (_labels(counts, sums) if counts.positive.numel() else _numbers(counts, sums, scale))
    if not sums:  # of an own loss, whose outputs are no logits of probabilities
        return metrics
    metrics["majority"] = float(per_class(counts.confusion)[1].max()) / n
    is_finite = math.isfinite(metrics["loss"])
    metrics["brier"] = sums[1] / n if is_finite else math.nan
    if "auc" in metrics:
        metrics |= _average_precision(counts.positive.cpu(), counts.negative.cpu())
    return metrics


def measure_regression(out: Tensor, y: Tensor) -> dict[str, float]:
    """The mean absolute error and R² of these rows."""
    y = y.double()
    off = out.double().reshape(y.shape) - y
    spread = float((y - y.mean()).square().mean())
    return {"mae": float(off.abs().mean()), "r2": 1 - float(off.square().mean()) / spread if spread else 0.0}


def _labels(counts: Counts, sums: list[float]) -> dict[str, float]:
    """Metrics of labels that do not exclude each other, from the counts of other_counts.py."""
    known, hits, brier = sums
    if not known or not math.isfinite(float(counts.loss)):
        return {}
    positive, negative = counts.positive.cpu(), counts.negative.cpu()
    found = {"accuracy": hits / known, "brier": brier / known}
    area, error = _auc(positive, negative)
    if area is not None:
        found |= {"auc": area, "auc_error": error, **_average_precision(positive, negative)}
    return found


def _numbers(counts: Counts, sums: list[float], scale: float) -> dict[str, float]:
    """Metrics of a regression; of an own loss, and of several targets per row, as far as they apply."""
    n, loss = float(counts.rows), float(counts.loss)
    if not sums:
        return {}
    if len(sums) == 2:  # several numbers per row: their absolute and squared errors
        return {"mae": scale * sums[0] / n, "rmse": scale * math.sqrt(sums[1] / n)}
    *usual, squares = sums if len(sums) == len(REGRESSION_MOMENTS) + 1 else (*sums, loss)
    found = _regression(squares, n, usual, scale)
    return found if len(sums) == len(REGRESSION_MOMENTS) else {**found, "loss": loss / n}


def _regression(squares: float, n: float, sums: list[float], scale: float) -> dict[str, float]:
    if not math.isfinite(squares):
        return {"loss": squares / n, **dict.fromkeys(("r2", "mae", "rmse"), math.nan)}
    absolute, _, y, yy, *_ = sums
    spread = yy - y * y / n
    # targets that are all equal leave nothing to explain; what remains then is rounding
    is_constant = spread <= 1e-12 * yy
    return {
        "loss": scale**2 * squares / n,
        "r2": 0.0 if is_constant else 1 - squares / spread,
        "mae": scale * absolute / n,
        "rmse": scale * math.sqrt(squares / n),
    }


def _auc(positive: Tensor, negative: Tensor) -> tuple[float | None, float]:
    pairs = positive.sum(1) * negative.sum(1)
    both = pairs > 0
    if not both.any():
        return None, 0.0
    below = negative.cumsum(1) - negative  # negatives in lower bins: correctly ranked pairs
    tied = (positive * negative).sum(1)
    area = ((positive * below).sum(1) + tied / 2) / pairs.clamp(min=1)
    return float(area[both].mean()), float((tied / 2 / pairs.clamp(min=1))[both].mean())


def average_precision(positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[C] each: the average precision with the rows of a bin as ties, and bounds for any order in a bin.

    AP = Σ (R_i − R_{i−1})·P_i over thresholds. With T positives and F negatives in higher bins, the a
    positives of a bin with b negatives add at most a·(T + a)/(T + a + F), if they come first as one tie, and
    at least Σ_{i=1..a} (T + i)/(T + i + F + b), if they come last and one by one.
    """
    up, down = positive.flip(1), negative.flip(1)
    t, f = up.cumsum(1), down.cumsum(1)  # T + a and F + b
    value = up * t / (t + f).clamp(min=1)
    high = up * t / (t + f - down).clamp(min=1)
    # Σ (T + i)/(T + i + c) = a − c·(ψ(T + a + c + 1) − ψ(T + c + 1)), c = F + b
    low = up - f * (torch.digamma(t + f + 1) - torch.digamma(t - up + f + 1))
    n = positive.sum(1).clamp(min=1)
    return value.sum(1) / n, low.sum(1) / n, high.sum(1) / n


def _average_precision(positive: Tensor, negative: Tensor) -> dict[str, float]:
    there = positive.sum(1) > 0
    if not there.any():
        return {}
    value, low, high = average_precision(positive[there], negative[there])
    error = torch.maximum(high - value, value - low)
    return {"average_precision": float(value.mean()), "average_precision_error": float(error.mean())}


CURVE = 16  # bins of a calibration curve and points of a ROC curve: each is 64 bins of the histograms
MOST_CLASSES = 20  # of a confusion matrix that is shown


def describe(counts: Counts, min_rows: int = 1) -> dict[str, Any]:
    """What is drawn: the confusion matrix and, of two classes, the calibration and the ROC curve.

    - `confusion`: rows by true and predicted class, for up to 20 classes;
    - `calibration`: [mean predicted probability, share observed, rows] of each sixteenth of probability. The
      mean is exact up to 1/2048, half a bin;
    - `curve`: [threshold, true positive rate, false positive rate, precision] at the same bounds.

    Neighboring sixteenths are merged until each has at least `min_rows` rows.
    """
    matrix = counts.confusion.cpu()
    if is_condensed(matrix):
        return {}
    if not 0 < len(matrix) <= MOST_CLASSES or not math.isfinite(float(counts.loss)) or not float(counts.rows):
        return {}
    found: dict[str, Any] = {"confusion": matrix.long().tolist()}
    if len(counts.positive) != 1:
        return found
    up, down = counts.positive.cpu()[0], counts.negative.cpu()[0]
    bounds = _bounds((up + down).view(CURVE, -1).sum(1).tolist(), min_rows)
    width = len(up) // CURVE
    middle = (torch.arange(len(up)) + 0.5) / len(up)
    calibration, curve = [], [[1.0, 0.0, 0.0, 1.0]]
    for first, last in itertools.pairwise(bounds):
        part = slice(first * width, last * width)
        rows = float((up + down)[part].sum())
        if rows:
            score = float(((up + down) * middle)[part].sum())
            calibration.append([score / rows, float(up[part].sum()) / rows, rows])
    m, n = max(float(up.sum()), 1.0), max(float(down.sum()), 1.0)
    for k in reversed(bounds[:-1]):
        hits, false = float(up[k * width :].sum()), float(down[k * width :].sum())
        curve.append([k / CURVE, hits / m, false / n, hits / (hits + false) if hits + false else 1.0])
    return found | {"calibration": calibration, "curve": curve}


def _bounds(rows: Sequence[float], least: int) -> list[int]:
    """Where to cut a histogram so that every part has no rows or at least `least`."""
    bounds, held = [0], 0.0
    for i, n in enumerate(rows, 1):
        held += n
        if held >= least or not held:
            bounds.append(i)
            held = 0.0
    if held:  # the last part has too few: it joins the one before it
        while len(bounds) > 1 and held < least:
            bounds.pop()
            held = sum(rows[bounds[-1] :])
        bounds.append(len(rows))
    return bounds
