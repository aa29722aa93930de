"""Products of two parties' matrices or images, shared between them, without a dealer, by homomorphic
encryption. Huang, Lu, Hong, Ding: Cheetah: Lean and Fast Secure Two-Party Deep Neural Network Inference,
USENIX Security 2022, Section 3, modulo 2^64.

    encryptor (x)                                           evaluator (y)
      |--- FactorKey(public key) ----------------------------->|   once
      |--- EncryptedFactors(Enc(x)) -------------------------->|   x packed in polynomials (`packing.py`)
      |<-- EncryptedProducts(Enc(x ∘ y + r)) ------------------|   r uniform

    encryptor: x ∘ y + r, decrypted;   evaluator: −r.   The sum is x ∘ y, exactly.

The evaluator learns nothing of x (ring-LWE), the encryptor nothing of y but x ∘ y + r, which is uniform, and
ciphertexts that hide which products were summed (`crypto/rlwe.py`). Both are semi-honest.

Gilboa's products (`gilboa.py`) take 288 bytes for each product of words and no key; here the traffic follows
the sizes of x and x ∘ y. Both parties choose what sends less, from the shapes; with products="ot", on which
they agree (`pair.py`), always Gilboa's.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..crypto.rlwe import PUBLIC_BYTES, Evaluator, KeyHolder
from ..crypto.sealapi import Draw
from ..parties.message import Message
from . import gilboa, matrices
from .beaver import Bilinear
from .extension import OTChannel
from .packing import Packing, pack_images, pack_matrix

TOGETHER = 64  # polynomials of one message: 14 MB


class FactorKey(Message, reveals="a public key for the products of an inference: pseudorandom numbers"):
    public: bytes


class EncryptedFactors(Message, reveals="random masks, encrypted: pseudorandom numbers"):
    seeds: bytes
    values: bytes


class EncryptedProducts(Message, reveals="products of random masks under a one-time mask, encrypted"):
    values: bytes


class Plan(NamedTuple):
    """Which factor is encrypted, how both are packed, as images or as matrices (`matrices.py`)."""

    packing: Packing
    encrypts_left: bool
    by_images: bool
    parts: int  # matrices of a batch, or groups of a convolution


@functools.lru_cache(maxsize=1024)
def choose(op: Bilinear, xs: tuple[int, ...], ys: tuple[int, ...]) -> Plan | None:
    """How to encrypt the product of these shapes; None where oblivious transfer sends less."""
    best = min(_plans(op, xs, ys), key=_ciphertext_bytes, default=None)
    if best is None or _ciphertext_bytes(best) + PUBLIC_BYTES >= gilboa.traffic(op, xs, ys):
        return None
    return best


def traffic(op: Bilinear, xs: tuple[int, ...], ys: tuple[int, ...], products: str = "he") -> int:
    """Bytes of one cross term, both ways, without the public key."""
    plan = choose(op, xs, ys) if products == "he" else None
    return gilboa.traffic(op, xs, ys) if plan is None else _ciphertext_bytes(plan)


def _ciphertext_bytes(plan: Plan) -> int:
    return plan.parts * plan.packing.traffic


def _plans(op: Bilinear, xs: tuple[int, ...], ys: tuple[int, ...]) -> Iterator[Plan]:
    if op.name == "mul":
        return
    parts, rows, inner, columns = matrices.measure(op, xs, ys)
    for left in (True, False):
        packing = pack_matrix(*((rows, inner, columns) if left else (columns, inner, rows)))
        if packing is not None and parts:
            yield Plan(packing, left, False, parts)
    if op.name == "conv2d":
        (stride, padding, dilation, groups) = op.options or ((1, 1), (0, 0), (1, 1), 1)
        out, each, kh, kw = ys
        padded = (xs[0], each, xs[2] + 2 * padding[0], xs[3] + 2 * padding[1])
        images = pack_images(padded, (out // groups, each, kh, kw), stride, dilation)
        if images is not None:
            yield Plan(images, True, True, groups)


async def cross(
    channel: OTChannel,
    op: Bilinear,
    x: Tensor | None,
    y: Tensor | None,
    xs: tuple[int, ...],
    ys: tuple[int, ...],
) -> Tensor:
    """This party's share of x ∘ y; one party has x and the other y, and each passes None for the other's."""
    plan = choose(op, xs, ys) if channel.products == "he" else None
    if plan is None:
        return await gilboa.cross(channel, op, x, y, xs, ys)
    factors = _split(plan, op, x, y, xs, ys)
    run = _encrypt if (x is not None) == plan.encrypts_left else _evaluate
    parts = [torch.from_numpy((await run(channel, plan.packing, f)).view(np.int64)) for f in factors]
    if plan.by_images:
        return torch.cat(parts, 1)
    return matrices.join(op, [p if plan.encrypts_left else p.T for p in parts], xs, ys)


def _split(
    plan: Plan, op: Bilinear, x: Tensor | None, y: Tensor | None, xs: tuple[int, ...], ys: tuple[int, ...]
) -> list[np.ndarray]:
    """My factor of each part: rows × inner words of a matrix, or images, or filters."""
    if plan.by_images:
        _, (down, right), _, groups = op.options or ((1, 1), (0, 0), (1, 1), 1)
        if x is not None:
            mine = F.pad(x, (right, right, down, down)).unflatten(1, (groups, -1)).transpose(0, 1)
        else:
            assert y is not None
            mine = y.reshape(groups, -1, *ys[1:])
    elif x is not None:
        mine = matrices.split_left(op, x, ys)
    else:
        assert y is not None
        mine = matrices.split_right(op, y, xs).transpose(-1, -2)
    return [part.contiguous().cpu().numpy().view(np.uint64) for part in mine]


async def _encrypt(channel: OTChannel, packing: Packing, x: np.ndarray) -> np.ndarray:
    """Send my factor encrypted; returns the decrypted sums."""
    keys = channel.lattice
    if keys.holder is None:
        keys.holder = await asyncio.to_thread(KeyHolder)
        await channel.me.send(channel.other, FactorKey(keys.holder.public))
        channel.identify(keys.holder.public, "public keys", PUBLIC_BYTES, 1)
    holder = keys.holder
    words = await asyncio.to_thread(packing.encode, x)
    width, sums, unit = len(packing.places), [], 0
    for count in _groups(packing):
        flat = words[unit : unit + count].reshape(-1, words.shape[-1])
        unit += count
        for begin, end in _pieces(len(flat)):
            seeds, values = await asyncio.to_thread(holder.encrypt, flat[begin:end])
            await channel.me.send(channel.other, EncryptedFactors(seeds, values))
            channel.charge(len(seeds) + len(values), int(begin == 0))
        found = []
        for begin, end in _pieces(count * packing.outputs):
            values = (await channel.me.recv(channel.other, EncryptedProducts)).values
            found.append(await asyncio.to_thread(holder.decrypt, values, end - begin, packing.places))
        channel.charge(0, 1)
        # sums of one output follow each other
        sums.append(np.concatenate(found).reshape(packing.outputs, count, width).swapaxes(0, 1))
    return packing.decode(np.concatenate(sums))


async def _evaluate(channel: OTChannel, packing: Packing, y: np.ndarray) -> np.ndarray:
    """Multiply the other's encrypted factor by mine; returns the negated masks."""
    keys = channel.lattice
    if keys.evaluator is None:
        public = (await channel.me.recv(channel.other, FactorKey)).public
        keys.evaluator = await asyncio.to_thread(Evaluator, public, _draw(channel))
        channel.identify(public, "public keys", 0, 1)
    evaluator = keys.evaluator
    masks = []
    for count in _groups(packing):
        ciphertexts: list[Any] = []
        for begin, end in _pieces(count * packing.inputs):
            message = await channel.me.recv(channel.other, EncryptedFactors)
            opened = await asyncio.to_thread(evaluator.open, message.seeds, message.values, end - begin)
            ciphertexts.extend(opened)
        channel.charge(0, 1)
        size = len(packing.places)
        mask = channel.draw(count * packing.outputs, 8 * size).view(np.uint64)
        mask = mask.reshape(packing.outputs, count, size)
        for begin, end in _pieces(count * packing.outputs):
            closed = await asyncio.to_thread(
                _multiply, evaluator, packing, ciphertexts, y, mask, range(begin, end)
            )
            await channel.me.send(channel.other, EncryptedProducts(closed))
            channel.charge(len(closed), int(begin == 0))
        masks.append(mask.swapaxes(0, 1))
    return packing.decode(np.uint64(0) - np.concatenate(masks))


def _multiply(
    evaluator: Evaluator,
    packing: Packing,
    ciphertexts: list[Any],
    y: np.ndarray,
    mask: np.ndarray,
    sums: range,
) -> bytes:
    """The closed sums with these numbers; those of one output for all units follow each other."""
    closed, each, last = [], packing.inputs, -1
    units = len(ciphertexts) // each
    for number in sums:
        output, unit = divmod(number, units)
        if output != last:
            factors, last = evaluator.prepare(packing.encode_plain(y, output)), output
        some = ciphertexts[unit * each : (unit + 1) * each]
        closed.append(evaluator.close(some, factors, packing.places, mask[output, unit]))
    return b"".join(closed)


def _groups(packing: Packing) -> Iterator[int]:
    """How many units go together: up to 64 polynomials, or one unit."""
    each = max(1, TOGETHER // packing.inputs)
    for begin in range(0, packing.units, each):
        yield min(each, packing.units - begin)


def _pieces(count: int) -> Iterator[tuple[int, int]]:
    """Polynomials of each message of a group."""
    for begin in range(0, count, TOGETHER):
        yield begin, min(begin + TOGETHER, count)


def _draw(channel: OTChannel) -> Draw:
    return lambda count: channel.draw(count).tobytes()
