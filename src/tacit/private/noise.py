"""Gaussian noise on the sums of clipped gradients, safe against the attack on floating-point noise.

Sums are rounded to whole multiples of a grid of σ/2²⁶ and discrete Gaussian numbers are added to them, whole
numbers to whole numbers (`accounting/wide.py`). The result is then turned into floating point, which tells
nothing more. Rounding moves the sums of two neighbours apart by at most √D grid steps, so σ is z·(C +
√D·σ/2²⁶): larger than z·C by a part in 10⁵ for a million parameters.

The bits come from the operating system: 32 bytes of it key one AES-256 stream for each draw
(`crypto/prg.py`), or, where the package `cryptography` is not installed, all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..accounting import wide
from ..crypto import prg
from ..errors import MissingExtra
from ..parameters import bad
from ..parties.secret import Secret


def keystream(secret: Secret) -> wide.Source:
    """As many secret bytes as asked for; every call has a key of its own."""

    def source(n: int) -> bytes:
        try:
            return prg.stream(secret.bytes(prg.KEY), -(-n // 8), 64).tobytes()[:n]
        except MissingExtra:
            return secret.bytes(n)

    return source


def deviation(multiplier: float, clip: float, size: int) -> float:
    """σ for `size` numbers: what makes z the ratio of noise to sensitivity after rounding, too."""
    lost = multiplier * math.sqrt(size) / wide.SIGMA
    if lost > 0.5:
        raise bad(
            "DPSGD",
            "noise_multiplier",
            multiplier,
            f"at most {0.5 * wide.SIGMA / math.sqrt(size):.4g} for {size:,} parameters, whose rounding adds "
            "up",
            "Use larger batches, or a smaller model.",
        )
    return multiplier * clip / (1 - lost)


def draw(size: int, source: wide.Source) -> Tensor:
    """`size` whole numbers of deviation 2²⁶."""
    return torch.from_numpy(wide.gaussian(size, source))


def noisy(sums: Sequence[Tensor], sigma: float, source: wide.Source) -> list[Tensor]:
    """Each sum, rounded to the grid, with noise of deviation σ."""
    return released(sums, sigma, draw(sum(t.numel() for t in sums), source))


def released(sums: Sequence[Tensor], sigma: float, noise: Tensor) -> list[Tensor]:
    """Each sum, rounded to the grid of σ/2²⁶, plus these whole numbers."""
    grid, out, at = sigma / wide.SIGMA, [], 0
    for t in sums:
        mine = noise[at : at + t.numel()].to(t.device)
        whole = t.reshape(-1).double().div_(grid).round_().to(torch.int64).add_(mine)
        out.append(whole.double().mul_(grid).to(t.dtype).view(t.shape))
        at += t.numel()
    return out
