"""Files of the commands of anonymized tables beside the table: hierarchies, report, history."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import BadParameter, MissingFiles
from .verbs import arg

HISTORY = arg(
    "--history",
    metavar="FILE",
    help="also write what is published about whom to a new .json file, for `tacit anonymize-again`; it "
    "contains ids and sensitive values: keep it as you keep the table",
)


def history_file(args: argparse.Namespace, sources: list[Any]) -> Path | None:
    """The file of --history, which must be new: --force does not overwrite one."""
    from ..files import check_free

    return None if args.history is None else check_free(args.history, False, sources)


def report_file(args: argparse.Namespace, sources: list[Any]) -> Path | None:
    from ..files import check_free

    if args.report is None:
        return None
    if args.report in map(str, sources):
        raise BadParameter(f"--report {args.report} is also the name of a table. Choose another file name.")
    return check_free(args.report, args.force, sources)


def find_hierarchies(directory: str | None, quasi: list[str]) -> dict[str, str] | None:
    """Find the files of quasi-identifiers: COLUMN.csv, COLUMN.toml, or ARX's NAME_hierarchy_COLUMN.csv."""
    if directory is None:
        return None
    folder = Path(directory)
    if not folder.is_dir():
        raise MissingFiles(
            f"--hierarchies {directory}: there is no such directory. Pass one with a file for each column, "
            "like age.csv."
        )
    paths: dict[str, str] = {}
    for column in quasi:
        matches = [
            p
            for p in sorted(folder.iterdir())
            if p.suffix in (".csv", ".toml") and (p.stem == column or p.stem.endswith(f"hierarchy_{column}"))
        ]
        if len(matches) > 1:
            raise BadParameter(
                f"--hierarchies {directory}: {' and '.join(p.name for p in matches)} are both for "
                f"{column!r}. Keep one of them."
            )
        if matches:
            paths[column] = str(matches[0])
    if not paths:
        raise MissingFiles(
            f"--hierarchies {directory}: it has no file for {', '.join(quasi)}. Name them like "
            f"{quasi[0]}.csv."
        )
    return paths
