"""Inference between two and nobody else."""

from __future__ import annotations

import asyncio
import functools
import itertools
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tacit
from tacit.crypto import group
from tacit.errors import BadParameter, BadRun, MissingExtra, PartyFailed, ProtocolError
from tacit.mpc import Residual, inference, pair
from tacit.mpc.beaver import MATMUL, MUL, Bilinear, Square, Triple
from tacit.mpc.compare import Comparison
from tacit.mpc.context import RingContext
from tacit.mpc.dealer import Mask, ReadyStock, dealer, fetch, open_stock, plan
from tacit.mpc.extension import Correlations, Extended, OTChannel, OTReceiver
from tacit.mpc.functions import relu
from tacit.mpc.model import compile, to_text
from tacit.mpc.share import split
from tacit.mpc.truncate import Truncation
from tacit.parties import Ledger
from tacit.parties.party import Party
from tacit.parties.secret import Secret
from tacit.runtimes import InProcess

from . import two
from .by_bits import Bits
from .test_model import images, made

LINEAR, ROWS = made(nn.Flatten(), nn.Linear(8, 3), nn.BatchNorm1d(3)), images(3, 2, 2)
MLP = made(nn.Flatten(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
CNN = made(
    nn.Conv2d(1, 3, 3, padding=1),
    nn.BatchNorm2d(3),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(3, 2, 2, stride=2),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(8, 4),
)
NAMES = ("a", "b")


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (LINEAR, (3, 2, 2, 2)),
        (MLP, (3, 2, 2, 2)),
        (CNN, (2, 1, 8, 8)),
        (
            made(
                nn.Flatten(),
                nn.Linear(8, 8),
                Residual(nn.Sequential(nn.Linear(8, 8), nn.ReLU())),
                nn.Linear(8, 2),
                nn.Sigmoid(),
            ),
            (2, 2, 2, 2),
        ),
        (
            made(
                nn.AvgPool2d(2),
                nn.Flatten(),
                nn.Linear(2, 4),
                nn.Tanh(),
                nn.LayerNorm(4),
                nn.Linear(4, 3),
                nn.GELU(),
                nn.Softmax(-1),
            ),
            (2, 2, 2, 2),
        ),
    ],
)
def test_every_network_needs_no_helper(model, shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        plain = model(x)
    out = tacit.infer(model, x, helper=None, batch=2)
    assert (out.value - plain).abs().max() < 2e-3
    assert {line.party for line in out.ledger.seen} == {"owner", "client"}
    assert out.ledger.stamps == [pair.ASSUMES]
    assert torch.equal(tacit.infer(model, x, helper=None, reveal="argmax").value, plain.argmax(-1))


@settings(deadline=None, max_examples=4)
@given(
    st.lists(st.integers(1, 5), min_size=2, max_size=4),
    st.integers(1, 4),
    st.integers(0, 99),
    st.sampled_from([12, 16, 18]),
)
def test_any_perceptron_on_any_input(widths, rows, seed, fraction):
    torch.manual_seed(seed)
    layers = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    model, x = made(*layers), 4 * torch.randn(rows, widths[0])
    with torch.no_grad():
        assert (
            tacit.infer(model, x, helper=None, fraction=fraction).value - model(x)
        ).abs().max() < 0.02 * 2 ** (12 - fraction) + 1e-4


def test_the_offline_phase_is_counted_separately():
    """Offline the two make masks, online they use them; a helper's network takes the same rounds online, and
    the same bytes.
    """
    alone, helped = (tacit.infer(MLP, ROWS, helper=helper) for helper in (None, "helper"))
    assert list(alone.offline) == ["agreement", "base transfers", "products", "truncations", "comparisons"]
    assert (alone.rounds, alone.costs) == (helped.rounds, helped.costs)
    assert alone.offline_rounds == sum(r for r, _ in alone.offline.values()) > 0 == helped.offline_rounds
    assert alone.offline_bytes == sum(
        line.bytes
        for line in alone.ledger.seen
        if line.kind in ("MatrixProducts", "TransferOffer", "TransferChoices", "Extended", "Correlations")
    )
    assert 0 < helped.offline_bytes < alone.offline_bytes < alone.bytes
    assert alone.table().operation.tolist()[:5] == [
        "offline: agreement",
        "offline: base transfers",
        "offline: products",
        "offline: truncations",
        "offline: comparisons",
    ]
    kinds = [line.kind for line in alone.ledger.seen if line.kind in ("TapeKey", "Corrections")]
    assert not kinds, "nobody dealt"


SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)
CONV = st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 2)).map(
    lambda t: Triple(
        Bilinear("conv2d", ((1, 1), (1, 0), (1, 1), t[0])), (t[1], 2 * t[0], 3, 4), (t[2] * t[0], 2, 2, 3)
    )
)
REQUESTS = st.one_of(
    SHAPES.map(Comparison),
    st.tuples(SHAPES, st.sampled_from([12, 16, 28])).map(lambda t: Truncation(*t)),
    SHAPES.map(Square),
    CONV,
    SHAPES.map(lambda s: Triple(MUL, s, s[-1:])),
    st.tuples(*[st.integers(1, 4)] * 3).map(lambda t: Triple(MATMUL, t[:2], t[1:])),
    st.tuples(*[st.integers(1, 3)] * 4).map(lambda t: Triple(MATMUL, t[:3], (t[0], t[2], t[3]))),
)


