"""The command line. Heavy imports wait until a verb needs them, so that `tacit --help` answers at once.

Results go to stdout, everything else to stderr; with --json stdout holds exactly one JSON document. Exit
codes: 0 done, 2 something you can put right, 130 stopped by Ctrl-C (or told to end, by SIGTERM), 1 a fault of
tacit's own.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import math
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from ..errors import BadParameter, BadRun, TacitError
from ..report.markup import plain
from . import data as datasets
from . import verbs as commands
from .terminal import grid

SHORTCUTS = {
    "rounds": "train.rounds",
    "seed": "train.seed",
    "seeds": "train.seeds",
    "device": "train.device",
    "data-dir": "data.data_dir",
}
WIDTH = 160  # of tables that go to a file or a program, which has no width


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    args.rest = rest
    if rest and not getattr(args, "takes_rest", False):
        _unknown(args.parser, rest)
    args.code = 0
    args.resume_with = ""  # the command that goes on from where a run stood, once it has a directory
    args.left = lambda: (
        f" Go on with: {args.resume_with}" if args.resume_with else ""
    )  # what a stopped command leaves behind
    try:
        with _told_to_end():
            _say(args, args.do(args))
        return args.code
    except TacitError as error:
        return _failed(args, 2, type(error).__name__, str(error))
    except KeyboardInterrupt:
        return _failed(args, 130, "Stopped", f"stopped.{args.left()}")
    except BrokenPipeError:  # whoever read our output has enough, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        more = "" if args.debug else " Run it again with --debug for where it happened, and please report it."
        return _failed(
            args,
            1,
            type(error).__name__,
            f"something went wrong inside tacit: {type(error).__name__}: {error}.{more}",
        )


@contextlib.contextmanager
def _told_to_end() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does. Else Python would die on the spot, and leave folders of rows and
    keys that are only there while it works.
    """
    if threading.current_thread() is not threading.main_thread():  # who embeds us looks after signals
        yield
        return

    def end(*_: Any) -> None:
        if (
            signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        ):  # started in the background, where a shell switches Ctrl-C off
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


def _unknown(parser: argparse.ArgumentParser, rest: list[str]) -> NoReturn:
    """A word that the verb does not know, under the verb's own usage, and what may have been meant."""
    known = [name for action in parser._actions for name in action.option_strings if name.startswith("--")]
    near = next(
        (
            close[0]
            for word in rest
            if word.startswith("-")
            and (close := difflib.get_close_matches(word.partition("=")[0], known, n=1))
        ),
        None,
    )
    parser.error(f"unrecognized arguments: {' '.join(rest)}" + (f". Did you mean {near}?" if near else ""))


def _failed(args: argparse.Namespace, code: int, kind: str, message: str) -> int:
    if args.debug:
        import traceback

        traceback.print_exc()
    print(f"tacit: {plain(message)}", file=sys.stderr)
    if args.json:
        print(
            json.dumps(
                {
                    "error": {
                        "kind": kind,
                        "message": message,
                        **({"resume": args.resume_with} if args.resume_with else {}),
                    }
                }
            )
        )
    return code


def _say(args: argparse.Namespace, answer: tuple[Any, Callable[[Any], None]]) -> None:
    """A verb gives its answer twice: as plain values, and as a function that prints them for people."""
    value, show = answer
    if args.json:
        print(json.dumps(_plain(value), allow_nan=False, indent=2))
    elif not getattr(args, "quiet", False):
        from rich.console import Console

        show(Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH))
    sys.stdout.flush()


