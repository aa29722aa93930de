"""The audit can fail: it lets a private run pass, and finds noise switched off and clipping broken."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tacit
from tacit.audit import canaries
from tacit.errors import BadParameter
from tacit.private import ghost


def untrained(data):
    return tacit.models.build("logistic", tuple(data.rows.x.shape[1:]), data.classes, 0)


def training(**more):
    return lambda data: tacit.train_private(
        data, model="logistic", delta=1e-5, epochs=5, batch_size=256, evaluate_every=0, **more
    )


def test_a_private_run_passes():
    """Fails by chance in at most 5% of runs whose ε is as large as claimed; canaries this weak see about a
    sixth of it.
    """
    found = canaries.one_run(tacit.data.digits(), training(epsilon=4.0), start=untrained)
    assert found.holds
    assert found.claimed == pytest.approx(4.0, rel=0.01)
    assert "consistent with the claimed ε" in str(found)


def test_noise_switched_off_is_found():
    """In 49 runs the bound was 3.9 with a deviation of 0.3: which canaries are in is secret, without a seed."""
    found = canaries.one_run(
        tacit.data.digits(),
        training(noise_multiplier=0.0),
        start=untrained,
        claimed=1.0,
        delta=1e-5,
        size=40.0,
    )
    assert found.lower > 2
    assert not found.holds
    assert "the claimed ε = 1 is WRONG" in str(found)


def test_broken_clipping_is_found(monkeypatch):
    """The noise is there and the account is kept, but gradients pass as they are: a canary of size 20 shows
    through. In 49 runs the bound was 3.4 with a deviation of 0.3.
    """
    monkeypatch.setattr(ghost, "flat_factors", lambda clip: ghost.unit_factors)
    found = canaries.one_run(tacit.data.digits(), training(epsilon=1.0), start=untrained, size=20.0)
    assert found.claimed == pytest.approx(1.0, rel=0.01)
    assert found.lower > 1.2
    assert not found.holds


def test_the_p_value_is_the_binomials_where_delta_is_zero():
    """r = 10 coins of e^ε/(1+e^ε) = ¾ at ε = ln 3: P(all right) = 0.75^10, P(9 or more) = 0.75^10 + 10 · 0.25
    · 0.75^9.
    """
    assert canaries.p_value(10, 10, 10, math.log(3), 0.0) == pytest.approx(0.75**10)
    assert canaries.p_value(10, 10, 9, math.log(3), 0.0) == pytest.approx(0.75**10 + 10 * 0.25 * 0.75**9)


def test_delta_can_only_weaken_the_bound():
    """With m = r = v = 10 at ε = 0: α = max_i P(10 − i ≤ W < 10)/i; i = 5 gives P(5 ≤ W ≤ 9)/5."""
    mass = [math.comb(10, k) / 1024 for k in range(11)]
    alpha = max(sum(mass[10 - i : 10]) / i for i in range(1, 11))
    assert canaries.p_value(10, 10, 10, 0.0, 1e-3) == pytest.approx(mass[10] + 20 * 1e-3 * alpha)
    bounds = [canaries.lower_bound(500, 500, 450, delta, 0.05) for delta in (0.0, 1e-6, 1e-4)]
    assert bounds[0] > bounds[1] > bounds[2]


def test_the_bound_holds_for_randomized_response_and_comes_close():
    """500 coins told truly with probability e^ε/(1 + e^ε), ε = 2, which is exactly ε-private: bounds of 40
    audits exceed 2 in at most 6 (95% confidence each; 7 or more has probability below 0.4%), and the best
    come within 0.5.
    """
    rng = np.random.default_rng(0)
    found = []
    for _ in range(40):
        coins = rng.random(500) < 0.5
        told = np.where(rng.random(500) < 1 / (1 + math.exp(-2)), coins, ~coins)
        found.append(canaries.from_scores(told + rng.random(500) * 1e-3, coins, claimed=2.0, delta=0.0).lower)
    assert sum(f > 2 for f in found) <= 6
    assert max(found) > 1.5


def test_blind_guesses_show_nothing():
    rng = np.random.default_rng(1)
    assert canaries.from_scores(rng.random(400), rng.random(400) < 0.5, claimed=1.0, delta=1e-5).lower < 0.3


def test_many_runs_by_hand():
    """100 runs each; the second halves are told apart without an error: 50 of 50 hits and 0 of 50 false
    alarms, each limit 0.025^(1/50) = 0.9289: ε ≥ ln(0.9289 / 0.0711) = 2.570.
    """
    found = canaries.many_runs([1.0] * 100, [0.0] * 100, claimed=2.0, delta=0.0)
    assert found.lower == pytest.approx(math.log(0.025**0.02 / (1 - 0.025**0.02)), rel=1e-6)
    assert not found.holds
    assert canaries.many_runs([0.5, 0.4] * 20, [0.4, 0.5] * 20, claimed=1.0, delta=1e-5).lower < 0.5


def test_what_cannot_be_audited():
    digits = tacit.data.digits()
    with pytest.raises(BadParameter, match="kind is 'row'; it must be 'column' or 'label'"):
        canaries.one_run(digits, training(epsilon=1.0), kind="row")
    with pytest.raises(BadParameter, match="canaries is 3; it must be a whole number of at least 10"):
        canaries.one_run(digits, training(epsilon=1.0), canaries=3)
    with pytest.raises(BadParameter, match=r"need flat features, and these rows have shape \(1, 8, 8\)"):
        canaries.one_run(tacit.data.digits(images=True), training(epsilon=1.0))
    with pytest.raises(BadParameter, match="the run states no ε"):
        canaries.one_run(digits, training(noise_multiplier=0.0), canaries=10)
    with pytest.raises(BadParameter, match="at least 4 with the canary and 4 without"):
        canaries.many_runs([1.0], [0.0], claimed=1.0, delta=0.0)


def test_canaries_by_label_suit_any_data():
    images = tacit.data.digits(images=True)

    def train(data):
        return tacit.train_private(data, model="logistic", epsilon=2.0, epochs=2, evaluate_every=0)

    found = canaries.one_run(images, train, kind="label", canaries=40)
    assert found.holds
