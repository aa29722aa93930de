"""Intervals, calibration, thresholds and subgroups from summed counts, on real predictions. scikit-learn and
SciPy are the judges.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import calibration, datasets, linear_model
from sklearn import metrics as sk
from sklearn.model_selection import train_test_split

from tacit.engine.intervals import intervals, wilson
from tacit.engine.metrics import (
    BINS,
    Counts,
    choose_metric,
    count,
    describe,
    is_better,
    judged_by,
    measure_all,
)
from tacit.engine.subgroups import SMALL, count_subgroups, measure_subgroups, merge_small

MOMENTS = 1 / (2 * BINS)  # half a bin: how far the mean score of a calibration bin may be off


@functools.cache
def predictions(classes: int) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Logits, labels and probabilities of a logistic regression on rows it has not seen."""
    x, y = (
        datasets.load_breast_cancer(return_X_y=True) if classes == 2 else datasets.load_wine(return_X_y=True)
    )
    rng = np.random.default_rng(0)
    x = (x - x.mean(0)) / x.std(0) + rng.normal(scale=3.0, size=x.shape)  # hard enough to make mistakes
    a, b, ya, yb = train_test_split(x, y, test_size=0.5, random_state=0)
    model = linear_model.LogisticRegression(C=0.1).fit(a, ya)
    share = model.predict_proba(b)
    return torch.log(torch.tensor(share)).float(), torch.tensor(yb), share


def summed(out: torch.Tensor, y: torch.Tensor, classes: int | None, parts: int = 5) -> Counts:
    owner = torch.arange(len(y)) % parts
    counts = [count(out[owner == k], y[owner == k], classes) for k in range(parts)]
    return functools.reduce(Counts.add, counts)


@pytest.mark.parametrize("classes", [2, 3])
def test_average_precision_brier_and_baseline_are_those_of_scikit_learn(classes: int) -> None:
    out, y, share = predictions(classes)
    got = measure_all(summed(out, y, classes))
    truth = sk.average_precision_score(
        y if classes == 2 else np.eye(classes)[y], share[:, 1] if classes == 2 else share
    )
    assert abs(got["average_precision"] - truth) <= got["average_precision_error"] + 1e-9
    assert got["average_precision_error"] < 0.02
    assert got["brier"] == pytest.approx(
        sk.brier_score_loss(y, share[:, 1] if classes == 2 else share), abs=1e-6
    )
    assert got["majority"] == np.bincount(y).max() / len(y)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(2, 60), seed=st.integers(0, 10**6), levels=st.sampled_from([2, 7, 5000]))
def test_the_binning_error_of_the_average_precision_is_a_bound_whatever_the_ties(
    n: int, seed: int, levels: int
) -> None:
    """Scores on few levels tie exactly, within and across bins of width 1/1024."""
    rng = np.random.default_rng(seed)
    y = torch.tensor(rng.permutation([1, *rng.integers(0, 2, n - 1).tolist()]))
    share = np.clip(rng.integers(0, levels, n) / levels * 0.01 + 0.3, 1e-6, 1 - 1e-6)  # within ten bins
    out = torch.tensor(np.log(np.stack([1 - share, share], 1))).float()
    got = measure_all(count(out, y, 2))
    if "average_precision" not in got:
        assert int(y.sum()) == n
        return
    scores = torch.softmax(out, 1)[:, 1].numpy()
    truth = sk.average_precision_score(y, scores)
    assert abs(got["average_precision"] - truth) <= got["average_precision_error"] + 1e-9


@pytest.mark.parametrize("threshold", [None, 0.2, 0.5, 0.83])
def test_the_confusion_matrix_is_exact_at_any_threshold(threshold: float | None) -> None:
    out, y, share = predictions(2)
    counts = count(out, y, 2, threshold=threshold)
    guess = share[:, 1] >= (0.5 if threshold is None else threshold)
    assert describe(counts)["confusion"] == sk.confusion_matrix(y, guess).tolist()
    assert measure_all(counts)["accuracy"] == sk.accuracy_score(y, guess)
    assert measure_all(counts)["auc"] == measure_all(count(out, y, 2))["auc"]  # a threshold ranks nothing


def test_the_calibration_curve_is_that_of_scikit_learn_up_to_half_a_bin() -> None:
    out, y, share = predictions(2)
    observed, predicted = calibration.calibration_curve(y, share[:, 1], n_bins=16)
    got = np.array(describe(summed(out, y, 2))["calibration"])
    np.testing.assert_allclose(got[:, 1], observed, atol=1e-12)
    np.testing.assert_allclose(got[:, 0], predicted, atol=MOMENTS + 1e-6)
    assert got[:, 2].sum() == len(y)


