"""Noise that floating point does not give away."""

from __future__ import annotations

import math
import secrets

import numpy as np
import pytest
import torch

from tacit.accounting import discrete, wide
from tacit.errors import BadParameter
from tacit.parties.secret import Secret
from tacit.private import noise


def test_the_attack_on_floating_point_laplace_works_and_on_ours_finds_nothing():
    """Mironov 2012: x + sign·ln(U) with U a multiple of 2⁻⁵³ reaches only some of the floats near it. An
    output y is certain for x if y − x is no logarithm of such a U. At ε = 1 at least half of the
    floating-point releases of 0 are told from those of 1 with certainty; of ours, none.
    """

    def reachable(y, x):
        """Whether y = x ± ln(U) rounded, for a U that the sampler can draw: tried for the few U nearest to exp(−|y − x|)."""
        u = math.exp(-abs(y - x)) * 2**53
        return any(
            0 < k <= 2**53 and x + math.copysign(-math.log(k * 2.0**-53), y - x) == y
            for k in range(int(u) - 8, int(u) + 9)
        )

    def floating(x):
        u = (secrets.randbits(53) + 1) * 2.0**-53
        return x + (1 if secrets.randbits(1) else -1) * -math.log(u)

    told = sum(not reachable(floating(0.0), 1.0) for _ in range(2000)) / 2000
    assert told > 0.4

    def ours(x):  # discrete Laplace on a grid of 2⁻¹⁰: every output of one input is an output of the other
        return (round(x * 1024) + int(discrete.laplace(1024, 1)[0])) / 1024

    assert all((ours(x) * 1024).is_integer() for x in (0.0, 1.0, 0.3) for _ in range(200))


def test_every_release_is_on_the_grid_whatever_was_released():
    """Outputs are whole multiples of σ/2²⁶ (up to float32's own rounding, taken away here by float64): the
    lowest bits say nothing about the sum.
    """
    for value in (0.0, 1.0, 1 / 3, 1e-7):
        (out,) = noise.add_noise(
            [torch.full((500,), value, dtype=torch.float64)], 1.0, noise.keystream(Secret())
        )
        whole = out * wide.SIGMA
        assert torch.equal(whole, whole.round())


def test_the_lowest_bits_of_two_sums_cannot_be_distinguished():
    """χ² between the lowest 6 bits of the releases of 0 and of 1/3, 64 cells, 64,000 draws each: below 156
    (false alarm 1e-9).
    """
    source = noise.keystream(Secret())
    counts = []
    for value in (0.0, 1 / 3):
        (out,) = noise.add_noise([torch.full((64_000,), value, dtype=torch.float64)], 1.0, source)
        counts.append(np.bincount((out * wide.SIGMA).to(torch.int64).numpy() & 63, minlength=64))
    a, b = counts
    assert ((a - b) ** 2 / (a + b)).sum() < 156


def test_sigma_pays_for_rounding():
    """σ = z(C + √D·σ/2²⁶), solved: for a million parameters a part in 10⁵ more than zC."""
    sigma = noise.deviation(1.0, 0.5, 10**6)
    assert sigma == pytest.approx(1.0 * (0.5 + 1000 * sigma / wide.SIGMA))
    assert 1e-5 < sigma / 0.5 - 1 < 2e-5
    with pytest.raises(
        BadParameter,
        match=r"noise_multiplier is 1000000.0; it must be at most .* for 100,000,000 parameters, "
        r"because of rounding",
    ):
        noise.deviation(1e6, 1.0, 10**8)


def test_two_draws_never_share_a_stream():
    source = noise.keystream(Secret())
    assert source(64) != source(64)
    assert len(source(13)) == 13


def test_without_cryptography_the_operating_system_gives_all_of_it(monkeypatch):
    from tacit.errors import MissingExtra

    def absent(key):
        raise MissingExtra("secure aggregation", "secagg", "cryptography")

    monkeypatch.setattr(noise.prg, "aes", absent)
    assert len(noise.keystream(Secret())(32)) == 32
