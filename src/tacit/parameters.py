"""Hyperparameters as data: the allowed values of a field are declared once, with the field.

A constructor in tacit is a frozen dataclass. Its fields are declared with `real`, `whole`, `choice`, `flag`
or `part`, which keep the allowed values and one line of documentation. From that one place come the check
(`check`), the sentence a user reads when a value is wrong, the TOML of a job (`to_table`, `from_table`) and
the help of the command line (`describe`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from numbers import Integral, Real
from typing import Any, NamedTuple, TypeVar

from .errors import BadJob, BadParameter

T = TypeVar("T")


class Kind(NamedTuple):
    """A kind of component: its name, its members, and the class that a user's own extends."""

    what: str
    members: Mapping[str, type]
    base: type | None = None  # None: only members will do
    example: str = ""

    def __str__(self) -> str:
        if self.example:
            return f"{self.what} such as {self.example}"
        return f"{self.what}: {' or '.join(f'{name}(…)' for name in self.members)}"

    def fits(self, value: Any) -> bool:
        return type(value) in self.members.values() if self.base is None else isinstance(value, self.base)

    def advice(self, value: Any) -> str:
        """Return advice about an object of the right form that is not of this kind."""
        if self.base is None or not dataclasses.is_dataclass(value):
            return ""
        room = ".".join(self.base.__module__.split(".")[:2])
        return f"Your own class must extend {room}.{self.base.__name__}."


def resolve(value: Any, kind: Kind, owner: str, name: str, none: bool | str = False) -> Any:
    """Return a component from its name, its table or itself, with every parameter checked."""
    if value is None and none:
        return None
    if isinstance(value, str):
        by_lower = {member.lower(): member for member in kind.members}
        if value.lower() not in by_lower:
            known = list(kind.members)
            raise bad(owner, name, value, "one of " + ", ".join(known), nearest(value, known))
        value = kind.members[by_lower[value.lower()]]()
    elif isinstance(value, Mapping):
        value = from_table(value, kind.members, f"{owner}, {name}")
    if not dataclasses.is_dataclass(value) or isinstance(value, type) or not kind.fits(value):
        raise bad(owner, name, value, allowed({"kind": "part", "of": kind, "none": none}), kind.advice(value))
    return check(value)


def real(
    default: Any = dataclasses.MISSING,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    none: bool | str = False,
    doc: str = "",
    **more: Any,
) -> Any:
    """Declare a finite number in an interval.

    `above` and `below` are open ends, `least` and `most` closed ones. `none` also allows None; a text says
    what None means.
    """
    limits = {"above": above, "least": least, "below": below, "most": most}
    return _field(default, kind="a number", **limits, none=none, doc=doc, **more)


def whole(
    default: Any = dataclasses.MISSING,
    *,
    least: int | None = None,
    most: int | None = None,
    none: bool | str = False,
    each: str = "",
    doc: str = "",
    **more: Any,
) -> Any:
    """Declare an integer in a closed interval; `each` (as in "party") also allows a list, one for each."""
    limits = {"above": None, "least": least, "below": None, "most": most}
    return _field(default, kind="a whole number", **limits, none=none, each=each, doc=doc, **more)


def choice(
    default: str | None, options: tuple[str, ...], doc: str = "", none: bool | str = False, **more: Any
) -> Any:
    """Declare one of a few words; `none` also allows None, and a text says what None means."""
    return _field(default, kind="choice", options=options, none=none, doc=doc, **more)


def flag(default: bool, doc: str = "", **more: Any) -> Any:
    """Declare True or False."""
    return _field(default, kind="flag", none=False, doc=doc, **more)


def part(default: Any, doc: str = "", none: bool = False, of: Kind | None = None, **more: Any) -> Any:
    """Declare another dataclass (a local solver, a schedule) of the kind `of`, which is checked in turn."""
    return _field(default, kind="part", none=none, doc=doc, of=of, **more)


def component(default: Any, take: Callable[[Any, str], Any], doc: str = "", **more: Any) -> Any:
    """Declare a component of a job: `take(value, owner)` returns it from all that a user may write."""
    return _field(default, kind="component", take=take, none=False, doc=doc, **more)


def _field(default: Any, **metadata: Any) -> Any:
    return (
        dataclasses.field(metadata=metadata)
        if default is dataclasses.MISSING
        else dataclasses.field(default=default, metadata=metadata)
    )


