"""tacit infer: evaluate one party's model on another's rows, on secret shares, between real parties or with
all of them here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..errors import BadParameter
from .split import kit_of, runtime
from .verbs import FORCE, KIT, PATIENCE, PROCESSES, READING, WAIT, Answer, answer, arg, reading_of


def add(verb: Callable[..., Any]) -> None:
    verb(
        "infer",
        _infer,
        "Score one party's rows with another party's model (trees or a network) on secret shares: neither "
        "sees the other's, and one of them gets the scores.",
        arg("job", help="a job file (TOML) with [infer] and [parties.NAME], the same at all parties"),
        KIT,
        arg(
            "--file",
            metavar="FILE",
            help="with --kit: your own model (XGBoost's JSON, or the directory of a run) or your own rows, "
            "if the job does not name it; it stays here",
        ),
        arg(
            "--out",
            metavar="FILE.csv",
            help="the file of scores, at the party that gets them (default: scores.csv)",
        ),
        *READING,
        FORCE,
        PROCESSES,
        WAIT,
        PATIENCE,
    )


def _infer(args: Any) -> Answer:
    from ..jobs import infer_deployed
    from ..parties.ledger import Ledger

    if args.kit is not None:
        if args.processes:
            raise BadParameter(
                "infer: --processes runs all parties here, --kit runs one. Give only one of the two."
            )
        kit = kit_of(args.kit, "tacit infer --kit")
        value = infer_deployed.take_part(
            kit, args.job, args.file, args.out, args.patience, args.wait, args.force, reading_of(args)
        )
    else:
        if args.file is not None:
            raise BadParameter(
                "infer: without a kit all parties run here, with the files of the job. Leave out --file, or "
                "give --kit."
            )
        ledger = Ledger()
        place = runtime(args.processes, "tacit infer --processes")
        value = infer_deployed.run_here(args.job, args.out, place, ledger, args.force, reading_of(args))
        value["ledger"] = ledger.to_dict()
    return answer(value, _lines(value))


def _lines(value: dict[str, Any]) -> Iterable[str]:
    yield from (f"note    {note}" for note in value["notes"])
    if value["rows"] is not None:  # a helper does not know more than their shapes
        yield f"rows    {value['rows']}"
    yield f"scores  {value['out']}" if "out" in value else "scores  at the party that receives them"
