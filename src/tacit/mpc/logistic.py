"""Logistic regression trained on shares: rows, labels and weights stay hidden until a party opens them.

    for each batch (X, y):   [p] = σ([X][w] + [b]);   [g] = [X]ᵀ([p] − [y]) / n
                             [w] ← [w] − η[g];        [b] ← [b] − η·mean([p] − [y])

Gradient descent as in Mohassel, Zhang: SecureML, IEEE S&P 2017, Section 4.1, with σ itself
(`functions.sigmoid`) instead of their piecewise linear approximation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import BadData
from ..parameters import bad
from . import functions
from .beaver import MATMUL
from .context import RingContext
from .tensor import SharedTensor


async def descend(ctx: RingContext, x: Tensor, y: Tensor, epochs: int, lr: float, batch: int) -> Tensor:
    """The weights, with the intercept as the last one."""
    w = torch.zeros(x.shape[1] + 1, 1, dtype=torch.int64, device=x.device)
    ones = torch.full((len(x), 1), 1 << ctx.fixed.fraction, dtype=torch.int64, device=x.device)
    x = torch.cat([x, ones if ctx.first else torch.zeros_like(ones)], 1)
    for _ in range(epochs):
        for rows, labels in zip(x.split(batch), y.reshape(-1, 1).split(batch)):
            p = await functions.sigmoid(ctx, await functions.mul(ctx, rows, w, MATMUL))
            gradient = await functions.mul(ctx, rows.T.contiguous(), p - labels, MATMUL)
            w = w - await functions.mul_scalar(ctx, gradient, lr / len(rows))
    return w[:, 0]


def train_logistic(
    x: SharedTensor, y: SharedTensor, *, epochs: int = 10, lr: float = 1.0, batch: int = 64
) -> SharedTensor:
    """Train on shared rows and shared 0/1 labels; return shared weights (columns, then the intercept).

    Batches follow the order of the rows. Scale columns to about ±1 first.
    """
    for name, tensor in (("x", x), ("y", y)):
        if not isinstance(tensor, SharedTensor):
            raise bad(
                "train_logistic",
                name,
                type(tensor).__name__,
                "a tensor shared with tacit.mpc.share, without checked=True",
            )
    for name, value in (("epochs", epochs), ("batch", batch)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise bad("train_logistic", name, value, "a whole number of at least 1")
    if not 0 < lr <= 64:
        raise bad("train_logistic", "lr", lr, "a number above 0 and at most 64")
    if len(x.shape) != 2 or tuple(y.shape) != (x.shape[0],):
        raise BadData(
            f"train_logistic: x has shape {list(x.shape)} and y {list(y.shape)}; they must be (rows, "
            "columns) and (rows,)."
        )
    return x.run(lambda ctx, x, y: descend(ctx, x, y, epochs, lr, batch), y)
