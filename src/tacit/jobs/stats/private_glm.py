"""`tacit.stats.glm(…, epsilon=…)`: regression by noisy sums."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

import pandas as pd

from ...parameters import bad, propose
from ...stats import noise_share
from ...stats.design import Variables, read_formula
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
    check_missing("glm", program.missing)
    default = GlmProgram(program.formula)
    for name in ("link", "alpha", "weights", "offset", "exposure", "l1", "firth", "robust", "positive"):
        if getattr(program, name) != getattr(default, name):
            raise bad("glm", name, getattr(program, name), f"{getattr(default, name)!r} with epsilon")
    variables = read_formula(program.formula, response=True)
    fixed = {variables.response[0]: (0.0, 1.0)} if program.family == "binomial" else {}
    used, levels = check_declared("glm", variables, program.levels, bounds, fixed)
    if program.family == "poisson" and not used[variables.response[0]][0] >= 0:
        raise bad("glm", "bounds", bounds, "counts of at least 0")
    return PrivateGlmProgram(
        program.formula,
        program.family,
        parties,
        float(epsilon),
        float(delta),
        used,
        levels,
        program.l2,
    )


def check_missing(owner: str, missing: Any) -> None:
    """Refuse `missing="error"`: that a party refused would tell of a row without noise."""
    if missing != "drop":
        raise bad(
            owner, "missing", missing, "'drop' with epsilon: an error would tell, without noise, of one row"
        )


def check_declared(
    owner: str, variables: Variables, levels: Any, bounds: Any, fixed: Mapping[str, tuple[float, float]]
) -> tuple[dict[str, tuple[float, float]], dict[str, Any]]:
    """Return the bounds and levels of a formula's columns; raise BadParameter unless all are declared."""
    if bounds is not None and not isinstance(bounds, Mapping):
        raise bad(owner, "bounds", bounds, "a dictionary like {'age': (0, 120)}")
    declared, levels = dict(bounds or {}), dict(levels or {})
    numeric = [
        n
        for n in dict.fromkeys((*variables.response, *variables.names))
        if n not in levels and n not in variables.categorical
    ]
    for name, pair in declared.items():
        is_pair = isinstance(pair, list | tuple) and all(isinstance(end, Real) for end in pair)
        if not is_pair or len(pair) != 2 or not float(pair[0]) < float(pair[1]):
            raise bad(owner, f"bounds of {name!r}", pair, "(low, high) with low < high")
    declared |= fixed
    missing = [n for n in numeric if n not in declared]
    if missing:
        raise bad(
            owner,
            "bounds",
            bounds,
            f"the range of {', '.join(map(repr, missing))} too, with epsilon: "
            f"{propose('bounds', {missing[0]: [0, 120]})}. "
            "They are declared, not taken from the rows; so are the levels of a category: "
            f"{propose('levels', {'sex': ['f', 'm']})}",
        )
    unknown = [n for n in variables.categorical if n not in levels]
    if unknown:
        raise bad(owner, "levels", levels, f"the levels of {', '.join(map(repr, unknown))} too, with epsilon")
    return {n: (float(declared[n][0]), float(declared[n][1])) for n in numeric}, levels


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
