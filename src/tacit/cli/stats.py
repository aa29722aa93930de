"""tacit stats: statistics across parties, as the coordinator, as a party, or with all files here.

A job of `woe` with a table for each party ([parties.bank]) is about different columns of the same people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..errors import BadParameter
from ..jobs.stats.words import HOMES
from .split import kit_of, runtime
from .sums import check_output, run_sum_job
from .verbs import (
    CHANGES,
    DATA,
    FORCE,
    PATIENCE,
    PROCESSES,
    QUIET,
    READING,
    STATE,
    WAIT,
    Answer,
    answer,
    arg,
    reading_of,
)


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
        *READING,
        STATE,
        arg(
            "--out",
            metavar="FILE|DIR",
            help="write the report here (.html), or the table (.csv, or .tex for LaTeX); for woe over "
            "different columns the folder of your part (default: part in the kit), and without a kit a "
            "folder for all parts",
        ),
        FORCE,
        CHANGES,
        PROCESSES,
        WAIT,
        PATIENCE,
        QUIET,
    )


def _stats(args: Any) -> Answer:
    from ..config.vertical import has_party_tables
    from ..jobs.stats import deployed
    from ..stats.table_files import check_suffix

    if args.query == "woe" and has_party_tables(args.job, "stats"):
        return _weigh_vertical(args)
    if args.out is not None:
        check_suffix(args.out)  # before a sum is opened
        check_output(args, args.out, lambda: deployed.read_query(args.query, args.job, args.changes))
    return run_sum_job(
        args,
        "stats",
        deployed,
        (args.query, args.job),
        lambda result: _write(result, args.out),
        {"--out": args.out},
    )


def _write(result: Any, path: str | None) -> tuple[dict[str, str], list[str]]:
    from ..stats.table_files import REPORTS, check_suffix, write_result

    if path is None:
        return {}, []
    name = "report" if check_suffix(path) in REPORTS else "table"
    written = str(write_result(result, path))
    return {name: written}, [f"{name:<9} {written}"]


def _weigh_vertical(args: Any) -> Answer:
    from ..jobs.vertical import woe_deployed as deployed
    from ..parties.ledger import Ledger

    if args.force:
        raise BadParameter("stats woe: --force is for a file. Give --out a new folder for the parts.")
    if args.changes or args.state is not None:
        raise BadParameter(
            "stats woe: --set and --state are for parties with the same columns; parties with different "
            "columns agree to the job file as it is, and keep nothing to resume."
        )
    if args.kit is not None:
        if args.processes:
            raise BadParameter("stats woe: --processes runs all parties here, --kit runs one of them.")
        kit = kit_of(args.kit, "tacit stats woe --kit")
        value = deployed.take_part(
            kit, args.job, args.data, args.out, args.patience, args.wait, reading_of(args)
        )
        return answer(value, _lines(value))
    if args.out is None or args.data is not None:
        raise BadParameter(
            "stats woe: without a kit all parties run here, with the files of the job. Give --out for their "
            "parts and no --data, or give --kit."
        )
    ledger = Ledger()
    value = deployed.run_here(
        args.job, args.out, runtime(args.processes, "tacit stats woe --processes"), ledger, reading_of(args)
    )
    return answer(value | {"ledger": ledger.to_dict()}, _lines(value))


def _lines(value: dict[str, Any]) -> Iterable[str]:
    yield from (f"note    {note}" for note in value["notes"])
    yield f"rows    {value['rows']} shared"
    names = [f"{row['party']}.{row['column']}" if "party" in row else row["column"] for row in value["table"]]
    wide = max(map(len, names), default=0)
    bins = max((len(row["bin"]) for row in value["table"]), default=0)
    if names:
        yield f"{'':<{wide}}  {'bin':<{bins}}{'rows':>9}{'events':>9}{'woe':>9}{'iv':>9}"
    for name, row in zip(names, value["table"]):
        yield (
            f"{name:<{wide}}  {row['bin']:<{bins}}{row['rows']:>9}{row['events']:>9}{row['woe']:>9.4f}"
            f"{row['iv']:>9.4f}"
        )
    yield from (f"iv      {name} {iv:.4f}" for name, iv in value["iv"].items())
    if value["folder"]:  # a helper has none
        yield f"part    {value['folder']}"
