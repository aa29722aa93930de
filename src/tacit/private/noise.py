"""Gaussian noise on sums of clipped gradients, safe against floating-point attacks.

Sums are rounded to multiples of a grid of σ/2²⁶, and discrete Gaussian integers are added to integers
(`accounting/wide.py`). Converting the result to floating point reveals nothing more. Rounding moves the sums
of neighboring data sets apart by at most √D grid steps, so σ is z·(C + √D·σ/2²⁶): larger than z·C by about
10⁻⁵ for a million parameters.

The random bits come from the operating system: 32 bytes key one AES-256 stream for each draw
(`crypto/prg.py`), or all bytes, if the package `cryptography` is not installed.
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
    """Return a source of secret bytes; every call uses a new key."""

    def source(n: int) -> bytes:
        try:
            return prg.stream(secret.bytes(prg.KEY), -(-n // 8), 64).tobytes()[:n]
        except MissingExtra:
            return secret.bytes(n)

    return source


def deviation(multiplier: float, clip: float, size: int) -> float:
    """Return σ for `size` numbers, such that z is the noise multiplier also after rounding."""
    lost = multiplier * math.sqrt(size) / wide.SIGMA
    if lost > 0.5:
        raise bad(
            "DPSGD",
            "noise_multiplier",
            multiplier,
            f"at most {0.5 * wide.SIGMA / math.sqrt(size):.4g} for {size:,} parameters, because of rounding",
            "Use larger batches, or a smaller model.",
        )
    return multiplier * clip / (1 - lost)


def draw(size: int, source: wide.Source) -> Tensor:
    """Draw `size` discrete Gaussian integers of standard deviation 2²⁶."""
    return torch.from_numpy(wide.gaussian(size, source))


def add_noise(sums: Sequence[Tensor], sigma: float, source: wide.Source) -> list[Tensor]:
    """Round each sum to the grid and add noise of standard deviation σ."""
    return add_integers(sums, sigma, draw(sum(t.numel() for t in sums), source))


def add_integers(sums: Sequence[Tensor], sigma: float, noise: Tensor) -> list[Tensor]:
    """Round each sum to the grid of σ/2²⁶ and add these integers."""
    grid, out, at = sigma / wide.SIGMA, [], 0
    for t in sums:
        mine = noise[at : at + t.numel()].to(t.device)
        whole = t.reshape(-1).double().div_(grid).round_().to(torch.int64).add_(mine)
        out.append(whole.double().mul_(grid).to(t.dtype).view(t.shape))
        at += t.numel()
    return out