@pytest.mark.parametrize("least", [5, 40, 1000])
def test_neighboring_bins_of_the_curves_are_merged_until_each_has_enough_rows(least: int) -> None:
    out, y, _ = predictions(2)
    shown = describe(count(out, y, 2), least)
    rows = [n for *_, n in shown["calibration"]]
    assert sum(rows) == len(y)
    assert all(n >= min(least, len(y)) for n in rows)
    # the steps of the ROC curve are the same bins: no step shows fewer rows
    m, n = int(y.sum()), int((1 - y).sum())
    steps = np.diff([[m * tpr + n * fpr] for _, tpr, fpr, _ in shown["curve"]], axis=0).ravel()
    assert all(step < 1e-9 or step >= min(least, len(y)) - 1e-9 for step in steps)


def test_the_roc_curve_goes_through_the_points_of_scikit_learn() -> None:
    out, y, share = predictions(2)
    for threshold, tpr, fpr, precision in describe(count(out, y, 2))["curve"][1:]:
        guess = share[:, 1] >= threshold
        assert tpr == pytest.approx(sk.recall_score(y, guess))
        assert fpr == pytest.approx(1 - sk.recall_score(1 - y, ~guess))
        assert precision == pytest.approx(sk.precision_score(y, guess, zero_division=1))


def test_wilsons_interval_is_scipys() -> None:
    for hits, n in ((0, 12), (7, 12), (12, 12), (870, 1000)):
        want = stats.binomtest(hits, n).proportion_ci(method="wilson")
        assert wilson(hits, n) == pytest.approx((want.low, want.high), abs=1e-12)


def test_delongs_interval_is_that_of_the_placement_values() -> None:
    """DeLong et al., 1988, by the definition: from all pairs of rows."""
    out, y, share = predictions(2)
    positive, negative = share[y == 1, 1], share[y == 0, 1]
    wins = (positive[:, None] > negative) + 0.5 * (positive[:, None] == negative)
    error = np.sqrt(wins.mean(1).var(ddof=1) / len(positive) + wins.mean(0).var(ddof=1) / len(negative))
    counts = count(out, y, 2)
    got, auc = intervals(counts), measure_all(counts)
    half = (got["auc_high"] - got["auc_low"]) / 2
    assert half == pytest.approx(1.959964 * error + auc["auc_error"], rel=0.02)


def bootstrap(metric: str, draw: int, n: int, of: functools.partial) -> tuple[float, float]:
    rng = np.random.default_rng(1)
    values = [of(torch.from_numpy(rng.integers(0, n, n)))[metric] for _ in range(draw)]
    return tuple(np.quantile(values, [0.025, 0.975]))


@pytest.mark.parametrize("metric", ["precision", "recall", "f1", "brier", "loss", "average_precision"])
@pytest.mark.parametrize("classes", [2, 3])
def test_intervals_of_classes_are_as_wide_as_the_bootstraps(metric: str, classes: int) -> None:
    """500 resamples: the bootstrap's own width varies by about 5%."""
    out, y, _ = predictions(classes)
    low, high = bootstrap(metric, 500, len(y), lambda i: measure_all(count(out[i], y[i], classes)))
    got = intervals(count(out, y, classes))
    width = got[f"{metric}_high"] - got[f"{metric}_low"]
    if metric == "average_precision":  # Boyd's logit interval is the wider one
        assert 0.7 < width / (high - low) < 2.5
    else:
        assert width / (high - low) == pytest.approx(1, abs=0.2)


def test_intervals_of_a_regression_are_as_wide_as_the_bootstraps() -> None:
    x, y = datasets.load_diabetes(return_X_y=True)
    out = torch.tensor(linear_model.LinearRegression().fit(x[:200], y[:200]).predict(x[200:]))[:, None]
    target = torch.tensor(y[200:])
    counts = functools.reduce(
        Counts.add, [count(o, t, None) for o, t in zip(out.split(50), target.split(50))]
    )
    got, metrics = intervals(counts), measure_all(counts)
    assert metrics["r2"] == pytest.approx(sk.r2_score(target, out), rel=1e-9)
    rng = np.random.default_rng(0)
    draws = [torch.from_numpy(rng.integers(0, len(target), len(target))) for _ in range(500)]
    for metric in ("r2", "mae", "rmse"):
        values = [measure_all(count(out[i], target[i], None))[metric] for i in draws]
        low, high = np.quantile(values, [0.025, 0.975])
        assert (got[f"{metric}_high"] - got[f"{metric}_low"]) / (high - low) == pytest.approx(1, abs=0.2)
        assert got[f"{metric}_low"] < metrics[metric] < got[f"{metric}_high"]


def test_errors_of_a_regression_are_in_the_units_of_the_table() -> None:
    out, y = torch.tensor([[0.0], [1.0], [0.5]]), torch.tensor([0.2, 0.8, 0.6])
    plain, scaled = measure_all(count(out, y, None)), measure_all(count(out, y, None), scale=10.0)
    assert scaled["r2"] == plain["r2"]
    assert scaled["mae"] == pytest.approx(10 * plain["mae"])
    assert scaled["rmse"] == pytest.approx(10 * plain["rmse"])
    assert scaled["loss"] == pytest.approx(scaled["rmse"] ** 2)
    ends = intervals(count(out, y, None), 10.0)
    for side in ("low", "high"):
        assert ends[f"loss_{side}"] == pytest.approx(ends[f"rmse_{side}"] ** 2)


