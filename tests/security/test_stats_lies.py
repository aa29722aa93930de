"""Coordinators of statistics that lie about rows, coefficients and correlations, and budgets that must hold.

Where it is short, a test also runs the attack without the rule, and there it succeeds.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit.accounting.account import FILE, Account
from tacit.accounting.compose import Release
from tacit.crypto import exact
from tacit.errors import BadJob, BudgetSpent, ProtocolError, QueryRefused
from tacit.jobs.lifetime import read_lifetime
from tacit.jobs.stats.answers import AnswerFile
from tacit.jobs.stats.contract import SumContract
from tacit.jobs.stats.policy import StatsPolicy, admit
from tacit.protocols.sum_program import KeptAnswers, SumStep, _answer
from tacit.stats import glm_sums, rare_rows
from tacit.stats.clustered import FINAL, MEAN, GeeProgram, MixedProgram
from tacit.stats.design import Agreement
from tacit.stats.disclosure import check_concentration, require_effective_rows
from tacit.stats.glm_sums import Pieces
from tacit.stats.hazards import CoxProgram
from tacit.stats.newton import Scaling
from tacit.stats.noisy import NoisyProgram
from tacit.stats.regression import NEWTON, GlmProgram, write_scaling


def rows(n=60, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    return pd.DataFrame({"x": x, "y": (rng.random(n) < 0.5).astype(float), "cost": rng.gamma(3, 1, n)})


def step(point):
    p = len(point)
    return {
        "levels": Agreement({}).to_tensor(),
        "rows": torch.tensor(1000),
        "phase": torch.tensor(NEWTON),
        "point": torch.tensor(point, dtype=torch.float64),
        "null": torch.ones(1, dtype=torch.float64),
        **write_scaling(Scaling(np.zeros(p), np.ones(p), 0)),
    }


# --- a party that would leave itself out of a sum -----------------------------------------------------------


def test_coefficients_outside_the_family_are_refused_at_once_and_said_in_a_fixed_sentence():
    """Zeros from such a party would leave it out: the sum with it, minus the sum without, would be its own."""
    program = GlmProgram("cost ~ x", "gamma", "inverse")
    assert len(program.local(2, rows(), step([1.0, 0.01])))
    with pytest.raises(QueryRefused, match="outside the range of the family") as refusal:
        program.local(2, rows(), step([-1.0, 0.01]))
    assert refusal.value.outside == glm_sums.OUT_OF_RANGE


def test_no_step_of_a_gamma_model_leaves_a_party_out_of_the_sum():
    """A point that is valid for two parties and not for the third opens nothing."""
    program = GlmProgram("cost ~ x", "gamma", "inverse")
    tables = {"a": rows(40, 1), "b": rows(40, 2), "c": rows(40, 3).assign(x=lambda t: t["x"] - 60)}
    point = step([1.0, 0.02])
    message = SumStep(2, bytes(8), bytes(8), point)
    answered = []
    for name, table in tables.items():
        kept = KeptAnswers()
        kept.keep(1, b"", np.zeros(0, np.int64))
        try:
            _answer(name, program, table, kept, message)
            answered.append(name)
        except QueryRefused:
            assert kept.find(2) is None
    assert answered == ["a", "b"]  # and without c's masks, their vectors are noise (test_sum_program.py)


# --- a stated number of rows ---------------------------------------------------------------------------------


def ask(program, table, folder, policy=None, lifetime=None, edition=""):
    contract = SumContract.of(program, ["a", "b", "c"], data={"edition": edition})
    answers = AnswerFile(folder, "a", contract.digest)
    admit(policy or StatsPolicy(), contract, program, table, answers, folder, lifetime=lifetime)


@pytest.mark.parametrize("kind", ["glm", "cox"])
def test_a_saturated_model_is_refused_by_the_partys_own_rows_whatever_the_coordinator_states(kind, tmp_path):
    """The coordinator states a million rows; three parties of 12 rows each have 13 coefficients."""
    names = [f"x{k}" for k in range(13)]
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(12, 13)), columns=names).assign(
        y=rng.integers(0, 2, 12), t=1.0 + np.arange(12)
    )
    formula = " + ".join(names)
    program = GlmProgram(f"y ~ {formula}") if kind == "glm" else CoxProgram(formula, "t", "y")
    with pytest.raises(QueryRefused, match=r"12 complete rows, and the model has 1[34] coefficients"):
        ask(program, table, tmp_path)
    assert not (tmp_path / "row-sets.jsonl").exists()
    ask(program, table, tmp_path, StatsPolicy(rows_per_coefficient=0))  # its owner may trust the coordinator
    few = GlmProgram("y ~ x0 + x1")
    ask(few, table, tmp_path)
    with pytest.raises(QueryRefused, match="9 rows, and its policy requires 10"):
        ask(few, table.head(9), tmp_path)


# --- weights on few rows of a small party --------------------------------------------------------------------


def test_a_small_party_requires_two_rows_by_weight():
    """12 rows: coefficients that give one of them 90% of the weight pass the general rule, not the policy."""
    weights = np.array([1.0, *([0.01] * 11)])
    check_concentration(weights)
    with require_effective_rows(StatsPolicy().effective_rows):
        with pytest.raises(QueryRefused, match=r"rest on 1.2 of 12 rows .* at least 2 are required"):
            check_concentration(weights)
        check_concentration(np.ones(12))
        check_concentration(np.array([1.0, 0.9]))  # two rows cannot be fewer than two
    check_concentration(weights)


def test_the_policy_holds_inside_the_partys_tasks():
    import asyncio

    async def party():
        return await asyncio.create_task(step_of_a_task())

    async def step_of_a_task():
        check_concentration(np.array([1.0, *([0.01] * 11)]))

    with require_effective_rows(2.0), pytest.raises(QueryRefused):
        asyncio.run(party())
    asyncio.run(party())


# --- models of sites -----------------------------------------------------------------------------------------


def gee(point, rho, phase=MEAN):
    return {
        "point": torch.tensor(point, dtype=torch.float64),
        "rho": torch.tensor(rho, dtype=torch.float64),
        "phase": torch.tensor(phase),
    }


def test_a_correlation_that_singles_a_site_out_is_refused():
    """Near −1/(n − 1) the inverse of a site's correlations is as large as one likes: its score is the sum."""
    program = GeeProgram("y ~ x", "binomial", None, {}, (0.0, 0.0))
    target, other = rows(30, 1), rows(60, 2)
    assert len(program.local(3, target, gee([0.0, 0.0], 0.1, FINAL)))
    for rho in (-1 / 29 + 1e-12, -0.9, 1.0, 2.0, float("nan")):
        with pytest.raises(ProtocolError, match="single a site out"):
            program.local(3, target, gee([0.0, 0.0], rho))
    # what it would show: with the rule for the other's rows only, the target's part outweighs it a million times
    n, r = len(target), np.array(target["y"]) - 0.5
    rho = -1 / (n - 1) + 1e-9
    amplified = abs(r.sum() / (1 + rho * (n - 1)))
    assert amplified > 1e6 * abs(other["y"].sum())


