"""DP-CTGAN: M. L. Fang, D. S. Dhami, K. Kersting, *DP-CTGAN: Differentially Private Medical Data Generation
using CTGANs*, AIME 2022: CTGAN (Xu et al. 2019) whose critic learns by DP-SGD.

What CTGAN reads off the data before it trains is bought here: for a part of ε every column is counted in its
declared cells, with Laplace noise. From these counts alone come the modes of the numbers, the levels'
frequencies, and the maker's first bias: it starts from columns independent of each other.

Where this differs from CTGAN: a row is drawn by its own coin (Poisson), and brings the condition that it
meets itself, in a column drawn evenly; made rows are told levels by their noisy frequency. Taking rows by
rare levels, as CTGAN does, would multiply the weight of the few who have them. No packing: the gradient that
is clipped must be one row's. The losses are Goodfellow's, as in DPGAN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..accounting import discrete
from ..parameters import check, real, whole
from ..parties.ledger import Ledger
from ..parties.secret import NOT_PRIVATE, Secret
from .adversarial import Maker, activated, make, seeded, state_of
from .columns import Column
from .conditions import Conditions
from .ctgan import conditions_of, frequencies_of
from .dpgan import DPGAN, PrivateDuel, small_critic
from .encode import Layout
from .generator import Fitted, Learned, Watch
from .marginals import Grid, secret_of
from .modes import Encoding
from .private import declared
from .private_networks import CPU
from .table import Table

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = 0.15  # of ε goes to counts of single columns
STAND_IN = 20_000  # rows drawn from the noisy counts, of which modes are found


@dataclass(frozen=True)
class DPCTGAN(DPGAN):
    """A conditional GAN for tables whose critic learns by DP-SGD, and whose modes and frequencies are paid
    for.
    """

    epochs: int = whole(5, least=1, doc="passes over the table; more passes, more noise in each")
    batch: int = whole(2048, least=1, doc="rows a step, on average: large ones drown the noise of a step")
    lr: float = real(2e-4, above=0, doc="learning rate of the networks (Adam)")
    modes: int = whole(10, least=1, doc="Gaussian modes a number has at most")

    def fit(
        self, frame: DataFrame, table: Table | Mapping[str, Column] | None = None, watch: Watch | None = None
    ) -> Fitted:  # type: ignore[override]
        """Learn from a data frame whose columns' domains are declared. Columns that are not declared are left
        out of the synthetic table.
        """
        check(self)
        table = declared(table, frame, type(self).__name__)
        grid, layout, secret = Grid(table.modelled, self.bins), Layout(table), secret_of(self.seed)
        frame = frame.set_axis([str(n) for n in frame.columns], axis=1)
        rng = np.random.default_rng(
            int.from_bytes(secret.bytes(8), "big")
        )  # where in its mode a number is placed: nobody's secret
        known = layout.forward(grid.numbers(self.counted(grid, frame, secret, rng), rng))
        encoding = Encoding.fit(layout, known, self.modes)
        encoded = encoding.forward(layout.forward(grid.values(frame)), rng)
        with seeded(int.from_bytes(secret.bytes(8), "big") >> 2, CPU):
            game = Game(
                self,
                encoding,
                encoded,
                frequencies_of(known, encoding),
                encoding.forward(known, rng).mean(dim=0),
            )
            spend, history = self.fought(
                PrivateDuel(game.maker, game.critic, game.real, game.made),
                len(encoded),
                1 - COLUMNS,
                f", {COLUMNS * self.epsilon:.4g} for counts of single columns",
                secret,
                watch or (lambda event: None),
            )
        makers = {f"maker.0.{name}": t.clone() for name, t in state_of(game.maker).items()}
        learned = Learned(
            {**encoding.tensors(), **game.frequencies, **makers}, history=history, ledger=Ledger()
        )
        assert learned.ledger is not None
        learned.ledger.spend(spend)
        if secret.replayable:
            learned.ledger.stamp(NOT_PRIVATE)
        return Fitted(self, table, learned)

    def counted(self, grid: Grid, frame: DataFrame, secret: Secret, rng: np.random.Generator) -> np.ndarray:
        """Cells of rows that nobody is behind: each column by its noisy counts. A row is in one cell of each
        column, so noise of scale columns/ε.
        """
        codes, scale = grid.codes(frame), math.ceil(len(grid.sizes) / (COLUMNS * self.epsilon))
        made = []
        for j, size in enumerate(grid.sizes):
            counts = np.bincount(codes[:, j], minlength=size) + discrete.laplace(scale, size, secret.bytes)
            share = np.maximum(counts, 1)
            made.append(
                rng.permutation(
                    np.repeat(
                        np.arange(size),
                        np.diff(np.rint(np.r_[0, np.cumsum(share)] / share.sum() * STAND_IN)).astype(
                            np.int64
                        ),
                    )
                )
            )
        return np.column_stack(made)

    def draw(
        self, learned: Learned, layout: Layout, n: int, rng: np.random.Generator, given: Conditions
    ) -> np.ndarray:
        encoding = Encoding.from_tensors(layout, learned.tensors)
        with seeded(int(rng.integers(2**62)), CPU):
            return make(
                learned.tensors,
                encoding,
                self.noise,
                (self.width, self.width),
                n,
                conditions_of(learned, layout, encoding, given),
                CPU,
            )


class Game:
    """Rows as critic and maker see them: encoded, beside a condition."""

    def __init__(
        self,
        generator: DPCTGAN,
        encoding: Encoding,
        encoded: Tensor,
        frequencies: dict[str, Tensor],
        first: Tensor,
    ):
        self.encoding, self.encoded, self.frequencies, self.noise = (
            encoding,
            encoded,
            frequencies,
            generator.noise,
        )
        self.sizes = [b.width for b in encoding.discrete]
        self.offsets = np.cumsum([0, *self.sizes])
        told = int(self.offsets[-1])
        self.maker = Maker(generator.noise + told, (generator.width, generator.width), encoding.width)
        self.critic = small_critic(encoding.width + told, generator.critic_width)
        with torch.no_grad():
            self.maker.last.weight.mul_(0.1)
            for b in encoding.blocks:
                self.maker.last.bias[b.indicators] = torch.log(first[b.indicators].clamp_min(1e-6))
                if b.scalar:
                    self.maker.last.bias[b.start] = 0.0

    def real(self, at: Tensor) -> Tensor:
        """Real rows beside their own level of a column drawn evenly."""
        rows = self.encoded[at]
        told = (
            torch.cat([rows[:, b.indicators] for b in self.encoding.discrete], dim=1)
            if self.sizes
            else rows[:, :0]
        )
        if self.sizes:
            told = told * torch.repeat_interleave(
                functional.one_hot(torch.randint(len(self.sizes), (len(rows),)), len(self.sizes)),
                torch.tensor(self.sizes),
                dim=1,
            )
        return torch.cat([rows, told], dim=1)

    def made(self, n: int) -> tuple[Tensor, Tensor | None]:
        """Made rows beside what they were told, and the cross-entropy between that and what was made."""
        column = torch.randint(max(len(self.sizes), 1), (n,))
        told, losses = torch.zeros(n, int(self.offsets[-1])), []
        for k, b in enumerate(self.encoding.discrete):
            mine = torch.nonzero(column == k).ravel()
            if len(mine):
                told[
                    mine,
                    int(self.offsets[k])
                    + torch.multinomial(
                        self.frequencies[f"frequency.{b.variable}"], len(mine), replacement=True
                    ),
                ] = 1
        raw = self.maker(torch.cat([torch.randn(n, self.noise), told], dim=1))
        for k, b in enumerate(self.encoding.discrete):
            mine = column == k
            losses.append(
                -(
                    functional.log_softmax(raw[mine][:, b.indicators], dim=1)
                    * told[mine][:, self.offsets[k] : self.offsets[k + 1]]
                ).sum()
            )
        asked = torch.stack(losses).sum() / n if losses else None
        return torch.cat([activated(raw, self.encoding), told], dim=1), asked
