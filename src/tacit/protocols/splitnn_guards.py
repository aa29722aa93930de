"""Guards at the cut: on activations (applied by their sender) and gradients (by the label holder).

Activations: `ClipRows`, `NoiseRows`, `QuantizeRows`. Gradients: `Marvell`, `MaxNorm`, `IsoNoise`,
`MaskGradients`. They weaken attacks, which measure them (`tacit.audit`); none of them gives an (ε, δ)
guarantee. Noise comes from the operating system through AES in counter mode: replayable noise could be
subtracted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..crypto import prg
from ..parameters import flag, real, whole
from ..parties.secret import Secret


def uniform(secret: Secret, shape: tuple[int, ...]) -> Tensor:
    """Draw numbers strictly between 0 and 1, with 53 bits."""
    words = prg.stream(secret.bytes(prg.KEY), math.prod(shape), 64)
    return torch.from_numpy(((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53).reshape(shape)


def normal(secret: Secret, shape: tuple[int, ...]) -> Tensor:
    """Draw standard normal numbers (Box and Muller, 1958)."""
    count = math.prod(shape)
    u = uniform(secret, (2, (count + 1) // 2))
    radius, angle = (-2 * u[0].log()).sqrt(), 2 * math.pi * u[1]
    return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count].reshape(shape).float()


def _rows(value: Tensor) -> Tensor:
    return value.reshape(len(value), -1)


# --- activations: differentiable, so that the sender's part is trained through its guard --------------------


@dataclass(frozen=True)
class ClipRows:
    """Scale each row of activations to at most this norm."""

    norm: float = real(1.0, above=0, doc="the largest L2 norm of a row of activations")
    word: ClassVar[str] = "clip"

    def out(self, z: Tensor, secret: Secret) -> Tensor:
        norms: Tensor = _rows(z).norm(dim=1).clamp(min=1e-12)
        return z * (self.norm / norms).clamp(max=1.0).reshape(-1, *[1] * (z.dim() - 1))


@dataclass(frozen=True)
class NoiseRows:
    """Add Gaussian noise to the activations."""

    sigma: float = real(0.1, above=0, doc="the noise's standard deviation, in the activations' own units")
    word: ClassVar[str] = "noise"

    def out(self, z: Tensor, secret: Secret) -> Tensor:
        return z + self.sigma * normal(secret, tuple(z.shape))


@dataclass(frozen=True)
class QuantizeRows:
    """Round activations to 2^bits levels between the batch's extremes (straight-through gradients)."""

    bits: int = whole(8, least=1, most=16, doc="bits a number; up to 8 travel as bytes, up to 16 as two")
    word: ClassVar[str] = "quantize"

    def out(self, z: Tensor, secret: Secret) -> Tensor:
        codes, low, step = self.codes(z.detach())
        return z + (self.values(codes, low, step) - z.detach())

    def codes(self, z: Tensor) -> tuple[Tensor, float, float]:
        """Return (levels, lowest value, step between levels)."""
        low, high = float(z.min()), float(z.max())
        step = (high - low) / (2**self.bits - 1) or 1.0
        level = ((z - low) / step).round()
        return level.to(torch.uint8 if self.bits <= 8 else torch.int32), low, step

    @staticmethod
    def values(codes: Tensor, low: float, step: float) -> Tensor:
        return codes.float() * step + low


# --- gradients: what the holder of the labels sends back ----------------------------------------------------


@dataclass(frozen=True)
class IsoNoise:
    """Isotropic Gaussian noise: the baseline `iso` of Li and others 2022."""

    scale: float = real(
        1.0, above=0, doc="s: noise of standard deviation s · (largest gradient norm in the batch) / √d"
    )

    def out(self, g: Tensor, y: Tensor, secret: Secret) -> Tensor:
        flat = _rows(g)
        return g + self.scale * float(flat.norm(dim=1).max()) / math.sqrt(flat.shape[1]) * normal(
            secret, tuple(g.shape)
        )


@dataclass(frozen=True)
class MaxNorm:
    """Noise along each gradient that equalizes expected norms (Li and others 2022, Section 4.1).

    It hides norms, not directions.
    """

    def out(self, g: Tensor, y: Tensor, secret: Secret) -> Tensor:
        norms: Tensor = _rows(g).norm(dim=1).clamp(min=1e-20)
        factor = 1 + ((norms.max() / norms) ** 2 - 1).clamp(min=0).sqrt() * normal(secret, (len(g),))
        return g * factor.reshape(-1, *[1] * (g.dim() - 1))


