"""Rows outside of memory: arrays of a file, `torch.utils.data.Dataset`s, rows written to disk once.

A source reads the rows of one batch. It is given to `Stored`, which the engines treat as a tensor.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData
from .inputs import DTYPES, Change, Inputs, Stored, stack_rows

Collate = Callable[[list[Any]], Any]  # rows → a tensor, a dictionary or a tuple of tensors, as torch's


def to_tensor(name: str, values: Any) -> Tensor:
    """Return an array as float32 or int64, or of true and false, as training uses it."""
    t = values if isinstance(values, Tensor) else torch.from_numpy(np.array(values))
    if t.is_floating_point():
        t = t.float()
        if not torch.isfinite(t).all():
            raise BadData(
                f"{name}: a row that was read has a NaN or infinite value. Fill it, or drop the row."
            )
        return t
    return t if t.dtype == torch.bool else t.long()


def to_row(name: str, row: Any) -> Tensor | Inputs:
    """Return the x of one row: a tensor, or a dictionary or a tuple of tensors."""
    try:
        if isinstance(row, Mapping):
            return Inputs({str(k): to_tensor(name, v) for k, v in row.items()})
        if isinstance(row, tuple):
            return Inputs({str(i): to_tensor(name, v) for i, v in enumerate(row)}, is_named=False)
        return to_tensor(name, row)
    except (TypeError, ValueError) as error:
        raise BadData(
            f"{name}: a row has a value that is not a number or an array of numbers: "
            f"{str(error).rstrip('.')}. Encode it in the data set, or with a transform."
        ) from None


def join_rows(name: str, rows: Sequence[Any], collate: Collate | None = None) -> Tensor | Inputs:
    """Return single rows as one batch, by the user's function if there is one."""
    if collate is not None:
        return to_row(name, collate(list(rows)))
    try:
        return stack_rows([to_row(name, row) for row in rows])
    except (ValueError, KeyError) as error:
        raise BadData(
            f"{name}: rows cannot be joined to a batch: {str(error).rstrip('.')}. Give collate=, a function "
            "that joins a list of rows as torch's collate_fn does, or fill rows up to one length with "
            "data.pad."
        ) from None


@dataclass(frozen=True)
class ArraySource:
    """Arrays with a row per entry, in memory or memory-mapped: read as they are indexed."""

    name: str
    parts: dict[str, Any]  # by the name of the input; "" if there is one
    is_named: bool = False
    real: bool = False  # whether whole numbers become real ones

    def __len__(self) -> int:
        return len(next(iter(self.parts.values())))

    def read(self, rows: np.ndarray, change: Change | None = None) -> Tensor | Inputs:
        parts = {k: self._part(v, rows) for k, v in self.parts.items()}
        x = parts[""] if set(parts) == {""} else Inputs(parts, self.is_named)
        if change is None:
            return x
        each = (row.values() if isinstance(row, Inputs) else row for row in x)
        return join_rows(self.name, [change(i, row) for i, row in enumerate(each)])

    def _part(self, values: Any, rows: np.ndarray) -> Tensor:
        t = to_tensor(self.name, values[torch.from_numpy(rows) if isinstance(values, Tensor) else rows])
        return t.float() if self.real else t

    def describe(self) -> str:
        each = (
            f"{k} {str(v.dtype).removeprefix('torch.')} {tuple(v.shape[1:])}" for k, v in self.parts.items()
        )
        return ", ".join(each).strip()


@dataclass(frozen=True)
class DatasetSource:
    """Map-style data sets, one after the other; `x_of` takes the inputs of an item."""

    name: str
    datasets: Sequence[Any]
    x_of: Callable[[Any], Any]
    collate: Collate | None = None

    @property
    def _ends(self) -> np.ndarray:
        return np.cumsum([len(d) for d in self.datasets])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, rows: np.ndarray, change: Change | None = None) -> Tensor | Inputs:
        ends = self._ends
        whose = np.searchsorted(ends, rows, side="right")
        starts = np.concatenate([[0], ends[:-1]])
        each = [
            self.x_of(self.datasets[k][int(row - starts[k])]) for k, row in zip(whose.tolist(), rows.tolist())
        ]
        if change is not None:
            each = [change(i, row) for i, row in enumerate(each)]
        return join_rows(self.name, each, self.collate)

    def describe(self) -> str:
        return f"items of {type(self.datasets[0]).__name__}"


