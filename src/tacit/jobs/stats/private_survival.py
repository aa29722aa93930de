"""Survival curves and the log-rank test with an ε: from noisy counts on a declared grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ...parameters import bad
from ...parties.ledger import Ledger
from ...stats import noise_share, noisy_curves
from ...stats.curves import median_time, note_rounding
from ...stats.design import plain_level
from ...stats.lifetimes import check_grid, describe_grid
from ...stats.private_lifetimes import NoisyCounts, PrivateLifetimeProgram
from ...stats.survival_result import Curves, LogRank
from ...stats.tables import check_frames, check_names
from .glm import SITE, add_site
from .private_glm import check_missing
from .run import run_sums


def private_program(
    owner: str,
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
    causes: Sequence[Any] = (1,),
) -> PrivateLifetimeProgram:
    """Return the noisy program; raise BadParameter for what is not declared."""
    noise_share.check_privacy(owner, epsilon, delta)
    check_missing(owner, missing)
    points = check_grid(grid, owner)
    if isinstance(points, float):
        raise bad(owner, "grid", grid, "the times themselves, with epsilon: grid=[30, 60, 90, …]")
    if entry is not None:
        raise bad(owner, "entry", entry, "None with epsilon")
    groups = sorted(parties) if by == SITE else list((levels or {}).get(by or "", ()))
    if by is not None and not groups:
        raise bad(owner, "levels", levels, f"the levels of {by!r}, with epsilon")
    return PrivateLifetimeProgram(
        time,
        event,
        tuple(points),
        len(parties),
        float(epsilon),
        delta,
        by,
        tuple(plain_level(g) for g in groups),
        tuple(causes),
    )


def count_privately(
    owner: str, fed: Any, runtime: Any, guard: Any, causes: Sequence[Any] = (1,), **options: Any
) -> tuple[PrivateLifetimeProgram, NoisyCounts, Ledger]:
    """Run the noisy program over tables that the caller holds."""
    frames = check_frames(fed, owner)
    required = {name: options[name] for name in ("time", "event")}
    check_names(owner, **required, by_=options["by"], entry_=options["entry"])
    program = private_program(owner, parties=list(frames), causes=causes, **options)
    found, ledger = run_sums(program, add_site(frames), runtime=runtime, guard=guard, owner=owner)
    return program, found, ledger


def conclude_curves(
    kind: str,
    owner: str,
    program: PrivateLifetimeProgram,
    found: NoisyCounts,
    ledger: Ledger,
    level: float,
    cause: int = 0,
) -> Curves:
    """`kind`: "survival", "hazard" or "incidence" (of the cause with this position)."""
    times, text = _say_opened(owner, program, ledger)
    tables, medians = [], {}
    for k, group in enumerate(found.groups):
        events, exits, noise = found.events[k], found.exits[k], found.variances
        if kind == "survival":
            table = noisy_curves.survival_table(times, events[0], exits, noise, level)
            medians[str(group)] = median_time(table)
        elif kind == "hazard":
            table = noisy_curves.hazard_table(times, events[0], exits, noise, level)
        else:
            table = noisy_curves.incidence_table(times, events, exits, cause, noise, level)
        table.insert(0, "group", group)
        tables.append(table)
    note = (
        f"Counts have noise for ε = {program.epsilon:g}; intervals include it. Rows after {times[-1]:g} are "
        "cut there."
    )
    notes: tuple[str, ...] = (note,)
    if kind == "survival":
        risk = np.stack([noisy_curves.at_risk(exits) for exits in found.exits])
        notes += note_rounding(np.stack([events[0] for events in found.events]), found.exits, risk)
    return Curves(
        kind,
        pd.concat(tables, ignore_index=True),
        text,
        max(round(float(found.exits.sum())), 0),
        0,
        program.parties,
        ledger,
        None,
        medians,
        notes,
    )


def conclude_logrank(
    program: PrivateLifetimeProgram, found: NoisyCounts, ledger: Ledger, weighting: str
) -> LogRank:
    _, text = _say_opened("logrank", program, ledger)
    statistic, freedom, p, both = noisy_curves.logrank_test(
        found.events[:, 0], found.exits, found.variances, weighting
    )
    table = pd.DataFrame(
        {"observed": both[0], "expected": both[1]}, index=pd.Index(found.groups, name="group")
    )
    notes = [f"Counts have noise for ε = {program.epsilon:g}; p includes it."]
    if np.isnan(p):
        notes.append("A group has too few rows for this noise: use a coarser grid, or a larger epsilon.")
    return LogRank(
        statistic,
        freedom,
        p,
        table,
        weighting,
        text,
        max(round(float(found.exits.sum())), 0),
        0,
        program.parties,
        ledger,
        tuple(notes),
    )


def _say_opened(owner: str, program: PrivateLifetimeProgram, ledger: Ledger) -> tuple[np.ndarray, str]:
    if not any(s == program.spend for s in ledger.spent):
        ledger.spend(program.spend)
    times = np.asarray(program.grid, dtype=float)
    text = describe_grid(list(program.grid), len(times))
    ledger.stamp(f"{owner} opened noisy counts of all parties together on the grid: {text}.")
    return times, text
