"""Matrix products, batches of them and convolutions, as lists of products of two matrices: those of a batch,
or of the groups of a convolution (patches times filters). Each party has one factor, and knows both shapes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .beaver import Bilinear
from .ring import patches


class Sizes(NamedTuple):
    """`parts` products of [rows, inner] × [inner, columns]."""

    parts: int
    rows: int
    inner: int
    columns: int


def measure(op: Bilinear, xs: tuple[int, ...], ys: tuple[int, ...]) -> Sizes:
    """The sizes of the products that x ∘ y consists of."""
    if op.name == "conv2d":
        shape, groups = op.shape(xs, ys), op.options[3] if op.options else 1
        return Sizes(groups, math.prod(shape) // shape[1], math.prod(ys[1:]), ys[0] // groups)
    columns = ys[-1] if len(ys) > 1 else 1
    if len(ys) > 2:
        rows = xs[-2] if len(xs) > 1 else 1
        return Sizes(math.prod(torch.broadcast_shapes(xs[:-2], ys[:-2])), rows, xs[-1], columns)
    return Sizes(1, math.prod(xs[:-1]), xs[-1], columns)


def split_left(op: Bilinear, x: Tensor, ys: tuple[int, ...]) -> Tensor:
    """Parts × rows × inner."""
    if op.name == "conv2d":
        return patches(x, ys, *(op.options or ()))[0].transpose(-1, -2)
    if len(ys) < 3:
        return x.reshape(1, -1, x.shape[-1])
    x = x if x.dim() > 1 else x[None]
    lead = torch.broadcast_shapes(x.shape[:-2], ys[:-2])
    return x.expand(*lead, *x.shape[-2:]).reshape(-1, *x.shape[-2:])


def split_right(op: Bilinear, y: Tensor, xs: tuple[int, ...]) -> Tensor:
    """Parts × inner × columns."""
    if op.name == "conv2d":
        groups = op.options[3] if op.options else 1
        return y.reshape(groups, len(y) // groups, -1).transpose(-1, -2)
    if y.dim() < 3:
        return y.reshape(1, len(y), -1)
    lead = torch.broadcast_shapes(xs[:-2], y.shape[:-2])
    return y.expand(*lead, *y.shape[-2:]).reshape(-1, *y.shape[-2:])


def join(op: Bilinear, parts: list[Tensor], xs: tuple[int, ...], ys: tuple[int, ...]) -> Tensor:
    """x ∘ y from its products [rows, columns]."""
    shape = op.shape(xs, ys)
    if op.name == "conv2d":
        n, out, rows, columns = shape
        filters_first = torch.cat([part.T for part in parts])
        return filters_first.reshape(out, n, rows, columns).transpose(0, 1).contiguous()
    return torch.stack(parts).reshape(shape)
