"""How much a rebuilt row resembles its original: PSNR, SSIM, and the share of values within a tolerance."""

from __future__ import annotations

import math

import torch
from torch import Tensor

MOST = 100.0  # dB; beyond, the error is float32's
WINDOW = 7  # pixels, of SSIM


def psnr(original: Tensor, rebuilt: Tensor, span: float) -> Tensor:
    """[N]: 10·log10(span² / mean squared error) of each row, at most 100 dB."""
    error = ((original - rebuilt).double() ** 2).flatten(1).mean(1)
    return (10 * torch.log10(span**2 / error.clamp(min=1e-30))).clamp(max=MOST)


def ssim(original: Tensor, rebuilt: Tensor, span: float) -> Tensor:
    """[N]: structural similarity of images [N, C, H, W], the mean over windows of 7×7 and channels.

    Z. Wang, A. Bovik, H. Sheikh, E. Simoncelli: "Image Quality Assessment", IEEE TIP 13(4), 2004, with
    uniform windows and unbiased variances.
    """
    a, b = original.double(), rebuilt.double()
    size, count = min(WINDOW, *a.shape[-2:]), min(WINDOW, *a.shape[-2:]) ** 2

    def mean(t: Tensor) -> Tensor:
        return torch.nn.functional.avg_pool2d(t, size, stride=1)

    ma, mb = mean(a), mean(b)
    unbiased = count / (count - 1)
    va, vb, cov = (
        unbiased * (mean(p * q) - m * n) for p, q, m, n in ((a, a, ma, ma), (b, b, mb, mb), (a, b, ma, mb))
    )
    c1, c2 = (0.01 * span) ** 2, (0.03 * span) ** 2
    each = (2 * ma * mb + c1) * (2 * cov + c2) / ((ma**2 + mb**2 + c1) * (va + vb + c2))
    value: Tensor = each.flatten(1).mean(1)
    return value


def pair_up(original: Tensor, rebuilt: Tensor) -> Tensor:
    """[N]: for each original the rebuilt row that is paired with it, nearest pairs first; −1 without one."""
    distance = torch.cdist(original.double().flatten(1), rebuilt.double().flatten(1))
    partner = torch.full((len(original),), -1, dtype=torch.int64)
    for _ in range(min(distance.shape)):
        i, j = divmod(int(distance.argmin()), distance.shape[1])
        partner[i] = j
        distance[i, :] = math.inf
        distance[:, j] = math.inf
    return partner


def share_within(original: Tensor, rebuilt: Tensor, spread: Tensor, tolerance: float) -> tuple[float, float]:
    """(share of values, share of whole rows) that are within `tolerance` times their column's spread."""
    near = ((original - rebuilt).abs() <= tolerance * spread).flatten(1)
    return float(near.double().mean()), float(near.all(1).double().mean())
