"""Read and write tables without converting cells: CSV as text, Parquet with its types and nulls.

In a CSV file an empty cell is an empty string and NA is the text "NA". A reader that converts "", "NA" and
"null" to one missing value would merge people into one class who differ in the file.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from ..errors import BadData, BadParameter, MissingExtra, MissingFiles
from ..parameters import nearest

if TYPE_CHECKING:
    from pandas import DataFrame

PARQUET = (".parquet", ".pq")
SEPARATORS = (",", ";", "\t", "|")
CHUNK = 200_000  # rows of text read at a time: a few hundred megabytes


class TableFile(NamedTuple):
    frame: DataFrame
    separator: str  # of a CSV file, to write the result in the same format


def read_table(path: str | os.PathLike[str]) -> TableFile:
    """Read a CSV file with a header (also compressed by gzip) or a Parquet file."""
    file = Path(path)
    if not file.is_file():
        names = [p.name for p in file.parent.iterdir()] if file.parent.is_dir() else []
        raise MissingFiles(
            f"there is no file {file}. " + (nearest(file.name, names[:50]) if names else "Check the path.")
        )
    if file.suffix.lower() in PARQUET:
        return TableFile(_parquet(file), ",")
    return _csv(file)


def _parquet(file: Path) -> DataFrame:
    import pandas as pd

    try:
        import pyarrow
    except ImportError:
        raise MissingExtra("reading Parquet", "data", "pyarrow") from None
    try:
        return pd.read_parquet(file)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise BadData(f"{file} cannot be read as Parquet: {error}.") from None


def _text(file: Path) -> IO[str]:
    return (
        gzip.open(file, "rt", encoding="utf-8-sig", newline="")
        if file.suffix.lower() == ".gz"
        else open(file, encoding="utf-8-sig", newline="")
    )


def _csv(file: Path) -> TableFile:
    import pandas as pd

    try:
        with _text(file) as text:
            first = text.readline()
        if not first.strip():
            raise BadData(f"{file} has no header. The first line must name the columns.")
        separator = max(SEPARATORS, key=first.count)
        names = next(csv.reader([first], delimiter=separator))
        repeated = next((n for n in names if names.count(n) > 1), None)
        if repeated is not None:
            raise BadData(f"{file}: two columns are named {repeated!r}. Rename one of them.")
        with _text(file) as text:
            frame = _concatenate(
                pd.read_csv(
                    text,
                    sep=separator,
                    dtype=str,
                    keep_default_na=False,
                    na_filter=False,
                    index_col=False,
                    chunksize=CHUNK,
                )
            )
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
        raise BadData(
            f"{file} cannot be read as UTF-8 text: {error}. Save it as UTF-8 CSV; compress it by gzip "
            "only if its name ends in .gz."
        ) from None
    except (
        pd.errors.ParserError,
        pd.errors.EmptyDataError,
        pd.errors.ParserWarning,
        csv.Error,
        OSError,
    ) as error:
        raise BadData(
            f"{file} cannot be read as a table: {str(error).strip()}. Every row needs one cell for each of "
            f"the {len(names)} columns."
        ) from None
    if len(frame) and (frame.iloc[:, -1] == "").any():
        _check_widths(file, separator, len(names))
    if not len(frame):
        raise BadData(f"{file} has a header and no rows. Use a file with at least one row.")
    return TableFile(frame, separator)


def _concatenate(chunks: Iterable[DataFrame]) -> DataFrame:
    """Concatenate chunks of text as categories, which store each word once.

    Ten million rows of a few thousand words fit into a gigabyte. (With dtype="category" pandas converts the
    categories to numbers, and 007 becomes 7.)
    """
    import pandas as pd
    from pandas.api.types import union_categoricals

    parts: dict[str, list[pd.Categorical]] = {}
    for chunk in chunks:
        for name in chunk.columns:
            parts.setdefault(name, []).append(pd.Categorical(chunk[name]))
    return pd.DataFrame({name: union_categoricals(some) for name, some in parts.items()})


def _check_widths(file: Path, separator: str, width: int) -> None:
    """Raise if a row has the wrong number of cells.

    pandas pads short rows with empty cells, so this is called only if the last column has empty cells.
    """
    with _text(file) as text:
        for number, row in enumerate(csv.reader(text, delimiter=separator)):
            if row and len(row) != width:
                raise BadData(
                    f"{file}: row {number} after the header has {len(row)} cells, the header {width}. Every "
                    "row needs one cell for each column."
                )


def write_table(frame: DataFrame, path: str | os.PathLike[str], separator: str = ",") -> Path:
    """Write a table atomically. Row labels are not written: they may reveal who was suppressed."""
    file = Path(path)
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with os.fdopen(handle, "wb") as out:
            if file.suffix.lower() in PARQUET:
                frame.to_parquet(out, index=False)
            elif file.suffix.lower() == ".gz":
                with (
                    gzip.GzipFile(filename="", fileobj=out, mode="wb", mtime=0) as packed,
                    io.TextIOWrapper(packed, encoding="utf-8", newline="") as text,
                ):
                    frame.to_csv(text, index=False, sep=separator, lineterminator="\n")
            else:
                with io.TextIOWrapper(out, encoding="utf-8", newline="", write_through=True) as text:
                    frame.to_csv(text, index=False, sep=separator, lineterminator="\n")
                    out.flush()
                    os.fsync(out.fileno())
        os.replace(temporary, file)
    except ImportError:
        temporary.unlink(missing_ok=True)
        raise MissingExtra("writing Parquet", "data", "pyarrow") from None
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise BadParameter(
            f"{file} cannot be written: {error.strerror}. Choose a writable directory."
        ) from None
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return file
