"""The command line. Heavy packages are imported by the verbs that need them, so that `tacit --help` is fast.

Results go to stdout, everything else to stderr; with --json stdout holds exactly one JSON document. Exit
codes: 0 success, 2 an error that the user can fix, 130 stopped by Ctrl-C or SIGTERM, 1 an internal error.
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
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import BadParameter, BadRun, TacitError
from ..parameters import propose_lines
from ..report.markup import plain
from . import data as datasets
from . import job as drafting
from . import verbs as commands
from .terminal import grid
from .verbs import QUIET, SET, Answer, answer, arg, one_of

if TYPE_CHECKING:
    from ..results import Result

SHORTCUTS = {
    "rounds": "train.rounds",
    "seed": "train.seed",
    "seeds": "train.seeds",
    "device": "train.device",
    "data-dir": "data.data_dir",
}
WIDTH = 160  # of tables that are written to a file or a pipe, which have no width


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:
        parser.print_help(sys.stderr)
        parser.exit(2)
    try:
        args, rest = parser.parse_known_args(_join_words(words))
        args.rest = rest
        if rest and not getattr(args, "takes_rest", False):
            _unknown(args.parser, rest)
    except _BadUsage as stopped:
        if "--json" in words:
            print(json.dumps({"error": {"kind": "Usage", "message": stopped.message}}))
        raise
    args.code = 0
    args.resume_with = ""  # the command that resumes a stopped run, once it has a directory
    args.result_lines = []  # what is printed with --quiet, too
    args.left = lambda: f" Resume with: {args.resume_with}" if args.resume_with else ""
    try:
        with _interrupt_on_sigterm(), propose_lines():
            _print(args, args.do(args))
        return args.code
    except TacitError as error:
        return _failed(args, 2, type(error).__name__, str(error))
    except KeyboardInterrupt:
        return _failed(args, 130, "Stopped", f"stopped.{args.left()}")
    except BrokenPipeError:  # the reader of the output has ended, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        more = "" if args.debug else " Run it again with --debug for a traceback."
        text = f"internal error (please report it): {type(error).__name__}: {error}.{more}"
        return _failed(args, 1, type(error).__name__, text)


def _join_words(words: list[str]) -> list[str]:
    """Return the words with a verb of two words, such as `party log`, as one.

    `tacit party` also takes a job file: one with such a name is written as ./log.
    """
    at = next((i for i, word in enumerate(words) if not word.startswith("-")), len(words))
    pair = " ".join(words[at : at + 2])
    return [*words[:at], pair, *words[at + 2 :]] if pair in commands.PAIRS else words


@contextlib.contextmanager
def _interrupt_on_sigterm() -> Iterator[None]:
    """End a command on SIGTERM as on Ctrl-C, so that temporary folders of rows and keys are removed."""
    if (
        threading.current_thread() is not threading.main_thread()
    ):  # a program that embeds tacit handles signals
        yield
        return

    def end(*_: Any) -> None:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background by a shell
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


def _unknown(parser: argparse.ArgumentParser, rest: list[str]) -> NoReturn:
    """Report unknown words with the verb's usage, and the nearest option."""
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


def _print(args: argparse.Namespace, result: Answer) -> None:
    """Print a verb's answer: its plain values as JSON, or as it prints them for people."""
    value, show = result
    if args.json:
        print(json.dumps(_plain(value), allow_nan=False, indent=2))
    elif not getattr(args, "quiet", False):
        from rich.console import Console

        show(Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH))
    else:
        for line in args.result_lines:
            print(plain(line))
    sys.stdout.flush()


def _plain(value: Any) -> Any:
    """Return what JSON can hold; NaN and infinite numbers become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value if isinstance(value, str | int | float | None) else str(value)


class _BadUsage(SystemExit):
    """Words that are not a command; exit code 2."""

    def __init__(self, message: str):
        super().__init__(2)
        self.message = message


class _Parser(argparse.ArgumentParser):
    """Options must be written in full: `compare --seed 3` is an error, not an abbreviation of --seeds."""

    def __init__(self, **more: Any):
        super().__init__(**{"allow_abbrev": False, **more})

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        print(f"{self.prog}: error: {message}", file=sys.stderr)
        raise _BadUsage(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a word that is not one of the choices, with the nearest one."""
        from ..parameters import nearest

        if action.choices is not None and value not in action.choices:
            words = list(map(str, action.choices))
            raise argparse.ArgumentError(action, f"{value!r} is not known. {nearest(str(value), words)}")


