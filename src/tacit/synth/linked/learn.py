"""Learning the rows of one linked table (see `rows`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..columns import Column
from ..constraints import Combinations, Ordered, Range, Unique, check_holds
from ..dependencies import with_dependencies
from ..protect import Protection
from ..table import Table
from .across import Comparison, Place
from .given import Context, Learning, count_column
from .lookups import child_axes, fit_cells, link_column
from .rows import Link, Offset, RowModel

Above = Mapping[Place, np.ndarray]


@dataclass
class RealRows:
    """The real rows of a table, sorted by parent and order, in numbers.

    A table without parents has one pseudo-parent for each row.
    """

    x: np.ndarray  # the published columns
    parent: np.ndarray
    parent_people: np.ndarray  # the top entity of each parent
    above: Above  # columns of ancestors that are compared with this table's, for each row
    links: Mapping[str, np.ndarray] = field(default_factory=dict)  # rows of second parents, −1: none

    @property
    def counts(self) -> np.ndarray:
        return np.bincount(self.parent, minlength=len(self.parent_people))

    @property
    def people(self) -> np.ndarray:
        return np.asarray(self.parent_people[self.parent])

    @property
    def rank(self) -> np.ndarray:
        starts = np.cumsum(self.counts) - self.counts
        return np.asarray(np.arange(len(self.parent)) - starts[self.parent])


@dataclass
class Target:
    """The real rows of a table that others link to, protected."""

    own: Context
    people: np.ndarray


def fit_rows(
    name: str,
    table: Table,
    rows: RealRows,
    base: Context | None,
    comparisons: Sequence[Comparison],
    targets: Mapping[str, Target],
    time: str | None,
    learning: Learning,
    dependencies: bool,
) -> tuple[RowModel, np.ndarray, np.ndarray]:
    """Learn one table; return the model, its protected rows, and the protected number of children.

    `base` is what is known about each parent; None for a table without parents.
    """
    unique = tuple(c for c in table.constraints if isinstance(c, Unique))
    for constraint in unique:
        check_holds(constraint, rows.x, table)
    at = [j for j, c in enumerate(table.modeled) if c.name != time]
    rest = Table(
        tuple(c for c in table.columns if c.name != time),
        tuple(c for c in table.constraints if not isinstance(c, Unique | Ordered | Range)),
    )
    if dependencies and rest.modeled:
        rest = with_dependencies(rest, rows.x[:, at], learning.floor)
    shown, protection, narrow = rows.x.copy(), Protection(learning.floor), {}
    if rest.modeled:
        shown[:, at], rest, protection, _ = learning.protect(rows.x[:, at], rest, rows.people)
        rest = rest.resolve_constraints(shown[:, at])
        narrow = {c.name: _narrow(c, protection) for c in rest.columns}
    if time is not None:
        j = table.column_index(time)
        alone = Table((table.modeled[j],))
        shown[:, [j]], alone, bounds, _ = learning.protect(rows.x[:, [j]], alone, rows.people)
        narrow[time] = _narrow(alone.columns[0], bounds)
    published = Table(tuple(narrow.get(c.name, c) for c in table.columns))
    chain = _find_chain(table, time, rows)
    if chain is not None and time is not None:  # an end is not before its beginning
        comparisons = [*comparisons, Comparison((name, time), (name, chain))]
    grouped = {n for c in rest.constraints if isinstance(c, Combinations) for n in c.columns}
    offsets = _find_offsets(name, published, time, comparisons, grouped, rows)
    model = RowModel(name, published, time, offsets, tuple(comparisons), unique, chain=chain)
    learned, rest = _learn_distances(model, shown, rest, rows, learning)
    free = {o.column for o in offsets}  # their bounds hold for the column, not for the distance
    protection = replace(protection, bounds={n: b for n, b in protection.bounds.items() if n not in free})
    counts = rows.counts.astype(np.float64)
    if base is None:
        base = Context.empty(len(counts))
    else:
        counts = _fit_counts(model, counts, base, rows, learning)
        base = base.beside(Context((count_column("(length)", float(counts.max())),), counts[:, None]))
    model.links = tuple(
        Link(
            t,
            fit_cells(targets[t].own.x, targets[t].own.columns, link, _axes(model, shown), learning.floor, 0),
            bool((link < 0).any()),
        )
        for t, link in rows.links.items()
    )
    for i, k in enumerate(model.links):
        linked = rows.links[k.table]
        number = np.bincount(linked[linked >= 0], minlength=len(targets[k.table].people)).astype(np.float64)
        model.blocks[f"count.{i}"] = learning.protect_and_fit(
            targets[k.table].own, number[:, None], _count_table(number), targets[k.table].people
        )
    _fit_phases(model, shown, learned, rest, protection, base, rows, targets, learning, int(counts.max()))
    return model, shown, counts


def _find_chain(table: Table, time: str | None, rows: RealRows) -> str | None:
    """The column at whose value the next row always begins, if there is one."""
    later = np.flatnonzero(rows.rank > 0)
    if time is None or not len(later):
        return None
    t = rows.x[:, table.column_index(time)]
    kind = table.modeled[table.column_index(time)].kind
    for j, c in enumerate(table.modeled):
        end = rows.x[:, j]
        if c.name != time and c.kind == kind and (end >= t).all() and (end[later - 1] == t[later]).all():
            return c.name
    return None


def _axes(model: RowModel, shown: np.ndarray) -> np.ndarray:
    return child_axes(shown, model.columns)


def _narrow(column: Column, protection: Protection) -> Column:
    """A declared column ends where enough entities have values."""
    low, high = protection.bounds.get(column.name, (column.low, column.high))
    return replace(column, low=low, high=high)


def _count_table(counts: np.ndarray) -> Table:
    return Table((Column("integer", "(count)", low=float(counts.min()), high=float(counts.max()), step=1.0),))


def _fit_counts(
    model: RowModel, counts: np.ndarray, base: Context, rows: RealRows, learning: Learning
) -> np.ndarray:
    x, table, protection, _ = learning.protect(counts[:, None], _count_table(counts), rows.parent_people)
    model.blocks["count"] = learning.fit_block(base, x, table, rows.parent_people, protection)
    return np.asarray(x[:, 0])


def _find_offsets(
    name: str,
    table: Table,
    time: str | None,
    comparisons: Sequence[Comparison],
    grouped: set[str],
    rows: RealRows,
) -> tuple[Offset, ...]:
    """Choose, for each compared column, one column from which its distance is learned."""
    offsets: dict[str, Offset] = {}

    def follows(start: str, goal: str) -> bool:
        while start != goal and start in offsets and not offsets[start].table:
            start = offsets[start].reference
        return start == goal

    for c in comparisons:
        (small_table, small), (large_table, large) = c.small, c.large
        if small_table == large_table:  # the time is known first; otherwise the larger follows the smaller
            column, reference, sign, at = (small, large, -1, "") if large == time else (large, small, 1, "")
            known = rows.x[:, table.column_index(reference)]
            if follows(reference, column):
                continue
        else:
            sign = 1 if large_table == name else -1
            column, (at, reference) = (large, c.small) if sign > 0 else (small, c.large)
            known = rows.above[at, reference]
        if column not in offsets and column not in grouped and not np.isnan(known).all():
            offsets[column] = Offset(column, at, reference, sign, float(np.nanmedian(known)))
    return tuple(offsets.values())


def _learn_distances(
    model: RowModel, shown: np.ndarray, rest: Table, rows: RealRows, learning: Learning
) -> tuple[np.ndarray, Table]:
    """Replace compared columns by their distances, protected; the time only in the first of a parent."""
    learned, columns = shown.copy(), {c.name: c for c in rest.columns}
    for o in model.offsets:
        if o.column == model.time:
            continue
        j = model.table.column_index(o.column)
        x, column = _distance(model, o, rows)
        table = Table((column,))
        learned[:, [j]], table, _, _ = learning.protect(x, table, rows.people)
        columns[o.column] = table.columns[0]
    return learned, Table(tuple(columns[c.name] for c in rest.columns), rest.constraints)


def _distance(model: RowModel, o: Offset, rows: RealRows) -> tuple[np.ndarray, Column]:
    j = model.table.column_index(o.column)
    x = o.sign * (rows.x[:, [j]] - model.reference(o, rows.x, rows.above)[:, None])
    return x, _measured(o.column, x, model.columns[j])


def _measured(name: str, x: np.ndarray, like: Column) -> Column:
    """A column of differences of the column `like`, with the domain of the data."""
    low, high = (float(np.nanmin(x)), float(np.nanmax(x))) if not np.isnan(x).all() else (0.0, 0.0)
    return Column("continuous", name, low=low, high=high, step=like.step, missing=bool(np.isnan(x).any()))


def _fit_phases(
    model: RowModel,
    shown: np.ndarray,
    learned: np.ndarray,
    rest: Table,
    protection: Protection,
    base: Context,
    rows: RealRows,
    targets: Mapping[str, Target],
    learning: Learning,
    cap: int,
) -> None:
    """Learn the first children, and the next ones given those before them."""
    rank, people = rows.rank, rows.people
    inside = rank < max(cap, 1)
    later = np.flatnonzero((rank > 0) & inside)
    phases = {"first": np.flatnonzero(inside)}
    if len(np.unique(people[later])) >= max(2 * learning.floor, 2):
        phases = {"first": np.flatnonzero(rank == 0), "next": later}
    gaps = np.full(len(rank), np.nan)
    at = model.rest
    for phase, where in phases.items():
        context = base.take(rows.parent[where])
        j = model.time_index
        if j is not None:
            time_table, x, bounds = _time_target(model, phase, where, rows, learning)
            if phase == "next":
                gaps[where] = x[:, 0]
        if phase == "next":
            context = context.beside(_remember(model, shown, rank, gaps, where))
        if j is not None:
            if phase == "first" or model.chain is None:
                block = learning.fit_block(context, x, time_table, people[where], bounds)
                model.blocks[f"{phase}.time"] = block
            context = model.timed(context, shown[where, j], gaps[where] if phase == "next" else None)
        for i, k in enumerate(model.links):
            target, link = targets[k.table], rows.links[k.table][where]
            cells = k.cells.assign(target.own.x)[link].astype(np.float64)
            column = link_column(k.cells, k.table, k.optional)
            model.blocks[f"{phase}.link.{i}"] = learning.protect_and_fit(
                context, np.where(link < 0, np.nan, cells)[:, None], Table((column,)), people[where]
            )
            context = context.beside(linked_context(k.table, target.own, link))
        model.blocks[f"{phase}.rest"] = learning.fit_block(
            context, learned[where][:, at], rest, people[where], protection
        )


def _time_target(
    model: RowModel, phase: str, where: np.ndarray, rows: RealRows, learning: Learning
) -> tuple[Table, np.ndarray, Protection]:
    """What is learned as the time: the time of the first, or its distance; then the time in between."""
    j = model.time_index
    assert j is not None
    t, column = rows.x[:, [j]], model.columns[j]
    offset = next((o for o in model.offsets if o.column == model.time), None)
    if phase == "next":
        x = t[where] - t[where - 1]
        column = _measured("(gap)", x, column)
    elif offset is not None:
        x, column = _distance(model, offset, rows)
        x = x[where]
    else:
        x = t[where]
        column = replace(column, low=float(x.min()), high=float(x.max()), declared=False)
    x, table, protection, _ = learning.protect(x, Table((column,)), rows.people[where])
    return table, x, protection


def _remember(
    model: RowModel, shown: np.ndarray, rank: np.ndarray, gaps: np.ndarray, where: np.ndarray
) -> Context:
    """The children before each of these rows, as context."""
    before = np.where((rank[where] >= 2)[:, None], shown[where - np.minimum(rank[where], 2)], np.nan)
    total = np.concatenate([np.zeros((1, shown.shape[1])), np.cumsum(np.nan_to_num(shown), axis=0)])
    number = np.concatenate([np.zeros((1, shown.shape[1])), np.cumsum(~np.isnan(shown), axis=0)])
    start = where - rank[where]
    n = number[where] - number[start]
    mean = np.divide(total[where] - total[start], n, out=np.full(n.shape, np.nan), where=n > 0)
    gap = np.where(rank[where] >= 2, gaps[where - 1], np.nan)
    return model.memory(shown[where - 1], before, mean, rank[where].astype(np.float64), gap)


def linked_context(name: str, own: Context, link: np.ndarray) -> Context:
    """The columns of the rows linked to; missing where there is no link."""
    columns = tuple(replace(c, name=f"{name}.{c.name}", missing=True) for c in own.columns)
    return Context(columns, np.where((link < 0)[:, None], np.nan, own.x[link]))
