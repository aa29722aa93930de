"""The discrete Gaussian of a whole σ, which is what every guard's noise on its own grid is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tacit.accounting.discrete import gaussian_whole
from tacit.errors import BadParameter


@pytest.mark.parametrize("sigma", [1, 3])
def test_each_whole_number_comes_as_often_as_it_should(sigma):
    """χ² over the cells within 3σ and one for the rest: 5 deviations above its mean are passed by chance less
    than once in 10⁴.
    """
    n = 100_000
    drawn = gaussian_whole(sigma, n, np.random.default_rng(0).bytes)
    cells = np.arange(-3 * sigma, 3 * sigma + 1)
    wide = np.arange(-40 * sigma, 40 * sigma + 1)
    p = np.exp(-(cells**2) / (2 * sigma**2)) / np.exp(-(wide**2) / (2 * sigma**2)).sum()
    expected = np.append(p, 1 - p.sum()) * n
    counts = np.array([(drawn == c).sum() for c in cells])
    counts = np.append(counts, n - counts.sum())
    free = len(counts) - 1
    assert (((counts - expected) ** 2 / expected).sum() - free) / math.sqrt(2 * free) < 5


def test_the_widest_grid_has_the_moments_of_a_gaussian():
    """σ = 2²⁰, 100,000 draws: variance known to 0.45%, fourth moment to 3.1%; 5 of each are passed by chance
    less than once in 10⁶.
    """
    z = gaussian_whole(2**20, 100_000, np.random.default_rng(1).bytes) / 2**20
    assert abs(z.mean()) < 5 / math.sqrt(100_000)
    assert z.var() == pytest.approx(1, abs=5 * 0.0045)
    assert (z**4).mean() == pytest.approx(3, abs=5 * 0.031)


def test_none_and_too_narrow():
    assert gaussian_whole(5, 0).shape == (0,)
    with pytest.raises(
        BadParameter, match="gaussian_whole: sigma is 0; it must be a whole number of at least 1"
    ):
        gaussian_whole(0, 3)
