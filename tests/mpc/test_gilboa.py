"""Products that two parties share between them without a dealer."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import PartyFailed
from tacit.mpc import pair
from tacit.mpc.beaver import (
    MATMUL,
    MUL,
    Bilinear,
    Square,
    Triple,
    product,
    product_masked,
    square,
)
from tacit.mpc.dealer import Mask
from tacit.mpc.extension import OTChannel
from tacit.parties import Ledger
from tacit.parties.codec import decode, kind_of
from tacit.parties.conformance import Tap
from tacit.runtimes import InProcess

from .two import NAMES, made, play

WORD = st.integers(-(2**63), 2**63 - 1)
CONV = Bilinear("conv2d", ((2, 1), (1, 0), (1, 1), 1))
GROUPED = Bilinear("conv2d", ((1, 1), (0, 1), (1, 2), 2))


@settings(deadline=None, max_examples=5)
@given(st.lists(st.tuples(WORD, WORD), min_size=1, max_size=5))
def test_products_and_squares_are_exact_in_the_ring(pairs):
    x, y = (torch.tensor(v) for v in zip(*pairs))
    assert torch.equal(sum(play(product, x, y)), x * y)
    assert torch.equal(sum(play(square, x)), x * x)


@pytest.mark.parametrize(
    ("op", "x", "y"),
    [
        (MUL, (3, 1), (4,)),
        (MATMUL, (2, 3), (3, 5)),
        (MATMUL, (5, 3), (3, 2)),
        (MATMUL, (1, 1), (1, 1)),
        (MATMUL, (2, 3, 4), (4, 5)),
        (MATMUL, (4,), (4, 2)),
        (MATMUL, (3, 4), (4,)),
        (MATMUL, (2, 1, 3, 2), (5, 2, 4)),
        (CONV, (2, 3, 6, 5), (4, 3, 3, 2)),
        (GROUPED, (1, 4, 3, 5), (6, 2, 2, 2)),
    ],
)
def test_every_shape_gives_a_triple(op, x, y):
    """c = a ∘ b, with new a, b and c for each request."""
    first, second = made(Triple(op, x, y), Triple(op, x, y))
    for t in (first, second):
        assert torch.equal(t["c"], op(t["a"], t["b"]))
    assert not torch.equal(first["a"], second["a"])


def test_many_requests_go_together_and_come_back_in_their_order():
    """Elementwise products of different shapes share their transfers: four rounds, however many there are."""
    lines: list[OTChannel] = []
    requests = [
        Triple(MUL, (3,), (3,)),
        Square((2, 2)),
        Triple(MUL, (2, 1), (3,)),
        Mask("w", (2,), holder=1),
        Triple(MUL, (5, 2), (2,), "w"),
        Square((1,)),
    ]
    got = made(*requests, lines=lines)
    for request, t in zip(requests, got):
        if isinstance(request, Triple):
            assert torch.equal(t["c"], t["a"] * (t["b"] if request.mask is None else got[3]["b"]))
        elif isinstance(request, Square):
            assert torch.equal(t["c"], t["a"] * t["a"])
    assert {line.costs["products"].rounds for line in lines} == {4}


@pytest.mark.parametrize("room", [64 * 3 * 4, 64 * 5, 64 * 7 * 5])
def test_a_long_product_goes_in_pieces(room, monkeypatch):
    monkeypatch.setattr("tacit.mpc.gilboa.ROOM", room)
    rng = torch.Generator().manual_seed(0)
    x, y = (torch.randint(-(2**63), 2**63 - 1, s, generator=rng) for s in ((3, 4), (4, 5)))
    assert torch.equal(sum(play(lambda ctx, x, y: product(ctx, x, y, MATMUL), x, y)), x @ y)


def test_kept_weights_need_transfers_in_one_direction_only():
    rng = torch.Generator().manual_seed(5)
    w, xs = (
        torch.randint(-(2**63), 2**63 - 1, (4, 2), generator=rng),
        torch.randint(-(2**63), 2**63 - 1, (2, 3, 4), generator=rng),
    )
    ledger = Ledger()

    async def step(ctx, *inputs):
        kept = await ctx.mask_private("w", (4, 2), w if ctx.rank == 0 else None, 0)
        return [await product_masked(ctx, x, kept, MATMUL) for x in inputs]

    assert torch.equal(sum(map(torch.stack, play(step, *xs, ledger=ledger))), xs @ w)
    assert len({line.party for line in ledger.seen if line.kind == "Extended"}) == 1


def test_what_each_is_sent_is_uniform_whatever_the_words_are(monkeypatch):
    """χ² of 255 degrees on bytes of both kinds of message; a false alarm in 1e-9 each. The words are all 0 on
    both sides: the plainest there could be.
    """
    monkeypatch.setattr(
        "tacit.mpc.tape.Tape.draw", lambda self, shape, dtype=torch.int64: torch.zeros(shape, dtype=dtype)
    )
    tap = Tap()
    made(Triple(MUL, (40,), (40,)), tap=tap)
    for name in NAMES:
        for kind, field in (("Extended", "columns"), ("Correlations", "values")):
            data = b"".join(getattr(decode(f), field) for f in tap.view(name) if kind_of(f) == kind)
            counts = torch.bincount(
                torch.frombuffer(bytearray(data), dtype=torch.uint8).long(), minlength=256
            ).double()
            expected = len(data) / 256
            assert expected > 5
            assert float(((counts - expected) ** 2 / expected).sum()) < 415


def test_a_reused_mask_is_generated_once():
    with pytest.raises(PartyFailed, match="mask 'w' is made twice; a mask may hide one value only"):
        made(Mask("w", (2,)), Mask("w", (2,)))


def test_two_parties_with_different_requests_are_refused():
    def program(rank):
        async def party(me):
            await pair.generate(OTChannel(me, rank, NAMES), [Triple(MUL, (2 + rank,), (2 + rank,))])

        return party

    with pytest.raises(PartyFailed, match="Both parties must run the same program"):
        InProcess().run_sync({"a": program(0), "b": program(1)})


def test_three_cannot():
    async def party(me):
        return OTChannel(me, 0, ("a", "b", "c"))

    with pytest.raises(PartyFailed, match="generated by two parties, not by 3"):
        InProcess().run_sync({"a": party})


def test_a_square_takes_one_direction():
    ledger = Ledger()
    (t,) = made(Square((3,)), ledger=ledger)
    assert torch.equal(t["c"], t["a"] * t["a"])
    assert sum(line.count for line in ledger.seen if line.kind == "Extended") == 1
