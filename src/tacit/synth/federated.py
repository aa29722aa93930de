"""Local computations of the holders who fit one generator together (`jobs/synthesize.py`).

1. Every holder counts its rows in fine cells of the declared domains. The sum gives the distribution of each
   column over all holders.
2. From this sum alone, and hence identically for all, the cells of a copula or the modes of a network are
   derived, using `stand_in_rows`: a table with the same columns, each sorted independently.
3. A copula needs one more sum, of two-way counts. A GAN trains in rounds: every holder trains generator and
   critic from the common weights on its own rows, and the weighted mean is the next common state. So does the
   network of `ARGN` (`pooled_argn.py`).
   M. Rasouli, T. Sun, R. Rajagopal: *FedGAN: Federated Generative Adversarial Networks for Distributed
   Data*, 2020.

The summands are integers, so sums are exact, and equal with and without masks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData
from .adversarial import CPU, get_weights, torch_seed
from .copula import GaussianCopula
from .encode import Discretizer, Layout
from .gan import GAN, GANTrainer
from .modes import Encoding
from .protect import Protection

FINE = 1024  # cells of a numeric column in the first counts: finer than the cells or modes derived from them
UNIT = 2**24  # network weights are summed as multiples of 1/UNIT, about the precision of float32 near 1
LARGEST = 64.0  # largest absolute weight that can be summed; trained networks stay far below it
MOST_ROWS = 2**40  # the largest count that a secure sum provides for


class Histograms:
    """Fine cells of every variable: one per level, one per value, or `FINE` of equal width.

    A numeric column has one cell per value if its step allows at most `FINE` values. The cell for missing
    values is last.
    """

    def __init__(self, layout: Layout):
        self.layout = layout
        self.steps: list[float | None] = []  # for numeric columns with one cell per value
        self.sizes: list[int] = []
        for v in layout.variables:
            step, places = None, v.levels
            if not v.levels:
                column = layout.table.modeled[v.columns[0]]
                step, (low, high) = column.step, column.ends
                places = int(np.floor((high - low) / step + 1e-9)) + 1 if step else FINE + 1
            self.steps.append(step if places <= FINE else None)
            self.sizes.append(v.levels or min(places, FINE) + v.missing)

    def count(self, v: np.ndarray) -> np.ndarray:
        """Count the rows in each cell, one variable after the other."""
        return np.concatenate(
            [np.bincount(self.codes(v, i), minlength=size) for i, size in enumerate(self.sizes)]
        )

    def codes(self, v: np.ndarray, i: int) -> np.ndarray:
        """Return the cell of each row in variable `i`."""
        var, size, step = self.layout.variables[i], self.sizes[i], self.steps[i]
        if var.levels:
            return v[:, i].astype(np.int64)
        (low, high), cells = self.layout.table.modeled[var.columns[0]].ends, size - var.missing
        x = np.nan_to_num(v[:, i], nan=low) - low
        at = np.rint(x / step) if step else np.floor(x / max(high - low, 1e-300) * cells)
        return np.where(np.isnan(v[:, i]), size - 1, np.clip(at, 0, cells - 1)).astype(np.int64)

    def values(self, i: int, codes: np.ndarray) -> np.ndarray:
        """Return the level, or the middle, of cells of variable `i`; NaN for missing values."""
        var, size, step = self.layout.variables[i], self.sizes[i], self.steps[i]
        if var.levels:
            return codes.astype(np.float64)
        (low, high), cells = self.layout.table.modeled[var.columns[0]].ends, size - var.missing
        middle = low + (codes * step if step else (codes + 0.5) / cells * (high - low))
        return np.where(codes >= cells, np.nan, middle)

    def stand_in_rows(self, totals: np.ndarray) -> np.ndarray:
        """Return rows with these counts, float64 [rows, variables].

        Each column is sorted independently; numbers are spread evenly over their cell.
        """
        ends = np.cumsum([0, *self.sizes])
        columns = []
        for i, (var, size, step) in enumerate(zip(self.layout.variables, self.sizes, self.steps)):
            counts = totals[ends[i] : ends[i + 1]]
            code = np.repeat(np.arange(size), counts).astype(np.float64)
            if not var.levels:
                (low, high), cells = self.layout.table.modeled[var.columns[0]].ends, size - var.missing
                within = np.concatenate([(np.arange(c) + 0.5) / c for c in counts if c] or [np.zeros(0)])
                values = low + (code * step if step else (code + within) / cells * (high - low))
                code = np.where(code >= cells, np.nan, values)
            columns.append(code)
        return np.column_stack(columns)

    @property
    def length(self) -> int:
        return sum(self.sizes)

    def protect(self, totals: np.ndarray, floor: int) -> ProtectedCells:
        """Return how cells of few rows of all holders together are avoided; every holder derives the same."""
        ends = np.cumsum([0, *self.sizes])
        maps: list[np.ndarray] = []
        protected = np.zeros_like(totals)
        for i, var in enumerate(self.layout.variables):
            counts = totals[ends[i] : ends[i + 1]]
            cells = np.arange(self.sizes[i])
            if var.levels:
                frequent = cells[counts >= floor]
                places = cells.copy()
                if len(frequent):
                    nearest = np.abs(frequent[None, :] - cells[:, None]).argmin(axis=1)
                    others = frequent[nearest] if var.ordered else frequent[counts[frequent].argmax()]
                    places = np.where(counts >= floor, cells, others)
            else:
                numbers = counts[: self.sizes[i] - var.missing]
                low = int(np.searchsorted(np.cumsum(numbers), floor))
                high = len(numbers) - 1 - int(np.searchsorted(np.cumsum(numbers[::-1]), floor))
                low, high = min(low, len(numbers) - 1), max(high, 0)
                middle = int(np.searchsorted(np.cumsum(numbers), numbers.sum() / 2))
                places = np.clip(cells, low, high) if low <= high else np.full_like(cells, middle)
                if var.missing:
                    places[-1] = middle if counts[-1] < floor else cells[-1]
            maps.append(places)
            np.add.at(protected, ends[i] + places, counts)
        return ProtectedCells(self, maps, protected)


class ProtectedCells:
    """Rows and totals in which no cell of few rows is used (`protect.py`)."""

    def __init__(self, histograms: Histograms, maps: list[np.ndarray], totals: np.ndarray):
        self.histograms, self.maps, self.totals = histograms, maps, totals

    def apply(self, v: np.ndarray) -> np.ndarray:
        """Return a holder's rows with cells of few rows replaced."""
        out = v.copy()
        for i, places in enumerate(self.maps):
            code = self.histograms.codes(v, i)
            moved = places[code] != code
            out[moved, i] = self.histograms.values(i, places[code[moved]])
        return out

    def protection(self, floor: int) -> Protection:
        """Return what a sample is held to."""
        withheld, bounds = {}, {}
        for i, (var, places) in enumerate(zip(self.histograms.layout.variables, self.maps)):
            avoided = np.flatnonzero(places != np.arange(len(places)))
            if not var.levels:
                used = self.histograms.values(i, np.unique(places))
                bounds[var.name] = [float(np.nanmin(used)), float(np.nanmax(used))]
            elif len(var.columns) == 1 and len(avoided):
                withheld[var.name] = avoided.tolist()
        return Protection(floor, withheld, bounds)


