"""tacit split and tacit ftl: train a split network, or transfer from another party's labels, between real
parties or with all of them here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..errors import BadParameter
from .verbs import FILE, KIT, PATIENCE, PROCESSES, READING, WAIT, Answer, answer, arg, reading_of

VERBS = {
    "split": (
        "Train one network on tables with different columns of the same ids; each party keeps its table and "
        "a part of the network.",
        "part",
    ),
    "ftl": (
        "Train a model for a table without labels from another party's labeled table with other columns and "
        "few ids in common.",
        "predictor",
    ),
}


def add(verb: Callable[..., Any]) -> None:
    for name, (text, output) in VERBS.items():
        verb(
            name,
            partial(_train, name),
            text,
            arg("job", help=f"a job file (TOML) with [{name}] and [parties.NAME], the same at all parties"),
            KIT,
            FILE,
            arg(
                "--out",
                metavar="DIR",
                help=f"the folder of your {output} (default: part in the kit); without a kit, a folder for "
                f"all {output}s",
            ),
            *READING,
            PROCESSES,
            WAIT,
            PATIENCE,
        )


def _train(verb: str, args: Any) -> Answer:
    value = _run_parties(verb, args)
    last = value["history"][-1] if value["history"] else {}
    metrics = value.get("metrics", {k: v for k, v in last.items() if k not in ("epoch", "seconds")})
    lines = [*(f"note    {note}" for note in value["notes"]), _count(value)]
    if metrics:
        lines.append("result  " + "  ".join(f"{k} {v:.4f}" for k, v in metrics.items()))
    if value["folder"]:  # a helper has none
        lines.append(f"part{'s' if args.kit is None else ' '}   {value['folder']}")
    return answer(value, lines)


def _count(value: dict[str, Any]) -> str:
    rows, shared = value["rows"], value.get("shared", value["rows"])
    return f"rows    {rows} shared" if rows == shared else f"rows    {rows}, {shared} of them shared"


def _run_parties(verb: str, args: Any) -> dict[str, Any]:
    """Run all parties here, or one of them with its kit."""
    from ..jobs.vertical import split_deployed, transfer_deployed
    from ..parties.ledger import Ledger

    deployed: Any = split_deployed if verb == "split" else transfer_deployed
    if args.kit is not None:
        if args.processes:
            raise BadParameter(
                f"{verb}: --processes runs all parties here, --kit runs one of them. Give only one of the "
                "two."
            )
        kit = kit_of(args.kit, f"tacit {verb} --kit")
        value = deployed.take_part(
            kit, args.job, args.file, args.out, args.patience, args.wait, reading=reading_of(args)
        )
        return dict(value)
    if args.out is None or args.file is not None:
        raise BadParameter(
            f"{verb}: without a kit all parties run here, with the files of the job. Give --out for their "
            f"{VERBS[verb][1]}s and no --file, or give --kit."
        )
    ledger = Ledger()
    value = deployed.run_here(
        args.job, args.out, runtime(args.processes, f"tacit {verb} --processes"), ledger, reading_of(args)
    )
    return {**value, "ledger": ledger.to_dict()}


def runtime(processes: bool, what: str) -> Any:
    if not processes:
        return None
    from ..runtimes.processes import Processes, need_net

    need_net(what)
    return Processes()


def kit_of(folder: str, what: str) -> Any:
    """Load a start kit, and log what happens to connections."""
    from ..runtimes.processes import need_net

    need_net(what)
    from ..runtimes import kits
    from .logs import start_logs

    start_logs()
    return kits.load(folder)
