"""SEAL's objects as bytes, and noise as residues."""

from __future__ import annotations

import os

import numpy as np
import pytest

from tacit.crypto import bfv, rlwe, sealapi


@pytest.mark.parametrize(
    ("bits", "primes"), [(88, bfv.PRIMES), (135, rlwe.PRIMES), (16, (50, 50)), (17, (60, 60))]
)
def test_noise_is_what_was_drawn_as_residues(bits: int, primes: tuple[int, ...]) -> None:
    """Limbs of 16 bits, the lowest first, less 2^(bits−1): in Python's integers, of random and extreme draws."""
    kept = sealapi.find_primes("this test", primes)[:-1]
    for draw in (os.urandom, bytes, lambda size: b"\xff" * size):
        drawn: list[bytes] = []
        found = sealapi.draw_noise(lambda size: drawn.append(draw(size)) or drawn[0], 50, bits, kept)  # noqa: B023
        limbs = np.frombuffer(drawn[0], "<u2").reshape(-1, 50).astype(object)
        values = sum(limb << 16 * k for k, limb in enumerate(limbs)) % (1 << bits) - (1 << bits - 1)
        assert found.tolist() == [(values % p).tolist() for p in kept]


def test_a_ciphertext_survives_its_residues_and_a_seed_gives_the_second_part() -> None:
    objects = sealapi.Objects("this test", bfv.PRIMES, bfv.WORD)
    generator = objects.seal.KeyGenerator(objects.context)
    encryptor = objects.seal.Encryptor(objects.context, generator.secret_key())
    decryptor = objects.seal.Decryptor(objects.context, generator.secret_key())
    first, seed = objects.seeded(encryptor.encrypt_symmetric(objects.plaintext(np.arange(9))), bfv.LEVELS)
    level = objects.context.first_parms_id()
    cipher = objects.load(objects.seal.Ciphertext(), level, first[None], seed=seed)
    parts = objects.residues(cipher, bfv.LEVELS).reshape(2, bfv.LEVELS, sealapi.DEGREE)
    again = objects.load(objects.seal.Ciphertext(), level, parts)
    other = objects.load(objects.seal.Ciphertext(), level, first[None], seed=bytes(64))
    for read, same in ((cipher, True), (again, True), (other, False)):
        plain = objects.seal.Plaintext()
        decryptor.decrypt(read, plain)
        assert np.array_equal(objects.coefficients(plain, range(9)), np.arange(9)) == same
