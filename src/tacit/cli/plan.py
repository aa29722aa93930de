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
        arg(
            "job",
            help="any job file (TOML): of run, compare, party, train-private, pate, split, ftl or boost "
            "over different columns",
        ),
        arg("--kit", metavar="DIR", help="a start kit, for the job file of a run between real parties"),
        arg(
            "--parties",
            type=int,
            metavar="N",
            help="without a kit: how many clients to plan for, for the job file of real parties (default: 3)",
        ),
        SET,
    )


def _plan(args: Any) -> Answer:
    from ..jobs.plan_file import plan_file

    planned = plan_file(args.job, args.changes, args.kit, args.parties)
    if len(planned) == 1:
        return answer(planned[0].outlook.to_dict(), [str(planned[0].outlook)])
    lines = [f"{job.label}\n{job.outlook}\n" for job in planned]
    return answer({"plans": [{"label": p.label, **p.outlook.to_dict()} for p in planned]}, lines)
