"""Hierarchies built from the values of a column: intervals for numbers, prefixes for codes, dates, trees, and
a suggestion for the rest.
"""

from __future__ import annotations

import datetime
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import BadData, MissingFiles
from ..parameters import bad, check, real, whole
from .hierarchies import STAR, Hierarchy, missing, shown


class Builder:
    """Makes a hierarchy once the values are known."""

    def build(self, values: Sequence[str], what: str = "The hierarchy") -> Hierarchy:
        raise TypeError(f"{type(self).__name__} does not say how to build a hierarchy")


@dataclass(frozen=True)
class Flat(Builder):
    """The value, then *: suppression alone."""

    def build(self, values: Sequence[str], what: str = "The hierarchy") -> Hierarchy:
        return Hierarchy.of([[v, STAR] for v in values], what)


@dataclass(frozen=True)
class Intervals(Builder):
    """Numbers in intervals [a, b): the first level `width` wide, each further level wider by its factor, then
    *.

    The intervals do not depend on the data: they start at `origin`, so that two tables get the same ones.
    """

    width: float = real(5.0, above=0, doc="width of an interval at level 1")
    factors: tuple[int, ...] = field(default=(2, 2), metadata=None)
    origin: float = real(0.0, doc="where intervals start")

    def check(self) -> None:
        if not all(isinstance(f, int) and f >= 2 for f in self.factors):
            raise bad(
                "Intervals",
                "factors",
                self.factors,
                "whole numbers of at least 2: how many intervals of one level make one of the next",
            )

    def build(self, values: Sequence[str], what: str = "The hierarchy") -> Hierarchy:
        check(self)
        rows = []
        for v in values:
            x = _number(v, what)
            row, width = [v], self.width
            for factor in (*self.factors, 1):
                # whole steps from the origin, so that two values of one interval get the very same words
                start = self.origin + math.floor((x - self.origin) / width) * width
                row.append(f"[{start:.12g}, {start + width:.12g})")
                width *= factor
            rows.append([*row, STAR])
        return Hierarchy.of(rows, what)


@dataclass(frozen=True)
class Prefixes(Builder):
    """Codes that lose a character at a time from the right: 37203 → 3720* → 372** → … → *. Shorter codes are
    filled up first.
    """

    keep: int = whole(1, least=1, doc="characters the last level before * still shows")
    step: int = whole(1, least=1, doc="characters lost a level")
    fill: str = field(default=" ", metadata=None)

    def build(self, values: Sequence[str], what: str = "The hierarchy") -> Hierarchy:
        check(self)
        longest = max((len(v) for v in values), default=0)
        cuts = range(longest - self.step, self.keep - 1, -self.step)
        return Hierarchy.of(
            [
                [v, *(v.ljust(longest, self.fill)[:c] + STAR * (longest - c) for c in cuts), STAR]
                for v in values
            ],
            what,
        )


@dataclass(frozen=True)
class Dates(Builder):
    """Day → month → year → 5 years → 10 years → *. Years of two digits above `pivot` belong to the last
    century: '65' is 1965, '12' is 2012.
    """

    format: str | None = field(default=None, metadata=None)  # as in strptime; None tries ISO and 9/20/65
    pivot: int = whole(29, least=0, most=99, doc="the highest two-digit year of this century")

    def build(self, values: Sequence[str], what: str = "The hierarchy") -> Hierarchy:
        check(self)
        rows = []
        for v in values:
            day = self.read(v, what)
            five, ten = day.year - day.year % 5, day.year - day.year % 10
            rows.append(
                [
                    v,
                    f"{day.year:04d}-{day.month:02d}",
                    f"{day.year:04d}",
                    f"{five:04d}-{five + 4:04d}",
                    f"{ten:04d}-{ten + 9:04d}",
                    STAR,
                ]
            )
        return Hierarchy.of(rows, what)

    def read(self, text: str, what: str) -> datetime.date:
        for form in (self.format,) if self.format else FORMATS:
            try:
                day = datetime.datetime.strptime(text, form).date()
            except ValueError:
                continue
            if "%y" in form:
                last = day.year % 100
                day = day.replace(year=(2000 if last <= self.pivot else 1900) + last)
            return day
        allowed = repr(self.format) if self.format else ", ".join(map(repr, FORMATS))
        raise BadData(
            f"{what}: {text!r} is no date in the form {allowed}. Give Dates(format=…), or correct the value."
        )


