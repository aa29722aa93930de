"""Tables: rows of named columns, encoded by a recipe.

The parties agree on the *layout* before they start: which columns are numbers, which are categories with
which values, and which may have missing values. Declare it (`Recipe(numbers=…, categories=…)`), or let it be
inferred from the whole table; the federation's notes then say that the layout was taken from all parties'
rows. The *statistics* (mean and standard deviation of each number) are each party's own by default: computed
on its training rows, applied to its training and held-out rows. A row of the global test set is standardized
by the party it came from if that is known (`by`), and otherwise by the test set's own statistics.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData
from ..parameters import bad, nearest
from .arrays import from_arrays, split_test_set
from .federation import Dataset, Federation, Rows
from .table_files import CODE, DECIMAL_COMMA, find_decimal_comma, read_table
from .vertical import Columns

if TYPE_CHECKING:
    from pandas import DataFrame, Series

FITS = ("party", "pooled", "none")
INFERRED_LAYOUT = (
    "The table's layout (types of columns, categories, missing values) was inferred from all "
    "parties' rows together."
)
TOO_MANY = 100  # more categories than this, and than half of the rows, are an identifier or free text


@dataclass(frozen=True)
class Recipe:
    """How a table is encoded: numbers, one-hot categories, and missing indicators.

    A missing number becomes the mean and a missing category all zeros; the indicator column is then 1. `fit`
    says whose statistics are used: "party", "pooled" (all training rows together) or "none" (numbers as they
    are). If `mean` and `std` are given, those are used.
    """

    numbers: tuple[str, ...] = ()
    categories: dict[str, tuple[str, ...]] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    fit: str = "party"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the encoded features."""
        one_hot = [f"{name}={value}" for name, values in self.categories.items() for value in values]
        return (*self.numbers, *one_hot, *(f"{name} missing" for name in self.missing))

    @classmethod
    def infer(cls, frame: DataFrame, categories: Sequence[str] = (), fit: str = "party") -> Recipe:
        """Infer the layout of a table from its values."""
        numbers, kinds, many = [], {}, {}
        for name in map(str, frame.columns):
            column = frame[name]
            if name not in categories and not _has_codes(column) and _is_number(name, column):
                numbers.append(name)
                continue
            values = np.unique(_text(column.dropna()))
            if len(values) > TOO_MANY and 2 * len(values) > len(frame):
                many[name] = values
            elif name not in categories and (example := find_decimal_comma(column)):
                raise BadData(
                    f"column {name!r}: {DECIMAL_COMMA.format(example)} If they are categories, pass "
                    f"categories=[{name!r}]."
                )
            kinds[name] = tuple(values.tolist())
        if many:  # all of them in one message
            name, values = next(iter(many.items()))
            raise BadData(
                f"the column {name!r} has {len(values)} different values in {len(frame)} rows: "
                f"{_what_they_are(values)} "
                f"Leave it out with drop={[name]!r}."
                + (f" The same holds for {', '.join(map(repr, list(many)[1:]))}." if len(many) > 1 else "")
            )
        missing = tuple(str(name) for name in frame.columns if frame[name].isna().any())
        return cls(tuple(numbers), kinds, missing, fit)

    def without(self, column: str) -> Recipe:
        places = [i for i, name in enumerate(self.numbers) if name != column]
        mean, std = (None if s is None else tuple(s[i] for i in places) for s in (self.mean, self.std))
        return replace(
            self,
            numbers=tuple(self.numbers[i] for i in places),
            missing=tuple(m for m in self.missing if m != column),
            categories={name: values for name, values in self.categories.items() if name != column},
            mean=mean,
            std=std,
        )

    def encode(self, frame: DataFrame) -> Tensor:
        """Encode a table without standardizing; a missing number is NaN."""
        parts = [np.zeros((len(frame), 0), dtype=np.float32)]
        for name in (*self.numbers, *self.categories, *self.missing):
            if name not in frame.columns:
                raise BadData(
                    f"the recipe needs a column {name!r} and the table has none. "
                    f"{nearest(name, list(map(str, frame.columns)))}"
                )
        for name in self.numbers:
            if not _is_number(name, frame[name]):
                raise BadData(
                    f"the recipe declares {name!r} as a number; the table contains text, e.g. "
                    f"{str(frame[name].dropna().iloc[0])!r}."
                )
            parts.append(_numbers(frame[name])[:, None])
        for name, values in self.categories.items():
            known = frame[name].notna().to_numpy()
            text = _text(frame[name])
            unknown = sorted(set(text[known]) - set(values))
            if unknown:
                raise BadData(
                    f"the column {name!r} has the value {unknown[0]!r}, which is not in the recipe. "
                    f"Known: {', '.join(values[:20])}."
                )
            parts.append(
                ((text[:, None] == np.array(values, dtype=object)[None]) & known[:, None]).astype(np.float32)
            )
        for name in self.missing:
            parts.append(frame[name].isna().to_numpy(dtype=np.float32)[:, None])
        undeclared = [
            n for n in (*self.numbers, *self.categories) if n not in self.missing and frame[n].isna().any()
        ]
        if undeclared:
            raise BadData(
                f"the column {undeclared[0]!r} has missing values; the recipe must allow them: "
                f"missing={tuple(undeclared)!r}."
            )
        return torch.from_numpy(np.concatenate(parts, axis=1))

    def with_statistics(self, x: Tensor) -> Recipe:
        """Return the recipe with the mean and standard deviation of these encoded rows."""
        mean, std = self.statistics(x, torch.zeros(len(x), dtype=torch.int64), 1)
        return replace(self, mean=tuple(mean[0].tolist()), std=tuple(std[0].tolist()))

    def resolve(self, x: Tensor) -> Recipe:
        """Return the recipe with statistics: its own, or those of these encoded rows."""
        if self.mean is not None and self.std is not None:
            return self
        n = len(self.numbers)
        return (
            replace(self, mean=(0.0,) * n, std=(1.0,) * n) if self.fit == "none" else self.with_statistics(x)
        )

    def standardize(self, x: Tensor) -> Tensor:
        """Standardize encoded rows by the recipe's statistics, or by their own if it has none."""
        recipe = self if self.mean is not None and self.std is not None else self.with_statistics(x)
        return recipe.apply(
            x,
            torch.tensor(recipe.mean)[None],
            torch.tensor(recipe.std)[None],
            torch.zeros(len(x), dtype=torch.int64),
        )

    def statistics(self, x: Tensor, owner: Tensor, parties: int) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation, [party, number], of the values that are not missing.

        The standard deviation of a constant number is set to 1.
        """
        numbers = x[:, : len(self.numbers)].to(torch.float64)
        known = ~numbers.isnan()
        zeros = torch.zeros(parties, numbers.shape[1], dtype=torch.float64)
        count = zeros.index_add(0, owner, known.to(torch.float64)).clamp(min=1)
        mean = zeros.index_add(0, owner, numbers.nan_to_num()) / count
        off = (
            numbers - mean[owner]
        ).nan_to_num() ** 2  # a second pass: the difference of two large sums loses digits
        std = (zeros.index_add(0, owner, off) / count).sqrt()
        return mean.float(), torch.where(std > 1e-9 * (1 + mean.abs()), std, 1.0).float()

    def apply(self, x: Tensor, mean: Tensor, std: Tensor, owner: Tensor) -> Tensor:
        """Standardize encoded rows, each by the statistics of its owner.

        A missing number becomes 0.
        """
        out = x.clone()
        n = len(self.numbers)
        out[:, :n] = ((x[:, :n] - mean[owner]) / std[owner]).nan_to_num(nan=0.0)  # 0 is the mean
        return out


@dataclass(frozen=True)
class Table:
    """The raw table behind a data set, and the recipe that encodes it."""

    frame: Any
    test: Any
    recipe: Recipe
    declared: bool = False
    id: str = ""  # the column of ids

    def values(self, column: str, test: bool = False) -> np.ndarray | None:
        frame = self.test if test else self.frame
        if column not in frame.columns:
            return None
        if not test and frame[column].isna().any():
            raise BadData(
                f"{int(frame[column].isna().sum())} rows have no {column!r}, so they belong to no party. "
                "Fill or drop them first."
            )
        return _text(frame[column]).astype(str)

    def take(self, rest: np.ndarray, tested: np.ndarray) -> Table:
        return replace(
            self,
            frame=self.frame.iloc[rest].reset_index(drop=True),
            test=self.frame.iloc[tested].reset_index(drop=True),
        )

    def without(self, data: Dataset, column: str) -> Dataset:
        """Return the data set without the column by which it is partitioned."""
        if column not in (*self.recipe.numbers, *self.recipe.categories):
            return data
        recipe = self.recipe.without(column)
        if not recipe.columns:
            raise BadData(
                f"{data.name}: {column!r} is the only feature; partitioned by it, no feature is left. "
                "Use another column."
            )
        return replace(
            data,
            rows=Rows(recipe.encode(self.frame), data.rows.y),
            test=Rows(recipe.encode(self.test), data.test.y),
            columns=recipe.columns,
            table=replace(self, recipe=recipe),
        )

    def _identifier_notes(self) -> list[str]:
        """Notes about integers that differ in every row: a network would memorize them."""
        several = [
            c for c in self.recipe.numbers if len(self.frame) > TOO_MANY and _is_counter(self.frame[c])
        ]
        return [
            f"The column {c!r} has a different integer in every row, like an identifier, and was used as a "
            "number. "
            f"If it is one, leave it out with drop=[{c!r}]."
            for c in several
        ]

    def centralize(self, data: Dataset) -> Dataset:
        """Standardize training and test rows by the statistics of the training rows."""
        recipe = self.recipe.resolve(data.rows.x)
        rows, test = (Rows(recipe.standardize(part.x), part.y) for part in (data.rows, data.test))
        return replace(data, rows=rows, test=test, table=None)

    @property
    def reads_rows(self) -> bool:
        """Whether the encoding depends on the rows: on their statistics, or on an inferred layout."""
        return not self.declared or (self.recipe.fit != "none" and self.recipe.mean is None)

    def standardize(self, fed: Federation, test_owner: np.ndarray | None) -> Federation:
        """Standardize a partitioned data set as the recipe says."""
        recipe, n = self.recipe, len(self.recipe.numbers)
        one_owner, test_rows = (
            torch.zeros(len(fed.rows.y), dtype=torch.int64),
            torch.zeros(len(fed.test.y), dtype=torch.int64),
        )
        notes = [] if self.declared else [INFERRED_LAYOUT, *self._identifier_notes()]
        if recipe.mean is not None and recipe.std is not None:
            x, xt = recipe.standardize(fed.rows.x), recipe.standardize(fed.test.x)
        elif recipe.fit == "none":
            mean, std = torch.zeros(1, n), torch.ones(1, n)
            x, xt = (
                recipe.apply(fed.rows.x, mean, std, one_owner),
                recipe.apply(fed.test.x, mean, std, test_rows),
            )
        elif recipe.fit == "pooled":
            pooled = recipe.with_statistics(fed.rows.x[fed.train.index])
            x, xt = pooled.standardize(fed.rows.x), pooled.standardize(fed.test.x)
            notes.append("Numbers were standardized by statistics pooled over all parties (fit='pooled').")
        else:
            mean, std = recipe.statistics(fed.rows.x[fed.train.index], fed.train.owner, len(fed))
            x = recipe.apply(fed.rows.x, mean, std, fed.owner)
            own = recipe.with_statistics(fed.test.x)  # for test rows that came from no party
            mean, std = (
                torch.cat([mean, torch.tensor(own.mean)[None]]),
                torch.cat([std, torch.tensor(own.std)[None]]),
            )
            owner = test_rows - 1 if test_owner is None else torch.from_numpy(test_owner)
            xt = recipe.apply(fed.test.x, mean, std, owner)
        return replace(fed, rows=Rows(x, fed.rows.y), test=Rows(xt, fed.test.y), notes=(*fed.notes, *notes))


@overload
def from_frame(
    frame: DataFrame,
    label: str,
    *,
    id: str | None = None,
    test: DataFrame | None = None,
    name: str = "table",
    groups: Sequence[str] = (),
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    fit: str | Recipe = "party",
    regression: bool = False,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset: ...


@overload
def from_frame(
    frame: DataFrame,
    label: None = None,
    *,
    id: str,
    test: None = None,
    name: str = "table",
    groups: Sequence[str] = (),
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    fit: str | Recipe = "party",
    regression: bool = False,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Columns: ...


def from_frame(
    frame: DataFrame,
    label: str | None = None,
    *,
    id: str | None = None,
    test: DataFrame | None = None,
    name: str = "table",
    groups: Sequence[str] = (),
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    fit: str | Recipe = "party",
    regression: bool = False,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset | Columns:
    """Make a data set from a pandas DataFrame.

    `label` is the column to predict. `groups` say where a row came from and are not features. Columns in
    `drop` are left out; those in `categories` are categories even if they look like numbers. `fit` is "party"
    (each party standardizes by its own statistics), "pooled", "none", or a `Recipe`. Any column can be given
    to `.by(…)`. Without a `test` table, a stratified `test_fraction` of the rows becomes the test set. `id`
    is the column of record ids, for `.vertical(…)` and `tacit.splitnn`; it is not a feature. With an id and
    without a label, the result is `Columns`, the table of a party that does not hold the label.
    """
    known = [str(c) for c in frame.columns]  # pandas allows column names that are numbers
    label, id = (None if c is None else str(c) for c in (label, id))
    groups, drop, categories = (
        c if isinstance(c, str) else [str(name) for name in c] for c in (groups, drop, categories)
    )
    if len(set(known)) < len(known):
        raise BadData(
            f"{name}: two columns are named {next(c for c in known if known.count(c) > 1)!r}. Give each its "
            "own name."
        )
    if not len(frame):
        raise BadData(f"{name}: the table has no rows. Give at least two.")
    if isinstance(fit, str) and fit not in FITS:
        raise bad(name, "fit", fit, f"one of {', '.join(map(repr, FITS))}, or a Recipe")
    if label is None and (id is None or test is not None):
        raise bad(
            name,
            "label",
            None,
            "the column to predict",
            "Only a table with an id (id=…), for tacit.splitnn, may be without one, and then without test.",
        )
    for what, columns in (
        ("label", [label] if label is not None else []),
        ("id", [id] if id is not None else []),
        ("groups", groups),
        ("drop", drop),
        ("categories", categories),
    ):
        if isinstance(columns, str):
            raise bad(name, what, columns, f"a list of column names, like [{columns!r}]")
        for column in columns:
            if column not in known:
                raise BadData(f"{name}: there is no column {column!r} ({what}). {nearest(column, known)}")
    if test is not None and (
        absent := [c for c in known if c not in test.columns and c not in (*groups, *drop)]
    ):
        raise BadData(
            f"{name}: the test table has no column {absent[0]!r}. Give both tables the same columns."
        )
    import pandas as pd

    frame = frame.rename(columns=str).reset_index(drop=True)
    extra = frame.iloc[:0] if test is None else test.rename(columns=str).reset_index(drop=True)
    features = [c for c in known if c not in (label, id) and c not in groups and c not in drop]
    if not features and (id is None or label is None):  # a party may bring ids and labels alone
        raise BadData(
            f"{name}: there is no feature besides the {'id' if label is None else f'label {label!r}'}."
        )
    both = pd.concat([frame[features], extra[features]], ignore_index=True) if len(extra) else frame[features]
    try:
        recipe = fit if isinstance(fit, Recipe) else Recipe.infer(both, categories, fit)
        x = recipe.encode(both)
    except BadData as error:
        raise BadData(f"{name}: {error}") from None
    if label is None:
        assert id is not None
        return Columns(name, frame[id].to_numpy(dtype=object), x, recipe.columns, recipe)
    y = np.concatenate(
        [_target(name, label, table[label], regression) for table in (frame, extra) if len(table)]
    )
    n = len(frame)
    # Numbers may be NaN until the rows are partitioned, so from_arrays gets placeholders of the same length.
    shell = from_arrays(
        np.zeros((n, 1)), y[:n], test=(np.zeros((len(y) - n, 1)), y[n:]), name=name, regression=regression
    )
    data = replace(
        shell,
        rows=Rows(x[:n], shell.rows.y),
        test=Rows(x[n:], shell.test.y),
        columns=recipe.columns,
        groups={g: _text(frame[g]).astype(str) for g in groups},
        test_groups={g: _text(extra[g]).astype(str) for g in groups if g in extra.columns and len(extra)},
        table=Table(frame, extra, recipe, isinstance(fit, Recipe), id or ""),
    )
    return data if test is not None else split_test_set(data, test_fraction, seed)


@overload
def from_csv(
    path: str | os.PathLike[str],
    label: str,
    *,
    id: str | None = None,
    test: str | os.PathLike[str] | None = None,
    name: str | None = None,
    groups: Sequence[str] = (),
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    fit: str | Recipe = "party",
    regression: bool = False,
    test_fraction: float = 0.2,
    seed: int = 0,
    separator: str | None = None,
    decimal: str = ".",
) -> Dataset: ...


@overload
def from_csv(
    path: str | os.PathLike[str],
    label: None = None,
    *,
    id: str,
    test: None = None,
    name: str | None = None,
    groups: Sequence[str] = (),
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    fit: str | Recipe = "party",
    regression: bool = False,
    test_fraction: float = 0.2,
    seed: int = 0,
    separator: str | None = None,
    decimal: str = ".",
) -> Columns: ...


def from_csv(
    path: str | os.PathLike[str],
    label: str | None = None,
    *,
    id: str | None = None,
    test: str | os.PathLike[str] | None = None,
    name: str | None = None,
    groups: Sequence[str] = (),
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    fit: str | Recipe = "party",
    regression: bool = False,
    test_fraction: float = 0.2,
    seed: int = 0,
    separator: str | None = None,
    decimal: str = ".",
) -> Dataset | Columns:
    """Make a data set from a CSV file.

    See `from_frame` for the options and `table_files` for the rules.

    The separator is detected, unless it is given. Many European files have the decimal sign ",".
    """
    frames: list[Any] = [
        None
        if p is None
        else read_table(p, ids=() if id is None else (id,), separator=separator, decimal=decimal)
        for p in (path, test)
    ]
    make: Any = from_frame  # either overload
    return make(
        frames[0],
        label,
        id=id,
        test=frames[1],
        name=name or Path(path).name.split(".")[0],
        groups=groups,
        drop=drop,
        categories=categories,
        fit=fit,
        regression=regression,
        test_fraction=test_fraction,
        seed=seed,
    )


def from_parquet(
    path: str | os.PathLike[str],
    label: str,
    *,
    test: str | os.PathLike[str] | None = None,
    name: str | None = None,
    groups: Sequence[str] = (),
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    fit: str | Recipe = "party",
    regression: bool = False,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Make a data set from a Parquet file; see `from_frame`."""
    frames = [None if p is None else read_table(p) for p in (path, test)]
    return from_frame(
        frames[0],
        label,
        test=frames[1],
        name=name or Path(path).name.split(".")[0],
        groups=groups,
        drop=drop,
        categories=categories,
        fit=fit,
        regression=regression,
        test_fraction=test_fraction,
        seed=seed,
    )


