"""Triples that two parties make between them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import PartyFailed
from tacit.mpc.beaver import MATMUL, MUL, Bilinear, Square, Triple, keep, product, square, times_kept
from tacit.mpc.gilboa import Pair
from tacit.mpc.seat import Seat
from tacit.mpc.share import split
from tacit.mpc.truncate import Truncation
from tacit.parties import Ledger
from tacit.parties.codec import decode, kind_of
from tacit.parties.conformance import Tap
from tacit.parties.secret import Secret
from tacit.runtimes import InProcess

NAMES = ("a", "b")
WORD = st.integers(-(2**63), 2**63 - 1)


def play(step, *operands, tap=None, ledger=None):
    """What the two ended with; operands are shared freshly."""
    shares = [split(x, 2, Secret()) for x in operands]

    def program(rank):
        async def party(me):
            return await step(Seat(me, rank, NAMES, Pair(me, rank, NAMES)), *[s[rank] for s in shares])
        return party

    programs = {"a": program(0), "b": program(1)}
    made = InProcess().run_sync(tap.on(programs) if tap is not None else programs, ledger=ledger)
    return made["a"], made["b"]


@settings(deadline=None, max_examples=5)
@given(st.lists(st.tuples(WORD, WORD), min_size=1, max_size=5))
def test_products_and_squares_are_exact_in_the_ring(pairs):
    x, y = (torch.tensor(v) for v in zip(*pairs))
    assert torch.equal(sum(play(product, x, y)), x * y)
    assert torch.equal(sum(play(square, x)), x * x)


@pytest.mark.parametrize(("op", "x", "y"), [(MUL, (3, 1), (4,)), (MATMUL, (2, 3), (3, 5)), (MATMUL, (5, 3), (3, 2)), (MATMUL, (1, 1), (1, 1))])
def test_every_shape_gives_a_triple(op, x, y):
    """c = a ∘ b, with a, b and c drawn anew for each request."""
    async def step(seat):
        return [await seat.stock.take(Triple(op, x, y)) for _ in range(2)]

    one, two = play(step)
    first, second = ({name: p[name] + q[name] for name in p} for p, q in zip(one, two))
    for t in (first, second):
        assert torch.equal(t["c"], op(t["a"], t["b"]))
    assert not torch.equal(first["a"], second["a"])


def test_a_long_product_goes_in_pieces(monkeypatch):
    monkeypatch.setattr("tacit.mpc.gilboa.ROOM", 64 * 3 * 4)
    rng = torch.Generator().manual_seed(0)
    x, y = (torch.randint(-(2**63), 2**63 - 1, s, generator=rng) for s in ((3, 4), (4, 5)))
    assert torch.equal(sum(play(lambda seat, x, y: product(seat, x, y, MATMUL), x, y)), x @ y)


def test_kept_weights_need_transfers_in_one_direction_only():
    rng = torch.Generator().manual_seed(5)
    w, xs = torch.randint(-(2**63), 2**63 - 1, (4, 2), generator=rng), torch.randint(-(2**63), 2**63 - 1, (2, 3, 4), generator=rng)
    ledger = Ledger()

    async def step(seat, *inputs):
        kept = await keep(seat, "w", (4, 2), w if seat.rank == 0 else None, 0)
        return torch.stack([await times_kept(seat, x, kept, MATMUL) for x in inputs])

    assert torch.equal(sum(play(step, *xs, ledger=ledger)), xs @ w)
    assert len({line.party for line in ledger.seen if line.kind == "Extended"}) == 1


def test_what_each_is_sent_is_uniform_whatever_the_words_are():
    """χ² of 255 degrees on bytes of both kinds of message; a false alarm in 1e-6 each. The words are all 0 on one side: the plainest there could be."""
    tap = Tap()

    async def step(seat):
        seat.stock.tape.draw = lambda shape, dtype=torch.int64: torch.zeros(shape, dtype=dtype)
        return await seat.stock.take(Triple(MUL, (40,), (40,)))

    play(step, tap=tap)
    for name in NAMES:
        for kind, field in (("Extended", "columns"), ("Correlations", "values")):
            data = b"".join(getattr(decode(f), field) for f in tap.view(name) if kind_of(f) == kind)
            counts = torch.bincount(torch.frombuffer(bytearray(data), dtype=torch.uint8).long(), minlength=256).double()
            expected = len(data) / 256
            assert expected > 5
            assert float(((counts - expected) ** 2 / expected).sum()) < 375


@pytest.mark.parametrize(("request_", "words"), [(Truncation((2,), 16), "truncation masks cannot be made by two parties alone"),
                                                 (Triple(Bilinear("conv2d", ((1, 1), (0, 0), (1, 1), 1)), (1, 1, 2, 2), (1, 1, 1, 1)),
                                                  "a convolution's triple cannot"),
                                                 (Triple(MATMUL, (2, 2, 2), (2, 2)), "both must have two dimensions")])
def test_what_two_cannot_make_is_refused(request_, words):
    async def step(seat):
        return await seat.stock.take(request_)

    with pytest.raises(PartyFailed, match=words):
        play(step)


def test_two_who_ask_for_different_things_are_told_so():
    async def step(seat):
        return await seat.stock.take(Triple(MUL, (2 + seat.rank,), (2 + seat.rank,)))

    with pytest.raises(PartyFailed, match="Do both run the same program"):
        play(step)


def test_three_cannot():
    async def party(me):
        return Pair(me, 0, ("a", "b", "c"))

    with pytest.raises(PartyFailed, match="made by two parties, and there are 3"):
        InProcess().run_sync({"a": party})


def test_a_square_takes_one_direction():
    ledger = Ledger()

    async def step(seat):
        return await seat.stock.take(Square((3,)))

    one, two = play(step, ledger=ledger)
    a = one["a"] + two["a"]
    assert torch.equal(one["c"] + two["c"], a * a)
    assert sum(line.count for line in ledger.seen if line.kind == "Extended") == 1
