"""Encryption of polynomials of 64-bit words that can be multiplied by plain polynomials and added. Brakerski,
Vaikuntanathan: Fully Homomorphic Encryption from Ring-LWE and Security for Key Dependent Messages, CRYPTO
2011, scaled as in Fan, Vercauteren: Somewhat Practical Fully Homomorphic Encryption, 2012.

    key         s ternary;  public (p, −p·s + e)
    encrypt     (c0, c1) = (−a·s + e + ⌊q·m / 2^64⌉, a), a uniform from a seed      in Z_q[X] / (X^8192 + 1)
    multiply    (c0·w, c1·w) for a polynomial w of 64-bit words; sums of such products
    close       + (pk0·u + ⌊q·r / 2^64⌉ + flood, pk1·u + e1), and divided by q / q'
    decrypt     ⌊2^64 · (c0 + c1·s) / q'⌉ modulo 2^64

q is a product of seven primes of 30 bits, q' of the first three. Ring dimension 8192 and q below 2^210: the
HomomorphicEncryption.org standard (2018, Table 1) allows 218 bits at 128-bit security, for ternary keys and
errors of standard deviation 3.2 (here centered binomial, 3.24, at most 21).

Exactness, in the worst case: an encryption errs by at most 21.5, so a sum of T products with words below 2^63
errs by 2^(67.5)·T < 2^84 for T ≤ 2^16; flood has at most 2^139, and dividing by q / q' > 2^119 leaves at most
2^20 and adds 2^13. What decryption removes is q' / 2^65 > 2^24.

What the holder of the key sees of a closed sum: r masks the plaintext, u and e1 make c1 pseudorandom
(ring-LWE), and flood, uniform in ±2^139, hides the error, which depends on w: a coefficient is within 2^-55
of one that does not (noise flooding; Gentry 2009). Who multiplies sees ciphertexts and the public key.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from ..errors import ProtocolError
from .prg import KEY, aes

DEGREE = 8192
LEVELS, KEPT = 7, 3  # primes of q and of q'
LIMB, LIMBS = 28, 5  # of the flood: 140 bits
MOST_TERMS = 1 << 16  # products with a word that one coefficient may sum
LAZY = 16  # products of residues of 30 bits that are added in 64 bits before they are reduced
RESIDUE = np.dtype("<u4")
INPUT_BYTES = LEVELS * DEGREE * RESIDUE.itemsize  # of a ciphertext, whose second part is a seed
PLACE_BYTES = KEPT * RESIDUE.itemsize  # of one coefficient of a closed sum
SUM_BYTES = PLACE_BYTES * DEGREE  # of its second part
PUBLIC_BYTES = KEY + INPUT_BYTES

_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(1, dtype=np.int64)
Draw = Callable[[int], bytes]


@cache
def primes() -> tuple[int, ...]:
    """The largest seven primes below 2^30 that are 1 modulo 2·8192, so that X^8192 + 1 splits."""
    found: list[int] = []
    p = (1 << 30) + 1
    while len(found) < LEVELS:
        p -= 2 * DEGREE
        if all(p % d for d in range(3, 1 << 15, 2)):
            found.append(p)
    return tuple(found)


@cache
def _moduli() -> np.ndarray:
    return np.array(primes(), np.uint64)[:, None]


@cache
def _twiddles() -> tuple[np.ndarray, ...]:
    """For each step, forwards and back: a factor for every pair of coefficients, and ⌊factor · 2^32 / p⌋.

    Also 1/8192, in the same two forms.
    """
    steps = DEGREE.bit_length() - 1
    factors = np.empty((2, steps, LEVELS, DEGREE // 2), np.uint64)
    for level, p in enumerate(primes()):
        root = next(
            r for g in range(2, p) if pow(r := pow(g, (p - 1) // (2 * DEGREE), p), DEGREE, p) == p - 1
        )
        powers = np.empty(2 * DEGREE, np.uint64)
        power = 1
        for k in range(2 * DEGREE):
            powers[k] = power
            power = power * root % p
        for step in range(steps):
            blocks = 1 << step
            # block i of the step is X^2t − root^(2·at): the exponent's bits are those of blocks + i, reversed
            at = np.array([int(f"{blocks + i:0{steps + 1}b}"[::-1], 2) for i in range(blocks)]) >> 1
            factors[0, step, level] = np.tile(powers[at], DEGREE // 2 // blocks)
            factors[1, step, level] = np.tile(powers[(2 * DEGREE - at) % (2 * DEGREE)], DEGREE // 2 // blocks)
    inverse = np.array([[pow(DEGREE, -1, p)] for p in primes()], np.uint64)
    shoup = (factors << np.uint64(32)) // _moduli()
    return factors, shoup, inverse, (inverse << np.uint64(32)) // _moduli()


def _times(x: np.ndarray, factor: np.ndarray, shoup: np.ndarray, p: np.ndarray) -> np.ndarray:
    """x · factor modulo p, below 2p, for x < 2^32 (Harvey: Faster Arithmetic for Number-Theoretic Transforms,
    2014).
    """
    quotient = x * shoup
    quotient >>= np.uint64(32)
    quotient *= p
    return np.asarray(x * factor - quotient)


def _below(x: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Reduce x < 2·bound to x < bound; where x is smaller, x − bound wraps around."""
    return np.asarray(np.minimum(x, x - bound))


