"""Membership scores: how much more likely a row was in the training set than not, by a model's outputs.

Loss: S. Yeom, I. Giacomelli, M. Fredrikson, S. Jha: "Privacy Risk in Machine Learning", CSF 2018.
LiRA: N. Carlini, S. Chien, M. Nasr, S. Song, A. Terzis, F. Tramèr: "Membership Inference Attacks From First
Principles", S&P 2022, Algorithm 1 (online) and its offline variant.
RMIA: S. Zarifzadeh, P. Liu, R. Shokri: "Low-Cost High-Power Membership Inference Attacks", ICML 2024.

Shadow models are [S, N] tensors: the statistic of row n under shadow s, and whether n was in its training
set. All scores are larger for rows that look like members.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

OWN_VARIANCE = 64  # shadows from which each row has a variance of its own (Carlini et al., section VI-C)
GAMMA = 2.0  # of RMIA, as in the paper's experiments
OFFLINE_A = 0.3  # of offline RMIA: how much an unseen row gains by training on it; the paper tunes it


def logit_confidence(out: Tensor, y: Tensor) -> Tensor:
    """[…, N]: log p/(1 − p) of the true class, from logits […, N, C]; it is close to normal over models."""
    own = out.double().gather(-1, y.expand(out.shape[:-1])[..., None])
    rest = out.double().scatter(-1, y.expand(out.shape[:-1])[..., None], -math.inf)
    return own[..., 0] - rest.logsumexp(-1)


def residual(out: Tensor, y: Tensor) -> Tensor:
    """[…, N]: prediction − target of a regression; over models it is close to normal."""
    return out.double().reshape(*out.shape[: out.dim() - 1], -1)[..., 0] - y.double()


def _moments(phi: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over the chosen shadows, of each row; of few shadows, one deviation."""
    count = chosen.sum(0).clamp(min=1)
    mean = (phi * chosen).sum(0) / count
    squares = ((phi - mean) ** 2 * chosen).sum(0)
    if len(phi) >= OWN_VARIANCE:
        variance = squares / (count - 1).clamp(min=1)
    else:
        variance = (squares.sum() / (chosen.sum() - phi.shape[1]).clamp(min=1)).expand_as(mean)
    return mean, variance.sqrt().clamp(min=1e-12)


def lira(phi: Tensor, shadows: Tensor, inside: Tensor) -> Tensor:
    """[N]: the log-likelihood ratio of the target's statistic, in against out (online LiRA)."""
    yes, no = _moments(shadows, inside.double()), _moments(shadows, (~inside).double())

    def log_density(mean: Tensor, std: Tensor) -> Tensor:
        return -0.5 * ((phi - mean) / std) ** 2 - std.log()

    return log_density(*yes) - log_density(*no)


def lira_offline(phi: Tensor, shadows: Tensor, inside: Tensor) -> Tensor:
    """[N]: log P(Z ≤ φ) for Z as in the models without the row (offline LiRA: no shadow has seen it)."""
    mean, std = _moments(shadows, (~inside).double())
    tail: Tensor = torch.special.log_ndtr((phi - mean) / std)
    return tail


def rmia(
    phi: Tensor,
    shadows: Tensor,
    inside: Tensor,
    population: Tensor,
    *,
    gamma: float = GAMMA,
    a: float = OFFLINE_A,
) -> Tensor:
    """[N]: the share of population rows z for which p(x)/p̄(x) is at least γ times p(z)/p̄(z).

    `phi` and `shadows` are logit confidences, `population` the indices of rows z that are not members. p̄ is
    the mean over the models that were trained without a row, moved towards that over all models by the
    paper's offline line, (1 + a)/2 · p̄_out + (1 − a)/2.
    """
    out = (~inside).double()
    mean = (shadows.sigmoid() * out).sum(0) / out.sum(0).clamp(min=1)
    ratio = phi.sigmoid() / ((1 + a) / 2 * mean + (1 - a) / 2)
    z = ratio[population].sort().values
    below = torch.searchsorted(z, ratio / gamma, right=True).double()
    # rows that are above all z, or below all: the ratio itself orders them, by less than one z
    return (below + ratio / (1 + ratio)) / len(z)
