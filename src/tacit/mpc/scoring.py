"""Test metrics of a shared regression, computed on shares: the label holder gets sums over the test rows,
and no score of a row.

    linear     Σ e²,  Σ |e|                                         e = score − label, in standard deviations of the label
    logistic   Σ loss,  Σ [s ≥ 0],  Σ y[s ≥ 0]                      s the score, y the label
               Σ_i y_i · (#{j: s_i ≥ s_j} − #{j: s_j ≥ s_i})        the rank sum of Mann and Whitney (1947), up to `AUC_ROWS` test rows

The label holder knows y. From the sums follow loss, MAE and R², or loss, accuracy, precision, recall, F1
and the AUC, exactly (ties count one half). Sums over very few rows would be scores again, so there are at
least `MIN_TESTS` test rows or none. With `test_scores` the score of each row is opened instead: one number
a row, of all parties' columns together. Whoever knows test rows of the other party then has one linear
equation for each of them.
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
from .ring import Fixed
from .seat import Seat

MIN_TESTS = 10
AUC_ROWS = 1024  # n² comparisons: 14 MB from each party to each other, 38 MB from the helper
CHUNK = 1 << 17  # comparisons at once
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


async def evaluate(seat: Seat, family: str, test_scores: bool, x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    """[sums] or [scores] in one vector. `y` has 16 fractional bits for numbers, and none for classes."""
    exact = await functions.product(
        seat, x, w.reshape(-1, 1), MATMUL
    )  # 32 fractional bits: equal rows have equal scores, so ties stay ties
    exact = exact[:, 0]
    score = await functions.truncate(seat, exact)
    if test_scores:
        return score
    if family == "linear":
        off = score - y
        squares = await functions.truncate(seat, (await functions.square(seat, off)).sum(0, keepdim=True))
        return torch.cat([squares, (2 * await functions.relu(seat, off) - off).sum(0, keepdim=True)])
    signed = await functions.sign(seat, score)
    small = await functions.log(
        seat, functions.plus(seat, await functions.exp(seat, score - 2 * signed.positive), 1.0)
    )  # log(1 + e^−|s|)
    ranks = [await _ranks(seat, exact)] if len(x) <= AUC_ROWS else []
    by_label = await functions.product(
        seat, torch.stack([score, signed.bit, *ranks]), y.reshape(-1, 1), MATMUL
    )
    loss = (signed.positive + small).sum(0, keepdim=True) - by_label[0]
    return torch.cat([loss, signed.bit.sum(0, keepdim=True), *by_label[1:]])


async def _ranks(seat: Seat, scores: Tensor) -> Tensor:
    """[#{j: s_i ≥ s_j} − #{j: s_j ≥ s_i}] for each i."""
    above, below, many = [], torch.zeros_like(scores), max(1, CHUNK // len(scores))
    for some in scores.split(many):
        bits = (await functions.sign(seat, some.reshape(-1, 1) - scores)).bit
        above.append(bits.sum(1))
        below = below + bits.sum(0)
    return torch.cat(above) - below


async def open_to(
    me: Party, names: tuple[str, ...], label_at: str, share: Tensor, test_scores: bool
) -> Tensor | None:
    """Send my share to the label holder, who adds them up: scores as numbers, sums as they are in the
    ring.
    """
    kind: Any = ScoreShare if test_scores else MetricShare
    if me.name != label_at:
        await me.send(label_at, kind([share.contiguous()]))
        return None
    total = share.clone()
    for name, came in (await me.gather([n for n in names if n != label_at], kind)).items():
        if (
            len(came.values) != 1
            or came.values[0].shape != total.shape
            or came.values[0].dtype != torch.int64
        ):
            raise ProtocolError(
                f"{name!r} sent a share that does not fit the {len(total)} values of the test."
            )
        total += came.values[0]
    return Fixed().decode(total) if test_scores else total


def metrics_of(family: str, opened: Tensor, y: Tensor, scale: float) -> dict[str, float]:
    """The metrics, from the sums and the labels of the test rows; `scale` is the label's standard
    deviation.
    """
    n, unit, sums = len(y), Fixed().ulp, opened.tolist()
    if family == "linear":
        mse, mae = sums[0] * unit / n * scale**2, sums[1] * unit / n * scale
        spread = float((y.double() - y.double().mean()).square().mean())
        return {"loss": mse, "mae": mae, "r2": 1 - mse / spread if spread else 0.0}
    positives = int((y == 1).sum())
    guessed, hit = sums[1], sums[2]
    confusion = torch.tensor(
        [[n - positives - (guessed - hit), guessed - hit], [positives - hit, hit]], dtype=torch.float64
    )
    empty = torch.zeros(0, 0)
    found = measure(
        Counts(
            torch.tensor(sums[0] * unit, dtype=torch.float64), torch.tensor(float(n)), confusion, empty, empty
        )
    )
    pairs = positives * (n - positives)
    return found | ({"auc": (sums[3] + pairs) / (2 * pairs)} if len(sums) > 3 and pairs else {})