def transform(x: np.ndarray) -> np.ndarray:
    """Values of polynomials (…, primes, 8192), residues below p, at the roots of X^8192 + 1.

    Pairs of blocks are interleaved at each step, so that every step works on the two halves of the array.
    """
    levels, half = x.shape[-2], DEGREE // 2
    p = _moduli()[:levels]
    factors, shoup, _, _ = _twiddles()
    for step in range(factors.shape[1]):
        u = _below(x[..., :half], 2 * p)
        v = _times(x[..., half:], factors[0, step, :levels], shoup[0, step, :levels], p)
        x = np.empty_like(x)
        np.add(u, v, out=x[..., 0::2])
        u += 2 * p
        np.subtract(u, v, out=x[..., 1::2])
    return _below(_below(x, 2 * p), p)


def invert(x: np.ndarray) -> np.ndarray:
    """The polynomials with these values: the inverse of `transform`."""
    levels, half = x.shape[-2], DEGREE // 2
    p = _moduli()[:levels]
    factors, shoup, scale, scale_shoup = _twiddles()
    for step in range(factors.shape[1] - 1, -1, -1):
        a, b = x[..., 0::2], x[..., 1::2]
        x = np.empty_like(x)
        x[..., :half] = _below(a + b, 2 * p)
        x[..., half:] = _times(a + 2 * p - b, factors[1, step, :levels], shoup[1, step, :levels], p)
    return _below(_times(x, scale[:levels], scale_shoup[:levels], p), p)


def residues(words: np.ndarray) -> np.ndarray:
    """Words (…, n) as signed numbers modulo each prime: (…, 7, n)."""
    signed = words.view(np.int64)[..., None, :]
    return np.asarray(np.remainder(signed, _moduli().view(np.int64)).view(np.uint64))


def _scale(words: np.ndarray) -> np.ndarray:
    """⌊q·m / 2^64⌉ modulo each prime: (q·m + 2^63 − its lowest word) / 2^64, where q·m is 0 modulo p."""
    low = words * np.uint64(math.prod(primes()) % 2**64) + np.uint64(1 << 63)
    p = _moduli()
    inverse = np.array([[pow(2**64, -1, p)] for p in primes()], np.uint64)
    middle = np.array([[2**63 % p] for p in primes()], np.uint64)
    return np.asarray((middle + p - low[..., None, :] % p) % p * inverse % p)


def _small(values: np.ndarray) -> np.ndarray:
    """Small signed numbers (…, n) modulo each prime."""
    return residues(values.astype(np.int64).view(np.uint64))


