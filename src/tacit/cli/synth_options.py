"""What the options of the commands of synthetic tables mean: checked before anything is read or fitted."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadData, BadParameter, MissingFiles
from ..files import check_new
from ..parameters import check, from_table, nearest, refuse
from .release import check_release_options
from .sampling import (
    check_sampling,
    check_shares_and_fair,
    parse_sampling,
)

if TYPE_CHECKING:
    from pandas import DataFrame

    from ..synth import Generator, Table

COLUMNS = "a TOML file that declares columns (kind, low, high, values, missing, faker) and `constraints`"


def check_options(args: argparse.Namespace) -> None:
    """Check the options before anything is read or fitted."""
    from ..data.table_files import check_table_name

    refuse(
        (
            bool(args.table) == bool(args.load),
            "synth: give either a table to fit (`tacit synth table.csv --out …`) or a saved generator with "
            "--load.",
        ),
        (
            not (args.out or args.save or args.report),
            "synth: there is no output. Give --out FILE for a synthetic table, --save FILE for the "
            "generator, or --report FILE.",
        ),
        (args.rows is not None and args.rows < 1, f"synth: --rows is {args.rows}; it must be at least 1."),
        (
            args.load
            and (
                args.report
                or args.columns
                or args.domain_epsilon is not None
                or args.epochs
                or args.changes
                or args.drop
                or args.holdout
                or args.floor is not None
                or args.person is not None
                or args.protect is not None
                or args.release
                or args.insecure_seed is not None
            ),
            "synth: --load uses a fitted generator; remove --report, --columns, --domain-epsilon, --epochs, "
            "--set, --drop, --holdout, --floor, --person, --protect, --release and --insecure-seed.",
        ),
    )
    check_release_options(args)
    if args.load and not Path(args.load).exists():
        raise MissingFiles(f"synth: there is no file {args.load}. Give --load the file that --save wrote.")
    check_sampling(args)
    if args.load and args.out and args.rows is None and not args.impute:
        raise BadParameter(
            "synth: a saved generator does not contain the number of training rows; give the number of rows "
            "to sample with --rows."
        )
    check_targets(
        "synth",
        {option: getattr(args, option) for option in ("out", "save", "report")},
        [t for t in (args.table, args.impute) if t],
        "the real table itself",
        args.force,
    )
    if args.out:
        check_table_name(args.out, "synth: --out ")
    refuse(
        (
            args.target is not None and not args.report,
            "synth: --target needs --report FILE. Add it, or remove --target.",
        ),
        (
            args.holdout is not None and not 0 < args.holdout < 1,
            f"synth: --holdout is {args.holdout}; it must be above 0 and below 1, like 0.2.",
        ),
    )


def check_targets(
    who: str, targets: Mapping[str, str | None], tables: Sequence[str], whose: str, force: bool
) -> None:
    """Check the output paths, by option.

    Existing files are kept unless `force`; input tables are never overwritten; no two outputs are one file.
    """
    taken: dict[Path, str] = {}
    for option, target in targets.items():
        if not target:
            continue
        file = Path(target).resolve()
        if not file.parent.is_dir():
            raise BadParameter(f"{who}: --{option} {target}: the directory does not exist. Create it first.")
        if not os.access(file.parent, os.W_OK):
            raise BadParameter(
                f"{who}: --{option} {target} cannot be written: permission denied. Choose a writable "
                "location."
            )
        if file in {Path(t).resolve() for t in tables}:
            raise BadParameter(
                f"{who}: --{option} is {whose}, which would be overwritten. Choose another name."
            )
        check_new(target, force)
        one = taken.setdefault(file, option)
        if one != option:
            raise BadParameter(
                f"{who}: --{one} {targets[one]} and --{option} {target} are the same file. Give each its "
                "own name."
            )


def check_private(args: argparse.Namespace, generator: Any) -> None:
    """Check the options that a private model requires."""
    name = type(generator).__name__
    refuse(
        (
            generator.private and args.columns is None,
            f"synth: {name} is private and does not infer domains from the data. Declare every column in a "
            "file, from public knowledge, and give it with --columns: one line each, like "
            'age = {kind = "integer", low = 0, high = 120}. Bounds and categories that are not public may be '
            "left out if --domain-epsilon pays for their estimate.",
        ),
        (
            generator.private and args.out and args.rows is None and not args.impute,
            f"synth: {name} is private, and sampling as many rows as the table has would reveal that number. "
            "Choose a round number with --rows.",
        ),
    )


def check_open(table: Table | None, generator: Any, args: argparse.Namespace) -> list[str]:
    """Return the columns whose domains are estimated privately; refuse them without a part of ε."""
    found = table.open_columns if table is not None and generator.private else []
    if found and generator.domain_epsilon is None:
        raise BadData(
            f"synth: {args.columns} leaves bounds or categories of {', '.join(found)} open. Declare them "
            "from public knowledge, or let a part of ε pay for a private estimate: --domain-epsilon 0.3."
        )
    return found


def check_names(frame: DataFrame, table: Table | None, args: argparse.Namespace) -> None:
    """Check --condition and --target before fitting, which may take hours."""
    names = [str(n) for n in frame.columns]
    if args.target is not None and args.target not in names:
        raise BadParameter(
            f"synth: --target {args.target}: there is no such column. {nearest(args.target, names)}"
        )
    if args.conditions or args.shares or args.fair:
        from ..synth import Table

        known = Table.infer(frame) if table is None else table
        if any(c.is_open for c in known.columns):
            return  # their domains are not known before the fit
        conditions = parse_conditions(known, args.conditions)
        check_shares_and_fair(parse_sampling(args, known, parse_condition), known, conditions)


def parse_conditions(table: Table, texts: list[str]) -> dict[str, Any]:
    """Parse --condition options, and check them against the table."""
    from ..synth.encode import Conditions

    conditions = dict(parse_condition(table, text) for text in texts)
    Conditions.parse(table, conditions)
    return conditions


def declared_values(path: str | None) -> dict[str, list[str]]:
    """The text values of declared categories, which are no missing values even if they are NA or ?."""
    if path is None:
        return {}
    return text_values(read_columns(path)[0])


def text_values(columns: Mapping[str, Any]) -> dict[str, list[str]]:
    """The text values of declared categories, by column."""
    return {
        name: list(c.values)
        for name, c in columns.items()
        if not isinstance(c, str) and c.values and all(isinstance(v, str) for v in c.values)
    }


def make_generator(
    args: argparse.Namespace,
    members: Mapping[str, type[Generator]] | None = None,
    who: str = "synth",
    insecure_seed: int | None = None,
) -> Generator:
    """Build the generator that --model, --set, --epochs and the seeds describe."""
    from ..config.job import value_of
    from ..synth import ALL

    options: dict[str, Any] = {"name": args.model}
    for change in args.changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise BadParameter(f"{who}: --set: expected NAME=VALUE, got {change}.")
        options[name] = value_of(text)
    if args.epochs is not None:
        options["epochs"] = args.epochs
    generator: Any = from_table(options, ALL if members is None else members, who)
    if insecure_seed is not None:
        if not generator.private:
            raise BadParameter(
                f"{who}: --insecure-seed is for private models, and {args.model} is not private. Use --seed."
            )
        return check(replace(generator, insecure_seed=insecure_seed))
    if generator.private or "seed" in options:  # --seed never replaces the secrets of a private model
        return generator
    return check(replace(generator, seed=args.seed or 0))


def declare_table(frame: DataFrame, path: str | None, private: bool) -> Table | None:
    """Return the table as its file of columns declares it; None without one."""
    if path is None:
        return None
    from ..synth import Table
    from ..synth.columns import complete_kind

    columns, constraints = read_columns(path)
    if private:  # nothing may be inferred from the rows; the column names are public
        names = [str(n) for n in frame.columns]
        for name in names:
            if name not in columns:
                raise BadData(
                    f"synth: {path} does not declare the column {name!r}. Declare it, or drop it with "
                    f"--drop {name}."
                )
        complete = {n: complete_kind(n, columns[n]) for n in dict.fromkeys([*names, *columns])}
        return Table.declare(complete, constraints)
    return Table.infer(frame, constraints=constraints, columns=columns)


def read_columns(path: str, who: str = "synth") -> tuple[dict[str, Any], list[Any]]:
    """Read columns and constraints from a TOML file."""
    import tomllib

    from ..synth.columns import column_from_toml
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
        return {name: column_from_toml(name, about) for name, about in tables.items()}, constraints
    except KeyError as error:
        raise BadData(f"{who}: {path}: {error} is missing. It must be {COLUMNS}.") from None
    except (TypeError, ValueError) as error:
        raise BadData(f"{who}: {path}: {str(error).rstrip('.')}. It must be {COLUMNS}.") from None


def parse_condition(table: Table, text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise BadParameter(f"synth: --condition: expected COLUMN=VALUE, got {text}.")
    column = table.modeled[table.column_index(name)]
    if column.is_number:
        low, dots, high = value.partition("..")
        ends = [
            end if column.kind == "datetime" else parse_number(name, end)
            for end in ((low, high) if dots else (value,))
        ]
        return name, tuple(ends) if dots else ends[0]
    match = [v for v in column.values if str(v) == value]
    return name, match[0] if match else value


def parse_number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadParameter(
            f"synth: --condition {name}={text}: {name} is numeric; give a number, or LOW..HIGH."
        ) from None
