"""Oblivious transfer and its building blocks for large sets: bit matrices, key-value stores, tags,
encrypted sums.
"""

from __future__ import annotations

import hashlib
import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.crypto import bits, elgamal, group, okvs, ot, tags
from tacit.errors import BadData, ProtocolError
from tacit.parties.secret import SeededSecret


def rows_of(n: int, seed: int = 0, width: int = 16) -> np.ndarray:
    return np.frombuffer(SeededSecret(seed).bytes(n * width), np.uint8).reshape(n, width)


# oblivious transfer -----------------------------------------------------------------------------------------


def test_the_chooser_gets_the_key_it_chose_and_not_the_other() -> None:
    choice = np.random.default_rng(0).integers(0, 2, 40)
    a, said = ot.offer(os.urandom)
    points, keys = ot.choose(said, choice, b"about", os.urandom)
    zeros, ones = ot.pairs(a, said, points, 40, b"about")
    for bit, key, zero, one in zip(choice, keys, zeros, ones):
        assert key == (one if bit else zero)
        assert key != (zero if bit else one)
    assert len({*zeros, *ones}) == 80
    assert ot.pairs(a, said, points, 40, b"something else")[0][0] != zeros[0]


def test_the_choosers_points_do_not_reveal_its_bits() -> None:
    """Two runs with the same randomness and opposite bits give points that differ; and both are elements with
    no bit of their own that follows the choice: over 600 points the lowest free bit is as often 1 with choice
    0 as with choice 1 (6.2 standard deviations: a false alarm below 1e-9).
    """
    _, said = ot.offer(os.urandom)
    ones = []
    for bit in (0, 1):
        points, _ = ot.choose(said, np.full(600, bit), b"about", os.urandom)
        ones.append(sum(points[group.POINT * k + 1] & 1 for k in range(600)))
    assert abs(ones[0] - ones[1]) < 6.2 * math.sqrt(2 * 600 / 4)


def test_invalid_points_are_refused_by_both() -> None:
    a, said = ot.offer(os.urandom)
    with pytest.raises(ProtocolError, match="is not an element of ristretto255"):
        ot.choose(bytes(32), np.array([0]), b"", os.urandom)
    with pytest.raises(ProtocolError, match="is not an element of ristretto255"):
        ot.pairs(a, said, bytes(32), 1, b"")
    with pytest.raises(ProtocolError, match="received 32 bytes for 2 oblivious transfers; expected 64"):
        ot.pairs(a, said, said, 2, b"")


def test_columns_continue_where_they_stopped() -> None:
    keys = [os.urandom(32) for _ in range(3)]
    whole, parts = ot.Columns(keys).take(48), ot.Columns(keys)
    assert np.array_equal(np.concatenate([parts.take(16), parts.take(32)], 1), whole)


@settings(max_examples=25, deadline=None)
@given(w=st.integers(1, 8), m=st.integers(1, 9), seed=st.integers(0, 99))
def test_a_matrix_on_its_side_is_what_numpy_says(w: int, m: int, seed: int) -> None:
    columns = np.random.default_rng(seed).integers(0, 256, (8 * w, m), dtype=np.uint8)
    plain = np.unpackbits(columns, axis=1, bitorder="little").T
    assert np.array_equal(bits.transpose(columns), np.packbits(plain, axis=1, bitorder="little"))
    assert np.array_equal(bits.pack(plain[0]), bits.transpose(columns)[0])


def test_a_long_matrix_goes_in_pieces() -> None:
    columns = np.random.default_rng(1).integers(0, 256, (16, 2 * bits.PIECE + 5), dtype=np.uint8)
    plain = np.unpackbits(columns, axis=1, bitorder="little").T
    assert np.array_equal(bits.transpose(columns), np.packbits(plain, axis=1, bitorder="little"))


# key-value stores -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "width", "room"), [(0, 16, 0), (1, 8, 1), (2, 16, 2), (7, 24, 70), (300, 16, 300), (4000, 8, 5000)]
)
def test_a_store_gives_each_key_its_value_and_other_keys_random_values(n: int, width: int, room: int) -> None:
    keys, values, salt = rows_of(n), rows_of(n, 1, width), os.urandom(32)
    table = okvs.encode(keys, values, salt, os.urandom, room)
    assert table.shape == (okvs.entries(room), width)
    assert np.array_equal(okvs.decode(table, keys, salt), values)
    strangers = okvs.decode(table, rows_of(200, 2), salt)
    assert not set(map(bytes, strangers)) & set(map(bytes, values))
    assert len(set(map(bytes, strangers))) == 200