@settings(deadline=None, max_examples=10)
@given(st.lists(REQUESTS, min_size=1, max_size=4))
def test_what_it_will_cost_is_known_before(requests):
    """To the byte, but for the base transfers."""
    lines: list[OTChannel] = []
    two.made(*requests, Mask("w", (3, 2), holder=1), Triple(MATMUL, (4, 3), (3, 2), "w"), lines=lines)
    sent = {
        name: sum(line.costs[name].bytes for line in lines if name in line.costs)
        for name in ("products", "truncations", "comparisons")
    }
    assert (
        pair.estimate([*requests, Mask("w", (3, 2), holder=1), Triple(MATMUL, (4, 3), (3, 2), "w")]) == sent
    )


def test_a_network_with_argmax_between_two_real_processes():
    out = tacit.infer(
        MLP, ROWS, helper=None, reveal="argmax", runtime=tacit.Processes(), owner="hospital", client="patient"
    )
    with torch.no_grad():
        assert torch.equal(out.value, MLP(ROWS).argmax(-1))
    assert out.offline_bytes > 10_000


@pytest.mark.parametrize("part", [1, 300])
def test_a_long_plan_is_generated_in_parts_and_no_more_is_in_memory(part, monkeypatch):
    """Four batches, in parts of one request or of 300 words: the weights' masks are referred to by all later
    parts, and what waits in memory is one part and the request that ends it.
    """
    most, waiting = [], []
    plain = pair.StreamedStock.generate_more

    async def watched(self):
        waiting.append(len(self.pieces))
        await plain(self)
        words = [sum(v.numel() * v.itemsize for v in piece.values()) // 8 for piece in self.pieces]
        most.append(sum(words[:-1]))

    monkeypatch.setattr(pair, "PART", part)
    monkeypatch.setattr(pair.StreamedStock, "generate_more", watched)
    x = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    out = tacit.infer(CNN, x, helper=None, batch=2)
    with torch.no_grad():
        assert (out.value - CNN(x)).abs().max() < 2e-3
    assert len(most) > 8
    assert set(waiting) == {0}, "a part is generated when the one before is used up"
    assert max(most) < part


def test_parts_of_a_plan_use_no_transfer_twice(monkeypatch):
    """Every index under which a pad is hashed is used once, each way, over all parts."""
    used: dict[int, list[int]] = {}
    plain = OTReceiver.choose

    def noting(self, bits, length):
        used.setdefault(id(self), []).extend(range(self.count, self.count + 8 * len(bits)))
        return plain(self, bits, length)

    monkeypatch.setattr(OTReceiver, "choose", noting)
    monkeypatch.setattr(pair, "PART", 1)
    tacit.infer(MLP, torch.cat([ROWS, ROWS]), helper=None, batch=3)
    assert len(used) == 2
    for indices in used.values():
        assert len(indices) == len(set(indices)) > 1000


def test_a_program_that_takes_more_than_the_streamed_plan_is_refused():
    async def party(me, rank):
        stock = await pair.stream(OTChannel(me, rank, NAMES), [Triple(MUL, (2,), (2,))])
        await stock.take(Triple(MUL, (2,), (2,)))
        await stock.take(Triple(MUL, (2,), (2,)))

    with pytest.raises(PartyFailed, match="the stock is used up: the program needs more than was planned"):
        InProcess().run_sync({n: functools.partial(party, rank=i) for i, n in enumerate(NAMES)})


def test_debugging_works_without_a_helper():
    out = tacit.infer(MLP, ROWS, helper=None, debug=True)
    assert out.max_error_vs_plain < 1e-3
    assert any("DEBUG" in stamp for stamp in out.ledger.stamps)


def test_the_two_programs_hold_to_the_protocol_suite():
    layers, weights = compile(MLP)

    def programs(_):
        return {
            "owner": functools.partial(inference.owner, layers=to_text(layers), weights=weights, helper=None),
            "client": functools.partial(inference.client, batches=[ROWS], helper=None),
        }

    def equal(a, b):
        return (
            a is b is None
            or ("value" not in a and "value" not in b)
            or bool((a["value"] - b["value"]).abs().max() < 1e-3)
        )

    tacit.testing.check_protocol(
        programs, lambda _: {"client": {"value": inference.ideal(MLP, ROWS)}}, [0], equal=equal
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"private": ("input",)}, "there is nothing to share: the client has the weights"),
        ({"adversary": "active"}, "helper is None; it must be a name with adversary='active'"),
        ({"owner": "client"}, "three different names, or two and helper=None"),
    ],
)
def test_what_needs_a_helper_is_refused_with_the_reason(options, words):
    with pytest.raises(BadParameter, match=words):
        tacit.infer(made(nn.Linear(8, 3)), torch.ones(1, 8), helper=None, **options)


