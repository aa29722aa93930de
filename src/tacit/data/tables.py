"""Tables: rows of named columns, encoded by a `Recipe`.

The statistics (means, deviations, quantiles, rare categories) are fitted on the training rows of all parties
by sums (`fit="federated"`, see `preparation.py`): a simulation computes the same sums in one place, and so
the same numbers. With `fit="party"` they are each party's own: computed on its training rows, applied to its
training and held-out rows. A row of the global test set is then standardized by the party it came from if
that is known (`by`), and otherwise by the test set's own statistics.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData, BadParameter
from ..parameters import bad, nearest, propose
from ..protocols.sum_steps import ideal
from .arrays import from_arrays, select_rows, split_test_set
from .cells import is_counter, to_text, with_columns, without_codes
from .dropped_rows import check_drop_rows, without_rows
from .federation import Dataset, Federation, Rows, check_fraction, check_whole
from .holding import draw_people, draw_rows, is_drawn
from .joined_tables import PARTY, join_tables, name_files
from .labels import read_labels
from .people import people_of, split_by_time, split_people
from .pipeline import Pipeline, PipelinePreparation
from .preparation import Preparation
from .private_preparation import PrivatePreparation
from .recipe import TOO_MANY, Recipe, check_fit
from .spellings import check_spellings, respell_columns
from .table_files import read_table
from .table_options import MISSING_LABEL, TableOptions, resolve_options, takes_table_options
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
    private: tuple[float, float, dict[str, tuple[float, float]]] | None = None  # ε, δ and bounds
    group: str = ""  # the column that says whose a row is

    def values(self, column: str, test: bool = False) -> np.ndarray | None:
        frame = self.test if test else self.frame
        if column not in frame.columns:
            return None
        return _group_values(frame[column])

    def draw(self, y: Tensor, seed: int, to: str, kept: np.ndarray | None = None) -> np.ndarray | None:
        """Return a number below 2^64 for each row by which it is held out; None where no ε is claimed."""
        if self.private is None:
            return None
        frame = self.frame if kept is None else self.frame.iloc[kept]
        if self.group:
            return draw_people(frame[self.group], seed, to)
        return draw_rows(frame, self.recipe, y, seed, to)

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
            f"number. If it is one, leave it out with {propose('drop', [c])}."
            for c in self.recipe.numbers
            if len(self.frame) > TOO_MANY and is_counter(self.frame[c])
        ]

    def centralize(self, data: Dataset) -> Dataset:
        """Encode training and test rows by the statistics of the training rows."""
        recipe = self.recipe
        if recipe.fit == "federated" and not recipe.is_fitted:
            program = Preparation(recipe, is_regression=data.classes is None)  # a target keeps its unit here
            recipe = ideal(program, {data.name: self.frame})
        else:
            recipe = recipe.resolve(data.rows.matrix(data.name))
        rows, test = (
            Rows(recipe.transform(frame), part.y)
            for frame, part in ((self.frame, data.rows), (self.test, data.test))
        )
        pipeline = Pipeline(recipe, self.label, data.labels)
        return replace(data, rows=rows, test=test, table=None, pipeline=pipeline)

    @property
    def reads_rows(self) -> bool:
        """Whether the encoding depends on the rows: on their statistics, or on an inferred layout."""
        return not self.declared or (self.recipe.fit != "none" and self.recipe.mean is None)

    def standardize(
        self, fed: Federation, test_owner: np.ndarray | None, kept: np.ndarray | None = None
    ) -> Federation:
        """Encode a partitioned data set as the recipe says; `kept` are its rows, if not all."""
        recipe, train = self.recipe, fed.rows.matrix(fed.name)[fed.train.index]
        notes = [*([] if self.declared else [INFERRED_LAYOUT, *self._identifier_notes()]), *self.notes]
        if recipe.fit == "party" and not recipe.is_fitted:
            own = recipe.with_statistics(fed.test.matrix(fed.name))  # for test rows that came from no party
            each = recipe.statistics(train, fed.train.owner, len(fed))
            mean, std = (torch.cat([s, torch.tensor(o)[None]]) for s, o in zip(each, (own.mean, own.std)))
            x = recipe.apply(fed.rows.matrix(fed.name), mean, std, fed.owner)
            owner = np.full(len(fed.test.y), -1) if test_owner is None else test_owner
            xt = recipe.apply(fed.test.matrix(fed.name), mean, std, torch.from_numpy(owner))
            rows, test = Rows(x, fed.rows.y), Rows(xt, fed.test.y)
            return replace(fed, rows=rows, test=test, notes=(*fed.notes, *notes))
        if recipe.fit == "pooled" and not recipe.is_fitted:
            notes.append("Numbers were standardized by statistics pooled over all parties (fit='pooled').")
        frame = self.frame if kept is None else self.frame.iloc[kept]
        program = self.program(fed)
        if isinstance(program, PrivatePreparation):
            program.check()
            parts = {name: frame.iloc[fed.train.of(k).numpy()] for k, name in enumerate(fed.parties)}
            fed, pipeline = replace(fed, spent=program.spend), ideal(program, parts)
            if not self.declared:
                notes.append("ε of the preparation does not cover the layout, which was inferred from rows.")
        else:
            pipeline = self.fit(frame.iloc[fed.train.index.numpy()], train, fed)
        if fed.classes is None and recipe.winsorize == "auto" and not recipe.is_fitted:
            notes += _note_tails(list(pipeline.recipe.limits))
        x, xt = pipeline.encode(frame), pipeline.encode(self.test)
        y, yt = fed.rows.y, fed.test.y
        if fed.classes is None:
            y, yt = (_standardize_target(t, *pipeline.target) for t in (y, yt))
        return replace(fed, rows=Rows(x, y), test=Rows(xt, yt), notes=(*fed.notes, *notes), pipeline=pipeline)

    def program(self, fed: Federation) -> PipelinePreparation | PrivatePreparation | None:
        """Return the sums by which parties fit the recipe together; None where they do not."""
        if self.recipe.fit != "federated" or self.recipe.is_fitted:
            return None
        pipeline = Pipeline(self.recipe, self.label, fed.labels)
        if self.private is None:
            return PipelinePreparation(pipeline)
        return PrivatePreparation(pipeline, *self.private, parties=len(fed), group=self.group)

    def fit(self, frame: DataFrame, x: Tensor, fed: Federation) -> Pipeline:
        """Return the pipeline fitted on training rows; the sums are those that real parties would compute."""
        recipe, program = self.recipe, self.program(fed)
        pipeline = Pipeline(recipe, self.label, fed.labels)
        if isinstance(program, PipelinePreparation):
            return ideal(program, {fed.name: frame})
        pipeline = replace(pipeline, recipe=recipe.resolve(x))
        if (
            fed.classes is None and recipe.fit != "none"
        ):  # the recipe's statistics are given, the target's not
            target = PipelinePreparation(Pipeline(Recipe(), self.label))
            pipeline = replace(pipeline, target=ideal(target, {fed.name: frame}).target)
        return pipeline


def _standardize_target(y: Tensor, mean: float, std: float) -> Tensor:
    return ((y.to(torch.float64) - mean) / std).to(y.dtype)


@overload
def from_frame(
    frame: DataFrame,
    label: str | int,
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


@takes_table_options
def from_frame(
    frame: DataFrame,
    label: str | int | None = None,
    *,
    id: str | None = None,
    test: DataFrame | None = None,
    name: str = "table",
    **options: Any,
) -> Dataset | Columns:
    """Make a data set from a pandas DataFrame.

    `label` is the column to predict: a number with more than two values is a regression, unless
    `regression=False` or `labels` (the classes, in their order) say otherwise; rows without one are refused,
    or left out with `missing_label="drop"`. `groups` say where a row came from and are not features. Columns
    in `drop` are left out; those in `categories` are categories even if they look like numbers. `drop_rows`
    leaves out rows that have one of these values in a column ({"patient": ["Total"]}), and `spellings` say
    which value is meant by another one, also of the label and of parties. `dates`, `date_formats`,
    `missing_codes`, `scaling`, `winsorize`, `impute` and `unseen` are those of a `Recipe`.
    `fit` is "federated" (statistics of all parties' training rows by sums), "party" (each party's own),
    "pooled", "none", or a `Recipe`. With `fit_epsilon` (and `fit_delta`) the federated statistics have noise,
    and `bounds` declares the range of every number. Any column can be given to `.by(…)`.

    Without a `test` table, a stratified `test_fraction` of the rows becomes the test set. `group` is the
    column of a person's id: rows of one person stay together in every split. With `test_after="2016-01-01"`,
    rows whose `time` is that day or later are the test set. `id` is the column of record ids, for
    `.vertical(…)` and `tacit.splitnn`; it is not a feature. With an id and without a label, the result is
    `Columns`, the table of a party that does not hold the label.
    """
    import pandas as pd

    o = resolve_options("from_frame", options)
    known = [str(c) for c in frame.columns]  # pandas allows column names that are numbers
    label, id = (None if c is None else str(c) for c in (label, id))
    o |= {k: None if o[k] is None else str(o[k]) for k in ("group", "time", "test_after")}
    for key in ("groups", "drop", "categories", "labels"):
        if isinstance(o[key], str):
            raise bad(
                name,
                key,
                o[key],
                f"a list of {'classes' if key == 'labels' else 'column names'}, like [{o[key]!r}]",
            )
        o[key] = [str(c) for c in o[key]]
    check_fit(name, o["fit"])
    if o["missing_label"] not in MISSING_LABEL:
        raise bad(name, "missing_label", o["missing_label"], f"one of {', '.join(map(repr, MISSING_LABEL))}")
    if problems := [*check_spellings(o["spellings"] or {}), *check_drop_rows(o["drop_rows"] or {})]:
        raise BadData("\n".join(f"{name}: {problem}" for problem in problems))
    time = o["time"] or (next(iter(o["dates"] or ()), None) if o["test_after"] else None)
    if o["test_after"] is not None and time is None:
        raise BadParameter(f"{name}: test_after needs the column of the time. Pass time=….")
    _check_columns(name, frame, test, label, id, {**o, "time": time})
    frame = frame.rename(columns=str).reset_index(drop=True)
    extra = frame.iloc[:0] if test is None else test.rename(columns=str).reset_index(drop=True)
    notes: list[str] = []
    drop_rows = {str(k): v for k, v in (o["drop_rows"] or {}).items()}
    frame, extra = (without_rows(f, drop_rows) for f in (frame, extra))
    spellings = {str(k): v for k, v in (o["spellings"] or {}).items()}
    frame, extra = (respell_columns(f, spellings) for f in (frame, extra))
    if not len(frame):
        raise BadData(f"{name}: drop_rows leaves out every row. Leave some in.")
    if label is not None and (codes := (o["missing_codes"] or {}).get(label)):
        frame, extra = (with_columns(f, {label: without_codes(f[label], codes)}) for f in (frame, extra))
    if label is not None and o["missing_label"] == "drop":
        there, there_too = frame[label].notna(), extra[label].notna()
        if not (there.all() and there_too.all()):
            notes.append(f"Rows without {label!r} are left out (missing_label='drop').")
        frame, extra = (f[t].reset_index(drop=True) for f, t in ((frame, there), (extra, there_too)))
    groups, drop = o["groups"], o["drop"]
    person = o["group"]
    features = [c for c in known if c not in (label, id, person) and c not in groups and c not in drop]
    if time in features and time not in (o["dates"] or {}) and not isinstance(o["fit"], Recipe):
        features.remove(time)  # it says which rows are test rows; as a feature it must be declared
    if not features and (id is None or label is None):  # a party may bring ids and labels alone
        what = "id" if label is None else f"label {label!r}"
        raise BadData(f"{name}: there is no feature besides the {what}. {_describe_left_out(known, o, time)}")
    both = pd.concat([frame[features], extra[features]], ignore_index=True) if len(extra) else frame[features]
    _check_cells(name, both)
    try:
        recipe = (
            o["fit"]
            if isinstance(o["fit"], Recipe)
            else Recipe.infer(
                both,
                o["categories"],
                o["fit"],
                dates={k: v for k, v in (o["dates"] or {}).items() if str(k) in features},
                missing_codes={k: v for k, v in (o["missing_codes"] or {}).items() if str(k) in features},
                spellings={k: v for k, v in spellings.items() if k in features},
                date_formats={
                    str(k): v for k, v in (o["date_formats"] or {}).items() if str(k) in (o["dates"] or {})
                },
                scaling=o["scaling"] if isinstance(o["scaling"], str) else dict(o["scaling"]),
                winsorize=o["winsorize"],
                impute=o["impute"],
                unseen=o["unseen"],
            )
        )
        x = recipe.encode(both)
        if label is None:
            assert id is not None
            ids = frame[id].to_numpy(dtype=object)
            return Columns(name, ids, x, recipe.columns, recipe, frame=frame[features])
        notes += recipe.check_rows(both)
    except BadData as error:
        raise BadData("\n".join(f"{name}: {line}" for line in str(error).splitlines())) from None
    private = None
    if o["fit_epsilon"] is not None:
        if recipe.fit != "federated" or recipe.is_fitted:
            raise BadParameter(f"{name}: fit_epsilon is of fit='federated'. Leave one of them out.")
        bounds = {str(k): tuple(v) for k, v in (o["bounds"] or {}).items()}
        private = (o["fit_epsilon"], o["fit_delta"], bounds)
    y, names = read_labels(name, label, frame, extra, o, notes)
    n = len(frame)
    # Numbers may be NaN until the rows are partitioned, so from_arrays gets placeholders of the same length.
    shell = from_arrays(
        np.zeros((n, 1)),
        y[:n],
        test=(np.zeros((len(y) - n, 1)), y[n:]),
        name=name,
        labels=names or (),
        classes=None if names is None else len(names),
        regression=y.dtype == np.float64,
    )
    data = replace(
        shell,
        rows=Rows(x[:n], shell.rows.y),
        test=Rows(x[n:], shell.test.y),
        columns=recipe.columns,
        groups={g: _group_values(frame[g]) for g in groups},
        test_groups={g: _group_values(extra[g]) for g in groups if g in extra.columns and len(extra)},
        table=Table(
            *(frame, extra, recipe, isinstance(o["fit"], Recipe), id or "", label, tuple(notes)),
            private=private,
            group=person or "",
        ),
        persons=None if person is None else people_of(name, frame[person]),
    )
    if test is not None:
        return data
    if o["test_after"] is not None:
        assert time is not None
        return split_by_time(data, frame, time, o["test_after"], (o["date_formats"] or {}).get(time))
    if private is not None:  # a random order of all rows would not be covered by ε
        assert data.table is not None
        check_fraction(name, "test_fraction", o["test_fraction"])
        check_whole(name, "seed", o["seed"], 0)
        draws = data.table.draw(data.rows.y, o["seed"], "test")
        assert draws is not None
        tested = is_drawn(draws, o["test_fraction"])
        return select_rows(data, np.flatnonzero(~tested), np.flatnonzero(tested))
    split = split_test_set if data.persons is None else split_people
    return split(data, o["test_fraction"], o["seed"])


def _describe_left_out(known: Sequence[str], o: Mapping[str, Any], time: str | None) -> str:
    """Say why no column of a table is a feature, and what to do."""
    listed = {
        "drop": o["drop"],
        "groups": o["groups"],
        "group": [o["group"]] if o["group"] else [],
        "time": [time] if time else [],
    }
    left_out = [
        f"{', '.join(map(repr, columns))} ({key})"
        for key, names in listed.items()
        if (columns := [c for c in names if c in known])
    ]
    if not left_out:
        return "The table has no other column: add columns to it, or choose another label."
    return f"Set aside are {', '.join(left_out)}. Take out a column that is known before the outcome."


def _check_cells(name: str, frame: DataFrame) -> None:
    """Raise an error that names all columns with arrays in their cells: their text is no category."""
    from pandas.api.types import infer_dtype

    problems = []
    for column in frame.columns:
        if frame[column].dtype.kind != "O" or not infer_dtype(frame[column], skipna=True).startswith("mixed"):
            continue
        nested = (v for v in frame[column] if isinstance(v, list | tuple | dict | set) or _is_array(v))
        if (odd := next(nested, None)) is not None:
            problems.append(
                f"{name}: the cells of {column!r} are of type {type(odd).__name__}. A cell is a number or a "
                f"text: give each entry a column of its own, leave it out ({propose('drop', [column])}), or "
                "use from_arrays(x, y), whose rows may have any shape."
            )
    if problems:
        raise BadData("\n".join(problems))


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype") and value.ndim > 0


def _check_columns(
    name: str,
    frame: DataFrame,
    test: DataFrame | None,
    label: str | None,
    id: str | None,
    options: Mapping[str, Any],
) -> None:
    """Raise an error that names all columns that are not there."""
    known = [str(c) for c in frame.columns]
    if len(set(known)) < len(known):
        raise BadData(
            f"{name}: two columns are named {next(c for c in known if known.count(c) > 1)!r}. Give each its "
            "own name."
        )
    if not len(frame):
        raise BadData(f"{name}: the table has no rows. Give at least two.")
    if label is None and (id is None or test is not None):
        raise bad(
            name,
            "label",
            None,
            "the column to predict",
            "Only a table with an id (id=…), for tacit.splitnn, may be without one, and then without test.",
        )
    single = {"label": label, "id": id, **{k: options[k] for k in ("group", "time")}}
    many = {k: list(options[k] or ()) for k in ("groups", "drop", "categories", "dates", "date_formats")}
    absent = [
        f"{name}: there is no column {str(column)!r} ({what}). {nearest(str(column), known)}"
        for what, columns in ({k: [v] for k, v in single.items() if v is not None} | many).items()
        for column in columns
        if str(column) not in known
    ]
    absent += [
        f"{name}: there is no column {str(column)!r} ({key}). {nearest(str(column), known)}"
        for key in ("missing_codes", "spellings", "drop_rows")
        for column in options[key] or ()
        if str(column) not in known
    ]
    if absent:
        raise BadData("\n".join(absent))
    used = [c for c in known if c not in (*options["groups"], *options["drop"])]
    if test is not None and (absent := [c for c in used if c not in map(str, test.columns)]):
        raise BadData(
            f"{name}: the test table has no column {absent[0]!r}. Give both tables the same columns."
        )


def _note_tails(names: list[str]) -> list[str]:
    """Say which numbers of a regression have heavy tails: its outcome may follow the largest values."""
    if not names:
        return []
    shown = ", ".join(map(repr, names[:10])) + (", …" if len(names) > 10 else "")
    return [
        f"Numbers with heavy tails: {shown}. A regression clips gross errors only, because its outcome may "
        "follow their largest values. If it does not, winsorize='always' may predict better: it clips "
        "numbers to their 1% and 99% quantiles."
    ]


def _group_values(column: Series) -> np.ndarray:
    """Return the values of a column as text; "" where there is none."""
    return np.char.strip(to_text(column).astype(str))


@overload
def from_csv(
    path: str | os.PathLike[str],
    label: str | int,
    *,
    id: str | None = None,
    test: str | os.PathLike[str] | None = None,
    name: str | None = None,
    separator: str | None = None,
    decimal: str = ".",
    encoding: str | None = None,
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
    encoding: str | None = None,
    **options: Unpack[TableOptions],
) -> Columns: ...


@takes_table_options
def from_csv(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    label: str | int | None = None,
    *,
    id: str | None = None,
    test: str | os.PathLike[str] | None = None,
    name: str | None = None,
    separator: str | None = None,
    decimal: str = ".",
    encoding: str | None = None,
    **options: Any,
) -> Dataset | Columns:
    """Make a data set from a CSV file; see `from_frame` for the options and `table_files` for the rules.

    The separator is detected, unless it is given. Many European files have the decimal sign ",", and old
    ones the `encoding` "cp1252" instead of UTF-8. Of several files, each belongs to one party: the column
    `PARTY` has the file's name, for `.by("party")`.
    """
    paths = [path] if isinstance(path, str | os.PathLike) else list(path)
    if not paths:
        raise bad("from_csv", "path", path, "a file, or a list of files")
    ids = [str(c) for c in (id, options.get("group")) if c is not None]
    reading: dict[str, Any] = {"separator": separator, "decimal": decimal, "encoding": encoding}
    reading["text_columns"] = _text_columns(label, options)
    frames = [read_table(p, ids=ids, **reading) for p in paths]
    if len(paths) > 1 or not isinstance(path, str | os.PathLike):
        names = name_files(paths)
        frame = join_tables(dict(zip(names, frames)), options.get("drop", ()), _declared(options))
        options = {
            **options,
            "groups": [*options.get("groups", ()), PARTY],
            "drop": _drop_left(options.get("drop", ()), frame, frames),
        }
    else:
        frame = frames[0]
    make: Callable[..., Dataset | Columns] = from_frame  # either overload
    return make(
        frame,
        label,
        id=id,
        test=None if test is None else read_table(test, ids=ids, **reading),
        name=name or (Path(paths[0]).name.split(".")[0] if len(paths) == 1 else "tables"),
        **options,
    )


@takes_table_options
def from_parquet(
    path: str | os.PathLike[str],
    label: str | int,
    *,
    test: str | os.PathLike[str] | None = None,
    name: str | None = None,
    **options: Any,
) -> Dataset:
    """Make a data set from a Parquet file; see `from_frame`."""
    made = from_csv(path, str(label), test=test, name=name, **options)
    assert isinstance(made, Dataset)
    return made


@takes_table_options
def from_frames(
    frames: Mapping[str, DataFrame],
    label: str | int,
    *,
    name: str = "tables",
    held_fraction: float = 0.1,
    min_rows: int | None = None,
    small: str = "refuse",
    **options: Any,
) -> Federation:
    """Make a federation from the tables of several parties; see `from_frame` for the options.

    All tables need the same columns. `min_rows` and `small` are those of `Dataset.by`.
    """
    if not isinstance(frames, Mapping) or not frames:
        raise bad(
            "from_frames", "frames", type(frames).__name__, "a dict: the name of a party, its DataFrame"
        )
    tables = {str(party): frame for party, frame in frames.items()}
    joined = join_tables(tables, options.get("drop", ()), _declared(options))
    options |= {
        "groups": [*options.get("groups", ()), PARTY],
        "drop": _drop_left(options.get("drop", ()), joined, list(frames.values())),
    }
    data = from_frame(joined, str(label), name=name, **options)
    assert isinstance(data, Dataset)
    seed = options.get("seed", 0)
    return data.by(PARTY, seed=seed, held_fraction=held_fraction, min_rows=min_rows, small=small)


def _declared(options: Mapping[str, Any]) -> list[str]:
    return [
        str(c)
        for key in ("categories", "dates", "missing_codes", "spellings", "drop_rows")
        for c in options.get(key) or ()
    ]


def _text_columns(label: str | int | None, options: Mapping[str, Any]) -> set[str]:
    """Return the columns that are not read as numbers, whatever their cells are."""
    columns = {str(c) for key in ("categories", "dates", "drop", "groups") for c in options.get(key) or ()}
    if isinstance(recipe := options.get("fit"), Recipe):
        columns |= {*recipe.categories, *recipe.dates}
    if options.get("labels") or options.get("regression") is False:
        columns.add(str(label))
    return columns


def _drop_left(drop: Sequence[str], joined: DataFrame, frames: Sequence[DataFrame]) -> list[str]:
    """Return the columns that are still to be dropped: those that not all tables had are gone."""
    had = {str(c) for frame in frames for c in frame.columns}
    return [str(c) for c in drop if str(c) in joined.columns or str(c) not in had]
