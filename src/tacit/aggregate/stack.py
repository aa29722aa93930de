"""Updates kept side by side, for rules that must see each of them.

Most such rules need little more than how far the updates lie from each other. That is one pass over them: the
matrix of their inner products, added up block of columns by block of columns. What follows (Krum's scores,
Weiszfeld's steps) works on n × n numbers, and a second pass adds up the updates with the weights found.
Beyond `ROOM` bytes updates wait in a file without a name, which the system keeps in memory for as long as
there is any.
"""

from __future__ import annotations

import copy
import os
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

ROOM = 1 << 30  # bytes of updates held in memory by one rule
BLOCK = 1 << 22  # numbers looked at together: they fit a core's cache, or nearly
Total = dict[str, Any]
_ROOMS = threading.local()  # what a thread looks at


class Each(ABC):
    """A rule that looks at single updates. It says what becomes of one run's in `one`."""

    sees_each = True

    def start(self) -> Total:
        return {}

    def add(self, total: Total, weights: Tensor, vectors: dict[str, Tensor]) -> Total:
        """Keep a stack of updates [S, …] with weights [R, S]. An update that is not finite is left out, as a
        server of real parties refuses it.
        """
        whole = torch.stack([_finite(v.reshape(len(v), -1)) for v in vectors.values()]).all(0)
        held = sum(v.numel() * v.element_size() for chunks in total.values() for v in chunks)
        new = {"": weights.masked_fill(~whole, 0), **{k: _placed(v, held) for k, v in vectors.items()}}
        return {k: (*total.get(k, ()), v) for k, v in new.items()}

    def result(self, total: Total) -> dict[str, Tensor]:
        """[R, …] each; not a number where a run had no update that could be used."""
        made = [
            _nothing(total) if updates is None else self.of_run(r).one(updates)
            for r, updates in enumerate(_runs(total))
        ]
        return {k: torch.stack([m[k] for m in made]) for k in total if k}

    def of_run(self, r: int) -> Each:
        """The rule as it works for one of the runs side by side; most make no difference."""
        return self

    @abstractmethod
    def one(self, updates: Updates) -> dict[str, Tensor]:
        """How one run's updates become one."""


class Remembering(Each):
    """A rule that looks at earlier rounds, too. What it remembers is the engine's to keep, for each run, and
    to save with its state: {} before the first round. Told of no earlier round, as outside a job, it is what
    it says in `one`.
    """

    def recall(
        self, total: Total, who: Tensor, memories: list[Total], down: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], list[Total]]:
        """(the result, what is remembered now). `who` [S] are the parties' numbers, in the order of their
        updates; `down` what servers sent, [R, …].
        """
        made, after = [], []
        for r, updates in enumerate(_runs(total)):
            if updates is None:
                result, memory = _nothing(total), memories[r]
            else:
                here = torch.cat([w[r] for w in total[""]]) != 0
                result, memory = self.look(
                    updates, who.to(here.device)[here], memories[r], {k: v[r] for k, v in down.items()}
                )
            made.append(result)
            after.append(memory)
        return {k: torch.stack([m[k] for m in made]) for k in total if k}, after

    @abstractmethod
    def look(
        self, updates: Updates, who: Tensor, memory: Total, down: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], Total]:
        """What it makes of one run's updates and of earlier rounds, and what it remembers now."""


def _runs(total: Total) -> Iterator[Updates | None]:
    """The updates of one run after the other; None for one that has none it can use."""
    chunks = {k: v for k, v in total.items() if k}
    for r in range(len(total[""][0])):
        weights = torch.cat([w[r] for w in total[""]])
        rows = [(w[r] != 0).nonzero()[:, 0] for w in total[""]]
        yield Updates(chunks, rows, weights[weights != 0]) if (weights != 0).any() else None


def _nothing(total: Total) -> dict[str, Tensor]:
    return {k: torch.full_like(v[0][0], torch.nan) for k, v in total.items() if k}


def _finite(rows: Tensor) -> Tensor:
    """[S]: whether every number of a row is finite, by its ends: a map of all of them would be as large
    again.
    """
    if not rows.numel():
        return torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    low, high = rows.aminmax(dim=1)
    return torch.isfinite(low) & torch.isfinite(high)


def _placed(v: Tensor, held: int) -> Tensor:
    """Where it is, while there is room; else in a file that is gone when nobody reads it any more."""
    if v.device.type != "cpu" or held + v.numel() * v.element_size() <= ROOM or not v.numel():
        return v
    with tempfile.TemporaryFile(prefix="tacit-updates-") as file:
        v.contiguous().numpy().tofile(file)
        file.flush()
        return torch.from_numpy(np.memmap(file, dtype=v.numpy().dtype, mode="r+", shape=tuple(v.shape)))


