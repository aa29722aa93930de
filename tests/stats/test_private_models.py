"""Regression and survival with an ε: noise of the declared size, intervals that include it, declared bounds."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit.accounting import discrete
from tacit.errors import BadParameter, ProtocolError
from tacit.protocols.sum_program import ideal
from tacit.stats import noise_share
from tacit.stats.meta_analysis import PARTY
from tacit.stats.noise_share import Block
from tacit.stats.private_hazards import PrivateCoxProgram
from tacit.stats.private_lifetimes import PrivateLifetimeProgram
from tacit.stats.private_regression import PrivateGlmProgram
from tacit.stats.private_sites import PrivateMixedProgram


def rows(n: int = 12_000) -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(0)
    d = pd.DataFrame({"age": rng.uniform(20, 90, n), "sex": rng.choice(["F", "M"], n)})
    eta = -3 + 0.05 * d["age"] + 0.5 * (d["sex"] == "M")
    d["y"] = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int)
    d["t"], d["c"] = eta + rng.normal(0, 1, n), rng.poisson(np.exp(eta / 2))
    died, left = np.ceil(rng.exponential(200, n)), rng.integers(1, 700, n)
    d["time"], d["event"] = np.minimum(died, left), (died <= left).astype(int)
    return {k: d.iloc[i::3].reset_index(drop=True) for i, k in enumerate("abc")}


DECLARED = {"bounds": {"age": (18, 100), "t": (-6, 6), "c": (0, 15)}, "levels": {"sex": ["F", "M"]}}


@pytest.fixture
def seeded(monkeypatch):
    """Noise from a seed: a test that compares one draw with its errors has the same result every time."""
    rng, draw = np.random.default_rng(7), discrete.gaussian
    monkeypatch.setattr(discrete, "gaussian", lambda variance, n: draw(variance, n, rng.bytes))


@pytest.mark.parametrize(("outcome", "family"), [("y", "binomial"), ("t", "gaussian"), ("c", "poisson")])
def test_noisy_coefficients_are_within_their_widened_errors(outcome, family, seeded):
    """Seeded: 3 coefficients within 6 standard errors, which contain the noise."""
    fed, formula = rows(), f"{outcome} ~ age + sex"
    plain = tacit.stats.glm(fed, formula, family).summary()
    private = tacit.stats.glm(fed, formula, family, epsilon=4.0, **DECLARED)
    table = private.summary().loc[plain.index]
    assert (np.abs(table["coef"] - plain["coef"]) < 6 * table["se"]).all()
    assert (table["se"] > 0.9 * plain["se"]).all()
    assert (table["coef"] != plain["coef"]).all()
    spent = private.ledger.spent[-1]
    assert (spent.epsilon, spent.delta, spent.unit) == (4.0, 1e-6, "row")
    assert "include the noise" in private.notes[0]


def test_a_private_curve_is_within_its_widened_intervals(seeded):
    """Seeded: 20 points within 7 standard errors, which contain the noise."""
    fed, grid = rows(), list(range(35, 701, 35))
    plain = tacit.stats.kaplan_meier(fed, time="time", event="event", grid=grid)
    private = tacit.stats.kaplan_meier(fed, time="time", event="event", grid=grid, epsilon=1.0)
    both = private.table.merge(plain.table, on="time", suffixes=("", "_plain"))
    assert len(both) == len(grid)
    assert (np.abs(both["survival"] - both["survival_plain"]) < 7 * both["se"] + 1e-9).all()
    assert (both["se"] > both["se_plain"] * 0.8).all()
    assert private.ledger.spent[0].epsilon == 1.0
    groups = tacit.stats.kaplan_meier(
        fed, time="time", event="event", by="sex", levels={"sex": ["F", "M"]}, grid=grid, epsilon=1.0
    )
    assert groups.groups == ["F", "M"]


def test_one_row_changes_a_sum_by_no_more_than_the_declared_sensitivity(monkeypatch):
    """The largest row of any kind, without noise: outside the bounds, with a formula that leaves its range."""
    monkeypatch.setattr(discrete, "gaussian", lambda variance, n, source=None: np.zeros(n, dtype=np.int64))
    wild = pd.DataFrame(
        {
            "age": [1e9, -1e9, 37.0],
            "sex": ["M", "F", "M"],
            "y": [1, 0, 1],
            "c": [1e6, 0, 3],
            "t": [9e9, -9e9, 0],
        }
    )
    point = {"point": torch.tensor([3.0, -50.0, 20.0, 9.0], dtype=torch.float64)}
    for outcome, family in (("y", "binomial"), ("t", "gaussian"), ("c", "poisson")):
        bounds = {
            "age": (18.0, 100.0),
            outcome: {"y": (0.0, 1.0), "t": (-6.0, 6.0), "c": (0.0, 15.0)}[outcome],
        }
        program = PrivateGlmProgram(
            f"{outcome} ~ age * sex", family, 3, 1.0, 1e-6, bounds, {"sex": ["F", "M"]}
        )
        blocks = program.blocks(0)
        for k in range(len(wild)):
            part = program.local(0, wild.iloc[[k]].reset_index(drop=True), point) / noise_share.SCALE
            start = 0
            for block in blocks:
                size = float(np.linalg.norm(part[start : start + block.length]))
                assert size <= block.sensitivity + np.sqrt(block.length) / noise_share.SCALE
                start += block.length


def test_shares_of_the_budget_add_up_to_it():
    program = PrivateGlmProgram("y ~ age", "binomial", 5, 1.0, 1e-6, {"age": (0.0, 1.0), "y": (0.0, 1.0)}, {})
    total = sum(block.share for step in range(program.max_steps) for block in program.blocks(step))
    assert total == pytest.approx(1.0)
    curve = PrivateLifetimeProgram("t", "e", (1.0, 2.0), 3, 1.0, 1e-6)
    assert sum(block.share for block in curve.blocks) == 1.0
    multiplier = 1 / np.sqrt(2 * discrete.rho_of(1.0, 1e-6))
    assert program.release.multiplier == pytest.approx(multiplier)


def test_noise_has_the_declared_variance():
    """4,000 samples: the sample variance is within 15% (6.7 standard errors; false alarm below 1e-10)."""
    block = Block(4000, 1.0, 1.0)
    total = np.zeros(4000)
    for _ in range(2):
        total = total + noise_share.add_noise([np.zeros(4000)], [block], 1.0, 1e-6, 2) / noise_share.SCALE
    expected = noise_share.total_variance(1.0, 1e-6, 2, block)
    assert total.var() == pytest.approx(expected, rel=0.15)


def test_bounds_and_levels_are_declared_not_inferred():
    fed = rows(60)
    for options, text in (
        ({}, "the range of 'age'"),
        ({"bounds": {"age": (18, 100)}}, "the range of 'sex'"),
        ({"bounds": {"age": (100, 18)}}, "low < high"),
        ({**DECLARED, "robust": "HC0"}, "robust"),
        ({**DECLARED, "family": "gamma"}, "'gaussian', 'binomial', 'poisson' with epsilon"),
        ({**DECLARED, "delta": 2.0}, "a probability"),
    ):
        with pytest.raises(BadParameter, match=text):
            tacit.stats.glm(fed, "y ~ age + sex", epsilon=1.0, **options)
    with pytest.raises(BadParameter, match="a number above 0"):
        tacit.stats.glm(fed, "y ~ age + sex", epsilon=-1.0, **DECLARED)
    with pytest.raises(BadParameter, match="the times themselves"):
        tacit.stats.kaplan_meier(fed, time="time", event="event", epsilon=1.0)
    with pytest.raises(BadParameter, match="the levels of 'sex'"):
        tacit.stats.kaplan_meier(fed, time="time", event="event", by="sex", grid=[100, 700], epsilon=1.0)


@pytest.mark.parametrize(("family", "high"), [("binomial", 1.0), ("poisson", 15.0)])
def test_where_noise_hides_the_information_intervals_are_wide_instead_of_shrunken(family, high, monkeypatch):
    """Seeded, 30 data sets of 700 rows at ε = 2: 95% intervals of 2 slopes cover at least 90%.

    A Hessian that is raised to its noise would pull the estimate to 0 and its error with it: before, the
    intervals of the Poisson model covered 7%.
    """
    rng = np.random.default_rng(5)
    monkeypatch.setattr(
        discrete,
        "gaussian",
        lambda variance, n: np.rint(rng.normal(0, np.sqrt(float(variance)), n)).astype(np.int64),
    )
    bounds, beta = {"a": (0.0, 60.0), "b": (0.0, 100.0), "y": (0.0, high)}, np.array([0.1, 0.01])
    program = PrivateGlmProgram("y ~ a + b", family, 1, 2.0, 1e-6, bounds, {})
    hits = []
    for _ in range(30):
        x = np.column_stack([rng.exponential(5, 700), rng.uniform(0, 100, 700)])
        eta = (x - [5, 50]) @ beta
        y = rng.random(700) < 1 / (1 + np.exp(-eta)) if family == "binomial" else rng.poisson(np.exp(eta))
        found = ideal(program, {"all": pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y.astype(float)})})
        place = [found.names.index(n) for n in "ab"]
        se = np.sqrt(np.diag(found.covariance))[place]
        hits.append(np.abs(found.beta[place] - beta) < 1.96 * se)
    assert np.mean(hits) >= 0.9


WILD = {"a": (-1.0, 1.0), "b": (-1.0, 1.0), "c": (-1.0, 1.0), "d": (-1.0, 1.0)}


def wild_programs():
    """Programs with four numbers, whose coefficients a coordinator sends, and a step that uses them."""
    x, y = "a + b + c + d", {**WILD, "y": (0.0, 1.0)}
    yield PrivateGlmProgram(f"y ~ {x}", "binomial", 2, 1.0, 1e-6, y, {}), 0
    yield PrivateGlmProgram(f"y ~ {x}", "poisson", 2, 1.0, 1e-6, y, {}), 0
    yield PrivateMixedProgram(f"y ~ {x}", "binomial", ("p", "q"), 1.0, 1e-6, y, {}), 0
    yield PrivateCoxProgram(x, "t", "y", (1.0, 2.0), 2, 1.0, 1e-6, WILD, {}), 1


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("size", [np.finfo(float).max, np.inf, np.nan])
def test_coefficients_that_overflow_for_some_rows_do_not_tell_that_there_are_such(number, size):
    """inf − inf is no number: a sum with one is refused, and without one it is not. Nothing hides the bit."""
    program, step = list(wild_programs())[number]
    rng = np.random.default_rng(0)
    table = pd.DataFrame(np.sign(rng.normal(size=(50, 4))), columns=list(WILD))
    table = table.assign(y=rng.integers(0, 2, 50), t=1.5, **{PARTY: "p"})
    table.iloc[:5, :4] = 0.0  # the middle of the bounds: inf · 0
    numbers = program.length(step, {})

    def ask(rows, value):
        signs = torch.tensor([1.0, -1.0] * 8, dtype=torch.float64)
        down = {"alpha": torch.zeros(2, dtype=torch.float64), "beta": value * signs[:4]}
        first = {PrivateGlmProgram: 1, PrivateMixedProgram: 2}.get(type(program), 0)
        down["point"] = torch.cat([torch.zeros(first, dtype=torch.float64), value * signs[:4]])
        return program.local(step, rows.reset_index(drop=True), down)

    for rows in (table, table.iloc[:5], table.iloc[5:6], table.iloc[6:]):
        with pytest.raises(ProtocolError, match="not those of the agreed model"):
            ask(rows, size)
        found = ask(rows, 1e249)
        assert found.shape == (numbers,)
        assert np.abs(found).max() < program.bound


def odd_rows(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """One more row that is not as declared, of several kinds."""
    last = table.iloc[[-1]]
    return {
        "level": last.assign(g="z"),
        "formula": last.assign(a=0.5),  # 1 / 0
        "time": last.assign(t=-1.0),
        "event": last.assign(y=7),
        "infinite": last.assign(t=np.inf, a=np.inf),
    }


@pytest.mark.parametrize("number", range(4))
def test_a_row_that_is_not_as_declared_is_no_reason_to_refuse(number, monkeypatch):
    """A refusal has no noise: with the levels but one, a query would ask whether anybody has that one."""
    monkeypatch.setattr(discrete, "gaussian", lambda variance, n, source=None: np.zeros(n, dtype=np.int64))
    x, bounds, levels = "I(1 / (a - 0.5)) + b + g", {"a": (0.0, 4.0), "b": (-1.0, 1.0)}, {"g": ["x", "y"]}
    y = {**bounds, "y": (0.0, 1.0)}
    program, step = (
        (PrivateGlmProgram(f"y ~ {x}", "binomial", 2, 1.0, 1e-6, y, levels), 0),
        (PrivateGlmProgram(f"y ~ {x}", "poisson", 2, 1.0, 1e-6, y, levels), 0),
        (PrivateMixedProgram(f"y ~ {x}", "binomial", ("p", "q"), 1.0, 1e-6, y, levels), 0),
        (PrivateCoxProgram(x, "t", "y", (1.0, 2.0), 2, 1.0, 1e-6, bounds, levels, ("g",)), 1),
    )[number]
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.uniform(1, 4, 30), "b": rng.uniform(-1, 1, 30), "t": 1.5, PARTY: "p"})
    table = table.assign(g=rng.choice(["x", "y"], 30), y=rng.integers(0, 2, 30))
    down = {"alpha": torch.zeros(4, dtype=torch.float64), "beta": torch.ones(3, dtype=torch.float64)}
    down["point"] = torch.ones({0: 4, 1: 4, 2: 5, 3: 3}[number], dtype=torch.float64)
    before = program.local(step, table, down)
    for kind, row in odd_rows(table).items():
        after = program.local(step, pd.concat([table, row], ignore_index=True), down)
        change = (after - before) / noise_share.SCALE
        for block in program.blocks(step):
            own, change = np.split(change, [block.length])
            assert np.linalg.norm(own) <= block.sensitivity + 2 * np.sqrt(block.length) / noise_share.SCALE, (
                kind
            )


def test_an_odd_row_is_no_reason_to_refuse_a_private_curve(monkeypatch):
    monkeypatch.setattr(discrete, "gaussian", lambda variance, n, source=None: np.zeros(n, dtype=np.int64))
    program = PrivateLifetimeProgram("t", "y", (1.0, 2.0), 2, 1.0, 1e-6, "g", ("x", "y"))
    table = pd.DataFrame({"t": [0.5, 1.5, 9.0], "y": [1, 0, 1], "g": ["x", "y", "x"], "a": 1.0})
    before = program.local(0, table, {})
    for kind, row in odd_rows(table).items():
        after = program.local(0, pd.concat([table, row], ignore_index=True), {})
        assert kind == "formula" or (after == before).all()  # no formula: a row as any other
