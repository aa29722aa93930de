"""A malicious change is detected before anything is revealed. Each undetected change would have a probability below
2^-59.
"""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import PartyFailed
from tacit.mpc import functions, prime, spdz, tagged_bits
from tacit.mpc.beaver import MATMUL
from tacit.mpc.elements import TaggedShare
from tacit.mpc.prime import FixedPointPrime, P
from tacit.mpc.ring import unpack
from tacit.mpc.tagged import (
    ComparisonShares,
    TaggedStock,
    TaggedTruncation,
    deal,
    draw_keys,
    plan,
    share_tagged,
)
from tacit.mpc.tagged_bits import TaggedComparison
from tacit.mpc.tagged_context import MaskedOpening, TaggedContext
from tacit.parties.codec import decode, encode, kind_of
from tacit.parties.conformance import Tap
from tacit.parties.secret import Secret
from tacit.runtimes import InProcess


@dataclasses.dataclass(frozen=True)
class Forging:
    """A transport that changes the n-th message to another computing party."""

    inner: object
    n: int
    sent: list

    async def deliver(self, sender, to, scope, frame):
        if len(self.sent) == self.n:
            message = decode(frame)
            if kind_of(frame) == "Commitment":
                message = dataclasses.replace(
                    message, digest=bytes([message.digest[0] ^ 1]) + message.digest[1:]
                )
            elif kind_of(frame) == "Opened":
                message = dataclasses.replace(
                    message, value=bytes([message.value[0] ^ 1]) + message.value[1:]
                )
            else:
                first = message.values[0].clone()
                if first.dtype is torch.uint8:  # eight bits, the first in the highest place
                    first.view(-1)[0] ^= 128
                else:
                    first.view(-1)[0] = (first.view(-1)[0] + 1) % P
                message = dataclasses.replace(message, values=[first, *message.values[1:]])
            frame = encode(message)
        self.sent.append(kind_of(frame))
        await self.inner.deliver(sender, to, scope, frame)


@functools.lru_cache(256)  # a dry run costs more than the run
def requested(step, shapes):
    """What a step asks of its dealer."""
    return plan(
        lambda ctx: step(
            ctx, *[TaggedShare(torch.empty((2, *s), dtype=torch.int64, device="meta")) for s in shapes]
        )
    )


def play(step, *operands, parties=2, cheat=None, forge=None, tap=None):
    """(what each party ended with, the messages party 1 sent). `cheat(rank, ctx, shares)` changes a party's
    memory, `forge` is a message's number.
    """
    names, secret, sent = tuple(f"party {i}" for i in range(parties)), Secret(), []
    alphas = draw_keys(parties, secret)
    shares = [share_tagged(x, alphas, secret) for x in operands]
    requests = requested(step, tuple(x.shape for x in operands))

    def program(rank):
        async def party(me):
            if rank == 1 and forge is not None:
                me = dataclasses.replace(me, transport=Forging(me.transport, forge, sent))
            ctx = TaggedContext(
                me,
                rank,
                names,
                await TaggedStock.connect(me, rank, parties, "dealer"),
                FixedPointPrime(),
                alpha=alphas[rank],
            )
            mine = [s[rank].clone() for s in shares]
            if cheat is not None:
                cheat(rank, ctx, mine)
            made = await step(ctx, *map(TaggedShare, mine))
            await ctx.check()
            (opened,) = await ctx.open(made)
            await ctx.check()
            return opened

        return party

    async def dealer(me):
        await deal(me, names, requests, alphas=alphas)

    programs = {**{name: program(i) for i, name in enumerate(names)}, "dealer": dealer}
    made = InProcess().run_sync(tap.on(programs) if tap is not None else programs)
    return [made[name] for name in names], sent


def value(step, *operands, **options):
    made, _ = play(step, *[o % P for o in operands], **options)
    assert all(torch.equal(made[0], other) for other in made[1:])
    return prime.to_signed(made[0])


