"""Hyper-parameters as data: what a field may be stands beside the field, once.

A constructor in tacit is a frozen dataclass. Its fields are declared with `real`, `whole`, `choice`, `flag`
or `part`, which keep the allowed values and one line of documentation. From that one place come the check
(`check`), the sentence a user reads when a value is wrong, the TOML of a job (`to_table`, `from_table`) and
the help of the command line (`describe`).
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

from .errors import BadJob, BadParameter


class Kind(NamedTuple):
    """What may stand as a `part`: what it is called, those there are, and the class that others extend."""

    what: str
    members: Mapping[str, type]
    base: type

    def __str__(self) -> str:
        return f"{self.what}: {' or '.join(f'{name}(…)' for name in self.members)}"

    def fits(self, value: Any) -> bool:
        return isinstance(value, self.base)

    def advice(self, value: Any) -> str:
        """What to do about an object of the right form that is not of this kind."""
        room = ".".join(self.base.__module__.split(".")[:2])
        return (
            f"Your own class must extend {room}.{self.base.__name__}."
            if dataclasses.is_dataclass(value)
            else ""
        )


def real(
    default: Any = dataclasses.MISSING,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    none: bool = False,
    doc: str = "",
) -> Any:
    """A finite number in an interval; `above`/`below` are open ends, `least`/`most` closed ones; `none` also
    allows None.
    """
    return _field(
        default, kind="a number", above=above, least=least, below=below, most=most, none=none, doc=doc
    )


def whole(
    default: Any = dataclasses.MISSING,
    *,
    least: int | None = None,
    most: int | None = None,
    none: bool = False,
    doc: str = "",
) -> Any:
    """An integer in a closed interval."""
    return _field(
        default, kind="a whole number", above=None, least=least, below=None, most=most, none=none, doc=doc
    )


def choice(default: str, options: tuple[str, ...], doc: str = "") -> Any:
    """One of a few words."""
    return _field(default, kind="choice", options=options, none=False, doc=doc)


def flag(default: bool, doc: str = "") -> Any:
    """True or False."""
    return _field(default, kind="flag", none=False, doc=doc)


def part(default: Any, doc: str = "", none: bool = False, of: Kind | None = None) -> Any:
    """Another constructor (a local solver, a schedule), of the kind `of`: checked in its turn."""
    return _field(default, kind="part", none=none, doc=doc, of=of)


def _field(default: Any, **metadata: Any) -> Any:
    return (
        dataclasses.field(metadata=metadata)
        if default is dataclasses.MISSING
        else dataclasses.field(default=default, metadata=metadata)
    )


def allowed(meta: Mapping[str, Any]) -> str:
    """What a field may be, in words: 'a number above 0 and at most 1'."""
    if meta["kind"] == "choice":
        words = "one of " + ", ".join(repr(o) for o in meta["options"])
    elif meta["kind"] == "flag":
        words = "True or False"
    elif meta["kind"] == "part":
        words = "one of tacit's own objects" if meta["of"] is None else str(meta["of"])
    else:
        ends = [("above", "above"), ("least", "at least"), ("below", "below"), ("most", "at most")]
        limits = [f"{word} {meta[end]:g}" for end, word in ends if meta[end] is not None]
        words = meta["kind"] + (" " + " and ".join(limits) if limits else "")
    return words + (", or None" if meta["none"] else "")


def _fits(value: Any, meta: Mapping[str, Any]) -> bool:
    if value is None:
        return bool(meta["none"])
    match meta["kind"]:
        case "choice":
            return value in meta["options"]
        case "flag":
            return isinstance(value, bool)
        case "part":
            return (
                dataclasses.is_dataclass(value)
                and not isinstance(value, type)
                and (meta["of"] is None or meta["of"].fits(value))
            )
    if (
        isinstance(value, bool)
        or not isinstance(value, Integral if meta["kind"] == "a whole number" else Real)
        or too_large(value)
    ):  # numpy's are both
        return False
    return (
        _finite(value)
        and (meta["above"] is None or value > meta["above"])
        and (meta["least"] is None or value >= meta["least"])
        and (meta["below"] is None or value < meta["below"])
        and (meta["most"] is None or value <= meta["most"])
    )


def too_large(value: Any) -> str:
    """What is wrong with a whole number that no tensor can hold; "" of any other value."""
    return (
        "A whole number has 63 bits at most here."
        if isinstance(value, Integral) and not -(2**63) <= int(value) < 2**63
        else ""
    )


def _finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def bad(owner: str, name: str, given: Any, must_be: str, advice: str = "") -> BadParameter:
    """The one sentence for a bad parameter: what was given, what is allowed, what to do."""
    return BadParameter(
        f"{owner}: {name} is {given!r}; it must be {must_be}." + (f" {advice}" if advice else "")
    )


def check(thing: Any, owner: str = "") -> Any:
    """Hold every field of a dataclass, and of the dataclasses in it, to what it declares; return the thing.
    `owner` is who is blamed, where its own name is none that a user knows.
    """
    for field in dataclasses.fields(thing):
        if not field.metadata:
            continue
        value = getattr(thing, field.name)
        if not _fits(value, field.metadata):
            of = field.metadata.get("of")
            advice = too_large(value) or (of.advice(value) if of is not None else "")
            raise bad(owner or type(thing).__name__, field.name, value, allowed(field.metadata), advice)
        if field.metadata["kind"] == "part" and value is not None:
            check(value)
        elif isinstance(value, Real) and type(value) not in (
            bool,
            int,
            float,
        ):  # numpy's: the same value as a plain number, which a job file can hold
            object.__setattr__(thing, field.name, int(value) if isinstance(value, Integral) else float(value))
    if hasattr(thing, "check"):  # what holds between the fields
        thing.check()
    return thing


def describe(cls: type) -> list[tuple[str, str, str]]:
    """(name and default, what it may be, what it means) for each declared field."""
    rows = []
    for field in dataclasses.fields(cls):
        if field.metadata:
            default = "" if field.default is dataclasses.MISSING else f"={field.default!r}"
            rows.append((field.name + default, allowed(field.metadata), field.metadata["doc"]))
    return rows


def to_table(thing: Any) -> dict[str, Any]:
    """A constructor as a TOML table: its name, then every field that is not None; or what it says itself, if
    it holds what no table can.
    """
    if hasattr(thing, "as_table"):
        return dict(thing.as_table())
    table: dict[str, Any] = {"name": type(thing).__name__}
    for field in dataclasses.fields(thing):
        value = getattr(thing, field.name)
        if value is not None:
            table[field.name] = (
                to_table(value)
                if dataclasses.is_dataclass(value)
                else list(value)
                if isinstance(value, tuple)
                else value
            )
    return table


def nearest(word: str, words: list[str]) -> str:
    """' Did you mean …?', or the whole list when nothing is near."""
    close = difflib.get_close_matches(word.lower(), [w.lower() for w in words], n=1, cutoff=0.6)
    for w in words:
        if close and w.lower() == close[0]:
            return f"Did you mean {w!r}?"
    return "Known: " + ", ".join(sorted(words)) + "."


def from_table(table: Mapping[str, Any] | str, members: Mapping[str, type], where: str) -> Any:
    """The reverse of `to_table`. `members` maps the names that may stand here; parts that do not say their
    kind are looked up in it as well.
    """
    if isinstance(table, str):
        table = {"name": table}
    name = table.get("name")
    if name is None:
        raise BadJob(f"{where}: there is no `name`. {nearest('', list(members))}")
    by_lower = {k.lower(): v for k, v in members.items()}
    cls = by_lower.get(str(name).lower())
    if cls is None:
        raise BadJob(f"{where}: {name!r} is not known here. {nearest(str(name), list(members))}")
    fields = {f.name: f for f in dataclasses.fields(cls)}
    given = {}
    for key, value in table.items():
        if key == "name":
            continue
        if key not in fields:
            raise BadJob(f"{where}: {cls.__name__} has no parameter {key!r}. {nearest(key, list(fields))}")
        if fields[key].metadata.get("kind") == "part":
            of = fields[key].metadata["of"]
            given[key] = from_table(value, members if of is None else of.members, f"{where}.{key}")
        else:
            given[key] = tuple(value) if isinstance(value, list) else value
    try:
        return check(cls(**given))
    except TypeError as error:
        raise BadJob(f"{where}: {cls.__name__} cannot be made from {sorted(given)}: {error}") from None
