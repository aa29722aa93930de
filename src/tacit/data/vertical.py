"""Vertical partitions: the parties hold different columns of the same records.

    parties = data.from_csv("people.csv", label="default", id="id").vertical(into={"bank": ["age", "limit"],
    "shop": ["basket"]}, label_at="bank")

`Columns` is one party's table with its ids, as read from its own file. `Vertical` is several parties' columns
of the same records in the same order. Each party standardizes its own columns, by the training rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData
from ..parameters import bad, nearest
from ..protocols.sum_steps import ideal
from .federation import check_fraction, check_one_label, check_whole
from .identifiers import identify_rows, show_rows
from .preparation import Preparation

if TYPE_CHECKING:
    from .federation import Dataset
    from .recipe import Recipe

# the random stream that draws the held-out rows; 0 to 5 are used where rows are partitioned
HOLDING = 6


@dataclass(frozen=True)
class Columns:
    """One party's columns, one row per record.

    `x` is encoded and not standardized (a missing number is NaN); `y` is None unless the party has the label.
    `frame` is the table of its features, from which rows are encoded as its recipe says.
    """

    name: str
    ids: np.ndarray = field(repr=False)  # as in the file: text or integers
    x: Tensor = field(repr=False)
    columns: tuple[str, ...]
    recipe: Recipe | None = field(default=None, repr=False)  # None: numbers, ready to use
    y: Tensor | None = field(default=None, repr=False)
    classes: int | None = None
    labels: tuple[str, ...] = ()
    frame: Any = field(default=None, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.x)

    def take(self, rows: Any) -> Columns:
        """Return these rows, in this order; −1 is a row in which everything is missing."""
        places = np.ascontiguousarray(rows).astype(np.int64)
        at = torch.from_numpy(places)
        x, frame = self.x[at.clamp(min=0)] if len(self.x) else self._blank(len(at)), self.frame
        ids = np.array([self.ids[k] if k >= 0 else None for k in places.tolist()], dtype=object)
        if (places < 0).any():
            x = torch.where((at < 0)[:, None], self._blank(len(at)), x)
        else:
            ids = self.ids[places]
        if frame is not None:
            frame = frame.reset_index(drop=True).reindex(places).reset_index(drop=True)
        return replace(self, ids=ids, x=x, y=None if self.y is None else self.y[at], frame=frame)

    def _blank(self, rows: int) -> Tensor:
        """Return rows of missing values: NaN for numbers, no category, and every indicator 1."""
        if self.recipe is None or self.frame is None or self.y is not None:
            raise BadData(
                f"the rows of {self.name!r} cannot have missing values: a left join adds them to a table of "
                "features that was read with data.from_csv or data.from_frame."
            )
        row = torch.zeros(len(self.recipe.columns))
        row[: len(self.recipe.numeric)] = math.nan
        row[len(row) - len(self.recipe.missing) :] = 1
        return row.expand(rows, -1)

    def allow_missing(self) -> Columns:
        """Return the table with a missing indicator for every column, as a left join needs it."""
        if self.recipe is None or self.frame is None:
            self._blank(0)
            return self
        recipe = replace(self.recipe, missing=self.recipe.inputs)
        return replace(self, recipe=recipe, x=recipe.encode(self.frame), columns=recipe.columns)

    def standardize(self, rows: Tensor, is_regression: bool = False) -> tuple[Tensor, Recipe | None]:
        """Return all rows, scaled by the statistics of `rows`, and the recipe with these statistics."""
        if self.recipe is None:
            return self.x, None
        if self.frame is None or self.recipe.fit != "federated" or self.recipe.is_fitted:
            recipe = self.recipe.resolve(self.x[rows])
        else:  # this party's own rows alone; winsorizing, ranks and rare categories as for several parties
            known = rows[[self.ids[k] is not None for k in rows.tolist()]]
            program = Preparation(self.recipe, is_regression=is_regression)
            recipe = ideal(program, {self.name: self.frame.iloc[known.numpy()]})
        return recipe.transform(self.frame) if self.frame is not None else recipe.standardize(self.x), recipe

    @classmethod
    def of(cls, data: Dataset) -> Columns:
        """Return all rows of a data set, test rows included."""
        ids = ids_of(data)
        return cls(
            data.name,
            ids,
            torch.cat([data.rows.matrix("vertical"), data.test.matrix("vertical")]),
            data.columns,
            None if data.table is None else data.table.recipe,
            torch.cat([data.rows.y, data.test.y]),
            data.classes,
            data.labels,
            frame_of(data),
        )


DUPLICATES = ("refuse", "first")


def drop_repeated_ids(table: Columns, where: str, duplicates: str = "refuse") -> tuple[Columns, list[str]]:
    """Return the table with one row for each id, and notes about what was left out.

    Exact repetitions of a row are left out. Rows with the id of an earlier row and other values are refused,
    or left out with duplicates="first". Rows without an id stay: they match no record.
    """
    if duplicates not in DUPLICATES:
        raise bad(where, "duplicates", duplicates, "'refuse' or 'first'")
    first: dict[bytes, int] = {}
    same: list[int] = []
    other: list[int] = []
    digests, identified_rows = identify_rows(table.ids.tolist(), where)
    for row, digest in zip(identified_rows.tolist(), (d.tobytes() for d in digests)):
        before = first.setdefault(digest, row)
        if before != row:
            (same if _equal(table, before, row) else other).append(row)
    differ = (
        f"{where}: {len(other)} of {len(table)} rows have the id of an earlier row and other values "
        f"({show_rows(other)})"
    )
    if other and duplicates == "refuse":
        raise BadData(
            f"{differ}, so it is ambiguous which row to use. Keep one row for each id, or set duplicates "
            '= "first" to keep the first row of '
            "each id."
        )
    notes = []
    if same:
        notes.append(
            f"{where}: {len(same)} of {len(table)} rows repeat an earlier row with the same id "
            f"({show_rows(same)}); they were left out."
        )
    if other:
        notes.append(f'{differ}; the first row of each id was kept, as duplicates = "first" says.')
    return (table.take(np.setdiff1d(np.arange(len(table)), [*same, *other])), notes) if notes else (table, [])


def _equal(table: Columns, a: int, b: int) -> bool:
    """Whether two rows have the same values; two missing values are equal."""
    y = table.y is None or torch.equal(table.y[a], table.y[b])
    return y and bool(((table.x[a] == table.x[b]) | (table.x[a].isnan() & table.x[b].isnan())).all())


def ids_of(data: Dataset) -> np.ndarray:
    """Return the ids of the training rows, then of the test rows: row numbers without an id column."""
    if data.table is None or not data.table.id:
        return np.arange(len(data.rows.y) + len(data.test.y))
    return np.concatenate(
        [frame[data.table.id].to_numpy(dtype=object) for frame in (data.table.frame, data.table.test)]
    )


def frame_of(data: Dataset) -> Any:
    """Return the features of the training rows, then of the test rows, as a table; None if there is none."""
    if data.table is None:
        return None
    import pandas as pd

    parts = [data.table.frame, data.table.test]
    names = list(data.table.recipe.inputs)
    return pd.concat([part[names] for part in parts if len(part)], ignore_index=True)


@dataclass(frozen=True)
class Vertical:
    """Several parties' columns of the same records, in one order, with training and test rows."""

    name: str
    parties: dict[str, Columns]
    label_at: str
    train: Tensor = field(repr=False)
    test: Tensor = field(repr=False)

    def __len__(self) -> int:
        return len(self.parties[self.label_at])

    @property
    def y(self) -> Tensor:
        labels = self.parties[self.label_at].y
        assert labels is not None
        return labels

    @property
    def classes(self) -> int | None:
        return self.parties[self.label_at].classes

    @classmethod
    def of(
        cls,
        parties: Mapping[str, Columns],
        label_at: str,
        test_fraction: float = 0.2,
        seed: int = 0,
        name: str = "",
    ) -> Vertical:
        """Combine columns that are already aligned; test rows depend on the seed alone, so parties agree."""
        holders = _holder(parties, label_at)
        first = holders[label_at]
        for who, columns in holders.items():
            # after a left join a party has no id (None) where it has no row
            if len(columns) != len(first) or any(
                a is not None and a != b for a, b in zip(columns.ids.tolist(), first.ids.tolist())
            ):
                raise BadData(
                    f"the rows of {who!r} and {label_at!r} are not the same records in the same order "
                    f"({len(columns)} and {len(first)} rows). Align them first: tacit.align, or let "
                    "tacit.splitnn do it."
                )
        train, test = split_rows(len(first), test_fraction, seed)
        return cls(name or first.name, holders, label_at, train, test)


