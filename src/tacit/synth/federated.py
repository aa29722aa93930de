"""What several holders of rows compute, each on its own, so that one generator comes of it; who sends what
is in `jobs/synthesizing.py`.

1. Everybody counts its rows in fine cells of the declared domains. The sum says how each column is distributed over all holders.
2. From that sum alone, and so alike for all, come the cells of a copula or the modes of a network: read off a `stand_in`, a table with the same
   columns, each sorted, whose rows mean nothing.
3. A copula needs one more sum, of two-way counts. A GAN goes in rounds: everybody trains maker and critic from the common weights on its own rows, and the
   weighted mean is common again. M. Rasouli, T. Sun, R. Rajagopal: *FedGAN: Federated Generative
   Adversarial Networks for Distributed Data*, 2020.

What is added up are whole numbers, so that sums are exact, and the same whether they were masked or not.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData
from .adversarial import Duel, networks, seeded, state_of
from .copula import GaussianCopula
from .encode import Cells, Layout
from .gan import GAN
from .modes import Encoding

FINE = 1024  # cells of a number in the first counts: finer than any cell or mode that is made of them
UNIT = 2**24  # weights of networks are sums of multiples of 1/UNIT, about what float32 resolves near 1
LARGEST = 64.0  # no weight of a trained network comes near it; what is beyond cannot be added up


class Histograms:
    """Every variable in fine cells: a level each, a place each where a number's step allows no more than
    `FINE`, else `FINE` of equal width; missing last.
    """

    def __init__(self, layout: Layout):
        self.layout = layout
        self.steps: list[float | None] = []  # of a number with a cell for each place
        self.sizes: list[int] = []
        for v in layout.variables:
            if v.levels:
                self.steps.append(None)
                self.sizes.append(v.levels)
                continue
            assert v.low is not None
            assert v.high is not None
            step = layout.table.modelled[v.columns[0]].step
            places = int(np.floor((v.high - v.low) / step + 1e-9)) + 1 if step else FINE + 1
            self.steps.append(step if places <= FINE else None)
            self.sizes.append(min(places, FINE) + v.missing)

    def count(self, v: np.ndarray) -> np.ndarray:
        """Rows in each cell, one variable after the other."""
        parts = []
        for i, (var, size, step) in enumerate(zip(self.layout.variables, self.sizes, self.steps)):
            if var.levels:
                code = v[:, i].astype(np.int64)
            else:
                assert var.low is not None
                assert var.high is not None
                cells = size - var.missing
                x = np.nan_to_num(v[:, i], nan=var.low) - var.low
                at = np.rint(x / step) if step else np.floor(x / max(var.high - var.low, 1e-300) * cells)
                code = np.where(np.isnan(v[:, i]), size - 1, np.clip(at, 0, cells - 1)).astype(np.int64)
            parts.append(np.bincount(code, minlength=size))
        return np.concatenate(parts)

    def stand_in(self, totals: np.ndarray) -> np.ndarray:
        """A table with these counts: float64 [rows, variables], each column sorted by itself, numbers spread
        evenly over their cell.
        """
        ends = np.cumsum([0, *self.sizes])
        columns = []
        for i, (var, size, step) in enumerate(zip(self.layout.variables, self.sizes, self.steps)):
            counts = totals[ends[i] : ends[i + 1]]
            code = np.repeat(np.arange(size), counts).astype(np.float64)
            if not var.levels:
                assert var.low is not None
                assert var.high is not None
                cells = size - var.missing
                missing = code >= cells
                if step:
                    code = var.low + code * step
                else:
                    within = (
                        np.concatenate([(np.arange(c) + 0.5) / c for c in counts if c])
                        if counts.sum()
                        else np.zeros(0)
                    )
                    code = var.low + (code + within) / cells * (var.high - var.low)
                code[missing] = np.nan
            columns.append(code)
        return np.column_stack(columns)

    @property
    def length(self) -> int:
        return sum(self.sizes)


class PooledCopula:
    """One more sum: two-way counts in cells that everybody derives from the first one."""

    def __init__(self, generator: GaussianCopula, histograms: Histograms, totals: np.ndarray):
        self.generator, self.layout = generator, histograms.layout
        self.cells = Cells.of_data(self.layout.variables, histograms.stand_in(totals), generator.bins)
        self.size = sum(self.cells.sizes)

    @property
    def length(self) -> int:
        return self.size * (self.size + 1) // 2

    def count(self, v: np.ndarray) -> np.ndarray:
        """The upper triangle of the two-way counts."""
        codes = self.cells.encode(v) + np.cumsum([0, *self.cells.sizes[:-1]])
        full = np.zeros(self.size * self.size, dtype=np.int64)
        for i in range(codes.shape[1]):
            for j in range(i, codes.shape[1]):
                np.add.at(full, codes[:, i] * self.size + codes[:, j], 1)
        return full.reshape(self.size, self.size)[np.triu_indices(self.size)]

    def learned(self, total: np.ndarray) -> dict[str, Tensor]:
        counts = np.zeros((self.size, self.size))
        counts[np.triu_indices(self.size)] = total
        counts += np.triu(counts, 1).T
        return self.generator.learn_counts(counts, self.cells, self.layout).tensors


class PooledGAN:
    """The common networks, as one vector, and what everybody does to them in a round."""

    def __init__(self, generator: GAN, histograms: Histograms, totals: np.ndarray):
        self.generator, self.layout = generator, histograms.layout
        pooled = histograms.stand_in(totals)
        self.rows = len(pooled)
        self.encoding = Encoding.fit(self.layout, pooled, generator.modes)
        self.frequencies = generator.frequencies(pooled, self.encoding)
        with seeded(generator.seed, torch.device("cpu")):
            width = generator.table_of_rows(
                torch.zeros(1, self.encoding.width), self.encoding
            ).condition_width
            self.nets = networks(self.encoding, generator.plan, width)
        self.duel: Duel | None = None

    @property
    def length(self) -> int:
        return len(self.vector())

    def vector(self) -> Tensor:
        return torch.cat([t.reshape(-1) for net in self.nets for t in state_of(net).values()])

    def take(self, vector: Tensor) -> None:
        at = 0
        for net in self.nets:
            for t in state_of(net).values():
                t.copy_(vector[at : at + t.numel()].view_as(t))
                at += t.numel()

    def local(
        self, v: np.ndarray, vector: Tensor, epochs: int, seed: int
    ) -> tuple[np.ndarray, tuple[float, float]]:
        """(this holder's weights, times its share of all rows, as whole numbers that are not negative; its
        losses).
        """
        cpu = torch.device("cpu")
        with seeded(seed, cpu):
            if self.duel is None:  # Adam's memory stays with the holder
                encoded = self.encoding.forward(v, np.random.default_rng([seed, 1]))
                plan = replace(
                    self.generator.plan, average=0.0
                )  # the mean that counts is the one over holders
                self.duel = Duel(self.generator.table_of_rows(encoded, self.encoding), plan)
                self.nets = (self.duel.maker, self.duel.critic)
            self.take(vector)
            losses = (0.0, 0.0)
            for _ in range(epochs):
                losses = self.duel.epoch()
        mine = self.vector().double().numpy()
        if not np.abs(mine).max() < LARGEST:
            raise BadData(
                f"a weight of the networks has grown to {np.abs(mine).max():g}, and no more than "
                f"{LARGEST:g} can be added up: training does not "
                "settle. Take a lower lr."
            )
        return np.rint((mine + LARGEST) * UNIT * len(v) / self.rows).astype(np.int64), losses

    def mean(self, total: np.ndarray) -> Tensor:
        return torch.from_numpy(total / UNIT - LARGEST).float()

    def learned(self) -> dict[str, Tensor]:
        return {
            **self.encoding.tensors(),
            **self.frequencies,
            **{f"maker.0.{name}": t.clone() for name, t in state_of(self.nets[0]).items()},
        }


def pooled(
    generator: GaussianCopula | GAN, histograms: Histograms, totals: np.ndarray
) -> PooledCopula | PooledGAN:
    return (
        PooledCopula(generator, histograms, totals)
        if isinstance(generator, GaussianCopula)
        else PooledGAN(generator, histograms, totals)
    )


def seed_of(seed: int, r: int, place: int) -> int:
    """A holder's seed in a round."""
    return int(np.random.SeedSequence([seed, r, place]).generate_state(1, np.uint64)[0] >> 2)
