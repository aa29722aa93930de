"""The coordinator of a Cox model: from sums over risk sets to coefficients, tests and the baseline hazard."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch

from ..crypto import exact
from ..errors import BadData
from ..protocols.sum_steps import Down
from . import concentration, design, rare_rows, risk_sets
from .ascent import NEARLY, Ascent
from .disclosure import check_values
from .families import load_scipy
from .hazards import (
    BIN,
    COUNT,
    GRAM,
    HEAD,
    POWERS,
    RISK,
    SITE,
    TEST,
    WHITENING,
    CoxProgram,
    count_bins,
    write,
)
from .inference import chi2_p
from .lifetimes import cells_from_powers, describe_grid, grid_times, note_rounded
from .newton import Scaling, check_columns, invert, symmetric
from .risk_sets import Partial, RiskSums, Ties

OWNER = "cox"


@dataclass
class CoxEstimate:
    names: list[str]
    beta: np.ndarray
    covariance: np.ndarray
    loglik: float
    loglik_null: float
    rows: int
    dropped: int
    parties: int
    events: int
    rounds: int
    agreement: design.Agreement
    center: np.ndarray
    grid: str
    smallest: int  # the fewest rows that left between two opened sums
    opened: int  # grid points with sums
    baseline: pd.DataFrame = field(default_factory=pd.DataFrame)
    concordance: float = float("nan")
    concordance_error: float = 0.0
    ph_test: pd.DataFrame = field(default_factory=pd.DataFrame)
    noise_share: float = 0.0  # the largest part of a variance that is noise
    notes: tuple[str, ...] = ()


@dataclass
class _Layout:
    """The grid points with an event, stratum after stratum."""

    cuts: np.ndarray  # the last cell of each merged cell
    points: np.ndarray  # merged cells with an event
    starts: np.ndarray
    deaths: np.ndarray
    times: np.ndarray
    failed: np.ndarray  # 1 − the Kaplan–Meier curve of all strata together
    smallest: int
    last: int  # the last cell in which someone left, and 1

    def down(self) -> dict[str, torch.Tensor]:
        return {k: write(getattr(self, k)) for k in ("cuts", "points", "starts")}


def coordinate(program: CoxProgram) -> Generator[Down, np.ndarray, CoxEstimate]:
    """Ask for sums until the coefficients stay, and return the estimate."""
    total = yield {}
    parties, rows, dropped, events, *rounded = (int(v) for v in total[:HEAD])
    agreement = design.agree(
        total[HEAD + POWERS :], program.categories, program.levels or {}, OWNER, program.min_level_rows
    )
    names = program.terms(agreement)
    p = len(names)
    _check_size(program, p, events)
    cells = 1 if program.by_site else cells_from_powers(total[HEAD : HEAD + POWERS], program.grid, OWNER)
    base: dict[str, torch.Tensor] = {
        "levels": agreement.to_tensor(),
        "cells": torch.tensor(cells),
        "rows": torch.tensor(rows),
    }

    total = yield {**base, "phase": torch.tensor(COUNT)}
    triangle = p * (p + 1) // 2
    length = 2 * p + triangle + program.is_weighted + 2 * (p + 1)
    every = exact.decode(
        total[-exact.LIMBS * (length + rare_rows.cells_length(program.formula, agreement)) :]
    )
    numbers, tallies = np.split(every, [length])
    rare_rows.check_cells(OWNER, program.formula, agreement, tallies, program.min_count)
    first, event_x, second = numbers[:p], numbers[p : 2 * p], symmetric(numbers[2 * p : 2 * p + triangle], p)
    weight = float(numbers[2 * p + triangle]) if program.is_weighted else float(events)
    check_values(OWNER, [*names, program.event], numbers[-2 * (p + 1) :], rows, program.min_count)
    mean = first / rows
    spread = second / rows - np.outer(mean, mean)
    size = np.sqrt(np.maximum(np.diag(second) / rows, 1e-300))
    scale = np.sqrt(np.maximum(np.diag(spread), 0.0))
    constant = [name for name, s, z in zip(names, scale, size) if not s > 1e-9 * z]
    if constant:
        raise BadData(
            f"{OWNER}: {', '.join(map(repr, constant))} is the same for all rows. Leave it out of the "
            "formula."
        )
    if not program.l2:
        check_columns(spread, names, OWNER)
    scaling = Scaling(mean, scale, None)
    base |= {"center": write(mean), "scaled": write(scale)}
    event_x = (event_x - weight * mean) / scale
    layout = None
    if not program.by_site:
        layout = _lay_out(program, np.asarray(total[: -len(every) * exact.LIMBS]), agreement, cells)
        base |= layout.down()
    # l2 is as for glm: of −log-likelihood/n + l2/2 Σβ², in the columns' own units
    ascent = Ascent(np.zeros(p), rows * program.l2 / scale**2, np.zeros(p))

    whitening: list[np.ndarray] = []
    if program.min_count > 1:
        whitening.append(concentration.whiten(rows * spread / np.outer(scale, scale)))

    def check(total: np.ndarray) -> np.ndarray:
        leverages = None
        if whitening:
            total, leverages = np.split(total, [-2 * triangle])
        rest, powers = np.split(total, [-rare_rows.POWERS * p])
        rare_rows.check_columns(OWNER, names, powers, rows, program.min_count)
        if leverages is not None:
            concentration.check_span(OWNER, names, whitening.pop(), leverages, rows, program.min_count)
        return rest

    null = None
    rounds, part, sums, ties = 2, None, None, None
    for _ in range(program.max_rounds):
        down = {**base, "beta": write(ascent.point)}
        first_down = {**down, **({WHITENING: write(whitening[0])} if whitening else {})}
        if layout is None:
            total = check(exact.decode((yield {**first_down, "phase": torch.tensor(SITE)})))
            part = Partial(float(total[0]), total[1 : 1 + p], symmetric(total[1 + p :], p))
            rounds += 1
        else:
            total = check(exact.decode((yield {**first_down, "phase": torch.tensor(RISK)})))
            k = len(layout.points)
            died = total[-k:] if program.is_weighted else layout.deaths
            sums = _read_sums(total, k, p, program.is_efron)
            ties = risk_sets.sum_ties(sums, layout.deaths, program.is_efron, died)
            total = exact.decode(
                (yield {**down, "phase": torch.tensor(GRAM), "a": write(ties.a), "b": write(ties.b)})
            )
            part = risk_sets.partial_likelihood(sums, ties, symmetric(total, p), event_x, ascent.point)
            rounds += 2
        null = part.value if null is None else null
        improved = ascent.update(part.value, part.gradient, part.hessian)
        if improved:
            best, best_sums, best_ties = part, sums, ties
        if ascent.is_converged or ascent.has_stalled:
            break
    assert ascent.best is not None
    assert null is not None
    if not ascent.is_converged and not ascent.distance < NEARLY:
        raise _explain(program, ascent, names)
    beta = ascent.best + ascent.step
    inverse = invert(best.hessian + np.diag(ascent.ridge))
    if program.l2:
        inverse = inverse @ best.hessian @ inverse
    estimate = CoxEstimate(
        names,
        beta / scale,
        inverse / np.outer(scale, scale),
        best.value,
        null,
        rows,
        dropped,
        parties,
        events,
        rounds,
        agreement,
        mean,
        "none: every party used its own times"
        if layout is None
        else describe_grid(program.grid, layout.last),
        0 if layout is None else layout.smallest,
        0 if layout is None else len(layout.points),
    )
    if layout is not None:
        estimate.notes = note_rounded(
            rounded,
            program.grid,
            layout.last,
            rows,
            events,
            len(np.unique(layout.points)),
            program.min_count,
        )
    down = {**base, "beta": write(beta), "phase": torch.tensor(TEST)}
    if layout is None or not program.is_weighted:  # residuals of weighted rows have no agreed test
        total = exact.decode((yield down))
        estimate.rounds += 1
    if layout is None:
        agree, tied, pairs = total[-3:]
        estimate.concordance = (agree + tied / 2) / pairs if pairs else float("nan")
        residual, weighted = total[3 : 3 + p], total[3 + p : 3 + 2 * p]
        count, g1, g2 = total[:3]
        if program.is_weighted:
            return estimate
        _test(estimate, scaling, weighted - g1 / count * residual, g2 - g1**2 / count)
        return estimate
    assert best_sums is not None
    assert best_ties is not None
    if not program.is_weighted:
        residuals = (
            total.reshape(-1, p) - best_ties.a[:, None] * best_sums.s1 - best_ties.b[:, None] * best_sums.e1
        )
        g = _transform(program, layout)
        g = g - (layout.deaths * g).sum() / layout.deaths.sum()
        _test(estimate, scaling, g @ residuals, float((layout.deaths * g**2).sum()))
    estimate.baseline = _baseline(program, agreement, layout, best_sums, died)
    spread_score = float(np.sqrt(max(beta @ (spread / np.outer(scale, scale)) @ beta, 0.0)))
    if spread_score > 0:
        bins = count_bins(len(layout.points))
        edges = spread_score * load_scipy().ndtri(np.arange(1, bins) / bins)
        counts = yield {**down, "phase": torch.tensor(BIN), "edges": write(edges)}
        estimate.rounds += 1
        counts = np.asarray(counts).reshape(2, len(layout.points), bins)
        estimate.concordance, estimate.concordance_error = risk_sets.concordance(counts, layout.starts)
    return estimate


def _check_size(program: CoxProgram, p: int, events: int) -> None:
    if p == 0:
        raise BadData(f"{OWNER}: the formula {program.formula!r} has no terms.")
    if events == 0:
        raise BadData(f"{OWNER}: no party has an event ({program.event!r} = 1).")
    if events <= p:
        raise BadData(
            f"{OWNER}: {events} events at all parties together, and {p} coefficients. A model with as many "
            "coefficients as events is refused. Use fewer terms."
        )


def _lay_out(program: CoxProgram, counts: np.ndarray, agreement: design.Agreement, cells: int) -> _Layout:
    strata = len(program.strata_levels(agreement))
    events, exits = counts.reshape(2, strata, cells)
    cuts = _merge(exits.sum(axis=0), program.min_exits)
    group = np.searchsorted(cuts, np.arange(cells))
    group = np.minimum(group, len(cuts) - 1)
    points, deaths, starts = [], [], [0]
    for s in range(strata):
        merged = np.bincount(group, events[s], minlength=len(cuts)).astype(np.int64)
        here = np.flatnonzero(merged)
        points.append(here)
        deaths.append(merged[here])
        starts.append(starts[-1] + len(here))
    every = np.concatenate(points).astype(np.int64)
    times = grid_times(program.grid, cells)[cuts[every]]
    died, left = (np.bincount(group, c.sum(axis=0), minlength=len(cuts)) for c in (events, exits))
    at_risk = np.cumsum(left[::-1])[::-1]
    failed = 1 - np.cumprod(1 - died / np.maximum(at_risk, 1))
    return _Layout(
        cuts,
        every,
        np.array(starts),
        np.concatenate(deaths),
        times,
        failed[every],
        _smallest(exits, group, points, len(cuts)),
        int(np.flatnonzero(exits.sum(axis=0))[-1]) + 1,
    )


def _merge(exits: np.ndarray, least: int) -> np.ndarray:
    """Return the last cell of each merged cell, such that at least `least` rows leave in each."""
    if least <= 1:
        return np.arange(len(exits))
    cuts, left = [], 0
    for cell, count in enumerate(exits):
        left += int(count)
        if left >= least:
            cuts.append(cell)
            left = 0
    if not cuts:
        cuts = [len(exits) - 1]
    cuts[-1] = len(exits) - 1  # the rest joins the last
    return np.array(cuts)


def _smallest(exits: np.ndarray, group: np.ndarray, points: list[np.ndarray], count: int) -> int:
    """Return the fewest rows that leave between two neighboring positions of one stratum."""
    fewest = []
    for s, here in enumerate(points):
        leaving = np.bincount(group, exits[s], minlength=count)
        between = np.add.reduceat(leaving, here) if len(here) else np.zeros(0)
        fewest += [int(v) for v in between]
    return min(fewest, default=0)


def _read_sums(total: np.ndarray, k: int, p: int, efron: bool) -> RiskSums:
    s0, s1 = total[:k], total[k : k + k * p].reshape(k, p)
    rest = total[k + k * p : 2 * (k + k * p)]
    if not efron:
        return RiskSums(s0, s1, np.zeros(k), np.zeros((k, p)))
    return RiskSums(s0, s1, rest[:k], rest[k:].reshape(k, p))


def _transform(program: CoxProgram, layout: _Layout) -> np.ndarray:
    """Return g(t) at each position."""
    if program.transform == "identity":
        return layout.times.astype(float)
    if program.transform == "log":
        return np.log(layout.times)  # type: ignore[no-any-return]
    if program.transform == "km":
        return layout.failed
    _, place = np.unique(layout.times, return_inverse=True)
    deaths = np.bincount(place, layout.deaths)
    return (np.cumsum(deaths) - (deaths - 1) / 2)[place]  # the mean rank of tied events


def _test(estimate: CoxEstimate, scaling: Scaling, weighted: np.ndarray, spread: float) -> None:
    """Grambsch and Therneau's test by covariate: the slope of scaled Schoenfeld residuals over g(t)."""
    raw = weighted * scaling.scale  # residuals of the columns in their own units
    variance = np.diag(estimate.covariance)
    slope = estimate.covariance @ raw
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = estimate.events * slope**2 / (variance * spread)
    estimate.ph_test = pd.DataFrame(
        {"statistic": statistic, "p": [chi2_p(v, 1) for v in statistic]},
        index=pd.Index(estimate.names, name="term"),
    )