class Updates:
    """The updates of one run, n of them."""

    def __init__(self, chunks: dict[str, tuple[Tensor, ...]], rows: list[Tensor], weights: Tensor):
        self.shapes = {k: v[0].shape[1:] for k, v in chunks.items()}
        self.chunks = {k: [c.reshape(len(c), -1) for c in v] for k, v in chunks.items()}
        self.rows, self.weights = rows, weights

    def __len__(self) -> int:
        return len(self.weights)

    def only(self, kept: Tensor) -> Updates:
        """Those whose place in `kept` [n] is true."""
        some = copy.copy(self)
        some.rows = [rows[k] for rows, k in zip(self.rows, kept.split([len(rows) for rows in self.rows]))]
        some.weights = self.weights[kept]
        return some

    def moved(self) -> Updates:
        """The same without the statistics of layers, which say nothing about where a party wants to go."""
        some = copy.copy(self)
        some.chunks = {k: v for k, v in self.chunks.items() if k != "buffers"} or self.chunks
        return some

    def ways(self, down: dict[str, Tensor]) -> Tensor:
        """[n, D]: how far each update goes from where the server stands, all its vectors in a row."""
        parts = []
        for key, chunks in self.moved().chunks.items():
            x = self.block(key, 0, chunks[0].shape[1])
            parts.append(x - down[key].reshape(1, -1).to(x) if key in down else x)
        return torch.cat(parts, 1)

    def places(self) -> list[tuple[str, int, int]]:
        """All coordinates, cut into blocks: (vector, from, to)."""
        width = max(1, BLOCK // max(1, len(self)))
        return [
            (k, a, min(a + width, v[0].shape[1]))
            for k, v in self.chunks.items()
            for a in range(0, v[0].shape[1], width)
        ]

    def block(self, key: str, a: int, b: int) -> Tensor:
        """[n, b − a]: some coordinates of every update."""
        return torch.cat(
            [
                c[:, a:b] if len(rows) == len(c) else c[:, a:b].index_select(0, rows)
                for c, rows in zip(self.chunks[key], self.rows)
            ]
        )

    def _look(self, key: str, a: int, b: int) -> Tensor:
        """`block`, until this thread looks at the next one: always in the same memory, which would else be
        taken and left in pieces, up to the size of all updates.
        """
        need = len(self) * (b - a)
        if self.weights.device.type != "cpu":
            return self.block(key, a, b)
        return torch.cat(
            [
                c[:, a:b] if len(rows) == len(c) else c[:, a:b].index_select(0, rows)
                for c, rows in zip(self.chunks[key], self.rows)
            ],
            out=_room(self.chunks[key][0].dtype, need).view(len(self), b - a),
        )

    def row(self, key: str, i: int) -> Tensor:
        """One vector of update i."""
        for chunk, rows in zip(self.chunks[key], self.rows):
            if i < len(rows):
                return chunk[rows[i]].view(self.shapes[key])
            i -= len(rows)
        raise IndexError(f"there is no update {i}")

    def products(self, centred: bool) -> Tensor:
        """[n, n] inner products, in float64; `centred` on their mean, which leaves distances as they are and
        does not lose them to rounding.
        """

        def one(place: tuple[str, int, int]) -> Tensor:
            x = self._look(*place)
            x = x.sub_(x.mean(0)) if centred and x.device.type == "cpu" else x - x.mean(0) if centred else x
            return (x @ x.T).double()

        total = torch.zeros(len(self), len(self), dtype=torch.float64, device=self.weights.device)
        for part in self._map(one):
            total += part
        return total

    def distances(self) -> Tensor:
        """[n, n] squared distances."""
        g = self.products(centred=True)
        own = g.diagonal()
        return (own[:, None] + own[None, :] - 2 * g).clamp(min=0).fill_diagonal_(0)

    def norms(self) -> Tensor:
        """[n]"""

        def one(place: tuple[str, int, int]) -> Tensor:
            x = self._look(*place)
            wide = (
                _room(torch.float64, x.numel()).view(x.shape).copy_(x)
                if x.device.type == "cpu" and x.dtype != torch.float64
                else x.double()
            )
            return wide.square().sum(1) if wide is x else wide.square_().sum(1)

        return sum(self._map(one), torch.zeros(())).sqrt()

    def combined(self, share: Tensor) -> dict[str, Tensor]:
        """Σ share_i · update_i"""
        share = share.to(torch.float32)
        return self._made(lambda place: share @ self._look(*place))

    def by_coordinate(self, rule: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """`rule` gets some coordinates of all updates, [b, n], each row in ascending order, and gives [b]."""
        return self._made(lambda place: rule(_ascending(self._look(*place))))

    def _made(self, one: Callable[[tuple[str, int, int]], Tensor]) -> dict[str, Tensor]:
        parts: dict[str, list[Tensor]] = {k: [] for k in self.chunks}
        for (key, _, _), part in zip(self.places(), self._map(one)):
            parts[key].append(part.to(self.chunks[key][0].dtype))
        return {
            k: torch.cat(v).view(self.shapes[k]) if v else torch.zeros(self.shapes[k])
            for k, v in parts.items()
        }

    def _map(self, one: Callable[[tuple[str, int, int]], Tensor]) -> Iterator[Tensor]:
        places = self.places()
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if len(places) == 1 or self.weights.device.type != "cpu":
            yield from map(one, places)
            return
        with ThreadPoolExecutor(cores, thread_name_prefix="tacit-aggregate") as pool:
            yield from pool.map(one, places)


def _room(dtype: torch.dtype, numbers: int) -> Tensor:
    """Memory of this thread's own for so many numbers, the same every time."""
    held: dict[Any, Tensor] = vars(_ROOMS)
    if dtype not in held or held[dtype].numel() < numbers:
        held[dtype] = torch.empty(max(numbers, BLOCK), dtype=dtype)
    return held[dtype][:numbers]


def _ascending(block: Tensor) -> Tensor:
    """[n, b] → [b, n] in order. numpy's sort is the faster by nine times on a CPU, where it uses the wide
    registers and torch does not.
    """
    if block.device.type != "cpu":
        return block.T.sort(1).values
    turned = block.T.contiguous().numpy()
    turned.sort(axis=1)
    return torch.from_numpy(turned)
