"""`tacit synth --model privatesequences`: events of entities with an ε for entities."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadData
from ..parameters import check, from_table, refuse
from ..progress import Progress
from .verbs import Answer, answer, parse_columns, reading_of

if TYPE_CHECKING:
    from ..synth import PrivateSequences

PRIVATE_SEQUENCES = "privatesequences"


def is_private_sequences(args: argparse.Namespace) -> bool:
    """Whether the options ask for private sequences, or a saved file has them."""
    if not args.load:
        return bool(args.model.lower() == PRIVATE_SEQUENCES)
    from ..synth.saved_sequences import is_private_sequences_file

    return Path(args.load).is_file() and is_private_sequences_file(args.load)


def synth_private(args: argparse.Namespace) -> Answer:
    """Fit declared columns of events, and write the events of new entities."""
    from ..data.table_files import check_table_name, write_table
    from ..synth import load_private_sequences
    from .synth_options import check_targets

    _check_loaded(args) if args.load else _check(args)
    inputs = [args.load or args.table]
    check_targets("synth", {"out": args.out, "save": args.save}, inputs, "an input", args.force)
    if args.out:
        check_table_name(args.out, "synth: --out ")
    started = time.monotonic()
    with Progress(args.quiet) as progress:
        model = load_private_sequences(args.load) if args.load else _fit(args, progress)
        if args.save:
            model.save(args.save, force=args.force)
        number = 0
        if args.out:
            rows = model.sample(args.rows, args.seed or 0)
            write_table(rows, Path(args.out))
            number = len(rows)
    value = {
        "model": type(model).__name__,
        "entities": args.rows,
        "rows": number,
        "out": args.out,
        "save": args.save,
        "seed": args.seed or 0,
        "ledger": model.ledger.to_dict(),
        "seconds": time.monotonic() - started,
    }
    lines = [
        *model.ledger.stamps,
        *(f"privacy    ε = {s.epsilon:.4g}, δ = {s.delta:g}, {s.unit}" for s in model.ledger.spent),
        *([f"{number:,} rows   {args.out}"] if args.out else []),
        *([f"generator  {args.save}"] if args.save else []),
    ]
    return answer(value, lines)


def _fit(args: argparse.Namespace, progress: Progress) -> PrivateSequences:
    from ..config.job import value_of
    from ..data.table_files import read_table
    from ..synth import PrivateSequences, Table
    from ..synth.columns import complete_kind
    from .synth_options import declared_values, read_columns

    options: dict[str, Any] = {"name": args.model}
    for change in args.changes:
        name, _, text = change.partition("=")
        options[name] = value_of(text)
    model: Any = from_table(options, {"PrivateSequences": PrivateSequences}, "synth")
    if args.insecure_seed is not None:
        model = check(replace(model, insecure_seed=args.insecure_seed))
    frame = read_table(args.table, declared=declared_values(args.columns), **reading_of(args))
    columns, constraints = read_columns(args.columns)
    if constraints:
        raise BadData(f"synth: {args.columns}: constraints are not supported by PrivateSequences.")
    table = Table.declare({n: complete_kind(n, c) for n, c in columns.items() if n != args.entity})
    attributes = parse_columns(args.attributes, "synth: --attributes") if args.attributes else []
    progress.line(f"learning {len(table.columns)} columns")
    model.fit(frame, args.entity, args.time, columns=table, attributes=attributes)
    fitted: PrivateSequences = model
    return fitted


def _check(args: argparse.Namespace) -> None:
    """Check the options before anything is read."""
    refused = {
        "--epochs": args.epochs is not None,
        "--condition": bool(args.conditions),
        "--share": bool(args.shares),
        "--fair": bool(args.fair),
        "--impute": args.impute is not None,
        "--domain-epsilon": args.domain_epsilon is not None,
        "--floor": args.floor is not None,
        "--person": args.person is not None,
        "--protect": args.protect is not None,
        "--release": args.release,
        "--limit": bool(args.limits),
        "--target": args.target is not None,
        "--drop": bool(args.drop),
        "--report": args.report is not None,
        "--holdout": args.holdout is not None,
    }
    wrong = [name for name, is_given in refused.items() if is_given]
    needed = {
        "a table": args.table,
        "--entity": args.entity,
        "--time": args.time,
        "--columns": args.columns,
        "--out or --save": args.out or args.save,
        **({"--rows": args.rows} if args.out else {}),
    }
    several = str(args.table).lower().endswith(".toml")
    missing = [name for name, given in needed.items() if given is None]
    refuse(
        (wrong, f"synth: {', '.join(wrong)} cannot be used with PrivateSequences. Remove it."),
        (
            several,
            f"synth: {args.table} lists several tables; PrivateSequences learns one table of events of one "
            "kind of entity. A second level is not supported with ε. Give the table of events itself.",
        ),
        (
            missing and not several,
            f"synth: PrivateSequences needs {', '.join(missing)}. Columns are declared, and the number of "
            "entities to sample is chosen: the real one is private.",
        ),
        (
            args.rows is not None and args.rows < 1,
            f"synth: --rows is {args.rows}; it must be at least 1.",
        ),
        (
            any("=" not in change for change in args.changes),
            "synth: --set: expected NAME=VALUE.",
        ),
    )


def _check_loaded(args: argparse.Namespace) -> None:
    """Check the options of sampling from a saved model."""
    given = {
        "--save": args.save,
        "--report": args.report,
        "--columns": args.columns,
        "--attributes": args.attributes,
        "--entity": args.entity,
        "--time": args.time,
        "--set": args.changes,
        "--epochs": args.epochs,
        "--condition": args.conditions,
        "--share": args.shares,
        "--fair": args.fair,
        "--impute": args.impute,
        "--domain-epsilon": args.domain_epsilon,
        "--floor": args.floor,
        "--person": args.person,
        "--protect": args.protect,
        "--release": args.release,
        "--limit": args.limits,
        "--target": args.target,
        "--drop": args.drop,
        "--holdout": args.holdout,
        "--insecure-seed": args.insecure_seed,
    }
    wrong = [name for name, value in given.items() if value not in (None, False) and value != []]
    refuse(
        (wrong, f"synth: {', '.join(wrong)} cannot be used with a saved model of sequences. Remove it."),
        (args.table, "synth: give either a table of events or a saved model with --load."),
        (
            args.out is None or args.rows is None,
            "synth: a saved model of sequences needs --out FILE and --rows, the number of entities.",
        ),
        (
            args.rows is not None and args.rows < 1,
            f"synth: --rows is {args.rows}; it must be at least 1.",
        ),
    )
