"""`tacit tabulate`: a table of counts for publication, with small counts suppressed or all rounded."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from ..progress import Progress
from .anonymize_files import find_hierarchies
from .verbs import FORCE, QUIET, READING, Answer, arg, parse_columns, reading_of


def add(verb: Callable[..., argparse.ArgumentParser]) -> None:
    verb(
        "tabulate",
        _tabulate,
        "Count rows by columns, with all totals, and suppress small counts or round all.",
        arg("table", help="a .csv file with a header (or .csv.gz), or a .parquet file; it is never changed"),
        arg("--by", metavar="COLUMNS", required=True, help="the columns of the table, like region,sex"),
        arg("--out", metavar="FILE", required=True, help="output file: .csv, .csv.gz or .parquet"),
        arg("--k", type=int, default=5, help="minimum number of people in a cell that is shown (default: 5)"),
        arg(
            "--method",
            choices=("suppress", "round"),
            default="suppress",
            help="suppress small cells and those that would reveal them (default), or round all cells",
        ),
        arg(
            "--interval",
            type=int,
            help="with suppress: a small cell cannot be told from any count from 0 to this (default: k)",
        ),
        arg("--base", type=int, default=5, help="with round: the base, usually 3 or 5 (default: 5)"),
        arg(
            "--exact", action="store_true", help="with suppress: the fewest cells by weight, for small tables"
        ),
        arg("--hierarchies", metavar="DIR", help="a directory with COLUMN.csv or COLUMN.toml, for subtotals"),
        arg(
            "--person", metavar="COLUMN", help="the column that tells whose a row is, if people have several"
        ),
        *READING,
        FORCE,
        QUIET,
    )


def _tabulate(args: argparse.Namespace) -> Answer:
    from ..data.table_files import check_table_name, read_header, read_table, write_table
    from ..files import check_free

    by = parse_columns(args.by, "--by")
    out = check_table_name(check_free(args.out, args.force, [args.table]), "tabulate: --out ")
    with Progress(args.quiet) as progress:
        progress.step(f"reading {args.table}")
        frame = read_table(args.table, text=True, **reading_of(args))
        separator = read_header(args.table, args.separator, args.encoding).separator
        import tacit

        progress.step(f"counting {len(frame):,} rows")
        hierarchies = find_hierarchies(args.hierarchies, by) or {}
        for column in by:  # an empty cell of the file is a null; a hierarchy may have a word for it
            if column in frame.columns and column not in hierarchies:
                frame[column] = frame[column].mask(frame[column] == "")
        result = tacit.tabulate(
            frame,
            by,
            k=args.k,
            method=args.method,
            interval=args.interval,
            base=args.base,
            hierarchies=hierarchies,
            person=args.person,
            exact=args.exact,
        )
        write_table(result.table, out, separator)
    value = {"out": str(out), "rows": len(frame), **{n: getattr(result, n) for n in result.facts}}

    def show(console: Any) -> None:
        width = (result.intervals["high"] - result.intervals["low"]).min() if result.small else 0
        lines = [
            f"counted     {len(frame):,} rows in {result.cells:,} cells with totals, {result.small:,} of "
            f"them small (fewer than {result.k})",
            f"hidden      {result.hidden:,} cells: the small ones and those that would reveal them"
            if result.method == "suppress"
            else f"rounded     all cells to multiples of {result.base}, up or down; totals are sums",
            *(
                [f"protection  no small count can be narrowed to fewer than {width + 1} values"]
                if result.small
                else []
            ),
            f"table       {out}",
        ]
        console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)

    return value, show
