"""Agrawal's protocol gives the published numbers, refuses to run on data, and is broken from its messages
alone.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

import tacit
from tacit import testing
from tacit.errors import BadParameter, PartyFailed
from tacit.parties.codec import decode
from tacit.parties.conformance import Tap
from tacit.parties.ledger import Ledger
from tacit.protocols import psi_agrawal
from tacit.protocols.psi_agrawal import Encrypted, P, encrypt, hash_id
from tacit.runtimes.inprocess import InProcess

from .index_calculus import Logarithms

ALICE = ["12345678A", "87654321B", "54321678C", "67891234D"]
BOB = ["67891234D", "22222222Y", "54321678C", "11111111X"]
E_A, E_B = 2671390701970302872, 325637035052474817
X_A = [6801962795022291115, 14914775733042932484, 6031741069150041195, 7775431530089967261]
Y_A = [4037654302475096183, 7215131381927850152, 7524770399191986516, 4530009952158919715]


def programs(**more: Any) -> dict[str, Any]:
    return {
        "receiver": functools.partial(
            psi_agrawal.receiver, values=ALICE, teaching=True, **({"e": E_A} if more.get("published") else {})
        ),
        "sender": functools.partial(
            psi_agrawal.sender, values=BOB, teaching=True, **({"e": E_B} if more.get("published") else {})
        ),
    }


def test_the_published_example_comes_out_number_for_number() -> None:
    assert P == 9223372036854771239
    assert [hash_id(v) for v in ALICE] == X_A
    assert encrypt(X_A, E_A) == Y_A
    tap = Tap()
    made = InProcess().run_sync(tap.on(programs(published=True)))
    assert set(made["receiver"]) == {"67891234D", "54321678C"}
    sent = [m for m in map(decode, tap.view("sender")) if isinstance(m, Encrypted)]
    assert sent[0].numbers == sorted(Y_A)


def test_it_is_a_protocol() -> None:
    testing.check_protocol(
        lambda _: programs(), lambda _: {"receiver": psi_agrawal.ideal(ALICE, BOB), "sender": None}, [0]
    )


def test_it_refuses_data_without_an_explicit_word() -> None:
    with pytest.raises(
        BadParameter,
        match=r"psi: method='agrawal' is for teaching: its group has 63 bits, .* Use method='auto' for real "
        r"data",
    ):
        tacit.psi(ALICE, BOB, method="agrawal")
    for word in (False, 1, "yes"):
        with pytest.raises(BadParameter, match="is for teaching"):
            tacit.psi(ALICE, BOB, method="agrawal", teaching=word)  # type: ignore[arg-type]
    with pytest.raises(PartyFailed, match="is for teaching"):
        InProcess().run_sync({**programs(), "sender": functools.partial(psi_agrawal.sender, values=BOB)})


def test_with_the_word_it_runs_and_its_ledger_says_that_it_hides_nothing() -> None:
    ledger = Ledger()
    InProcess().run_sync(programs(), ledger=ledger)
    assert ledger.stamps == [
        "NOT PRIVATE: Agrawal's protocol ran in a group of 63 bits, for teaching; its messages hide nothing "
        "from anyone who tries."
    ]
    assert sorted(tacit.psi(ALICE, BOB, method="agrawal", teaching=True).value) == ["54321678C", "67891234D"]
    with pytest.raises(BadParameter, match="reveal is 'both'; it must be 'receiver' with method='agrawal'"):
        tacit.psi(ALICE, BOB, method="agrawal", reveal="both", teaching=True)


def test_bob_finds_alices_key_and_with_it_the_ids_she_did_not_share() -> None:
    """He knows one shared id and its power: a discrete logarithm in a group of 63 bits, seconds of index
    calculus. Then every guess can be checked.
    """
    tap = Tap()
    InProcess().run_sync(tap.on(programs(published=True)))
    seen = next(m for m in map(decode, tap.view("sender")) if isinstance(m, Encrypted)).numbers
    logs = Logarithms(P, 7)
    q = (P - 1) // 2
    base = logs.of(hash_id("54321678C"))  # an id that both hold
    keys = set()
    for y in seen:
        e = logs.of(y) * pow(base, -1, q) % q
        keys |= {
            k
            for k in (e, e + q)
            if pow(hash_id("54321678C"), k, P) == y and {pow(hash_id("67891234D"), k, P)} <= set(seen)
        }
    assert (
        E_A in keys
        # the exponent is even, so the one that is q larger or smaller does the same to these hashes up to a
        # sign
    )
    guesses = [f"{n:08d}{letter}" for n in range(12_345_600, 12_345_700) for letter in "ABCD"] + [
        f"{n:08d}B" for n in range(87_654_300, 87_654_400)
    ]
    assert [g for g in guesses if pow(hash_id(g), E_A, P) in seen] == ["12345678A", "87654321B"]


def test_without_any_key_a_bit_of_each_hash_is_in_its_power() -> None:
    """An odd exponent keeps whether a number is a square: the bit that hashing into a proper group takes
    away.
    """
    for e in (E_B, psi_agrawal.exponent(_Drawing())):  # type: ignore[arg-type]
        assert e % 2
        for v in BOB:
            x = hash_id(v)
            assert pow(x, (P - 1) // 2, P) == pow(pow(x, e, P), (P - 1) // 2, P)


class _Drawing:
    class secret:
        @staticmethod
        def bytes(n: int) -> bytes:
            return b"\x42" * n
