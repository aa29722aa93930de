"""Membership scores against independent implementations, and the ROC curve against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score, roc_curve

from tacit.audit import roc, scores
from tacit.errors import BadData, BadParameter


def shadows_of(seed: int, shadows: int, rows: int):
    rng = np.random.default_rng(seed)
    inside = np.zeros((shadows, rows), bool)
    for n in range(rows):
        inside[rng.permutation(shadows)[: shadows // 2], n] = True
    phi = rng.normal(inside * 1.5 + rng.normal(size=rows), 0.5 + rng.random(rows), (shadows, rows))
    return rng.normal(size=rows), phi, inside


def test_the_statistic_is_the_logit_of_the_true_classs_probability():
    out, y = (
        torch.randn(7, 4, generator=torch.Generator().manual_seed(0)) * 3,
        torch.tensor([0, 1, 2, 3, 0, 1, 2]),
    )
    p = torch.softmax(out.double(), -1)[torch.arange(7), y]
    assert torch.allclose(scores.logit_confidence(out, y), (p / (1 - p)).log(), atol=1e-9)


def test_a_certain_model_has_a_finite_statistic():
    """log p/(1 − p) from probabilities is infinite here; from logits it is not."""
    assert scores.logit_confidence(torch.tensor([[900.0, 0.0, -900.0]]), torch.tensor([0])).item() == 900.0


@pytest.mark.parametrize("shadows", [8, 16, 64, 128])
def test_lira_equals_a_few_lines_of_scipy(shadows):
    phi, others, inside = shadows_of(shadows, shadows, 30)
    expected = []
    for n in range(30):
        yes, no = others[inside[:, n], n], others[~inside[:, n], n]
        if shadows >= 64:
            std = yes.std(ddof=1), no.std(ddof=1)
        else:  # one variance for all rows, pooled
            std = tuple(
                math.sqrt(
                    sum(((v := others[m[:, k], k]) - v.mean()) @ (v - v.mean()) for k in range(30))
                    / (30 * (shadows // 2 - 1))
                )
                for m in (inside, ~inside)
            )
        a = stats.norm.logpdf(phi[n], yes.mean(), std[0])
        expected.append(a - stats.norm.logpdf(phi[n], no.mean(), std[1]))
    found = scores.lira(*(torch.from_numpy(a) for a in (phi, others, inside)))
    assert np.allclose(found.numpy(), expected, rtol=1e-9)


def test_offline_lira_equals_the_normal_tail_of_scipy():
    phi, others, inside = shadows_of(1, 64, 20)
    expected = [
        stats.norm.logcdf(phi[n], (no := others[~inside[:, n], n]).mean(), no.std(ddof=1)) for n in range(20)
    ]
    found = scores.lira_offline(*(torch.from_numpy(a) for a in (phi, others, inside)))
    assert np.allclose(found.numpy(), expected, rtol=1e-9)


def test_rmia_equals_its_definition_with_loops():
    phi, others, inside = shadows_of(2, 10, 25)
    z = [3, 9, 20, 24]

    def sigmoid(v):
        return 1 / (1 + np.exp(-v))

    def ratio(n):
        mean = sigmoid(others[~inside[:, n], n]).mean()
        return sigmoid(phi[n]) / (1.3 / 2 * mean + 0.7 / 2)

    share = [np.mean([ratio(n) / ratio(k) >= 2.0 for k in z]) for n in range(25)]
    found = scores.rmia(
        *(torch.from_numpy(a) for a in (phi, others, inside)), torch.tensor(z), gamma=2.0, a=0.3
    )
    assert np.array_equal(np.floor(found.numpy() * len(z) + 1e-9) / len(z), share)


@given(
    st.lists(st.integers(-5, 5), min_size=1, max_size=30),
    st.lists(st.integers(-5, 5), min_size=1, max_size=30),
)
def test_the_curve_and_its_area_are_those_of_scikit_learn(inside, outside):
    made = roc.Roc(np.array(inside, float), np.array(outside, float))
    y, s = [1] * len(inside) + [0] * len(outside), [*inside, *outside]
    assert made.auc == pytest.approx(roc_auc_score(y, s))
    fpr, tpr, _ = roc_curve(y, s, drop_intermediate=False)
    for rate in (0.0, 0.1, 0.5, 0.999):
        assert made.tpr_at(rate) == pytest.approx(max(t for f, t in zip(fpr, tpr) if f <= rate + 1e-12))
    assert set(zip(*(np.round(c, 9) for c in made.curve()))) <= set(zip(np.round(fpr, 9), np.round(tpr, 9)))


def test_the_p_value_is_that_of_mann_and_whitney():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 9, 60).astype(float), rng.integers(0, 8, 50).astype(float)
    expected = stats.mannwhitneyu(a, b, alternative="greater", method="asymptotic", use_continuity=False)
    assert roc.Roc(a, b).p_value == pytest.approx(expected.pvalue, rel=1e-9)


def test_randomized_response_reaches_the_ceiling_and_never_exceeds_it():
    """The answer of ε-private randomized response: TPR = e^ε/(1 + e^ε) at FPR = 1/(1 + e^ε), on the ceiling."""
    for epsilon in (0.1, 1.0, 4.0):
        low = 1 / (1 + math.exp(epsilon))
        assert roc.ceiling(low, epsilon, 0.0) == pytest.approx(1 - low)
    assert roc.ceiling(0.0, 1.0, 0.01) == pytest.approx(0.01)
    assert roc.ceiling(0.3, math.inf, 0.0) == 1.0
    assert roc.largest_auc(0.0, 0.0) == pytest.approx(0.5)
    # the area under the two lines through (1/(1 + e), e/(1 + e)), by hand
    e = math.e
    assert roc.largest_auc(1.0, 0.0) == pytest.approx(
        (e / (1 + e)) ** 2 + (1 / (1 + e)) * (e / (1 + e)), abs=1e-6
    )


def test_bad_scores_and_rates_are_refused():
    with pytest.raises(BadData, match="diverged"):
        roc.Roc(np.array([np.nan]), np.array([0.0]))
    with pytest.raises(BadData, match="at least one member"):
        roc.Roc(np.array([]), np.array([0.0]))
    with pytest.raises(BadParameter, match="between 0 and 1"):
        roc.Roc(np.array([1.0]), np.array([0.0])).tpr_at(2)


def test_the_plot_draws_the_ceiling():
    made = roc.draw("t", {"lira": roc.Roc(np.arange(5.0), np.arange(3.0))}, (1.0, 1e-5))
    assert "ceiling of ε = 1, δ = 1e-05" in made.svg
    assert "ceiling" not in roc.draw("t", {"lira": roc.Roc(np.arange(5.0), np.arange(3.0))}).svg