def split_rows(rows: int, fraction: float, seed: int, owner: str = "vertical") -> tuple[Tensor, Tensor]:
    """Return (training rows, test rows): the same at every party with this number of rows and seed."""
    check_fraction(owner, "test_fraction", fraction)
    order = torch.from_numpy(np.random.default_rng([seed, HOLDING]).permutation(rows))
    held = min(round(fraction * rows), max(rows - 1, 0))
    return order[held:].sort().values, order[:held].sort().values


def _holder(parties: Mapping[str, Columns], label_at: str) -> dict[str, Columns]:
    if label_at not in parties:
        raise bad(
            "vertical", "label_at", label_at, "one of the parties", nearest(str(label_at), list(parties))
        )
    if parties[label_at].y is None:
        raise BadData(
            f"{label_at!r} should hold the label, and its table was read without one. Read it with label=…."
        )
    return {
        who: c if who == label_at or c.y is None else replace(c, y=None, classes=None, labels=())
        for who, c in parties.items()
    }


def split_columns(data: Dataset, into: Mapping[str, Iterable[Any]], label_at: str) -> Vertical:
    """Split a data set's columns across parties: `Dataset.vertical`."""
    if not isinstance(into, Mapping) or not into or not all(isinstance(k, str) and k for k in into):
        raise bad("vertical", "into", into, 'columns by party, like {"bank": ["age"], "shop": ["basket"]}')
    if label_at not in into:
        raise bad("vertical", "label_at", label_at, "one of the parties", nearest(str(label_at), list(into)))
    check_one_label("vertical", data)
    whole = Columns.of(data)
    known = (
        list(data.columns)
        if data.table is None
        else [*data.table.recipe.numbers, *data.table.recipe.categories]
    )
    if len(set(map(str, whole.ids))) < len(whole.ids):
        raise BadData(
            f"{data.name}: an id is in more than one row, so the parties' rows cannot be matched. "
            "Keep one row for each id."
        )
    parties = {}
    for who, columns in into.items():
        names = [columns] if isinstance(columns, str) else list(columns)
        if not names and who != label_at:
            raise bad(
                "vertical",
                f"the columns of {who!r}",
                names,
                "at least one column",
                "Only the holder of the label may have none.",
            )
        for name in names:
            if isinstance(name, str) and name not in known:
                raise BadData(f"{data.name}: there is no column {name!r} for {who!r}. {nearest(name, known)}")
        parties[who] = _select_columns(data, whole, who, names)
    parties[label_at] = replace(parties[label_at], y=whole.y, classes=whole.classes, labels=whole.labels)
    n = len(data.rows.y)
    return Vertical(data.name, parties, label_at, torch.arange(n), torch.arange(n, len(whole)))


