"""Whether a row's gradient is its own: what a training loop does, compared with one example at a time.

Sensitivity is one clipped gradient only if no row's loss depends on another row, and if all of a
parameter's gradient passes through its layer. Neither can be read off a loss, so both are checked on the
first batches:

- `check_complete`: the sum of the per-example gradients is torch's own gradient of every parameter. It is not where a weight is used outside its layer
  (`h @ self.embed.weight.T`) or by the loss itself (a penalty).
- `check_signs`: with a random sign before each row's loss, each row's gradient changes by its own sign and nothing else.
- `check_alone`: a row's gradient is the same in the batch and alone. It is not where a loss divides by the batch's class weights, or is a sum taken for a mean.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import BadParameter
from .dpsgd import DPSGD
from .ghost import Ghost
from .layers import Piece, Pieces

RECIPE = (
    "Call private.backward(losses) with one loss per row, such as F.cross_entropy(model(x), y, "
    "reduction='none')"
)
OUTSIDE = "is used outside its own layer's forward pass, where its per-example gradients are not seen. "


class Look(NamedTuple):
    """A pass over a batch that is compared and not added up."""

    pieces: Pieces
    scale: float  # by which a row's gradient was divided: the rows of the batch, for a mean


def check_complete(ghost: Ghost, pieces: Pieces) -> None:
    """Raise if torch's own gradient of a parameter is not the sum of the per-example gradients."""
    got = ghost.sum_unclipped(pieces)
    size = {
        id(p): 0.0 for p in ghost.parameters
    }  # of the terms that are added up, which is what rounding goes by
    for i, uses in pieces.items():
        for p in ghost.layers[i].mine.values():
            size[id(p)] += float(sum(_sizes(use).sum() for use in uses))
    names = {id(p): name for name, p in ghost.model.named_parameters()}
    for p in ghost.parameters:
        want = torch.zeros_like(p) if p.grad is None else p.grad.detach()
        off = float((got.get(id(p), torch.zeros_like(p)) - want).norm())
        if (
            off > 0.02 * float(want.norm()) + 1e-4 * size[id(p)]
        ):  # NaN, of rows that will be dropped, is no difference
            raise BadParameter(
                f"DPSGD: the parameter {names[id(p)]!r} {OUTSIDE}Use method='functional' if the model does "
                "so; a penalty on weights in the loss "
                "belongs in the optimizer (weight_decay)."
            )
        p.grad = None


def _sizes(use: Piece) -> Tensor:
    """‖a_i‖‖g_i‖, by row; of inputs that are numbers."""
    g = use.g.double().flatten(1).norm(dim=1)
    x = use.inputs[0]
    return g * x.double().flatten(1).norm(dim=1) if isinstance(x, Tensor) and x.is_floating_point() else g


def check_signs(signed: Pieces, pieces: Pieces, signs: Tensor) -> None:
    """Raise if a row's gradient depends on another row's loss. `signed` is the pass in which each loss was
    multiplied by its sign.
    """
    for i in pieces.keys() & signed.keys():
        for one, other in zip(pieces[i], signed[i]):
            want = one.g * signs.to(one.g).view(-1, *[1] * (one.g.dim() - 1))
            if float((other.g - want).norm()) > 1e-3 * float(want.norm()):
                raise BadParameter(
                    "DPSGD: the loss of one row depends on other rows of the batch (a contrastive loss, or "
                    "statistics of the batch), so that no "
                    "gradient belongs to one example. Give a loss per row that looks at that row alone."
                )


