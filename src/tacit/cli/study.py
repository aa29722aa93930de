"""`tacit study`: reproduce published tables, each by one command."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import BadParameter, BadRun
from ..files import write_atomic
from ..progress import Progress

WORDS = (
    "`tacit study list` names those that come with tacit; `tacit study new FILE.toml` begins one of your "
    "own, `tacit study new FILE.toml NAME` with a "
    "copy of one of these; `tacit study diff A B` compares two that were run"
)
SCAFFOLD = """title = "My study"
source = ""                      # whose figures stand under [tables.published]
about = "What is compared, and how."
notes = []                       # why yours may differ
figure = "best"                  # "best", "last", "picked" (by held-out rows) or "rounds" (to a `target`)

[data]
name = "digits"
parties = 5

[model]
name = "logistic"

[train]
rounds = 10
seeds = 2                        # each cell runs from seeds 0 and 1

[quick.train]                    # what --quick changes
rounds = 2
seeds = 1

[[tables]]
name = "accuracy"
columns = [
    { label = "IID", data = { skew = { name = "IID" } } },
    { label = "Dir(0.5)", data = { skew = { name = "Dirichlet", alpha = 0.5 } } },
]

[[tables.rows]]
label = "FedAvg"
algorithm = { name = "FedAvg", lr = 0.1 }

[[tables.rows]]
label = "FedProx {mu}"
algorithm = { name = "FedProx", lr = 0.1 }
grid = { "algorithm.mu" = [0.01, 1.0] }       # a row of each value

[[tables.rows]]
label = "central"
baseline = "central"
algorithm = { name = "FedAvg", lr = 0.1 }

