"""tacit runs list, show, tag, rm: the runs, comparisons and studies in a directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadRun
from .terminal import grid
from .verbs import Answer, answer, arg

if TYPE_CHECKING:
    from ..report.catalog import Catalog, Entry

DEFAULT = "runs"
IN = arg("--in", dest="root", metavar="DIR", help="directory of runs (default: runs)")


def add(verb: Callable[..., Any]) -> None:
    for name in ("runs", "runs list"):
        verb(
            name,
            _list,
            "List the runs, comparisons and studies of a directory, the newest first.",
            arg(
                "words",
                nargs="*",
                metavar="DIR or WORD",
                help="a directory of runs; only those that match: words, tag:NAME, state:running",
            ),
            IN,
            arg("--last", type=int, metavar="N", help="only the newest N"),
        )
    verb(
        "runs show",
        _show,
        "Show a run: its state, metrics, privacy, notes.",
        arg("run", help="the run's name in the list, or its directory"),
        IN,
    )
    verb(
        "runs tag",
        _tag,
        "Add tags to a run, or remove some.",
        arg("run", help="the run's name in the list, or its directory"),
        arg("--add", action="append", default=[], metavar="TAG", help="may be given several times"),
        arg("--remove", action="append", default=[], metavar="TAG", help="may be given several times"),
        IN,
    )
    verb(
        "runs rm",
        _rm,
        "Delete runs with everything in their directories.",
        arg("run", nargs="+", help="names in the list, or directories"),
        IN,
        arg("--yes", action="store_true", help="delete; without it, only list what would be deleted"),
        arg("--force", action="store_true", help="also runs that may still be running"),
    )


def _root(args: Any) -> Path:
    return Path(args.root or DEFAULT)


def _catalog(args: Any) -> Catalog:
    from ..report.catalog import Catalog

    root = _root(args)
    if not root.is_dir():
        raise BadRun(f"there is no directory {root}. Give one with --in, or start a run.")
    return Catalog(root)


def _find(args: Any, name: str) -> Entry:
    """Return the entry of a name in the list, or of a directory anywhere."""
    from ..report.catalog import Catalog

    root = _root(args)
    if root.is_dir():
        try:
            return Catalog(root).get(name)
        except BadRun:
            if not Path(name).is_dir():
                raise
    return Catalog(Path(name)).get(".")


def _list(args: Any) -> Answer:
    from ..report.numbers import format_metric, metric_name, significant

    words = list(args.words)
    if words and args.root is None and Path(words[0]).is_dir():
        args.root = words.pop(0)
    found = [e for e in _catalog(args).entries() if e.matches(words)]
    found = found if args.last is None else found[: max(0, args.last)]

    def show(console: Any) -> None:
        if not found:
            where = f"in {_root(args)}"
            if words:
                where += f" match {' '.join(words)}. A directory of runs is given with --in DIR."
            console.print(f"no runs {where}", highlight=False, markup=False, soft_wrap=True)
            return
        rows = [
            [
                e.id,
                e.kind,
                e.state,
                f"{e.done}/{e.planned}",
                "" if e.value is None else f"{metric_name(e.metric)} {format_metric(e.metric, e.value)}",
                "" if e.epsilon is None else significant(e.epsilon),
                e.started[:16].replace("T", " "),
                ", ".join(e.tags),
            ]
            for e in found
        ]
        console.print(grid(["run", "kind", "state", "done", "metric", "ε", "started (UTC)", "tags"], rows))

    return {"directory": str(_root(args)), "runs": [e.to_dict() for e in found]}, show


def _show(args: Any) -> Answer:
    from ..report import read_run
    from ..report.verdict import run as sentences

    entry = _find(args, args.run)
    value = entry.to_dict()
    lines = [
        f"run      {entry.id}",
        f"where    {entry.path}",
        f"kind     {entry.kind}",
        f"state    {entry.state}, {entry.done} of {entry.planned}",
        f"started  {entry.started}",
        f"tags     {', '.join(entry.tags) or 'none'}",
    ]
    if entry.problem:
        lines.append(f"problem  {entry.problem}")
    if entry.kind == "run" and entry.state != "unreadable":
        record = read_run(entry.path)
        value |= {
            "metrics": dict(record.metrics),
            "notes": record.notes,
            "ledger": record.ledger,
            "job": record.job,
        }
        lines += ["", *sentences(record)]
        lines += [f"note: {n}" for n in record.notes]
    return answer(value, lines)


def _tag(args: Any) -> Answer:
    from ..report.catalog import change_tags

    entry = _find(args, args.run)
    tags = change_tags(entry.path, args.add, args.remove)
    return answer({"run": entry.id, "tags": list(tags)}, [f"{entry.id}: {', '.join(tags) or 'no tags'}"])


def _rm(args: Any) -> Answer:
    from ..report.catalog import remove

    entries = [_find(args, name) for name in dict.fromkeys(args.run)]  # all names first: nothing half-done
    if running := [e.id for e in entries if e.state == "running" and not args.force]:
        raise BadRun(f"{', '.join(running)} may be running. Stop it first, or give --force.")
    if args.yes:
        for entry in entries:
            remove(entry, even_running=args.force)
    what = "deleted" if args.yes else "would delete (give --yes)"
    value = {"deleted": args.yes, "runs": [str(e.path) for e in entries]}
    return answer(value, [f"{what} {e.path}" for e in entries])
