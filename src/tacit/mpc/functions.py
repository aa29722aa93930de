"""Functions of shared numbers, built on products and comparisons. Each states its domain and its error,
for 16 fractional bits; the error doubles for each bit less.

| function      | domain                | error at most          | method |
|---------------|-----------------------|------------------------|---|
| reciprocal    | 2^-10 ≤ |x| ≤ 2^15    | 2^-14 + 2^-14 / |x|    | scaled into [1/2, 1), then Newton-Raphson |
| rsqrt         | 2^-10 ≤ x ≤ 2^15      | 2^-14 + 2^-13 / √x     | scaled into [1/4, 1), then Newton-Raphson |
| sqrt          | 0, and as rsqrt       | 2^-13 + 2^-13 · √x     | x · 1/√x in the scaled range |
| log           | 2^-10 ≤ x ≤ 2^15      | 2^-12 + 2^-16 / x      | scaled into [1/2, 1), polynomial |
| exp           | x ≤ 10; 0 below −16   | 2^-14 + 2^-15 · e^x    | (polynomial at x/16)^16 |
| sigmoid, tanh | all                   | 2^-13                  | exp(−|x|), Newton-Raphson in [1, 2] |
| softmax       | all, n ≤ 2^14         | 2^-12 + n · 2^-22      | exp(x − max x), reciprocal of the sum |
| gelu          | all                   | 2^-12                  | max(x, 0) − polynomial at |x| in [0, 4] |
| silu          | all                   | 2^-12                  | max(x, 0) − polynomial at |x| in [0, 12] |
| mul_scalar    | |y| < 2^24; 2^-k: all | 2^-15 + 2^-15 · |y|    | y: x times a 22-bit public factor or 2^-k |
| layer norm    | (1)                   | (2), with |x − mean|   | rsqrt of the variance, which has 26 bits |
| rms norm      | (1), of the mean of x²| (2), with |x|          | as layer norm, without the mean |

(1) 2^-16 ≤ variance + ε ≤ 2^15, and n · variance < 2^30; 0 gives 0;  (2) with σ = √(variance + ε):
2^-13 · (1 + |x − mean| / σ) + 2^-14 · (1 + |mean|) / σ · (1 + |x − mean| / σ)

Tests check each error over the domain. Outside the domain a result is wrong without an error, as in all
such schemes; `debug=True` opens the arguments and checks them. This gives up all secrecy, and is recorded
in the ledger.

Inner steps carry 22 fractional bits: their values are small, and a sixteenth power would amplify every
lost bit.

The functions run on plain shares (Tensor, RingContext) and on tagged ones (TaggedShare, TaggedContext).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from .beaver import MATMUL, MUL, Bilinear
from .context import Context, Share
from .ring import ROOM

LOW, HIGH = -10, 15  # numbers between these powers of two are scaled into one octave
FINE = 22  # fractional bits of inner steps
FAR = 32  # bits that one truncation may remove
COARSE = 2.0**-15  # relative error of a public factor
# a norm's variance has more fractional bits, since rows of 1/100 are common; 2^15 with the factor's stays
# below 2^58
NORM, NORM_LOW, NORM_FACTOR = 26, -16, 16
# e^-16 is less than a unit of 22 bits; e^10 with 44 fractional bits is below 2^59
EXP_LOW, EXP_HIGH, EXP_SQUARES = -16.0, 10.0, 4
GELU_END = 4.0  # beyond, x·(1 − Φ(x)) is below 2^-12
SILU_END = 12.0  # beyond, x·σ(−x) is below 2^-13
FAR_BELOW = -(2.0**13)  # a score that stands for −∞: differences of other scores must be smaller than this


async def largest(ctx: Context, x: Share) -> Share:
    """The maximum along the last dimension, by a tournament of ⌈log₂ n⌉ comparisons: y + max(x − y, 0)."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        a, b = x[..., :half], x[..., half : 2 * half]
        x = torch.cat([b + (await ctx.sign(a - b)).positive, x[..., 2 * half :]], -1)
    return x[..., 0]


async def mul(ctx: Context, x: Share, y: Share, op: Bilinear = MUL, bits: int | None = None) -> Share:
    """[x ∘ y], truncated by `bits` bits."""
    return await ctx.truncate(await ctx.product(x, y, op), bits)


