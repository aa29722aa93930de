"""Shamir's shares: any t give the secret back, t − 1 fit every secret."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.crypto import shamir
from tacit.errors import BadParameter, ProtocolError


def prime(n: int) -> bool:
    """Miller and Rabin with 40 random bases: a composite passes with probability 4^-40."""
    d, s = n - 1, 0
    while d % 2 == 0:
        d, s = d // 2, s + 1
    for _ in range(40):
        a = 2 + int.from_bytes(os.urandom(40), "big") % (n - 3)
        x = pow(a, d, n)
        if x not in (1, n - 1) and not any((x := x * x % n) == n - 1 for _ in range(s - 1)):
            return False
    return True


def test_the_field_is_a_prime_that_holds_a_256_bit_secret() -> None:
    assert prime(shamir.P)
    assert 2**256 < shamir.P < 2 ** (8 * shamir.SHARE)


@settings(deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 12), st.data())
def test_any_t_shares_give_the_secret(secret: bytes, parties: int, data: st.DataObject) -> None:
    t = data.draw(st.integers(1, parties))
    shares = shamir.split(secret, t, parties, os.urandom)
    some = data.draw(st.permutations(range(parties)))[: data.draw(st.integers(t, parties))]
    assert shamir.join({i: shares[i] for i in some}, t) == secret


@settings(deadline=None)
@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), st.integers(2, 8))
def test_one_share_less_fits_every_other_secret_as_well(secret: bytes, other: bytes, t: int) -> None:
    """There is a polynomial of degree t − 1 through the t − 1 shares and any secret at 0: the shares favor
    none.
    """
    shares = shamir.split(secret, t, t, os.urandom)
    some = dict(enumerate(shares[: t - 1]))
    # the last share that would go with `other`: solve Σ wᵢ·yᵢ = other for y_t
    weights = shamir._at_zero(tuple(range(t)))
    known = sum(weights[i] * int.from_bytes(y, "little") for i, y in some.items())
    last = (int.from_bytes(other, "little") - known) * pow(weights[t - 1], -1, shamir.P) % shamir.P
    assert shamir.join({**some, t - 1: last.to_bytes(shamir.SHARE, "little")}, t) == other


def test_the_same_secret_is_shared_differently_each_time() -> None:
    assert shamir.split(bytes(32), 3, 5, os.urandom) != shamir.split(bytes(32), 3, 5, os.urandom)


def test_too_few_shares_are_refused_rather_than_giving_a_wrong_secret() -> None:
    shares = shamir.split(os.urandom(32), 3, 5, os.urandom)
    with pytest.raises(ProtocolError, match="2 shares are too few: 3 are needed"):
        shamir.join(dict(enumerate(shares[:2])), 3)


def test_a_share_outside_the_field_is_refused() -> None:
    with pytest.raises(ProtocolError, match="below the field's prime"):
        shamir.join({0: b"\xff" * 33, 1: bytes(33)}, 2)
    with pytest.raises(ProtocolError, match="33 bytes"):
        shamir.join({0: bytes(32), 1: bytes(33)}, 2)


@pytest.mark.parametrize(
    ("secret", "threshold", "words"),
    [
        (bytes(31), 2, "the length of the secret is 31; it must be 32 bytes"),
        (bytes(32), 6, "threshold is 6; it must be between 1 and the 5 shares"),
    ],
)
def test_what_cannot_be_shared_is_refused(secret: bytes, threshold: int, words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        shamir.split(secret, threshold, 5, os.urandom)
