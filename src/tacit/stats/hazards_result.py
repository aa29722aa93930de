"""The result of a Cox model: tables, text, prediction and forest plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..errors import BadData
from ..parameters import bad
from ..parties.ledger import Ledger
from ..results import JobResult
from . import design
from .charts import forest, steps
from .hazards import CoxProgram
from .hazards_coordinator import CoxEstimate
from .inference import chi2_p, format_table, wald_table
from .newton import INTERCEPT
from .private_hazards import PrivateCoxProgram
from .table_files import format_estimates
from .table_one import to_latex

if TYPE_CHECKING:
    from ..report.svg import Figure


PARTIAL = ("log_likelihood", "loglik_null", "likelihood_ratio", "concordance", "concordance_error", "ph_test")


@dataclass
class CoxModel(JobResult):
    """A fitted Cox model: `summary()`, `baseline`, `ph_test`, `concordance`."""

    title = "Cox regression across parties"
    facts = (
        "formula",
        "ties",
        "strata",
        "n",
        "events",
        "dropped",
        "parties",
        "rounds",
        "grid",
        "log_likelihood",
        "loglik_null",
        "aic",
        "likelihood_ratio",
        "likelihood_ratio_p",
        "concordance",
        "concordance_error",
        "coefficients",
        "ph_test",
        "baseline",
        "notes",
    )

    program: CoxProgram | PrivateCoxProgram = field(repr=False)
    found: CoxEstimate = field(repr=False)
    ledger: Ledger = field(repr=False)
    notes: tuple[str, ...] = ()

    formula = property(lambda self: self.program.formula)
    ties = property(lambda self: self.program.ties)
    names = property(lambda self: self.found.names)
    beta = property(lambda self: self.found.beta)
    n = property(lambda self: self.found.rows)
    events = property(lambda self: self.found.events)
    dropped = property(lambda self: self.found.dropped)
    parties = property(lambda self: self.found.parties)
    rounds = property(lambda self: self.found.rounds)
    grid = property(lambda self: self.found.grid)
    log_likelihood = property(lambda self: self.found.loglik)
    loglik_null = property(lambda self: self.found.loglik_null)
    baseline = property(lambda self: self.found.baseline)
    ph_test = property(lambda self: self.found.ph_test)
    concordance = property(lambda self: self.found.concordance)
    concordance_error = property(lambda self: self.found.concordance_error)

    @property
    def is_private(self) -> bool:
        """Whether sums had noise. Such a model has no partial likelihood, nor what follows from it."""
        return isinstance(self.program, PrivateCoxProgram)

    @property
    def strata(self) -> str:
        return "site" if self.program.by_site else ", ".join(self.program.strata)

    @property
    def aic(self) -> float:
        """Of the partial likelihood."""
        return -2 * self.found.loglik + 2 * len(self.found.names)

    @property
    def likelihood_ratio(self) -> float:
        """The statistic of the test that all coefficients are 0."""
        return 2 * (self.found.loglik - self.found.loglik_null)

    @property
    def likelihood_ratio_p(self) -> float:
        return chi2_p(self.likelihood_ratio, len(self.found.names))

    @property
    def params(self) -> pd.Series:
        return pd.Series(self.found.beta, index=self.found.names, name="coef")

    @property
    def value(self) -> pd.DataFrame:
        return self.summary()

    coefficients = value

    def summary(self, level: float = 0.95) -> pd.DataFrame:
        """Return `coef hr se z p low high` by term; low and high are those of the coefficient."""
        if not 0 < level < 1:
            raise bad("summary", "level", level, "a probability between 0 and 1")
        table = wald_table(self.found.names, self.found.beta, self.found.covariance, level)
        table.insert(1, "hr", np.exp(table["coef"]))
        return table

    @property
    def hazard_ratios(self) -> pd.DataFrame:
        table = self.summary()
        values = {"hazard ratio": table["hr"], "low": np.exp(table["low"]), "high": np.exp(table["high"])}
        return pd.DataFrame({**values, "p": table["p"]})

    def to_latex(self) -> str:
        """The table for publication: coefficients with errors, hazard ratios with intervals, p."""
        return to_latex(format_estimates(self.summary(), self.hazard_ratios, "hazard ratio"))

    def predict(self, frame: pd.DataFrame) -> pd.Series:
        """Return the hazard of each row relative to a row at the means; NaN where a value is missing."""
        names = self.program.columns
        design.check_columns(frame, names)
        complete = design.complete_cases(frame, names, "drop")
        out = pd.Series(np.nan, index=frame.index, name="hazard")
        if len(complete):
            every = design.term_names(self.program.formula, names, self.found.agreement)
            keep = [k for k, name in enumerate(every) if name != INTERCEPT]
            try:
                _, x = design.model_matrix(self.program.formula, names, self.found.agreement, complete)
            except BadData as error:
                raise BadData(f"predict: {error}") from error
            out.loc[complete.index] = np.exp((x[:, keep] - self.found.center) @ self.found.beta)
        return out

    def predict_survival(self, frame: pd.DataFrame, times: Sequence[float]) -> pd.DataFrame:
        """Return survival at these times, one column per row of the table. Models without strata only."""
        if self.strata or not len(self.found.baseline):
            raise bad("predict_survival", "strata", self.strata, "a model without strata")
        base = self.found.baseline
        known = np.concatenate([[0.0], base["cumulative_hazard"].to_numpy()])
        when = np.asarray(times, dtype=float)
        if self.is_private:  # hazards are constant between grid points
            cumulative = np.interp(when, [0.0, *base["time"]], known)
        else:
            cumulative = known[np.searchsorted(base["time"].to_numpy(), when, side="right")]
        hazard = self.predict(frame)
        return pd.DataFrame(
            np.exp(-np.outer(cumulative, hazard.to_numpy())), index=pd.Index(list(times)), columns=frame.index
        )

    def plot(self) -> Figure:
        """Draw a forest plot of the hazard ratios."""
        return forest(self.program.formula, self.hazard_ratios, "hazard ratio", is_ratio=True)

    def to_dict(self) -> dict[str, Any]:
        values = super().to_dict()
        hidden = {"aic", "likelihood_ratio_p", "dropped", *PARTIAL} if self.is_private else set()
        return {k: v for k, v in values.items() if k not in hidden and v not in ([], "")}

    def _page(self) -> str:
        from ..report.layout import Section, figure
        from ..report.result import render

        more = [Section("forest", "Forest plot", figure(self.plot()))]
        if len(self.found.baseline) and not self.strata:
            base = self.found.baseline
            curve = ("at the means", base["time"], base["survival"], base["survival"], base["survival"])
            more.append(
                Section(
                    "baseline",
                    "Baseline survival",
                    figure(steps("Baseline survival", [curve], "time", "survival")),
                )
            )
        return render(self.title, self.to_dict(), more)

    def _summary(self) -> str:
        lines = {
            "Formula:": self.formula,
            "Ties:": self.ties,
            "Strata:": self.strata or "none",
            "No. Observations:": self.n,
            "No. Events:": self.events,
            "Dropped (missing):": self.dropped,
            "Parties:": self.parties,
            "Rounds:": self.rounds,
            "Grid:": self.grid,
            "Partial log-lik.:": f"{self.log_likelihood:.4f}",
            "Likelihood ratio:": f"{self.likelihood_ratio:.4f} (p = {self.likelihood_ratio_p:.4g})",
            "Concordance:": f"{self.concordance:.4f} (± {self.concordance_error:.4f} by binning)",
        }
        if self.is_private:
            for name in ("Partial log-lik.:", "Likelihood ratio:", "Concordance:", "Dropped (missing):"):
                del lines[name]
            lines["ε, δ:"] = f"{self.ledger.spent[-1].epsilon:g}, {self.ledger.spent[-1].delta:g} of one row"
        table = format_table(self.summary())
        rule = "=" * max(len(line) for line in table.splitlines())
        return "\n".join([rule, *(f"{k:<20}{v}" for k, v in lines.items()), rule, table, *self.notes])
