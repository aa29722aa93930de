"""tacit boost: boosted trees across parties, as the coordinator, as a party, or with all files here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import BadParameter
from .verbs import PATIENCE, PROCESSES, QUIET, Answer, answer, arg


def add(verb: Callable[..., Any]) -> None:
    verb(
        "boost",
        _boost,
        "Train gradient-boosted trees across parties; only sums over all of them are opened.",
        arg("job", help="a job file (TOML) with [boost], the same at all parties"),
        arg("--kit", metavar="DIR", help="your start kit: coordinate as the server, or answer as a party"),
        arg("--data", metavar="FILE", help="party: your own .csv or .parquet file; it stays here"),
        arg("--out", metavar="MODEL.json", help="write the model here, as XGBoost's JSON"),
        arg("--report", metavar="FILE.html", help="write the report here"),
        arg(
            "--state",
            metavar="DIR",
            help="where sums and answers are kept, to resume after a kill (default: state in the kit)",
        ),
        arg(
            "--set",
            action="append",
            default=[],
            metavar="TABLE.KEY=VALUE",
            dest="changes",
            help="change a value of the job file; other parties must have the same",
        ),
        PROCESSES,
        PATIENCE,
        QUIET,
    )


def _boost(args: Any) -> Answer:
    from ..jobs.boost import deployed
    from ..results import check_absent

    if args.out is not None:
        check_absent(args.out)
    if args.kit is None:
        if args.data is not None:
            raise BadParameter("boost: --data is a party's own table and needs its --kit.")
        result = deployed.run_here(
            args.job, changes=args.changes, runtime="processes" if args.processes else "cohort"
        )
        return _show(args, result)
    if args.processes:
        raise BadParameter("boost: --processes runs all parties here, --kit runs one. Give one of the two.")
    from .split import kit_of

    kit, progress = kit_of(args.kit, "tacit boost --kit"), _progress(args)
    if args.data is None:
        result = deployed.coordinate(
            kit,
            args.job,
            changes=args.changes,
            patience=args.patience,
            state=args.state,
            progress=progress,
        )
        return _show(args, result)
    if args.changes or args.report:
        raise BadParameter(
            "boost: --set and --report are the server's; a party agrees to the job file as it is."
        )
    value = deployed.take_part(
        kit,
        args.job,
        args.data,
        out=args.out,
        state=args.state,
        patience=args.patience,
        progress=progress,
    )
    lines = [
        f"answered  {value['answered']} steps of contract {value['contract'][:12]}",
        f"state     {value['state']}",
        *([f"model     {value['model']}"] if "model" in value else []),
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
        value["model"] = str(result.save(args.out))
        lines.append(f"model     {value['model']}")
    if args.report is not None:
        value["report"] = str(result.report(Path(args.report)))
        lines.append(f"report    {value['report']}")
    return answer(value, lines)
