"""The sparse graph of Bell et al.: k-regular, symmetric, random for each round, and k large enough by an independent
count.
"""

from __future__ import annotations

import math
import os
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tacit.errors import BadParameter
from tacit.protocols.secagg_graph import degree, neighborhoods, shuffle


@given(st.integers(3, 30), st.integers(1, 8))
def test_every_party_has_k_neighbors_symmetrically(n: int, half: int) -> None:
    k, names = 2 * half, [f"c{i}" for i in range(n)]
    around = neighborhoods(names, k, os.urandom)
    for name, holders in around.items():
        assert name in holders
        assert list(holders) == sorted(set(holders))
        assert len(holders) == min(k + 1, n)
        assert all(name in around[other] for other in holders)


def test_without_a_degree_the_graph_is_complete() -> None:
    assert neighborhoods(["b", "a", "c"], None, os.urandom) == dict.fromkeys("bac", ("a", "b", "c"))


def test_the_order_is_uniform() -> None:
    """χ² over the 6 orders of 3 names, 6,000 draws; 5 degrees of freedom; false alarm 1e-9."""
    seen: dict[tuple[str, ...], int] = {}
    for _ in range(6000):
        order = tuple(shuffle(["a", "b", "c"], os.urandom))
        seen[order] = seen.get(order, 0) + 1
    assert len(seen) == 6
    assert stats.chisquare(list(seen.values())).pvalue > 1e-9


@pytest.mark.parametrize(
    ("n", "threshold", "corrupt", "drop"),
    [(100, 0.6, 0.2, 0.1), (200, 0.6, 0.1, 0.05), (1000, 0.6, 0.2, 0.1), (10_000, 0.55, 0.1, 0.1)],
)
def test_the_degree_keeps_the_three_promises_by_scipys_count(
    n: int, threshold: float, corrupt: float, drop: float
) -> None:
    """And two fewer would break one of them."""

    def kept(k: int) -> bool:
        t = math.ceil(threshold * (k + 1))
        bad, gone = math.ceil(corrupt * n), math.ceil(drop * n)
        surrounded = n * stats.hypergeom(n - 1, bad, k).sf(t - 1)
        lost = n * stats.hypergeom(n - 1, gone, k).sf(k - t)  # the client itself may be gone as well
        apart = n * stats.hypergeom(n, bad + gone, k // 2).pmf(k // 2)
        return bool(max(surrounded, apart) <= 2**-41 and lost <= 2**-30)

    k = degree(n, threshold, corrupt, drop)
    assert k % 2 == 0
    assert k < n - 1
    assert kept(k)
    assert not kept(k - 2)


def test_the_degree_grows_with_the_logarithm() -> None:
    ks = [degree(n, 0.6, 0.1, 0.05) for n in (1000, 10_000, 100_000, 1_000_000)]
    assert all(0 < b - a <= 10 for a, b in pairwise(ks))


def test_few_parties_need_the_complete_graph() -> None:
    assert degree(6, 0.6) == 5


def test_the_rest_of_a_circle_stays_connected_unless_half_a_neighborhood_in_a_row_drops_out() -> None:
    """The third promise by trying: 200 random losses of 30 of 100, k = 44: nobody is ever cut off."""
    rng = np.random.default_rng(0)
    names = [f"c{i}" for i in range(100)]
    for _ in range(200):
        around = neighborhoods(names, 44, os.urandom)
        left = set(rng.choice(names, 70, replace=False).tolist())
        reached, todo = set(), [next(iter(left))]
        while todo:
            name = todo.pop()
            if name not in reached:
                reached.add(name)
                todo += [v for v in around[name] if v in left]
        assert reached == left


def test_fractions_that_sum_to_one_are_refused() -> None:
    with pytest.raises(
        BadParameter,
        match=r"SecAgg: corrupt and drop is \(0\.6, 0\.4\); it must be fractions of at least 0 whose sum "
        r"is below 1",
    ):
        degree(100, 0.6, 0.6, 0.4)
