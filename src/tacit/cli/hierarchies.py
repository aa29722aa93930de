"""`tacit hierarchies`: write the page in which the hierarchies of a table are inspected and edited."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from ..errors import BadParameter
from ..progress import Progress
from .anonymize_files import find_hierarchies
from .verbs import FORCE, QUIET, READING, Answer, answer, arg, parse_columns, reading_of


def add(verb: Callable[..., argparse.ArgumentParser]) -> None:
    verb(
        "hierarchies",
        _hierarchies,
        "Write a page in which suggested hierarchies are inspected, edited and downloaded.",
        arg("table", help="a .csv file with a header (or .csv.gz), or a .parquet file; it is never changed"),
        arg("--columns", metavar="COLUMNS", required=True, help="quasi-identifiers, like age,zip,diagnosis"),
        arg("--out", metavar="FILE", required=True, help="the page, an .html file"),
        arg(
            "--hierarchies",
            metavar="DIR",
            help="a directory with COLUMN.csv or COLUMN.toml to start from; the others are suggested",
        ),
        *READING,
        FORCE,
        QUIET,
    )


def _hierarchies(args: argparse.Namespace) -> Answer:
    from ..data.table_files import read_table
    from ..files import check_free

    columns = parse_columns(args.columns, "--columns")
    if not args.out.endswith((".html", ".htm")):
        raise BadParameter(f"--out is {args.out!r}; expected the name of an .html file, for a browser.")
    out = check_free(args.out, args.force, [args.table])
    with Progress(args.quiet) as progress:
        progress.step(f"reading {args.table}")
        frame = read_table(args.table, text=True, **reading_of(args))
        from ..anonymity.editor import write_editor

        for column in columns:  # an empty cell of the file is a null
            if column in frame.columns:
                frame[column] = frame[column].mask(frame[column] == "")
        write_editor(out, frame, columns, find_hierarchies(args.hierarchies, columns))
    files = ", ".join(f"{c}.csv" for c in columns)
    lines = [
        f"page        {out}: open it in a browser",
        f"then        download {files} into a directory, for tacit anonymize --hierarchies DIR",
    ]
    return answer({"out": str(out), "columns": columns}, lines)
