"""Read and write tables. Every verb reads files through `read_table`, so a file has one meaning.

The format is detected from the content: Parquet, or else CSV (compressed by gzip, bzip2 or xz if the name
says so).

CSV
    - UTF-8, with or without a byte order mark, unless `encoding` is given (of several, the first that fits).
      The first line names the columns; each name is unique.
    - The separator is the one of , ; tab | that gives the most columns in the first line, unless it is given.
    - Every row has as many cells as the first line. A row counter without a name, which R writes, is dropped.
    - Spaces after a separator are not part of the cell. Blank lines are skipped.
    - A cell that is one of `NULLS` is a missing value.
    - A column whose cells are all numbers is numeric. If one of them is a code with a leading zero, such as
      007, or an integer above 9·10^15, whose last digits a float would lose, the column is text. `True` and
      `False` are booleans. Everything else, dates included, is text.
    - With decimal=",", a number such as 1.157 is refused: it may be 1157.
    - An id column is text, exactly as written. It has no missing values: whether the text "NA" is an id is
      decided where ids are compared (`identifiers.identify`).
    - With `text=True` every cell is text, exactly as written, and "" and "NA" are two different values.
Parquet
    - The file's own types and nulls. An id column of integers becomes text, digit by digit.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import functools
import gzip
import io
import itertools
import lzma
import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from ..errors import BadData, BadParameter, MissingExtra, MissingFiles
from ..files import open_atomic
from ..parameters import bad, nearest, proposes_lines
from .thousands import refuse_thousands

if TYPE_CHECKING:
    from pandas import DataFrame, Series

# What programs write for a missing value: pandas' list, NaT (pandas), \N (MySQL and Hive) and ? (UCI).
NULLS = (
    *("", "?", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("<NA>", "N/A", "NA", "NULL", "NaN", "NaT", "None", "\\N", "n/a", "nan", "null"),
)
SEPARATORS = (",", ";", "\t", "|")
PARQUET = (".parquet", ".pq")  # names of Parquet files that are written; when reading, the content decides
# An integer with a leading zero, whose zeros mean something, or above 2^53: a float64, which pandas uses for
# a column with missing values, would change its last digits. 2^53 has 16 digits and begins with 90.
CODE = r"0\d+|9\d{15}|\d{17,}"
THOUSANDS = (
    "the numbers have a comma, like {!r}, in a file whose cells are separated by commas. Write them without "
    "separators of thousands and with a point: 1234.5. (decimal='.' reads the column as text.)"
)
DECIMAL_COMMA = (
    "the numbers have a decimal comma, like {!r}. Read the file with decimal=',' (from_csv, "
    "pandas.read_csv; on the command line --decimal ,), or write them with a point."
)
READING = ("separator", "decimal", "encoding")  # how a CSV file is read, in [data] and [parties.NAME]
HEADER_LINES = 100  # of names with line breaks, together
CHUNK = 200_000  # rows of text at a time: some hundred megabytes
CHARACTERS = 1 << 20  # of text at a time, to find its encoding
_OPEN: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


class Header(NamedTuple):
    """The column names of a table, and the separator of a CSV file (for Parquet: a comma)."""

    names: tuple[str, ...]
    separator: str
    has_counter: bool = False  # rows begin with one more cell, which has no name


def read_header(
    path: str | os.PathLike[str], separator: str | None = None, encoding: str | None = None
) -> Header:
    """Read the column names. Raises BadData if there are none or two are the same."""
    check_reading("read_table", separator=separator, encoding=encoding)
    file = _find(path)
    if is_parquet(file):
        with _parquet(file) as (_, pq):
            header = Header(tuple(pq.read_schema(file).names), ",")
    else:
        with _explain(file, encoding), _open_text(file, _settle_encoding(file, encoding)) as text:
            first = next((line for line in text if line.strip()), "")
            if not first:
                raise BadData(f"{file} is empty. The first line must name the columns.")
            # a name in quotes may contain a line break, as in spreadsheets
            lines = [first, *itertools.islice(text, HEADER_LINES - 1)]
            rows = {
                s: next(csv.reader(lines, delimiter=s, skipinitialspace=True))
                for s in (SEPARATORS if separator is None else (separator,))
            }
            used = max(rows, key=lambda s: len(rows[s]))  # the first of equals
            names = [name or f"Unnamed: {i}" for i, name in enumerate(rows[used])]  # as pandas calls them
            other = next((s for s in SEPARATORS if s in first), used)
            if len(names) == 1 and other != used:
                advice = (
                    "leave --separator out (in a job file: separator), and it is detected."
                    if proposes_lines()
                    else f"pass separator={other!r}, or leave separator out."
                )
                raise BadData(
                    f"{file} has one column, {names[0][:60]!r}, if the separator is {used!r}. The file seems "
                    f"to use {other!r}: {advice}"
                )
            reader = csv.reader(itertools.chain(lines, text), delimiter=used, skipinitialspace=True)
            next(reader)
            second = next(reader, ())
            if len(second) > len(names) + 1:  # one more is a counter of rows without a name
                columns = "1 column" if len(names) == 1 else f"{len(names)} columns"
                raise BadData(
                    f"{file}: the first line names {columns}, and the next has {len(second)} cells. Is there "
                    "a title or a comment above the column names? Remove it: the first line must name every "
                    "column."
                )
            header = Header(tuple(names), used, len(second) > len(names))
    repeated = next((n for n in header.names if header.names.count(n) > 1), None)
    if repeated is not None:
        advice = (
            " The first line must contain column names; this one contains numbers."
            if all(map(_is_number, header.names))
            else ""
        )
        raise BadData(f"{file}: two columns are named {repeated!r}. Give each column its own name.{advice}")
    return header


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def read_table(
    path: str | os.PathLike[str],
    *,
    ids: Sequence[str] = (),
    text: bool = False,
    separator: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    declared: Mapping[str, Sequence[str]] | None = None,
    least_rows: int = 1,
    text_columns: Container[str] = (),
) -> DataFrame:
    """Read a CSV or Parquet file by the rules above.

    `ids` are read as text, exactly. `text=True` reads every cell of a CSV file so, as categories; with
    decimal="," columns of numbers get decimal points. Otherwise a column of numbers with a decimal comma is
    refused, unless `decimal` says what the decimal sign is. `encoding` is
    that of a CSV file, such as "cp1252" (default: UTF-8). `declared` are the text values of columns: such a
    column is text, and a value of the list is never missing, even if it is NA or ?. A table with fewer than
    `least_rows` (0 or 1) is refused. With decimal="," so are numbers such as 1.157, which may be 1157, but
    for `ids`, `declared` and `text_columns`.
    Raises MissingFiles, BadData (with the place and what to do) or MissingExtra.
    """
    import pandas as pd

    file = _find(path)
    header = check_decimal(file, separator=separator, decimal=decimal, encoding=encoding)
    for name in ids:
        if name not in header.names:
            raise BadData(f"{file} has no column {name!r}. {nearest(name, list(header.names))}")
    if is_parquet(file):
        frame = _read_parquet(file, ids)
    elif text:
        frame = _as_categories(read_chunks(file, separator=separator, encoding=encoding))
        if decimal == ",":
            frame = frame.apply(_with_points)
    else:
        with _explain(file, encoding):
            known = {n: set(v) for n, v in (declared or {}).items() if n in header.names}

            def parse(codes: Sequence[str] = ()) -> DataFrame:
                return pd.read_csv(
                    file,
                    **_options(file, header, encoding),
                    decimal=decimal or ".",
                    dtype=dict.fromkeys((*ids, *codes, *known), str),
                    na_values={
                        name: [w for w in NULLS if w not in known.get(name, ())]
                        for name in header.names
                        if name not in ids
                    },
                    keep_default_na=False,
                    low_memory=False,
                )

            frame = parse()
            codes = _code_columns(file, header, frame, separator, encoding)
            # among integers above 2^64 pandas keeps missing cells as text, unless the column is declared text
            codes += [
                name
                for name in frame.columns.difference([*ids, *known])
                if frame[name].dtype.kind == "O" and frame[name].isin(NULLS).any()
            ]
            if codes:
                frame = parse(codes)
        frame = _check_rows(file, header, frame, 0, encoding)
        for name in header.names if decimal is None else ():
            if name not in ids and (example := find_decimal_comma(frame[name])):
                advice = THOUSANDS if header.separator == "," else DECIMAL_COMMA
                raise BadData(f"{file}, column {name!r}: {advice.format(example)}")
        if decimal == ",":  # pandas leaves them text, and float() reads them as decimals
            numbers = [n for n in header.names if n not in ids and n not in known]
            refuse_thousands(file, frame[numbers], text_columns)
    if len(frame) < least_rows:
        raise BadData(f"{file} has column names and no rows. Give at least one row.")
    return frame


def find_decimal_comma(column: Series) -> str | None:
    """An example of a number with a comma, if a text column has nothing but such numbers."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):
        return None
    values = column.dropna().astype(str)
    example = next((v for v in values if "," in v), None)
    return example if example and values.str.fullmatch(r"[+-]?\d+(,\d+)?").all() else None


