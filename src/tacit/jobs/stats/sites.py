"""`tacit.stats.gee`, `mixed` and `meta`: regression that treats the rows of a site as related."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ...parameters import bad
from ...stats.clustered import GeeProgram, MixedProgram
from ...stats.meta_analysis import PARTY, MetaProgram, combine
from ...stats.regression_result import Regression
from ...stats.tables import check_frames
from .glm import add_site, glm
from .run import run_sums


def gee(
    fed: Any,
    formula: str,
    family: str = "binomial",
    *,
    link: str | None = None,
    levels: Mapping[str, Sequence[Any]] | None = None,
    missing: str = "drop",
    max_rounds: int = 40,
    runtime: Any = "cohort",
    guard: Any = None,
) -> Regression:
    """Fit generalized estimating equations: exchangeable correlation of the rows of a site, robust errors.

    Needs at least 3 parties with rows: errors come from the sum of products of the sites' scores.
    """
    first, frames = _start("gee", fed, formula, family, link, levels, missing, runtime, guard)
    program = GeeProgram(
        formula,
        first.family,
        link,
        dict(first.agreement.levels),
        tuple(first.beta.tolist()),
        missing,
        max_rounds,
    )
    found, ledger = run_sums(program, frames, runtime=runtime, guard=guard, owner="gee")
    first.ledger.merge(ledger)
    first.ledger.stamp(
        "gee opened sums of scores, of information, of products of residuals inside a site, and of scores."
    )
    return _conclude(
        first,
        found.beta,
        found.covariance,
        "GEE, exchangeable inside a site",
        "robust, clustered by site",
        found.rounds,
        found.scale,
        {"correlation": found.correlation, "sites": found.sites},
    )


def mixed(
    fed: Any,
    formula: str,
    family: str = "binomial",
    *,
    levels: Mapping[str, Sequence[Any]] | None = None,
    missing: str = "drop",
    max_rounds: int = 40,
    runtime: Any = "cohort",
    guard: Any = None,
) -> Regression:
    """Fit a mixed model with a random intercept for each site, by Laplace's method (maximum likelihood).

    `family`: "gaussian" (exact), "binomial" or "poisson". The intercept of a site stays with its party.
    """
    if family not in ("gaussian", "binomial", "poisson"):
        raise bad("mixed", "family", family, "'gaussian', 'binomial' or 'poisson'")
    first, frames = _start("mixed", fed, formula, family, None, levels, missing, runtime, guard)
    program = MixedProgram(
        formula, family, None, dict(first.agreement.levels), tuple(first.beta.tolist()), missing, max_rounds
    )
    found, ledger = run_sums(program, frames, runtime=runtime, guard=guard, owner="mixed")
    first.ledger.merge(ledger)
    first.ledger.stamp("mixed opened sums of the sites' marginal log-likelihoods, gradients and Hessians.")
    result = _conclude(
        first,
        found.beta,
        found.covariance,
        "random intercept by site (Laplace)",
        "model-based",
        found.rounds,
        found.scale,
        {"site variance": found.site_variance, "sites": found.sites},
    )
    result.log_likelihood = found.loglik
    return result


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
    runtime: Any = "cohort",
    guard: Any = None,
) -> Regression:
    """Combine estimates of each site: `effects` "fixed" or "random" (DerSimonian and Laird), for comparison.

    Each site's coefficients and variances are opened, so `open_sites=True` must be given. `glm` needs no
    such thing, and uses sites that are too small for a model of their own.
    """
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
    first, frames = _start("meta", fed, formula, family, link, levels, missing, runtime, guard)
    own = {name: frame.assign(**{PARTY: name}) for name, frame in frames.items()}
    program = MetaProgram(
        formula,
        first.family,
        link,
        dict(first.agreement.levels),
        tuple(first.names),
        tuple(sorted(own)),
        missing,
    )
    found, ledger = run_sums(program, own, runtime=runtime, guard=guard, owner="meta")
    first.ledger.merge(ledger)
    first.ledger.stamp("meta opened the coefficients and variances of each site alone.")
    beta, variances, heterogeneity = combine(found.coefficients, found.variances, effects == "random")
    table = pd.DataFrame(found.coefficients, index=found.sites, columns=first.names)
    spread = pd.DataFrame(heterogeneity, index=first.names)
    result = _conclude(
        first,
        beta,
        np.diag(variances),
        f"{effects}-effects meta-analysis of {len(found.sites)} sites",
        "model-based",
        1,
        1.0,
        {"sites": table, "heterogeneity": spread},
    )
    if found.left_out:
        result.notes += (f"Sites without an estimate of their own: {', '.join(found.left_out)}.",)
    return result


def _start(
    owner: str,
    fed: Any,
    formula: str,
    family: str,
    link: str | None,
    levels: Any,
    missing: str,
    runtime: Any,
    guard: Any,
) -> tuple[Regression, dict[str, pd.DataFrame]]:
    """Fit the model without sites: it agrees on the columns, and its coefficients are the start."""
    frames = add_site(check_frames(fed, owner))
    first = glm(fed, formula, family, link=link, levels=levels, missing=missing, runtime=runtime, guard=guard)
    return first, frames


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
