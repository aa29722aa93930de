"""Arithmetic modulo 2^32 − 5 against Python's own integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.crypto import field
from tacit.crypto.field import Q
from tacit.errors import BadData

ELEMENTS = st.integers(0, Q - 1)
EDGES = st.sampled_from([0, 1, Q - 1, Q // 2, 2**16, 2**31])


@given(st.lists(st.tuples(ELEMENTS | EDGES, ELEMENTS | EDGES), min_size=1, max_size=20))
def test_adding_subtracting_and_combining_are_pythons(rows: list[tuple[int, int]]) -> None:
    a, b = (np.array(x, np.uint64) for x in zip(*rows))
    assert field.add(a, b).tolist() == [(x + y) % Q for x, y in rows]
    assert field.subtract(a, b).tolist() == [(x - y) % Q for x, y in rows]
    weights = [w for w, _ in rows]
    assert field.combine(weights, np.array([[v] for _, v in rows], np.uint64)).tolist() == [
        sum(w * v for w, v in rows) % Q
    ]


def test_the_largest_sum_does_not_overflow() -> None:
    n = 65_535
    rows = np.broadcast_to(np.uint64(Q - 1), (n, 1))
    assert field.combine([Q - 1] * n, rows).tolist() == [n * (Q - 1) ** 2 % Q]


@given(st.lists(ELEMENTS, min_size=1, max_size=8), st.integers(0, 50))
def test_a_polynomial_is_known_by_its_values(coefficients: list[int], wanted: int) -> None:
    def at(x: int) -> int:
        return sum(c * x**i for i, c in enumerate(coefficients)) % Q

    known = [100 + i for i in range(len(coefficients))]
    weights = field.lagrange(known, wanted)
    assert sum(w * at(x) for w, x in zip(weights, known)) % Q == at(wanted)


@given(st.lists(st.integers(-(Q // 2), Q // 2), max_size=10))
def test_signed_numbers_come_back(values: list[int]) -> None:
    assert field.decode(field.encode(np.array(values, np.int64), Q // 2)).tolist() == values


def test_numbers_that_do_not_fit_are_an_error_with_their_count() -> None:
    with pytest.raises(BadData, match="1 of 2 numbers are outside ±3"):
        field.encode(np.array([3, -4]), 3)


def test_uniform_elements_are_elements_and_follow_the_key() -> None:
    a = field.uniform(bytes(32), 1000)
    assert len(a) == 1000
    assert int(a.max()) < Q
    assert not np.array_equal(a, field.uniform(b"\1" + bytes(31), 1000))
