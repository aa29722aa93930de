"""tacit join: sums and counts over people whom several parties have, between real parties or with all of them
here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..errors import BadParameter
from .split import kit_of, runtime
from .verbs import KIT, PATIENCE, PROCESSES, WAIT, Answer, answer, arg


def add(verb: Callable[..., Any]) -> None:
    verb(
        "join",
        _join,
        "Sum and count over the people whom several parties have, on secret shares; no figure is about fewer "
        "people than the minimum.",
        arg("job", help="a job file (TOML) with [join] and [parties.NAME], the same at all parties"),
        KIT,
        arg(
            "--file",
            metavar="FILE.csv",
            help="with --kit: your own table, if the job does not name it; it stays here",
        ),
        arg(
            "--out",
            metavar="DIR",
            help="the folder of the figures (default: part in the kit); without a kit, one for all parties",
        ),
        PROCESSES,
        WAIT,
        PATIENCE,
    )


def _join(args: Any) -> Answer:
    from ..jobs.vertical import join_deployed
    from ..parties.ledger import Ledger

    if args.kit is not None:
        if args.processes:
            raise BadParameter(
                "join: --processes runs all parties here, --kit runs one of them. Give only one of the two."
            )
        kit = kit_of(args.kit, "tacit join --kit")
        value = join_deployed.take_part(kit, args.job, args.file, args.out, args.patience, args.wait)
    else:
        if args.out is None or args.file is not None:
            raise BadParameter(
                "join: without a kit all parties run here, with the files of the job. Give --out for their "
                "figures and no --file, or give --kit."
            )
        ledger = Ledger()
        value = join_deployed.run_here(
            args.job, args.out, runtime(args.processes, "tacit join --processes"), ledger
        )
        value["ledger"] = ledger.to_dict()
    return answer(value, _lines(value))


def _lines(value: dict[str, Any]) -> Iterable[str]:
    yield from (f"note    {note}" for note in value["notes"])
    yield f"people  {value['people']} shared"
    for question in value["answers"]:
        for group, people, figures in zip(question["groups"], question["people"], question["figures"]):
            limits = [f" above {t:g}" for t in question["above"]] or [""]
            for limit, figure in zip(limits, figures):
                place = (
                    "" if question["by"] is None else f", {question['by']} {group} ({people or 'few'} people)"
                )
                shown = "not shown (too few people)" if figure is None else f"{figure:,.10g}"
                yield f"{question['name']}: {question['what']}{limit}{place}: {shown}"
    if value["folder"]:
        yield f"figures {value['folder']}"
