"""Vector OLE: both parties' shares satisfy their equation, checked with arithmetic of its own, and the code is the
matrix that its definition says.
"""

from __future__ import annotations

import hashlib
import math
import os

import numpy as np
import pytest

from tacit.crypto import ot, vole
from tacit.errors import ProtocolError
from tacit.parties.secret import SeededSecret

POLYNOMIAL = 1 << 64 | 0b11011


def product(a: int, b: int) -> int:
    """a·b in GF(2^64), as polynomials: shift, add, reduce."""
    total = 0
    for k in range(64):
        total ^= a << k if b >> k & 1 else 0
    for k in range(126, 63, -1):
        total ^= POLYNOMIAL << k - 64 if total >> k & 1 else 0
    return total


def connected(seed: int | None = None) -> tuple[vole.VoleReceiver, vole.VoleSender]:
    draw = os.urandom if seed is None else SeededSecret(seed).bytes
    bits = np.unpackbits(np.frombuffer(draw(16), np.uint8), bitorder="little")
    a, offer = ot.offer(draw)
    points, seeds = ot.choose(offer, bits, b"session", draw)
    zeros, ones = ot.pairs(a, offer, points, vole.BASE, b"session")
    return vole.VoleReceiver(zeros, ones, b"session"), vole.VoleSender(seeds, bits, b"session")


def run(receiver: vole.VoleReceiver, sender: vole.VoleSender, length: int) -> tuple[np.ndarray, ...]:
    columns, pending = receiver.request(length, os.urandom)
    sums, b = sender.answer(length, columns, os.urandom)
    return (*pending.finish(sums), b)


