"""Linear and logistic regression over columns that lie with different parties, on secret shares: nobody sees a score, a residual or another's weight.

    holder i of n (columns X_i; one has the label y)                                helper
      |--- Width(columns) ----------------------------------------------------------->|   and to the other holders
      |<-- TapeKey, Corrections -------------------------------------------------------|   correlated randomness (`dealer.py`)
      |<-- MaskedFactors, MaskedProducts, MaskedValues, MaskedBits, MaskedSigns -->|       between the holders: every word of it uniform
      |--- WeightShare(my share of w_j) --->| holder j                                     at the end, to each its own weights
      |--- TestScores(X_i w_i) ------------>| holder of the label                          held-out rows, if any

The columns need no sharing out: (0 … X_i … 0) is holder i's share of the whole table, since nothing but masked values is ever sent. A holder learns how many
columns others have, and its own weights; the one with the label also scores of held-out rows. The helper learns shapes. It holds while each follows the
program and the helper works with nobody else (semi-honest). Fixed point with 16 bits: tests hold weights to those of pooled descent (`ideal`) within 1e-3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from . import functions
from .beaver import MATMUL
from .dealer import Stock, dealer, plan
from .logistic import descend
from .ring import Fixed
from .seat import Seat

ASSUMES = ("SEMI-HONEST: the secrets hold if every party follows its program and the helper works with no other party; a party that deviates can spoil the "
           "result unnoticed.")


class Width(Message, reveals="how many columns the sender has"):
    columns: int


class WeightShare(Message, reveals="a share of the receiver's own weights: with the others', these weights"):
    values: list[Tensor]


class TestScores(Message, reveals="the sender's linear score of each held-out row: one number that all its columns make together"):
    values: Tensor


async def fit(seat: Seat, x: Tensor, y: Tensor, family: str, epochs: int, lr: float, batch: int) -> Tensor:
    """Shared weights, the intercept last."""
    if family == "logistic":
        return await descend(seat, x, y, epochs, lr, batch)
    w = torch.zeros(x.shape[1] + 1, 1, dtype=torch.int64, device=x.device)
    ones = torch.full((len(x), 1), 1 << seat.fixed.fraction, dtype=torch.int64, device=x.device)
    x = torch.cat([x, ones if seat.first else torch.zeros_like(ones)], 1)
    for _ in range(epochs):
        for rows, labels in zip(x.split(batch), y.reshape(-1, 1).split(batch)):
            left = await functions.mul(seat, rows, w, MATMUL) - labels
            w = w - await functions.times(seat, await functions.mul(seat, rows.T.contiguous(), left, MATMUL), lr / len(rows))
    return w[:, 0]


async def holder(me: Party, names: Sequence[str], label_at: str, helper: str, x: Tensor, y: Tensor | None, rows: int, *, family: str = "logistic",
                 epochs: int = 20, lr: float = 0.5, batch: int = 64, test_x: Tensor | None = None) -> dict[str, Any]:
    """{"weights": its own, with the intercept last at the holder of the label; "scores" of held-out rows, there}."""
    me.ledger.stamp(ASSUMES)
    rank, fixed = list(names).index(me.name), Fixed()
    others = [name for name in names if name != me.name]
    await me.send([*others, helper], Width(x.shape[1]))
    widths = {me.name: x.shape[1], **{name: m.columns for name, m in (await me.gather(others, Width)).items()}}
    if len(x) != rows or (y is not None and len(y) != rows):
        raise ProtocolError(f"{me.name!r} has {len(x)} rows; the job says {rows}. Align the tables first.")
    start, mine = {}, 0
    for name in names:
        start[name], mine = mine, mine + widths[name]
    table = torch.zeros(rows, mine, dtype=torch.int64)
    table[:, start[me.name]:start[me.name] + widths[me.name]] = fixed.encode(x, f"the columns of {me.name!r}")
    label = torch.zeros(rows, dtype=torch.int64) if y is None else fixed.encode(y.double(), "the label")
    seat = Seat(me, rank, tuple(names), await Stock.live(me, rank, len(names), helper), fixed)
    w = await fit(seat, table, label, family, epochs, lr, batch)
    blocks = {name: w[start[name]:start[name] + widths[name]] for name in names}
    blocks[label_at] = torch.cat([blocks[label_at], w[-1:]])
    for name in others:
        await me.send(name, WeightShare([blocks[name].contiguous()]))
    total = blocks[me.name].clone()
    for name, came in (await me.gather(others, WeightShare)).items():
        if len(came.values) != 1 or came.values[0].shape != total.shape or came.values[0].dtype != torch.int64:
            raise ProtocolError(f"{name!r} sent a share that does not fit the weights of {me.name!r}.")
        total += came.values[0]
    weights = fixed.decode(total).double()
    scores = None
    if test_x is not None:
        own = test_x.double() @ weights[:test_x.shape[1]]
        if me.name != label_at:
            await me.send(label_at, TestScores(own))
        else:
            scores = own + weights[-1]
            for name, said in (await me.gather(others, TestScores)).items():
                if said.values.shape != own.shape or said.values.dtype != torch.float64:
                    raise ProtocolError(f"{name!r} sent {tuple(said.values.shape)} scores; {tuple(own.shape)} are due.")
                scores = scores + said.values
    return {"weights": weights, "scores": scores}


async def helps(me: Party, names: Sequence[str], rows: int, *, family: str = "logistic", epochs: int = 20, lr: float = 0.5, batch: int = 64) -> None:
    """The helper: deals what the holders' program needs, which it knows from the shapes."""
    columns = sum(m.columns for m in (await me.gather(names, Width)).values())
    x, y = (torch.empty(shape, dtype=torch.int64, device="meta") for shape in ((rows, columns), (rows,)))
    requests = plan(lambda seat: fit(seat, x, y, family, epochs, lr, batch), fixed=Fixed())
    await dealer(me, tuple(names), requests)


def ideal(names: Sequence[str], label_at: str, x: Mapping[str, Tensor], y: Tensor, *, family: str = "logistic", epochs: int = 20, lr: float = 0.5,
          batch: int = 64) -> dict[str, Tensor]:
    """Pooled descent over the rows in their order: each party's weights, the intercept last at the holder of the label."""
    pooled = torch.cat([*[x[name].double() for name in names], torch.ones(len(y), 1, dtype=torch.float64)], 1)
    w = torch.zeros(pooled.shape[1], dtype=torch.float64)
    for _ in range(epochs):
        for rows, label in zip(pooled.split(batch), y.double().split(batch)):
            score = rows @ w
            w = w - lr * rows.T @ ((torch.sigmoid(score) if family == "logistic" else score) - label) / len(rows)
    parts = w[:-1].split([x[name].shape[1] for name in names])
    return {name: torch.cat([part, w[-1:]]) if name == label_at else part for name, part in zip(names, parts)}