def _with_points(column: Series) -> Series:
    """Return a column of text with decimal points, if all of its cells are numbers with commas or missing."""
    words = column.cat.categories
    numbers = words[~words.isin(NULLS)]
    if find_decimal_comma(numbers.to_series()) is None:
        return column
    return column.cat.rename_categories({word: word.replace(",", ".") for word in numbers})


def _find_comma_columns(
    path: Path, names: Sequence[str], separator: str | None, encoding: str | None
) -> list[str]:
    """The columns of a CSV file in which all cells are numbers with commas or missing: one pass over it."""
    possible, found = set(names), set[str]()
    for chunk in read_chunks(path, names, separator, encoding):
        for name in sorted(possible):
            words = chunk[name]
            words = words[~words.isin(NULLS)]
            if find_decimal_comma(words) is not None:
                found.add(name)
            elif not words.str.fullmatch(r"[+-]?\d+").all():
                possible.discard(name)
    return [name for name in names if name in possible & found]


def read_chunks(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    separator: str | None = None,
    encoding: str | None = None,
    decimal: str | None = None,
) -> Iterator[DataFrame]:
    """Read a CSV file as text, exactly, some rows at a time, for files larger than memory.

    The index counts the rows of the file. `columns` of a Parquet file are ids. With decimal="," columns of
    numbers get decimal points, as by `read_table(text=True)`; the file is read twice.
    """
    import pandas as pd

    file = _find(path)
    header = check_decimal(file, separator=separator, decimal=decimal, encoding=encoding)
    for name in columns or ():
        if name not in header.names:
            raise BadData(f"{file} has no column {name!r}. {nearest(name, list(header.names))}")
    if is_parquet(file):
        yield from _parquet_chunks(file, columns)
        return
    names = list(header.names if columns is None else columns)
    numbers = _find_comma_columns(file, names, separator, encoding) if decimal == "," else []
    start, is_checked = 0, False
    with (
        _explain(file, encoding),
        pd.read_csv(
            file, **_options(file, header, encoding), dtype=str, na_filter=False, chunksize=CHUNK
        ) as chunks,
    ):
        for chunk in chunks:
            frame = _check_rows(file, header, chunk, start, encoding, is_checked)
            is_checked = is_checked or _may_be_short(frame, header)
            start += len(frame)
            for name in numbers:
                cells = frame[name]
                frame[name] = cells.where(cells.isin(NULLS), cells.str.replace(",", ".", regex=False))
            yield frame if columns is None else frame[list(columns)]