def test_shares_satisfy_their_equation_several_times_and_at_every_length() -> None:
    receiver, sender = connected()
    delta = sender.delta.view(np.uint64)
    before: set[int] = set()
    for length in (1, 77, 40_001, 77):
        a, c, b = run(receiver, sender, length)
        assert (a.shape, c.shape, b.shape) == ((length,), (length, 2), (length, 2))
        for k in {0, length // 2, length - 1}:
            for w in (0, 1):
                assert int(c[k, w]) == int(b[k, w]) ^ product(int(delta[w]), int(a[k]))
        sender.add_products(b, a)
        assert np.array_equal(b, c)
        assert not before & set(a.tolist())
        before |= set(a.tolist())


@pytest.mark.parametrize("length", [1, 16_384, 40_001, 1_363_253])
def test_sizes_follow_from_the_length(length: int) -> None:
    layout = vole.VoleLayout(length)
    assert layout.noise >= 2 * max(length, vole.LEAST)
    assert layout.noise < 2 * max(length, vole.LEAST) + vole.POSITIONS * vole.WEIGHT
    assert layout.noise % vole.WEIGHT == 0
    assert 1 << layout.depth >= layout.block > 1 << layout.depth - 1
    assert list(layout.widths())[-1] == (0, layout.block)


def test_the_noise_is_heavy_enough_for_128_bits() -> None:
    """For linear tests at relative distance .20, exactly 2^-128; and for interleaved syndromes, the tail of a
    binomial distribution, which is computed here term by term.
    """
    t = vole.POSITIONS
    assert t * math.log2(1 - 0.20) <= -128 < (t - 8) * math.log2(1 - 0.20)
    few = sum(math.comb(t, k) for k in range(vole.WORD))
    assert math.log2(few) - t <= -140


def test_the_code_is_its_matrix() -> None:
    """Independent of the compiled loops: the same draws, one addition after the other, with whole numbers."""
    length, layout = 9, vole.VoleLayout(9)
    noise = np.frombuffer(SeededSecret(3).bytes(16 * layout.noise), np.uint64).reshape(-1, 2).copy()
    rows = [int.from_bytes(row.tobytes()[:8], "little") for row in noise]
    stream = vole.aes(hashlib.sha256(b"tacit expand-convolute code 1").digest())

    def draw(count: int) -> list[int]:
        return np.frombuffer(stream.update(bytes(4 * count)), np.uint32).tolist()

    n = len(rows)
    for _ in range(2):
        for i, taps in enumerate(draw(n)):
            for k in range(24):
                if taps >> k & 1:
                    rows[(i + 1 + k) % n] ^= rows[i]
            rows[(i + 25) % n] = product(2, rows[(i + 25) % n] ^ rows[i])
    expected = [0] * length
    for j in range(21):
        for k, at in enumerate(draw(length)):
            expected[k] ^= rows[j * (n // 21) + (at * (n // 21) >> 32)]
    assert vole.multiply_by_code(noise, length)[:, 0].tolist() == expected


def test_the_code_mixes_all_of_the_noise() -> None:
    """One noise position reaches about half of the bits of the outputs: 6.2 standard deviations (fixed code)."""
    layout = vole.VoleLayout(vole.LEAST)
    for at in (0, layout.noise // 3, layout.noise - 1):
        noise = np.zeros((layout.noise, 1), np.uint64)
        noise[at] = 1
        ones = int(np.unpackbits(vole.multiply_by_code(noise, vole.LEAST).view(np.uint8)).sum())
        assert abs(ones - 32 * vole.LEAST) < 6.2 * math.sqrt(16 * vole.LEAST)


def test_a_receivers_vector_is_uniform_and_its_message_too() -> None:
    """Each of 64 bits of 4 · 20,000 elements, and the bytes of the message: 6.4 standard deviations each
    (Bonferroni over 65: a false alarm below 1e-8).
    """
    receiver, sender = connected()
    a = np.concatenate([run(receiver, sender, 20_000)[0] for _ in range(4)])
    ones = np.unpackbits(a.view(np.uint8).reshape(-1, 8), axis=1).sum(0).astype(float)
    assert (np.abs(ones - 40_000) < 6.4 * math.sqrt(80_000 / 4)).all()
    message = np.unpackbits(np.frombuffer(receiver.request(1, os.urandom)[0], np.uint8))
    assert abs(int(message.sum()) - len(message) / 2) < 6.4 * math.sqrt(len(message) / 4)


def test_messages_of_the_wrong_size_are_refused() -> None:
    receiver, sender = connected()
    columns, pending = receiver.request(5, os.urandom)
    for wrong in (b"", columns[:-1], columns + bytes(128)):
        with pytest.raises(ProtocolError, match=f"{len(wrong)} bytes for 28400 transfers; expected 458512"):
            sender.answer(5, wrong, os.urandom)
    sums, _ = sender.answer(5, columns, os.urandom)
    for wrong in (b"", sums[:-16], sums + bytes(16)):
        with pytest.raises(ProtocolError, match="bytes of sums for 400 trees of 7 levels"):
            pending.finish(wrong)


def test_a_repeated_message_gives_shares_that_do_not_fit() -> None:
    """Each vector has seeds and keys of its own: an answer to the first does not open the second."""
    receiver, sender = connected()
    first, _ = receiver.request(50, os.urandom)
    sums, _ = sender.answer(50, first, os.urandom)
    second, pending = receiver.request(50, os.urandom)
    _, b = sender.answer(50, second, os.urandom)
    a, c = pending.finish(sums)
    sender.add_products(b, a)
    assert not (b == c).any()


def test_a_wrong_sum_changes_only_what_the_receiver_computes() -> None:
    """What a sender that deviates can do: the receiver's a, which masks its ids, does not depend on it."""
    receiver, sender = connected()
    columns, pending = receiver.request(50, os.urandom)
    sums, _ = sender.answer(50, columns, os.urandom)
    a, c = pending.finish(sums)
    other_a, other_c = pending.finish(bytes(len(sums)))
    assert np.array_equal(a, other_a)
    assert not np.array_equal(c, other_c)
