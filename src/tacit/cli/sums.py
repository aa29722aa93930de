"""Verbs that open sums over all parties (stats, boost): as the coordinator, as a party, or with all files
here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import BadParameter
from ..files import check_free
from .split import kit_of
from .verbs import Answer, answer, reading_of


def run_sum_job(
    args: Any,
    verb: str,
    deployed: Any,
    job: tuple[str, ...],
    write: Callable[[Any], tuple[dict[str, str], list[str]]],
    servers: Mapping[str, Any],
    **parties: Any,
) -> Answer:
    """Run a job by the functions of `deployed` (run_here, coordinate, take_part).

    `write` writes a result's files. `servers`: options that only the server may give; `parties`: those that
    a party passes on.
    """

    def show(result: Any) -> Answer:
        files, lines = write(result)
        return answer(result.to_dict() | files, [str(result), *lines])

    if args.kit is None:
        if args.data is not None:
            raise BadParameter(f"{verb}: --data is a party's own table and needs its --kit.")
        if args.wait is not None:
            raise BadParameter(f"{verb}: --wait is for parties with their --kit; here all start together.")
        runtime = "processes" if args.processes else "cohort"
        return show(deployed.run_here(*job, changes=args.changes, runtime=runtime, reading=reading_of(args)))
    if args.processes:
        raise BadParameter(
            f"{verb}: --processes runs all parties here, --kit runs one of them. Give only one of the two."
        )
    options = {"patience": args.patience, "wait": args.wait, "state": args.state, "progress": _progress(args)}
    kit = kit_of(args.kit, f"tacit {verb} --kit")
    if args.data is None:
        if reading := reading_of(args):
            raise BadParameter(
                f"{verb}: --{next(iter(reading))} is a party's, for its own file. Leave it out; how all "
                "files are read is said in [data] of the job."
            )
        return show(deployed.coordinate(kit, *job, changes=args.changes, **options))
    if args.changes or any(given for given in servers.values()):
        raise BadParameter(
            f"{verb}: {' and '.join(('--set', *servers))} are the server's; a party agrees to the job file "
            "as it is."
        )
    value = deployed.take_part(kit, *job, args.data, **parties, **options, reading=reading_of(args))
    lines = [
        f"answered  {value['answered']} steps of contract {value['contract'][:12]}",
        f"state     {value['state']}",
        *([f"model     {value['model']}"] if "model" in value else []),
    ]
    return answer(value, lines)


def check_output(args: Any, path: str, read_job: Callable[[], Any]) -> None:
    """Raise unless a result can be written to `path`: before a sum is opened, as it is opened once.

    A table of the job is never overwritten.
    """
    tables = [args.data] if args.data is not None else read_job().parties.values()
    check_free(path, args.force, tables)


def write_files(
    result: Any, *, model: str | None = None, report: str | None = None, force: bool = False
) -> tuple[dict[str, str], list[str]]:
    """Write a result's model and report; return their paths, and the lines that name them."""
    files = {}
    if model is not None:
        files["model"] = str(result.save(model, force=force))
    if report is not None:
        files["report"] = str(result.report(Path(report)))
    return files, [f"{name:<9} {path}" for name, path in files.items()]


def _progress(args: Any) -> Callable[[int, int], None]:
    if args.quiet or args.json:
        return lambda done, most: None
    return lambda done, most: print(f"step {done} of at most {most}", file=sys.stderr, flush=True)
