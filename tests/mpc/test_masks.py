"""Masks of truncation and comparison that two parties generate by oblivious transfer equal those of a dealer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.mpc import compare, functions, masks
from tacit.mpc.compare import Comparison
from tacit.mpc.extension import OTChannel
from tacit.mpc.ring import unpack
from tacit.mpc.truncate import CarryTruncation, Truncation, truncate
from tacit.parties.codec import decode, kind_of
from tacit.parties.conformance import Tap

from .two import NAMES, made, play


def holds(request, parts):
    """The fixed parts are what the request says of the free ones; those of few bits count modulo what is used
    of them.
    """
    request = request.among(2)
    uniform = {name: parts[name] for name in request.uniform()}
    for name, due in request.derive(uniform, {}).items():
        shape, dtype = request.derived()[name]
        got = parts[name]
        if isinstance(request, CarryTruncation):
            got, due = got.long() & (1 << request.bits) - 1, due & (1 << request.bits) - 1
        assert got.shape == shape
        if isinstance(request, Comparison) and got.dtype is torch.uint8 and name != "T" and request.count % 8:
            keep = (
                255 << (-request.count % 8) & 255
            )  # the last byte's bits behind the last value are nobody's
            got, due = (torch.cat([t[..., :-1], t[..., -1:] & keep], -1) for t in (got, due))
        assert torch.equal(got.to(dtype), due.to(dtype).reshape(shape)), name


@pytest.mark.parametrize("bits", [1, 6, 12, 16, 17, 22, 28, 44])
def test_a_truncation_has_a_bit_of_each_and_their_product(bits):
    for request, parts in zip(asked := [Truncation((3, 5), bits), Truncation((1,), bits)], made(*asked)):
        holds(request, parts)


@pytest.mark.parametrize("shape", [(1,), (8,), (3, 7), (2, 2, 9)])
def test_masks_of_a_comparison_equal_those_of_a_dealer(shape):
    asked = [Comparison(shape), Comparison((5,))]
    for request, parts in zip(asked, made(*asked)):
        holds(request, parts)


def test_chunks_alternate_between_parties_and_fit_together(monkeypatch):
    """Nine pieces of eight values: each party chooses in turn, and every request gets its own part."""
    monkeypatch.setattr(masks, "PIECE", 8)
    monkeypatch.setattr(masks, "CARRIES", 8)
    lines: list[OTChannel] = []
    asked = [
        Comparison((11,)),
        Truncation((20,), 16),
        Comparison((50,)),
        Truncation((7,), 16),
        Truncation((3,), 22),
    ]
    for request, parts in zip(asked, made(*asked, lines=lines)):
        holds(request, parts)
    costs = [{name: cost.rounds for name, cost in line.costs.items()} for line in lines]
    in_turn = {"agreement": 1, "base transfers": 4, "truncations": 2 * 4 + 2, "comparisons": 3 * 9}
    assert costs[0] == costs[1] == in_turn


def test_no_request_generates_nothing():
    (none,) = made(Comparison((0, 3)))
    assert none["r"].shape == (0, 3)
    (none,) = made(Truncation((0,), 16))
    assert none["uw"].shape == (0,)


@settings(deadline=None, max_examples=5)
@given(st.lists(st.integers(-(2**47), 2**47 - 1), min_size=1, max_size=12))
def test_signs_are_exact(values):
    x = torch.tensor(values)
    bits, positive = zip(*play(compare.sign, x))
    assert torch.equal(sum(bits), (x >= 0).long())
    assert torch.equal(sum(positive), x.clamp(min=0))


@settings(deadline=None, max_examples=5)
@given(st.lists(st.integers(-(2**61), 2**61), min_size=1, max_size=12), st.sampled_from([12, 16, 22]))
def test_truncations_are_off_by_less_than_a_unit(values, bits):
    v = torch.tensor(values)
    got = sum(play(lambda ctx, v: truncate(ctx, v, bits), v))
    assert set((got - (v >> bits)).tolist()) <= {0, 1}


def test_every_function_has_its_error_without_a_dealer():
    """What `functions.py` states is of the online protocol, which is the same."""
    x = torch.linspace(-4, 4, 9, dtype=torch.float64)
    coded = torch.round(x * 2**16).long()
    for function, true in (
        (functions.sigmoid, x.sigmoid()),
        (functions.gelu, torch.nn.functional.gelu(x)),
        (functions.softmax, x.softmax(-1)),
    ):
        assert float((sum(play(function, coded)).double() / 2**16 - true).abs().max()) < 2**-11


def test_masks_of_a_comparison_are_uniform_to_each_of_the_two():
    """χ² of 255 degrees on the bytes of r, and of each one's share of every word: 2^-8 of the range; false
    alarms below 1e-6 each (limit 375).
    """
    one, two = play(lambda ctx: ctx.stock.take(Comparison((2000,))), requests=[Comparison((2000,))])
    for words in (
        one["r"],
        two["r"],
        one["r"] + two["r"],
        *(p[n] for p in (one, two) for n in p if p[n].dtype is torch.int64),
    ):
        by_byte = words.contiguous().view(torch.uint8).reshape(-1, 8).numpy()
        counts = np.bincount(by_byte[:, 7], minlength=256) + np.bincount(by_byte[:, 0], minlength=256)
        expected = counts.sum() / 256
        assert float(((counts - expected) ** 2 / expected).sum()) < 415


def test_masks_of_a_truncation_are_uniform_to_each_of_the_two():
    """Each one's bits, and its share of the product where its own bit is 0, and where it is 1. χ² of 255
    degrees, a false alarm in 1e-9 each.
    """
    asked = Truncation((40_000,), 16)
    shares = play(lambda ctx: ctx.stock.take(asked), requests=[asked])
    for parts, mine, other in zip(shares, "uw", "wu"):
        assert not parts[other].any(), "a party has no share of the other's bit"
        bits = unpack(parts[mine], 40_000).bool()
        samples = [parts[mine], *(parts["uw"][bits == v].view(torch.uint8) for v in (True, False))]
        for sample in samples:
            counts = np.bincount(sample.numpy(), minlength=256)
            expected = len(sample) / 256
            assert float(((counts - expected) ** 2 / expected).sum()) < 415


def test_what_each_is_sent_is_uniform_whatever_it_draws(monkeypatch):
    """Both draw zeros only: bits of r, tables, β and a are the plainest there could be. χ² of 255 degrees on
    the bytes, a false alarm in 1e-9 each.
    """
    monkeypatch.setattr(
        "tacit.mpc.tape.Tape.draw", lambda self, shape, dtype=torch.int64: torch.zeros(shape, dtype=dtype)
    )
    monkeypatch.setattr(masks, "PIECE", 32)  # so that each has both roles
    monkeypatch.setattr(masks, "CARRIES", 32)
    tap = Tap()
    made(Comparison((256,)), Truncation((256,), 16), tap=tap)
    for name in NAMES:
        for kind, field in (("Extended", "columns"), ("Correlations", "values")):
            data = b"".join(getattr(decode(f), field) for f in tap.view(name) if kind_of(f) == kind)
            counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
            expected = len(data) / 256
            assert expected > 50
            assert float(((counts - expected) ** 2 / expected).sum()) < 415


def test_the_test_above_would_notice_a_pad_that_is_missing():
    """A correlation sent without its pads is 1 − 2y: far from uniform."""
    y = np.zeros((4, 800), np.uint8)
    said, _ = masks._send_words(np.zeros((4, 800), np.uint64), np.zeros((4, 800), np.uint64), y, [8] * 4)
    counts = np.bincount(np.frombuffer(said, np.uint8), minlength=256)
    assert float(((counts - len(said) / 256) ** 2 / (len(said) / 256)).sum()) > 415


def test_no_two_transfers_share_a_pad(monkeypatch):
    """Every index under which a pad is hashed, each way, is used once."""
    from tacit.mpc import extension

    used: dict[int, list[int]] = {}
    plain = extension.OTReceiver.choose

    def noting(self, bits, length):
        used.setdefault(id(self), []).extend(range(self.count, self.count + 8 * len(bits)))
        return plain(self, bits, length)

    monkeypatch.setattr(extension.OTReceiver, "choose", noting)
    monkeypatch.setattr(masks, "PIECE", 16)
    monkeypatch.setattr(masks, "CARRIES", 16)
    made(Comparison((40,)), Truncation((40,), 16), Comparison((3,)))
    assert len(used) == 2
    for indices in used.values():
        assert len(indices) == len(set(indices)) > 1000
