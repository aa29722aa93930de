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
the sizes of x and x ∘ y. Both parties choose what sends less, from the shapes.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..crypto.prg import KEY
from ..crypto.rlwe import PUBLIC_BYTES, Draw, Evaluator, KeyHolder
from ..errors import ProtocolError
from ..parties.message import Message
from . import gilboa
from .beaver import Bilinear
from .extension import OTChannel
from .packing import Packing, pack_images, pack_matrix
from .ring import patches

TOGETHER = 64  # polynomials of one message: 15 MB


class FactorKey(Message, reveals="a public key for the products of an inference: pseudorandom numbers"):
    public: bytes


class EncryptedFactors(Message, reveals="random masks, encrypted: pseudorandom numbers"):
    seed: bytes
    values: bytes


class EncryptedProducts(Message, reveals="products of random masks under a one-time mask, encrypted"):
    values: bytes


class Plan(NamedTuple):
    """Which factor is encrypted, how both are packed, and what is computed: x ∘ y itself, or patches of x."""

    packing: Packing
    encrypts_left: bool
    by_patches: bool
    parts: int  # matrices of a batch, or groups of a convolution


@functools.lru_cache(maxsize=1024)
def choose(op: Bilinear, xs: tuple[int, ...], ys: tuple[int, ...]) -> Plan | None:
    """How to encrypt the product of these shapes; None where oblivious transfer sends less."""
    best = min(_plans(op, xs, ys), key=_ciphertext_bytes, default=None)
    if best is None or _ciphertext_bytes(best) + PUBLIC_BYTES >= gilboa.traffic(op, xs, ys):
        return None
    return best


def traffic(op: Bilinear, xs: tuple[int, ...], ys: tuple[int, ...]) -> int:
    """Bytes of one cross term, both ways, without the public key."""
    plan = choose(op, xs, ys)
    return gilboa.traffic(op, xs, ys) if plan is None else _ciphertext_bytes(plan)


def _ciphertext_bytes(plan: Plan) -> int:
    messages = sum(len(list(_pieces(count * plan.packing.inputs))) for count in _groups(plan.packing))
    return plan.parts * (plan.packing.traffic + messages * KEY)