def _text(column: Series) -> np.ndarray:
    """Return values as text; integers without '.0', even if pandas stored them as floats."""
    values = column.to_numpy(dtype=object, na_value="")
    return np.array(
        [str(int(v)) if isinstance(v, float) and v.is_integer() else str(v) for v in values], dtype=object
    )


def _what_they_are(values: np.ndarray) -> str:
    """Say what text with so many different values is, and what to do about it."""
    import pandas as pd

    first = pd.Series(values[:50], dtype=str)
    if not pd.to_datetime(first, format="ISO8601", errors="coerce").isna().any():
        return (
            "dates or times, not categories. Convert them to a number first (a year, or the days since a "
            "fixed day)."
        )
    if first.str.fullmatch(CODE).any():
        return "codes with leading zeros, which are not numbers."
    if not pd.to_numeric(first.str.replace(",", ".", regex=False), errors="coerce").isna().any():
        return DECIMAL_COMMA.format(str(first[0]))
    return "an identifier or free text, not a category."


def _is_counter(column: Series) -> bool:
    """Whether a number is an integer that differs in every row."""
    import pandas as pd

    values = pd.to_numeric(column, errors="coerce").to_numpy(
        dtype=np.float64, na_value=np.nan
    )  # in 32 bits long ids would collide
    return bool(
        np.isfinite(values).all()
        and (values == np.floor(values)).all()
        and len(np.unique(values)) == len(values)
    )


