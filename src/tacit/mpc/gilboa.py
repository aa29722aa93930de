"""Products of two parties' words, shared between them, without a dealer. Gilboa: Two Party RSA Key
Generation, CRYPTO 1999, Section 4.1, modulo 2^64.

    receiver (words x)                                       sender (words y)
      |--- Extended(bits of x) -------------------------------->|   for bit j of x: pads m0, m1; receiver: m_x
      |<-- Correlations(m0 − m1 + y mod 2^(64−j)) --------------|

    receiver: Σ_j 2^j (m0 + x_j y);   sender: −Σ_j 2^j m0.   The sum is x·y.

    In a Beaver triple c = a ∘ b with a = a_0 + a_1, b = b_0 + b_1, the terms a_0 ∘ b_0 and a_1 ∘ b_1 are
    local, and the cross terms a_0 ∘ b_1 and a_1 ∘ b_0 are computed this way.

Each party learns nothing but lengths: what it receives is masked by pads it cannot compute. A row of y is
sent for each word of x, so a matrix product takes as many transfers as its smaller factor has bits; a
convolution is the product of its filters with the patches.
"""

from __future__ import annotations

import asyncio
import math

import numpy as np
import torch
from torch import Tensor

from ..crypto.bits import pack
from . import matrices
from .beaver import Bilinear
from .extension import BASE, OTChannel
from .ring import WORD