def _errors(draw: Draw, count: int) -> np.ndarray:
    """Centered binomial errors: count × 8192."""
    drawn = np.frombuffer(draw(6 * count * DEGREE), np.uint8).reshape(6, count, DEGREE)
    first, second = (
        _ONES[a] + _ONES[b] + _ONES[c & 31] for a, b, c in (drawn[:3], drawn[3:])
    )  # 8 + 8 + 5 bits
    return np.asarray(first - second)


def _ternary(draw: Draw) -> np.ndarray:
    """8192 uniform numbers of −1, 0, 1, from bytes below 255."""
    drawn = np.frombuffer(draw(DEGREE + 256), np.uint8)
    return _enough(drawn[drawn < 255], DEGREE).astype(np.int64) % 3 - 1


def _enough(drawn: np.ndarray, count: int) -> np.ndarray:
    if len(drawn) < count:  # probability below 2^-100: the slack is more than 25 standard deviations
        raise ProtocolError("internal error: too few of the random numbers drawn could be used.")
    return drawn[:count]


class SeededPolynomials:
    """Uniform polynomials modulo q (their values at the roots), one after the other, from a seed."""

    def __init__(self, seed: bytes):
        self._stream = aes(seed, "secret sharing", "mpc")

    def next(self) -> np.ndarray:
        out = np.empty((LEVELS, DEGREE), np.uint64)
        for row, p in zip(out, primes()):
            drawn = np.frombuffer(self._stream.update(bytes(4 * (DEGREE + 256))), np.uint32) >> np.uint32(2)
            row[:] = _enough(drawn[drawn < p], DEGREE)
        return out


def _read(values: bytes, count: int, levels: int, width: int) -> np.ndarray:
    """Residues that another party sent: count × levels × width."""
    size = count * levels * width * RESIDUE.itemsize
    if len(values) != size:
        raise ProtocolError(
            f"received {len(values)} bytes of ciphertexts; expected {size}. Both parties must run the same "
            "program."
        )
    read = np.frombuffer(values, RESIDUE).reshape(count, levels, width)
    if (read >= _moduli()[:levels]).any():
        raise ProtocolError("received a ciphertext with a residue that is not below its prime.")
    return read.astype(np.uint64)


class KeyHolder:
    """Encrypts words, and decrypts sums that an `Evaluator` closed."""

    def __init__(self, draw: Draw):
        self._draw = draw
        self._s = transform(_small(_ternary(draw)))
        seed = draw(KEY)
        body = self._encrypt(SeededPolynomials(seed), np.zeros((1, DEGREE), np.uint64))
        self.public = seed + body

    def encrypt(self, words: np.ndarray) -> tuple[bytes, bytes]:
        """(seed, the first parts) for polynomials: count × 8192 words."""
        seed = self._draw(KEY)
        return seed, self._encrypt(SeededPolynomials(seed), words)

    def _encrypt(self, uniform: SeededPolynomials, words: np.ndarray) -> bytes:
        p, out = _moduli(), np.empty((len(words), LEVELS, DEGREE), RESIDUE)
        for row, m, error in zip(out, words, _errors(self._draw, len(words))):
            masked = invert(uniform.next() * self._s % p)
            row[:] = (_scale(m) + _small(error) + p - masked) % p
        return out.tobytes()

    def decrypt(self, values: bytes, count: int, places: np.ndarray) -> np.ndarray:
        """The words of `count` closed sums at these places."""
        width = len(places)
        sums = _read(values, count, KEPT, DEGREE + width)
        p, out = _moduli()[:KEPT], np.empty((count, width), np.uint64)
        for row, both in zip(out, sums):
            c1 = np.ascontiguousarray(both[:, :DEGREE])
            row[:] = _round((both[:, DEGREE:] + invert(transform(c1) * self._s[:KEPT] % p)[:, places]) % p)
        return out


