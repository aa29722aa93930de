"""Coordinators of statistics that ask for more than the agreed model asks: levels, bins, tests at many points.

Each attack first succeeds where the rule is left out.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit.crypto import exact
from tacit.errors import ProtocolError
from tacit.jobs.stats.answers import AnswerFile
from tacit.protocols.sum_program import KeptAnswers, SumStep, _answer
from tacit.stats import design, hazards
from tacit.stats.clustered import FINAL, MEAN, GeeProgram
from tacit.stats.design import Agreement
from tacit.stats.hazards import BIN, TEST, CoxProgram
from tacit.stats.newton import Scaling
from tacit.stats.regression import FINISH, START, GlmProgram, write_scaling
from tacit.stats.site_model import SiteModelProgram


def patients(n=60):
    k = np.arange(n)
    return pd.DataFrame(
        {
            "age": 20.0 + (k * 7) % 31,
            "sex": np.where(k % 3 == 0, "f", "m"),
            "sick": (k * 5 % 7 < 3).astype(float),
            "week": 1.0 + k % 9,
        }
    )


def real(*values):
    return torch.tensor(values, dtype=torch.float64)


def ask(program, table, answers, step, down):
    message = SumStep(step, bytes(8), bytes(8), down)
    return _answer("north", program, table, answers, message)[1]


# --- levels -------------------------------------------------------------------------------------------------


def glm_start(agreement):
    return {"levels": agreement.to_tensor(), "rows": torch.tensor(1000), "phase": torch.tensor(START)}


def test_levels_of_a_column_of_numbers_would_open_every_value_and_are_refused(monkeypatch):
    """The agreed model is linear in age; a coordinator sends all ages as its levels."""
    table, program = patients(), GlmProgram("sick ~ age", levels={})
    ages = sorted(set(table["age"].astype(int)))
    attack = glm_start(Agreement({"age": tuple(ages)}))
    with pytest.raises(ProtocolError, match="levels of 'age'"):
        program.local(1, table, attack)
    monkeypatch.setattr(design, "check_agreement", lambda *_: None)
    sums = exact.decode(program.local(1, table, attack))
    opened = sums[4 : 3 + len(ages)]  # Σ x: people of each age but the first
    assert opened.tolist() == [float((table["age"] == a).sum()) for a in ages[1:]]


def test_only_levels_that_follow_from_the_contract_and_the_columns_are_used():
    table = patients()
    declared = GlmProgram("sick ~ age + sex", levels={"sex": ["f", "m"]})
    found = GlmProgram("sick ~ age + sex")
    assert len(declared.local(1, table, glm_start(Agreement({"sex": ("f", "m")}))))
    assert len(found.local(1, table, glm_start(Agreement({"sex": ("f", "m", "x")}))))  # another party has x
    for levels in ({"sex": ("m", "f")}, {"sex": ("f", "m", "x")}, {}):
        with pytest.raises(ProtocolError, match="levels of 'sex'"):
            declared.local(1, table, glm_start(Agreement(levels)))
    with pytest.raises(ProtocolError, match="levels of 'week'"):
        found.local(1, table, glm_start(Agreement({"sex": ("f", "m"), "week": (1, 2)})))
    cox = CoxProgram("age + sex", "week", "sick")
    count = {"rows": torch.tensor(1000), "phase": torch.tensor(hazards.COUNT), "cells": torch.tensor(16)}
    assert len(cox.local(1, table, {**count, "levels": Agreement({"sex": ("f", "m")}).to_tensor()}))
    attack = Agreement({"sex": ("f", "m"), "age": tuple(range(20, 51))})
    with pytest.raises(ProtocolError, match="levels of 'age'"):
        cox.local(1, table, {**count, "levels": attack.to_tensor()})
    site = SiteModelProgram("gee", "sick ~ age", "binomial", None, {}, "drop", 10, 10)
    agreed = Agreement({"age": tuple(range(20, 51))}).to_tensor()
    with pytest.raises(ProtocolError, match="levels of 'age'"):
        site.local(9, table, {"agreed": agreed, "start": torch.zeros(31, dtype=torch.float64)})


# --- scores of a Cox model ----------------------------------------------------------------------------------


def cox_step(phase, beta, edges=(0.0,)):
    one = torch.ones(1, dtype=torch.float64)
    cuts = torch.tensor([15])  # all times in one cell
    return {
        "levels": Agreement({}).to_tensor(),
        "rows": torch.tensor(1000),
        "phase": torch.tensor(phase),
        "center": 0 * one,
        "scaled": one,
        "cuts": cuts,
        "points": torch.zeros(1, dtype=torch.int64),
        "starts": torch.tensor([0, 1]),
        "beta": beta * one,
        "edges": real(*edges),
    }


def test_bins_of_scores_are_those_of_the_concordance(monkeypatch):
    """With β as small as one likes, no row has much weight, and bins as fine as one likes show every age."""
    table, program = patients(), CoxProgram("age", "week", "sick")
    fine = np.linspace(0, 100, 10_001)[1:] + 0.005
    attack = cox_step(BIN, 1e-9, 1e-9 * fine)
    with pytest.raises(ProtocolError, match="10001 bins of scores, of which the concordance needs 1000"):
        program.local(2, table, attack)
    monkeypatch.setattr(hazards, "count_bins", lambda points: 1 << 20)
    counts = program.local(2, table, attack).reshape(2, -1).sum(0)
    read = np.repeat(np.arange(10_001) / 100 + 0.01, counts)
    assert np.allclose(read, np.sort(table["age"]), atol=0.011)


@pytest.mark.parametrize("phase", [TEST, BIN])
@pytest.mark.parametrize("on_disk", [False, True])
def test_the_tests_of_a_cox_model_are_asked_once(phase, on_disk, tmp_path):
    """A histogram of scores for every β of the coordinator's choice would be a table of the rows."""
    table, program = patients(), CoxProgram("age", "week", "sick")
    answers = AnswerFile(tmp_path, "north", "c") if on_disk else KeptAnswers()
    ask(program, table, answers, 0, {})
    first = ask(program, table, answers, 1, cox_step(phase, 1e-3, (0.04,)))
    if on_disk:
        answers = AnswerFile(tmp_path, "north", "c")  # the party was restarted
    again = ask(program, table, answers, 1, cox_step(phase, 1e-3, (0.04,)))
    assert (again == first).all()  # the same step, after a lost connection
    with pytest.raises(ProtocolError, match="the agreed program asks that once"):
        ask(program, table, answers, 2, cox_step(phase, 2e-3, (0.05,)))


