"""Fitting of linked tables, from the top entity down (see `model`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from ...errors import BadData, BadParameter
from ...parties.ledger import Ledger
from ..columns import Column, seconds
from ..constraints import Ordered
from ..generator import Generator, Watch, unprotected_ledger
from ..table import Table
from .across import Comparison, Place, Rules
from .given import Context, Learning, count_column
from .keys import ForeignKey, Schema, fail
from .learn import RealRows, Target, fit_rows
from .new_keys import plan_key
from .rows import RowModel


@dataclass
class FittedTables:
    """Everything that was learned about all tables."""

    schema: Schema
    totals: list[tuple[Place, Place]]
    models: dict[str, RowModel]
    new_keys: dict[str, dict[str, Any]]  # how the columns of primary keys are generated
    columns: dict[str, list[str]]  # of the published tables, in order
    dtypes: dict[str, dict[str, str]]  # of keys and computed columns
    floor: int
    ledger: Ledger
    flat: list[str] = field(default_factory=list)  # the columns of events with their entities, in order


class Fitting:
    """One fit. Rows are sorted by parent and order first, so that siblings are neighbors."""

    def __init__(
        self,
        generator: Generator,
        schema: Schema,
        rules: Rules,
        tables: Mapping[str, Table | Mapping[str, str | Column]],
        floor: int,
        dependencies: bool,
        watch: Watch | None,
        most: int,
        seed: int,
    ):
        self.generator, self.schema, self.rules, self.declared = generator, schema, rules, tables
        self.floor, self.dependencies, self.most, self.seed = floor, dependencies, most, seed
        self.watch = watch or (lambda event: None)
        self.raw: dict[str, np.ndarray] = {}
        self.tables: dict[str, Table] = {}
        self.people: dict[str, np.ndarray] = {}
        self.own: dict[str, Context] = {}  # protected columns of a table, which others may link to
        self.known: dict[
            str, Context
        ] = {}  # what children know: own columns, rank, ancestors, sibling counts

    def run(self, frames: Mapping[str, pd.DataFrame], links: Mapping[ForeignKey, np.ndarray]) -> FittedTables:
        frames, links = sort_rows(frames, links, self.schema)
        new_keys = {
            t: plan_key(self.schema, t, frames[t], self._parent_link(t, links)) for t in self.schema.tables
        }
        self._check_order(frames, new_keys)
        self._read(frames, new_keys, links)
        models = {}
        for i, t in enumerate(self.schema.tables):
            self.watch({"kind": "table", "table": t, "rows": len(frames[t])})
            models[t] = self._fit_table(t, links, np.random.default_rng([self.seed, 5, i]))
        computed = {t: {c for (p, c), _ in self.rules.totals if p == t} for t in self.schema.tables}
        dtypes = {
            t: {c: str(frames[t][c].dtype) for c in {*self.schema.key_columns(t), *computed[t]}}
            for t in self.schema.tables
        }
        columns = {t: list(frame.columns) for t, frame in frames.items()}  # in the order the user gave
        return FittedTables(
            self.schema,
            self.rules.totals,
            models,
            new_keys,
            columns,
            dtypes,
            self.floor,
            unprotected_ledger(),
        )

    def _parent_link(self, t: str, links: Mapping[ForeignKey, np.ndarray]) -> np.ndarray | None:
        keys = self.schema.foreign[t]
        return links[keys[0]] if keys else None

    def _check_order(
        self, frames: Mapping[str, pd.DataFrame], new_keys: Mapping[str, Mapping[str, Any]]
    ) -> None:
        problems = []
        for t, column in self.schema.order.items():
            if self.schema.parent(t) is None:
                problems.append(f"order of {t!r}: only the children of a parent are ordered. Remove it.")
            elif column in self.schema.key_columns(t) and column not in [
                *new_keys[t],
                *learned_keys(self.schema, t, new_keys[t]),
            ]:
                problems.append(f"order of {t!r}: {column!r} is a foreign key. Name a time or a number.")
        fail(problems, "LinkedTables", BadParameter)

    def _read(
        self,
        frames: Mapping[str, pd.DataFrame],
        new_keys: Mapping[str, Mapping[str, Any]],
        links: Mapping[ForeignKey, np.ndarray],
    ) -> None:
        """Read all columns, and check the constraints on the real rows; one error names all problems."""
        problems: list[str] = []
        for t in self.schema.tables:
            keys = {*self.schema.key_columns(t), *(c for (p, c), _ in self.rules.totals if p == t)}
            keys -= set(learned_keys(self.schema, t, new_keys[t]))
            own = frames[t].drop(columns=list(keys))
            try:
                table = self._table(t, own)
                self.raw[t] = table.to_numbers(own) if table.modeled else np.zeros((len(own), 0))
                self.tables[t] = table
            except (BadData, BadParameter) as error:
                problems.append(f"{t}: {error}")
        fail(problems, "LinkedTables")
        for t in self.schema.tables:
            for c in self.rules.comparisons[t]:
                problems += self._check_comparison(t, c, links)
            time = self._time(t)
            if time is not None and not self.tables[t].modeled[self.tables[t].column_index(time)].is_number:
                problems.append(
                    f"order of {t!r}: {time!r} is neither a time nor a number. Declare it in `tables`, or "
                    "leave the order out: then it is that of the rows."
                )
        fail(problems, "LinkedTables")

    def _table(self, t: str, own: pd.DataFrame) -> Table:
        rules = self.rules.own[t]
        declared = self.declared.get(t, {})
        if isinstance(declared, Table):
            self.rules.comparisons[t] += [
                Comparison((t, c.small), (t, c.large), c.strictly)
                for c in declared.constraints
                if isinstance(c, Ordered)
            ]
            return replace(declared, constraints=(*declared.constraints, *rules))
        if not len(own.columns):
            return Table(())
        return Table.infer_columns(own, rules, declared)

    def _time(self, t: str) -> str | None:
        """The order column, if it is learned; a key that counts is not."""
        time = self.schema.order.get(t)
        return time if time in [c.name for c in self.tables[t].modeled] else None

    def _check_comparison(self, t: str, c: Comparison, links: Mapping[ForeignKey, np.ndarray]) -> list[str]:
        sides = []
        for table, column in (c.small, c.large):
            modeled = {m.name: m for m in self.tables[table].modeled}
            if column not in modeled or not modeled[column].is_number:
                return [f"{_text(c)}: {table}.{column} is neither a number nor a time that is learned."]
            sides.append(self._column_of(t, (table, column), links))
        broken = int((~c.holds(*sides)).sum())
        if broken:
            return [
                f"the tables violate {_text(c)} in {broken:,} of {len(sides[0]):,} rows of {t}. Correct "
                "those rows, or remove the constraint."
            ]
        return []

    def _column_of(self, t: str, place: Place, links: Mapping[ForeignKey, np.ndarray]) -> np.ndarray:
        """A column of this table or of an ancestor, for each row of `t`."""
        at, table = np.arange(len(self.raw[t])), t
        while table != place[0]:
            key = self.schema.foreign[table][0]
            at, table = links[key][at], key.references
        return np.asarray(self.raw[table][at, self.tables[table].column_index(place[1])])

    def _fit_table(
        self, t: str, links: Mapping[ForeignKey, np.ndarray], rng: np.random.Generator
    ) -> RowModel:
        parent, link = self.schema.parent(t), self._parent_link(t, links)
        above = {
            place: self._column_of(t, place, links)
            for c in self.rules.comparisons[t]
            for place in (c.small, c.large)
            if place[0] != t
        }
        if parent is None or link is None:
            link = np.arange(len(self.raw[t]))
            base, owners = None, link
        else:
            base, owners = self.known[parent], self.people[parent]
        others = self.schema.others(t)
        rows = RealRows(self.raw[t], link, owners, above, {k.references: links[k] for k in others})
        learning = Learning(self.generator, self.floor, rng, self.watch, self.most)
        targets = {k.references: Target(self.own[k.references], self.people[k.references]) for k in others}
        try:
            model, shown, counts = fit_rows(
                t,
                self.tables[t],
                rows,
                base,
                self.rules.comparisons[t],
                targets,
                self._time(t),
                learning,
                self.dependencies,
            )
        except BadData as error:
            raise BadData(f"LinkedTables: {t}: {error}") from None
        self.people[t] = rows.people
        self.own[t] = Context(model.columns, shown)
        known = own_context(model, shown)
        if base is not None and parent is not None:
            cap = float(counts.max())
            known = known.beside(
                rank_context(t, np.minimum(rows.rank, cap).astype(np.float64), cap), base.take(link)
            )
            self.known[parent] = base.beside(children_context(t, counts, cap))
        self.known[t] = known
        return model


def own_context(model: RowModel, x: np.ndarray) -> Context:
    """The columns of a row, as its children know them."""
    return Context(tuple(replace(c, name=f"{model.name}.{c.name}") for c in model.columns), x)


def rank_context(table: str, rank: np.ndarray, cap: float) -> Context:
    """Which of its siblings a row is, as its children know it."""
    return Context((count_column(f"({table}: rank)", cap),), rank[:, None])


def children_context(table: str, counts: np.ndarray, cap: float) -> Context:
    """The number of children in a table, as later tables know it."""
    return Context((count_column(f"({table}: number)", cap),), counts.astype(np.float64)[:, None])


def learned_keys(schema: Schema, t: str, rules: Mapping[str, Any]) -> list[str]:
    """Columns of the primary key that are attributes: neither inherited nor generated."""
    inherited = {c for k in schema.foreign[t] for c in k.columns}
    return [c for c in schema.primary.get(t, ()) if c not in inherited and c not in rules]


def key_parts(fitted: FittedTables, t: str) -> tuple[list[str], list[str]] | None:
    """What makes the key of a table unique, if no new number does: attributes and linked tables."""
    schema = fitted.schema
    if t not in schema.primary or fitted.new_keys[t]:
        return None
    columns = set(schema.primary[t])
    linked = [k.references for k in schema.others(t) if columns & set(k.columns)]
    if schema.foreign[t] and columns & set(schema.foreign[t][0].columns):
        linked.insert(0, "")
    return learned_keys(schema, t, {}), linked


def _text(c: Comparison) -> str:
    small, large = ".".join(c.small), ".".join(c.large)
    return f"Ordered({small!r}, {large!r}{', strictly=True' * c.strictly})"


def sort_rows(
    frames: Mapping[str, pd.DataFrame], links: Mapping[ForeignKey, np.ndarray], schema: Schema
) -> tuple[dict[str, pd.DataFrame], dict[ForeignKey, np.ndarray]]:
    """Sort children by parent and order; links follow."""
    sorted_frames, new_links = dict(frames), dict(links)
    for t in schema.tables:
        keys = schema.foreign[t]
        if not keys:
            sorted_frames[t] = frames[t].reset_index(drop=True)
            continue
        by: list[np.ndarray] = [np.arange(len(frames[t]))]
        if t in schema.order:
            by.append(_order_values(frames[t][schema.order[t]], t))
        rows = np.lexsort((*by, new_links[keys[0]]))
        sorted_frames[t] = frames[t].iloc[rows].reset_index(drop=True)
        for k in keys:
            new_links[k] = new_links[k][rows]
        place = np.empty(len(rows), np.int64)
        place[rows] = np.arange(len(rows))
        for k, link in new_links.items():
            if k.references == t:
                new_links[k] = np.where(link < 0, -1, place[link])
    return sorted_frames, new_links


def _order_values(values: pd.Series, t: str) -> np.ndarray:
    if pd.api.types.is_numeric_dtype(values.dtype):
        return np.asarray(values.to_numpy(np.float64))
    try:
        return seconds(values, str(values.name))
    except BadData as error:
        raise BadData(f"LinkedTables: order of {t!r}: {error} Name a column of times or numbers.") from None
