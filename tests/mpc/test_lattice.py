"""Products of matrices and images by homomorphic encryption, shared between two parties."""

from __future__ import annotations

import functools
import sys

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

import tacit
from tacit.crypto.sealapi import DEGREE
from tacit.errors import BadParameter, MissingExtra, PartyFailed
from tacit.mpc import gilboa, inference, lattice, pair, ring
from tacit.mpc.beaver import MATMUL, Bilinear, Triple, product, product_masked
from tacit.mpc.extension import MatrixProducts, OTChannel
from tacit.mpc.packing import ImagePacking, MatrixPacking, pack_images, pack_matrix
from tacit.parties import Ledger
from tacit.parties.codec import decode, kind_of
from tacit.parties.conformance import Tap
from tacit.parties.party import Party
from tacit.runtimes import InProcess

from .two import NAMES, made, play

CONV = Bilinear("conv2d", ((2, 1), (1, 0), (1, 1), 1))
GROUPED = Bilinear("conv2d", ((1, 1), (0, 1), (1, 2), 2))
RNG = np.random.default_rng(0)


def words(*shape: int) -> np.ndarray:
    return RNG.integers(0, 2**64, shape, dtype=np.uint64)


@pytest.fixture
def encrypted(monkeypatch):
    """Small products are encrypted, too, although transfers would send less."""
    monkeypatch.setattr(gilboa, "traffic", lambda op, xs, ys: 1 << 40)
    lattice.choose.cache_clear()
    yield
    lattice.choose.cache_clear()


def multiplied(packing, x, y):
    """What the encrypted product computes, in the clear."""
    left, sums = packing.encode(x), np.zeros((packing.units, packing.outputs, len(packing.places)), np.uint64)
    for output in range(packing.outputs):
        right = packing.encode_plain(y, output)
        for unit in range(packing.units):
            total = np.zeros(DEGREE, np.uint64)
            for a, b in zip(left[unit], right):
                for place in np.nonzero(b)[0]:
                    moved = np.roll(a, place)
                    moved[:place] = np.uint64(0) - moved[:place]
                    total += moved * b[place]
            sums[unit, output] = total[packing.places]
    return packing.decode(sums)


@settings(deadline=None, max_examples=25)
@given(*[st.integers(1, 40)] * 5)
def test_a_matrix_product_of_any_blocks_is_exact(rows, inner, columns, k, p):
    x, y = words(rows, inner), words(columns, inner)
    packing = MatrixPacking(rows, inner, columns, min(k, inner), min(p, columns))
    assert np.array_equal(multiplied(packing, x, y), x @ y.T)


@settings(deadline=None, max_examples=25)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(3, 150), st.integers(4, 70)),
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 2), st.just(1)),
    st.tuples(st.integers(1, 4), st.integers(1, 3)),
)
def test_a_convolution_of_any_blocks_and_bands_is_exact(images, filters, stride, dilation, blocks):
    out, kh, kw = filters
    assume((kh - 1) * dilation[0] < images[2])
    k, p = min(blocks[0], images[1]), min(blocks[1], out)
    assume(k * p * ((kh - 1) * dilation[0] + 1) * images[3] <= DEGREE)
    packing = ImagePacking(images, (out, images[1], kh, kw), stride, dilation, k, p)
    x, y = words(*images), words(out, images[1], kh, kw)
    due = ring.conv2d(*(torch.from_numpy(t.view(np.int64)) for t in (x, y)), stride, (0, 0), dilation)
    assert np.array_equal(multiplied(packing, x, y), due.numpy().view(np.uint64))


@pytest.mark.parametrize(
    ("op", "x", "y"),
    [
        (MATMUL, (2, 3), (3, 5)),
        (MATMUL, (70, 3), (3, 2)),
        (MATMUL, (1, 1), (1, 1)),
        (MATMUL, (2, 3, 4), (4, 5)),
        (MATMUL, (4,), (4, 2)),
        (MATMUL, (3, 4), (4,)),
        (MATMUL, (2, 1, 3, 2), (5, 2, 4)),
        (CONV, (2, 3, 6, 5), (4, 3, 3, 2)),
        (GROUPED, (1, 4, 3, 5), (6, 2, 2, 2)),
    ],
)
def test_every_shape_gives_a_triple(op, x, y, encrypted):
    first, second = made(Triple(op, x, y), Triple(op, x, y))
    for t in (first, second):
        assert torch.equal(t["c"], op(t["a"], t["b"]))
    assert not torch.equal(first["c"], second["c"])


