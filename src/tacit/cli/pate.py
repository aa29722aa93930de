"""`tacit pate`: train a student on the noisy votes of teachers, from a job file.

[data]         name = "mnist": its rows are divided among the teachers; with `parties` or `by`, those
               parties are the teachers
[model]        name = "cnn": of the teachers, and of the student without a [student_model]
[aggregator]   name = "ConfidentGNMax", threshold = 200, sigma1 = 150, sigma2 = 40
[lessons]      epochs = 50, …                   how a teacher is trained
[student]      method = "vat", steps = 2000, …  how the student is trained
[pate]         teachers = 250, queries = 640, epsilon = 3.0, …   the arguments of `tacit.pate`;
               runtime = "processes" makes the teachers parties
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import BadJob, BadParameter
from ..parameters import bad, from_table, nearest

TABLES = ("data", "model", "student_model", "aggregator", "lessons", "student", "pate")
SETTINGS = {
    "teachers": int,
    "queries": int,
    "epsilon": float,
    "delta": float,
    "public": float,
    "publish": bool,
    "noise": str,
    "threshold": float,
    "within": float,
    "seed": int,
    "device": str,
    "runtime": str,
}
RUNTIMES = ("inprocess", "processes")
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def add(verb: Callable[..., Any]) -> None:
    parser = verb(
        "pate",
        _pate,
        "Label public rows by the noisy votes of teachers with private rows, and train a student on them.",
    )
    parser.add_argument("job", help="a job file (TOML) with [data] and [pate]")
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="directory for the student, labels and ledger (default: a new directory in runs/)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="TABLE.KEY=VALUE",
        dest="changes",
        help="change a value of the job file, like pate.queries=50; may be given several times",
    )
    parser.add_argument(
        "--confidential",
        action="store_true",
        help="also print the ε computed from the votes, which must not be published",
    )
    parser.add_argument("--quiet", action="store_true", help="no summary")


def _pate(args: Any) -> tuple[Any, Callable[[Any], None]]:
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
    return value, lambda console: console.print(
        "\n".join(lines), highlight=False, markup=False, soft_wrap=True
    )


def load(path: str | Path, changes: list[str] | tuple[str, ...] = ()) -> tuple[Any, dict[str, Any]]:
    """Return the data set or federation of a job file, and the arguments of `tacit.pate`."""
    from .. import models, private
    from ..config import job as config
    from ..config import toml
    from ..private import pate as aggregators

    file = Path(path)
    if not file.is_file():
        raise BadJob(f"there is no job file {file}. Check the path.")
    tables = toml.read(file)
    for change in changes:
        toml.change(tables, change)
    for key, table in tables.items():
        if key not in TABLES:
            raise BadJob(f"{file}: {key!r} is not a known table. {nearest(key, list(TABLES))}")
        if not isinstance(table, Mapping) and key not in ("model", "student_model", "aggregator"):
            raise BadJob(str(bad(str(file), key, table, f"a table, written as [{key}]")))
    settings = _settings(tables.get("pate", {}), file)
    data = dict(tables.get("data", {}))
    parties = "parties" in data or "by" in data
    job = config.from_tables(
        {
            "data": data if parties or not data else {**data, "parties": 1},
            "model": tables.get("model", "mlp"),
        },
        file,
    )
    if isinstance(job.model, models.Pretrained):
        raise BadJob(
            f"{file}, model: pretrained weights are for `tacit run` and `tacit compare`; teachers start from "
            "scratch. Remove them."
        )
    arguments: dict[str, Any] = {
        "model": job.model,
        "data_job": {
            k: v for k, v in job.resolved()["data"].items() if parties or k not in ("parties", "skew")
        },
    }
    try:
        for key, members in (("student_model", models.ALL), ("aggregator", aggregators.ALL)):
            if key in tables:
                arguments[key] = from_table(tables[key], members, f"{file}, {key}")
        for key, kind in (("lessons", private.Lessons), ("student", private.Student)):
            if key in tables:
                arguments[key] = from_table(
                    {"name": kind.__name__, **tables[key]}, {kind.__name__: kind}, f"{file}, {key}"
                )
    except BadParameter as error:
        raise BadJob(f"{file}: {error}") from None
    if settings.get("runtime") == "processes":
        from ..runtimes.processes import Processes

        settings["runtime"] = Processes()
    elif "runtime" in settings:
        from ..runtimes.inprocess import InProcess

        settings["runtime"] = InProcess()
    return job.federations()[0] if parties else job.dataset(), {**arguments, **settings}


def _settings(table: Mapping[str, Any], file: Path) -> dict[str, Any]:
    for key, value in table.items():
        if key not in SETTINGS:
            raise BadJob(f"{file}, pate: {key!r} is not a known key. {nearest(key, list(SETTINGS))}")
        kind = SETTINGS[key]
        if not (
            isinstance(value, int | float) and not isinstance(value, bool)
            if kind is float
            else type(value) is kind
        ):
            raise BadJob(str(bad(f"{file}, pate", key, value, WORDS[kind])))
    if table.get("runtime", RUNTIMES[0]) not in RUNTIMES:
        raise BadJob(str(bad(f"{file}, pate", "runtime", table["runtime"], " or ".join(map(repr, RUNTIMES)))))
    return dict(table)
