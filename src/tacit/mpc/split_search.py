"""The best split of tree nodes, on shares of the sums over their two sides.

T. Chen, C. Guestrin, "XGBoost: A Scalable Tree Boosting System", 2016, equations 5 and 7:

    w = −G/(H + λ)        score = G²/(H + λ)        gain = score of the left + of the right − of the node

Sums of gradients and Hessians have 24 fractional bits. D = H + λ is scaled by a shared power of 16 into
[1/16, 1), found by comparisons, and inverted by Newton's method from a cubic polynomial:

| number            | fractional bits | error                                    |
|-------------------|-----------------|------------------------------------------|
| w                 | 24              | 2^-21 + 2^-22 · |w|                      |
| score             | 24 − t          | 4 (1 + |w|) units + 2^-21 (score + |G|)  |

with t = log₂(rows) − 6, at least 0, so that scores of all rows fit. w is limited to ±128, by comparisons:
at a base rate of 0.1% a leaf of cases has w near −1000, and where H is small |w| may be as large as rows/λ,
which would overflow. A split needs a gain of 32 units, below which it would be rounding. Of two gains that
differ by at most 32 units the earlier split is taken, so that of equal gains the first one wins; missing
values go left only if that is better by 32 units more.

A gain where a side has too few rows, or too small a sum of Hessians, is replaced by 0 on shares; its number
may be outside the range. The largest gain is found by a tournament; ⌈log₂(candidates)⌉ comparisons.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .beaver import MUL
from .context import RingContext
from .functions import add_scalar, mul, polynomial

SUM = 24  # fractional bits of gradients, Hessians and values of leaves
LEAST_L2 = 0.01  # smallest λ: D is at least 2^17 units
LOWEST = 17
STEP = 4  # bits between two edges that D is compared with
TOP = 45  # bits of a scaled D: of 2^20 people in 1.3 · 2^20 bins, and λ
NEAR = 28  # fractional bits of the number in [1/16, 1), and of its inverse
FINE = 26  # of a scaled G, whose error is multiplied by up to 16
RATE = 22  # fractional bits of the learning rate
NOISE = 32  # units of a gain that may be rounding
ROOM = 6  # log₂(rows) that scores have room for
LARGEST = 7  # log₂ of the largest |w|: times the learning rate it is more than σ distinguishes (e^±16)


@dataclass(frozen=True)
class Candidate:
    """A split: rows in `cells` go left; with `flips` all others do, and rows without a value."""

    party: int
    column: int  # of the party
    cut: int  # cells up to this one go left; of a category, only this one does
    missing_left: bool
    cells: tuple[int, ...]  # among all parties' cells
    flips: bool


@dataclass(frozen=True)
class ColumnCells:
    """What both parties know of a column: its cells of values, and whether it is a category."""

    width: int
    is_category: bool
    has_missing: bool


def list_candidates(columns: Sequence[Sequence[ColumnCells]]) -> list[Candidate]:
    """All splits of both parties' columns, in the order in which the first of several equal ones is taken."""
    right: list[Candidate] = []
    left: list[Candidate] = []
    start = 0
    for party, own in enumerate(columns):
        for k, column in enumerate(own):
            every = range(start, start + column.width)
            for cut in range(column.width):
                if column.is_category:
                    right.append(Candidate(party, k, cut, False, (start + cut,), False))
                    continue
                if cut < column.width - 1 or column.has_missing:
                    right.append(Candidate(party, k, cut, False, tuple(every[: cut + 1]), False))
                if cut < column.width - 1 and column.has_missing:
                    left.append(Candidate(party, k, cut, True, tuple(every[cut + 1 :]), True))
            start += column.width
    return right + left


@dataclass(frozen=True)
class SplitLimits:
    """What a split must satisfy; `rows`: the most rows that sums are over."""

    rows: int
    l2: float
    min_rows: int
    min_child_weight: float  # 0: not compared
    is_bounded: bool = False  # |G| ≤ 16 H, as in a regression: no w has to be limited

    @property
    def coarse(self) -> int:
        """Bits by which scores have fewer fractional bits."""
        return max(0, math.ceil(math.log2(max(self.rows, 2))) - ROOM)

    @property
    def gain_bits(self) -> int:
        return SUM - self.coarse


@dataclass(frozen=True)
class CandidateMap:
    """Candidates as linear maps of cells: left = whole · flips + cells @ weights."""

    weights: Tensor  # cells × candidates: 1, or −1 where the candidate flips
    flips: Tensor

    @classmethod
    def of(cls, candidates: Sequence[Candidate], cells: int) -> CandidateMap:
        weights = torch.zeros(cells, len(candidates), dtype=torch.int64)
        for k, one in enumerate(candidates):
            weights[list(one.cells), k] = -1 if one.flips else 1
        return cls(weights, torch.tensor([int(one.flips) for one in candidates], dtype=torch.int64))

    def left_sums(self, sums: Tensor, total: Tensor) -> Tensor:
        """channels × nodes × cells, channels × nodes → channels × nodes × candidates."""
        at = sums.device
        return sums @ self.weights.to(at) + total.unsqueeze(-1) * self.flips.to(at)


