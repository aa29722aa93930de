"""What a local step minimizes: a loss for each row, weights of classes, and an L2 penalty.

The objective of a party with n rows is (1/n)·Σ c(y)·ℓ(f(x), y) + (λ/2)·‖W‖². The class weights c are the
same for all parties and the mean is over rows, not over weights, so the mean of the parties' objectives,
weighted by rows, is the objective of the pooled rows. W are weight matrices and embeddings; biases and the
scales of norms are not penalized, as in scikit-learn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CLASSIFICATION, REGRESSION = ("cross_entropy", "focal"), ("mse",)
# γ of the focal loss: the value with which its authors have the best results (section 5.1)
GAMMA = 2.0


@dataclass(frozen=True)
class Objective:
    """A loss by name, a weight for each class (empty: all 1), and λ, the L2 penalty.

    "focal" is −(1 − p)^γ·log p with γ = 2, for p the probability of the row's class: T.-Y. Lin, P. Goyal,
    R. Girshick, K. He, P. Dollár: "Focal Loss for Dense Object Detection", ICCV 2017, equation 4.
    """

    loss: str = "cross_entropy"
    class_weight: tuple[float, ...] = ()
    l2: float = 0.0

    @property
    def is_classification(self) -> bool:
        return self.loss in CLASSIFICATION

    def to_dict(self) -> dict[str, Any]:
        return {"loss": self.loss, "class_weight": list(self.class_weight), "l2": self.l2}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Objective:
        return cls(str(values["loss"]), tuple(map(float, values["class_weight"])), float(values["l2"]))

    def weights(self, device: torch.device) -> Tensor | None:
        """[C]: the weight of each class; None: all 1."""
        return torch.tensor(self.class_weight, device=device) if self.class_weight else None

    def of_rows(self, out: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """The loss of each row; if a row has a label for each token, the mean over its labels (−1: none)."""
        if self.loss == "mse":
            return (out.reshape(y.shape) - y) ** 2
        # written out: under vmap, torch's own version is decomposed in Python, which costs more than the
        # arithmetic
        if y.dim() == 1:
            return self._of_labels(out, y, weights)
        losses, is_labeled = self._of_labels(out, y.clamp(min=0), weights), y >= 0
        return (losses * is_labeled).sum(1) / is_labeled.sum(1).clamp(min=1)

    def _of_labels(self, out: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
        losses = out.logsumexp(-1) - out.gather(-1, y[..., None])[..., 0]  # −log p
        if self.loss == "focal":
            losses = (1 - torch.exp(-losses)) ** GAMMA * losses
        return losses if weights is None else losses * weights[y]

    def by_outputs(self, out: Tensor, y: Tensor, share: Tensor, weights: Tensor | None) -> Tensor:
        """∂/∂out of Σ share·loss, for outputs [S, B, C] of a stack: the backward pass, written out.

        Cross-entropy has softmax − one-hot; the focal loss has the same direction times a factor:
        ∂ℓ/∂z = (softmax − one-hot)·((1 − p)^γ − γ·p·(1 − p)^(γ−1)·log p).
        """
        if self.loss == "mse":
            return 2 * (out - y[..., None]) * share[..., None]
        delta = torch.softmax(out, -1)
        if self.loss == "focal":
            p = delta.gather(-1, y[..., None])[..., 0]
            log_p = out.gather(-1, y[..., None])[..., 0] - out.logsumexp(-1)
            share = share * ((1 - p) ** GAMMA - GAMMA * p * (1 - p) ** (GAMMA - 1) * log_p)
        if weights is not None:
            share = share * weights[y]
        delta.scatter_add_(
            -1, y[..., None], torch.full((), -1.0, device=delta.device, dtype=delta.dtype).expand(*y.shape, 1)
        )
        return delta.mul_(share[..., None])
