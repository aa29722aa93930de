"""The log-likelihood of a regression on shares: one number that is opened to the label holder.

| family | opened, with z = xu + offset | the label holder adds |
|---|---|---|
| binomial | Σ w (y z − log(1 + e^z)) | nothing |
| multinomial | Σ w (z_y − log Σ e^(z_k)) | nothing |
| poisson | Σ w y z, z = log(μ/2^e) | Σ w (e·log 2·y − y − log y!): with an intercept Σ w μ = Σ w y |
| cox | Σ_deaths w z − ω log φ₀ (`hazards.py`) | −Σ_deaths w log w: z has log w |

The likelihood without columns, and the saturated one, are functions of the label alone, so that its holder
computes deviance, AIC, BIC, pseudo-R² and the likelihood-ratio test from this number. Of a gaussian model all
of them follow from the residual variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from . import hazards, precise
from .beaver import MATMUL, MUL
from .context import RingContext
from .irls import COLUMN, SLOPE, WEIGHT, FitPlan
from .precise import ARG, MEAN


@dataclass(frozen=True)
class Likelihood:
    """What the label holder knows alone: log-likelihood = factor · opened + constant."""

    factor: float
    constant: float
    null: float  # of the model without columns
    saturated: float = 0.0  # of the model that reproduces the label

    def measure(self, opened: float, rows: int, parameters: int, intercepts: int) -> dict[str, float]:
        """Statistics of the fit, as statsmodels defines them."""
        value = self.factor * opened + self.constant
        freedom = parameters - intercepts
        ratio = 2 * (value - self.null)
        found = {"loglik": value, "loglik_null": self.null}
        if intercepts:  # of Cox's partial likelihood there is no saturated model
            found |= {
                "deviance": 2 * (self.saturated - value),
                "null_deviance": 2 * (self.saturated - self.null),
            }
        return found | {
            "pseudo_r2": 1 - value / self.null,
            "aic": 2 * parameters - 2 * value,
            "bic": parameters * math.log(rows) - 2 * value,
            "lr": ratio,
            "lr_p": float(torch.special.gammaincc(*torch.tensor([freedom / 2, max(ratio, 0.0) / 2]).double()))
            if freedom
            else 1.0,
        }


def know(family: str, y: Tensor, offset: Tensor, weights: Tensor, scale: int, efron: bool) -> Likelihood:
    """Return what follows from the label alone. `weights` sum to n times their mean; `scale`: FitPlan's."""
    label, o, w = (v.numpy() for v in (y, offset, weights))
    if family == "cox":
        known = float((label[:, 1] * w * np.log(w)).sum())
        return Likelihood(1.0, -known, _null_hazards(label[:, 0], label[:, 1], o, w, efron))
    if family == "multinomial":
        counts = np.bincount(label.astype(int), w)
        counts = counts[counts > 0]
        return Likelihood(1.0, 0.0, float((counts * np.log(counts / counts.sum())).sum()))
    if family == "binomial":
        b = _null_logit(label, o, w)
        return Likelihood(1.0, 0.0, float((w * (label * (b + o) - np.logaddexp(0, b + o))).sum()))
    factorials = np.array([math.lgamma(v + 1) for v in label])
    logs = np.where(label > 0, label * np.log(np.maximum(label, 1e-300)), 0.0)
    eta = math.log((w * label).sum() / (w * np.exp(o)).sum()) + o
    constant = float((w * (scale * math.log(2) * label - label - factorials)).sum())
    null = float((w * (label * eta - np.exp(eta) - factorials)).sum())
    return Likelihood(2.0**scale, constant, null, float((w * (logs - label - factorials)).sum()))


def _null_logit(y: np.ndarray, offset: np.ndarray, weights: np.ndarray) -> float:
    """The intercept of a logistic model without columns, by Newton's method."""
    mean = float(np.average(y, weights=weights))
    b = math.log(mean / (1 - mean))
    for _ in range(50):
        mu = 1 / (1 + np.exp(-(b + offset)))
        step = float((weights * (y - mu)).sum() / (weights * mu * (1 - mu)).sum())
        b += step
        if abs(step) < 1e-12:
            break
    return b


def _null_hazards(
    time: np.ndarray, event: np.ndarray, offset: np.ndarray, weights: np.ndarray, efron: bool
) -> float:
    """The partial log-likelihood without columns."""
    e, total = weights * np.exp(offset), float((event * weights * offset).sum())
    for t in np.unique(time[event > 0]):
        dead = (time == t) & (event > 0)
        at_risk, tied, count = e[time >= t].sum(), e[dead].sum(), int(dead.sum())
        shares = np.arange(count) / count if efron else np.zeros(count)
        total -= float(weights[dead].mean() * np.log(at_risk - shares * tied).sum())
    return total


async def sum_likelihood(ctx: RingContext, plan: FitPlan, u: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """[the opened number of the table above] with MEAN fractional bits; `x` and `y` as for `irls.fit`."""
    z = await ctx.truncate(await ctx.product(u, x.T.contiguous(), MATMUL), SLOPE + COLUMN - ARG)
    if plan.has_offset:
        z = z + y[plan.offset_row]
    if plan.family == "cox":
        terms = y[plan.weight_row] if plan.is_weighted else None
        return await hazards.likelihood(ctx, plan.ties, z[0], y, terms)
    rows = z.shape[1]
    explained = (await ctx.truncate(await ctx.product(y[: plan.outcomes], z, MUL), MEAN)).sum(0)
    if plan.family == "binomial":
        explained = explained - (await precise.softplus(ctx, z))[0]
    elif plan.family == "multinomial":
        explained = explained - await precise.log_sum(ctx, torch.cat([torch.zeros_like(z[:1]), z]).T)
    if plan.is_weighted:
        explained = await ctx.truncate(await ctx.product(explained, y[plan.weight_row], MUL), WEIGHT)
    return explained.reshape(rows).sum().reshape(1)