def allowed(meta: Mapping[str, Any]) -> str:
    """Return the allowed values of a field in words: 'a number above 0 and at most 1'."""
    if meta["kind"] == "choice":
        words = "one of " + ", ".join(repr(o) for o in meta["options"])
    elif meta["kind"] == "flag":
        words = "True or False"
    elif meta["kind"] == "part":
        words = "one of tacit's own objects" if meta["of"] is None else str(meta["of"])
    else:
        ends = [("above", "above"), ("least", "at least"), ("below", "below"), ("most", "at most")]
        limits = [f"{word} {meta[end]:g}" for end, word in ends if meta[end] is not None]
        of = " of" if limits and limits[0].startswith("at least") else ""
        words = meta["kind"] + (of + " " + " and ".join(limits) if limits else "")
    if meta.get("each"):
        words += f", or a list of them, one for each {meta['each']}"
    none = meta["none"]
    return words + (f", or None ({none})" if isinstance(none, str) else ", or None" if none else "")


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
    if meta.get("each") and isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return bool(value) and all(_fits(v, {**meta, "each": "", "none": False}) for v in value)
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
    """Return what is wrong with an integer that no tensor can hold; "" for any other value."""
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
    """Return the error for a bad parameter: its value, what is allowed, what to do."""
    return BadParameter(
        f"{owner}: {name} is {given!r}; it must be {must_be}." + (f" {advice}" if advice else "")
    )


def refuse(*problems: tuple[object, str | BadParameter]) -> None:
    """Raise one BadParameter with the sentence of every problem whose condition holds."""
    sentences = [str(sentence) for applies, sentence in problems if applies]
    if sentences:
        raise BadParameter("\n".join(sentences))


def check(thing: T, owner: str = "") -> T:
    """Check every field of a dataclass, and of the dataclasses in it; return the dataclass.

    Errors begin with `owner`, or with the name of the class. One error lists all bad values.
    """
    problems = _check_fields(thing, owner or type(thing).__name__)
    if problems:
        raise BadParameter("\n".join(problems))
    if hasattr(thing, "check"):  # what holds between the fields
        thing.check()
    return thing


def check_value(owner: str, name: str, value: Any, cls: type, field: str) -> None:
    """Raise unless this field of the dataclass allows the value. The error calls the value `name`."""
    meta = next(f.metadata for f in dataclasses.fields(cls) if f.name == field)
    if not _fits(value, meta):
        raise bad(owner, name, value, allowed(meta))


def _check_fields(thing: Any, owner: str) -> list[str]:
    """Return a sentence for each value that its field does not allow."""
    problems = []
    for field in dataclasses.fields(thing):
        if not field.metadata or field.metadata["kind"] == "component":
            continue
        value = getattr(thing, field.name)
        if not _fits(value, field.metadata):
            of = field.metadata.get("of")
            advice = too_large(value) or (of.advice(value) if of is not None else "")
            problems.append(str(bad(owner, field.name, value, allowed(field.metadata), advice)))
        elif field.metadata["kind"] == "part" and value is not None:
            check(value)
        # a numpy number becomes a plain one, which a job file can hold
        elif isinstance(value, Real) and type(value) not in (bool, int, float):
            object.__setattr__(thing, field.name, int(value) if isinstance(value, Integral) else float(value))
    return problems


def describe(cls: type) -> list[tuple[str, str, str]]:
    """Return (name and default, allowed values, meaning) of each declared field."""
    rows = []
    for field in dataclasses.fields(cls):
        if field.metadata:
            default = "" if field.default is dataclasses.MISSING else f"={field.default!r}"
            rows.append((field.name + default, allowed(field.metadata), field.metadata["doc"]))
    return rows


def to_table(thing: Any) -> dict[str, Any]:
    """Return a component as a TOML table: its name, then every field that is not None.

    A component with values that no table can hold defines `as_table`.
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


def nearest(
    word: str,
    words: list[str],
    label: str = "Known",
    most: int | None = None,
    key: Callable[[str], str] = str.lower,
) -> str:
    """Return 'Did you mean …?', or the list (of at most `most` words) when nothing is similar.

    `key` returns what is compared of a word.
    """
    close = difflib.get_close_matches(key(word), list(map(key, words)), n=1, cutoff=0.6)
    for w in words:
        if close and key(w) == close[0]:
            return f"Did you mean {w!r}?"
    more = ", …" if most is not None and len(words) > most else "."
    return f"{label}: " + ", ".join(sorted(words)[:most]) + more


_IN_FILE: ContextVar[bool] = ContextVar("whether settings are proposed as lines of a file", default=False)


@contextlib.contextmanager
def propose_lines() -> Iterator[None]:
    """Propose settings as lines of a TOML file inside this context: its reader has a job file."""
    token = _IN_FILE.set(True)
    try:
        yield
    finally:
        _IN_FILE.reset(token)


def proposes_lines() -> bool:
    return _IN_FILE.get()


def propose(key: str, value: Any, column: str | None = None) -> str:
    """Return a setting as an error proposes it, to be pasted: an argument, or a line of a job file.

    That is `dates={'a b': ['year']}`, or `dates."a b" = ["year"]`: several such lines can be in one [data].
    """
    if _IN_FILE.get():
        return to_line(key, value, column)
    return f"{key}={value!r}" if column is None else f"{key}={{{column!r}: {value!r}}}"


def to_line(key: str, value: Any, column: str | None = None) -> str:
    """Return a setting, or that of a column, as one line of TOML."""
    return f"{key}{'' if column is None else '.' + to_key(column)} = {to_toml(value)}"


def to_key(name: str) -> str:
    """Return a name as a TOML key, in quotes where it needs them."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else to_toml(name)


