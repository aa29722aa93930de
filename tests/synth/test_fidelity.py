"""Fidelity figures against scipy, against numbers worked by hand, and against SDMetrics' own (recorded;
benchmarks/sdmetrics_agree.py prints them).
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tacit.synth import fidelity
from tacit.synth.scores import tvd
from tacit.synth.views import View, Views, nearest_rows, nearest_rows_without


def mixed(n: int = 600, seed: int = 0, shift: float = 0.0) -> pd.DataFrame:
    """The small study of the issue: two correlated normals and a class."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    c = rng.choice(list("abcde"), n, p=[0.3, 0.2, 0.4, 0.07, 0.03])
    return pd.DataFrame(
        {
            "x": x + shift,
            "y": 0.5 * x + np.sqrt(0.75) * rng.normal(size=n),
            "c": c,
            "d": np.where(rng.random(n) < 0.7, c, "f"),
        }
    )


def test_the_ks_complement_is_scipys():
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = rng.normal(size=rng.integers(2, 80)).round(1), rng.normal(0.3, 1, rng.integers(2, 80)).round(1)
        assert fidelity.ks_complement(a, b) == pytest.approx(
            1 - stats.ks_2samp(a, b, method="asymp").statistic
        )


def test_missing_values_are_left_out_of_the_ks_complement_and_all_missing_is_the_worst():
    a = np.array([1.0, 2.0, np.nan])
    assert fidelity.ks_complement(a, np.array([1.0, 2.0])) == 1
    assert fidelity.ks_complement(a, np.array([np.nan])) == 0
    assert fidelity.ks_complement(np.array([np.nan]), np.array([np.nan])) == 1


def test_total_variation_by_hand():
    """a: (.5, .5), b: (.75, .25): half of |.25| + |.25|."""
    assert tvd(np.array([0.5, 0.5]), np.array([0.75, 0.25])) == 0.25
    views = Views(
        pd.DataFrame({"c": list("aabb"), "d": list("xyxy")}),
        pd.DataFrame({"c": list("aaab"), "d": list("xxyy")}),
        None,
    )
    assert fidelity.shapes(views, views.synthetic)["c"] == 0.75


def test_the_scores_are_sdmetrics_own():
    """All except a number with a category, where SDMetrics compares different intervals. SDMetrics 0.32.0 on these two
    tables (600 and 500 rows, seeds 0 and 1, shift .3): printed by benchmarks/sdmetrics_agree.py.
    """
    views = Views(mixed(), mixed(500, 1, 0.3), None)
    _, (columns, numbers, joint) = fidelity.quality(views, views.synthetic)
    for name, value in RECORDED.items():
        assert (columns | numbers | joint)[name] == pytest.approx(value, abs=1e-9)


def test_a_table_against_itself_is_perfect_and_cannot_be_detected():
    frame = mixed()
    views = Views(frame, frame.copy(), frame.copy())
    found = {s.name: s for s in fidelity.measure(views, np.random.default_rng(0))}
    for name in (
        "quality score",
        "KS complement",
        "TV complement",
        "correlation similarity",
        "contingency similarity",
    ):
        assert found[name].value == pytest.approx(1)
        assert found[name].reference == pytest.approx(1)
    assert found["moments"].value == 0
    assert (
        found["detection AUC"].value < 0.55
    )  # 1,200 rows: a fresh pair stays below with probability 1 − 1e-3 or more; fixed seed


def test_a_shifted_table_is_detected_and_its_moments_are_off():
    views = Views(mixed(), mixed(seed=1, shift=3.0), mixed(seed=2))
    found = {s.name: s for s in fidelity.measure(views, np.random.default_rng(0))}
    assert found["detection AUC"].value > 0.9
    assert found["detection AUC"].reference < 0.6
    assert (
        found["moments"].parts["x"] > 0.5
    )  # the mean is three standard deviations off: a third of that at least
    assert found["latent clusters"].value > found["latent clusters"].reference


def test_every_metric_declares_its_name_range_and_direction_and_keeps_them():
    views = Views(mixed(), mixed(seed=1, shift=1.0), mixed(seed=2))
    for score in fidelity.measure(views, np.random.default_rng(0)):
        assert score.metric.facet == "fidelity"
        assert score.metric.doc
        assert score.metric.better in ("higher", "lower")
        for value in (score.value, score.reference, *score.parts.values()):
            assert score.metric.low <= value <= score.metric.high, score.name


def test_a_constant_column_and_a_new_category_are_accepted():
    real = pd.DataFrame({"k": [1.5] * 50, "c": ["a", "b"] * 25, "x": np.arange(50) / 7})
    made = pd.DataFrame({"k": [1.5] * 40, "c": ["a", "z"] * 20, "x": np.arange(40) / 7})
    views = Views(real, made, None)
    assert views.levels[views.column_index("c")] == ["a", "b", "z"]
    score, (columns, numbers, _) = fidelity.quality(views, views.synthetic)
    assert columns["c"] == 0.5
    assert "k × x" not in numbers
    assert math.isfinite(score)


def test_neighbors_equal_those_of_a_plain_search():
    """Brute force in float64 against the product: places may differ only where distances tie."""
    rng = np.random.default_rng(1)
    real, made = mixed(300, 3), mixed(200, 4)
    real.loc[rng.permutation(300)[:30], "x"] = np.nan
    views = Views(real, made, None)
    a, b = views.points(views.real), views.points(views.synthetic)
    plain = np.sqrt(((a[:, None] - b[None]) ** 2).sum(2))
    far, where = nearest_rows(a, b, 3)
    assert np.allclose(far, np.sort(plain, axis=1)[:, :3], atol=1e-5)
    assert np.allclose(np.take_along_axis(plain, where, 1), far, atol=1e-9)
    own = nearest_rows(a, a, 1, skip_self=True)[0][:, 0]
    square = np.sqrt(((a[:, None] - a[None]) ** 2).sum(2)) + np.diag(np.full(300, np.inf))
    assert np.allclose(own, square.min(1), atol=1e-5)
    for j, place in nearest_rows_without(views, views.real, views.synthetic):
        others = [k for k in range(4) if k != j]
        p, q = views.points(views.real, others), views.points(views.synthetic, others)
        reached = np.sqrt(((p - q[place]) ** 2).sum(1))
        assert np.allclose(reached, np.sqrt(((p[:, None] - q[None]) ** 2).sum(2)).min(1), atol=2e-3)


def test_two_categories_are_one_apart_and_a_number_runs_from_0_to_1():
    frame = pd.DataFrame({"c": ["a", "b"] * 100, "x": np.linspace(0, 1, 200)})
    views = Views(frame, frame.copy(), None)
    c = views.points(View("r", views.real.x[:2]), [views.column_index("c")])
    assert np.linalg.norm(c[0] - c[1]) == pytest.approx(1)
    x = views.points(views.real, [views.column_index("x")])
    assert x.min() == pytest.approx(-0.01, abs=0.02)
    assert x.max() == pytest.approx(1.01, abs=0.02)


RECORDED = {
    "x": 0.8453333333333333,
    "y": 0.9366666666666666,
    "c": 0.9486666666666667,
    "d": 0.9403333333333334,
    "x × y": 0.9569499531485006,
    "c × d": 0.9233333333333333,
}
