"""What parties agree on before the first tree: levels, classes, bins, the constant, units of gradients.

Everything is found by sums over all parties (program.py lists the steps), or declared. A party checks what it
is sent against what its owner agreed to: the same columns of the same kinds, and declared levels and cuts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..crypto import exact
from ..data.cells import without_codes
from ..errors import BadData
from ..parameters import propose
from ..protocols.sum_steps import Down, read_vector
from ..stats import level_sketch
from ..stats.bounded_design import leave_out
from ..stats.columns import _natural, numbers, text_of
from ..stats.declared import read_declared, to_numbers
from ..stats.level_sketch import LEVEL_ROWS
from ..stats.recall import recall
from ..stats.tables import check_columns
from .bins import Bins, Feature
from .cut_search import CELLS, CutSearch, Place, count_keys, count_rounded, value_of
from .kernels import PACKED_ROWS
from .rows import UNITS, RowState, draw, hash_rows, read_label

if TYPE_CHECKING:
    from .private_program import PrivateBoostProgram
    from .private_woe_program import PrivateWoeProgram
    from .program import BoostProgram

CLASSES = ("binary", "multiclass")  # objectives whose label has classes


@dataclass(frozen=True)
class Terms:
    """What a model is about. Levels, classes and cuts that are not declared are found by sums."""

    columns: tuple[str, ...]
    label: str
    objective: str = "binary"
    categorical: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cuts: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    bins: int = 255
    missing_codes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # declared, by column
    min_level_rows: int = LEVEL_ROWS  # of one party, for a level that is found

    def feature(self, name: str, levels: tuple[str, ...] | None, cuts: tuple[float, ...] | None) -> Feature:
        """Return a column with its levels or cuts, and its codes of missing values."""
        return Feature(name, cuts, levels, tuple(self.missing_codes.get(name, ())))

    def without_codes(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return a table in which declared codes are missing values."""
        coded = {c: v for c, v in self.missing_codes.items() if c in table.columns}
        return table.assign(**{c: without_codes(table[c], v) for c, v in coded.items()}) if coded else table

    @property
    def has_classes(self) -> bool:
        return self.objective in CLASSES

    @cached_property
    def numeric(self) -> tuple[str, ...]:
        return tuple(c for c in self.columns if c not in self.categorical)

    @cached_property
    def searched(self) -> tuple[str, ...]:
        """Numbers whose cuts are found."""
        return tuple(c for c in self.numeric if c not in self.cuts)

    @cached_property
    def sketched(self) -> tuple[str, ...]:
        """Columns whose levels are found; the label last."""
        label = (self.label,) if self.has_classes and not self.labels else ()
        return (*(c for c in self.columns if c in self.categorical and c not in self.levels), *label)

    @property
    def checked_sums(self) -> int:
        """How many first sums parties check: that of levels, so that no coordinator names one itself."""
        return 1 if self.sketched else 0

    @cached_property
    def stages(self) -> tuple[str, ...]:
        first = ("levels",) if self.sketched else ()
        return (*first, "counts", *(("cells1", "cells2") if self.searched else ()))

    def to_dict(self) -> dict[str, Any]:
        return {
            "columns": list(self.columns),
            "label": self.label,
            "objective": self.objective,
            "categorical": list(self.categorical),
            "labels": list(self.labels),
            "levels": {k: list(v) for k, v in self.levels.items()},
            "cuts": {k: list(v) for k, v in self.cuts.items()},
            "bins": self.bins,
            "min_level_rows": self.min_level_rows,
            **(
                {"missing_codes": {k: list(v) for k, v in self.missing_codes.items()}}
                if self.missing_codes
                else {}
            ),
        }