# --- products of sites' scores ------------------------------------------------------------------------------


def test_products_of_scores_are_opened_at_one_point():
    table = patients()
    glm = GlmProgram("sick ~ age", robust="site")
    down = {
        "levels": Agreement({}).to_tensor(),
        "rows": torch.tensor(1000),
        "phase": torch.tensor(FINISH),
        "null": real(0.0),
        "scale": torch.tensor(1.0),
        **write_scaling(Scaling(np.zeros(2), np.ones(2), 0)),
    }
    answers = KeptAnswers()
    ask(glm, table, answers, 0, {})
    ask(glm, table, answers, 1, {**down, "point": real(0.0, 0.01)})
    with pytest.raises(ProtocolError, match=r"\(finish\), and the agreed program asks that once"):
        ask(glm, table, answers, 2, {**down, "point": real(0.0, 0.02)})

    gee = GeeProgram("sick ~ age", "binomial", None, {}, (0.0, 0.0), "drop", 10)
    answers = KeptAnswers()

    def final(point, phase=FINAL):
        return {"point": real(*point), "rho": torch.tensor(0.0), "phase": torch.tensor(phase)}

    ask(gee, table, answers, 0, final((0.0, 0.0), MEAN))
    ask(gee, table, answers, 1, final((0.0, 0.01), MEAN))
    ask(gee, table, answers, 2, final((0.0, 0.01)))
    with pytest.raises(ProtocolError, match=r"\(final\), and the agreed program asks that once"):
        ask(gee, table, answers, 3, final((0.0, 0.02)))


def test_honest_models_are_answered_as_before():
    frame = patients(150)
    fed = {"north": frame[:40], "south": frame[40:90], "west": frame[90:]}
    for runtime in ("cohort", "inprocess"):
        cox = tacit.stats.cox(fed, "age + sex", time="week", event="sick", runtime=runtime)
        assert 0 < cox.concordance < 1
        assert tacit.stats.glm(fed, "sick ~ age", robust="site", runtime=runtime).n == 150
        assert tacit.stats.gee(fed, "sick ~ age + sex", runtime=runtime).n == 150
