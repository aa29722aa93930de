"""CTGAN: L. Xu, M. Skoularidou, A. Cuesta-Infante, K. Veeramachaneni, *Modeling Tabular Data using
Conditional GAN*, NeurIPS 2019.

A Wasserstein GAN with slope penalty and packing, whose maker is told one level of one discrete column (the
conditional vector, Section 4.3). Levels are chosen by the logarithm of their frequency and real rows are then
taken among those that have them (training by sampling), so that rare levels are seen. The lists of rows by
level live while it trains; what is kept are the levels' frequencies.
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
from .adversarial import Rows, device_of, make, seeded
from .conditions import Conditions
from .encode import Layout
from .gan import GAN
from .generator import Learned
from .modes import Encoding


class Conditioned(Rows):
    """Training by sampling (Section 4.3): a column at random, a level of it by log-frequency, a real row
    among those that have it.
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
        self.by_level = torch.argsort(codes, dim=1)  # rows in the order of their level, for each column
        self.counts = counts.long()
        self.first = torch.cumsum(self.counts, dim=1) - self.counts
        self.weights = torch.log(counts + 1)  # 0 for levels no row has
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
        # the critic sees the real rows in another order than the made ones, each beside its own condition
        shuffle = torch.randperm(size, device=device)
        return condition, real[shuffle], condition[shuffle], torch.stack([column, level])

    def condition_loss(self, raw: Tensor, condition: Tensor, chosen: Tensor) -> Tensor | None:
        """Cross-entropy between the level asked for and the one made."""
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

    pac: int = whole(10, least=1, doc="rows the critic sees at once (PacGAN)")
    decay: float = real(1e-6, least=0, doc="weight decay of the maker")

    wasserstein: ClassVar[bool] = True
    table_of_rows: ClassVar[type[Rows]] = Conditioned

    def frequencies(self, v: np.ndarray, encoding: Encoding) -> dict[str, Tensor]:
        return frequencies_of(v, encoding)

    def draw(
        self, learned: Learned, layout: Layout, n: int, rng: np.random.Generator, given: Conditions
    ) -> np.ndarray:
        encoding, device, plan = (
            Encoding.from_tensors(layout, learned.tensors),
            device_of(self.device),
            self.plan,
        )
        with seeded(int(rng.integers(2**62)), device):
            return make(
                learned.tensors,
                encoding,
                plan.noise,
                plan.hidden,
                n,
                conditions_of(learned, layout, encoding, given),
                device,
            )


def frequencies_of(v: np.ndarray, encoding: Encoding) -> dict[str, Tensor]:
    return {
        f"frequency.{b.variable}": torch.from_numpy(
            np.bincount(v[:, b.variable].astype(np.int64), minlength=b.width) / len(v)
        )
        for b in encoding.discrete
    }


def conditions_of(
    learned: Learned, layout: Layout, encoding: Encoding, given: Conditions
) -> Callable[[int], Tensor]:
    """So many conditional vectors: a column drawn evenly, among those given or else any, and a level of it by
    its frequency.
    """
    shares = _asked(learned, layout, encoding, given)
    offsets = np.cumsum([0, *(b.width for b in encoding.discrete)])

    def condition(rows: int) -> Tensor:
        out = torch.zeros(rows, int(offsets[-1]))
        if encoding.discrete:
            column = torch.randint(len(shares), (rows,))
            for k, (at, share) in enumerate(shares):
                mine = torch.nonzero(column == k).ravel()
                if len(mine):
                    out[mine, int(offsets[at]) + torch.multinomial(share, len(mine), replacement=True)] = 1
        return out

    return condition


def _asked(
    learned: Learned, layout: Layout, encoding: Encoding, given: Conditions
) -> list[tuple[int, Tensor]]:
    """(place among the discrete columns, frequencies of its levels) for the columns the maker is told: those
    given, or any.
    """
    shares = [learned.tensors[f"frequency.{b.variable}"] for b in encoding.discrete]
    fitting = layout.fitting(given)
    told = [
        (k, s * torch.from_numpy(fitting[b.variable]))
        for k, (b, s) in enumerate(zip(encoding.discrete, shares))
        if b.variable in fitting
    ]
    return [(k, s) for k, s in told if float(s.sum()) > 0] or list(enumerate(shares))
