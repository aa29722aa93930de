"""The recipe by which a table is encoded: numbers, dates, one-hot categories, and missing indicators.

The parties agree on the *layout* before they start: which columns are numbers, which are dates, which are
categories with which values, and which may have missing values. Declare it (`Recipe(numbers=…,
categories=…)`), or let it be inferred from the whole table; the federation's notes then say that the layout
was taken from all parties' rows. The layout alone determines the width of an encoded row.

The *statistics* (means, deviations, quantiles, rare categories) are fitted: across all parties by secure
sums (`preparation.py`), by each party for itself, or by whoever declares them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData
from ..parameters import bad, nearest, propose
from .cells import (
    check_date_parts,
    date_columns,
    date_features,
    describe_many,
    float_texts,
    has_codes,
    is_number,
    kind_of_moment,
    show_row,
    to_moments,
    to_numbers,
    to_text,
    without_codes,
)
from .spellings import check_spellings, respell
from .table_files import DECIMAL_COMMA, find_decimal_comma

if TYPE_CHECKING:
    from pandas import DataFrame, Series

TOO_MANY = 100  # more categories than this, and than half of the rows, are an identifier or free text
FITS = ("federated", "party", "pooled", "none")
SCALINGS = ("standard", "robust", "quantile", "none")
WINSORIZE = ("auto", "always", "none")
IMPUTE = ("mean", "median")
UNSEEN = ("other", "refuse")
OTHER = "other"
# A category is rare if fewer than 10 rows have it (the small-count rule) and fewer than 1% of the rows.
RARE_COUNT, RARE_SHARE = 10, 0.01
# Values of `knots` (the rank transform): half a step from 0 and 1, because those are single people's values.
RANKS = tuple((2 * k + 1) / 100 for k in range(50))


@dataclass(frozen=True)
class Recipe:
    """How a table is encoded: numbers, dates, one-hot categories, and missing indicators.

    `dates` names the parts of each date or time that become features: "year", "month", "weekday", "hour",
    "days" or "days since 2015-01-01"; month, weekday and hour become sine and cosine. `missing_codes` are
    values that mean "missing", such as -9999; `spellings` say which value is meant by another one, such as
    {"ill": {"Y": "yes"}}. `scaling` is "standard", "robust" (median and quartiles),
    "quantile" (rank) or "none", for all numbers or by column. `winsorize` clips numbers at their 1% and 99%
    quantiles: "always", "none", or "auto" where tails are heavy; for a regression 24 times as far out. A
    missing number becomes the mean (or median, `impute`), and a missing category all zeros; the indicator
    column is then 1. A value that is not among the categories counts as "other" if that is one of them, else
    as all zeros; `unseen="refuse"` refuses it.

    `fit` says whose statistics are used: "federated" (all parties', by secure sums), "party" (its own, mean
    and deviation only), "pooled" (all training rows together) or "none" (numbers as they are). If `mean` and
    `std` are given, those are used. The fields from `fill` on are fitted.
    """

    numbers: tuple[str, ...] = ()
    categories: dict[str, tuple[str, ...]] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    fit: str = "federated"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    dates: dict[str, tuple[str, ...]] = field(default_factory=dict)
    date_formats: dict[str, str] = field(default_factory=dict)
    missing_codes: dict[str, tuple[float | str, ...]] = field(default_factory=dict)
    spellings: dict[str, dict[str, str]] = field(default_factory=dict)
    scaling: str | dict[str, str] = "standard"
    winsorize: str = "auto"
    impute: str = "mean"
    unseen: str = "other"
    fill: tuple[float, ...] | None = None  # what a missing number becomes
    limits: dict[str, tuple[float, float]] = field(default_factory=dict)  # of winsorized numbers
    knots: dict[str, tuple[float, ...]] = field(default_factory=dict)  # quantiles at `RANKS`
    rare: dict[str, tuple[str, ...]] = field(default_factory=dict)  # values that count as "other"

    def __eq__(self, other: object) -> bool:
        """Whether rows are encoded alike: the order of categories and dates is that of the features."""
        if not isinstance(other, Recipe):
            return NotImplemented
        return all(getattr(self, f.name) == getattr(other, f.name) for f in fields(self)) and (
            (list(self.categories), list(self.dates)) == (list(other.categories), list(other.dates))
        )

    @property
    def numeric(self) -> tuple[str, ...]:
        """The names of the features that are scaled: numbers, then parts of dates."""
        return (*self.numbers, *(c for name, parts in self.dates.items() for c in date_columns(name, parts)))

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the encoded features."""
        one_hot = [f"{name}={value}" for name, values in self.categories.items() for value in values]
        return (*self.numeric, *one_hot, *(f"{name} missing" for name in self.missing))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that a table must have."""
        return tuple(dict.fromkeys((*self.numbers, *self.dates, *self.categories, *self.missing)))

    @property
    def is_fitted(self) -> bool:
        """Whether all statistics are known, so that `transform` gives complete rows."""
        return self.mean is not None and self.std is not None

    def scaling_of(self, number: str) -> str:
        return self.scaling if isinstance(self.scaling, str) else self.scaling.get(number, "standard")

    def check(self) -> None:
        """Raise BadData with every problem of the declaration."""
        problems = []
        for key, value, allowed in (
            ("fit", self.fit, FITS),
            ("winsorize", self.winsorize, WINSORIZE),
            ("impute", self.impute, IMPUTE),
            ("unseen", self.unseen, UNSEEN),
        ):
            if value not in allowed:
                problems.append(f"{key} is {value!r}; it must be one of {', '.join(map(repr, allowed))}.")
        kinds = {"": self.scaling} if isinstance(self.scaling, str) else self.scaling
        for name, kind in kinds.items():
            if kind not in SCALINGS:
                words = ", ".join(map(repr, SCALINGS))
                problems.append(
                    f"scaling{f'[{name!r}]' * bool(name)} is {kind!r}; it must be one of {words}."
                )
            if name and name not in self.numeric:
                problems.append(f"scaling names {name!r}, which is not a number. {_near(name, self.numeric)}")
        seen: set[str] = set()
        for name in (*self.numbers, *self.dates, *self.categories):
            if name in seen:
                problems.append(f"the column {name!r} is declared twice. Declare it once.")
            seen.add(name)
        problems += [p for name, parts in self.dates.items() if (p := check_date_parts(name, parts))]
        for key, names in (
            ("missing", self.missing),
            ("date_formats", self.date_formats),
            ("missing_codes", self.missing_codes),
            ("spellings", self.spellings),
        ):
            known = self.dates if key == "date_formats" else seen
            for name in names:
                if name not in known:
                    problems.append(f"{key} names {name!r}, which is not declared. {_near(name, known)}")
        problems += check_spellings(self.spellings, self.numbers)
        for key, values in (("mean", self.mean), ("std", self.std), ("fill", self.fill)):
            if values is not None and len(values) != len(self.numeric):
                problems.append(
                    f"{key} has {len(values)} values for {len(self.numeric)} numbers. Give one for each."
                )
            elif values is not None and not all(math.isfinite(v) for v in values):
                problems.append(f"{key} has a NaN or infinite value.")
        if self.std is not None and any(s <= 0 for s in self.std):
            problems.append("std has a value that is not above 0.")
        if problems:
            raise BadData("\n".join(problems))

    @classmethod
    def infer(
        cls,
        frame: DataFrame,
        categories: Sequence[str] = (),
        fit: str = "federated",
        *,
        dates: Mapping[str, Sequence[str]] | None = None,
        missing_codes: Mapping[str, Sequence[float | str]] | None = None,
        spellings: Mapping[str, Mapping[str, str]] | None = None,
        **declared: Any,
    ) -> Recipe:
        """Infer the layout of a table from its values. One error names all columns that must be declared."""
        codes = {str(k): tuple(v) for k, v in (missing_codes or {}).items()}
        spelled = {str(k): dict(v) for k, v in (spellings or {}).items()}
        parts = {str(k): tuple(v) for k, v in (dates or {}).items()}
        numbers, kinds, missing = [], {}, []
        many: dict[str, np.ndarray] = {}
        problems: list[str] = []
        for name in map(str, frame.columns):
            column = without_codes(respell(frame[name], spelled.get(name, {})), codes.get(name, ()))
            if column.isna().any():
                missing.append(name)
            if name in parts:
                continue
            if name in categories:
                kinds[name] = tuple(np.unique(to_text(column.dropna())).tolist())
                continue
            try:
                if not has_codes(column) and is_number(name, column):
                    numbers.append(name)
                    continue
            except BadData as error:
                problems.append(str(error))
                continue
            if moment := kind_of_moment(column):
                problems.append(_declare_moment(name, moment, column))
                continue
            values = to_text(column.dropna())
            distinct, counts = np.unique(values, return_counts=True)
            if len(distinct) > TOO_MANY and 2 * len(distinct) > len(frame):
                many[name] = distinct
            elif example := find_decimal_comma(column):
                problems.append(
                    f"column {name!r}: {DECIMAL_COMMA.format(example)} If they are categories, "
                    f"declare {propose('categories', [name])}."
                )
            is_rare = (counts < RARE_COUNT) & (counts < RARE_SHARE * len(frame))
            kinds[name] = tuple(v for v in distinct[~is_rare].tolist() if v != OTHER or not is_rare.any())
            if is_rare.any():
                kinds[name] += (OTHER,)
        if many:  # all of them in one message
            name, distinct = next(iter(many.items()))
            problems.append(
                f"the column {name!r} has {len(distinct)} different values in {len(frame)} rows: "
                f"{describe_many(distinct)} Leave it out with {propose('drop', list(many))}"
                + (f": the same holds for {', '.join(map(repr, list(many)[1:]))}." if len(many) > 1 else ".")
            )
        if problems:
            raise BadData("\n".join(problems))
        declared |= {"dates": parts, "missing_codes": codes, "spellings": spelled}
        found = cls(tuple(numbers), kinds, tuple(missing), fit, **declared)
        found.check()
        return found

    def without(self, column: str) -> Recipe:
        """Return the recipe without a column."""
        dates = {name: parts for name, parts in self.dates.items() if name != column}
        numbers = tuple(name for name in self.numbers if name != column)
        kept = set(replace(self, numbers=numbers, dates=dates).numeric)
        places = [i for i, name in enumerate(self.numeric) if name in kept]
        scaling = self.scaling
        rest: dict[str, Any] = {
            key: None if (values := getattr(self, key)) is None else tuple(values[i] for i in places)
            for key in ("mean", "std", "fill")
        }
        for key in ("categories", "date_formats", "missing_codes", "spellings", "limits", "knots", "rare"):
            rest[key] = {name: value for name, value in getattr(self, key).items() if name != column}
        return replace(
            self,
            numbers=numbers,
            dates=dates,
            missing=tuple(m for m in self.missing if m != column),
            scaling=scaling
            if isinstance(scaling, str)
            else {name: kind for name, kind in scaling.items() if name in kept},
            **rest,
        )

    def column_of(self, frame: DataFrame, name: str) -> Series:
        """Return a column as declared: spellings first, since the value that is meant may mean "missing"."""
        column = respell(frame[name], self.spellings.get(name, {}))
        return without_codes(column, self.missing_codes.get(name, ()))

    def raw(self, frame: DataFrame) -> np.ndarray:
        """Return numbers and parts of dates as float64, [row, feature], as they are; NaN where missing."""
        parts = [np.zeros((len(frame), 0))]
        for name in self.numbers:
            column = self.column_of(frame, name)
            if not _has_numbers(name, column):
                if example := find_decimal_comma(column):
                    raise BadData(f"column {name!r}: {DECIMAL_COMMA.format(example)}")
                wrong = column[column.notna() & np.isnan(to_numbers(column))]
                example = str([*wrong, *column.dropna()][0])
                where = f" in {show_row(column.index.get_loc(wrong.index[0]))}" if len(wrong) else ""
                raise BadData(
                    f"the recipe declares {name!r} as a number; the table contains text, e.g. {example!r}"
                    f"{where}. Correct these cells, or leave them empty if they are missing."
                )
            parts.append(to_numbers(column)[:, None])
        for name, features in self.dates.items():
            column, form = self.column_of(frame, name), self.date_formats.get(name)
            moments = to_moments(name, column, form, can_declare=not self.is_fitted)
            parts.append(date_features(moments, features))
        return np.concatenate(parts, axis=1)

    def place_of(self, name: str, frame: DataFrame) -> np.ndarray:
        """Return the position of each row's value among the categories of a column; −1 where there is none.

        A rare value, and one that is not declared, is at the position of "other", if that is a category. An
        integer may be written with ".0", as by programs that store it as a float.
        """
        values, rare = self.categories[name], self.rare.get(name, ())
        column = self.column_of(frame, name)
        other = values.index(OTHER) if OTHER in values and OTHER not in rare else -1
        place = {value: other if value in rare else k for k, value in enumerate(values)}
        place |= {same: place[value] for value, same in float_texts(values).items()}
        known = column.notna().to_numpy()
        if self.unseen == "refuse" and (unknown := sorted(set(to_text(column)[known]) - set(place))):
            raise BadData(
                f"the column {name!r} has the value {unknown[0]!r}, which is not in the recipe. "
                f"Known: {', '.join(values[:20])}."
            )
        return np.array(
            [place.get(text, other) if there else -1 for text, there in zip(to_text(column), known)],
            dtype=np.int64,
        )

    def flags(self, frame: DataFrame) -> np.ndarray:
        """Return one-hot categories and missing indicators as float32, [row, feature]."""
        parts = [np.zeros((len(frame), 0), dtype=np.float32)]
        for name, values in self.categories.items():
            part = np.zeros((len(frame), len(values)), dtype=np.float32)
            place = self.place_of(name, frame)
            part[np.flatnonzero(place >= 0), place[place >= 0]] = 1
            parts.append(part)
        parts += [self.column_of(frame, m).isna().to_numpy(np.float32)[:, None] for m in self.missing]
        return np.concatenate(parts, axis=1)

    def check_table(self, frame: DataFrame) -> DataFrame:
        """Return the table with text as column names; raise BadData naming all columns it lacks."""
        if len(frame.columns) and not all(isinstance(name, str) for name in frame.columns):
            frame = frame.rename(columns=str)
        known = list(map(str, frame.columns))
        absent = [name for name in self.inputs if name not in known]
        if absent:
            more = f" Also missing: {', '.join(map(repr, absent[1:]))}." if len(absent) > 1 else ""
            raise BadData(
                f"the recipe needs a column {absent[0]!r} and the table has none. "
                f"{nearest(absent[0], known)}{more}"
            )
        return frame

    def check_rows(self, frame: DataFrame) -> tuple[str, ...]:
        """Return notes about training rows with undeclared values; refuse undeclared missing values.

        A column with more undeclared than declared values is refused, too: it is not what was agreed.
        """
        frame, notes = self.check_table(frame), []
        undeclared = [
            n
            for n in (*self.numbers, *self.dates, *self.categories)
            if n not in self.missing and self.column_of(frame, n).isna().any()
        ]
        if undeclared:
            raise BadData(
                f"the column {undeclared[0]!r} has missing values; the recipe must allow them: "
                f"missing={tuple(undeclared)!r}."
            )
        for name, values in self.categories.items():
            column = self.column_of(frame, name).dropna()
            foreign = ~np.isin(to_text(column), list(values))
            if OTHER not in values and 2 * foreign.sum() > len(column):
                words = sorted(set(to_text(column)[foreign]))
                raise BadData(
                    f"the column {name!r} has the value {words[0]!r}, which is not in the recipe, in "
                    f"{show_row(int(column.index.get_indexer([column.index[foreign][0]])[0]))}, and most "
                    f"values are not in it. Known: {', '.join(values[:20])}."
                )
            if foreign.any() and OTHER not in values:
                notes.append(
                    f"The column {name!r} has values that the recipe does not declare. They count as "
                    "no category (all zeros)."
                )
        return tuple(notes)

    def encode(self, frame: DataFrame) -> Tensor:
        """Encode training rows without scaling; a missing number is NaN."""
        frame = self.check_table(frame)
        x = np.concatenate([self.raw(frame).astype(np.float32), self.flags(frame)], axis=1)
        self.check_rows(frame)
        return torch.from_numpy(x)

    def transform(self, frame: DataFrame) -> Tensor:
        """Encode rows completely: scaled, and without NaN. The recipe must be fitted."""
        if not self.is_fitted:
            raise BadData(
                "the recipe is not fitted: it has no mean and std. Fit it (a federation from a table has "
                "`.pipeline`), or declare them."
            )
        frame = self.check_table(frame)
        x = np.concatenate([self.scale(self.raw(frame)).astype(np.float32), self.flags(frame)], axis=1)
        return torch.from_numpy(x)

    def scale(self, raw: np.ndarray) -> np.ndarray:
        """Winsorize, impute and scale numbers, [row, feature], by the fitted statistics."""
        assert self.mean is not None
        assert self.std is not None
        mean = np.array(self.mean)
        out = np.where(np.isnan(raw), np.array(self.fill) if self.fill is not None else mean, raw)
        for k, name in enumerate(self.numeric):
            if name in self.limits:
                out[:, k] = np.clip(out[:, k], *self.limits[name])
            if name in self.knots:  # the share of smaller values, with mean 0 and variance 1
                q, ranks = np.array(self.knots[name]), np.array(RANKS)
                up = np.interp(out[:, k], q, ranks)  # of equal knots the last, and below the first
                down = -np.interp(-out[:, k], -q[::-1], -ranks[::-1])
                out[:, k] = ((up + down) / 2 - 0.5) * math.sqrt(12)
        scaled = np.array([name not in self.knots for name in self.numeric], dtype=bool)
        out[:, scaled] = ((out - mean) / np.array(self.std))[:, scaled]
        return out

    def with_statistics(self, x: Tensor) -> Recipe:
        """Return the recipe with the mean and standard deviation of these encoded rows."""
        mean, std = self.statistics(x, torch.zeros(len(x), dtype=torch.int64), 1)
        return replace(self, mean=tuple(mean[0].tolist()), std=tuple(std[0].tolist()))

    def resolve(self, x: Tensor) -> Recipe:
        """Return the recipe with statistics: its own, or those of these encoded rows."""
        if self.is_fitted:
            return self
        n = len(self.numeric)
        return (
            replace(self, mean=(0.0,) * n, std=(1.0,) * n) if self.fit == "none" else self.with_statistics(x)
        )

    def standardize(self, x: Tensor) -> Tensor:
        """Scale encoded rows by the recipe's statistics, or by their own if it has none."""
        recipe = self if self.is_fitted else self.with_statistics(x)
        n = len(self.numeric)
        scaled = torch.from_numpy(recipe.scale(x[:, :n].to(torch.float64).numpy()))
        return torch.cat([scaled.to(x.dtype), x[:, n:]], dim=1)

    def statistics(self, x: Tensor, owner: Tensor, parties: int) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation, [party, number], of the values that are not missing.

        The standard deviation of a constant number is set to 1.
        """
        numbers = x[:, : len(self.numeric)].to(torch.float64)
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
        n = len(self.numeric)
        out[:, :n] = ((x[:, :n] - mean[owner]) / std[owner]).nan_to_num(nan=0.0)  # 0 is the mean
        return out

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as plain values, for JSON; `from_dict` of it is this recipe again."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Recipe:
        """Return the recipe of `to_dict`; raise BadData if it is not one."""
        known = [f.name for f in fields(cls)]
        if not isinstance(values, Mapping) or (unknown := [key for key in values if key not in known]):
            what = repr(values) if not isinstance(values, Mapping) else f"a key {unknown[0]!r}"
            raise BadData(f"a recipe cannot have {what}. Known: {', '.join(known)}.")
        try:
            recipe = cls(**{key: _frozen(value) for key, value in values.items()})
            _check_types(recipe)
            recipe.check()
        except (TypeError, AttributeError, ValueError, OverflowError) as error:
            raise BadData(f"the values are not those of a recipe: {error}.") from None
        return recipe


def _has_numbers(name: str, column: Series) -> bool:
    """Whether a declared number has no other cells. Raises BadData if it has an infinite one."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_datetime64_any_dtype(column):
        return is_number(name, column)
    return not (column.notna().to_numpy() & np.isnan(to_numbers(column))).any()