async def mul_public(ctx: Context, x: Share, public: Tensor, op: Bilinear = MUL) -> Share:
    """[x] ∘ public encoded numbers, truncated."""
    return await ctx.truncate(await ctx.product_public(x, public, op))


async def mul_scalar(ctx: Context, x: Share, factor: float) -> Share:
    """[x] times one public number, for |x · factor| < 2^(40−f), normally 2^24; exact for 2^-k.

    The factor has 22 fractional bits. If their error would exceed 2^-15 of it (1/n for n in the thousands), x
    is first truncated by the factor's power of two.
    """
    if not factor:
        return torch.zeros_like(x)
    part, power = math.frexp(factor)  # factor = part · 2^power, 1/2 ≤ |part| < 1
    if abs(part) == 0.5 and 0 < 1 - power <= FAR:
        return await ctx.truncate(x if factor > 0 else -x, 1 - power)
    if abs(round(factor * 2**FINE) / 2**FINE - factor) > COARSE * abs(factor):
        down = min(-power, FAR)
        x, factor = await ctx.truncate(x, down), factor * 2.0**down
    most = 2.0 ** (ROOM - FINE - ctx.fixed.fraction) / abs(factor)
    await ctx.expect(x, -most, most, f"a multiplication by {factor:g}")
    return await ctx.truncate(x * round(factor * 2**FINE), FINE)


def add_scalar(ctx: Context, x: Share, number: float, bits: int | None = None) -> Share:
    return x + ctx.public(round(number * 2 ** (ctx.fixed.fraction if bits is None else bits)), x)


async def relu(ctx: Context, x: Share) -> Share:
    return (await ctx.sign(x)).positive


async def polynomial(ctx: Context, x: Share, coefficients: tuple[float, ...], bits: int) -> Share:
    """Σ c_k x^k, |x| ≤ 1, with `bits` fractional bits: powers in ⌈log₂ degree⌉ steps, then one truncation."""
    powers, degree = x.unsqueeze(0), len(coefficients) - 1
    while len(powers) < degree:
        more = min(len(powers), degree - len(powers))
        powers = torch.cat(
            [powers, await mul(ctx, powers[-1:].expand(more, *x.shape), powers[:more], bits=bits)]
        )
    codes = torch.tensor([round(c * 2**bits) for c in coefficients[1:]], device=x.device).reshape(
        -1, *[1] * x.dim()
    )
    return add_scalar(ctx, await ctx.truncate((powers * codes).sum(0), bits), coefficients[0], bits)


async def leaky_relu(ctx: Context, x: Share, slope: float) -> Share:
    """slope·x + (1 − slope)·max(x, 0)."""
    return x + await mul_scalar(ctx, await relu(ctx, x) - x, 1 - slope)


async def at_least(ctx: Context, x: Share, y: Share) -> Share:
    """[x ≥ y] as 0 or 1, without fractional bits."""
    return (await ctx.sign(x - y)).bit


async def equal(ctx: Context, x: Share, y: Share) -> Share:
    """[x = y] as 0 or 1, without fractional bits: [x ≥ y] + [y ≥ x] − 1."""
    both = (await ctx.sign(torch.stack([x - y, y - x]))).bit
    return both[0] + both[1] - ctx.public(1, x)


async def compare_to_powers(ctx: Context, x: Share, edges: list[int], bits: int | None = None) -> Share:
    """[x ≥ 2^e] for each exponent e, in one comparison."""
    return (await ctx.sign(torch.stack([add_scalar(ctx, x, -(2.0**e), bits) for e in edges]))).bit


def look_up(ctx: Context, bits: Share, table: list[float]) -> Share:
    """table[k] where the first k + 1 bits are 1 (table[0] if none is), with 22 fractional bits.

    It is linear in the bits, so nothing is sent.
    """
    codes = [round(v * 2**FINE) for v in table]
    total = torch.zeros_like(bits[0]) + ctx.public(codes[0], bits[0])
    for bit, before, after in zip(bits[1:], codes, codes[1:]):
        total = total + bit * (after - before)
    return total


