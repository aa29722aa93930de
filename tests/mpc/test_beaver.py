from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from tacit.errors import BadRun, PartyFailed, ProtocolError
from tacit.mpc.beaver import MATMUL, MUL, Bilinear, Triple, product, product_masked, square
from tacit.mpc.context import RingContext
from tacit.mpc.dealer import Mask, Stock, dealer, fetch, open_stock, plan
from tacit.mpc.share import reconstruct, split
from tacit.mpc.tape import Tape
from tacit.parties import Ledger, decode
from tacit.parties.conformance import Tap
from tacit.parties.secret import Secret
from tacit.runtimes import InProcess

from .at_table import play, play_on, value

WORD = st.integers(-(2**63), 2**63 - 1)


class Given:
    """A stock that holds one triple, written down."""

    def __init__(self, **parts):
        self.parts = {name: torch.tensor([v]) for name, v in parts.items()}

    async def take(self, request):
        return self.parts


def test_the_worked_example():
    """x = 5 = 3 + 2, y = 6 = 4 + 2; a = 10 = 3 + 7, b = 15 = 5 + 10, c = 150 = 50 + 100.

    e = 5 − 10 = −5, f = 6 − 15 = −9
    z_A = 50 + (−5)·5 + 3·(−9) + (−5)(−9) = 43
    z_B = 100 + (−5)·10 + 7·(−9)          = −13      z = 30
    """
    opened = {}

    def party(rank, x, y, stock):
        async def program(me):
            ctx = RingContext(me, rank, ("A", "B"), stock)
            listen = ctx.open

            async def noting(kind, *shares):
                opened[me.name] = [int(v) for v in await listen(kind, *shares)]
                return [torch.tensor([v]) for v in opened[me.name]]

            ctx.open = noting
            return int(await product(ctx, torch.tensor([x]), torch.tensor([y])))

        return program

    made = InProcess().run_sync(
        {"A": party(0, 3, 4, Given(a=3, b=5, c=50)), "B": party(1, 2, 2, Given(a=7, b=10, c=100))}
    )
    assert opened == {"A": [-5, -9], "B": [-5, -9]}
    assert made == {"A": 43, "B": -13}
    assert sum(made.values()) == 30


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(WORD, WORD), min_size=1, max_size=4), st.integers(2, 5))
def test_products_are_exact_in_the_ring(pairs, parties):
    x, y = (torch.tensor(v) for v in zip(*pairs))
    assert torch.equal(value(product, x, y, parties=parties), x * y)
    assert torch.equal(value(square, x, parties=parties), x * x)


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize(
    ("op", "x", "y"),
    [
        (MUL, (3, 1), (4,)),
        (MATMUL, (2, 3, 4), (4, 5)),
        (Bilinear("conv2d", ((2, 1), (1, 0), (1, 1), 1)), (2, 3, 6, 5), (4, 3, 3, 2)),
    ],
)
def test_every_bilinear_operation(op, x, y, parties):
    rng = torch.Generator().manual_seed(3)
    x, y = (torch.randint(-(2**63), 2**63 - 1, s, generator=rng) for s in (x, y))
    assert torch.equal(value(lambda ctx, x, y: product(ctx, x, y, op), x, y, parties=parties), op(x, y))


def test_shares_of_a_product_are_fresh():
    """Replicated sharing adds up cross terms at home and must re-randomize them, or a share tells of the
    factors; there is none of it here, and a triple's own c re-randomizes. From the same shares of 0 · 0,
    twice: other words, uniform (χ² of 15 degrees of the upper 4 bits; a false alarm in 1e-9).
    """
    zero = torch.zeros(3000, dtype=torch.int64)
    (one, _), (two, _) = (play(product, zero, zero) for _ in range(2))
    assert not bool((one == two).any())
    for mine in (one, two):
        counts = torch.bincount((mine >> 60) & 15, minlength=16).double()
        expected = len(mine) / 16
        assert float(((counts - expected) ** 2 / expected).sum()) < 73.7


