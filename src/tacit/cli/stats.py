"""tacit stats: statistics across parties, as the coordinator, as a party, or with all files here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..jobs.stats.words import HOMES
from .sums import run_sum_job, write_files
from .verbs import CHANGES, DATA, PATIENCE, PROCESSES, QUIET, STATE, WAIT, Answer, arg


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
        WAIT,
        PATIENCE,
        QUIET,
    )


def _stats(args: Any) -> Answer:
    from ..jobs.stats import deployed

    return run_sum_job(
        args,
        "stats",
        deployed,
        (args.query, args.job),
        lambda result: write_files(result, report=args.out),
        {"--out": args.out},
    )
