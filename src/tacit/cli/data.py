"""tacit data: list the data sets, and show how one is partitioned across parties."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import BadParameter
from .terminal import grid, heat_map
from .verbs import READING, Answer, arg, reading_of


def add(verb: Callable[..., Any]) -> None:
    verb(
        "list",
        _list,
        "List the data sets and skews.",
        arg("--data-dir", metavar="DIR", help="the directory of their files"),
    )
    show = verb(
        "show",
        _show,
        "Show how a data set is partitioned: labels × parties, sizes, feature shift.",
        arg("name", help="a data set (`tacit data list`), or a .csv or .parquet file with --label"),
        arg(
            "--parties",
            metavar="N",
            help="how many parties (default: 10, or one for each group where the data has groups)",
        ),
        arg("--by", metavar="COLUMN", help="one party for each value of this column"),
        arg(
            "--skew",
            metavar="NAME",
            help="how the rows are partitioned across the parties: IID, Dirichlet, … (`tacit data list`)",
        ),
        arg("--data-dir", metavar="DIR", help="the directory of the data set's files"),
        arg("--plot", metavar="FILE.svg", help="also draw it into a file"),
        *READING,
        epilog="Any parameter of the data set or the skew may follow as --NAME VALUE, like --alpha 0.5 or "
        "--images true.",
    )
    show.set_defaults(takes_rest=True)


def _list(args: Any) -> Answer:
    import dataclasses
    import inspect

    from .. import data
    from . import about
    from .doctor import place_of

    sets: list[dict[str, Any]] = [
        {
            "name": name,
            "about": about(make),
            "files": place_of(name, args.data_dir),
            "options": {p.name: p.default for p in inspect.signature(make).parameters.values()},
        }
        for name, make in data.ALL.items()
    ]
    skews: list[dict[str, Any]] = [
        {
            "name": name,
            "about": about(cls),
            "parameters": {
                f.name: None if f.default is dataclasses.MISSING else f.default
                for f in dataclasses.fields(cls)
            },
        }
        for name, cls in data.SKEWS.items()
    ]

    def show(console: Any) -> None:
        console.print(
            grid(
                ["data set", "what it is", "its files"],
                [[s["name"], s["about"], s["files"]["text"]] for s in sets],
            ),
            "",
        )
        rows = [
            [
                s["name"],
                s["about"],
                ", ".join(k if v is None else f"{k}={v}" for k, v in s["parameters"].items()),
            ]
            for s in skews
        ]
        console.print(grid(["skew", "what it does", "parameters"], rows))

    return {"datasets": sets, "skews": skews}, show


def _show(args: Any) -> Answer:
    import inspect

    from .. import data
    from ..config import job as config

    file = args.name.lower().removesuffix(".gz").endswith((".csv", ".parquet", ".pq"))
    table: dict[str, Any] = {"path" if file else "name": args.name}
    skew: dict[str, Any] = {} if args.skew is None else {"name": args.skew}
    table |= {key: given for key in ("by", "data_dir") if (given := getattr(args, key)) is not None}
    if (reading := reading_of(args)) and not file:
        raise BadParameter(
            f"data show: --{next(iter(reading))} is for a CSV file, and {args.name!r} is a data set. Leave "
            "it out."
        )
    table |= reading
    if args.parties is not None:
        table["parties"] = config.value_of(args.parties)
    own = {k.lower(): v for k, v in data.SKEWS.items()}.get(str(args.skew).lower())
    takes: list[Any] = [] if file or args.name not in data.ALL else [data.ALL[args.name], data.Dataset.split]
    others = [name for function in takes for name in inspect.signature(function).parameters]
    for key, value in _pairs(args.rest):
        here = own is not None and key in own.__dataclass_fields__
        owners = [name for name, kind in data.SKEWS.items() if key in kind.__dataclass_fields__]
        if owners and others and not here and key not in others and (own is not None or args.skew is None):
            reason = "no skew was given" if own is None else f"the skew is {own.__name__}"
            raise BadParameter(
                f"data show: --{key} belongs to {' and '.join(owners)}, and {reason}. Add --skew "
                f"{owners[0]}, or leave --{key} out."
            )
        (skew if here else table)[key] = value
    if not {"parties", "by"} & set(table) and str(args.skew).lower() != "bycolumn":
        groups = {} if file or args.name not in data.ALL or args.skew else _groups(table)
        table |= {"by": next(iter(groups))} if groups else {"parties": 10}
    job = config.from_tables({"data": {**table, **({"skew": skew} if skew else {})}}, Path("data show"))
    (fed,) = job.federations()
    summary = fed.summary()
    value = {
        **summary,
        "skew": str(fed.skew),
        "seed": fed.seed,
        "features": list(fed.rows.x.shape[1:]),
        "test_rows": len(fed.test.y),
        "notes": list(fed.notes),
    }
    if args.plot:
        try:
            fed.plot(args.plot)
        except OSError as error:
            raise BadParameter(
                f"data show: {args.plot} cannot be written: {error.strerror}. Choose a place you may write "
                "to."
            ) from None
        value["plot"] = args.plot
    return value, lambda console: heat_map(console, value)


def _pairs(rest: Sequence[str]) -> list[tuple[str, Any]]:
    """Return pairs: --alpha 0.5 and --alpha=0.5 become ("alpha", 0.5)."""
    from ..config.toml import value_of

    words, pairs = (
        [part for word in rest for part in (word.split("=", 1) if word.startswith("--") else [word])],
        [],
    )
    while words:
        key, *words = words
        if not key.startswith("--") or not words:
            raise BadParameter(
                f"data show: expected --NAME VALUE, a parameter of the data set or the skew, got {key!r}."
            )
        pairs.append((key[2:].replace("-", "_"), value_of(words.pop(0))))
    return pairs


def _groups(table: dict[str, Any]) -> Any:
    """Return the group columns of a data set that has any."""
    from ..config import job as config

    return config.from_tables({"data": {**table, "parties": 1}}, Path("data show")).dataset().groups