def _parser() -> argparse.ArgumentParser:
    import tacit

    parser = _Parser(
        prog="tacit",
        description="Privacy-preserving machine learning between parties that cannot share their data.",
    )
    parser.add_argument("--version", action="version", version=f"tacit {tacit.__version__}")
    shared = _Parser(add_help=False)
    for options in (
        parser,
        shared,
    ):  # before the verb and after it, where a default would override the former
        silent: dict[str, Any] = {"default": argparse.SUPPRESS} if options is shared else {}
        options.add_argument("--json", action="store_true", help="print one JSON document", **silent)
        options.add_argument("--debug", action="store_true", help="print a traceback on errors", **silent)
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)

    def verb(
        parent: Any, name: str, do: Callable[..., Any], text: str, *arguments: Any, **more: Any
    ) -> argparse.ArgumentParser:
        verb_parser: argparse.ArgumentParser = parent.add_parser(
            name, help=text, description=text, parents=[shared], **more
        )
        verb_parser.set_defaults(do=do, parser=verb_parser)
        commands.add_arguments(verb_parser, arguments)
        return verb_parser

    def job(*short: str) -> list[Any]:
        shortcuts = [
            arg(f"--{name}", metavar="VALUE", help=f"short for --set {SHORTCUTS[name]}=VALUE")
            for name in short
        ]
        return [SET, *shortcuts, QUIET]

    def place(what: str, result: str) -> Any:
        return one_of(
            arg("--out", metavar="DIR", help=f"directory of the {what} (default: a new directory in runs/)"),
            arg(
                "--resume",
                metavar="DIR",
                help=f"resume a {what} that was stopped; it gives the same {result} as without the stop, "
                "except for the randomness of a guard",
            ),
        )

    verb(
        verbs,
        "run",
        _run,
        "Train one model from a job file.",
        arg("job", nargs="?", help="a job file (TOML)"),
        place("run", "model"),
        *job("rounds", "seed", "device", "data-dir"),
    )
    verb(
        verbs,
        "compare",
        _compare,
        "Compare algorithms, skews and seeds with a central model and with local training.",
        arg("job", nargs="?", help="a job file (TOML) with [[algorithms]], [[data.skews]] or both"),
        place("comparison", "results"),
        *job("rounds", "seeds", "device", "data-dir"),
    )
    data = verbs.add_parser(
        "data", help="List data sets, or show how one is partitioned across parties."
    ).add_subparsers(metavar="VERB", required=True)
    datasets.add(partial(verb, data))
    drafts = verbs.add_parser(
        "job", help="Draft a job file from tables, with every problem and its treatment."
    ).add_subparsers(metavar="VERB", required=True)
    drafting.add(partial(verb, drafts))
    verb(
        verbs,
        "report",
        _report,
        "Write the HTML report of a run or a comparison, also while it is running.",
        arg("run", nargs="+", help="directory of a run or a comparison; several runs share one report"),
        arg(
            "-o",
            "--output",
            metavar="FILE",
            help="output file (default: report.html in that directory; for several, in the current one)",
        ),
    )
    verb(
        verbs,
        "algorithms",
        _algorithms,
        "List the algorithms and their parameters.",
        arg("name", nargs="?", help="show only this one"),
    )
    commands.add_all(partial(verb, verbs))
    verb(verbs, "doctor", _doctor, "Check this machine: versions, devices, data sets and extras.")
    return parser


# --- run and compare ----------------------------------------------------------------------------------------


def changes_of(args: argparse.Namespace, shortcuts: Mapping[str, str] = SHORTCUTS) -> list[str]:
    """Return the changes to a job file that --set, --data-dir and other short options give."""
    short = {key: getattr(args, name.replace("-", "_"), None) for name, key in shortcuts.items()}
    if (folder := getattr(args, "data_dir", None)) is not None:  # relative to the current directory
        short["data.data_dir"] = json.dumps(str(Path(folder).expanduser().resolve()))
    return [*args.changes, *(f"{key}={value}" for key, value in short.items() if value is not None)]


