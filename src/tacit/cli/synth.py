"""`tacit synth`: sample a synthetic table from a real one, or from a saved generator."""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadParameter
from ..parameters import check, nearest
from ..progress import Progress
from .release import RELEASE_OPTIONS, attack_rows, format_release
from .sampling import (
    OPTIONS,
    check_network,
    parse_sampling,
    write_imputed,
)
from .synth_options import (
    COLUMNS,
    check_names,
    check_open,
    check_options,
    check_private,
    declare_table,
    declared_values,
    make_generator,
    parse_condition,
    parse_conditions,
)
from .verbs import (
    DROP,
    FORCE,
    PARAMETER,
    QUIET,
    READING,
    Answer,
    answer,
    arg,
    parse_columns,
    reading_of,
)

if TYPE_CHECKING:
    from pandas import DataFrame

    from ..synth import Evaluation, Generator, SyntheticRelease

# share of the rows held out for a report: without held-out rows, copying looks like quality
HOLDOUT = 0.2


def add(verb: Callable[..., Any]) -> None:
    verb(
        "synth",
        _synth,
        "Fit a generator to a table and sample a synthetic table.",
        arg(
            "table",
            nargs="?",
            help="a .csv or .parquet file, or a .toml file that names several tables and their keys; not "
            "needed with --load",
        ),
        arg(
            "--model",
            default="cart",
            help="cart (default), argn, gaussiancopula, bayes, independent, ctgan, tvae, wgan, gan or "
            "tabddpm; private, with --columns and --rows: mst, aim, dpargn, pategan, dpctgan or dpgan, and "
            "for events privatesequences; case does not matter",
        ),
        arg("--epochs", type=int, help="short for --set epochs=N, for models that have epochs"),
        PARAMETER,
        arg("--columns", metavar="FILE", help=COLUMNS),
        arg(
            "--domain-epsilon",
            type=float,
            metavar="E",
            help="part of a private model's ε that pays for bounds and categories that --columns leaves "
            'open (job = "categorical"); without it they must be declared',
        ),
        DROP,
        arg(
            "--floor",
            type=int,
            metavar="N",
            help="values that fewer than N rows share are not published: rare categories are replaced, "
            "extreme numbers are drawn anew (default: 10; 1 publishes every value)",
        ),
        arg(
            "--protect",
            choices=["outliers"],
            help="outliers: rows with rare combinations, or far from all others, are generalized or left out",
        ),
        arg(
            "--person",
            metavar="COLUMN",
            help="the column that tells whose a row is, if people have several rows: it is not learned, "
            "people are counted and held out, and the ε of a private model is for people",
        ),
        arg(
            "--entity",
            metavar="COLUMN",
            help="for a table of events: the column that tells whose an event is; sequences are sampled",
        ),
        arg(
            "--time", metavar="COLUMN", help="for a table of events: when each event was, a date or a number"
        ),
        arg(
            "--attributes",
            metavar="COLUMNS",
            help="for --model privatesequences: columns that do not change within an entity, by commas",
        ),
        arg(
            "--rows",
            type=int,
            metavar="N",
            help="rows to sample, with events and linked tables entities (default: as many as the generator "
            "was fitted to; required for a private model)",
        ),
        arg(
            "--condition",
            action="append",
            default=[],
            metavar="COLUMN=VALUE",
            dest="conditions",
            help="sample only such rows; for a number also COLUMN=LOW..HIGH; may be given several times",
        ),
        *OPTIONS,
        arg(
            "--seed",
            type=int,
            help="random seed of the fit and of sampling (default: 0; of sampling only for a private model)",
        ),
        arg(
            "--insecure-seed",
            type=int,
            metavar="N",
            help="for tests only: makes the noise of a private model replayable; the result is stamped NOT "
            "PRIVATE",
        ),
        arg(
            "--out",
            metavar="FILE",
            help="the synthetic table, .csv or .parquet; with several tables a directory",
        ),
        arg("--save", metavar="FILE", help="save the fitted generator, to sample from it later"),
        arg("--load", metavar="FILE", help="sample from a saved generator"),
        arg("--report", metavar="FILE", help="evaluate utility and privacy, and write an HTML report"),
        arg(
            "--target", metavar="COLUMN", help="for the report: the column that models are trained to predict"
        ),
        arg(
            "--holdout",
            type=float,
            metavar="SHARE",
            help=f"share of the rows held out for the report (default: {HOLDOUT} with --report)",
        ),
        *RELEASE_OPTIONS,
        *READING,
        FORCE,
        QUIET,
        epilog="Any parameter of the generator can be set with --set, like --set leaf=20. A report holds out "
        "part of the rows.",
    )


