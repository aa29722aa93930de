"""Options of `tacit synth` that say what is sampled: --share, --fair and --impute."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadParameter, MissingFiles
from ..parameters import refuse
from .verbs import arg

if TYPE_CHECKING:
    from ..synth import Generator, Table

OPTIONS = (
    arg(
        "--share",
        action="append",
        default=[],
        metavar="COLUMN=VALUE:SHARE",
        dest="shares",
        help="this share of the rows has this value, like --share 'income=>50K:0.5'; may be given several "
        "times for values of one column; its other values share the rest",
    ),
    arg(
        "--fair",
        metavar="COLUMN:COLUMN[,…]",
        help="sample the first column independently of the others, like --fair income:sex,race (argn, "
        "dpargn)",
    ),
    arg(
        "--impute",
        metavar="FILE",
        help="fill in the missing values of this table and write it to --out, instead of a synthetic table "
        "(argn, dpargn)",
    ),
)

ParseCondition = Callable[["Table", str], tuple[str, Any]]


def check_sampling(args: argparse.Namespace) -> None:
    """Check the options before anything is read or fitted."""
    refuse(
        (
            bool((args.shares or args.fair or args.impute) and not args.out),
            "synth: --share, --fair and --impute need --out FILE.",
        ),
        (
            bool(args.impute and (args.shares or args.fair or args.conditions or args.rows is not None)),
            "synth: --impute fills in a table; remove --share, --fair, --condition and --rows.",
        ),
    )
    if args.impute and not Path(args.impute).exists():
        raise MissingFiles(
            f"synth: there is no file {args.impute}. Give --impute a table with missing values."
        )


def check_network(args: argparse.Namespace, generator: Generator) -> None:
    """Refuse what only an autoregressive network can do."""
    from ..synth.argn import Autoregressive

    for option, value in (("--fair", args.fair), ("--impute", args.impute)):
        if value and not isinstance(generator, Autoregressive):
            raise BadParameter(
                f"synth: {option} needs a model that predicts any column from the others, and "
                f"{type(generator).__name__} does not. Use --model argn, or dpargn."
            )


def parse_sampling(args: argparse.Namespace, table: Table, parse_condition: ParseCondition) -> dict[str, Any]:
    """Return the arguments of `sample` that the options stand for."""
    out: dict[str, Any] = {}
    for text in args.shares:
        condition, colon, number = text.rpartition(":")
        try:
            share = float(number)
        except ValueError:
            colon = ""
        if not colon or "=" not in condition:
            raise BadParameter(f"synth: --share: expected COLUMN=VALUE:SHARE, got {text}.")
        name, value = parse_condition(table, condition)
        out.setdefault("shares", {}).setdefault(name, {})[value] = share
    if args.fair:
        target, colon, others = args.fair.partition(":")
        if not colon:
            raise BadParameter(f"synth: --fair: expected COLUMN:COLUMN, like income:sex, got {args.fair}.")
        out["fair"] = (target, [c.strip() for c in others.split(",")])
    return out


def check_shares_and_fair(sampling: Mapping[str, Any], table: Table, conditions: Mapping[str, Any]) -> None:
    """Check values, shares and names against the columns, before a fit that may take hours."""
    from ..synth.encode import Conditions, split_by_shares

    if "shares" in sampling:
        for _, values in split_by_shares(table, sampling["shares"], conditions):
            Conditions.parse(table, values)
    if "fair" in sampling:
        target, others = sampling["fair"]
        for name in (target, *others):
            table.column_index(name)


def write_imputed(
    generator: Generator,
    path: str,
    declared: dict[str, list[str]],
    seed: int,
    out: Path,
    reading: Mapping[str, Any],
) -> int:
    """Fill in the missing values of a table; return its number of rows."""
    from ..data.table_files import read_header, read_table, write_table
    from ..synth.argn import Autoregressive

    assert isinstance(generator, Autoregressive)
    filled = generator.impute(read_table(path, declared=declared, **reading), seed)
    text = [c.name for c in generator.table.columns if c.values and all(isinstance(v, str) for v in c.values)]
    header = read_header(path, reading.get("separator"), reading.get("encoding"))
    write_table(iter([filled]), out, header.separator, text)
    return len(filled)
