"""The results of `tacit.boost.woe`: bins with weights of evidence, and scorecards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pandas as pd

from ...boost.scorecard import Scorecard, column_to_dict, describe_columns, find_bins, look_up
from ...boost.woe_bins import WoeColumn
from ...config.woe import WoeConfig
from ...errors import BadData
from ...parameters import bad, nearest
from ...parties.ledger import Ledger
from ...results import JobResult
from ...stats.columns import text_of
from ..stats.glm import glm
from .horizontal import read_tables

EVENT = "event"  # the outcome in the regression


class Fitted(Protocol):
    """A regression with a summary: of parties with the same columns, or with different ones."""

    def summary(self) -> pd.DataFrame: ...


@dataclass
class WoeResult(JobResult):
    """Bins of columns, with weight of evidence and information value."""

    title = "Weight of evidence across parties"
    facts = ("label", "event", "rows", "events", "parties", "steps", "information", "bins", "notes")

    columns: tuple[WoeColumn, ...] = field(repr=False)
    ledger: Ledger = field(repr=False)
    label: str
    event: str
    totals: tuple[int, int]  # other rows, events
    parties: int
    steps: int
    notes: tuple[str, ...] = ()
    is_private: bool = False
    # what `scorecard` fits to: the caller's own tables, and how sums are run; None for real parties
    source: tuple[Mapping[str, pd.DataFrame], Any, Any] | None = field(default=None, repr=False)

    @property
    def value(self) -> pd.DataFrame:
        return self.table()

    bins = value

    @property
    def rows(self) -> int:
        return sum(self.totals)

    @property
    def events(self) -> int:
        return self.totals[1]

    @property
    def information(self) -> dict[str, float]:
        return {str(k): float(v) for k, v in self.iv().items()}

    def iv(self) -> pd.Series:
        """Return the information value of each column, in descending order."""
        values = pd.Series({c.name: c.iv for c in self.columns}, name="iv", dtype=float)
        return values.sort_values(ascending=False, kind="stable")

    def table(self, column: str | None = None) -> pd.DataFrame:
        """Return `column bin rows events event_rate share woe iv`, of one column or of all."""
        names = [c.name for c in self.columns]
        if column is not None and column not in names:
            raise bad("table", "column", column, "one of the columns", nearest(str(column), names))
        chosen = [c for c in self.columns if column in (None, c.name)]
        return describe_columns(chosen, self.totals)

    def transform(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the columns as weights of evidence; 0 for a value of a kind that no training row had."""
        woe = look_up([[b.woe for b in c.bins] for c in self.columns], find_bins(self.columns, frame))
        return pd.DataFrame(woe, index=frame.index, columns=[c.name for c in self.columns])

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "columns": [column_to_dict(c) for c in self.columns]}

    def scorecard(
        self,
        pdo: float = 20,
        base_score: float = 600,
        base_odds: float = 50,
        *,
        features: list[str] | None = None,
        min_iv: float = 0.02,
        rounded: bool = True,
        l2: float = 0.0,
        fed: Any = None,
        epsilon: float | None = None,
        delta: float | None = None,
    ) -> ScorecardResult:
        """Fit a logistic regression of the event on WOE over all parties, and turn it into points.

        A score of `base_score` means odds of `base_odds` others to one event; `pdo` more points double them.
        `features` are the columns used; by default those with an information value of at least `min_iv`.
        `fed` has the tables, if this result comes from real parties. Bins with `epsilon` need one here, too:
        of the regression, by noisy sums; both add up.
        """
        if (epsilon is None) == self.is_private:
            text = "a number above 0, as the bins have noise" if self.is_private else "None for bins without"
            raise bad("scorecard", "epsilon", epsilon, text)
        chosen = choose_columns(self.columns, features, min_iv, pdo, base_odds)
        tables, runtime, guard = self.source if fed is None and self.source else (None, "cohort", None)
        if fed is not None:
            tables = read_tables(fed, "scorecard")[0]
        if tables is None:
            raise bad("scorecard", "fed", fed, "the parties' tables: this result comes from real parties")
        names = [f"x{k}" for k in range(len(chosen))]
        rows = {party: self._weigh(chosen, names, frame) for party, frame in tables.items()}
        noise: dict[str, Any] = {}
        if self.is_private:
            woes = [[b.woe for b in c.bins] for c in chosen]  # known from the noisy counts, not from rows
            bounds = {n: (min([0.0, *w]) - 1e-9, max([0.0, *w]) + 1e-9) for n, w in zip(names, woes)}
            noise = {"epsilon": epsilon, "delta": delta, "bounds": bounds}
        formula = f"{EVENT} ~ {' + '.join(names)}"
        fit = glm(rows, formula, "binomial", l2=l2, runtime=runtime, guard=guard, **noise)
        card = Scorecard(
            chosen,
            tuple(float(fit.params[n]) for n in ("Intercept", *names)),
            self.event,
            float(pdo),
            float(base_score),
            float(base_odds),
            rounded,
        )
        for spend in self.ledger.spent:  # of the bins
            fit.ledger.spend(spend)
        return ScorecardResult(card, fit, fit.ledger, note_signs(chosen, card.coefficients))

    def _weigh(self, columns: tuple[WoeColumn, ...], names: list[str], frame: pd.DataFrame) -> pd.DataFrame:
        woe = look_up([[b.woe for b in c.bins] for c in columns], find_bins(columns, frame))
        event = frame[self.label].map(lambda v: float(text_of(v) == self.event)).astype(float)
        return pd.DataFrame(woe, columns=names).assign(**{EVENT: event.to_numpy()})