@dataclass(frozen=True)
class FileSource:
    """Rows of one size in a binary file, read one by one: the memory of a batch suffices.

    The file is opened once, and read with `pread`, which several threads may do at once. It is not
    memory-mapped: pages of a mapping count as memory of the process.
    """

    name: str
    path: Path
    layout: dict[str, tuple[str, tuple[int, ...]]]  # dtype and shape of a row's inputs; "" if there is one
    is_named: bool
    rows: int
    file: int = field(repr=False)  # descriptor

    def __len__(self) -> int:
        return self.rows

    @property
    def row_bytes(self) -> int:
        return sum(_bytes(dtype, shape) for dtype, shape in self.layout.values())

    def read(self, rows: np.ndarray, change: Change | None = None) -> Tensor | Inputs:
        size = self.row_bytes
        block = bytearray(len(rows) * size)
        view = memoryview(block)
        for i, row in enumerate(rows.tolist()):
            if os.preadv(self.file, [view[i * size : (i + 1) * size]], row * size) != size:
                raise BadData(f"{self.name}: {self.path} is shorter than when it was written. Load it again.")
        parts, at = {}, 0
        table = np.frombuffer(block, dtype=np.uint8).reshape(len(rows), size)
        for name, (dtype, shape) in self.layout.items():
            width = _bytes(dtype, shape)
            values = np.ascontiguousarray(table[:, at : at + width]).view(dtype).reshape(len(rows), *shape)
            parts[name], at = torch.from_numpy(values), at + width
        x = parts[""] if set(parts) == {""} else Inputs(parts, self.is_named)
        if change is None:
            return x
        each = (row.values() if isinstance(row, Inputs) else row for row in x)
        return join_rows(self.name, [change(i, row) for i, row in enumerate(each)])

    def describe(self) -> str:
        return ", ".join(f"{k} {dtype} {shape}" for k, (dtype, shape) in self.layout.items()).strip()


def _bytes(dtype: str, shape: tuple[int, ...]) -> int:
    return int(np.dtype(dtype).itemsize * np.prod(shape, dtype=np.int64))


def write_rows(name: str, batches: Iterable[Tensor | Inputs], folder: str | Path | None = None) -> FileSource:
    """Write batches of rows to a new file, and return it as a source; the file is removed with the source.

    `folder` is where the file is made; by default the system's folder for temporary files.
    """
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
    descriptor, path = tempfile.mkstemp(prefix="tacit-", suffix=".rows", dir=folder)
    try:
        layout: dict[str, tuple[str, tuple[int, ...]]] = {}
        is_named, rows = False, 0
        with os.fdopen(os.dup(descriptor), "wb") as out:
            for batch in batches:
                parts = {"": batch} if isinstance(batch, Tensor) else batch.parts
                found = {k: (_dtype(t), tuple(t.shape[1:])) for k, t in parts.items()}
                if layout and found != layout:
                    raise BadData(
                        f"{name}: rows from {rows} on have {found}, and earlier ones {layout}. Give all rows "
                        "the same inputs and shapes; data.pad fills up sequences."
                    )
                layout, is_named = layout or found, isinstance(batch, Inputs) and batch.is_named
                rows += len(batch)
                # in the order of the first batch: equal dictionaries may have their entries in another order
                flat = [np.ascontiguousarray(parts[k].numpy()).reshape(len(batch), -1) for k in layout]
                out.write(np.concatenate([a.view(np.uint8) for a in flat], axis=1).tobytes())
    except BaseException:
        os.close(descriptor)
        os.unlink(path)
        raise
    source = FileSource(name, Path(path), layout, is_named, rows, descriptor)
    weakref.finalize(source, _remove, descriptor, path)
    return source


def _dtype(t: Tensor) -> str:
    return next(name for name, dtype in DTYPES.items() if dtype == t.dtype)


def _remove(descriptor: int, path: str) -> None:
    os.close(descriptor)
    Path(path).unlink(missing_ok=True)


def in_batches(rows: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Return rows in lists of at most this size."""
    batch: list[Any] = []
    for row in rows:
        batch.append(row)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def stored_arrays(name: str, x: Any, transform: Any = None, real: bool = False) -> Stored:
    """Return arrays, a dictionary or a tuple of them as rows that are read when they are used."""
    is_several = isinstance(x, Mapping | tuple)
    parts = dict(x) if isinstance(x, Mapping) else dict(enumerate(x)) if is_several else {"": x}
    named = {str(k): v for k, v in parts.items()}
    return Stored.of(ArraySource(name, named, isinstance(x, Mapping), real), transform)
