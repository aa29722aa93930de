"""Metrics from sums: what parties add up must equal what the pooled predictions would give. scikit-learn is
the judge.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from tacit.engine.metrics import BINS, Counts, count, measure


def outputs(n: int, classes: int, seed: int, sharp: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores that know something about the labels."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    out = rng.normal(size=(n, classes)) + 1.2 * np.eye(classes)[y]
    return torch.tensor(out * sharp, dtype=torch.float32), torch.tensor(y)


def summed(out: torch.Tensor, y: torch.Tensor, classes: int | None, parts: int, seed: int) -> Counts:
    """The same rows, partitioned across parties of any size, some of them empty."""
    owner = torch.from_numpy(np.random.default_rng(seed).integers(0, parts, len(y)))
    owner[owner == 1] = 0  # nobody is at party 1
    total = count(out[owner == 0], y[owner == 0], classes)
    for k in range(1, parts):
        total = total.add(count(out[owner == k], y[owner == k], classes))
    return total


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 200), classes=st.integers(2, 6), parts=st.integers(2, 6), seed=st.integers(0, 999))
def test_metrics_from_summed_counts_are_those_of_the_pooled_predictions(
    n: int, classes: int, parts: int, seed: int
) -> None:
    out, y = outputs(n, classes, seed)
    got, guess = measure(summed(out, y, classes, parts, seed)), out.argmax(1)
    present = np.unique(y)  # classes absent from the rows have no recall and are left out of the means
    options = {"labels": present, "average": "macro", "zero_division": 0}
    assert got["accuracy"] == pytest.approx(sk.accuracy_score(y, guess))
    assert got["precision"] == pytest.approx(sk.precision_score(y, guess, **options))
    assert got["recall"] == pytest.approx(sk.recall_score(y, guess, **options))
    assert got["f1"] == pytest.approx(sk.f1_score(y, guess, **options))
    assert got["loss"] == pytest.approx(
        sk.log_loss(y, torch.softmax(out.double(), 1), labels=np.arange(classes)),
        rel=1e-5,
        abs=1e-6,  # of a small loss: logits below 8 in float32 are off by up to 5e-7
    )


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(40, 300),
    classes=st.integers(2, 4),
    parts=st.integers(2, 5),
    seed=st.integers(0, 999),
    sharp=st.sampled_from([0.01, 1.0, 8.0]),
)
def test_the_auc_from_histograms_is_within_its_stated_error(
    n: int, classes: int, parts: int, seed: int, sharp: float
) -> None:
    """Also with equal scores (many ties) and scores near 0 and 1 (few bins used)."""
    out, y = outputs(n, classes, seed, sharp)
    got = measure(summed(out, y, classes, parts, seed))
    scores = torch.softmax(out.double(), 1).numpy()
    truth = (
        sk.roc_auc_score(y, scores[:, 1])
        if classes == 2
        else sk.roc_auc_score(y, scores, multi_class="ovr", average="macro", labels=np.arange(classes))
    )
    assert abs(got["auc"] - truth) <= got["auc_error"] + 1e-9


def test_the_auc_error_is_small_for_scores_that_spread() -> None:
    out, y = outputs(2000, 3, 0)
    assert measure(count(out, y, 3))["auc_error"] < 2 / BINS


def test_the_auc_of_scores_that_are_all_the_same_is_a_half_and_says_so() -> None:
    got = measure(count(torch.zeros(10, 2), torch.tensor([0, 1] * 5), 2))
    assert got["auc"] == got["auc_error"] == 0.5


def test_classes_without_rows_are_excluded() -> None:
    """By hand: true 0 0 1 1 1, guessed 0 1 1 1 3, of four classes. Recalls 1/2, 2/3; precisions 1/1, 2/3; F1
    2/3, 2/3.
    """
    y, guess = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0, 1, 1, 1, 3])
    got = measure(count(torch.nn.functional.one_hot(guess, 4).float(), y, 4))
    assert got["accuracy"] == pytest.approx(3 / 5)
    assert got["recall"] == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert got["precision"] == pytest.approx((1 + 2 / 3) / 2)
    assert got["f1"] == pytest.approx(2 / 3)


def test_one_class_alone_has_no_auc_and_no_rows_have_no_metrics() -> None:
    assert "auc" not in measure(count(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64), 3))
    assert measure(count(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), 3)) == {}
    assert measure(count(torch.zeros(0, 1), torch.zeros(0), None)) == {}


@settings(max_examples=15, deadline=None)
@given(n=st.integers(1, 50), parts=st.integers(2, 5), seed=st.integers(0, 99))
def test_a_regressions_loss_is_the_mean_squared_error(n: int, parts: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    out, y = (
        torch.tensor(rng.normal(size=(n, 1)), dtype=torch.float32),
        torch.tensor(rng.normal(size=n), dtype=torch.float32),
    )
    got = measure(summed(out, y, None, parts, seed))
    assert got == {"loss": pytest.approx(sk.mean_squared_error(y, out[:, 0]), rel=1e-5)}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_diverged_model_has_no_score_rather_than_that_of_class_zero(value: float) -> None:
    got = measure(count(torch.full((6, 3), value), torch.tensor([0, 1, 2] * 2), 3))
    assert got.keys() == {"loss", "accuracy", "precision", "recall", "f1"}
    assert all(v != v for v in got.values())
