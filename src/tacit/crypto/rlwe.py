"""Encryption of polynomials of 64-bit words that can be multiplied by plain polynomials and added, with
Microsoft SEAL (BFV: Fan, Vercauteren: Somewhat Practical Fully Homomorphic Encryption, 2012).

    encrypt     SEAL's encryption of ⌊m / 32⌋ modulo 2^59, + ⌊q·(m mod 32) / 2^64⌉ in the first part
    multiply    Σ ciphertext·l + 2^32 · Σ ciphertext·h for words w = l + 2^32·h:  32 bits are what SEAL takes
    close       + an encryption of the mask r under the public key + flood, and two primes of q dropped: q'
    decrypt     m = 32·d(c) mod 2^64 up to 16, and d(32·c) mod 2^59 exactly, for SEAL's decryption d

so that a ciphertext is q·m / 2^64 plus an error. SEAL's plaintext moduli end at 60 bits, hence 59 and 32.
Keys, randomness, polynomial arithmetic, rounding and decryption are SEAL's; the flood, the table of 32
constants and the composition of the two decryptions are here. Ring dimension 8192, q a product of primes of
40, 40, 60 and 60 bits, with 17 more for keys: the HomomorphicEncryption.org standard (2018, Table 1) allows
218 bits at 128-bit security, for ternary keys and errors of standard deviation 3.2 (SEAL: centered binomial,
at most 21).

Exactness, in the worst case: an encryption errs by at most 23, so a sum of T products with words of at most
2^63 errs by 2^(67.6)·T < 2^84 for T ≤ 2^16; flood has at most 2^134, and dropping q / q' > 2^119.9 leaves
less than 2^14.1 and adds 2^12.1. What decryption removes is q' / 2^65 > 2^14.9.

What the holder of the key sees of a closed sum: r masks the plaintext, the fresh encryption makes the second
part pseudorandom (ring-LWE), and flood, uniform in ±2^134, hides the error, which depends on w: a coefficient
is within 2^-51 of one that does not (noise flooding; Gentry 2009). Who multiplies sees ciphertexts and the
public key.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ..errors import ProtocolError
from . import sealapi
from .sealapi import DEGREE, PARTS, SEED, Draw

PRIMES = (40, 40, 60, 60, 17)  # bits; the last is for keys only
LEVELS, KEPT = 4, 2  # primes of q and of q'
WORD = 59  # bits of SEAL's plaintexts
REST = 64 - WORD
HALF = 32  # bits that a factor is split at
FLOOD = 135  # bits of the noise: 2^135 values
MOST_TERMS = 1 << 16  # products with a word that one coefficient may sum
WIDTHS = tuple(-(-bits // 8) for bits in PRIMES)  # bytes of residues
INPUT_BYTES = sum(WIDTHS[:LEVELS]) * DEGREE  # of a ciphertext, whose second part is a seed
PLACE_BYTES = sum(WIDTHS[:KEPT])  # of one coefficient of a closed sum
SUM_BYTES = PLACE_BYTES * DEGREE  # of its second part
PUBLIC_BYTES = PARTS * sum(WIDTHS) * DEGREE
OPTION = "products='he' (both parties may give products='ot', which sends more)"


@cache
def primes() -> tuple[int, ...]:
    """The primes of q, then the one for keys."""
    return sealapi.find_primes(OPTION, PRIMES)


@cache
def _moduli() -> np.ndarray:
    return np.array(primes(), np.uint64)[:, None]


@cache
def _fractions() -> np.ndarray:
    """⌊q·k / 2^64⌉ modulo each prime of q, for k < 32."""
    q = math.prod(primes()[:LEVELS])
    rounded = [(q * k + (1 << 63)) >> 64 for k in range(1 << REST)]
    return np.array([[value % p for value in rounded] for p in primes()[:LEVELS]], np.uint64)


def _pack(residues: np.ndarray) -> bytes:
    """Residues (primes × count) in as many bytes as their primes have."""
    octets = np.ascontiguousarray(residues, "<u8").view(np.uint8).reshape(*residues.shape, 8)
    return b"".join(row[:, :width].tobytes() for row, width in zip(octets, WIDTHS))


def _unpack(values: bytes, count: int, levels: int, size: int) -> np.ndarray:
    """Residues that another party sent: count × levels × size."""
    each = sum(WIDTHS[:levels]) * size
    if len(values) != count * each:
        raise ProtocolError(
            f"received {len(values)} bytes of ciphertexts; expected {count * each}. Both parties must run "
            "the same program."
        )
    sent = np.frombuffer(values, np.uint8).reshape(count, each)
    octets, at = np.zeros((count, levels, size, 8), np.uint8), 0
    for level, width in enumerate(WIDTHS[:levels]):
        octets[:, level, :, :width] = sent[:, at : at + width * size].reshape(count, size, width)
        at += width * size
    read = octets.view("<u8")[..., 0].astype(np.uint64, copy=False)
    if (read >= _moduli()[:levels]).any():
        raise ProtocolError("received a ciphertext with a residue that is not below its prime.")
    return read


class KeyHolder(sealapi.Objects):
    """Encrypts words, and decrypts sums that an `Evaluator` closed. SEAL draws keys and errors from the
    operating system.
    """

    def __init__(self) -> None:
        super().__init__(OPTION, PRIMES, WORD)
        generator = self.seal.KeyGenerator(self.context)
        secret, public = generator.secret_key(), self.seal.PublicKey()
        generator.create_public_key(public)
        self._encryptor = self.seal.Encryptor(self.context, secret)
        self._decryptor = self.seal.Decryptor(self.context, secret)
        parts = self.residues(public, len(PRIMES)).reshape(PARTS, len(PRIMES), DEGREE)
        self.public = _pack(parts[0]) + _pack(parts[1])

    def encrypt(self, words: np.ndarray) -> tuple[bytes, bytes]:
        """(seeds, the first parts) for polynomials: count × 8192 words."""
        p, seeds, first = _moduli()[:LEVELS], [], []
        for m in words:
            fresh = self._encryptor.encrypt_symmetric(self.plaintext(m >> np.uint64(REST)))
            part, seed = self.seeded(fresh, LEVELS)
            first.append(_pack((part + _fractions()[:, m & np.uint64((1 << REST) - 1)]) % p))
            seeds.append(seed)
        return b"".join(seeds), b"".join(first)

    def decrypt(self, values: bytes, count: int, places: np.ndarray) -> np.ndarray:
        """The words of `count` closed sums at these places."""
        out = np.empty((count, len(places)), np.uint64)
        for row, sent in zip(out, _unpack(values, count, KEPT, DEGREE + len(places))):
            both = np.zeros((PARTS, KEPT, DEGREE), np.uint64)
            both[0][:, places], both[1] = sent[:, DEGREE:], sent[:, :DEGREE]
            above = self._decrypt(both, places) << np.uint64(REST)
            below = self._decrypt((both << np.uint64(REST)) % _moduli()[:KEPT], places)
            # both are the word: `above` up to 2^4, `below` up to a multiple of 2^59
            off = above - below + np.uint64(1 << WORD - 1)
            row[:] = below + (off >> np.uint64(WORD) << np.uint64(WORD))
        return out

    def _decrypt(self, residues: np.ndarray, places: np.ndarray) -> np.ndarray:
        plain = self.seal.Plaintext()
        cipher = self.load(self.seal.Ciphertext(), self.context.last_parms_id(), residues)
        self._decryptor.decrypt(cipher, plain)
        return self.coefficients(plain, places.tolist())


class Evaluator(sealapi.Objects):
    """Multiplies ciphertexts by polynomials that it knows, under the other party's public key."""

    def __init__(self, public: bytes, draw: Draw):
        super().__init__(OPTION, PRIMES, WORD)
        self._draw, self._level = draw, self.context.first_parms_id()
        if len(public) != PUBLIC_BYTES:
            raise ProtocolError(f"a public key has {PUBLIC_BYTES} bytes, received {len(public)}.")
        parts = _unpack(public, PARTS, len(PRIMES), DEGREE)
        key = self.load(self.seal.PublicKey(), self.context.key_parms_id(), parts, is_ntt=True)
        self._encryptor = self.seal.Encryptor(self.context, key)
        self._shift = self.seal.Plaintext(f"{1 << HALF:x}")
        self.evaluator.transform_to_ntt_inplace(self._shift, self._level)

    def open(self, seeds: bytes, values: bytes, count: int) -> list[Any]:
        """Ciphertexts of the other party, transformed."""
        if len(seeds) != count * SEED:
            raise ProtocolError(f"{count} seeds have {count * SEED} bytes, received {len(seeds)}.")
        found = []
        for k, first in enumerate(_unpack(values, count, LEVELS, DEGREE)):
            seed = seeds[k * SEED : (k + 1) * SEED]
            found.append(self.load(self.seal.Ciphertext(), self._level, first[None], seed=seed))
            self.evaluator.transform_to_ntt_inplace(found[-1])
        return found

    def prepare(self, words: np.ndarray) -> list[tuple[Any, Any]]:
        """Both halves of plain polynomials, transformed; None for a half that is 0."""
        found = []
        for w in words.view(np.int64):
            low = (w & ((1 << HALF) - 1)) - ((w & (1 << HALF - 1)) << 1)  # signed
            found.append((self._transform(low), self._transform((w - low) >> HALF)))
        return found

    def _transform(self, half: np.ndarray) -> Any:
        if not half.any():
            return None  # SEAL refuses products with 0, which hide nothing
        plain = self.plaintext(half & ((1 << WORD) - 1))
        self.evaluator.transform_to_ntt_inplace(plain, self._level)
        return plain

    def close(
        self,
        ciphertexts: Sequence[Any],
        factors: Sequence[tuple[Any, Any]],
        places: np.ndarray,
        mask: np.ndarray,
    ) -> bytes:
        """Σ ciphertext · factor at these places, plus the mask there, and nothing else of the factors."""
        total = self._multiply(ciphertexts, [high for _, high in factors])
        if total is not None:
            self.evaluator.multiply_plain_inplace(total, self._shift)
        low = self._multiply(ciphertexts, [low for low, _ in factors])
        closed = self._encrypt(places, mask)
        for part in (total, low):
            if part is not None:
                self.evaluator.transform_from_ntt_inplace(part)
                self.evaluator.add_inplace(closed, part)
        for _ in range(LEVELS - KEPT):
            self.evaluator.mod_switch_to_next_inplace(closed)
        parts = self.residues(closed, KEPT).reshape(PARTS, KEPT, DEGREE)
        return _pack(np.concatenate([parts[1], parts[0][:, places]], 1))

    def _multiply(self, ciphertexts: Sequence[Any], factors: Sequence[Any]) -> Any:
        """Σ ciphertext · factor; None if every factor is 0."""
        total, product = None, self.seal.Ciphertext()
        for cipher, factor in zip(ciphertexts, factors):
            if factor is None:
                continue
            if total is None:
                total = self.seal.Ciphertext()
                self.evaluator.multiply_plain(cipher, factor, total)
            else:
                self.evaluator.multiply_plain(cipher, factor, product)
                self.evaluator.add_inplace(total, product)
        return total

    def _encrypt(self, places: np.ndarray, mask: np.ndarray) -> Any:
        """A fresh encryption of the mask at these places, with the flood there."""
        above = np.zeros(DEGREE, np.uint64)
        above[places] = mask >> np.uint64(REST)
        fresh = self.seal.Ciphertext()
        self._encryptor.encrypt(self.plaintext(above), fresh)
        extra = np.zeros((PARTS, LEVELS, DEGREE), np.uint64)
        noise = sealapi.draw_noise(self._draw, len(places), FLOOD, primes()[:LEVELS])
        below = _fractions()[:, mask & np.uint64((1 << REST) - 1)]
        extra[0][:, places] = (noise + below) % _moduli()[:LEVELS]
        self.evaluator.add_inplace(fresh, self.load(self.seal.Ciphertext(), self._level, extra))
        return fresh
