"""`tacit.stats.glm(…, epsilon=…)`: regression by noisy sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from ...parameters import bad
from ...stats import noise_share
from ...stats.design import read_formula
from ...stats.private_regression import ROUNDS, PrivateGlmProgram
from ...stats.regression import GlmProgram
from ...stats.regression_result import Regression
from .run import run_sums

DELTA = 1e-6


def make_private(
    program: GlmProgram, parties: int, epsilon: Any, delta: Any, bounds: Any
) -> PrivateGlmProgram:
    """Return the noisy program of a model; raise BadParameter for what it cannot have."""
    if epsilon is None:
        raise bad("glm", "epsilon", None, "a number above 0 with delta and bounds")
    delta = DELTA if delta is None else delta
    noise_share.check_privacy("glm", epsilon, delta)
    if program.family not in ROUNDS:
        raise bad("glm", "family", program.family, f"{', '.join(map(repr, ROUNDS))} with epsilon")
    default = GlmProgram(program.formula)
    for name in ("link", "alpha", "weights", "offset", "exposure", "l1", "firth", "robust"):
        if getattr(program, name) != getattr(default, name):
            raise bad("glm", name, getattr(program, name), f"{getattr(default, name)!r} with epsilon")
    variables = read_formula(program.formula, response=True)
    declared, levels = dict(bounds or {}), dict(program.levels or {})
    numeric = [
        n
        for n in (*variables.response, *variables.names)
        if n not in levels and n not in variables.categorical
    ]
    for name, pair in declared.items():
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not float(pair[0]) < float(pair[1]):
            raise bad("glm", f"bounds of {name!r}", pair, "(low, high) with low < high")
    if program.family == "binomial":
        declared[variables.response[0]] = (0.0, 1.0)
    missing = [n for n in numeric if n not in declared]
    if missing:
        raise bad(
            "glm",
            "bounds",
            bounds,
            f"the range of {', '.join(map(repr, missing))} too, with epsilon: {{'age': (0, 120)}}. "
            "They are declared, not taken from the rows",
        )
    unknown = [n for n in variables.categorical if n not in levels]
    if unknown:
        raise bad(
            "glm",
            "levels",
            program.levels,
            f"the levels of {', '.join(map(repr, unknown))} too, with epsilon",
        )
    if program.family == "poisson" and not float(declared[variables.response[0]][0]) >= 0:
        raise bad("glm", "bounds", bounds, "counts of at least 0")
    used = {n: tuple(float(v) for v in declared[n]) for n in dict.fromkeys(numeric)}
    return PrivateGlmProgram(
        program.formula,
        program.family,
        parties,
        float(epsilon),
        float(delta),
        used,
        levels,
        program.l2,
        program.missing,
    )


def fit_private(
    program: GlmProgram,
    frames: Mapping[str, pd.DataFrame],
    epsilon: Any,
    delta: Any,
    bounds: Any,
    runtime: Any,
    guard: Any,
) -> Regression:
    """Fit the model by noisy sums, and record what was spent."""
    private = make_private(program, len(frames), epsilon, delta, bounds)
    found, ledger = run_sums(private, frames, runtime=runtime, guard=guard, owner="glm")
    return conclude_private(private, found, ledger)


def conclude_private(private: PrivateGlmProgram, found: Any, ledger: Any) -> Regression:
    if not any(s == private.spend for s in ledger.spent):
        ledger.spend(private.spend)
    ledger.stamp(
        "glm opened noisy sums over all parties only; columns were clipped to their declared bounds."
    )
    notes = (
        f"Standard errors and intervals include the noise of ε = {private.epsilon:g}: up to "
        f"{100 * found.noise_share:.0f}% of a variance is noise.",
    )
    return Regression(
        private.formula,
        private.model,
        found.names,
        found.beta,
        found.covariance,
        ledger,
        max(round(found.rows), 0),
        0,
        private.parties,
        found.rounds,
        found.agreement,
        private.columns,
        "noisy Newton steps",
        "model-based, with the noise",
        found.scale,
        total=max(found.rows, 1.0),
        extras={"epsilon": private.epsilon, "delta": private.delta},
        notes=notes,
    )
