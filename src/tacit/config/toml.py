"""TOML as all files of jobs are written in it: tables, read and changed, and every key and value held to the
function or constructor it is for.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import BadJob, BadParameter
from ..parameters import bad, from_table, nearest

NONE = "none"
NUMBER = re.compile(
    r"[+-]?(\d+\.|\.\d+)(e[+-]?\d+)?", re.IGNORECASE
)  # .5 and 5., which TOML has not and every shell user writes
USUAL = {"model": "mlp", "algorithm": "FedAvg", "solver": "SGD"}  # what stands where nothing was written


def read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadJob(
            f"{file} is not TOML: {error}. Text values stand in quotes, tables in [brackets]."
        ) from None


@contextmanager
def named(file: str | Path) -> Iterator[None]:
    """What only turns out to be wrong when all of a job is looked at together still names its file."""
    try:
        yield
    except BadParameter as error:
        raise BadJob(f"{file}, {error}") from None


def dumps(tables: Mapping[str, Any]) -> str:
    """Tables as TOML text."""
    import tomli_w

    return tomli_w.dumps({k: v for k, v in tables.items() if v is not None})


def change(tables: dict[str, Any], change: str) -> None:
    """Lay "train.rounds=5" over the tables; the value is TOML, or else text."""
    path, equals, text = change.partition("=")
    *outer, last = keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys) or (len(keys) < 2 and last not in ("model", "algorithm", "pace", "speed")):
        raise BadJob(
            f"{change!r} changes nothing: write it as TABLE.KEY=VALUE, like train.rounds=5 or "
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
            f"{change!r} does not fit this job: {'.'.join(outer)} is no table here. "
            "In a list, count from 0: algorithms.0.mu=0.1."
        ) from None


def value_of(text: str) -> Any:
    """A value as TOML has it; what is none is text, so that quotes may be left out on the command line."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        text = text.strip()
        return float(text) if NUMBER.fullmatch(text) else text


def hints(function: Any) -> dict[str, Any]:
    """The arguments of a function and their types. A name known to type checkers only is a class of ours,
    which no TOML can hold.
    """
    unknown: dict[str, Any] = {}
    while True:
        try:
            hints = typing.get_type_hints(function, localns=unknown)
            break
        except NameError as error:
            unknown[str(error.name)] = Any
    return {name: hints.get(name, Any) for name in inspect.signature(function).parameters}


def made(table: Any, members: Mapping[str, type], where: str) -> Any:
    """A constructor from its table. Each name only where it belongs: no solver for an algorithm, no schedule
    for a solver.
    """
    if isinstance(table, str):
        table = {"name": table}
    if not isinstance(table, Mapping):
        raise BadJob(str(bad(where, "value", table, "a table with a `name`, or a name alone")))
    cls = {k.lower(): v for k, v in members.items()}.get(str(table.get("name")).lower())
    if cls is None:
        return from_table(table, members, where)  # which says what is wrong with the name
    hints = typing.get_type_hints(cls)
    for f in dataclasses.fields(cls):
        if f.name in table and f.metadata.get("kind") == "part":
            made(table[f.name], f.metadata["of"].members, f"{where}.{f.name}")
        elif f.name in table and not f.metadata:
            held(where, f.name, table[f.name], hints[f.name])
    try:
        return from_table(table, members, where)
    except BadParameter as error:
        raise BadJob(f"{where}: {error}") from None


def table(where: str, name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadJob(str(bad(where, name, value, f"a table, written as [{name}]")))
    return value


def listed(where: str, name: str, one: Any, many: Any) -> list[tuple[str, Any]]:
    """(where it stands, its table) of what [name] or [[names]] gives."""
    if many is None:
        return [] if one is None else [(name, one)]
    if not isinstance(many, list) or not many:
        raise BadJob(
            str(bad(where, f"{name}s", many, f"a list of at least one table, each written as [[{name}s]]"))
        )
    return [(f"{name}s[{i}]", table) for i, table in enumerate(many)]


def only_known(where: str, table: Mapping[str, Any], known: typing.Iterable[str]) -> None:
    for key in table:
        if key not in known:
            raise BadJob(f"{where}: {key!r} is not known here. {nearest(key, list(known))}")


def held(where: str, key: str, value: Any, hint: Any) -> Any:
    """The value, held to the type its function declares; "none" is None where None may stand."""
    if value == NONE and type(None) in typing.get_args(hint):
        return None
    if not _fits(value, hint):
        one = (
            f"Write [{value!r}]." if isinstance(value, str) and _fits([value], hint) else ""
        )  # a single one is a list, too
        raise BadJob(str(bad(where, key, value, " or ".join(dict.fromkeys(_words(hint))), one)))
    return value


def _fits(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, a) for a in args)
    if origin in (tuple, list, Sequence):
        return isinstance(value, list) and all(_fits(v, args[0]) for v in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return hint in (bool, int, str) and type(value) is hint


def _words(hint: Any, many: bool = False) -> list[str]:
    """What a type allows, in words a job file's author knows."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return [word for a in args for word in _words(a, many)]
    if origin in (tuple, list, Sequence):
        return ["a list of " + " or ".join(_words(args[0], many=True))]
    names = {
        bool: ("true or false",) * 2,
        int: ("a whole number", "whole numbers"),
        float: ("a number", "numbers"),
        str: ("text", "texts"),
        type(None): (f'"{NONE}"',) * 2,
    }
    return [names[hint][many]] if hint in names else []