[tables.published.FedAvg]
"IID" = 0.9                      # shown next to yours
"""


def add(verb: Callable[..., Any]) -> None:
    parser = verb(
        "study",
        _study,
        "Reproduce a published table by one command; an interrupted study resumes.",
        epilog=WORDS + ".",
    )
    parser.add_argument("name", help="a study, a study file (.toml), or one of: list, new, diff")
    parser.add_argument(
        "more",
        nargs="*",
        default=[],
        metavar="FILE|DIR",
        help="new: the file to begin, and the study it begins as a copy of; diff: two directories of studies",
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="directory of the data sets' files (default: TACIT_DATA, or the cache)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a few rows and rounds, to see that everything works; its figures mean nothing",
    )
    parser.add_argument(
        "-o",
        "--out",
        metavar="DIR",
        help="directory of the study (default: runs/study-NAME); a study that was started there resumes",
    )
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda or auto (default: auto)")
    for name, what in (("seeds", "seeds"), ("rounds", "rounds"), ("rows", "training rows")):
        parser.add_argument(
            f"--{name}",
            type=int,
            metavar="N",
            help=f"other than the study's own number of {what}; reduced so, it is another study",
        )
    parser.add_argument(
        "--only",
        metavar="REGEX",
        default="",
        help="only cells in whose name (table | row | column | seed) this is found",
    )
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="processes of this machine that share the runs (default: 1), each on one of several GPUs; with "
        "--on, the most workers of the cluster (default: as many as fit)",
    )
    parser.add_argument(
        "--on",
        metavar="ray[://HOST:PORT]",
        help="share the runs among the workers of a Ray cluster: ray is that of this machine, or a local one "
        "that is started; ray://HOST:10001 one elsewhere. It needs the extra ray",
    )
    parser.add_argument(
        "--cpus", type=float, metavar="N", help="cores of each worker of the cluster (default: 1)"
    )
    parser.add_argument(
        "--gpus",
        type=float,
        metavar="F",
        help="GPUs of each worker of the cluster; 0.25 runs four on one (default: 1 if there are any)",
    )
    parser.add_argument(
        "--shard",
        metavar="I/N",
        help="run part I of N only; the parts may run at the same time, on machines that share the directory "
        "(in a job array of Slurm: --shard $SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress and no summary")


def _study(args: argparse.Namespace) -> tuple[Any, Callable[[Any], None]]:
    own = {"list": _list, "new": _new, "diff": _diff}.get(args.name)
    if own is not None:
        return own(args)
    if args.more:
        raise BadParameter(
            f"study: {' '.join(args.more)!r} after {args.name!r} means nothing. Settings are options: --out "
            f"DIR, --only REGEX; {WORDS}."
        )
    return _run(args)


def _list(args: argparse.Namespace) -> tuple[Any, Callable[[Any], None]]:
    from ..jobs.study import file as study_file
    from .terminal import grid

    _count(args, 0, "tacit study list")
    found = [{"name": name, **study_file.head(name)} for name in study_file.names()]
    rows = [[s["name"], s["title"], s["source"]] for s in found]
    return {"studies": found}, lambda console: console.print(
        grid(["study", "what it is", "whose figures"], rows)
    )


def _new(args: argparse.Namespace) -> tuple[Any, Callable[[Any], None]]:
    if len(args.more) != 2:
        _count(args, 1, "tacit study new FILE.toml")
    path = Path(args.more[0])
    if path.suffix != ".toml":
        raise BadParameter(
            f"study: {path} is to be a study file, whose name ends in .toml. Write `tacit study new "
            f"{path.with_suffix('.toml')}`."
        )
    text = SCAFFOLD
    if len(args.more) == 2:
        from ..jobs.study import file as study_file

        text = study_file.find(args.more[1]).read_text(encoding="utf-8")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text, replace=False)
    except FileExistsError:
        raise BadRun(f"{path} is there already, and is not written over. Give another name.") from None
    except OSError as error:
        raise BadRun(f"{path} cannot be written: {error.strerror}. Give another place.") from None
    text = f"{path}\nrun it with: tacit study {shlex.quote(str(path))}"
    return {"file": str(path)}, lambda console: console.print(
        text, highlight=False, markup=False, soft_wrap=True
    )


def _diff(args: argparse.Namespace) -> tuple[Any, Callable[[Any], None]]:
    from ..jobs.study import table as study_table
    from .terminal import grid

    _count(args, 2, "tacit study diff A B")
    found = study_table.diff(*(study_table.read(d) for d in args.more))

    def show(console: Any) -> None:
        words = {True: "beyond chance", False: "", None: ""}
        rows = [
            [
                c["table"],
                c["row"],
                c["column"],
                study_table.shown(c["figure"], c["a"]),
                study_table.shown(c["figure"], c["b"]),
                "–"
                if c["difference"] is None
                else f"{c['difference']:+.3f}"
                if c["figure"] != "rounds"
                else f"{c['difference']:+.0f}",
                words[c["clear"]],
            ]
            for c in found["cells"]
        ]
        console.print(grid(["table", "row", "column", args.more[0], args.more[1], "difference", ""], rows))
        text = ["beyond chance: more than two standard errors over the seeds of both", *found["notes"]]
        for which, where in zip("ab", args.more):
            if names := [" | ".join(c.values()) for c in found["only"][which]]:
                text.append(
                    f"only in {where}: {'; '.join(names[:5])}"
                    + (f" and {len(names) - 5} more" if len(names) > 5 else "")
                )
        console.print("\n".join(text), highlight=False, markup=False, soft_wrap=True)

    return found, show


def _count(args: argparse.Namespace, expected: int, usage: str) -> None:
    if len(args.more) != expected:
        raise BadParameter(
            f"study {args.name}: expected {expected} arguments, got {len(args.more)}: `{usage}`."
        )


def _run(args: argparse.Namespace) -> tuple[Any, Callable[[Any], None]]:
    from ..jobs.study import file as study_file
    from ..jobs.study import table as study_table
    from ..jobs.study.shards import WHOLE, Shard
    from ..jobs.study.store import Store
    from ..jobs.study.study import Sharing, default_directory, write_result

    shard = WHOLE if args.shard is None else Shard.parse(args.shard)

    changes = {k: getattr(args, k) for k in ("seeds", "rounds", "rows")}
    spec = study_file.load(args.name, quick=args.quick, data_dir=args.data_dir, device=args.device, **changes)
    out = Path(args.out) if args.out else default_directory(spec)
    given = [
        f"--{k} {shlex.quote(str(v))}"
        for k, v in (("data-dir", args.data_dir), ("device", args.device), *changes.items())
        if v is not None
    ]
    sharing = {k: v for k in ("workers", "on", "cpus", "gpus") if (v := getattr(args, k)) is not None}
    whole = " ".join(
        [
            "tacit study",
            shlex.quote(args.name),
            *(["--quick"] if args.quick else []),
            *given,
            *(
                f"--{k} {shlex.quote(f'{v:g}' if isinstance(v, float) else str(v))}"
                for k, v in sharing.items()
            ),
            f"--out {shlex.quote(str(out))}",
        ]
    )

    progress = Progress(args.quiet)

    def say(text: str) -> None:
        only = f" --only {shlex.quote(args.only)}" if args.only else ""
        part = f" --shard {args.shard}" if args.shard else ""
        args.resume_with = whole + only + part  # before that there is nothing to resume
        progress.line(text)

    from ..report import study as page

    try:
        store = Sharing(**sharing).run(spec, out, only=args.only, shard=shard, say=say)
        result = write_result(spec, store, out)
    except KeyboardInterrupt:
        if (out / "study.json").exists() and (store := Store(out, spec)).done():
            write_result(spec, store, out)
            args.left = lambda: f" What is done is in {out / 'report.html'}. Resume with: {args.resume_with}"
        raise
    found, files = result.summary, result.files

    def show(console: Any) -> None:
        from .terminal import grid

        for table in found["tables"]:
            console.print(grid(*study_table.text_table(table)), "")
            if table.get("claim"):
                console.print(table["claim"]["text"] + "\n", highlight=False, markup=False, soft_wrap=True)
        text = [
            f"ours, ± the standard deviation over seeds; (published); [replicated]. {page.timing(found)}",
            *(f"· {note}" for note in found["notes"]),
        ]
        if found["quick"]:
            text.insert(
                0, "--quick: these figures come from a few rows and rounds, and say nothing about the method."
            )
        if found["changed"]:
            text.insert(0, f"Run with {found['changed']}: this is not the study as its file has it.")
        if found["done"] < found["runs"]:
            text.insert(0, f"{found['done']} of {found['runs']} runs are done. Resume with: {whole}")
        console.print(
            "\n".join([*text, "", *(f"{p.name:16} {p}" for p in files)]),
            highlight=False,
            markup=False,
            soft_wrap=True,
        )

    return {"out": str(out), "files": [str(p) for p in files], **found}, show
