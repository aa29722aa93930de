"""Products of encrypted whole numbers: right, masked, and unlike the product a holder of the key could divide by what it sent."""

from __future__ import annotations

import os

import numpy as np
import pytest

from tacit.crypto import bfv
from tacit.errors import ProtocolError


@pytest.fixture(scope="module")
def boxes():
    secret, public = bfv.keys()
    return bfv.Box(secret), bfv.Box(public)


def test_products_with_masks_are_exact_modulo_the_prime(boxes):
    guest, host = boxes
    rng = np.random.default_rng(0)
    r, x = rng.integers(-2**24, 2**24, bfv.SLOTS), rng.integers(-2**22, 2**22, bfv.SLOTS)
    masks = bfv.uniform(os.urandom(32), bfv.SLOTS)
    got = guest.decrypt(host.times(guest.encrypt(r), x, masks, os.urandom(32)), bfv.SLOTS)
    want = [(int(a) * int(b) + int(m)) % bfv.PRIME for a, b, m in zip(r, x, masks)]
    assert got.tolist() == want
    assert bfv.total(got) == sum(want) % bfv.PRIME


def test_the_prime_is_prime_and_allows_slots():
    assert bfv.PRIME % (2 * bfv.SLOTS) == 1
    assert bfv.PRIME < 2**57
    d, s = bfv.PRIME - 1, 0
    while d % 2 == 0:
        d, s = d // 2, s + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):  # enough for every number below 3·10^24 (Sorenson, Webster 2015)
        v = pow(base, d, bfv.PRIME)
        assert v in (1, bfv.PRIME - 1) or any(pow(v, 2**i, bfv.PRIME) == bfv.PRIME - 1 for i in range(1, s)), base


def test_the_same_product_twice_is_two_ciphertexts_and_neither_is_the_bare_product(boxes):
    """Without the drowned zero a result would be the same bytes each time, and p·c₁: the key's holder could divide by the c₁ it sent."""
    guest, host = boxes
    sent = guest.encrypt(np.arange(8))
    factors, masks = np.full(8, 3), np.zeros(8, np.int64)
    a, b = (host.times(sent, factors, masks, os.urandom(32)) for _ in range(2))
    bare = (host._read(sent) * factors.tolist()).serialize()
    differ = np.mean(np.frombuffer(a[-100000:], np.uint8) != np.frombuffer(b[-100000:], np.uint8))
    assert differ > 0.9
    assert np.mean(np.frombuffer(a[-100000:], np.uint8) != np.frombuffer(bare[-100000:], np.uint8)) > 0.9
    assert guest.decrypt(a, 8).tolist() == guest.decrypt(b, 8).tolist() == (3 * np.arange(8)).tolist()


def test_masks_are_uniform_modulo_the_prime():
    """Mean and variance of 100,000 draws within five deviations: a right generator fails with probability below 2e-6."""
    drawn = bfv.uniform(bytes(32), 100_000).astype(np.float64) / bfv.PRIME
    assert abs(drawn.mean() - 0.5) < 5 * np.sqrt(1 / 12 / 1e5)
    assert abs(drawn.var() - 1 / 12) < 5 * np.sqrt(1 / 180 / 1e5)
    assert len(np.unique(bfv.uniform(b"a" * 32, 1000))) == 1000
    assert not np.array_equal(bfv.uniform(b"a" * 32, 10), bfv.uniform(b"b" * 32, 10))


def test_what_is_no_key_no_ciphertext_or_of_another_length_is_refused(boxes):
    guest, host = boxes
    with pytest.raises(ProtocolError, match="the key cannot be read"):
        bfv.Box(b"nothing")
    with pytest.raises(ProtocolError, match="a ciphertext cannot be read"):
        guest.decrypt(b"nothing", 4)
    with pytest.raises(ProtocolError, match="holds 4 numbers; 5 are due"):
        guest.decrypt(guest.encrypt(np.arange(4)), 5)
    with pytest.raises(ProtocolError, match="cannot be opened"):
        host.decrypt(guest.encrypt(np.arange(4)), 4)
