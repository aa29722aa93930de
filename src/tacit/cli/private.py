"""`tacit train-private`: train one model with differential privacy, from a job file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

SHORT = ("epsilon", "delta", "epochs", "clip", "batch_size", "device")


def add(verb: Callable[..., Any]) -> None:
    parser = verb(
        "train-private",
        _train,
        "Train one model on one holder's rows with differential privacy (DP-SGD), from a job file.",
        epilog='A job file: [data] name = "digits"; [model] name = "mlp"; [private] epsilon = 3.0, delta = '
        "1e-5, epochs = 20, …: the arguments of "
        "tacit.train_private.",
    )
    parser.add_argument("job", help="a job file (TOML) with a [private] table")
    parser.add_argument("--out", metavar="DIR", help="run directory (default: a new directory in runs/)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="TABLE.KEY=VALUE",
        dest="changes",
        help="change a value of the job file, like private.lr=0.1",
    )
    for name in SHORT:
        parser.add_argument(
            f"--{name.replace('_', '-')}", metavar="VALUE", help=f"short for --set private.{name}=VALUE"
        )
    parser.add_argument("--data-dir", metavar="DIR", help="directory of the data set's files")
    parser.add_argument("--quiet", action="store_true", help="no progress and no summary")


def _train(args: Any) -> tuple[Any, Callable[[Any], None]]:
    from ..config.private import load
    from ..runs import next_directory
    from . import changes_of

    job, settings = load(args.job, changes_of(args, {name: f"private.{name}" for name in SHORT}))
    out = Path(args.out) if args.out is not None else next_directory(args.job)
    from ..config.toml import named
    from ..jobs.train_private import train_private
    from .progress import Watch

    dataset = job.dataset()
    with Watch(args.quiet, rounds=settings.get("epochs", 10)) as watch, named(job.file):
        result = train_private(dataset, model=job.model, **settings, data_job=job.data, out=out, watch=watch)
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
    accuracy = f"accuracy {result.metrics['accuracy']:.1%}  " if "accuracy" in result.metrics else ""
    text = f"{accuracy}{result.ledger}\nrun     {out}\nreport  {report}"
    return value, lambda console: console.print(text, highlight=False, markup=False, soft_wrap=True)
