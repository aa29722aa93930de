"""Checks that per-example gradients are correct, against torch and single examples.

The sensitivity is one clipped gradient only if no row's loss depends on another row, and if all of a
parameter's gradient passes through its layer. Neither can be read off a loss, so both are checked on the
first batches:

- `check_complete`: the sum of the per-example gradients is torch's own gradient of every parameter. This
  fails if a weight is used outside its layer (`h @ self.embed.weight.T`) or by the loss itself (a penalty).
- `check_signs`: with a random sign on each row's loss, each row's gradient changes by its own sign only.
- `check_alone`: a row's gradient is the same in the batch and alone. This fails if a loss divides by the
  batch's class weights, or if a sum is declared as a mean.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import BadParameter
from .dpsgd import DPSGD
from .ghost import GhostClipping
from .layers import LayerUse, LayerUses

RECIPE = (
    "Call private.backward(losses) with one loss per row, such as F.cross_entropy(model(x), y, "
    "reduction='none')"
)
OUTSIDE = "is used outside its own layer's forward pass, where per-example gradients are not available. "


class GradientPass(NamedTuple):
    """The gradients of a pass that is compared and not added up."""

    uses: LayerUses
    scale: float  # by which gradients were divided: the rows of the batch, for a mean


def check_complete(ghost: GhostClipping, uses: LayerUses) -> None:
    """Raise unless torch's gradient of every parameter is the sum of per-example gradients."""
    computed = ghost.sum_unclipped(uses)
    size = {id(p): 0.0 for p in ghost.parameters}  # of the summed terms, which determines the rounding error
    for i, layer_uses in uses.items():
        for p in ghost.layers[i].parameters.values():
            size[id(p)] += float(sum(_use_sizes(use).sum() for use in layer_uses))
    names = {id(p): name for name, p in ghost.model.named_parameters()}
    for p in ghost.parameters:
        expected = torch.zeros_like(p) if p.grad is None else p.grad.detach()
        error_norm = float((computed.get(id(p), torch.zeros_like(p)) - expected).norm())
        # False for NaN, which comes from rows that will be dropped
        if error_norm > 0.02 * float(expected.norm()) + 1e-4 * size[id(p)]:
            raise BadParameter(
                f"DPSGD: the parameter {names[id(p)]!r} {OUTSIDE}If the model does so, use "
                "method='functional'; move a penalty on weights from the loss to the optimizer "
                "(weight_decay)."
            )
        p.grad = None


def _use_sizes(use: LayerUse) -> Tensor:
    """Return ‖a_i‖‖g_i‖ by row, for floating-point inputs."""
    g, x = row_norms(use.g), use.inputs[0]
    return g * row_norms(x) if isinstance(x, Tensor) and x.is_floating_point() else g


def row_norms(v: Tensor) -> Tensor:
    """Return the norm of each row, in float64."""
    norms: Tensor = v.double().flatten(1).norm(dim=1)
    return norms


def check_signs(signed: LayerUses, uses: LayerUses, signs: Tensor) -> None:
    """Raise if a row's gradient depends on another row's loss.

    `signed` is the pass in which each loss was multiplied by its sign.
    """
    for i in uses.keys() & signed.keys():
        for one, other in zip(uses[i], signed[i]):
            expected = one.g * signs.to(one.g).view(-1, *[1] * (one.g.dim() - 1))
            if float((other.g - expected).norm()) > 1e-3 * float(expected.norm()):
                raise BadParameter(
                    "DPSGD: the loss of one row depends on other rows of the batch (a contrastive loss, or "
                    "statistics of the batch), so there are no per-example gradients. Use a loss per row "
                    "that depends on that row alone."
                )