def plain(terms: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `Terms` from plain values, with tuples for lists."""
    out: dict[str, Any] = dict(terms)
    for name in ("columns", "categorical", "labels"):
        out[name] = tuple(out.get(name, ()))
    for name in ("levels", "cuts", "missing_codes"):
        out[name] = {k: tuple(v) for k, v in dict(out.get(name, {})).items()}
    return out


@dataclass(frozen=True)
class Agreed:
    """What follows from the sums before the first tree."""

    bins: Bins
    labels: tuple[str, ...]
    base: float
    scale: tuple[float, float]  # units of g and of h
    class_weights: tuple[float, ...]
    packed: bool = False  # whether histograms are added as words (kernels.WORDS): rows are few enough
    found: Tensor | None = None  # the levels that were found, as they were sent

    @cached_property
    def weights(self) -> np.ndarray:
        return np.asarray(self.class_weights or (1.0,))

    @cached_property
    def key(self) -> bytes:
        return json.dumps(
            {
                "bins": self.bins.to_dict(),
                "labels": list(self.labels),
                "base": self.base,
                "scale": list(self.scale),
                "weights": list(self.class_weights),
                "packed": self.packed,
            },
            ensure_ascii=False,
        ).encode()

    def to_down(self) -> dict[str, Tensor]:
        levels = {} if self.found is None else {"levels": self.found}
        return {"agreed": torch.frombuffer(bytearray(self.key), dtype=torch.uint8), **levels}


# --- a party ------------------------------------------------------------------------------------------------


class OwnRows:
    """A party's table as the program reads it."""

    def __init__(self, terms: Terms, table: pd.DataFrame):
        check_columns(table, [*terms.columns, terms.label], "this party")
        self.terms, self.table, self.rows = terms, terms.without_codes(table), len(table)
        self._labels: dict[tuple[str, ...], np.ndarray] = {}
        self._values: dict[str, np.ndarray] = {}  # until the first tree
        self._state: tuple[bytes, RowState] | None = None
        self._kept: tuple[tuple[int, int, float], np.ndarray] | None = None

    @cached_property
    def hashes(self) -> np.ndarray:
        t = self.terms
        texts = [*t.categorical, *([t.label] if t.has_classes else [])]
        return hash_rows(self.table, [*t.numeric, *([] if t.has_classes else [t.label])], texts)

    def values(self, names: Sequence[str]) -> list[np.ndarray]:
        for name in names:
            if name not in self._values:
                self._values[name] = numbers(self.table, name, declare_category(name))
        return [self._values[name] for name in names]

    def label(self, labels: tuple[str, ...]) -> np.ndarray:
        if labels not in self._labels:
            y = read_label(self.table, self.terms.label, labels, self._explain_classes())
            if self.terms.objective == "poisson" and (y < 0).any():
                raise BadData(
                    f"the label {self.terms.label!r} has values below 0; objective='poisson' needs counts.",
                    outside=f"its label {self.terms.label!r} has values below 0",
                )
            self._labels[labels] = y
        return self._labels[labels]

    def _explain_classes(self) -> str:
        t = self.terms
        if t.label not in t.sketched:
            return ""
        return (
            f" Classes are found by a sum if a party has at least {t.min_level_rows} rows of them "
            f"(min_level_rows). Declare all: {propose('labels', ['a', 'b'])}."
        )

    def keep(self, seed: int, what: int, share: float) -> np.ndarray:
        """Return which rows are not drawn with this probability."""
        key = seed, what, share
        if self._kept is None or self._kept[0] != key:
            rows = np.ones(len(self.table), dtype=bool)
            self._kept = key, ~draw(self.hashes, seed, what, share) if share > 0 else rows
        return self._kept[1]

    def state(self, key: bytes, build: Callable[[], RowState]) -> RowState:
        """Return the rows' place in the trees; it is built again for other bins."""
        if self._state is None or self._state[0] != key:
            self._values.clear()
            self._state = key, build()
        return self._state[1]


def declare_category(name: str) -> str:
    """Return what to write in a job if a column is text."""
    return f"declare it as a category: {propose('categories', [name])}"


def prepare(program: BoostProgram | PrivateBoostProgram | PrivateWoeProgram, table: pd.DataFrame) -> OwnRows:
    return recall(table, ("boost", program.token), lambda: OwnRows(program.about, table))


def prepare_declared(program: PrivateBoostProgram | PrivateWoeProgram, table: pd.DataFrame) -> OwnRows:
    """As `prepare`, of the rows with a declared label: to refuse because of one would tell without noise."""

    def build() -> OwnRows:
        terms = program.about
        check_columns(table, [*terms.columns, terms.label], "this party")
        cells = terms.without_codes(table)
        frame = pd.DataFrame(
            {
                name: read_declared(cells[name], terms.levels[name])
                if name in terms.categorical
                else to_numbers(cells[name])
                for name in terms.columns
            },
            index=pd.RangeIndex(len(table)),
        )
        column = table[terms.label]
        label = read_declared(column, terms.labels) if terms.labels else to_numbers(column)
        frame[terms.label] = label
        keep = np.isin(label, terms.labels) if terms.labels else ~np.isnan(label)
        return OwnRows(terms, leave_out(frame, ~keep, "no label, or one that is not declared"))

    return recall(table, ("boost", program.token), build)


def length(terms: Terms, stage: str, down: Down) -> int:
    if stage == "levels":
        return level_sketch.LENGTH
    if stage == "counts":
        labels = read_levels(terms, down)[1]
        about_label = len(labels) if terms.has_classes else 2 * exact.LIMBS + CELLS
        return 1 + about_label + (CELLS + 1) * len(terms.searched)
    return 1 + CELLS * len(_read_places(terms, down))  # rows, so that a sum is never empty


def local(
    terms: Terms, stage: str, table: pd.DataFrame, own: OwnRows, train: np.ndarray, down: Down
) -> np.ndarray:
    """Return what a party's training rows contribute before the first tree."""
    if stage == "levels":
        counted = {name: count_levels(table[name]) for name in terms.sketched}
        if len(counted.get(terms.label, ())) > level_sketch.MOST:
            raise _too_many_levels(terms, len(counted) - 1)
        least = terms.min_level_rows
        found = [
            (k, text) for k, name in enumerate(counted) for text, n in counted[name].items() if n >= least
        ]
        try:
            return level_sketch.encode(found)
        except level_sketch.TooManyLevels:
            counts = np.bincount([k for k, _ in set(found)], minlength=len(terms.sketched))
            raise _too_many_levels(terms, int(np.argmax(counts))) from None
    if stage == "counts":
        labels = read_levels(terms, down)[1]
        y = own.label(labels)[train]
        parts = [np.array([len(y)])]
        if labels:
            parts.append(np.bincount(y.astype(np.int64), minlength=len(labels)))
        else:
            parts.append(exact.encode_sum(np.column_stack([y, y * y])))
            parts.append(count_keys([y], 0, [(0, 0)]))
        values = [v[train] for v in own.values(terms.searched)]
        parts.append(count_keys(values, 0, [(k, 0) for k in range(len(values))]))
        parts.append(count_rounded(values))
        return np.concatenate(parts)
    places = _read_places(terms, down)
    cells = count_keys([v[train] for v in own.values(terms.searched)], 1 + (stage == "cells2"), places)
    return np.concatenate([[int(train.sum())], cells])


def count_levels(column: pd.Series) -> dict[str, int]:
    """Return the levels of a column of one party, and how many rows have each."""
    return level_sketch.count_levels(column, text_of)


def read_levels(terms: Terms, down: Down) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Return the levels of all categories and the classes: declared, or as they were sent."""
    levels, labels = {k: tuple(v) for k, v in terms.levels.items()}, terms.labels
    if not terms.sketched:
        return levels, labels
    sent = _json(down, "levels")
    for name in terms.sketched:
        values = sent.get(name) if isinstance(sent, dict) else None
        if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
            raise BadData(f"boost: the levels of {name!r} were not sent.")
        if name == terms.label:
            labels = tuple(values)
        else:
            levels[name] = tuple(values)
    return levels, labels


def _read_places(terms: Terms, down: Down) -> list[Place]:
    sent = down.get("places")
    if sent is None or sent.dtype != torch.int32 or sent.ndim != 1 or len(sent) % 2:
        raise BadData("boost: the cells to divide are not a list of cells.")
    flat = sent.tolist()
    places = [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]
    if len(set(places)) < len(places) or any(not 0 <= n < len(terms.searched) for n, _ in places):
        raise BadData("boost: a cell to divide is of no number, or occurs twice.")
    if len(places) > CELLS * max(len(terms.searched), 1):
        raise BadData("boost: more cells are to be divided than the agreed program divides.")
    return places


def _json(down: Down, key: str) -> Any:
    tensor = down.get(key)
    if tensor is None or tensor.dtype != torch.uint8 or tensor.ndim != 1:
        raise BadData(f"boost: {key!r} of this step is missing.")
    try:
        return json.loads(tensor.numpy().tobytes())
    except (ValueError, RecursionError):
        raise BadData(f"boost: {key!r} of this step cannot be read.") from None


def read_agreed(program: BoostProgram | PrivateBoostProgram | PrivateWoeProgram, down: Down) -> Agreed:
    """Return what was agreed; raise BadData where it is not about the declared columns."""
    key, sent = read_vector(down, "agreed") if "agreed" in down else (None, None)
    if sent is None or sent.dtype != np.uint8 or sent.ndim != 1:
        raise BadData("boost: what was agreed is missing.")
    kept, is_found = program.token.agreed, bool(program.about.sketched)
    found = read_vector(down, "levels") if is_found and "levels" in down else (None, None)
    if kept is None or kept[0] is not key or kept[1] is not found[0]:
        data = sent.tobytes(), b"" if found[1] is None else found[1].tobytes()
        if kept is not None and kept[2] == data:
            agreed = kept[3]
        else:
            agreed = _parse(program.about, data[0])
            if is_found:
                _check_levels(program.about, agreed, down)
        program.token.agreed = kept = key, found[0], data, agreed
    return kept[3]


def _check_levels(terms: Terms, agreed: Agreed, down: Down) -> None:
    """Raise unless bins and classes are those that were found first, which parties have checked."""
    levels, labels = read_levels(terms, down)
    other = [f.name for f in agreed.bins.features if f.is_category and f.levels != levels[f.name]]
    if labels != agreed.labels:
        other.append(terms.label)
    if other:
        raise BadData(
            f"boost: the coordinator sent levels of {', '.join(map(repr, other))} that were not found "
            "before. Nothing was sent."
        )


class Token:
    """Identifies a program object: equal to itself only. Keeps what was read last, which many steps send."""

    # what was agreed, and the levels that were found: as they were sent last, their bytes, and read
    agreed: tuple[object, object, tuple[bytes, bytes], Agreed] | None = None
    trees: tuple[object, bytes] | None = None  # the finished trees as they were sent last
    outputs: tuple[tuple[str, ...], int] | None = None  # the classes, and how many trees a round has
    size: tuple[Down, Any] | None = None  # the message that was read last, and how much it asks for
    work: tuple[Down, Any] | None = None  # the message that was read last, and what it asks


def _parse(terms: Terms, data: bytes) -> Agreed:
    try:
        sent = json.loads(data)
        bins = Bins.from_dict(sent["bins"])
        labels = tuple(str(v) for v in sent["labels"])
        base, (unit_g, unit_h) = float(sent["base"]), (float(v) for v in sent["scale"])
        weights = tuple(float(v) for v in sent["weights"])
        packed = sent["packed"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadData(f"boost: what was agreed cannot be read: {type(error).__name__}.") from None
    problems = []
    if tuple(bins.names) != terms.columns:
        problems.append("other columns")
    if [f.is_category for f in bins.features] != [c in terms.categorical for c in bins.names]:
        problems.append("other kinds of columns")
    for feature in bins.features:
        cuts, levels = terms.cuts.get(feature.name), terms.levels.get(feature.name)
        if (levels is not None and feature.levels != tuple(levels)) or (
            cuts is not None and feature.cuts != tuple(float(np.float32(c)) for c in cuts)
        ):
            problems.append(f"other levels or cuts of {feature.name!r} than declared")
        if len(feature.cuts or ()) >= max(terms.bins, 2) and cuts is None:
            problems.append(f"more bins of {feature.name!r} than agreed")
    if (terms.labels and labels != tuple(terms.labels)) or bool(labels) != terms.has_classes:
        problems.append("other classes")
    numbers_sent = (base, unit_g, unit_h, *weights)
    if not all(map(math.isfinite, numbers_sent)) or min(unit_g, unit_h, *weights, 1.0) <= 0:
        problems.append("numbers that are not finite and positive")
    if len(weights) != len(labels):
        problems.append("class weights of other classes")
    if not isinstance(packed, bool):
        problems.append("a form of sums that is none")
    if problems:
        raise BadData(f"boost: the coordinator sent {'; '.join(problems)}. Nothing was sent.")
    return Agreed(bins, labels, base, (unit_g, unit_h), weights, packed)


# --- the coordinator ----------------------------------------------------------------------------------------


def coordinate(
    program: BoostProgram, owner: str = "boost"
) -> Generator[Down, np.ndarray, tuple[Agreed, int, int]]:
    """Run the steps before the first tree; return (what was agreed, training rows, steps).

    `owner`: the query that an error about the classes names; boost.woe has no objective.
    """
    terms, down, steps = program.about, {}, 0
    if terms.sketched:
        total = yield {}
        steps += 1
        found: dict[str, list[str]] = {name: [] for name in terms.sketched}
        try:
            pairs = level_sketch.decode(total)
        except level_sketch.TooManyLevels:
            raise _too_many_levels(terms) from None
        for k, text in pairs:
            found[terms.sketched[k]].append(text)
        for values in found.values():
            values.sort(key=_natural)
        down = {"levels": _bytes(found)}
    levels, labels = read_levels(terms, down)
    check_labels(terms, labels, owner)
    total = yield down
    steps += 1
    rows, total = int(total[0]), total[1:]
    if rows < 2:
        raise BadData(f"boost: all parties together have {rows} training rows.")
    base, scale, weights, total = _constants(program, rows, total, labels)
    cells, rounded = np.split(total, [CELLS * len(terms.searched)])
    search = CutSearch(len(terms.searched), terms.bins, max(program.min_rows, 1), rounded.tolist())
    if terms.searched:
        search.narrow(cells)
        for _ in range(2):
            flat = torch.tensor([v for place in search.places for v in place], dtype=torch.int32)
            total = yield {**down, "places": flat}
            steps += 1
            search.narrow(total[1:])
    cuts = dict(zip(terms.searched, search.cuts())) | {
        k: tuple(float(np.float32(c)) for c in v) for k, v in terms.cuts.items()
    }
    features = tuple(
        terms.feature(c, levels[c], None) if c in terms.categorical else terms.feature(c, None, cuts[c])
        for c in terms.columns
    )
    is_packed = rows < PACKED_ROWS
    agreed = Agreed(Bins(features), labels, base, scale, weights, is_packed, down.get("levels"))
    return agreed, rows, steps


def _too_many_levels(terms: Terms, largest: int | None = None) -> BadData:
    """Return the error for more values than a sum finds; a party knows which column has most of its own."""
    columns = [c for c in terms.sketched if c != terms.label]
    name = None if largest is None else terms.sketched[largest]
    number = f"is a number, set {propose('objective', 'regression')}, or 'poisson' for counts."
    if name == terms.label or not columns:
        classes = f" If it has classes, declare them: {propose('labels', ['a', 'b'])}."
        return BadData(
            f"boost: the label {terms.label!r} has more than {level_sketch.MOST} different values, and "
            f"objective={terms.objective!r} takes them for classes. If it {number}"
            f"{classes if terms.objective != 'binary' else ''}"
        )
    which = f"and {name!r} has most of them" if name else f"in {', '.join(map(repr, columns))}"
    label = (
        f" If the label {terms.label!r} {number}" if name is None and terms.label in terms.sketched else ""
    )
    return BadData(
        f"boost: the categorical columns have more than about {level_sketch.MOST} different values together, "
        f"{which}. Declare those of a column with many: "
        f"{propose('categories', {name or columns[0]: ['a', 'b']})}; or leave it out of features.{label}"
    )


def check_labels(terms: Terms, labels: Sequence[str], owner: str) -> None:
    """Raise if the label has too few or too many classes."""
    if not terms.has_classes:
        return
    rare = ""
    if not terms.labels:
        rare = (
            f" A class is found if a party has at least {terms.min_level_rows} rows of it; declare others: "
            f"{propose('labels', ['a', 'b'])}."
        )
    if (terms.objective == "binary" and len(labels) != 2) or len(labels) < 2:
        need = "two classes" if terms.objective == "binary" else "at least two classes"
        shown = ", ".join(map(repr, labels[:6])) + (", …" if len(labels) > 6 else "")
        if owner != "boost":
            raise BadData(
                f"{owner}: the label {terms.label!r} has the values {shown}; {owner} needs two outcomes. "
                f"Join them into two in the tables, or leave out the rows of others.{rare}"
            )
        raise BadData(
            f"boost: the label {terms.label!r} has the values {shown}; objective={terms.objective!r} needs "
            f"{need}. Use 'multiclass' for more classes, 'regression' or 'poisson' for numbers.{rare}"
        )


def _bytes(value: Any) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(value, ensure_ascii=False).encode()), dtype=torch.uint8)


def _constants(
    program: BoostProgram, rows: int, total: np.ndarray, labels: tuple[str, ...]
) -> tuple[float, tuple[float, float], tuple[float, ...], np.ndarray]:
    """Return the constant, the units of gradients, the class weights, and the rest of the sum."""
    objective = program.objective(labels)
    if labels:
        counts, total = total[: len(labels)], total[len(labels) :]
        weights = class_weights(program.class_weight, labels, counts)
        by_class = counts * np.asarray(weights)
        mean, largest, heaviest = float(by_class[-1] / by_class.sum()), 1.0, max(weights)
        base = objective.base(mean)
    else:
        sums, cells = exact.decode(total[: 2 * exact.LIMBS]), total[2 * exact.LIMBS :]
        cells, total = cells[:CELLS], cells[CELLS:]
        mean, heaviest, weights = float(sums[0]) / rows, 1.0, ()
        base = objective.base(mean)
        center = 0.0 if program.about.objective == "poisson" else base
        places = np.flatnonzero(cells)
        ends = [value_of(int(places[0]) << 16), value_of(min((int(places[-1]) + 1) << 16, _LAST_KEY))]
        spread = math.sqrt(max(float(sums[1]) / rows - mean * mean, 0.0) * rows) + abs(mean - center)
        # no value is further from the mean than √rows standard deviations
        largest = min(max(abs(end - center) for end in ends), spread * (1 + 1e-6))
    g, h = objective.bounds(max(largest, 1e-30))
    return base, (_unit(g * heaviest), _unit(h * heaviest)), weights, total


_LAST_KEY = (1 << 23) + (0x7F7FFFFF >> 8)  # of the largest float32


def _unit(bound: float) -> float:
    """Return the power of two by which numbers up to `bound` become integers up to `UNITS`."""
    return 2.0 ** math.floor(math.log2(UNITS / bound))


def class_weights(
    asked: Mapping[str, float] | str | None, labels: Sequence[str], counts: np.ndarray
) -> tuple[float, ...]:
    """Return the weight of each class; "balanced" gives all classes the same sum."""
    if asked is None:
        return (1.0,) * len(labels)
    if asked == "balanced":
        n = float(counts.sum())
        return tuple(n / (len(labels) * max(float(c), 1.0)) for c in counts)
    assert isinstance(asked, Mapping)
    unknown = [k for k in asked if k not in labels]
    if unknown:
        raise BadData(
            f"boost: class_weight names {unknown[0]!r}; the classes are {', '.join(map(repr, labels))}."
        )
    return tuple(float(asked.get(name, 1.0)) for name in labels)
