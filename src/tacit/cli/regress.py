"""tacit regress: fit a regression over columns of several parties, between real parties or with all of them
here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .verbs import FILE, KIT, PATIENCE, PROCESSES, READING, WAIT, Answer, answer, arg
from .vertical import run_vertical_job


def add(verb: Callable[..., Any]) -> None:
    verb(
        "regress",
        _regress,
        "Fit a regression with standard errors on tables with different columns of the same ids, on secret "
        "shares; each party gets its own estimates.",
        arg("job", help="a job file (TOML) with [regress] and [parties.NAME], the same at all parties"),
        KIT,
        FILE,
        arg(
            "--out",
            metavar="DIR",
            help="the folder of your part (default: part in the kit); without a kit, a folder for all parts",
        ),
        *READING,
        PROCESSES,
        WAIT,
        PATIENCE,
    )


def _regress(args: Any) -> Answer:
    from ..jobs.vertical import regress_deployed

    value = run_vertical_job(args, "regress", regress_deployed, "parts")
    return answer(value, _lines(value))


def _lines(value: dict[str, Any]) -> Iterable[str]:
    yield from (f"note    {note}" for note in value["notes"])
    yield f"rows    {value['rows']} shared"
    if value["table"]:
        names = [".".join(str(row[k]) for k in ("party", "term") if k in row) for row in value["table"]]
        wide = max(len(name) for name in names)
        yield " " * wide + "".join(f"{h:>12}" for h in ("coef", "se", "z", "p", "low", "high"))
        for name, row in zip(names, value["table"]):
            yield f"{name:<{wide}}" + "".join(
                f"{row[k]:>12.5g}" for k in ("coef", "se", "z", "p", "low", "high")
            )
    if value.get("metrics"):
        yield "result  " + "  ".join(f"{k} {v:.4f}" for k, v in value["metrics"].items())
    if value["folder"]:  # a helper has none
        yield f"part    {value['folder']}"
