"""Conditions on sampled rows: `sample(n, conditions={"sex": "F", "age": (30, 40)})`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import BadParameter
from ..parameters import nearest
from .table import Table


@dataclass(frozen=True)
class Conditions:
    """For each conditioned column, by index, the allowed values or interval."""

    mapping: Mapping[str, Any]  # as the user wrote it, for messages
    values: Mapping[int, np.ndarray]
    intervals: Mapping[int, tuple[float, float]]

    @classmethod
    def parse(cls, table: Table, conditions: Mapping[str, Any]) -> Conditions:
        """Translate a dictionary of column names and values into numbers, or raise."""
        names = [c.name for c in table.modeled]
        allowed: dict[int, np.ndarray] = {}
        intervals: dict[int, tuple[float, float]] = {}
        for name, value in conditions.items():
            if name not in names:
                raise BadParameter(
                    f"conditions: there is no modeled column {name!r}. {nearest(str(name), names)}"
                )
            j = names.index(name)
            column = table.modeled[j]
            if isinstance(value, tuple) and column.is_number and len(value) == 2:
                intervals[j] = (column.to_number(value[0]), column.to_number(value[1]))
                if not intervals[j][0] <= intervals[j][1]:
                    raise BadParameter(
                        f"conditions: {name}={value!r} is an empty interval; give (low, high)."
                    )
                continue
            values = list(value) if isinstance(value, list | set | tuple) else [value]
            if not values or (any(v is None for v in values) and not column.missing):
                raise BadParameter(
                    f"conditions: {name}={value!r} matches no value of this column. Give a value of its "
                    "domain."
                )
            allowed[j] = np.array([np.nan if v is None else column.to_number(v) for v in values])
        return cls(dict(conditions), allowed, intervals)

    def matches(self, x: np.ndarray) -> np.ndarray:
        """Return, for each row, whether it satisfies all conditions."""
        valid = np.ones(len(x), dtype=bool)
        for j, values in self.values.items():
            valid &= np.isin(x[:, j], values) | (np.isnan(x[:, j]) & bool(np.isnan(values).any()))
        for j, (low, high) in self.intervals.items():
            with np.errstate(invalid="ignore"):
                valid &= (x[:, j] >= low) & (x[:, j] <= high)
        return valid
