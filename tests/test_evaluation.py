"""Testing models: on the global test set and at every party, from predictions or from counts alone."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import nn

from tacit import data
from tacit.data import Holdings, Rows
from tacit.engine import evaluation
from tacit.engine.losses import Objective
from tacit.engine.metrics import count, measure_regression
from tacit.engine.subgroups import Tally
from tacit.engine.task import Task


def made(test: bool = True, empty: bool = True, regression: bool = False) -> tuple[data.Federation, Task]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 4))
    y = x @ rng.normal(size=4) if regression else (x @ rng.normal(size=(4, 3))).argmax(1)
    fed = data.from_arrays(x, y, classes=None if regression else 3).split(4, seed=0, held_fraction=0.3)
    if empty:  # one party held nothing back
        fed = dataclasses.replace(
            fed, held=Holdings.from_lists([fed.held.of(k) if k != 2 else [] for k in range(4)])
        )
    if not test:
        fed = dataclasses.replace(fed, test=Rows(fed.test.x[:0], fed.test.y[:0]))
    return fed, Task(
        nn.Linear(4, 1 if regression else 3),
        fed.rows.x,
        fed.rows.y,
        Objective("mse" if regression else "cross_entropy"),
    )


def both(fed: data.Federation, task: Task) -> tuple[dict, dict]:
    """By one process that has all rows; from what each party counted."""
    w, rules = task.initial()["w"], evaluation.Rules(fed.classes)
    (one,) = evaluation.evaluate(task, w[None], None, [fed.test], [evaluation.held_out(fed, fed.rows, rules)])
    answers = {
        name: Tally(
            count(task.predict(w, fed.rows.x[fed.held.of(k)]), fed.rows.y[fed.held.of(k)], fed.classes)
        )
        if len(fed.held.of(k))
        else None
        for k, name in enumerate(fed.parties)
    }
    return one, evaluation.gather(task, w, None, fed.test, answers, rules)


@pytest.mark.parametrize("test", [True, False], ids=["global test set", "none"])
def test_counts_of_the_parties_give_what_one_process_sees(test: bool) -> None:
    fed, task = made(test)
    one, gathered = both(fed, task)
    assert one.keys() == gathered.keys()
    for key in one.keys() - {"parties", "confusion", "calibration", "curve"}:
        assert one[key] == pytest.approx(gathered[key], rel=1e-6), key
    assert one["confusion"] == gathered["confusion"]
    assert one["parties"] == gathered["parties"]
    rows = fed.test if test else Rows(fed.rows.x[fed.held.index], fed.rows.y[fed.held.index])
    assert one["accuracy"] == pytest.approx(float((task.module(rows.x).argmax(1) == rows.y).float().mean()))


def test_a_party_is_measured_on_its_own_held_out_rows_and_one_without_any_is_not() -> None:
    fed, task = made()
    each = both(fed, task)[0]["parties"]["accuracy"]
    assert each[2] is None
    for k in (0, 1, 3):
        rows = fed.held.of(k)
        assert each[k] == pytest.approx(
            float((task.module(fed.rows.x[rows]).argmax(1) == fed.rows.y[rows]).float().mean())
        )


@pytest.mark.parametrize("test", [True, False], ids=["global test set", "none"])
def test_a_regression_has_errors_and_no_accuracies(test: bool) -> None:
    """R² and the errors are known from summed counts, too."""
    fed, task = made(test, regression=True)
    rows = fed.test if test else Rows(fed.rows.x[fed.held.index], fed.rows.y[fed.held.index])
    guess = task.module(rows.x)[:, 0].detach()
    want = {
        "loss": sk.mean_squared_error(rows.y, guess),
        "mae": sk.mean_absolute_error(rows.y, guess),
        "rmse": sk.root_mean_squared_error(rows.y, guess),
        "r2": sk.r2_score(rows.y, guess),
    }
    for found in both(fed, task):
        intervals = {k for k in found if k.endswith(("_low", "_high"))}
        assert len(intervals) == 2 * len(want)
        assert found.keys() - intervals == {"untested", *want}
        assert {k: found[k] for k in want} == pytest.approx(want, rel=1e-5)


def test_equal_numbers_have_no_variance_to_explain() -> None:
    assert measure_regression(torch.tensor([[1.0], [2.0]]), torch.tensor([2.0, 2.0])) == {
        "mae": 0.5,
        "r2": 0.0,
    }


def test_nobody_held_anything_back() -> None:
    fed, task = made(test=False)
    fed = dataclasses.replace(fed, held=Holdings.from_lists([[]] * 4))
    one, gathered = both(fed, task)
    assert one == gathered == {"parties": {"accuracy": [None] * 4}, "untested": 4}


def test_several_models_are_measured_each_on_its_own_rows() -> None:
    (fed, task), (other, _) = made(), made(test=False, empty=False)
    w = task.initial()["w"]
    pair = evaluation.evaluate(
        task,
        torch.stack([w, -w]),
        None,
        [fed.test, other.test],
        [evaluation.held_out(f, f.rows, evaluation.Rules(3)) for f in (fed, other)],
    )
    alone = [
        evaluation.evaluate(
            task, v[None], None, [f.test], [evaluation.held_out(f, f.rows, evaluation.Rules(3))]
        )[0]
        for v, f in ((w, fed), (-w, other))
    ]
    assert pair == alone
