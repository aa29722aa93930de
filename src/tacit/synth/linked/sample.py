"""Sampling of linked tables, from the top entity down (see `model`)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ...errors import BadData
from ..columns import decimals
from ..generator import Generator
from .across import Place, sum_children
from .draw import Drawing, DrawnTarget, SyntheticRows
from .fit import FittedTables, children_context, key_parts, own_context, rank_context
from .given import Context
from .new_keys import make_key


class Sampling:
    """One sample of all tables."""

    def __init__(self, generator: Generator, fitted: FittedTables, sizes: Mapping[str, int], seed: int):
        self.generator, self.fitted, self.sizes, self.seed = generator, fitted, sizes, seed
        self.rows: dict[str, SyntheticRows] = {}
        self.known: dict[str, Context] = {}
        self.keys: dict[str, pd.DataFrame] = {}

    def run(self) -> dict[str, pd.DataFrame]:
        schema = self.fitted.schema
        for i, t in enumerate(schema.tables):
            self._draw(t, np.random.default_rng([self.seed, 6, i]))
        frames = {t: self._frame(t, i) for i, t in enumerate(schema.tables)}
        # from the bottom up, as a total may be summed in turn
        for (parent, column), (child, of) in sorted(
            self.fitted.totals, key=lambda pair: -schema.tables.index(pair[0][0])
        ):
            amounts = frames[child][of].to_numpy(np.float64) if of else np.ones(len(frames[child]))
            total = sum_children(self.rows[child].parent, amounts, len(frames[parent]))
            frames[parent][column] = self._as_total(total, child, of, self.fitted.dtypes[parent][column])
        # order of the real columns
        return {t: frames[t][self.fitted.columns[t]] for t in self.fitted.columns}

    def _as_total(self, total: np.ndarray, child: str, of: str, dtype: str) -> pd.Series:
        table = self.fitted.models[child].table
        step = next((c.step for c in table.modeled if c.name == of), 1.0 if not of else None)
        places = decimals(step) if step else None
        exact = total if places is None else np.round(total, places)  # sums of decimals, as they are written
        whole = bool((exact == np.round(exact)).all())
        return pd.Series(exact).astype(
            dtype if whole or not dtype.lower().startswith(("int", "uint")) else "float64"
        )

    def _draw(self, t: str, rng: np.random.Generator) -> None:
        schema, model = self.fitted.schema, self.fitted.models[t]
        parent = schema.parent(t)
        base = Context.empty(self.sizes[t]) if parent is None else self.known[parent]
        above = {
            place: self._column_above(t, place)
            for c in model.comparisons
            for place in (c.small, c.large)
            if place[0] != t
        }
        targets = {
            k.table: DrawnTarget(Context(self.fitted.models[k.table].columns, self.rows[k.table].x))
            for k in model.links
        }
        unique = key_parts(self.fitted, t)
        drawing = Drawing(model, self.generator, base, above, targets, unique, parent is not None, rng)
        rows = drawing.run()
        if parent is None and len(rows.x) < self.sizes[t]:
            raise BadData(
                f"LinkedTables: only {len(rows.x):,} of {self.sizes[t]:,} rows of {t} have a key of their "
                "own or satisfy the constraints. Sample fewer rows."
            )
        self.rows[t] = rows
        known = own_context(model, rows.x)
        if parent is not None:
            cap = float(rows.counts.max(initial=0))
            known = known.beside(
                rank_context(t, rows.rank.astype(np.float64), cap), self.known[parent].take(rows.parent)
            )
            self.known[parent] = self.known[parent].beside(children_context(t, rows.counts, cap))
        self.known[t] = known

    def _column_above(self, t: str, place: Place) -> np.ndarray:
        """A column of an ancestor, for each parent of `t`."""
        parent = self.fitted.schema.parent(t)
        assert parent is not None
        at, table = np.arange(len(self.rows[parent].x)), parent
        while table != place[0]:
            at = self.rows[table].parent[at]
            above = self.fitted.schema.parent(table)
            assert above is not None
            table = above
        return np.asarray(self.rows[table].x[at, self.fitted.models[table].table.column_index(place[1])])

    def _frame(self, t: str, i: int) -> pd.DataFrame:
        """The published columns and the keys; parents come before."""
        schema, rows = self.fitted.schema, self.rows[t]
        frame = self.fitted.models[t].table.to_frame(rows.x, self.seed + i)
        if not len(frame.columns):
            frame = pd.DataFrame(index=range(len(rows.x)))
        for k in schema.foreign[t]:
            if k in schema.implied:
                continue
            link = rows.parent if k == schema.foreign[t][0] else rows.links[k.references]
            self._refer(frame, k.columns, k.references, link, self.fitted.dtypes[t])
        for column, rule in self.fitted.new_keys[t].items():
            frame[column] = make_key(rule, len(frame), rows.rank)
        for k in schema.implied:
            if k.table == t:
                at, table = rows.parent, schema.parent(t)
                while table != k.references:
                    assert table is not None
                    at, table = self.rows[table].parent[at], schema.parent(table)
                self._refer(frame, k.columns, k.references, at, self.fitted.dtypes[t])
        self.keys[t] = frame[list(schema.primary.get(t, ()))]
        return frame

    def _refer(
        self,
        frame: pd.DataFrame,
        columns: tuple[str, ...],
        table: str,
        link: np.ndarray,
        dtypes: Mapping[str, str],
    ) -> None:
        """Write the keys of the rows linked to."""
        for column, their in zip(columns, self.fitted.schema.primary[table]):
            values = self.keys[table][their].reset_index(drop=True).reindex(np.where(link < 0, -1, link))
            values.index = frame.index
            if (link < 0).any() and pd.api.types.is_float_dtype(values.dtype):
                values = values if dtypes[column].startswith("float") else values.astype("Int64")
            frame[column] = values
