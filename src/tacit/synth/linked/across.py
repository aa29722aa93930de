"""Constraints of linked tables, with columns written as "table.column".

    Ordered("patients.enrolled", "visits.date")   a child's date is not before its parent's: the difference is
                                                  learned, so it holds by construction
    Total("orders.amount", "lines.price")         the parent's amount is the sum over its children: computed
    Total("patients.visits", "visits")            the parent's column is the number of its children: computed

The constraints within one table are written in the same way: Range("visits.age", 0, 120).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from ...errors import BadData, BadParameter
from ...parameters import nearest
from ..columns import as_float
from ..constraints import Combinations, Constraint, Ordered, Range, Unique
from .keys import ForeignKey, Schema, fail


@dataclass(frozen=True)
class Total:
    """`column` of a parent is the sum of the column `of` over its children.

    If `of` is a table, `column` is the number of the children. A parent without children has 0.
    """

    column: str
    of: str


LinkedConstraint = Constraint | Total
Place = tuple[str, str]  # a table and one of its columns


@dataclass(frozen=True)
class Comparison:
    """`small` ≤ `large`, of which one is a column of an ancestor, or both are of one table."""

    small: Place
    large: Place
    strictly: bool = False

    def holds(self, small: np.ndarray, large: np.ndarray) -> np.ndarray:
        valid = small < large if self.strictly else small <= large
        return np.asarray(np.isnan(small) | np.isnan(large) | valid)


@dataclass
class Rules:
    """The constraints by what keeps them."""

    own: dict[str, list[Constraint]]  # within a table, with the names of its columns
    comparisons: dict[str, list[Comparison]]  # of a table with itself and its ancestors
    totals: list[tuple[Place, Place]] = field(default_factory=list)  # the second has no column: a number


def parse_rules(
    constraints: Sequence[LinkedConstraint], frames: Mapping[str, pd.DataFrame], schema: Schema
) -> Rules:
    """Sort constraints by table; one error names all unknown tables and columns."""
    rules = Rules({t: [] for t in frames}, {t: [] for t in frames})
    problems: list[str] = []
    for c in constraints:
        if not isinstance(c, Range | Ordered | Unique | Combinations | Total):
            problems.append(f"constraints: expected Ordered(…), Total(…), … , got {c!r}.")
            continue
        names = (c.column, c.of) if isinstance(c, Total) else c.columns
        places = [_place(n, frames, isinstance(c, Total) and n == names[-1]) for n in names]
        wrong = [p for p in places if isinstance(p, str)]
        problems += [f"{c!r}: {p}" for p in wrong]
        if not wrong:
            _add_rule(c, [p for p in places if not isinstance(p, str)], rules, schema, problems)
    fail(problems, "LinkedTables", BadParameter)
    return rules


def _place(name: str, frames: Mapping[str, pd.DataFrame], may_be_table: bool) -> Place | str:
    """Split "table.column"; return what is wrong as a string."""
    if may_be_table and name in frames:
        return name, ""
    table = next((t for t in sorted(frames, key=len, reverse=True) if name.startswith(f"{t}.")), None)
    if table is None:
        return f"{name!r} must be written 'table.column'. The tables are {', '.join(frames)}."
    column = name[len(table) + 1 :]
    names = [str(n) for n in frames[table].columns]
    if column not in names:
        return f"{table} has no column {column!r}. {nearest(column, names)}"
    return table, column


def _add_rule(
    c: LinkedConstraint, places: list[Place], rules: Rules, schema: Schema, problems: list[str]
) -> None:
    tables, columns = [t for t, _ in places], [n for _, n in places]
    keys = [f"{t}.{n}" for t, n in places if n and n in schema.key_columns(t)]
    if keys and not isinstance(c, Ordered):
        problems.append(f"{c!r}: {keys[0]} is a key, which is generated anew. Use other columns.")
    elif isinstance(c, Total):
        (parent, column), (child, of) = places
        if schema.parent(child) != parent:
            problems.append(f"{c!r}: {child} is not a child of {parent}, so there is nothing to sum.")
        elif any(place == (parent, column) for place, _ in rules.totals):
            problems.append(f"{c!r}: {parent}.{column} has two totals. Remove one.")
        else:
            rules.totals.append(((parent, column), (child, of)))
    elif isinstance(c, Ordered):
        low, high = places
        below = next((a for a, b in ((*tables,), (*tables[::-1],)) if b in [a, *schema.ancestors(a)]), None)
        if below is None:
            problems.append(f"{c!r}: neither table is an ancestor of the other, so no rows belong together.")
        else:
            rules.comparisons[below].append(Comparison(low, high, c.strictly))
    elif len(set(tables)) > 1:
        problems.append(f"{c!r}: its columns must be of one table. Across tables use Ordered or Total.")
    elif isinstance(c, Range):
        rules.own[tables[0]].append(replace(c, column=columns[0]))
    elif isinstance(c, Unique):
        rules.own[tables[0]].append(Unique(*columns))
    else:
        rules.own[tables[0]].append(Combinations(*columns, allowed=c.allowed))


def check_totals(
    rules: Rules, frames: Mapping[str, pd.DataFrame], schema: Schema, links: Mapping[ForeignKey, np.ndarray]
) -> None:
    """Raise one error for all totals that the real tables violate."""
    problems = []
    for (parent, column), (child, of) in rules.totals:
        for t, name in ((parent, column), (child, of)):
            if name and not pd.api.types.is_numeric_dtype(frames[t][name].dtype):
                problems.append(f"Total: {t}.{name} is not numeric.")
                break
        else:
            link = links[schema.foreign[child][0]]
            amounts = np.ones(len(link)) if not of else as_float(frames[child][of], of)
            total = sum_children(link, amounts, len(frames[parent]))
            given = as_float(frames[parent][column], column)
            # sums of decimals differ in the last digits
            wrong = ~np.isclose(given, total, rtol=1e-6, atol=1e-6)
            if wrong.any():
                problems.append(
                    f"Total({parent + '.' + column!r}, {child + ('.' + of if of else '')!r}): in "
                    f"{int(wrong.sum()):,} of {len(given):,} rows of {parent} the total is not that of the "
                    "children. Correct them, or remove the constraint."
                )
    fail(problems, "LinkedTables", BadData)


def sum_children(link: np.ndarray, amounts: np.ndarray, parents: int) -> np.ndarray:
    """Return the sum of `amounts` for each parent; missing amounts count 0."""
    return np.bincount(link, weights=np.nan_to_num(amounts), minlength=parents)
