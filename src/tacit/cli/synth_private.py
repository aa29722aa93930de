"""`tacit synth --model privatesequences`: events of entities with an ε for entities."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import BadData
from ..parameters import check, from_table, refuse
from ..progress import Progress
from .verbs import Answer, answer, parse_columns

PRIVATE_SEQUENCES = "privatesequences"


def synth_private(args: argparse.Namespace) -> Answer:
    """Fit declared columns of events, and write the events of new entities."""
    from ..config.job import value_of
    from ..data.table_files import check_table_name, read_table, write_table
    from ..synth import PrivateSequences, Table
    from ..synth.columns import complete_kind
    from .synth import _declared_values, check_targets, read_columns

    _check(args)
    check_targets("synth", {"out": args.out}, [args.table], "the real table itself", args.force)
    check_table_name(args.out, "synth: --out ")
    options: dict[str, Any] = {"name": args.model}
    for change in args.changes:
        name, _, text = change.partition("=")
        options[name] = value_of(text)
    model: Any = from_table(options, {"PrivateSequences": PrivateSequences}, "synth")
    if args.insecure_seed is not None:
        model = check(replace(model, insecure_seed=args.insecure_seed))
    started = time.monotonic()
    with Progress(args.quiet) as progress:
        frame = read_table(args.table, declared=_declared_values(args.columns))
        columns, constraints = read_columns(args.columns)
        if constraints:
            raise BadData(f"synth: {args.columns}: constraints are not supported by PrivateSequences.")
        table = Table.declare({n: complete_kind(n, c) for n, c in columns.items() if n != args.entity})
        attributes = parse_columns(args.attributes, "synth: --attributes") if args.attributes else []
        progress.line(f"learning {len(table.columns)} columns")
        model.fit(frame, args.entity, args.time, columns=table, attributes=attributes)
        rows = model.sample(args.rows, args.seed or 0)
        write_table(rows, Path(args.out))
    value = {
        "model": type(model).__name__,
        "entities": args.rows,
        "rows": len(rows),
        "out": args.out,
        "seed": args.seed or 0,
        "ledger": model.ledger.to_dict(),
        "seconds": time.monotonic() - started,
    }
    lines = [
        *model.ledger.stamps,
        *(f"privacy    ε = {s.epsilon:.4g}, δ = {s.delta:g}, {s.unit}" for s in model.ledger.spent),
        f"{len(rows):,} rows   {args.out}",
    ]
    return answer(value, lines)


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
        "--save": args.save is not None,
    }
    wrong = [name for name, is_given in refused.items() if is_given]
    needed = {
        "a table": args.table,
        "--entity": args.entity,
        "--time": args.time,
        "--columns": args.columns,
        "--rows": args.rows,
        "--out": args.out,
    }
    missing = [name for name, given in needed.items() if given is None]
    refuse(
        (wrong, f"synth: {', '.join(wrong)} cannot be used with PrivateSequences. Remove it."),
        (
            missing,
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