async def reciprocal(
    ctx: Context, x: Share, low: int = LOW, high: int = HIGH, positive: bool = False
) -> Share:
    """1. |x| · 2^-k in [1/2, 1);  2. its inverse;  3. times 2^-k, and x's sign."""
    sign_of_x = None
    if not positive:
        result = await ctx.sign(x)
        x, sign_of_x = 2 * result.positive - x, 2 * result.bit - ctx.public(1, x)
    await ctx.expect(x, 2.0**low, 2.0**high, "reciprocal (of |x|)")
    bits = await compare_to_powers(ctx, x, list(range(low, high + 1)))
    down = look_up(ctx, bits, [2.0 ** -(e + 1) for e in range(low, high + 1)])
    near = await mul(ctx, x, down)
    y = await mul(ctx, await inverse(ctx, near, FINE), down, bits=2 * FINE - ctx.fixed.fraction)
    return y if sign_of_x is None else await ctx.product(y, sign_of_x)


async def inverse(ctx: Context, x: Share, bits: int) -> Share:
    """1/x for x in [1/2, 1] by Newton-Raphson, y ← y(2 − xy).

    The start 2.9142 − 2x is within 9%; each step squares the error, and three leave 2^-33.
    """
    y = add_scalar(ctx, -2 * x, 2.9142, bits)
    for _ in range(3):
        y = await mul(ctx, y, add_scalar(ctx, -(await mul(ctx, x, y, bits=bits)), 2.0, bits), bits=bits)
    return y


async def _roots(
    ctx: Context, x: Share, low: int = LOW, at: int | None = None
) -> tuple[Share, Share, Share, list[int]]:
    """Scale x to x · 4^-k in [1/4, 1) and compute its 1/√ (y ← y(3 − xy²)/2, two steps from a polynomial).

    x has `at` fractional bits. Returns (the scaled x, its 1/√, the comparison bits, their exponents).
    """
    edges = list(range(low, HIGH + 1, 2))
    bits = await compare_to_powers(ctx, x, edges, at)
    near = await mul(ctx, x, look_up(ctx, bits, [2.0 ** -(e + 2) for e in edges]), bits=at)
    y = await polynomial(ctx, near, _fit("rsqrt"), FINE)
    for _ in range(2):
        xyy = await mul(ctx, near, await ctx.truncate(await ctx.square(y), FINE), bits=FINE)
        y = await mul(ctx, y, add_scalar(ctx, -xyy, 3.0, FINE), bits=FINE + 1)
    return near, y, bits, edges


