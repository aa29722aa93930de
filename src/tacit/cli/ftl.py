"""tacit ftl: bring what one party knows of its labelled rows to another's columns, between real parties or
tried out here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .split import played


def add(verb: Callable[..., Any]) -> None:
    made = verb(
        "ftl",
        _ftl,
        "Train a model for a table without labels from another party's labelled table with other columns; a "
        "few ids stand in both.",
    )
    made.add_argument(
        "job", help="a job file (TOML) with [ftl] and [parties.NAME]; all parties have the same"
    )
    made.add_argument(
        "--kit",
        metavar="DIR",
        help="your start kit: take part as its party; every other party runs the same command with its own",
    )
    made.add_argument(
        "--file",
        metavar="FILE.csv",
        help="with --kit: your own table, if the job does not say where it lies; it stays here",
    )
    made.add_argument(
        "--out",
        metavar="DIR",
        help="where your predictor goes (default: part in the kit); without a kit, a folder for all of them",
    )
    made.add_argument(
        "--processes",
        action="store_true",
        help="without a kit: a process and a certificate for each party, over a hub on this machine",
    )
    made.add_argument(
        "--patience",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="how long to keep trying when the hub cannot be reached (default: 300)",
    )


def _ftl(args: Any) -> tuple[Any, Callable[[Any], None]]:
    from ..jobs.vertical import transfer_deployed as deployed

    value = played("ftl", args, deployed, "predictors")
    lines = [*(f"note    {note}" for note in value["notes"]), f"rows    {value['rows']} shared"]
    if value["metrics"]:
        lines.append("result  " + "  ".join(f"{k} {v:.4f}" for k, v in value["metrics"].items()))
    if value["folder"]:
        lines.append(f"part{'s' if args.kit is None else ' '}   {value['folder']}")
    return value, lambda console: console.print(
        "\n".join(lines), highlight=False, markup=False, soft_wrap=True
    )
