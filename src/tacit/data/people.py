"""Splits that keep the rows of one person together, and splits by time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..errors import BadData
from .arrays import sample_stratified, select_rows
from .cells import show_row, to_moments, to_numbers, to_text
from .federation import Dataset, Rows, check_fraction, check_whole

if TYPE_CHECKING:
    from pandas import DataFrame, Series

    from .skews import Skew


def people_of(name: str, column: Series) -> np.ndarray:
    """Return a number for each row's person."""
    if column.isna().any():
        first = int(column.isna().to_numpy().argmax())
        raise BadData(
            f"{name}: {int(column.isna().sum())} rows have no {column.name!r}, so it is unknown whose they "
            f"are; the first is {show_row(first)}. Fill or drop them first."
        )
    return np.asarray(np.unique(to_text(column).astype(str), return_inverse=True)[1].astype(np.int64))


def split_people(data: Dataset, fraction: float, seed: int) -> Dataset:
    """Move people with about this fraction of the rows into the test set; no person is on both sides."""
    check_fraction(data.name, "test_fraction", fraction)
    check_whole(data.name, "seed", seed, 0)
    assert data.persons is not None
    _, first, place = np.unique(data.persons, return_index=True, return_inverse=True)
    strata = np.zeros(len(first), np.int64) if data.classes is None else data.rows.y.numpy()[first]
    tested = sample_stratified(strata, round(fraction * len(first)), np.random.default_rng([int(seed), 4]))
    is_tested = np.isin(place, tested)
    return select_rows(data, np.flatnonzero(~is_tested), np.flatnonzero(is_tested))


def split_by_time(data: Dataset, frame: DataFrame, column: str, after: str, format: str | None) -> Dataset:
    """Make the rows of `after` and later the test set.

    Earlier rows of a person who has a later one are left out: they would tell the model about test rows.
    """
    moments = frame[column]
    late = is_late(data.name, column, moments, str(after), format)
    rest = ~late
    notes: list[str] = []
    if data.persons is not None:
        early = rest & np.isin(data.persons, data.persons[late])
        rest &= ~early
        if early.any():
            notes.append(
                f"People with rows on both sides of {after} are in the test set only; their earlier rows are "
                "left out."
            )
    if not late.any() or not rest.any():
        side = "later" if not late.any() else "earlier"
        raise BadData(
            f"{data.name}: no row has a {column!r} that is {side} than test_after={after!r}. Choose another "
            "day."
        )
    made = select_rows(data, np.flatnonzero(rest), np.flatnonzero(late))
    if notes and made.table is not None:
        made = replace(made, table=replace(made.table, notes=(*made.table.notes, *notes)))
    return made


def is_late(name: str, column: str, moments: Series, after: str, format: str | None) -> np.ndarray:
    """Return whether each row is of this day or later."""
    import pandas as pd

    if moments.isna().any():
        first = int(moments.isna().to_numpy().argmax())
        raise BadData(
            f"{name}: {int(moments.isna().sum())} rows have no {column!r}, so it is unknown whether they "
            f"belong to the test set; the first is {show_row(first)}. Fill or drop them first."
        )
    if pd.api.types.is_numeric_dtype(moments):  # a year, or days since some day
        try:
            return np.asarray(to_numbers(moments) >= float(after))
        except ValueError:
            raise BadData(
                f"{name}: the column {column!r} has numbers, and test_after is {after!r}. Give a number."
            ) from None
    day = pd.to_datetime(after, format="ISO8601", errors="coerce")
    if pd.isna(day):
        raise BadData(f"{name}: test_after is {after!r}; it must be a day, like '2016-01-01'.")
    try:
        return np.asarray((to_moments(column, moments, format) >= day).to_numpy())
    except BadData as error:
        raise BadData(f"{name}: {error}") from None


def partition_people(
    skew: Skew, data: Dataset, parties: int, rng: np.random.Generator, min_size: int
) -> list[np.ndarray]:
    """Partition people instead of rows: a skew sees the first row of each, and the others follow."""
    assert data.persons is not None
    _, first, place = np.unique(data.persons, return_index=True, return_inverse=True)
    if len(first) < parties:
        raise BadData(
            f"{data.name}: there are {len(first)} people and {parties} parties, and the rows of one person "
            "stay together. Use fewer parties."
        )
    at = torch.from_numpy(first)
    heads = replace(
        data,
        rows=Rows(data.rows.x[at], data.rows.y[at]),
        groups={key: values[first] for key, values in data.groups.items()},
        persons=None,
    )
    lists = skew.partition(heads, parties, rng, max(1, min(min_size, len(first) // parties)))
    rows = np.argsort(place, kind="stable")
    ends = np.cumsum(np.bincount(place))
    starts = ends - np.bincount(place)
    return [
        np.concatenate([rows[starts[p] : ends[p]] for p in people]) if len(people) else np.empty(0, np.int64)
        for people in lists
    ]


def hold_out_people(
    persons: np.ndarray, owner: np.ndarray, n_held: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return an order of the rows, party by party, and which of them are held out: all rows of some people.

    About `n_held` rows of each party are held out; a party keeps at least one person for training. A person
    with rows at several parties is on the same side at all of them.
    """
    chance = rng.random(int(persons.max()) + 1)[persons]
    order = np.lexsort((persons, chance, owner))
    who, where = persons[order], owner[order]
    starts = np.flatnonzero(np.r_[True, (who[1:] != who[:-1]) | (where[1:] != where[:-1])])
    sizes = np.diff(np.r_[starts, len(order)])
    party = where[starts]
    if len(np.unique(who[starts])) < len(starts):
        is_held = _hold_out_shared(who[starts], party, sizes, chance[order][starts], n_held)
        return order, np.repeat(is_held, sizes)
    before = np.cumsum(sizes) - sizes  # rows before this person, over all parties
    first_of_party = np.r_[True, party[1:] != party[:-1]]
    base = np.maximum.accumulate(np.where(first_of_party, before, 0))
    last_of_party = np.r_[party[1:] != party[:-1], True]
    is_held = (before - base < n_held[party]) & ~last_of_party
    return order, np.repeat(is_held, sizes)


def _hold_out_shared(
    who: np.ndarray, party: np.ndarray, sizes: np.ndarray, chance: np.ndarray, n_held: np.ndarray
) -> np.ndarray:
    """Return which entries (a person at a party, with so many rows) are held out, where people are shared.

    In the order of their chance, a person is held out if every party they have rows at still needs held-out
    rows and has another person to train on.
    """
    held, left = np.zeros(len(n_held), np.int64), np.bincount(party, minlength=len(n_held))
    is_held = np.zeros(len(who), bool)
    order = np.lexsort((who, chance))
    for entries in np.split(order, np.flatnonzero(np.diff(who[order])) + 1):
        at = party[entries]
        if (held[at] < n_held[at]).all() and (left[at] > 1).all():
            is_held[entries] = True
            held[at] += sizes[entries]
            left[at] -= 1
    return is_held
