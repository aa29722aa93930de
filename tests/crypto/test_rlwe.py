"""Products of encrypted polynomials of words, against arithmetic of Python's own."""

from __future__ import annotations

import functools
import math
import os

import numpy as np
import pytest

from tacit.crypto import rlwe
from tacit.errors import ProtocolError

TOP = 2**64 - 1
RNG = np.random.default_rng(0)


def words(*shape: int) -> np.ndarray:
    return RNG.integers(0, 2**64, shape, dtype=np.uint64)


@functools.cache
def connected() -> tuple[rlwe.KeyHolder, rlwe.Evaluator]:
    holder = rlwe.KeyHolder(os.urandom)
    return holder, rlwe.Evaluator(holder.public, os.urandom)


def product(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """x·w modulo X^8192 + 1 and 2^64, for a w with few coefficients."""
    total = np.zeros(rlwe.DEGREE, np.uint64)
    for place in np.nonzero(w)[0]:
        moved = np.roll(x, place)
        moved[:place] = np.uint64(0) - moved[:place]
        total += moved * w[place]
    return total


def closed(x: np.ndarray, w: np.ndarray, places: np.ndarray, mask: np.ndarray) -> bytes:
    holder, evaluator = connected()
    loaded = evaluator.load(*holder.encrypt(x), len(x))
    return evaluator.close(loaded, evaluator.prepare(w), places, mask)


def test_the_primes_split_the_ring_and_the_modulus_is_within_the_standard() -> None:
    for p in rlwe.primes():
        assert p % (2 * rlwe.DEGREE) == 1
        assert all(p % d for d in range(2, math.isqrt(p) + 1))
    assert math.prod(rlwe.primes()).bit_length() <= 218, "HomomorphicEncryption.org 2018, Table 1, 128 bits"


def test_transforming_and_back_is_the_identity_and_products_are_those_of_the_ring() -> None:
    p = rlwe._moduli()
    x, y = (RNG.integers(0, p.min(), (rlwe.LEVELS, rlwe.DEGREE), dtype=np.uint64) for _ in range(2))
    y[:, 3:-1] = 0
    assert np.array_equal(rlwe.invert(rlwe.transform(x)), x)
    got = rlwe.invert(rlwe.transform(x) * rlwe.transform(y) % p)
    for level, prime in enumerate(rlwe.primes()):
        due = np.zeros(rlwe.DEGREE, object)
        for place in np.nonzero(y[level])[0]:
            moved = np.roll(x[level].astype(object), place)
            moved[:place] *= -1
            due += moved * int(y[level, place])
        assert np.array_equal(got[level], (due % prime).astype(np.uint64))


@pytest.mark.parametrize("value", [0, 1, 2**63, 2**63 - 1, TOP], ids=str)
def test_sums_of_products_are_exact_modulo_2_64_with_words_at_the_ends(value: int) -> None:
    x = np.full((17, rlwe.DEGREE), value, np.uint64)
    x[:, ::7] = words(17, len(x[0, ::7]))
    w = np.zeros((17, rlwe.DEGREE), np.uint64)
    w[:, [0, 1, 5000, rlwe.DEGREE - 1]] = np.array([value, 2**63, TOP, 1], np.uint64)
    places, mask = np.array([0, 1, 4999, 5000, rlwe.DEGREE - 1]), words(5)
    got = connected()[0].decrypt(closed(x, w, places, mask), 1, places)[0]
    assert np.array_equal(got, sum(map(product, x, w), np.zeros(rlwe.DEGREE, np.uint64))[places] + mask)


def test_a_sum_of_as_many_terms_as_are_allowed_is_exact() -> None:
    """Eight dense polynomials: 65,536 products with words of the largest magnitude."""
    x, w = np.full((8, rlwe.DEGREE), TOP, np.uint64), np.full((8, rlwe.DEGREE), 2**63, np.uint64)
    assert w.size == rlwe.MOST_TERMS
    places, mask = np.array([0, 77, rlwe.DEGREE - 1]), words(3)
    got = connected()[0].decrypt(closed(x, w, places, mask), 1, places)[0]
    # coefficient i has i + 1 products of −1 and 2^63, and 8191 − i more with the other sign; all equal −2^63
    assert np.array_equal(got, mask + np.uint64(8 * rlwe.DEGREE * 2**63 % 2**64))


def test_noise_stays_below_what_decryption_removes_in_the_worst_case() -> None:
    """The bounds of the module's docstring, with every error at its largest and of one sign."""
    primes = rlwe.primes()
    q, kept = math.prod(primes), math.prod(primes[: rlwe.KEPT])
    encrypted = 43 * 2**63 * rlwe.MOST_TERMS // 2  # 21.5 for each
    refreshed = 21 * 2 * rlwe.DEGREE + 1
    flood = 1 << rlwe.LIMB * rlwe.LIMBS - 1
    rounding = 2 * (
        1 + rlwe.DEGREE
    )  # one half for each coefficient of c0 and c1·s, at each of four divisions
    assert (encrypted + refreshed + flood) * kept // q + rounding < kept >> 65
    assert encrypted + refreshed < flood >> 54


def error(raw: np.ndarray, message: np.ndarray, places: np.ndarray) -> list[int]:
    """c0 + c1·s − q·m / 2^64 of a sum before its modulus is divided."""
    holder, p, q = connected()[0], rlwe._moduli(), math.prod(rlwe.primes())
    c1 = np.ascontiguousarray(raw[:, : rlwe.DEGREE])
    v = (raw[:, rlwe.DEGREE :] + rlwe.invert(rlwe.transform(c1) * holder._s % p)[:, places]) % p
    lift = [q // prime * pow(q // prime, -1, prime) for prime in rlwe.primes()]
    found = []
    for column, m in zip(v.T, message):
        off = (sum(int(r) * k for r, k in zip(column, lift)) - (q * int(m) >> 64)) % q
        found.append(off - q if off > q // 2 else off)
    return found


def test_only_the_flood_hides_the_factor_from_the_keys_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, errors are multiples of the factor: the holder of the key sees how large it is. With it, the
    errors of the factors 1 and 2^62 are both uniform in ±2^139: 200 of them are all below 2^132 with
    probability 2^-1400.
    """
    places, raw = np.arange(200), []
    monkeypatch.setattr(rlwe, "_drop", lambda c: raw.append(c.copy()) or b"")
    largest = {}
    flood = rlwe.Evaluator._flood
    for hidden in (False, True):
        none = lambda self, count: np.zeros((rlwe.LEVELS, count), np.uint64)  # noqa: E731
        monkeypatch.setattr(rlwe.Evaluator, "_flood", flood if hidden else none)
        for factor in (1, 1 << 62):
            x, w, mask = words(1, rlwe.DEGREE), np.zeros((1, rlwe.DEGREE), np.uint64), words(200)
            w[0, 0] = factor
            closed(x, w, places, mask)
            off = error(raw[-1], x[0, :200] * np.uint64(factor) + mask, places)
            largest[hidden, factor] = max(map(abs, off)).bit_length()
    assert largest[False, 1] < 24
    assert largest[False, 1 << 62] > 62
    assert all(132 < largest[True, factor] <= 139 for factor in (1, 1 << 62))


def test_what_the_evaluator_sees_does_not_depend_on_the_words() -> None:
    """χ² of 255 degrees on the lowest bytes of the residues, of zeros and of ones: false alarms below 1e-9."""
    holder, _ = connected()
    for value in (0, TOP):
        _, body = holder.encrypt(np.full((2, rlwe.DEGREE), value, np.uint64))
        low = np.frombuffer(body, np.uint8).reshape(-1, 4)[:, 0]
        counts = np.bincount(low, minlength=256)
        assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 415
    first, second = (holder.encrypt(np.zeros((1, rlwe.DEGREE), np.uint64)) for _ in range(2))
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_errors_are_centered_binomial_and_keys_ternary() -> None:
    """Mean and variance of 65,536 errors within six standard deviations of theirs: 2·10^-9."""
    errors = rlwe._errors(os.urandom, 8)
    assert abs(errors).max() <= 21
    assert abs(errors.mean()) < 6 * math.sqrt(10.5 / errors.size)
    assert abs(errors.var() - 10.5) < 6 * 10.5 * math.sqrt(2 / errors.size)
    key = rlwe._ternary(os.urandom)
    assert len(key) == rlwe.DEGREE
    assert set(np.unique(key).tolist()) == {-1, 0, 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda body: body[:-4], "received 229372 bytes of ciphertexts; expected 229376"),
        (lambda body: b"\xff" * 4 + body[4:], "a residue that is not below its prime"),
    ],
)
def test_bad_ciphertexts_are_refused(change, message: str) -> None:
    holder, evaluator = connected()
    seed, body = holder.encrypt(np.zeros((1, rlwe.DEGREE), np.uint64))
    with pytest.raises(ProtocolError, match=message):
        evaluator.load(seed, change(body), 1)
    with pytest.raises(ProtocolError, match=r"expected \d+\. Both parties must run the same"):
        holder.decrypt(bytes(12), 1, np.arange(3))
    with pytest.raises(ProtocolError, match="a public key has 229408 bytes, received 3"):
        rlwe.Evaluator(b"key", os.urandom)
