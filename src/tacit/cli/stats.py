"""tacit stats: statistics across parties, as the coordinator, as a party, or with all files here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import BadParameter
from ..jobs.stats.words import HOMES
from .verbs import CHANGES, DATA, PATIENCE, PROCESSES, QUIET, STATE, Answer, answer, arg


def add(verb: Callable[..., Any]) -> None:
    verb(
        "stats",
        _stats,
        "Compute statistics across parties; only sums over all of them are opened.",
        arg(
            "query",
            choices=list(HOMES),
            metavar="QUERY",
            help="; ".join(f"{word}: {text}" for word, (_, text) in HOMES.items()),
        ),
        arg("job", help="a job file (TOML) with [stats], the same at all parties"),
        arg("--kit", metavar="DIR", help="your start kit: ask as the server, or answer as a party"),
        DATA,
        STATE,
        arg("--out", metavar="FILE.html", help="write the report here"),
        CHANGES,
        PROCESSES,
        PATIENCE,
        QUIET,
    )


def _stats(args: Any) -> Answer:
    from ..jobs.stats import deployed

    progress = _progress(args)
    if args.kit is None:
        if args.data is not None:
            raise BadParameter("stats: --data is a party's own table and needs its --kit.")
        result = deployed.run_here(
            args.query, args.job, changes=args.changes, runtime="processes" if args.processes else "cohort"
        )
        return _show(args, result)
    if args.processes:
        raise BadParameter("stats: --processes runs all parties here, --kit runs one. Give one of the two.")
    from .split import kit_of

    kit = kit_of(args.kit, "tacit stats --kit")
    if args.data is None:
        result = deployed.coordinate(
            kit,
            args.query,
            args.job,
            changes=args.changes,
            patience=args.patience,
            state=args.state,
            progress=progress,
        )
        return _show(args, result)
    if args.changes or args.out:
        raise BadParameter(
            "stats: --set and --out are the server's; a party agrees to the job file as it is."
        )
    value = deployed.take_part(
        kit,
        args.query,
        args.job,
        args.data,
        state=args.state,
        patience=args.patience,
        progress=progress,
    )
    lines = [
        f"answered  {value['answered']} steps of contract {value['contract'][:12]}",
        f"state     {value['state']}",
    ]
    return answer(value, lines)


def _progress(args: Any) -> Callable[[int, int], None]:
    if args.quiet or args.json:
        return lambda done, most: None
    return lambda done, most: print(f"step {done} of at most {most}", file=sys.stderr, flush=True)


def _show(args: Any, result: Any) -> Answer:
    value = result.to_dict()
    lines = [str(result)]
    if args.out is not None:
        value["report"] = str(result.report(Path(args.out)))
        lines.append(f"report    {value['report']}")
    return answer(value, lines)