def test_without_the_library_of_transfers_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rbcl", None)
    group._sodium.cache_clear()
    try:
        with pytest.raises(MissingExtra, match=r"inference without a helper .*tacit\[mpc\]"):
            tacit.infer(LINEAR, ROWS, helper=None)
    finally:
        group._sodium.cache_clear()


def test_an_input_of_another_shape_is_refused_before_a_mask_is_made():
    with pytest.raises(PartyFailed, match="layer 1 takes 8 inputs and gets a shape of"):
        tacit.infer(LINEAR, torch.ones(2, 5), helper=None)


def test_what_two_cannot_make_is_refused_before_anything_is_sent():
    ledger = Ledger()

    def program(rank):
        async def party(me):
            await pair.generate(OTChannel(me, rank, NAMES), [Comparison((2,)), Bits((2,))])

        return party

    with pytest.raises(PartyFailed, match="Bits cannot be generated by two parties alone"):
        InProcess().run_sync({"a": program(0), "b": program(1)}, ledger=ledger)
    assert not ledger.seen


# the stock in a file ----------------------------------------------------------------------------------------


def prepared(folder, requests):
    def program(rank):
        async def party(me):
            return str(await pair.prepare(me, rank, NAMES, requests, folder / f"{rank}.safetensors"))

        return party

    InProcess().run_sync({"a": program(0), "b": program(1)})


def test_masks_generated_in_advance_are_stored_in_a_file_and_used_once(tmp_path):
    x = torch.tensor([5 << 16, -(3 << 16), 0])
    requests = plan(lambda ctx: relu(ctx, torch.empty(x.shape, dtype=torch.int64, device="meta")))
    prepared(tmp_path, requests)
    assert all((tmp_path / f"{rank}.safetensors").stat().st_mode & 0o077 == 0 for rank in (0, 1))
    shares = split(x, 2, Secret())

    def program(rank):
        async def party(me):
            return await relu(
                RingContext(me, rank, NAMES, open_stock(tmp_path / f"{rank}.safetensors", rank, 2)),
                shares[rank],
            )

        return party

    out = InProcess().run_sync({"a": program(0), "b": program(1)})
    assert torch.equal(out["a"] + out["b"], x.clamp(min=0))
    with pytest.raises(BadRun, match="is used up; a mask may hide one value only"):
        open_stock(tmp_path / "0.safetensors", 0, 2)


