"""A block of columns, learned and drawn given columns that are known already.

The tables of `LinkedTables` are chains of such blocks: the number of children given the parent, the time of
an event given the one before it, the other columns given all of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from ..columns import Column
from ..constraints import Unique
from ..encode import Conditions, Layout
from ..generator import Generator, GeneratorState, Watch
from ..protect import Protection, protect_cells
from ..table import Table

NO_CONDITIONS = Conditions({}, {}, {})


@dataclass
class Context:
    """Known columns and their numbers, [rows, columns]."""

    columns: tuple[Column, ...]
    x: np.ndarray

    def take(self, rows: np.ndarray) -> Context:
        return Context(self.columns, self.x[rows])

    def beside(self, *others: Context) -> Context:
        """Return the columns of all, side by side; equal names are told apart."""
        columns = [c for part in (self, *others) for c in part.columns]
        return Context(tuple(columns), np.concatenate([self.x, *(o.x for o in others)], axis=1))

    @classmethod
    def empty(cls, rows: int) -> Context:
        return cls((), np.zeros((rows, 0)))


def count_column(name: str, high: float) -> Column:
    """A whole number that is known, such as a rank."""
    return Column("integer", name, low=0.0, high=high, step=1.0)


@dataclass
class Block:
    """The columns of `table` given the columns `known`."""

    known: tuple[Column, ...]
    table: Table
    protection: Protection
    state: GeneratorState

    def __post_init__(self) -> None:
        self.layout = _layout(self.known, self.table)

    def draw(
        self, generator: Generator, context: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw one row for each row of `context`; return the rows, and which of them may be published."""
        k = len(self.known)
        if k:
            v = generator.draw_given(self.state, self.layout, self._encode(context), rng)
        else:
            v = generator.draw(self.state, self.layout, len(context), rng, NO_CONDITIONS)
        x = self.table.fit_to_domain(self.layout.decode(v)[:, k:])
        x = self.protection.clip(x, self.table)
        return x, self.protection.allows(x, self.table)

    def _encode(self, context: np.ndarray) -> np.ndarray:
        out = context.astype(np.float64, copy=True)
        for i, variable in enumerate(self.layout.variables[: len(self.known)]):
            if variable.levels:
                out[:, i] = np.where(np.isnan(out[:, i]), variable.levels - 1, out[:, i])
        return out

    def to_dict(self) -> dict[str, Any]:
        return {
            "known": [c.to_dict() for c in self.known],
            "table": self.table.to_dict(),
            "protection": self.protection.to_dict(),
            "facts": self.state.metadata,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any], tensors: dict[str, Tensor]) -> Block:
        return cls(
            tuple(map(Column.from_dict, data["known"])),
            Table.from_dict(data["table"]),
            Protection.from_dict(data["protection"]),
            GeneratorState(tensors, data["facts"]),
        )


def _layout(known: Sequence[Column], table: Table) -> Layout:
    taken = {c.name for c in table.modeled}
    renamed = []
    for c in known:
        name = c.name
        while name in taken:
            name += "'"
        taken.add(name)
        renamed.append(replace(c, name=name))
    kept = tuple(c for c in table.constraints if not isinstance(c, Unique))
    return Layout(Table((*renamed, *table.modeled), kept))


@dataclass
class Learning:
    """What all blocks of a table are learned with."""

    generator: Generator
    floor: int
    rng: np.random.Generator
    watch: Watch
    most: int  # rows that one block is learned from

    def protect(
        self, x: np.ndarray, table: Table, people: np.ndarray
    ) -> tuple[np.ndarray, Table, Protection, np.ndarray]:
        return protect_cells(x, table, self.floor, self.rng, people)

    def fit_block(
        self, context: Context, x: np.ndarray, table: Table, people: np.ndarray, protection: Protection
    ) -> Block | None:
        """Learn the protected columns `x` of `table` given `context`; None if there are none."""
        if not table.modeled:
            return None
        if len(x) > self.most:
            rows = np.sort(self.rng.choice(len(x), self.most, replace=False))
            context, x, people = context.take(rows), x[rows], people[rows]
        table = table.resolve_constraints(x)
        layout = _layout(context.columns, table)
        full = np.concatenate([context.x, x], axis=1)
        state = self.generator.learn_given(
            layout.encode(full), layout, len(context.columns), self.rng, self.watch, people
        )
        return Block(context.columns, table, protection, state)

    def protect_and_fit(
        self, context: Context, x: np.ndarray, table: Table, people: np.ndarray
    ) -> Block | None:
        x, table, protection, _ = self.protect(x, table, people)
        return self.fit_block(context, x, table, people, protection)
