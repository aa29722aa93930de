"""`tacit.stats.cox`: proportional hazards by sums over parties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...parameters import bad
from ...parties.ledger import Ledger
from ...stats.design import check_formula, read_formula
from ...stats.hazards import CoxProgram
from ...stats.hazards_coordinator import CoxEstimate
from ...stats.hazards_result import CoxModel
from ...stats.level_sketch import LEVEL_ROWS
from ...stats.lifetimes import check_grid
from ...stats.tables import check_frames, check_levels, check_names, to_columns
from .describe import LEAST, check_count
from .glm import SITE, add_site, with_sites
from .private_cox import DELTA, MAX_HAZARD, check_plain_options, conclude_private, make_private
from .run import run_sums
from .survival import FEW


def cox(
    fed: Any,
    formula: str,
    *,
    time: str,
    event: str,
    ties: str = "efron",
    strata: str | Sequence[str] | None = None,
    entry: str | None = None,
    weights: str | None = None,
    grid: float | Sequence[float] = 1.0,
    min_exits: int = 1,
    l2: float = 0.0,
    ph_transform: str | None = None,
    levels: Mapping[str, Sequence[Any]] | None = None,
    missing: str = "drop",
    max_rounds: int = 25,
    min_count: int = LEAST,
    min_level_rows: int = LEVEL_ROWS,
    epsilon: float | None = None,
    delta: float = DELTA,
    bounds: Mapping[str, Sequence[float]] | None = None,
    max_hazard: float = MAX_HAZARD,
    runtime: Any = "cohort",
    guard: Any = None,
) -> CoxModel:
    """Fit Cox's proportional hazards model; only sums over all parties are opened.

    `formula` has no left-hand side: "age + C(sex)". `time` and `event` (1: event, 0: censored) name columns;
    `entry` is the time from which a row is at risk (start of an interval, left truncation), for several rows
    per person or late entry. `weights` names a column of positive numbers; tied events then have their mean
    weight (Efron), and there is no test of proportional hazards. `ties`: "efron" or "breslow". `strata`:
    columns, or "site".

    Times are rounded up to a grid: multiples of `grid` (default 1, one unit of time), or the times it lists.
    At each grid point with an event, sums over the risk set are opened, which change from one point to the
    next by those who left in between. Where times are rounded, a note says how many, and recommends a
    finer grid that keeps their order. `min_exits=5` merges grid points until at least 5 rows leave in each.
    `strata="site"` opens no grid: every party is a stratum, and only sums of gradients and Hessians are
    opened.

    `ph_transform`: time scale of the test of proportional hazards, "km" (default), "rank", "identity" or
    "log"; with strata="site", "identity" (default) or "log". A column in which fewer than `min_count` rows
    differ from all others (a rare level), and fewer events than that, are refused. `levels` and
    `min_level_rows` are as for `glm`.

    With `epsilon`, `delta`: hazards are constant between the points of `grid`, which lists them, and the sums
    have noise for (ε, δ)-differential privacy of one row, a person. `bounds` of numbers and `levels` of
    categories are declared. A person is followed until they are expected to have `max_hazard` events: a
    larger one uses more late events, and noise grows in proportion.
    """
    frames = check_frames(fed, "cox")
    check_formula(formula)
    columns = to_columns("cox", strata)
    check_names("cox", time=time, event=event, entry_=entry, weights_=weights)
    by_site = columns == (SITE,) and not any(SITE in f.columns for f in frames.values())
    words = " ".join([formula, *columns])
    if epsilon is not None:
        check_plain_options(ties, entry, min_exits, ph_transform, weights)
        private = make_private(
            formula, time, event, grid, len(frames), epsilon, delta, bounds,
            with_sites(levels, frames, frames, words), columns, l2, max_hazard, missing,
        )  # fmt: skip
        found, ledger = run_sums(private, add_site(frames), runtime=runtime, guard=guard, owner="cox")
        return conclude_private(private, found, ledger)
    program = make_program(
        formula, time, event, ties, () if by_site else columns, by_site, entry, grid, min_exits, l2,
        ph_transform, with_sites(levels, frames, frames, words), missing, max_rounds, min_count, weights,
        min_level_rows,
    )  # fmt: skip
    found, ledger = run_sums(program, add_site(frames), runtime=runtime, guard=guard, owner="cox")
    return conclude(program, found, ledger)


def make_program(
    formula: str, time: str, event: str, ties: str, strata: tuple[str, ...], by_site: bool, entry: str | None,
    grid: Any, min_exits: int, l2: float, ph_transform: str | None, levels: Mapping[str, Sequence[Any]],
    missing: str, max_rounds: int, min_count: int = LEAST, weights: str | None = None,
    min_level_rows: int = LEVEL_ROWS,
) -> CoxProgram:  # fmt: skip
    """Return the program of a model; raise BadParameter for options that are not allowed."""
    allowed = ("identity", "log") if by_site else ("km", "rank", "identity", "log")
    transform = ph_transform or allowed[0]
    _check("ties", ties, ("efron", "breslow"))
    _check("ph_transform", transform, allowed)
    _check("missing", missing, ("drop", "error"))
    if isinstance(min_exits, bool) or not isinstance(min_exits, int) or min_exits < 1:
        raise bad("cox", "min_exits", min_exits, "a whole number of at least 1")
    if isinstance(max_rounds, bool) or not isinstance(max_rounds, int) or not 1 <= max_rounds <= 200:
        raise bad("cox", "max_rounds", max_rounds, "a whole number from 1 to 200")
    if not isinstance(l2, int | float) or not l2 >= 0:
        raise bad("cox", "l2", l2, "a number of at least 0")
    check_count("cox", "min_count", min_count)
    check_count("cox", "min_level_rows", min_level_rows)
    read_formula(formula, response=False)
    program = CoxProgram(
        formula, time, event, ties, strata, by_site, entry, check_grid(grid, "cox"), min_exits, float(l2),
        transform, levels, missing, max_rounds, min_count, weights, min_level_rows,
    )  # fmt: skip
    check_levels("cox", levels, [*program.categories, SITE])
    return program


def conclude(program: CoxProgram, found: CoxEstimate, ledger: Ledger) -> CoxModel:
    """Return the result, and say in the ledger what was opened."""
    notes = list(found.notes)
    if program.by_site:
        notes.append(
            "strata='site': no grid and no baseline hazard was opened; gradients and Hessians only as sums."
        )
        ledger.stamp(
            "cox opened sums over all parties of partial log-likelihoods, gradients and Hessians, one "
            "stratum per party."
        )
    else:
        ledger.stamp(
            f"cox opened sums over the risk sets of all parties together at {found.opened} points of the "
            f"grid: {found.grid}. Neighboring sums differ by at least {found.smallest} rows that left."
        )
        if found.smallest < FEW:
            notes.append(
                f"Between two opened grid points only {found.smallest} row{'s' * (found.smallest != 1)} "
                "left, so their difference describes "
                f"{'them' if found.smallest != 1 else 'it'}. min_exits={FEW}, a coarser grid= "
                "or strata='site' open less."
            )
            ledger.stamp(notes[-1])
    return CoxModel(program, found, ledger, tuple(notes))


def _check(name: str, value: Any, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise bad("cox", name, value, ", ".join(map(repr, allowed)))
