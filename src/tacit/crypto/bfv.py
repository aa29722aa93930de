"""Homomorphic encryption of words modulo 2^59, for sums that hide which ciphertexts were added. Fan,
Vercauteren: Somewhat Practical Fully Homomorphic Encryption (BFV), 2012, through TenSEAL (Microsoft SEAL).

Words are coefficients of a polynomial modulo X^8192 + 1, so a ciphertext has 8192 of them, and multiplying it
by a power of X moves them without noise. Ring dimension 8192 with a modulus of 4 × 50 bits: the
HomomorphicEncryption.org standard (2018, Table 1) allows 218 at 128-bit security; SEAL refuses weaker ones.
The holder of the key encrypts with it, so that half of a ciphertext is a seed.

Whoever adds ciphertexts knows the public key only, and returns sums from which the key's holder learns the
word sums and nothing else, not even which ciphertexts were added:

    sum + Enc(mask) + e,    mask uniform modulo 2^59, e uniform in ±2^87

Enc(mask) makes both parts of the ciphertext pseudorandom (RLWE), and e hides the errors of what was added
(noise flooding; Gentry: Fully Homomorphic Encryption Using Ideal Lattices, 2009): errors of 2^20 ciphertexts
are below 2^26, so a coefficient is within 2^-61 of one that does not depend on them. Sums stay exact: an
error below 2^90 is removed by decryption.

SEAL's Python interface has no arithmetic on many ciphertexts at once, so numpy or numba adds the residues,
which SEAL reads from and writes to its own format.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ..errors import ProtocolError
from . import sealapi
from .sealapi import DEGREE, PARTS, Draw, is_installed

__all__ = ["DEGREE", "PARTS", "KeyHolder", "SumMaker", "add_rows_numpy", "is_installed", "new_secret"]

PRIMES = (50, 50, 50, 50)  # bits; the last is for keys only
WORD = 59  # bits of a word: SEAL allows a plaintext modulus below 2^60
LEVELS = len(PRIMES) - 1  # residues of a coefficient
MASK = (1 << WORD) - 1
FLOOD = 88  # bits of the noise: 2^88 values
LAZY = 1 << 13  # residues of 50 bits that are added in 64 bits before they are reduced
CIPHERTEXT_BYTES, SUM_BYTES = 177_000, 236_000  # as SEAL compresses them: measured
MOST_BYTES = 1 << 20  # of a ciphertext or a public key that is read
OPTION = "backend='he'"


@cache
def moduli() -> np.ndarray:
    """The primes of residues."""
    return np.array(sealapi.find_primes(OPTION, PRIMES)[:LEVELS], dtype=np.uint64)


class _Seal(sealapi.Objects):
    """What both sides need: reading and writing of SEAL's objects."""

    def __init__(self) -> None:
        super().__init__(OPTION, PRIMES, WORD)

    def read(self, data: bytes, what: str, is_switched: bool = False) -> Any:
        """Read a ciphertext that another party sent; SEAL checks its residues."""
        if len(data) > MOST_BYTES:
            raise ProtocolError(f"{what} has {len(data)} bytes; a ciphertext has at most {MOST_BYTES}.")
        ciphertext = self.seal.Ciphertext()
        try:
            ciphertext.load(self.context, self.file.write(data))
        except (ValueError, RuntimeError) as error:
            raise ProtocolError(f"{what} cannot be read: {error}.") from None
        levels = LEVELS - 1 if is_switched else LEVELS
        if (ciphertext.size(), ciphertext.coeff_modulus_size()) != (
            PARTS,
            levels,
        ) or ciphertext.is_ntt_form():
            raise ProtocolError(f"{what} has another form than the agreed ciphertexts.")
        return ciphertext