async def positive(ctx, x):
    return (await ctx.sign(x)).bit


WORD = st.integers(-(2**47), 2**47)


@settings(deadline=None, max_examples=10)
@given(st.lists(WORD, min_size=1, max_size=4), st.integers(2, 4))
def test_an_honest_run_passes_and_is_exact(values, parties):
    x = torch.tensor(values)
    assert value(functions.relu, x, parties=parties).tolist() == [max(v, 0) for v in values]
    assert value(positive, x, parties=parties).tolist() == [int(v >= 0) for v in values]


@settings(deadline=None, max_examples=10)
@given(st.lists(st.integers(-(2**58) + 1, 2**58 - 1), min_size=1, max_size=4), st.integers(12, 18))
def test_truncation_is_off_by_less_than_a_unit(values, bits):
    made = value(lambda ctx, x: spdz.truncate(ctx, x, bits), torch.tensor(values))
    assert all(abs(int(m) * 2**bits - v) < 2**bits for m, v in zip(made, values))


@pytest.mark.parametrize(("x", "y"), [((3, 1), (4,)), ((2,), (3, 2)), ((1, 3), (2, 3)), ((), (5,))])
def test_a_factor_that_is_broadcast_is_opened_once_and_a_change_of_it_detected(x, y):
    rng = torch.Generator().manual_seed(7)
    a, b = (torch.randint(-1000, 1000, s, generator=rng) for s in (x, y))
    tap = Tap()
    (one, two), _ = play(spdz.product, a % P, b % P, tap=tap)
    assert torch.equal(one, two)
    assert torch.equal(prime.to_signed(one), a * b)
    openings = [m for *_, f in tap.frames if (m := decode(f)).kind == "MaskedOpening" and len(m.values) == 2]
    assert [[v.shape for v in m.values] for m in openings] == [[a.shape, b.shape]] * 2
    with pytest.raises(PartyFailed, match="check 1 failed"):
        play(spdz.product, a % P, b % P, forge=0)


@pytest.mark.parametrize(
    "r", [0, 1, 2**48 - 1, 2**48, P - 2**48, P - 2**48 - 1, P - 1, P - 2**59, P - 2**59 - 1, 2**59]
)
def test_sums_that_wrap_around_are_put_right(r):
    """With probability 2^-12 x + r leaves the field for a random mask; here it always does, on purpose."""
    x = torch.tensor([0, 1, -1, 2**47, -(2**47), 12345, -12345])
    mine, ctx = under_key_3(x % P), TaggedContext(None, 0, ("alone",), None, alpha=3)
    comparison, truncation = TaggedComparison((7,)), TaggedTruncation((7,), 16)
    random = torch.randint(0, 256, (tagged_bits.MESSAGES, 1), dtype=torch.uint8)

    class Stock:
        async def take(self, asked):
            parts = {"r": torch.full((7,), r)}
            return {k: under_key_3(v) for k, v in {**parts, **asked.derive(parts, {})}.items()}

        async def take_comparison(self, asked):
            parts = {"r": torch.full((7,), r), "random": random}
            made = asked.derive(parts, {})
            bits = torch.cat([random, made["bits"]]).numpy()
            return ComparisonShares(*(under_key_3(v) for v in (parts["r"], made["β"], made["βr"])), bits)

    ctx.stock = Stock()
    assert comparison.uniform().keys() == {"r", "random"}
    result = _alone(ctx.sign(mine))
    assert prime.to_signed(result.bit.data[0]).tolist() == [int(v >= 0) for v in x.tolist()]
    assert prime.to_signed(result.positive.data[0]).tolist() == x.clamp(min=0).tolist()
    got = prime.to_signed(_alone(spdz.truncate(ctx, mine, truncation.bits)).data[0]).tolist()
    assert all(abs(g * 65536 - v) < 65536 for g, v in zip(got, x.tolist()))


def under_key_3(value):
    return TaggedShare(torch.stack([value, prime.mul(value, torch.full_like(value, 3))]))