def test_rows_that_are_separated_perfectly_do_not_have_a_certain_auc() -> None:
    y = torch.tensor([0] * 6 + [1] * 6)
    counts = count(torch.stack([2.0 - 4 * y, 4.0 * y - 2], 1), y, 2)
    assert measure_all(counts)["auc"] == 1
    assert intervals(counts)["auc_low"] == pytest.approx(wilson(6, 6)[0])


def test_shares_of_zero_and_one_do_not_have_certain_intervals() -> None:
    y = torch.tensor([0] * 12 + [1] * 12)
    got = intervals(count(torch.stack([torch.ones(24), torch.zeros(24)], 1), y, 2))  # always class 0
    for name in ("recall", "precision", "f1"):
        assert got[f"{name}_high"] - got[f"{name}_low"] > 0.05


def test_a_diverged_model_has_no_interval() -> None:
    assert intervals(count(torch.full((6, 2), float("nan")), torch.tensor([0, 1] * 3), 2)) == {}
    assert np.isnan(measure_all(count(torch.full((6, 1), float("nan")), torch.zeros(6), None))["r2"])


# the metric that a model is judged by ------------------------------------------------------------------------


def test_the_metric_follows_the_majority_class() -> None:
    assert choose_metric(None, []) == "r2"
    assert choose_metric(2, [65, 35]) == "accuracy"
    assert choose_metric(2, [66, 34]) == "auc"
    assert choose_metric(3, [10, 10, 80]) == "auc"
    assert choose_metric(2, [0, 0]) == "accuracy"


def test_what_is_not_known_is_not_judged_by() -> None:
    skewed = {"majority": 0.9, "auc": 0.7, "accuracy": 0.91, "loss": 0.3}
    assert judged_by(skewed) == "auc"
    assert judged_by(skewed, "brier") == "auc"
    assert judged_by(skewed, "accuracy") == "accuracy"
    assert judged_by({"accuracy": 0.91, "loss": 0.3}) == "accuracy"  # under ε
    assert judged_by({"r2": 0.2, "loss": 0.3}) == "r2"
    assert judged_by({"loss": 0.3}) == "loss"


def test_smaller_errors_and_larger_scores_are_better() -> None:
    assert is_better("auc", 0.8, 0.7)
    assert is_better("brier", 0.1, 0.2)
    assert not is_better("rmse", float("nan"), 1.0)


# subgroups ---------------------------------------------------------------------------------------------------


def cells_of(sizes: list[int], min_rows: int) -> list[int]:
    """Rows of each cell after merging, for one column whose values have so many rows."""
    codes = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))[:, None]
    n = len(codes)
    out, y = torch.randn(n, 2), torch.randint(0, 2, (n,))
    merged = merge_small(count_subgroups(out, y, 2, codes, [len(sizes)]), [len(sizes)], min_rows)
    return merged.rows.long().tolist()


@settings(max_examples=100, deadline=None)
@given(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=6), least=st.integers(1, 25))
def test_every_shown_subgroup_and_every_difference_has_enough_rows(sizes: list[int], least: int) -> None:
    """The cells are a partition, so any difference from the total is a union of cells."""
    cells = cells_of(sizes, least)
    assert sum(cells) == sum(sizes)
    shown = [n for n in cells if n]
    assert all(n >= least for n in shown) or len(shown) <= 1


def test_small_subgroups_are_merged_and_take_the_next_one_if_they_are_too_few() -> None:
    assert cells_of([3, 40, 50], 10) == [0, 0, 50, 43]
    assert cells_of([6, 40, 7], 10) == [0, 40, 0, 13]
    assert cells_of([12, 11], 10) == [12, 11, 0]
    assert cells_of([4, 5], 10) == [0, 0, 9]


def test_metrics_of_a_subgroup_are_those_of_its_rows() -> None:
    out, y, share = predictions(2)
    codes = torch.from_numpy(np.random.default_rng(0).integers(0, 3, len(y)))[:, None]
    cells = count_subgroups(out, y, 2, codes, [3])
    got = measure_subgroups(cells, ["ward"], [("a", "b", "c")], 10)["ward"]
    for k, name in enumerate("abc"):
        mine = (codes[:, 0] == k).numpy()
        assert got[name]["rows"] == mine.sum()
        assert got[name]["accuracy"] == sk.accuracy_score(y[mine], share[mine].argmax(1))
        truth = sk.roc_auc_score(y[mine], share[mine, 1])
        assert abs(got[name]["auc"] - truth) <= got[name]["auc_error"] + 1e-9
        assert got[name]["auc_low"] <= got[name]["auc"] <= got[name]["auc_high"]
    assert SMALL not in got
    assert measure_subgroups(cells, ["ward"], [("a", "b", "c")], 1000) == {}
