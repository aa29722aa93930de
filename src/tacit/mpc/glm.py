"""Regression with standard errors over columns held by different parties, on secret shares.

    holder i of n (columns X_i; one has the label y)                                helper
      |--- ColumnCount(columns, settings) ------------------------------------------->|   and to the others
      |--- LabelFacts(scale, classes, ties), from the label holder ------------------->|   and to the others
      |<-- TapeKey, Corrections -------------------------------------------------------|   `dealer.py`
      |<-- MaskedFactors, MaskedProducts, MaskedValues, MaskedBits, MaskedSigns -->|   holders: uniform words
      |--- EstimateShare(my share of w_j and its covariance) --->| holder j      once, at the end
      |--- CheckShare ------------------------------------------>| label holder  once: did it converge
      |<-- Verdict ----------------------------------------------|
      |--- InterceptShare -------------------------------------->| label holder  once, not for Cox
      |--- Estimates ------------------------------------------->| all others    with publish only

Opened, and to whom:

| value | receiver | how many numbers |
|---|---|---|
| a party's own coefficients and their covariance | that party | p and p(p + 1)/2 for each outcome, once |
| the intercept and its standard error | label holder | 2 for each outcome |
| the log-likelihood (gaussian: the residual variance) | label holder | 1 |
| the last step, the error of the inverse, its trace | label holder | 3 |
| whether it converged | everybody | 2 bits |
| the number of columns, and the settings | everybody | 1 per party |
| powers of two: label's scale, ties (Efron), mean weight; classes; effective rows | everybody | 1 to 4 |

Scores, residuals, gradients, Hessians and the coefficients of earlier steps stay shared (`irls.py`). This
holds if all parties are semi-honest and the helper colludes with no other party.

Each holder makes its own columns uncorrelated with variance 1 (`Whitening`) and converts its estimates back.
The columns are not distributed as shares: (0 … X_i … 0) is holder i's share of the matrix.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from . import irls
from .beaver import MATMUL, MUL
from .context import RingContext
from .dealer import Stock, dealer, plan
from .glm_likelihood import sum_likelihood
from .glm_terms import (
    PARAMETERS,
    STEPS,
    GlmTerms,
    Label,
    LabelFacts,
    Whitening,
    check_facts,
    check_terms,
    check_widths,
    encode_label,
    has_offset,
    to_words,
)
from .irls import COLUMN, MANTISSA, SLOPE, WIDE, FitPlan
from .precise import MEAN
from .regression import ColumnCount
from .ring import FixedPoint
from .shuffle import permute

CONVERGED = 1e-4  # of the last step, root mean square in standard errors
INVERTED = 1e-3  # of 1 − PH
SPREAD = 34  # fractional bits of a covariance: a residual variance may be small
INVERSE = 22  # of the inverse Hessian in products with a FACTOR, or with two offsets: below 2^62
FACTOR = 30  # of the residual variance
CENTER = 18  # of offsets
OFFSET = 14  # bits that mix the shares of the intercept
ASSUMES = (
    "SEMI-HONEST: the secrets hold if every party follows its program and the helper colludes with no other "
    "party; a party that deviates can corrupt the result unnoticed. Opened: each party's own final "
    "coefficients with their covariance, once; the intercept and whether the fit converged to the label "
    "holder."
)
PUBLISHED = "PUBLISHED: every party learned the estimates and standard errors of all parties (publish)."


class EstimateShare(
    Message,
    reveals="a share of the receiver's own coefficients and their covariance: with the others', these "
    "numbers",
):
    values: list[Tensor]


class CheckShare(
    Message,
    reveals="a share of the size of the last step, the error of the inverse Hessian, its trace, and the "
    "log-likelihood (gaussian: the residual variance): 4 numbers",
):
    values: list[Tensor]


class Verdict(
    Message, reveals="whether the fit converged, and whether columns of different parties are collinear"
):
    is_converged: bool
    is_collinear: bool


class InterceptShare(
    Message, reveals="a share of the intercept and its variance: with the others', these two numbers"
):
    values: list[Tensor]


class Estimates(
    Message, reveals="the sender's coefficients and standard errors, because the job publishes them"
):
    names: list[str]
    coefficients: list[float]
    errors: list[float]


def make_plan(terms: GlmTerms, facts: LabelFacts, holders: int) -> FitPlan:
    steps = STEPS[terms.family] if terms.steps is None else terms.steps
    return FitPlan(
        terms.family,
        terms.rows,
        holders,
        steps,
        facts.scale,
        facts.classes,
        facts.ties,
        has_offset(terms),
        terms.weights,
        facts.weight,
    )


def label_rows(plan: FitPlan) -> int:
    """How many vectors of the label holder `irls.fit` takes."""
    return plan.label_rows + plan.has_offset + plan.is_weighted


class Estimate(NamedTuple):
    u: Tensor  # [coefficients], outcomes × D, SLOPE bits
    covariance: Tensor  # [of all coefficients, × n], SPREAD bits
    inverse: Tensor  # [P], WIDE bits
    checks: Tensor


async def estimate(
    ctx: RingContext,
    plan: FitPlan,
    x: Tensor,
    y: Tensor,
    scale: Tensor,
    order: Tensor | None = None,
    label_rank: int = 0,
) -> Estimate:
    """Fit the model; of a gaussian one, coefficients and covariance are in units of the label."""
    if plan.family == "cox":
        x = await permute(ctx, "times", x, order, label_rank)
    else:
        ones = ctx.public(torch.full((plan.rows, 1), 1 << COLUMN, dtype=torch.int64), x)
        x = torch.cat([x, ones.to(x.device)], 1)
    u, p, checks = await irls.fit(ctx, plan, x, y)
    if plan.family != "gaussian":
        value = await sum_likelihood(ctx, plan, u, x, y)
        return Estimate(u, p << (SPREAD - WIDE), p, torch.cat([checks, value]))
    left = await irls.residual_variance(ctx, plan, u, x, y)
    freedom = plan.rows / (plan.rows - x.shape[1])
    variance = await irls.scale(ctx, left, freedom, irls.VARIANCE, irls.VARIANCE)
    # in units of the label: times its standard deviation, less a power of two that everybody knows
    square = await ctx.truncate(await ctx.product(scale, scale, MUL), MANTISSA)
    factor = await ctx.truncate(await ctx.product(variance, square, MUL), irls.VARIANCE + MANTISSA - FACTOR)
    u = await ctx.truncate(await ctx.product(u, scale.reshape(1, 1).expand_as(u), MUL), MANTISSA)
    short = await ctx.truncate(p, WIDE - INVERSE)
    covariance = await ctx.product(short, factor.reshape(1, 1).expand_as(short), MUL)
    covariance = await ctx.truncate(covariance, INVERSE + FACTOR - SPREAD)
    return Estimate(u, covariance, p, torch.cat([checks, left]))


async def intercept(
    ctx: RingContext, plan: FitPlan, u: Tensor, p: Tensor, offsets: Tensor, sums: Tensor
) -> Tensor:
    """[intercept, oᵀPo] of each outcome, with SLOPE and INVERSE bits.

    `sums`: each party's own offset · u, outcomes, with OFFSET more bits; `offsets`: o with CENTER bits.
    """
    each = u[:, -1] - await ctx.truncate(sums, OFFSET)
    d = u.shape[1]
    blocks = torch.stack([p[k * d : (k + 1) * d, k * d : (k + 1) * d] for k in range(len(u))])
    short = await ctx.truncate(blocks, WIDE - INVERSE)
    right = await ctx.product(short, offsets.reshape(-1, 1), MATMUL)  # outcomes × D × 1
    right = (await ctx.truncate(right, CENTER))[..., 0]
    variance = await ctx.product(right, offsets.reshape(-1, 1), MATMUL)
    return torch.stack([each, await ctx.truncate(variance[:, 0], CENTER)])


async def program(
    ctx: RingContext, plan: FitPlan, width: int, order: Tensor | None = None, label_rank: int = 0
) -> None:
    """The computation without numbers: what the helper must deal."""
    x, y, scale = (
        torch.empty(shape, dtype=torch.int64, device="meta")
        for shape in ((plan.rows, width), (label_rows(plan), plan.rows), (1,))
    )
    u, _, p, _ = await estimate(ctx, plan, x, y, scale, order, label_rank)
    if plan.has_intercept:
        offsets = torch.empty(width + 1, dtype=torch.int64, device="meta")
        await intercept(ctx, plan, u, p, offsets, torch.empty_like(u[:, 0]))


async def holder(
    me: Party,
    terms: Mapping[str, Any],
    x: Tensor,
    y: Tensor | None = None,
    classes: int | None = None,
    columns: Sequence[str] = (),
    offset: Tensor | None = None,
    weights: Tensor | None = None,
    least: int = 0,
) -> dict[str, Any]:
    """A data holder's program; the label holder also has the rows' offset and weights, if there are any.

    `least`: fewest rows, or what weighted rows are worth, that the party's policy requires.

    Returns "coef" (outcomes × its columns), "covariance" (outcomes × p × p), "converged"; at the label holder
    also "intercept" and "intercept_se" (one for each outcome) and "checks"; with publish "published".
    """
    settings, fixed = GlmTerms.read(terms), FixedPoint()
    check_terms(settings)
    me.ledger.stamp(ASSUMES)
    rank, others = settings.names.index(me.name), [n for n in settings.names if n != me.name]
    is_label_holder = me.name == settings.label_at
    if len(x) != settings.rows or (y is not None and len(y) != settings.rows):
        raise ProtocolError(
            f"{me.name!r} has {len(x)} rows; expected {settings.rows}. Align the tables first."
        )
    whitening = Whitening.of(me.name, x, columns)
    label = encode_label(settings, y, classes, offset, weights) if y is not None else None
    await me.send([*others, settings.helper], ColumnCount(x.shape[1], settings.text()))
    widths = await read_widths(me, settings, others) | {me.name: x.shape[1]}
    facts = await exchange_facts(me, settings, [*others, settings.helper], label)
    fit_plan = make_plan(settings, facts, sum(w > 0 for w in widths.values()))
    check_widths(settings, facts, widths, fit_plan.outcomes, least)
    start = {name: sum(widths[n] for n in settings.names[:i]) for i, name in enumerate(settings.names)}
    d, own = sum(widths.values()), slice(start[me.name], start[me.name] + widths[me.name])

    share = torch.zeros(settings.rows, d, dtype=torch.int64)
    share[:, own] = to_words(whitening.apply(x), COLUMN)
    labels = torch.zeros(label_rows(fit_plan), settings.rows, dtype=torch.int64)
    mantissa = torch.zeros(1, dtype=torch.int64)
    if label is not None:
        labels = label.values
        if settings.family == "gaussian":
            mantissa = to_words(torch.tensor([label.std / 2.0**facts.scale]), MANTISSA)
    ctx = RingContext(
        me, rank, settings.names, await Stock.connect(me, rank, len(settings.names), settings.helper), fixed
    )
    u, spread_shares, inverse, checks = await estimate(
        ctx,
        fit_plan,
        share,
        labels,
        mantissa,
        None if label is None else label.order,
        settings.names.index(settings.label_at),
    )

    verdict = await judge(me, settings, fit_plan, checks, d + fit_plan.has_intercept)
    exponent = facts.scale if settings.family == "gaussian" else 0
    # the covariance is P/(n·2^scale); of a gaussian model P · variance/n, in units of the label
    spread = 4.0**exponent / settings.rows
    if settings.family != "gaussian":
        spread = 2.0 ** -(facts.scale + facts.weight) / settings.rows
    full = u.shape[1]
    blocks = {
        name: torch.cat(
            [u[:, s : s + w].flatten()]
            + [
                spread_shares[k * full + s : k * full + s + w, k * full + s : k * full + s + w].flatten()
                for k in range(len(u))
            ]
        )
        for name, s, w in ((n, start[n], widths[n]) for n in settings.names)
    }
    total = await _open_own(me, others, blocks, EstimateShare, "estimates")
    width, outcomes = widths[me.name], fit_plan.outcomes
    mine = (total[: outcomes * width].double() / 2.0**SLOPE).reshape(outcomes, width) * 2.0**exponent
    own_covariance = (total[outcomes * width :].double() / 2.0**SPREAD).reshape(
        outcomes, width, width
    ) * spread
    coefficients, covariance = whitening.to_units(mine, own_covariance)
    result: dict[str, Any] = {"coef": coefficients, "covariance": covariance, **verdict}
    if fit_plan.has_intercept:
        offsets = torch.zeros(full, dtype=torch.int64)
        offsets[own] = to_words(-whitening.offset(), CENTER)
        offsets[-1] = (1 << CENTER) if ctx.first else 0
        sums = to_words(mine @ whitening.offset() / 2.0**exponent, SLOPE + OFFSET)
        both = await intercept(ctx, fit_plan, u, inverse, offsets, sums)
        opened = await _open_to(me, settings, both.flatten(), InterceptShare, "intercept")
        if opened is not None:
            assert label is not None
            values = opened.double().reshape(2, outcomes)
            shift = math.log(2.0**facts.scale) if settings.family == "poisson" else label.mean
            shift -= label.center
            result["intercept"] = values[0] / 2.0**SLOPE * 2.0**exponent + shift
            if settings.family == "gaussian":  # its holder knows the residual variance
                left = verdict["checks"]["residual_variance"] * label.std**2
                spread = left / (settings.rows - full)
            result["intercept_se"] = (values[1] / 2.0**INVERSE * spread).clamp(min=0).sqrt()
    if is_label_holder:
        assert label is not None
        result["label"] = [label.mean, label.std]
        result["metrics"] = measure(settings, label, verdict["checks"], full * outcomes)
    result["freedom"] = settings.rows - full if settings.family == "gaussian" else None
    if settings.publish:
        me.ledger.stamp(PUBLISHED)
        result["published"] = await exchange_estimates(me, settings.names, columns, result)
    return result


def measure(terms: GlmTerms, label: Label, checks: Mapping[str, float], parameters: int) -> dict[str, float]:
    """Goodness of fit, from the one number that was opened to the label holder."""
    n = terms.rows
    if label.likelihood is not None:
        intercepts = 0 if terms.family == "cox" else max(label.facts.classes - 1, 1)
        return label.likelihood.measure(checks["likelihood"], n, parameters, intercepts)
    deviance = max(checks["residual_variance"], 1e-300) * n * label.std**2 * 2.0**label.facts.weight
    value = -n / 2 * (math.log(2 * math.pi * deviance / n) + 1) + label.log_weights / 2
    return {
        "r2": 1 - deviance / (n * label.spread),
        "sigma": math.sqrt(deviance / (n - parameters)),
        "deviance": deviance,
        "null_deviance": n * label.spread,
        "loglik": value,
        "aic": 2 * parameters - 2 * value,
        "bic": parameters * math.log(n) - 2 * value,
    }


async def read_widths(me: Party, terms: GlmTerms, others: Sequence[str]) -> dict[str, int]:
    messages = await me.gather(others, ColumnCount)
    for name, m in messages.items():
        if m.settings != terms.text():
            raise ProtocolError(
                f"{name!r} and {me.name!r} have different settings: {m.settings:.300} and "
                f"{terms.text():.300}. All parties must start the same job."
            )
        if not 0 <= m.count <= PARAMETERS:
            raise ProtocolError(f"{name!r} announced {m.count} columns; expected 0 to {PARAMETERS}.")
    return {name: m.count for name, m in messages.items()}


async def exchange_facts(me: Party, terms: GlmTerms, to: Sequence[str], label: Label | None) -> LabelFacts:
    if label is None:
        return check_facts(terms, await me.recv(terms.label_at, LabelFacts))
    await me.send(to, label.facts)
    return label.facts


async def judge(me: Party, terms: GlmTerms, plan: FitPlan, checks: Tensor, directions: int) -> dict[str, Any]:
    """The label holder reads the checks and tells the others the verdict."""
    opened = await _open_to(me, terms, checks, CheckShare, "checks")
    others = [n for n in terms.names if n != me.name]
    if opened is None:
        verdict = await me.recv(terms.label_at, Verdict)
        return {"converged": verdict.is_converged, "collinear": verdict.is_collinear}
    values = opened.double().tolist()
    exponent = 0 if plan.family == "gaussian" else plan.scale + plan.weight
    step = math.sqrt(max(values[0], 0.0) / 4.0**WIDE / (directions * plan.outcomes))
    step *= math.sqrt(plan.rows * 2.0**exponent)  # in standard errors of a coefficient without inflation
    error = math.sqrt(max(values[1], 0.0)) / 2.0**WIDE
    trace = values[2] / 2.0**WIDE / (directions * plan.outcomes)
    collinear = values[1] < 0 or error > INVERTED or not 0 < trace < 1 / irls.SMALLEST
    converged = not collinear and values[0] >= 0 and step < CONVERGED
    await me.send(others, Verdict(converged, collinear))
    found = {"step": step, "inverse_error": error, "trace": trace}
    if plan.family == "gaussian":
        found["residual_variance"] = values[3] / 2.0**irls.VARIANCE
    else:
        found["likelihood"] = values[3] / 2.0**MEAN
    return {"converged": converged, "collinear": collinear, "checks": found}


async def _open_own(
    me: Party, others: Sequence[str], blocks: Mapping[str, Tensor], kind: Any, what: str
) -> Tensor:
    """Send everybody my share of its own block; return the sum of the shares of mine."""
    for name in others:
        await me.send(name, kind([blocks[name].contiguous()]))
    return await _add(me, others, blocks[me.name], kind, what)


async def _open_to(me: Party, terms: GlmTerms, share: Tensor, kind: Any, what: str) -> Tensor | None:
    """Open a value to the label holder; None at the others."""
    if me.name != terms.label_at:
        await me.send(terms.label_at, kind([share.contiguous()]))
        return None
    return await _add(me, [n for n in terms.names if n != me.name], share, kind, what)


async def _add(me: Party, others: Sequence[str], share: Tensor, kind: Any, what: str) -> Tensor:
    total = share.clone()
    for name, message in (await me.gather(others, kind)).items():
        if [(v.shape, v.dtype) for v in message.values] != [(total.shape, torch.int64)]:
            raise ProtocolError(f"{name!r} sent a share that does not match the {what} of this model.")
        total += message.values[0]
    return total


async def exchange_estimates(
    me: Party, order: Sequence[str], columns: Sequence[str], result: Mapping[str, Any]
) -> dict[str, Any]:
    """All parties' coefficients and standard errors: {party: (names, coefficients, errors)}, in "
    "this order."""
    others = [n for n in order if n != me.name]
    errors = result["covariance"].diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    outcomes = len(errors)
    names = [f"class {k + 1}: {c}" if outcomes > 1 else c for k in range(outcomes) for c in columns]
    ends = result.get("intercept", torch.zeros(0)).tolist()
    own = Estimates(
        names + [f"class {k + 1}: Intercept" if outcomes > 1 else "Intercept" for k in range(len(ends))],
        [*result["coef"].flatten().tolist(), *ends],
        [*errors.flatten().tolist(), *result.get("intercept_se", torch.zeros(0)).tolist()],
    )
    await me.send(others, own)
    tables = {me.name: own, **(await me.gather(others, Estimates))}
    for name, table in tables.items():
        if not len(table.names) == len(table.coefficients) == len(table.errors) <= PARAMETERS:
            raise ProtocolError(
                f"{name!r} sent {len(table.names)} names, {len(table.coefficients)} estimates and "
                f"{len(table.errors)} errors, which do not match."
            )
    return {name: [tables[name].names, tables[name].coefficients, tables[name].errors] for name in order}


async def helper(me: Party, terms: Mapping[str, Any]) -> None:
    """The helper's program: deal the randomness of the holders' program, planned from the shapes."""
    settings = GlmTerms.read(terms)
    check_terms(settings)
    widths = await read_widths(me, settings, settings.names)
    facts = check_facts(settings, await me.recv(settings.label_at, LabelFacts))
    fit_plan = make_plan(settings, facts, sum(w > 0 for w in widths.values()))
    check_widths(settings, facts, widths, fit_plan.outcomes)
    rank = settings.names.index(settings.label_at)
    requests = plan(lambda ctx: program(ctx, fit_plan, sum(widths.values()), None, rank), fixed=FixedPoint())
    await dealer(me, settings.names, requests)
