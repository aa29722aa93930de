"""Tables: rows of named columns, encoded by a `Recipe`.

The statistics (means, deviations, quantiles, rare categories) are fitted on the training rows of all parties
by sums (`fit="federated"`, see `preparation.py`): a simulation computes the same sums in one place, and so
the same numbers. With `fit="party"` they are each party's own: computed on its training rows, applied to its
training and held-out rows. A row of the global test set is then standardized by the party it came from if
that is known (`by`), and otherwise by the test set's own statistics.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData
from ..parameters import bad, nearest
from ..protocols.sum_program import ideal
from .arrays import from_arrays, split_test_set
from .cells import is_counter, show_row, to_text
from .federation import Dataset, Federation, Rows
from .pipeline import Pipeline, PipelinePreparation
from .recipe import TOO_MANY, Recipe, check_fit
from .table_files import read_table
from .vertical import Columns

if TYPE_CHECKING:
    from pandas import DataFrame, Series

INFERRED_LAYOUT = (
    "The table's layout (types of columns, categories, missing values) was inferred from all "
    "parties' rows together."
)


@dataclass(frozen=True)
class Table:
    """The raw table behind a data set, and the recipe that encodes it."""

    frame: Any
    test: Any
    recipe: Recipe
    declared: bool = False
    id: str = ""  # the column of ids
    label: str = ""
    notes: tuple[str, ...] = ()

    def values(self, column: str, test: bool = False) -> np.ndarray | None:
        frame = self.test if test else self.frame
        if column not in frame.columns:
            return None
        if not test and frame[column].isna().any():
            raise BadData(
                f"{int(frame[column].isna().sum())} rows have no {column!r}, so they belong to no party. "
                "Fill or drop them first."
            )
        return to_text(frame[column]).astype(str)

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
        return [
            f"The column {c!r} has a different integer in every row, like an identifier, and was used as a "
            f"number. If it is one, leave it out with drop=[{c!r}]."
            for c in self.recipe.numbers
            if len(self.frame) > TOO_MANY and is_counter(self.frame[c])
        ]

    def centralize(self, data: Dataset) -> Dataset:
        """Encode training and test rows by the statistics of the training rows."""
        recipe = self.recipe
        if recipe.fit == "federated" and not recipe.is_fitted:
            pipeline = Pipeline(recipe, self.label, data.labels or ("any",))  # a target keeps its unit here
            recipe = ideal(PipelinePreparation(pipeline), {data.name: self.frame}).recipe
        else:
            recipe = recipe.resolve(data.rows.x)
        rows, test = (
            Rows(recipe.transform(frame), part.y)
            for frame, part in ((self.frame, data.rows), (self.test, data.test))
        )
        return replace(data, rows=rows, test=test, table=None)

    @property
    def reads_rows(self) -> bool:
        """Whether the encoding depends on the rows: on their statistics, or on an inferred layout."""
        return not self.declared or (self.recipe.fit != "none" and self.recipe.mean is None)

    def standardize(
        self, fed: Federation, test_owner: np.ndarray | None, kept: np.ndarray | None = None
    ) -> Federation:
        """Encode a partitioned data set as the recipe says; `kept` are its rows, if not all."""
        recipe, train = self.recipe, fed.rows.x[fed.train.index]
        notes = [*([] if self.declared else [INFERRED_LAYOUT, *self._identifier_notes()]), *self.notes]
        if recipe.fit == "party" and not recipe.is_fitted:
            own = recipe.with_statistics(fed.test.x)  # for test rows that came from no party
            each = recipe.statistics(train, fed.train.owner, len(fed))
            mean, std = (torch.cat([s, torch.tensor(o)[None]]) for s, o in zip(each, (own.mean, own.std)))
            x = recipe.apply(fed.rows.x, mean, std, fed.owner)
            owner = np.full(len(fed.test.y), -1) if test_owner is None else test_owner
            xt = recipe.apply(fed.test.x, mean, std, torch.from_numpy(owner))
            rows, test = Rows(x, fed.rows.y), Rows(xt, fed.test.y)
            return replace(fed, rows=rows, test=test, notes=(*fed.notes, *notes))
        if recipe.fit == "pooled" and not recipe.is_fitted:
            notes.append("Numbers were standardized by statistics pooled over all parties (fit='pooled').")
        frame = self.frame if kept is None else self.frame.iloc[kept]
        pipeline = self.fit(frame.iloc[fed.train.index.numpy()], train, fed)
        x, xt = pipeline.encode(frame), pipeline.encode(self.test)
        y, yt = fed.rows.y, fed.test.y
        if fed.classes is None:
            y, yt = (_standardize_target(t, *pipeline.target) for t in (y, yt))
        return replace(fed, rows=Rows(x, y), test=Rows(xt, yt), notes=(*fed.notes, *notes), pipeline=pipeline)

    def fit(self, frame: DataFrame, x: Tensor, fed: Federation) -> Pipeline:
        """Return the pipeline fitted on training rows; the sums are those that real parties would compute."""
        recipe = self.recipe
        pipeline = Pipeline(recipe, self.label, fed.labels)
        if recipe.fit == "federated" and not recipe.is_fitted:
            return ideal(PipelinePreparation(pipeline), {fed.name: frame})
        pipeline = replace(pipeline, recipe=recipe.resolve(x))
        if (
            fed.classes is None and recipe.fit != "none"
        ):  # the recipe's statistics are given, the target's not
            target = PipelinePreparation(Pipeline(Recipe(), self.label))
            pipeline = replace(pipeline, target=ideal(target, {fed.name: frame}).target)
        return pipeline


def _standardize_target(y: Tensor, mean: float, std: float) -> Tensor:
    return ((y.to(torch.float64) - mean) / std).to(y.dtype)


class TableOptions(TypedDict, total=False):
    """The options that `from_frame`, `from_csv` and `from_parquet` share; `from_frame` explains them."""

    groups: Sequence[str]
    drop: Sequence[str]
    categories: Sequence[str]
    fit: str | Recipe
    regression: bool | None
    test_fraction: float
    seed: int


@overload
def from_frame(
    frame: DataFrame,
    label: str,
    *,
    id: str | None = None,
    test: DataFrame | None = None,
    name: str = "table",
    **options: Unpack[TableOptions],
) -> Dataset: ...


@overload
def from_frame(
    frame: DataFrame,
    label: None = None,
    *,
    id: str,
    test: None = None,
    name: str = "table",
    **options: Unpack[TableOptions],
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
    fit: str | Recipe = "federated",
    regression: bool | None = None,
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
    check_fit(name, fit)
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
    notes = list(recipe.check_rows(both))
    is_number = is_regression(name, label, pd.concat([frame[label], extra[label]]), regression)
    if is_number and regression is None:
        notes.append(
            f"The label {label!r} is a number with more than two values, so this is a regression. If its "
            "values are classes, pass regression=False."
        )
    regression = is_number
    y = np.concatenate(
        [to_target(name, label, table[label], regression) for table in (frame, extra) if len(table)]
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
        groups={g: to_text(frame[g]).astype(str) for g in groups},
        test_groups={g: to_text(extra[g]).astype(str) for g in groups if g in extra.columns and len(extra)},
        table=Table(frame, extra, recipe, isinstance(fit, Recipe), id or "", label, tuple(notes)),
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
    separator: str | None = None,
    decimal: str = ".",
    **options: Unpack[TableOptions],
) -> Dataset: ...


@overload
def from_csv(
    path: str | os.PathLike[str],
    label: None = None,
    *,
    id: str,
    test: None = None,
    name: str | None = None,
    separator: str | None = None,
    decimal: str = ".",
    **options: Unpack[TableOptions],
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
    fit: str | Recipe = "federated",
    regression: bool | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    separator: str | None = None,
    decimal: str = ".",
) -> Dataset | Columns:
    """Make a data set from a CSV file; see `from_frame` for the options and `table_files` for the rules.

    The separator is detected, unless it is given. Many European files have the decimal sign ",".
    """
    ids = () if id is None else (id,)
    frames = [
        None if p is None else read_table(p, ids=ids, separator=separator, decimal=decimal)
        for p in (path, test)
    ]
    make: Callable[..., Dataset | Columns] = from_frame  # either overload
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
    fit: str | Recipe = "federated",
    regression: bool | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Make a data set from a Parquet file; see `from_frame`."""
    return from_csv(
        path,
        label,
        test=test,
        name=name,
        groups=groups,
        drop=drop,
        categories=categories,
        fit=fit,
        regression=regression,
        test_fraction=test_fraction,
        seed=seed,
    )