def test_an_image_wider_than_a_polynomial_goes_by_patches(encrypted):
    op = Bilinear("conv2d", ((1, 1), (0, 0), (1, 1), 1))
    x, y = (1, 1, 3, DEGREE // 2), (1, 1, 3, 2)
    assert pack_images(x, y, (1, 1), (1, 1)) is None
    plan = lattice.choose(op, x, y)
    assert plan is not None
    assert not plan.by_images
    (t,) = made(Triple(op, x, y))
    assert torch.equal(t["c"], op(t["a"], t["b"]))


def test_many_polynomials_go_in_several_messages(encrypted, monkeypatch):
    monkeypatch.setattr(lattice, "TOGETHER", 2)
    monkeypatch.setattr(
        lattice, "pack_matrix", lambda r, k, c: MatrixPacking(r, k, c, min(4, k), min(DEGREE // 8, c))
    )
    lattice.choose.cache_clear()
    lines: list[OTChannel] = []
    requests = [Triple(MATMUL, (5, 9), (9, 3))]
    (t,) = made(*requests, lines=lines)
    assert torch.equal(t["c"], t["a"] @ t["b"])
    sent = sum(line.costs["products"].bytes for line in lines)
    assert sent == pair.estimate(requests)["products"]


def test_transfers_are_used_where_they_send_less():
    assert lattice.choose(MATMUL, (2, 3), (3, 2)) is None
    assert lattice.choose(Bilinear("mul"), (1 << 20,), (1 << 20,)) is None
    assert lattice.choose(MATMUL, (64, 256), (256, 100)) is not None
    assert lattice.traffic(MATMUL, (64, 256), (256, 100)) < gilboa.traffic(MATMUL, (64, 256), (256, 100)) / 90


def test_a_sum_of_more_terms_than_stay_exact_is_not_encrypted():
    assert pack_matrix(1, 1 << 17, 1) is None
    assert lattice.choose(MATMUL, (1, 1 << 17), (1 << 17, 1)) is None


def test_weights_need_one_key_and_the_shares_give_the_product(encrypted):
    """The owner of the weights has no share of the inputs' masks: one direction, one key."""
    rng = torch.Generator().manual_seed(5)
    w, x = (torch.randint(-(2**63), 2**63 - 1, s, generator=rng) for s in ((4, 2), (3, 4)))
    ledger, lines = Ledger(), []

    async def step(ctx, x):
        kept = await ctx.mask_private("w", (4, 2), w if ctx.rank == 0 else None, 0)
        return await product_masked(ctx, x, kept, MATMUL)

    assert torch.equal(sum(play(step, x, ledger=ledger, lines=lines)), x @ w)
    assert [line.party for line in ledger.seen if line.kind == "FactorKey"] in (["a"], ["b"])
    assert {line.costs["products"].rounds for line in lines} == {2}


def test_each_sees_uniform_words_whatever_the_factors_are(encrypted, monkeypatch):
    """All masks are 0 but those of the sums. χ² of 255 degrees on the bytes of the share that the encryptor
    decrypts: a false alarm in 1e-9.
    """
    from tacit.mpc.tape import Tape

    plain = Tape.draw

    def zeros(self, shape, dtype=torch.int64):
        drawn = plain(self, shape, dtype)
        return torch.zeros_like(drawn) if dtype is torch.int64 else drawn

    monkeypatch.setattr(Tape, "draw", zeros)
    requests = [Triple(MATMUL, (40, 2), (2, 40))]
    for share in play(lambda ctx: ctx.stock.take(requests[0]), requests=requests):
        counts = np.bincount(share["c"].contiguous().numpy().view(np.uint8).ravel(), minlength=256)
        assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 415


def test_messages_say_nothing_of_each_other(encrypted):
    """No ciphertext, seed or key is sent twice."""
    tap = Tap()
    made(Triple(MATMUL, (3, 4), (4, 2)), Triple(MATMUL, (3, 4), (4, 2)), tap=tap)
    sent = [
        bytes(getattr(decode(frame), field))
        for name in NAMES
        for frame in tap.view(name)
        for kind, field in (
            ("FactorKey", "public"),
            ("EncryptedFactors", "seeds"),
            ("EncryptedFactors", "values"),
            ("EncryptedProducts", "values"),
        )
        if kind_of(frame) == kind
    ]
    assert len(sent) == 2 + 4 + 4 + 4
    assert len(set(sent)) == len(sent)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("FactorKey", lambda m: lattice.FactorKey(m.public[:-1]), "a public key has 475136 bytes"),
        (
            "EncryptedFactors",
            lambda m: lattice.EncryptedFactors(m.seeds, m.values[:-4]),
            r"received \d+ bytes of ciphertexts; expected",
        ),
        (
            "EncryptedFactors",
            lambda m: lattice.EncryptedFactors(m.seeds[:-1], m.values),
            "1 seeds have 64 bytes, received 63",
        ),
        (
            "EncryptedFactors",
            lambda m: lattice.EncryptedFactors(m.seeds, b"\xff" * len(m.values)),
            "a residue that is not below its prime",
        ),
        (
            "EncryptedProducts",
            lambda m: lattice.EncryptedProducts(bytes(m.values) + bytes(4)),
            r"received \d+ bytes of ciphertexts; expected",
        ),
    ],
)
def test_malformed_messages_are_refused(kind, change, message, encrypted, monkeypatch):
    plain = Party.send

    async def send(self, to, sent):
        await plain(self, to, change(sent) if type(sent).__name__ == kind else sent)

    monkeypatch.setattr(Party, "send", send)
    with pytest.raises(PartyFailed, match=message):
        made(Triple(MATMUL, (3, 4), (4, 2)))


def test_a_network_of_two_real_parties_is_computed_with_encrypted_products():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 5)
    )
    x = torch.randn(8, 1, 12, 12)
    out = tacit.infer(model, x, helper=None, batch=4)
    assert float((out.value - inference.ideal(model, x)).abs().max()) < 2e-3
    kinds = {line.kind for line in out.ledger.seen}
    assert {"FactorKey", "EncryptedFactors", "EncryptedProducts"} <= kinds
    assert out.offline["public keys"][1] > 0