def _out(args: argparse.Namespace) -> Path:
    """Return the directory of a new run: --out, or the first unused of runs/NAME, runs/NAME-2, …

    A directory that contains a run is refused.
    """
    from ..runs import check_overwrites, is_resumable, next_directory

    if args.out is not None:
        out = Path(args.out)
        if (out / "events.jsonl").exists() or (out / "compare.json").exists() or (out / "runs").exists():
            many = not (out / "events.jsonl").exists()
            # only the command line writes the job of a comparison
            is_begun = (out / "job.toml").exists() if many else is_resumable(out)
            resume = f"Resume it with --resume {shlex.quote(str(out))}, or give"
            raise BadRun(
                f"{out} already contains a {'comparison' if many else 'run'}, which is never overwritten. "
                f"{resume if is_begun and many == (args.do is _compare) else 'Give'} another --out."
            )
        check_overwrites(out)
        return out
    return next_directory(args.job)


def _run(args: argparse.Namespace) -> Answer:
    from ..config import job as config

    job = _job_of(args, "run", config.of_run)
    options = job.train()  # refuses what is not a single run, before any data are read
    import tacit

    if _is_follower(options):
        return _follow(args, job, lambda feds: tacit.train(*feds, **options))
    out = _out(args) if args.resume is None else Path(args.resume)
    (fed,) = job.federations()

    from ..config.audit import keep_terms, kept_terms
    from ..config.toml import named
    from .progress import Watch, result_line

    terms = job.release if args.resume is None else kept_terms(out)

    def began() -> None:
        args.resume_with = f"tacit run --resume {shlex.quote(str(out))}"
        if terms is not None:
            keep_terms(out, terms)

    with Watch(args.quiet, rounds=options.get("rounds", 0), began=began) as watch, named(job.file):
        result = tacit.train(fed, **options, out=out, resume=args.resume is not None, watch=watch)
    lines = [result_line(result.metrics, result.metric, result.events)]
    if terms is None:
        return answer_run(result, out, watch.notes, lines)
    from .audit import attack

    found, _ = attack(out, terms, args.quiet)
    args.code = 0 if found.passed else 2
    args.result_lines = [found.headline()]
    return answer_run(result, out, watch.notes, [*lines, *found.lines()], released=found.passed)


def _is_follower(options: Mapping[str, Any]) -> bool:
    """Whether another process, rank 0 of torchrun or srun, writes and prints the result."""
    if "RANK" not in os.environ and "SLURM_PROCID" not in os.environ:
        return False
    from ..runtimes.ranks import is_follower

    return is_follower(options.get("ranks", "auto"))


def _follow(args: argparse.Namespace, job: Any, compute: Callable[..., Any]) -> Answer:
    """Compute this rank's share of a job, and answer nothing."""
    from ..config.toml import named

    args.json, args.quiet = False, True
    with named(job.file):
        compute(job.federations())
    return {}, lambda console: None


def answer_run(result: Result, out: Path, notes: list[str], lines: list[str], **more: Any) -> Answer:
    """Write the report of a training run and return the answer of its verb."""
    report = result.report(out / "report.html")
    result.card(out / "card.md")
    value = {
        "run": str(out),
        "report": str(report),
        "card": str(out / "card.md"),
        "metrics": result.metrics,
        "history": result.history,
        **more,
        "notes": notes,
        "ledger": result.ledger.to_dict(),
        "job": result.config,
    }
    stamps = [stamp for stamp in result.ledger.stamps if not any(stamp in line for line in lines)]
    return answer(value, [*lines, *stamps, f"run     {out}", f"report  {report}"])


def check_resume(args: argparse.Namespace, verb: str, noun: str, content: str) -> None:
    """Raise unless --resume names a directory and, if a job file is given too, it has this content."""
    out = Path(args.resume)
    if out.is_file():
        raise BadRun(
            f"--resume {out}: this is a file. --resume takes the directory of a {noun}. Start a new {noun} "
            f"from a job file without it: `tacit {verb} {out}`."
        )
    if not out.is_dir():
        raise BadRun(f"--resume {out}: there is no such directory. Give one that `tacit {verb}` wrote.")
    if args.job is not None and not (out / content).exists():
        raise BadRun(f"{out} holds no {noun} to resume: it contains no {content}. Start it without --resume.")


