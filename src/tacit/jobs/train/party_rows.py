"""A party's rows: read from its own file as all parties agreed, or handed to a process of this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from ... import data as datasets
from ...data.cells import code_texts, with_columns
from ...data.dropped_rows import check_drop_rows, without_rows
from ...data.federation import Federation, Holdings, Rows
from ...data.inputs import Inputs, Stored
from ...data.labels import to_target
from ...data.people import people_of
from ...data.pipeline import Pipeline
from ...data.private_preparation import PrivatePreparation
from ...data.recipe import Recipe
from ...data.skews import USUAL_ROWS
from ...data.spellings import check_spellings, respell
from ...data.subgroups import Subgroups
from ...data.table_files import check_reading, read_header, read_table, reading_in
from ...data.table_options import MISSING_LABEL
from ...errors import BadData, BadJob, BadParameter
from ...files import write_atomic
from ...parameters import bad, from_fields, from_table, nearest, real, to_table, whole
from .party_split import split_rows

if TYPE_CHECKING:
    from pandas import DataFrame

FITS = ("", "federated", "party", "none")
SMALL = ("refuse", "drop")


@dataclass(frozen=True, kw_only=True)
class TableLayout:
    """[data] of a job for real parties: which columns each party's own file has."""

    label: str = ""
    labels: list[str] = field(default_factory=list)  # its values; empty for a regression
    numbers: list[str] = field(default_factory=list)
    categories: dict = field(default_factory=dict)  # type: ignore[type-arg]  # column: its values
    missing: list[str] = field(default_factory=list)  # columns that may have missing values
    missing_label: str = "refuse"  # "refuse" or "drop": what becomes of rows without an outcome
    fit: str = ""  # "federated", "party" or "none": whose statistics; empty: see preparing.py
    dates: dict = field(default_factory=dict)  # type: ignore[type-arg]  # column: the parts that are used
    date_formats: dict = field(default_factory=dict)  # type: ignore[type-arg]  # column: such as "%d/%m/%Y"
    missing_codes: dict = field(default_factory=dict)  # type: ignore[type-arg]  # column: values
    spellings: dict = field(default_factory=dict)  # type: ignore[type-arg]  # column: {written: meant}
    drop_rows: dict = field(default_factory=dict)  # type: ignore[type-arg]  # column: values of such rows
    scaling: str | dict[str, str] = "standard"  # "standard", "robust", "quantile" or "none", or by column
    winsorize: str = "auto"  # "auto", "always" or "none"
    impute: str = "mean"  # "mean" or "median"
    unseen: str = "other"  # "other" or "refuse"
    mean: list[float] = field(default_factory=list)  # of each of `numbers`, where parties agree on it
    std: list[float] = field(default_factory=list)
    separator: str = ""  # of CSV files; empty: recognized in each file
    decimal: str = ""  # "." or ",": the decimal sign; empty: a point
    encoding: str = ""  # of CSV files; empty: UTF-8
    held_fraction: float = real(0.1, least=0, below=1, doc="share of the rows held out for evaluation")
    group: str = ""  # the column that says whose a row is: rows of one person stay together
    time: str = ""  # the column of `test_after`; empty: the first of `dates`
    test_after: str = ""  # rows of this day and later are held out, and no others
    min_rows: int | None = whole(None, least=1, none=True, doc="a party with fewer rows is small")
    small: str = "refuse"  # "refuse" or "drop": what becomes of a small party
    fit_epsilon: float | None = real(None, above=0, none=True, doc="ε of the statistics, each party's own")
    fit_delta: float = real(1e-6, above=0, below=1, doc="δ of the statistics")
    bounds: dict = field(default_factory=dict)  # type: ignore[type-arg]  # number: [low, high]

    def check(self) -> None:
        if not self.label:
            raise bad("[data]", "label", self.label, "the column to predict, in quotes")
        for key in ("labels", "numbers", "missing"):
            values = getattr(self, key)
            if len(set(values)) < len(values):
                raise bad("[data]", key, list(values), "a list of different texts")
        if not all(
            isinstance(v, list) and v and all(isinstance(t, str) for t in v) for v in self.categories.values()
        ):
            must_be = "a table: a column, and the list of its values"
            raise bad("[data]", "categories", self.categories, must_be)
        if self.fit not in FITS:
            raise bad("[data]", "fit", self.fit, f"one of {', '.join(map(repr, FITS[1:]))}, or left out")
        if bool(self.mean) != bool(self.std):
            given, other = ("mean", "std") if self.mean else ("std", "mean")
            raise bad("[data]", given, list(getattr(self, given)), f"given together with {other}")
        check_reading("[data]", **reading_in(vars(self)))
        self._check_people()
        if self.small == "merge":
            raise BadJob(
                "[data]: small is 'merge', which is for simulations: between real parties nobody has the "
                "rows of two of them, so none can be merged. Use small = 'drop', or let small sites join "
                "their files before they become a party."
            )
        if problems := [*check_spellings(self.spellings), *check_drop_rows(self.drop_rows)]:
            raise BadJob("\n".join(f"[data]: {p}" for p in problems))
        if self.missing_label not in MISSING_LABEL:
            raise bad("[data]", "missing_label", self.missing_label, " or ".join(map(repr, MISSING_LABEL)))
        if self.small not in SMALL:
            raise bad("[data]", "small", self.small, " or ".join(map(repr, SMALL)))

    def _check_people(self) -> None:
        """Check the columns that say whose and of when a row is."""
        features = {*self.numbers, *self.categories, *self.dates}
        if self.group and self.group in {self.label, *features}:
            raise bad("[data]", "group", self.group, "a column that is neither the label nor a feature")
        if self.time and not self.test_after:
            raise bad("[data]", "time", self.time, "left out without test_after, which it belongs to")
        if self.test_after and not self.time and not self.dates:
            raise BadJob('[data]: test_after needs the column of the time. Give time = "…".')
        if self.time and self.time == self.label:
            raise bad("[data]", "time", self.time, "another column than the label")


