"""tacit boost: boosted trees across parties, as the coordinator, as a party, or with all files here.

A job with a table for each party ([parties.bank]) is about different columns of the same people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..errors import BadParameter
from .split import kit_of, runtime
from .sums import check_output, run_sum_job, write_files
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
        "boost",
        _boost,
        "Train gradient-boosted trees across parties: with the same columns, only sums over all of them are "
        "opened; with different columns of the same people, on secret shares.",
        arg("job", help="a job file (TOML) with [boost], the same at all parties"),
        arg("--kit", metavar="DIR", help="your start kit: coordinate as the server, or answer as a party"),
        DATA,
        *READING,
        arg(
            "--out",
            metavar="MODEL.json|DIR",
            help="write the model here, as XGBoost's JSON; with different columns the folder of your part "
            "(default: part in the kit), and without a kit a folder for all parts",
        ),
        arg("--report", metavar="FILE.html", help="write the report here"),
        FORCE,
        STATE,
        CHANGES,
        PROCESSES,
        WAIT,
        PATIENCE,
        QUIET,
    )


def _boost(args: Any) -> Answer:
    from ..config.vertical import has_party_tables
    from ..jobs.boost import deployed
    from ..jobs.vertical import boost_deployed

    if has_party_tables(args.job, "boost"):
        return _boost_vertical(args, boost_deployed)
    if args.out is not None and args.kit is not None and args.data is None:
        kit = kit_of(args.kit, "tacit boost --kit")
        done = deployed.find_written(kit, args.job, args.out, changes=args.changes, state=args.state)
        if done is not None:
            return _ended(done, args)
    for file in (args.out, args.report):
        if file is not None:
            check_output(args, file, lambda: deployed.read_job(args.job, args.changes))
    return run_sum_job(
        args,
        "boost",
        deployed,
        (args.job,),
        lambda result: write_files(result, model=args.out, report=args.report, force=args.force),
        {"--report": args.report},
        out=args.out,
        force=args.force,
    )


def _ended(result: Any, args: Any) -> Answer:
    """Answer a command that is given again after it wrote its model."""
    note = "This job had ended: the model is the file's, from the sums that were kept. Nothing was sent."
    files, lines = write_files(result, report=args.report)
    value = result.to_dict() | {"model": str(args.out)} | files
    value["notes"] = [*value.get("notes", ()), note]
    return answer(value, [str(result), f"note      {note}", f"model     {args.out}", *lines])


def _boost_vertical(args: Any, deployed: Any) -> Answer:
    if args.force:
        raise BadParameter("boost: --force is for a file. Give --out a new folder for the parts.")
    if args.changes or (args.state is not None and args.kit is None):
        raise BadParameter(
            "boost: --set is for parties with the same columns; parties with different columns agree to the "
            "job file as it is. --state is for a party with its kit."
        )
    if args.kit is not None:
        if args.processes or args.report:
            raise BadParameter("boost: --processes and --report are for runs without a kit.")
        kit = kit_of(args.kit, "tacit boost --kit")
        value = deployed.take_part(
            kit, args.job, args.data, args.out, args.patience, args.wait, args.state, reading_of(args)
        )
        return answer(value, _lines(value))
    if args.out is None or args.data is not None:
        raise BadParameter(
            "boost: without a kit all parties run here, with the files of the job. Give --out for their "
            "parts and no --data, or give --kit."
        )
    result = deployed.run_here(
        args.job, args.out, runtime(args.processes, "tacit boost --processes"), reading=reading_of(args)
    )
    files, lines = write_files(result, report=args.report)
    return answer(
        result.to_dict() | files | {"folder": args.out}, [str(result), *lines, f"parts     {args.out}"]
    )


def _lines(value: dict[str, Any]) -> Iterable[str]:
    yield from (f"note    {note}" for note in value["notes"])
    yield f"rows    {value['rows']} shared"
    if value["trees"] is not None:  # a helper has none
        yield f"trees   {value['trees']}, with {value['splits']} splits of this party's columns"
    if value["losses"]:
        yield f"loss    {min(value['losses']):.4f} on held-out rows"
    yield f"part    {value['folder']}"