def _job_of(args: argparse.Namespace, what: str, of: Callable[[str], Any]) -> Any:
    """Return the job of a job file, or that of the directory to resume."""
    from ..config import job as config

    noun, content = {"run": ("run", "job.toml"), "compare": ("comparison", "runs")}[what]
    if args.resume is not None:
        check_resume(args, what, noun, content)
    if args.job is not None:
        return config.load(args.job, changes_of(args))
    if args.resume is None:
        raise BadParameter(
            f"{what}: there is no job. Give a job file (`tacit {what} job.toml`), or a {noun} to resume "
            "(`--resume DIR`)."
        )
    if changes_of(args):
        raise BadParameter(
            f"{what}: --resume continues a {noun} with its own job, which cannot be changed. Leave out "
            f"{', '.join(changes_of(args))}, or start a new {noun} with --out."
        )
    return of(args.resume)


def _compare(args: argparse.Namespace) -> Answer:
    from ..config import job as config

    job = _job_of(args, "compare", config.of_comparison)
    options = job.compare()
    import tacit

    if _is_follower(options):
        return _follow(args, job, lambda feds: tacit.compare(feds, **options))
    out = _out(args) if args.resume is None else Path(args.resume)
    feds = job.federations()
    from ..config.toml import named
    from .progress import Watch

    def began() -> None:
        _keep(out, job)
        args.resume_with = f"tacit compare --resume {shlex.quote(str(out))}"
        args.left = lambda: _left(out)

    with Watch(args.quiet, many=True, began=began) as watch, named(job.file):
        result = tacit.compare(feds, **options, out=out, resume=args.resume is not None, watch=watch)
    report = result.report(out / "report.html")
    args.result_lines = result.verdict
    value = {"comparison": str(out), "report": str(report), **result.summary}

    def show(console: Any) -> None:
        table = result.table()
        console.print(
            grid(
                ["", *map(str, table.columns)],
                [[str(name), *map(str, row)] for name, row in table.iterrows()],
            )
        )
        text = "\n".join(["", *result.verdict, "", f"comparison  {out}", f"report      {report}"])
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    return value, show


def _left(out: Path) -> str:
    """Return what a stopped comparison has written, and how to resume it."""
    where = shlex.quote(str(out))
    if (out / "compare.json").exists():
        return f" The comparison itself is done and in {where}; write its report with: tacit report {where}"
    runs = [p for p in (out / "runs").glob("*") if p.is_dir()]
    done = sum((p / "ledger.json").exists() for p in runs)
    return (
        f" {where} contains {len(runs)} run{'s' * (len(runs) != 1)}, {done} of them finished; see them "
        f"with: tacit report {where}. Resume with: tacit compare --resume {where}"
    )


def _keep(out: Path, job: Any) -> None:
    """Write the job of a comparison next to its runs, for --resume and for the report."""
    from ..config.toml import dumps
    from ..runs import write_atomic

    if not (out / "job.toml").exists():
        write_atomic(out / "job.toml", dumps(job.resolved()))


# --- report, algorithms, doctor -----------------------------------------------------------------------------


def _report(args: argparse.Namespace) -> Answer:
    from .. import report

    if len(args.run) == 1:
        runs, comparison = report.read(args.run[0])
    else:
        runs, comparison = [report.read_run(run) for run in args.run], None
    path = report.write(
        args.output or (Path(args.run[0]) if len(args.run) == 1 else Path()) / "report.html", runs, comparison
    )
    value = {"report": str(path), "runs": len(runs), "finished": all(r.is_finished for r in runs)}
    return answer(value, [str(path)])


def _algorithms(args: argparse.Namespace) -> Answer:
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


def _doctor(args: argparse.Namespace) -> Answer:
    from .doctor import examine

    result = examine()
    args.code = 0 if result["self_test"]["ok"] else 1
    return result, lambda console: console.print(grid(["", ""], [[k, v] for k, v in result["lines"]]))


def about(thing: Any) -> str:
    return _lines(thing).split("\n")[0]


def _lines(thing: Any) -> str:
    import inspect

    return inspect.getdoc(thing) or ""