def test_a_network_on_masks_generated_in_advance(tmp_path):
    layers, weights = compile(MLP)
    told = inference.Architecture(to_text(layers), True, "logits", 16)
    files = [tmp_path / name for name in ("owner", "client")]

    def night(rank):
        async def party(me):
            await pair.prepare(
                me, rank, ("owner", "client"), inference.plan_requests(told, [list(ROWS.shape)]), files[rank]
            )

        return party

    InProcess().run_sync({"owner": night(0), "client": night(1)})
    ledger = Ledger()
    day = {
        "owner": functools.partial(
            inference.owner, layers=to_text(layers), weights=weights, helper=None, stock=files[0]
        ),
        "client": functools.partial(inference.client, batches=[ROWS], helper=None, stock=files[1]),
    }
    out = InProcess().run_sync(day, ledger=ledger)
    assert (out["client"]["value"] - inference.ideal(MLP, ROWS)).abs().max() < 1e-3
    assert not {"Extended", "Correlations", "TransferOffer", "Corrections"} & {
        line.kind for line in ledger.seen
    }
    assert ledger.stamps == [pair.ASSUMES]
    with pytest.raises(PartyFailed, match="is used up; a mask may hide one value only"):
        InProcess().run_sync(day)


def dealt(folder, requests):
    """The same, from a helper."""

    def program(rank):
        async def party(me):
            await fetch(me, rank, 2, "c", requests, folder / f"{rank}.safetensors")

        return party

    async def deal(me):
        await dealer(me, NAMES, requests)

    InProcess().run_sync({"a": program(0), "b": program(1), "c": deal})


@pytest.mark.parametrize("night", [prepared, dealt])
def test_stocks_of_two_preparations_do_not_match_whichever_party_made_the_masks(tmp_path, night):
    layers, weights = compile(LINEAR)
    told = inference.Architecture(to_text(layers), True, "logits", 16)
    folders = [tmp_path / name for name in "123"]
    for folder in folders[:2]:
        folder.mkdir()
        night(folder, list(inference.plan_requests(told, [list(ROWS.shape)])))

    def day(one, other):
        return InProcess().run_sync(
            {
                "owner": functools.partial(
                    inference.owner,
                    layers=to_text(layers),
                    weights=weights,
                    helper=None,
                    stock=one / "0.safetensors",
                ),
                "client": functools.partial(
                    inference.client, batches=[ROWS], helper=None, stock=other / "1.safetensors"
                ),
            }
        )["client"]["value"]

    with pytest.raises(PartyFailed, match="are from different offline phases"):
        day(folders[0], folders[1])
    folders[2].mkdir()
    night(folders[2], list(inference.plan_requests(told, [list(ROWS.shape)])))
    assert (day(folders[2], folders[2]) - inference.ideal(LINEAR, ROWS)).abs().max() < 1e-3


@pytest.mark.parametrize("night", [prepared, dealt])
@pytest.mark.parametrize(
    ("planned", "asked"),
    [
        (Truncation((2,), 16), Truncation((2,), 14)),
        (Triple(MATMUL, (2, 2), (2, 2)), Triple(MUL, (2, 2), (2, 2))),
        (
            Triple(Bilinear("conv2d", ((1, 1), (1, 1), (1, 1), 1)), (1, 1, 4, 4), (1, 1, 3, 3)),
            Triple(Bilinear("conv2d", ((1, 1), (2, 2), (2, 2), 1)), (1, 1, 4, 4), (1, 1, 3, 3)),
        ),
    ],
    ids=["fractional bits", "another product", "another convolution"],
)
def test_masks_of_the_same_shapes_for_another_purpose_are_refused(tmp_path, night, planned, asked):
    """Shapes are equal, so it would not be noticed otherwise, and the result would be wrong."""
    night(tmp_path, [planned])
    stock = open_stock(tmp_path / "0.safetensors", 0, 2)
    with pytest.raises(
        ProtocolError,
        match=r"piece 1 of the stock does not match .*the same architecture, shapes and fractional bits",
    ):
        asyncio.run(stock.take(asked))


def test_masks_may_be_used_for_fewer_batches_than_generated(tmp_path):
    layers, weights = compile(LINEAR)
    told = inference.Architecture(to_text(layers), True, "logits", 16)
    prepared(tmp_path, list(inference.plan_requests(told, [list(ROWS.shape)] * 2)))
    out = InProcess().run_sync(
        {
            "owner": functools.partial(
                inference.owner,
                layers=to_text(layers),
                weights=weights,
                helper=None,
                stock=tmp_path / "0.safetensors",
            ),
            "client": functools.partial(
                inference.client, batches=[ROWS], helper=None, stock=tmp_path / "1.safetensors"
            ),
        }
    )
    assert (out["client"]["value"] - inference.ideal(LINEAR, ROWS)).abs().max() < 1e-3