def is_regression(name: str, label: str, column: Series, regression: bool | None = None) -> bool:
    """Whether the label is a number to predict: as declared, or if it is one with more than two values."""
    import pandas as pd

    if regression is not None and not isinstance(regression, bool):
        raise bad(name, "regression", regression, "True, False or None (numbers with more than two values)")
    if regression is not None:
        return regression
    number = pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)
    return bool(number and column.nunique() > 2)


def to_target(name: str, label: str, column: Series, regression: bool) -> np.ndarray:
    """Return the labels: integers or text for classes, float64 for a regression."""
    import pandas as pd

    if column.isna().any():
        first = int(column.isna().to_numpy().argmax())
        raise BadData(
            f"{name}: {int(column.isna().sum())} rows have no {label!r}, the first is {show_row(first)}. "
            "Fill or drop them first."
        )
    number = pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)
    if regression:
        if not number:
            raise BadData(
                f"{name}: the label {label!r} contains text, e.g. {str(column.iloc[0])!r}; a regression "
                "needs numbers. Leave regression=False."
            )
        return np.asarray(column.to_numpy(dtype=np.float64))
    if number:
        values = column.to_numpy(dtype=np.float64)
        if (values != np.floor(values)).any():
            raise BadData(
                f"{name}: the label {label!r} has fractions, e.g. {values[values != np.floor(values)][0]:g}. "
                "If it is a quantity to predict, pass regression=True."
            )
        return np.asarray(values.astype(np.int64))
    return to_text(column).astype(str)
