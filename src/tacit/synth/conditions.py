"""`sample(n, given={"sex": "F", "age": (30, 40)})`: what the rows asked for must look like."""

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
    """For each column named, the numbers it may have: a list of them, or an interval."""

    told: Mapping[str, Any]
    among: Mapping[int, np.ndarray]
    between: Mapping[int, tuple[float, float]]

    @classmethod
    def of(cls, table: Table, given: Mapping[str, Any]) -> Conditions:
        names = [c.name for c in table.modelled]
        among: dict[int, np.ndarray] = {}
        between: dict[int, tuple[float, float]] = {}
        for name, value in given.items():
            if name not in names:
                raise BadParameter(
                    f"given: there is no column {name!r} to be fixed. {nearest(str(name), names)}"
                )
            j = names.index(name)
            column = table.modelled[j]
            if isinstance(value, tuple) and column.is_number and len(value) == 2:
                between[j] = (column.number_of(value[0]), column.number_of(value[1]))
                if not between[j][0] <= between[j][1]:
                    raise BadParameter(f"given: {name}={value!r} is an empty interval; give (low, high).")
                continue
            values = list(value) if isinstance(value, list | set | tuple) else [value]
            if not values or (any(v is None for v in values) and not column.missing):
                raise BadParameter(f"given: {name}={value!r} is nothing this column can be.")
            among[j] = np.array([np.nan if v is None else column.number_of(v) for v in values])
        return cls(dict(given), among, between)

    def hold(self, x: np.ndarray) -> np.ndarray:
        fine = np.ones(len(x), dtype=bool)
        for j, values in self.among.items():
            fine &= np.isin(x[:, j], values) | (np.isnan(x[:, j]) & bool(np.isnan(values).any()))
        for j, (low, high) in self.between.items():
            with np.errstate(invalid="ignore"):
                fine &= (x[:, j] >= low) & (x[:, j] <= high)
        return fine
