"""Rings of 2^width: sums read back exactly, packing loses nothing, what does not fit is said."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.crypto import ring
from tacit.errors import BadData, BadParameter


@given(st.sampled_from(ring.WIDTHS), st.integers(1, 40), st.data())
def test_a_sum_of_parties_numbers_is_read_back_exactly(width: int, parties: int, data: st.DataObject) -> None:
    bound = (2 ** (width - 1) - 1) // parties
    if bound == 0:
        return
    assert ring.width_for(parties, bound) <= width
    rows = np.array(
        data.draw(
            st.lists(
                st.lists(st.integers(-bound, bound), min_size=3, max_size=3),
                min_size=parties,
                max_size=parties,
            )
        ),
        dtype=np.int64,
    )
    total = np.zeros(3, ring.word(width))
    for row in rows:
        total += ring.encode(row, width, bound)
    assert np.array_equal(ring.decode(ring.truncate(total, width), width), rows.sum(0))


@pytest.mark.parametrize(
    ("parties", "bound", "width"),
    [(1, 127, 8), (1, 128, 12), (100, 327, 16), (100, 328, 20), (1, 2**31 - 1, 32), (2, 2**31 - 1, 40)],
)
def test_the_ring_is_the_narrowest_that_holds_parties_times_range(
    parties: int, bound: int, width: int
) -> None:
    assert ring.width_for(parties, bound) == width
    assert 2 * parties * bound < 2**width


def test_a_sum_too_large_for_any_ring_is_refused() -> None:
    with pytest.raises(
        BadParameter,
        match=r"SecAgg: the range of a sum is '±9223372036854775808'; it must be below 2\^63\. Quantize to "
        r"fewer bits",
    ):
        ring.width_for(2, 2**62)


@given(st.sampled_from(ring.WIDTHS), st.integers(0, 65), st.integers(0, 2**32 - 1))
def test_unpacking_is_the_reverse_of_packing_and_no_bit_is_spare(width: int, length: int, seed: int) -> None:
    words = ring.truncate(
        np.random.default_rng(seed).integers(0, 2**64, length, dtype=np.uint64).astype(ring.word(width)),
        width,
    )
    packed = ring.pack(words, width)
    assert packed.dtype == np.uint8
    assert len(packed) == -(-length * width // 8) == ring.packed_bytes(length, width)
    assert np.array_equal(ring.unpack(packed, length, width), words)


def test_a_million_numbers_take_as_many_bytes_as_their_bits() -> None:
    assert [ring.packed_bytes(10**6, width) for width in (16, 20, 32)] == [2_000_000, 2_500_000, 4_000_000]


def test_numbers_that_do_not_fit_are_an_error_with_their_count() -> None:
    with pytest.raises(
        BadData,
        match=r"2 of 4 numbers are outside ±10, the range agreed for this sum\. Clip before quantizing",
    ):
        ring.encode(np.array([10, -10, 11, -200]), 8, 10)


def test_real_numbers_are_refused() -> None:
    with pytest.raises(
        BadData,
        match=r"expected a vector of integers, got float64 with 1 dimensions\. Quantize first\.",
    ):
        ring.encode(np.array([1.0, float("nan")]), 8, 10)


def test_bytes_of_another_length_are_refused() -> None:
    with pytest.raises(BadData, match="7 bytes are not 4 numbers of 16 bits, which take 8"):
        ring.unpack(np.zeros(7, np.uint8), 4, 16)
