"""tacit link: the records of two tables that belong to one person, between organizations or both here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .verbs import FILE, KIT, PATIENCE, PROCESSES, READING, WAIT, Answer, answer, arg
from .vertical import run_vertical_job


def add(verb: Callable[..., Any]) -> None:
    verb(
        "link",
        _link,
        "Find the records of two tables that belong to one person by names, dates and addresses, on secret "
        "shares; no common id is needed.",
        arg("job", help="a job file (TOML) with [link] and [parties.NAME], the same at all parties"),
        KIT,
        FILE,
        arg(
            "--out",
            metavar="DIR",
            help="the folder of the matched rows (default: part in the kit); without a kit, one for all",
        ),
        *READING,
        PROCESSES,
        WAIT,
        PATIENCE,
    )


def _link(args: Any) -> Answer:
    from ..jobs.vertical import link_deployed

    value = run_vertical_job(args, "link", link_deployed, "matched rows")
    return answer(value, _lines(value))


def _lines(value: dict[str, Any]) -> Iterable[str]:
    yield from (f"note    {note}" for note in value["notes"])
    rows = " and ".join(f"{n:,}" for n in value["sizes"])
    yield f"pairs   {value['candidates']:,} compared, of tables with {rows} rows"
    if "blocks" in value:  # of a party with a table
        yield f"people  {value['people']:,} in both tables"
    if value["folder"]:
        yield f"rows    {value['folder']}"