class KeyHolder(_Seal):
    """Encrypts, and decrypts sums. `secret`: a key of `new_secret`, for a run that can be resumed."""

    def __init__(self, secret: bytes | None = None) -> None:
        super().__init__()
        if secret is None:
            generator = self.seal.KeyGenerator(self.context)  # SEAL draws keys from the operating system
        else:
            own = self.seal.SecretKey()
            own.load(self.context, self.file.write(secret))
            generator = self.seal.KeyGenerator(self.context, own)
        secret_key = generator.secret_key()
        self._public = self.seal.PublicKey()
        generator.create_public_key(self._public)
        self._encryptor = self.seal.Encryptor(self.context, self._public, secret_key)
        self._decryptor = self.seal.Decryptor(self.context, secret_key)

    def public(self) -> bytes:
        return self.write(self._public)

    def encrypt(self, words: np.ndarray) -> bytes:
        """Encrypt up to 8192 words below 2^59."""
        return self.write(self._encryptor.encrypt_symmetric(self.plaintext(words)))

    def decrypt(self, data: bytes, count: int, what: str = "a sum") -> np.ndarray:
        """The first words of a sum that `SumMaker.close` returned."""
        plain = self.seal.Plaintext()
        self._decryptor.decrypt(self.read(data, what, is_switched=True), plain)
        return self.coefficients(plain, range(count)).view(np.int64)

    def noise_budget(self, data: bytes) -> int:
        """The bits of noise that a sum could still take."""
        return int(self._decryptor.invariant_noise_budget(self.read(data, "a sum", is_switched=True)))


def new_secret() -> bytes:
    """A fresh secret key, as bytes."""
    objects = _Seal()
    return objects.write(objects.seal.KeyGenerator(objects.context).secret_key())


class SumMaker(_Seal):
    """Adds ciphertexts without the key, and hides which ones."""

    def __init__(self, public: bytes):
        super().__init__()
        if len(public) > MOST_BYTES:
            raise ProtocolError(f"the public key has {len(public)} bytes; it has at most {MOST_BYTES}.")
        key = self.seal.PublicKey()
        try:
            key.load(self.context, self.file.write(public))
        except (ValueError, RuntimeError) as error:
            raise ProtocolError(f"the public key cannot be read: {error}.") from None
        self._encryptor = self.seal.Encryptor(self.context, key)

    def open(self, ciphertexts: Sequence[bytes], what: str) -> np.ndarray:
        """The residues of several ciphertexts."""
        out = np.empty((len(ciphertexts), PARTS * LEVELS, DEGREE), np.uint64)
        for place, data in enumerate(ciphertexts):
            out[place] = self.residues(self.read(data, what), LEVELS)
        return out

    def close(self, total: np.ndarray, mask: np.ndarray, draw: Draw) -> bytes:
        """The ciphertext of a sum of residues plus 8192 mask words, independent of what was added."""
        cipher = self.hide(total, mask, draw)
        self.evaluator.mod_switch_to_next_inplace(cipher)  # one residue fewer to send
        return self.write(cipher)

    def hide(self, total: np.ndarray, mask: np.ndarray, draw: Draw) -> Any:
        """Add a fresh encryption of the mask, and noise."""
        cipher = self.seal.Ciphertext()
        self._encryptor.encrypt(self.plaintext(mask), cipher)
        limits = np.tile(moduli(), PARTS)[:, None]
        hidden = (total + self.residues(cipher, LEVELS)) % limits
        primes = sealapi.find_primes(OPTION, PRIMES)[:LEVELS]
        hidden[:LEVELS] = (hidden[:LEVELS] + sealapi.draw_noise(draw, DEGREE, FLOOD, primes)) % limits[
            :LEVELS
        ]
        return self.load(cipher, cipher.parms_id(), hidden.reshape(PARTS, LEVELS, DEGREE))


def add_rows_numpy(
    total: np.ndarray, block: np.ndarray, cells: np.ndarray, words: int, primes: np.ndarray
) -> None:
    """Add each row's words to its cells: total[cell] += X^(−place · words) · ciphertext, residues unreduced.

    total   cells × (parts · levels) × degree;  block: ciphertexts × (parts · levels) × degree
    cells   rows × columns, the cell of each; row r is in ciphertext r // (degree // words)
    """
    each = DEGREE // words
    limits = np.tile(primes, PARTS)[:, None]
    for place, source in enumerate(block):
        turned = limits - source
        for at, row in enumerate(cells[place * each : (place + 1) * each]):
            shift = at * words
            for cell in row:
                total[cell, :, : DEGREE - shift] += source[:, shift:]
                if shift:
                    total[cell, :, DEGREE - shift :] += turned[:, :shift]
