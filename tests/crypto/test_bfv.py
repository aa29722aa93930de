"""Encrypted sums: exact, and independent of which ciphertexts were added."""

from __future__ import annotations

import os
from functools import cache

import numpy as np
import pytest

from tacit.boost.encrypted_rows import add_encrypted_rows
from tacit.crypto import bfv
from tacit.errors import ProtocolError

WORDS = 900  # of a row: nine rows in a ciphertext


@cache
def keys() -> bfv.KeyHolder:
    return bfv.KeyHolder()


@cache
def maker() -> bfv.SumMaker:
    return bfv.SumMaker(keys().public())


def encrypt_rows(words: np.ndarray) -> list[bytes]:
    each = bfv.DEGREE // words.shape[1]
    return [keys().encrypt(words[k : k + each].reshape(-1)) for k in range(0, len(words), each)]


def test_sums_over_cells_are_exact_modulo_2_59_with_numpy_and_compiled() -> None:
    rng = np.random.default_rng(0)
    words = rng.integers(0, 1 << bfv.WORD, (20, WORDS))
    cells = np.stack([rng.integers(0, 2, 20), rng.integers(2, 5, 20)], axis=1)
    block = maker().open(encrypt_rows(words), "a mask")
    totals = [np.zeros((5, bfv.PARTS * bfv.LEVELS, bfv.DEGREE), np.uint64) for _ in range(2)]
    for total, add in zip(totals, (bfv.add_rows_numpy, add_encrypted_rows)):
        add(total, block, cells, WORDS, bfv.moduli())
    assert np.array_equal(*totals)
    total = totals[0] % np.tile(bfv.moduli(), bfv.PARTS)[:, None]
    for cell in range(5):
        mask = rng.integers(0, 1 << bfv.WORD, bfv.DEGREE)
        found = keys().decrypt(maker().close(total[cell], mask, os.urandom), WORDS)
        inside = (cells == cell).any(axis=1)
        assert np.array_equal(found, (words[inside].sum(axis=0) + mask[:WORDS]) & bfv.MASK)


def center(values: np.ndarray, prime: int) -> np.ndarray:
    return (values.astype(np.int64) + prime // 2) % prime - prime // 2


def test_a_returned_sum_does_not_show_which_ciphertexts_were_added() -> None:
    """The key's holder knows every ciphertext it sent. Without a fresh encryption the second part of the sum
    is the sum of their second parts, so that it can try rows; with one, the difference is uniform modulo a
    prime of 50 bits: all of the first 8 coefficients are below 2^40 with a probability of 2^-72. The noise is
    that of the flood, for one row as for nine.
    """
    words = np.zeros((9, WORDS), np.int64)
    sealed = encrypt_rows(words)
    (source,) = maker().open(sealed, "a mask")
    limits = np.tile(bfv.moduli(), bfv.PARTS)[:, None]
    second = slice(bfv.LEVELS, bfv.PARTS * bfv.LEVELS)
    budgets = set()
    for rows in (1, 9):
        total = np.zeros((1, *source.shape), np.uint64)
        bfv.add_rows_numpy(total, source[None], np.zeros((rows, 1), np.int64), WORDS, bfv.moduli())
        total[0] %= limits
        mask = np.zeros(bfv.DEGREE, np.int64)
        hidden = maker().residues(maker().hide(total[0], mask, os.urandom), bfv.LEVELS)
        difference = (hidden + limits - total[0]) % limits
        prime = int(bfv.moduli()[0])
        assert (np.abs(center(difference[second][0], prime))[:8] > 1 << 40).any()
        assert (np.abs(center(difference[0], prime))[:8] > 1 << 40).any()
        closed = maker().close(total[0], mask, os.urandom)
        budgets.add(keys().noise_budget(closed))
        assert not keys().decrypt(closed, WORDS).any()
    assert budgets <= {2, 3}


def test_what_cannot_be_read_is_refused() -> None:
    good = keys().encrypt(np.arange(10))
    closed = maker().close(np.zeros((6, bfv.DEGREE), np.uint64), np.zeros(bfv.DEGREE, np.int64), os.urandom)
    for bad in (b"", b"abc", good[:-1], good[:50] + bytes(50) + good[100:]):
        with pytest.raises(ProtocolError, match="a mask cannot be read"):
            maker().open([bad], "a mask")
    with pytest.raises(ProtocolError, match="a mask has another form"):
        maker().open([closed], "a mask")
    with pytest.raises(ProtocolError, match="a sum has another form"):
        keys().decrypt(good, 10)
    with pytest.raises(ProtocolError, match="has 1048577 bytes"):
        maker().open([bytes((1 << 20) + 1)], "a mask")
    with pytest.raises(ProtocolError, match="the public key cannot be read"):
        bfv.SumMaker(good)
    with pytest.raises(ProtocolError, match="the public key has 1048577 bytes"):
        bfv.SumMaker(bytes((1 << 20) + 1))


def test_parameters_are_those_of_128_bits() -> None:
    """Table 1 of the standard: 218 bits at dimension 8192; SEAL refuses more."""
    import tenseal.sealapi as seal

    assert sum(bfv.PRIMES) <= 218 == seal.CoeffModulus.MaxBitCount(bfv.DEGREE, seal.SEC_LEVEL_TYPE.TC128)
    errors = 21 * (1 << 20) + (1 << 20)  # of 2^20 ciphertexts, and of the fresh one
    assert errors + (1 << (bfv.FLOOD - 1)) < 2 ** (
        sum(bfv.PRIMES[:-1]) - bfv.WORD - 2
    )  # half of what decryption removes
    assert errors / 2**bfv.FLOOD * bfv.DEGREE * 20_000 < 2**-35
