"""Rules that see each update, compared with plain references, and their robustness against malicious clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tacit import aggregate
from tacit.aggregate import stack
from tacit.errors import BadParameter

numbers = st.floats(-100, 100, width=32)
stacks = st.integers(1, 9).flatmap(lambda n: hnp.arrays(np.float32, (n, 4), elements=numbers))


def apply(rule, x, weights=None):
    x = torch.as_tensor(x, dtype=torch.float32)
    weights = (
        torch.ones(1, len(x)) if weights is None else torch.as_tensor(weights, dtype=torch.float32)[None]
    )
    scores = {"score": x[:, 0]} if isinstance(rule, aggregate.Best) else {}
    return rule.result(rule.add(rule.start(), weights, {"delta": x, **scores}))["delta"][0].numpy()


@settings(max_examples=60, deadline=None)
@given(stacks)
def test_the_median_is_numpys(x):
    np.testing.assert_allclose(apply(aggregate.Median(), x), np.median(x, axis=0), atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(stacks, st.sampled_from([0.0, 0.1, 0.25, 0.4]))
def test_the_trimmed_mean_leaves_out_the_ends(x, trim):
    out = int(trim * len(x))
    wanted = np.sort(x.astype(np.float64), axis=0)[out : len(x) - out].mean(0)
    np.testing.assert_allclose(apply(aggregate.TrimmedMean(trim=trim), x), wanted, atol=1e-3)


def krum_by_hand(x, f):
    """Blanchard et al., a direct implementation of the definition: for each update, its n − f − 2 nearest others."""
    n = len(x)
    score = []
    for i in range(n):
        d = sorted(float(((x[i] - x[j]) ** 2).sum()) for j in range(n) if j != i)
        score.append(sum(d[: max(1, n - f - 2)]))
    return np.array(score)


def test_krum_and_multi_krum_by_the_definition():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((11, 6))
    score = krum_by_hand(x, 2)
    np.testing.assert_allclose(apply(aggregate.Krum(byzantine=0.2), x), x[score.argmin()], atol=1e-5)
    np.testing.assert_allclose(
        apply(aggregate.MultiKrum(byzantine=0.2, keep=4), x), x[score.argsort()[:4]].mean(0), atol=1e-5
    )
    np.testing.assert_allclose(
        apply(aggregate.MultiKrum(byzantine=0.2), x), x[score.argsort()[:9]].mean(0), atol=1e-5
    )


def test_bulyan_by_the_definition():
    rng = np.random.default_rng(1)
    x, f = rng.standard_normal((13, 5)), 2
    left, picked = list(range(13)), []
    while len(picked) < 13 - 2 * f:
        score = krum_by_hand(x[left], f)
        best = [i for i in range(len(left)) if score[i] <= score.min() * (1 + 1e-9)]
        i = min(best, key=lambda i: ((x[left][i] - x[left]) ** 2).sum())
        picked.append(left.pop(i))
    chosen = x[picked]
    wanted = []
    for column in chosen.T:
        near = np.abs(column - np.median(column)).argsort()[: 13 - 4 * f]
        wanted.append(column[near].mean())
    np.testing.assert_allclose(apply(aggregate.Bulyan(byzantine=0.16), x), wanted, atol=1e-5)


def test_the_geometric_median_minimizes_the_sum_of_distances():
    rng = np.random.default_rng(2)
    x = rng.standard_normal((15, 4))
    found = apply(aggregate.GeometricMedian(), x)

    def cost(z):
        return np.linalg.norm(x - z, axis=1).sum()

    assert all(cost(found) <= cost(found + 1e-2 * rng.standard_normal(4)) for _ in range(200))
    np.testing.assert_allclose(
        apply(aggregate.GeometricMedian(), [[0.0], [1.0], [100.0]]), [1.0], atol=1e-3
    )  # on a line it is the median


def test_the_geometric_median_can_weigh_as_rfa_does():
    assert apply(aggregate.GeometricMedian(weighted=True), [[0.0], [1.0], [5.0]], [1, 1, 9]) == pytest.approx(
        [5.0], abs=1e-3
    )


def test_centered_clipping_by_its_recursion():
    rng = np.random.default_rng(3)
    x, tau = rng.standard_normal((6, 3)) + 4, 1.5
    v = np.zeros(3)
    for _ in range(5):
        d = x - v
        v = v + (d * np.minimum(1, tau / np.linalg.norm(d, axis=1))[:, None]).mean(0)
    np.testing.assert_allclose(apply(aggregate.CenteredClip(tau=tau, iterations=5), x), v, atol=1e-5)


def test_clipping_cuts_lengths_and_the_bound_leaves_out():
    x = np.array([[1.0, 0], [0, 1.0], [30.0, 40.0]])
    np.testing.assert_allclose(apply(aggregate.ClippedMean(norm=1.0), x), [1.6 / 3, 1.8 / 3], atol=1e-6)
    np.testing.assert_allclose(
        apply(aggregate.ClippedMean(), x), [1.6 / 3, 1.8 / 3], atol=1e-6
    )  # the median length is 1
    np.testing.assert_allclose(apply(aggregate.NormBound(factor=2), x), [0.5, 0.5], atol=1e-6)
    np.testing.assert_allclose(apply(aggregate.NormBound(factor=2), x, [3, 1, 9]), [0.75, 0.25], atol=1e-6)


def test_signs_are_voted_on():
    x = [[1.0, -2.0, 0.0], [3.0, -4.0, 0.0], [-90.0, 8.0, 5.0]]
    np.testing.assert_allclose(apply(aggregate.SignMajority(), x), [2.0, -3.0, 5.0])
    np.testing.assert_allclose(apply(aggregate.SignMajority(), [[1.0], [-1.0]]), [0.0])


def test_sybils_share_one_vote():
    rng = np.random.default_rng(4)
    honest = rng.standard_normal((6, 200))
    sybils = np.tile(rng.standard_normal(200), (6, 1)) + 1e-3 * rng.standard_normal((6, 200))
    got = apply(aggregate.FoolsGold(), np.concatenate([honest, sybils]))
    attack = sybils[0] / np.linalg.norm(sybils[0])
    mean = np.concatenate([honest, sybils]).mean(0)
    assert abs(got @ attack) < 0.2 * abs(mean @ attack)


def test_a_layer_of_unusual_length_counts_little():
    x = np.ones((9, 4)) + 0.01 * np.random.default_rng(5).standard_normal((9, 4))
    x[0, 2:] = 1000
    by_layer = apply(aggregate.Layerwise().with_layers((2, 2)), x)
    np.testing.assert_allclose(by_layer, np.ones(4), atol=0.1)
    assert x.mean(0)[2] > 100


def test_a_coarse_update_counts_less():
    rng = np.random.default_rng(6)
    truth = rng.standard_normal(4000)
    fine, coarse = np.round(truth / 0.01) * 0.01, np.round(truth / 2) * 2
    got = apply(aggregate.QualityWeighted(), np.stack([fine, coarse]))
    mean = (fine + coarse) / 2
    assert np.square(got - truth).mean() < np.square(mean - truth).mean()
    np.testing.assert_allclose(
        apply(aggregate.QualityWeighted(), np.stack([truth, truth + 1])), truth + 0.5, atol=1e-5
    )  # no grid: a plain mean


def test_the_best_is_who_states_the_lowest_score():
    x, score = torch.arange(12.0).view(4, 3), torch.tensor([0.5, 0.2, torch.nan, 0.3])
    kept = aggregate.Best().result(
        aggregate.Best().add({}, torch.tensor([[9.0, 1, 1, 9]]), {"delta": x, "score": score})
    )
    assert kept["delta"].tolist() == [
        x[1].tolist()
    ]  # whatever its weight; a score that is no number is nobody's
    assert kept["score"].tolist() == [pytest.approx(0.2)]
    with pytest.raises(
        BadParameter,
        match=r"Best: the updates contain delta but no score. Train with "
        r"algorithms.FedPSO.",
    ):
        aggregate.Best().result(aggregate.Best().add({}, torch.ones(1, 4), {"delta": x}))


ROBUST = [
    aggregate.Median(),
    aggregate.TrimmedMean(trim=0.3),
    aggregate.Krum(byzantine=0.3),
    aggregate.MultiKrum(byzantine=0.3),
    aggregate.GeometricMedian(),
    aggregate.CenteredClip(tau=20.0),
    aggregate.NormBound(),
    aggregate.ClippedMean(),
    aggregate.Bulyan(byzantine=0.2),
]


@pytest.mark.parametrize("rule", ROBUST, ids=lambda r: type(r).__name__)
@pytest.mark.parametrize("lie", [1e6, -1e6])
def test_liars_below_the_breakdown_point_do_not_move_it_far(rule, lie):
    rng = np.random.default_rng(7)
    x = 1 + rng.standard_normal((20, 50))
    liars = 4 if isinstance(rule, aggregate.Bulyan) else 5
    x[:liars] = lie
    assert np.abs(x.mean(0) - 1).min() > 1e5  # the mean is lost
    assert np.linalg.norm(apply(rule, x) - 1) < 1.3 * np.sqrt(50)  # no further than one honest update is


@pytest.mark.parametrize("name", [n for n, kind in aggregate.ALL.items() if kind().sees_each])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_an_update_that_is_not_finite_is_left_out(name, poison):
    x = np.random.default_rng(8).standard_normal((8, 3))
    spoilt = np.concatenate([x[:3], [[0, poison, 0]], x[3:]])
    np.testing.assert_allclose(
        apply(aggregate.ALL[name](), spoilt), apply(aggregate.ALL[name](), x), atol=1e-5
    )
    assert np.isnan(
        apply(aggregate.ALL[name](), [[poison, 0.0, 0]])
    ).all()  # nobody left: the run is lost, and says so


def test_too_few_parties_for_the_declared_attackers_are_refused():
    with pytest.raises(
        BadParameter,
        match=r"Krum: byzantine is 0.25, so 1 of 4 parties in a round may be malicious, .* needs at least 5 "
        r"parties",
    ):
        apply(aggregate.Krum(byzantine=0.25), np.eye(4))
    with pytest.raises(BadParameter, match=r"Bulyan: .* 2 of 10 .* at least 11 parties"):
        apply(aggregate.Bulyan(byzantine=0.2), np.eye(10))


def test_updates_that_do_not_fit_wait_in_a_file_and_come_out_the_same(monkeypatch):
    x = torch.from_numpy(np.random.default_rng(9).standard_normal((12, 300)).astype(np.float32))
    for rule in (aggregate.Median(), aggregate.MultiKrum(), aggregate.GeometricMedian()):
        here = apply(rule, x)
        with monkeypatch.context() as m:
            m.setattr(stack, "MEMORY_LIMIT", 4096)
            m.setattr(stack, "BLOCK", 100)
            total = rule.start()
            for part in x.split(4):
                total = rule.add(total, torch.ones(1, 4), {"delta": part})
            assert not any(c.data_ptr() == p.data_ptr() for c, p in zip(total["delta"][1:], x.split(4)[1:]))
            np.testing.assert_allclose(rule.result(total)["delta"][0].numpy(), here, atol=1e-6)
