"""Kernels of secret sharing on a GPU: a keystream, products modulo 2^64, and the local steps of comparisons
and truncations.

Each has a twin in torch, which computes the same bits on any device: `crypto/chacha.py`, `mpc/ring.py`,
`mpc/compare.py` and `mpc/truncate.py` say what is computed. A kernel does in one pass over the memory what
torch does in ten to sixty. Triton comes with torch's builds for CUDA; without it the twins are used. Bits are
packed eight to a byte, the first in the highest bit; positions behind the last value are 0.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import torch
from torch import Tensor

DIGITS = 16  # of a comparison
LIMBS = 8  # of a word, for products of bytes
WIDEST = 1 << 13  # terms of a product: of each at most 8 · 2^7 · 2^7, so a sum is at most 2^30
PER_PROGRAM = 256


def supports(x: Tensor) -> bool:
    """Whether there are kernels for this tensor."""
    return x.is_cuda and x.numel() > 0 and has_triton()


@cache
def has_triton() -> bool:
    """Whether torch was built for CUDA and Triton is installed."""
    return torch.version.cuda is not None and importlib.util.find_spec("triton") is not None


@cache
def _kernels() -> Any:
    from . import triton_kernels

    return triton_kernels


def _launch(name: str, grid: tuple[int, ...], given: Tensor, *more: Any) -> None:
    """Run a kernel on the device of its first argument; Triton takes the current one, perhaps another."""
    with torch.cuda.device(given.device):
        getattr(_kernels(), name)[grid](given, *more)


def _grid(count: int) -> tuple[int]:
    return (-(-count // PER_PROGRAM),)


def chacha_blocks(key: Tensor, first: int, count: int) -> Tensor:
    """Blocks of ChaCha20's keystream as bytes; `key` is eight words."""
    out = torch.empty(count * 16, dtype=torch.int32, device=key.device)
    if count:
        _launch("chacha", (-(-count // 128),), key, out, first, count, 128)
    return out.view(torch.uint8)


def _split_digits(words: Tensor, rows: int, columns: int, reverse: bool) -> Tensor:
    """[rows, 8, columns] signed digits of a matrix of words, padded with zeros."""
    out = torch.empty((rows, LIMBS, columns), dtype=torch.int8, device=words.device)
    grid = (-(-rows // 32), -(-columns // 32))
    order = (LIMBS - 1, -1) if reverse else (0, 1)
    _launch(
        "split", grid, words, out, *words.shape, words.stride(1), words.stride(0), rows, columns, *order, 32
    )
    return out


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """x @ y modulo 2^64, of matrices: 36 products of bytes on the tensor cores, in eight calls.

    A word is Σ_i d_i·2^(8i) with digits from −128 to 127, so the product is Σ_p 2^(8p) · Σ_{i+j=p} x_i y_j,
    for p < 8. For each p the digits of x in order, and of y in reverse order, are one product of matrices.
    """
    (m, k), n = x.shape, y.shape[1]
    total = torch.zeros((m, n), dtype=torch.int64, device=x.device) if k > WIDEST else None
    for start in range(0, k, WIDEST):
        part = _product(x[:, start : start + WIDEST], y[start : start + WIDEST])
        if total is None:
            return part
        total += part
    return x.new_zeros((m, n)) if total is None else total


def _product(x: Tensor, y: Tensor) -> Tensor:
    (m, k), n = x.shape, y.shape[1]
    # cuBLAS takes more than 16 rows, and columns in eights; aligned terms are faster
    rows, size, width = max(32, -(-m // 8) * 8), -(-k // 16) * 16, -(-n // 8) * 8
    left = _split_digits(x, rows, size, False).view(rows, -1)
    right = _split_digits(y.t(), width, size, True).view(width, -1)
    sums = torch.empty((LIMBS, rows, width), dtype=torch.int32, device=x.device)
    for p in range(LIMBS):
        torch._int_mm(left[:, : (p + 1) * size], right[:, (LIMBS - 1 - p) * size :].t(), out=sums[p])
    out = torch.empty((m, n), dtype=torch.int64, device=x.device)
    if m * n:
        _launch("join", _grid(m * n), sums, out, m, n, width, rows * width, PER_PROGRAM)
    return out


def compare_digits(c: Tensor, codes: Tensor, first: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(less [16], equal [15], bit 7 of the codes [16], bit 48 of c), packed."""
    count, size = c.numel(), packed_size(c)
    out = torch.empty((48, size), dtype=torch.uint8, device=c.device)
    _launch("digits", (-(-size // 64),), c, codes, out, count, size, int(first), 64)
    return out[:16], out[16:31], out[31:47], out[47]


def packed_size(c: Tensor) -> int:
    """Bytes that a bit of each value takes."""
    return (c.numel() + 7) // 8


def mask_pairs(lt: Tensor, eq: Tensor, a: Tensor, b: Tensor, g: Tensor | None) -> Tensor:
    """The rows that a level of a comparison opens."""
    pairs, size = a.shape
    out = torch.empty((3 * pairs - 1, size), dtype=torch.uint8, device=a.device)
    _launch("mask", _grid(a.numel()), lt, eq, a, b, b if g is None else g, out, pairs, size, PER_PROGRAM)
    return out


def combine_pairs(
    lt: Tensor, opened: Tensor, t: dict[str, Tensor], pairs: int, first: bool
) -> tuple[Tensor, Tensor]:
    """(less, equal) of the pairs of a level."""
    size = opened.shape[1]
    below = torch.empty((pairs, size), dtype=torch.uint8, device=lt.device)
    equal = torch.empty((pairs - 1, size), dtype=torch.uint8, device=lt.device)
    a, b, ab = t[f"a{pairs}"], t[f"b{pairs}"], t[f"ab{pairs}"]
    g, ag = (t[f"g{pairs}"], t[f"ag{pairs}"]) if pairs > 1 else (b, b)
    _launch(
        "combine",
        _grid(pairs * size),
        lt,
        opened,
        a,
        b,
        ab,
        g,
        ag,
        below,
        equal,
        pairs,
        size,
        int(first),
        PER_PROGRAM,
    )
    return below, equal


def finish_sign(
    x: Tensor, c: Tensor, beta: Tensor, beta_r: Tensor, opened: Tensor, first: bool
) -> tuple[Tensor, Tensor]:
    """([x ≥ 0], [max(x, 0)]) of a comparison."""
    bit, positive = torch.empty_like(c), torch.empty_like(c)
    count = c.numel()
    _launch(
        "finish",
        _grid(count),
        x.contiguous(),
        c,
        beta,
        beta_r,
        opened,
        bit,
        positive,
        count,
        int(first),
        PER_PROGRAM,
    )
    return bit, positive


def make_codes(r: Tensor, spare: Tensor, bits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The dealer's (codes [16], β, β·r) of a comparison."""
    count = r.numel()
    codes = torch.empty((DIGITS, count), dtype=torch.uint8, device=r.device)
    beta, beta_r = torch.empty_like(r), torch.empty_like(r)
    _launch("codes", _grid(count), r, spare, bits, codes, beta, beta_r, count, packed_size(r), PER_PROGRAM)
    return codes, beta, beta_r


def mask_tops(v: Tensor, bits: Tensor, first: bool) -> tuple[Tensor, Tensor]:
    """(the top bits that a truncation needs, the same under this party's mask), packed."""
    size = packed_size(v)
    packed, masked = (torch.empty(size, dtype=torch.uint8, device=v.device) for _ in range(2))
    _launch("tops", (-(-size // 64),), v, bits, packed, masked, v.numel(), size, int(first), 64)
    return packed, masked


def add_carry(
    v: Tensor,
    uw: Tensor,
    packed: Tensor,
    bits: Tensor,
    masked: Tensor,
    flips: Tensor,
    places: int,
    first: bool,
) -> Tensor:
    """This party's share of a truncated value."""
    out, count = torch.empty(v.shape, dtype=torch.int64, device=v.device), v.numel()
    _launch(
        "carry", _grid(count), v, uw, packed, bits, masked, flips, out, count, places, int(first), PER_PROGRAM
    )
    return out
