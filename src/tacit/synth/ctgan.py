"""CTGAN: a conditional GAN for tables.

L. Xu, M. Skoularidou, A. Cuesta-Infante, K. Veeramachaneni, *Modeling Tabular Data using Conditional GAN*,
NeurIPS 2019: a Wasserstein GAN with gradient penalty and packing, conditioned on one level of one discrete
column (the conditional vector, Section 4.3). Levels are drawn by log-frequency and real rows among those with
the level (training by sampling), so that rare levels are seen. The index of rows by level exists only during
training; the level frequencies are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..parameters import real, whole
from .adversarial import EncodedRows
from .encode import Conditions, Layout
from .gan import GAN
from .generator import GeneratorState
from .modes import Encoding


class ConditionalRows(EncodedRows):
    """Training by sampling (Section 4.3).

    Draws a column uniformly, a level of it by log-frequency, and a real row among those with the level.
    """

    def __init__(self, encoded: Tensor, encoding: Encoding):
        blocks = encoding.discrete
        super().__init__(encoded, encoding, sum(b.width for b in blocks))
        self.sizes = [b.width for b in blocks]
        if not blocks:
            return
        codes = torch.stack([encoded[:, b.indicators].argmax(dim=1) for b in blocks])
        counts = torch.zeros(len(blocks), max(self.sizes), device=encoded.device)
        counts.scatter_add_(1, codes, torch.ones_like(codes, dtype=counts.dtype))
        self.by_level = torch.argsort(codes, dim=1)  # row indices sorted by level, for each column
        self.counts = counts.long()
        self.first = torch.cumsum(self.counts, dim=1) - self.counts
        self.weights = torch.log(counts + 1)  # 0 for levels without rows
        self.offsets = torch.tensor([0, *self.sizes], device=encoded.device).cumsum(0)

    def batch(self, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if not self.sizes:
            return super().batch(size)
        device = self.encoded.device
        column = torch.randint(len(self.sizes), (size,), device=device)
        level = torch.multinomial(self.weights[column], 1).ravel()
        condition = torch.zeros(size, self.condition_width, device=device)
        condition.scatter_(1, (self.offsets[column] + level)[:, None], 1.0)
        place = (torch.rand(size, device=device) * self.counts[column, level]).long()
        real = self.encoded[self.by_level[column, self.first[column, level] + place]]
        # the critic sees real rows in a different order than generated ones, each with its own condition
        shuffle = torch.randperm(size, device=device)
        return condition, real[shuffle], condition[shuffle], torch.stack([column, level])

    def condition_loss(self, raw: Tensor, chosen: Tensor) -> Tensor | None:
        """Return the cross-entropy between the requested level and the generated one."""
        if not self.sizes:
            return None
        column, level = chosen
        losses = [
            functional.cross_entropy(raw[mine][:, b.indicators], level[mine], reduction="sum")
            for k, b in enumerate(self.encoding.discrete)
            if (mine := column == k).any()
        ]
        return torch.stack(losses).sum() / len(raw)


@dataclass(frozen=True)
class CTGAN(GAN):
    """A conditional GAN for tables."""

    pac: int = whole(10, least=1, doc="rows per critic input (PacGAN)")
    decay: float = real(1e-6, least=0, doc="weight decay of the generator network")

    wasserstein: ClassVar[bool] = True
    rows_class: ClassVar[type[EncodedRows]] = ConditionalRows

    def frequencies(self, v: np.ndarray, encoding: Encoding) -> dict[str, Tensor]:
        return level_frequencies(v, encoding)

    def condition_sampler(
        self, state: GeneratorState, layout: Layout, encoding: Encoding, conditions: Conditions
    ) -> Callable[[int], Tensor]:
        return condition_sampler(state, layout, encoding, conditions)


def level_frequencies(v: np.ndarray, encoding: Encoding) -> dict[str, Tensor]:
    """Return the share of each level of each discrete column."""
    return {
        f"frequency.{b.variable}": torch.from_numpy(
            np.bincount(v[:, b.variable].astype(np.int64), minlength=b.width) / len(v)
        )
        for b in encoding.discrete
    }


def condition_sampler(
    state: GeneratorState, layout: Layout, encoding: Encoding, conditions: Conditions
) -> Callable[[int], Tensor]:
    """Return a function that draws conditional vectors.

    A column is drawn uniformly among the conditioned ones, or else among all; a level of it by its frequency.
    """
    shares = _column_shares(state, layout, encoding, conditions)
    offsets = np.cumsum([0, *(b.width for b in encoding.discrete)])

    def condition(rows: int) -> Tensor:
        if not shares:
            return torch.zeros(rows, 0)
        return draw_levels(torch.randint(len(shares), (rows,)), shares, offsets)

    return condition


def draw_levels(column: Tensor, shares: list[tuple[int, Tensor]], offsets: np.ndarray) -> Tensor:
    """Return conditional vectors: in each row, a level of column `shares[column]` by its frequency."""
    out = torch.zeros(len(column), int(offsets[-1]))
    for k, (at, share) in enumerate(shares):
        mine = torch.nonzero(column == k).ravel()
        if len(mine):
            out[mine, int(offsets[at]) + torch.multinomial(share, len(mine), replacement=True)] = 1
    return out


def _column_shares(
    state: GeneratorState, layout: Layout, encoding: Encoding, conditions: Conditions
) -> list[tuple[int, Tensor]]:
    """Return (index among discrete columns, level frequencies) of the columns to condition on."""
    shares = [state.tensors[f"frequency.{b.variable}"] for b in encoding.discrete]
    allowed = layout.allowed_levels(conditions)
    chosen = [
        (k, s * torch.from_numpy(allowed[b.variable]))
        for k, (b, s) in enumerate(zip(encoding.discrete, shares))
        if b.variable in allowed
    ]
    return [(k, s) for k, s in chosen if float(s.sum()) > 0] or list(enumerate(shares))
