"""Federated transfer learning on secret shares: the target learns its own last layer, and nobody sees a
label, a representation or a gradient.

The secret-shared way of Y. Liu, Y. Kang, C. Xing, T. Chen, Q. Yang: A Secure Federated Transfer Learning
Framework, IEEE Intelligent Systems 35(4), 2020, Section 4, brought down to one product. They take the
logistic loss to second order, ℓ(φ) ≈ −½ y φ + ⅛ φ² with y = ±1. With the two scores of a shared row to
agree, the loss is a square of the target's score φ_i = h_i·w (h: its representation, and a 1):

    Σ_i −½ y_i φ_i + ⅛ φ_i² + γ (φ_i − φ_i^A)²   =   (⅛ + γ) Σ_i (h_i·w − t_i)² + …,      t_i = (½ y_i + 2γ φ_i^A) / (¼ + 2γ)

so that w = (HᵀH/n + λI)⁻¹ Hᵀt/n, of which only Hᵀt needs both.

    source (t: labels, and its own model's scores)           target (H)                                 helper
      |<------------ TapeKey, Corrections ------------------------|<----------------------------------------|   one product's masks (`dealer.py`)
      |<------------ MaskedFactors ------------------------------>|    t and H, each behind a uniform mask
      |------------- SumsShare(my share of Hᵀt/n) --------------->|    which has the other

The target learns Hᵀt/n, that is width + 1 sums over the shared rows, and what follows from them: w, and
whatever else it can work out of so many sums. With as many sums as rows it could solve for t, so that more
rows must be shared (`MARGIN`). And a label is one bit where a sum tells many: with γ = 0 nothing but
labels is in t, and whoever tries all labels of 18 rows finds the only ones that give 9 sums. Where scores
do not blur them (γ, times the deviation of scores within a class, below `FAINT`), the rows must outnumber
the sums' bits. What is left is what any model tells of those it was learned from: there is no bound on it.
The source learns nothing but how many rows are shared, the helper shapes. It holds while each follows the
program and the helper works with neither (semi-honest). Fixed point with 16 bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import BadData, ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from . import functions
from .beaver import MATMUL
from .dealer import Stock, dealer, plan
from .ring import Fixed
from .seat import Seat
from .vertical import ASSUMES

MARGIN = 2  # shared rows for each sum the target gets: as many as sums, and it could solve for t
# γ times the scores' deviation below which they weigh less in t than half a label does; measured: from .1 on
# trying all labels gains little
FAINT = 0.25
BITS = 18  # that a sum tells at most: 16 behind the point, and t is about ±2


class SumsShare(
    Message,
    reveals="a share of the sums of the target's representations, weighted by labels and scores: with its "
    "own, these sums",
):
    values: Tensor


def wanted(y: Tensor, scores: Tensor, gamma: float) -> Tensor:
    """t: (rows, 1), of labels (0 and 1) and the source's own scores of these rows."""
    return ((y.double() - 0.5)[:, None] + 2 * gamma * scores.double().reshape(-1, 1)) / (0.25 + 2 * gamma)


def spread(h: Tensor) -> Tensor:
    """H: representations, and a 1."""
    return torch.cat([h.double(), torch.ones(len(h), 1, dtype=torch.float64)], 1)


def solved(h: Tensor, sums: Tensor, decay: float) -> Tensor:
    """w: (width + 1, 1); the intercept is the last, and not drawn to zero."""
    ridge = decay * torch.eye(h.shape[1], dtype=torch.float64)
    ridge[-1, -1] = 0
    return torch.linalg.solve(h.T @ h / len(h) + ridge, sums)


def blur(y: Tensor, scores: Tensor, gamma: float) -> float:
    """γ times the deviation of the scores within a class: what of t is not told by a label. Scores that are
    all alike, or one value per class, blur nothing.
    """
    s = scores.double().reshape(-1)
    rest = torch.cat([s[y == label] - s[y == label].mean() for label in torch.unique(y)])
    return gamma * float(rest.square().mean().sqrt())


def enough(rows: int, width: int, gamma: float) -> None:
    """Refuse to give the target so many sums over so few rows that they tell labels. `gamma`: γ, or `blur(…)`
    where the scores are known.
    """
    least = MARGIN if gamma >= FAINT else BITS
    if rows < least * (width + 1):
        more = (
            ""
            if gamma >= FAINT
            else f", or take gamma of at least {FAINT:g} and scores that differ within a class, so that "
            "they blur the labels"
        )
        raise BadData(
            f"{rows} rows are shared, and the target would get {width + 1} sums over them, from which it "
            "could tell labels. Share at least "
            f"{least * (width + 1)} rows, or take a representation of at most {max(rows // least - 1, 1)} "
            f"numbers{more}."
        )


async def _sums(seat: Seat, h: Tensor, t: Tensor, rows: int) -> Tensor:
    return await functions.times(seat, await functions.mul(seat, h.T.contiguous(), t, MATMUL), 1 / rows)


async def _product(me: Party, rank: int, names: tuple[str, str], helper: str, h: Tensor, t: Tensor) -> Tensor:
    me.ledger.stamp(ASSUMES)
    seat = Seat(me, rank, names, await Stock.live(me, rank, 2, helper), Fixed())
    return await _sums(seat, h, t, len(h))


async def source(
    me: Party, names: tuple[str, str], helper: str, width: int, y: Tensor, scores: Tensor, gamma: float
) -> None:
    """`y` and `scores` by row; the target's representations are `width` wide. The margin is checked with the
    numbers that t is made of.
    """
    enough(len(y), width, blur(y, scores, gamma))
    t = wanted(y, scores, gamma)
    h = torch.zeros(len(t), width + 1, dtype=torch.int64)
    await me.send(
        names[1],
        SumsShare(await _product(me, 0, names, helper, h, Fixed().encode(t, f"the scores of {me.name!r}"))),
    )


async def target(
    me: Party, names: tuple[str, str], helper: str, h: Tensor, decay: float, gamma: float
) -> Tensor:
    """`h`: representations of the shared rows. Gives w."""
    enough(len(h), h.shape[1], gamma)
    full = spread(h)
    mine = await _product(
        me,
        1,
        names,
        helper,
        Fixed().encode(full, f"the representations of {me.name!r}"),
        torch.zeros(len(h), 1, dtype=torch.int64),
    )
    other = (await me.recv(names[0], SumsShare)).values
    if other.shape != mine.shape or other.dtype != torch.int64:
        raise ProtocolError(
            f"{names[0]!r} sent {tuple(other.shape)} sums of {other.dtype}; {tuple(mine.shape)} of int64 "
            "are due."
        )
    return solved(full, Fixed().decode(mine + other).double(), decay)


async def helps(me: Party, names: tuple[str, str], rows: int, width: int) -> None:
    """The helper: one product's masks, for shapes that all know."""
    h, t = (torch.empty(rows, columns, dtype=torch.int64, device="meta") for columns in (width + 1, 1))
    await dealer(me, names, plan(lambda seat: _sums(seat, h, t, rows), fixed=Fixed()))


def ideal(h: Tensor, t: Tensor, decay: float) -> Tensor:
    """w, in one place."""
    full = spread(h)
    return solved(full, full.T @ t / len(full), decay)
