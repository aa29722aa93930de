"""Encrypted sums: exact for any dropouts; the server never has the key."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit import testing
from tacit.crypto import ckks
from tacit.errors import BadParameter, PartyFailed, ProtocolError
from tacit.parameters import check
from tacit.parties.codec import decode, encode
from tacit.parties.conformance import Tap
from tacit.parties.ledger import Ledger
from tacit.protocols import encrypted
from tacit.protocols.encrypted import (
    CipherSum,
    CipherVector,
    DecryptedSum,
    EncryptedSumTerms,
    RoundSecret,
    SumMade,
    SumOutcome,
    ideal,
)

from .masked import aggregate, inputs, names_of, programs


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_sum_is_exact_whichever_party_drops_at_any_step(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 5), label="parties")
    terms = EncryptedSumTerms(
        "fed", n, data.draw(st.integers(1, 3000)), data.draw(st.sampled_from([1, 100, 2**13]))
    )
    leave = data.draw(st.dictionaries(st.sampled_from(names_of(n)), st.integers(0, 3)), label="leaves after")
    values = inputs(terms, data.draw(st.integers(0, 1000)))
    try:
        outcome, clients = aggregate(terms, values, leave, protocol=encrypted)
    except PartyFailed as failed:
        if not (
            isinstance(failed.error, ProtocolError)
            and failed.party == "server"
            and len(leave) > n - max(terms.enough, 1)
        ):
            raise
        return
    assert torch.equal(outcome.total, ideal(values, outcome.included))
    assert len(outcome.included) >= terms.enough
    assert set(outcome.dropped) <= set(leave)
    assert all(clients[name] for name in values if name not in leave)


def test_it_is_a_protocol() -> None:
    terms = EncryptedSumTerms("fed", 3, 9, 1000)
    testing.check_protocol(
        lambda seed: programs(terms, inputs(terms, seed), encrypted),
        lambda seed: {
            "server": SumOutcome(ideal(inputs(terms, seed)), tuple(names_of(3)), {}),
            **dict.fromkeys(names_of(3), True),
        },
        [0],
    )


def test_the_server_is_sent_ciphertexts_and_the_sum_and_no_key() -> None:
    """What it was sent does not open any vector: neither as a key nor sealed in a box is the key in its view
    in the clear.
    """
    terms, tap, ledger = EncryptedSumTerms("fed", 3, 100, 1000), Tap(), Ledger()
    aggregate(terms, inputs(terms), protocol=encrypted, tap=tap, ledger=ledger)
    assert {line.kind for line in ledger.seen if line.party == "server"} == {
        "AdvertisedKeys",
        "SealedShares",
        "CipherVector",
        "DecryptedSum",
    }
    boxes = [m for frame in tap.view("server") if isinstance(m := decode(frame), CipherVector)]
    sealed = [
        box
        for frame in tap.view("server")
        if (m := decode(frame)).kind == "SealedShares"
        for box in m.sealed.values()
    ]
    assert len(boxes) == 3
    assert len(sealed) == 2
    for box in sealed:
        with pytest.raises(ProtocolError, match="the round's key cannot be read"):
            ckks.decrypt(box, boxes[0].blocks, 100, terms.bits)


def test_whoever_opens_the_sum_notes_how_far_off_it_was_and_the_ciphertexts_bytes_are_counted() -> None:
    """In its own ledger, as a power of two: it is not sent to the server."""
    terms, ledger = EncryptedSumTerms("fed", 3, 5000, 2**29 - 1), Ledger()
    aggregate(terms, inputs(terms), protocol=encrypted, ledger=ledger)
    opened = [line for line in ledger.seen if line.kind == "DecryptedSum" and line.party == line.sender]
    assert len(opened) == encrypted.OPENERS
    for line in opened:
        bits = int(re.search(r"CKKS was off by less than 2\^(-\d+) of a unit", line.reveals).group(1))  # type: ignore[union-attr]
        assert -20 < bits < math.log2(ckks.MAX_ERROR)
    vectors = [line for line in ledger.seen if line.kind == "CipherVector"]
    assert all(abs(line.bytes - ckks.blocks(5000, terms.bits) * ckks.BLOCK_BYTES) < 500 for line in vectors)


def test_two_that_open_the_sum_must_agree() -> None:
    terms = EncryptedSumTerms("fed", 3, 4, 10)
    values = inputs(terms)
    run = programs(terms, values, encrypted)
    honest = run["c1"]

    async def liar(me: Any) -> Any:
        from dataclasses import replace

        class Wire:
            async def deliver(self, sender: str, to: str, scope: str, frame: bytes) -> None:
                message = decode(frame)
                frame = (
                    encode(DecryptedSum(message.total + 1)) if isinstance(message, DecryptedSum) else frame
                )
                await me.transport.deliver(sender, to, scope, frame)

        return await honest(replace(me, transport=Wire()))

    run["c1"] = liar
    from tacit.runtimes.inprocess import InProcess

    with pytest.raises(PartyFailed, match="'c0' and 'c1' decrypted different sums; one of them is wrong"):
        InProcess().run_sync(run)


def test_a_range_that_no_slot_holds_is_refused() -> None:
    with pytest.raises(
        BadParameter, match=r"Encrypt: the range of a sum is '±2147483648'; it must be below 2\^31"
    ):
        check(EncryptedSumTerms("fed", 2, 3, 2**30))


def test_numbers_outside_the_agreed_range_are_an_error() -> None:
    terms = EncryptedSumTerms("fed", 3, 2, 10)
    with pytest.raises(
        PartyFailed, match="party 'c1' has 2 numbers up to 11; the terms require 2 of at most 10"
    ):
        aggregate(terms, inputs(terms) | {"c1": torch.tensor([11, 0])}, protocol=encrypted)


@pytest.mark.parametrize(
    "message",
    [
        RoundSecret("a", b"c", b"g", b"s"),
        CipherVector([b"x", b""]),
        CipherSum([]),
        DecryptedSum(torch.zeros(2, dtype=torch.int32)),
        SumMade(),
    ],
    ids=lambda m: m.kind,
)
def test_every_message_survives_the_wire(message: Any) -> None:
    assert decode(encode(message)) == message
