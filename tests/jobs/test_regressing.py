from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.metrics import log_loss, mean_absolute_error, r2_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import tacit
from tacit import data
from tacit.errors import BadData, BadParameter


def in_raw_units(made):
    """Coefficients and intercept of a scikit-learn model behind a StandardScaler, in the units of the
    columns.
    """
    scaler, model = made[0], made[1]
    coefficients = np.ravel(model.coef_) / scaler.scale_
    return coefficients, float(np.ravel(model.intercept_)[0] - coefficients @ scaler.mean_)


def of(run, *names):
    return torch.cat([run.weights[n] for n in names]).numpy()


def test_logistic_ridge_regression_equals_scikit_learns_on_breast_cancer():
    """Columns in their own units, from 0.001 to 4,254. C = 0.05, 45 steps: coefficients of standardized
    columns to 0.01, where the largest is 0.4.
    """
    rows = data.breast_cancer().rows
    x, y = rows.x.double(), rows.y
    test, train = torch.arange(0, len(y), 5), torch.tensor([i for i in range(len(y)) if i % 5])
    held = ({"guest": x[test][:, :10], "host": x[test][:, 10:]}, y[test])
    run = tacit.regress(
        {"guest": x[train][:, :10], "host": x[train][:, 10:]},
        {"guest": y[train]},
        test=held,
        l2=20 / len(train),
        momentum=0.7,
        epochs=45,
    )
    theirs = make_pipeline(StandardScaler(), LogisticRegression(C=0.05, max_iter=5000, tol=1e-8)).fit(
        x[train], y[train]
    )
    w, b = in_raw_units(theirs)
    std = x[train].std(0, correction=0).numpy()
    assert np.abs((of(run, "guest", "host") - w) * std).max() < 0.01
    scores = x[test].numpy() @ of(run, "guest", "host") + run.intercept
    assert np.abs(scores - (x[test].numpy() @ w + b)).max() < 0.05
    proba = theirs.predict_proba(x[test])[:, 1]
    assert run.metrics["auc"] == pytest.approx(roc_auc_score(y[test], proba), abs=1e-3)
    assert run.metrics["loss"] == pytest.approx(log_loss(y[test], proba), abs=1e-3)
    assert run.metrics["accuracy"] == pytest.approx(theirs.score(x[test], y[test]), abs=1e-9)


@pytest.mark.parametrize(("l2", "theirs"), [(0.0, LinearRegression()), (0.05, Ridge(alpha=0.05 * 354))])
def test_linear_and_ridge_regression_equal_scikit_learns_on_diabetes(l2, theirs):
    """354 rows of raw columns (ages, cholesterol); correlated blood values at two parties."""
    x, y = load_diabetes(return_X_y=True, scaled=False)
    x, y = torch.from_numpy(x), torch.from_numpy(y) + 0.25  # whole numbers would be classes
    train, test = torch.arange(354), torch.arange(354, len(y))
    held = ({"clinic": x[test][:, :5], "lab": x[test][:, 5:]}, y[test])
    run = tacit.regress(
        {"clinic": x[train][:, :5], "lab": x[train][:, 5:]},
        {"clinic": y[train]},
        test=held,
        l2=l2,
    )
    assert run.converged
    assert run.notes == ()
    model = make_pipeline(StandardScaler(), theirs).fit(x[train], y[train])
    w, _ = in_raw_units(model)
    std = x[train].std(0, correction=0).numpy()
    assert np.abs((of(run, "clinic", "lab") - w) * std).max() < 5e-4 * float(y.std())
    guess = model.predict(x[test])
    assert np.abs(run.predict(held[0]).numpy() - guess).max() < 1e-3 * float(y.std())
    assert run.metrics["r2"] == pytest.approx(r2_score(y[test], guess), abs=1e-3)
    assert run.metrics["mae"] == pytest.approx(mean_absolute_error(y[test], guess), rel=1e-3)


def correlated(noise, n=200):
    """A column that three parties measure, with some noise, and one of each party's own."""
    g = torch.Generator().manual_seed(0)
    shared = torch.randn(n, 1, generator=g)
    x = {
        name: torch.cat(
            [shared + noise * torch.randn(n, 1, generator=g), torch.randn(n, 1, generator=g)], 1
        ).double()
        for name in ("a", "b", "c")
    }
    signal = torch.cat(list(x.values()), 1) @ torch.tensor([20.0, 40, 60, -20, 10, 20]).double()
    return x, 100 + signal + 5 * torch.randn(n, generator=g)


def test_the_linear_model_is_exact_where_parties_measure_nearly_the_same():
    """Correlations of 0.999 between columns of different parties."""
    x, y = correlated(0.03)
    run = tacit.regress(x, {"a": y}, test_fraction=0)
    pooled = torch.cat(list(x.values()), 1).numpy()
    assert run.converged
    expected = LinearRegression().fit(pooled, y.numpy())
    assert np.abs(of(run, "a", "b", "c") - expected.coef_).max() < 0.01
    assert np.abs(run.predict(x).numpy() - expected.predict(pooled)).max() < 0.05
    short = tacit.regress(x, {"a": y}, test_fraction=0, solver="descent", epochs=10)
    assert short.converged is None
    assert "not checked" in short.notes[0]


@pytest.mark.parametrize(("noise", "converged"), [(0.004, False), (0.0, True)])
def test_collinear_columns_of_different_parties_are_reported(noise, converged):
    x, y = correlated(noise)
    run = tacit.regress(x, {"a": y}, test_fraction=0, solver="newton")
    assert run.converged is converged
    assert ("NOT CONVERGED" in run.notes[0]) is not converged
    assert "nearly collinear" in run.notes[0]


