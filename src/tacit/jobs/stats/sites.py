"""`tacit.stats.gee`, `mixed` and `meta`: regression that treats the rows of a site as related."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ...parameters import bad
from ...parties.ledger import Ledger
from ...stats.design import check_formula
from ...stats.level_sketch import LEVEL_ROWS
from ...stats.meta_analysis import add_name, combine
from ...stats.regression import GlmEstimate
from ...stats.regression_result import Regression
from ...stats.site_model import SiteModelProgram
from ...stats.tables import check_frames
from .describe import LEAST
from .glm import add_site, with_sites
from .glm import conclude as conclude_glm
from .glm import make_program as make_glm
from .private_sites import conclude_private, make_private
from .run import run_sums

OPENED = {
    "gee": "gee opened sums of scores, of information, and of products of residuals and of scores of a site.",
    "mixed": "mixed opened sums of the sites' marginal log-likelihoods, gradients and Hessians.",
    "meta": "meta opened the coefficients and variances of each site alone.",
}


def gee(
    fed: Any,
    formula: str,
    family: str = "binomial",
    *,
    link: str | None = None,
    levels: Mapping[str, Sequence[Any]] | None = None,
    missing: str = "drop",
    max_rounds: int = 150,
    min_count: int = LEAST,
    min_level_rows: int = LEVEL_ROWS,
    epsilon: None = None,
    runtime: Any = "cohort",
    guard: Any = None,
) -> Regression:
    """Fit generalized estimating equations: exchangeable correlation of the rows of a site, robust errors.

    Needs at least 3 parties with rows: errors come from the sum of products of the sites' scores.
    """
    return _fit(
        "gee", fed, formula, family, link, levels, missing, max_rounds, min_count, (epsilon, None, None),
        runtime, guard, min_level_rows=min_level_rows,
    )  # fmt: skip


def mixed(
    fed: Any,
    formula: str,
    family: str = "binomial",
    *,
    levels: Mapping[str, Sequence[Any]] | None = None,
    missing: str = "drop",
    max_rounds: int = 40,
    min_count: int = LEAST,
    min_level_rows: int = LEVEL_ROWS,
    epsilon: float | None = None,
    delta: float | None = None,
    bounds: Mapping[str, Sequence[float]] | None = None,
    runtime: Any = "cohort",
    guard: Any = None,
) -> Regression:
    """Fit a mixed model with a random intercept for each site, by Laplace's method (maximum likelihood).

    `family`: "gaussian" (exact), "binomial" or "poisson". The intercept of a site stays with its party.
    With `epsilon`, `delta` and declared `bounds` and `levels`, the sums have noise for each row, and noisy
    sums by site are opened.
    """
    return _fit(
        "mixed", fed, formula, family, None, levels, missing, max_rounds, min_count, (epsilon, delta, bounds),
        runtime, guard, min_level_rows=min_level_rows,
    )  # fmt: skip


def meta(
    fed: Any,
    formula: str,
    family: str = "binomial",
    *,
    open_sites: bool = False,
    effects: str = "random",
    link: str | None = None,
    levels: Mapping[str, Sequence[Any]] | None = None,
    missing: str = "drop",
    min_count: int = LEAST,
    min_level_rows: int = LEVEL_ROWS,
    epsilon: float | None = None,
    delta: float | None = None,
    bounds: Mapping[str, Sequence[float]] | None = None,
    runtime: Any = "cohort",
    guard: Any = None,
) -> Regression:
    """Combine estimates of each site: `effects` "fixed" or "random" (DerSimonian and Laird), for comparison.

    Each site's coefficients and variances are opened, so `open_sites=True` must be given. `glm` needs no
    such thing, and uses sites that are too small for a model of their own. With `epsilon`, `delta` and
    declared `bounds` and `levels`, every site adds the noise of its own estimates, which its variances
    include.
    """
    check_meta(open_sites, effects)
    return _fit(
        "meta", fed, formula, family, link, levels, missing, 1, min_count, (epsilon, delta, bounds), runtime,
        guard, effects, min_level_rows,
    )  # fmt: skip


def check_meta(open_sites: Any, effects: str) -> None:
    if open_sites is not True:
        raise bad(
            "meta",
            "open_sites",
            open_sites,
            "True: a meta-analysis opens every site's own coefficients and variances",
            "tacit.stats.glm fits all rows together and opens sums only.",
        )
    if effects not in ("fixed", "random"):
        raise bad("meta", "effects", effects, "'fixed' or 'random'")


def make_program(
    kind: str,
    formula: str,
    family: str,
    link: str | None,
    levels: Mapping[str, Sequence[Any]],
    missing: str,
    max_rounds: int,
    parties: Sequence[str],
    min_count: int = LEAST,
    min_level_rows: int = LEVEL_ROWS,
) -> SiteModelProgram:
    """Return the program without noise; raise BadParameter for options that are not allowed."""
    if kind == "mixed" and family not in ("gaussian", "binomial", "poisson"):
        raise bad("mixed", "family", family, "'gaussian', 'binomial' or 'poisson'")
    if type(max_rounds) is not int or not 1 <= max_rounds <= 200:
        raise bad(kind, "max_rounds", max_rounds, "a whole number from 1 to 200")
    first = make_glm(
        formula,
        family,
        link,
        None,
        None,
        "variance",
        None,
        None,
        0.0,
        0.0,
        False,
        None,
        levels,
        missing,
        None,
        min_count,
        None,
        min_level_rows,
    )
    return SiteModelProgram(
        kind,
        formula,
        first.family,
        link,
        levels,
        missing,
        first.max_rounds,
        max_rounds,
        tuple(sorted(parties)) if kind == "meta" else (),
        min_count,
        min_level_rows,
    )


def _fit(
    kind: str,
    fed: Any,
    formula: str,
    family: str,
    link: str | None,
    levels: Any,
    missing: str,
    max_rounds: int,
    min_count: int,
    privacy: tuple[Any, Any, Any],
    runtime: Any,
    guard: Any,
    effects: str = "random",
    min_level_rows: int = LEVEL_ROWS,
) -> Regression:
    given = check_frames(fed, kind)
    check_formula(formula)
    frames = add_site(given)
    declared = with_sites(levels, frames, given, formula)
    is_private = privacy[0] is not None
    if is_private or kind == "meta":
        frames = {name: add_name(frame, name) for name, frame in frames.items()}
    if is_private:
        noisy = make_private(kind, formula, family, link, declared, missing, list(frames), *privacy)
        estimate, ledger = run_sums(noisy, frames, runtime=runtime, guard=guard, owner=kind)
        return conclude_private(noisy, estimate, ledger, effects)
    program = make_program(
        kind, formula, family, link, declared, missing, max_rounds, list(frames), min_count, min_level_rows
    )
    found, ledger = run_sums(program, frames, runtime=runtime, guard=guard, owner=kind)
    return conclude(program, found, ledger, effects)


def conclude(
    program: SiteModelProgram, found: tuple[GlmEstimate, Any], ledger: Ledger, effects: str = "random"
) -> Regression:
    """Return the result, and say in the ledger what was opened."""
    estimate, second = found
    first = conclude_glm(program.first, estimate, ledger)
    ledger.stamp(OPENED[program.kind])
    if program.kind == "gee":
        result = _conclude(
            first,
            second.beta,
            second.covariance,
            "GEE, exchangeable inside a site",
            "robust, clustered by site",
            second.rounds,
            second.scale,
            {"correlation": second.correlation, "sites": second.sites},
        )
        if second.correlation < 0:
            result.notes += (
                "The correlation inside a site is negative. It is not estimated below −1/(2n), n rows of all "
                "parties, where large sites have no inverse.",
            )
        return result
    if program.kind == "mixed":
        result = _conclude(
            first,
            second.beta,
            second.covariance,
            "random intercept by site (Laplace)",
            "model-based",
            second.rounds,
            second.scale,
            {"site variance": second.site_variance, "sites": second.sites},
        )
        result.log_likelihood = second.loglik
        return result
    beta, variances, heterogeneity = combine(second.coefficients, second.variances, effects == "random")
    table = pd.DataFrame(second.coefficients, index=second.sites, columns=first.names)
    result = _conclude(
        first,
        beta,
        np.diag(variances),
        f"{effects}-effects meta-analysis of {len(second.sites)} sites",
        "model-based",
        1,
        1.0,
        {"sites": table, "heterogeneity": pd.DataFrame(heterogeneity, index=first.names)},
    )
    if second.left_out:
        result.notes += (f"Sites without an estimate of their own: {', '.join(second.left_out)}.",)
    return result


def _conclude(
    first: Regression,
    beta: np.ndarray,
    covariance: np.ndarray,
    method: str,
    errors: str,
    rounds: int,
    scale: float,
    extras: dict[str, Any],
) -> Regression:
    return Regression(
        first.formula,
        first.model,
        first.names,
        beta,
        covariance,
        first.ledger,
        first.n,
        first.dropped,
        first.parties,
        first.rounds + rounds,
        first.agreement,
        first.columns,
        method,
        errors,
        scale,
        total=first.total,
        extras=extras,
    )
