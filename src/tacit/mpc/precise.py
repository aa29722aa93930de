"""Functions of shared numbers with about 24 correct bits, for estimates that are compared with a pooled fit.

`functions.py` has 16 fractional bits and errors up to 2^-13, which is 1% of a standard error at 10,000 rows.
Here inner steps carry 28 bits. Rounding errors are unbiased and average out over rows; what remains is the
error of the polynomials, below 2^-30.

| function      | argument, fractional bits            | result                  | error, standard deviation |
|---------------|--------------------------------------|-------------------------|---|
| exponential   | ARG, clamped to −16 … 8              | MEAN                    | 2^-24 + 2^-22 · e^x |
| sigmoid       | ARG                                  | MEAN; and σ(1−σ)        | 2^-23 |
| softmax       | ARG, up to 64 classes                | MEAN                    | 2^-22 |
| reciprocal    | MEAN, 2^-LOW … 2^HIGH                | OVER                    | 2^-OVER + 2^-25 / x |
| logarithm     | MEAN, 2^-LOW … 2^HIGH                | MEAN                    | 2^-23 |
| softplus      | ARG                                  | MEAN                    | 2^-23 |
| log_sum       | ARG, up to 64 classes                | MEAN                    | 2^-22 |
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor

from .beaver import MUL
from .context import RingContext
from .functions import add_scalar, inverse, largest, mul, polynomial

ARG = 24  # fractional bits of a score: as many as INNER − 4, so that score/16 is the same word
INNER = 28
MEAN = 24
OVER = 30
NEAR = 25  # of a number scaled into one octave: its inverse times 2^LOW has 61 bits
CLAMP_LOW, CLAMP_HIGH = -16.0, 8.0
# after each squaring of e^(x/16): fewer bits as values grow, so that squares stay below 2^62 up to e^8
SQUARES = (28, 27, 25, 24)
LOW, HIGH = 8, 22  # powers of two between which a reciprocal is computed
CLASSES = 64


async def exponential(ctx: RingContext, x: Tensor) -> Tensor:
    """[e^x] for x clamped to −16 … 8."""
    both = torch.stack([add_scalar(ctx, x, -CLAMP_LOW, ARG), add_scalar(ctx, x, -CLAMP_HIGH, ARG)])
    above = (await ctx.sign(both)).positive
    clamped: Tensor = add_scalar(ctx, above[0] - above[1], CLAMP_LOW, ARG)
    return await _power(ctx, clamped)


async def _power(ctx: RingContext, x: Tensor) -> Tensor:
    """[e^x], −16 ≤ x ≤ 8: the 16th power of a polynomial at x/16, which is the same word with INNER bits."""
    y: Tensor = await polynomial(ctx, x, _fit(), INNER)
    bits = INNER
    for left in SQUARES:
        y = await ctx.truncate(await ctx.square(y), 2 * bits - left)
        bits = left
    return y


async def sigmoid(ctx: RingContext, x: Tensor) -> tuple[Tensor, Tensor]:
    """[σ(x)] and [σ(x)(1 − σ(x))]: s = 1/(1 + e^−|x|), σ = 1 − s + [x ≥ 0](2s − 1)."""
    result = await ctx.sign(x)
    least = add_scalar(ctx, x - 2 * result.positive, -CLAMP_LOW, ARG)  # 16 − |x|
    e = await _power(ctx, add_scalar(ctx, (await ctx.sign(least)).positive, CLAMP_LOW, ARG))
    # 1 + e with MEAN bits is (1 + e)/2 with one more; its inverse is 2s
    half = add_scalar(ctx, e, 1.0, MEAN) * 2 ** (INNER - MEAN)
    twice = await inverse(ctx, half, INNER + 1)
    s = await ctx.truncate(twice, INNER + 2 - MEAN)
    one = ctx.public(torch.full_like(s, 1 << MEAN), s)
    weight = await ctx.truncate(await ctx.product(s, one - s), MEAN)
    return one - s + await ctx.product(result.bit, 2 * s - one), weight


async def softmax(ctx: RingContext, x: Tensor) -> Tensor:
    """[softmax] over the last dimension."""
    top = (await largest(ctx, x)).unsqueeze(-1)
    least = add_scalar(ctx, x - top, -CLAMP_LOW, ARG)
    e = await _power(ctx, add_scalar(ctx, (await ctx.sign(least)).positive, CLAMP_LOW, ARG))
    over = await reciprocal(ctx, e.sum(-1), 0, math.ceil(math.log2(x.shape[-1])))
    chances: Tensor = await mul(ctx, e, over.unsqueeze(-1).expand_as(e), bits=OVER)
    return chances


async def reciprocal(ctx: RingContext, x: Tensor, low: int = -LOW, high: int = HIGH) -> Tensor:
    """[1/x] for 2^low ≤ x < 2^high, with OVER fractional bits.

    1. x · 2^-k in [1/2, 1);  2. its inverse;  3. times 2^-k.
    """
    near, down, _ = await _to_octave(ctx, x, low, high)
    over: Tensor = await mul(ctx, await inverse(ctx, near, NEAR), down, MUL, NEAR + INNER - OVER)
    return over


async def _to_octave(ctx: RingContext, x: Tensor, low: int, high: int) -> tuple[Tensor, Tensor, Tensor]:
    """[x · 2^-k] in [1/2, 1) with NEAR bits, [2^-k] with INNER bits, and [k], a whole number."""
    edges = list(range(low, high + 1))
    bits = (await ctx.sign(torch.stack([add_scalar(ctx, x, -(2.0**e), MEAN) for e in edges]))).bit
    # k = e + 1 where e is the largest edge that is not above x; linear in the bits
    powers = [round(2.0 ** (INNER - e - 1)) for e in edges]
    down = torch.zeros_like(x) + ctx.public(powers[0], x)
    for bit, before, after in zip(bits[1:], powers, powers[1:]):
        down = down + bit * (after - before)
    near = await mul(ctx, x, down, bits=MEAN + INNER - NEAR)
    return near, down, bits[1:].sum(0) + ctx.public(low + 1, x)


async def logarithm(ctx: RingContext, x: Tensor, low: int = -LOW, high: int = HIGH) -> Tensor:
    """[log x] for 2^low ≤ x < 2^high: log(x · 2^-k) + k log 2."""
    near, _, power = await _to_octave(ctx, x, low, high)
    found: Tensor = await _log_octave(ctx, near) + power * round(math.log(2) * 2**MEAN)
    return found


async def _log_octave(ctx: RingContext, near: Tensor) -> Tensor:
    """[log x], 1/2 ≤ x ≤ 1 with NEAR bits, by a polynomial of 4x − 3, which has INNER bits."""
    t = add_scalar(ctx, near * 2 ** (2 + INNER - NEAR), -3.0, INNER)
    found: Tensor = await polynomial(ctx, t, _fit_log(), INNER)
    return await ctx.truncate(found, INNER - MEAN)


async def softplus(ctx: RingContext, x: Tensor) -> Tensor:
    """[log(1 + e^x)] = max(x, 0) + log(1 + e^−|x|)."""
    positive = (await ctx.sign(x)).positive
    least = add_scalar(ctx, x - 2 * positive, -CLAMP_LOW, ARG)  # 16 − |x|
    e = await _power(ctx, add_scalar(ctx, (await ctx.sign(least)).positive, CLAMP_LOW, ARG))
    # 1 + e with MEAN bits is (1 + e)/2 with one more: NEAR
    half = await _log_octave(ctx, add_scalar(ctx, e, 1.0, MEAN))
    found: Tensor = positive + add_scalar(ctx, half, math.log(2), MEAN)
    return found


async def log_sum(ctx: RingContext, x: Tensor) -> Tensor:
    """[log Σ e^x] over the last dimension."""
    top = await largest(ctx, x)
    least = add_scalar(ctx, x - top.unsqueeze(-1), -CLAMP_LOW, ARG)
    e = await _power(ctx, add_scalar(ctx, (await ctx.sign(least)).positive, CLAMP_LOW, ARG))
    found: Tensor = top + await logarithm(ctx, e.sum(-1), 0, math.ceil(math.log2(x.shape[-1])))
    return found


@functools.cache
def _fit() -> tuple[float, ...]:
    """e^t on −1 … 1/2 by Chebyshev interpolation; degree 10 has an error of 2^-37."""
    fit = np.polynomial.Chebyshev.interpolate(np.exp, 10, domain=[CLAMP_LOW / 16, CLAMP_HIGH / 16])
    return tuple(float(c) for c in fit.convert(kind=np.polynomial.Polynomial).coef)


@functools.cache
def _fit_log() -> tuple[float, ...]:
    """log((t + 3)/4) on −1 … 1 by Chebyshev interpolation; degree 12 has an error of 2^-35."""
    fit = np.polynomial.Chebyshev.interpolate(lambda t: np.log((t + 3) / 4), 12)
    return tuple(float(c) for c in fit.convert(kind=np.polynomial.Polynomial).coef)