def _check_types(recipe: Recipe) -> None:
    """Raise ValueError unless the values, which were read from a file or a message, are a recipe's."""

    def is_text(value: Any) -> bool:
        return isinstance(value, str)

    def is_finite(value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

    def is_code(value: Any) -> bool:
        return is_text(value) or is_finite(value)

    def is_list(value: Any, of: Any) -> bool:
        return isinstance(value, tuple) and all(map(of, value))

    def is_table(value: Any, of: Any) -> bool:
        return isinstance(value, dict) and all(map(of, value.values()))

    def is_texts(value: Any) -> bool:
        return is_list(value, is_text)

    r = recipe
    fine = {
        **{k: is_text(getattr(r, k)) for k in ("fit", "winsorize", "impute", "unseen")},
        **{k: is_texts(getattr(r, k)) for k in ("numbers", "missing")},
        **{k: is_table(getattr(r, k), is_texts) for k in ("categories", "dates", "rare")},
        **{k: (v := getattr(r, k)) is None or is_list(v, is_finite) for k in ("mean", "std", "fill")},
        "date_formats": is_table(r.date_formats, is_text),
        "missing_codes": is_table(r.missing_codes, lambda v: is_list(v, is_code)),
        "spellings": is_table(r.spellings, lambda v: is_table(v, is_text)),
        "scaling": is_text(r.scaling) or is_table(r.scaling, is_text),
        "limits": is_table(r.limits, lambda v: is_list(v, is_finite) and len(v) == 2 and v[0] <= v[1]),
        "knots": is_table(
            r.knots, lambda v: is_list(v, is_finite) and len(v) == len(RANKS) and list(v) == sorted(v)
        ),
    }
    if wrong := [name for name, is_fine in fine.items() if not is_fine]:
        raise ValueError(f"{', '.join(wrong)} has another type or form")


def check_fit(owner: str, fit: Any) -> None:
    if not isinstance(fit, Recipe) and fit not in FITS:
        raise bad(owner, "fit", fit, f"one of {', '.join(map(repr, FITS))}, or a Recipe")
    if isinstance(fit, Recipe):
        fit.check()


def _near(name: str, known: Any) -> str:
    return nearest(name, list(known)) if known else "None is declared."


def _declare_moment(name: str, moment: str, column: Series) -> str:
    parts = ["hour"] if moment == "time" else ["year", "month", "weekday", "days"]
    return (
        f"the column {name!r} contains {moment}s, like {str(column.dropna().iloc[0])!r}: dates or times, not "
        f"categories. Declare the parts to use with {propose('dates', parts, name)}, or leave it out with "
        f"{propose('drop', [name])}."
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _frozen(v) for key, v in value.items()}
    return tuple(_frozen(v) for v in value) if isinstance(value, tuple | list) else value