class AgreedTable(NamedTuple):
    """What [data] says about each party's file."""

    recipe: Recipe
    label: str
    labels: list[str] | None  # None: a regression
    held_fraction: float
    reading: dict[str, Any]  # separator, decimal and encoding, where they are given
    fit: str  # as it is written; empty: not at all
    group: str  # the column that says whose a row is; empty: each row is somebody else's
    time: str
    test_after: str  # empty: no split by time
    time_format: str | None
    min_rows: int  # a party with fewer rows is small; 0: none is
    small: str
    private: tuple[float, float, dict[str, tuple[float, float]]] | None  # fit_epsilon, fit_delta and bounds
    drops_unlabeled: bool  # whether rows without an outcome are left out
    spellings: dict[str, str]  # of the label
    drop_rows: dict[str, list[Any]]  # by column, values of rows that are left out

    @property
    def inputs(self) -> list[str]:
        """The columns that a party's file needs besides the label."""
        others = [c for c in (self.group, self.time, *self.drop_rows) if c and c != self.label]
        return list(dict.fromkeys([*self.recipe.inputs, *others]))

    @property
    def pipeline(self) -> Pipeline:
        """The way of a row from the table to the model, as far as the parties agreed on it."""
        return Pipeline(self.recipe, self.label, tuple(self.labels or ()))

    def private_preparation(self, parties: int) -> PrivatePreparation:
        """Return the noisy sum of `fit_epsilon`, over so many parties."""
        assert self.private is not None
        return PrivatePreparation(self.pipeline, *self.private, parties=parties, group=self.group)