def _plans(op: Bilinear, xs: tuple[int, ...], ys: tuple[int, ...]) -> Iterator[Plan]:
    if op.name == "matmul":
        rows, inner = (xs[-2] if len(xs) > 1 else 1), xs[-1]
        columns = ys[-1] if len(ys) > 1 else 1
        lead = len(ys) > 2
        if not lead:
            rows = int(np.prod(xs[:-1]))
        parts = int(np.prod(torch.broadcast_shapes(xs[:-2], ys[:-2]))) if lead else 1
        for left in (True, False):
            packing = pack_matrix(*((rows, inner, columns) if left else (columns, inner, rows)))
            if packing is not None and parts:
                yield Plan(packing, left, False, parts)
    if op.name == "conv2d":
        (stride, padding, dilation, groups) = op.options or ((1, 1), (0, 0), (1, 1), 1)
        out, each, kh, kw = ys
        n, _, rows, columns = op.shape(xs, ys)
        padded = (xs[0], each, xs[2] + 2 * padding[0], xs[3] + 2 * padding[1])
        images = pack_images(padded, (out // groups, each, kh, kw), stride, dilation)
        if images is not None:
            yield Plan(images, True, False, groups)
        for left in (True, False):
            sizes = n * rows * columns, each * kh * kw, out // groups
            matrix = pack_matrix(*(sizes if left else sizes[::-1]))
            if matrix is not None:
                yield Plan(matrix, left, True, groups)


async def cross(
    channel: OTChannel,
    op: Bilinear,
    x: Tensor | None,
    y: Tensor | None,
    xs: tuple[int, ...],
    ys: tuple[int, ...],
) -> Tensor:
    """This party's share of x ∘ y; one party has x and the other y, and each passes None for the other's."""
    plan = choose(op, xs, ys)
    if plan is None:
        return await gilboa.cross(channel, op, x, y, xs, ys)
    encrypts = (x is not None) == plan.encrypts_left
    factors = _split(plan, op, x, y, xs, ys)
    run = _encrypt if encrypts else _evaluate
    parts = [torch.from_numpy((await run(channel, plan.packing, f)).view(np.int64)) for f in factors]
    shape = op.shape(xs, ys)
    if op.name == "matmul":
        return torch.stack([p if plan.encrypts_left else p.T for p in parts]).reshape(shape)
    if not plan.by_patches:
        return torch.cat(parts, 1)
    n, out, rows, columns = shape
    filters_first = [p.T if plan.encrypts_left else p for p in parts]
    return torch.cat(filters_first).reshape(out, n, rows, columns).transpose(0, 1).contiguous()


def _split(
    plan: Plan,
    op: Bilinear,
    x: Tensor | None,
    y: Tensor | None,
    xs: tuple[int, ...],
    ys: tuple[int, ...],
) -> list[np.ndarray]:
    """My factor of each part: rows × inner words of a matrix, or images, or filters."""
    if op.name == "matmul":
        if x is not None:
            whole = x.reshape(-1, xs[-1]) if len(ys) < 3 else x if x.dim() > 1 else x[None]
        else:
            assert y is not None
            whole = (y if y.dim() > 1 else y[:, None]).transpose(-1, -2)
        if len(ys) > 2:
            lead = torch.broadcast_shapes(xs[:-2], ys[:-2])
            whole = whole.expand(*lead, *whole.shape[-2:])
        matrices = whole.reshape(-1, *whole.shape[-2:])
    else:
        stride, padding, dilation, groups = op.options or ((1, 1), (0, 0), (1, 1), 1)
        if x is None:
            assert y is not None
            matrices = y.reshape(groups, -1, *ys[1:])
            matrices = matrices.flatten(2) if plan.by_patches else matrices
        elif plan.by_patches:
            matrices = patches(x, ys, stride, padding, dilation, groups)[0].transpose(-1, -2)
        else:
            (down, right) = padding
            padded = torch.nn.functional.pad(x, (right, right, down, down))
            matrices = padded.unflatten(1, (groups, -1)).transpose(0, 1)
    return [part.contiguous().cpu().numpy().view(np.uint64) for part in matrices]


async def _encrypt(channel: OTChannel, packing: Packing, x: np.ndarray) -> np.ndarray:
    """Send my factor encrypted; returns the decrypted sums."""
    keys = channel.lattice
    if keys.holder is None:
        keys.holder = await asyncio.to_thread(KeyHolder, _draw(channel))
        await channel.me.send(channel.other, FactorKey(keys.holder.public))
        channel.identify(keys.holder.public, "public keys", PUBLIC_BYTES, 1)
    holder = keys.holder
    words = await asyncio.to_thread(packing.encode, x)
    width, sums, unit = len(packing.places), [], 0
    for count in _groups(packing):
        flat = words[unit : unit + count].reshape(-1, words.shape[-1])
        unit += count
        for begin, end in _pieces(len(flat)):
            seed, values = await asyncio.to_thread(holder.encrypt, flat[begin:end])
            await channel.me.send(channel.other, EncryptedFactors(seed, values))
            channel.charge(len(seed) + len(values), int(begin == 0))
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
        loaded = []
        for begin, end in _pieces(count * packing.inputs):
            message = await channel.me.recv(channel.other, EncryptedFactors)
            if len(message.seed) != KEY:
                raise ProtocolError(f"a seed has {KEY} bytes, received {len(message.seed)}.")
            loaded.append(await asyncio.to_thread(evaluator.load, message.seed, message.values, end - begin))
        channel.charge(0, 1)
        ciphertexts = np.concatenate(loaded).reshape(count, packing.inputs, *loaded[0].shape[1:])
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
    ciphertexts: np.ndarray,
    y: np.ndarray,
    mask: np.ndarray,
    sums: range,
) -> bytes:
    """The closed sums with these numbers; those of one output for all units follow each other."""
    closed, units, last = [], len(ciphertexts), -1
    for number in sums:
        output, unit = divmod(number, units)
        if output != last:
            factors, last = evaluator.prepare(packing.encode_plain(y, output)), output
        closed.append(evaluator.close(ciphertexts[unit], factors, packing.places, mask[output, unit]))
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
