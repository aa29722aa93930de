"""Read, change and check TOML tables: the format of all job files."""

from __future__ import annotations

import inspect
import os
import re
import tomllib
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import BadJob, BadParameter
from ..parameters import NONE as NONE
from ..parameters import bad, nearest
from ..parameters import hold_to_type as held
from ..runs import is_python_job

# .5 and 5., which TOML does not allow and shell users write
NUMBER = re.compile(r"[+-]?(\d+\.|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
# the table that every job file of a verb has
VERBS = {name: name for name in ("boost", "ftl", "infer", "join", "link", "pate", "regress", "split")}
VERBS |= {"stats": "stats QUERY", "train": "run"}
USUAL = {"model": "mlp", "algorithm": "FedAvg", "solver": "SGD"}  # the defaults of names


def load(
    path: str | os.PathLike[str], changes: Sequence[str], known: Iterable[str] | None = None
) -> dict[str, Any]:
    """Read a job file, apply `changes` such as "train.rounds=5", and refuse tables not in `known`."""
    file = Path(path)
    if file.is_dir():
        raise BadJob(f"{file} is a directory, not a job file. Resume a run by `tacit run --resume {file}`.")
    if not file.is_file():
        others = [str(p) for p in file.parent.glob("*.toml")] if file.parent.is_dir() else []
        raise BadJob(
            f"there is no job file {file}. " + (nearest(str(file), others) if others else "Check the path.")
        )
    if file.name.lower().removesuffix(".gz").endswith((".csv", ".tsv", ".parquet", ".pq")):
        raise BadJob(f"{file} is a table, not a job file. Draft a job from it: tacit job new {file}")
    tables = read(file)
    if is_python_job(tables):
        raise BadJob(
            f"{file} is the job of a run that was started from Python, with data that only that program has. "
            "Run that program again; for the command line write a job file whose [data] has a `name` or a "
            "`path`."
        )
    for line in changes:
        change(tables, line)
    if known is not None:
        known = tuple(known)
        refuse_other_verbs(str(file), tables, known)
        only_known(str(file), tables, known)
    return tables


def read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadJob(
            f"{file} is not TOML: {error}. Put text values in quotes and table names in [brackets]."
        ) from None


@contextmanager
def named(file: str | Path) -> Iterator[None]:
    """Name the job file in errors about a combination of its values."""
    try:
        yield
    except BadParameter as error:
        raise BadJob(f"{file}, {error}") from None


def dumps(tables: Mapping[str, Any]) -> str:
    """Return tables as TOML text."""
    import tomli_w

    return tomli_w.dumps({k: v for k, v in tables.items() if v is not None})


def change(tables: dict[str, Any], change: str) -> None:
    """Apply a change such as "train.rounds=5"; the value is TOML, or else text.

    A name with other signs is in quotes, as in TOML: data.missing_codes."lab (mg/dl)"=[999].
    """
    parts = re.fullmatch(r"""((?:"(?:[^"\\]|\\.)*"|'[^']*'|[^"'=])*)(=?)(.*)""", change, re.DOTALL)
    path, equals, text = parts.groups() if parts else change.partition("=")
    *outer, last = keys = _split_path(path)
    if not equals or not all(keys) or (len(keys) < 2 and last not in ("model", "algorithm", "pace", "speed")):
        raise BadJob(
            f"expected TABLE.KEY=VALUE, got {change!r}. Write it like train.rounds=5 or "
            "algorithm.solver.momentum=0.9, "
            "or as model=NAME, algorithm=NAME, pace=NAME or speed=NAME."
        )
    here: Any = tables
    try:
        for key in outer:
            if isinstance(here, list):
                here = here[int(key)]
                continue
            named = (*USUAL, "skew", "schedule", "pace", "speed", "staleness")
            if key in named and isinstance(here.get(key), str):  # a name alone, which may have parameters now
                here[key] = {"name": here[key]}
            here = here.setdefault(key, {"name": USUAL[key]} if key in USUAL else {})
        here[int(last) if isinstance(here, list) else last] = value_of(text)
    except (TypeError, ValueError, IndexError, AttributeError):
        raise BadJob(
            f"{change!r} does not fit this job: {'.'.join(outer)} is not a table here. "
            "In a list, count from 0: algorithms.0.mu=0.1."
        ) from None


def _split_path(path: str) -> list[str]:
    """Return the keys of a dotted path; those in quotes are TOML."""
    if "'" not in path and '"' not in path:
        return [key.strip() for key in path.split(".")]
    try:
        here: Any = tomllib.loads(f"{path} = 0")
    except tomllib.TOMLDecodeError:
        return [""]
    keys = []
    while isinstance(here, dict):
        key, here = next(iter(here.items()))
        keys.append(key)
    return keys


def value_of(text: str) -> Any:
    """Return a TOML value; anything else is text, so that quotes may be left out on the command line."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        text = text.strip()
        return float(text) if NUMBER.fullmatch(text) else text


def hints(function: Any) -> dict[str, Any]:
    """Return the arguments of a function and their types.

    A name known to type checkers only is a class of tacit, which TOML cannot contain.
    """
    unknown: dict[str, Any] = {}
    while True:
        try:
            hints = typing.get_type_hints(function, localns=unknown)
            break
        except NameError as error:
            unknown[str(error.name)] = Any
    return {name: hints.get(name, Any) for name in inspect.signature(function).parameters}


def table(where: str, name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadJob(str(bad(where, name, value, f"a table, written as [{name}]")))
    return value


def listed(where: str, name: str, one: Any, many: Any) -> list[tuple[str, Any]]:
    """Return (place, table) of each table that [name] or [[names]] gives."""
    if many is None:
        return [] if one is None else [(name, one)]
    if not isinstance(many, list) or not many:
        raise BadJob(
            str(bad(where, f"{name}s", many, f"a list of at least one table, each written as [[{name}s]]"))
        )
    return [(f"{name}s[{i}]", table) for i, table in enumerate(many)]


@contextmanager
def collect(problems: list[str]) -> Iterator[None]:
    """Add the error of a part of a job file to `problems`, so that the other parts are read, too."""
    try:
        yield
    except BadJob as error:
        problems.append(str(error))


def refuse_all(problems: Sequence[str]) -> None:
    """Raise one error with all problems, if there are any."""
    if problems:
        raise BadJob("\n".join(problems))


def only_known(where: str, table: Iterable[str], known: Iterable[str]) -> None:
    unknown = [key for key in table if key not in known]
    if unknown:
        lines = [f"{where}: {key!r} is not known here. {nearest(key, list(known))}" for key in unknown]
        raise BadJob("\n".join(lines))


def refuse_other_verbs(where: str, tables: Iterable[str], known: Iterable[str]) -> None:
    """Raise if a job file has the table of another verb: the job is named, and how to run it."""
    found, own = set(tables), {*VERBS, "private"} & set(known)
    verb = next((VERBS[name] for name in VERBS if name in found), None)
    if verb is not None and not found & own:
        query = ", with a QUERY such as describe, glm or cox" if verb == "stats QUERY" else ""
        raise BadJob(
            f"{where} is a job of `tacit {verb.split()[0]}`, not of this command. Run it by `tacit {verb} "
            f"{where}`{query}."
        )


def hold(where: str, table: Mapping[str, Any], hints: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a table whose keys have these types; one error names all that do not."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in table.items():
        with collect(problems):
            only_known(where, [key], hints)
            values[key] = held(where, key, value, hints[key])
    refuse_all(problems)
    return values


__all__ = [
    "NONE",
    "change",
    "collect",
    "dumps",
    "held",
    "hints",
    "hold",
    "listed",
    "load",
    "named",
    "only_known",
    "read",
    "refuse_all",
    "refuse_other_verbs",
    "table",
    "value_of",
]
