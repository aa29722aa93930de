"""Tables larger than memory for `tacit psi`: ids in buckets on disk, and shared rows in the common order.

Everything is in a private folder (mode 0700, encrypted under keys that are only in memory) that is removed at
the end and after an error. After a kill its files remain, and nobody can read them; the next matching in the
same place removes them.
"""

from __future__ import annotations

import csv
import fcntl
import io
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from ...crypto.spool import Spool
from ...data.cells import show_row
from ...data.identifiers import SHOWN, IdSet, MisreadIds, ReadIds, first_of_each, identify, identify_chunks
from ...data.table_files import is_parquet, measure_table, read_chunks, read_header, write_table
from ...errors import BadData, BadParameter, MissingFiles
from ...protocols.id_buckets import RECORD, SharedRows, StoredIds

if TYPE_CHECKING:
    from pandas import DataFrame

log = logging.getLogger("tacit.party")
IN_MEMORY = 1 << 22  # rows up to which ids stay in memory: about 300 MB
COUNTED_IN_MEMORY = 1 << 20  # the same for counts and sums, which keep 0.8 to 2 kB for each row
PREFIX = ".tacit-psi-"
LOCK = "lock"
NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
SORTED = 1 << 19  # rows of a table that are put in order at once
PAIR = 16  # bytes of a row's number and its position in the result
ROW = 3 * RECORD  # bytes on disk for each row: its id, once more in a bucket, and once more if it is shared
COUNT_ROW = 24 + 8 + 160  # bytes of a row for a count: its id and value; it and a decoy, shuffled, blinded
NUMBERS = 2  # in a sum, the ciphertexts of a row and its decoy are on disk, too
QUOTES = 1.25  # text on disk has more quotes than in the table
SAYS = 10_000_000  # rows between two lines of progress


@dataclass
class Scratch:
    """A place for large files, as a context manager. `folder()` creates the folder when it is needed.

    `always`: it is used for small tables, too.
    """

    parent: Path
    always: bool = False
    _folder: Path | None = None
    _lock: int = -1

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._lock)
            self._folder = None

    def folder(self) -> Path:
        if self._folder is None:
            for left in self.parent.glob(f"{PREFIX}*"):
                _remove_if_left(left)
            try:
                self._folder, self._lock = _make_locked(self.parent)
            except OSError as error:
                raise BadParameter(
                    f"psi: no files can be written in {self.parent}: {error.strerror}. Give a folder with "
                    "--scratch."
                ) from None
        return self._folder

    def check_space(self, rows: int, text: int, out: Path | None, each: int = ROW) -> None:
        """Raise BadParameter unless the disks have room for a table of so many rows and bytes.

        `each`: bytes of a row in files. `out`: where shared rows are written.
        """
        need = each * rows
        if out is not None:  # the shared rows, at most all: once here and once in the result
            need += PAIR * rows + int(QUOTES * text)
            if out.parent.stat().st_dev == self.folder().stat().st_dev:
                need += text
            else:
                _check_free(out.parent, text, f"{text / 1e9:.2f} GB for the result", "Choose another --out.")
        _check_free(
            self.folder(),
            need,
            f"{need / 1e9:.2f} GB for {rows:,} rows of {text / 1e9:.2f} GB",
            "Give a folder on a larger disk with --scratch.",
        )


def _make_locked(parent: Path) -> tuple[Path, int]:
    """Create a folder of mode 0700; return it and its lock, which is held while this process lives."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink:
            return folder, lock
        os.close(lock)  # another matching took it for a killed one's, and removed it


def _remove_if_left(folder: Path) -> None:
    """Remove the folder of a process that was killed: its lock is free. In a shared place: only one's own."""
    try:
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            return
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:  # removed in the meantime, or not yet locked
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    else:
        shutil.rmtree(folder, ignore_errors=True)
        log.info("removed %s, the files of a matching that was killed", folder)
    finally:
        os.close(lock)


def _check_free(folder: Path, need: int, why: str, advice: str) -> None:
    free = shutil.disk_usage(folder).free
    if free < need:
        raise BadParameter(
            f"psi: the disk of {folder.parent if folder.name.startswith(PREFIX) else folder} has "
            f"{free / 1e9:.2f} GB free; at most {why} are needed. Free some space. {advice}"
        )


def scratch_in(directory: str | Path | None, out: str | Path | None) -> Scratch:
    """Return the place for large files: next to `out`, or else that of the system; if given, `directory`,
    which is then used for tables of any size.
    """
    if directory is not None and not Path(directory).is_dir():
        raise MissingFiles(f"psi: --scratch {directory} is not a folder. Create it, or choose another one.")
    if directory is not None:
        return Scratch(Path(directory), always=True)
    return Scratch(Path(tempfile.gettempdir() if out is None else Path(out).parent))


