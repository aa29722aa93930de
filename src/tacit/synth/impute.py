"""Imputation: missing values drawn from an autoregressive network, given the values of their row."""

from __future__ import annotations

import numpy as np
import pandas as pd

from .autoregressive import BLOCK, CellSampler, ColumnNetwork
from .columns import Column, check_known, map_values, scalar
from .constraints import Ordered
from .encode import Discretizer, Layout
from .protect import Protection
from .table import Table, check_columns

TRIES = 20  # draws of a row whose completed values violate an order, before the imputed value is moved


def impute_frame(
    frame: pd.DataFrame,
    layout: Layout,
    cells: Discretizer,
    network: ColumnNetwork,
    protection: Protection,
    rng: np.random.Generator,
    even: bool,
) -> pd.DataFrame:
    """Return a copy of the frame in which no learned column has missing values."""
    table = layout.table
    check_columns(frame)
    names = [str(n) for n in frame.columns]
    check_known((c.name for c in table.modeled), names, "the table has no column")
    places = [names.index(c.name) for c in table.modeled]
    missing = np.column_stack([frame.iloc[:, k].isna().to_numpy() for k in places])
    x = np.column_stack([_to_numbers(c, frame.iloc[:, k]) for c, k in zip(table.modeled, places)])
    needed = np.flatnonzero(missing.any(axis=1))
    done = x.copy()
    todo = needed
    for _ in range(TRIES):
        for first in range(0, len(todo), BLOCK):
            rows = todo[first : first + BLOCK]
            drawn = _draw_rows(x[rows], layout, cells, network, protection, rng, even)
            done[rows] = np.where(missing[rows], drawn, x[rows])
        todo = todo[~_is_ordered(done[todo], table)]
        if not len(todo):
            break
    _move_into_order(done, missing, table)
    out = frame.copy()
    for j, (c, k) in enumerate(zip(table.modeled, places)):
        if missing[:, j].any():
            out.isetitem(k, _fill(frame.iloc[:, k], c, done[:, j], missing[:, j]))
    return out


def _to_numbers(column: Column, series: pd.Series) -> np.ndarray:
    """Convert a series; NaN where a value is missing or was not learned."""
    if column.is_number:
        x = column.to_numbers_unchecked(series)
        return x
    index = {value: i for i, value in enumerate(column.values)}
    x = map_values(series, lambda v: index.get(scalar(v), -1)).astype(np.float64)
    return np.where(x < 0, np.nan, x)


def _draw_rows(
    x: np.ndarray,
    layout: Layout,
    cells: Discretizer,
    network: ColumnNetwork,
    protection: Protection,
    rng: np.random.Generator,
    even: bool,
) -> np.ndarray:
    """Return column numbers without missing values; what is present only matters as a condition."""
    codes = np.zeros((len(x), len(layout.variables)), dtype=np.int64)
    known = np.zeros(codes.shape, dtype=bool)
    allowed: list[np.ndarray] = []
    for i, var in enumerate(layout.variables):
        part = x[:, list(var.columns)]
        if i in layout.combinations:
            pool = layout.combinations[i]
            # a combination that agrees with the values that are present, and has none missing
            fits = (np.isnan(part)[:, None, :] | (part[:, None, :] == pool)).all(axis=2)
            fits &= ~np.isnan(pool).any(axis=1)
            fits = np.where(fits.any(axis=1, keepdims=True), fits, True)
            known[:, i] = fits.sum(axis=1) == 1
            codes[:, i] = fits.argmax(axis=1)
            allowed.append(fits[~known[:, i]])
            continue
        known[:, i] = ~np.isnan(part[:, 0])
        size = cells.sizes[i]
        open_cells = np.ones(size, dtype=bool)
        if var.missing:
            open_cells[-1] = size == 1
        withheld = [k for k in protection.withheld.get(var.name, ()) if k < size]
        if var.levels and len(withheld) < open_cells.sum():
            open_cells[withheld] = False
        allowed.append(np.broadcast_to(open_cells, (int((~known[:, i]).sum()), size)))
        if var.levels:
            codes[:, i] = np.where(known[:, i], part[:, 0], 0)
        else:
            codes[:, i] = np.searchsorted(cells.edges[i], np.nan_to_num(part[:, 0]), side="right")
    sampler = CellSampler(network, codes, known)
    for i in range(len(layout.variables)):
        if not known[:, i].all():
            sampler.fill(i, rng, even, allowed[i])
    drawn = layout.decode(cells.decode(sampler.codes, rng))
    return protection.clip(layout.table.fit_to_domain(drawn), layout.table)


def _is_ordered(x: np.ndarray, table: Table) -> np.ndarray:
    valid = np.ones(len(x), dtype=bool)
    for c in table.constraints:
        if isinstance(c, Ordered):
            valid &= c.holds(x, table)
    return valid


def _move_into_order(x: np.ndarray, missing: np.ndarray, table: Table) -> None:
    """Move imputed values to the value that they must not exceed, or be below, in place."""
    for c in table.constraints:
        if isinstance(c, Ordered):
            a, b = (table.column_index(name) for name in c.columns)
            step = (table.modeled[b].step or 0.0) if c.strictly else 0.0
            wrong = ~c.holds(x, table)
            upper, lower = wrong & missing[:, b], wrong & missing[:, a] & ~missing[:, b]
            x[upper, b] = x[upper, a] + step
            x[lower, a] = x[lower, b] - step


def _fill(series: pd.Series, column: Column, x: np.ndarray, missing: np.ndarray) -> pd.Series:
    values = pd.Series(column.to_series(np.where(missing, x, np.nan)))
    filled = series.reset_index(drop=True).astype(object)
    filled[missing] = values.astype(object)[missing]
    whole = column.dtype.startswith(("int", "uint", "bool")) or column.kind == "integer"
    dtype = column.dtype if whole and column.dtype and not filled.isna().any() else series.dtype
    return filled.astype(dtype).set_axis(series.index)
