"""tacit ftl: federated transfer learning, between real parties or with all of them here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .split import run_parties


def add(verb: Callable[..., Any]) -> None:
    parser = verb(
        "ftl",
        _ftl,
        "Train a model for a table without labels from another party's labeled table with other columns and "
        "few ids in common.",
    )
    parser.add_argument(
        "job", help="a job file (TOML) with [ftl] and [parties.NAME], the same at all parties"
    )
    parser.add_argument(
        "--kit",
        metavar="DIR",
        help="your start kit: take part as its party; every other party runs the same command with its own",
    )
    parser.add_argument(
        "--file",
        metavar="FILE.csv",
        help="with --kit: your own table, if the job does not name it; it stays here",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="the folder of your predictor (default: part in the kit); without a kit, a folder for all of "
        "them",
    )
    parser.add_argument(
        "--processes",
        action="store_true",
        help="without a kit: a process and a certificate for each party, over a hub on this machine",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="how long to retry when the hub cannot be reached (default: 300)",
    )


def _ftl(args: Any) -> tuple[Any, Callable[[Any], None]]:
    from ..jobs.vertical import transfer_deployed as deployed

    value = run_parties("ftl", args, deployed, "predictors")
    lines = [*(f"note    {note}" for note in value["notes"]), f"rows    {value['rows']} shared"]
    if value["metrics"]:
        lines.append("result  " + "  ".join(f"{k} {v:.4f}" for k, v in value["metrics"].items()))
    if value["folder"]:
        lines.append(f"part{'s' if args.kit is None else ' '}   {value['folder']}")
    return value, lambda console: console.print(
        "\n".join(lines), highlight=False, markup=False, soft_wrap=True
    )
