"""Binning by weight of evidence as a program of sums (protocols/sum_steps.py).

    step        sent down            sum over all parties
    levels …    as in program.py     levels, outcomes and quantiles of numbers
    counts      bins                 rows and events in every cell of every column

Everything else follows from these counts. They are integers, so bins, WOE and IV are those of pooled rows.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from ..errors import BadData
from ..protocols.sum_steps import Down
from ..stats.columns import text_of
from . import agreement
from .program import MOST_ROWS, BoostProgram
from .woe_bins import WoeColumn, WoeRules, bin_column


@dataclass
class Weighed:
    """What binning returns."""

    columns: list[WoeColumn]
    labels: tuple[str, str]  # the other outcome, the event
    totals: tuple[int, int]
    steps: int


@dataclass(frozen=True)
class WoeProgram:
    """All options are plain values, which parties agree on."""

    terms: Mapping[str, Any]  # columns, label, declared levels and cuts: agreement.Terms
    event: str | None = None
    bins: int = 8
    monotone: bool = True
    min_share: float = 0.05
    min_rows: int = 20
    min_cell: int = 5

    @cached_property
    def _before(self) -> BoostProgram:
        """The program whose steps before the first tree find levels, outcomes and quantiles."""
        return BoostProgram(self.terms, trees=1, depth=1)

    @property
    def about(self) -> agreement.Terms:
        return self._before.about

    @property
    def max_steps(self) -> int:
        return len(self.about.stages) + 1

    @property
    def checked_sums(self) -> int:
        return self.about.checked_sums

    @property
    def bound(self) -> int:
        return self._before.bound

    def length(self, step: int, down: Down) -> int:
        if step < len(self.about.stages):
            return agreement.length(self.about, self.about.stages[step], down)
        return 2 * agreement.read_agreed(self._before, down).bins.cells

    def local(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
        if len(table) > MOST_ROWS:
            raise BadData(f"the table has {len(table)} rows; a party may have at most {MOST_ROWS}.")
        own = agreement.prepare(self._before, table)
        if step < len(self.about.stages):
            everyone = np.ones(len(table), dtype=bool)
            return agreement.local(self.about, self.about.stages[step], table, own, everyone, down)
        agreed = agreement.read_agreed(self._before, down)
        y, codes = own.label(agreed.labels).astype(np.int64), agreed.bins.encode(table).astype(np.int64)
        cells = (codes + agreed.bins.offsets) * 2 + y[:, None]
        return np.bincount(cells.ravel(), minlength=2 * agreed.bins.cells)

    def coordinate(self) -> Generator[Down, np.ndarray, Weighed]:
        agreed, rows, steps = yield from agreement.coordinate(self._before, "boost.woe")
        labels = agreed.labels
        event = labels[1] if self.event is None else text_of(self.event)
        if event not in labels:
            raise BadData(
                f"boost.woe: the event is {event!r}; the outcomes of {self.about.label!r} are "
                f"{' and '.join(map(repr, labels))}."
            )
        total = yield agreed.to_down()
        counts = total.reshape(-1, 2)[:, [1 - labels.index(event), labels.index(event)]]
        ends = [*agreed.bins.offsets.tolist(), agreed.bins.cells]
        totals = counts[: ends[1]].sum(axis=0)
        if totals.min() < self.min_cell:
            raise BadData(
                f"boost.woe: all parties together have {totals[1]} events ({event!r}) and {totals[0]} other "
                f"rows; at least {self.min_cell} of each are needed (min_cell)."
            )
        rules = WoeRules(self.bins, self.monotone, round(self.min_share * rows), self.min_rows, self.min_cell)
        columns = [
            bin_column(feature, counts[a:b], totals, rules)
            for feature, a, b in zip(agreed.bins.features, ends, ends[1:])
        ]
        other = labels[1 - labels.index(event)]
        return Weighed(columns, (other, event), (int(totals[0]), int(totals[1])), steps + 1)