def _round(residues: np.ndarray) -> np.ndarray:
    """⌊2^64 · v / q'⌉ modulo 2^64, for v given modulo each prime of q'.

    v / q' is Σ y_i / p_i up to a whole number; of 2^64 · y_i / p_i the remainder is divided in float64, and
    the quotient is −remainder / p_i modulo 2^64.
    """
    kept = primes()[:KEPT]
    total, rest = np.zeros(residues.shape[1], np.uint64), np.zeros(residues.shape[1])
    for v, p in zip(residues, kept):
        others = 1
        for other in kept:
            others = others * other % p if other != p else others
        remainder = v * np.uint64(pow(others, -1, p)) % np.uint64(p) * np.uint64(2**64 % p) % np.uint64(p)
        total -= remainder * np.uint64(pow(p, -1, 2**64))
        rest += remainder / p
    return total + np.rint(rest).astype(np.uint64)


class Evaluator:
    """Multiplies ciphertexts by polynomials that it knows, under the other party's public key."""

    def __init__(self, public: bytes, draw: Draw):
        self._draw = draw
        if len(public) != PUBLIC_BYTES:
            raise ProtocolError(f"a public key has {PUBLIC_BYTES} bytes, received {len(public)}.")
        self._key = self.load(public[:KEY], public[KEY:], 1)[0]

    def load(self, seed: bytes, values: bytes, count: int) -> np.ndarray:
        """Values of ciphertexts at the roots: count × 2 × 7 × 8192, residues of 32 bits."""
        uniform, out = SeededPolynomials(seed), np.empty((count, 2, LEVELS, DEGREE), np.uint32)
        for row, body in zip(out, _read(values, count, LEVELS, DEGREE)):
            row[0], row[1] = transform(body), uniform.next()
        return out

    def prepare(self, words: np.ndarray) -> np.ndarray:
        """Values of plain polynomials at the roots."""
        out = np.empty((len(words), LEVELS, DEGREE), np.uint32)
        for row, w in zip(out, words):
            row[:] = transform(residues(w))
        return out

    def close(
        self, ciphertexts: np.ndarray, factors: np.ndarray, places: np.ndarray, mask: np.ndarray
    ) -> bytes:
        """Σ ciphertext · factor at these places, plus the mask there, and nothing else of the factors."""
        p = _moduli()
        total = np.zeros((2, LEVELS, DEGREE), np.uint64)
        for start in range(0, len(factors), LAZY - 1):
            for c, w in zip(ciphertexts[start : start + LAZY - 1], factors[start : start + LAZY - 1]):
                total += c * w.astype(np.uint64)
            total %= p
        u = transform(_small(_ternary(self._draw)))
        total = invert((total + self._key * u) % p)
        first = total[0][:, places] + _scale(mask) + self._flood(len(places))
        return _drop(np.concatenate([total[1] + _small(_errors(self._draw, 1)[0]), first], 1) % p)

    def _flood(self, count: int) -> np.ndarray:
        """Uniform integers in ±2^139, modulo each prime."""
        limbs = np.frombuffer(self._draw(4 * LIMBS * count), np.uint32).reshape(LIMBS, count) >> np.uint32(
            32 - LIMB
        )
        p = _moduli()
        total = np.array([[-(1 << LIMB * LIMBS - 1) % p] for p in primes()], np.uint64).repeat(count, 1)
        for k, limb in enumerate(limbs.astype(np.uint64)):
            total += limb * np.array([[(1 << LIMB * k) % p] for p in primes()], np.uint64)
        return np.asarray(total % p)


def _drop(c: np.ndarray) -> bytes:
    """Divide by the primes of q that q' does not have, one by one, rounding."""
    signed = c.view(np.int64)
    for level in range(LEVELS - 1, KEPT - 1, -1):
        last = primes()[level]
        inverse = np.array([[pow(last, -1, p)] for p in primes()[:level]])
        centered = np.where(signed[level] > last // 2, signed[level] - last, signed[level])
        p = _moduli()[:level].view(np.int64)
        signed = (signed[:level] - centered) % p * inverse % p
    return signed.astype(RESIDUE).tobytes()