def _alone(step):
    try:
        step.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("waits for somebody")


async def both(ctx, x, y):
    """A product, a truncation and a comparison."""
    return await functions.relu(ctx, await spdz.truncate(ctx, await spdz.product(ctx, x, y, MATMUL)))


X, Y = torch.tensor([[3 << 16, -(2 << 16) % P]]), torch.tensor([[1 << 16], [5 << 16]])


def test_every_message_that_is_changed_is_noticed():
    """Each message party 1 sends, one run each: openings, commitments, and what they open to."""
    _, sent = play(both, X, Y, forge=-1)
    assert (sent.count("MaskedOpening"), sent.count("MaskedCheckedBits"), sent.count("BitProof")) == (4, 6, 1)
    assert sent.count("Commitment") == sent.count("Opened") == 4
    for n in range(len(sent)):
        with pytest.raises(PartyFailed, match=r"check [12] failed"):
            play(both, X, Y, forge=n)


@pytest.mark.parametrize("part", [0, 1], ids=["share", "tag"])
@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize("parties", [2, 3])
def test_a_share_or_a_tag_that_is_changed_is_noticed(part, operand, parties):
    def cheat(rank, ctx, mine):
        if rank == 1:
            mine[operand][part].view(-1)[0] = (mine[operand][part].view(-1)[0] + 1) % P

    with pytest.raises(PartyFailed, match=r"check [12] failed: an opened value does not match its tag"):
        play(both, X, Y, parties=parties, cheat=cheat)


@pytest.mark.parametrize("by", [1, P - 1, pytest.param(2**60, marks=pytest.mark.slow)])
def test_randomness_that_a_party_changes_is_noticed(by):
    """Any words of the dealer's randomness, a share or its tag: a mask, a triple's product, a bit as a word."""

    def cheating(which, part):
        def cheat(rank, ctx, mine):
            if rank != 1:
                return
            take, compare, count = ctx.stock.take, ctx.stock.take_comparison, [0]

            def forge(parts):
                for values in parts:
                    if count[0] == which:
                        values.data[part].view(-1)[0] = (values.data[part].view(-1)[0] + by) % P
                    count[0] += 1

            async def forged(request):
                got = await take(request)
                forge(got.values())
                return got

            async def forged_comparison(request):
                got = await compare(request)
                forge([got.r, got.beta, got.beta_r])
                return got

            ctx.stock.take, ctx.stock.take_comparison = forged, forged_comparison

        return cheat

    caught = 0
    # of the product a, b, c; of the truncation r, R, s; of the comparison r, β, β·r
    for which in range(9):
        for part in (0, 1):
            try:
                made, _ = play(both, X, Y, cheat=cheating(which, part))
            except PartyFailed as failed:
                caught += "check" in str(failed.error)
            else:  # a part that a public 0 multiplies does nothing to anybody
                assert which == 5
                assert abs(int(prime.to_signed(made[0])[0, 0])) <= 1
    assert caught >= 16


@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_every_dealt_bit_that_a_party_changes_is_noticed_if_it_is_used(step):
    """The bits of digits that the public sum does not name, and products with a public 0, are not used."""
    x, noticed = torch.tensor([5, -5, 0, 1 << 40]), 0
    for row in range(0, tagged_bits.DEALT, step):

        def cheat(rank, ctx, mine, row=row):
            if rank != 1:
                return
            compare = ctx.stock.take_comparison

            async def forged(request):
                got = await compare(request)
                got.bits[row] ^= 1 << row % 4  # one of the four comparisons
                return got

            ctx.stock.take_comparison = forged

        try:
            made, _ = play(positive, x % P, cheat=cheat)
        except PartyFailed as failed:
            noticed += "check 1 failed: 'party 1' sent other bits of a comparison" in str(failed.error)
        else:
            assert prime.to_signed(made[0]).tolist() == [1, 0, 1, 1], "not used, so the result is right"
    # of 234 bits, 91 are masks and their products: the masks are always used
    assert noticed > tagged_bits.DEALT // step // 4


