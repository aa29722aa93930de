"""`tacit job new`: draft a job file from tables, and list all their problems at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .verbs import DETECTED, FORCE, Answer, arg, parse_columns, reading_of


def add(verb: Callable[..., Any]) -> None:
    verb(
        "new",
        _new,
        "Draft a job file from one table, or one table of each party, and list every problem found.",
        arg("tables", nargs="+", help="CSV or Parquet files; of several, each belongs to one party"),
        arg("--label", metavar="COLUMN", help="the column to predict (default: a guess, which is listed)"),
        arg("--by", metavar="COLUMN", help="one party for each value of this column"),
        arg("--categories", metavar="COLUMNS", help="numbers that are codes, separated by commas"),
        arg(
            "--parties",
            action="store_true",
            help="for real parties (`tacit party`): [data] describes the columns of each party's own file",
        ),
        arg("-o", "--out", metavar="FILE", default="job.toml", help="the job file (default: job.toml)"),
        *DETECTED,
        FORCE,
        epilog="The draft runs as it is: `tacit run job.toml`. Each proposed treatment has a comment in the "
        "file; nothing is sent anywhere.",
    )


def _new(args: Any) -> Answer:
    from ..errors import BadParameter
    from ..files import write_atomic
    from ..jobs.draft import draft_job

    out = Path(args.out)
    if out.exists() and not args.force:
        raise BadParameter(f"{out} exists. Choose another name with --out, or overwrite it with --force.")
    if not out.parent.is_dir():
        raise BadParameter(f"there is no folder {out.parent}. Create it, or choose another place with --out.")
    categories = parse_columns(args.categories, "--categories")
    draft = draft_job(
        args.tables,
        args.label,
        args.by,
        args.parties,
        out.parent,
        categories,
        out.name,
        reading_of(args),
    )
    remaining = _try(draft.text, out, args)
    write_atomic(out, draft.text.encode())
    value = {
        "job": str(out),
        "label": draft.label,
        "columns": draft.kinds,
        "problems": [
            {
                "problem": f.problem,
                "column": f.column,
                "text": f.text,
                "treatment": f.treatment,
                "proposal": f.proposal,
            }
            for f in draft.findings
        ],
        "remaining": remaining,
    }

    def show(console: Any) -> None:
        from .terminal import grid

        console.print(grid(["column", "kind"], [[c, k] for c, k in draft.kinds.items()]), "")
        n = len(draft.findings)
        lines = [f"{n} {'problem' if n == 1 else 'problems'} found:" if n else "no problems found"]
        for k, f in enumerate(draft.findings):
            lines += [f"{k + 1:3}. {f.text}", f"     {f.treatment}"]
            lines += [f"     In [data]: {line}" for line in f.proposal.splitlines()]
        lines += [f"still to be settled: {remaining}"] if remaining else []
        lines += ["", f"{out} written. {_next(args, out)}"]
        console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)

    return value, show


def _next(args: Any, out: Path) -> str:
    return f"Run it with: tacit run {out}" if not args.parties else f"Each party checks it: tacit plan {out}"


def _try(text: str, out: Path, args: Any) -> str:
    """Return what keeps the drafted job from running, or ""."""
    import tomllib

    from ..config import job as config
    from ..errors import TacitError
    from ..jobs.train.party_rows import read_layout

    tables = tomllib.loads(text)
    try:
        if args.parties:
            read_layout(tables["data"])
        else:
            config.from_tables(tables, out).federations()
    except TacitError as error:
        return str(error)
    return ""
