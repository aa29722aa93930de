"""Logistic regression trained on shares: nobody sees the rows, the labels, or the weights until somebody
opens them.

    for each batch (X, y):   [p] = σ([X][w] + [b]);   [g] = [X]ᵀ([p] − [y]) / n;   [w] ← [w] − η[g];   [b] ← [b] − η·mean([p] − [y])

Gradient descent as in Mohassel, Zhang: SecureML, IEEE S&P 2017, Section 4.1, with σ itself
(`functions.sigmoid`) where they cut it into three lines.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import BadData
from ..parameters import bad
from . import functions
from .beaver import MATMUL
from .seat import Seat
from .tensor import Shared


async def descend(seat: Seat, x: Tensor, y: Tensor, epochs: int, lr: float, batch: int) -> Tensor:
    """The weights, and the intercept as the last of them."""
    w = torch.zeros(x.shape[1] + 1, 1, dtype=torch.int64, device=x.device)
    ones = torch.full((len(x), 1), 1 << seat.fixed.fraction, dtype=torch.int64, device=x.device)
    x = torch.cat([x, ones if seat.first else torch.zeros_like(ones)], 1)
    for _ in range(epochs):
        for rows, labels in zip(x.split(batch), y.reshape(-1, 1).split(batch)):
            p = await functions.sigmoid(seat, await functions.mul(seat, rows, w, MATMUL))
            gradient = await functions.mul(seat, rows.T.contiguous(), p - labels, MATMUL)
            w = w - await functions.times(seat, gradient, lr / len(rows))
    return w[:, 0]


def train_logistic(x: Shared, y: Shared, *, epochs: int = 10, lr: float = 1.0, batch: int = 64) -> Shared:
    """Shared weights (columns, then the intercept) from shared rows and shared 0/1 labels. Rows are taken in
    the order given.

    Scale columns to about ±1 first.
    """
    for name, table in (("x", x), ("y", y)):
        if not isinstance(table, Shared):
            raise bad(
                "train_logistic",
                name,
                type(table).__name__,
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
    return x.run(lambda seat, x, y: descend(seat, x, y, epochs, lr, batch), y)