def pick_row(gradients: GradientPass) -> int:
    """Choose a row to compare.

    The row of median gradient norm at the first layer reached, among those above rounding errors.
    """
    norms = row_norms(gradients.uses[next(iter(gradients.uses))][0].g).nan_to_num(0.0, 0.0, 0.0)
    order = norms.argsort()
    return int(order[(int((norms <= 1e-3 * norms.max()).sum()) + len(norms)) // 2 - 1])


def check_alone(together: GradientPass, alone: GradientPass, row: int, rows: int, tolerance: float) -> None:
    """Raise if a row's gradient differs between the batch and the row alone."""
    for i in together.uses.keys() & alone.uses.keys():
        for many, one in zip(together.uses[i], alone.uses[i]):
            mine, own = many.g[row] * together.scale, one.g[0] * alone.scale
            largest = float(row_norms(many.g).max()) * together.scale
            allowed = tolerance * (float(own.norm()) + 0.1 * largest)
            if float((mine - own).norm()) <= allowed or not torch.isfinite(mine).all():
                continue
            if alone.scale == 1 and together.scale > 1 and float((many.g[row] - own).norm()) <= allowed:
                raise BadParameter(
                    f"DPSGD: the loss is the sum over the {rows} rows of the batch, but reduction='mean' "
                    f"declares their mean. {RECIPE}; or use DPSGD(reduction='sum')."
                )
            ratio = float(mine.norm()) / max(float(own.norm()), 1e-30)
            raise BadParameter(
                f"DPSGD: a row's gradient in its batch of {rows} is {ratio:.3g} times as long as alone, so "
                "it depends on the other rows (class weights in a mean, a mean over unmasked tokens) or on "
                f"random numbers. {RECIPE}; pass class weights there, too, with weight=w."
            )


def check_one_by_one(
    ghost: GhostClipping, losses: Callable[[Sequence[int]], Tensor], rows: int, tolerance: float
) -> None:
    """Raise unless every example's gradient is separated from the others in its batch.

    `losses(which)` runs the model on these of the `rows` examples. With the factor 1 for one example and 0
    for the others, the clipped sum of the batch must be torch's gradient of that example alone.
    """
    alone = [_gradients(ghost, losses, [i]) for i in range(rows)]
    largest = max(float(torch.stack([g.norm() for g in each]).norm()) for each in alone)
    before = ghost.factors
    try:
        for i in range(rows):
            ghost.factors = partial(_only, i, rows)
            losses(range(rows)).sum().backward()
            for name, found, own in zip(_names(ghost), ghost.take(), alone[i]):
                if float((found - own).norm()) > tolerance * (float(own.norm()) + 0.1 * largest):
                    raise BadParameter(
                        f"DPSGD: the gradient of {name!r} for one example of a batch is not the gradient of "
                        "that example alone, so it cannot be clipped. A layer is called in a way that hides "
                        "whose each row is (examples are flattened, reordered or repeated before it), or "
                        f"its weight {OUTSIDE}Use method='functional', or keep the batch on the first axis."
                    )
    finally:
        ghost.factors = before
        ghost.drop()


def _only(i: int, rows: int, norms: Tensor) -> Tensor:
    """Return the factor 1 for example i, and 0 for the others."""
    if norms.shape[1] != rows:
        raise BadParameter(
            f"DPSGD: for {rows} examples, layers received {norms.shape[1]} rows, so whole examples cannot be "
            "clipped. The model flattens its batch before a layer that is trained: keep one row per example "
            "on the first axis, or use method='functional'."
        )
    factors = torch.zeros_like(norms)
    factors[:, i] = 1
    return factors


def check_rows(ghost: GhostClipping, losses: Callable[[Sequence[int]], Tensor], rows: int) -> None:
    """Raise unless trained layers receive one row for each example; for models that draw random numbers."""
    before, ghost.factors = ghost.factors, partial(_only, 0, rows)
    try:
        losses(range(rows)).sum().backward()
        ghost.take()
    finally:
        ghost.factors = before
        ghost.drop()


def _names(ghost: GhostClipping) -> list[str]:
    known = {id(p): name for name, p in ghost.model.named_parameters()}
    return [known[id(p)] for p in ghost.parameters]


def _gradients(
    ghost: GhostClipping, losses: Callable[[Sequence[int]], Tensor], which: Sequence[int]
) -> list[Tensor]:
    """Return torch's own gradients of these examples, without the hooks."""
    with ghost.paused():
        for p in ghost.parameters:
            p.requires_grad_(True)
        found = torch.autograd.grad(losses(which).sum(), ghost.parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(ghost.parameters, found)]


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode inside the block; restore every module's mode."""
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for m, mode in modes:
            m.training = mode


def probe_model(model: nn.Module, fetch: Callable[[np.ndarray], Any], s: DPSGD) -> None:
    """Check a model on two rows before training.

    Raises if examples mix, or if not all layers are observed.
    """
    batch = fetch(np.array([0, 0]))
    x = batch[0] if isinstance(batch, tuple | list) else batch
    if not isinstance(x, Tensor):
        return  # a model with its own calling convention; its passes are checked during training
    # raises for batch norm in training mode, which would pass in evaluation mode below
    GhostClipping(model, s.factors(), method=s.method).close()
    model_copy = copy.deepcopy(model)
    device = next(model.parameters()).device
    x = x.to(device)
    # the second row is artificial
    x = torch.cat([x[:1], x[1:] * 0.5 + 0.25 if x.is_floating_point() else x[1:].flip(-1)])
    with evaluation_mode(model_copy), torch.enable_grad():
        try:
            both, alone = model_copy(x), model_copy(x[:1])
        except Exception as error:
            raise BadParameter(
                f"DPSGD: the model does not accept rows of shape {tuple(x.shape[1:])}: "
                f"{(str(error) or repr(error)).splitlines()[0]}. Use a model for this data."
            ) from error
        if not isinstance(both, Tensor) or both.shape[0] != 2:
            return
        if not torch.allclose(both[:1], alone, rtol=1e-3, atol=1e-5):
            raise BadParameter(
                "DPSGD: the model's output for one row depends on the other rows in the batch, so there are "
                "no per-example gradients. Remove what mixes rows (batch statistics, attention over the "
                "batch)."
            )
        weights = torch.cos(torch.arange(both.numel(), dtype=both.dtype, device=device)).view(both.shape)
        learn = [p for p in model_copy.parameters() if p.requires_grad]
        names = [k for k, p in model_copy.named_parameters() if p.requires_grad]
        expected = torch.autograd.grad((both * weights).sum(), learn, allow_unused=True)
        ghost = GhostClipping(model_copy, lambda norms: torch.ones_like(norms), method=s.method)
        ghost.is_mean = False
        (model_copy(x) * weights).sum().backward()
        computed = dict(zip(map(id, ghost.parameters), ghost.take()))
        for name, p, g in zip(names, learn, expected):
            mine = computed.get(id(p))
            g = torch.zeros_like(p) if g is None else g
            if mine is None or not torch.allclose(mine, g, rtol=1e-2, atol=1e-4 * (1 + float(g.abs().max()))):
                raise BadParameter(
                    f"DPSGD: the parameter {name!r} {OUTSIDE}Use method='functional', which differentiates "
                    "the whole model for each example."
                )
