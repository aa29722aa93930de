"""tacit split: train one network of which each party holds a part, between real parties or tried out here.
tacit predict is in predict.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import BadParameter


def add(verb: Callable[..., Any]) -> None:
    made = verb(
        "split",
        _split,
        "Train one network over tables with different columns of the same people; each party keeps its "
        "table, and a part.",
    )
    made.add_argument(
        "job", help="a job file (TOML) with [split] and [parties.NAME]; all parties have the same"
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
        help="where your part goes (default: part in the kit); without a kit, a folder for all of them",
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
        help="how long to keep trying when the hub cannot be reached, or another party has gone (default: "
        "300)",
    )


def _split(args: Any) -> tuple[Any, Callable[[Any], None]]:
    from ..jobs.vertical import split_deployed as deployed

    value = played("split", args, deployed, "parts")
    lines = [*(f"note    {note}" for note in value["notes"]), f"rows    {value['rows']} shared"]
    if value["history"]:
        last = {k: v for k, v in value["history"][-1].items() if k not in ("epoch", "seconds")}
        lines.append("result  " + "  ".join(f"{k} {v:.4f}" for k, v in last.items()))
    lines.append(f"part{'s' if args.kit is None else ' '}   {value['folder']}")
    return value, lambda console: console.print(
        "\n".join(lines), highlight=False, markup=False, soft_wrap=True
    )


def played(verb: str, args: Any, deployed: Any, made: str) -> dict[str, Any]:
    """All parties here, or one of them with its kit: `deployed` has both ways, `made` is what lies in --out
    afterwards.
    """
    from ..parties.ledger import Ledger

    if args.kit is not None:
        if args.processes:
            raise BadParameter(
                f"{verb}: --processes plays all parties here, --kit is one of them. Give one of the two."
            )
        return deployed.take_part(
            kit_of(args.kit, f"tacit {verb} --kit"), args.job, args.file, args.out, args.patience
        )
    if args.out is None or args.file is not None:
        raise BadParameter(
            f"{verb}: without a kit all parties run here, with the files the job names. Give --out for "
            f"their {made} and no --file; "
            "or give --kit."
        )
    ledger = Ledger()
    value = deployed.run_here(
        args.job, args.out, runtime(args.processes, f"tacit {verb} --processes"), ledger
    )
    return {**value, "ledger": ledger.to_dict()}


def runtime(processes: bool, what: str) -> Any:
    if not processes:
        return None
    from ..runtimes.processes import Processes, need_net

    need_net(what)
    return Processes()


def kit_of(folder: str, what: str) -> Any:
    from ..runtimes.processes import need_net

    need_net(what)
    from ..runtimes import kits
    from .party import logs

    logs()
    return kits.load(folder)
