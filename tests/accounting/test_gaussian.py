"""Closed forms, against numbers worked out in other ways."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.accounting import (
    distributed_multiplier,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_multiplier,
    laplace_epsilon,
    laplace_scale,
    response_epsilon,
)
from tacit.errors import BadParameter


@pytest.mark.parametrize(("z", "eps"), [(1.0, 1.0), (0.5, 4.0), (3.0, 0.3), (10.0, 0.2)])
def test_delta_is_the_integral_of_what_one_density_exceeds_the_other(z, eps):
    """δ(ε) = ∫ max(0, p(x) − e^ε q(x)) dx with p, q the densities around 1/z and 0."""
    x = np.linspace(-30, 30, 2_000_001)
    p, q = np.exp(-((x - 1 / z) ** 2) / 2), np.exp(-(x**2) / 2)
    assert gaussian_delta(z, eps) == pytest.approx(
        np.maximum(0, p - math.exp(eps) * q).sum() * (x[1] - x[0]) / math.sqrt(2 * math.pi), rel=1e-6
    )


@settings(max_examples=60, derandomize=True)
@given(eps=st.floats(0.01, 100), delta=st.sampled_from([1e-3, 1e-5, 1e-9, 1e-12]))
def test_multiplier_epsilon_and_delta_are_inverses(eps, delta):
    z = gaussian_multiplier(eps, delta)
    assert gaussian_delta(z, eps) <= delta
    assert gaussian_epsilon(z, delta) == pytest.approx(eps, rel=1e-6)


def test_a_gaussian_so_wide_that_delta_alone_covers_it_costs_nothing():
    assert gaussian_epsilon(1e6, 1e-3) == 0.0


def test_laplace_and_response_by_hand():
    assert laplace_scale(0.5, sensitivity=2, steps=3) == 12.0
    assert laplace_epsilon(12.0, sensitivity=2, steps=3) == 0.5
    assert response_epsilon(0.75) == pytest.approx(math.log(3))
    assert response_epsilon(1.0) == math.inf
    with pytest.raises(BadParameter, match=r"laplace_scale: epsilon, sensitivity and steps is \(0, 1.0, 1\)"):
        laplace_scale(0)


def test_a_sum_of_discrete_gaussians_is_worth_a_gaussian_when_each_is_wide_and_less_when_narrow():
    assert distributed_multiplier(2.0, 5.0, 100, 1_000_000) == pytest.approx(2.0, rel=1e-12)
    narrow = distributed_multiplier(2.0, 0.5, 100, 1000)
    tau = 10 * sum(math.exp(-2 * math.pi**2 * 0.25 * k / (k + 1)) for k in range(1, 100))
    assert narrow == pytest.approx(1 / min(math.sqrt(0.25 + tau * 500), 0.5 + tau * math.sqrt(1000)))
    assert narrow < 0.1