def test_stocks_of_two_phases_with_encrypted_products_alone_do_not_match(encrypted):
    sessions = []
    for _ in range(2):
        lines: list[OTChannel] = []
        play(lambda ctx: ctx.stock.take(REQUEST), requests=[REQUEST], lines=lines)
        assert lines[0].session == lines[1].session
        sessions.append(lines[0].session)
    assert sessions[0] != sessions[1]


REQUEST = Triple(MATMUL, (2, 3), (3, 2))


def test_products_of_shares_are_exact_in_the_ring(encrypted):
    rng = torch.Generator().manual_seed(0)
    x, y = (torch.randint(-(2**63), 2**63 - 1, s, generator=rng) for s in ((3, 4), (4, 5)))
    assert torch.equal(sum(play(functools.partial(product, op=MATMUL), x, y)), x @ y)


def test_two_parties_with_different_shapes_are_refused(encrypted):
    def program(rank):
        async def party(me):
            await pair.generate(OTChannel(me, rank, NAMES), [Triple(MATMUL, (2, 3), (3, 2 + 4000 * rank))])

        return party

    with pytest.raises(PartyFailed, match="Both parties must run the same program"):
        InProcess().run_sync({"a": program(0), "b": program(1)})


def agree(products, announced=None):
    """Two parties prepare one product; the second may announce something else than it does."""

    def program(rank):
        async def party(me):
            channel = OTChannel(me, rank, NAMES, products[rank])
            if rank and announced is not None:
                await me.send("a", MatrixProducts(announced))
                channel._is_agreed = True
            await pair.generate(channel, [Triple(MATMUL, (20, 20), (20, 20))])

        return party

    InProcess().run_sync({"a": program(0), "b": program(1)})


