"""Protection of rare values: what fewer than `floor` rows share is neither learned nor emitted.

    categories   a value (or a missing value) of fewer than `floor` rows is replaced by a draw from the
                 others, or by the nearest one if values are ordered. An inferred column forgets the value
    numbers      cut off behind the `floor`-th smallest and the `floor`-th largest value: half way to the next
                 one, because an end is in every sample and must not be one person's value. What was cut off
                 is drawn anew from an exponential tail. An inferred column ends with the draws. Between the
                 ends, a value of fewer than `floor` rows is drawn anew between the middles to its neighbors,
                 so that an unusual amount is not published to the last digit
    combinations one that fewer than `floor` rows have is replaced by a draw from the others

A finished sample is held to the same rule. Private generators need no floor: their noise covers a
single row, whatever its value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..errors import BadData
from .columns import Column
from .constraints import Combinations, Ordered, Range, row_keys
from .table import Table

FLOOR = 10  # rows; official statistics publish cells of 3 to 20
FARTHEST = 5.0  # scales of a tail beyond which nothing is drawn: outliers are not reached by chance
BEYOND = 3  # people beyond every draw, so that "more than the largest synthetic value" singles nobody out


@dataclass(frozen=True)
class Protection:
    """What a sample must not contain: values of declared columns that fewer than `floor` rows share.

    `withheld` are codes of discrete columns (the number of values means missing), `bounds` the ends of
    numeric ones. `replaced` counts the changed cells of each column, for the report.
    """

    floor: int
    withheld: Mapping[str, list[int]] = field(default_factory=dict)
    bounds: Mapping[str, list[float]] = field(default_factory=dict)
    replaced: Mapping[str, int] = field(default_factory=dict)
    outliers: Mapping[str, int] = field(default_factory=dict)  # rows generalized and left out, if asked for

    def to_dict(self) -> dict[str, Any]:
        return {name: dict(v) if isinstance(v, Mapping) else v for name, v in self.__dict__.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Protection:
        return cls(**data)

    def clip(self, x: np.ndarray, table: Table) -> np.ndarray:
        """Return the rows of a sample with numbers cut off."""
        for name, (low, high) in self.bounds.items():
            j = table.column_index(name)
            x[:, j] = np.clip(x[:, j], low, high)
        return x

    def allows(self, x: np.ndarray, table: Table) -> np.ndarray:
        """Return, for each row of a sample, whether it has no withheld value."""
        valid = np.ones(len(x), dtype=bool)
        for name, codes in self.withheld.items():
            j = table.column_index(name)
            size = len(table.modeled[j].values)
            valid &= ~np.isin(np.where(np.isnan(x[:, j]), size, x[:, j]), codes)
        return valid


def protect(
    x: np.ndarray,
    table: Table,
    floor: int,
    rng: np.random.Generator,
    people: np.ndarray | None = None,
) -> tuple[np.ndarray, Table, Protection]:
    """Return rows without rare values, the table without them, and what a sample is checked against.

    `people` is the person of each row; then people are counted, not rows. Rows are left out where cutting
    off two ordered columns would turn their order around.
    """
    x, table, protection, valid = protect_cells(x, table, floor, rng, people)
    return x[valid], table, protection


def protect_cells(
    x: np.ndarray,
    table: Table,
    floor: int,
    rng: np.random.Generator,
    people: np.ndarray | None = None,
) -> tuple[np.ndarray, Table, Protection, np.ndarray]:
    """Return what `protect` returns, with all rows, and which of them keep the order of their columns."""
    if floor <= 1:
        return x, table, Protection(1), np.ones(len(x), dtype=bool)
    whose = np.arange(len(x)) if people is None else people
    number, unit = len(np.unique(whose)), "rows" if people is None else "people"
    if number < 2 * floor:
        raise BadData(
            f"the table has {number} {unit}; protecting rare values needs at least {2 * floor}, because "
            f"values of fewer than floor={floor} {unit} are not published. Give more rows, or floor=1 to "
            "publish all values."
        )
    x = x.copy()
    withheld: dict[str, list[int]] = {}
    bounds: dict[str, list[float]] = {}
    replaced: dict[str, int] = {}
    columns: list[Column] = []
    original = x.copy()
    # a number that is compared with others, combined with them or must stay unique is not drawn anew
    related = {name for c in table.constraints if not isinstance(c, Range) for name in c.columns}
    # before single columns, whose replaced values could form combinations that do not occur
    for constraint in table.constraints:
        if isinstance(constraint, Combinations):
            at = [table.column_index(n) for n in constraint.columns]
            _protect_combinations(x, at, constraint, floor, rng, whose)
    for j, c in enumerate(table.modeled):
        before, cut = x[:, j].copy(), None
        if c.is_number:
            cut, c = _protect_number(before, c, floor, whose)
            x[:, j] = cut
            if c.name not in related:
                x[:, j], c = _draw_tails(before, cut, c, floor, whose, rng)
                x[:, j] = c.fit_to_domain(_blur(x[:, j], floor, whose, rng))
            if c.declared:
                bounds[c.name] = [float(np.nanmin(x[:, j])), float(np.nanmax(x[:, j]))]
        else:
            x[:, j], c, codes = _protect_category(before, c, floor, rng, whose)
            if codes:
                withheld[c.name] = codes
        columns.append(c)
        before, after = original[:, j], x[:, j] if cut is None else cut
        changed = ~((before == after) | (np.isnan(before) & np.isnan(after)))
        if not c.declared and not c.is_number:
            changed = ~np.isin(_values(table.modeled[j], before), _values(c, x[:, j]))
        if changed.any():
            replaced[c.name] = int(changed.sum())
    named = {c.name: c for c in columns}
    table = replace(table, columns=tuple(named.get(c.name, c) for c in table.columns))
    valid = np.ones(len(x), dtype=bool)
    for constraint in table.constraints:  # cutting two columns off separately may turn their order around
        if isinstance(constraint, Ordered):
            valid &= constraint.holds(x, table)
    return x, table, Protection(floor, withheld, bounds, replaced), valid


def _values(column: Column, codes: np.ndarray) -> np.ndarray:
    pool = np.empty(len(column.values) + 1, dtype=object)
    pool[:-1], pool[-1] = column.values, None
    return np.array([repr(v) for v in pool])[
        np.where(np.isnan(codes), len(column.values), codes).astype(np.int64)
    ]


def count_people(codes: np.ndarray, size: int, whose: np.ndarray) -> np.ndarray:
    """The people with each code."""
    pairs = np.unique(codes.astype(np.int64) * (int(whose.max()) + 1) + whose)
    return np.bincount(pairs // (int(whose.max()) + 1), minlength=size)


def _protect_number(
    x: np.ndarray, column: Column, floor: int, whose: np.ndarray
) -> tuple[np.ndarray, Column]:
    inside = ~np.isnan(x)
    order = np.argsort(x[inside], kind="stable")
    values, people = x[inside][order], whose[inside][order]
    missing = len(np.unique(whose[~inside]))
    # the smallest value of each person, and the largest
    smallest = np.sort(values[np.unique(people, return_index=True)[1]])
    largest = np.sort(values[::-1][np.unique(people[::-1], return_index=True)[1]])
    present = values
    if len(smallest) < floor:
        raise BadData(
            f"the column {column.name!r} has {len(smallest)} values that are not missing; fewer than "
            f"floor={floor} are not published. Drop the column, or give floor=1 to publish every value."
        )
    low, high = (_find_end(v, floor, column) for v in (smallest, largest[::-1]))
    if len(smallest) < 2 * floor or low > high:
        low = high = float(np.median(present))
    x = np.clip(x, low, high)
    if 0 < missing < floor:  # that a value is missing is rare as well
        x = np.where(np.isnan(x), float(np.median(present)), x)
    if column.declared:
        return x, column
    return x, replace(column, low=low, high=high, missing=column.missing and missing >= floor)


def _find_end(values: np.ndarray, floor: int, column: Column) -> float:
    """Return where a column is cut off: between the `floor`-th of each person's values and the next.

    A value that `floor` people share is nobody's own, and stays.
    """
    end = float(values[floor - 1])
    if len(values) <= floor or np.count_nonzero(values == end) >= floor:
        return end
    return float(column.fit_to_domain(np.array([(end + values[floor]) / 2]))[0])


def _draw_tails(
    x: np.ndarray, cut: np.ndarray, column: Column, floor: int, whose: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, Column]:
    """Draw what was cut off at both ends from exponential tails; return the values and the column.

    Piled up at the ends, a column would be narrower than the real one. The scale is the median of how far the
    `floor` outermost people are beyond the end, so that no single one of them determines it. Nothing is drawn
    beyond the third of them: no child among adults, and nobody is alone beyond the largest synthetic value.
    """
    inside = ~np.isnan(x)
    ends = float(cut[inside].min()), float(cut[inside].max())
    if ends[0] == ends[1]:
        return cut, column
    out = cut.copy()
    for end, sign in zip(ends, (-1.0, 1.0)):
        rows = np.flatnonzero(inside & (sign * np.nan_to_num(x) > sign * end))
        if not len(rows):
            continue
        excess = sign * (x[rows] - end)
        order = np.argsort(-excess, kind="stable")
        outermost = excess[order][np.unique(whose[rows][order], return_index=True)[1]]
        outermost = np.append(outermost, np.zeros(max(0, max(floor, BEYOND) - len(outermost))))
        scale, most = float(np.median(outermost)) / math.log(2), float(np.sort(outermost)[-BEYOND])
        if scale > 0 and most > 0:
            # equal values stay equal; larger ones need not be larger, or rows far out would be known again
            values, rank = np.unique(excess, return_inverse=True)
            mass = -math.expm1(-min(FARTHEST, most / scale))
            drawn = -scale * np.log1p(-mass * rng.random(len(values)))
            out[rows] = end + sign * drawn[rank.reshape(-1)]
    if column.declared:
        return out, column
    out = replace(column, low=None, high=None).fit_to_domain(out)
    return out, replace(column, low=float(out[inside].min()), high=float(out[inside].max()))


def _blur(x: np.ndarray, floor: int, whose: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw values of fewer than `floor` people uniformly between the middles to the neighboring values.

    Equal values stay equal, so that the draw does not depend on the order of the rows.
    """
    inside = ~np.isnan(x)
    values, codes = np.unique(x[inside], return_inverse=True)
    if len(values) < 3:
        return x
    middles = (values[1:] + values[:-1]) / 2
    low, high = np.r_[values[0], middles], np.r_[middles, values[-1]]
    rare = count_people(codes.reshape(-1), len(values), whose[inside]) < floor
    drawn = (low + rng.random(len(values)) * (high - low))[codes]
    out = x.copy()
    out[inside] = np.where(rare[codes], drawn, x[inside])
    return out