def _plain(value: Any) -> Any:
    """What JSON can hold: a number that is none becomes null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value if isinstance(value, str | int | float | None) else str(value)


class _Parser(argparse.ArgumentParser):
    """Options in full: `compare --seed 3` is a mistake to be told, not a short form of --seeds."""

    def __init__(self, **more: Any):
        super().__init__(**{"allow_abbrev": False, **more})


def _parser() -> argparse.ArgumentParser:
    import tacit

    parser = _Parser(
        prog="tacit", description="Parties learn together and tell each other nothing they do not have to."
    )
    parser.add_argument("--version", action="version", version=f"tacit {tacit.__version__}")
    shared = _Parser(add_help=False)
    for place in (
        parser,
        shared,
    ):  # before the verb and after it: a verb that was not told must not unsay it, hence no default there
        silent: dict[str, Any] = {"default": argparse.SUPPRESS} if place is shared else {}
        place.add_argument(
            "--json", action="store_true", help="print one JSON document, for programs", **silent
        )
        place.add_argument(
            "--debug", action="store_true", help="when something fails, show where in the code", **silent
        )
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)

    def verb(
        parent: Any, name: str, do: Callable[..., Any], text: str, **more: Any
    ) -> argparse.ArgumentParser:
        made = parent.add_parser(name, help=text, description=text, parents=[shared], **more)
        made.set_defaults(do=do, parser=made)
        return made

    def job(made: argparse.ArgumentParser, *short: str) -> None:
        made.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="TABLE.KEY=VALUE",
            dest="changes",
            help="change a value of the job file, like train.rounds=5; may be given several times",
        )
        for name in short:
            made.add_argument(f"--{name}", metavar="VALUE", help=f"short for --set {SHORTCUTS[name]}=VALUE")
        made.add_argument("--quiet", action="store_true", help="no progress and no summary")

    run = verb(verbs, "run", _run, "Train one model as a job file says.")
    run.add_argument("job", nargs="?", help="a job file (TOML)")
    where = run.add_mutually_exclusive_group()
    where.add_argument(
        "--out", metavar="DIR", help="where the run is kept (default: a new directory in runs/)"
    )
    where.add_argument(
        "--resume",
        metavar="DIR",
        help="go on with a run that was stopped, to the same model as if it had not been, but for what a "
        "guard draws",
    )
    job(run, "rounds", "seed", "device", "data-dir")
    compare = verb(
        verbs,
        "compare",
        _compare,
        "Compare algorithms, skews and seeds with a central model and each party alone.",
    )
    compare.add_argument(
        "job", nargs="?", help="a job file (TOML) with [[algorithms]], [[data.skews]] or both"
    )
    where = compare.add_mutually_exclusive_group()
    where.add_argument(
        "--out", metavar="DIR", help="where the comparison is kept (default: a new directory in runs/)"
    )
    where.add_argument(
        "--resume",
        metavar="DIR",
        help="go on with a comparison that was stopped, to the same figures as if it had not been, "
        "but for what a guard draws",
    )
    job(compare, "rounds", "seeds", "device", "data-dir")

    data = verbs.add_parser("data", help="List data sets, or see how one lies with parties.").add_subparsers(
        metavar="VERB", required=True
    )
    datasets.add(partial(verb, data))
    report = verb(
        verbs, "report", _report, "Write the HTML report of a run or a comparison, finished or still going."
    )
    report.add_argument(
        "run", nargs="+", help="the directory of a run or a comparison; several runs share one report"
    )
    report.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="where to write it (default: report.html in that directory, or here for several)",
    )
    algorithms = verb(verbs, "algorithms", _algorithms, "The algorithms and their parameters.")
    algorithms.add_argument("name", nargs="?", help="only this one")
    commands.add_all(partial(verb, verbs))
    verb(verbs, "doctor", _doctor, "What tacit finds on this machine, and whether it works here.")
    return parser


# --- run and compare ----------------------------------------------------------------------------------------


def changes_of(args: argparse.Namespace, shortcuts: Mapping[str, str] = SHORTCUTS) -> list[str]:
    """Return the changes to a job file that --set, --data-dir and other short options give."""
    short = {key: getattr(args, name.replace("-", "_"), None) for name, key in shortcuts.items()}
    if (folder := getattr(args, "data_dir", None)) is not None:  # relative to the current directory
        short["data.data_dir"] = json.dumps(str(Path(folder).expanduser().resolve()))
    return [*args.changes, *(f"{key}={value}" for key, value in short.items() if value is not None)]


def _out(args: argparse.Namespace) -> Path:
    """Where a new run goes: as told, or the first free of runs/NAME, runs/NAME-2, …; never into a directory
    that holds one.
    """
    from ..runs import is_resumable, next_directory

    if args.out is not None:
        out = Path(args.out)
        if (out / "events.jsonl").exists() or (out / "compare.json").exists() or (out / "runs").exists():
            many = not (out / "events.jsonl").exists()
            begun = (
                (out / "job.toml").exists() if many else is_resumable(out)
            )  # only the command line leaves the job of a comparison
            again = (
                f"Go on with it by --resume {shlex.quote(str(out))}, or give"
                if begun and many == (args.do is _compare)
                else "Give"
            )
            raise BadRun(
                f"{out} already holds a {'comparison' if many else 'run'}, which is never written over. "
                f"{again} another --out."
            )
        return out
    return next_directory(args.job)


def _run(args: argparse.Namespace) -> tuple[Any, Callable[[Any], None]]:
    from ..config import job as config

    job = _asked(args, "run", config.of_run)
    told = job.train()  # refuses what is no single run, before any data is read
    out = Path(args.resume) if args.resume is not None else _out(args)
    (fed,) = job.federations()
    import tacit

    from ..config.toml import named
    from .progress import Watch, summary

    def began() -> None:
        args.resume_with = f"tacit run --resume {shlex.quote(str(out))}"

    with Watch(args.quiet, rounds=told.get("rounds", 0), began=began) as watch, named(job.file):
        result = tacit.train(fed, **told, out=out, resume=args.resume is not None, watch=watch)
    report = result.report(out / "report.html")
    value = {
        "run": str(out),
        "report": str(report),
        "metrics": result.metrics,
        "history": result.history,
        "notes": watch.notes,
        "ledger": result.ledger.to_dict(),
        "job": result.config,
    }
    text = f"{summary(result.metrics)}\nrun     {out}\nreport  {report}"
    return value, lambda console: console.print(text, highlight=False, markup=False, soft_wrap=True)


def _asked(args: argparse.Namespace, what: str, of: Callable[[str], Any]) -> Any:
    """The job that was given, or the one a directory was begun with."""
    from ..config import job as config

    noun = {"run": "run", "compare": "comparison"}[what]
    if args.job is not None:
        return config.load(args.job, changes_of(args))
    if args.resume is None:
        raise BadParameter(
            f"{what}: there is no job. Give a job file (`tacit {what} job.toml`), or a {noun} to go on with "
            "(`--resume DIR`)."
        )
    if changes_of(args):
        raise BadParameter(
            f"{what}: --resume goes on with a {noun} as it was begun, so nothing about it can be changed. "
            "Leave out "
            f"{', '.join(changes_of(args))}, or start a new {noun} with --out."
        )
    return of(args.resume)


def _compare(args: argparse.Namespace) -> tuple[Any, Callable[[Any], None]]:
    from ..config import job as config

    job = _asked(args, "compare", config.of_comparison)
    told, out = job.compare(), Path(args.resume) if args.resume is not None else _out(args)
    feds = job.federations()
    import tacit

    from ..config.toml import named
    from .progress import Watch

    def began() -> None:
        _keep(out, job)
        args.resume_with = f"tacit compare --resume {shlex.quote(str(out))}"
        args.left = lambda: _left(out)

    with Watch(args.quiet, many=True, began=began) as watch, named(job.file):
        found = tacit.compare(feds, **told, out=out, resume=args.resume is not None, watch=watch)
    report = found.report(out / "report.html")
    value = {"comparison": str(out), "report": str(report), **found.summary}

    def show(console: Any) -> None:
        table = found.table()
        console.print(
            grid(
                ["", *map(str, table.columns)],
                [[str(name), *map(str, row)] for name, row in table.iterrows()],
            )
        )
        text = "\n".join(["", *found.verdict, "", f"comparison  {out}", f"report      {report}"])
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    return value, show


def _left(out: Path) -> str:
    """What a stopped comparison leaves, and what can be done with it."""
    where = shlex.quote(str(out))
    if (out / "compare.json").exists():
        return f" The comparison itself is done and in {where}; write its report with: tacit report {where}"
    runs = [p for p in (out / "runs").glob("*") if p.is_dir()]
    done = sum((p / "ledger.json").exists() for p in runs)
    return (
        f" {where} keeps the {len(runs)} run{'s' * (len(runs) != 1)} begun, {done} of them finished; see "
        f"them with: tacit report {where}. "
        f"Go on with: tacit compare --resume {where}"
    )


def _keep(out: Path, job: Any) -> None:
    """The job of a comparison, beside its runs: what the report shows for doing it again."""
    from ..config.toml import dumps
    from ..runs import write_atomic

    if not (out / "job.toml").exists():
        write_atomic(out / "job.toml", dumps(job.resolved()))


# --- report, algorithms, doctor -----------------------------------------------------------------------------


def _report(args: argparse.Namespace) -> tuple[Any, Callable[[Any], None]]:
    from .. import report

    if len(args.run) == 1:
        runs, comparison = report.read(args.run[0])
    else:
        runs, comparison = [report.read_run(run) for run in args.run], None
    path = report.write(
        args.output or (Path(args.run[0]) if len(args.run) == 1 else Path()) / "report.html", runs, comparison
    )
    value = {"report": str(path), "runs": len(runs), "finished": all(r.is_finished for r in runs)}
    return value, lambda console: console.print(str(path), highlight=False, markup=False, soft_wrap=True)


def _algorithms(args: argparse.Namespace) -> tuple[Any, Callable[[Any], None]]:
    from .. import algorithms
    from ..parameters import describe, nearest

    known = {**algorithms.ALL, **algorithms.PARTS}
    chosen = (
        algorithms.ALL
        if args.name is None
        else {k: v for k, v in known.items() if k.lower() == args.name.lower()}
    )
    if not chosen:
        raise BadParameter(f"algorithms: {args.name!r} is not known. {nearest(args.name, list(known))}")
    listed: list[dict[str, Any]] = [
        {
            "name": name,
            "about": about(cls),
            "text": _lines(cls),
            "paper": _lines(sys.modules[cls.__module__]),
            "parameters": [dict(zip(("name", "allowed", "doc"), row)) for row in describe(cls)],
        }
        for name, cls in chosen.items()
    ]

    def short(parameter: dict[str, str]) -> str:
        return parameter["name"].split("(")[0]  # solver=SGD, without all that is in it

    def show(console: Any) -> None:
        if args.name is None:
            rows = [[a["name"], a["about"], ", ".join(short(p) for p in a["parameters"])] for a in listed]
            console.print(grid(["algorithm", "what it does", "parameters"], rows))
            console.print(
                f"Parts: {', '.join(algorithms.PARTS)}. One in full: tacit algorithms FedProx",
                highlight=False,
            )
            return
        for a in listed:
            console.print(f"{a['name']}\n\n{a['text']}\n\n{a['paper']}\n", markup=False, highlight=False)
            console.print(
                grid(
                    ["parameter", "may be", "is"],
                    [[short(p), p["allowed"], p["doc"]] for p in a["parameters"]],
                )
            )

    return {"algorithms": listed}, show


def _doctor(args: argparse.Namespace) -> tuple[Any, Callable[[Any], None]]:
    from .doctor import examine

    found = examine()
    args.code = 0 if found["self_test"]["ok"] else 1
    return found, lambda console: console.print(grid(["", ""], [[k, v] for k, v in found["lines"]]))


def about(thing: Any) -> str:
    return _lines(thing).split("\n")[0]


def _lines(thing: Any) -> str:
    import inspect

    return inspect.getdoc(thing) or ""
