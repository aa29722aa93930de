"""`tacit anonymize` and `tacit risk`: anonymize a table for publication, and measure its risk."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadData, BadParameter, MissingFiles
from ..progress import Progress
from .anonymize_files import HISTORY, find_hierarchies, history_file, report_file
from .risk import format_warnings, measure_risk, risk_to_dict
from .verbs import DROP, FORCE, QUIET, READING, Answer, arg, parse_columns, reading_of

if TYPE_CHECKING:
    from pandas import DataFrame

    from ..anonymity.masking import MaskedText
    from ..anonymity.result import AnonymizationResult
    from ..anonymity.spatial import SpatialCells


_SHARED = (
    arg(
        "--quasi",
        metavar="COLUMNS",
        required=True,
        help="quasi-identifiers: columns that attackers may know, like age,zip,sex",
    ),
    arg(
        "--sensitive",
        metavar="COLUMNS",
        help="sensitive columns: what attackers must not learn, like diagnosis",
    ),
    arg(
        "--hierarchies",
        metavar="DIR",
        help="a directory with COLUMN.csv or COLUMN.toml (or ARX's NAME_hierarchy_COLUMN.csv)",
    ),
    arg(
        "--target",
        metavar="COLUMN",
        help="compare how well this column is predicted by models trained on anonymized and on original rows",
    ),
    arg(
        "--person",
        metavar="COLUMN",
        help="the column that tells whose a row is, if people have several rows: people are counted, not "
        "rows, and the column is not published",
    ),
    arg("--report", metavar="FILE", help="also write an HTML report"),
    *READING,
    FORCE,
    QUIET,
)


def add(verb: Callable[..., argparse.ArgumentParser]) -> None:
    verb(
        "anonymize",
        _anonymize,
        "Anonymize a table, and report the information loss and the remaining risk.",
        arg("table", help="a .csv file with a header (or .csv.gz), or a .parquet file; it is never changed"),
        *_SHARED,
        arg(
            "--out",
            metavar="FILE",
            required=True,
            help="output file for the anonymized table: .csv, .csv.gz or .parquet",
        ),
        arg("--k", type=int, default=5, help="minimum number of rows in a class (default: 5)"),
        arg("--l", type=float, help="minimum number of different sensitive values in a class"),
        arg(
            "--t",
            type=float,
            help="maximum distance of a class's sensitive values from the whole table's, from 0 to 1",
        ),
        arg(
            "--max-average-risk",
            type=float,
            metavar="FRACTION",
            help="maximum average probability of re-identifying the person of a published row",
        ),
        arg(
            "--max-uniques",
            type=float,
            metavar="FRACTION",
            help="maximum fraction of the population that is unique; needs --population-size",
        ),
        arg(
            "--population-size",
            type=int,
            metavar="N",
            help="number of people the table is a random sample of, for --max-average-risk and --max-uniques",
        ),
        arg(
            "--epsilon",
            type=float,
            help="publish a generalized sample under differential privacy; with --method private (or fixed "
            "and --levels)",
        ),
        arg("--delta", type=float, default=1e-6, help="δ of --epsilon (default: 1e-6)"),
        arg(
            "--search-epsilon",
            type=float,
            default=0.5,
            help="ε spent on choosing levels, in addition to --epsilon (default: 0.5)",
        ),
        arg(
            "--levels",
            metavar="COLUMN=LEVEL,…",
            help="levels fixed in advance, for --method fixed or private, like age=2,zip=1",
        ),
        arg(
            "--method",
            help="optimal (default; private with --epsilon), datafly, mondrian, …: the names of "
            "tacit.anonymity.ALL",
        ),
        arg(
            "--metric",
            default="loss",
            help="what the search minimizes: loss (default), height, entropy, discernibility, class_size",
        ),
        arg(
            "--max-suppressed",
            type=float,
            metavar="FRACTION",
            help="fraction of the rows that may be suppressed, from 0 to 1 (default: depends on the method)",
        ),
        arg(
            "--compare-limits",
            metavar="FRACTION,…",
            help="first print the loss for each of these fractions of suppressed rows, like 0,0.01,0.05",
        ),
        arg(
            "--suppressed",
            choices=("drop", "star"),
            default="drop",
            help="drop suppressed rows (default), or show them as *",
        ),
        arg(
            "--seconds",
            type=float,
            metavar="S",
            help="for --method optimal: use the best table found after this time (default: no limit)",
        ),
        DROP,
        arg(
            "--pseudonymize",
            metavar="COLUMNS",
            help="columns whose values are replaced by keyed pseudonyms; needs --key",
        ),
        arg("--key", metavar="FILE", help="the key file of --pseudonymize"),
        arg(
            "--new-key",
            action="store_true",
            help="create the key file first; an existing one is never overwritten",
        ),
        HISTORY,
        arg(
            "--mask",
            metavar="COLUMNS",
            help="text columns in which names, ids, dates and contact data are replaced by [NAME], [ID], …; "
            "rules find what they describe, so have somebody read the result",
        ),
        arg("--names", metavar="FILE", help="with --mask: names to look for, one per line"),
        arg(
            "--names-from",
            metavar="COLUMNS",
            help="with --mask: columns of the table with names, which are looked for in every row",
        ),
        arg(
            "--text-model",
            metavar="MODEL",
            help="with --mask: a spaCy pipeline on this machine, a folder or an installed package such as "
            "en_core_web_lg, that finds more names, places and organizations; nothing is downloaded",
        ),
        arg(
            "--text-language",
            metavar="CODE",
            help="with --text-model: the language of the texts (default: en)",
        ),
        arg(
            "--points",
            metavar="X,Y",
            help="coordinates, which become a quasi-identifier `cell`: squares of at least k people, small "
            "where many live; needs --cells",
        ),
        arg(
            "--cells",
            metavar="SMALLEST:LARGEST",
            help="sides of the cells of --points in the unit of the coordinates, like 125:16000",
        ),
    )
    verb(
        "risk",
        measure_risk,
        "Measure the re-identification risk and utility of a published table.",
        arg("before", help="the original table, .csv or .parquet"),
        arg("after", help="the published table, produced by any program"),
        *_SHARED,
        arg(
            "--population",
            metavar="FILE",
            help="a table of everybody who could be in it, generalized in the same way",
        ),
        arg("--population-size", type=int, metavar="N", help="their number, if there is no such table"),
        arg(
            "--combinations",
            type=int,
            default=3,
            metavar="N",
            help="largest number of columns to combine (default: 3)",
        ),
    )


def _anonymize(args: argparse.Namespace) -> Answer:
    from ..anonymity import ALL, pseudonyms, report
    from ..anonymity.losses import METRICS
    from ..anonymity.risk import find_identifiers
    from ..data.table_files import check_table_name, read_header, read_table, write_table
    from ..files import check_free
    from ..parameters import bad, nearest
    from ..report.page import write_page

    quasi, sensitive, hidden, dropped = (
        parse_columns(getattr(args, name), f"--{name}")
        for name in ("quasi", "sensitive", "pseudonymize", "drop")
    )
    args.method = args.method or ("optimal" if args.epsilon is None else "private")
    if args.method not in ALL:  # before anything is read
        raise bad(
            "anonymize", "--method", args.method, "one of " + ", ".join(ALL), nearest(args.method, list(ALL))
        )
    if args.metric not in METRICS:
        raise bad(
            "anonymize",
            "--metric",
            args.metric,
            "one of " + ", ".join(METRICS),
            nearest(args.metric, list(METRICS)),
        )
    _check_options(args, bool(sensitive))
    method, models = _method(args), _models(args)
    for name, columns in (("--pseudonymize", hidden), ("--drop", dropped)):
        both = [c for c in columns if c in (*quasi, *sensitive)]
        if both:
            raise bad(
                "anonymize",
                name,
                ",".join(columns),
                "columns that are neither quasi-identifiers nor sensitive",
                f"{both[0]!r} is.",
            )
    if bool(hidden) != bool(args.key):
        raise BadParameter(
            "anonymize: --pseudonymize and --key must be used together: pseudonyms need a secret key. "
            "Pass both, or neither."
        )
    out = check_table_name(check_free(args.out, args.force, [args.table]), "anonymize: --out ")
    page = report_file(args, [args.table, out])
    history = history_file(args, [args.table, out])
    if history is not None and args.person is None:
        raise BadParameter(
            "anonymize: --history needs --person: the column that tells whose a row is, with the same ids in "
            "every release."
        )
    with Progress(args.quiet) as progress:
        progress.step(f"reading {args.table}")
        frame = read_table(args.table, text=True, **reading_of(args))
        separator = read_header(args.table, args.separator, args.encoding).separator
        named = {"--quasi": quasi, "--sensitive": sensitive, "--pseudonymize": hidden, "--drop": dropped}
        named["--target"] = [args.target] if args.target else []
        named["--person"] = [args.person] if args.person else []
        _check_columns(frame, named, args.epsilon is not None)
        if args.new_key and args.key:
            pseudonyms.new_key(args.key)
        _check_mask(args)
        if hidden:
            frame = pseudonyms.pseudonymize(frame, hidden, args.key)
        masked = _mask(frame, args) if args.mask else None
        frame = (frame if masked is None else masked.table).drop(columns=dropped)
        hierarchies: dict[str, Any] = dict(find_hierarchies(args.hierarchies, quasi) or {})
        number, placed = len(frame), None
        if args.points is not None:
            placed = _place_points(frame, args)
            frame, quasi = placed.table, [*quasi, "cell"]
            hierarchies["cell"] = placed.hierarchy()
        import tacit

        if args.compare_limits is not None:
            from ..jobs.anonymize import compare_limits

            compared = compare_limits(
                frame,
                _parse_limits(args.compare_limits),
                quasi=quasi,
                k=args.k,
                sensitive=sensitive,
                hierarchies=hierarchies,
                method=method,
                models=models,
                metric=args.metric,
                l=args.l,
                t=args.t,
                person=args.person,
            )
            for line in compared.to_string().splitlines():
                progress.line(line)
        progress.step(f"anonymizing {len(frame):,} rows by {args.method}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the risk is measured and reported below
            result = tacit.anonymize(
                frame,
                quasi=quasi,
                k=args.k,
                sensitive=sensitive,
                hierarchies=hierarchies,
                method=method,
                models=models,
                max_suppressed=args.max_suppressed,
                metric=args.metric,
                l=args.l,
                t=args.t,
                suppressed=args.suppressed,
                person=args.person,
            )
        progress.step("measuring the remaining risk")
        left = tacit.risk(frame, result, quasi, sensitive=sensitive, target=args.target)
        # a column of pseudonyms is expected to differ in every row
        expected = find_identifiers(result.table, hidden)
        left = replace(left, warnings=tuple(w for w in left.warnings if w not in expected))
        # before writing any file, so that an error leaves none behind
        text = report.render(left) if page is not None else None
        record = result.record_release() if history is not None else None
        progress.step(f"writing {out}")
        if history is not None and record is not None:
            record.save(history)  # first: a table without its history must not be published
        write_table(result.table, out, separator)
        if page is not None and text is not None:
            write_page(page, text)
    as_is = [str(c) for c in result.table.columns if c not in (*quasi, *sensitive, *hidden)]
    value = {
        "out": str(out),
        "report": None if page is None else str(page),
        "history": None if history is None else str(history),
        "rows": number,
        "masked": None if masked is None else masked.found.to_dict(),
        "cells": None if placed is None else len(placed.cells),
        "published": left.after.rows,
        "suppressed": number - left.after.rows,
        "unchanged": as_is,
        "classes": left.after.classes,
        "k": left.after.k,
        "levels": result.levels,
        "loss": result.loss,
        "metric": args.metric,
        "method": result.method,
        "risk": risk_to_dict(left),
        "warnings": list(left.warnings),
        "trace": [str(s) for s in result.trace],
        "spent": result.ledger.to_dict()["spent"],
    }

    def show(console: Any) -> None:
        after, before = left.after, left.before
        measure = "granularity" if args.metric == "loss" else args.metric
        lines = [
            f"published   {after.rows:,} of {number:,} rows in {after.classes:,} classes, k = {after.k} "
            f"(before: {before.k})",
            f"levels      {', '.join(f'{c} {_format_level(result, c)}' for c in result.quasi)}",
            *(
                []
                if placed is None
                else [
                    f"cells       {len(placed.cells):,} of at least {args.k} people; "
                    f"{len(placed.suppressed):,} rows are in none"
                ]
            ),
            f"loss        {result.loss:.4f} ({measure}), {len(result.suppressed):,} rows suppressed",
            f"risk        highest {after.prosecutor.highest:.1%}, average {after.prosecutor.average:.2%} "
            f"(before: {before.prosecutor.highest:.1%}, "
            f"{before.prosecutor.average:.2%})",
            *([f"unchanged   {', '.join(as_is)}: published as they are"] if as_is else []),
            *([] if masked is None else [f"masked      {_format_masked(masked)}; have somebody read them"]),
            *([f"privacy     {result.ledger}"] if result.ledger.spent else []),
            *format_warnings(left),
            f"table       {out}",
            *([f"report      {page}"] if page else []),
            *([f"history     {history}"] if history else []),
        ]
        console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)

    return value, show


def _check_mask(args: argparse.Namespace) -> None:
    if (args.names or args.names_from or args.text_model) and not args.mask:
        raise BadParameter(
            "anonymize: --names, --names-from and --text-model need --mask: the text columns to mask."
        )
    if args.text_language and not args.text_model:
        raise BadParameter("anonymize: --text-language needs --text-model: the pipeline for that language.")


def _mask(frame: DataFrame, args: argparse.Namespace) -> MaskedText:
    """Mask the columns of --mask. Text has no hierarchy, so it cannot be a quasi-identifier."""
    from ..anonymity import mask_text

    names: list[str] = []
    if args.names is not None:
        try:
            names = Path(args.names).read_text(encoding="utf-8-sig").splitlines()
        except FileNotFoundError:
            raise MissingFiles(
                f"--names {args.names}: there is no such file. Write one name per line."
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise BadData(f"--names {args.names} cannot be read as UTF-8 text: {error}.") from None
    columns = parse_columns(args.mask, "--mask")
    return mask_text(
        frame,
        columns,
        names=names,
        names_from=parse_columns(args.names_from, "--names-from"),
        model=args.text_model,
        language=args.text_language or "en",
    )


def _format_masked(masked: MaskedText) -> str:
    """'note: 3 name, 1 date'."""
    return "; ".join(
        f"{column}: " + (", ".join(f"{n:,} {kind}" for kind, n in counts.items() if n) or "nothing found")
        for column, counts in masked.found.to_dict().items()
    )


def _place_points(frame: DataFrame, args: argparse.Namespace) -> SpatialCells:
    """The table with cells instead of the coordinates of --points."""
    from pandas import to_numeric

    from ..anonymity import aggregate_points
    from ..anonymity.classes import check_columns

    names = check_columns(frame, parse_columns(args.points, "--points"), "--points", "anonymize")
    smallest, _, largest = (args.cells or "").partition(":")
    try:
        sides = [float(smallest), float(largest)]
    except ValueError:
        sides = []
    if len(names) != 2 or not sides:
        raise BadParameter(
            f"--points is {args.points!r} and --cells {args.cells!r}; expected two columns and two sides, "
            "like --points east,north --cells 125:16000."
        )
    points = frame.assign(**{n: to_numeric(frame[n], errors="coerce") for n in names})
    return aggregate_points(
        points,
        *names,
        k=args.k,
        smallest=sides[0],
        largest=sides[1],
        person=args.person,
        max_suppressed=args.max_suppressed or 0.0,
    )


def _parse_limits(text: str) -> list[float]:
    try:
        limits = [float(word) for word in text.split(",")]
    except ValueError:
        limits = [-1.0]
    if not all(0 <= limit <= 1 for limit in limits):
        raise BadParameter(
            f"--compare-limits is {text!r}; expected fractions of the rows from 0 to 1, like 0,0.01,0.05."
        )
    return limits


def _check_options(args: argparse.Namespace, has_sensitive: bool) -> None:
    """Raise for values of options that the privacy models do not allow, by the options' names."""
    from ..anonymity import AverageRisk, DifferentialPrivacy, PopulationUniqueness
    from ..anonymity.models import KAnonymity, LDiversity, TCloseness
    from ..parameters import check_value, refuse

    for option, value, model, field in (
        ("--k", args.k, KAnonymity, "k"),
        ("--l", args.l, LDiversity, "l"),
        ("--t", args.t, TCloseness, "t"),
        ("--max-average-risk", args.max_average_risk, AverageRisk, "most"),
        ("--max-uniques", args.max_uniques, PopulationUniqueness, "most"),
        ("--epsilon", args.epsilon, DifferentialPrivacy, "epsilon"),
        ("--delta", args.delta, DifferentialPrivacy, "delta"),
    ):
        if value is not None:
            check_value("anonymize", option, value, model, field)
    needs = "needs --sensitive: the columns whose values it protects."
    refuse(
        (args.l is not None and not has_sensitive, f"anonymize: --l {needs}"),
        (args.t is not None and not has_sensitive, f"anonymize: --t {needs}"),
        (
            args.epsilon is not None and args.method not in ("private", "fixed"),
            f"anonymize: --epsilon needs --method private or fixed, got {args.method!r}: other methods "
            "choose levels that depend on the table.",
        ),
    )


