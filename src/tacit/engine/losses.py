"""What a local step minimizes: a loss for each row, weights of classes, and an L2 penalty.

The objective of a party with n rows is (1/n)·Σ c(y)·ℓ(f(x), y) + (λ/2)·‖W‖². The class weights c are the
same for all parties and the mean is over rows, not over weights, so the mean of the parties' objectives,
weighted by rows, is the objective of the pooled rows. W are weight matrices and embeddings; biases and the
scales of norms are not penalized, as in scikit-learn.

A row may have several labels or targets (tokens, pixels, labels that do not exclude each other, several
numbers): its loss is the mean over those that are known. An own loss is a function of outputs and targets
that returns a loss per row, [B], or one number for a batch, as contrastive and ranking losses do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..errors import BadParameter
from .calling import SeveralOutputs

CLASSIFICATION, REGRESSION = ("cross_entropy", "focal"), ("mse", "mae", "huber", "poisson")
LABELS = ("bce",)
NAMES = (*CLASSIFICATION, *LABELS, *REGRESSION)
OF_MODEL = "model"  # the loss is what the model returns
# their gradient by the outputs is written out, for one label per row (`by_outputs`)
WRITTEN_OUT = ("cross_entropy", "focal", "mse")
# γ of the focal loss: the value with which its authors have the best results (section 5.1)
GAMMA = 2.0
HUBER_DELTA = 1.0  # where the Huber loss becomes linear: torch's default
# rows by which the loss of a batch is evaluated on held-out rows, whose order is fixed: the default batch
EVALUATED = 32


def model_loss(out: Tensor, y: Tensor) -> Tensor:
    """Return the loss that the model itself returned (`loss="model"`): its outputs are that loss."""
    return out


@dataclass(frozen=True)
class Objective:
    """A loss by name or a function, a weight for each class (empty: all 1), and λ, the L2 penalty.

    "focal" is −(1 − p)^γ·log p with γ = 2, for p the probability of the row's class: T.-Y. Lin, P. Goyal,
    R. Girshick, K. He, P. Dollár: "Focal Loss for Dense Object Detection", ICCV 2017, equation 4. "bce" is
    the binary cross-entropy of logits, "poisson" the negative log-likelihood of counts whose log rate the
    model returns, without its constant.
    """

    loss: str | Callable[[Any, Any], Any] = "cross_entropy"
    class_weight: tuple[float, ...] = ()
    l2: float = 0.0
    # of a model with several outputs, which an own loss takes; filled when the model is first called
    outputs: SeveralOutputs = field(default_factory=SeveralOutputs, compare=False, repr=False)

    @property
    def is_own(self) -> bool:
        return not isinstance(self.loss, str)

    @property
    def is_of_model(self) -> bool:
        """Whether the model returns its own loss."""
        return self.loss is model_loss

    @property
    def is_classification(self) -> bool:
        return self.loss in CLASSIFICATION

    def to_dict(self) -> dict[str, Any]:
        """Return the objective as plain values; a function stays where it is ("")."""
        loss = "" if self.is_own else self.loss
        return {"loss": loss, "class_weight": list(self.class_weight), "l2": self.l2}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], own: Any = None) -> Objective:
        """Return the objective of plain values; `own` is the function, where it has one."""
        loss = str(values["loss"]) or own
        return cls(loss, tuple(map(float, values["class_weight"])), float(values["l2"]))

    def weights(self, device: torch.device) -> Tensor | None:
        """[C]: the weight of each class; None: all 1."""
        return torch.tensor(self.class_weight, device=device) if self.class_weight else None

    def of_rows(self, out: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """The loss of each row, [B]; of an own loss over a batch, one number."""
        if not isinstance(self.loss, str):
            return check_own(self.loss(self.outputs.split(out), y), len(y))
        if self.loss == "mse" and y.dim() == 1:
            return (out.reshape(y.shape) - y) ** 2
        if self.loss in REGRESSION:
            return _mean_of_row(_of_numbers(self.loss, out.reshape(y.shape), y))
        if self.loss == "bce":
            known = y >= 0  # −1: not known
            z = out.reshape(y.shape)
            each = z.clamp(min=0) - z * y.clamp(min=0) + torch.log1p(torch.exp(-z.abs()))
            return _mean_of_row(each, known)
        # written out: under vmap, torch's own version is decomposed in Python, which costs more than the
        # arithmetic
        if y.dim() == 1:
            return self._of_labels(out, y, weights)
        return _mean_of_row(self._of_labels(classes_last(out, y), y.clamp(min=0), weights), y >= 0)

    def of_each(self, out: Tensor, y: Tensor) -> Tensor:
        """[N]: a loss for each row, to evaluate: with a loss over batches, that of the row's batch."""
        if not len(y):
            return torch.zeros(0)
        losses = self.of_rows(out, y, self.weights(out.device))
        if losses.dim():
            return losses
        parts = list(range(0, len(y), EVALUATED)) or [0]
        if len(parts) > 1 and len(y) - parts[-1] == 1:  # many such losses are undefined for one row
            parts.pop()
        ends = [*parts[1:], len(y)]
        each = [self.of_rows(out[a:b], y[a:b]).expand(b - a) for a, b in zip(parts, ends)]
        return torch.cat(each)

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