def read_layout(table: Mapping[str, Any]) -> AgreedTable:
    """Return what [data] of a job for real parties says, checked."""
    what = "for real parties it describes the columns of each party's own file, and has no key"
    layout = from_fields(table, TableLayout, "[data]", what)
    # sorted: a contract does not keep the order of a table, and all parties must encode a row alike
    kinds = {k: tuple(v) for k, v in sorted(layout.categories.items())}
    mean, std = (tuple(map(float, given)) or None for given in (layout.mean, layout.std))
    recipe = Recipe(
        tuple(layout.numbers),
        kinds,
        tuple(layout.missing),
        fit=layout.fit or "federated",
        mean=mean,
        std=std,
        dates={k: tuple(v) if isinstance(v, list) else v for k, v in sorted(layout.dates.items())},
        date_formats=dict(layout.date_formats),
        missing_codes={k: tuple(v) if isinstance(v, list) else (v,) for k, v in layout.missing_codes.items()},
        spellings={k: dict(v) for k, v in layout.spellings.items() if k != layout.label},
        scaling=layout.scaling,
        winsorize=layout.winsorize,
        impute=layout.impute,
        unseen=layout.unseen,
    )
    try:
        recipe.check()
    except (BadData, TypeError, AttributeError) as error:
        raise BadJob("\n".join(f"[data]: {line}" for line in str(error).splitlines())) from None
    values = {**recipe.categories, layout.label: tuple(layout.labels)}
    for name, spellings in layout.spellings.items():
        codes = code_texts(recipe.missing_codes.get(name, ()))
        if name in values and (
            unknown := [m for m in spellings.values() if m not in (*values[name], *codes)]
        ):
            raise BadJob(
                f"[data]: spellings of {name!r} name {unknown[0]!r}, which is not one of its values. Known: "
                f"{', '.join(values[name])}."
            )
    if not recipe.columns:
        raise BadJob(
            "[data]: there are neither numbers, dates nor categories, so there is nothing to learn from. "
            "Name the columns."
        )
    if "labels" in table and len(layout.labels) < 2:
        raise BadJob(
            f"[data]: labels is {list(layout.labels)!r}; it must name at least two, or be left out for a "
            "regression."
        )
    if layout.test_after and "held_fraction" in table:
        raise BadJob(
            "[data]: both test_after and held_fraction are given; the held-out rows are those of test_after "
            "and later. Leave one of them out."
        )
    reading = reading_in(vars(layout))
    time = layout.time or (next(iter(layout.dates), "") if layout.test_after else "")
    agreed = AgreedTable(
        recipe,
        layout.label,
        list(layout.labels) or None,
        float(layout.held_fraction),
        reading,
        layout.fit,
        layout.group,
        time,
        layout.test_after,
        layout.date_formats.get(time),
        layout.min_rows or (0 if layout.small == "refuse" else USUAL_ROWS),
        layout.small,
        _read_private(table, layout, recipe),
        layout.missing_label == "drop",
        dict(layout.spellings.get(layout.label, {})),
        dict(layout.drop_rows),
    )
    if agreed.private is not None:
        try:
            agreed.private_preparation(1).check()
        except BadParameter as error:
            text = str(error).replace("preparation: ", "[data]: ")
            raise BadJob(text) from None
    return agreed


def _read_private(
    table: Mapping[str, Any], layout: TableLayout, recipe: Recipe
) -> tuple[float, float, dict[str, tuple[float, float]]] | None:
    """Return fit_epsilon, fit_delta and bounds; None where there is no fit_epsilon."""
    if layout.fit_epsilon is None:
        for key in ("fit_delta", "bounds"):
            if key in table:
                raise BadJob(f"[data]: {key} belongs to fit_epsilon, which is not given. Give both, or none.")
        return None
    if layout.fit not in ("", "federated") or recipe.is_fitted:
        raise BadJob(
            "[data]: fit_epsilon is for statistics of all parties together (fit = 'federated'), and here "
            f"{'mean and std are declared' if recipe.is_fitted else f'fit is {layout.fit!r}'}. Leave one of "
            "them out."
        )
    bounds = {str(k): tuple(v) if isinstance(v, list) else v for k, v in layout.bounds.items()}
    return float(layout.fit_epsilon), float(layout.fit_delta), bounds


def save_rows(fed: Federation, k: int, folder: Path) -> None:
    """Write party k's rows into a folder, for a process that may have these and no others."""
    from safetensors.torch import save

    mine = fed.party(k)
    if isinstance(mine.rows.x, Stored):
        raise BadData(
            f"{fed.name}: rows that are read while training are not given to other processes. Use "
            "runtime='cohort' or 'inprocess', or load them into memory."
        )
    parts = {"": mine.rows.x} if isinstance(mine.rows.x, torch.Tensor) else _name_parts(mine.rows.x)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(
        folder / "rows.safetensors",
        save(
            {
                **{f"x{name}": part.contiguous() for name, part in parts.items()},
                "y": mine.rows.y.contiguous(),
                "train": mine.train.index.contiguous(),
                "held": mine.held.index.contiguous(),
                **({} if mine.subgroups is None else {"subgroups": mine.subgroups.codes.contiguous()}),
                **({} if mine.persons is None else {"persons": mine.persons.contiguous()}),
            }
        ),
    )
    write_atomic(
        folder / "rows.json",
        json.dumps(
            {
                "name": mine.name,
                "party": mine.parties[0],
                "inputs": None
                if isinstance(mine.rows.x, torch.Tensor)
                else [list(mine.rows.x.parts), mine.rows.x.is_named],
                "classes": mine.classes,
                "seed": mine.seed,
                "skew": None if mine.skew is None else to_table(mine.skew),
                "columns": mine.columns,
                "labels": mine.labels,
                "subgroups": None
                if mine.subgroups is None
                else [mine.subgroups.columns, mine.subgroups.values, mine.subgroups.parties],
            }
        ),
    )