def _baseline(
    program: CoxProgram, agreement: design.Agreement, layout: _Layout, sums: RiskSums, deaths: np.ndarray
) -> pd.DataFrame:
    """Breslow's estimate, for a row whose columns are at the mean of all rows."""
    hazard = deaths / sums.s0
    tables = []
    levels: list[Any] = program.strata_levels(agreement)
    for s, (a, b) in enumerate(zip(layout.starts[:-1], layout.starts[1:])):
        cumulative = np.cumsum(hazard[a:b])
        table = pd.DataFrame(
            {
                "time": layout.times[a:b],
                "hazard": hazard[a:b],
                "cumulative_hazard": cumulative,
                "survival": np.exp(-cumulative),
            }
        )
        if program.strata:
            table.insert(0, "stratum", ", ".join(map(str, levels[s])))
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def _explain(program: CoxProgram, ascent: Ascent, names: list[str]) -> BadData:
    step = np.abs(ascent.step)
    if ascent.diverging or not np.isfinite(step).all():
        columns = [n for n, s in zip(names, step) if np.isfinite(s) and s > 0.25 * np.nanmax(step)]
        return BadData(
            f"{OWNER}: the partial likelihood has no maximum: those with an event are separated from the "
            f"others by {', '.join(map(repr, columns)) or 'the columns'}. Use l2=, or leave the column out."
        )
    return BadData(
        f"{OWNER}: not converged after {program.max_rounds} iterations. Raise max_rounds, use l2= or "
        "fewer terms."
    )


__all__ = ["CoxEstimate", "Ties", "coordinate"]
