"""tacit audit: attack a run before its model is released."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .verbs import QUIET, READING, Answer, answer, arg, reading_of

if TYPE_CHECKING:
    from ..config.audit import AuditTerms
    from ..jobs.audit.findings import ReleaseAudit


def add(verb: Callable[..., Any]) -> None:
    verb(
        "audit",
        _audit,
        "Attack a run by all that applies in the time given, and say what each adversary could find out.",
        arg(
            "run",
            help="directory of a run that `tacit run` wrote, with its data where the job says; or an "
            "anonymized or synthetic table (.csv, .parquet), or boosted trees (.json, or the folder with all "
            "parties' parts)",
        ),
        arg(
            "--budget",
            metavar="TIME",
            help="time for the attacks, like 90s, 5m or 1h (default: that of the job, or 2m)",
        ),
        arg(
            "--limit",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            dest="limits",
            help="membership (AUC, default 0.6), members (found at 1%% false alarms, 0.1), rebuilt (share of "
            "rows, 0.05), linked (people found by matching, 0.2); none: no limit; may be given several times",
        ),
        arg(
            "--original",
            action="append",
            default=[],
            metavar="[PARTY=]FILE",
            help="of a table or trees: the rows they were made from; of several parties' trees once for each",
        ),
        arg(
            "--holdout",
            action="append",
            default=[],
            metavar="[PARTY=]FILE",
            help="of a synthetic table or trees: rows they were not made from; of several parties as above",
        ),
        arg("--quasi", metavar="COLUMNS", help="of an anonymized table: columns that an attacker knows"),
        arg("--sensitive", metavar="COLUMNS", help="of an anonymized table: columns not to be disclosed"),
        arg("--hierarchies", metavar="DIR", help="of an anonymized table: its hierarchies, COLUMN.csv"),
        arg("--background", metavar="FILE", help="of an anonymized table: what the attacker has"),
        arg(
            "--key", metavar="COLUMN", help="the column that tells who is who in --original and --background"
        ),
        arg("--generator", metavar="FILE", help="of a synthetic table: what `tacit synth --save` wrote"),
        arg("--label", metavar="COLUMN", help="of boosted trees: the column that they predict"),
        *READING,
        arg("--seed", type=int, default=0, metavar="N", help="of the attacks (default: 0)"),
        arg("-o", "--output", metavar="FILE", help="the page (default: audit.html in the run's directory)"),
        QUIET,
        epilog="Writes audit.html and audit.json. The exit code is 2 if an attack exceeds its limit, and "
        "`tacit export` then refuses the model.",
    )


def _audit(args: Any) -> Answer:
    from ..config.audit import AuditTerms, kept_terms, parse_limits, parse_time
    from ..errors import BadParameter

    budget = None if args.budget is None else parse_time(args.budget)
    terms = kept_terms(Path(args.run)) if Path(args.run).is_dir() else None
    if terms is not None and args.limits:
        raise BadParameter(
            f"audit: the job of {args.run} declares its limits (audit.toml), which --limit cannot change. "
            "Leave --limit out."
        )
    terms = terms or AuditTerms(parse_limits(args.limits))
    terms = terms if budget is None else AuditTerms(terms.limits, budget)
    found, page = attack(args.run, terms, args.quiet, args.seed, args.output, **_about(args))
    args.code = 0 if found.passed else 2
    lines = found.lines()
    args.result_lines = lines[:1]
    value = {"run": str(args.run), "report": str(page), **found.to_dict()}
    return answer(value, [*lines, f"report  {page}"])


def _about(args: Any) -> dict[str, Any]:
    """The options of tables and trees that were given."""
    from .anonymize_files import find_hierarchies
    from .verbs import parse_columns

    about = {n: getattr(args, n) for n in ("background", "key", "generator", "label")}
    about |= {n: _by_party(getattr(args, n), f"--{n}") for n in ("original", "holdout")}
    quasi = parse_columns(args.quasi, "--quasi")
    about |= {"quasi": quasi, "sensitive": parse_columns(args.sensitive, "--sensitive")}
    about["hierarchies"] = find_hierarchies(args.hierarchies, quasi) if args.hierarchies else None
    return {k: v for k, v in about.items() if v} | reading_of(args)


def _by_party(given: list[str], option: str) -> str | dict[str, str] | None:
    """Return a file, or {party: file}."""
    from ..errors import BadParameter

    if len(given) < 2 and not any("=" in word and not Path(word).exists() for word in given):
        return given[0] if given else None
    files = {}
    for word in given:
        name, equals, file = word.partition("=")
        if not equals or name in files:
            raise BadParameter(
                f"audit: {option} {word} is not a file of one more party. Give {option} once, or as "
                f"{option} PARTY=FILE once for each party."
            )
        files[name] = file
    return files


def attack(
    run: str | Path,
    terms: AuditTerms,
    quiet: bool,
    seed: int = 0,
    output: str | None = None,
    **about: Any,
) -> tuple[ReleaseAudit, Path]:
    """Audit a result and write the page; of a run also audit.json, which says whether it is released."""
    from ..jobs.audit.release import release
    from ..progress import Progress
    from ..release.audited import write_verdict
    from ..report import page
    from ..report.records import read

    with Progress(quiet) as progress:
        found = release(
            run, budget=terms.budget, limits=terms.limits, seed=seed, watch=progress.step, **about
        )
    folder = Path(run)
    if not (folder / "events.jsonl").exists():  # a table, trees: the page is beside them
        beside = folder.with_name(f"{folder.name}.audit.html") if folder.is_file() else folder / "audit.html"
        return found, found.report(output or beside)
    write_verdict(folder, found.to_dict())
    if (folder / "report.html").is_file():  # its first page says what was tried
        page.write(folder / "report.html", *read(folder))
    return found, found.report(output)
