"""`tacit.stats.mixed(…, epsilon=…)` and `meta(…, epsilon=…)`: models of sites by noisy sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ...parameters import bad
from ...parties.ledger import Ledger
from ...stats import noise_share
from ...stats.design import read_formula
from ...stats.families import make_family
from ...stats.meta_analysis import combine
from ...stats.newton import INTERCEPT
from ...stats.private_regression import ROUNDS
from ...stats.private_sites import (
    PrivateMetaProgram,
    PrivateMixedEstimate,
    PrivateMixedProgram,
    PrivateSiteEstimates,
)
from ...stats.regression_result import Regression
from .private_glm import DELTA, check_declared, check_missing

SITE = "site"
Program = PrivateMixedProgram | PrivateMetaProgram
PROGRAMS: dict[str, type[PrivateMixedProgram] | type[PrivateMetaProgram]] = {
    "mixed": PrivateMixedProgram,
    "meta": PrivateMetaProgram,
}


def refuse_gee(epsilon: Any) -> None:
    """GEE has no ε: its errors need the score of every site, and with noise in each they are mostly noise."""
    raise bad(
        "gee",
        "epsilon",
        epsilon,
        "None: its robust errors come from one score per site, and the noise of a few sites' scores would be "
        "most of them",
        "tacit.stats.mixed(…, epsilon=…) has a random intercept by site with an ε.",
    )


def make_private(
    kind: str,
    formula: str,
    family: str,
    link: str | None,
    levels: Mapping[str, Sequence[Any]],
    missing: str,
    parties: Sequence[str],
    epsilon: Any,
    delta: Any,
    bounds: Any,
) -> Program:
    """Return the noisy program of a model; raise BadParameter for what is not declared or allowed."""
    if kind == "gee":
        refuse_gee(epsilon)
    delta = DELTA if delta is None else delta
    noise_share.check_privacy(kind, epsilon, delta)
    if family not in ROUNDS:
        raise bad(kind, "family", family, f"{', '.join(map(repr, ROUNDS))} with epsilon")
    if make_family(family, link, None).link != make_family(family, None, None).link:
        raise bad(kind, "link", link, "None with epsilon")
    check_missing(kind, missing)
    variables = read_formula(formula, response=True)
    if SITE in variables.names:
        raise bad(kind, "formula", formula, "no term 'site': every site has an intercept already")
    fixed = {variables.response[0]: (0.0, 1.0)} if family == "binomial" else {}
    used, declared = check_declared(kind, variables, levels, bounds, fixed)
    if family == "poisson" and not used[variables.response[0]][0] >= 0:
        raise bad(kind, "bounds", bounds, "counts of at least 0")
    needed = {n: list(declared[n]) for n in declared if n in variables.names}
    program: Program = PROGRAMS[kind](
        formula, family, tuple(sorted(parties)), float(epsilon), float(delta), used, needed
    )
    if isinstance(program, PrivateMixedProgram) and INTERCEPT not in program.bounded.every:
        raise bad(kind, "formula", formula, "an intercept: leave out '0 +' or '- 1'")
    if isinstance(program, PrivateMixedProgram) and not program.bounded.terms:
        raise bad(kind, "formula", formula, "at least one term: 'outcome ~ age'")
    return program


def conclude_private(program: Program, found: Any, ledger: Ledger, effects: str = "random") -> Regression:
    """Return the result, and say in the ledger what was opened."""
    if not any(s == program.spend for s in ledger.spent):
        ledger.spend(program.spend)
    privacy = {"epsilon": program.epsilon, "delta": program.delta}
    if isinstance(program, PrivateMixedProgram):
        ledger.stamp("mixed opened noisy sums by site; columns were clipped to their declared bounds.")
        return _conclude_mixed(program, found, ledger, privacy)
    ledger.stamp("meta opened noisy coefficients and variances of each site alone.")
    return _conclude_meta(program, found, ledger, privacy, effects)


def _conclude_mixed(
    program: PrivateMixedProgram, found: PrivateMixedEstimate, ledger: Ledger, privacy: dict[str, Any]
) -> Regression:
    notes = (
        f"Standard errors and intervals include the noise of ε = {program.epsilon:g}: up to "
        f"{100 * found.noise_share:.0f}% of a variance is noise.",
    )
    return Regression(
        program.formula,
        make_family(program.family, None, None),
        found.names,
        found.beta,
        found.covariance,
        ledger,
        max(round(found.rows), 0),
        0,
        len(program.parties),
        found.rounds,
        found.agreement,
        program.columns,
        "random intercept by site, noisy Newton steps",
        "model-based, with the noise",
        found.scale,
        total=max(found.rows, 1.0),
        extras={"site variance": found.site_variance, "sites": len(program.parties), **privacy},
        notes=notes,
    )


def _conclude_meta(
    program: PrivateMetaProgram,
    found: PrivateSiteEstimates,
    ledger: Ledger,
    privacy: dict[str, Any],
    effects: str,
) -> Regression:
    beta, variances, heterogeneity = combine(found.coefficients, found.variances, effects == "random")
    names = program.own.terms
    notes: tuple[str, ...] = (
        f"Each site's variances include the noise of ε = {program.epsilon:g}, which is its own: weights are "
        "smaller for sites with more noise.",
    )
    if found.left_out:
        notes += (f"Sites without an estimate of their own: {', '.join(found.left_out)}.",)
    return Regression(
        program.formula,
        program.own.model,
        names,
        beta,
        np.diag(variances),
        ledger,
        max(round(found.rows), 0),
        0,
        len(program.parties),
        1,
        program.own.agreement,
        program.own.columns,
        f"{effects}-effects meta-analysis of {len(found.sites)} sites",
        "model-based, with the noise",
        total=max(found.rows, 1.0),
        extras={
            "sites": pd.DataFrame(found.coefficients, index=found.sites, columns=names),
            "heterogeneity": pd.DataFrame(heterogeneity, index=names),
            **privacy,
        },
        notes=notes,
    )
