"""Logistic regression over the people of a join whose membership stays shared.

    both parties know G, the moments of all columns (`shared_moments.py`)                          helper
    first                                             second                                        |
      |--- LogisticStart(people, A, …) --------------->|------------------------------------------->|
      |<-- TapeKey, Corrections -------------------------------------------------------------------- |
      |<-- MaskedFactors, MaskedValues, MaskedBits, … ->|   Newton's method on shares (`irls.py`)
      |--- LogisticShare ------------------------------>|   w, H⁻¹, |last step|², |1 − PH|², tr P, likelihood

A makes the columns uncorrelated with variance 1 and mean 0 over the people of the join; it follows from G. A
person who does not count is a row of zeros, which adds nothing to gradient and Hessian, and −log 2 to the
likelihood, which is added again.

Opened to both: the coefficients with their covariance, the likelihood, three numbers about convergence.
Scores and residuals stay shared. Semi-honest parties; the helper colludes with neither.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from . import irls
from .beaver import MATMUL
from .context import RingContext
from .dealer import Stock, dealer, plan
from .glm_likelihood import sum_likelihood
from .glm_terms import STEPS
from .irls import SLOPE, WIDE, FitPlan
from .precise import MEAN
from .ring import FixedPoint
from .shared_join import SharedRows, SharedTerms, check_shared, empty_rows
from .shared_moments import FRACTION, check_columns, design

TRANSFORM = 16  # fractional bits of A
STEEPEST = 2.0**8  # entry of A
BLOCKS = 2  # as many as `irls` allows for the largest eigenvalue
FEWEST = 10  # people with either label
CONVERGED = 1e-4  # of the last step, root mean square in standard errors
INVERTED = 1e-3  # of 1 − PH


class LogisticStart(
    Message,
    reveals="how many people the regression is about, how many have the label, and which linear combinations "
    "of the columns it takes: they follow from the moments that both parties have",
):
    people: int
    labeled: int
    label: int
    transform: Tensor


class LogisticShare(
    Message,
    reveals="a share of the coefficients, their covariance, the log-likelihood and whether the fit "
    "converged: with the other's, these numbers",
):
    values: list[Tensor]


def fit_plan(start: LogisticStart) -> FitPlan:
    mean = start.labeled / start.people
    scale = math.frexp(mean * (1 - mean))[1]
    return FitPlan("binomial", start.people, BLOCKS, STEPS["binomial"], scale)


def check_start(name: str, start: LogisticStart, columns: int) -> None:
    """Refuse what no join has; `columns`: without the label."""
    limit = round(STEEPEST * 2**TRANSFORM)
    fits = start.transform.dtype is torch.int64 and tuple(start.transform.shape) == (columns + 1, columns)
    fits = fits and bool((start.transform.abs() <= limit).all()) and 0 <= start.label <= columns
    if not fits or not FEWEST <= start.labeled <= start.people - FEWEST or start.people > irls.LIMIT:
        raise ProtocolError(
            f"{name!r} started a logistic regression over {start.people} people, of whom {start.labeled} "
            f"have the label, with a transform of shape {tuple(start.transform.shape)}; expected at least "
            f"{FEWEST} people with either label, and {columns} columns."
        )


async def estimate(
    ctx: RingContext,
    terms: SharedTerms,
    rows: SharedRows,
    own: Tensor,
    words: Sequence[int],
    start: LogisticStart,
) -> Tensor:
    """[u with SLOPE bits, H⁻¹ with WIDE bits, three checks, the likelihood with MEAN bits] in one vector."""
    x, fitted = await design(ctx, terms, rows, own, words), fit_plan(start)
    base, last = x[:, -1:], x.shape[1] - 1
    rest = torch.cat([x[:, [k for k in range(last) if k != start.label]], base], 1)
    mixed = await ctx.product_public(rest, start.transform.to(x.device), MATMUL)
    columns = torch.cat([await ctx.truncate(mixed, TRANSFORM), base], 1)
    mean = start.labeled / start.people
    logit = torch.zeros(len(x), dtype=torch.int64)
    logit[0] = round(math.log(mean / (1 - mean)) * 2**SLOPE)  # `irls.fit` reads the first one
    label = x[:, start.label] << (MEAN - FRACTION)
    y = torch.stack([label, ctx.public(logit, label)])
    fit = await irls.fit(ctx, fitted, columns, y)
    value = await sum_likelihood(ctx, fitted, fit.u, columns, y)
    return torch.cat([fit.u.flatten(), fit.p.flatten(), fit.checks, value])


async def holder(
    me: Party,
    terms: Mapping[str, Any],
    rows: Sequence[Tensor],
    own: Tensor,
    columns: tuple[Sequence[str], Sequence[str]],
    start: tuple[int, int, int, Tensor],
) -> dict[str, Any]:
    """A party's program, after `shared_moments.holder` for the same columns.

    `start`: (people, how many have the label, the label's place, A), from the moments; the first party's A is
    taken. Returns {"coef", "covariance", "loglik", "converged", "transform"}, of the
    transformed columns and the intercept.
    """
    settings, fixed = SharedTerms.read(terms), FixedPoint()
    check_shared(settings)
    words = check_columns(settings, len(columns[0]), columns[1])
    rank, count = settings.names.index(me.name), len(columns[0]) + len(columns[1])
    other, width = settings.names[1 - rank], count - 1 + (settings.how == "left")
    agreed = LogisticStart(*start)
    check_start(me.name, agreed, width)
    if rank:
        message = await me.recv(other, LogisticStart)
        check_start(other, message, width)
        if (message.people, message.labeled, message.label) != (agreed.people, agreed.labeled, agreed.label):
            raise ProtocolError(f"{other!r} and {me.name!r} have different moments of these columns.")
        agreed, own = message, torch.zeros(settings.rows, len(columns[0]), dtype=torch.int64)
    else:
        await me.send([other, settings.helper], agreed)
    stock = await Stock.connect(me, rank, 2, settings.helper)
    ctx = RingContext(me, rank, settings.names, stock, fixed)
    (opened,) = await ctx.open(
        LogisticShare, await estimate(ctx, settings, SharedRows(*rows), own, words, agreed)
    )
    return read_fit(opened.double(), agreed, settings.rows) | {"transform": agreed.transform}


def read_fit(opened: Tensor, start: LogisticStart, bins: int) -> dict[str, Any]:
    """The opened numbers in units of the transformed columns."""
    d, fitted = start.transform.shape[1] + 1, fit_plan(start)
    u, p, (step, error, trace, value) = opened[:d], opened[d : d + d * d], opened[-4:].tolist()
    size = math.sqrt(max(step, 0.0) / 4.0**WIDE / d * fitted.rows * 2.0**fitted.scale)
    inverted = math.sqrt(max(error, 0.0)) / 2.0**WIDE
    mean = trace / 2.0**WIDE / d
    return {
        "coef": u / 2.0**SLOPE,
        "covariance": p.reshape(d, d) / 2.0**WIDE / (fitted.rows * 2.0**fitted.scale),
        "loglik": value / 2.0**MEAN + (bins - start.people) * math.log(2),
        "converged": step >= 0 and error >= 0 and size < CONVERGED and inverted < INVERTED and mean > 0,
    }


async def helper(me: Party, terms: Mapping[str, Any], columns: tuple[Sequence[str], Sequence[str]]) -> None:
    """The helper's program."""
    settings = SharedTerms.read(terms)
    check_shared(settings)
    words = check_columns(settings, len(columns[0]), columns[1])
    first, count = settings.names[0], len(columns[0]) + len(columns[1])
    start = await me.recv(first, LogisticStart)
    check_start(first, start, count - 1 + (settings.how == "left"))
    own = torch.empty(settings.rows, len(columns[0]), dtype=torch.int64, device="meta")

    async def program(ctx: RingContext) -> None:
        await estimate(ctx, settings, empty_rows(settings), own, words, start)

    await dealer(me, settings.names, plan(program, fixed=FixedPoint()))
