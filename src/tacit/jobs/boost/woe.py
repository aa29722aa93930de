"""`tacit.boost.woe`: bins, weights of evidence and information values over parties, and scorecards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ...boost.scorecard import Scorecard, column_to_dict, describe_columns, find_bins, look_up
from ...boost.woe_bins import WoeColumn
from ...boost.woe_program import Weighed, WoeProgram
from ...config.boost import BoostConfig
from ...config.signature import with_options
from ...config.woe import WOE_OPTIONS, WoeConfig
from ...errors import BadData, BadJob
from ...parameters import bad, check, nearest
from ...parties.ledger import Ledger
from ...results import JobResult
from ...stats.columns import text_of
from ...stats.regression_result import Regression
from ..stats.glm import glm
from ..stats.queries import StatsVerb
from ..stats.run import run_sums
from .horizontal import check_rows, declared_terms, make_terms, read_tables

OWNER = "boost.woe"
OPENED = (
    "boost.woe opened sums over all parties: outcomes, counts of the values of each number in cells of up to "
    "2^-16 of the value, and for each column the rows and events in each of its quantile bins and levels."
)
SMALL = (
    "Quantile bins and levels may have few rows; bins that are shown have at least {} rows, {} of each kind."
)
EVENT = "event"  # the outcome in the regression


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
    ) -> ScorecardResult:
        """Fit a logistic regression of the event on WOE over all parties, and turn it into points.

        A score of `base_score` means odds of `base_odds` others to one event; `pdo` more points double them.
        `features` are the columns used; by default those with an information value of at least `min_iv`.
        `fed` has the tables, if this result comes from real parties.
        """
        for name, value in (("pdo", pdo), ("base_odds", base_odds)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise bad("scorecard", name, value, "a number above 0")
        names = [c.name for c in self.columns]
        unknown = [f for f in features or () if f not in names]
        if unknown:
            raise bad(
                "scorecard", "features", unknown[0], "columns of the binning", nearest(unknown[0], names)
            )
        chosen = tuple(
            c
            for c in self.columns
            if len(c.bins) > 1 and (c.name in features if features is not None else c.iv >= min_iv)
        )
        if not chosen:
            raise BadData(
                f"scorecard: no column has several bins and an information value of at least {min_iv:g}. "
                "Use a smaller min_iv, or other bins."
            )
        tables, runtime, guard = self.source if fed is None and self.source else (None, "cohort", None)
        if fed is not None:
            tables = read_tables(fed, "scorecard")[0]
        if tables is None:
            raise bad("scorecard", "fed", fed, "the parties' tables: this result comes from real parties")
        names = [f"x{k}" for k in range(len(chosen))]
        rows = {party: self._weigh(chosen, names, frame) for party, frame in tables.items()}
        fit = glm(rows, f"{EVENT} ~ {' + '.join(names)}", "binomial", l2=l2, runtime=runtime, guard=guard)
        card = Scorecard(
            chosen,
            tuple(float(fit.params[n]) for n in ("Intercept", *names)),
            self.event,
            float(pdo),
            float(base_score),
            float(base_odds),
            rounded,
        )
        wrong = [c.name for c, b in zip(chosen, card.coefficients[1:]) if b > 0]
        notes = (
            (
                f"The coefficients of {', '.join(map(repr, wrong))} have the opposite sign of their weights "
                "of evidence: these columns are correlated with others. Leave some out (features=…).",
            )
            if wrong
            else ()
        )
        return ScorecardResult(card, fit, fit.ledger, notes)

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
    fit: Regression = field(repr=False)
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
        return self.fit.summary().set_axis(["Intercept", *(c.name for c in self.card.columns)])

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


@with_options(WOE_OPTIONS)
def woe(fed: Any, *, runtime: Any = "cohort", guard: Any = None, **options: Any) -> WoeResult:
    """Bin columns by weight of evidence over all parties; only sums over all of them are opened.

    `fed` is {party: DataFrame} with the same columns, or a federation made from tables. WOE is ln(share of
    other rows / share of events). The bins are those of the pooled rows. `runtime` and `guard` are as in
    `tacit.boost.train`.
    """
    frames, label, defaults = read_tables(fed, OWNER)
    defaults = {k: v for k, v in defaults.items() if k in WOE_OPTIONS}
    config = check(WoeConfig(**{**({"label": label} if label else {}), **defaults, **options}), OWNER)
    terms = make_terms(_for_terms(config), frames)
    check_rows(frames, terms)
    program = _program(config, terms.to_dict())
    found, ledger = run_sums(program, frames, runtime=runtime, guard=guard, owner=OWNER)
    result = _conclude(config, program, found, ledger, len(frames))
    result.source = frames, runtime, guard
    return result


def _for_terms(config: WoeConfig) -> BoostConfig:
    """Return the options that say what columns are."""
    return BoostConfig(
        label=config.label,
        features=config.features,
        categories=config.categories,
        labels=config.labels,
        cuts=config.cuts,
        bins=config.first_bins,
    )


def _program(config: WoeConfig, terms: Mapping[str, Any]) -> WoeProgram:
    return WoeProgram(
        terms,
        None if config.event is None else text_of(config.event),
        config.bins,
        config.monotone,
        float(config.min_share),
        config.min_rows,
        config.min_cell,
    )


def _conclude(
    config: WoeConfig, program: WoeProgram, found: Weighed, ledger: Ledger, parties: int = 0
) -> WoeResult:
    ledger.stamp(OPENED)
    ledger.stamp(SMALL.format(config.min_rows, config.min_cell))
    flat = [c.name for c in found.columns if len(c.bins) < 2]
    notes = (f"One bin is left of {', '.join(map(repr, flat))}: no information.",) if flat else ()
    return WoeResult(
        tuple(found.columns),
        ledger,
        program.about.label,
        found.labels[1],
        found.totals,
        parties,
        found.steps,
        notes,
    )


def _build(config: WoeConfig, parties: int) -> WoeProgram:
    """Return the program of a job file: columns are declared, nothing is taken from anybody's rows."""
    if config.features is None:
        raise BadJob("boost.woe: features must be given: the columns, as a list.")
    categories = config.categories or []
    levels = (
        {str(k): tuple(dict.fromkeys(text_of(v) for v in values)) for k, values in categories.items()}
        if isinstance(categories, Mapping)
        else {}
    )
    labels = tuple(text_of(v) for v in config.labels or ())
    terms = declared_terms(_for_terms(config), list(config.features), list(categories), levels, labels)
    return _program(config, terms.to_dict())


VERBS = {"woe": StatsVerb(WoeConfig, _build, _conclude)}