def test_a_product_takes_one_round_and_16_bytes_a_value_and_party():
    contexts = []
    x = torch.arange(1000)
    play(product, x, x, contexts=contexts)
    assert [(c.rounds, c.bytes) for s in contexts for c in s.costs.values()] == [(1, 16_000)] * 2


def kept_run(weight, inputs, owner=0):
    """Weights kept by their owner, and a matmul for each input: results and the ledger."""
    shape, names, ledger = tuple(weight.shape), ("owner", "client"), Ledger()

    async def step(ctx, w, xs):
        kept = await ctx.mask_private("w", shape, w, owner)
        return [await product_masked(ctx, x, kept, MATMUL) for x in xs]

    requests = plan(
        lambda ctx: step(ctx, None, [torch.empty(x.shape, dtype=torch.int64, device="meta") for x in inputs])
    )
    shares = [split(x, 2, Secret()) for x in inputs]

    def program(rank):
        async def party(me):
            return await step(
                RingContext(me, rank, names, await Stock.connect(me, rank, 2, "helper")),
                weight if rank == owner else None,
                [s[rank] for s in shares],
            )

        return party

    async def deal(me):
        await dealer(me, names, requests)

    made = InProcess().run_sync({"owner": program(0), "client": program(1), "helper": deal}, ledger=ledger)
    return [reconstruct([a, b]) for a, b in zip(made["owner"], made["client"])], ledger


def test_kept_weights_are_sent_once_and_multiplied_often():
    rng = torch.Generator().manual_seed(5)
    w = torch.randint(-(2**63), 2**63 - 1, (6, 2), generator=rng)
    inputs = [torch.randint(-(2**63), 2**63 - 1, (3, 6), generator=rng) for _ in range(4)]
    made, ledger = kept_run(w, inputs)
    for got, x in zip(made, inputs):
        assert torch.equal(got, x @ w)
    assert [(s.party, s.count) for s in ledger.seen if s.kind == "MaskedWeights"] == [("client", 1)]
    assert [(s.party, s.count) for s in ledger.seen if s.kind == "MaskedFactors"] == [("owner", 4)]


@pytest.mark.parametrize("parties", [2, 3, 4])
@pytest.mark.parametrize("owner", [0, 1, -1])
@pytest.mark.parametrize(
    ("op", "x", "y"),
    [
        (MUL, (3, 1), (4,)),
        (MATMUL, (2, 3, 4), (4, 5)),
        (Bilinear("conv2d", ((2, 1), (1, 0), (1, 1), 1)), (2, 3, 6, 5), (4, 3, 3, 2)),
    ],
)
def test_a_factor_that_one_party_knows_costs_8_bytes_a_word_one_way(op, x, y, owner, parties):
    rng, owner = torch.Generator().manual_seed(3), owner % parties
    x, y = (torch.randint(-(2**63), 2**63 - 1, s, generator=rng) for s in (x, y))
    contexts: list[RingContext] = []

    async def step(ctx, x):
        value = y if ctx.me is not None and ctx.rank == owner else None
        return await product_masked(ctx, x, await ctx.mask_private("y", tuple(y.shape), value, owner), op)

    assert torch.equal(value(step, x, parties=parties, contexts=contexts), op(x, y))
    for ctx in contexts:
        (cost,) = ctx.costs.values()
        masked = (parties - 1) * 8 * y.numel()
        assert cost.bytes == (masked if ctx.rank == owner else 8 * x.numel())


def test_its_owner_sees_words_under_masks_that_it_does_not_have():
    """x of zeros at both: what the owner is sent is uniform, and another word for each of two products with
    the same factor (χ² of 255 degrees on the top bytes: a false alarm in 1e-9).
    """
    tap, n, x = Tap(), 4000, torch.zeros(4000, dtype=torch.int64)

    async def step(ctx, x):
        value = torch.ones(n, dtype=torch.int64) if ctx.me is not None and ctx.first else None
        factor = await ctx.mask_private("w", (n,), value, 0)
        return [await product_masked(ctx, x, factor, MUL) for _ in range(2)]

    play_on(step, [x, x], tap=tap)
    sent = [
        m.values[0]
        for _, to, _, frame in tap.frames
        if (m := decode(frame)).kind == "MaskedFactors" and to == "party 0"
    ]
    assert len(sent) == 2
    assert not any(to == "party 1" and decode(f).kind == "MaskedFactors" for _, to, _, f in tap.frames)
    for words in (*sent, sent[0] - sent[1]):
        counts = torch.bincount((words >> 56) & 255, minlength=256).double()
        assert float(((counts - n / 256) ** 2 / (n / 256)).sum()) < 415


