"""Rules that look at single updates, and the matrix of updates they work on.

Most such rules need only the distances between updates. One pass over the updates computes the matrix of
their inner products, block of columns by block of columns. What follows (Krum's scores, Weiszfeld's steps)
works on n × n numbers, and a second pass computes a weighted sum of the updates. Beyond `MEMORY_LIMIT`
bytes, updates are stored in unnamed temporary files, which the operating system caches while memory is
free.
"""

from __future__ import annotations

import copy
import os
import tempfile
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .rule import Rule, State, Total

MEMORY_LIMIT = 1 << 30  # bytes of updates that one rule holds in memory
BLOCK = 1 << 22  # numbers processed together: they fit a core's cache, or nearly
Block = tuple[str, int, int]  # (vector, first coordinate, end)
_BUFFERS = threading.local()  # one scratch buffer for each thread and dtype


class SeesEach(Rule):
    """A rule that looks at single updates. Subclasses implement `aggregate` for the updates of one run."""

    def add(self, total: Total, weights: Tensor, vectors: State) -> Total:
        """Store updates [S, …] with weights [R, S]. Updates that are not finite get weight zero."""
        finite = torch.stack([_is_finite(v.reshape(len(v), -1)) for v in vectors.values()]).all(0)
        stored = sum(v.numel() * v.element_size() for chunks in total.values() for v in chunks)
        new = {"": weights.masked_fill(~finite, 0), **{k: _store(v, stored) for k, v in vectors.items()}}
        return {k: (*total.get(k, ()), v) for k, v in new.items()}

    def result(self, total: Total) -> State:
        """[R, …] each; NaN where a run had no usable update."""
        results = [
            _nan_result(total) if updates is None else self.for_run(r).aggregate(updates)
            for r, updates in enumerate(_split_runs(total))
        ]
        return {k: torch.stack([result[k] for result in results]) for k in total if k}

    def for_run(self, r: int) -> SeesEach:
        """The rule for run `r` of several; the same for all runs unless overridden."""
        return self

    @abstractmethod
    def aggregate(self, updates: Updates) -> State:
        """Combine the updates of one run."""


class WithMemory(SeesEach):
    """A rule whose result depends on earlier rounds.

    The engine keeps the memory of each run and saves it with the run's state. Without a memory, outside a
    job, the rule is its `aggregate`.
    """

    remembers = True

    def result_with_memory(
        self, total: Total, parties: Tensor, memories: list[Total], down: State
    ) -> tuple[State, list[Total]]:
        def one(r: int, updates: Updates | None) -> tuple[State, Total]:
            if updates is None:
                return _nan_result(total), memories[r]
            used = torch.cat([w[r] for w in total[""]]) != 0
            return self.aggregate_with_memory(
                updates, parties.to(used.device)[used], memories[r], {k: v[r] for k, v in down.items()}
            )

        results, after = zip(*(one(r, updates) for r, updates in enumerate(_split_runs(total))))
        return {k: torch.stack([result[k] for result in results]) for k in total if k}, list(after)

    @abstractmethod
    def aggregate_with_memory(
        self, updates: Updates, parties: Tensor, memory: Total, down: State
    ) -> tuple[State, Total]:
        """Combine the updates of one run with its memory; return the result and the new memory."""


def _split_runs(total: Total) -> Iterator[Updates | None]:
    """The updates of each run; None for a run without a usable update."""
    chunks = {k: v for k, v in total.items() if k}
    for r in range(len(total[""][0])):
        weights = torch.cat([w[r] for w in total[""]])
        rows = [(w[r] != 0).nonzero()[:, 0] for w in total[""]]
        yield Updates(chunks, rows, weights[weights != 0]) if (weights != 0).any() else None


def _nan_result(total: Total) -> State:
    return {k: torch.full_like(v[0][0], torch.nan) for k, v in total.items() if k}


def _is_finite(rows: Tensor) -> Tensor:
    """[S]: whether all numbers of a row are finite.

    Only the extremes are tested, because a mask of all numbers would take as much memory as the rows.
    """
    if not rows.numel():
        return torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    low, high = rows.aminmax(dim=1)
    return torch.isfinite(low) & torch.isfinite(high)


def _store(v: Tensor, stored: int) -> Tensor:
    """The tensor itself while `MEMORY_LIMIT` allows it, otherwise a copy in an unnamed temporary file."""
    if v.device.type != "cpu" or stored + v.numel() * v.element_size() <= MEMORY_LIMIT or not v.numel():
        return v
    with tempfile.TemporaryFile(prefix="tacit-updates-") as file:
        v.contiguous().numpy().tofile(file)
        file.flush()
        return torch.from_numpy(np.memmap(file, dtype=v.numpy().dtype, mode="r+", shape=tuple(v.shape)))


