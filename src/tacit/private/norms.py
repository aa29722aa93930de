"""Norms of per-example gradients with bounded error, and sums that respect them.

A row's contribution to the clipped sum must not exceed the clipping norm, whatever the row is. Two things can
go wrong in float32:

- A norm is too small. Squares are accumulated in blocks, and the blocks in float64, so that small terms are
  not lost next to large ones.
- Terms cancel. A gradient Σ_t g_t a_tᵀ over positions t can be far smaller than its terms, and their rounding
  errors are then as large as the gradient. If the per-example gradient itself is computed, its norm is that
  of the numbers that are added, and cancellation does no harm. If it is too large for that ("wide" layers),
  its norm comes from Gram matrices in float64, and the sum from one product over rows and positions.

For a wide layer let m = Σ_t ‖g_t‖‖a_t‖, which bounds the sum of the absolute terms, and γ_k(u) = 2ku a bound
on k roundings of unit u (Higham, *Accuracy and Stability of Numerical Algorithms*, 2002, Lemma 3.1). Then

    |fl(‖G‖²) − ‖G‖²|  ≤  γ_{d+p+T²}(2⁻⁵³) · m²    Gram matrices in float64; d inputs, p outputs, T positions
    ‖fl(c·G) − c·G‖    ≤  γ_{K}(2⁻²⁴) · c·m        a float32 product over K ≤ `SUMMED` rows and positions

The second bound is added to the norm before the clipping factor is computed. If the first exceeds `CERTAIN`
of ‖G‖², or the second `LOST` of ‖G‖, the row is removed from the product, and its gradient is computed
separately in float64.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# squares accumulated in float32: their error is below 128 · 2⁻²⁴, which `ghost.SLACK` covers
BLOCK = 128
# larger norms count as not finite: the clipping factor would have fewer than 24 bits
LARGEST = 1e18
CERTAIN = 1e-6  # largest relative error of a squared norm
LOST = 1e-2  # largest relative rounding error of a sum that is added to the norm
SUMMED = 512  # rows × positions of one float32 product
COPIED = 1 << 21  # float64 numbers in memory at a time: 16 MB

Places = Callable[[int, int], tuple[Tensor, Tensor]]  # rows from, to → a [b, T, d] and g [b, T, p]


def squared(v: Tensor) -> Tensor:
    """Return ‖v_i‖² in float64, without a copy of v."""
    flat = v.reshape(len(v), -1)
    if flat.dtype == torch.float64:
        return _squared_norm(flat, 1)
    whole = flat.shape[1] // BLOCK * BLOCK
    out = _squared_norm(flat[:, whole:], 1)
    if whole:
        out = out + _squared_norm(flat[:, :whole].view(len(v), -1, BLOCK), 2).sum(1)
    return out


def _squared_norm(v: Tensor, dim: int) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(v, dim=dim)
    return norm.double().square()


def factor_squared(v: Tensor) -> Tensor:
    """Return ‖v_i‖² of a factor of a product, in float64; infinite beyond 1e30.

    A square that underflows in float32 may be multiplied by a large one.
    """
    out = torch.linalg.vector_norm(v.reshape(len(v), -1), dim=1, dtype=torch.float64).square()
    return torch.where(out <= 1e60, out, torch.inf)


def wide_squares(places: Places, rows: int, terms: int, width: int) -> tuple[Tensor, Tensor]:
    """Return squared norms that include the rounding errors of `wide_total`, and its `alone`.

    `terms` is T, `width` is d + p. `alone` are the rows that are computed separately, [B] bool.
    """
    out: list[Tensor] = []
    alone: list[Tensor] = []
    step, gathered = max(1, COPIED // (terms * width)), _product_length(rows, terms)
    for i in range(0, rows, step):
        a, g = places(i, min(i + step, rows))
        unit = torch.finfo(g.dtype).eps / 2
        a, g = a.double(), g.double()
        m = (torch.linalg.vector_norm(a, dim=2) * torch.linalg.vector_norm(g, dim=2)).sum(1)
        square = (torch.bmm(a, a.mT) * torch.bmm(g, g.mT)).sum((1, 2))
        norm, lost = square.clamp(min=0).sqrt(), 2 * (gathered + 4) * unit * m
        single = ~(
            (2 * (width + terms * terms) * 2.0**-53 * m.square() <= CERTAIN * square) & (lost <= LOST * norm)
        )  # True for NaN
        norm = norm + lost
        for r in single.nonzero().flatten().tolist():
            norm[r] = torch.linalg.vector_norm(g[r].mT @ a[r]) + 2 * (terms + 4) * 2.0**-53 * m[r]
        out.append(norm.square())
        alone.append(single)
    return torch.cat(out), torch.cat(alone)


def wide_total(places: Places, alone: Tensor, c: Tensor, terms: int) -> Tensor:
    """Return Σ c_i G_i, [p, d]."""
    rows = len(c)
    step = max(1, _product_length(rows, terms) // terms)
    out: Tensor | None = None
    single = set(alone.nonzero().flatten().tolist())
    together = c.masked_fill(alone, 0)
    for i in range(0, rows, step):
        a, g = places(i, min(i + step, rows))
        scaled = g * together[i : i + step].to(g.dtype)[:, None, None]
        if out is None:
            out = torch.zeros(g.shape[2], a.shape[2], dtype=g.dtype, device=g.device)
        out.addmm_(scaled.flatten(0, 1).mT, a.flatten(0, 1))
        for r in sorted(single & set(range(i, i + step))):
            out += (g[r - i].double().mT @ a[r - i].double() * c[r].double()).to(out.dtype)
    assert out is not None
    return out


def _product_length(rows: int, terms: int) -> int:
    """Return rows × positions of one product of `wide_total`."""
    return min(rows, max(1, SUMMED // terms)) * terms
