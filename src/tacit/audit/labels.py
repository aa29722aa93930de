"""Labels from the gradients that come back over the cut. O. Li and others: Label Leakage and Protection in
Two-Party Split Learning, ICLR 2022.

The attacker holds columns and gets ∂L/∂z for every row. `norm_attack`: with unbalanced classes, rows of the
rarer class have longer gradients. `direction_attack`: gradients of one class point to one side; with one row
whose label is known, the cosine to it tells the others'. `spectral_attack` needs no known row: it takes the
first principal direction. All give the AUC of their score: 0.5 is nothing, 1 is every label.
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
            f"labels: {len(g)} gradients, {len(label)} labels of {len(kinds)} classes; there must be as "
            "many of both, and two classes. "
            "With more, ask for one class against the rest."
        )
    counts = [(int((label == k).sum()), -i) for i, k in enumerate(kinds.tolist())]
    return g, label == kinds[-min(counts)[1]]  # the rarer class is the one an attacker is after


def norm_attack(gradients: Any, y: Any) -> float:
    """AUC of ‖g‖, the better way round: noise that depends on the class can make the other class's gradients
    the longer ones.
    """
    g, positive = _read(gradients, y)
    found = auc(g.norm(dim=1), positive)
    return max(found, 1 - found)


def direction_attack(gradients: Any, y: Any, known: int | None = None) -> float:
    """AUC of the cosine to the gradient of one row of the rarer class that the attacker knows: row `known`,
    or the median over all such rows.
    """
    g, positive = _read(gradients, y)
    unit = g / g.norm(dim=1, keepdim=True).clamp(min=1e-300)
    rows = torch.nonzero(positive)[:, 0].tolist()
    if known is not None:
        if known not in rows:
            raise BadData(
                f"direction_attack: row {known} is not of the rarer class. Give a row of that class, or None."
            )
        rows = [known]
    found = []
    for row in rows[:64]:  # a median of 64 is as good as one of thousands
        rest = torch.arange(len(g)) != row
        if 0 < int(positive[rest].sum()) < int(rest.sum()):
            found.append(auc((unit @ unit[row])[rest], positive[rest]))
    if not found:
        raise BadData("direction_attack: there is one row of the rarer class; at least two are needed.")
    return sorted(found)[len(found) // 2]


def spectral_attack(gradients: Any, y: Any) -> float:
    """AUC of the projection on the first principal direction, the better way round: the attacker tells the
    sides apart by their sizes.
    """
    g, positive = _read(gradients, y)
    centred = g - g.mean(0)
    direction = torch.linalg.svd(centred, full_matrices=False).Vh[0]
    found = auc(centred @ direction, positive)
    return max(found, 1 - found)


def attack(gradients: Any, y: Any) -> dict[str, float]:
    """All attacks' AUC."""
    return {
        "norm": norm_attack(gradients, y),
        "direction": direction_attack(gradients, y),
        "spectral": spectral_attack(gradients, y),
    }