async def weight(ctx: RingContext, limits: SplitLimits, g: Tensor, h: Tensor) -> Tensor:
    """[G / (H + λ)] within ±2^LARGEST, with SUM fractional bits; its sign is that of G."""
    d = h + ctx.public(torch.full(h.shape, round(limits.l2 * 2.0**SUM)), h)
    highest = SUM + math.ceil(math.log2(max(limits.rows, 2) + limits.l2))
    edges = list(range(LOWEST, highest, STEP))
    compared = [d - ctx.public(torch.full(d.shape, 1 << e), d) for e in edges[1:]]
    if not limits.is_bounded:
        part = await ctx.truncate(g, LARGEST)
        compared += [part - d, -part - d]
    up = ctx.public(torch.full(d.shape, 1 << (TOP - STEP - edges[0])), d)
    if compared:
        result = await ctx.sign(torch.stack(compared))
        for bit, before, after in zip(result.bit, edges, edges[1:]):
            up = up + bit * ((1 << (TOP - STEP - after)) - (1 << (TOP - STEP - before)))
        if not limits.is_bounded:  # 0 but where |G| > 2^LARGEST · D
            above, below = result.positive[-2:]
            g = g - (above - below) * (1 << LARGEST)
    scaled = await ctx.product(up.unsqueeze(0), torch.stack([d, g]), MUL)
    near = await ctx.truncate(scaled[0], TOP - NEAR)
    top = await ctx.truncate(scaled[1], TOP - FINE)
    found: Tensor = await mul(ctx, top, await _invert(ctx, near), bits=NEAR + FINE - SUM)
    return found


async def _invert(ctx: RingContext, x: Tensor) -> Tensor:
    """[1/x], 1/16 ≤ x < 1, by Newton's method y ← y(2 − xy): .26 → .065 → .0043 → 2^-15 → 2^-31."""
    y: Tensor = await polynomial(ctx, x, _start(), NEAR)
    for _ in range(4):
        y = await mul(ctx, y, add_scalar(ctx, -(await mul(ctx, x, y, bits=NEAR)), 2.0, NEAR), bits=NEAR)
    return y


@functools.cache
def _start() -> tuple[float, ...]:
    """The cubic p with the smallest |1 − x·p(x)| on [1/16, 1]: 1 − x·p(x) is a Chebyshev polynomial T₄."""
    t = np.polynomial.Chebyshev.basis(4, domain=[1 / 16, 1.0])
    residual = (t / t(0.0)).convert(kind=np.polynomial.Polynomial).coef
    return tuple(float(-c) for c in residual[1:])


async def score(ctx: RingContext, limits: SplitLimits, g: Tensor, h: Tensor) -> Tensor:
    """[G² / (H + λ)], or |G| · 2^LARGEST if that is smaller, with `limits.gain_bits` fractional bits."""
    w = await weight(ctx, limits, g, h)
    coarse = await ctx.truncate(g, limits.coarse) if limits.coarse else g
    found: Tensor = await mul(ctx, coarse, w, bits=SUM)
    return found


async def search(
    ctx: RingContext,
    limits: SplitLimits,
    candidates: CandidateMap,
    sums: Tensor,
    total: Tensor,
    floor: Tensor,
) -> tuple[Tensor, Tensor]:
    """([place], [gain above the floor]) of the best split of each node; place 0: none, without a gain.

    `sums`: channels × nodes × cells, G, H and rows; `total`: channels × nodes; `floor`: a shared number with
    `limits.gain_bits` fractional bits. Place k is candidate k − 1.
    """
    left = candidates.left_sums(sums, total)
    sides = torch.stack([left, total.unsqueeze(-1) - left], 1)  # channels × 2 × nodes × candidates
    count, nodes, each = 2 * left[0].numel(), *left.shape[1:]
    g, h = (torch.cat([sides[k].flatten(), total[k].flatten()]) for k in (0, 1))
    scores = await score(ctx, limits, g, h)
    of_sides = scores[:count].reshape(2, nodes, each)
    unit = ctx.public(candidates.flips * NOISE, left)
    value = of_sides[0] + of_sides[1] - scores[count:].unsqueeze(-1) - floor - unit
    value = await ctx.product(await _allowed(ctx, limits, sides), value, MUL)
    none = ctx.public(torch.full(value[:, :1].shape, -NOISE), value)  # less than any split above the floor
    return await _largest(ctx, torch.cat([none, value], 1))


async def _allowed(ctx: RingContext, limits: SplitLimits, sides: Tensor) -> Tensor:
    """[both sides have enough rows, and Hessians]."""
    least = [sides[-1] - ctx.public(torch.full(sides[-1].shape, limits.min_rows), sides)]
    if limits.min_child_weight:
        fewest = round(limits.min_child_weight * 2.0**SUM)
        least.append(sides[1] - ctx.public(torch.full(sides[1].shape, fewest), sides))
    bits: Tensor = (await ctx.sign(torch.stack(least))).bit.flatten(0, 1)  # 2 or 4 × nodes × candidates
    while len(bits) > 1:
        half = len(bits) // 2
        bits = await ctx.product(bits[:half], bits[half:], MUL)
    return bits[0]


async def _largest(ctx: RingContext, value: Tensor) -> tuple[Tensor, Tensor]:
    """([place], [largest value]) along the last dimension; of values within NOISE the first wins."""
    place = ctx.public(torch.arange(value.shape[-1], device=value.device), value).expand(value.shape)
    while value.shape[-1] > 1:
        pairs = value.shape[-1] // 2
        (a, b), (i, j) = ((t[..., 0 : 2 * pairs : 2], t[..., 1 : 2 * pairs : 2]) for t in (value, place))
        result = await ctx.sign(a - b + ctx.public(torch.full(a.shape, NOISE), a))
        best = j + await ctx.product(result.bit, i - j, MUL)
        value = torch.cat([b + result.positive - NOISE * result.bit, value[..., 2 * pairs :]], -1)
        place = torch.cat([best, place[..., 2 * pairs :]], -1)
    return place[..., 0], value[..., 0]
