"""Counts that can be denied: exact distributions, by χ²."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tacit.errors import BadData, BadParameter
from tacit.guard import Laplace, RandomizedResponse


def seeded(seed: int):
    return np.random.default_rng(seed).bytes


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """The number of standard deviations by which χ² exceeds its mean."""
    return float(
        (((counts - expected) ** 2 / expected).sum() - (len(counts) - 1)) / math.sqrt(2 * (len(counts) - 1))
    )


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.5])
def test_laplace_noise_has_the_discrete_laplace_distribution(epsilon):
    """P(y) = (1 − a)/(1 + a)·a^|y|, a = exp(−1/t). χ² over the inner cells; 5 deviations above its mean are passed by chance less than once in 10⁴."""
    stage, n = Laplace(epsilon), 60_000
    noise = stage.out(np.zeros(n, np.int64), seeded(1))
    a = math.exp(-1 / float(stage.scale))
    cells = np.arange(-4, 5)
    p = (1 - a) / (1 + a) * a ** abs(cells)
    expected = np.append(p, 1 - p.sum()) * n
    counts = np.array([(noise == c).sum() for c in cells])
    assert chi_square(np.append(counts, n - counts.sum()), expected) < 5
    assert 1 / float(stage.scale) <= epsilon  # rounded to the safe side


def test_randomized_response_is_true_as_often_as_epsilon_allows_and_the_estimate_is_unbiased():
    """3 answers at ε = 1: kept with e/(e + 2) = 0.576. Deviations of 5 are passed by chance less than once in
    10⁶.
    """
    stage, n = RandomizedResponse(1.0, answers=3), 40_000
    given = np.repeat([0, 1, 2], [n // 2, n // 4, n // 4])
    told = stage.out(given, seeded(2))
    p = math.e / (math.e + 2)
    assert float(stage.keep) <= p
    assert (told == given).mean() == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / n))
    spread = 5 * math.sqrt(n * 0.25) / (p - (1 - p) / 2)
    assert np.allclose(stage.back(told), [n // 2, n // 4, n // 4], atol=spread)


def test_the_ratio_of_two_answers_is_never_more_than_epsilon_allows():
    for epsilon in (0.1, 1.0, 5.0, 700.0):
        stage = RandomizedResponse(epsilon, answers=4)
        p = float(stage.keep)
        assert p >= 0.25
        assert p * 3 / (1 - p) <= math.exp(epsilon)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: Laplace(1.0).out(np.array([1.5])), BadData, "counts must be integers, not float64"),
        (
            lambda: Laplace(0.0).out(np.array([1])),
            BadParameter,
            r"Laplace: epsilon is 0\.0; it must be a number above 0\.",
        ),
        (
            lambda: RandomizedResponse(1.0).out(np.array([0, 2])),
            BadData,
            "answers are in 0 … 2; they must be in 0 … 1",
        ),
        (
            lambda: RandomizedResponse(1.0, answers=1).out(np.array([0])),
            BadParameter,
            "answers is 1; it must be a whole number of at least 2",
        ),
    ],
)
def test_bad_input_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()