@dataclass(frozen=True)
class ValueColumn:
    """A column of whole numbers from 0 to `limit`, read with the ids."""

    name: str
    limit: int

    def parse(self, file: Path, cells: Iterable[Any], first: int) -> list[int]:
        """Return the numbers of rows from `first` on."""
        values = []
        for row, cell in enumerate(cells, first):
            try:
                values.append(int(cell))
            except ValueError:
                raise BadData(
                    f"{file}, column {self.name!r}: {show_row(row)} has {cell!r:.80}; the sum is exact, so "
                    "it must be an integer."
                ) from None
            if not 0 <= values[-1] <= self.limit:
                raise BadData(
                    f"{file}, column {self.name!r}: {show_row(row)} has {cell!r:.80}; values must be from 0 "
                    f"to {self.limit} (--limit, the same at all parties)."
                )
        return values


def read_ids_into(
    scratch: Scratch,
    file: Path,
    column: str,
    out: Path | None,
    how: Mapping[str, Any] = NO_OPTIONS,
    each: int = ROW,
    values: ValueColumn | None = None,
    most: int = IN_MEMORY,
) -> IdSet | StoredSet:
    """Read the ids in a column in one pass: into memory up to `most` rows, or into files.

    `how`: options of `read_chunks`, such as the separator. `each`: bytes of a row in files. `values` are kept
    with ids in files only.
    """
    where = f"{file}, column {column!r}"
    rows, text = measure_table(file)
    misread = MisreadIds(how.get("encoding"))
    columns, numbers = [column] if values is None else list({column: 0, values.name: 0}), _Pending()

    def cells() -> Iterator[Any]:
        for chunk in read_chunks(file, columns, **how):
            if values is not None:
                numbers.add(values.parse(file, chunk[values.name].tolist(), int(chunk.index[0])))
            yield from chunk[column].tolist()

    ids = misread.watch(cells())
    if rows <= most and not scratch.always:
        columns, values = [column], None
        found = identify(ids, where)
        check_ids(file, found)
        return replace(found, notes=(*found.notes, *misread.notes(where)))
    scratch.check_space(rows, text, out, each)
    store, read, said = StoredIds(scratch.folder(), SHOWN, values is not None), ReadIds(), 0
    for digests, places in identify_chunks(ids, where, read):
        store.add(digests, places, None if values is None else numbers.take(places, read.total))
        if read.total - said >= SAYS:
            said = read.total
            log.info("%s: %s rows read", where, f"{said:,}")
    store.finish(first_of_each)
    notes = read.notes(where, store.repeated, store.first_repeated.tolist())
    stored = StoredSet(store, read.total, (*notes, *misread.notes(where)))
    check_ids(file, stored)
    return stored


class _Pending:
    """Values of rows that were read and whose ids were not yet."""

    def __init__(self) -> None:
        self._values, self._first = np.zeros(0, np.int64), 0

    def add(self, values: list[int]) -> None:
        self._values = np.concatenate([self._values, np.array(values, np.int64)])

    def take(self, rows: np.ndarray, end: int) -> np.ndarray:
        """Return the values of these rows, and forget those of all rows before `end`."""
        taken = self._values[rows - self._first]
        self._values, self._first = self._values[end - self._first :], end
        return taken


def check_ids(file: str | Path, ids: IdSet | StoredSet) -> None:
    """Raise BadData if the table has no rows."""
    if not ids.total:
        raise BadData(f"{file} has column names and no rows. Give at least one row.")


@dataclass(frozen=True)
class StoredSet:
    """Distinct ids in files; the rest as in `IdSet`."""

    digests: StoredIds
    total: int
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.digests)


def write_shared(
    file: Path,
    ids: StoredSet,
    rows: SharedRows,
    out: Path,
    scratch: Scratch,
    kept: int,
    is_kept: bool,
    how: str,
    how_read: Mapping[str, Any] = NO_OPTIONS,
) -> None:
    """Write the shared rows in the common order; in a left join, then the kept party's other rows.

    `rows`: arrays of rows, in that order. The other party has empty cells there. `kept` is the kept party's
    set size.
    """
    ids.digests.forget_buckets()

    def parts() -> Iterator[DataFrame]:
        import pandas

        columns = next(iter(read_chunks(file, **how_read))).iloc[:0]
        yield columns  # there may be no other
        yield from put_in_order(file, rows, len(rows), scratch.folder(), how_read)
        if how == "left" and is_kept:
            is_rest = np.zeros(ids.total, bool)
            for some in ids.digests.rows():
                is_rest[some] = True
            for some in rows:
                is_rest[some] = False
            for chunk in read_chunks(file, **how_read):
                yield chunk[is_rest[chunk.index[0] : chunk.index[-1] + 1]]
        elif how == "left":
            for first in range(0, kept - len(rows), SORTED):
                index = range(min(SORTED, kept - len(rows) - first))
                yield pandas.DataFrame("", index=index, columns=columns.columns)

    write_table(
        parts(), out, read_header(file, how_read.get("separator"), how_read.get("encoding")).separator
    )