def _numbers(column: Series) -> np.ndarray:
    import pandas as pd

    return pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float32, na_value=np.nan)


def _has_codes(column: Series) -> bool:
    """Whether there are codes with a leading zero: 007 is not the number 7."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):
        return False
    return bool(column.dropna().astype(str).str.fullmatch(CODE).any())


def _is_number(name: str, column: Series) -> bool:
    """Whether a column is numeric.

    Raises BadData if nearly all values are numbers: some are misspelled.
    """
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):
        infinite = np.isinf(column.to_numpy(dtype=np.float64, na_value=np.nan))
        if infinite.any():
            raise BadData(
                f"the column {name!r} has an infinite value in row {int(infinite.argmax())}. Fill or drop it."
            )
        return True
    known = column.dropna()
    if pd.api.types.is_datetime64_any_dtype(column) or not len(known):
        return not len(known)
    wrong = pd.to_numeric(known.astype(str), errors="coerce").isna()
    if 0 < wrong.sum() <= 0.1 * len(known):
        first = wrong[wrong].index[0]
        raise BadData(
            f"the column {name!r} contains numbers, but {int(wrong.sum())} of {len(known)} values are not "
            f"numeric, the first {str(known[first])!r} in row {first}. Correct them, or declare a category "
            "with "
            f"categories=[{name!r}]."
        )
    return not wrong.any()


def _target(name: str, label: str, column: Series, regression: bool) -> np.ndarray:
    import pandas as pd

    if column.isna().any():
        first = int(column.isna().to_numpy().argmax())
        raise BadData(
            f"{name}: {int(column.isna().sum())} rows have no {label!r}, the first is row {first}. Fill or "
            "drop them first."
        )
    number = pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)
    if regression:
        if not number:
            raise BadData(
                f"{name}: the label {label!r} contains text, e.g. {str(column.iloc[0])!r}; a regression "
                "needs numbers. "
                "Leave regression=False."
            )
        return column.to_numpy(dtype=np.float64)
    if number:
        values = column.to_numpy(dtype=np.float64)
        if (values != np.floor(values)).any():
            raise BadData(
                f"{name}: the label {label!r} has fractions, e.g. {values[values != np.floor(values)][0]:g}. "
                "If it is a quantity to predict, pass regression=True."
            )
        return values.astype(np.int64)
    return _text(column).astype(str)
