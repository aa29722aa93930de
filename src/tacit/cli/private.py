"""`tacit train-private`: train one model with differential privacy, from a job file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .verbs import QUIET, SET, Answer, arg

SHORT = ("epsilon", "delta", "epochs", "clip", "batch_size", "device")


def add(verb: Callable[..., Any]) -> None:
    verb(
        "train-private",
        _train,
        "Train one model on one holder's rows with differential privacy (DP-SGD), from a job file.",
        arg("job", help="a job file (TOML) with a [private] table"),
        arg("--out", metavar="DIR", help="run directory (default: a new directory in runs/)"),
        SET,
        *(
            arg(f"--{name.replace('_', '-')}", metavar="VALUE", help=f"short for --set private.{name}=VALUE")
            for name in SHORT
        ),
        arg("--data-dir", metavar="DIR", help="directory of the data set's files"),
        QUIET,
        epilog='A job file: [data] name = "digits"; [model] name = "mlp"; [private] epsilon = 3.0, delta = '
        "1e-5, epochs = 20, …: the arguments of "
        "tacit.train_private.",
    )


def _train(args: Any) -> Answer:
    from ..config.private import load
    from ..runs import next_directory
    from . import answer_run, changes_of

    job, settings = load(args.job, changes_of(args, {name: f"private.{name}" for name in SHORT}))
    out = Path(args.out) if args.out is not None else next_directory(args.job)
    from ..config.toml import named
    from ..jobs.train_private import train_private
    from .progress import Watch

    dataset = job.dataset()
    with Watch(args.quiet, rounds=settings.get("epochs", 10)) as watch, named(job.file):
        result = train_private(dataset, model=job.model, **settings, data_job=job.data, out=out, watch=watch)
    accuracy = f"accuracy {result.metrics['accuracy']:.1%}  " if "accuracy" in result.metrics else ""
    return answer_run(result, out, watch.notes, [f"{accuracy}{result.ledger}"])
