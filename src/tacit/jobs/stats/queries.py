"""Queries in job files: one `StatsVerb` for each word after `tacit stats`.

    [stats]                     the options of the verb, the same at all parties
    numbers = ["age", "chol"]
    categories = { sex = [0, 1], disease = ["no", "yes"] }
    by = "disease"
    [data]                      how files are read
    separator = ";"
    [sums]                      threshold, adversary
    [parties]                   only to run all parties on this machine
    north = "north.csv"

Kinds, levels and bounds are declared: nothing about the query is taken from anybody's rows. All of it but
[parties] is the contract that parties compare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from ...config import toml
from ...data.cells import with_columns, without_codes
from ...data.dropped_rows import check_drop_rows, without_rows
from ...data.spellings import check_spellings, respell_columns
from ...data.table_files import check_reading, reading_in
from ...errors import BadData, BadJob, BadParameter
from ...parameters import bad, choice, from_fields, nearest, real
from ...parties.ledger import Ledger
from ...protocols.sum_program import SumProgram
from ...results import JobResult
from ...stats.declared import with_points
from ...stats.privacy import Private
from .words import HOMES


@dataclass(frozen=True)
class StatsVerb:
    """How a job file becomes a program, and its outcome a result."""

    options: type  # a dataclass: the keys of [stats]
    build: Callable[[Any, Any], SumProgram[Any, Any]]  # (options, number of parties or their names)
    conclude: Callable[[Any, Any, Any, Ledger], JobResult]  # (options, program, outcome, ledger)
    by_name: bool = False  # whether `build` takes the parties' names
    prepare: Callable[[Any, str], Any] = lambda table, name: table  # what a party adds to its table

    def program(self, options: Any, parties: Sequence[str]) -> SumProgram[Any, Any]:
        return self.build(options, list(parties) if self.by_name else len(parties))


@dataclass(frozen=True)
class DataOptions:
    """How a party's file is read."""

    separator: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    ids: list[str] = field(default_factory=list)  # columns read as text
    # by column, the codes that mean "missing": -9999, "unknown"
    missing_codes: dict[str, list[float | str]] = field(default_factory=dict)
    # by column, {written: meant}: "Y" is read as "yes"
    spellings: dict[str, dict[str, str]] = field(default_factory=dict)
    # by column, the values of rows that are left out: a line of totals
    drop_rows: dict[str, list[float | str]] = field(default_factory=dict)
    person: str | None = None  # the column that identifies a row in the history of queries
    edition: str = ""  # to ask the same query again about updated tables, change it

    def check(self) -> None:
        check_reading("data", **reading_in(vars(self)))
        if problems := [*check_spellings(self.spellings), *check_drop_rows(self.drop_rows)]:
            raise BadParameter(" ".join(problems))


@dataclass(frozen=True)
class SumOptions:
    threshold: float = real(
        1.0, above=0.5, most=1.0, doc="1: every sum is over all parties; less: it begins again without some"
    )
    adversary: str = choice("curious", ("curious", "active"), doc="what the server may do")
    within: float = real(60.0, above=0, doc="seconds for each step of a sum")
    tries: int = 3


@dataclass(frozen=True)
class Query:
    """A job file that was read and checked."""

    verb: StatsVerb
    options: Any
    data: DataOptions
    sums: SumOptions
    parties: Mapping[str, Path]
    word: str

    def read_as(self, reading: Mapping[str, Any] | None) -> Query:
        """Return the query as a party reads its own file, by other options than the contract's."""
        data = replace(self.data, **(reading or {}))
        data.check()
        return replace(self, data=data)

    def agreed_data(self) -> dict[str, Any]:
        """What of the file belongs to the contract besides the program."""
        data = asdict(self.data)
        for name in ("missing_codes", "spellings", "drop_rows"):
            if not data[name]:
                del data[name]  # contracts of earlier versions have no such key
        return {"verb": self.word, **data, "stats": asdict(self.options)}


def read_query(word: str, path: str | Path, changes: list[str] | None = None) -> Query:
    """Read a job file for a verb. One error names all problems of a table."""
    file = Path(path)
    tables = toml.load(file, changes or [], ("stats", "data", "sums", "parties"))
    verb: StatsVerb = import_module(f"{__package__}.{HOMES[word][0]}").VERBS[word]
    read: dict[str, Any] = {}
    for name, cls in (("stats", verb.options), ("data", DataOptions), ("sums", SumOptions)):
        table = toml.table(str(file), name, tables.get(name, {}))
        read[name] = from_fields(table, cls, f"{file}, {name}", f"`tacit stats {word}` has no key")
    options = read["stats"]
    refuse_codes(word, str(file), read["data"], getattr(options, "label", None))
    parties = toml.table(str(file), "parties", tables.get("parties", {}))
    for party, name in parties.items():
        if not isinstance(name, str):
            raise BadJob(str(bad(f"{file}, parties", party, name, "a file name in quotes")))
    files = {party: file.parent / name for party, name in parties.items()}
    return Query(verb, read["stats"], read["data"], read["sums"], files, word)


def refuse_codes(word: str, file: str, data: DataOptions, label: str | None = None) -> None:
    """Raise BadJob if [data] declares what the model would have to know of new rows, and does not keep.

    The spellings of the label are not of new rows.
    """
    if word not in ("boost", "woe"):
        return
    if data.missing_codes:
        table = "boost" if word == "boost" else "stats"
        raise BadJob(
            f"{file}: missing_codes must be in [{table}], because the model keeps them; move them there."
        )
    if spelled := sorted(set(data.spellings) - {label}):
        raise BadJob(
            f"{file}: [data] declares spellings of {spelled[0]!r}, and this model does not keep them for new "
            "rows: only the label can have them. Declare each spelling in `categories`, or correct the files."
        )


def read_rows(path: str | Path, data: DataOptions, program: Any = None, spelled: bool = True) -> Any:
    """Read a party's table. For a private `program` every cell of a CSV file is text, exactly as written.

    The program then reads each cell as declared. Types found in the file would depend on all rows: one text
    among numbers, or a code with a leading zero, would change how every row is read.
    """
    from ...data.table_files import read_table

    is_private = isinstance(program, Private)
    if not is_private:
        table = read_table(
            path, ids=data.ids, separator=data.separator, decimal=data.decimal, encoding=data.encoding
        )
    else:
        table = read_table(path, text=True, separator=data.separator, encoding=data.encoding, least_rows=0)
        table = table if data.decimal != "," else table.apply(with_points)
    if absent := [name for name in data.drop_rows if name not in table.columns]:
        raise BadData(
            f"{path}: there is no column {absent[0]!r} (drop_rows). {nearest(absent[0], list(table.columns))}"
        )
    table = without_rows(table, data.drop_rows, as_text=is_private)
    coded = {name: codes for name, codes in data.missing_codes.items() if name in table.columns}
    table = with_columns(table, {name: without_codes(table[name], codes) for name, codes in coded.items()})
    return respell_columns(table, data.spellings) if spelled else table


def read_allowed(path: str | Path, data: DataOptions, program: Any, columns: Sequence[str]) -> Any:
    """Read a party's table with the columns that its owner allows (all, if none is named), for its history.

    A query that names another column does not find it, and may not choose rows by it. Each row is as its
    file spells it: with declared spellings, the history of queries would take it for another one.
    """
    if hidden := [name for name in data.drop_rows if columns and name not in columns]:
        raise BadData(
            f"{path}: the owner's policy does not allow the column {hidden[0]!r} of drop_rows (columns)."
        )
    table = read_rows(path, data, program, spelled=False)
    return table[[c for c in table.columns if not columns or c in columns]]