def _synth(args: argparse.Namespace) -> Answer:
    from ..data.table_files import read_table
    from ..synth import IdentifierWarning, Table, describe
    from ..synth.protect import FLOOR
    from .synth_linked import is_linked, synth_linked
    from .synth_private import is_private_sequences, synth_private

    if is_private_sequences(args):
        return synth_private(args)
    if args.attributes is not None:
        raise BadParameter(
            "synth: --attributes is for --model privatesequences; other models find out which columns do not "
            "change. Remove it."
        )
    if is_linked(args):
        return synth_linked(args)
    check_options(args)
    started, seed = time.monotonic(), args.seed or 0
    frame = holdout = None
    estimated: list[str] = []
    released: SyntheticRelease | None = None
    with Progress(args.quiet) as progress:
        if args.load:
            from ..synth import load

            generator, rows = load(args.load), args.rows
            check_network(args, generator)
        else:
            generator = make_generator(args, insecure_seed=args.insecure_seed)
            if args.domain_epsilon is not None:
                generator = with_domain_epsilon(generator, args.domain_epsilon)
            check_private(args, generator)
            check_network(args, generator)
            read = read_table(args.table, declared=declared_values(args.columns), **reading_of(args))
            frame, holdout = _split_holdout(read.drop(columns=_columns_to_drop(args)), args)
            rows = args.rows or len(frame)
            learned = frame.drop(columns=args.person) if args.person else frame
            table = declare_table(learned, args.columns, generator.private)
            estimated = check_open(table, generator, args)
            check_names(learned, table, args)
            if not generator.private:
                reading = describe(learned, table or Table.infer(learned), args.floor or FLOOR)
                for line in _format_reading(reading):
                    progress.line(line)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", IdentifierWarning)  # it is in the table of columns
                generator.fit(frame, table, watch=show_event(progress), **_fit_options(args))
            fit_seconds = time.monotonic() - started
            if args.release:  # raises before anything is written
                released = attack_rows(
                    args, generator, frame, holdout, table, rows, show_event(progress), _fit_options(args)
                )
        conditions = parse_conditions(generator.table, args.conditions)
        sampling = parse_sampling(args, generator.table, parse_condition)
        if args.save:
            generator.save(args.save, force=args.force)
        if released is not None:
            if args.out:
                write_rows([released.table], generator, Path(args.out))
        elif args.impute:
            values = {
                c.name: list(c.values)
                for c in generator.table.columns
                if c.values and all(isinstance(v, str) for v in c.values)
            }
            rows = write_imputed(generator, args.impute, values, seed, Path(args.out), reading_of(args))
        elif args.out:
            write(generator, rows, conditions, seed, Path(args.out), progress, sampling)
    name = type(generator).__name__
    value: dict[str, Any] = {
        "model": name,
        "rows": rows if args.out else 0,
        "out": args.out,
        "save": args.save,
        "report": args.report,
        "seed": seed,
        "ledger": generator.ledger.to_dict(),
        "history": generator.history,
        "protection": generator.protection.to_dict(),
        "seconds": time.monotonic() - started,
    }
    lines = [
        *generator.ledger.stamps,
        *(f"privacy    ε = {s.epsilon:.4g}, δ = {s.delta:g}, {s.unit}" for s in generator.ledger.spent),
        *describe_domains(generator, estimated),
        *describe_protection(generator),
        *([f"{rows:,} rows   {args.out}"] if args.out else []),
        *([f"generator  {args.save}"] if args.save else []),
    ]
    if not args.load:
        value["fit_seconds"] = fit_seconds
        if not generator.private:  # the number of rows is private, and ε does not cover it
            value["trained_on"] = len(frame)  # type: ignore[arg-type]
    if released is not None:
        value |= {"checks": released.to_dict()["checks"], "notes": released.notes}
        lines += format_release(released)
    if args.report:
        assert frame is not None
        scores = released.evaluation if released is not None else _evaluate(args, generator, frame, holdout)
        scores.report(args.report)
        value |= {"scores": {s.name: s.value for s in scores.scores}, "warnings": scores.warnings}
        lines += [str(scores), f"report     {args.report}"]
    return answer(value, lines)


def _fit_options(args: argparse.Namespace) -> dict[str, Any]:
    return {"floor": args.floor, "person": args.person, "protect": args.protect}


def _evaluate(
    args: argparse.Namespace, generator: Generator, frame: DataFrame, holdout: DataFrame | None
) -> Evaluation:
    from ..synth.evaluate import evaluate

    seed = args.seed or 0
    return evaluate(
        frame,
        generator.sample(len(frame), seed=seed),
        holdout,
        args.target,
        table=generator.table,
        name=type(generator).__name__,
        seed=seed,
        person=args.person,
    )


def describe_domains(generator: Generator, estimated: Sequence[str]) -> list[str]:
    """Say which domains were estimated privately."""
    from ..synth.domains import write_domain

    return [f"domain     {c.name}: {write_domain(c)}" for c in generator.table.columns if c.name in estimated]


def with_domain_epsilon(generator: Any, part: float) -> Any:
    """Let a part of a private generator's ε pay for domains."""
    if not generator.private:
        raise BadParameter(
            f"synth: --domain-epsilon is for private models, and {type(generator).__name__} is not private. "
            "Remove it, or choose --model mst."
        )
    return check(replace(generator, domain_epsilon=part))


