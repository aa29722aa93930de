"""`tacit synth`: a synthetic table from a real one, or from a generator that was saved."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadData, BadParameter, MissingFiles
from ..files import check_new
from ..parameters import check, from_table, nearest
from ..progress import Progress

if TYPE_CHECKING:
    from pandas import DataFrame

    from ..synth import Fitted, Table

# of the rows are kept from the generator when a report is asked for: without them copying looks like quality
HOLDOUT = 0.2
COLUMNS = (
    "a TOML file: a table for each column you know better (kind, low, high, values, missing, faker), "
    "and `constraints`"
)


def add(verb: Callable[..., Any]) -> None:
    made = verb(
        "synth",
        _synth,
        "Learn a generator from a table and draw a synthetic one.",
        epilog="Any parameter of the generator may be given with --set, like --set leaf=20. A report keeps "
        "a part of the rows from the generator.",
    )
    made.add_argument("table", nargs="?", help="a .csv or .parquet file; not needed with --load")
    made.add_argument(
        "--model",
        default="cart",
        help="cart (default), gaussiancopula, bayes, independent, ctgan, tvae, wgan, gan or tabddpm; "
        "private, with --columns and --rows: mst, aim, pategan, dpctgan or dpgan; case does not matter",
    )
    made.add_argument("--epochs", type=int, help="short for --set epochs=N, for models that have epochs")
    made.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="changes",
        help="a parameter of the model; may be given several times",
    )
    made.add_argument("--columns", metavar="FILE", help=COLUMNS)
    made.add_argument(
        "--drop",
        action="append",
        default=[],
        metavar="COLUMN",
        help="leave this column out; may be given several times",
    )
    made.add_argument(
        "--rows",
        type=int,
        metavar="N",
        help="rows to draw (default: as many as the generator learnt from; a private model must be told)",
    )
    made.add_argument(
        "--given",
        action="append",
        default=[],
        metavar="COLUMN=VALUE",
        help="only such rows; for a number also COLUMN=LOW..HIGH",
    )
    made.add_argument(
        "--seed",
        type=int,
        help="of fitting and of drawing (default: 0; a private model fits with secrets of the operating "
        "system)",
    )
    made.add_argument("--out", metavar="FILE", help="the synthetic table, .csv or .parquet")
    made.add_argument("--save", metavar="FILE", help="keep the generator, to draw from it later")
    made.add_argument("--load", metavar="FILE", help="draw from a generator that was kept")
    made.add_argument(
        "--report", metavar="FILE", help="write what the table is good for and what it gives away, as HTML"
    )
    made.add_argument(
        "--target", metavar="COLUMN", help="for the report: the column that models are trained to predict"
    )
    made.add_argument(
        "--holdout",
        type=float,
        metavar="SHARE",
        help=f"of the rows, kept from the generator for the report (default: {HOLDOUT} with --report)",
    )
    made.add_argument("--force", action="store_true", help="write over files that are there")
    made.add_argument("--quiet", action="store_true", help="no progress and no summary")


def _synth(args: argparse.Namespace) -> tuple[Any, Callable[[Any], None]]:
    from ..data.table_files import read_table

    _check(args)
    began, seed = time.monotonic(), args.seed or 0
    frame = holdout = None
    with Progress(args.quiet) as progress:
        if args.load:
            from ..synth import load

            fitted, rows = load(args.load), args.rows
        else:
            generator = model_of(args)
            _private(args, generator)
            frame, holdout = _parts(read_table(args.table).drop(columns=_known(args)), args)
            rows = args.rows or len(frame)
            table = _table(frame, args.columns, generator.private)
            _fits(frame, table, args)
            fitted = generator.fit(frame, table, watch=show_event(progress))
            fit_seconds = time.monotonic() - began
        given = wanted(fitted.table, args.given)
        if args.save:
            fitted.save(args.save)
        if args.out:
            write(fitted, rows, given, seed, Path(args.out), progress)
    name = type(fitted.generator).__name__
    value: dict[str, Any] = {
        "model": name,
        "rows": rows if args.out else 0,
        "out": args.out,
        "save": args.save,
        "report": args.report,
        "seed": seed,
        "ledger": fitted.ledger.to_dict(),
        "history": fitted.history,
        "seconds": time.monotonic() - began,
    }
    lines = [
        *fitted.ledger.stamps,
        *(f"privacy    ε = {s.epsilon:.4g}, δ = {s.delta:g}, {s.unit}" for s in fitted.ledger.spent),
        *([f"{rows:,} rows   {args.out}"] if args.out else []),
        *([f"generator  {args.save}"] if args.save else []),
    ]
    if not args.load:
        value["fit_seconds"] = fit_seconds
        if (
            not fitted.generator.private
        ):  # how many rows there are is a fact about them that ε did not pay for
            value["trained_on"] = len(frame)  # type: ignore[arg-type]
    if args.report:
        from ..synth.evaluate import evaluate

        assert frame is not None
        scores = evaluate(
            frame,
            fitted.sample(len(frame), seed=seed),
            holdout,
            args.target,
            table=fitted.table,
            name=name,
            seed=seed,
        )
        scores.report(args.report)
        value |= {"scores": {s.name: s.value for s in scores.scores}, "warnings": scores.warnings}
        lines += [str(scores), f"report     {args.report}"]
    return value, lambda console: console.print(
        "\n".join(lines), highlight=False, markup=False, soft_wrap=True
    )


def _check(args: argparse.Namespace) -> None:
    """What can be wrong is said before anything is read or learnt."""
    if bool(args.table) == bool(args.load):
        raise BadParameter(
            "synth: give either a table to learn from (`tacit synth table.csv --out …`) or a generator with "
            "--load, not both and not neither."
        )
    if not (args.out or args.save or args.report):
        raise BadParameter(
            "synth: nothing is asked for. Give --out FILE for a synthetic table, --save FILE for the "
            "generator, or --report FILE."
        )
    if args.rows is not None and args.rows < 1:
        raise BadParameter(f"synth: --rows is {args.rows}; it must be at least 1.")
    if args.load and (
        args.report or args.columns or args.epochs or args.changes or args.drop or args.holdout
    ):
        raise BadParameter(
            "synth: with --load the generator is what it is; leave out --report, --columns, --epochs, "
            "--set, --drop and --holdout."
        )
    if args.load and not Path(args.load).exists():
        raise MissingFiles(f"synth: there is no file {args.load}. Give --load the file that --save wrote.")
    if args.load and args.out and args.rows is None:
        raise BadParameter(
            "synth: a loaded generator does not know how many rows it learnt from; say how many to draw "
            "with --rows."
        )
    check_targets(
        "synth",
        {option: getattr(args, option) for option in ("out", "save", "report")},
        [args.table] if args.table else [],
        "the real table itself",
        args.force,
    )
    if args.out and ending(args.out) is None:
        raise BadParameter(
            f"synth: --out {args.out} ends in neither .csv, .csv.gz nor .parquet; its ending says what to "
            "write."
        )
    if args.target is not None and not args.report:
        raise BadParameter("synth: --target is for the report. Give --report FILE, too, or leave it out.")
    if args.holdout is not None and not 0 < args.holdout < 1:
        raise BadParameter(f"synth: --holdout is {args.holdout}; it must be above 0 and below 1, like 0.2.")


def check_targets(
    who: str, targets: Mapping[str, str | None], tables: Sequence[str], whose: str, force: bool
) -> None:
    """Places to write to, by option. No file is written over unless asked for, no table that is read at all,
    and none of these over another.
    """
    taken: dict[Path, str] = {}
    for option, target in targets.items():
        if not target:
            continue
        file = Path(target).resolve()
        if not file.parent.is_dir():
            raise BadParameter(f"{who}: --{option} {target}: there is no such folder. Make it first.")
        if not os.access(file.parent, os.W_OK):
            raise BadParameter(
                f"{who}: --{option} {target} cannot be written: permission denied. Choose a place you may "
                "write to."
            )
        if file in {Path(t).resolve() for t in tables}:
            raise BadParameter(f"{who}: --{option} is {whose}, which would be lost. Choose another name.")
        check_new(target, force)
        one = taken.setdefault(file, option)
        if one != option:
            raise BadParameter(
                f"{who}: --{one} {targets[one]} and --{option} {target} are the same file. Give each its "
                "own name."
            )


def _private(args: argparse.Namespace, generator: Any) -> None:
    """A private model needs what only its user can say, and on the command line it is said by options."""
    name = type(generator).__name__
    if generator.private and args.columns is None:
        raise BadParameter(
            f"synth: {name} is private and reads no domain off the data. Declare every column in a file and "
            "give it with --columns: "
            'a line each, like age = {kind = "integer", low = 0, high = 120}, from what is publicly known.'
        )
    if generator.private and args.out and args.rows is None:
        raise BadParameter(
            f"synth: {name} is private, and as many rows as the table has would give away how many that is. "
            "Ask for a round number with --rows."
        )


def _fits(frame: DataFrame, table: Table | None, args: argparse.Namespace) -> None:
    """A slip in --given or --target is told before the generator learns, which may take hours."""
    names = [str(n) for n in frame.columns]
    if args.target is not None and args.target not in names:
        raise BadParameter(
            f"synth: --target {args.target}: there is no such column. {nearest(args.target, names)}"
        )
    if args.given:
        from ..synth import Table

        wanted(Table.infer(frame) if table is None else table, args.given)


def wanted(table: Table, given: list[str]) -> dict[str, Any]:
    """What --given asks for, if the table can have it."""
    from ..synth.conditions import Conditions

    told = dict(condition(table, text) for text in given)
    Conditions.of(table, told)
    return told


def ending(path: str) -> str | None:
    name = path.lower()
    return (
        "csv"
        if name.endswith((".csv", ".csv.gz"))
        else "parquet"
        if name.endswith((".parquet", ".pq"))
        else None
    )


def _known(args: argparse.Namespace) -> list[str]:
    from ..data.table_files import read_header

    names = list(read_header(args.table).names) if args.drop else []
    for name in args.drop:
        if name not in names:
            raise BadParameter(f"synth: --drop {name}: there is no such column. {nearest(name, names)}")
    return list(args.drop)


def _parts(frame: DataFrame, args: argparse.Namespace) -> tuple[DataFrame, DataFrame | None]:
    share = args.holdout if args.holdout is not None else HOLDOUT if args.report else None
    if share is None:
        return frame, None
    mixed = frame.sample(frac=1, random_state=args.seed or 0)
    held = round(share * len(frame))
    if not 2 <= held <= len(frame) - 2:
        raise BadParameter(
            f"synth: {share:g} of {len(frame)} rows leaves too few to learn from or to hold out. "
            "Give more rows, or no --report and no --holdout."
        )
    return mixed.iloc[held:].reset_index(drop=True), mixed.iloc[:held].reset_index(drop=True)


def model_of(args: argparse.Namespace, among: Mapping[str, Any] | None = None) -> Any:
    from ..config.job import value_of
    from ..synth import ALL

    told: dict[str, Any] = {"name": args.model}
    for change in args.changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise BadParameter(f"synth: --set {change} is no NAME=VALUE.")
        told[name] = value_of(text)
    if args.epochs is not None:
        told["epochs"] = args.epochs
    made = from_table(told, ALL if among is None else among, "synth" if among is None else "synthesize")
    if "seed" in told or (
        args.seed is None and made.private
    ):  # a private model whose seed is known is none: only who asks for one gets it
        return made
    return check(replace(made, seed=args.seed or 0))


def _table(frame: DataFrame, path: str | None, private: bool) -> Table | None:
    if path is None:
        return None
    from ..synth import Column, Table, boolean, identifier

    columns, constraints = told(path)
    if (
        private
    ):  # nothing of what a column is may be read off the rows, and which columns there are is no secret
        names = [str(n) for n in frame.columns]
        for name in names:
            if name not in columns:
                raise BadData(
                    f"synth: {path} does not say what the column {name!r} is. Declare it, or leave it out "
                    f"with --drop {name}."
                )
        alone = {"id": identifier(), "boolean": boolean()}  # kinds that a word declares
        return Table.declare(
            {
                n: alone.get(c) or Column(c) if isinstance(c := columns[n], str) else c
                for n in dict.fromkeys([*names, *columns])
            },
            constraints,
        )
    return Table.infer(frame, constraints=constraints, columns=columns)


def told(path: str, who: str = "synth") -> tuple[dict[str, Any], list[Any]]:
    """The columns and the constraints of a TOML file."""
    import tomllib

    from ..synth.columns import declared_from
    from ..synth.constraints import from_dict

    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingFiles(f"{who}: there is no file {path}.") from None
    except (OSError, ValueError) as error:
        raise BadData(f"{who}: {path} cannot be read: {error}. It must be {COLUMNS}.") from None
    try:
        constraints = [
            from_dict({"low": None, "high": None, "strictly": False, "allowed": None, **c})
            for c in tables.pop("constraints", [])
        ]
        return {name: declared_from(name, about) for name, about in tables.items()}, constraints
    except KeyError as error:
        raise BadData(f"{who}: {path}: {error} is missing. It must be {COLUMNS}.") from None
    except (TypeError, ValueError) as error:
        raise BadData(f"{who}: {path}: {str(error).rstrip('.')}. It must be {COLUMNS}.") from None


def condition(table: Table, text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise BadParameter(f"synth: --given {text} is no COLUMN=VALUE.")
    column = table.modelled[table.at(name)]
    if column.is_number:
        low, dots, high = value.partition("..")
        ends = [
            end if column.kind == "datetime" else _number(name, end)
            for end in ((low, high) if dots else (value,))
        ]
        return name, tuple(ends) if dots else ends[0]
    match = [v for v in column.values if str(v) == value]
    return name, match[0] if match else value


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadParameter(
            f"synth: --given {name}={text}: {name} is a number; give one, or LOW..HIGH."
        ) from None


def write(
    fitted: Fitted, rows: int, given: dict[str, Any], seed: int, path: Path, progress: Progress
) -> None:
    """Draw the rows and write them, a chunk at a time."""
    from ..data.table_files import write_table

    def chunks() -> Iterator[DataFrame]:
        done = 0
        for chunk in fitted.chunks(rows, given, seed):
            yield chunk
            done += len(chunk)
            progress.share(f"{done:,} of {rows:,} rows written", done / rows)

    text = [
        c.name
        for c in fitted.table.columns
        if c.values and all(isinstance(v, str) for v in c.values) and c.dtype != "category"
    ]
    write_table(chunks(), path, text_columns=text)


def show_event(progress: Progress) -> Callable[[dict[str, Any]], None]:
    """A function for a generator's `watch` that shows its events."""

    def show(event: dict[str, Any]) -> None:
        if event["kind"] == "epoch":
            losses = "  ".join(
                f"{k.replace('_', ' ')} {event[k]:.3f}"
                for k in ("loss", "maker_loss", "critic_loss")
                if k in event
            )
            progress.share(
                f"epoch {event['epoch']}/{event['epochs']}  {losses}", event["epoch"] / event["epochs"]
            )
        elif event["kind"] == "round":
            progress.share(
                f"round {event['round'] + 1}/{event['rounds']}  {event['holders']} holders",
                (event["round"] + 1) / event["rounds"],
            )
        elif event["kind"] == "guard":
            progress.line(
                f"leaves of {event['leaf']} rows: {event['copies']:.1%} of rows are copies, "
                f"{event['natural']:.1%} would be natural"
            )

    return show
