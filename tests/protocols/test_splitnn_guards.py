"""Guards at the cut do what they say: bounds, variances, levels, and the power and optimum of Marvell's
noise.
"""

from __future__ import annotations

import math

import pytest
import torch

from tacit.parties.secret import SeededSecret
from tacit.protocols.splitnn_guards import (
    ClipRows,
    IsoNoise,
    Marvell,
    MaskGradients,
    MaxNorm,
    NoiseRows,
    QuantizeRows,
    normal,
    uniform,
)

SECRET = SeededSecret(1)


def rows(n=200, d=8, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def test_clipping_bounds_every_row_and_leaves_short_ones_alone():
    z = rows() * torch.linspace(0.01, 3, 200)[:, None]
    out = ClipRows(1.0).out(z, SECRET)
    assert float(out.norm(dim=1).max()) <= 1 + 1e-6
    short = z.norm(dim=1) < 1
    assert torch.equal(out[short], z[short])


def test_normal_numbers_are_normal():
    """Mean, variance, and fourth moment of 200,000 draws within five deviations: a right generator fails with
    probability below 2e-6.
    """
    v = normal(SECRET, (200_001,)).double()
    assert abs(float(v.mean())) < 5 / math.sqrt(2e5)
    assert abs(float((v**2).mean()) - 1) < 5 * math.sqrt(2 / 2e5)
    assert abs(float((v**4).mean()) - 3) < 5 * math.sqrt(96 / 2e5)
    u = uniform(SECRET, (100_000,))
    assert 0 < float(u.min()) <= float(u.max()) < 1


def test_noise_is_added_and_does_not_stop_the_gradient():
    z = rows().requires_grad_()
    out = NoiseRows(0.5).out(z, SECRET)
    assert float((out - z).detach().std()) == pytest.approx(0.5, rel=0.1)
    out.sum().backward()
    assert torch.equal(z.grad, torch.ones_like(z))


@pytest.mark.parametrize("bits", [1, 4, 8, 12])
def test_quantized_values_are_levels_half_a_step_away_at_most(bits):
    z, q = rows(), QuantizeRows(bits)
    codes, low, step = q.codes(z)
    assert int(codes.max()) <= 2**bits - 1
    assert codes.dtype == (torch.uint8 if bits <= 8 else torch.int32)
    assert float((q.values(codes, low, step) - z).abs().max()) <= step / 2 * 1.001
    one = torch.full((3, 2), 4.0)
    assert torch.equal(q.values(*q.codes(one)), one)


def test_masked_gradients_keep_their_mean():
    """Each coordinate's mean over 20,000 draws within five deviations of the mask's: fails with probability
    below 1e-5.
    """
    g = torch.ones(20_000, 4)
    out = MaskGradients(0.25).out(g, torch.zeros(20_000), SECRET)
    assert set(out.unique().tolist()) == {0.0, 4.0}
    assert (out.mean(0) - 1).abs().max() < 5 * math.sqrt(3 / 20_000)


def test_max_norm_makes_expected_squared_norms_equal():
    """E‖g(1 + σε)‖² = ‖g‖²(1 + σ²) = the largest: over 20,000 draws within five deviations."""
    g = torch.tensor([[3.0, 4.0], [0.6, 0.8]]).repeat(10_000, 1)
    out = MaxNorm().out(g, torch.zeros(20_000), SECRET)
    assert torch.equal(out[::2], g[::2])
    assert float((out[1::2] ** 2).sum(1).mean()) == pytest.approx(25, abs=5 * 25 * math.sqrt(2) / 100)


def test_marvells_noise_has_the_requested_power_and_is_near_optimal():
    """No random split of the same power has a smaller divergence than what the grid found, up to 1%."""
    u, v, p, d, delta2, s = 0.5, 0.2, 0.15, 6, 4.0, 2.0
    across, along = Marvell(s)._levels(u, v, p, d, delta2)
    power = (1 - p) * (along[0] + (d - 1) * across[0]) + p * (along[1] + (d - 1) * across[1])
    assert power <= s * delta2 * (1 + 1e-9)
    assert power > 0.99 * s * delta2

    def divergence(l20, l21, l10, l11):
        a1, b1, a2, b2 = u + l10, v + l11, u + l20, v + l21
        return (d - 1) * (a2 / b2 + b2 / a2) + a1 / b1 + b1 / a1 + delta2 * (1 / a1 + 1 / b1)

    found = divergence(*across, *along)
    g = torch.Generator().manual_seed(0)
    for _ in range(3000):
        cut = torch.rand(4, generator=g).double().log().neg()
        part = (cut / cut.sum() * s * delta2).tolist()
        other = divergence(
            part[0] / ((1 - p) * (d - 1)), part[1] / (p * (d - 1)), part[2] / (1 - p), part[3] / p
        )
        assert found <= other * 1.01


def test_marvell_and_iso_noise_leave_one_class_and_shapes_alone():
    g = rows(40, 12).reshape(40, 3, 4)
    assert torch.equal(Marvell(1.0).out(g, torch.zeros(40), SECRET), g)
    y = torch.arange(40) % 2
    assert Marvell(1.0).out(g, y, SECRET).shape == g.shape
    assert not torch.equal(IsoNoise(1.0).out(g, y, SECRET), g)
