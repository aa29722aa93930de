"""DP-CTGAN: a CTGAN (Xu et al. 2019) whose critic is trained with DP-SGD.

M. L. Fang, D. S. Dhami, K. Kersting, *DP-CTGAN: Differentially Private Medical Data Generation using CTGANs*,
AIME 2022.

The statistics that CTGAN reads off the data are released privately here: a part of ε pays for counts of every
column in its declared cells, with Laplace noise. The modes of numeric columns, the level frequencies and the
generator's initial bias (independent columns) come from these counts alone.

Differences from CTGAN: rows are drawn by Poisson sampling and conditioned on their own level of a uniformly
drawn column; generated rows are conditioned on levels drawn by noisy frequency. Sampling rows by rare levels,
as CTGAN does, would multiply the weight of the few rows that have them. There is no packing, because the
clipped gradient must be that of one row. The losses are those of DPGAN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional

from ..accounting import discrete
from ..parameters import real, whole
from ..parties.ledger import Spend
from ..parties.secret import Secret
from .adversarial import CPU, GeneratorNet, activate, generate_rows, get_weights, torch_seed
from .ctgan import condition_sampler, draw_levels, level_frequencies
from .dpgan import DPGAN, PrivateGAN, build_critic
from .encode import Conditions, Layout
from .generator import GeneratorState, Watch
from .marginals import Grid
from .modes import Encoding
from .table import Table

COLUMNS = 0.15  # share of ε for counts of single columns
STAND_IN = 20_000  # artificial rows drawn from the noisy counts, to which modes are fitted


@dataclass(frozen=True)
class DPCTGAN(DPGAN):
    """A conditional GAN for tables, trained with DP-SGD from privately released statistics."""

    epochs: int = whole(5, least=1, doc="epochs of training; more epochs need more noise per step")
    batch: int = whole(2048, least=1, doc="expected batch size; large batches reduce the relative noise")
    lr: float = real(2e-4, above=0, doc="learning rate of the networks (Adam)")
    modes: int = whole(10, least=1, doc="maximum number of Gaussian modes of a numeric column")

    def learn_private(
        self, frame: pd.DataFrame, table: Table, grid: Grid, secret: Secret, watch: Watch
    ) -> tuple[GeneratorState, Spend]:
        layout = Layout(table)
        rng = np.random.default_rng(
            int.from_bytes(secret.bytes(8), "big")
        )  # which mode a number is assigned to
        public = layout.encode(grid.to_numbers(self.draw_from_counts(grid, frame, secret, rng), rng))
        encoding = Encoding.fit(layout, public, self.modes)
        encoded = encoding.encode(layout.encode(grid.values(frame)), rng)
        with torch_seed(int.from_bytes(secret.bytes(8), "big") >> 2, CPU):
            frequencies, mean = level_frequencies(public, encoding), encoding.encode(public, rng).mean(dim=0)
            nets = ConditionalNets(self, encoding, encoded, frequencies, mean)
            spend, history = self.train_gan(
                PrivateGAN(nets.generator, nets.critic, nets.real, nets.fake),
                len(encoded),
                1 - COLUMNS,
                f", {COLUMNS * self.epsilon:.4g} for counts of single columns",
                secret,
                watch,
            )
        weights = {f"maker.0.{name}": t.clone() for name, t in get_weights(nets.generator).items()}
        return GeneratorState({**encoding.tensors(), **nets.frequencies, **weights}, history=history), spend

    def draw_from_counts(
        self, grid: Grid, frame: pd.DataFrame, secret: Secret, rng: np.random.Generator
    ) -> np.ndarray:
        """Return cells of artificial rows, each column distributed by its noisy counts.

        A row is in one cell of each column, so the noise has scale columns/ε.
        """
        codes, scale = grid.codes(frame), math.ceil(len(grid.sizes) / (COLUMNS * self.epsilon))
        columns = []
        for j, size in enumerate(grid.sizes):
            share = np.maximum(
                np.bincount(codes[:, j], minlength=size) + discrete.laplace(scale, size, secret.bytes), 1
            )
            edges = np.rint(np.r_[0, np.cumsum(share)] / share.sum() * STAND_IN)
            columns.append(rng.permutation(np.repeat(np.arange(size), np.diff(edges).astype(np.int64))))
        return np.column_stack(columns)

    def draw(
        self, state: GeneratorState, layout: Layout, n: int, rng: np.random.Generator, conditions: Conditions
    ) -> np.ndarray:
        encoding = Encoding.from_tensors(layout, state.tensors)
        with torch_seed(int(rng.integers(2**62)), CPU):
            return generate_rows(
                state.tensors,
                encoding,
                self.noise,
                (self.width, self.width),
                n,
                condition_sampler(state, layout, encoding, conditions),
                CPU,
            )


class ConditionalNets:
    """Generator network and critic that receive a condition with each encoded row."""

    def __init__(
        self,
        settings: DPCTGAN,
        encoding: Encoding,
        encoded: Tensor,
        frequencies: dict[str, Tensor],
        mean: Tensor,
    ):
        self.encoding, self.encoded, self.frequencies, self.noise = (
            encoding,
            encoded,
            frequencies,
            settings.noise,
        )
        self.shares = list(enumerate(frequencies.values()))
        self.sizes = [b.width for b in encoding.discrete]
        self.offsets = np.cumsum([0, *self.sizes])
        width = int(self.offsets[-1])
        self.generator = GeneratorNet(
            settings.noise + width, (settings.width, settings.width), encoding.width
        )
        self.critic = build_critic(encoding.width + width, settings.critic_width)
        with torch.no_grad():
            self.generator.last.weight.mul_(0.1)
            for b in encoding.blocks:
                self.generator.last.bias[b.indicators] = torch.log(mean[b.indicators].clamp_min(1e-6))
                if b.scalar:
                    self.generator.last.bias[b.start] = 0.0

    def real(self, index: Tensor) -> Tensor:
        """Return real rows, each with its own level of a uniformly drawn column."""
        rows = self.encoded[index]
        if not self.sizes:
            return rows
        column = functional.one_hot(torch.randint(len(self.sizes), (len(rows),)), len(self.sizes))
        levels = torch.cat([rows[:, b.indicators] for b in self.encoding.discrete], dim=1)
        return torch.cat([rows, levels * torch.repeat_interleave(column, torch.tensor(self.sizes), 1)], dim=1)

    def fake(self, n: int) -> tuple[Tensor, Tensor | None]:
        """Return generated rows with their conditions, and the cross-entropy between the two."""
        column = torch.randint(max(len(self.sizes), 1), (n,))
        condition = draw_levels(column, self.shares, self.offsets)
        raw = self.generator(torch.cat([torch.randn(n, self.noise), condition], dim=1))
        losses = []
        for k, b in enumerate(self.encoding.discrete):
            mine, levels = column == k, slice(self.offsets[k], self.offsets[k + 1])
            log_shares = functional.log_softmax(raw[mine][:, b.indicators], dim=1)
            losses.append(-(log_shares * condition[mine][:, levels]).sum())
        loss = torch.stack(losses).sum() / n if losses else None
        return torch.cat([activate(raw, self.encoding), condition], dim=1), loss
