"""tacit predict: predict with a split network, between real parties or with all of them here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import BadParameter
from .split import kit_of, runtime
from .verbs import KIT, PATIENCE, PROCESSES, WAIT, Answer, answer, arg


def add(verb: Callable[..., Any]) -> None:
    verb(
        "predict",
        _predict,
        "Predict with a split network or a predictor of `tacit ftl`: "
        "each party brings its part and its own rows; the holder of the top gets the predictions.",
        arg("part", help="the folder of your part; without a kit, the folder with all parts"),
        KIT,
        arg(
            "--file",
            action="append",
            default=[],
            metavar="[PARTY=]FILE.csv",
            help="your new rows; without a kit, each party's as PARTY=FILE.csv",
        ),
        arg(
            "--out",
            default="predictions.csv",
            metavar="FILE.csv",
            help="the file of predictions, at the party that gets them (default: predictions.csv)",
        ),
        arg(
            "--duplicates",
            default="refuse",
            choices=("refuse", "first"),
            help="rows of your file with the id of an earlier row and other values: "
            "refuse the file, or keep the first row of each id (default: refuse)",
        ),
        arg("--force", action="store_true", help="overwrite an existing file"),
        PROCESSES,
        WAIT,
        PATIENCE,
    )


def _predict(args: Any) -> Answer:
    from ..jobs.vertical import split_deployed as deployed
    from ..parties.ledger import Ledger

    if args.kit is not None:
        if len(args.file) > 1 or args.processes:
            raise BadParameter("predict: with --kit give one --file, your own, and no --processes.")
        value = deployed.predict_part(
            kit_of(args.kit, "tacit predict --kit"),
            args.part,
            args.file[0] if args.file else None,
            args.out,
            args.patience,
            args.force,
            args.duplicates,
            args.wait,
        )
    else:
        files = {}
        for argument in args.file:
            name, equals, file = argument.partition("=")
            if not equals:
                raise BadParameter(
                    f"predict: expected --file PARTY=FILE.csv without a kit, got --file {argument}."
                )
            files[name] = file
        ledger = Ledger()
        value = deployed.predict_here(
            args.part,
            files,
            args.out,
            runtime(args.processes, "tacit predict --processes"),
            ledger,
            args.force,
            args.duplicates,
        )
        value["ledger"] = ledger.to_dict()
    lines = [f"note    {note}" for note in value["notes"]]
    lines.append(
        f"{value['rows']} rows"
        + (
            f", predictions in {value['out']}"
            if "out" in value
            else ", predictions at the party that holds the top"
        )
    )
    return answer(value, lines)