def test_masks_are_readable_by_their_owner_only_also_if_a_file_existed(tmp_path):
    (tmp_path / "0.safetensors").touch(mode=0o644)
    (tmp_path / "0.safetensors").chmod(0o644)
    prepared(tmp_path, [Truncation((2,), 16)])
    assert (tmp_path / "0.safetensors").stat().st_mode & 0o077 == 0


def test_a_file_with_a_helper_is_refused():
    """It would stay unused, and the parties would wait for the helper."""
    layers, weights = compile(LINEAR)
    with pytest.raises(
        PartyFailed,
        match=r"masks come either from the helper 'helper' or from the file .*Use helper=None with a file",
    ):
        InProcess().run_sync(
            {
                "owner": functools.partial(
                    inference.owner, layers=to_text(layers), weights=weights, stock=Path("masks")
                ),
                "client": functools.partial(inference.client, batches=[ROWS]),
            }
        )


def test_a_stock_for_another_place_or_program_is_refused(tmp_path):
    prepared(tmp_path, [Truncation((2,), 16), Truncation((2,), 16)])
    with pytest.raises(BadRun, match="belongs to party 0 of 2, not 1 of 2"):
        open_stock(tmp_path / "0.safetensors", 1, 2)

    async def other(me):
        stock = open_stock(tmp_path / "0.safetensors", 0, 2)
        assert isinstance(stock, ReadyStock)
        await stock.take(Truncation((2,), 16))
        await stock.take(Comparison((2,)))

    with pytest.raises(
        PartyFailed, match="piece 2 of the stock does not match Comparison: another program was planned"
    ):
        InProcess().run_sync({"a": other})

    async def more(me):
        stock = open_stock(tmp_path / "1.safetensors", 1, 2)
        for _ in range(3):
            await stock.take(Truncation((2,), 16))

    with pytest.raises(PartyFailed, match="the stock is used up: the program needs more than was planned"):
        InProcess().run_sync({"b": more})


# bad messages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        (
            Extended,
            lambda m: Extended(m.first, bytes(m.columns[:-1])),
            "bytes for transfers from number 0 on; expected",
        ),
        (Extended, lambda m: Extended(m.first + 8, m.columns), "bytes for transfers from number 8 on"),
        (Correlations, lambda m: Correlations(m.first, m.values + b"x"), r"received \d+ bytes; expected"),
        (Correlations, lambda m: Correlations(m.first + 1, m.values), r"received \d+ bytes; expected"),
    ],
    ids=["fewer bits", "other bits", "more", "others"],
)
@pytest.mark.parametrize(
    "request_",
    [Truncation((3,), 16), Comparison((3,)), Triple(MATMUL, (2, 2), (2, 2))],
    ids=["truncation", "comparison", "triple"],
)
def test_messages_of_a_wrong_length_or_place_are_refused(request_, kind, change, words, monkeypatch):
    plain = Party.send

    async def send(self, to, message):
        await plain(self, to, change(message) if isinstance(message, kind) else message)

    monkeypatch.setattr(Party, "send", send)

    def program(rank):
        async def party(me):
            await pair.generate(OTChannel(me, rank, NAMES), [request_])

        return party

    with pytest.raises(PartyFailed, match=words):
        InProcess().run_sync({"a": program(0), "b": program(1)})


def test_of_many_that_open_a_stock_at_once_one_gets_it(tmp_path):
    """Read and emptied without a lock, several of twenty would find it full."""
    requests = plan(lambda ctx: relu(ctx, torch.empty(3, dtype=torch.int64, device="meta")))
    prepared(tmp_path, requests)
    gate = threading.Barrier(20)

    def one(_):
        gate.wait()
        try:
            return str(open_stock(tmp_path / "0.safetensors", 0, 2).rank)
        except BadRun as refused:
            return str(refused)

    with ThreadPoolExecutor(20) as many:
        said = sorted(many.map(one, range(20)))
    assert said[0] == "0"
    assert all("is used up" in other for other in said[1:])
