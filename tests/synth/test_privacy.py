"""Attacks find what is there and nothing else. Each statistical statement is on a fixed seed, with its
false-alarm probability under fresh ones.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tacit.synth import privacy
from tacit.synth.scores import auc_with_interval, excess_risk, wilson_interval
from tacit.synth.views import Views

from .clinic import patients, shuffled


def attacked(made: pd.DataFrame, n: int = 700, seed: int = 0) -> dict:
    views = Views(patients(n, 0), made, patients(n, 1))
    keys = [views.column_index(c) for c in ("age", "smokes", "ward")]
    return {s.name: s for s in privacy.measure(views, keys, np.random.default_rng(seed))}


@pytest.fixture(scope="module")
def copied() -> dict:
    return attacked(patients(700, 0).sample(700, replace=True, random_state=1).reset_index(drop=True))


@pytest.fixture(scope="module")
def fresh() -> dict:
    return attacked(patients(700, 2))


def test_a_bootstrap_of_the_real_table_scores_badly(copied):
    """A bootstrap holds 63% of the rows: these have distance 0, the other 37% are as far as strangers, so the
    AUC is near .63 + .37/2 = .82.
    """
    assert copied["exact copies"].value == 1
    assert copied["exact copies"].reference == 0
    assert copied["near copies"].value == 1
    assert copied["distance ratio"].value == 0
    assert copied["distance ratio"].reference > 0.5
    assert copied["nearer to training"].value == 1
    assert copied["membership AUC"].value == pytest.approx(0.816, abs=0.03)
    assert copied["membership AUC"].interval[0] > 0.75
    assert copied["membership AUC (calibrated)"].interval[0] > 0.7
    assert copied["adversarial accuracy loss"].value > 0.15
    assert copied["linkability risk"].interval[0] > 0.4
    assert copied["inference risk"].interval[0] > 0.3
    assert copied["attribute inference"].value > copied["attribute inference"].reference + 0.2
    assert copied["identity disclosure"].value > 1.3 * copied["identity disclosure"].reference


def test_new_rows_of_the_population_reveal_no_member(fresh):
    """An honest release. Each interval holds its null with 95%; the bounds below are four standard errors, a
    false alarm of 1e-4 each.
    """
    assert fresh["exact copies"].value == 0
    assert abs(fresh["membership AUC"].value - 0.5) < 4 * np.sqrt(1 / 12 * 2 / 700)
    assert fresh["membership AUC"].interval[0] < 0.5 < fresh["membership AUC"].interval[1] + 0.02
    assert abs(fresh["near copies"].value - fresh["near copies"].reference) < 0.06
    assert abs(fresh["nearer to training"].value - 0.5) < 0.1
    assert abs(fresh["attribute inference"].value - fresh["attribute inference"].reference) < 0.06
    for name in ("singling-out risk", "linkability risk", "inference risk"):
        assert fresh[name].interval[0] < 0.03, name
    assert abs(fresh["adversarial accuracy loss"].value) < 0.1


def test_one_row_in_ten_copied_is_seen():
    """70 of 700 synthetic rows are copies: the copy rate is .1 exactly; near copies at least that."""
    made = pd.concat([patients(630, 2), patients(700, 0).iloc[:70]], ignore_index=True)
    found = attacked(made)
    assert found["exact copies"].value == pytest.approx(0.1)
    assert found["exact copies"].interval[0] > 0.07
    assert found["near copies"].value >= 0.1
    assert found["nearer to training"].value > 0.52


def test_slightly_blurred_copies_are_not_exact_copies_but_are_detected():
    real = patients(700, 0)
    blurred = real.assign(age=real["age"] + 0.01, weight=real["weight"] - 0.01)
    found = attacked(blurred)
    assert found["exact copies"].value == 0
    assert found["near copies"].value > 0.99
    assert found["membership AUC"].value > 0.95


def test_separately_shuffled_columns_copy_no_row():
    found = attacked(shuffled(patients(700, 0), 4))
    assert found["exact copies"].value == 0
    assert found["membership AUC"].interval[0] < 0.53


def test_a_column_that_only_training_rows_could_know_is_an_inference_risk():
    """Everything but `noise` is copied too, so the nearest row is the person; `noise` is the secret that
    comes with it.
    """
    found = attacked(patients(700, 0))
    parts = found["inference risk"].parts
    assert set(parts) == {"age", "weight", "smokes", "noise", "ward", "ill"}
    assert parts["noise"] > 0.5


def test_every_metric_declares_and_keeps_its_range(copied, fresh):
    for found in (copied, fresh):
        assert len(found) == 13
        for score in found.values():
            assert score.metric.facet == "privacy"
            assert score.metric.low <= score.value <= score.metric.high
            if score.interval:
                assert score.metric.low <= score.interval[0] <= score.interval[1] <= score.metric.high


def test_small_tables_and_single_columns_are_attacked_without_a_stumble():
    one = Views(
        pd.DataFrame({"x": np.arange(9.0) + 0.5}),
        pd.DataFrame({"x": np.arange(5.0)}),
        pd.DataFrame({"x": np.arange(4.0)}),
    )
    found = {s.name: s for s in privacy.measure(one, [0], np.random.default_rng(0))}
    assert found["linkability risk"].note == "a single column cannot be split"
    assert "attribute inference" not in found


def test_delongs_interval_is_right_about_as_often_as_it_says():
    """400 experiments of 60 against 80 draws, true AUC Φ(1/√2): 95% intervals hold it 95% of the time; fewer
    than 90% has a false alarm of 1e-5.
    """
    rng = np.random.default_rng(0)
    truth = stats.norm.cdf(1 / np.sqrt(2))
    held = 0
    for _ in range(400):
        _, low, high = auc_with_interval(rng.normal(1, 1, 60), rng.normal(0, 1, 80))
        held += low <= truth <= high
    assert held / 400 > 0.9


def test_the_area_counts_ties_as_half_and_perfect_separation_keeps_some_doubt():
    """By hand: of 4 pairs (1>0, 1=1, 2>0, 2>1) three win and one ties: 3.5/4."""
    assert auc_with_interval(np.array([1.0, 2.0]), np.array([0.0, 1.0]))[0] == pytest.approx(3.5 / 4)
    auc, low, high = auc_with_interval(np.ones(50), np.zeros(50))
    assert (auc, high) == (1, 1)
    assert low == pytest.approx(1 - 3 / 50)


def test_wilson_and_the_excess_risk_by_hand():
    """Wilson for 0 of 10: center z²/2n / (1 + z²/n) = .1388, from 0 to .2775. Excess: (.6 − .2)/(1 − .2) =
    .5.
    """
    assert wilson_interval(0, 10) == pytest.approx((0.13877, 0.0, 0.27753), abs=1e-4)
    value, low, high = excess_risk((0.6, 0.55, 0.65), (0.2, 0.15, 0.25))
    assert value == pytest.approx(0.5)
    # to first order, propagation of errors
    assert high - value == pytest.approx(np.hypot(0.05 / 0.8, 0.05 * 0.4 / 0.64), abs=0.003)
    assert value - low == pytest.approx(np.hypot(0.05 / 0.8, 0.05 * 0.4 / 0.64), abs=0.003)
    assert excess_risk((0.1, 0.05, 0.15), (0.3, 0.25, 0.35))[0] == 0


def test_an_excess_over_a_rate_that_may_be_anything_is_not_shown():
    """All of 14 predicates succeed, .59 of them on held-out people, where 0 to 1 is possible: by propagation of
    errors the excess would be .37 to 1.
    """
    attack = wilson_interval(14, 14)
    assert excess_risk(attack, (wilson_interval(8, 14)[0], 0.0, 1.0))[1:] == (0, 1)
    assert excess_risk(attack, (0.55, 0.5, 0.6))[1] > 0.3


def test_the_interval_of_the_excess_covers_the_true_one():
    """40 predicates, 10% against 0 to 10%; 2,000 draws: coverage below .93 has probability below 1e-4."""
    rng = np.random.default_rng(0)
    for control in (0.0, 0.05, 0.1):
        true = (0.1 - control) / (1 - control)
        draws = zip(rng.binomial(40, 0.1, 2000), rng.binomial(40, control, 2000))
        ends = [excess_risk(wilson_interval(a, 40), wilson_interval(c, 40))[1:] for a, c in draws]
        assert np.mean([low <= true <= high for low, high in ends]) > 0.93
