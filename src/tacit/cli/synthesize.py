"""`tacit synthesize`: one synthetic table of several holders' rows; all of them tried here, or this party's
part among real ones.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import BadParameter
from ..progress import Progress
from .synth import COLUMNS, check_targets, ending, model_of, show_event, told, wanted, write


def add(verb: Callable[..., Any]) -> None:
    made = verb(
        "synthesize",
        _synthesize,
        "Learn one generator from the rows of several holders, which stay where they are, and draw a "
        "synthetic table.",
        epilog="Without --kit every holder is played here, each with its file. With --kit every party runs "
        "this command: a client with its own file, "
        "the server with --rows and --out; all of them with the same --columns, --model, --set, --epochs, "
        "--local-epochs and --seed.",
    )
    made.add_argument(
        "tables",
        nargs="*",
        metavar="TABLE",
        help="a .csv or .parquet file for each holder, who is named by it; with --kit your own, or none",
    )
    made.add_argument(
        "--columns",
        metavar="FILE",
        required=True,
        help=COLUMNS + "; every column's domain, since nobody sees all rows",
    )
    made.add_argument(
        "--model", default="gaussiancopula", help="gaussiancopula (default), gan, wgan or ctgan"
    )
    made.add_argument("--epochs", type=int, help="short for --set epochs=N, for models that have epochs")
    made.add_argument(
        "--local-epochs",
        type=int,
        default=1,
        metavar="N",
        help="passes over a holder's rows before its networks meet the others' (default: 1)",
    )
    made.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="changes",
        help="a parameter of the model; may be given several times",
    )
    made.add_argument(
        "--in-the-clear",
        action="store_true",
        help="add up without masks: the coordinator sees each holder's counts and weights",
    )
    made.add_argument(
        "--processes", action="store_true", help="without --kit: a process and a socket for every party"
    )
    made.add_argument(
        "--kit", metavar="DIR", help="your start kit: take part with other parties through their hub"
    )
    made.add_argument(
        "--patience",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="with --kit: how long to wait while others are away (default: 300)",
    )
    made.add_argument(
        "--rows",
        type=int,
        metavar="N",
        help="rows to draw (default, without --kit: as many as the holders have)",
    )
    made.add_argument(
        "--given",
        action="append",
        default=[],
        metavar="COLUMN=VALUE",
        help="only such rows; for a number also COLUMN=LOW..HIGH",
    )
    made.add_argument("--seed", type=int, help="of fitting and of drawing (default: 0)")
    made.add_argument("--out", metavar="FILE", help="the synthetic table, .csv or .parquet")
    made.add_argument(
        "--save", metavar="FILE", help="keep the generator, to draw from it later with `tacit synth --load`"
    )
    made.add_argument("--force", action="store_true", help="write over files that are there")
    made.add_argument("--quiet", action="store_true", help="no progress and no summary")


def _synthesize(args: argparse.Namespace) -> tuple[Any, Callable[[Any], None]]:
    from ..data.table_files import read_table

    _check(args)
    from ..jobs import synthesize
    from ..synth import Table

    began = time.monotonic()
    columns, constraints = told(args.columns, "synthesize")
    for name, column in columns.items():
        if isinstance(column, str):
            raise BadParameter(
                f"synthesize: {args.columns} only says that {name!r} is {column}. Declare its domain, too: "
                "no holder sees everybody's rows."
            )
    table, generator = Table.declare(columns, constraints), model_of(args, synthesize.models())
    given = wanted(table, args.given)  # a slip is told before anybody learns
    options: dict[str, Any] = {"local_epochs": args.local_epochs, "hide": not args.in_the_clear}
    with Progress(args.quiet) as progress:
        options["watch"] = show_event(progress)
        if args.kit is None:
            holders = _holders(args.tables)
            rows = args.rows or sum(map(len, holders.values()))
            if args.processes:
                from ..runtimes.processes import Processes

                options["runtime"] = Processes()
            fitted = synthesize.synthesize(holders, table, generator, **options)
        else:
            from ..runtimes.processes import need_net

            need_net("tacit synthesize --kit")
            from ..runtimes import kits
            from .party import logs

            logs()
            kit, rows = kits.load(args.kit), args.rows
            _part(args, kit)
            mine = read_table(args.tables[0]) if args.tables else None
            done = synthesize.synthesize_with(kit, mine, table, generator, patience=args.patience, **options)
            if done is None:
                return {
                    "party": kit.name,
                    "seconds": time.monotonic() - began,
                }, lambda console: console.print("done: the coordinator has the generator")
            fitted = done
        if args.save:
            fitted.save(args.save)
        if args.out:
            write(fitted, rows, given, args.seed or 0, Path(args.out), progress)
    value = {
        "model": type(generator).__name__,
        "rows": rows if args.out else 0,
        "out": args.out,
        "save": args.save,
        "seed": args.seed or 0,
        "ledger": fitted.ledger.to_dict(),
        "history": fitted.history,
        "seconds": time.monotonic() - began,
    }
    lines = [
        *fitted.ledger.stamps,
        *([f"{rows:,} rows   {args.out}"] if args.out else []),
        *([f"generator  {args.save}"] if args.save else []),
    ]
    return value, lambda console: console.print(
        "\n".join(lines), highlight=False, markup=False, soft_wrap=True
    )


def _check(args: argparse.Namespace) -> None:
    """What can be wrong is said before anything is read or learnt."""
    if args.kit is None and len(args.tables) < 2:
        raise BadParameter(
            "synthesize: give the files of at least two holders, or --kit to take part with your own."
        )
    if args.kit is None and not (args.out or args.save):
        raise BadParameter(
            "synthesize: nothing is asked for. Give --out FILE for a synthetic table, or --save FILE for "
            "the generator."
        )
    if args.kit is not None and args.processes:
        raise BadParameter(
            "synthesize: --processes plays all parties here, and --kit is one of them. Leave out one of the "
            "two."
        )
    if args.rows is not None and args.rows < 1:
        raise BadParameter(f"synthesize: --rows is {args.rows}; it must be at least 1.")
    if args.out and ending(args.out) is None:
        raise BadParameter(
            f"synthesize: --out {args.out} ends in neither .csv, .csv.gz nor .parquet; its ending says what "
            "to write."
        )
    check_targets(
        "synthesize", {"out": args.out, "save": args.save}, args.tables, "a holder's table", args.force
    )


def _part(args: argparse.Namespace, kit: Any) -> None:
    """Who has rows, and who draws."""
    if kit.name == kit.server:
        if args.tables:
            raise BadParameter(
                f"synthesize: {kit.name!r} is the server, which has no rows of its own. Leave out "
                f"{args.tables[0]}."
            )
        if not (args.out or args.save) or (args.out and args.rows is None):
            raise BadParameter(
                "synthesize: the server has the generator in the end. Give --out FILE with --rows N for a "
                "synthetic table, or --save FILE."
            )
    elif len(args.tables) != 1 or args.out or args.save:
        raise BadParameter(
            f"synthesize: {kit.name!r} holds rows, so it gives one file, its own, and neither --out nor "
            "--save: those are the server's."
        )


def _holders(paths: list[str]) -> Mapping[str, Any]:
    from ..data.table_files import read_table

    names = [Path(p).name.split(".")[0] for p in paths]
    for name in names:
        if names.count(name) > 1:
            raise BadParameter(
                f"synthesize: two files are called {name!r}, and a holder is named by its file. Rename one "
                "of them."
            )
    return {name: read_table(path) for name, path in zip(names, paths)}