class Pooled(ABC):
    """What the holders compute together after the first sum, in `rounds` further sums."""

    bound: int  # the largest entry of a sum

    def __init__(self, layout: Layout):
        self.layout = layout

    @property
    @abstractmethod
    def length(self) -> int:
        """Entries of a sum."""

    @abstractmethod
    def contribute(
        self, v: np.ndarray, weights: Tensor | None, epochs: int, seed: int
    ) -> tuple[np.ndarray, tuple[float, float]]:
        """Return this holder's non-negative integers to add up, and its losses."""

    @abstractmethod
    def merge(self, total: np.ndarray) -> None:
        """Use a sum over all holders."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the fitted generator."""

    def weights(self) -> Tensor | None:
        """Return what holders start the next round from, if anything."""
        return None

    @property
    def is_done(self) -> bool:
        """Whether further rounds would change nothing, at the coordinator."""
        return False


class PooledCopula(Pooled):
    """One more sum: two-way counts in cells that every holder derives from the first sum."""

    bound = MOST_ROWS

    def __init__(self, generator: GaussianCopula, histograms: Histograms, totals: np.ndarray):
        super().__init__(histograms.layout)
        self.generator = generator
        self.cells = Discretizer.from_data(
            self.layout.variables, histograms.stand_in_rows(totals), generator.bins
        )
        self.size = sum(self.cells.sizes)
        self.total = np.zeros(self.length)

    @property
    def length(self) -> int:
        return self.size * (self.size + 1) // 2

    def contribute(
        self, v: np.ndarray, weights: Tensor | None, epochs: int, seed: int
    ) -> tuple[np.ndarray, tuple[float, float]]:
        """Return the upper triangle of the two-way counts."""
        codes = self.cells.encode(v) + np.cumsum([0, *self.cells.sizes[:-1]])
        full = np.zeros(self.size * self.size, dtype=np.int64)
        for i in range(codes.shape[1]):
            for j in range(i, codes.shape[1]):
                np.add.at(full, codes[:, i] * self.size + codes[:, j], 1)
        return full.reshape(self.size, self.size)[np.triu_indices(self.size)], (0.0, 0.0)

    def merge(self, total: np.ndarray) -> None:
        self.total = total

    def tensors(self) -> dict[str, Tensor]:
        counts = np.zeros((self.size, self.size))
        counts[np.triu_indices(self.size)] = self.total
        counts += np.triu(counts, 1).T
        return self.generator.learn_counts(counts, self.cells, self.layout).tensors


