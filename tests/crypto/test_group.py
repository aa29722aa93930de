"""ristretto255: the published test vectors; invalid elements are refused."""

from __future__ import annotations

import hashlib
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.crypto import group
from tacit.errors import ProtocolError

# RFC 9496, appendix A.1: the first multiples of the generator
MULTIPLES = [
    "e2f2ae0a6abc4e71a884a961c500515f58e30b6aa582dd8db6a65945e08d2d76",
    "6a493210f7499cd17fecb510ae0cea23a110e8d5b901f8acadd3095c73a3b919",
    "94741f5d5d52755ece4f23f044ee27d5d1ea1e2bd196b462166b16152a9d0259",
]
# edwards25519 points of order 1, 2, 4, 8 in their usual encoding, with both signs and the non-canonical
# forms: none of them is an element here
SMALL_ORDER = [
    "00" * 32,
    "01" + "00" * 31,
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "00" * 31 + "80",
    "01" + "00" * 30 + "80",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]
NEUTRAL = bytes(32)


def test_multiples_of_the_generator_are_those_of_the_standard() -> None:
    for k, wanted in enumerate(MULTIPLES, 1):
        assert group.times_base(group.scalar_from_int(k)).hex() == wanted
    assert group.plus(bytes.fromhex(MULTIPLES[0]), bytes.fromhex(MULTIPLES[1])).hex() == MULTIPLES[2]
    assert group.minus(bytes.fromhex(MULTIPLES[2]), bytes.fromhex(MULTIPLES[1])).hex() == MULTIPLES[0]


def test_the_map_from_a_hash_is_the_standards() -> None:
    """RFC 9496, appendix A.3, first line: the element of SHA-512 of this sentence."""
    made = group.element(b"Ristretto is traditionally a short shot of espresso coffee", b"")
    assert made.hex() == "3066f82a1a747d45120d1740f14358531a8f04bbffe6a819f86dfe50f44a0a46"
    assert group.elements(b"aabb", 2, b"x") == group.element(b"aa", b"x") + group.element(b"bb", b"x")


@settings(max_examples=25, deadline=None)
@given(st.binary(min_size=1, max_size=40))
def test_blinding_commutes_and_can_be_undone(data: bytes) -> None:
    a, b, point = group.scalar(os.urandom), group.scalar(os.urandom), group.element(data, b"test")
    assert group.times(a, group.times(b, point)) == group.times(b, group.times(a, point))
    assert group.times(group.inverse(a), group.times(a, point)) == point
    assert group.multiply(a, point * 3) == group.times(a, point) * 3


@pytest.mark.parametrize("encoding", SMALL_ORDER)
def test_points_of_small_order_are_refused(encoding: str) -> None:
    with pytest.raises(ProtocolError, match="is not an element of ristretto255, or is the neutral one"):
        group.times(group.scalar(os.urandom), bytes.fromhex(encoding))


@pytest.mark.parametrize(
    "point", [b"", b"\x01", b"\xff" * 32, b"\x02" * 33, hashlib.sha256(b"no point").digest()]
)
def test_malformed_points_are_refused(point: bytes) -> None:
    for refuse in (
        lambda: group.times(group.scalar(os.urandom), point),
        lambda: group.plus(point, point),
        lambda: group.minus(point, NEUTRAL),
    ):
        with pytest.raises(ProtocolError, match="is not an element of ristretto255"):
            refuse()


def test_one_bad_point_among_many_refuses_all_and_is_named() -> None:
    good = group.times_base(group.scalar_from_int(5))
    with pytest.raises(ProtocolError, match=r"^ffff"):
        group.multiply(group.scalar(os.urandom), good + b"\xff" * 32 + good)
    with pytest.raises(ProtocolError, match="33 bytes are not a multiple of the 32"):
        group.multiply(group.scalar(os.urandom), good + b"\x00")
