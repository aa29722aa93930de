"""Each function over its domain, with the error stated in `functions.py`; outside, in debug mode, refused."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from tacit.errors import PartyFailed
from tacit.mpc import functions as fn
from tacit.mpc.beaver import Square
from tacit.mpc.dealer import plan
from tacit.mpc.ring import FixedPoint
from tacit.parties import Ledger

from .at_table import MASKED, play, value

FIXED = FixedPoint()


def grid(low, high, n=1500):
    return FIXED.decode(FIXED.encode(torch.linspace(low, high, n, dtype=torch.float64)))


def octave_grid(n=1500):
    return FIXED.decode(FIXED.encode(torch.logspace(-10, 15, n, base=2, dtype=torch.float64)))


def run(function, x, **options):
    return FIXED.decode(value(function, FIXED.encode(x), **options))


BOTH = torch.cat([octave_grid(), -octave_grid()])
CASES = {
    "reciprocal": (fn.reciprocal, BOTH, lambda x: 1 / x, lambda x: 2**-14 + 2**-14 / x.abs()),
    "rsqrt": (fn.rsqrt, octave_grid(), lambda x: x**-0.5, lambda x: 2**-14 + 2**-13 / x.sqrt()),
    "sqrt": (
        fn.sqrt,
        torch.cat([octave_grid(), torch.zeros(1, dtype=torch.float64)]),
        torch.sqrt,
        lambda x: 2**-13 + 2**-13 * x.sqrt(),
    ),
    "log": (fn.log, octave_grid(), torch.log, lambda x: 2**-12 + 2**-16 / x),
    "exp": (
        fn.exp,
        torch.cat([grid(-30, 10, 3000), torch.tensor([-1e6, -1000.0], dtype=torch.float64)]),
        torch.exp,
        lambda x: 2**-14 + 2**-15 * x.exp(),
    ),
    "sigmoid": (
        fn.sigmoid,
        torch.cat([grid(-20, 20), torch.tensor([-1e5, 1e5], dtype=torch.float64)]),
        torch.sigmoid,
        lambda x: 2**-13 + 0 * x,
    ),
    "tanh": (fn.tanh, grid(-12, 12), torch.tanh, lambda x: 2**-13 + 0 * x),
    "gelu": (
        fn.gelu,
        torch.cat([grid(-8, 8), torch.tensor([-1e5, 1e5], dtype=torch.float64)]),
        torch.nn.functional.gelu,
        lambda x: 2**-12 + 0 * x,
    ),
    "silu": (
        fn.silu,
        torch.cat([grid(-20, 20), torch.tensor([-1e5, 1e5], dtype=torch.float64)]),
        torch.nn.functional.silu,
        lambda x: 2**-12 + 0 * x,
    ),
    "leaky relu": (
        lambda ctx, x: fn.leaky_relu(ctx, x, 0.01),
        torch.cat([grid(-20, 20), torch.tensor([-1e5, 1e5], dtype=torch.float64)]),
        torch.nn.functional.leaky_relu,
        lambda x: 2**-15 + 2**-15 * x.abs(),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_keeps_its_stated_error_over_its_domain(name):
    function, x, true, bound = CASES[name]
    assert ((run(function, x) - true(x)).abs() <= bound(x)).all()


@pytest.mark.parametrize("name", ["reciprocal", "log", "sigmoid"])
def test_three_parties_say_the_same(name):
    function, x, true, bound = CASES[name]
    assert ((run(function, x[::50], parties=3) - true(x[::50])).abs() <= bound(x[::50])).all()


@pytest.mark.parametrize("fraction", [12, 14, 18])
@pytest.mark.parametrize("name", CASES)
def test_other_fractional_bits_scale_the_error(name, fraction):
    """Twice the stated error for each bit less than 16; more bits promise no more."""
    function, x, true, bound = CASES[name]
    fixed = FixedPoint(fraction)
    x = fixed.decode(fixed.encode(x[x.abs() >= 2.0**-9][::10]))
    made = fixed.decode(value(function, fixed.encode(x), fixed=fixed))
    assert ((made - true(x)).abs() <= bound(x) * 2.0 ** max(16 - fraction, 0)).all()


@pytest.mark.parametrize("n", [1, 2, 10, 100])
def test_softmax(n):
    x = FIXED.decode(
        FIXED.encode(torch.randn(20, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64) * 6)
    )
    made = run(fn.softmax, x)
    assert (made - x.softmax(-1)).abs().max() <= 2**-12
    down = FIXED.decode(value(lambda ctx, v: fn.softmax(ctx, v, 0), FIXED.encode(x.T)))
    assert (down - x.softmax(-1).T).abs().max() <= 2**-12


def rows_of(spread, mean, shape):
    generator = torch.Generator().manual_seed(2)
    return FIXED.decode(FIXED.encode(spread * torch.randn(shape, generator=generator).double() + mean))


@pytest.mark.parametrize("n", [7, 64, 768])
@pytest.mark.parametrize("spread", [0.01, 0.1, 1.0, 30.0, 150.0])
def test_norms(spread, n):
    """Over standard deviations from 2^-7 to 2^7, with lengths that are powers of two and others."""
    for mean in (0.0, 3.0):
        x = rows_of(spread, mean, (10, n))
        sigma = (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        made, wanted = run(lambda ctx, v: fn.layer_norm(ctx, v, 1, 1e-5), x), (x - x.mean(-1, True)) / sigma
        far = 1 + wanted.abs()
        assert ((made - wanted).abs() <= 2**-13 * far + 2**-14 * (1 + mean) / sigma * far).all()
        sigma = ((x * x).mean(-1, keepdim=True) + 1e-6).sqrt()
        made, wanted = run(lambda ctx, v: fn.rms_norm(ctx, v, 1, 1e-6), x), x / sigma
        far = 1 + wanted.abs()
        assert ((made - wanted).abs() <= 2**-13 * far + 2**-14 * (1 + mean) / sigma * far).all()


def test_norms_over_two_dimensions_and_of_zeros():
    x = rows_of(1.0, 3.0, (5, 4, 16))
    made = run(lambda ctx, v: fn.layer_norm(ctx, v, 2, 1e-5), x)
    assert (made - torch.nn.functional.layer_norm(x, (4, 16))).abs().max() <= 2**-11
    for norm in (fn.layer_norm, fn.rms_norm):
        step = functools.partial(norm, dims=1, eps=1e-12)
        assert run(step, torch.zeros(3, 8)).abs().max() <= 2**-10


@pytest.mark.parametrize("shape", [(2, 3, 6, 6), (6, 6), (2, 6)])
def test_a_masked_softmax_is_the_softmax_of_what_is_not_masked(shape):
    x = rows_of(6.0, 0.0, shape)
    hidden = torch.ones(6, 6, dtype=torch.bool).triu(1)
    if shape == (2, 6):
        hidden = hidden[2]
    made = run(lambda ctx, v: fn.softmax(ctx, v, hidden=hidden), x)
    assert (made - x.masked_fill(hidden, -torch.inf).softmax(-1)).abs().max() <= 2**-12
    assert (made.masked_select(hidden) == 0).all()


def test_a_masked_softmax_computes_no_exponential_of_what_is_masked():
    requests = [
        plan(
            functools.partial(
                fn.softmax, x=torch.empty(4, 8, 8, dtype=torch.int64, device="meta"), hidden=mask
            )
        )
        for mask in (None, torch.ones(8, 8, dtype=torch.bool).triu(1))
    ]
    squares = [[r.x for r in each if isinstance(r, Square)] for each in requests]
    assert squares == [[(4, 8, 8)] * 4, [(4, 36)] * 4]


def test_comparisons_are_exact():
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randint(-(2**45), 2**45, (2, 500), generator=generator)
    y[:100], y[100:200] = x[:100], x[100:200] + 1
    for function, wanted in ((fn.at_least, x >= y), (fn.equal, x == y)):
        assert value(function, x, y).tolist() == wanted.long().tolist()


OUTSIDE = [
    ("reciprocal", 2.0**-12),
    ("reciprocal", 0.0),
    ("reciprocal", 2.0**20),
    ("log", 0.0),
    ("log", -1.0),
    ("sqrt", -1.0),
    ("rsqrt", 0.0),
    ("exp", 12.0),
]


@pytest.mark.parametrize(("name", "x"), OUTSIDE)
def test_outside_its_domain_debug_mode_fails_loudly(name, x):
    """Peers return a number here and say nothing."""
    ledger = Ledger()
    with pytest.raises(PartyFailed, match=rf"{name}.* got values from .* its domain is .* silently wrong"):
        play(CASES[name][0], FIXED.encode(torch.tensor([1.0, x])), debug=True, ledger=ledger)
    assert any("DEBUG" in stamp for stamp in ledger.stamps)


@pytest.mark.parametrize("name", ["reciprocal", "log", "sqrt", "exp"])
def test_inside_its_domain_debug_mode_changes_nothing(name):
    function, x, true, bound = CASES[name]
    some = x[::100]
    assert ((run(function, some, debug=True) - true(some)).abs() <= bound(some)).all()


def test_without_debug_nothing_is_opened_but_masked_values():
    ledger = Ledger()
    play(fn.log, FIXED.encode(torch.tensor([2.0])), ledger=ledger)
    assert {line.kind for line in ledger.seen} <= MASKED
    assert not ledger.stamps


def test_the_fits_are_as_good_as_stated():
    import numpy as np

    for name, (low, high, most) in {
        "exp": (-1.0, 0.625, 2**-22),
        "log": (-1, 1, 2**-18),
        "gelu": (-1, 1, 2**-13),
        "rsqrt": (0.25, 1, 0.01),
        "silu": (-1, 1, 2**-14),
    }.items():
        v = np.linspace(low, high, 500)
        fitted = np.polynomial.polynomial.polyval(v, fn._fit(name))
        true = fn.FITS[name][0](v)
        assert np.abs(fitted - true).max() <= most * (2 if name == "rsqrt" else 1), name
    assert math.isclose(fn.FITS["gelu"][0](np.array([0.0]))[0], 2 * 0.5 * math.erfc(math.sqrt(2)))