def test_one_mask_hides_one_value_only():
    masks = {}
    Mask("w", (1,)).derive({"b": torch.ones(1)}, masks)
    with pytest.raises(ProtocolError, match="mask 'w' is dealt twice; a mask may hide one value only"):
        Mask("w", (1,)).derive({"b": torch.ones(1)}, masks)


def test_each_triple_is_fresh():
    """Reusing a triple gives away x − x': two requests read different parts of the tape."""
    import asyncio

    stock = Stock(Tape(bytes(range(32))), 0, 2, None)
    first, second = (asyncio.run(stock.take(Triple(MUL, (4,), (4,)))) for _ in range(2))
    assert not any(torch.equal(first[k], second[k]) for k in "abc")
    assert stock.used == 2


def test_the_offline_phase_can_be_kept_on_disk_and_used_once(tmp_path):
    x, y = torch.tensor([7, -3]), torch.tensor([6, 5])
    names = ("a", "b")

    async def step(ctx, x, y):
        return await product(ctx, await product(ctx, x, y), y)

    requests = plan(lambda ctx: step(ctx, *[torch.empty(2, dtype=torch.int64, device="meta")] * 2))

    def offline(rank):
        async def party(me):
            return await fetch(me, rank, 2, "dealer", requests, tmp_path / f"{rank}.stock")

        return party

    async def deal(me):
        await dealer(me, names, requests)

    InProcess().run_sync({"a": offline(0), "b": offline(1), "dealer": deal})
    assert (tmp_path / "0.stock").stat().st_mode & 0o077 == 0
    assert (tmp_path / "0.stock").stat().st_size < 400  # a key: its shares are on the tape
    shares = split(x, 2, Secret()), split(y, 2, Secret())

    def online(rank):
        async def party(me):
            return await step(
                RingContext(me, rank, names, open_stock(tmp_path / f"{rank}.stock", rank, 2)),
                *[s[rank] for s in shares],
            )

        return party

    made = InProcess().run_sync({"a": online(0), "b": online(1)})
    assert torch.equal(reconstruct(list(made.values())), x * y * y)
    with pytest.raises(PartyFailed, match="is used up; a mask may hide one value only"):
        InProcess().run_sync({"a": online(0), "b": online(1)})


def test_a_stock_that_is_not_one_is_refused(tmp_path):
    with pytest.raises(BadRun, match="there is no stock of correlated randomness"):
        open_stock(tmp_path / "none", 0, 2)
    save_file({"weight": torch.ones(2)}, tmp_path / "other")
    (tmp_path / "bad").write_bytes(b"hello")
    for name in ("bad", "other"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(BadRun, match="is not a stock of correlated randomness"):
            open_stock(tmp_path / name, 0, 2)
        assert (tmp_path / name).read_bytes() == before, "what is not ours is not emptied"


def test_parties_with_different_shapes_are_refused():
    names = ("a", "b")

    def program(rank):
        async def party(me):
            x = torch.zeros(2 + rank, dtype=torch.int64)
            return await product(
                RingContext(me, rank, names, await Stock.connect(me, rank, 2, "dealer")), x, x
            )

        return party

    async def deal(me):
        await dealer(me, names, [Triple(MUL, (2,), (2,))])

    with pytest.raises(
        PartyFailed, match=r"All parties must run the same program|must plan the same program"
    ):
        InProcess().run_sync({"a": program(0), "b": program(1), "dealer": deal})
