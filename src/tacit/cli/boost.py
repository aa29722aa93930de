"""tacit boost: boosted trees across parties, as the coordinator, as a party, or with all files here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .sums import run_sum_job, write_files
from .verbs import CHANGES, DATA, PATIENCE, PROCESSES, QUIET, STATE, Answer, arg


def add(verb: Callable[..., Any]) -> None:
    verb(
        "boost",
        _boost,
        "Train gradient-boosted trees across parties; only sums over all of them are opened.",
        arg("job", help="a job file (TOML) with [boost], the same at all parties"),
        arg("--kit", metavar="DIR", help="your start kit: coordinate as the server, or answer as a party"),
        DATA,
        arg("--out", metavar="MODEL.json", help="write the model here, as XGBoost's JSON"),
        arg("--report", metavar="FILE.html", help="write the report here"),
        STATE,
        CHANGES,
        PROCESSES,
        PATIENCE,
        QUIET,
    )


def _boost(args: Any) -> Answer:
    from ..jobs.boost import deployed
    from ..results import check_absent

    if args.out is not None:
        check_absent(args.out)
    return run_sum_job(
        args,
        "boost",
        deployed,
        (args.job,),
        lambda result: write_files(result, model=args.out, report=args.report),
        {"--report": args.report},
        out=args.out,
    )