ROOM = 1 << 20  # words of pads at a time: 8 MB, in some 200 MB of transfers and their hashes
# bytes that matter for bit j: a number that is multiplied by 2^j counts modulo 2^(64−j)
_WIDTHS = [(WORD - j + 7) // 8 for j in range(WORD)]
_PLACES = np.arange(WORD, dtype=np.uint64)[:, None]


async def cross(
    channel: OTChannel,
    op: Bilinear,
    x: Tensor | None,
    y: Tensor | None,
    xs: tuple[int, ...],
    ys: tuple[int, ...],
) -> Tensor:
    """This party's share of x ∘ y; one party has x and the other y, and each passes None for the other's."""
    if op.name == "mul":
        shape = op.shape(xs, ys)
        left, right = (None if t is None else t.expand(shape).flatten() for t in (x, y))
        return (await elementwise(channel, left, right)).reshape(shape)
    parts, *sizes = matrices.measure(op, xs, ys)
    lefts = None if x is None else matrices.split_left(op, x, ys)
    rights = None if y is None else matrices.split_right(op, y, xs)
    products = [
        await _matrix(
            channel, None if lefts is None else lefts[i], None if rights is None else rights[i], *sizes
        )
        for i in range(parts)
    ]
    return matrices.join(op, products, xs, ys)


async def elementwise(channel: OTChannel, x: Tensor | None, y: Tensor | None) -> Tensor:
    """x·y, word by word."""
    if x is not None:
        return _tensor(await _as_receiver(channel, _words(x), 1))[:, 0]
    assert y is not None
    return _tensor(await _as_sender(channel, _words(y).reshape(-1, 1)))[:, 0]


async def _matrix(channel: OTChannel, x: Tensor | None, y: Tensor | None, n: int, k: int, m: int) -> Tensor:
    """[n, k] × [k, m]: each word of x is transferred with its row of y; the smaller factor has the choice
    bits.
    """
    if n > m:  # x ∘ y = (yᵀ xᵀ)ᵀ
        return (
            await _matrix(
                channel, None if y is None else y.reshape(k, m).T, None if x is None else x.T, m, k, n
            )
        ).T.contiguous()
    if x is not None:
        return _tensor(await _as_receiver(channel, _words(x).ravel(), m, k))
    assert y is not None
    return _tensor(await _as_sender(channel, _words(y.reshape(k, m)), n, k))


async def _as_receiver(channel: OTChannel, x: np.ndarray, length: int, fold: int = 1) -> np.ndarray:
    """Shares of x_i · (row of `length` words), summed over `fold` consecutive i."""
    total = np.zeros((len(x) // fold, length), np.uint64)
    for start, stop in _pieces(len(x), length):
        bits = ((x[None, start:stop] >> _PLACES) & np.uint64(1)).astype(np.uint8)
        mine = await channel.choose(pack(bits.ravel()), length)
        message = await channel.receive_correlations(sum(_WIDTHS) * (stop - start) * length)
        _accumulate(
            total, await asyncio.to_thread(_receive_products, mine, bits, message, length), start, fold
        )
    return total


def _receive_products(mine: np.ndarray, bits: np.ndarray, message: bytes, length: int) -> np.ndarray:
    count = bits.shape[1]
    pad = mine.reshape(WORD, count, length)
    total, at, sent = np.zeros((count, length), np.uint64), 0, np.zeros((count, length, 8), np.uint8)
    words = sent.view(np.uint64)[..., 0]
    for j, width in enumerate(_WIDTHS):
        size = count * length * width
        sent[..., :width] = np.frombuffer(message, np.uint8, size, at).reshape(
            count, length, width
        )  # bytes above `width` are shifted out
        at += size
        total += (pad[j] + words * bits[j][:, None].astype(np.uint64)) << np.uint64(j)
    return total


async def _as_sender(channel: OTChannel, y: np.ndarray, turns: int = 1, fold: int = 1) -> np.ndarray:
    """The rows of y, repeated `turns` times (once for each row of x)."""
    count, length = len(y) * turns, y.shape[1]
    total = np.zeros((count // fold, length), np.uint64)
    for start, stop in _pieces(count, length):
        zero, one = await channel.extend(WORD * (stop - start) // 8, length)
        message, share = await asyncio.to_thread(
            _send_products, zero, one, y[np.arange(start, stop) % len(y)]
        )
        await channel.send_correlations(message)
        _accumulate(total, share, start, fold)
    return total


def _send_products(zero: np.ndarray, one: np.ndarray, y: np.ndarray) -> tuple[bytes, np.ndarray]:
    """(message to the receiver, my share) for rows of words y."""
    count, length = y.shape
    zero, one = zero.reshape(WORD, count, length), one.reshape(WORD, count, length)
    total, parts = np.zeros((count, length), np.uint64), []
    for j, width in enumerate(_WIDTHS):
        parts.append(
            np.ascontiguousarray(zero[j] - one[j] + y)
            .view(np.uint8)
            .reshape(count, length, 8)[..., :width]
            .tobytes()
        )
        total -= zero[j] << np.uint64(j)
    return b"".join(parts), total


def traffic(op: Bilinear, xs: tuple[int, ...], ys: tuple[int, ...]) -> int:
    """Bytes of one cross term, both ways: transfers for the smaller factor, and words for every product."""
    if op.name == "mul":
        choices = products = math.prod(op.shape(xs, ys))
    else:
        parts, rows, inner, columns = matrices.measure(op, xs, ys)
        choices, products = parts * min(rows, columns) * inner, parts * rows * inner * columns
    return choices * WORD * BASE // 8 + products * sum(_WIDTHS)


def _accumulate(total: np.ndarray, some: np.ndarray, start: int, fold: int) -> None:
    """Add rows start, start + 1, … to the rows of the total that they belong to."""
    edges = np.arange(start // fold, (start + len(some) - 1) // fold + 1)
    total[edges] += np.add.reduceat(some, np.maximum(edges * fold - start, 0), axis=0)


def _pieces(count: int, length: int) -> list[tuple[int, int]]:
    each = max(1, ROOM // (WORD * length))
    return [(start, min(start + each, count)) for start in range(0, count, each)]


def _words(x: Tensor) -> np.ndarray:
    return x.contiguous().cpu().numpy().view(np.uint64)


def _tensor(x: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(x).view(np.int64))