def split_for_transfer(
    data: Dataset, source: Iterable[Any], target: Iterable[Any], shared: int, seed: int = 0
) -> tuple[Columns, Columns]:
    """Make two parties' tables for a study of transfer learning.

    Each party has the given columns of about half of the records; `shared` records are in both tables. A
    column may be in both. The target's labels are for evaluation.
    """
    parts = split_columns(data, {"source": list(source), "target": list(target)}, "source")
    rows = len(parts)
    fits = f"a whole number between 1 and {rows - 1}, as there are {rows} records"
    check_whole("split_for_transfer", "shared", shared, 1, rows - 1, fits)
    order = np.random.default_rng([seed, HOLDING]).permutation(rows)
    half = shared + (rows - shared) // 2
    whole = parts.parties["source"]
    other = replace(parts.parties["target"], y=whole.y, classes=whole.classes, labels=whole.labels)
    return whole.take(order[:half]), other.take(np.concatenate([order[:shared], order[half:]]))


def _select_columns(data: Dataset, whole: Columns, who: str, names: Sequence[Any]) -> Columns:
    if data.table is None:
        width = int(whole.x[0].numel())
        at = [data.columns.index(n) if isinstance(n, str) else n for n in names]
        if not all(
            isinstance(k, int | np.integer) and not isinstance(k, bool) and 0 <= k < width for k in at
        ):
            raise bad(
                "vertical",
                f"the columns of {who!r}",
                list(names)[:8],
                f"names of columns, or positions from 0 to {width - 1}",
            )
        x = whole.x.reshape(len(whole), -1)[:, torch.tensor([int(k) for k in at], dtype=torch.int64)]
        return Columns(
            who, whole.ids, x, tuple(data.columns[int(k)] if data.columns else str(int(k)) for k in at)
        )
    import pandas as pd

    selected = {str(n) for n in names}
    recipe = data.table.recipe
    for column in (*recipe.numbers, *recipe.categories):
        if column not in selected:
            recipe = recipe.without(column)
    parts = [part for part in (data.table.frame, data.table.test) if len(part)]
    frame = pd.concat(parts, ignore_index=True)
    names = list(recipe.inputs)
    return Columns(who, whole.ids, recipe.encode(frame), recipe.columns, recipe, frame=frame[names])
