"""The result of a regression: tables, text, prediction and forest plot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..errors import BadData
from ..parameters import bad
from ..parties.ledger import Ledger
from ..results import JobResult
from . import design
from .charts import forest
from .families import Family
from .inference import chi2_p, format_table, ratio_table, wald_table
from .table_files import format_estimates
from .table_one import to_latex

if TYPE_CHECKING:
    from ..report.svg import Figure

RATIOS = {("binomial", "logit"): "odds ratio", ("poisson", "log"): "rate ratio"}


@dataclass
class Regression(JobResult):
    """A fitted regression. `summary()` is the table that is published."""

    title = "Regression across parties"
    facts = (
        "formula",
        "family",
        "link",
        "method",
        "covariance",
        "n",
        "dropped",
        "parties",
        "rounds",
        "aic",
        "bic",
        "deviance",
        "null_deviance",
        "log_likelihood",
        "pseudo_r2",
        "scale",
        "alpha",
        "extras",
        "coefficients",
        "ratios",
        "notes",
    )

    formula: str
    model: Family
    names: list[str]
    beta: np.ndarray = field(repr=False)
    cov: np.ndarray = field(repr=False)
    ledger: Ledger = field(repr=False)
    n: int
    dropped: int
    parties: int
    rounds: int
    agreement: design.Agreement = field(repr=False)
    columns: list[str] = field(repr=False)  # of the formula, the outcome included
    method: str = "maximum likelihood"
    covariance: str = "model-based"
    scale: float = 1.0
    log_likelihood: float = float("nan")
    loglik_null: float = float("nan")
    deviance: float = float("nan")
    null_deviance: float = float("nan")
    pearson: float = float("nan")
    total: float = 0.0  # the sum of frequency weights
    alpha: float | None = None
    alpha_se: float | None = None
    offset: str | None = None
    exposure: str | None = None
    extras: dict[str, Any] = field(default_factory=dict)  # of some methods: variance of sites, correlation, …
    notes: tuple[str, ...] = ()

    # --- figures

    @property
    def family(self) -> str:
        return self.model.name

    @property
    def link(self) -> str:
        return self.model.link

    @property
    def df_resid(self) -> float:
        return self.total - len(self.names)

    @property
    def aic(self) -> float:
        return -2 * self.log_likelihood + 2 * (len(self.names) + (self.alpha_se is not None))

    @property
    def bic(self) -> float:
        count = len(self.names) + (self.alpha_se is not None)
        return -2 * self.log_likelihood + float(np.log(self.total)) * count

    @property
    def pseudo_r2(self) -> float:
        """Cox and Snell's, as statsmodels prints it for a GLM."""
        return float(1 - np.exp((self.loglik_null - self.log_likelihood) * 2 / self.total))

    @property
    def mcfadden_r2(self) -> float:
        return float(1 - self.log_likelihood / self.loglik_null)

    @property
    def params(self) -> pd.Series:
        return pd.Series(self.beta, index=self.names, name="coef")

    @property
    def value(self) -> pd.DataFrame:
        return self.summary()

    coefficients = value

    def summary(self, level: float = 0.95) -> pd.DataFrame:
        """Return `coef se z p low high` by term. `level` is that of the intervals."""
        if not 0 < level < 1:
            raise bad("summary", "level", level, "a probability between 0 and 1")
        return wald_table(self.names, self.beta, self.cov, level)

    @property
    def ratio_name(self) -> str | None:
        """What exp(coefficient) is called, for links where it has a name."""
        return RATIOS.get((self.family, self.link)) or (
            ("rate ratio" if self.family == "negative_binomial" else "mean ratio")
            if self.link == "log"
            else None
        )

    @property
    def ratios(self) -> pd.DataFrame:
        """Odds, rate or mean ratios with intervals; an empty table for other links."""
        return ratio_table(self.summary(), self.ratio_name) if self.ratio_name else pd.DataFrame()

    def to_latex(self) -> str:
        """The table for publication: coefficients with errors, ratios with intervals, p."""
        return to_latex(format_estimates(self.summary(), self.ratios, self.ratio_name))

    def wald_test(self, *terms: str) -> tuple[float, int, float]:
        """Test that all these coefficients are 0: the χ² statistic, degrees of freedom and p."""
        unknown = [t for t in terms if t not in self.names]
        if unknown or not terms:
            raise bad("wald_test", "terms", list(terms), f"terms of the model: {', '.join(self.names)}")
        where = [self.names.index(t) for t in terms]
        part = self.beta[where]
        statistic = float(part @ np.linalg.solve(self.cov[np.ix_(where, where)], part))
        return statistic, len(where), chi2_p(statistic, len(where))

    def predict(self, frame: pd.DataFrame, *, linear: bool = False) -> pd.Series:
        """Return the expected outcome of each row (or the linear predictor); NaN where a value is missing."""
        response = set(design.read_formula(self.formula, response=True).response)
        names = [c for c in self.columns if c not in response]
        used = [*names, *(c for c in (self.offset, self.exposure) if c)]
        design.check_columns(frame, used)
        complete = design.complete_cases(frame, used, "drop")
        out = pd.Series(np.nan, index=frame.index, name="prediction")
        if len(complete):
            # any outcome will do: of text, one of its levels
            blank = complete.assign(**{n: self.agreement.levels.get(n, (1.0,))[0] for n in response})
            event = next(((n, 0) for n in response if n in self.agreement.levels), None)
            try:
                _, x = design.model_matrix(self.formula, self.columns, self.agreement, blank, event=event)
            except BadData as error:
                raise BadData(f"predict: {error}") from error
            eta = x @ self.beta
            if self.offset:
                eta = eta + complete[self.offset].to_numpy(dtype=float)
            if self.exposure:
                eta = eta + np.log(complete[self.exposure].to_numpy(dtype=float))
            out.loc[complete.index] = eta if linear else self.model.mean(eta)
        return out

    def plot(self) -> Figure:
        """Draw a forest plot of the ratios, or of the coefficients if the link has none."""
        name = self.ratio_name
        if name:
            return forest(f"{self.formula}", self.ratios, name, is_ratio=True)
        return forest(
            f"{self.formula}", self.summary().drop(index="Intercept", errors="ignore"), "coef", is_ratio=False
        )

    def _page(self) -> str:
        from ..report.layout import Section, figure
        from ..report.result import render

        return render(self.title, self.to_dict(), [Section("forest", "Forest plot", figure(self.plot()))])

    def to_dict(self) -> dict[str, Any]:
        values = super().to_dict()
        return {k: v for k, v in values.items() if v is not None and v != {} and v != []}

    def _summary(self) -> str:
        def show(v: float) -> str:
            return f"{v:.4f}" if np.isfinite(v) else "–"

        left: Mapping[str, Any] = {
            "Formula:": self.formula,
            "Family:": f"{self.family} ({self.link})",
            "Method:": self.method,
            "Covariance:": self.covariance,
            "Parties:": self.parties,
            "Rounds:": self.rounds,
        }
        right = {
            "No. Observations:": self.n,
            "Dropped (missing):": self.dropped,
            "Df Residuals:": f"{self.df_resid:g}",
            "Log-Likelihood:": show(self.log_likelihood),
            "AIC:": show(self.aic),
            "Deviance:": show(self.deviance),
            "Pseudo R-squ. (CS):": show(self.pseudo_r2),
            "Scale:": show(self.scale),
        }
        lines = [f"{k:<20}{v}" for k, v in {**left, **right}.items()]
        if self.alpha_se is not None and self.alpha is not None:
            lines.append(f"{'Alpha:':<20}{self.alpha:.4f} (std err {self.alpha_se:.4f})")
        lines += [f"{k + ':':<20}{v:.4g}" for k, v in self.extras.items() if isinstance(v, int | float)]
        table = format_table(self.summary())
        rule = "=" * max(len(line) for line in table.splitlines())
        return "\n".join([rule, *lines, rule, table, *self.notes])
