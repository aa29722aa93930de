"""The rows of one linked table: their number, times, links and columns, given the parent and earlier rows.

    number of children     given the parent and its ancestors, and the children it has in earlier tables
    time of the first      given the parent and the number of children
    time of the next       as the time since the one before, given that one, its rank, and the mean so far
    links to other tables  given all of these (see `lookups`)
    other columns          given all of these, and the rows linked to

Intervals that begin where the previous one ended (start and stop times) are found, and keep to it. A table
without parents has one block only. Without an order column, children are in the order of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..columns import Column
from ..constraints import Unique
from ..table import Table
from .across import Comparison
from .given import Block, Context, count_column
from .lookups import Cells

DAY = 86_400.0


@dataclass(frozen=True)
class Offset:
    """A column that is learned as its distance from another one: `sign` · (column − reference) ≥ 0.

    `table` is "" for a column of the same row, otherwise an ancestor. `default` replaces a missing reference.
    """

    column: str
    table: str
    reference: str
    sign: int
    default: float


@dataclass
class Link:
    """A link to a second parent."""

    table: str
    cells: Cells
    optional: bool


@dataclass
class RowModel:
    """What was learned about one table. `table` has its own columns, as they are published."""

    name: str
    table: Table
    time: str | None = None
    offsets: tuple[Offset, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    unique: tuple[Unique, ...] = ()
    links: tuple[Link, ...] = ()
    chain: str | None = None  # the column where a row ends and the next one begins
    blocks: dict[str, Block | None] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.table.modeled

    @property
    def rest(self) -> list[int]:
        """The columns that are neither keys nor the time, by index."""
        return [j for j, c in enumerate(self.columns) if c.name != self.time]

    @property
    def time_index(self) -> int | None:
        return None if self.time is None else self.table.column_index(self.time)

    @property
    def has_next(self) -> bool:
        """Whether later children were learned given earlier ones."""
        return any(name.startswith("next.") for name in self.blocks)

    def time_context(self, t: np.ndarray, label: str) -> Context:
        """A time as context: itself, and if it is a date its hour, weekday and month."""
        j = self.time_index
        assert j is not None
        column = replace(self.columns[j], name=f"({label})", missing=True)
        parts, columns = [t], [column]
        if column.kind == "datetime":
            known = np.nan_to_num(t)
            day = np.floor(known / DAY)
            month = known.astype("datetime64[s]").astype("datetime64[M]").astype(np.int64) % 12
            parts += [np.mod(day + 4, 7), month.astype(np.float64)]
            columns += [count_column(f"({label}: weekday)", 6), count_column(f"({label}: month)", 11)]
            if not column.step or column.step < DAY:
                parts.append(np.floor((known - day * DAY) / 3600))
                columns.append(count_column(f"({label}: hour)", 23))
        return Context(tuple(columns), np.column_stack(parts))

    def memory(
        self, previous: np.ndarray, before: np.ndarray, mean: np.ndarray, rank: np.ndarray, gap: np.ndarray
    ) -> Context:
        """The earlier children as context.

        The last one, for categories also the one before it, for numbers the mean of all, the number so far,
        and the last time between two.
        """
        columns = [replace(c, name=f"(previous) {c.name}", missing=True) for c in self.columns]
        at = self.rest
        later = [
            replace(self.columns[j], name=f"(mean) {self.columns[j].name}", missing=True, step=None)
            if self.columns[j].is_number
            else replace(self.columns[j], name=f"(before) {self.columns[j].name}", missing=True)
            for j in at
        ]
        numbers = [j for j in at if self.columns[j].is_number]
        known = before.copy()
        known[:, numbers] = mean[:, numbers]
        parts, all_columns = [previous, known[:, at], rank[:, None]], [*columns, *later]
        all_columns.append(count_column("(rank)", 1e9))
        j = self.time_index
        if j is not None:
            parts += [gap[:, None], self.time_context(previous[:, j], "previous time").x[:, 1:]]
            all_columns.append(Column("continuous", "(previous gap)", missing=True))
            all_columns += self.time_context(previous[:, j], "previous time").columns[1:]
        return Context(tuple(all_columns), np.concatenate(parts, axis=1))

    def timed(self, base: Context, t: np.ndarray, gap: np.ndarray | None) -> Context:
        """`base` with the time of the row, and the time since the last one."""
        now = self.time_context(t, "time")
        if gap is None:
            return base.beside(now)
        since = Context((Column("continuous", "(gap)", missing=True),), gap[:, None])
        return base.beside(now, since)

    def from_offsets(self, x: np.ndarray, above: Mapping[tuple[str, str], np.ndarray]) -> np.ndarray:
        """Turn distances back into the columns; `above` has the columns of ancestors, for each row."""
        x = x.copy()
        left = [o for o in self.offsets if o.column != self.time]
        waiting = {o.column for o in left}
        while left:
            o = next(o for o in left if o.table or o.reference not in waiting)
            j = self.table.column_index(o.column)
            base = self.reference(o, x, above)
            x[:, j] = self.publish(j, base + o.sign * x[:, j], base, o.sign)
            left.remove(o)
            waiting.discard(o.column)
        return x

    def reference(self, o: Offset, x: np.ndarray, above: Mapping[tuple[str, str], np.ndarray]) -> np.ndarray:
        """Return the column from which the distance of another one is learned."""
        known = above[o.table, o.reference] if o.table else x[:, self.table.column_index(o.reference)]
        return np.where(np.isnan(known), o.default, known)

    def publish(self, j: int, value: np.ndarray, base: np.ndarray, sign: int) -> np.ndarray:
        """Round a value to its column's domain, without crossing `base`."""
        c = self.columns[j]
        inside = c.fit_to_domain(value)
        nearest = base
        if c.step:  # the multiple of the step next to `base`, on the allowed side
            steps = base / c.step
            nearest = (np.ceil(steps - 1e-9) if sign > 0 else np.floor(steps + 1e-9)) * c.step
        with np.errstate(invalid="ignore"):
            return np.asarray(np.where(sign * (inside - base) < 0, nearest, inside))

    def valid(self, x: np.ndarray, above: Mapping[tuple[str, str], np.ndarray]) -> np.ndarray:
        """Return, for each row, whether all comparisons hold."""
        valid = np.ones(len(x), dtype=bool)
        for c in self.comparisons:
            sides = [
                x[:, self.table.column_index(column)] if table == self.name else above[table, column]
                for table, column in (c.small, c.large)
            ]
            valid &= c.holds(*sides)
        return valid

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "table": self.table.to_dict(),
            "time": self.time,
            "offsets": [list(o.__dict__.values()) for o in self.offsets],
            "comparisons": [[list(c.small), list(c.large), c.strictly] for c in self.comparisons],
            "chain": self.chain,
            "unique": [list(u.columns) for u in self.unique],
            "links": [
                {"table": k.table, "optional": k.optional, "columns": [c.to_dict() for c in k.cells.columns]}
                for k in self.links
            ],
            "blocks": {name: b.to_dict() for name, b in self.blocks.items() if b is not None},
            "empty": [name for name, b in self.blocks.items() if b is None],
        }

    def tensors(self) -> dict[str, Any]:
        out = {
            f"{n}/{k}": t for n, b in self.blocks.items() if b is not None for k, t in b.state.tensors.items()
        }
        for i, link in enumerate(self.links):
            out |= {f"link.{i}/{k}": t for k, t in link.cells.tensors().items()}
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], tensors: Mapping[str, Any]) -> RowModel:
        def part(name: str) -> dict[str, Any]:
            return {k[len(name) + 1 :]: t for k, t in tensors.items() if k.startswith(f"{name}/")}

        links = tuple(
            Link(
                k["table"],
                Cells.from_tensors(part(f"link.{i}"), tuple(map(Column.from_dict, k["columns"]))),
                k["optional"],
            )
            for i, k in enumerate(data["links"])
        )
        blocks: dict[str, Block | None] = {n: Block.from_dict(b, part(n)) for n, b in data["blocks"].items()}
        return cls(
            data["name"],
            Table.from_dict(data["table"]),
            data["time"],
            tuple(Offset(*o) for o in data["offsets"]),
            tuple(Comparison((a[0], a[1]), (b[0], b[1]), strictly) for a, b, strictly in data["comparisons"]),
            tuple(Unique(*u) for u in data["unique"]),
            links,
            data["chain"],
            blocks | dict.fromkeys(data["empty"]),
        )
