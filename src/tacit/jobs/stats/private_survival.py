"""`tacit.stats.kaplan_meier(…, epsilon=…)`: survival curves from noisy counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ...parameters import bad
from ...parties.ledger import Ledger
from ...stats import noise_share
from ...stats.curves import median_time
from ...stats.design import plain_level
from ...stats.lifetimes import check_grid, describe_grid
from ...stats.private_lifetimes import NoisyCounts, PrivateLifetimeProgram, noisy_survival_table
from ...stats.survival_result import Curves
from ...stats.tables import check_frames
from .glm import SITE, add_site
from .run import run_sums


def private_program(
    time: str,
    event: str,
    by: str | None,
    entry: str | None,
    grid: Any,
    levels: Mapping[str, Sequence[Any]] | None,
    missing: str,
    epsilon: Any,
    delta: float,
    parties: Sequence[str],
) -> PrivateLifetimeProgram:
    """Return the noisy program; raise BadParameter for what is not declared."""
    noise_share.check_privacy("kaplan_meier", epsilon, delta)
    points = check_grid(grid, "kaplan_meier")
    if isinstance(points, float):
        raise bad("kaplan_meier", "grid", grid, "the times themselves, with epsilon: grid=[30, 60, 90, …]")
    if entry is not None:
        raise bad("kaplan_meier", "entry", entry, "None with epsilon")
    groups = sorted(parties) if by == SITE else list((levels or {}).get(by or "", ()))
    if by is not None and not groups:
        raise bad("kaplan_meier", "levels", levels, f"the levels of {by!r}, with epsilon")
    return PrivateLifetimeProgram(
        time,
        event,
        tuple(points),
        len(parties),
        float(epsilon),
        delta,
        by,
        tuple(plain_level(g) for g in groups),
        missing,
    )


def private_kaplan_meier(
    fed: Any,
    time: str,
    event: str,
    by: str | None,
    entry: str | None,
    grid: Any,
    level: float,
    levels: Any,
    missing: str,
    epsilon: float,
    delta: float,
    runtime: Any,
    guard: Any,
) -> Curves:
    frames = check_frames(fed, "kaplan_meier")
    program = private_program(time, event, by, entry, grid, levels, missing, epsilon, delta, list(frames))
    found, ledger = run_sums(program, add_site(frames), runtime=runtime, guard=guard, owner="kaplan_meier")
    return conclude_private(program, found, ledger, level)


def conclude_private(
    program: PrivateLifetimeProgram, found: NoisyCounts, ledger: Ledger, level: float
) -> Curves:
    if not any(s == program.spend for s in ledger.spent):
        ledger.spend(program.spend)
    times = np.asarray(program.grid, dtype=float)
    text = describe_grid(list(program.grid), len(times))
    ledger.stamp(f"kaplan_meier opened noisy counts of all parties together on the grid: {text}.")
    tables, medians = [], {}
    for k, group in enumerate(found.groups):
        table = noisy_survival_table(times, found.events[k], found.exits[k], found.variances, level)
        medians[str(group)] = median_time(table)
        table.insert(0, "group", group)
        tables.append(table)
    note = (
        f"Counts have noise for ε = {program.epsilon:g}; intervals include it. Rows after {times[-1]:g} are "
        "cut there."
    )
    return Curves(
        "survival",
        pd.concat(tables, ignore_index=True),
        text,
        max(round(float(found.exits.sum())), 0),
        0,
        program.parties,
        ledger,
        None,
        medians,
        (note,),
    )
