"""tacit plan: what a job would reveal, before it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .verbs import SET, Answer, answer, arg


def add(verb: Callable[..., Any]) -> None:
    verb(
        "plan",
        _plan,
        "Show what a job would reveal: who sees what, ε and δ, bytes, dropouts. Nothing is trained.",
        arg("job", help="a job file (TOML)"),
        arg("--kit", metavar="DIR", help="a start kit, for the job file of a run between real parties"),
        SET,
    )


def _plan(args: Any) -> Answer:
    from ..config.toml import named
    from ..jobs.plan import plan

    if args.kit is not None:
        from ..runtimes.processes import need_net

        need_net("tacit plan --kit")
        from ..jobs.train import deployed
        from ..runtimes import kits

        kit = kits.load(args.kit)
        layout, options = deployed.read(args.job, args.changes)
        fed, options["runtime"] = deployed.federation(kit, layout), deployed.Deployed(kit, layout)
    else:
        from ..config import job as config

        job = config.load(args.job, args.changes)
        options = job.train()
        (fed,) = job.federations()
    with named(args.job):
        outlook = plan(fed, **options)
    return answer(outlook.to_dict(), [str(outlook)])