@dataclass(frozen=True)
class MaskGradients:
    """Keep a random share of each gradient's coordinates, rescaled to stay unbiased."""

    keep: float = real(0.25, above=0, most=1, doc="the share of coordinates that is kept")
    rescale: bool = flag(True, doc="divide by the share, so that gradients are right on average")

    def out(self, g: Tensor, y: Tensor, secret: Secret) -> Tensor:
        mask = (uniform(secret, tuple(g.shape)) < self.keep).to(g.dtype)
        return g * mask / (self.keep if self.rescale else 1.0)


@dataclass(frozen=True)
class Marvell:
    """O. Li, J. Sun, X. Yang, W. Gao, H. Zhang, J. Xie, V. Smith, C. Wang: Label Leakage and Protection in
    Two-Party Split Learning, ICLR 2022, Theorem 2.

    Gradients of the two classes are modeled as N(ḡ₁, vI) and N(ḡ₀, uI) with Δ = ḡ₁ − ḡ₀. Noise with variance
    λ₁ along Δ and λ₂ across it, different for each class, makes the two as similar as a power of s‖Δ‖²
    allows: it minimizes the symmetrized divergence

        (d−1)(a₂/b₂ + b₂/a₂) + a₁/b₁ + b₁/a₁ + ‖Δ‖²(1/a₁ + 1/b₁),

    a = u + λ of the more frequent class, b = v + λ of the rarer class. Across Δ only the smaller of u and v
    is raised, at most to the larger; the remaining two numbers are found on a grid. With more than two
    classes it hides the batch's rarest class among the others.
    """

    power: float = real(1.0, above=0, doc="s: the noise's expected squared norm, in multiples of ‖Δ‖²")

    GRID: ClassVar[int] = (
        # values of each number: the divergence is flat at its minimum, a finer grid gains below 1%
        65
    )

    def out(self, g: Tensor, y: Tensor, secret: Secret) -> Tensor:
        kinds, place = torch.unique(y, return_inverse=True)
        if len(kinds) < 2:
            return g
        rare = place == torch.bincount(place).argmin()
        other = ~rare
        flat = _rows(g).double()
        d = flat.shape[1]
        delta = flat[rare].mean(0) - flat[other].mean(0)
        size = float(delta.norm())
        if not size:
            return g
        v, u = (float(((flat[m] - flat[m].mean(0)) ** 2).mean()) + 1e-30 for m in (rare, other))
        p = float(rare.double().mean())
        across, along = self._levels(u, v, p, d, size**2)
        noise = torch.zeros_like(flat)
        for mask, k in ((other, 0), (rare, 1)):
            n, direction = int(mask.sum()), delta / size
            spread = normal(secret, (n, d)).double() * math.sqrt(across[k])
            spread += ((math.sqrt(along[k]) * normal(secret, (n,)).double()) - spread @ direction)[
                :, None
            ] * direction
            noise[mask] = spread
        return (flat + noise).to(g.dtype).reshape(g.shape)

    def _levels(
        self, u: float, v: float, p: float, d: int, delta2: float
    ) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return ((λ₂⁰, λ₂¹), (λ₁⁰, λ₁¹)) that minimize the divergence within the power."""
        power = self.power * delta2
        lower, share = (
            (1, p) if v < u else (0, 1 - p)
        )  # the class with the smaller variance across Δ, and its share
        most = min(abs(u - v), power / max(share * (d - 1), 1e-12)) if d > 1 else 0.0
        t = torch.linspace(0, 1, self.GRID, dtype=torch.float64)
        raised = most * t[:, None]
        remaining = (power - raised * share * (d - 1)).clamp(min=0)
        a1, b1 = u + remaining * t / max(1 - p, 1e-12), v + remaining * (1 - t) / p
        a2, b2 = (
            (u + raised, torch.full_like(raised, v))
            if lower == 0
            else (torch.full_like(raised, u), v + raised)
        )
        divergence = (d - 1) * (a2 / b2 + b2 / a2) + a1 / b1 + b1 / a1 + delta2 * (1 / a1 + 1 / b1)
        i, j = divmod(int(divergence.argmin()), self.GRID)
        level = float(raised[i, 0])
        across = (level, 0.0) if lower == 0 else (0.0, level)
        return across, (float(a1[i, j]) - u, float(b1[i, j]) - v)


ACTIVATIONS: dict[str, type] = {c.__name__: c for c in (ClipRows, NoiseRows, QuantizeRows)}
GRADIENTS: dict[str, type] = {c.__name__: c for c in (IsoNoise, MaxNorm, MaskGradients, Marvell)}
