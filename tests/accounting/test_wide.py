"""The wide discrete Gaussian: the distribution its proof needs, exactly drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tacit.accounting import wide


def test_the_alias_table_is_the_weights():
    """Every block's probability, put together again from its own cell and those it is the alias of, is
    ρ(j)/Σρ to 10⁻¹² of the largest.
    """
    leading, alias, full = wide._table()
    got = np.zeros(wide.CELLS)
    for cell in range(wide.CELLS):
        share = full[cell] / 2**wide.PRECISION
        got[cell] += share
        got[alias[cell]] += 1 - share
    want = np.exp(-(np.arange(wide.CELLS, dtype=float) ** 2) / 2**21)
    assert np.allclose(got / wide.CELLS, want / want.sum(), atol=1e-12 * want.max() / want.sum(), rtol=0)
    assert all(int(a) == f >> (wide.PRECISION - wide.T_BITS) for a, f in zip(leading, full))


def test_a_draw_that_is_surely_accepted_would_be():
    assert math.exp(-(2 * (wide.CELLS - 1) + 1) / 2**21) >= (wide.SURE) / 256
    assert wide.M_BITS + wide.J_BITS + wide.SIGN + wide.EASY + wide.T_BITS == 64


def test_moments_and_quantiles_are_the_gaussians():
    """A million draws: mean and deviation within 7 standard errors, and the Kolmogorov distance below 3.4/√n
    (false alarm below 1e-9 in all).
    """
    n = 1_000_000
    x = wide.gaussian(n) / wide.SIGMA
    assert abs(x.mean()) < 7 / math.sqrt(n)
    assert abs(x.std() - 1) < 7 / math.sqrt(2 * n)
    cdf = np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in np.sort(x)[::1000]])
    assert np.abs(cdf - np.arange(0, n, 1000) / n).max() < 3.4 / math.sqrt(n)


def test_the_lowest_bits_are_uniform():
    """χ² of the lowest 8 bits over 256 cells from 256,000 draws: below 415 (false alarm 1e-9)."""
    counts = np.bincount(wide.gaussian(256_000) & 255, minlength=256)
    assert ((counts - 1000) ** 2 / 1000).sum() < 415


def test_ties_and_doubts_are_settled_by_more_bits():
    """Words built by hand: a tie with a threshold's leading bits asks for the threshold's rest, and a doubt
    for a draw against exp(−γ).
    """
    leading, alias, _ = wide._table()
    cell = next(c for c in range(wide.CELLS) if alias[c] != c and 0 < leading[c] < 2**wide.T_BITS)

    def word(u, easy=0, r=5, negative=0):
        return np.array(
            [(((((u << 1 | negative) << wide.EASY) | easy) << wide.J_BITS | cell) << wide.M_BITS) | r],
            np.uint64,
        )

    asked = []

    def source(byte):
        def give(n):
            asked.append(n)
            return bytes([byte]) * n

        return give

    below, above = (
        wide._chunk(word(int(leading[cell])), source(0)),
        wide._chunk(word(int(leading[cell])), source(255)),
    )
    assert [n for n in asked if n] == [29, 29]
    assert int(below[0]) >> wide.M_BITS == cell
    assert int(above[0]) >> wide.M_BITS == alias[cell]
    assert (
        int(wide._chunk(word(int(leading[cell]) - 1, negative=1), source(0))[0]) >> wide.M_BITS == -cell - 1
    )  # −(m·cell + 5)
    assert (
        len(wide._chunk(word(0, easy=255, r=2**16 - 1), source(255))) == 0 or cell < 50
    )  # U = 1 − 2⁻⁵³ is above exp(−γ): rejected
    assert len(wide._chunk(word(0, easy=255, r=0), source(0))) == 1  # γ = 0 accepts always


def test_a_decision_too_close_for_floating_point_is_made_with_80_digits():
    j, r = 9000, 40_000
    p = math.exp(-(2 * j * 2**16 * r + r * r) / (2 * wide.SIGMA**2))
    near = int(p * 2**53)
    assert wide._decide(j, r, near - 4, lambda n: bytes(n))
    assert not wide._decide(j, r, near + 4, lambda n: b"\xff" * n)


@pytest.mark.parametrize("n", [0, 1, wide.CHUNK + 1])
def test_it_returns_the_requested_number(n):
    assert len(wide.gaussian(n)) == n


def test_replayed_bytes_give_the_same_numbers():
    def source(seed):
        rng = np.random.default_rng(seed)
        return rng.bytes

    assert (wide.gaussian(1000, source(1)) == wide.gaussian(1000, source(1))).all()
    assert (wide.gaussian(1000, source(1)) != wide.gaussian(1000, source(2))).any()