def _protect_category(
    x: np.ndarray, column: Column, floor: int, rng: np.random.Generator, whose: np.ndarray
) -> tuple[np.ndarray, Column, list[int]]:
    """Return the codes, the column, and the codes that a sample must not have."""
    size = len(column.values)
    if not size:
        raise BadData(
            f"no row has a value of the column {column.name!r}, so there is nothing to learn. Drop it."
        )
    codes = np.where(np.isnan(x), size, x).astype(np.int64)
    counts = count_people(codes, size + 1, whose)
    frequent = np.flatnonzero(counts >= floor)
    if not len(frequent[frequent < size]):
        raise BadData(
            f"no value of the column {column.name!r} is shared by floor={floor} rows, so none is published. "
            "Drop the column, declare it as an identifier, merge its values, or give floor=1 to publish "
            "every value."
        )
    rare = counts[codes] < floor
    if column.kind == "ordinal":
        kept = frequent[frequent < size]
        codes[rare] = kept[np.abs(kept[None, :] - np.minimum(codes[rare], size - 1)[:, None]).argmin(axis=1)]
    else:
        share = counts[frequent] / counts[frequent].sum()
        codes[rare] = rng.choice(frequent, size=int(rare.sum()), p=share)
    if column.declared:
        out = np.where(codes == size, np.nan, codes.astype(np.float64))
        return out, column, np.flatnonzero(counts < floor).tolist()
    kept = frequent[frequent < size]
    place = np.full(size + 1, np.nan)
    place[kept] = np.arange(len(kept))
    narrowed = replace(
        column, values=tuple(column.values[k] for k in kept), missing=bool(counts[size] >= floor)
    )
    return place[codes], narrowed, []


def _protect_combinations(
    x: np.ndarray,
    at: list[int],
    constraint: Combinations,
    floor: int,
    rng: np.random.Generator,
    whose: np.ndarray,
) -> None:
    """Replace rare combinations, in place."""
    keys = row_keys(np.nan_to_num(x[:, at], nan=np.inf))
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    counts = count_people(group.reshape(-1), len(first), whose)
    frequent = np.flatnonzero(counts >= floor)
    if not len(frequent):
        raise BadData(
            f"{constraint!r}: no combination is shared by floor={floor} rows, so none is published. Remove "
            "the constraint, merge values, or give floor=1 to publish every combination."
        )
    rare = counts[group] < floor
    drawn = rng.choice(frequent, size=int(rare.sum()), p=counts[frequent] / counts[frequent].sum())
    x[np.flatnonzero(rare)[:, None], at] = x[first[drawn][:, None], at]