FORMATS = ("%Y-%m-%d", "%m/%d/%Y", "%m/%d/%y", "%d.%m.%Y", "%Y-%m-%dT%H:%M:%S")


@dataclass(frozen=True)
class Tree(Builder):
    """Words in a tree, as nested tables of TOML: {'Europe': {'South': ['Italy', 'Greece'], 'North':
    ['Norway']}, 'Asia': ['Japan']}.

    Branches may differ in depth: a short one repeats its lowest word, so that every value has a word at every
    level.
    """

    paths: tuple[tuple[str, ...], ...]  # value first, then upwards

    @classmethod
    def of(cls, nested: Mapping[str, Any]) -> Tree:
        paths: list[tuple[str, ...]] = []

        def walk(node: Any, above: tuple[str, ...]) -> None:
            if isinstance(node, Mapping):
                for word, below in node.items():
                    walk(below, (str(word), *above))
            elif isinstance(node, list | tuple):
                paths.extend((str(leaf), *above) for leaf in node)
            else:
                raise BadData(
                    f"A tree has {node!r} under {' / '.join(reversed(above))}; it must have a table, or a "
                    "list of values."
                )

        walk(nested, ())
        return cls(tuple(paths))

    @classmethod
    def from_toml(cls, path: str | Path) -> Tree:
        file = Path(path)
        if not file.is_file():
            raise MissingFiles(
                f"There is no hierarchy file {file}. Give the path of a TOML file with nested tables whose "
                "leaves are lists of values."
            )
        try:
            return cls.of(tomllib.loads(file.read_text(encoding="utf-8")))
        except ValueError as error:
            raise BadData(
                f"{file} cannot be read as TOML: {error}. Write nested tables whose leaves are lists of "
                "values."
            ) from error

    def build(self, values: Sequence[str], what: str = "The hierarchy") -> Hierarchy:
        known = {p[0] for p in self.paths}
        absent = [v for v in values if v not in known]
        if absent:
            raise missing(what, absent, sorted(known))
        deepest = max(len(p) for p in self.paths)
        rows = [
            [p[0], *([p[1] if len(p) > 1 else p[0]] * (deepest - len(p))), *p[1:], STAR] for p in self.paths
        ]
        return Hierarchy.of(rows, what)


BUILDERS: dict[str, type[Builder]] = {
    "Flat": Flat,
    "Intervals": Intervals,
    "Prefixes": Prefixes,
    "Dates": Dates,
    "Tree": Tree,
}


def suggest(values: Sequence[str]) -> Builder:
    """A hierarchy for values nobody described: dates, codes of one length, numbers in intervals of a 20th of
    their range, else the value or *.

    A suggestion is a start: read it (`.build(values).to_csv(…)`) and make it say what your readers need.
    """
    if not values:
        return Flat()
    if all(_is_date(v) for v in values):
        return Dates()
    if (
        len({len(v) for v in values}) == 1
        and 4 <= len(values[0]) <= 12
        and all(v.isalnum() and v[0].isdigit() for v in values)
    ):
        return Prefixes()  # postal codes, ICD chapters, telephone numbers: the left end says most
    try:
        numbers = [_number(v, "") for v in values]
    except BadData:
        return Flat()
    spread = max(numbers) - min(numbers)
    if spread <= 0:
        return Flat()
    power = 10.0 ** math.floor(math.log10(spread / 20))
    width = next(
        m * power for m in (1, 2, 5, 10) if m * power >= spread / 20
    )  # 1, 2, 5, 10, … as people count
    if all(x == int(x) for x in numbers):
        width = max(width, 2.0)  # an interval of one integer hides nothing
    return Intervals(width=width, factors=(2, 2, 2))


def _is_date(text: str) -> bool:
    try:
        Dates().read(text, "")
    except BadData:
        return False
    return True


def _number(text: str, what: str) -> float:
    try:
        x = float(text)
    except ValueError:
        x = math.nan
    if not math.isfinite(x):
        raise BadData(
            f"{what}: {shown([text])} is no finite number, and intervals need one. Correct the value, or "
            "give a hierarchy that has it."
        )
    return x
