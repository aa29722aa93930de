"""Cox's partial likelihood on secret shares, where only the label holder knows the order of the times.

The rows are shared and sorted by time, deaths first at equal times (`shuffle.py`), so that a sum over the
rows at risk is a cumulative sum from the end, which is local. What the label holder knows about the order
enters as its own vectors (`encode_times`). With e = exp(z), S = Σ_{at risk} (e, e·x):

    Breslow    every time t with d deaths has d times the weight 1/S0(t)
    Efron      death number l = 0 … d − 1 of time t has S − (l/d)·D, where D = Σ_{deaths at t} (e, e·x)

    φ = S − (l/d)·D of each death;  m = φ_x/φ_0, the mean of x at risk
    residual   e · Σ_{deaths until now} 1/φ_0 − event        (of a death: less its own time's Σ (l/d)/φ_0)
    Hessian    Σ_rows (residual + event) x xᵀ − Σ_deaths m mᵀ

With weights w of rows, e = w·exp(z), and death number l of a time has the mean weight of its d deaths (ω):
1/φ is ω/φ, and the event of a row is w. The label holder's offset has log w.

Rows of one time need a number of its first or last death. That is a choice between two neighbors at distance
1, 2, 4, …, by bits that the label holder knows: as many products as the most deaths at one time have bits.

D. Cox, Regression Models and Life-Tables, 1972; N. Breslow, 1974; B. Efron, 1977.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import precise
from .beaver import MUL, MaskedFactor
from .context import RingContext
from .precise import MEAN, OVER

SHORT = 18  # fractional bits of weighted columns
WEIGHT = 20  # of the weights of rows
COLUMN = 20  # of the columns, of means over the rows at risk, and of l/d
BRESLOW = -1  # instead of the number of doublings


class Hazards(NamedTuple):
    residual: Tensor  # 1 × n, MEAN bits
    weighted: Tensor  # [w x], n × d, SHORT bits
    counted: Tensor  # [deaths · mean of x at risk], n × d, SHORT bits
    means: Tensor  # [mean of x at risk], n × d, COLUMN bits


def count_rows(ties: int) -> int:
    """How many vectors the label holder contributes."""
    return 2 if ties == BRESLOW else 3 + 2 * ties


class TimeVectors(NamedTuple):
    values: Tensor  # the label holder's vectors in the order of time
    order: Tensor
    ties: int  # the number of doublings
    terms: Tensor  # ω of each row: of a death (Efron), or of all deaths of a time at its first row (Breslow)


def encode_times(time: Tensor, event: Tensor, efron: bool, weights: Tensor) -> TimeVectors:
    """Return what the label holder contributes.

    Breslow: event with MEAN bits; deaths at each time, at its first row. Efron: event with MEAN bits; event;
    l/d with COLUMN bits; the bits of l; the bits of d − 1 − l.
    """
    order = torch.from_numpy(np.lexsort((-event.numpy(), time.numpy())))
    time, event, weights = time[order], event[order], weights[order]
    starts = torch.cat([torch.ones(1, dtype=torch.bool), time[1:] != time[:-1]])
    group = starts.long().cumsum(0) - 1
    deaths = torch.zeros(int(group[-1]) + 1, dtype=torch.float64).index_add_(0, group, event)
    heavy = torch.zeros_like(deaths).index_add_(0, group, event * weights)
    counted = torch.round(event * weights * 2.0**MEAN).long()
    if not efron:
        terms = torch.where(starts, heavy[group], 0.0)
        values = torch.stack([counted, torch.where(starts, deaths[group], 0.0).long()])
        return TimeVectors(values, order, BRESLOW, terms)
    first = torch.arange(len(time))[starts][group]
    number = torch.where(event > 0, torch.arange(len(time)) - first, 0)  # l
    left = torch.where(event > 0, deaths[group].long() - 1 - number, 0)
    share = torch.where(event > 0, number / deaths[group].clamp(min=1), 0.0)
    doublings = math.ceil(math.log2(max(float(deaths.max()), 1.0)))
    bits = [(v >> k) & 1 for v in (number, left) for k in range(doublings)]
    values = torch.stack([counted, event.long(), torch.round(share * 2.0**COLUMN).long(), *bits])
    terms = torch.where(event > 0, (heavy / deaths.clamp(min=1))[group], 0.0)
    return TimeVectors(values, order, doublings, terms)


async def evaluate(
    ctx: RingContext,
    ties: int,
    rows: MaskedFactor[Tensor],
    z: Tensor,
    y: Tensor,
    terms: Tensor | None = None,
) -> Hazards:
    """`z`: scores by row in the order of time; `y`: the vectors of `encode_times`; `terms`: ω or None."""
    e = await precise.exponential(ctx, z)
    ex = await ctx.product_masked((await ctx.truncate(e, 4)).reshape(-1, 1), rows, MUL)
    ex = await ctx.truncate(ex, MEAN - 4)
    both = torch.cat([e.reshape(-1, 1), ex], 1)
    if ties == BRESLOW:
        at_risk, count = _from_end(both), y[1]
        over = await precise.reciprocal(ctx, at_risk[:, 0])
        each = await ctx.product(count, over, MUL)  # whole counts: no truncation
        hazard = (each if terms is None else await _times(ctx, over, terms)).cumsum(0)
    else:
        count = y[1]
        before, after = y[3 : 3 + ties], y[3 + ties : 3 + 2 * ties]
        at_risk = await _sums_of_deaths(ctx, both, count, y[2], before, after)
        over = await precise.reciprocal(ctx, at_risk[:, 0])
        each = over if terms is None else await _times(ctx, over, terms)
        hazard = await _hazard(ctx, each, count, y[2], before, after)
    w = await ctx.truncate(await ctx.product(e, hazard, MUL), OVER)
    weighted = await ctx.product_masked(w.reshape(-1, 1), rows, MUL)
    weighted = await ctx.truncate(weighted, MEAN + COLUMN - SHORT)
    means = await ctx.truncate(await ctx.product(at_risk[:, 1:], over.reshape(-1, 1), MUL), OVER)
    factor, bits = (count, 0) if terms is None else (terms, WEIGHT)
    counted = await ctx.product(factor.reshape(-1, 1), means, MUL)
    counted = await ctx.truncate(counted, COLUMN + bits - SHORT)
    return Hazards((w - y[0]).reshape(1, -1), weighted, counted, means)


async def _times(ctx: RingContext, v: Tensor, terms: Tensor) -> Tensor:
    """[ω v]."""
    return await ctx.truncate(await ctx.product(v, terms, MUL), WEIGHT)


async def likelihood(
    ctx: RingContext, ties: int, z: Tensor, y: Tensor, terms: Tensor | None = None
) -> Tensor:
    """[the partial log-likelihood] with MEAN bits: Σ_deaths w z − ω log φ₀."""
    e = (await precise.exponential(ctx, z)).reshape(-1, 1)
    if ties == BRESLOW:
        at_risk = _from_end(e)
    else:
        at_risk = await _sums_of_deaths(ctx, e, y[1], y[2], y[3 : 3 + ties], y[3 + ties : 3 + 2 * ties])
    log = await precise.logarithm(ctx, at_risk[:, 0])
    logs = await ctx.product(y[1], log, MUL) if terms is None else await _times(ctx, log, terms)
    explained = await ctx.truncate(await ctx.product(y[0], z, MUL), MEAN)
    return (explained - logs).sum().reshape(1)


async def _sums_of_deaths(
    ctx: RingContext, both: Tensor, event: Tensor, share: Tensor, before: Tensor, after: Tensor
) -> Tensor:
    """[S − (l/d) D] of each death; of other rows [S], which nothing uses."""
    dead = await ctx.product(event.reshape(-1, 1), both, MUL)
    dead_from_end = _from_end(dead)
    pair = torch.cat([_from_end(both), dead_from_end], 1)
    first = await _fill(ctx, pair, before, 1)
    end = await _fill(ctx, dead_from_end - dead, after, -1)  # without the row itself
    width = both.shape[1]
    tied = await ctx.product(share.reshape(-1, 1), first[:, width:] - end, MUL)
    return first[:, :width] - await ctx.truncate(tied, COLUMN)


async def _hazard(
    ctx: RingContext, over: Tensor, event: Tensor, share: Tensor, before: Tensor, after: Tensor
) -> Tensor:
    """[Σ 1/φ] over the deaths until each row's time, less Σ (l/d)/φ of its own time for a death."""
    each = await ctx.product(event, over, MUL)
    part = await ctx.truncate(await ctx.product(share, over, MUL), COLUMN)  # l/d is 0 unless it is a death
    until = torch.stack([each, part], 1).cumsum(0)
    end = await _fill(ctx, until, after, -1)
    start = await _fill(ctx, until[:, 1:] - part.reshape(-1, 1), before, 1)
    return end[:, 0] - await ctx.product(event, end[:, 1] - start[:, 0], MUL)


async def _fill(ctx: RingContext, v: Tensor, bits: Tensor, sign: int) -> Tensor:
    """[v of the row `number` before (sign 1) or after (sign −1)], where `bits` are those of the number."""
    for k, bit in enumerate(bits):
        v = v + await ctx.product(bit.reshape(-1, 1), torch.roll(v, sign << k, 0) - v, MUL)
    return v


def _from_end(v: Tensor) -> Tensor:
    """The sum of each row and all later ones."""
    return torch.flip(torch.flip(v, (0,)).cumsum(0), (0,))
