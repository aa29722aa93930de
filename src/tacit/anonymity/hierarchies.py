"""Generalisation hierarchies: what a value becomes, level by level, until nothing is left of it but *.

A `Hierarchy` is a table: a row a value, a column a level, level 0 the value itself, the last level one word
for all (the layout of ARX's CSV files). It is read from a file, or built from the values of a column by a
`Builder` (`builders.py`): intervals, prefixes, dates, trees.

Two rules are held to when a hierarchy is made: values that are equal at one level are equal at every higher
one, and the last level is a single value (where it is not, a level `*` is put on top). Nulls are values: a
null stays a null level by level and joins the others at the top only, so that a row with a null is as rare as
it is. Cells are compared as text: 39, 39.0 and "39" are the same value, "" is not a null.
"""

from __future__ import annotations

import csv
import datetime
import io
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadData, MissingFiles
from ..files import write_atomic
from ..parameters import bad

STAR = "*"
NULL = "\0null"  # how a null is spelt among the values: no cell of text can be this
SHOWN = 10  # values named in an error


def spelling(value: Any) -> str:
    """A cell as text. A whole float is its integer: pandas makes floats of integers as soon as one is
    missing.
    """
    if (
        value is None or type(value).__name__ in ("NaTType", "NAType") or value != value
    ):  # the names, since NA compares to nothing
        return NULL
    if isinstance(value, str):
        return value
    if isinstance(value, float | np.floating) and math.isfinite(value) and value == int(value):
        return str(int(value))
    if isinstance(value, datetime.datetime):
        return (
            value.date().isoformat()
            if value.time() == datetime.time() and value.tzinfo is None
            else value.isoformat()
        )
    if isinstance(value, np.datetime64):
        return spelling(value.astype("datetime64[us]").item())
    return value.isoformat() if isinstance(value, datetime.date) else str(value)


def shown(values: Iterable[str]) -> str:
    """A few values for an error: 'a', 'b' and 3 more."""
    every = ["a null" if v == NULL else repr(v) for v in values]
    return ", ".join(every[:SHOWN]) + (f" and {len(every) - SHOWN} more" if len(every) > SHOWN else "")


@dataclass(frozen=True)
class Hierarchy:
    """`levels[i][j]` is what value j is called at level i; `levels[0]` are the values themselves."""

    levels: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, rows: Sequence[Sequence[Any]], name: str = "a hierarchy") -> Hierarchy:
        """From a row a value: [value, level 1, level 2, …]."""
        if not rows:
            raise BadData(
                f"{name} has no values. Give one row a value: the value, what it becomes at level 1, at "
                "level 2, … and * last."
            )
        table = [[spelling(cell) for cell in row] for row in rows]
        ragged = next((i for i, row in enumerate(table) if len(row) != len(table[0])), None)
        if ragged is not None:
            raise BadData(
                f"{name}: row {ragged + 1} ({shown(table[ragged][:1])}) has {len(table[ragged])} levels, "
                f"row 1 has {len(table[0])}. "
                "Every value needs a word at every level; repeat the word where nothing changes."
            )
        levels = [tuple(column) for column in zip(*table)]
        twice = [v for v, times in _counted(levels[0]).items() if times > 1]
        if twice:
            raise BadData(
                f"{name}: {shown(twice)} stands in more than one row. A value has one way up; leave one row "
                "for each."
            )
        for i, (low, high) in enumerate(itertools.pairwise(levels)):
            parent: dict[str, str] = {}
            for a, b in zip(low, high):
                if parent.setdefault(a, b) != b:
                    raise BadData(
                        f"{name}: at level {i} {shown([a])} is one value, at level {i + 1} it is "
                        f"{shown([parent[a]])} and also {shown([b])}. "
                        "What is equal at one level must be equal at the next; give the two different "
                        "words, or the same parent."
                    )
        if len(set(levels[-1])) > 1 or len(levels) == 1:
            levels.append((STAR,) * len(levels[0]))
        return cls(tuple(levels))

    @classmethod
    def from_csv(cls, path: str | Path, sep: str | None = None) -> Hierarchy:
        """ARX's layout: no header, a row a value, a column a level. Without `sep` it is ; if the first line
        has one, else a comma.
        """
        file = Path(path)
        if not file.is_file():
            raise MissingFiles(
                f"There is no hierarchy file {file}. Give the path of a CSV file with a row a value and a "
                "column a level."
            )
        try:
            with file.open(encoding="utf-8-sig", newline="") as text:
                first = text.readline()
                text.seek(0)
                rows = [
                    row for row in csv.reader(text, delimiter=sep or (";" if ";" in first else ",")) if row
                ]
        except UnicodeDecodeError as error:
            raise BadData(
                f"{file} is not UTF-8 text ({error.reason} at byte {error.start}). Save it as UTF-8."
            ) from None
        return cls.of(rows, str(file))

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
        """The highest level; 0 leaves the value as it is."""
        return len(self.levels) - 1

    def __len__(self) -> int:
        return len(self.levels[0])

    def at(self, value: Any, level: int) -> str:
        """What a value is called at a level."""
        try:
            return self.levels[level][self.values.index(spelling(value))]
        except ValueError:
            raise missing("this hierarchy", [spelling(value)], self.values) from None

    def with_null(self) -> Hierarchy:
        """The same hierarchy with null as one more value, alone on its way up until the top."""
        if NULL in self.values:
            return self
        *below, top = self.levels
        return Hierarchy((*((*level, NULL) for level in below), (*top, top[0])))


def missing(what: str, absent: Sequence[str], values: Sequence[str]) -> BadData:
    return BadData(
        f"{what} has no row for {shown(absent)}. It knows {shown(values)}. Add the values to it, or correct "
        "them in the table."
    )


def as_hierarchy(given: Any, column: str, values: Sequence[str], order: Any = None) -> Hierarchy:
    """What stands in `hierarchies={column: …}` as a hierarchy that holds every one of `values`: a Hierarchy,
    a Builder, a CSV or TOML file, a data frame in ARX's layout, rows, or nothing (then one is suggested).
    """
    from . import builders

    plain = [v for v in values if v != NULL]
    what = f"The hierarchy of column {column!r}"
    if isinstance(given, str | Path):
        given = builders.Tree.from_toml(given) if Path(given).suffix == ".toml" else Hierarchy.from_csv(given)
    if given is None:
        given = builders.suggest(plain)
    if isinstance(given, Mapping):
        given = builders.Tree.of(given)
    if isinstance(given, builders.Builder):
        made = given.build(plain, what)
    elif isinstance(given, Hierarchy):
        made = given
    elif hasattr(given, "itertuples"):
        made = Hierarchy.of([list(row) for row in given.itertuples(index=False)], what)
    elif isinstance(given, Sequence):
        made = Hierarchy.of(given, what)
    else:
        raise bad(
            "anonymize",
            f"hierarchies[{column!r}]",
            given,
            "a Hierarchy, a builder (Intervals, Prefixes, Dates, Tree), a .csv or .toml file, or rows",
        )
    if NULL in values:
        made = made.with_null()
    known = set(made.values)
    absent = [v for v in values if v not in known]
    if absent:
        raise missing(what, absent, made.values)
    return made


def _counted(values: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for v in values:
        counts[v] = counts.get(v, 0) + 1
    return counts
