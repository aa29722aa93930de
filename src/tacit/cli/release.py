"""`tacit synth --release`: attack the synthetic table, and write it only if no limit is exceeded."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..parameters import refuse
from .verbs import arg

if TYPE_CHECKING:
    from pandas import DataFrame

    from ..synth import Generator, SyntheticRelease, Table

RELEASE_OPTIONS = (
    arg(
        "--release",
        action="store_true",
        help="attack the rows before they are written, also with shadow fits; if an attack exceeds its "
        "limit, nothing is written",
    ),
    arg(
        "--limit",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="limits",
        help="with --release: membership (default 0.6), outliers (0.7), singling-out, linkability, inference "
        "(0.09), copies (2), or certain=true to refuse small tables; none: no limit; may be given several "
        "times",
    ),
    arg("--shadows", type=int, default=8, metavar="N", help="with --release: shadow fits (default: 8)"),
)


def check_release_options(args: argparse.Namespace) -> None:
    """Check --release, --limit and --shadows before anything is read."""
    refuse(
        (
            bool(args.limits) and not args.release,
            "synth: --limit needs --release. Add it, or remove --limit.",
        ),
        (
            args.release and (args.conditions or args.shares or args.fair or args.impute),
            "synth: --release attacks a sample of the whole table; remove --condition, --share, --fair and "
            "--impute.",
        ),
    )
    if args.release:
        from ..synth.release import parse_limits
        from ..synth.shadows import check_shadows

        parse_limits(args.limits)
        check_shadows(args.shadows, "synth")


def attack_rows(
    args: argparse.Namespace,
    generator: Generator,
    frame: DataFrame,
    holdout: DataFrame | None,
    table: Table | None,
    rows: int,
    watch: Callable[[dict[str, Any]], None],
    options: dict[str, Any],
) -> SyntheticRelease:
    """Sample the rows to be published and attack them; raise ReleaseRefused if a limit is exceeded."""
    from ..synth.release import SyntheticRelease, attack_release, check_release, parse_limits

    assert holdout is not None  # --release holds rows out
    seed = args.seed or 0
    made = generator.sample(rows, seed=seed)
    evaluation = attack_release(
        generator,
        frame,
        made,
        holdout,
        table,
        target=args.target,
        shadows=args.shadows,
        seed=seed,
        watch=watch,
        **options,
    )
    checks, notes = check_release(evaluation, parse_limits(args.limits))
    return SyntheticRelease(made, generator, evaluation, checks, notes)


def format_release(released: SyntheticRelease) -> list[str]:
    """Return the judged attacks as lines."""
    from ..synth.release import format_checks

    return [*format_checks(released.checks).splitlines(), *(f"! {note}" for note in released.notes)]
