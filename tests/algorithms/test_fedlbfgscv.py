"""FedLBFGSCV: cross-validation of the penalty, compared with scikit-learn on the pooled rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge

import tacit
from tacit import data, models
from tacit.algorithms import Batch, FedLBFGSCV, LocalState
from tacit.algorithms.fedlbfgscv import FEWEST_ROWS, HANDICAPS, PENALTIES
from tacit.algorithms.plan import identify, plan
from tacit.engine.losses import Objective
from tacit.engine.task import Task
from tacit.errors import BadParameter
from tacit.jobs.train.plan import make_plan, prepare
from tacit.private import DPSGD
from tacit.runs import load_state

SIZES = (60, 20, 151, 90)  # the second is too small for folds


def federation(is_regression: bool) -> data.Federation:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(sum(SIZES), 5)).astype(np.float32)
    score = x @ np.array([1.0, -0.5, 0.25, 0.0, 0.0]) + rng.logistic(size=len(x))
    y = score if is_regression else np.digitize(score, [-0.7, 0.7])
    party = np.repeat(["a", "b", "c", "d"], SIZES)
    return data.from_arrays(x, y, test_fraction=0.0, groups={"party": party}, regression=is_regression).by(
        "party", held_fraction=0.0
    )


def folds_of(fed: data.Federation, seed: int) -> np.ndarray:
    """The fold of each row: its place in the first pass of its party; −1 at the party without folds."""
    fold = np.full(len(fed.rows.y), -1)
    for k, name in enumerate(fed.parties):
        own = fed.train.of(k).numpy()
        if len(own) >= 5 * FEWEST_ROWS:
            order = plan(seed, 0, identify([name]), np.array([len(own)]), 1, None).index[0, 0].numpy()
            fold[own[order]] = np.arange(len(own)) % 5
    return fold


@pytest.mark.parametrize("is_regression", [False, True], ids=["logistic", "linear"])
def test_losses_and_model_are_those_of_scikit_learns_models_of_the_pooled_rows(
    is_regression: bool, tmp_path: Path
) -> None:
    """Σ ℓ + (c/2)·‖W‖² over the rows outside a fold: C = 1/c, or α = c/2 for squared errors."""
    fed = federation(is_regression)
    model: Any = "linear" if is_regression else "logistic"
    run = tacit.train(
        fed,
        model=model,
        algorithm=FedLBFGSCV(),
        rounds=40,
        batch_size=None,
        seed=7,
        evaluate_every=0,
        out=tmp_path / "run",
    )
    x, y, fold = fed.rows.x.numpy().astype(float), fed.rows.y.numpy(), folds_of(fed, 7)
    expected, coefficients = [], []
    for c in PENALTIES:

        def fit(rows: np.ndarray, c: float = c) -> Any:
            kind = (
                Ridge(alpha=c / 2) if is_regression else LogisticRegression(C=1 / c, tol=1e-9, max_iter=999)
            )
            return kind.fit(x[rows], y[rows])

        total = 0.0
        for f in range(5):
            part, out = fit(fold != f), fold == f
            total += (
                ((part.predict(x[out]) - y[out]) ** 2).sum()
                if is_regression
                else -part.predict_log_proba(x[out])[np.arange(out.sum()), y[out]].sum()
            )
        expected.append(total / len(y))
        coefficients.append(fit(fold > -2).coef_)
    losses = load_state(tmp_path / "run")[0]["server.losses"]
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    best = int(np.argmin(np.multiply(expected, 1 + np.array(HANDICAPS))))
    weights = next(p for p in run.model.parameters() if p.dim() > 1).detach().numpy()
    # softmax does not change if all its scores do
    centered = weights if is_regression else weights - weights.mean(0)
    np.testing.assert_allclose(centered, np.atleast_2d(coefficients[best]), atol=2e-3)
    (note,) = [e["text"] for e in run.events if e["kind"] == "note" and "cross-validation" in e["text"]]
    assert note.startswith(f"l2 = {PENALTIES[best]:g}/n ")


@pytest.mark.parametrize(
    "objective",
    [Objective(), Objective("focal", (1.0, 3.0, 0.5)), Objective("mse")],
    ids=["cross-entropy", "focal, weighted", "mse"],
)
def test_all_models_at_once_are_the_models_one_by_one(objective: Objective) -> None:
    g = torch.Generator().manual_seed(0)
    is_regression = objective.loss == "mse"
    x, y = torch.randn(30, 4, generator=g), torch.randint(0, 3, (30,), generator=g)
    module = models.build("linear" if is_regression else "logistic", (4,), 1 if is_regression else 3, 0)
    task = Task(module, x, y.float() if is_regression else y, objective)
    each = torch.randn(6, task.dim, generator=g)
    batch = Batch(torch.randperm(30, generator=g)[:12], torch.ones(12), torch.zeros((), dtype=torch.int64))
    left_out = (torch.arange(12) % 6 == torch.arange(6)[:, None]).float()
    live = 1 - left_out
    live[:, 9:] = left_out[:, 9:] = 0  # padding
    live[2] = 0  # nothing left
    at = LocalState(each[0], {}, {}, torch.zeros(()))
    together = task.sums_of_models(each, at, batch, live, left_out)[0]
    task.dense = None
    torch.testing.assert_close(
        task.sums_of_models(each, at, batch, live, left_out)[0], together, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(("folds", "batch_size"), [(5, None), (20, None), (5, 9), (5, 25)])
def test_no_server_gets_the_gradient_of_a_fold_with_few_rows(folds: int, batch_size: int | None) -> None:
    """The models of a penalty are equal at first, so their gradients differ by the fold that was left out.

    50 rows in batches of 9: the fifth fold has the fifth row of each batch, 6 in all.
    """
    equal = folds == 5 and batch_size != 9
    for rows, has_folds in ((5 * FEWEST_ROWS - 1, False), (5 * FEWEST_ROWS, equal)):
        fed = data.from_arrays(
            np.random.default_rng(0).normal(size=(rows, 3)), np.arange(rows) % 2, test_fraction=0.0
        ).split(1, held_fraction=0.0)
        p = make_plan(fed, model="logistic", algorithm=FedLBFGSCV(folds=folds))
        task, start = prepare(p)
        down = start | p.algorithm.server_state(start["w"])
        batches = plan(0, 0, identify(["x"]), np.array([rows]), 1, batch_size).of(0)
        upload, _ = p.algorithm.local(task, down, {}, batches)
        gradients = upload.vectors["g"].view(len(PENALTIES), folds + 1, -1)
        assert bool((gradients != gradients[:, -1:]).any()) == has_folds
        assert bool(upload.vectors["losses"].any()) == has_folds


def test_parties_too_small_for_folds_take_10_over_n() -> None:
    rng = np.random.default_rng(1)
    fed = data.from_arrays(rng.normal(size=(90, 3)), np.arange(90) % 2, test_fraction=0.0).split(3)
    run = tacit.train(fed, model="logistic", algorithm=FedLBFGSCV(), rounds=30)
    (note,) = [e["text"] for e in run.events if e["kind"] == "note" and e["text"].startswith("l2 = ")]
    assert note.startswith("l2 = 10/n ")
    assert "fewer than 50" in note
    plain = tacit.train(
        fed, model="logistic", algorithm="FedLBFGS", rounds=30, l2=10 / int(fed.train.sizes.sum())
    )
    for a, b in zip(run.model.parameters(), plain.model.parameters()):
        torch.testing.assert_close(a, b, atol=2e-4, rtol=0)


@pytest.mark.parametrize("option", ["l2", "private", "guard"])
def test_what_cross_validation_does_not_go_with_is_refused(option: str) -> None:
    fed = federation(is_regression=False)
    value: Any = {"l2": 0.1, "private": DPSGD(epsilon=3.0, delta=1e-5), "guard": [tacit.guard.Clip(1.0)]}[
        option
    ]
    with pytest.raises(BadParameter, match=f"{option}: .*FedLBFGSCV"):
        make_plan(fed, model="logistic", algorithm=FedLBFGSCV(), **{option: value})
