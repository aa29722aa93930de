"""`tacit pate`: train a student on the noisy votes of teachers, from a job file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .verbs import SET, Answer, answer, arg


def add(verb: Callable[..., Any]) -> None:
    verb(
        "pate",
        _pate,
        "Label public rows by the noisy votes of teachers with private rows, and train a student on them.",
        arg("job", help="a job file (TOML) with [data] and [pate]"),
        arg(
            "--out",
            metavar="DIR",
            help="directory for the student, labels and ledger (default: a new directory in runs/)",
        ),
        SET,
        arg(
            "--confidential",
            action="store_true",
            help="also print the ε computed from the votes, which must not be published",
        ),
        arg("--quiet", action="store_true", help="no summary"),
    )


def _pate(args: Any) -> Answer:
    from ..config.pate import load

    dataset, arguments = load(args.job, args.changes)
    from ..jobs.pate.pate import pate
    from ..runs import next_directory

    out = Path(args.out) if args.out else next_directory(args.job)
    result = pate(dataset, **arguments, out=out)
    value = {"run": str(out), "report": str(out / "report.html"), **result.to_dict()}
    lines = [
        f"student  accuracy {result.metrics['accuracy']:.4f}"
        if "accuracy" in result.metrics
        else "student  not tested: there are no test rows",
        f"privacy  ε = {result.epsilon:.4g}, δ = {result.delta:g}",
        f"answers  {int((result.labels >= 0).sum()):,} of {len(result.labels):,} queries",
    ]
    if args.confidential and "epsilon" in result.confidential:
        value["confidential"] = {
            "epsilon": result.confidential["epsilon"],
            "note": result.confidential["note"],
        }
        lines.append(
            f"         ε = {result.confidential['epsilon']:.4g} by the votes ({result.confidential['note']})"
        )
    lines += [*(f"note     {n}" for n in result.notes), f"run      {out}", f"report   {out / 'report.html'}"]
    return answer(value, lines)
