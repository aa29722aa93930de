"""Exact sums of float64 numbers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.crypto import exact
from tacit.errors import BadData

numbers = st.floats(-1e30, 1e30, allow_nan=False)


@given(st.lists(numbers, min_size=1, max_size=20), st.randoms())
def test_a_sum_is_that_of_fractions_and_does_not_depend_on_the_order(values, random):
    total = sum(exact.encode(np.array([v])) for v in values)
    random.shuffle(values)
    again = sum(exact.encode(np.array([v])) for v in values)
    assert exact.decode(total) == exact.decode(again)
    true = sum(map(Fraction, values))
    error = abs(Fraction(float(exact.decode(total)[0])) - true)
    # digits below 2^-80 are dropped, and the result is rounded to 53 bits (twice at most)
    assert error <= len(values) * Fraction(1, 2**80) + abs(true) * Fraction(2, 2**53)


@given(st.lists(numbers.filter(lambda v: v == 0 or abs(v) > 1e-8), min_size=1, max_size=50))
def test_a_number_is_returned_to_the_bit(values):
    assert exact.decode(exact.encode(np.array(values))).tolist() == [v + 0.0 for v in values]


def test_cancellation_loses_nothing():
    total = exact.encode(np.array([1e25])) + exact.encode(np.array([1.5])) + exact.encode(np.array([-1e25]))
    assert exact.decode(total)[0] == 1.5


def test_limbs_are_within_the_bound_of_a_secure_sum():
    limbs = exact.encode(np.array([2.0**111, -(2.0**111), math.pi, -1e-20]))
    assert limbs.dtype == np.int64
    assert np.abs(limbs).max() <= exact.BOUND


@pytest.mark.parametrize("value", [math.nan, math.inf, 2.0**112, -1e40])
def test_numbers_that_cannot_be_summed_are_refused(value):
    with pytest.raises(BadData, match="a number to be summed is"):
        exact.encode(np.array([1.0, value]))


def test_a_number_that_is_too_large_is_refused_with_what_to_do():
    with pytest.raises(BadData, match=r"is 1e\+40; at most 5e\+33 can be summed.*a cell above 7e\+16"):
        exact.encode(np.array([1.0, -1e40]))