def test_separated_classes_are_reported_as_not_converged():
    g = torch.Generator().manual_seed(0)
    x = {"a": torch.randn(100, 2, generator=g), "b": torch.randn(100, 2, generator=g)}
    y = (x["a"][:, 0] - x["b"][:, 1] > 0).long()
    run = tacit.regress(x, {"a": y}, epochs=8, test_fraction=0)
    assert run.converged is False
    assert "NOT CONVERGED" in run.notes[0]
    steady = tacit.regress(x, {"a": y}, epochs=14, momentum=0.3, l2=1.0, test_fraction=0)
    assert steady.converged
    assert float((steady.predict(x).round() == y).double().mean()) > 0.9


def test_predictions_need_the_columns_of_training():
    import pandas as pd

    x = {"a": torch.randn(60, 2), "b": torch.randn(60, 2)}
    run = tacit.regress(x, {"a": torch.arange(60) % 2}, epochs=2, test_fraction=0)
    assert run.predict(x).shape == (60,)
    for columns, words in (
        ({"a": x["a"]}, r"it must be the columns of \['a', 'b'\] by party"),
        ({"a": x["a"], "b": x["b"][:9]}, "the same at all parties"),
        ({"a": x["a"], "b": x["b"][:, :1]}, "2, as in training"),
    ):
        with pytest.raises(BadParameter, match=words):
            run.predict(columns)
    with pytest.raises(BadData, match="the table of 'a' has no column"):
        run.predict({"a": pd.DataFrame({"other": [1.0]}), "b": x["b"][:1]})


def test_numbers_come_out_in_their_own_units_in_processes_too():
    g = torch.Generator().manual_seed(0)
    x = {"a": torch.randn(200, 2, generator=g), "b": torch.randn(200, 3, generator=g)}
    y = 100 + 20 * (x["a"] @ torch.tensor([1.0, -2.0]) + x["b"] @ torch.tensor([0.5, 0.0, 3.0])) + 0.01
    run = tacit.regress(x, {"a": y}, epochs=40, momentum=0.3, test_fraction=0.1, runtime=tacit.Processes())
    assert torch.allclose(run.weights["b"], torch.tensor([10.0, 0.0, 60.0], dtype=torch.float64), atol=0.05)
    assert abs(run.intercept - 100) < 0.1
    assert run.metrics["r2"] > 0.999


def test_labels_without_columns_of_their_own_and_opened_test_scores():
    g = torch.Generator().manual_seed(0)
    x = {"a": torch.randn(100, 2, generator=g), "b": torch.randn(100, 2, generator=g)}
    y = (x["a"][:, 0] - x["b"][:, 1] > 0).long()
    run = tacit.regress(x, {"registry": y}, epochs=5)
    assert set(run.weights) == {"a", "b"}
    assert run.metrics["auc"] > 0.9
    assert "ScoreShare" not in {line.kind for line in run.ledger.seen}
    scored = tacit.regress(x, {"registry": y}, epochs=5, test_scores=True)
    assert {n: scored.metrics[n] for n in ("auc", "accuracy", "f1")} == pytest.approx(
        {n: run.metrics[n] for n in ("auc", "accuracy", "f1")}
    )
    assert scored.metrics["loss"] == pytest.approx(run.metrics["loss"], abs=1e-3)
    assert any(stamp.startswith("TEST SCORES OPENED") for stamp in scored.ledger.stamps)
    assert not any(stamp.startswith("TEST SCORES OPENED") for stamp in run.ledger.stamps)


def test_opened_test_scores_of_numbers_give_the_same_metrics():
    g = torch.Generator().manual_seed(0)
    x = {"a": torch.randn(100, 2, generator=g), "b": torch.randn(100, 2, generator=g)}
    y = 7000 + 300 * (x["a"][:, 0] - x["b"][:, 1] + torch.randn(100, generator=g))
    hidden, scored = (
        tacit.regress(x, {"a": y}, epochs=5, test_scores=opened).metrics for opened in (False, True)
    )
    assert hidden == pytest.approx(scored, rel=1e-3)
    assert hidden["r2"] > 0.4


def test_without_test_rows_nothing_is_opened_about_them():
    x = {"a": torch.randn(40, 2), "b": torch.randn(40, 2)}
    run = tacit.regress(x, {"a": torch.arange(40) % 2}, epochs=2, test_fraction=0)
    assert run.metrics == {}
    assert {line.kind for line in run.ledger.seen} & {"MetricShare", "ScoreShare"} == set()


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"secure": "trust"}, r"secure is 'trust'; it must be 'shared'\.$"),
        (
            {"family": "linear", "l2": 0.1},
            r"family is 'linear'; it must be 'logistic' for two classes, 'linear' for numbers\. These "
            r"labels are of 2 classes",
        ),
        ({"batch_size": 2}, r"regress: batch_size is 2; it must be a whole number of at least 8, or None"),
        ({"l2": -1}, r"l2 is -1; it must be a number of at least 0"),
        ({"lr": 0}, r"lr is 0; it must be a number above 0"),
        (
            {"lr": 1.5},
            r"lr is 1\.5; it must be at most 1 where 2 parties have columns\. A larger one can diverge",
        ),
    ],
)
def test_bad_requests(told, words):
    x = {"a": torch.randn(60, 2), "b": torch.randn(60, 2)}
    with pytest.raises(BadParameter, match=words):
        tacit.regress(x, {"a": torch.arange(60) % 2}, **told)