@pytest.mark.parametrize("kind", [GeeProgram, MixedProgram])
def test_site_models_refuse_coefficients_that_give_one_row_all_the_weight(kind):
    table = rows(50)
    program = kind("y ~ x", "binomial", None, {}, (0.0, 0.0))
    steep = [-4000 * float(table["x"].iloc[5]), 4000.0]
    if kind is GeeProgram:
        honest, attack = gee([0.0, 0.1], 0.05), gee(steep, 0.05)
    else:
        honest, attack = (
            {"point": torch.tensor([*p, s], dtype=torch.float64)} for p, s in (([0, 0.1], 0.5), (steep, 0.0))
        )
    assert len(program.local(3, table, honest))
    with pytest.raises(QueryRefused, match="rest on"):
        program.local(3, table, attack)


def test_a_site_model_needs_coefficients_of_its_own_form():
    from tacit.stats.site_model import SiteModelProgram

    program = SiteModelProgram("gee", "y ~ x", "binomial", None, {}, "drop", 10, 40)
    down = {**gee([0.0, 0.0], 0.0), "agreed": Agreement({}).to_tensor()}
    good = {**down, "start": torch.zeros(2, dtype=torch.float64)}
    assert len(program.local(9, rows(), good)) == program.length(9, good)
    for start in (torch.zeros(3, dtype=torch.float64), torch.zeros(2), torch.full((2,), torch.nan).double()):
        with pytest.raises(ProtocolError, match="another form"):
            program.local(9, rows(), {**down, "start": start})


# --- one account for training and statistics ------------------------------------------------------------------


def noisy(epsilon=1.0):
    return NoisyProgram(3, epsilon, 1e-6, (("x", -3.0, 3.0),))


def test_what_training_spent_is_not_there_for_statistics(tmp_path):
    """The coordinator trains first, then asks for statistics under another contract: one ε bounds both."""
    training = Account(Release(1.0), 1e-6, 9.0, 20, tmp_path / FILE, limit=20, key="contract rows", total=8.0)
    for r in range(2):
        training.spend(r + 1)
    spent = training.lifetime(1e-6)
    assert 7.0 < spent < 8.0
    ask(noisy(0.5), rows(), tmp_path, lifetime=8.0, edition="1")
    with pytest.raises(BudgetSpent, match=r"for all training and statistics together"):
        ask(noisy(4.0), rows(), tmp_path, lifetime=8.0, edition="2")
    ask(noisy(4.0), rows(), tmp_path / "without", lifetime=8.0, edition="2")  # another party's account
    ask(noisy(4.0), rows(), tmp_path, edition="2")  # no such policy: only [stats] epsilon would bound it


def test_what_statistics_spent_is_not_there_for_training(tmp_path):
    for edition in "12345":
        ask(noisy(1.0), rows(), tmp_path, lifetime=4.0, edition=edition)
    training = Account(Release(1.0), 1e-6, 8.0, 20, tmp_path / FILE, limit=20, key="contract rows", total=4.0)
    with pytest.raises(BudgetSpent, match="their owner allows 4"):
        training.spend(1)
    assert training.spent == 0
    free = Account(Release(1.0), 1e-6, 8.0, 20, tmp_path / FILE, limit=20, key="contract rows")
    free.spend(1)  # without the rule the coordinator gets both


def test_the_lifetime_is_read_from_the_policy(tmp_path):
    assert read_lifetime(None) is None
    assert read_lifetime(tmp_path) is None
    (tmp_path / "policy.toml").write_text("[privacy]\nepsilon = 5.5\n[stats]\nmin_parties = 2\n")
    assert read_lifetime(tmp_path) == 5.5
    (tmp_path / "policy.toml").write_text("[privacy]\nbudget = 5.5\n")
    with pytest.raises(BadJob, match="no key 'budget'"):
        read_lifetime(tmp_path)


def test_a_description_of_a_lying_step_still_reads_as_pieces():
    """The layout of a round did not change: what a refusal replaced was a flag, which is still 0."""
    program = GlmProgram("y ~ x")
    pieces = Pieces(program.model, False)
    vector = exact.decode(program.local(2, rows(), step([0.0, 0.0])))
    assert vector[0] == 0
    assert len(vector) == pieces.count(2) + pieces.count(1) + rare_rows.POWERS * 2
    assert tacit.stats.glm({k: rows(50, s) for s, k in enumerate("abc")}, "y ~ x").rounds <= 10