@dataclass
class ScorecardResult(JobResult):
    """A scorecard with the regression behind it."""

    title = "Scorecard across parties"
    facts = ("event", "pdo", "base_score", "base_odds", "points", "coefficients", "notes")

    card: Scorecard = field(repr=False)
    fit: Fitted = field(repr=False)
    ledger: Ledger = field(repr=False)
    notes: tuple[str, ...] = ()

    @property
    def value(self) -> pd.DataFrame:
        return self.card.table()

    points = value

    @property
    def event(self) -> str:
        return self.card.event

    @property
    def pdo(self) -> float:
        return self.card.pdo

    @property
    def base_score(self) -> float:
        return self.card.base_score

    @property
    def base_odds(self) -> float:
        return self.card.base_odds

    @property
    def coefficients(self) -> pd.DataFrame:
        """The regression's coefficients, with their errors, by column."""
        names = {f"x{k}": c.name for k, c in enumerate(self.card.columns)}
        found = self.fit.summary().rename(index=names)
        return found.loc[["Intercept", *names.values()]]

    def table(self) -> pd.DataFrame:
        """Return `column bin points woe`, the base points first."""
        return self.card.table()

    def score(self, frame: pd.DataFrame) -> pd.Series:
        """Return the score of each row."""
        return self.card.score(frame)

    def predict(self, frame: pd.DataFrame) -> pd.Series:
        """Return the probability of the event for each row."""
        return self.card.predict(frame)

    def save(self, path: Any) -> Any:
        """Write the card to a new file: JSON, which `tacit.boost.load_scorecard` reads, or a CSV table."""
        return self.card.save(path)


def choose_columns(
    columns: Sequence[WoeColumn], features: list[str] | None, min_iv: float, pdo: Any, base_odds: Any
) -> tuple[WoeColumn, ...]:
    """Return the columns of a scorecard: those named, or those of enough information."""
    for name, value in (("pdo", pdo), ("base_odds", base_odds)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise bad("scorecard", name, value, "a number above 0")
    names = [c.name for c in columns]
    unknown = [f for f in features or () if f not in names]
    if unknown:
        raise bad("scorecard", "features", unknown[0], "columns of the binning", nearest(unknown[0], names))
    chosen = tuple(
        c
        for c in columns
        if len(c.bins) > 1 and (c.name in features if features is not None else c.iv >= min_iv)
    )
    if not chosen:
        raise BadData(
            f"scorecard: no column has several bins and an information value of at least {min_iv:g}. "
            "Use a smaller min_iv, or other bins."
        )
    return chosen


def note_signs(columns: Sequence[WoeColumn], coefficients: Sequence[float]) -> tuple[str, ...]:
    """Say which coefficients have the opposite sign of their weights of evidence."""
    wrong = [c.name for c, b in zip(columns, coefficients[1:]) if b > 0]
    if not wrong:
        return ()
    return (
        f"The coefficients of {', '.join(map(repr, wrong))} have the opposite sign of their weights "
        "of evidence: these columns are correlated with others. Leave some out (features=…).",
    )


def note_flat(columns: Sequence[WoeColumn], config: WoeConfig) -> tuple[str, ...]:
    """Say which columns have one bin only."""
    flat = [c.name for c in columns if len(c.bins) < 2]
    if not flat:
        return ()
    return (
        f"One bin is left of {', '.join(map(repr, flat))} (information value 0): no two bins "
        f"have {config.min_rows} rows and {config.min_cell} of each outcome each (min_rows, min_share, "
        "min_cell), or they are alike.",
    )
