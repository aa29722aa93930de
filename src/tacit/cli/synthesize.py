"""`tacit synthesize`: one synthetic table from several holders' rows.

All holders are simulated, or this party takes part among real ones.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadParameter
from ..parameters import refuse
from ..progress import Progress
from .synth import show_event, write
from .synth_options import (
    COLUMNS,
    check_targets,
    declared_values,
    make_generator,
    parse_conditions,
    read_columns,
)
from .verbs import FORCE, PARAMETER, QUIET, READING, Answer, answer, arg, reading_of

if TYPE_CHECKING:
    from pandas import DataFrame


def add(verb: Callable[..., Any]) -> None:
    verb(
        "synthesize",
        _synthesize,
        "Fit one generator to the rows of several holders, without moving them, and sample a synthetic "
        "table.",
        arg(
            "tables",
            nargs="*",
            metavar="TABLE",
            help="one .csv or .parquet file per holder, which names the holder; with --kit your own, or none",
        ),
        arg(
            "--columns",
            metavar="FILE",
            required=True,
            help=COLUMNS + "; every column's domain is required, because no party sees all rows",
        ),
        arg("--model", default="gaussiancopula", help="gaussiancopula (default), argn, gan, wgan or ctgan"),
        arg("--epochs", type=int, help="short for --set epochs=N, for models that have epochs"),
        arg(
            "--local-epochs",
            type=int,
            default=1,
            metavar="N",
            help="epochs at each holder between two averages of the weights (default: 1)",
        ),
        PARAMETER,
        arg(
            "--in-the-clear",
            action="store_true",
            help="sum without masks: the coordinator sees each holder's counts and weights",
        ),
        arg("--processes", action="store_true", help="without --kit: one process and socket per party"),
        arg("--kit", metavar="DIR", help="your start kit: take part with other parties through their hub"),
        arg(
            "--patience",
            type=float,
            default=300.0,
            metavar="SECONDS",
            help="with --kit: how long to wait for absent parties (default: 300)",
        ),
        arg(
            "--rows",
            type=int,
            metavar="N",
            help="rows to sample (default, without --kit: as many as the holders have)",
        ),
        arg(
            "--condition",
            action="append",
            default=[],
            metavar="COLUMN=VALUE",
            dest="conditions",
            help="sample only such rows; for a number also COLUMN=LOW..HIGH; may be given several times",
        ),
        arg("--seed", type=int, help="random seed of the fit and of sampling (default: 0)"),
        arg("--out", metavar="FILE", help="the synthetic table, .csv or .parquet"),
        arg("--save", metavar="FILE", help="save the fitted generator, for `tacit synth --load`"),
        *READING,
        FORCE,
        QUIET,
        epilog="Without --kit all holders are simulated here, one per file. With --kit every party runs this "
        "command: a client with its own file, the server with --rows and --out; all with the same --columns, "
        "--model, --set, --epochs, --local-epochs and --seed.",
    )


def _synthesize(args: argparse.Namespace) -> Answer:
    _check(args)
    from ..jobs import synthesize
    from ..synth import Table

    started = time.monotonic()
    columns, constraints = read_columns(args.columns, "synthesize")
    for name, column in columns.items():
        if isinstance(column, str):
            raise BadParameter(
                f"synthesize: {args.columns} declares {name!r} as {column} without a domain. Declare the "
                "domain, because no holder sees all rows."
            )
    table = Table.declare(columns, constraints)
    generator = make_generator(args, synthesize.models(), "synthesize")
    conditions = parse_conditions(table, args.conditions)
    options: dict[str, Any] = {"local_epochs": args.local_epochs, "hide": not args.in_the_clear}
    with Progress(args.quiet) as progress:
        options["watch"] = show_event(progress)
        if args.kit is None:
            holders = _holders(args)
            rows = args.rows or sum(map(len, holders.values()))
            if args.processes:
                from ..runtimes.processes import Processes

                options["runtime"] = Processes()
            generator = synthesize.synthesize(holders, table, generator, **options)
        else:
            from ..runtimes.processes import need_net

            need_net("tacit synthesize --kit")
            from ..jobs.kit_run import telling
            from ..runtimes import kits
            from .logs import start_logs

            start_logs()
            kit, rows = kits.load(args.kit), args.rows
            with telling(kit):
                _check_role(args, kit)
                frame = _read(args, args.tables[0]) if args.tables else None
            result = synthesize.synthesize_with(
                kit, frame, table, generator, patience=args.patience, **options
            )
            if result is None:
                return {
                    "party": kit.name,
                    "seconds": time.monotonic() - started,
                }, lambda console: console.print("done: the coordinator has the generator")
            generator = result
        if args.save:
            generator.save(args.save, force=args.force)
        if args.out:
            write(generator, rows, conditions, args.seed or 0, Path(args.out), progress)
    value = {
        "model": type(generator).__name__,
        "rows": rows if args.out else 0,
        "out": args.out,
        "save": args.save,
        "seed": args.seed or 0,
        "ledger": generator.ledger.to_dict(),
        "history": generator.history,
        "seconds": time.monotonic() - started,
    }
    lines = [
        *generator.ledger.stamps,
        *([f"{rows:,} rows   {args.out}"] if args.out else []),
        *([f"generator  {args.save}"] if args.save else []),
    ]
    return answer(value, lines)


def _check(args: argparse.Namespace) -> None:
    """Check the options before anything is read or fitted."""
    from ..data.table_files import check_table_name

    refuse(
        (
            args.kit is None and len(args.tables) < 2,
            "synthesize: give the files of at least two holders, or --kit to take part with your own.",
        ),
        (
            args.kit is None and not (args.out or args.save),
            "synthesize: there is no output. Give --out FILE for a synthetic table, or --save FILE for the "
            "generator.",
        ),
        (
            args.kit is not None and args.processes,
            "synthesize: --processes simulates all parties here, and --kit runs one of them. Remove one of "
            "the two.",
        ),
        (
            args.rows is not None and args.rows < 1,
            f"synthesize: --rows is {args.rows}; it must be at least 1.",
        ),
    )
    if args.out:
        check_table_name(args.out, "synthesize: --out ")
    check_targets(
        "synthesize", {"out": args.out, "save": args.save}, args.tables, "a holder's table", args.force
    )


def _check_role(args: argparse.Namespace, kit: Any) -> None:
    """Check that holders give rows and the server gives outputs."""
    if kit.name == kit.server:
        if args.tables:
            raise BadParameter(
                f"synthesize: {kit.name!r} is the server, which has no rows. Remove {args.tables[0]}."
            )
        if not (args.out or args.save) or (args.out and args.rows is None):
            raise BadParameter(
                "synthesize: the server receives the generator. Give --out FILE with --rows N for a "
                "synthetic table, or --save FILE."
            )
    elif len(args.tables) != 1 or args.out or args.save:
        raise BadParameter(
            f"synthesize: {kit.name!r} is a holder: give one file, its own, without --out and --save, which "
            "are for the server."
        )


def _read(args: argparse.Namespace, path: str) -> DataFrame:
    from ..data.table_files import read_table

    return read_table(path, declared=declared_values(args.columns), **reading_of(args))


def _holders(args: argparse.Namespace) -> Mapping[str, DataFrame]:
    names = [Path(p).name.split(".")[0] for p in args.tables]
    for name in names:
        if names.count(name) > 1:
            raise BadParameter(
                f"synthesize: two files are named {name!r}, and a holder is named after its file. Rename one "
                "of them."
            )
    return {name: _read(args, path) for name, path in zip(names, args.tables)}