def _method(args: argparse.Namespace) -> Any:
    from ..anonymity import ALL, Fixed, Optimal, Private

    levels: dict[str, int] = {}
    for word in parse_columns(args.levels, "--levels"):
        name, _, level = word.rpartition("=")
        if not name or not level.isdigit():
            raise BadParameter(f"--levels is {args.levels!r}; expected COLUMN=LEVEL,…, like age=2,zip=1.")
        levels[name] = int(level)
    if levels and args.method not in ("fixed", "private"):
        raise BadParameter(
            f"--levels cannot be combined with --method {args.method}, which chooses them. Omit it, or use "
            "--method fixed."
        )
    if args.seconds is not None:
        from ..parameters import check_value

        if args.method != "optimal":
            raise BadParameter(f"--seconds cannot be combined with --method {args.method}. Omit it.")
        check_value("anonymize", "--seconds", args.seconds, Optimal, "seconds")
        return Optimal(seconds=args.seconds)
    if args.method == "private":
        return Private(epsilon=args.search_epsilon, levels=levels or None)
    return Fixed(levels or None) if args.method == "fixed" else ALL[args.method]()


def _models(args: argparse.Namespace) -> list[Any]:
    from ..anonymity import AverageRisk, DifferentialPrivacy, PopulationUniqueness

    if args.max_uniques is not None and args.population_size is None:
        raise BadParameter(
            "anonymize: --max-uniques is a fraction of the population. Also pass --population-size: the "
            "number of people the table is a sample of."
        )
    return [
        *(
            []
            if args.max_average_risk is None
            else [AverageRisk(args.max_average_risk, args.population_size)]
        ),
        *([] if args.max_uniques is None else [PopulationUniqueness(args.population_size, args.max_uniques)]),
        *([] if args.epsilon is None else [DifferentialPrivacy(args.epsilon, args.delta)]),
    ]


def _check_columns(frame: DataFrame, columns: dict[str, list[str]], is_private: bool) -> None:
    """Raise unless the table has the columns that each option names."""
    from ..anonymity.classes import check_columns

    for option, names in columns.items():
        check_columns(frame, names, option, "anonymize", may_be_empty=True)
    rest = [
        c for c in frame.columns if c not in (*columns["--quasi"], *columns["--drop"], *columns["--person"])
    ]
    if is_private and rest:
        raise BadData(
            "anonymize: with --epsilon every published column is generalized. Add "
            f"{', '.join(map(repr, rest))} to --quasi, or --drop {'it' if len(rest) == 1 else 'them'}."
        )


def _format_level(result: AnonymizationResult, column: str) -> str:
    level = result.levels.get(column)
    return (
        "by cell"
        if level is None
        else f"{level}/{result.hierarchies[column].height}"
        if column in result.hierarchies
        else str(level)
    )
