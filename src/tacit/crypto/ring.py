"""Integers modulo 2^width: the ring in which masked vectors are added.

A sum of n numbers of at most ±bound is exact if 2·n·bound < 2^width, so the width follows from n and the
bound. Widths are multiples of 4 up to 32 and of 8 above: two numbers, or one, then fill whole bytes, and
packing is a shift and a copy.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from ..errors import BadData
from ..parameters import bad

WIDTHS = (8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64)  # bits


def width_for(parties: int, bound: int) -> int:
    """The smallest width in which the sum of `parties` numbers of at most ±bound cannot overflow."""
    need = (2 * parties * bound).bit_length()  # 2·n·bound + 1 different sums, and 2·n·bound < 2^need
    for width in WIDTHS:
        if width >= need:
            return width
    raise bad(
        "SecAgg",
        "the range of a sum",
        f"±{parties * bound}",
        f"below 2^{WIDTHS[-1] - 1}",
        "Quantize to fewer bits, or use fewer parties per round.",
    )


@cache
def word(width: int) -> np.dtype:
    """The machine word in which numbers of this width are added; the bits above are dropped at the end."""
    if width not in WIDTHS:
        raise bad("ring", "width", width, f"one of {', '.join(map(str, WIDTHS))}")
    return np.dtype(next(f"uint{bits}" for bits in (8, 16, 32, 64) if bits >= width))


def truncate(words: np.ndarray, width: int) -> np.ndarray:
    """Drop the bits above the width, in place."""
    if width < 8 * words.itemsize:
        words &= words.dtype.type((1 << width) - 1)
    return words


def encode(values: np.ndarray, width: int, bound: int) -> np.ndarray:
    """Encode signed integers; refuse those outside ±bound, which could overflow the sum."""
    if values.dtype.kind not in "iu" or values.ndim != 1:
        raise BadData(
            f"expected a vector of integers, got {values.dtype} with {values.ndim} dimensions. "
            "Quantize first."
        )
    check_bound(values, bound)
    return truncate(values.astype(word(width)), width)  # two's complement: casting down is the residue


def check_bound(values: np.ndarray, bound: int) -> None:
    if len(values) and (int(values.max()) > bound or int(values.min()) < -bound):
        outside = int(np.count_nonzero((values > bound) | (values < -bound)))
        raise BadData(
            f"{outside} of {len(values)} numbers are outside ±{bound}, the range agreed for this sum. Clip "
            "before quantizing, or agree on more bits."
        )


def decode(words: np.ndarray, width: int) -> np.ndarray:
    """Decode as signed numbers, in int64."""
    if width == 64 and words.dtype == np.uint64:
        return words.view(np.int64)
    spare = 64 - width
    return (words.astype(np.uint64) << np.uint64(spare)).view(np.int64) >> np.int64(spare)


def pack(words: np.ndarray, width: int) -> np.ndarray:
    """Pack into bytes: `width` bits per number, with the last byte padded."""
    if width == 8 * words.itemsize:
        return words.view(np.uint8)
    if width % 8 == 0:
        return np.ascontiguousarray(
            words.view(np.uint8).reshape(len(words), words.itemsize)[:, : width // 8]
        ).reshape(-1)
    even = words if len(words) % 2 == 0 else np.append(words, words.dtype.type(0))
    both = even[0::2].astype(np.uint64) | even[1::2].astype(np.uint64) << np.uint64(width)
    packed = np.ascontiguousarray(both.view(np.uint8).reshape(len(both), 8)[:, : width // 4]).reshape(-1)
    return packed[: packed_bytes(len(words), width)]


def packed_bytes(length: int, width: int) -> int:
    return -(-length * width // 8)


def unpack(data: np.ndarray, length: int, width: int) -> np.ndarray:
    """The inverse of `pack`."""
    kind = word(width)
    if len(data) != packed_bytes(length, width):
        raise BadData(
            f"{len(data)} bytes are not {length} numbers of {width} bits, which take "
            f"{packed_bytes(length, width)}."
        )
    if width == 8 * kind.itemsize:
        return np.ascontiguousarray(data).view(kind)
    if width % 8 == 0:
        wide = np.zeros((length, kind.itemsize), np.uint8)
        wide[:, : width // 8] = data.reshape(length, width // 8)
        return wide.view(kind).reshape(-1)
    pairs, pair = -(-length // 2), width // 4
    wide = np.zeros((pairs, 8), np.uint8)
    full = length // 2
    wide[:full, :pair] = data[: full * pair].reshape(full, pair)
    if length % 2:
        rest = data[full * pair :]
        wide[full, : len(rest)] = rest
    both = wide.view(np.uint64).reshape(-1)
    words = np.empty(2 * pairs, kind)
    words[0::2] = both & np.uint64((1 << width) - 1)
    words[1::2] = both >> np.uint64(width)
    return words[:length]
