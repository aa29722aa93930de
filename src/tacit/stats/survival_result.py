"""Results of survival curves and of the log-rank test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..parties.ledger import Ledger
from ..results import JobResult
from .charts import steps
from .lifetimes import LifetimeCounts

if TYPE_CHECKING:
    from ..report.svg import Figure


@dataclass
class Curves(JobResult):
    """Survival, cumulative hazard or cumulative incidence by group: `table` has one row per group and
    time.
    """

    title = "Survival across parties"
    facts = ("kind", "grid", "n", "dropped", "parties", "medians", "at_risk_table", "table", "notes")

    kind: str  # "survival", "hazard" or "incidence": the column of the table with the curve
    table: pd.DataFrame
    grid: str
    n: int
    dropped: int
    parties: int
    ledger: Ledger = field(repr=False)
    counts: LifetimeCounts | None = field(repr=False, default=None)
    medians: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    least: int = 1  # smallest count shown

    @property
    def value(self) -> pd.DataFrame:
        return self.table

    @property
    def groups(self) -> list[Any]:
        return list(dict.fromkeys(self.table["group"]))

    def at(self, time: float) -> pd.DataFrame:
        """Return each group's row at a time: the last one that is not after it."""
        rows = self.table[self.table["time"] <= time]
        return rows.groupby("group", sort=False).tail(1).set_index("group")

    @property
    def at_risk_table(self) -> pd.DataFrame:
        """How many are at risk at about six equally spaced times, one row per group; – if too few to show."""
        end = float(self.table["time"].max())
        ticks = np.unique(np.round(np.linspace(0, end, 6), 6))
        rows = {}
        for group in self.groups:
            part = self.table[self.table["group"] == group]
            rows[group] = [self._at_risk(group, part, float(t)) for t in ticks]
        out = pd.DataFrame.from_dict(rows, orient="index", columns=[f"{t:g}" for t in ticks])
        out.index.name = "group"
        return out

    def _at_risk(self, group: Any, part: pd.DataFrame, time: float) -> int | str:
        later = part["at_risk"].to_numpy()[part["time"].to_numpy() >= time]
        if self.counts is None or self.least <= 1:
            return round(float(later[0])) if len(later) else 0
        place = int(np.searchsorted(self.counts.times, time))
        here = self.counts.at_risk[0, self.counts.groups.index(group)]
        count = int(here[place]) if place < len(here) else 0
        # the rows around this time show how many are at risk at their beginning: nobody may be told apart
        known = (0, *later[:2])
        return "–" if any(0 < abs(count - int(v)) < self.least for v in known) else count

    def plot(self) -> Figure:
        """Draw the curves with their intervals."""
        curves = []
        for group in self.groups:
            part = self.table[self.table["group"] == group]
            curves.append((str(group), part["time"], part[self.kind], part["low"], part["high"]))
        names = {"survival": "survival", "hazard": "cumulative hazard", "incidence": "cumulative incidence"}
        return steps(
            names[self.kind].capitalize(),
            curves,
            "time",
            names[self.kind],
            start=1.0 if self.kind == "survival" else 0.0,
            is_share=self.kind != "hazard",
        )

    def _page(self) -> str:
        from ..report.layout import Section, figure
        from ..report.result import render

        return render(self.title, self.to_dict(), [Section("curves", "Curves", figure(self.plot()))])

    def _summary(self) -> str:
        lines = [
            f"{self.n} rows of {self.parties} parties, {self.dropped} dropped (missing values).",
            f"Grid: {self.grid}.",
            *(f"median time of {group}: {value:g}" for group, value in self.medians.items()),
            "at risk:",
            self.at_risk_table.to_string(),
            *self.notes,
        ]
        return "\n".join(lines)


@dataclass
class LogRank(JobResult):
    """The log-rank test: `statistic`, `freedom`, `p`, and observed and expected events by group."""

    title = "Log-rank test across parties"
    facts = ("statistic", "freedom", "p", "weighting", "table", "grid", "n", "dropped", "parties", "notes")

    statistic: float
    freedom: int
    p: float
    table: pd.DataFrame
    weighting: str
    grid: str
    n: int
    dropped: int
    parties: int
    ledger: Ledger = field(repr=False)
    notes: tuple[str, ...] = ()

    @property
    def value(self) -> pd.DataFrame:
        return self.table

    def _summary(self) -> str:
        return "\n".join(
            [
                self.table.to_string(),
                f"χ² = {self.statistic:.4f}, {self.freedom} degrees of freedom, p = {self.p:.4g}",
                *self.notes,
            ]
        )