def test_without_encryption_products_are_transferred_and_right():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 3)), torch.randn(20, 40)
    runs = [tacit.infer(model, x, helper=None, products=products) for products in ("he", "ot")]
    for out in runs:
        assert float((out.value - inference.ideal(model, x)).abs().max()) < 2e-3
    encrypted, transferred = ({line.kind for line in out.ledger.seen} for out in runs)
    assert {"FactorKey", "EncryptedFactors", "EncryptedProducts"} <= encrypted - transferred
    assert runs[1].offline_bytes > 3 * runs[0].offline_bytes
    for out in runs:
        kinds = {
            "MaskedWeights",
            "MaskedFactors",
            "MaskedProducts",
            "MaskedValues",
            "MaskedBits",
            "MaskedSigns",
        }
        online = {"Architecture", "Batches", "ResultShare"} | kinds
        assert out.bytes - out.offline_bytes == sum(n.bytes for n in out.ledger.seen if n.kind in online)


@pytest.mark.parametrize("products", ["he", "ot"])
def test_the_estimate_of_both_ways_is_what_is_sent(products):
    requests, lines = [Triple(MATMUL, (2, 20, 20), (2, 20, 20))], []

    def program(rank):
        async def party(me):
            lines.append(OTChannel(me, rank, NAMES, products))
            await pair.generate(lines[-1], requests)

        return party

    InProcess().run_sync({"a": program(0), "b": program(1)})
    sent = sum(line.costs["products"].bytes for line in lines)
    assert sent == pair.estimate(requests, products)["products"]


@pytest.mark.parametrize("products", [("he", "ot"), ("ot", "he")])
def test_parties_that_chose_differently_compute_nothing(products):
    with pytest.raises(PartyFailed, match=r"with products='(he|ot)'.* Both must give the same.* Nothing was"):
        agree(products)


@pytest.mark.parametrize("announced", ["ot", "", "HE", "he " * 1000])
def test_a_party_is_not_talked_into_transfers(announced):
    """Whatever the other announces: who has "he" computes with "he", or nothing, and quotes little of it."""
    with pytest.raises(PartyFailed, match=r"party 'a' failed: .* Nothing was computed") as caught:
        agree(("he", "he"), announced)
    assert len(str(caught.value)) < 500


def test_a_party_that_does_something_else_than_it_announced_is_refused():
    with pytest.raises(PartyFailed, match=r"expected|waits"):
        agree(("he", "ot"), "he")


def test_without_seal_its_extra_is_named_and_transfers_still_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "tenseal.sealapi", None)
    monkeypatch.setitem(sys.modules, "tenseal", None)
    model, x = nn.Linear(4, 2), torch.ones(1, 4)
    with pytest.raises(MissingExtra, match=r"products='ot'.* 'tenseal', .* pip install 'tacit\[he\]'"):
        tacit.infer(model, x, helper=None)
    with pytest.raises(PartyFailed, match=r"products='ot'.* pip install 'tacit\[he\]'"):
        agree(("he", "he"))
    out = tacit.infer(model, x, helper=None, products="ot")
    assert float((out.value - inference.ideal(model, x)).abs().max()) < 2e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"helper": None, "products": "HE"}, "products is 'HE'; it must be 'he' or 'ot'"),
        ({"products": "ot"}, "products is 'ot'; it must be left out with a helper"),
    ],
)
def test_a_wrong_choice_of_products_is_refused(options, message):
    with pytest.raises(BadParameter, match=message):
        tacit.infer(nn.Linear(4, 2), torch.ones(1, 4), **options)
    with pytest.raises(BadParameter, match="products is 'x'; it must be 'he' or 'ot'"):
        OTChannel(None, 0, NAMES, "x")
