"""tacit predict: score new rows with the model of a run, boosted trees or a scorecard in a file, or predict
with a split network, between real parties or with all of them here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import BadParameter, MissingFiles
from .split import kit_of, runtime
from .verbs import KIT, PATIENCE, PROCESSES, READING, WAIT, Answer, answer, arg, parse_columns, reading_of


def add(verb: Callable[..., Any]) -> None:
    verb(
        "predict",
        _predict,
        "Score new rows with the model of a run, or of a file (boosted trees, a scorecard); or predict with "
        "a split network, a predictor of `tacit ftl`, a regression or boosted trees of several parties: each "
        "party brings its part and its own rows; the holder of the top, or of the label, gets the "
        "predictions.",
        arg(
            "part",
            metavar="RUN|MODEL.json|PART",
            help="the directory of a run, or of a party's model; the file of boosted trees or of a "
            "scorecard; for a split network the folder of your part, and without a kit the folder with all "
            "parts",
        ),
        arg("table", nargs="?", metavar="NEW.csv", help="with a run or a file: the new rows, without labels"),
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
        arg(
            "--keep",
            action="append",
            default=[],
            metavar="COLUMNS",
            help="with a run or a file: columns to copy to the output, like patient,ward; may be given "
            "several times",
        ),
        arg(
            "--threshold",
            type=float,
            metavar="P",
            help="with two classes, of a run or a file: the probability from which the second is predicted",
        ),
        *READING,
        arg(
            "--receiver",
            metavar="PARTY",
            help="with boosted trees: who gets the predictions, the same at all parties (default: the "
            "label's holder)",
        ),
        arg("--force", action="store_true", help="overwrite an existing file"),
        PROCESSES,
        WAIT,
        PATIENCE,
        epilog="With a run, --separator, --decimal and --encoding are by default as its job declares them.",
    )


def _predict(args: Any) -> Answer:
    from ..release.release import has_release

    if args.table is not None or has_release(args.part) or Path(args.part).is_file():
        return _score(args)
    return _predict_split(args)


def _score(args: Any) -> Answer:
    """Score the rows of a file with the model of a run, or of another file."""
    from ..jobs.boost import score_file as boosted
    from ..release.release import check_release, read_model
    from ..release.score_file import score_file

    is_file = Path(args.part).is_file()
    if not is_file and Path(args.part).suffix == ".json":
        raise MissingFiles(f"predict: there is no file {args.part}.")
    if not is_file:
        check_release(args.part)
    if args.table is None or args.file or args.kit is not None or args.processes or args.receiver:
        raise BadParameter(
            f"predict: {args.part} holds the whole model{'' if is_file else ' of a run'}: give it the new "
            "rows, without --file, --kit, --receiver and --processes, like `tacit predict "
            f"{args.part} new.csv --out scored.csv`."
        )
    score = (
        functools.partial(boosted.score_file, args.part)
        if is_file
        else functools.partial(score_file, *read_model(args.part))
    )
    scored = score(
        args.table,
        args.out,
        keep=parse_columns(args.keep, "--keep"),
        threshold=args.threshold,
        **reading_of(args),
        force=args.force,
    )
    lines = [f"note    {note}" for note in scored.notes]
    lines.append(f"{scored.rows:,} row{'s' * (scored.rows != 1)}, scores in {scored.out}")
    return answer({"rows": scored.rows, "out": str(scored.out), "notes": scored.notes}, lines)


def _predict_split(args: Any) -> Answer:
    from ..jobs.vertical import boost_predict, predict_deployed, regress_predict
    from ..parties.ledger import Ledger

    fitted, boosted = regress_predict.has_parts(args.part), boost_predict.has_parts(args.part)
    deployed: Any = regress_predict if fitted else boost_predict if boosted else predict_deployed
    if args.receiver is not None and not boosted:
        raise BadParameter("predict: --receiver is for boosted trees of several parties.")
    options = {"receiver": args.receiver or ""} if boosted else {}

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
            **options,
            reading=reading_of(args),
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
            **options,
            reading=reading_of(args),
        )
        value["ledger"] = ledger.to_dict()
    lines = [f"note    {note}" for note in value["notes"]]
    lines.append(
        f"{value['rows']} row{'s' * (value['rows'] != 1)}"
        + (
            f", predictions in {value['out']}"
            if "out" in value
            else f", predictions at the party that {_receives(fitted, boosted)}"
        )
    )
    return answer(value, lines)


def _receives(fitted: bool, boosted: bool) -> str:
    return "receives them" if boosted else f"holds the {'label' if fitted else 'top'}"
