"""Federated transfer learning on secret shares: the target learns its own last layer, and no party sees a
label, a representation or a gradient of the other.

The secret-shared method of Y. Liu, Y. Kang, C. Xing, T. Chen, Q. Yang: A Secure Federated Transfer Learning
Framework, IEEE Intelligent Systems 35(4), 2020, Section 4, reduced to one product. They approximate the
logistic loss to second order, ℓ(φ) ≈ −½ y φ + ⅛ φ² with y = ±1. With a penalty on the difference of the two
scores of a shared row, the loss is quadratic in the target's score φ_i = h_i·w (h: its representation, and
a 1):

    Σ_i −½ y_i φ_i + ⅛ φ_i² + γ (φ_i − φ_i^A)²   =   (⅛ + γ) Σ_i (h_i·w − t_i)² + …
    t_i = (½ y_i + 2γ φ_i^A) / (¼ + 2γ)

so that w = (HᵀH/n + λI)⁻¹ Hᵀt/n, of which only Hᵀt needs both parties.

    source (t: labels, and its own model's scores)           target (H)                      helper
      |<------------ TapeKey, Corrections ------------------------|<------------------------|   `dealer.py`
      |<------------ MaskedFactors ------------------------------>|    t and H under uniform masks
      |------------- SumsShare(my share of Hᵀt/n) --------------->|    which has the other share

The target learns Hᵀt/n, that is width + 1 sums over the shared rows, and what follows from them: w, and
whatever else so many sums determine. With as many sums as rows it could solve for t, so more rows must be
shared (`MARGIN`). A label is one bit, and a sum has many: with γ = 0, t contains nothing but labels, and an
exhaustive search over the labels of 18 rows finds the only ones that match 9 sums. If scores do not blur the
labels (γ, times the standard deviation of scores within a class, is below `FAINT`), there must be more rows
than the sums have bits. What remains is what any model reveals of its training data, without a bound. The
source learns only how many rows are shared, the helper only shapes. This holds if all parties are semi-honest
and the helper colludes with neither. Fixed point with 16 bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import BadData, ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from . import functions
from .beaver import MATMUL
from .context import RingContext, Share
from .dealer import Stock, dealer, plan
from .regression import ASSUMES
from .ring import FixedPoint

MARGIN = 2  # shared rows per sum that the target learns; with 1 it could solve for t
# γ times the standard deviation of the scores below which they weigh less in t than half a label; measured:
# from .1 on an exhaustive search over the labels gains little
FAINT = 0.25
BITS = 18  # of information in a sum at most: 16 fractional bits, and t is about ±2


class SumsShare(
    Message,
    reveals="a share of the sums of the target's representations, weighted by labels and scores: with its "
    "own, these sums",
):
    values: Tensor


def compute_targets(y: Tensor, scores: Tensor, gamma: float) -> Tensor:
    """t: (rows, 1), from labels (0 and 1) and the source's own scores of these rows."""
    return ((y.double() - 0.5)[:, None] + 2 * gamma * scores.double().reshape(-1, 1)) / (0.25 + 2 * gamma)


def add_intercept(h: Tensor) -> Tensor:
    """H: representations, and a column of ones."""
    return torch.cat([h.double(), torch.ones(len(h), 1, dtype=torch.float64)], 1)


def solve(h: Tensor, sums: Tensor, decay: float) -> Tensor:
    """w: (width + 1, 1); the last one is the intercept, which is not regularized."""
    ridge = decay * torch.eye(h.shape[1], dtype=torch.float64)
    ridge[-1, -1] = 0
    w: Tensor = torch.linalg.solve(h.T @ h / len(h) + ridge, sums)
    return w


def label_blur(y: Tensor, scores: Tensor, gamma: float) -> float:
    """γ times the standard deviation of the scores within a class: the part of t that is not the label.

    It is 0 for constant scores, and for one value per class.
    """
    s = scores.double().reshape(-1)
    rest = torch.cat([s[y == label] - s[y == label].mean() for label in torch.unique(y)])
    return gamma * float(rest.square().mean().sqrt())


def check_margin(rows: int, width: int, gamma: float) -> None:
    """Refuse so many sums over so few rows that they reveal labels.

    `gamma`: γ, or `label_blur(…)` where the scores are known.
    """
    least = MARGIN if gamma >= FAINT else BITS
    if rows < least * (width + 1):
        more = (
            ""
            if gamma >= FAINT
            else f", or use gamma of at least {FAINT:g} and scores that differ within a class, so that "
            "they blur the labels"
        )
        raise BadData(
            f"{rows} rows are shared, and the target would learn {width + 1} sums over them, which could "
            "reveal labels. Share at least "
            f"{least * (width + 1)} rows, or use a representation of at most {max(rows // least - 1, 1)} "
            f"numbers{more}."
        )


async def _sums(ctx: RingContext, h: Tensor, t: Tensor, rows: int) -> Share:
    return await functions.mul_scalar(ctx, await functions.mul(ctx, h.T.contiguous(), t, MATMUL), 1 / rows)


async def _product(me: Party, rank: int, names: tuple[str, str], helper: str, h: Tensor, t: Tensor) -> Share:
    me.ledger.stamp(ASSUMES)
    ctx = RingContext(me, rank, names, await Stock.connect(me, rank, 2, helper), FixedPoint())
    return await _sums(ctx, h, t, len(h))


async def source(
    me: Party, names: tuple[str, str], helper: str, width: int, y: Tensor, scores: Tensor, gamma: float
) -> None:
    """The source's program; `y` and `scores` by row, `width` of the target's representations."""
    check_margin(len(y), width, label_blur(y, scores, gamma))
    t = compute_targets(y, scores, gamma)
    h = torch.zeros(len(t), width + 1, dtype=torch.int64)
    await me.send(
        names[1],
        SumsShare(
            await _product(me, 0, names, helper, h, FixedPoint().encode(t, f"the scores of {me.name!r}"))
        ),
    )


async def target(
    me: Party, names: tuple[str, str], helper: str, h: Tensor, decay: float, gamma: float
) -> Tensor:
    """The target's program; `h`: representations of the shared rows. Returns w."""
    check_margin(len(h), h.shape[1], gamma)
    full = add_intercept(h)
    mine = await _product(
        me,
        1,
        names,
        helper,
        FixedPoint().encode(full, f"the representations of {me.name!r}"),
        torch.zeros(len(h), 1, dtype=torch.int64),
    )
    other = (await me.recv(names[0], SumsShare)).values
    if other.shape != mine.shape or other.dtype != torch.int64:
        raise ProtocolError(
            f"{names[0]!r} sent {tuple(other.shape)} sums of {other.dtype}; expected {tuple(mine.shape)} of "
            "int64."
        )
    return solve(full, FixedPoint().decode(mine + other).double(), decay)


async def helper(me: Party, names: tuple[str, str], rows: int, width: int) -> None:
    """The helper's program: deal the masks of one product, for public shapes."""
    h, t = (torch.empty(rows, columns, dtype=torch.int64, device="meta") for columns in (width + 1, 1))
    await dealer(me, names, plan(lambda ctx: _sums(ctx, h, t, rows), fixed=FixedPoint()))


def ideal(h: Tensor, t: Tensor, decay: float) -> Tensor:
    """w, computed in one place."""
    full = add_intercept(h)
    return solve(full, full.T @ t / len(full), decay)
