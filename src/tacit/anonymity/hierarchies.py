"""Generalization hierarchies: what a value becomes, level by level, up to *.

A `Hierarchy` is a table with one row per value and one column per level. Level 0 is the value itself, and
the last level is one word for all values (the layout of ARX's CSV files). It is read from a file, or built
from the values of a column by a `Builder` (`builders.py`): intervals, prefixes, dates, trees.

Two rules are checked: values that are equal at one level are equal at every higher level, and the last level
is a single value (otherwise a level * is added). Nulls are values: a null stays a null at every level and
joins the others only at the top, so that a row with a null is not hidden among others. Cells are compared as
text: 39, 39.0 and "39" are the same value, and "" is not a null.
"""

from __future__ import annotations

import csv
import datetime
import io
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from ..errors import BadData, MissingFiles
from ..files import write_atomic
from ..parameters import bad

STAR = "*"
NULL = "\0null"  # the text of a null: no text cell can be equal to it
MAX_SHOWN = 10  # values listed in an error message


def spell(value: Any) -> str:
    """A cell as text. A float with an integer value is spelled as an integer.

    pandas converts a column of integers to floats if one of them is missing.
    """
    # by type name, since pandas.NA cannot be compared
    if value is None or type(value).__name__ in ("NaTType", "NAType") or value != value:
        return NULL
    if isinstance(value, str):
        return value
    if isinstance(value, float | np.floating) and math.isfinite(value) and value == int(value):
        return str(int(value))
    if isinstance(value, datetime.datetime):
        is_date = value.time() == datetime.time() and value.tzinfo is None
        return value.date().isoformat() if is_date else value.isoformat()
    if isinstance(value, np.datetime64):
        return spell(value.astype("datetime64[us]").item())
    return value.isoformat() if isinstance(value, datetime.date) else str(value)


def list_values(values: Iterable[str]) -> str:
    """A few values for an error message: 'a', 'b' and 3 more."""
    texts = ["a null" if v == NULL else repr(v) for v in values]
    more = f" and {len(texts) - MAX_SHOWN} more" if len(texts) > MAX_SHOWN else ""
    return ", ".join(texts[:MAX_SHOWN]) + more


