"""The recipe by which a table is encoded: numbers, one-hot categories, and missing indicators.

The parties agree on the *layout* before they start: which columns are numbers, which are categories with
which values, and which may have missing values. Declare it (`Recipe(numbers=…, categories=…)`), or let it be
inferred from the whole table; the federation's notes then say that the layout was taken from all parties'
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData
from ..parameters import nearest
from .table_files import CODE, DECIMAL_COMMA, find_decimal_comma

if TYPE_CHECKING:
    from pandas import DataFrame, Series

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
            values = np.unique(to_text(column.dropna()))
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
            text = to_text(frame[name])
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


def to_text(column: Series) -> np.ndarray:
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


def is_counter(column: Series) -> bool:
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

    numbers = pd.to_numeric(column, errors="coerce")
    return np.asarray(numbers.to_numpy(dtype=np.float32, na_value=np.nan))


def _has_codes(column: Series) -> bool:
    """Whether there are codes with a leading zero: 007 is not the number 7."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):
        return False
    return bool(column.dropna().astype(str).str.fullmatch(CODE).any())


def _is_number(name: str, column: Series) -> bool:
    """Whether a column is numeric; raises BadData if nearly all values are: the others are misspelled."""
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
