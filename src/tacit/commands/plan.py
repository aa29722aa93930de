"""tacit plan: what a job would let out, before it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def add(verb: Callable[..., Any]) -> None:
    made = verb("plan", _plan, "What a job would let out: who sees what, ε and δ, bytes, dropouts. Nothing is trained.")
    made.add_argument("job", help="a job file (TOML)")
    made.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE", dest="changes",
                      help="change a value of the job file, like train.rounds=5")


def _plan(args: Any) -> tuple[Any, Callable[[Any], None]]:
    from .. import config

    job = config.load(args.job, args.changes)
    told = job.train()
    fed, = job.federations()
    from ..jobs.planning import plan
    from ..toml import named

    with named(job.file):
        found = plan(fed, **told)
    return found.to_dict(), lambda console: console.print(str(found), highlight=False, markup=False, soft_wrap=True)
