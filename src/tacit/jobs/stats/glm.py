"""`tacit.stats.glm`: regression with inference, exact or private, by sums over parties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ...parameters import bad
from ...parties.ledger import Ledger
from ...stats.design import check_formula, read_formula
from ...stats.families import make_family
from ...stats.level_sketch import LEVEL_ROWS
from ...stats.outcomes import check_positive
from ...stats.regression import GlmEstimate, GlmProgram
from ...stats.regression_result import Regression
from ...stats.tables import check_frames, check_levels, check_names
from .describe import LEAST, check_count
from .run import run_sums

SITE = "site"  # the column with the party's own name, if the tables have none
OPENED = (
    "sums over all parties: levels of categorical columns, Σ w·x, Σ w·x², and in each round log-likelihood, "
    "gradient and Hessian"
)


def glm(
    fed: Any,
    formula: str,
    family: str = "binomial",
    *,
    link: str | None = None,
    alpha: float | None = None,
    weights: str | None = None,
    weight_kind: str = "variance",
    offset: str | None = None,
    exposure: str | None = None,
    l2: float = 0.0,
    l1: float = 0.0,
    firth: bool = False,
    robust: str | None = None,
    levels: Mapping[str, Sequence[Any]] | None = None,
    missing: str = "drop",
    max_rounds: int | None = None,
    min_count: int = LEAST,
    min_level_rows: int = LEVEL_ROWS,
    positive: str | float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    runtime: Any = "cohort",
    guard: Any = None,
) -> Regression:
    """Fit a generalized linear model to the rows of all parties; only sums over all parties are opened.

    `fed` is {party: DataFrame}, or a federation of tables. `formula` is as in R and formulaic: "death ~ age +
    sex + C(site) + age:sex"; `site` is the party's name if the tables have no such column. `family`:
    "gaussian", "binomial" (`link` "logit" or "probit"), "poisson", "negative_binomial" (`alpha` is estimated
    unless given), "gamma" (`link` "inverse" or "log"). `weights`, `offset` and `exposure` name columns;
    `weight_kind` is "variance" or
    "frequency". `l2` and `l1` penalize −log-likelihood/n by l2/2·Σβ² + l1·Σ|β|, without the intercept.

    `robust`: "HC0", "HC1" (heteroscedasticity; HC1 is n / (n − p) times HC0 in every family, where
    statsmodels has that factor for OLS only) or "site" (clustered by party, at least 3). `firth=True`
    reduces bias and gives finite estimates for separated outcomes (logistic models). `levels` declares the
    levels of categorical columns in their order; others are found by a sum and sorted, each if a party has
    at least `min_level_rows` rows of it. A party that has a rarer value refuses the model: declare it, or
    join it with others. Rows with missing values are left out and counted; `missing="error"` refuses them.
    `max_rounds` is 10 (25 with Firth). A column in which fewer than `min_count` rows differ from all others
    (a rare level) is refused. The outcome of a binomial model is 0 and 1, or text with two values, of which
    `positive="yes"` is the event.

    With `epsilon` (and `delta`), the sums are noisy, and `bounds` must declare the range of every column.

    Raises BadData if columns are collinear, outcomes are separated, or there are as many coefficients as
    rows.
    """
    tables = check_frames(fed, "glm")
    check_formula(formula)
    check_names("glm", weights_=weights, offset_=offset, exposure_=exposure)
    frames = add_site(tables)
    program = make_program(
        formula, family, link, alpha, weights, weight_kind, offset, exposure, l2, l1, firth, robust,
        with_sites(levels, frames, tables, formula), missing, max_rounds, min_count, positive,
        min_level_rows,
    )  # fmt: skip
    if epsilon is not None or delta is not None or bounds is not None:
        from .private_glm import fit_private

        return fit_private(program, frames, epsilon, delta, bounds, runtime, guard)
    found, ledger = run_sums(program, frames, runtime=runtime, guard=guard, owner="glm")
    return conclude(program, found, ledger)


def make_program(
    formula: str, family: str, link: str | None, alpha: float | None, weights: str | None, weight_kind: str,
    offset: str | None, exposure: str | None, l2: float, l1: float, firth: bool, robust: str | None,
    levels: Mapping[str, Sequence[Any]], missing: str, max_rounds: int | None, min_count: int = LEAST,
    positive: Any = None, min_level_rows: int = LEVEL_ROWS,
) -> GlmProgram:  # fmt: skip
    """Return the program of a model; raise BadParameter for options that are not allowed."""
    rounds = (25 if firth else 10) if max_rounds is None else max_rounds
    check_count("glm", "min_count", min_count)
    check_count("glm", "min_level_rows", min_level_rows)
    program = GlmProgram(
        formula, make_family(family, link, alpha).name, link, alpha, weights, weight_kind, offset, exposure,
        _check_penalty("l2", l2), _check_penalty("l1", l1), firth, robust, levels, missing, rounds,
        min_count, check_positive("glm", positive, family, read_formula(formula, response=True)),
        min_level_rows=min_level_rows,
    )  # fmt: skip
    check_options(program)
    return program


def conclude(program: GlmProgram, found: GlmEstimate, ledger: Ledger) -> Regression:
    """Return the result, and say in the ledger what was opened."""
    formula, robust, l1, l2, firth = program.formula, program.robust, program.l1, program.l2, program.firth
    notes = []
    if SITE in read_formula(formula, response=True).names:
        notes.append(
            "C(site): the sums that belong to a site's coefficient are sums over that site alone: its rows, "
            "its outcomes and Σ w·x of its rows are opened."
        )
    if program.positive is not None:
        notes.append(f"The event (1) is {program.variables.response[0]} = {program.positive!r}.")
    if robust == "site":
        notes.append("robust='site' opened the sum of products of the sites' scores.")
    if l1 > 0:
        notes.append("l1: a lasso has no standard errors.")
    ledger.stamp(f"glm opened {OPENED}.")
    for note in notes:
        ledger.stamp(note)
    method = "Firth's penalized likelihood" if firth else "penalized likelihood" if l1 or l2 else None
    return Regression(
        formula, program.model, found.names, found.beta, found.covariance, ledger, found.rows, found.dropped,
        found.parties, found.rounds, found.agreement, program.columns,
        method or "maximum likelihood",
        {None: "model-based", "site": "robust, clustered by site"}.get(robust, f"robust ({robust})"),
        found.scale, found.loglik, found.loglik_null, found.deviance, found.null_deviance, found.pearson,
        found.total, found.alpha if found.alpha is not None else program.alpha, found.alpha_se,
        program.offset, program.exposure,
        notes=tuple(notes),
    )  # fmt: skip


def add_site(frames: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Return new table objects, with the party's name as the column `site` if none has one."""
    if any(SITE in frame.columns for frame in frames.values()):
        return {name: frame.copy(deep=False) for name, frame in frames.items()}
    return {name: frame.assign(**{SITE: name}) for name, frame in frames.items()}


