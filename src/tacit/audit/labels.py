"""Label leakage: attacks on the gradients that cross the cut layer.

O. Li and others: Label Leakage and Protection in Two-Party Split Learning, ICLR 2022. The attacker holds
columns and receives ∂L/∂z for every row. `norm_attack`: with imbalanced classes, rows of the minority class
have longer gradients. `direction_attack`: gradients of one class have similar directions; the cosine to a
row with a known label predicts the other labels. `spectral_attack` needs no known row: it uses the first
principal direction. All return the AUC of their score: 0.5 is chance, 1 is every label.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import BadData
from .leakage import auc


def _read(gradients: Any, y: Any) -> tuple[Tensor, Tensor]:
    g, label = torch.as_tensor(gradients).double(), torch.as_tensor(y)
    g = g.reshape(len(g), -1)
    kinds = torch.unique(label)
    if len(g) != len(label) or len(kinds) != 2:
        raise BadData(
            f"labels: there are {len(g)} gradients and {len(label)} labels of {len(kinds)} classes; there "
            "must be as many labels as gradients, and two classes. With more, use one class against the "
            "rest."
        )
    counts = [(int((label == k).sum()), -i) for i, k in enumerate(kinds.tolist())]
    return g, label == kinds[-min(counts)[1]]  # the attack is on the minority class


def _better_auc(score: Tensor, positive: Tensor) -> float:
    """The AUC of a score or of its negative, whichever is larger."""
    area = auc(score, positive)
    return max(area, 1 - area)


def norm_attack(gradients: Any, y: Any) -> float:
    """AUC of ‖g‖, in the better direction: class-dependent noise can make the majority's gradients longer."""
    g, positive = _read(gradients, y)
    return _better_auc(g.norm(dim=1), positive)


def direction_attack(gradients: Any, y: Any, known: int | None = None) -> float:
    """AUC of the cosine to the gradient of a known row of the minority class: `known`, or the median row."""
    g, positive = _read(gradients, y)
    unit = g / g.norm(dim=1, keepdim=True).clamp(min=1e-300)
    rows = torch.nonzero(positive)[:, 0].tolist()
    if known is not None:
        if known not in rows:
            raise BadData(
                f"direction_attack: row {known} is not of the minority class. Use a row of that class, or "
                "None."
            )
        rows = [known]
    if int(positive.sum()) < 2:
        raise BadData("direction_attack: there is one row of the minority class; at least two are needed.")
    areas = []
    for row in rows[:64]:  # the median of 64 rows is precise enough
        rest = torch.arange(len(g)) != row
        areas.append(auc((unit @ unit[row])[rest], positive[rest]))
    return sorted(areas)[len(areas) // 2]


def spectral_attack(gradients: Any, y: Any) -> float:
    """AUC of the projection on the first principal direction, in the better direction.

    The attacker distinguishes the sides by their sizes.
    """
    g, positive = _read(gradients, y)
    centered = g - g.mean(0)
    return _better_auc(centered @ torch.linalg.svd(centered, full_matrices=False).Vh[0], positive)


def attack(gradients: Any, y: Any) -> dict[str, float]:
    """The AUC of every attack."""
    return {
        "norm": norm_attack(gradients, y),
        "direction": direction_attack(gradients, y),
        "spectral": spectral_attack(gradients, y),
    }