def describe_protection(generator: Generator) -> list[str]:
    """Say which columns had values that too few rows share."""
    protection = generator.protection
    if protection.floor <= 1:
        return [] if generator.private else ["protection none: values of single rows are published (floor=1)"]
    changed = ", ".join(f"{name} ({n} rows)" for name, n in protection.replaced.items()) or "none"
    found = protection.outliers
    moved = (
        [f"outliers   {found['generalized']} rows generalized, {found['left out']} left out"] if found else []
    )
    return [f"protection values of fewer than {protection.floor} rows replaced: {changed}", *moved]


def _columns_to_drop(args: argparse.Namespace) -> list[str]:
    from ..data.table_files import read_header

    names = list(read_header(args.table, args.separator, args.encoding).names) if args.drop else []
    # the whole text may be the name of one column that contains a comma
    dropped = [c for t in args.drop for c in ([t] if t in names else parse_columns(t, "synth: --drop"))]
    for name in dropped:
        if name not in names:
            raise BadParameter(f"synth: --drop {name}: there is no such column. {nearest(name, names)}")
    return dropped


def _split_holdout(frame: DataFrame, args: argparse.Namespace) -> tuple[DataFrame, DataFrame | None]:
    share = args.holdout if args.holdout is not None else HOLDOUT if args.report or args.release else None
    if share is None:
        return frame, None
    if args.person:
        return _split_people(frame, share, args)
    shuffled = frame.sample(frac=1, random_state=args.seed or 0)
    held_out = round(share * len(frame))
    if not 2 <= held_out <= len(frame) - 2:
        raise BadParameter(
            f"synth: holding out {share:g} of {len(frame)} rows leaves too few on one side. Give more rows, "
            "or remove --report, --release and --holdout."
        )
    return shuffled.iloc[held_out:].reset_index(drop=True), shuffled.iloc[:held_out].reset_index(drop=True)


def _split_people(frame: DataFrame, share: float, args: argparse.Namespace) -> tuple[DataFrame, DataFrame]:
    """Hold out people with all of their rows."""
    import numpy as np

    from ..people import encode_person

    people = encode_person(frame, args.person, [], "synth")
    order = np.random.default_rng(args.seed or 0).permutation(int(people.max()) + 1)
    held_out = np.isin(people, order[: round(share * len(order))])
    if not 2 <= held_out.sum() <= len(frame) - 2:
        raise BadParameter(
            f"synth: holding out {share:g} of {len(order)} people leaves too few rows on one side. Give more "
            "rows, or remove --report, --release and --holdout."
        )
    return frame[~held_out].reset_index(drop=True), frame[held_out].reset_index(drop=True)


def _format_reading(reading: DataFrame) -> list[str]:
    """The table of columns, as lines."""
    shown = reading.reset_index()
    shown["missing"], shown["rare"] = (
        shown[c].map(lambda n: f"{n:,}" if n else "") for c in ("missing", "rare")
    )
    return ["how each column was read:", *shown.to_string(index=False).splitlines()]


def write(
    generator: Generator,
    rows: int,
    conditions: dict[str, Any],
    seed: int,
    path: Path,
    progress: Progress,
    sampling: Mapping[str, Any] | None = None,
) -> None:
    """Sample the rows and write them chunk by chunk; `sampling` are further arguments of `sample`."""

    def chunks() -> Iterator[DataFrame]:
        done = 0
        for chunk in generator.chunks(rows, conditions, seed, **(sampling or {})):
            yield chunk
            done += len(chunk)
            progress.share(f"{done:,} of {rows:,} rows written", done / rows)

    write_rows(chunks(), generator, path)


def write_rows(chunks: Iterable[DataFrame], generator: Generator, path: Path) -> None:
    """Write sampled rows; text stays text."""
    from ..data.table_files import write_table

    text = [
        c.name
        for c in generator.table.columns
        if c.values and all(isinstance(v, str) for v in c.values) and c.dtype != "category"
    ]
    write_table(chunks, path, text_columns=text)


def show_event(progress: Progress) -> Callable[[dict[str, Any]], None]:
    """Return a `watch` function that shows a generator's events."""

    def show(event: dict[str, Any]) -> None:
        if event["kind"] == "epoch":
            losses = "  ".join(
                f"{k.replace('_', ' ')} {event[k]:.3f}"
                for k in ("loss", "held_out", "generator_loss", "critic_loss")
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
        elif event["kind"] == "shadow":
            progress.share(
                f"shadow fit {event['shadow']}/{event['shadows']}", event["shadow"] / event["shadows"]
            )
        elif event["kind"] == "guard":
            progress.line(
                f"leaves of {event['leaf']} rows: {event['copies']:.1%} copies, natural rate "
                f"{event['natural']:.1%}"
            )

    return show
