"""Contribution: Shapley's axioms on games with known answers, estimates against the exact value, and runs
with parties that add nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacit
from tacit import algorithms, audit, data, guard
from tacit.audit import contribution as game
from tacit.errors import BadParameter


def of(function):
    return lambda coalitions: [function(s) for s in coalitions]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5).flatmap(lambda n: st.lists(st.floats(-5, 5), min_size=2**n, max_size=2**n)))
def test_the_values_add_up_to_what_all_gained(u):
    n = int(math.log2(len(u)))
    found = game.shapley(of(lambda s: u[sum(1 << k for k in s)]), n)
    assert found.value.sum() == pytest.approx(found.whole - found.empty, abs=1e-9)
    assert found.coalitions == 2**n


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-3, 3), min_size=8, max_size=8))
def test_symmetry_and_the_null_player(u):
    """Players 0 and 1 are exchangeable, player 3 changes nothing, whatever the rest of the game is."""

    def utility(s):
        return u[(0 in s) + (1 in s) + 3 * (2 in s)]

    found = game.shapley(of(utility), 4)
    assert found.value[0] == pytest.approx(found.value[1], abs=1e-9)
    assert found.value[3] == pytest.approx(0, abs=1e-9)


def test_the_glove_game():
    """Two left gloves, one right: a pair is worth 1. Shapley gives 1/6, 1/6, 2/3."""
    found = game.shapley(of(lambda s: float(2 in s and bool(s & {0, 1}))), 3)
    np.testing.assert_allclose(found.value, [1 / 6, 1 / 6, 2 / 3])
    assert game.leave_one_out(of(lambda s: float(2 in s and bool(s & {0, 1}))), 3).value.tolist() == [0, 0, 1]


def test_sampled_intervals_hold_the_exact_value():
    """At 95% each; over 8 × 20 of them, fewer than 130 inside has a probability below 1e-9."""
    rng = np.random.default_rng(0)
    inside = 0
    for trial in range(20):
        w = rng.random(8)

        def utility(s, w=w):
            return math.sqrt(sum(w[k] for k in s))

        exact = game.shapley(of(utility), 8).value
        found = game.sample_shapley(of(utility), 8, 40, 0.0, 0.95, seed=trial)
        inside += int(((found.low <= exact) & (exact <= found.high)).sum())
        assert found.value.sum() == pytest.approx(found.whole - found.empty)
    assert inside >= 130


def test_orders_are_cut_short_where_nothing_is_left_to_gain():
    asked = []

    def utility(coalitions):
        asked.extend(coalitions)
        return [min(1.0, 0.5 * len(s)) for s in coalitions]

    game.sample_shapley(utility, 10, 10, 0.01, 0.95, seed=0)
    assert max(len(s) for s in asked if len(s) < 10) == 2  # two parties reach it all


@pytest.mark.parametrize(
    ("confidence", "freedom", "known"),
    [(0.95, 1, 12.706), (0.95, 9, 2.262), (0.99, 30, 2.750), (0.95, 1000, 1.962)],
)
def test_students_quantiles_are_those_of_the_tables(confidence, freedom, known):
    assert game.student(confidence, freedom) == pytest.approx(known, abs=2e-3)


def test_payouts():
    assert game.payout(np.array([3.0, 1.0, -2.0]), 100.0).tolist() == [75.0, 25.0, 0.0]
    assert game.payout(np.array([-1.0, 0.0]), 100.0).tolist() == [0.0, 0.0]


@functools.cache
def run(**given):
    fed = data.gaussian_blobs(rows=300, classes=4, features=5, seed=2).split(5, seed=1)
    return tacit.train(fed, model="logistic", algorithm=algorithms.FedAvg(lr=0.2), rounds=3, **dict(given))


@functools.cache
def with_riders(noise):
    fed = data.digits().split(5, seed=1)
    return tacit.train(
        fed,
        model="logistic",
        algorithm=algorithms.FedAvg(lr=0.3),
        rounds=4,
        adversaries=[audit.FreeRide(share=0.2, noise=noise)],
    )


@pytest.mark.parametrize("noise", [0.0, 1.0], ids=["sends the model back", "sends noise"])
@pytest.mark.parametrize("method", ["shapley", "sampled", "reconstructed"])
def test_who_rides_for_free_gets_about_nothing(noise, method):
    found = tacit.contribution(with_riders(noise), method=method, permutations=12)
    rider = found.parties[int(with_riders(noise).origin.adversaries.who[0][0])]
    honest = [v for name, v in found.value.items() if name != rider]
    assert found.value[rider] < 0.2 * np.mean(honest)
    assert found.payout(100.0)[rider] < 6
    if method != "sampled":
        assert sum(found.value.values()) == pytest.approx(found.values.whole - found.values.empty)
        assert found.free_riders(share=0.35) == [rider]


def test_a_coalition_is_what_training_it_alone_gives():
    from tacit.jobs.contribution import _Trained

    whole = run()
    u = _Trained(whole.origin, "accuracy")([frozenset(range(5)), frozenset({2})])
    assert u[0][0] == pytest.approx(whole.metrics["accuracy"])
    found = tacit.compare(
        whole.origin.fed, model="logistic", algorithms=[algorithms.FedAvg(lr=0.2)], rounds=3
    )
    alone = next(g for g in found.summary["gain"])["local"][2]
    assert u[1][0] == pytest.approx(alone)


@pytest.mark.parametrize("engine", ["stack", "each"])
def test_all_together_reconstructed_is_the_run_itself(engine):
    from tacit.jobs.contribution import _Reconstructed

    plan = dataclasses.replace(run().origin, engine=engine)
    u = _Reconstructed(plan, "loss", [])([frozenset(range(5))])
    assert u[0][0] == pytest.approx(-run().metrics["loss"], abs=1e-5)  # less is better


def test_intervals_of_leaving_one_out_are_those_of_the_paired_difference():
    """The jackknife of a mean difference is its standard error: σ/√n with the n − 1 of Student's t."""
    rng = np.random.default_rng(0)
    rows = {s: rng.normal(loc=len(s), size=50) for s in map(frozenset, [(0, 1), (0,), (1,), ()])}

    def utility(coalitions):
        return [[rows[s].mean(), *((rows[s].sum() - v) / 49 for v in rows[s])] for s in coalitions]

    found = game.leave_one_out(utility, 2)
    for k in range(2):
        off = rows[frozenset({0, 1})] - rows[frozenset({1 - k})]
        assert found.value[k] == pytest.approx(off.mean())
        reach = game.student(0.95, 49) * off.std(ddof=1) / math.sqrt(50)
        assert found.high[k] - found.value[k] == pytest.approx(reach, rel=1e-6)
        assert found.value[k] - found.low[k] == pytest.approx(reach, rel=1e-6)