@dataclass(frozen=True)
class Hierarchy:
    """`levels[i][j]` is the word of value j at level i; `levels[0]` are the values themselves."""

    levels: tuple[tuple[str, ...], ...]

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[Any]], name: str = "a hierarchy") -> Hierarchy:
        """Build a hierarchy from one row per value: [value, level 1, level 2, …]."""
        if not rows:
            raise BadData(
                f"{name} has no values. Pass one row per value: the value, its word at level 1, at level 2, "
                "… and * last."
            )
        table = [[spell(cell) for cell in row] for row in rows]
        ragged = next((i for i, row in enumerate(table) if len(row) != len(table[0])), None)
        if ragged is not None:
            raise BadData(
                f"{name}: row {ragged + 1} ({list_values(table[ragged][:1])}) has {len(table[ragged])} "
                f"levels, row 1 has {len(table[0])}. Every value needs a word at every level; repeat the "
                "word if nothing changes."
            )
        levels = [tuple(column) for column in zip(*table)]
        repeated = [v for v, times in Counter(levels[0]).items() if times > 1]
        if repeated:
            raise BadData(
                f"{name}: {list_values(repeated)} is in more than one row. Keep one row for each value."
            )
        for i, (low, high) in enumerate(itertools.pairwise(levels)):
            parent: dict[str, str] = {}
            for a, b in zip(low, high):
                if parent.setdefault(a, b) != b:
                    raise BadData(
                        f"{name}: {list_values([a])} is one value at level {i}, but both "
                        f"{list_values([parent[a]])} and {list_values([b])} at level {i + 1}. Values that "
                        "are equal at one level must be equal at the next; use two different words, or the "
                        "same parent."
                    )
        if len(set(levels[-1])) > 1 or len(levels) == 1:
            levels.append((STAR,) * len(levels[0]))
        return cls(tuple(levels))

    @classmethod
    def from_csv(cls, path: str | Path, sep: str | None = None) -> Hierarchy:
        """Read ARX's layout: no header, one row per value, one column per level.

        Without `sep`, the separator is ; if the first line contains one, and a comma otherwise.
        """
        file = Path(path)
        if not file.is_file():
            raise MissingFiles(
                f"There is no hierarchy file {file}. Pass the path of a CSV file with one row per value and "
                "one column per level."
            )
        try:
            with file.open(encoding="utf-8-sig", newline="") as text:
                first = text.readline()
                text.seek(0)
                separator = sep or (";" if ";" in first else ",")
                rows = [row for row in csv.reader(text, delimiter=separator) if row]
        except UnicodeDecodeError as error:
            raise BadData(
                f"{file} is not UTF-8 text ({error.reason} at byte {error.start}). Save it as UTF-8."
            ) from None
        return cls.from_rows(rows, str(file))

    def to_csv(self, path: str | Path, sep: str = ";") -> Path:
        text = io.StringIO()
        csv.writer(text, delimiter=sep, lineterminator="\n").writerows(
            [["" if v == NULL else v for v in row] for row in zip(*self.levels)]
        )
        write_atomic(path, text.getvalue())
        return Path(path)

    @property
    def values(self) -> tuple[str, ...]:
        return self.levels[0]

    @property
    def height(self) -> int:
        """The highest level; level 0 is the value itself."""
        return len(self.levels) - 1

    def __len__(self) -> int:
        return len(self.levels[0])

    def generalize(self, value: Any, level: int) -> str:
        """The word of a value at a level."""
        try:
            return self.levels[level][self.values.index(spell(value))]
        except ValueError:
            raise missing_values("this hierarchy", [spell(value)], self.values) from None

    def with_null(self) -> Hierarchy:
        """The same hierarchy with null as an additional value that joins the others only at the top."""
        if NULL in self.values:
            return self
        *below, top = self.levels
        return Hierarchy((*((*level, NULL) for level in below), (*top, top[0])))


def missing_values(owner: str, absent: Sequence[str], values: Sequence[str]) -> BadData:
    return BadData(
        f"{owner} has no row for {list_values(absent)}. It has {list_values(values)}. Add the values to it, "
        "or correct them in the table."
    )


def as_hierarchy(source: Any, column: str, values: Sequence[str]) -> Hierarchy:
    """Convert an entry of `hierarchies={column: …}` to a hierarchy that has all `values`.

    The source is a Hierarchy, a Builder, a CSV or TOML file, a data frame in ARX's layout, rows, or None
    (then a hierarchy is suggested).
    """
    from . import builders

    values_without_null = [v for v in values if v != NULL]
    owner = f"The hierarchy of column {column!r}"
    if isinstance(source, str | Path):
        is_tree = Path(source).suffix == ".toml"
        source = builders.Tree.from_toml(source) if is_tree else Hierarchy.from_csv(source)
    if source is None:
        source = builders.suggest(values_without_null)
    if isinstance(source, Mapping):
        source = builders.Tree.from_dict(source)
    if isinstance(source, builders.Builder):
        hierarchy = source.build(values_without_null, owner)
    elif isinstance(source, Hierarchy):
        hierarchy = source
    elif isinstance(source, pandas.DataFrame):
        hierarchy = Hierarchy.from_rows([list(row) for row in source.itertuples(index=False)], owner)
    elif isinstance(source, Sequence):
        hierarchy = Hierarchy.from_rows(source, owner)
    else:
        raise bad(
            "anonymize",
            f"hierarchies[{column!r}]",
            source,
            "a Hierarchy, a builder (Intervals, Prefixes, Dates, Tree), a .csv or .toml file, or rows",
        )
    if NULL in values:
        hierarchy = hierarchy.with_null()
    known = set(hierarchy.values)
    absent = [v for v in values if v not in known]
    if absent:
        raise missing_values(owner, absent, hierarchy.values)
    return hierarchy
