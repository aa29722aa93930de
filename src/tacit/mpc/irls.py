"""Newton's method on secret shares, for generalized linear models and the Cox model, with the inverse of the
Hessian, from which standard errors follow.

    u ← u − P ∇(u),     P = H(u)⁻¹,   P ← P + P(1 − H P) from a multiple of 1

| family | mean μ | weight of a row in H = XᵀWX/n |
|---|---|---|
| gaussian | z | 1 |
| binomial | σ(z) | μ(1 − μ) |
| poisson | e^z | μ |
| multinomial | softmax(0, z) | μ_k(δ_kl − μ_l) in block k, l |
| cox | `hazards.py` | `hazards.py` |

z = Xu, where each holder has made its own columns uncorrelated with variance 1 (`glm_terms.py`), so that an
error of 2^-24 in u is the same fraction of a standard error for all columns. Everything stays shared. H and
∇ are divided by n·2^e, where 2^e is the scale of the label that its holder announced.

McCullagh, Nelder: Generalized Linear Models, 1989, Section 2.5; G. Schulz, 1933.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from . import hazards, precise
from .beaver import MATMUL, MUL, MaskedFactor, mask_shared
from .context import RingContext
from .dealer import DryRun
from .precise import ARG, MEAN

COLUMN = 20  # fractional bits of the columns
WEIGHTED = 18  # of columns times weights: with COLUMN and 2^20 rows, below 2^62
SLOPE = 30  # of gradient, coefficients and steps
WEIGHT = hazards.WEIGHT  # of the rows' weights, which are at most 8 and on average 1/2 to 1
WIDE = 26  # of H and P: P·(1 − HP) is at most 2^8 where no eigenvalue of H is below 2^-10
LIMIT = 2**20  # rows
HEAVIEST = 8  # weight of a row, relative to 2^k
FURTHEST = 30  # bits that one truncation removes
SMALLEST = 2.0**-10  # eigenvalue of H, relative to uncorrelated columns of rows with the average weight
MANTISSA = 24
VARIANCE = 36  # fractional bits of a residual variance, which may be small


@dataclass(frozen=True)
class FitPlan:
    """What all parties know of the computation."""

    family: str
    rows: int
    holders: int  # parties with columns
    steps: int
    scale: int  # e: the label's scale is about 2^e
    classes: int = 2
    ties: int = hazards.BRESLOW  # Efron's method: ⌈log₂⌉ of the most deaths at one time
    has_offset: bool = False  # of a gaussian model never: the label holder subtracts it from the label
    is_weighted: bool = False
    weight: int = 0  # k: the mean weight is about 2^k

    @property
    def label_rows(self) -> int:
        """How many vectors the label holder contributes for the label."""
        cox = hazards.count_rows(self.ties)
        return {"gaussian": 1, "binomial": 2, "poisson": 3, "cox": cox}.get(self.family, self.outcomes)

    @property
    def offset_row(self) -> int:
        return self.label_rows

    @property
    def weight_row(self) -> int:
        return self.label_rows + self.has_offset

    @property
    def outcomes(self) -> int:
        """Vectors of coefficients."""
        return self.classes - 1 if self.family == "multinomial" else 1

    @property
    def has_intercept(self) -> bool:
        return self.family != "cox"

    @property
    def largest(self) -> float:
        """A bound of the eigenvalues of H. Each block has variance 1, so that without weights it is K."""
        weight = {"gaussian": 1.0, "multinomial": 0.5, "binomial": 4.0, "poisson": 16.0, "cox": 4.0}
        return weight[self.family] * max(self.holders, 1) * (HEAVIEST if self.is_weighted else 1)

    @property
    def inversions(self) -> int:
        """Until (1 − λ/L)^(2^k) is below 2^-WIDE for the smallest eigenvalue λ."""
        return math.ceil(math.log2(WIDE * math.log(2) * self.largest / SMALLEST))


class Fit(NamedTuple):
    u: Tensor  # [coefficients], outcomes × D, with SLOPE fractional bits
    p: Tensor  # [H⁻¹] with WIDE
    checks: Tensor  # [|last step|², |1 − PH|², tr P], with 2·WIDE, 2·WIDE and WIDE


async def fit(ctx: RingContext, plan: FitPlan, x: Tensor, y: Tensor) -> Fit:
    """`x` ends with the constant of the intercept, if there is one. `y` has a row for each of the family's
    label columns (`glm_terms.encode_label`).
    """
    rows = await mask_shared(ctx, "rows", x)
    columns = await mask_shared(ctx, "columns", x.T.contiguous())
    dry = isinstance(ctx.stock, DryRun)
    u = torch.zeros(plan.outcomes, x.shape[1], dtype=torch.int64, device=x.device)
    p = hessian = torch.zeros(0)
    step = u
    steps = plan.steps
    if plan.family == "gaussian":
        if plan.is_weighted:
            hessian = await _weigh(ctx, plan, x, rows, y[plan.weight_row] << (MEAN - WEIGHT))
        else:
            gram = await ctx.product_masked(x.T.contiguous(), rows, MATMUL)
            hessian = await _normalize(ctx, plan, gram, 2 * COLUMN, WIDE)
        p = await invert(ctx, plan, hessian)
    elif plan.family == "poisson":  # the first step: least squares of log(y + 0.1) with weights y + 0.1
        p = await invert(ctx, plan, await _weigh(ctx, plan, x, rows, y[1]))
        u = await _solve(ctx, p, await _slope(ctx, plan, y[2:3], rows))
        steps -= 1
    elif plan.family == "binomial":  # the first score is the logit of the mean label
        u = u.clone()
        u[0, -1] = y[1, 0]
    begin = len(ctx.stock.requests) if isinstance(ctx.stock, DryRun) else 0
    for _ in range(1 if dry else steps):
        z = await ctx.truncate(await ctx.product_masked(u, columns, MATMUL), SLOPE + COLUMN - ARG)
        if plan.has_offset:
            z = z + y[plan.offset_row]
        if plan.family == "gaussian":
            residual = await _weight_rows(ctx, plan, z - y[:1], y)
        else:
            residual, hessian = await _evaluate(ctx, plan, x, rows, z, y)
            p = await invert(ctx, plan, hessian)
        step = await _solve(ctx, p, await _slope(ctx, plan, residual, rows))
        u = u - step
    if isinstance(ctx.stock, DryRun):  # every step needs the same
        ctx.stock.repeat(begin, steps - 1)
    short = await ctx.truncate(step.flatten(), SLOPE - WIDE)
    error = _identity(ctx, p) - await ctx.truncate(await ctx.product(p, hessian, MATMUL), WIDE)
    sizes = await ctx.square(torch.cat([short, error.flatten()]))
    checks = [sizes[: len(short)].sum(), sizes[len(short) :].sum(), p.diagonal().sum()]
    return Fit(u, p, torch.stack(checks))


async def residual_variance(ctx: RingContext, plan: FitPlan, u: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """[Σ(z − y)²/n] with VARIANCE fractional bits, of a gaussian model."""
    z = await ctx.truncate(await ctx.product(u, x.T.contiguous(), MATMUL), SLOPE + COLUMN - COLUMN)
    residual = z - await ctx.truncate(y[:1], MEAN - COLUMN)
    if plan.is_weighted:
        total = await ctx.product(await _weight_rows(ctx, plan, residual, y), residual, MUL)
    else:
        total = await ctx.square(residual)
    total = total.sum().reshape(1)
    return await scale(ctx, total, 1 / plan.rows, 2 * COLUMN, VARIANCE)


async def _weight_rows(ctx: RingContext, plan: FitPlan, v: Tensor, y: Tensor) -> Tensor:
    """[w v] for numbers by row in the last dimension; v itself where rows have no weights."""
    if not plan.is_weighted:
        return v
    return await ctx.truncate(await ctx.product(v, y[plan.weight_row].expand_as(v), MUL), WEIGHT)


async def _evaluate(
    ctx: RingContext, plan: FitPlan, x: Tensor, rows: MaskedFactor[Tensor], z: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """([residuals] with MEAN bits, outcomes × n; [H])."""
    if plan.family == "binomial":
        mean, weight = await precise.sigmoid(ctx, z)
        both = await _weight_rows(ctx, plan, torch.cat([mean - y[:1], weight]), y)
        return both[:1], await _weigh(ctx, plan, x, rows, both[1])
    if plan.family == "poisson":
        mean = await precise.exponential(ctx, z)
        both = await _weight_rows(ctx, plan, torch.cat([mean - y[:1], mean]), y)
        return both[:1], await _weigh(ctx, plan, x, rows, both[1])
    if plan.family == "cox":
        terms = y[plan.weight_row] if plan.is_weighted else None
        found = await hazards.evaluate(ctx, plan.ties, rows, z[0], y, terms)
        weighted = await ctx.product_masked(found.weighted.T.contiguous(), rows, MATMUL)
        among = await ctx.product(found.counted.T.contiguous(), found.means, MATMUL)
        total = await _normalize(ctx, plan, weighted - among, COLUMN + hazards.SHORT, WIDE)
        return found.residual, total
    chances = await precise.softmax(ctx, torch.cat([torch.zeros_like(z[:1]), z]).T)  # n × K
    mean = chances.T[1:]
    pairs = [(k, m) for k in range(plan.outcomes) for m in range(k, plan.outcomes)]
    products = await ctx.truncate(
        await ctx.product(
            torch.stack([mean[k] for k, _ in pairs]), torch.stack([mean[m] for _, m in pairs]), MUL
        ),
        MEAN,
    )
    curves = torch.stack([mean[k] - both if k == m else -both for (k, m), both in zip(pairs, products)])
    every = await _weight_rows(ctx, plan, torch.cat([mean - y[: plan.outcomes], curves]), y)
    blocks = {}
    for (k, m), curve in zip(pairs, every[plan.outcomes :]):
        blocks[k, m] = blocks[m, k] = await _weigh(ctx, plan, x, rows, curve)
    hessian = torch.cat(
        [torch.cat([blocks[k, m] for m in range(plan.outcomes)], 1) for k in range(plan.outcomes)]
    )
    return every[: plan.outcomes], hessian


async def _weigh(
    ctx: RingContext, plan: FitPlan, x: Tensor, rows: MaskedFactor[Tensor], weight: Tensor
) -> Tensor:
    """[XᵀWX/n], for a weight with MEAN bits."""
    weighted = await ctx.product_masked(weight.reshape(-1, 1), rows, MUL)
    weighted = await ctx.truncate(weighted, MEAN + COLUMN - WEIGHTED)
    gram = await ctx.product_masked(weighted.T.contiguous(), rows, MATMUL)
    return await _normalize(ctx, plan, gram, WEIGHTED + COLUMN, WIDE)


async def _slope(ctx: RingContext, plan: FitPlan, residual: Tensor, rows: MaskedFactor[Tensor]) -> Tensor:
    """[residualsᵀX/n] with SLOPE bits; residuals with MEAN bits."""
    bits = min(MEAN, 40 - math.ceil(math.log2(plan.rows)))  # the sum over all rows stays below 2^61
    if bits < MEAN:
        residual = await ctx.truncate(residual, MEAN - bits)
    sums = await ctx.product_masked(residual, rows, MATMUL)
    return await _normalize(ctx, plan, sums, bits + COLUMN, SLOPE)


async def _solve(ctx: RingContext, p: Tensor, slope: Tensor) -> Tensor:
    """[P∇] with SLOPE bits, of the shape of ∇."""
    step = await ctx.product(p, slope.reshape(-1, 1), MATMUL)
    return (await ctx.truncate(step, WIDE)).reshape(slope.shape)


async def invert(ctx: RingContext, plan: FitPlan, hessian: Tensor) -> Tensor:
    """[H⁻¹] of [H], both with WIDE fractional bits, for eigenvalues from SMALLEST to `plan.largest`."""
    p = _identity(ctx, hessian, 1 / plan.largest)
    begin = len(ctx.stock.requests) if isinstance(ctx.stock, DryRun) else 0
    for _ in range(1 if isinstance(ctx.stock, DryRun) else plan.inversions):
        error = _identity(ctx, p) - await ctx.truncate(await ctx.product(hessian, p, MATMUL), WIDE)
        p = p + await ctx.truncate(await ctx.product(p, error, MATMUL), WIDE)
    if isinstance(ctx.stock, DryRun):
        ctx.stock.repeat(begin, plan.inversions - 1)
    return p


def _identity(ctx: RingContext, like: Tensor, value: float = 1.0) -> Tensor:
    eye = torch.eye(len(like), dtype=torch.int64, device=like.device)
    return ctx.public(eye * round(value * 2**WIDE), like)


async def _normalize(ctx: RingContext, plan: FitPlan, v: Tensor, bits: int, wanted: int) -> Tensor:
    # a count is divided by 2^e already, and so are its mean and its weight
    exponent = plan.scale if plan.family in ("binomial", "cox") else 0
    return await scale(ctx, v, 2.0**-exponent / plan.rows, bits, wanted)


async def scale(ctx: RingContext, v: Tensor, factor: float, bits: int, wanted: int) -> Tensor:
    """[v · factor] with `wanted` fractional bits, of [v] with `bits`."""
    mantissa, power = math.frexp(factor)
    down = bits - wanted - power
    while down > 0:
        v, down = await ctx.truncate(v, min(down, FURTHEST)), down - min(down, FURTHEST)
    return await ctx.truncate((round(mantissa * 2**MANTISSA) * v) << -down, MANTISSA)
