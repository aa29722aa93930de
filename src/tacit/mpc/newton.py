"""Newton's method with a fixed Hessian on secret shares, for linear and logistic regression.

    H = c XᵀX/n + D + δ            c = 1 (linear) or 1/4, the largest σ′ (logistic); D the ridge
    P ← P (2 − H P)                from P = 1/(K + δ), until P = H⁻¹: quadratic convergence
    u ← u + βv − P ∇(u)            v the step before; β = 0 for a linear model

For a linear model H is the Hessian, up to δ, so that the first step is nearly the solution of the normal
equations; each further one removes the error of δ and of rounding, because ∇ is computed from the rows. For a
logistic model H is above every Hessian, so that no step can diverge (Böhning, Lindsay: Monotonicity of
Quadratic-approximation Algorithms, 1988). H, P and all steps stay shared. P∇ at the end is a lower bound
of Newton's own step: its size, with the mean of σ′ of a logistic model, says whether the method has
converged.

K is the number of parties with columns: each has a block of curvature 1, so no eigenvalue is above K.
G. Schulz, Iterative Berechnung der reziproken Matrix, 1933.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from . import functions
from .beaver import MATMUL, MUL, mask_shared
from .context import RingContext
from .dealer import DryRun

# δ: eigenvalues of H⁻¹ stay below 2^11, so that products at WIDE fractional bits stay below 2^62
DELTA = 2.0**-11
WIDE = 22  # fractional bits of H and P
SLOPE = 24  # of the gradient: with P, 46 bits and 11 of magnitude
STATE = 28  # of coefficients and steps between steps
SOLVES = 12  # steps of a linear model: δ/(λ + δ) per step is below 1e-3 after 12 for λ > 0.0006
COLLINEAR = 0.8 / DELTA  # a direction with less variance than δ/4 given the others
CONVERGED = 2.0**-10  # of P∇, root mean square over directions; coefficients have 16 fractional bits


@dataclass(frozen=True)
class NewtonPlan:
    is_linear: bool
    curvature: float
    holders: int
    epochs: int
    momentum: float
    has_ridge: bool

    @property
    def steps(self) -> int:
        return min(self.epochs, SOLVES) if self.is_linear else self.epochs

    @property
    def iterations(self) -> int:
        """Until (1 − δ/(K+δ))^(2^k) is below 1e-3 for the smallest eigenvalue, δ."""
        ratio = DELTA / (max(self.holders, 1) + DELTA)
        return math.ceil(math.log2(math.log(1e-3) / math.log1p(-ratio)))


async def fit(
    ctx: RingContext, plan: NewtonPlan, x: Tensor, y: Tensor, ridge: Tensor
) -> tuple[Tensor, Tensor]:
    """([u], 1 × D with 16 fractional bits, and sums that say whether it has converged).

    The rows `x` end with the constant of the intercept. The sums are
    [|P∇|²] with 32 fractional bits, [tr P] with WIDE, and [Σσ′] with 16 for a logistic model.
    """
    fraction, n = ctx.fixed.fraction, len(x)
    rows = await mask_shared(ctx, "rows", x)
    columns = await mask_shared(ctx, "columns", x.T.contiguous())
    penalty = await mask_shared(ctx, "ridge", ridge * n)
    gram = await ctx.product_masked(x.T.contiguous(), rows, MATMUL)
    hessian = await _scale(ctx, gram, plan.curvature / n, 2 * fraction, WIDE)
    hessian = hessian + torch.diag(ridge << (WIDE - fraction)) + _identity(ctx, hessian, DELTA)
    p = await invert(ctx, hessian, plan)
    inverse = await mask_shared(ctx, "inverse", p)

    u = torch.zeros(1, x.shape[1], dtype=torch.int64, device=x.device)
    v = torch.zeros_like(u)
    labels = y.reshape(1, -1)

    async def newton_step(u: Tensor) -> tuple[Tensor, Tensor]:
        """[P∇(u)], and the means [σ(z)] (or [z])."""
        short = await ctx.truncate(u, STATE - fraction)
        z = await ctx.truncate(await ctx.product_masked(short, columns, MATMUL))
        mean = z if plan.is_linear else await functions.sigmoid(ctx, z)
        r = mean - labels
        g = await ctx.product_masked(r, rows, MATMUL)
        if plan.has_ridge:
            g = g + await ctx.product_masked(short, penalty, MUL)
        g = await _scale(ctx, g, 1 / n, 2 * fraction, SLOPE)
        step = await ctx.truncate(await ctx.product_masked(g, inverse, MATMUL), SLOPE + WIDE - STATE)
        return step, mean

    momentum = 0.0 if plan.is_linear else plan.momentum
    begin = len(ctx.stock.requests) if isinstance(ctx.stock, DryRun) else 0
    for _ in range(1 if isinstance(ctx.stock, DryRun) else plan.steps):
        step, _ = await newton_step(u)
        if momentum:
            v = await ctx.truncate(round(momentum * 2**functions.FINE) * v, functions.FINE)
            v = v - step
        else:
            v = -step
        u = u + v
    if isinstance(ctx.stock, DryRun):  # every step needs the same
        ctx.stock.repeat(begin, plan.steps - 1)
    step, mean = await newton_step(u)
    step = await ctx.truncate(step, STATE - fraction)
    left = [(await ctx.product(step, step, MUL)).sum(), p.diagonal().sum()]
    if not plan.is_linear:  # Σ σ′ = Σ μ(1 − μ)
        one = ctx.public(torch.full_like(mean, 1 << fraction), mean)
        left.append((await functions.mul(ctx, mean, one - mean)).sum())
    return await ctx.truncate(u, STATE - fraction), torch.stack(left)


async def invert(ctx: RingContext, hessian: Tensor, plan: NewtonPlan) -> Tensor:
    """[H⁻¹] of [H] with WIDE fractional bits, for eigenvalues from δ to K + δ."""
    factor = await mask_shared(ctx, "hessian", hessian)
    p = _identity(ctx, hessian, 1 / (max(plan.holders, 1) + DELTA))
    begin = len(ctx.stock.requests) if isinstance(ctx.stock, DryRun) else 0
    for _ in range(1 if isinstance(ctx.stock, DryRun) else plan.iterations):
        ph = await ctx.truncate(await ctx.product_masked(p, factor, MATMUL), WIDE)
        p = await functions.mul(ctx, _identity(ctx, hessian, 2.0) - ph, p, MATMUL, WIDE)
    if isinstance(ctx.stock, DryRun):
        ctx.stock.repeat(begin, plan.iterations - 1)
    return p


class Convergence(NamedTuple):
    """What the opened sums of `fit` say."""

    step: float  # of Newton's method, root mean square over directions
    inflation: float  # tr P − D: the sum of the variance inflation by columns of other parties

    @classmethod
    def read(cls, left: Tensor, fraction: int, rows: int, directions: int) -> Convergence:
        """P∇ is scaled by (1/4) / (mean of σ′), because σ′ of well-separated classes is far below 1/4."""
        step = math.sqrt(max(float(left[0]), 0.0) / 4.0**fraction / directions)
        if len(left) > 2:
            step *= 0.25 * rows / max(float(left[2]) / 2.0**fraction, 1e-9)
        return cls(step, float(left[1]) / 2.0**WIDE - directions)

    @property
    def is_converged(self) -> bool:
        return self.step < CONVERGED

    @property
    def is_collinear(self) -> bool:
        return self.inflation > COLLINEAR


def _identity(ctx: RingContext, like: Tensor, value: float) -> Tensor:
    eye = torch.eye(len(like), dtype=torch.int64, device=like.device)
    return ctx.public(eye * round(value * 2**WIDE), like)


async def _scale(ctx: RingContext, v: Tensor, factor: float, bits: int, wanted: int) -> Tensor:
    """[v · factor] with `wanted` fractional bits, of [v] with `bits`."""
    mantissa, power = math.frexp(factor)
    short = await ctx.truncate(v, bits - wanted - power)
    return await ctx.truncate(round(mantissa * 2**functions.FINE) * short, functions.FINE)