def test_what_cannot_be_peeled_is_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 24 sparse entries for 40 keys nearly everything is left to Gaussian elimination."""
    monkeypatch.setattr(okvs, "_third", lambda n: 8)
    keys, values = rows_of(40), rows_of(40, 1)
    assert (~ot.compiled().peel(okvs._where(keys, 8, b"s" * 32)[0], 24)[2]).sum() > 20
    table = okvs.encode(keys, values, b"s" * 32, os.urandom)
    assert np.array_equal(okvs.decode(table, keys, b"s" * 32), values)


def test_two_keys_that_are_one_cannot_have_two_values() -> None:
    with pytest.raises(ProtocolError, match="key-value store could not be solved"):
        okvs.encode(np.zeros((2, 16), np.uint8), rows_of(2), b"s" * 32, os.urandom)


def test_a_store_does_not_reveal_its_keys() -> None:
    """Stores of two disjoint sets of 500 keys with random values: each of the 128 bits of an entry is 1 as
    often in one as in the other (300 stores of about 754 entries; Bonferroni over 128 bits, false alarm 10^-6
    in all: 5.8 standard deviations).
    """
    counts = np.zeros((2, 128))
    for turn in range(20):
        for which in (0, 1):
            table = okvs.encode(
                rows_of(500, which),
                rows_of(500, f"{turn}/{which}"),
                b"s" * 32,
                SeededSecret(f"draw {turn}/{which}").bytes,
            )  # type: ignore[arg-type]
            counts[which] += np.unpackbits(table, axis=1).sum(0)
    n = 20 * okvs.entries(500)
    assert (np.abs(counts[0] - counts[1]) < 5.8 * math.sqrt(2 * n / 4)).all()


# tags -------------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(
    mine=st.lists(st.integers(0, 30), max_size=20, unique=True),
    theirs=st.lists(st.integers(0, 30), max_size=20, unique=True),
    size=st.sampled_from([8, 10]),
)
def test_matching_finds_what_sets_have_in_common(mine: list[int], theirs: list[int], size: int) -> None:
    def made(values: list[int]) -> np.ndarray:
        # only 4 different first words: tags that begin alike must still be told apart
        raw = b"".join(bytes([v % 4 if size > 8 else v]) + bytes(7) + bytes([v] * (size - 8)) for v in values)
        return np.frombuffer(raw, np.uint8).reshape(-1, size)

    a, b = tags.match(made(mine), made(theirs))
    assert [mine[k] for k in a] == [v for v in mine if v in theirs]
    assert [theirs[k] for k in b] == [mine[k] for k in a]


def test_tags_are_long_enough_that_different_ids_collide_in_one_of_2_to_the_40_runs() -> None:
    for n, m in ((0, 0), (1, 1), (10_000, 10_000), (10**6, 10**6), (10**7, 10**7)):
        assert 8 * tags.tag_bytes(n, m) >= 40 + math.log2(max(1, n * m))
    assert tags.tag_bytes(10_000, 10_000) == 9
    assert tags.tag_bytes(10**6, 10**6) == 10


def test_a_tag_is_the_beginning_of_a_hash() -> None:
    assert tags.compute_tags(b"aabb", 2, b"x", 9)[1].tobytes() == hashlib.sha256(b"xbb").digest()[:9]
    assert tags.compute_tags(b"aabb", 2, b"", 9)[0].tobytes() == hashlib.sha256(b"aa").digest()[:9]


def test_an_order_holds_everyone_once() -> None:
    assert sorted(tags.permutation(1000, os.urandom)) == list(range(1000))
    assert (tags.permutation(1000, os.urandom) != tags.permutation(1000, os.urandom)).any()


# sums -------------------------------------------------------------------------------------------------------


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=5))
def test_a_sum_of_ciphertexts_is_a_ciphertext_of_the_sum(values: list[int]) -> None:
    private = group.scalar(os.urandom)
    total = elgamal.NEUTRAL * 2
    for v in values:
        total = elgamal.add(total, elgamal.encrypt(private, v, os.urandom))
    mask = group.scalar(os.urandom)
    anew = elgamal.mask(total, group.times_base(private), mask, os.urandom)
    assert anew[:32] != total[:32]
    assert elgamal.discrete_log(
        group.minus(elgamal.decrypt_to_point(private, anew), group.times_base(mask)), 2**16 * len(values)
    ) == sum(values)


def test_numbers_are_read_out_up_to_their_bound_and_refused_beyond() -> None:
    for v in (0, 1, 2, 99, 100):
        point = group.times_base(group.scalar_from_int(v)) if v else elgamal.NEUTRAL
        assert elgamal.discrete_log(point, 100) == v
    with pytest.raises(ProtocolError, match="a sum exceeds its maximum 100"):
        elgamal.discrete_log(group.times_base(group.scalar_from_int(5000)), 100)
    with pytest.raises(BadData, match="steps to decrypt"):
        elgamal.discrete_log(group.times_base(group.scalar_from_int(5)), 1 << 50)
    assert [elgamal.count_limbs(limit) for limit in (1, 65535, 65536, 2**32 - 1, 2**32)] == [1, 1, 2, 2, 3]
    assert (
        sum(limb << 16 * k for k, limb in enumerate(elgamal.split_limbs(4_294_967_295, 2))) == 4_294_967_295
    )
