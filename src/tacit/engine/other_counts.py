"""Counts for rows whose labels are not one class or one number each, and for own losses.

What a metric assumes of outputs and targets may not hold for them: metrics that do not apply are left out.

| loss | targets | metrics |
|---|---|---|
| bce | several labels, −1 for unknown | loss, accuracy (of labels), Brier, AUC, average precision |
| mae, huber, poisson | one number per row | loss, R², MAE, RMSE (poisson: of the rates) |
| numbers with any of these, or mse | several numbers per row | loss, MAE, RMSE |
| own | classes, with a logit for each | loss, accuracy, precision, recall, F1 |
| own | others | loss |
"""

from __future__ import annotations

import torch
from torch import Tensor

from .losses import CLASSIFICATION, LABELS, Objective, classes_last
from .metrics import BINS, Counts, count


def count_rows(
    out: Tensor,
    y: Tensor,
    classes: int | None,
    objective: Objective | None = None,
    threshold: float | None = None,
    bins: int = BINS,
) -> Counts:
    """The counts of some rows under this objective (None: cross-entropy or squared error)."""
    loss = None if objective is None else objective.loss
    if classes is not None and y.dim() > 2 and (objective is None or not objective.is_own):
        out = classes_last(out, y)  # an own loss takes the outputs as they are
    is_usual = loss in (None, "mse") and y.dim() == 1 if classes is None else loss in (None, *CLASSIFICATION)
    if is_usual or objective is None:
        return count(out, y, classes, threshold=threshold, bins=bins)
    losses = objective.of_each(out, y).double()
    if classes is not None:
        if objective.is_own and objective.outputs.columns:  # which of them are logits, only the loss knows
            out = out.new_zeros(0)
        return _of_own_classes(out, y, losses, classes, threshold)
    if loss in LABELS:
        return _of_labels(out, y, losses, bins)
    empty, rows = torch.zeros(0, 0), torch.tensor(float(len(y)))
    if objective.is_own:
        return Counts(losses.sum(), rows, empty, empty, empty, torch.zeros(0, dtype=torch.float64))
    out = out.double().reshape(y.shape)
    if loss == "poisson":
        out = out.exp()
    if y.dim() == 1:
        usual = count(out, y, None)
        return usual._replace(loss=losses.sum(), moments=torch.cat([usual.moments, usual.loss[None]]))
    e = out - y.double()
    moments = torch.stack([e.abs().sum(), e.square().sum()])
    entries = torch.tensor(float(y.numel()))
    return Counts(losses.sum() * (y[:1].numel() or 1), entries, empty, empty, empty, moments)


def _of_own_classes(out: Tensor, y: Tensor, losses: Tensor, classes: int, threshold: float | None) -> Counts:
    """Of an own loss, only which output is the largest is known to mean something."""
    out = classes_last(out, y)
    if tuple(out.shape) != (*y.shape, classes):
        empty, rows = torch.zeros(0, 0), torch.tensor(float(len(y)))
        return Counts(losses.sum(), rows, empty, empty, empty, torch.zeros(0, dtype=torch.float64))
    usual = count(out, y, classes, curves=False, threshold=threshold)
    mean = losses.mean() if len(losses) else losses.sum()
    empty = torch.zeros(0, 0)
    return usual._replace(
        loss=mean * usual.rows, positive=empty, negative=empty, moments=torch.zeros(0, dtype=torch.float64)
    )


def _of_labels(out: Tensor, y: Tensor, losses: Tensor, bins: int) -> Counts:
    """Moments are the labels that are known, those predicted correctly, and the sum of their Brier scores."""
    y = y[:, None] if y.dim() == 1 else y.flatten(1)
    z = out.double().reshape(y.shape)
    p, known = torch.sigmoid(z), y >= 0
    kinds = y.shape[1]
    score = (p.nan_to_num(0.0) * bins).long().clamp(max=bins - 1) + torch.arange(kinds) * bins
    positive, negative = (
        torch.bincount(score[mask], minlength=kinds * bins).view(kinds, bins).double()
        for mask in (known & (y >= 0.5), known & (y < 0.5))
    )
    hits = ((z > 0) == (y >= 0.5)) & known
    brier = ((p - y) ** 2 * known).sum()
    moments = torch.stack([known.sum().double(), hits.sum().double(), brier])
    rows = torch.tensor(float(len(y)))
    return Counts(losses.sum(), rows, torch.zeros(0, 0), positive, negative, moments)
