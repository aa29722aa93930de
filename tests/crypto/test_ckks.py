"""Sums under encryption: exact after rounding, at the edges of the range, and only for who holds the key."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.crypto import ckks
from tacit.errors import BadParameter, ProtocolError

KEY = ckks.secret()


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 32), st.integers(1, 6), st.integers(1, 5000), st.integers(0, 2**32 - 1))
def test_sums_are_exact_after_rounding(bits: int, parties: int, length: int, seed: int) -> None:
    """Every party at either end of the range, or anywhere within it."""
    limit = (2**bits - 1) // (2 * parties)
    rng = np.random.default_rng(seed)
    rows = rng.integers(-limit, limit + 1, (parties, length))
    rows[:, : length // 3], rows[:, length // 3 : length // 2] = limit, -limit
    total = ckks.add(ckks.encrypt(KEY, row, bits) for row in rows)
    assert len(total) == ckks.blocks(length, bits)
    got, off = ckks.decrypt(KEY, total, length, bits)
    assert np.array_equal(got, rows.sum(0))
    assert off < 0.02


def test_several_numbers_share_a_slot_where_they_fit() -> None:
    assert [ckks.per_slot(bits) for bits in (8, 16, 17, 32)] == [4, 2, 1, 1]
    sizes = [
        sum(map(len, ckks.encrypt(KEY, np.zeros(16_384, np.int64), bits))) / 16_384 for bits in (8, 16, 32)
    ]
    assert sizes[0] < 9
    assert sizes[1] < 16
    assert sizes[2] < 32


def test_the_same_numbers_are_encrypted_differently_each_time() -> None:
    a, b = (ckks.encrypt(KEY, np.ones(3, np.int64), 16) for _ in range(2))
    assert a != b


def test_another_key_opens_nothing() -> None:
    with pytest.raises(
        ProtocolError,
        match="away from integers: the ciphertexts do not belong to this key, or were modified",
    ):
        ckks.decrypt(ckks.secret(), ckks.encrypt(KEY, np.arange(3000), 16), 3000, 16)


def test_what_adds_up_holds_no_key() -> None:
    made = ckks._context(ckks._serialize(save_secret_key=False))
    assert not made.is_private()
    assert made.has_secret_key() is False
    assert ckks._context(KEY).has_secret_key()


def test_bytes_that_are_not_a_ciphertext_are_refused() -> None:
    with pytest.raises(ProtocolError, match="a ciphertext cannot be read or added"):
        ckks.add([[b"nonsense"]])
    with pytest.raises(ProtocolError, match="a ciphertext cannot be read"):
        ckks.decrypt(KEY, [b"nonsense"], 1, 16)
    with pytest.raises(ProtocolError, match="the round's key cannot be read"):
        ckks.encrypt(b"nonsense", np.zeros(1, np.int64), 16)
    with pytest.raises(ProtocolError, match="have 3 slots; 7 numbers of 32 bits take 7"):
        ckks.decrypt(KEY, ckks.encrypt(KEY, np.zeros(3, np.int64), 32), 7, 32)


def test_more_bits_than_a_slot_has_are_refused() -> None:
    with pytest.raises(BadParameter, match="Encrypt: bits is 33; it must be between 1 and 32"):
        ckks.per_slot(33)


def test_the_parameters_are_those_of_128_bit_security() -> None:
    """HomomorphicEncryption.org standard, Table 1, ternary secrets: at dimension 4096 a modulus of at most
    109 bits. A wider one SEAL itself refuses.
    """
    import tenseal

    assert sum(ckks.MODULI) == 109
    with pytest.raises(ValueError, match="encryption parameters are not set correctly"):
        tenseal.context(tenseal.SCHEME_TYPE.CKKS, ckks.DIMENSION, -1, [55, 55])