def _name_parts(x: Inputs) -> dict[str, torch.Tensor]:
    return {f".{name}": part for name, part in x.parts.items()}


def load_rows(folder: Path) -> Federation:
    from safetensors.torch import load_file

    t, metadata = load_file(folder / "rows.safetensors"), json.loads((folder / "rows.json").read_text())
    skew = None if metadata["skew"] is None else from_table(metadata["skew"], datasets.SKEWS, "skew")
    x: torch.Tensor | Inputs
    if metadata["inputs"] is None:
        x = t["x"]
    else:
        names, is_named = metadata["inputs"]
        x = Inputs({name: t[f"x.{name}"] for name in names}, is_named)
    rows, groups = Rows(x, t["y"]), None
    if metadata["subgroups"] is not None:
        columns, values, parties = metadata["subgroups"]
        codes = t["subgroups"]
        groups = Subgroups(tuple(columns), tuple(map(tuple, values)), codes, codes[:0], parties)
    return Federation(
        metadata["name"],
        rows,
        Holdings.from_lists([t["train"]]),
        Holdings.from_lists([t["held"]]),
        rows.take(slice(0)),
        metadata["classes"],
        (metadata["party"],),
        skew,
        metadata["seed"],
        tuple(metadata["columns"]),
        tuple(metadata["labels"]),
        subgroups=groups,
        persons=t.get("persons"),
    )


@dataclass(frozen=True)
class PartyTable:
    """A party's own table, checked against what the parties agreed on, and not encoded yet."""

    name: str
    party: str
    agreed: AgreedTable
    frame: DataFrame
    y: torch.Tensor  # classes, or numbers as they are
    train: torch.Tensor
    held: torch.Tensor
    seed: int
    subgroups: Subgroups | None = None
    persons: np.ndarray | None = None  # whose each row is

    @property
    def is_small(self) -> bool:
        """Whether it has fewer rows than agreed: the party contributes none of them."""
        return len(self.train) + (0 if self.agreed.test_after else len(self.held)) < self.agreed.min_rows

    @property
    def training_rows(self) -> DataFrame:
        """What preparation is about; the label is a class's name, as agreed, or a number."""
        train = self.train[:0] if self.is_small else self.train
        rows, labels = self.frame.iloc[train.numpy()], self.agreed.labels
        if labels is None:
            return rows
        return with_columns(rows, {self.agreed.label: [labels[k] for k in self.y[train].tolist()]})

    def fit_alone(self) -> Pipeline:
        """Return the pipeline with declared statistics or, without these, with this party's own."""
        recipe, pipeline = self.agreed.recipe, self.agreed.pipeline
        return replace(pipeline, recipe=recipe.resolve(recipe.encode(self.frame)[self.train]))

    def encode(self, pipeline: Pipeline | None = None) -> Federation:
        """Return the rows, encoded by a fitted pipeline (None: the one this party fits alone)."""
        pipeline = self.fit_alone() if pipeline is None else pipeline
        x, labels, y = pipeline.encode(self.frame), self.agreed.labels, self.y
        if labels is None:
            mean, std = pipeline.target
            y = ((y - mean) / std).to(torch.float32)
        return Federation(
            self.name,
            Rows(x, y),
            Holdings.from_lists([self.train]),
            Holdings.from_lists([self.held]),
            Rows(x[:0], y[:0]),
            None if labels is None else len(labels),
            (self.party,),
            None,
            self.seed,
            pipeline.columns,
            tuple(labels or ()),
            pipeline=pipeline,
            subgroups=self.subgroups,
            persons=None if self.persons is None else torch.from_numpy(self.persons),
        )


