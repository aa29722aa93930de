"""`tacit anonymize` and `tacit risk`: a table that may be published, and what it still says about the people
in it.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadParameter, MissingFiles
from ..progress import Progress

if TYPE_CHECKING:
    from pandas import DataFrame

Answer = tuple[Any, Callable[[Any], None]]


def add(verb: Callable[..., argparse.ArgumentParser]) -> None:
    make = verb(
        "anonymize", _anonymize, "Make a table anonymous, and say what that costs and what risk is left."
    )
    make.add_argument(
        "table", help="a .csv file with a header (or .csv.gz), or a .parquet file; it is never changed"
    )
    _shared(make)
    make.add_argument(
        "--out",
        metavar="FILE",
        required=True,
        help="where the anonymous table goes: .csv, .csv.gz or .parquet",
    )
    make.add_argument("--k", type=int, default=5, help="how many rows must look the same (default: 5)")
    make.add_argument("--l", type=float, help="how many different sensitive values each class must have")
    make.add_argument(
        "--t",
        type=float,
        help="how far a class's sensitive values may lie from the whole table's, from 0 to 1",
    )
    make.add_argument(
        "--max-average-risk",
        type=float,
        metavar="PART",
        help="the average chance of finding a published row's person may be at most this",
    )
    make.add_argument(
        "--max-uniques",
        type=float,
        metavar="PART",
        help="at most this part of the population may be unique; needs --population-size",
    )
    make.add_argument(
        "--population-size",
        type=int,
        metavar="N",
        help="how many people the table is a random sample of, for these two",
    )
    make.add_argument(
        "--epsilon",
        type=float,
        help="publish a generalised sample under differential privacy; with --method private (or fixed and "
        "--levels)",
    )
    make.add_argument("--delta", type=float, default=1e-6, help="δ of --epsilon (default: 1e-6)")
    make.add_argument(
        "--search-epsilon",
        type=float,
        default=0.5,
        help="ε that the choice of levels spends beside --epsilon (default: 0.5)",
    )
    make.add_argument(
        "--levels",
        metavar="COLUMN=LEVEL,…",
        help="levels fixed beforehand, for --method fixed or private, like age=2,zip=1",
    )
    make.add_argument(
        "--method",
        help="optimal (default; private with --epsilon), datafly, mondrian, …: the names of "
        "tacit.anonymity.ALL",
    )
    make.add_argument(
        "--metric",
        default="loss",
        help="what the search minimises: loss (default), height, entropy, discernibility, class_size",
    )
    make.add_argument(
        "--max-suppressed",
        type=float,
        metavar="PART",
        help="part of the rows that may be left out, from 0 to 1 (default: the method's own)",
    )
    make.add_argument(
        "--suppressed",
        choices=("drop", "star"),
        default="drop",
        help="leave suppressed rows out (default), or show them as *",
    )
    make.add_argument("--drop", metavar="COLUMNS", help="columns to leave out, like name,phone")
    make.add_argument(
        "--pseudonymize",
        metavar="COLUMNS",
        help="columns whose values are replaced by keyed pseudonyms; needs --key",
    )
    make.add_argument("--key", metavar="FILE", help="the key file of --pseudonymize")
    make.add_argument(
        "--new-key",
        action="store_true",
        help="make that key file first; one that is there is never written over",
    )
    make.add_argument("--seed", type=int, default=0, help="of methods that draw (default: 0)")
    look = verb(
        "risk", _risk, "What a published table still says about the people in it, beside the original."
    )
    look.add_argument("before", help="the original table, .csv or .parquet")
    look.add_argument("after", help="the published table, made by whatever program")
    _shared(look)
    look.add_argument(
        "--population",
        metavar="FILE",
        help="a table of everybody who could be in it, generalised in the same way",
    )
    look.add_argument(
        "--population-size", type=int, metavar="N", help="how many they are, where there is no such table"
    )
    look.add_argument(
        "--combinations",
        type=int,
        default=3,
        metavar="N",
        help="look at up to N columns together (default: 3)",
    )


def _shared(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--quasi",
        metavar="COLUMNS",
        required=True,
        help="the quasi-identifiers: what others may know of a person, like age,zip,sex",
    )
    made.add_argument("--sensitive", metavar="COLUMNS", help="what they must not learn, like diagnosis")
    made.add_argument(
        "--hierarchies",
        metavar="DIR",
        help="a directory with COLUMN.csv or COLUMN.toml (or ARX's NAME_hierarchy_COLUMN.csv)",
    )
    made.add_argument(
        "--target",
        metavar="COLUMN",
        help="measure how well this column is predicted from the anonymous rows and from the original ones",
    )
    made.add_argument("--report", metavar="FILE", help="write an HTML report too")
    made.add_argument("--force", action="store_true", help="write over files that are there")
    made.add_argument("--quiet", action="store_true", help="no progress and no summary")


def _anonymize(args: argparse.Namespace) -> Answer:
    from ..anonymity import ALL, pseudonyms, report
    from ..anonymity.losses import METRICS
    from ..data.table_files import read_header, read_table, write_table
    from ..files import check_free
    from ..parameters import bad, nearest

    quasi, sensitive, hidden, gone = (
        _columns(getattr(args, name), f"--{name}") for name in ("quasi", "sensitive", "pseudonymize", "drop")
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
    method, models = _method(args), _models(args)
    for name, some in (("--pseudonymize", hidden), ("--drop", gone)):
        both = [c for c in some if c in (*quasi, *sensitive)]
        if both:
            raise bad(
                "anonymize",
                name,
                ",".join(some),
                "columns that are neither quasi-identifiers nor sensitive",
                f"{both[0]!r} is.",
            )
    if bool(hidden) != bool(args.key):
        raise BadParameter(
            "anonymize: --pseudonymize and --key belong together: pseudonyms are made with a secret key. "
            "Give both, or neither."
        )
    out = check_free(args.out, args.force, [args.table])
    page = _report(args, [args.table, out])
    with Progress(args.quiet) as progress:
        progress.step(f"reading {args.table}")
        separator, frame = read_header(args.table).separator, read_table(args.table, text=True)
        _there(frame, [*quasi, *sensitive, *hidden, *gone, *([args.target] if args.target else [])])
        if args.new_key and args.key:
            pseudonyms.new_key(args.key)
        if hidden:
            frame = pseudonyms.pseudonymize(frame, hidden, args.key)
        frame = frame.drop(columns=gone)
        progress.step(f"anonymising {len(frame):,} rows by {args.method}")
        import tacit

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it warns of is measured again, and said, below
            made = tacit.anonymize(
                frame,
                quasi=quasi,
                k=args.k,
                sensitive=sensitive,
                hierarchies=_hierarchies(args.hierarchies, quasi),
                method=method,
                models=models,
                max_suppressed=args.max_suppressed,
                metric=args.metric,
                l=args.l,
                t=args.t,
                suppressed=args.suppressed,
                seed=args.seed,
            )
        progress.step("measuring what risk is left")
        left = tacit.risk(frame, made, quasi, sensitive=sensitive, target=args.target)
        text = (
            report.render(left) if page is not None else None
        )  # whatever can fail has failed before the first file is written
        progress.step(f"writing {out}")
        write_table(made.table, out, separator)
        if page is not None and text is not None:
            report.write_page(page, text)
    as_is = [str(c) for c in made.table.columns if c not in (*quasi, *sensitive, *hidden)]
    value = {
        "out": str(out),
        "report": None if page is None else str(page),
        "rows": len(frame),
        "published": left.after.rows,
        "suppressed": len(made.suppressed),
        "unchanged": as_is,
        "classes": left.after.classes,
        "k": left.after.k,
        "levels": made.levels,
        "loss": made.loss,
        "metric": args.metric,
        "method": made.method,
        "risk": _plain(left),
        "warnings": list(left.warnings),
        "trace": [str(s) for s in made.trace],
        "spent": [] if made.ledger is None else made.ledger.to_dict()["spent"],
    }

    def show(console: Any) -> None:
        now, was = left.after, left.before
        lines = [
            f"published   {now.rows:,} of {len(frame):,} rows in {now.classes:,} classes, k = {now.k} "
            f"(before: {was.k})",
            f"levels      {', '.join(f'{c} {_level(made, c)}' for c in made.quasi)}",
            f"loss        {made.loss:.4f} ({args.metric}), {len(made.suppressed):,} rows suppressed",
            f"risk        highest {now.prosecutor.highest:.1%}, average {now.prosecutor.average:.2%} "
            f"(before: {was.prosecutor.highest:.1%}, "
            f"{was.prosecutor.average:.2%})",
            *([f"unchanged   {', '.join(as_is)}: published as they are"] if as_is else []),
            *([] if made.ledger is None else [f"privacy     {made.ledger}"]),
            *_said(left),
            f"table       {out}",
            *([f"report      {page}"] if page else []),
        ]
        console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)

    return value, show


def _method(args: argparse.Namespace) -> Any:
    from ..anonymity import ALL, Fixed, Private

    levels: dict[str, int] = {}
    for word in _columns(args.levels, "--levels"):
        name, _, level = word.rpartition("=")
        if not name or not level.isdigit():
            raise BadParameter(
                f"--levels is {args.levels!r}; it must be columns and levels, like age=2,zip=1."
            )
        levels[name] = int(level)
    if levels and args.method not in ("fixed", "private"):
        raise BadParameter(
            f"--levels fixes what --method {args.method} would choose. Leave it out, or take --method fixed."
        )
    if args.method == "private":
        return Private(epsilon=args.search_epsilon, levels=levels or None)
    return Fixed(levels or None) if args.method == "fixed" else ALL[args.method]()


def _models(args: argparse.Namespace) -> list[Any]:
    from ..anonymity import AverageRisk, DifferentialPrivacy, PopulationUniqueness

    if args.max_uniques is not None and args.population_size is None:
        raise BadParameter(
            "anonymize: --max-uniques is a part of the population. Give --population-size too: how many "
            "people the table is a sample of."
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


def _risk(args: argparse.Namespace) -> Answer:
    from ..anonymity import report
    from ..data.table_files import read_table

    quasi, sensitive = _columns(args.quasi, "--quasi"), _columns(args.sensitive, "--sensitive")
    page = _report(args, [args.before, args.after])
    with Progress(args.quiet) as progress:
        frames = []
        for path in (args.before, args.after, args.population):
            if path is not None:
                progress.step(f"reading {path}")
            frames.append(None if path is None else read_table(path, text=True))
        before, after, population = frames
        import tacit

        progress.step("measuring the risk")
        found = tacit.risk(
            before,
            after,
            quasi,
            sensitive=sensitive,
            hierarchies=_hierarchies(args.hierarchies, quasi),
            population=population,
            population_size=args.population_size,
            combinations=args.combinations,
            target=args.target,
        )
        if page is not None:
            report.write(found, page)
    value = {
        "risk": _plain(found),
        "singled_out": found.singled_out().head(20).to_dict("records"),
        "warnings": list(found.warnings),
        "report": None if page is None else str(page),
    }

    def show(console: Any) -> None:
        from .terminal import grid

        rows = [
            [
                str(name),
                *("not measured" if v != v else f"{v:.4g}" if v != round(v) else f"{v:,.0f}" for v in pair),
            ]
            for name, pair in zip(found.table().index, found.table().to_numpy(dtype=float).tolist())
        ]
        console.print(grid(["", "before", "after"], rows))
        top = found.singled_out().head(5)
        most = [
            f"{r['columns']} ({r['minimal before']:,} before, {r['unique after']:,} after)"
            for r in top.to_dict("records")
        ]
        lines = [
            "",
            "columns that single most people out: " + "; ".join(most),
            *_said(found),
            *([f"report      {page}"] if page else []),
        ]
        console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)

    return value, show


def _columns(text: str | None, name: str) -> list[str]:
    """age,zip,sex as a list; a name with a comma in it is written in quotation marks, as in the file."""
    import csv

    if text is None:
        return []
    words = [w.strip() for w in next(csv.reader([text]), [])]
    if not words or not all(words):
        raise BadParameter(
            f"{name} is {text!r}; it must be column names with commas between them, like age,zip,sex."
        )
    return list(dict.fromkeys(words))


def _there(frame: DataFrame, columns: list[str]) -> None:
    from ..anonymity.classes import columns_of

    columns_of(frame, list(dict.fromkeys(columns)), "columns", "anonymize")


def _report(args: argparse.Namespace, sources: list[Any]) -> Path | None:
    from ..files import check_free

    if args.report is None:
        return None
    if args.report in map(str, sources):
        raise BadParameter(f"--report {args.report} is the name of a table too. Give another one.")
    return check_free(args.report, args.force, sources)


def _hierarchies(directory: str | None, quasi: list[str]) -> dict[str, str] | None:
    """The files of a directory that belong to quasi-identifiers: COLUMN.csv, COLUMN.toml, or ARX's
    NAME_hierarchy_COLUMN.csv.
    """
    if directory is None:
        return None
    folder = Path(directory)
    if not folder.is_dir():
        raise MissingFiles(
            f"--hierarchies {directory}: there is no such directory. Give one with a file for each column, "
            "like age.csv."
        )
    found: dict[str, str] = {}
    for column in quasi:
        fits = [
            p
            for p in sorted(folder.iterdir())
            if p.suffix in (".csv", ".toml") and (p.stem == column or p.stem.endswith(f"hierarchy_{column}"))
        ]
        if len(fits) > 1:
            raise BadParameter(
                f"--hierarchies {directory}: {' and '.join(p.name for p in fits)} are both for {column!r}. "
                "Leave one of them."
            )
        if fits:
            found[column] = str(fits[0])
    if not found:
        raise MissingFiles(
            f"--hierarchies {directory}: no file in it belongs to {', '.join(quasi)}. Name them like "
            f"{quasi[0]}.csv."
        )
    return found


def _level(made: Any, column: str) -> str:
    level = made.levels.get(column)
    return (
        "by cell"
        if level is None
        else f"{level}/{made.hierarchies[column].height}"
        if column in made.hierarchies
        else str(level)
    )


def _said(found: Any) -> list[str]:
    return [f"warning     {w}" for w in found.warnings]


def _plain(found: Any) -> dict[str, dict[str, float]]:
    return {
        str(name): {"before": a, "after": b}
        for name, (a, b) in zip(found.table().index, found.table().to_numpy(dtype=float).tolist())
    }
