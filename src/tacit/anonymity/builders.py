"""Builders of hierarchies: intervals for numbers, prefixes for codes, dates, trees, and a suggestion."""

from __future__ import annotations

import datetime
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import BadData, MissingFiles
from ..parameters import bad, check, real, whole
from .hierarchies import STAR, Hierarchy, list_values, missing_values


class Builder:
    """Build a hierarchy from the values of a column."""

    def build(self, values: Sequence[str], owner: str = "The hierarchy") -> Hierarchy:
        raise TypeError(f"{type(self).__name__} does not implement build()")


@dataclass(frozen=True)
class Flat(Builder):
    """The value, then *: suppression only."""

    def build(self, values: Sequence[str], owner: str = "The hierarchy") -> Hierarchy:
        return Hierarchy.from_rows([[v, STAR] for v in values], owner)


@dataclass(frozen=True)
class Intervals(Builder):
    """Numbers in intervals [a, b): level 1 has this width, each further level multiplies it, then *.

    The intervals do not depend on the data: they start at `origin`, so that two tables get the same ones.
    """

    width: float = real(5.0, above=0, doc="width of an interval at level 1")
    factors: tuple[int, ...] = field(default=(2, 2), metadata=None)
    origin: float = real(0.0, doc="start of the intervals")

    def check(self) -> None:
        if not all(isinstance(f, int) and f >= 2 for f in self.factors):
            raise bad(
                "Intervals",
                "factors",
                self.factors,
                "whole numbers of at least 2: the number of intervals of one level per interval of the next",
            )

    def build(self, values: Sequence[str], owner: str = "The hierarchy") -> Hierarchy:
        check(self)
        rows = []
        for v in values:
            x = _parse_number(v, owner)
            row, width = [v], self.width
            for factor in (*self.factors, 1):
                # a whole number of steps from the origin, so that values of one interval get identical words
                start = self.origin + math.floor((x - self.origin) / width) * width
                row.append(f"[{start:.12g}, {start + width:.12g})")
                width *= factor
            rows.append([*row, STAR])
        return Hierarchy.from_rows(rows, owner)


@dataclass(frozen=True)
class Prefixes(Builder):
    """Codes that lose characters from the right: 37203 → 3720* → 372** → … → *. Shorter codes are padded."""

    keep: int = whole(1, least=1, doc="characters left at the last level before *")
    step: int = whole(1, least=1, doc="characters removed per level")
    fill: str = field(default=" ", metadata=None)

    def build(self, values: Sequence[str], owner: str = "The hierarchy") -> Hierarchy:
        check(self)
        longest = max((len(v) for v in values), default=0)
        cuts = range(longest - self.step, self.keep - 1, -self.step)
        return Hierarchy.from_rows(
            [
                [v, *(v.ljust(longest, self.fill)[:c] + STAR * (longest - c) for c in cuts), STAR]
                for v in values
            ],
            owner,
        )


@dataclass(frozen=True)
class Codes(Builder):
    """Hierarchical codes of different lengths, which keep their first characters: E11.9 → E11 → E1 → E → *.

    A code that is not longer stays as it is. The levels follow from the structure of the code itself.
    """

    keep: tuple[int, ...] = field(default=(3, 2, 1), metadata=None)

    def check(self) -> None:
        if (
            not self.keep
            or not all(isinstance(n, int) and n >= 1 for n in self.keep)
            or list(self.keep) != sorted(set(self.keep), reverse=True)
        ):
            raise bad("Codes", "keep", self.keep, "whole numbers of at least 1 that decrease, like (3, 2, 1)")

    def build(self, values: Sequence[str], owner: str = "The hierarchy") -> Hierarchy:
        check(self)
        return Hierarchy.from_rows([[v, *(v[:n] for n in self.keep), STAR] for v in values], owner)


@dataclass(frozen=True)
class Dates(Builder):
    """Day → month → year → 5 years → 10 years → *.

    Two-digit years above `pivot` are in the 20th century: '65' is 1965, '12' is 2012.
    """

    format: str | None = field(default=None, metadata=None)  # as in strptime; None tries FORMATS
    pivot: int = whole(29, least=0, most=99, doc="highest two-digit year of the 21st century")

    def build(self, values: Sequence[str], owner: str = "The hierarchy") -> Hierarchy:
        check(self)
        rows = []
        for v in values:
            day = self.parse(v, owner)
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
        return Hierarchy.from_rows(rows, owner)

    def parse(self, text: str, owner: str) -> datetime.date:
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
            f"{owner}: {text!r} is not a date in the format {allowed}. Use Dates(format=…), or correct the "
            "value."
        )