def classes_last(out: Tensor, y: Tensor) -> Tensor:
    """Logits [B, …, C] for labels [B, …]; images have them as [B, C, H, W], which is torch's convention."""
    if out.dim() == y.dim() + 1 and y.dim() > 2 and out.shape[1 : y.dim()] != y.shape[1:]:
        return out.movedim(1, -1)
    return out


def check_own(losses: Any, rows: int) -> Tensor:
    """Return what an own loss returned, if it is a loss per row or one number."""
    if not isinstance(losses, Tensor) or not losses.is_floating_point():
        what = f"{losses.dtype} values" if isinstance(losses, Tensor) else f"a {type(losses).__name__}"
        raise BadParameter(f"loss: the function returns {what}; it must return a tensor of real numbers.")
    if tuple(losses.shape) not in ((rows,), ()):
        per_row = " Take the mean over a row: losses.flatten(1).mean(1)." if losses.dim() > 1 else ""
        raise BadParameter(
            f"loss: the function returns a tensor of shape {tuple(losses.shape)} for {rows} rows; it must "
            f"return a loss per row, [{rows}] (reduction='none'), or one number for a loss over the batch."
            f"{per_row}"
        )
    return losses


def probe_own(objective: Objective, out: Tensor, y: Tensor) -> Tensor:
    """Return the own loss of a few rows; BadParameter if it fails, or has no gradient."""
    try:
        with torch.enable_grad():
            losses = objective.of_rows(out.detach().requires_grad_().clone(), y)
    except BadParameter:
        raise
    except Exception as error:
        raise BadParameter(
            f"loss: the function cannot be computed from outputs of shape {tuple(out.shape)} and targets of "
            f"shape {tuple(y.shape)} and type {y.dtype}: {type(error).__name__}: {error}. It is called with "
            "(outputs, targets)."
        ) from error
    if not losses.requires_grad:
        raise BadParameter(
            "loss: the tensor that the function returns has no gradient with respect to the outputs, so "
            "nothing would be learned. Compute it from the outputs by torch's operations, without detach(), "
            "item(), argmax() or NumPy."
        )
    return losses.detach()


def _of_numbers(loss: str, out: Tensor, y: Tensor) -> Tensor:
    e = out - y
    if loss == "mse":
        return e**2
    if loss == "mae":
        return e.abs()
    if loss == "poisson":
        return torch.exp(out) - y * out
    size = e.abs()
    return torch.where(size < HUBER_DELTA, e**2 / 2, HUBER_DELTA * (size - HUBER_DELTA / 2))


def _mean_of_row(losses: Tensor, known: Tensor | None = None) -> Tensor:
    """The mean over what is known of each row."""
    if losses.dim() == 1:
        return losses if known is None else losses * known
    losses = losses.flatten(1)
    if known is None:
        return losses.mean(1)
    known = known.flatten(1)
    return (losses * known).sum(1) / known.sum(1).clamp(min=1)