def test_opened_bits_are_uniform_whatever_is_compared():
    """All that party 1 is sent of 4,000 comparisons of the largest and of the smallest numbers: each message
    of bits is half ones (six standard deviations: a false alarm in 10^7 for the 12 messages).
    """
    for secret in (2**47 - 1, -(2**47)):
        tap = Tap()
        play(positive, torch.full((4000,), secret) % P, tap=tap)
        sent = [decode(f).values[0] for f in tap.view("party 1") if kind_of(f) == "MaskedCheckedBits"]
        assert len(sent) == 6
        for bits in sent:
            ones = int(unpack(bits, 8 * bits.shape[-1]).sum())
            assert abs(ones - 4 * bits.numel()) < 6 * (8 * bits.numel()) ** 0.5 / 2


def test_many_comparisons_are_checked_in_between(monkeypatch):
    """Those that wait for a check are bounded; a change before such a check is noticed by it."""
    monkeypatch.setattr("tacit.mpc.tagged_context.MOST_COMPARED", 9)

    async def thrice(ctx, x):
        made = [await positive(ctx, x) for _ in range(3)]
        return made[0] + made[1] + made[2]

    x = torch.arange(-20, 20)  # five bytes a row
    assert value(thrice, x).tolist() == [3 * int(v >= 0) for v in x.tolist()]
    _, sent = play(thrice, x % P, forge=-1)
    assert sent.count("BitProof") == 3
    for check in (1, 2, 3):
        bits = [n for n, kind in enumerate(sent) if kind == "MaskedCheckedBits"][6 * check - 1]
        with pytest.raises(PartyFailed, match=f"check {check} failed"):
            play(thrice, x % P, forge=bits)


def test_parties_that_were_opened_different_values_notice():
    """Of three parties, party 1 sends different values to parties 0 and 2."""
    with pytest.raises(
        PartyFailed,
        match=r"check 1 failed: .* opened something else than it committed to, or saw other values opened",
    ):
        play(both, X, Y, parties=3, forge=0)


def test_nothing_is_revealed_before_the_check():
    """The cheat is caught before it is sent a result, even under its mask, and all it was sent is uniform."""

    async def told(ctx, x, y):
        z = await spdz.product(ctx, x, y)
        await ctx.open_to(z, 1)
        return z

    def cheat(rank, ctx, mine):
        if rank == 1:
            mine[0][0] = prime.add(mine[0][0], torch.ones_like(mine[0][0]))

    tap = Tap()
    x = torch.full((1500,), 7)
    with pytest.raises(PartyFailed, match="check 1 failed"):
        play(told, x, x, cheat=cheat, tap=tap)
    words = torch.cat(
        [
            v
            for frame in tap.view("party 1")
            if kind_of(frame) == MaskedOpening.kind
            for v in decode(frame).values
        ]
    )
    assert len(words) == 2 * 1500  # e and f, and no result under its mask
    counts = torch.bincount(words >> 57, minlength=16).double()
    expected = len(words) / 16
    assert (
        float(((counts - expected) ** 2 / expected).sum()) < 73.7
    )  # χ² of 15 degrees: a false alarm in 1e-9


def test_openings_do_not_distinguish_secrets():
    """What party 1 is sent of x = 0 and of x = 2^40: two samples of the same distribution (χ² of 15 degrees;
    a false alarm in 1e-9).
    """
    counts = []
    for secret in (0, 2**40):
        tap = Tap()
        play(spdz.truncate, torch.full((3000,), secret), tap=tap)
        first = next(decode(f).values[0] for f in tap.view("party 1") if kind_of(f) == MaskedOpening.kind)
        counts.append(torch.bincount(first >> 57, minlength=16).double())
    a, b = counts
    assert float(((a - b) ** 2 / (a + b)).sum()) < 73.7