def test_a_value_that_one_test_row_decides_is_paid_nothing():
    """Leaving out any of five similar parties changes the prediction of a test row or two."""
    found = tacit.contribution(run(), method="leave_one_out")
    low, high = found.values.low, found.values.high
    assert (low <= found.values.value).all()
    assert (found.values.value <= high).all()
    assert (high - low).max() > 0
    paid = found.payout(1000.0)
    for k, name in enumerate(found.parties):
        assert (paid[name] > 0) == (low[k] > 0)
    assert found.table()["share"].sum() == pytest.approx(1.0 if any(low > 0) else 0.0)


def test_the_metric_is_the_runs_own_and_less_of_an_error_is_a_contribution():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    y = (x[:, 0] + rng.normal(size=400) > 1.3).astype(int)  # one in six
    fed = data.from_arrays(x, y).split(3, seed=0)
    skewed = tacit.train(fed, model="logistic", algorithm=algorithms.FedAvg(lr=0.5), rounds=4)
    assert skewed.metric == "auc"
    assert tacit.contribution(skewed, method="leave_one_out").metric == "auc"
    by_loss = tacit.contribution(skewed, method="shapley", metric="loss")
    gain = by_loss.values.whole - by_loss.values.empty
    assert sum(by_loss.value.values()) == pytest.approx(gain)
    assert gain > 0
    with pytest.raises(BadParameter, match="metric is 'majority'; it must be one of loss, accuracy"):
        tacit.contribution(skewed, metric="majority")


def test_models_are_as_good_as_what_was_added():
    whole = with_riders(0.0)
    found = tacit.contribution(whole, method="shapley")
    models, fed = found.models(), whole.origin.fed
    score = {
        name: float((m(fed.test.x).argmax(-1) == fed.test.y).double().mean()) for name, m in models.items()
    }
    best, least = max(found.value, key=found.value.get), min(found.value, key=found.value.get)
    assert score[best] == pytest.approx(whole.metrics["accuracy"])
    assert score[least] < score[best] - 0.3


def test_the_table_has_a_row_a_party():
    t = tacit.contribution(run(), method="leave_one_out").table()
    assert list(t.columns) == ["value", "low", "high", "share", "rows"]
    assert len(t) == 5
    assert t["value"].is_monotonic_decreasing


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: tacit.contribution(object()), "run is 'object'; it must be what tacit.train returned"),
        (lambda: tacit.contribution(run(), method="guess"), "method is 'guess'; it must be one of 'auto'"),
        (lambda: tacit.contribution(run(), metric="joy"), "metric is 'joy'; it must be one of"),
        (lambda: tacit.contribution(run(), permutations=1), "permutations is 1"),
        (
            lambda: game.shapley(of(len), 20),
            "the exact Shapley value of 20 parties needs 1,048,576 coalitions",
        ),
    ],
    ids=range(5),
)
def test_what_is_refused(ask, said):
    with pytest.raises(BadParameter, match=said):
        ask()


def test_guarded_runs_and_stateful_algorithms_are_refused():
    fed = data.gaussian_blobs(rows=100, classes=2, features=3, seed=2).split(4)
    hidden = tacit.train(fed, model="logistic", rounds=1, guard=[guard.Clip(1.0)])
    with pytest.raises(BadParameter, match="which the run's guard hides"):
        tacit.contribution(hidden)
    with pytest.raises(BadParameter, match="Scaffold has more to it"):
        tacit.contribution(
            tacit.train(fed, model="logistic", algorithm=algorithms.Scaffold(), rounds=1),
            method="reconstructed",
        )


@pytest.mark.parametrize("method", ["leave_one_out", "reconstructed"])
def test_coalitions_stop_early_as_the_run_did(method):
    """So all parties together are worth what the run's model has, which is that of its best round."""
    fed = data.heart_disease(test_fraction=0).by("hospital")
    run = tacit.train(
        fed, model="mlp", rounds=12, patience=1, metric="auc", algorithm=algorithms.FedAvg(lr=1.0)
    )
    rounds = [e["round"] for e in run.history]
    assert max(rounds) < 12
    found = tacit.contribution(run, method=method)
    assert found.values.whole == pytest.approx(run.metrics["auc"], abs=1e-6)
