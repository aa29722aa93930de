"""Random tapes of both ciphers."""

from __future__ import annotations

import pytest
import torch

from tacit.crypto.chacha import ChaCha20
from tacit.errors import ProtocolError
from tacit.mpc.compare import Comparison
from tacit.mpc.dealer import Stock, TapeKey, dealer, fetch, open_stock, send_keys
from tacit.mpc.tape import AES, CHACHA, ChaChaTape, Tape, open_tape
from tacit.mpc.truncate import Truncation
from tacit.runtimes.inprocess import InProcess

from .. import card

KEY = bytes(range(32))
PARTS = {"r": ((3, 5), torch.int64), "bits": ((7,), torch.uint8)}


@pytest.mark.parametrize("cipher", [AES, CHACHA])
def test_dealer_and_party_draw_the_same_words_and_no_word_twice(cipher):
    mine, theirs = (open_tape(KEY, cipher, "cpu") for _ in range(2))
    seen = []
    for _ in range(3):
        parts = mine.draw_parts(PARTS)
        assert {name: (tuple(x.shape), x.dtype) for name, x in parts.items()} == PARTS
        # one tape draws all parts at once, the other one after the other
        for (name, (shape, dtype)), x in zip(PARTS.items(), parts.values()):
            assert torch.equal(theirs.draw(shape, dtype), x), name
        seen += parts["r"].flatten().tolist()
    assert len(set(seen)) == len(seen)


def test_a_part_of_chacha_begins_at_a_block():
    tape, stream = ChaChaTape(KEY), ChaCha20(KEY)
    parts = tape.draw_parts(PARTS)
    assert torch.equal(parts["r"].flatten().view(torch.uint8), stream.blocks(0, 2)[:120])
    assert torch.equal(parts["bits"], stream.blocks(2, 1)[:7])
    assert torch.equal(tape.draw((2,)).view(torch.uint8), stream.blocks(3, 1)[:16])


def test_ciphers_have_different_streams():
    assert not torch.equal(Tape(KEY).draw((4,)), ChaChaTape(KEY).draw((4,)))


def test_a_party_refuses_an_unknown_cipher_of_the_dealer():
    async def dealer(me):
        await me.send("a", TapeKey(KEY, bytes(16), "rc4"))

    async def party(me):
        with pytest.raises(ProtocolError, match="cipher 'rc4'; known are 'aes-256-ctr' and 'chacha20'"):
            await Stock.connect(me, 0, 1, "dealer")

    InProcess().run_sync({"dealer": dealer, "a": party})


def test_the_dealer_names_the_cipher():
    async def dealer(me):
        tapes = await send_keys(me, ["a"], CHACHA)
        assert isinstance(tapes[0], ChaChaTape)
        return tapes[0].draw((5,))

    async def party(me):
        stock = await Stock.connect(me, 0, 1, "dealer")
        return stock.tape.draw((5,))

    drawn = InProcess().run_sync({"dealer": dealer, "a": party})
    assert torch.equal(drawn["dealer"], drawn["a"])


def test_a_stock_of_a_dealer_on_a_gpu_is_used_on_a_cpu(tmp_path):
    requests = [Comparison((5,)), Truncation((3,), 16)]

    def fetches(rank):
        return lambda me: fetch(me, rank, 2, "dealer", requests, tmp_path / str(rank))

    async def uses(me):
        stocks = [open_stock(tmp_path / str(rank), rank, 2) for rank in range(2)]
        return [[await stock.take(request) for request in requests] for stock in stocks]

    with card.pretended():
        InProcess().run_sync(
            {"dealer": lambda me: dealer(me, ("0", "1"), requests, "cuda"), "0": fetches(0), "1": fetches(1)}
        )
    (one, carry), (other, other_carry) = InProcess().run_sync({"a": uses})["a"]
    r, beta, product = (one[name] + other[name] for name in ("r", "β", "βr"))
    assert set(beta.tolist()) <= {0, 1}
    assert torch.equal(product, beta * r)
    bits = (carry["u"] ^ other_carry["u"]) & (carry["w"] ^ other_carry["w"])
    assert (carry["uw"] + other_carry["uw"]).tolist() == [int(bits) >> place & 1 for place in (7, 6, 5)]