# a letter and two digits (the second may be A or B), then up to four characters
ICD10 = re.compile(r"[A-Z][0-9][0-9AB](?:\.?[0-9A-Z]{1,4})?")
NUTS = re.compile(r"[A-Z]{2}[0-9A-Z]{1,3}")  # a country, then a digit or letter for each level
FORMATS = ("%Y-%m-%d", "%m/%d/%Y", "%m/%d/%y", "%d.%m.%Y", "%Y-%m-%dT%H:%M:%S")


@dataclass(frozen=True)
class Tree(Builder):
    """A tree of words, as nested tables of TOML.

    Example: {'Europe': {'South': ['Italy', 'Greece'], 'North': ['Norway']}, 'Asia': ['Japan']}. Branches may
    differ in depth: a short one repeats its lowest word, so that every value has a word at every level.
    """

    paths: tuple[tuple[str, ...], ...]  # value first, then upwards

    @classmethod
    def from_dict(cls, nested: Mapping[str, Any]) -> Tree:
        paths: list[tuple[str, ...]] = []

        def walk(node: Any, above: tuple[str, ...]) -> None:
            if isinstance(node, Mapping):
                for word, below in node.items():
                    walk(below, (str(word), *above))
            elif isinstance(node, list | tuple):
                paths.extend((str(leaf), *above) for leaf in node)
            else:
                raise BadData(
                    f"A tree has {node!r} under {' / '.join(reversed(above))}; it must be a table, or a "
                    "list of values."
                )

        walk(nested, ())
        return cls(tuple(paths))

    @classmethod
    def from_toml(cls, path: str | Path) -> Tree:
        file = Path(path)
        if not file.is_file():
            raise MissingFiles(
                f"There is no hierarchy file {file}. Pass the path of a TOML file with nested tables whose "
                "leaves are lists of values."
            )
        try:
            return cls.from_dict(tomllib.loads(file.read_text(encoding="utf-8")))
        except ValueError as error:
            raise BadData(
                f"{file} cannot be read as TOML: {error}. Write nested tables whose leaves are lists of "
                "values."
            ) from error

    def build(self, values: Sequence[str], owner: str = "The hierarchy") -> Hierarchy:
        known = {p[0] for p in self.paths}
        absent = [v for v in values if v not in known]
        if absent:
            raise missing_values(owner, absent, sorted(known))
        deepest = max(len(p) for p in self.paths)
        rows = [
            [p[0], *([p[1] if len(p) > 1 else p[0]] * (deepest - len(p))), *p[1:], STAR] for p in self.paths
        ]
        return Hierarchy.from_rows(rows, owner)


def suggest(values: Sequence[str]) -> Builder:
    """Suggest a hierarchy: dates, ICD-10 and NUTS codes by their structure, codes of one length (postal
    codes, ISCO), intervals of 1/20 of the range of numbers, or value and *.

    Check a suggestion (`.build(values).to_csv(…)`) and adapt it to what your readers need.
    """
    if not values:
        return Flat()
    if all(_is_date(v) for v in values):
        return Dates()
    if all(ICD10.fullmatch(v) for v in values) and max(map(len, values)) > 2:
        longest = max(map(len, values))
        # .9 of E11.90, the category E11, then groups of categories
        return Codes(tuple(n for n in (5 if "." in "".join(values) else 4, 3, 2, 1) if n < longest))
    if all(NUTS.fullmatch(v) for v in values) and any(c.isdigit() for v in values for c in v):
        return Codes(tuple(n for n in (4, 3, 2) if n < max(map(len, values))) or (2,))
    if (
        len({len(v) for v in values}) == 1
        and 4 <= len(values[0]) <= 12
        and all(v.isalnum() and v[0].isdigit() for v in values)
    ):
        return (
            Prefixes()
        )  # postal codes, ICD chapters, telephone numbers: the first characters carry most information
    try:
        numbers = [_parse_number(v, "") for v in values]
    except BadData:
        return Flat()
    spread = max(numbers) - min(numbers)
    if spread <= 0:
        return Flat()
    power = 10.0 ** math.floor(math.log10(spread / 20))
    width = next(m * power for m in (1, 2, 5, 10) if m * power >= spread / 20)  # a round number
    if all(x == int(x) for x in numbers):
        width = max(width, 2.0)  # an interval of one integer generalizes nothing
    return Intervals(width=width, factors=(2, 2, 2))


def _is_date(text: str) -> bool:
    try:
        Dates().parse(text, "")
    except BadData:
        return False
    return True


def _parse_number(text: str, owner: str) -> float:
    try:
        x = float(text)
    except ValueError:
        x = math.nan
    if not math.isfinite(x):
        raise BadData(
            f"{owner}: {list_values([text])} is not a finite number, which intervals need. Correct the "
            "value, or use a hierarchy that has it."
        )
    return x
