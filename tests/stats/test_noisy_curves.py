"""Survival under noise: curves inside their intervals, a log-rank test that keeps its level.

Noise here comes from a seed: what is tested is the statistics, not the generator.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.accounting import discrete
from tacit.errors import BadParameter
from tacit.stats import noise_share, noisy_curves
from tacit.stats.private_lifetimes import PrivateLifetimeProgram
from tests.stats.test_private_models import rows

GRID = np.arange(1.0, 21.0)
NOISE = (25.0, 25.0)  # variances: a standard deviation of 5 in every count


def draw(rng, n, rate=0.08, causes=1):
    """Counts on the grid without and with noise: n rows, events by cause."""
    time = np.minimum(np.ceil(rng.exponential(1 / rate, n)), 21)
    left = rng.integers(4, 21, n)
    cause = np.where(time <= left, rng.integers(0, causes, n), -1)
    cell = np.minimum(time, left).astype(int) - 1
    events = np.stack([np.bincount(cell[cause == c], minlength=20) for c in range(causes)]).astype(float)
    exits = np.bincount(cell, minlength=20).astype(float)
    noisy = events + rng.normal(0, 5, events.shape), exits + rng.normal(0, 5, exits.shape)
    return (events, exits), noisy


def cover(table, truth, column):
    return float(((table["low"] - 1e-9 <= truth) & (truth <= table["high"] + 1e-9)).mean()), table[column]


def test_intervals_of_survival_and_hazard_cover_the_true_curve():
    """60 curves of 20 points, 800 rows: about 95% of the points, and at least 90%, are covered."""
    rng = np.random.default_rng(0)
    truth = np.exp(-0.08 * GRID)
    step = 1 - np.exp(-0.08)  # of the discrete hazard on this grid
    covered = {"survival": [], "hazard": []}
    for _ in range(60):
        _, (events, exits) = draw(rng, 800)
        table = noisy_curves.survival_table(GRID, events[0], exits, NOISE, 0.95)
        assert (np.diff(table["survival"]) <= 1e-12).all()
        assert table["survival"].between(0, 1).all()
        covered["survival"].append(cover(table, truth, "survival")[0])
        table = noisy_curves.hazard_table(GRID, events[0], exits, NOISE, 0.95)
        assert (np.diff(table["hazard"]) >= -1e-12).all()
        covered["hazard"].append(cover(table, step * GRID, "hazard")[0])
    assert min(np.mean(v) for v in covered.values()) > 0.9


def test_the_incidence_of_one_of_two_causes_is_covered():
    rng = np.random.default_rng(1)
    truth = (1 - np.exp(-0.08 * GRID)) / 2
    covered = []
    for _ in range(30):
        _, (events, exits) = draw(rng, 800, causes=2)
        table = noisy_curves.incidence_table(GRID, events, exits, 1, NOISE, 0.95)
        covered.append(cover(table, truth, "incidence")[0])
    assert np.mean(covered) > 0.9


def test_without_noise_the_curves_are_those_of_exact_counts():
    from tacit.stats import curves

    rng = np.random.default_rng(2)
    (events, exits), _ = draw(rng, 900, causes=2)
    n, none = noisy_curves.at_risk(exits), (0.0, 0.0)
    every = events.sum(0)
    exact = curves.survival_table(GRID, every, exits, n, 0.95)
    noisy = noisy_curves.survival_table(GRID, every, exits, none, 0.95)
    for column in ("survival", "se", "low", "high"):
        assert noisy[column].to_numpy()[: len(exact)] == pytest.approx(exact[column].to_numpy(), rel=1e-9)
    exact = curves.hazard_table(GRID, every.astype(int), exits.astype(int), n.astype(int), 0.95, smooth=False)
    noisy = noisy_curves.hazard_table(GRID, every, exits, none, 0.95)
    assert noisy["hazard"].to_numpy()[: len(exact)] == pytest.approx(exact["hazard"].to_numpy())
    exact = curves.incidence_table(GRID, events, exits, n, 0, 0.95)
    noisy = noisy_curves.incidence_table(GRID, events, exits, 0, none, 0.95)
    for column in ("incidence", "se"):
        assert noisy[column].to_numpy()[: len(exact)] == pytest.approx(exact[column].to_numpy(), rel=1e-6)


@pytest.mark.parametrize("weighting", ["logrank", "wilcoxon"])
def test_a_logrank_test_of_equal_groups_keeps_its_level(weighting):
    """100 pairs of groups of 400 and 250 rows: 5 rejections are expected, and 12 are 3.2 deviations more."""
    rng = np.random.default_rng(3)
    p = []
    for _ in range(100):
        parts = [draw(rng, n)[1] for n in (400, 250)]
        events, exits = (np.stack([part[k].reshape(20) for part in parts]) for k in (0, 1))
        p.append(noisy_curves.logrank_test(events, exits, NOISE, weighting)[2])
    assert not np.isnan(p).any()
    assert 0 <= np.sum(np.array(p) < 0.05) <= 12
    parts = [draw(rng, 2000, rate)[1] for rate in (0.08, 0.16)]
    events, exits = (np.stack([part[k].reshape(20) for part in parts]) for k in (0, 1))
    _, freedom, p_value, _ = noisy_curves.logrank_test(events, exits, NOISE, weighting)
    assert p_value < 1e-6
    assert freedom == 1
    assert math.isnan(noisy_curves.logrank_test(events / 100, exits / 100, NOISE, weighting)[2])


def test_one_row_is_in_one_cell_of_each_kind(monkeypatch):
    monkeypatch.setattr(discrete, "gaussian", lambda variance, n, source=None: np.zeros(n, dtype=np.int64))
    program = PrivateLifetimeProgram(
        "t", "e", (10.0, 20.0), 3, 1.0, 1e-6, "g", ("a", "b"), causes=("relapse", "death")
    )
    for t, e, g in ((5, "death", "a"), (1e9, "relapse", "b"), (20, 0, "b"), (11, "relapse", "a")):
        row = pd.DataFrame({"t": [float(t)], "e": [e], "g": [g]})
        vector = program.local(0, row, {}) / noise_share.SCALE
        events, exits = np.split(vector, [program.blocks[0].length])
        assert events.sum() == float(e != 0 and t <= 20)
        assert exits.sum() == 1
        assert set(np.unique(vector)) <= {0.0, 1.0}


def test_private_survival_runs_between_parties_and_is_charged():
    fed, grid, levels = rows(3000), list(range(50, 701, 50)), {"sex": ["F", "M"]}
    call = {"time": "time", "event": "event", "grid": grid, "levels": levels, "epsilon": 2.0}
    hazard = tacit.stats.nelson_aalen(fed, by="sex", **call)
    incidence = tacit.stats.aalen_johansen(fed, cause=1, causes=[1], **call)
    test = tacit.stats.logrank(fed, by="sex", runtime="inprocess", **call)
    for found in (hazard, incidence, test):
        assert found.ledger.spent[0].epsilon == 2.0
        assert any("noise for ε = 2" in note for note in found.notes)
    assert hazard.groups == ["F", "M"]
    assert (incidence.table["low"] <= incidence.table["high"]).all()
    assert 0 <= test.p <= 1
    with pytest.raises(BadParameter, match="none with epsilon"):
        tacit.stats.logrank(fed, by="sex", strata="age", **call)
    with pytest.raises(BadParameter, match="entry"):
        tacit.stats.nelson_aalen(fed, entry="age", **call)