def to_toml(value: Any) -> str:
    """Return text, a number, a truth value, or a list or table of them, as TOML on one line."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{to_key(str(k))} = {to_toml(v)}' for k, v in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(to_toml, value))}]"
    # a JSON text is a TOML text, but for DEL, which TOML wants escaped
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")


def from_table(table: Any, members: Mapping[str, type], where: str) -> Any:
    """Return the component that a table describes: its `name`, one of `members`, and its parameters.

    A name alone is a table without parameters. Errors begin with `where`.
    """
    if isinstance(table, str):
        table = {"name": table}
    if not isinstance(table, Mapping):
        raise BadJob(str(bad(where, "value", table, "a table with a `name`, or a name alone")))
    name = table.get("name")
    if name is None:
        raise BadJob(f"{where}: there is no `name`. {nearest('', list(members))}")
    cls = {k.lower(): v for k, v in members.items()}.get(str(name).lower())
    if cls is None:
        raise BadJob(f"{where}: {name!r} is not known here. {nearest(str(name), list(members))}")
    rest = {key: value for key, value in table.items() if key != "name"}
    return from_fields(rest, cls, where, f"{cls.__name__} has no parameter", members)


def from_fields(
    table: Any, cls: type[T], where: str, unknown: str, members: Mapping[str, type] | None = None
) -> T:
    """Return the dataclass whose fields a table gives; `members` may be parts of it.

    One error names all unknown keys and bad values. Each line of it begins with `where`; `unknown` ("a row
    has no key") begins those about unknown keys.
    """
    if not isinstance(table, Mapping):
        raise BadJob(str(bad(where, "value", table, "a table")))
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in table.items():
        if key not in fields:
            problems.append(f"{where}: {unknown} {key!r}. {nearest(key, list(fields))}")
            continue
        try:
            values[key] = _from_field(value, fields[key], hints[key], where, members or {})
        except (BadJob, BadParameter) as error:
            problems.append(str(error))
    owner = f"{where}: {cls.__name__}" if members else where
    try:
        thing = cls(**values)
        problems += _check_fields(thing, owner)
        if not problems:
            return check(thing, owner)
    except TypeError as error:
        problems = problems or [f"{where}: {cls.__name__} cannot be built from {sorted(values)}: {error}"]
    except BadParameter as error:
        problems.append(str(error) if str(error).startswith(where) else f"{where}: {error}")
    raise BadJob("\n".join(problems))


def _from_field(
    value: Any, field: dataclasses.Field[Any], hint: Any, where: str, members: Mapping[str, type]
) -> Any:
    """Return what a job file gives for one field; `check` holds numbers and words to what is declared."""
    meta = field.metadata
    if meta.get("kind") == "part":
        return from_table(
            value, meta["of"].members if meta["of"] is not None else members, f"{where}.{field.name}"
        )
    if meta.get("kind") == "component":
        return meta["take"](value, where)
    if not meta:
        value = hold_to_type(where, field.name, value, hint)
    elif value == NONE and meta["none"]:
        return None
    return tuple(value) if isinstance(value, list) else value


NONE = "none"  # TOML has no None


def hold_to_type(where: str, key: str, value: Any, hint: Any) -> Any:
    """Return the value if it has the declared type; "none" is None where None is allowed."""
    if value == NONE and type(None) in typing.get_args(hint):
        return None
    if not _has_type(value, hint):
        one = f"Write [{value!r}]." if isinstance(value, str) and _has_type([value], hint) else ""
        raise BadJob(str(bad(where, key, value, " or ".join(dict.fromkeys(_type_names(hint))), one)))
    return value


def _has_type(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_has_type(value, a) for a in args)
    if origin in (tuple, list, Sequence):
        return isinstance(value, list) and all(_has_type(v, args[0]) for v in value)
    if origin in (dict, Mapping):
        return isinstance(value, dict) and all(_has_type(v, args[1]) for v in value.values())
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return hint in (bool, int, str, dict) and type(value) is hint


def _type_names(hint: Any, plural: bool = False) -> list[str]:
    """Name a type in words that the author of a job file knows."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return [word for a in args for word in _type_names(a, plural)]
    if origin in (tuple, list, Sequence):
        return ["a list of " + " or ".join(_type_names(args[0], plural=True))]
    if origin in (dict, Mapping):
        of = [word.replace("a list", "lists") for word in _type_names(args[1], plural=True)]
        return [("tables of " if plural else "a table of ") + " or ".join(of)]
    names = {
        bool: ("true or false",) * 2,
        int: ("a whole number", "whole numbers"),
        float: ("a number", "numbers"),
        str: ("text", "texts"),
        dict: ("a table", "tables"),
        type(None): (f'"{NONE}"',) * 2,
    }
    return [names[hint][plural]] if hint in names else []