def with_sites(
    levels: Any, frames: Mapping[str, Any], fed: Mapping[str, Any], formula: str
) -> dict[str, Any]:
    """Return declared levels as plain values; the parties are the levels of an added column `site`."""
    if levels is not None and not (
        isinstance(levels, Mapping) and all(isinstance(v, list | tuple) and len(v) for v in levels.values())
    ):
        raise bad("glm", "levels", levels, "levels by column, like {'arm': ['placebo', 'drug']}")
    out = {str(k): list(v) for k, v in (levels or {}).items()}
    if SITE not in out and not any(SITE in frame.columns for frame in fed.values()) and SITE in formula:
        out[SITE] = sorted(frames)
    return out


def check_options(program: GlmProgram) -> None:
    """Raise BadParameter for the first option that is not allowed."""
    read_formula(program.formula, response=True)
    check_levels("glm", program.levels or {}, program.columns)
    family = program.model
    if program.weight_kind not in ("variance", "frequency"):
        raise bad("glm", "weight_kind", program.weight_kind, "'variance' or 'frequency'")
    if program.missing not in ("drop", "error"):
        raise bad("glm", "missing", program.missing, "'drop' (complete cases) or 'error'")
    if program.robust not in (None, "HC0", "HC1", "site"):
        raise bad("glm", "robust", program.robust, "'HC0', 'HC1' or 'site'")
    if program.firth and (family.name, family.link) != ("binomial", "logit"):
        raise bad("glm", "firth", True, "only with family='binomial' and link='logit'")
    if program.firth and (program.l1 or program.l2):
        raise bad("glm", "firth", True, "no l1 and l2 beside it")
    if program.robust and (program.l1 or program.l2 or program.firth):
        raise bad("glm", "robust", program.robust, "no penalty beside it")
    if program.robust and family.name == "negative_binomial" and program.alpha is None:
        raise bad("glm", "robust", program.robust, "only with a given alpha")
    if not isinstance(program.max_rounds, int) or not 3 <= program.max_rounds <= 200:
        raise bad("glm", "max_rounds", program.max_rounds, "a whole number from 3 to 200")


def _check_penalty(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise bad("glm", name, value, "a number of at least 0")
    return float(value)
