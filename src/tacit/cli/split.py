"""tacit split: train a split network, between real parties or with all of them here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import BadParameter


def add(verb: Callable[..., Any]) -> None:
    parser = verb(
        "split",
        _split,
        "Train one network on tables with different columns of the same ids; each party keeps its table and "
        "a part of the network.",
    )
    parser.add_argument(
        "job", help="a job file (TOML) with [split] and [parties.NAME], the same at all parties"
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
        help="the folder of your part (default: part in the kit); without a kit, a folder for all parts",
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
        help="how long to retry when the hub or another party is disconnected (default: 300)",
    )


def _split(args: Any) -> tuple[Any, Callable[[Any], None]]:
    from ..jobs.vertical import split_deployed as deployed

    value = run_parties("split", args, deployed, "parts")
    lines = [*(f"note    {note}" for note in value["notes"]), f"rows    {value['rows']} shared"]
    if value["history"]:
        last = {k: v for k, v in value["history"][-1].items() if k not in ("epoch", "seconds")}
        lines.append("result  " + "  ".join(f"{k} {v:.4f}" for k, v in last.items()))
    lines.append(f"part{'s' if args.kit is None else ' '}   {value['folder']}")
    return value, lambda console: console.print(
        "\n".join(lines), highlight=False, markup=False, soft_wrap=True
    )


def run_parties(verb: str, args: Any, deployed: Any, outputs: str) -> dict[str, Any]:
    """Run all parties here, or one of them with its kit; `outputs` names what is written to --out."""
    from ..parties.ledger import Ledger

    if args.kit is not None:
        if args.processes:
            raise BadParameter(
                f"{verb}: --processes runs all parties here, --kit runs one of them. Give only one of the "
                "two."
            )
        return deployed.take_part(
            kit_of(args.kit, f"tacit {verb} --kit"), args.job, args.file, args.out, args.patience
        )
    if args.out is None or args.file is not None:
        raise BadParameter(
            f"{verb}: without a kit all parties run here, with the files of the job. Give --out for their "
            f"{outputs} and no --file, or give --kit."
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
