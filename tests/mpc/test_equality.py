"""Whether private words are equal, on shares; against plain comparison."""

from __future__ import annotations

import pytest
import torch

from tacit.mpc.compare import MaskedBits
from tacit.mpc.context import RingContext
from tacit.mpc.equality import Equality, equal
from tacit.mpc.ring import WORD
from tacit.mpc.share import reconstruct
from tacit.parties import Ledger
from tacit.parties.conformance import Tap

from .at_table import MASKED, play_on


def compare(a: torch.Tensor, b: torch.Tensor, bits: int, **options) -> torch.Tensor:
    async def step(ctx: RingContext, words: torch.Tensor) -> torch.Tensor:
        return await equal(ctx, words, bits)

    return reconstruct(play_on(step, [a, b], **options))


@pytest.mark.parametrize("bits", [1, 2, 3, 8, 47, WORD])
def test_a_bit_says_whether_the_lowest_bits_are_equal(bits):
    g = torch.Generator().manual_seed(bits)
    a = torch.randint(-(2**63), 2**63 - 1, (203,), generator=g)
    b = a.clone()
    flips = 1 << torch.arange(203).remainder(64)  # each differs in one bit, above or below the limit
    b[:130] ^= flips[:130]
    mask = -1 if bits == WORD else (1 << bits) - 1
    assert compare(a, b, bits).equal(((a & mask) == (b & mask)).long())


def test_random_words_are_not_equal_and_equal_ones_are():
    g = torch.Generator().manual_seed(1)
    a, b = torch.randint(-(2**63), 2**63 - 1, (2, 1000), generator=g)
    assert not compare(a, b, 50).any()  # false alarm: 1000 · 2^-50
    assert compare(a, a, 50).all()


def test_a_word_shared_by_addition_is_compared_with_a_public_number():
    """x_0 + x_1 = g exactly where x_0 − g = −x_1: the codes of groups."""
    x, first = torch.arange(-5, 20), torch.randint(-(2**63), 2**63 - 1, (25,))
    assert compare(first - 7, -(x - first), 8).equal((x == 7).long())


def test_what_is_sent_is_masked_and_of_the_stated_size():
    ledger, tap = Ledger(), Tap()
    compare(torch.arange(64), torch.zeros(64).long(), 33, ledger=ledger, tap=tap)
    assert {line.kind for line in ledger.seen} <= MASKED
    sizes = [Equality(64, 33).parts()[name][0] for name in ("u", "v", "uv", "β bits", "β")]
    assert sizes == [(32, 8), (32, 8), (32, 8), (8,), (64,)]
    rounds = [line for line in ledger.seen if line.kind == MaskedBits.kind and line.party == "party 1"]
    assert sum(line.count for line in rounds) == 6  # ⌈log₂ 33⌉


def test_no_bits_of_the_words_are_in_the_view_of_the_other():
    """The other's messages are uniform: equal words give as many ones as others."""
    ones = {}
    for name, b in (("equal", torch.zeros(4096).long()), ("different", torch.full((4096,), -1))):
        tap = Tap()
        compare(torch.zeros(4096).long(), b, 40, tap=tap)
        frames = [f for s, to, _, f in tap.frames if (s, to) == ("party 0", "party 1")]
        data = torch.frombuffer(bytearray(b"".join(frames)), dtype=torch.uint8)
        bits = sum(int((data >> k & 1).sum()) for k in range(8))
        ones[name] = bits / (8 * len(data))
    # 3.3e5 random bits: standard deviation 9e-4; headers are a few hundred bytes of 4e4. False alarm below 1e-8
    assert all(abs(share - 0.5) < 0.01 for share in ones.values())
