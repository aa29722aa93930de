"""The verbs of the command line, one module each, and how they declare their arguments.

A module has `add(verb)`, which declares its verbs, and imports nothing heavy at its top: `verb(name, do,
text, *arguments)` adds a verb; `do(args)` returns the answer as (plain values, a function that prints them).
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, NamedTuple

from ..errors import BadParameter

# in the order `tacit --help` lists them
MODULES: tuple[str, ...] = (
    "plan",
    "private",
    "pate",
    "anonymize",
    "anonymize_again",
    "tabulate",
    "hierarchies",
    "synth",
    "synthesize",
    "psi",
    "split",
    "regress",
    "join",
    "link",
    "predict",
    "stats",
    "boost",
    "infer",
    "export",
    "audit",
    "dpo",
    "ledger",
    "code",
    "provision",
    "nats",
    "hub",
    "party",
    "owner",
    "study",
    "runs",
    "ui",
    "completion",
)


# verbs of two words that are declared as one
PAIRS = (
    *("party requests", "party approve", "party deny", "party log"),
    *("runs list", "runs show", "runs tag", "runs rm"),
)

Answer = tuple[Any, Callable[[Any], None]]  # plain values, and a function that prints them for people


class Argument(NamedTuple):
    """One argument of a verb, as argparse takes it."""

    names: tuple[str, ...]
    options: dict[str, Any]


def arg(*names: str, **options: Any) -> Argument:
    """Declare an argument, with the options of `argparse.ArgumentParser.add_argument`.

    What is written has the same names in every verb: -o, --out.
    """
    if "--out" in names or "--output" in names:
        names = ("-o", *(n for n in names if n != "-o"))
        names += tuple(n for n in ("--out",) if n not in names)
    return Argument(names, options)


def one_of(*arguments: Argument) -> tuple[Argument, ...]:
    """Declare arguments of which at most one may be given."""
    return arguments


def add_arguments(parser: Any, arguments: Iterable[Argument | tuple[Argument, ...]]) -> None:
    for a in arguments:
        if isinstance(a, Argument):
            parser.add_argument(*a.names, **a.options)
        else:
            add_arguments(parser.add_mutually_exclusive_group(), a)


def answer(value: Any, lines: Iterable[str]) -> Answer:
    """Return an answer that is printed as lines of plain text."""
    text = "\n".join(lines)
    return value, lambda console: console.print(text, highlight=False, markup=False, soft_wrap=True)


FORCE = arg("--force", action="store_true", help="overwrite existing files")
QUIET = arg("--quiet", action="store_true", help="no progress and no summary")
SET = arg(
    "--set",
    action="append",
    default=[],
    metavar="TABLE.KEY=VALUE",
    dest="changes",
    help="change a value of the job file, like train.rounds=5; may be given several times",
)
KIT = arg(
    "--kit",
    metavar="DIR",
    help="your start kit: take part as its party; every other party runs the same command with its own",
)
DROP = arg(
    "--drop",
    action="append",
    default=[],
    metavar="COLUMNS",
    help="columns to leave out, like name,phone; may be given several times",
)
PARAMETER = arg(
    "--set",
    action="append",
    default=[],
    metavar="NAME=VALUE",
    dest="changes",
    help="a parameter of the model, like epochs=100; may be given several times",
)
READING = (
    arg("--separator", metavar="SIGN", help="between the cells of CSV files (default: detected)"),
    arg(
        "--decimal",
        metavar="SIGN",
        help="decimal sign of CSV files, '.' or ','; what is written has points (default: '.')",
    ),
    arg("--encoding", metavar="NAME", help="of CSV files, such as cp1252 (default: UTF-8)"),
)
# the same of `tacit job new`, which detects all three
DETECTED = (
    arg("--separator", metavar="SIGN", help="between the cells of CSV files (default: detected)"),
    arg("--decimal", metavar="SIGN", help="decimal sign of CSV files, '.' or ',' (default: detected)"),
    arg("--encoding", metavar="NAME", help="of CSV files, such as cp1252 (default: detected)"),
)


def reading_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `read_table` that were given, checked before any file is opened."""
    given = {name: getattr(args, name) for name in ("separator", "decimal", "encoding")}
    reading = {name: value for name, value in given.items() if value is not None}
    if reading:
        from ..data.table_files import check_reading

        check_reading("CSV files", **reading)
    return reading


DATA = arg("--data", metavar="FILE", help="client: your own .csv or .parquet file; it stays here")
STATE = arg(
    "--state",
    metavar="DIR",
    help="where a party keeps what it needs to go on after a stop or a kill (default: state in the kit)",
)
CHANGES = arg(
    "--set",
    action="append",
    default=[],
    metavar="TABLE.KEY=VALUE",
    dest="changes",
    help="server: change a value of the job file",
)
FILE = arg(
    "--file",
    metavar="FILE.csv",
    help="with --kit: your own table, if the job does not name it; it stays here",
)
PATIENCE = arg(
    "--patience",
    type=float,
    default=300.0,
    metavar="SECONDS",
    help="how long to retry when the hub or another party is disconnected (default: 300)",
)
WAIT = arg(
    "--wait",
    type=float,
    metavar="SECONDS",
    help="with --kit: how long to wait for the other parties to start (default: forever)",
)
PROCESSES = arg(
    "--processes",
    action="store_true",
    help="without a kit: a process and a certificate for each party, over a hub on this machine",
)


def parse_columns(text: str | Iterable[str] | None, name: str) -> list[str]:
    """Parse age,zip,sex, or several such texts, as a list; quote a name with a comma, as in a CSV file."""
    texts = [] if text is None else [text] if isinstance(text, str) else list(text)
    lists = [[w.strip() for w in next(csv.reader([t]), [])] for t in texts]
    for t, words in zip(texts, lists):
        if not words or not all(words):
            raise BadParameter(
                f"{name} is {t!r}; expected column names separated by commas, like age,zip,sex."
            )
    return list(dict.fromkeys(word for words in lists for word in words))


def add_all(verb: Callable[..., argparse.ArgumentParser]) -> None:
    for name in MODULES:
        import_module(f"{__package__}.{name}").add(verb)