def pick(look: Look) -> int:
    """A row to compare: of those whose gradient is more than rounding, the one of median length, at the layer
    that was reached first.
    """
    norms = (
        look.pieces[next(iter(look.pieces))][0].g.double().flatten(1).norm(dim=1).nan_to_num(0.0, 0.0, 0.0)
    )
    order = norms.argsort()
    return int(order[(int((norms <= 1e-3 * norms.max()).sum()) + len(norms)) // 2 - 1])


def check_alone(together: Look, alone: Look, row: int, rows: int, tolerance: float) -> None:
    """Raise if a row's gradient is another one alone than in its batch."""
    for i in together.pieces.keys() & alone.pieces.keys():
        for many, one in zip(together.pieces[i], alone.pieces[i]):
            mine, own = many.g[row] * together.scale, one.g[0] * alone.scale
            largest = float(many.g.double().flatten(1).norm(dim=1).max()) * together.scale
            allowed = tolerance * (float(own.norm()) + 0.1 * largest)
            if float((mine - own).norm()) <= allowed or not torch.isfinite(mine).all():
                continue
            if alone.scale == 1 and together.scale > 1 and float((many.g[row] - own).norm()) <= allowed:
                raise BadParameter(
                    f"DPSGD: the loss is the sum over the {rows} rows of the batch, and reduction='mean' "
                    f"says it is their mean. {RECIPE}; "
                    "or say DPSGD(reduction='sum')."
                )
            ratio = float(mine.norm()) / max(float(own.norm()), 1e-30)
            raise BadParameter(
                f"DPSGD: a row's gradient in its batch of {rows} is {ratio:.3g} times as long as alone, so "
                "it depends on the other rows (class "
                f"weights in a mean, a mean over unmasked tokens) or on random numbers. {RECIPE}; class "
                "weights go there too, with weight=w."
            )


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """In evaluation mode, so that nothing is dropped out or counted; every module's own mode comes back."""
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for m, mode in modes:
            m.training = mode


def probe(model: nn.Module, fetch: Callable[[np.ndarray], Any], s: DPSGD) -> None:
    """Two rows, looked at in two ways: a model whose examples mix, or whose layers are not all seen, is
    refused now and not trained wrongly.
    """
    batch = fetch(np.array([0, 0]))
    x = batch[0] if isinstance(batch, tuple | list) else batch
    if not isinstance(x, Tensor):
        return  # a model of somebody's own calling; its passes are checked as they come
    Ghost(
        model, s.factors(), method=s.method
    ).close()  # refuses batch norm in training mode, which at rest would pass for harmless
    twin = copy.deepcopy(model)
    device = next(model.parameters()).device
    x = x.to(device)
    x = torch.cat(
        [x[:1], x[1:] * 0.5 + 0.25 if x.is_floating_point() else x[1:].flip(-1)]
    )  # the second row is nobody's
    with at_rest(twin), torch.enable_grad():
        try:
            both, alone = twin(x), twin(x[:1])
        except Exception as error:
            raise BadParameter(
                f"DPSGD: the model cannot take rows of shape {tuple(x.shape[1:])}: "
                f"{(str(error) or repr(error)).splitlines()[0]}. Give a "
                f"model made for "
                "this data."
            ) from error
        if not isinstance(both, Tensor) or both.shape[0] != 2:
            return
        if not torch.allclose(both[:1], alone, rtol=1e-3, atol=1e-5):
            raise BadParameter(
                "DPSGD: what the model gives for a row depends on the rows beside it, so no gradient "
                "belongs to one example. Take out "
                "what mixes them "
                "(batch statistics, attention over the batch)."
            )
        weights = torch.cos(torch.arange(both.numel(), dtype=both.dtype, device=device)).view(both.shape)
        learn = [p for p in twin.parameters() if p.requires_grad]
        names = [k for k, p in twin.named_parameters() if p.requires_grad]
        want = torch.autograd.grad((both * weights).sum(), learn, allow_unused=True)
        ghost = Ghost(twin, lambda norms: torch.ones_like(norms), method=s.method)
        ghost.mean = False
        (twin(x) * weights).sum().backward()
        got = dict(zip(map(id, ghost.parameters), ghost.take()))
        for name, p, g in zip(names, learn, want):
            mine = got.get(id(p))
            g = torch.zeros_like(p) if g is None else g
            if mine is None or not torch.allclose(mine, g, rtol=1e-2, atol=1e-4 * (1 + float(g.abs().max()))):
                raise BadParameter(
                    f"DPSGD: the parameter {name!r} is used outside its own layer's forward pass, where its "
                    "per-example gradients are not seen. "
                    "Use method='functional', which differentiates the whole model for each example."
                )
