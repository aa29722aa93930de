"""Aggregators: labels from counts, noise that is what its proof says, and a cost that follows the votes."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from tacit.errors import BadJob, BadParameter
from tacit.parameters import check, from_table, to_table
from tacit.private.pate import ALL, UNANSWERED, ConfidentGNMax, GNMax, LNMax

AGGREGATORS = [LNMax(0.05), GNMax(40.0), ConfidentGNMax(200.0, 150.0, 40.0)]
SEEDED = np.random.default_rng  # for tests alone: what is drawn must be the same twice


def counts_of(agree: float, n: int = 40, classes: int = 10, teachers: int = 250, seed: int = 0) -> np.ndarray:
    """Counts in which a share `agree` of the teachers cast the same vote."""
    rng = np.random.default_rng(seed)
    out = np.zeros((n, classes), dtype=int)
    first = round(agree * teachers)
    for row in out:
        k = rng.integers(classes)
        row += rng.multinomial(teachers - first, np.full(classes, 1 / classes))
        row[k] += first
    return out


@pytest.mark.parametrize("kind", ALL.values(), ids=ALL)
def test_an_aggregator_goes_through_a_job_file(kind):
    assert from_table(to_table(kind()), ALL, "aggregator") == kind()


@pytest.mark.parametrize("ask", AGGREGATORS, ids=lambda a: type(a).__name__)
def test_by_the_votes_it_costs_no_more_than_without_them_and_less_the_more_teachers_agree(ask):
    last = math.inf
    for agree in (0.3, 0.5, 0.7, 0.85, 1.0):
        counts = counts_of(agree)
        labels = counts.argmax(1)  # all answered, so that only the votes differ
        spent = ask.spent(counts, labels, 1e-5)
        assert spent.dependent <= spent.independent
        assert spent.dependent <= last * (1 + 1e-9)
        last = spent.dependent
    assert last < 0.5 * spent.independent


@pytest.mark.parametrize("ask", AGGREGATORS, ids=lambda a: type(a).__name__)
def test_more_answers_cost_more_and_more_noise_costs_less(ask):
    counts = counts_of(0.9)
    labels = counts.argmax(1)
    costs = [ask.spent(counts[:n], labels[:n], 1e-5) for n in (1, 10, 20, 40)]
    assert all(a.independent < b.independent and a.dependent < b.dependent for a, b in pairwise(costs))
    assert ask.spent(counts, labels, 1e-3).dependent < costs[-1].dependent, "a larger δ takes a smaller ε"
    louder = {
        "LNMax": LNMax(0.025),
        "GNMax": GNMax(80.0),
        "ConfidentGNMax": ConfidentGNMax(200.0, 300.0, 80.0),
    }[type(ask).__name__]
    assert louder.epsilon(40, 40, 1e-5) < ask.epsilon(40, 40, 1e-5)


def test_the_figures_of_the_papers_without_the_votes():
    assert LNMax(0.05).epsilon(100, 100, 1e-5) == pytest.approx(5.3026, abs=5e-5)
    assert GNMax(40.0).epsilon(286, 286, 1e-5) == pytest.approx(3.0479, abs=5e-5)


def test_a_check_that_says_no_costs_its_check_alone():
    ask = ConfidentGNMax(200.0, 150.0, 40.0)
    assert ask.price(100, 0) == pytest.approx(100 / (2 * 150**2))
    assert ask.price(100, 60) == pytest.approx(100 / (2 * 150**2) + 60 / 40**2)
    assert ask.price(100, 60, split=True) == pytest.approx(100 / 150**2 + 60 / 40**2), (
        "teachers that add the noise tell every count of the check"
    )


def test_no_query_costs_nothing():
    for ask in AGGREGATORS:
        spent = ask.spent(np.zeros((0, 10), int), np.zeros(0, int), 1e-5, publish=True)
        assert (spent.independent, spent.dependent, spent.released) == (0.0, 0.0, None)


def test_small_noise_gives_the_plurality_and_a_tie_goes_to_the_lower_class():
    counts = np.array([[0, 9, 3], [7, 1, 1], [4, 4, 0]])
    assert GNMax(1e-3).decide(counts).tolist() == [1, 0, 0]
    assert LNMax(10.0).decide(100 * counts[:2]).tolist() == [1, 0]
    assert ConfidentGNMax(6.0, 1e-3, 1e-3).decide(counts).tolist() == [1, 0, UNANSWERED]


def test_a_gamma_of_any_decimals_has_its_own_exact_law():
    """γ = 0.7 = 7/10: counts times 7, noise of scale 10. Class 1 leads by one vote; the law written out says
    how often class 0 wins.

    20,000 draws: a frequency off by more than 5 deviations has probability 6e-7.
    """
    ask, n = LNMax(0.7), 20_000
    y = np.arange(-400, 401)
    p = np.exp(-np.abs(y) / 10)
    p /= p.sum()
    below = np.concatenate([[0.0], np.cumsum(p)])
    wins = float(
        (p * below[np.clip(np.arange(len(y)) - 7 + 1, 0, len(y))]).sum()
    )  # noise₀ ≥ noise₁ + 7: a tie is class 0's
    found = (ask.decide(np.tile([3, 4], (n, 1)), SEEDED(0).bytes) == 0).mean()
    assert abs(found - wins) < 5 * math.sqrt(wins * (1 - wins) / n)


@pytest.mark.parametrize("sigma", [3.0, 2.5])
def test_gaussian_votes_are_won_as_often_as_their_law_says(sigma):
    """20,000 draws: a frequency off by more than 5 deviations has probability 6e-7."""
    n = 20_000
    y = np.arange(-60, 61)
    p = np.exp(-(y**2) / (2 * sigma**2))
    p /= p.sum()
    below = np.concatenate([[0.0], np.cumsum(p)])
    wins = float((p * below[np.clip(np.arange(len(y)) - 4 + 1, 0, len(y))]).sum())
    found = (GNMax(sigma).decide(np.tile([2, 6], (n, 1)), SEEDED(1).bytes) == 0).mean()
    assert abs(found - wins) < 5 * math.sqrt(wins * (1 - wins) / n)


def test_the_noise_comes_from_the_operating_system_unless_a_test_says_otherwise():
    """A replayable source gives the same labels twice; the default does not ask numpy's or torch's
    generators.
    """
    counts = counts_of(0.2, n=200)
    np.random.seed(0)  # must have no say
    first = GNMax(40.0).decide(counts)
    np.random.seed(0)
    assert (GNMax(40.0).decide(counts) != first).any(), (
        "200 noisy answers to torn votes come out alike with probability below 1e-50"
    )
    assert (GNMax(40.0).decide(counts, SEEDED(3).bytes) == GNMax(40.0).decide(counts, SEEDED(3).bytes)).all()


def test_a_published_epsilon_is_noisy_and_never_below_what_publishing_costs():
    counts = counts_of(0.95)
    ask, labels = GNMax(40.0), counts.argmax(1)
    told = {ask.spent(counts, labels, 1e-5, publish=True).released for _ in range(5)}
    assert len(told) > 1, "smooth-sensitivity noise was drawn anew"
    assert min(told) > math.log(2e5) / 4000


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LNMax(0.0), "LNMax: gamma is 0.0; it must be a number above 0 and at most 10"),
        (lambda: GNMax(-1.0), "GNMax: sigma is -1.0; it must be a number above 0"),
        (
            lambda: ConfidentGNMax(200.0, 30.0, 40.0),
            r"ConfidentGNMax: sigma1 is 30.0; it must be at least sigma2 = 40. Every query pays for the "
            r"check",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(make, words):
    with pytest.raises(BadParameter, match=words):
        check(make())


def test_a_job_file_without_an_aggregator_is_refused_with_the_available_ones():
    with pytest.raises(BadJob, match="Did you mean 'GNMax'"):
        from_table("GNMaxx", ALL, "aggregator")