def read_party_table(
    name: str,
    path: str | os.PathLike[str],
    layout: Mapping[str, Any] | None,
    seed: int,
    one_by_one: bool = False,
    subgroups: Sequence[str] = (),
    reading: Mapping[str, Any] | None = None,
) -> PartyTable:
    """Read a party's own file: columns, categories and labels are the job's.

    With `one_by_one`, and with fit_epsilon, each row, or person, is held out by itself, whatever the other
    rows are: where an ε is claimed for it, its presence must not move others. `subgroups` are those of the
    job. `reading`: separator, decimal and encoding of this file, where they are not those of the job.
    """
    if layout is None:
        raise BadJob(
            "the job does not say which columns the parties' files have. Its [data] needs label, numbers "
            "and categories."
        )
    agreed = read_layout(layout)
    recipe, label, labels = agreed.recipe, agreed.label, agreed.labels
    file = Path(path)
    how = agreed.reading | reading_in(reading or {})
    names = read_header(file, how.get("separator"), how.get("encoding")).names
    numbers = {*recipe.numbers, *([label] if labels is None else [])}
    frame = read_table(file, **how, text_columns=set(names) - numbers)
    known = [str(c) for c in frame.columns]
    if label not in known:
        raise BadData(
            f"{file}: there is no column {label!r}, the label of this job. {nearest(label, known)}",
            outside=f"its file has no column {label!r}",
        )
    if absent := [c for c in agreed.drop_rows if c not in known]:
        raise BadData(
            f"{file}: there is no column {absent[0]!r} (drop_rows). {nearest(absent[0], known)}",
            outside=f"its file has no column {absent[0]!r}",
        )
    frame = without_rows(frame, agreed.drop_rows)
    frame = with_columns(frame, {label: respell(frame[label], agreed.spellings)})
    if agreed.drops_unlabeled:
        frame = frame[frame[label].notna()].reset_index(drop=True)
    if not len(frame):
        raise BadData(f"{file}: the table has no rows{' with an outcome' * agreed.drops_unlabeled}.")
    for key, column in (("group", agreed.group), ("time", agreed.time)):
        if column and column not in known:
            raise BadData(
                f"{file}: there is no column {column!r}, the {key} of this job. {nearest(column, known)}",
                outside=f"its file has no column {column!r}",
            )
    try:
        recipe.encode(frame)
    except BadData as error:
        absent = [c for c in agreed.inputs if c not in known]
        raise BadData(
            f"{file}: {error}", outside=f"its file has no column {absent[0]!r}" if absent else error.outside
        ) from None
    remedy = 'Remove them from the file, or agree on missing_label = "drop" in [data].'
    values = to_target(str(file), label, frame[label], labels is None, remedy)
    if labels is None:
        y = torch.from_numpy(values.astype(np.float64))
    else:
        place = {text: i for i, text in enumerate(labels)}
        unknown = sorted({str(v) for v in values.tolist()} - set(place))
        if unknown:
            raise BadData(
                f"{file}: the label {label!r} has the value {unknown[0]!r}, which this job does not know. "
                f"Known: {', '.join(labels)}.",
                outside=f"its label {label!r} has a value that this job does not know",
            )
        y = torch.tensor([place[str(v)] for v in values.tolist()], dtype=torch.int64)
    groups = Subgroups.without_rows(subgroups, recipe.categories, recipe.numbers)
    if groups is not None:
        plain = {c: recipe.column_of(frame, c) for c in groups.columns}  # a code for missing is missing
        try:
            groups = groups._replace(codes=groups.encode(subgroups, plain, len(frame)))
        except BadData as error:
            raise BadData(f"{file}: {error}", outside="its columns do not fit the agreed subgroups") from None
    persons = people_of(str(file), frame[agreed.group]) if agreed.group else None
    one_by_one = one_by_one or agreed.private is not None
    train, held = split_rows(str(file), agreed, frame, y, persons, seed, one_by_one)
    if not len(train):
        raise BadData(f"{file}: all of its {len(y)} rows are held out, and there is none to train on.")
    table = PartyTable(file.name, name, agreed, frame, y, train, held, seed, groups, persons)
    if table.is_small and agreed.small == "refuse":
        raise BadData(
            f"{file}: it has {len(train) + len(held)} rows, and the parties agreed that one with fewer than "
            f"{agreed.min_rows} does not take part (min_rows). small = 'drop' in [data] would let the others "
            "go on without it.",
            outside=f"it has fewer than {agreed.min_rows} rows (min_rows)",
        )
    return table


def read_rows(
    name: str,
    path: str | os.PathLike[str],
    layout: Mapping[str, Any] | None,
    seed: int,
    one_by_one: bool = False,
    subgroups: Sequence[str] = (),
) -> Federation:
    """Read a party's own file, encoded by declared statistics, or by the party's own."""
    return read_party_table(name, path, layout, seed, one_by_one, subgroups).encode()