class PooledGAN(Pooled):
    """Federated averaging of generator network and critic, as one vector."""

    bound = int(2 * LARGEST * UNIT)

    def __init__(self, generator: GAN, histograms: Histograms, totals: np.ndarray):
        super().__init__(histograms.layout)
        self.generator = generator
        pooled = histograms.stand_in_rows(totals)
        self.rows = len(pooled)
        self.encoding = Encoding.fit(self.layout, pooled, generator.modes)
        self.frequencies = generator.frequencies(pooled, self.encoding)
        with torch_seed(generator.seed, CPU):
            width = generator.rows_class(torch.zeros(1, self.encoding.width), self.encoding).condition_width
            self.nets = generator.build_networks(self.encoding, width)
        self.trainer: GANTrainer | None = None

    @property
    def length(self) -> int:
        return len(self.weights())

    def weights(self) -> Tensor:
        return torch.cat([t.reshape(-1) for net in self.nets for t in get_weights(net).values()])

    def _set_weights(self, vector: Tensor) -> None:
        start = 0
        for net in self.nets:
            for t in get_weights(net).values():
                t.copy_(vector[start : start + t.numel()].view_as(t))
                start += t.numel()

    def contribute(
        self, v: np.ndarray, weights: Tensor | None, epochs: int, seed: int
    ) -> tuple[np.ndarray, tuple[float, float]]:
        """Train from the common weights; return the new ones times the share of rows."""
        assert weights is not None
        with torch_seed(seed, CPU):
            if self.trainer is None:  # the optimizer's state stays with the holder
                encoded = self.encoding.encode(v, np.random.default_rng([seed, 1]))
                # no moving average here: the average that counts is the one over holders
                self.trainer = GANTrainer(
                    self.generator.rows_class(encoded, self.encoding), replace(self.generator, average=0.0)
                )
                self.nets = (self.trainer.generator, self.trainer.critic)
            self._set_weights(weights)
            losses = (0.0, 0.0)
            for _ in range(epochs):
                losses = self.trainer.epoch()
        vector = self.weights().double().numpy()
        if not np.abs(vector).max() < LARGEST:
            raise BadData(
                f"a network weight has reached {np.abs(vector).max():g}; at most {LARGEST:g} can be summed. "
                "Training diverges: use a lower lr."
            )
        return np.rint((vector + LARGEST) * UNIT * len(v) / self.rows).astype(np.int64), losses

    def merge(self, total: np.ndarray) -> None:
        self._set_weights(torch.from_numpy(total / UNIT - LARGEST).float())

    def tensors(self) -> dict[str, Tensor]:
        return {
            **self.encoding.tensors(),
            **self.frequencies,
            **{f"maker.0.{name}": t.clone() for name, t in get_weights(self.nets[0]).items()},
        }


def holder_seed(seed: int, r: int, place: int) -> int:
    """Derive a holder's seed for a round."""
    return int(np.random.SeedSequence([seed, r, place]).generate_state(1, np.uint64)[0] >> 2)
