"""Metrics from sums over the parties' counts: the same as from the pooled predictions, which nobody sends.

A party sends its confusion matrix, its summed loss, and, for the area under the ROC curve, histograms of
scores. Accuracy, precision, recall and F1 are exact. The AUC is exact up to ties within a bin: its error is
at most half the share of positive–negative pairs in the same bin, which is reported as `auc_error`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

BINS = 1024  # of the score histograms: a bin is about 0.1% of probability wide


class Counts(NamedTuple):
    """Sums over rows. Those of two parties are added with `add`; there may be leading dimensions."""

    loss: Tensor  # summed
    rows: Tensor
    confusion: Tensor  # [C, C], true × predicted; [0, 0] for regression
    positive: Tensor  # [C, BINS] scores of rows of the class
    negative: Tensor  # [C, BINS] scores of the other rows

    def add(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(self, other)))


def count(out: Tensor, y: Tensor, classes: int | None, curves: bool = True) -> Counts:
    """The counts of the outputs for some rows.

    If a row has a label for each of its tokens, tokens are counted, without curves: with so many classes
    they would take ten times as long as the rest.
    """
    if y.dim() > 1:
        is_labeled = y >= 0
        out, y, curves = out[is_labeled], y[is_labeled], False
    if classes is None:
        empty = torch.zeros(0, 0)
        return Counts(
            ((out.reshape(y.shape) - y) ** 2).double().sum(), torch.tensor(float(len(y))), empty, empty, empty
        )
    losses = F.cross_entropy(out, y, reduction="none").double()
    confusion = (
        torch.bincount(y * classes + out.argmax(-1), minlength=classes * classes)
        .view(classes, classes)
        .double()
    )
    positive = negative = torch.zeros(0, 0)
    if curves:
        # [N, C]; the scores of a diverged model are 0
        score = (torch.softmax(out.float(), -1).nan_to_num(0.0) * BINS).long().clamp(max=BINS - 1)
        place = score + torch.arange(classes, device=out.device) * BINS
        is_class = F.one_hot(y, classes).bool()
        positive = torch.bincount(place[is_class], minlength=classes * BINS).view(classes, BINS).double()
        negative = torch.bincount(place[~is_class], minlength=classes * BINS).view(classes, BINS).double()
    return Counts(losses.sum(), torch.tensor(float(len(y)), device=out.device), confusion, positive, negative)


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
    hit, actual, predicted = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
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


def measure_regression(out: Tensor, y: Tensor) -> dict[str, float]:
    """The mean absolute error and R², for whoever has the rows; parties do not send the sums they need."""
    y = y.double()
    off = out.double().reshape(y.shape) - y
    spread = float((y - y.mean()).square().mean())
    return {"mae": float(off.abs().mean()), "r2": 1 - float(off.square().mean()) / spread if spread else 0.0}


def _auc(positive: Tensor, negative: Tensor) -> tuple[float | None, float]:
    pairs = positive.sum(1) * negative.sum(1)
    both = pairs > 0
    if not both.any():
        return None, 0.0
    below = negative.cumsum(1) - negative  # negatives in lower bins: correctly ranked pairs
    tied = (positive * negative).sum(1)
    area = ((positive * below).sum(1) + tied / 2) / pairs.clamp(min=1)
    return float(area[both].mean()), float((tied / 2 / pairs.clamp(min=1))[both].mean())
