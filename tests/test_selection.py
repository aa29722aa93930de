"""Who is asked in a round: what each rule looks at, what it comes to in training, and what is refused."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import tacit
from tacit import algorithms, data, guard, selection, speeds
from tacit.errors import BadParameter

SIZES = np.array([1, 1, 1, 1, 96])


def known(losses=None, seconds=None, sizes=SIZES):
    return selection.Known(sizes, lambda who: np.asarray(losses if losses is not None else np.zeros(len(sizes)))[who], seconds)


def test_by_size_takes_the_large_ones_more_often():
    """The fifth has 96% of the rows: over 200 draws of one, fewer than 170 hits has a probability below 1e-8."""
    hits = sum(4 in selection.BySize().choose(known(), 1, np.random.default_rng(s)) for s in range(200))
    assert hits > 170
    assert len(set(selection.BySize().choose(known(), 5, np.random.default_rng(0)).tolist())) == 5


def test_power_of_choice_asks_those_with_the_largest_losses():
    losses = [0.1, 5.0, 0.2, 4.0, 0.3]
    got = selection.PowerOfChoice(candidates=5).choose(known(losses, sizes=np.ones(5)), 2, np.random.default_rng(0))
    assert sorted(got.tolist()) == [1, 3]
    asked = []
    among = selection.Known(np.ones(50), lambda who: asked.append(who) or np.zeros(len(who)), None)
    selection.PowerOfChoice(candidates=7).choose(among, 3, np.random.default_rng(0))
    assert len(asked[0]) == 7


def test_who_is_away_is_not_asked_and_who_is_slow_is_not_either():
    there = [len(selection.Available(probability=0.3).choose(known(sizes=np.ones(1000)), 1000, np.random.default_rng(s))) for s in range(3)]
    assert all(200 < n < 400 for n in there)
    fast = selection.Fast(deadline=2.0).choose(known(seconds=np.array([1.0, 3.0, 2.0, 9.0, 0.1])), 5, np.random.default_rng(0))
    assert sorted(fast.tolist()) == [0, 2, 4]


@functools.cache
def fed():
    return data.gaussian_blobs(rows=600, classes=3, features=4, seed=3).split(12, skew=data.Dirichlet(0.3), seed=1, held_fraction=0.2)


@pytest.mark.parametrize("rule", [selection.BySize(), selection.PowerOfChoice(candidates=6), selection.Available(probability=0.5)],
                         ids=lambda r: type(r).__name__)
def test_training_learns_and_comes_out_the_same_again(rule):
    one, two = (tacit.train(fed(), model="logistic", algorithm=algorithms.FedAvg(lr=0.2), rounds=12, per_round=3, select=rule) for _ in range(2))
    assert one.metrics["accuracy"] > 0.75
    assert one.metrics == two.metrics
    assert all(e["sampled"] <= 3 for e in one.history)


def test_no_round_takes_longer_than_the_deadline():
    job = dict(model="logistic", algorithm=algorithms.FedAvg(lr=0.2), rounds=5, per_round=4, speed=speeds.Lognormal(sigma=1.0))
    free = tacit.train(fed(), **job)
    longest = np.diff([0.0, *(e["clock"] for e in free.history)]).max()
    bounded = tacit.train(fed(), **job, select=selection.Fast(deadline=longest / 2))
    assert np.diff([0.0, *(e["clock"] for e in bounded.history)]).max() <= longest / 2 + 1e-9


def test_fairness_of_a_run():
    run = tacit.train(fed(), model="logistic", algorithm=algorithms.FedAvg(lr=0.2), rounds=3)
    each = [a for a in run.history[-1]["parties"]["accuracy"] if a is not None]
    told = run.fairness()
    assert told["mean"] == pytest.approx(np.mean(each))
    assert told["variance"] == pytest.approx(np.var(each))
    assert told["worst_decile"] == pytest.approx(min(each))
    assert told["jain"] == pytest.approx(sum(each) ** 2 / (len(each) * sum(a * a for a in each)))


@pytest.mark.parametrize(("given", "said"), [
    (dict(select="PowerOfChance"), "select is 'PowerOfChance'; it must be one of selection.BySize"),
    (dict(select=selection.PowerOfChoice(candidates=0)), "candidates is 0; it must be a whole number at least 1"),
    (dict(select=selection.Fast()), "Fast needs to know how long parties take"),
    (dict(select=selection.BySize(), runtime="inprocess"), "is for synchronous rounds with one server, simulated"),
    (dict(select=selection.BySize(), guard=[guard.Clip(1.0), guard.Noise(multiplier=1.0)]), "Noise counts on a draw that looks at nobody"),
], ids=range(5))
def test_what_is_refused(given, said):
    with pytest.raises(BadParameter, match=said):
        tacit.train(fed(), model="logistic", rounds=1, per_round=3, **given)