async def rsqrt(ctx: Context, x: Share) -> Share:
    """1/√x."""
    await ctx.expect(x, 2.0**LOW, 2.0**HIGH, "rsqrt")
    _, y, bits, edges = await _roots(ctx, x)
    back = look_up(ctx, bits, [2.0 ** (-(e + 2) // 2) for e in edges])
    return await mul(ctx, y, back, bits=2 * FINE - ctx.fixed.fraction)


async def sqrt(ctx: Context, x: Share) -> Share:
    await ctx.expect(x, 0.0, 2.0**HIGH, "sqrt")
    near, y, bits, edges = await _roots(ctx, x)
    root = await mul(ctx, near, y, bits=FINE)
    return await mul(
        ctx,
        root,
        look_up(ctx, bits, [2.0 ** ((e + 2) // 2) for e in edges]),
        bits=2 * FINE - ctx.fixed.fraction,
    )


async def log(ctx: Context, x: Share) -> Share:
    """ln x = ln(x · 2^-k) + k ln 2."""
    await ctx.expect(x, 2.0**LOW, 2.0**HIGH, "log")
    f, edges = ctx.fixed.fraction, list(range(LOW, HIGH + 1))
    bits = await compare_to_powers(ctx, x, edges)
    near = await mul(ctx, x, look_up(ctx, bits, [2.0 ** -(e + 1) for e in edges]))
    centered = add_scalar(ctx, 4 * near, -3.0, FINE)  # [1/2, 1) → [−1, 1)
    fine = await polynomial(ctx, centered, _fit("log"), FINE)
    return await ctx.truncate(fine + look_up(ctx, bits, [(e + 1) * math.log(2) for e in edges]), FINE - f)


async def _exp(ctx: Context, x: Share) -> Share:
    """e^x with 22 fractional bits: the 16th power of a polynomial at max(x, −16) / 16 in [−1, 5/8]."""
    x = add_scalar(ctx, await relu(ctx, add_scalar(ctx, x, -EXP_LOW)), EXP_LOW)
    y = await polynomial(ctx, x * 2 ** (FINE - ctx.fixed.fraction - EXP_SQUARES), _fit("exp"), FINE)
    for _ in range(EXP_SQUARES):
        y = await ctx.truncate(await ctx.square(y), FINE)
    return y


async def exp(ctx: Context, x: Share) -> Share:
    await ctx.expect(x, -math.inf, EXP_HIGH, "exp")
    return await ctx.truncate(await _exp(ctx, x), FINE - ctx.fixed.fraction)


async def sigmoid(ctx: Context, x: Share) -> Share:
    """s = 1 / (1 + e^−|x|) lies in [1/2, 1); σ(x) = 1 − s + [x ≥ 0](2s − 1)."""
    result = await ctx.sign(x)
    e = await _exp(ctx, x - 2 * result.positive)  # −|x|
    # 1 + e, read with one more fractional bit, is (1 + e)/2; its inverse is 2s
    twice = await inverse(ctx, add_scalar(ctx, e, 1.0, FINE), FINE + 1)
    s = await ctx.truncate(twice, FINE + 2 - ctx.fixed.fraction)
    return add_scalar(ctx, -s, 1.0) + await ctx.product(result.bit, add_scalar(ctx, 2 * s, -1.0))


async def tanh(ctx: Context, x: Share) -> Share:
    """2σ(2x) − 1."""
    return add_scalar(ctx, 2 * await sigmoid(ctx, 2 * x), -1.0)


async def softmax(ctx: Context, x: Share, dim: int = -1, hidden: Tensor | None = None) -> Share:
    """e^(x − max x) / Σ e^(x − max x). Where the public mask `hidden` is True, x stands for −∞.

    For hidden positions no exponential is computed, and the result is 0 exactly. The mask has the shape of
    x's last dimensions, and goes with dim=-1.
    """
    x = x.movedim(dim, -1)
    if hidden is not None:
        unit = round(FAR_BELOW * 2**ctx.fixed.fraction)
        below = hidden.long().to(x.device)
        x = x * (1 - below) + ctx.public(below * unit, x)
    low = x - (await largest(ctx, x)).unsqueeze(-1)
    e = await _exp(ctx, low) if hidden is None else await _exp_where(ctx, low, hidden)
    # at least 1, the largest term
    total = await ctx.truncate(e.sum(-1, keepdim=True), FINE - ctx.fixed.fraction)
    over = await reciprocal(ctx, total, -1, max(1, math.ceil(math.log2(x.shape[-1]))), positive=True)
    return (await mul(ctx, e, over.expand_as(e), bits=FINE)).movedim(-1, dim)


async def _exp_where(ctx: Context, x: Share, hidden: Tensor) -> Share:
    """e^x with 22 fractional bits, and 0 where the public mask is True."""
    lead = x.dim() - hidden.dim()
    kept = (~hidden).flatten().nonzero().flatten()
    places = torch.full((hidden.numel(),), len(kept))  # 0 comes behind the values kept
    places[kept] = torch.arange(len(kept))
    flat = x.flatten(lead)[..., kept.to(x.device)]
    e = await _exp(ctx, flat)
    both = torch.cat([e, torch.zeros_like(e[..., :1])], -1)
    return both[..., places.to(x.device)].reshape(tuple(x.shape))


async def gelu(ctx: Context, x: Share) -> Share:
    """x·Φ(x) = max(x, 0) − u(1 − Φ(u)) with u = |x|, cut at 4."""
    positive = await relu(ctx, x)
    u = x - 2 * positive  # −|x|
    left = await relu(ctx, add_scalar(ctx, u, GELU_END))  # 4 − |x|, at least 0
    centered = add_scalar(ctx, -left * 2 ** (FINE - ctx.fixed.fraction - 1), 1.0, FINE)  # |x|/2 − 1
    tail = await polynomial(ctx, centered, _fit("gelu"), FINE)
    return positive - await ctx.truncate(tail, FINE - ctx.fixed.fraction)


async def silu(ctx: Context, x: Share) -> Share:
    """x·σ(x) = max(x, 0) − u·σ(−u) with u = |x|, cut at 12."""
    positive = await relu(ctx, x)
    left = await relu(ctx, add_scalar(ctx, x - 2 * positive, SILU_END))  # 12 − |x|, at least 0
    bits = ctx.fixed.fraction
    sixth = await ctx.truncate(left * round(2**FINE * 2 / SILU_END), bits)  # with 22 fractional bits
    tail = await polynomial(ctx, add_scalar(ctx, -sixth, 1.0, FINE), _fit("silu"), FINE)
    return positive - await ctx.truncate(tail, FINE - bits)


async def layer_norm(ctx: Context, x: Share, dims: int, eps: float) -> Share:
    """(x − mean) / √(variance + ε) over the last `dims` dimensions."""
    flat = x.flatten(-dims)
    centered = flat - await mul_scalar(ctx, flat.sum(-1, keepdim=True), 1 / flat.shape[-1])
    return (await _over_root(ctx, centered, eps)).reshape(tuple(x.shape))


async def rms_norm(ctx: Context, x: Share, dims: int, eps: float) -> Share:
    """x / √(mean of x² + ε) over the last `dims` dimensions. Zhang, Sennrich: Root Mean Square Layer
    Normalization, NeurIPS 2019.
    """
    return (await _over_root(ctx, x.flatten(-dims), eps)).reshape(tuple(x.shape))


async def _over_root(ctx: Context, x: Share, eps: float) -> Share:
    """x / √(mean of x² + ε) along the last dimension.

    Σ x² has twice the fractional bits. The power of two of 1/n is taken off together with them, and the rest
    of 1/n, between 1/2 and 1, is a factor of 16 bits.
    """
    n, f = x.shape[-1], ctx.fixed.fraction
    await ctx.expect_product(MATMUL, x.unsqueeze(-2), x.unsqueeze(-1))
    total = (await ctx.square(x)).sum(-1, keepdim=True)
    part, power = math.frexp(1 / n)  # 1/n = part · 2^power
    exact = part == 0.5
    power -= exact
    down = 2 * f - NORM - power
    mean = await ctx.truncate(total, down) if down > 0 else total * 2**-down
    if not exact:
        mean = await ctx.truncate(mean * round(part * 2**NORM_FACTOR), NORM_FACTOR)
    mean = add_scalar(ctx, mean, eps, NORM)
    shown = 2.0 ** (NORM - f)  # how a number with NORM fractional bits is read
    await ctx.expect(mean, 0.0, 2.0**HIGH * shown, f"the variance of a norm, times {shown:g},")
    _, y, bits, edges = await _roots(ctx, mean, NORM_LOW, NORM)
    back = look_up(ctx, bits, [2.0 ** (-(e + 2) // 2) for e in edges])
    over = await mul(ctx, y, back, bits=FINE)
    return await mul(ctx, x, over.expand_as(x), bits=FINE)


# (function, ends of its domain, degree) of the polynomials
FITS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float, float, int]] = {
    "rsqrt": (lambda v: np.asarray(v**-0.5), 0.25, 1.0, 5),
    "log": (lambda v: np.asarray(np.log((v + 3) / 4)), -1.0, 1.0, 9),
    "exp": (lambda v: np.asarray(np.exp(v)), -1.0, 0.625, 7),
    "silu": (lambda v: (u := (v + 1) * SILU_END / 2) / (1 + np.exp(u)), -1.0, 1.0, 14),
    "gelu": (
        lambda v: np.array([(u := 2 * (w + 1)) * 0.5 * math.erfc(u / math.sqrt(2)) for w in v]),
        -1.0,
        1.0,
        12,
    ),
}


@functools.cache
def _fit(name: str) -> tuple[float, ...]:
    """The coefficients of the interpolation at Chebyshev nodes.

    The degree is the least with an error below 2^-18 (rsqrt: below 1%).
    """
    function, low, high, degree = FITS[name]
    fit = np.polynomial.Chebyshev.interpolate(function, degree, domain=[low, high])
    return tuple(float(c) for c in fit.convert(kind=np.polynomial.Polynomial).coef)