def put_in_order(
    file: Path,
    rows: Iterable[np.ndarray],
    total: int,
    folder: Path,
    how: Mapping[str, Any] = NO_OPTIONS,
) -> Iterator[DataFrame]:
    """Yield these `total` rows of a table in this order, some at a time; memory does not grow with them.

    A distribution sort: the positions go into files by row, so that the table is read once, and its shared
    rows into files by position.
    """
    last = -1
    for some in rows:
        last = max(last, int(some.max(initial=-1)))
    places = Spool(folder, "places", last // SORTED + 1, PAIR)
    at = 0
    for some in rows:
        pairs = np.stack([some, np.arange(at, at + len(some))], 1).astype("<i8")
        places.append(some // SORTED, pairs.view(np.uint8).reshape(-1, PAIR))
        at += len(some)
    texts, encode, decode = Spool(folder, "rows", -(-total // SORTED), 1), None, None
    pending, part = np.zeros((0, 2), np.int64), 0
    for chunk in read_chunks(file, **how):
        if encode is None:
            encode, decode = (_typed_codec if is_parquet(file) else _text_codec)(chunk.columns)
        end = int(chunk.index[-1]) + 1
        while part * SORTED < end and part < len(places.counts):
            pending = np.concatenate([pending, places.read(part).view("<i8").reshape(-1, 2)])
            pending = pending[np.argsort(pending[:, 0], kind="stable")]
            part += 1
        now, pending = np.split(pending, [np.searchsorted(pending[:, 0], end)])
        selected = chunk.iloc[now[:, 0] - int(chunk.index[0])]
        for number in np.unique(now[:, 1] // SORTED).tolist():
            inside = now[:, 1] // SORTED == number
            data = encode(selected[inside], now[inside, 1])
            texts.extend(number, np.frombuffer(data, np.uint8).reshape(-1, 1))
    places.remove()
    for number in range(len(texts.counts)):
        assert decode is not None
        frame, positions = decode(texts.read(number).tobytes())
        if len(frame) != min(SORTED, total - number * SORTED):
            raise MissingFiles(f"{file} has fewer rows than when its ids were read. Start again.")
        if len(texts.counts) > 1:
            log.info("%s: %s of %s shared rows", file, f"{number * SORTED + len(frame):,}", f"{total:,}")
        yield frame.iloc[np.argsort(positions)]
    texts.remove()


Encode = Callable[["DataFrame", np.ndarray], bytes]
Decode = Callable[[bytes], tuple["DataFrame", np.ndarray]]


def _text_codec(names: Any) -> tuple[Encode, Decode]:
    """Return functions that write rows with their positions as bytes, and read these: text cells as CSV."""
    import pandas as pd

    def encode(frame: DataFrame, positions: np.ndarray) -> bytes:
        numbered = frame.set_axis(range(1, len(names) + 1), axis=1)
        numbered.insert(0, 0, positions)
        text: str = numbered.to_csv(index=False, header=False, quoting=csv.QUOTE_ALL, lineterminator="\n")
        return text.encode("utf-8", "surrogatepass")

    def decode(data: bytes) -> tuple[DataFrame, np.ndarray]:
        text = io.StringIO(data.decode("utf-8", "surrogatepass"), newline="")
        frame = pd.read_csv(text, header=None, dtype=str, na_filter=False, lineterminator="\n")
        return frame.iloc[:, 1:].set_axis(names, axis=1), frame[0].to_numpy(np.int64)

    return encode, decode


def _typed_codec(names: Any) -> tuple[Encode, Decode]:
    """The same for the columns of a Parquet file, as Arrow streams one after the other."""
    import pandas as pd
    import pyarrow as pa

    def encode(frame: DataFrame, positions: np.ndarray) -> bytes:
        numbered = frame.set_axis([str(k) for k in range(1, len(names) + 1)], axis=1)
        numbered.insert(0, "0", positions)
        table, out = pa.Table.from_pandas(numbered, preserve_index=False), io.BytesIO()
        with pa.ipc.new_stream(out, table.schema) as stream:
            stream.write_table(table)
        return out.getvalue()

    def decode(data: bytes) -> tuple[DataFrame, np.ndarray]:
        source, frames = pa.BufferReader(data), []
        while source.tell() < len(data):
            frames.append(pa.ipc.open_stream(source).read_all().to_pandas())
        frame = pd.concat(frames, ignore_index=True)
        return frame.iloc[:, 1:].set_axis(names, axis=1), frame["0"].to_numpy(np.int64)

    return encode, decode
