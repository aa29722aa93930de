from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import BadData, BadParameter
from tacit.mpc import ring
from tacit.mpc.ring import FixedPoint


def words(*shape, seed=0):
    return torch.randint(-(2**63), 2**63 - 1, shape, generator=torch.Generator().manual_seed(seed))


@given(st.floats(-(2.0**30), 2.0**30), st.integers(12, 16))
def test_decoding_returns_an_encoded_value_within_half_a_unit(x, fraction):
    fixed = FixedPoint(fraction)
    back = float(fixed.decode(fixed.encode(x)))
    assert abs(back - x) <= fixed.ulp / 2


def test_negatives_do_not_come_back_one_off():
    """CrypTen gives −10.99994 for −9.99995: its decoding splits into whole and fractional part and floors the
    one but not the other.
    """
    fixed = FixedPoint()
    assert float(fixed.decode(fixed.encode(-9.99995))) == pytest.approx(-9.99995, abs=fixed.ulp / 2)
    x = torch.arange(-200_000, 0).double() / 20_000
    assert (fixed.decode(fixed.encode(x)) - x).abs().max() <= fixed.ulp / 2


@pytest.mark.parametrize("x", [2.0**30 + 1, -(2.0**31), float("inf"), float("-inf"), float("nan")])
def test_what_does_not_fit_is_refused_at_encoding(x):
    with pytest.raises(
        BadData,
        match=r"the input: 1 of 2 numbers are not within ±1\.07374e\+09, the range of 16 fractional bits",
    ):
        FixedPoint().encode([0.0, x], "the input")
    assert FixedPoint().encode([2.0**30, -(2.0**30)]).tolist() == [2**46, -(2**46)]


@pytest.mark.parametrize("fraction", [12, 14, 16, 18])
def test_the_range_fits_a_comparison_and_a_product(fraction):
    most = FixedPoint(fraction).most
    assert most * 2**fraction <= 2**46
    assert most * 2 ** (2 * fraction) <= 2**62


def test_non_numeric_values_are_refused():
    with pytest.raises(BadData, match="the tensor is str, not numbers"):
        FixedPoint().encode("five", "the tensor")
    with pytest.raises(BadData, match=r"holds torch\.bool; only real numbers"):
        FixedPoint().encode(torch.tensor([True]), "a mask")
    with pytest.raises(
        BadParameter, match="fraction is 40; it must be a whole number of at least 12 and at most 18"
    ):
        FixedPoint(40).encode(1.0)


def whole_product(x, y):
    """x @ y with Python's integers, cut to 64 bits."""
    return [
        [
            ((sum(int(a) * int(b) for a, b in zip(row, column)) + 2**63) % 2**64) - 2**63
            for column in y.T.tolist()
        ]
        for row in x.tolist()
    ]


def test_matmul_is_exact_modulo_2_to_the_64_natively_and_in_limbs():
    x, y = words(3, 17), words(17, 4, seed=1)
    assert ring.matmul(x, y).tolist() == whole_product(x, y)
    assert ring._in_limbs(torch.matmul, x, y).tolist() == whole_product(x, y)
    with pytest.raises(BadData, match="16-bit limbs add fewer than 2097152 exactly"):
        ring._in_limbs(
            torch.matmul, torch.empty(1, 2**21, device="meta"), torch.empty(2**21, 1, device="meta")
        )


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(0, 2),
    st.integers(1, 2),
    st.integers(1, 2),
)
def test_conv2d_is_torchs_on_small_numbers(batch, groups, kernel, stride, padding, dilation, out):
    rng = torch.Generator().manual_seed(7)
    x = torch.randint(-50, 50, (batch, 2 * groups, 8, 7), generator=rng)
    w = torch.randint(-50, 50, (out * groups, 2, kernel, kernel), generator=rng)
    wanted = F.conv2d(
        x.double(), w.double(), stride=stride, padding=padding, dilation=dilation, groups=groups
    )
    assert torch.equal(
        ring.conv2d(x, w, (stride,) * 2, (padding,) * 2, (dilation,) * 2, groups).double(), wanted
    )


@given(st.lists(st.integers(0, 1), min_size=1, max_size=40))
def test_bits_are_packed_the_same_way_on_every_device(bits):
    b = torch.tensor([bits, bits], dtype=torch.uint8)
    packed = ring.pack(b)
    assert ring.unpack(packed, len(bits)).tolist() == [bits, bits]
    places = torch.arange(7, -1, -1, dtype=torch.uint8)
    by_torch = (F.pad(b, (0, -len(bits) % 8)).reshape(2, -1, 8) << places).sum(-1)
    assert packed.tolist() == by_torch.tolist()


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 63))
def test_shift_is_the_unsigned_words(x, bits):
    assert int(ring.shift(torch.tensor(x), bits)) % 2**64 == (x % 2**64) >> bits
