"""Test metrics of a shared regression, computed on shares: the label holder learns sums over the test rows,
and no row's score.

    linear     Σ e²,  Σ |e|                        e = score − label, in standard deviations of the label
    logistic   Σ loss,  Σ [s ≥ 0],  Σ y[s ≥ 0]     s the score, y the label
               Σ_i y_i · (#{j: s_i ≥ s_j} − #{j: s_j ≥ s_i})        up to `AUC_ROWS` test rows

The last sum is the rank sum of Mann and Whitney (1947). The label holder knows y. From the sums follow loss,
MAE and R², or loss, accuracy, precision, recall, F1 and the AUC, exactly (ties count one half). Sums over
very few rows would reveal scores, so there are at least `MIN_TESTS` test rows or none. With `test_scores` the
score of each row is opened instead: one number per row, of all parties' columns together. A label holder that
knows test rows of another party then has one linear equation for each of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..engine.metrics import Counts, measure
from ..errors import ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from . import functions
from .beaver import MATMUL
from .context import RingContext
from .ring import FixedPoint

MIN_TESTS = 10
AUC_ROWS = 1024  # n² comparisons: 14 MB from each party to each other, 38 MB from the helper
CHUNK = 1 << 17  # comparisons at a time
OPENED = (
    "TEST SCORES OPENED: the label holder got one number for each test row, the score that all "
    "parties' columns make together."
)


class MetricShare(
    Message,
    reveals="a share of sums over the test rows: with the others', two to four numbers from which the test "
    "metrics follow",
):
    values: list[Tensor]


class ScoreShare(
    Message,
    reveals="a share of the score of each test row: with the others', one number a row that all columns "
    "make together",
):
    values: list[Tensor]


async def evaluate(
    ctx: RingContext, family: str, test_scores: bool, x: Tensor, w: Tensor, y: Tensor
) -> Tensor:
    """[sums] or [scores] in one vector. `y` has 16 fractional bits for numbers, and none for classes."""
    # 32 fractional bits: equal rows have exactly equal scores, which preserves ties
    exact = (await ctx.product(x, w.reshape(-1, 1), MATMUL))[:, 0]
    score = await ctx.truncate(exact)
    if test_scores:
        return score
    if family == "linear":
        error = score - y
        squares = await ctx.truncate((await ctx.square(error)).sum(0, keepdim=True))
        return torch.cat([squares, (2 * await functions.relu(ctx, error) - error).sum(0, keepdim=True)])
    sign = await ctx.sign(score)
    small = await functions.log(
        ctx, functions.add_scalar(ctx, await functions.exp(ctx, score - 2 * sign.positive), 1.0)
    )  # log(1 + e^−|s|)
    ranks = [await _ranks(ctx, exact)] if len(x) <= AUC_ROWS else []
    by_label = await ctx.product(torch.stack([score, sign.bit, *ranks]), y.reshape(-1, 1), MATMUL)
    loss = (sign.positive + small).sum(0, keepdim=True) - by_label[0]
    return torch.cat([loss, sign.bit.sum(0, keepdim=True), *by_label[1:]])


async def _ranks(ctx: RingContext, scores: Tensor) -> Tensor:
    """[#{j: s_i ≥ s_j} − #{j: s_j ≥ s_i}] for each i."""
    above, below, many = [], torch.zeros_like(scores), max(1, CHUNK // len(scores))
    for some in scores.split(many):
        bits = (await ctx.sign(some.reshape(-1, 1) - scores)).bit
        above.append(bits.sum(1))
        below = below + bits.sum(0)
    return torch.cat(above) - below


async def open_to(
    me: Party, names: tuple[str, ...], label_at: str, share: Tensor, test_scores: bool
) -> Tensor | None:
    """Send my share to the label holder, who adds them: scores are decoded, sums stay ring elements."""
    kind: Any = ScoreShare if test_scores else MetricShare
    if me.name != label_at:
        await me.send(label_at, kind([share.contiguous()]))
        return None
    total = share.clone()
    for name, message in (await me.gather([n for n in names if n != label_at], kind)).items():
        if [(v.shape, v.dtype) for v in message.values] != [(total.shape, torch.int64)]:
            raise ProtocolError(
                f"{name!r} sent a share that does not match the {len(total)} values of the test."
            )
        total += message.values[0]
    return FixedPoint().decode(total) if test_scores else total


def compute_metrics(family: str, opened: Tensor, y: Tensor, scale: float) -> dict[str, float]:
    """The metrics from the sums and the test labels; `scale` is the label's standard deviation."""
    n, unit, sums = len(y), FixedPoint().ulp, opened.tolist()
    if family == "linear":
        mse, mae = sums[0] * unit / n * scale**2, sums[1] * unit / n * scale
        variance = float((y.double() - y.double().mean()).square().mean())
        return {"loss": mse, "mae": mae, "r2": 1 - mse / variance if variance else 0.0}
    positives = int((y == 1).sum())
    predicted, hits = sums[1], sums[2]
    confusion = torch.tensor(
        [[n - positives - (predicted - hits), predicted - hits], [positives - hits, hits]],
        dtype=torch.float64,
    )
    empty = torch.zeros(0, 0)
    metrics = measure(
        Counts(
            torch.tensor(sums[0] * unit, dtype=torch.float64),
            torch.tensor(float(n)),
            confusion,
            empty,
            empty,
            torch.zeros(0),
        )
    )
    pairs = positives * (n - positives)
    return metrics | ({"auc": (sums[3] + pairs) / (2 * pairs)} if len(sums) > 3 and pairs else {})