class Updates:
    """The n updates of one run, as a matrix [n, D] that is stored in chunks."""

    def __init__(self, chunks: dict[str, tuple[Tensor, ...]], rows: list[Tensor], weights: Tensor):
        self.shapes = {k: v[0].shape[1:] for k, v in chunks.items()}
        self.chunks = {k: [c.reshape(len(c), -1) for c in v] for k, v in chunks.items()}
        self.rows, self.weights = rows, weights

    def __len__(self) -> int:
        return len(self.weights)

    def select(self, mask: Tensor) -> Updates:
        """The updates for which `mask` [n] is true."""
        some = copy.copy(self)
        some.rows = [
            rows[m] for rows, m in zip(self.rows, torch.split(mask, [len(rows) for rows in self.rows]))
        ]
        some.weights = self.weights[mask]
        return some

    def without_buffers(self) -> Updates:
        """The updates without the statistics of normalization layers, which are not trained."""
        some = copy.copy(self)
        some.chunks = {k: v for k, v in self.chunks.items() if k != "buffers"} or self.chunks
        return some

    def displacements(self, down: State) -> Tensor:
        """[n, D]: each update relative to what the server sent, its vectors concatenated, without buffers."""
        whole = {k: self.block(k, 0, v[0].shape[1]) for k, v in self.without_buffers().chunks.items()}
        return torch.cat([x - down[k].reshape(1, -1).to(x) if k in down else x for k, x in whole.items()], 1)

    def blocks(self) -> list[Block]:
        """All coordinates, divided into blocks."""
        width = max(1, BLOCK // max(1, len(self)))
        return [
            (k, a, min(a + width, v[0].shape[1]))
            for k, v in self.chunks.items()
            for a in range(0, v[0].shape[1], width)
        ]

    def block(self, key: str, a: int, b: int, out: Tensor | None = None) -> Tensor:
        """[n, b − a]: coordinates a to b of one vector of every update."""
        parts = [
            c[:, a:b] if len(rows) == len(c) else c[:, a:b].index_select(0, rows)
            for c, rows in zip(self.chunks[key], self.rows)
        ]
        return torch.cat(parts) if out is None else torch.cat(parts, out=out)

    def _scratch_block(self, key: str, a: int, b: int) -> Tensor:
        """`block`, valid until this thread's next call.

        It reuses the thread's buffer: a new allocation for every block would fragment memory up to
        the size of all updates.
        """
        if self.weights.device.type != "cpu":
            return self.block(key, a, b)
        n = len(self)
        return self.block(key, a, b, _buffer(self.chunks[key][0].dtype, n * (b - a)).view(n, b - a))

    def row(self, key: str, i: int) -> Tensor:
        """One vector of update i."""
        for chunk, rows in zip(self.chunks[key], self.rows):
            if i < len(rows):
                return chunk[rows[i]].view(self.shapes[key])
            i -= len(rows)
        raise IndexError(f"there is no update {i}")

    def products(self, centered: bool) -> Tensor:
        """[n, n] inner products, in float64.

        `centered` subtracts the mean first: distances stay the same, and rounding does not cancel them.
        """

        def compute(block: Block) -> Tensor:
            x = self._scratch_block(*block)
            x = x.sub_(x.mean(0)) if centered and x.device.type == "cpu" else x - x.mean(0) if centered else x
            return (x @ x.T).double()

        total = torch.zeros(len(self), len(self), dtype=torch.float64, device=self.weights.device)
        for part in self._map(compute):
            total += part
        return total

    def distances(self) -> Tensor:
        """[n, n] squared distances."""
        g = self.products(centered=True)
        own = g.diagonal()
        return (own[:, None] + own[None, :] - 2 * g).clamp(min=0).fill_diagonal_(0)

    def norms(self) -> Tensor:
        """[n] L2 norms."""

        def compute(block: Block) -> Tensor:
            x = self._scratch_block(*block)
            wide = (
                _buffer(torch.float64, x.numel()).view(x.shape).copy_(x)
                if x.device.type == "cpu" and x.dtype != torch.float64
                else x.double()
            )
            return wide.square().sum(1) if wide is x else wide.square_().sum(1)

        return sum(self._map(compute), torch.zeros(())).sqrt()

    def weighted_sum(self, shares: Tensor) -> State:
        """Σ shares_i · update_i"""
        shares = shares.to(torch.float32)
        return self._join(lambda block: shares @ self._scratch_block(*block))

    def reduce_coordinates(self, reduce: Callable[[Tensor], Tensor]) -> State:
        """Apply `reduce` to each coordinate: [b, n], every row in ascending order → [b]."""
        return self._join(lambda block: reduce(_sort_coordinates(self._scratch_block(*block))))

    def _join(self, compute: Callable[[Block], Tensor]) -> State:
        parts: dict[str, list[Tensor]] = {k: [] for k in self.chunks}
        for (key, _, _), part in zip(self.blocks(), self._map(compute)):
            parts[key].append(part.to(self.chunks[key][0].dtype))
        return {
            k: torch.cat(v).view(self.shapes[k]) if v else torch.zeros(self.shapes[k])
            for k, v in parts.items()
        }

    def _map(self, compute: Callable[[Block], Tensor]) -> Iterator[Tensor]:
        blocks = self.blocks()
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if len(blocks) == 1 or self.weights.device.type != "cpu":
            yield from map(compute, blocks)
            return
        with ThreadPoolExecutor(cores, thread_name_prefix="tacit-aggregate") as pool:
            yield from pool.map(compute, blocks)


def _buffer(dtype: torch.dtype, size: int) -> Tensor:
    """This thread's scratch buffer of `size` numbers."""
    buffers: dict[Any, Tensor] = vars(_BUFFERS)
    if dtype not in buffers or buffers[dtype].numel() < size:
        buffers[dtype] = torch.empty(max(size, BLOCK), dtype=dtype)
    return buffers[dtype][:size]


def _sort_coordinates(block: Tensor) -> Tensor:
    """[n, b] → [b, n], every row in ascending order.

    On a CPU, NumPy sorts nine times as fast as torch, because it uses SIMD registers.
    """
    if block.device.type != "cpu":
        return block.T.sort(1).values
    transposed = block.T.contiguous().numpy()
    transposed.sort(axis=1)
    return torch.from_numpy(transposed)
