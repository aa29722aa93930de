"""`tacit.stats.cox(…, epsilon=…)`: piecewise constant hazards by noisy sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...parameters import bad
from ...parties.ledger import Ledger
from ...stats import noise_share
from ...stats.design import read_formula
from ...stats.hazards_coordinator import CoxEstimate
from ...stats.hazards_result import CoxModel
from ...stats.lifetimes import check_grid
from ...stats.private_hazards import PrivateCoxProgram
from .private_glm import check_declared, check_missing

DELTA = 1e-6
MAX_HAZARD = 1.0  # noise is in proportion to it; at most 37% of those with an event are cut off
MOST_INTERCEPTS = 1000  # intervals times strata; noise drowns them long before


def check_plain_options(ties: str, entry: Any, min_exits: int, ph_transform: Any, weights: Any) -> None:
    """Raise for options of the exact model that a private one does not have."""
    given = {"ties": ties, "entry": entry, "min_exits": min_exits, "ph_transform": ph_transform}
    given["weights"] = weights
    plain = {"ties": "efron", "entry": None, "min_exits": 1, "ph_transform": None, "weights": None}
    for name, value in given.items():
        if value != plain[name]:
            raise bad("cox", name, value, f"{plain[name]!r} with epsilon")


def make_private(
    formula: str, time: str, event: str, grid: Any, parties: int, epsilon: Any, delta: Any, bounds: Any,
    levels: Mapping[str, Sequence[Any]], strata: tuple[str, ...], l2: float, max_hazard: Any, missing: str,
) -> PrivateCoxProgram:  # fmt: skip
    """Return the noisy program of a model; raise BadParameter for what is not declared."""
    noise_share.check_privacy("cox", epsilon, delta)
    points = check_grid(grid, "cox")
    if isinstance(points, float):
        raise bad("cox", "grid", grid, "the times themselves, with epsilon: grid=[90, 180, 360, …]")
    points = [v for v in points if v > 0]
    if not points:
        raise bad("cox", "grid", grid, "increasing times above 0")
    check_missing("cox", missing)
    if isinstance(l2, bool) or not isinstance(l2, int | float) or not l2 >= 0:
        raise bad("cox", "l2", l2, "a number of at least 0")
    if isinstance(max_hazard, bool) or not isinstance(max_hazard, int | float) or not 0.1 <= max_hazard <= 50:
        raise bad("cox", "max_hazard", max_hazard, "a number of expected events from 0.1 to 50")
    variables = read_formula(formula, response=False)
    used, levels = check_declared("cox", variables, levels, bounds, {})
    if not variables.names:
        raise bad("cox", "formula", formula, "at least one term: 'age + C(sex)'")
    unknown = [n for n in strata if n not in levels]
    if unknown:
        raise bad("cox", "levels", levels, f"the levels of {', '.join(map(repr, unknown))} too, with epsilon")
    needed = {n: list(levels[n]) for n in levels if n in (*variables.names, *strata)}
    program = PrivateCoxProgram(
        formula, time, event, tuple(points), parties, float(epsilon), float(delta), used, needed, strata,
        float(l2), float(max_hazard),
    )  # fmt: skip
    if program.groups > MOST_INTERCEPTS:
        raise bad(
            "cox", "grid", f"{len(points)} times in {len(program.strata_levels)} strata",
            f"at most {MOST_INTERCEPTS} together, with epsilon: each has noise of its own",
        )  # fmt: skip
    return program


def conclude_private(program: PrivateCoxProgram, found: CoxEstimate, ledger: Ledger) -> CoxModel:
    if not any(s == program.spend for s in ledger.spent):
        ledger.spend(program.spend)
    ledger.stamp(
        f"cox opened noisy sums over all parties only, on the grid: {found.grid}. Columns were clipped to "
        "their declared bounds."
    )
    notes = (
        f"Standard errors and intervals include the noise of ε = {program.epsilon:g}: up to "
        f"{100 * found.noise_share:.0f}% of a variance is noise.",
        f"Hazards are constant between grid points. People are followed to {program.grid[-1]:g}, and until "
        f"{program.max_hazard:g} events are expected of them (max_hazard).",
    )
    return CoxModel(program, found, ledger, notes)
