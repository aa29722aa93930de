"""Federations from Parquet and Arrow files that are larger than memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData, MissingExtra
from ..parameters import bad, nearest
from .arrays import from_arrays
from .federation import Federation
from .inputs import Inputs, Stored
from .row_sources import to_tensor, write_rows

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK = 2048  # rows that are decoded at a time
PARTY = "party"  # the column of the parties' names
File = str | os.PathLike[str]


def from_parquet_files(
    parties: Mapping[str, File | Sequence[File]],
    *,
    label: str,
    columns: Sequence[str] | None = None,
    test: File | Sequence[File] | None = None,
    folder: str | Path | None = None,
    transform: Callable[[Any, torch.Generator], Any] | None = None,
    classes: int | None = None,
    regression: bool = False,
    name: str = "files",
    held_fraction: float = 0.1,
    seed: int = 0,
) -> Federation:
    """Make a federation of the Parquet or Arrow (.arrow, .feather) files of each party, of any size.

    Files are read once, block by block, and written to a file of rows (in `folder`) from which batches are
    read: the memory of a batch and of the labels suffices, and disk space for the numbers (4 bytes each).
    Clients run one by one. Columns of numbers together are one row of features; where a column has lists of
    one length, columns are the model's named inputs. Numbers are used as they are: tables that need scaling
    or have categories are read with `from_parquet`.

    Columns are read by name, in the order of `columns` or else of the first file; other files may have them
    in another order. Without `columns` all files must have the same ones.
    """
    if not isinstance(parties, Mapping) or not parties:
        given = type(parties).__name__ if parties else parties
        raise bad(name, "parties", given, "a dictionary of the files of each party")
    names = [str(party) for party in parties]
    sets = [*parties.values(), *([] if test is None else [test])]
    labels: list[np.ndarray] = []
    sizes: list[int] = []
    order = _ColumnOrder(name, label, None if columns is None else tuple(columns))

    def rows() -> Iterator[Tensor | Inputs]:
        for files in sets:
            before = sum(map(len, labels))
            for file in [files] if isinstance(files, str | os.PathLike) else files:
                for batch in _batches(name, Path(file), order):
                    labels.append(_label(name, Path(file), label, batch))
                    yield _features(name, Path(file), batch.drop_columns([label]))
            sizes.append(sum(map(len, labels)) - before)

    whole = Stored.of(write_rows(name, rows(), folder))
    for party, size in zip([*names, "the test set"], sizes):
        if not size:
            raise BadData(f"{name}: the files of {party!r} have no rows. Leave it out, or give it some.")
    y = np.concatenate(labels)
    n = sum(sizes[: len(names)])
    data = from_arrays(
        whole[:n],
        y[:n],
        test=None if test is None else (whole[n:], y[n:]),
        test_fraction=0.0,
        classes=classes,
        regression=regression,
        name=name,
        groups={PARTY: np.repeat(names, sizes[: len(names)])},
        transform=transform,
    )
    return data.by(PARTY, seed=seed, held_fraction=held_fraction)


def _batches(name: str, path: Path, order: _ColumnOrder) -> Iterator[pa.Table]:
    """Return blocks of a file; a Parquet file is decoded by row groups, an Arrow file is memory-mapped."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtra("data.from_parquet_files", "data", "pyarrow") from error
    if not path.is_file():
        raise BadData(f"{name}: there is no file {path}. Give files, not folders.")
    try:
        if path.suffix in (".arrow", ".feather"):
            with pa.memory_map(str(path)) as mapped, pa.ipc.open_file(mapped) as file:
                wanted = order.find(path, list(file.schema.names))
                for i in range(file.num_record_batches):
                    table = pa.Table.from_batches([file.get_batch(i)]).select(wanted)
                    for start in range(0, len(table), BLOCK):
                        yield table.slice(start, BLOCK)
            return
        with pq.ParquetFile(path, pre_buffer=False) as file:
            wanted = order.find(path, list(file.schema_arrow.names))
            # one row group after the other: its decoded columns, not the file, are in memory
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(BLOCK, row_groups=[group], columns=wanted, use_threads=False):
                    yield pa.Table.from_batches([batch]).select(wanted)
    except pa.ArrowInvalid as error:
        raise BadData(f"{name}: {path} is not a Parquet or Arrow file: {str(error).rstrip('.')}.") from None


class _ColumnOrder:
    """The columns that are read of every file, in one order, whatever the order in a file is."""

    def __init__(self, name: str, label: str, columns: tuple[str, ...] | None):
        self.name, self.label, self.columns = name, label, columns
        self.first: Path | None = None  # the file that the columns are from, if they were not given

    def find(self, path: Path, known: list[str]) -> list[str]:
        """Return the columns to read of a file with these, the label last; BadData if one is missing."""
        if twice := sorted({c for c in known if known.count(c) > 1}):
            raise BadData(
                f"{self.name}: {path} has several columns {twice[0]!r}. Rename or drop all but one."
            )
        if self.columns is None:
            self.columns, self.first = tuple(c for c in known if c != self.label), path
        wanted = [c for c in self.columns if c != self.label]
        if missing := [c for c in (*wanted, self.label) if c not in known]:
            whose = f", and {self.first} has it" if self.first not in (None, path) else ""
            raise BadData(
                f"{self.name}: {path} has no column {missing[0]!r}{whose}. {nearest(missing[0], known)}"
            )
        if not wanted:
            raise BadData(f"{self.name}: {path} has no columns besides the label {self.label!r}.")
        if self.first is not None and (more := [c for c in known if c not in (*wanted, self.label)]):
            raise BadData(
                f"{self.name}: {path} has the column {more[0]!r}, and {self.first} does not. Say "
                "columns=[…], the columns to read of all files."
            )
        return [*wanted, self.label]


def _label(name: str, path: Path, label: str, batch: Any) -> np.ndarray:
    column = batch.column(label)
    if column.null_count:
        raise BadData(f"{name}: {path}: {column.null_count} rows have no {label!r}. Fill or drop them.")
    values: np.ndarray = column.to_numpy()
    # a copy: a view would keep the block's memory
    return values.astype(str) if values.dtype == object else values.copy()


def _features(name: str, path: Path, table: Any) -> Tensor | Inputs:
    parts = {c: _column(name, path, c, table.column(c)) for c in table.column_names}
    if all(t.dim() == 1 for t in parts.values()):
        return torch.stack([t.float() for t in parts.values()], 1)
    return Inputs(parts)


def _column(name: str, path: Path, column: str, values: Any) -> Tensor:
    if values.null_count:
        raise BadData(f"{name}: {path}: {values.null_count} rows have no {column!r}. Fill or drop them.")
    a = values.to_numpy()
    try:
        if a.dtype == object:
            a = np.stack(list(a))
        if a.dtype.kind not in "biuf":
            raise TypeError
    except (TypeError, ValueError):
        raise BadData(
            f"{name}: {path}: the column {column!r} does not contain numbers or lists of numbers of one "
            "length. Leave it out (columns=[…]), fill lists up with data.pad, or read the table with "
            "from_parquet."
        ) from None
    return to_tensor(f"{name}, {path}, {column!r}", a)
