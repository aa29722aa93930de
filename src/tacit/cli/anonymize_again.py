"""`tacit anonymize-again`: a later release of updated data, safe for readers of all releases."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

from ..progress import Progress
from .anonymize_files import HISTORY, find_hierarchies, history_file, report_file
from .risk import format_warnings
from .verbs import DROP, FORCE, QUIET, READING, Answer, arg, parse_columns, reading_of


def add(verb: Callable[..., argparse.ArgumentParser]) -> None:
    verb(
        "anonymize-again",
        _anonymize_again,
        "Anonymize an updated table after earlier releases of the same people.",
        arg("table", help="the updated table, .csv, .csv.gz or .parquet; it is never changed"),
        arg(
            "--after",
            metavar="FILE",
            required=True,
            help="the history that `tacit anonymize --history` or the last `tacit anonymize-again` wrote",
        ),
        arg("--out", metavar="FILE", required=True, help="output file: .csv, .csv.gz or .parquet"),
        HISTORY,
        arg(
            "--hierarchies",
            metavar="DIR",
            help="a directory with COLUMN.csv or COLUMN.toml, for columns with new values; old values must "
            "have the same words",
        ),
        arg(
            "--max-suppressed",
            type=float,
            metavar="FRACTION",
            help="fraction of the rows that may be left out, from 0 to 1 (default: any)",
        ),
        DROP,
        arg("--pseudonymize", metavar="COLUMNS", help="as in the first release; needs --key"),
        arg("--key", metavar="FILE", help="the key file of the first release"),
        arg("--report", metavar="FILE", help="also write an HTML report"),
        *READING,
        FORCE,
        QUIET,
    )


def _anonymize_again(args: argparse.Namespace) -> Answer:
    from ..anonymity import ReleaseHistory, pseudonyms, report
    from ..anonymity.classes import check_columns
    from ..anonymity.release import format_count
    from ..data.table_files import check_table_name, read_header, read_table, write_table
    from ..errors import BadParameter
    from ..files import check_free
    from ..report.page import write_page

    hidden, dropped = parse_columns(args.pseudonymize, "--pseudonymize"), parse_columns(args.drop, "--drop")
    if bool(hidden) != bool(args.key):
        raise BadParameter(
            "anonymize-again: --pseudonymize and --key must be used together. Pass both, or neither."
        )
    out = check_table_name(
        check_free(args.out, args.force, [args.table, args.after]), "anonymize-again: --out "
    )
    page = report_file(args, [args.table, out])
    file = history_file(args, [args.table, out, args.after])
    history = ReleaseHistory.load(args.after)
    count_releases = format_count(len(history.releases), "earlier release")
    with Progress(args.quiet) as progress:
        progress.step(f"reading {args.table}")
        frame = read_table(args.table, text=True, **reading_of(args))
        separator = read_header(args.table, args.separator, args.encoding).separator
        check_columns(frame, hidden, "--pseudonymize", "anonymize-again", may_be_empty=True)
        check_columns(frame, dropped, "--drop", "anonymize-again", may_be_empty=True)
        if hidden:
            frame = pseudonyms.pseudonymize(frame, hidden, args.key)
        frame = frame.drop(columns=dropped)
        import tacit

        progress.step(f"anonymizing {len(frame):,} rows after {count_releases}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the risk is measured and reported below
            result = tacit.anonymize_again(
                frame,
                history,
                hierarchies=find_hierarchies(args.hierarchies, history.quasi),
                max_suppressed=args.max_suppressed,
            )
        progress.step("measuring the remaining risk")
        left = tacit.risk(frame, result, result.quasi, sensitive=result.sensitive)
        record = result.record_release()
        text = report.render(left) if page is not None else None
        progress.step(f"writing {out}")
        if file is not None:
            record.save(file)  # first: a table without its history must not be published
        write_table(result.table, out, separator)
        if page is not None and text is not None:
            write_page(page, text)
    as_is = [str(c) for c in result.table.columns if c not in (*result.quasi, *result.sensitive, *hidden)]
    value = {
        "out": str(out),
        "report": None if page is None else str(page),
        "history": None if file is None else str(file),
        "releases": len(record.releases),
        "rows": len(frame),
        "published": len(result.table),
        "suppressed": len(result.suppressed),
        "unchanged": as_is,
        "classes": result.classes,
        "k": left.after.k,
        "k_over_releases": record.k,
        "levels": result.levels,
        "loss": result.loss,
        "warnings": list(left.warnings),
        "trace": [str(s) for s in result.trace],
    }

    def show(console: Any) -> None:
        lines = [
            f"published   {len(result.table):,} of {len(frame):,} rows in {result.classes:,} classes, "
            f"k = {left.after.k}; over {len(record.releases)} releases k = {record.k}",
            f"left out    {len(result.suppressed):,} rows, to protect them against readers of all releases",
            f"loss        {result.loss:.4f} (granularity)",
            *([f"unchanged   {', '.join(as_is)}: published as they are"] if as_is else []),
            *format_warnings(left),
            f"table       {out}",
            *([f"report      {page}"] if page else []),
            f"history     {file}" if file else "history     not written: pass --history before you publish",
        ]
        console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)

    return value, show
