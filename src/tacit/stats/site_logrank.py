"""The log-rank test stratified by site: every party compares its own groups, and only the sum is opened.

step 0   levels of the groups        → agreed
step 1   Σ over parties of observed − expected, its covariance, and the rows
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from ..crypto import exact
from ..errors import BadData
from ..protocols.sum_steps import BEGIN_AGAIN, Down
from . import curves, design
from .columns import level_sets
from .level_sketch import LEVEL_ROWS
from .lifetimes import read_events, read_times
from .newton import symmetric, upper


@dataclass
class SiteLogrank:
    groups: list[Any]
    difference: np.ndarray
    covariance: np.ndarray
    both: np.ndarray
    rows: int
    dropped: int
    parties: int


@dataclass(frozen=True)
class SiteLogrankProgram:
    if_left: ClassVar[str] = BEGIN_AGAIN
    is_repeatable: ClassVar[bool] = True
    time: str
    event: str
    by: str
    entry: str | None = None
    weighting: str = "logrank"
    levels: Mapping[str, Sequence[Any]] | None = None
    missing: str = "drop"
    min_level_rows: int = LEVEL_ROWS  # of one party, for a level that is found

    @property
    def max_steps(self) -> int:
        return 2

    @property
    def bound(self) -> int:
        return exact.BOUND

    @property
    def used(self) -> list[str]:
        return list(dict.fromkeys([c for c in (self.time, self.event, self.entry, self.by) if c]))

    def length(self, step: int, down: Down) -> int:
        if step == 0:
            return 3 + design.kinds_length([self.by])
        g = len(design.Agreement.from_tensor(down["levels"]).levels[self.by])
        return exact.LIMBS * (3 * g + g * (g + 1) // 2)

    def row_sets(self, table: pd.DataFrame) -> dict[str, np.ndarray]:
        """The rows that the sums are about, complete cases, and those of each group."""
        design.check_columns(table, self.used)
        complete = design.has_all(table, self.used)
        groups = level_sets(table, self.by)
        return {"all rows": complete, **{name: rows & complete for name, rows in groups.items()}}

    def local(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
        design.check_columns(table, self.used)
        frame = design.complete_cases(table, self.used, self.missing)
        if step == 0:
            kinds = design.count_kinds(frame, [self.by], [self.by], self.levels or {}, self.min_level_rows)
            return np.concatenate([np.array([1, len(frame), len(table) - len(frame)]), kinds])
        agreement = design.Agreement.from_tensor(down["levels"])
        design.check_found(frame, agreement, self.levels or {}, self.min_level_rows)
        levels = agreement.levels[self.by]
        group = np.asarray(design.to_levels(frame[self.by], levels, self.by).codes, dtype=np.int64)
        times, place = np.unique(read_times(frame, self.time), return_inverse=True)
        happened = read_events(frame, self.event, (1,)) > 0
        shape = (len(levels), max(len(times), 1))
        events, exits, entries = (np.zeros(shape, dtype=np.int64) for _ in range(3))
        np.add.at(events, (group[happened], place[happened]), 1)
        np.add.at(exits, (group, place), 1)
        if self.entry:
            start = read_times(frame, self.entry)
            # at risk at times after the entry: not at those up to it
            until = np.searchsorted(times, start, side="right") - 1
            late = until >= 0
            np.add.at(entries, (group[late], until[late]), 1)

        def after(counts: np.ndarray) -> np.ndarray:
            return np.cumsum(counts[:, ::-1], axis=1)[:, ::-1]

        difference, covariance, both = curves.logrank_parts(
            events, after(exits) - after(entries), self.weighting
        )
        return exact.encode(np.concatenate([difference, both.reshape(-1), upper(covariance)]))

    def coordinate(self) -> Generator[Down, np.ndarray, SiteLogrank]:
        total = yield {}
        parties, rows, dropped = (int(v) for v in total[:3])
        agreement = design.agree(total[3:], [self.by], self.levels or {}, "logrank", self.min_level_rows)
        groups = list(agreement.levels[self.by])
        g = len(groups)
        numbers = exact.decode((yield {"levels": agreement.to_tensor()}))
        both = numbers[g : 3 * g].reshape(2, g)
        if not both[0].sum() > 0:
            raise BadData(f"logrank: no party has an event ({self.event!r} = 1).")
        return SiteLogrank(groups, numbers[:g], symmetric(numbers[3 * g :], g), both, rows, dropped, parties)
