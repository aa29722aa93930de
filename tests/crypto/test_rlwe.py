"""Products of encrypted polynomials of words, against exact integers."""

from __future__ import annotations

import functools
import math
import os
from typing import Any

import numpy as np
import pytest

from tacit.crypto import rlwe, sealapi
from tacit.crypto.sealapi import DEGREE
from tacit.errors import ProtocolError

TOP = 2**64 - 1
RNG = np.random.default_rng(0)
ALL = np.arange(DEGREE)


def words(*shape: int) -> np.ndarray:
    return RNG.integers(0, 2**64, shape, dtype=np.uint64)


@functools.cache
def connected() -> tuple[rlwe.KeyHolder, rlwe.Evaluator]:
    holder = rlwe.KeyHolder()
    return holder, rlwe.Evaluator(holder.public, os.urandom)


def product(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """x·w modulo X^8192 + 1 and 2^64, for a w with few coefficients."""
    total = np.zeros(DEGREE, np.uint64)
    for place in np.nonzero(w)[0]:
        moved = np.roll(x, place)
        moved[:place] = np.uint64(0) - moved[:place]
        total += moved * w[place]
    return total


def dense_product(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The same for any w, as one product of two integers: each coefficient has 20 bytes."""
    spread = [np.zeros((DEGREE, 20), np.uint8) for _ in range(2)]
    for octets, values in zip(spread, (x, w)):
        octets[:, :8] = values.view(np.uint8).reshape(-1, 8)
    left, right = (int.from_bytes(octets.tobytes(), "little") for octets in spread)
    whole = np.frombuffer((left * right).to_bytes(40 * DEGREE, "little"), np.uint8).reshape(-1, 20)
    low = np.ascontiguousarray(whole[:, :8]).view(np.uint64)[:, 0]
    return low[:DEGREE] - low[DEGREE:]


def closed(x: np.ndarray, w: np.ndarray, places: np.ndarray, mask: np.ndarray) -> bytes:
    holder, evaluator = connected()
    return evaluator.close(evaluator.open(*holder.encrypt(x), len(x)), evaluator.prepare(w), places, mask)


def test_the_modulus_is_within_what_seal_and_the_standard_allow() -> None:
    import tenseal.sealapi as seal

    assert math.prod(rlwe.primes()).bit_length() <= 218, "HomomorphicEncryption.org 2018, Table 1, 128 bits"
    assert seal.CoeffModulus.MaxBitCount(DEGREE, seal.SEC_LEVEL_TYPE.TC128) == 218
    context = sealapi.open_context(rlwe.OPTION, rlwe.PRIMES, rlwe.WORD)
    assert context.parameters_set()
    with pytest.raises(ProtocolError, match="SEAL refuses the parameters"):
        sealapi.open_context(rlwe.OPTION, (40, 40, 60, 60, 20), rlwe.WORD)
    for p in rlwe.primes():
        assert p % (2 * DEGREE) == 1
        assert all(pow(base, p - 1, p) == 1 for base in (2, 3, 5, 7))


@pytest.mark.parametrize("value", [0, 1, 2**31, 2**32 - 1, 2**63, 2**63 - 1, TOP], ids=str)
def test_sums_of_products_are_exact_modulo_2_64_with_words_at_the_ends(value: int) -> None:
    x = np.full((17, DEGREE), value, np.uint64)
    x[:, ::7] = words(17, len(x[0, ::7]))
    w = np.zeros((17, DEGREE), np.uint64)
    w[:, [0, 1, 5000, DEGREE - 1]] = np.array([value, 2**63, TOP, 1], np.uint64)
    places, mask = np.array([0, 1, 4999, 5000, DEGREE - 1]), words(5)
    got = connected()[0].decrypt(closed(x, w, places, mask), 1, places)[0]
    assert np.array_equal(got, sum(map(product, x, w), np.zeros(DEGREE, np.uint64))[places] + mask)


def test_products_of_random_words_are_those_of_exact_integers_at_every_place() -> None:
    x, w, mask = words(3, DEGREE), words(3, DEGREE), words(DEGREE)
    got = connected()[0].decrypt(closed(x, w, ALL, mask), 1, ALL)[0]
    assert np.array_equal(got, sum(map(dense_product, x, w), np.zeros(DEGREE, np.uint64)) + mask)


def test_a_factor_of_zeros_gives_the_mask() -> None:
    mask = words(DEGREE)
    got = connected()[0].decrypt(
        closed(words(2, DEGREE), np.zeros((2, DEGREE), np.uint64), ALL, mask), 1, ALL
    )
    assert np.array_equal(got[0], mask)


def test_a_sum_of_as_many_terms_as_are_allowed_is_exact() -> None:
    """Eight dense polynomials: 65,536 products with words of the largest magnitude."""
    x, w = np.full((8, DEGREE), TOP, np.uint64), np.full((8, DEGREE), 2**63, np.uint64)
    assert w.size == rlwe.MOST_TERMS
    places, mask = np.array([0, 77, DEGREE - 1]), words(3)
    got = connected()[0].decrypt(closed(x, w, places, mask), 1, places)[0]
    # coefficient i has i + 1 products of −1 and 2^63, and 8191 − i more with the other sign; all equal −2^63
    assert np.array_equal(got, mask + np.uint64(8 * DEGREE * 2**63 % 2**64))


def test_noise_stays_below_what_decryption_removes_in_the_worst_case() -> None:
    """The bounds of the module's docstring, with every error at its largest and of one sign."""
    *data, special = rlwe.primes()
    q, kept = math.prod(data), math.prod(data[: rlwe.KEPT])
    encrypted = 23 * (2**63 + 1) * rlwe.MOST_TERMS
    # e·u + e0 + e1·s, divided by the key prime and rounded: one half for each coefficient of c0 and c1·s; + 2
    refreshed = 21 * (2 * DEGREE + 1) // special + (1 + DEGREE) // 2 + 3
    flood = 1 << rlwe.FLOOD - 1
    rounding = (1 + DEGREE) // 2 + 1  # of the last division; that of the one before is divided by 2^60
    assert (encrypted + refreshed + flood) * kept // q + rounding + 1 < kept >> 65
    assert (encrypted + refreshed) * 2**51 <= 2 * flood


def test_errors_of_fresh_encryptions_are_at_most_those_of_the_bound() -> None:
    """SEAL's noise budget is ⌊log2(q / (2·2^59·error))⌋: errors of 65,536 coefficients are within 23, and not
    all are below 8 (probability 2^-500 for a centered binomial of 42 bits).
    """
    holder, evaluator = connected()
    bits = math.log2(math.prod(rlwe.primes()[: rlwe.LEVELS])) - rlwe.WORD - 1
    x = words(8, DEGREE) & np.uint64(TOP - 31)  # what SEAL's plaintexts hold; the rest would count as noise
    for cipher in evaluator.open(*holder.encrypt(x), 8):
        evaluator.evaluator.transform_from_ntt_inplace(cipher)
        left = holder._decryptor.invariant_noise_budget(cipher)
        assert bits - math.log2(23) - 1 < left < bits - math.log2(8)


def test_only_the_flood_hides_the_factor_from_the_keys_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, errors are multiples of the factor, and the key's holder sees how large it is. With it, the
    largest error of 8192 coefficients is uniform noise of 134 bits for the factors 1 and 2^62 (below 2^133
    with probability 2^-8192). The budget is that of the sum before its modulus is divided.
    """
    holder, evaluator = connected()
    plain, noise = sealapi.draw_noise, {}
    monkeypatch.setattr(rlwe, "KEPT", rlwe.LEVELS)
    for hidden in (False, True):
        none = lambda draw, count, bits, primes: np.zeros((len(primes), count), np.uint64)  # noqa: E731
        monkeypatch.setattr(sealapi, "draw_noise", plain if hidden else none)
        for factor in (1, 1 << 62):

            def look(cipher: Any, levels: int, at: tuple[bool, int] = (hidden, factor)) -> np.ndarray:
                noise[at] = 200 - rlwe.WORD - 1 - holder._decryptor.invariant_noise_budget(cipher)
                return np.zeros((2 * levels, DEGREE), np.uint64)

            monkeypatch.setattr(evaluator, "residues", look)
            w = np.zeros((1, DEGREE), np.uint64)
            w[0, 0] = factor
            x, mask = (words(1, DEGREE) & np.uint64(TOP - 31)), np.zeros(DEGREE, np.uint64)
            closed(x, w, ALL, mask)
    assert noise[False, 1] < 16
    assert noise[False, 1 << 62] > 62
    assert noise[True, 1] == noise[True, 1 << 62] == 134


def test_the_second_part_of_a_sum_is_fresh_each_time() -> None:
    """It is Σ c1·w plus a fresh encryption's: without that, the key's holder, who knows c1, could solve for w.
    χ² of 255 degrees on the lowest bytes of the difference of two: a false alarm in 1e-9.
    """
    x, w, places = words(1, DEGREE), words(1, DEGREE), np.arange(1)
    mask = np.zeros(1, np.uint64)
    one, two = (
        rlwe._unpack(closed(x, w, places, mask), 1, rlwe.KEPT, DEGREE + 1)[0, :, :DEGREE] for _ in range(2)
    )
    for level, p in enumerate(rlwe.primes()[: rlwe.KEPT]):
        low = (one[level] + np.uint64(p) - two[level]) % np.uint64(p) & np.uint64(255)
        counts = np.bincount(low.astype(np.int64), minlength=256)
        assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 415


def test_what_the_evaluator_sees_does_not_depend_on_the_words() -> None:
    """χ² of 255 degrees on the lowest bytes of the residues, of zeros and of ones: false alarms below 1e-9."""
    holder, _ = connected()
    for value in (0, TOP):
        _, body = holder.encrypt(np.full((2, DEGREE), value, np.uint64))
        low = rlwe._unpack(body, 2, rlwe.LEVELS, DEGREE).astype(np.uint8).ravel()
        counts = np.bincount(low, minlength=256)
        assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 415
    first, second = (holder.encrypt(np.zeros((1, DEGREE), np.uint64)) for _ in range(2))
    assert first[0] != second[0]
    assert first[1] != second[1]


def put(body: bytes, at: int, width: int, value: int) -> bytes:
    return body[:at] + value.to_bytes(width, "little") + body[at + width :]


def starts() -> list[int]:
    return [sum(rlwe.WIDTHS[:level]) * DEGREE for level in range(len(rlwe.PRIMES))]


def test_residues_that_are_not_below_their_prime_are_refused_of_each_prime() -> None:
    holder, evaluator = connected()
    seeds, body = holder.encrypt(np.zeros((1, DEGREE), np.uint64))
    for at, width, p in list(zip(starts(), rlwe.WIDTHS, rlwe.primes()))[: rlwe.LEVELS]:
        evaluator.open(seeds, put(body, at, width, p - 1), 1)
        for value in (p, (1 << 8 * width) - 1):
            with pytest.raises(ProtocolError, match="a residue that is not below its prime"):
                evaluator.open(seeds, put(body, at, width, value), 1)
    for at, width, p in zip(starts(), rlwe.WIDTHS, rlwe.primes()):
        with pytest.raises(ProtocolError, match="a residue that is not below its prime"):
            rlwe.Evaluator(put(holder.public, at, width, p), os.urandom)
    good = closed(words(1, DEGREE), words(1, DEGREE), ALL[:3], words(3))
    with pytest.raises(ProtocolError, match="a residue that is not below its prime"):
        holder.decrypt(b"\xff" * 5 + good[5:], 1, ALL[:3])


def test_messages_of_another_length_are_refused() -> None:
    holder, evaluator = connected()
    seeds, body = holder.encrypt(np.zeros((1, DEGREE), np.uint64))
    for wrong in (b"", body[:-1], body + b"\0", body * 2):
        with pytest.raises(
            ProtocolError, match=rf"received {len(wrong)} bytes of ciphertexts; expected 212992"
        ):
            evaluator.open(seeds, wrong, 1)
    for wrong in (b"", seeds[:-1], seeds * 2):
        with pytest.raises(ProtocolError, match=f"1 seeds have 64 bytes, received {len(wrong)}"):
            evaluator.open(wrong, body, 1)
    with pytest.raises(ProtocolError, match=r"expected \d+\. Both parties must run the same"):
        holder.decrypt(bytes(12), 1, np.arange(3))
    for wrong in (b"key", holder.public[:-1], holder.public + b"\0"):
        with pytest.raises(ProtocolError, match=f"a public key has 475136 bytes, received {len(wrong)}"):
            rlwe.Evaluator(wrong, os.urandom)


def test_a_ciphertext_of_another_key_gives_other_words() -> None:
    """A flipped seed or key is not found out here: both parties are semi-honest. The words are wrong."""
    holder, evaluator = connected()
    x, mask = words(1, DEGREE), words(DEGREE)
    seeds, body = holder.encrypt(x)
    w = np.zeros((1, DEGREE), np.uint64)
    w[0, 0] = 1
    for sent in (seeds, bytes(64)):
        sums = evaluator.close(evaluator.open(sent, body, 1), evaluator.prepare(w), ALL, mask)
        assert np.array_equal(holder.decrypt(sums, 1, ALL)[0], x[0] + mask) == (sent == seeds)
