"""Files of rows and columns, read as they stand; what cannot be read is told with what to do about it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BadData, MissingExtra, MissingFiles
from ..parameters import bad, nearest

if TYPE_CHECKING:
    from pandas import DataFrame

MISSING = "?"  # read as missing, beside the usual empty cell, NA, NaN, …


def _there(path: str | os.PathLike[str]) -> Path:
    file = Path(path).expanduser()
    if file.is_dir():
        raise MissingFiles(f"{file} is a folder. Give a file in it.")
    if not file.is_file():
        beside = [p.name for p in file.parent.iterdir()] if file.parent.is_dir() else []
        raise MissingFiles(
            f"there is no file {file}. " + (nearest(file.name, beside[:50]) if beside else "Check the path.")
        )
    return file


def as_named(
    file: str | os.PathLike[str],
    frame: DataFrame,
    separator: str = ",",
    hint: str = "pass separator={!r}, or ",
) -> DataFrame:
    """What pandas read, if the first line names its columns. Cells beyond the names it takes for row labels,
    and each name then stands over other values.
    """
    import pandas as pd

    if len(frame.columns) == 1 and (
        other := next((s for s in ";\t|," if s != separator and s in str(frame.columns[0])), "")
    ):
        raise BadData(
            f"{file} has one column, {str(frame.columns[0])[:60]!r}, with {separator!r} between columns. "
            f"Is it {other!r} that stands between them? Then {hint.format(other)}save the file with commas."
        )
    # A counter before each row, which R writes without a name, does no harm: names stand where they should.
    if len(frame) and not any(
        frame.index.equals(pd.RangeIndex(first, first + len(frame))) for first in (0, 1)
    ):
        raise BadData(
            f"{file} has more cells in its rows than names in its first line ({len(frame.columns)}). Name "
            "every column, and put cells in quotes that "
            "hold a comma."
        )
    return frame


def read_csv(
    path: str | os.PathLike[str], separator: str, id: str | None = None, decimal: str = "."
) -> DataFrame:
    import pandas as pd

    if decimal not in (".", ","):
        raise bad("from_csv", "decimal", decimal, "'.' or ','")
    if decimal == separator:
        raise bad(
            "from_csv",
            "decimal",
            decimal,
            "another sign than the one between columns",
            "Give that as separator, mostly ';'.",
        )
    file = _there(path)
    try:
        kinds = {} if id is None else {"dtype": {id: str}}  # an id is text: 007 is not 7
        return as_named(
            file,
            pd.read_csv(
                file,
                sep=separator,
                decimal=decimal,
                na_values=[MISSING],
                skipinitialspace=True,
                low_memory=False,
                **kinds,
            ),
            separator,
        )
    except UnicodeDecodeError:
        raise BadData(
            f"{file} is not UTF-8 text: it may be of an older program, with letters like ä in an encoding "
            "of its own. "
            'Save it as UTF-8 (in a spreadsheet: as "CSV UTF-8").'
        ) from None
    except PermissionError:
        raise MissingFiles(
            f"{file} may not be read: permission denied. Ask for the right to read it, or give another file."
        ) from None
    except (pd.errors.EmptyDataError, pd.errors.ParserError, EOFError, OSError) as error:
        raise BadData(
            f"{file} cannot be read as a table: {str(error).strip()}. It must be text in columns, their "
            "names in the first line."
        ) from None


def read_parquet(path: str | os.PathLike[str]) -> DataFrame:
    import pandas as pd

    file = _there(path)
    try:
        import pyarrow
    except ImportError:
        raise MissingExtra("from_parquet", "data", "pyarrow") from None
    try:
        return pd.read_parquet(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise BadData(f"{file} cannot be read as Parquet: {error}.") from None