def measure_table(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Return (at most so many rows, bytes of text when unpacked) of a CSV or Parquet file, fast."""
    file = _find(path)
    if is_parquet(file):
        with _parquet(file) as (_, pq):
            facts = pq.ParquetFile(file).metadata
            # dictionaries of words are repeated when unpacked, so this is only an estimate
            return facts.num_rows, sum(
                facts.row_group(k).total_byte_size for k in range(facts.num_row_groups)
            )
    lines = size = 0
    with _explain(file), _OPEN.get(file.suffix.lower(), open)(file, "rb") as content:
        while block := content.read(CHARACTERS):
            lines += block.count(b"\n") or block.count(b"\r")
            size += len(block)
    return lines, size  # the first line has no row, the last one may not end in a line break


def check_table_name(path: str | os.PathLike[str], option: str = "") -> Path:
    """Return the path of a table to write; raise BadParameter if its ending is not that of a table.

    Call it before any work is done. `option` is the beginning of the error, such as "synth: --out ".
    """
    if not os.fspath(path).lower().endswith((".csv", ".csv.gz", *PARQUET)):
        raise BadParameter(
            f"{option}{path} must end in .csv, .csv.gz or .parquet, which determines the format."
        )
    return Path(path)


def write_table(
    frames: DataFrame | Iterable[DataFrame],
    path: str | os.PathLike[str],
    separator: str = ",",
    text_columns: Sequence[str] = (),
) -> Path:
    """Write a table, or its parts one after the other, as CSV (.csv, .csv.gz) or Parquet, atomically.

    Row labels are not written: they may identify omitted rows. `text_columns` are text in a Parquet file even
    if the first part has no value in them.
    """
    import pandas as pd

    file = check_table_name(path)
    parts = [frames] if isinstance(frames, pd.DataFrame) else frames
    try:
        with open_atomic(file) as out:
            if file.suffix.lower() in PARQUET:
                _write_parquet(parts, out, text_columns)
            elif file.suffix.lower() == ".gz":
                with gzip.GzipFile(filename="", fileobj=out, mode="wb", mtime=0) as packed:
                    _write_csv(parts, packed, separator)
            else:
                _write_csv(parts, out, separator)
    except OSError as error:
        raise BadParameter(
            f"{file} cannot be written: {error.strerror}. Choose a place you may write to."
        ) from None
    return file


def _write_csv(parts: Iterable[DataFrame], out: Any, separator: str) -> None:
    text = io.TextIOWrapper(out, encoding="utf-8", newline="")
    header = True
    for part in parts:
        for begin in range(0, max(len(part), 1), CHUNK):
            text.write(_to_lines(part.iloc[begin : begin + CHUNK], header, separator))
            header = False
    text.detach()


def _to_lines(rows: DataFrame, header: bool, separator: str) -> str:
    write = functools.partial(rows.to_csv, index=False, header=header, sep=separator, lineterminator="\n")
    lines = str(write())
    if "\r" in lines:  # pandas does not quote it, and readers take it for the end of a row
        lines = str(write(quoting=csv.QUOTE_NONNUMERIC))
    return lines


def _write_parquet(parts: Iterable[DataFrame], out: IO[bytes], text_columns: Sequence[str]) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtra("writing Parquet", "data", "pyarrow") from None
    writer: Any = None
    try:
        for part in parts:
            if writer is None:
                schema = pa.Schema.from_pandas(part, preserve_index=False)
                for name in text_columns:
                    schema = schema.set(schema.get_field_index(name), pa.field(name, pa.string()))
                writer = pq.ParquetWriter(out, schema)
            writer.write_table(pa.Table.from_pandas(part, schema=schema, preserve_index=False))
    finally:
        if writer is not None:
            writer.close()


def _find(path: str | os.PathLike[str]) -> Path:
    file = Path(path).expanduser()
    if file.is_dir():
        raise MissingFiles(f"{file} is a folder. Give a file in it.")
    if not file.is_file():
        tables = (
            sorted(p.name for p in file.parent.iterdir() if _has_table_name(p))
            if file.parent.is_dir()
            else []
        )
        advice = nearest(file.name, tables, "Files in this folder", 5, _stem) if tables else "Check the path."
        raise MissingFiles(f"there is no file {file}. {advice}")
    return file


def _stem(name: str) -> str:
    """The name without its endings: .csv, which most tables share, would make all of them similar."""
    path = Path(name.lower())
    return (path.with_suffix("") if path.suffix in _OPEN else path).stem


def _has_table_name(path: Path) -> bool:
    """Whether the name is that of a table. (Other files can be read too, if they contain one.)"""
    name = path.with_suffix("") if path.suffix in _OPEN else path
    return name.suffix in (".csv", ".tsv", *PARQUET) and path.is_file()


def is_parquet(file: Path) -> bool:
    """Whether the content of a file is Parquet, and not CSV."""
    with _explain(file), file.open("rb") as content:
        start = content.read(4)
    if start[:2] == b"PK":
        raise BadData(
            f"{file} is a spreadsheet or a zip archive. Save the table as CSV or Parquet, and "
            "unpack it first."
        )
    if start != b"PAR1" and file.suffix.lower() in PARQUET:
        raise BadData(f"{file} cannot be read as Parquet: it does not begin with the bytes PAR1.")
    return start == b"PAR1"


def check_reading(
    owner: str, *, separator: str | None = None, decimal: str | None = None, encoding: str | None = None
) -> None:
    """Raise BadParameter unless these can be options of a CSV file; None is not given."""
    if separator is not None and (len(separator) != 1 or separator in '\r\n"'):
        # a shell passes on the two characters
        advice = "Leave it out: a tab is detected." if separator == "\\t" else ""
        raise bad(owner, "separator", separator, "one character, like ';'", advice)
    if decimal not in (None, ".", ","):
        raise bad(owner, "decimal", decimal, "'.' or ','")
    if separator is not None and separator == decimal:
        raise bad(owner, "decimal", decimal, "different from the separator", "Pass the separator, often ';'.")
    check_encoding(owner, encoding)


def check_decimal(
    path: str | os.PathLike[str],
    *,
    separator: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
) -> Header:
    """Read the column names; raise BadParameter if the decimal sign is none, or separates the cells."""
    check_reading("read_table", decimal=decimal)
    header = read_header(path, separator, encoding)
    if decimal == header.separator and not is_parquet(_find(path)):
        check_reading(f"read_table: {path}", separator=header.separator, decimal=decimal)
    return header


def reading_in(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return separator, decimal and encoding as far as a table of a job file gives them."""
    return {key: str(table[key]) for key in READING if table.get(key)}


def reading_of_published(path: str | os.PathLike[str], reading: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a published table is read: as tacit wrote it, if it can be that, or as the original.

    tacit writes UTF-8, decimal points, and commas between the cells of a table that was sampled. Text in
    another encoding that has an umlaut is not UTF-8 by chance.
    """
    how = dict(reading)
    if "encoding" in how:
        how["encoding"] = f"utf-8, {how['encoding']}"
    header = read_header(path, encoding=how.get("encoding"))
    if header.separator == "," and len(header.names) > 1:
        how.pop("separator", None)
    if header.separator == how.get("decimal"):
        del how["decimal"]
    return how


def check_encoding(owner: str, encoding: str | None) -> None:
    """Raise BadParameter unless Python knows this encoding of text, or each of several."""
    try:
        each = [] if encoding is None else [codecs.lookup(name.strip()) for name in encoding.split(",")]
        is_text = all(codec._is_text_encoding for codec in each)
    except (LookupError, TypeError, ValueError, AttributeError):
        is_text = False
    if not is_text:
        raise bad(
            owner,
            "encoding",
            encoding,
            "the name of an encoding, such as 'utf-8' or 'cp1252', or several to try: 'utf-8, cp1252'",
        )


def _settle_encoding(file: Path, encoding: str | None) -> str:
    """Return the first of the encodings in which the file is text; the last, if it is in none."""
    names = ["utf-8"] if encoding is None else [name.strip() for name in encoding.split(",")]
    # a byte order mark is not a part of the first column's name
    names = ["utf-8-sig" if codecs.lookup(name).name == "utf-8" else name for name in names]
    for name in names[:-1]:
        try:
            with _open_text(file, name) as text:
                while text.read(CHARACTERS):
                    pass
            return name
        except UnicodeError:
            continue
    return names[-1]


def find_byte_order_mark(path: str | os.PathLike[str]) -> str | None:
    """Return "utf-16" or "utf-32" if the file begins with a byte order mark of it."""
    file = _find(path)
    with _explain(file), _OPEN.get(file.suffix.lower(), open)(file, "rb") as content:
        start = content.read(4)
    if start in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE):
        return "utf-32"
    return "utf-16" if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else None


def _open_text(file: Path, encoding: str) -> IO[str]:
    opener = _OPEN.get(file.suffix.lower(), open)
    return opener(file, "rt", encoding=encoding, newline="")  # type: ignore[no-any-return]


def _options(file: Path, header: Header, encoding: str | None = None) -> dict[str, Any]:
    """How pandas splits a CSV file into cells, the same for every way of reading."""
    used = _settle_encoding(file, encoding)
    return {"sep": header.separator, "skipinitialspace": True, "encoding": used}


@contextmanager
def _explain(file: Path, encoding: str | None = None) -> Iterator[None]:
    """Turn what pandas and the operating system raise into errors that say what to do."""
    import pandas as pd

    try:
        yield
    except (UnicodeError, EOFError, gzip.BadGzipFile, lzma.LZMAError) as error:
        likely = (find_byte_order_mark(file) if isinstance(error, UnicodeError) else None) or "cp1252"
        raise BadData(
            f"{file} is not {encoding or 'UTF-8'} text: {error}. Save it as UTF-8 (in a spreadsheet: "
            f'"CSV UTF-8"), or give its encoding, such as {likely!r}. A packed '
            "file must end in .gz, .bz2 or .xz."
        ) from None
    except PermissionError:
        raise MissingFiles(
            f"{file} may not be read: permission denied. Ask for the right to read it, or give another file."
        ) from None
    except (pd.errors.EmptyDataError, pd.errors.ParserError, csv.Error, OSError) as error:
        raise BadData(
            f"{file} cannot be read as a table: {str(error).strip()}. The first line must name the columns, "
            "and every row needs one cell for each of them."
        ) from None


def _check_rows(
    file: Path,
    header: Header,
    frame: DataFrame,
    start: int,
    encoding: str | None = None,
    is_checked: bool = False,
) -> DataFrame:
    """The rows numbered from `start`, if each has as many cells as there are columns.

    `is_checked`: it is known already that no row of the file is too short.
    """
    import pandas as pd

    places = pd.RangeIndex(start, start + len(frame))
    if header.has_counter:  # pandas takes the cells before the named ones as row labels
        labels = pd.to_numeric(pd.Series(frame.index), errors="coerce")
        if not any((labels == places + first).all() for first in (0, 1)):
            raise BadData(
                f"{file} has more cells in its rows than names in its first line ({len(header.names)}). Name "
                "every column, and put cells that contain the separator in quotes."
            )
    if not is_checked and _may_be_short(frame, header):
        _check_widths(file, header.separator, len(header.names) + header.has_counter, encoding)
    frame.index = places
    return frame


def _may_be_short(frame: DataFrame, header: Header) -> bool:
    """Whether a row may be too short: pandas fills it."""
    last = frame[header.names[-1]]
    return bool((last.isna() | (last == "")).any())


def _check_widths(file: Path, separator: str, width: int, encoding: str | None = None) -> None:
    with _open_text(file, _settle_encoding(file, encoding)) as text:
        rows = csv.reader(text, delimiter=separator, skipinitialspace=True)
        next(row for row in rows if row)
        for number, row in enumerate((row for row in rows if row), 1):
            if len(row) != width:
                raise BadData(
                    f"{file}: row {number} (line {rows.line_num}) has {len(row)} cells, and the table has "
                    f"{width} columns. Every row needs one cell for each column."
                )


def _code_columns(
    file: Path, header: Header, frame: DataFrame, separator: str | None, encoding: str | None = None
) -> list[str]:
    """The columns that were parsed as numbers and have codes in them."""
    numeric = [name for name in header.names if name in frame and frame[name].dtype.kind in "iuf"]
    codes: set[str] = set()
    for chunk in read_chunks(file, numeric, separator, encoding) if numeric else ():
        codes.update(n for n in numeric if n not in codes and chunk[n].str.fullmatch(CODE).any())
    return [name for name in numeric if name in codes]


def _as_categories(chunks: Iterable[DataFrame]) -> DataFrame:
    """Parts of text as one table of categories, in which each word is stored once.

    Ten million rows of a few thousand words fit into a gigabyte. (pandas' own dtype="category" would turn
    007 into 7.)
    """
    import pandas as pd
    from pandas.api.types import union_categoricals

    parts: dict[str, list[pd.Categorical]] = {}
    for chunk in chunks:
        for name in chunk.columns:
            parts.setdefault(name, []).append(pd.Categorical(chunk[name]))
    return pd.DataFrame({name: union_categoricals(some) for name, some in parts.items()})


@contextmanager
def _parquet(file: Path) -> Iterator[tuple[Any, Any]]:
    """The packages that read Parquet; what they raise becomes an error that names the file."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra(f"reading {file}", "data", "pyarrow") from None
    try:
        yield pyarrow, pyarrow.parquet
    except (pyarrow.ArrowException, OSError) as error:
        raise BadData(f"{file} cannot be read as Parquet: {error}.") from None


def _parquet_chunks(file: Path, columns: Sequence[str] | None) -> Iterator[DataFrame]:
    """Yield some rows at a time, with the types that the whole file has when it is read at once."""
    import pandas as pd

    with _parquet(file) as (pa, pq):
        source = pq.ParquetFile(file)
        if source.metadata.num_rows <= CHUNK:
            frame = _read_parquet(file, columns or ())
            yield frame if columns is None else frame[list(columns)]
            return
        whole = [f.name for f in source.schema_arrow if pa.types.is_integer(f.type)]
        if columns is not None:
            whole = [name for name in whole if name not in columns]
        with_nulls = [name for name in whole if _has_nulls(source.metadata, name)]
        start = 0
        for batch in source.iter_batches(CHUNK, columns=None if columns is None else list(columns)):
            frame = pa.Table.from_batches([batch]).to_pandas().reset_index(drop=True)
            for name in with_nulls if columns is None else ():
                if str(frame[name].dtype).islower():  # not Int64, which has missing values of its own
                    frame[name] = frame[name].astype("float64")  # as pandas reads all of them
            for name in columns or ():
                if pa.types.is_integer(batch.schema.field(name).type):
                    frame[name] = batch.column(name).cast(pa.string()).to_pandas()
            frame.index = pd.RangeIndex(start, start + len(frame))
            start += len(frame)
            yield frame if columns is None else frame[list(columns)]


def _has_nulls(facts: Any, name: str) -> bool:
    """Whether a column of a Parquet file has nulls, or does not say."""
    for k in range(facts.num_row_groups):
        group = facts.row_group(k)
        for j in range(group.num_columns):
            column = group.column(j)
            if column.path_in_schema == name and (column.statistics is None or column.statistics.null_count):
                return True
    return False


def _read_parquet(file: Path, ids: Sequence[str]) -> DataFrame:
    import pandas as pd

    with _parquet(file) as (pa, pq):
        frame = pd.read_parquet(file).reset_index(drop=True)
        for name in ids:
            column = pq.read_table(file, columns=[name]).column(name)
            if pa.types.is_integer(column.type):  # pandas would turn integers with a null into floats
                frame[name] = column.cast(pa.string()).to_pandas()
    return frame
