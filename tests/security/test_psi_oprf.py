"""What parties that deviate from the vector-OLE protocol of large sets can and cannot do (`protocols/psi_oprf.py`)."""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tacit.crypto import okvs, ot, vole
from tacit.errors import ProtocolError
from tacit.parties.conformance import Tap
from tacit.protocols import psi, psi_oprf
from tacit.runtimes.inprocess import InProcess
from tests.protocols.test_psi import digests, meddled

SESSION = b"s" * 32


def oprf(declared: int, keys: np.ndarray, sender: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(outputs of a receiver that declares so many ids and puts `keys` into its store; the sender's)."""
    layout = psi_oprf.OprfLayout(declared, len(sender), SESSION)
    bits = np.unpackbits(np.frombuffer(os.urandom(16), np.uint8), bitorder="little")
    a, offer = ot.offer(os.urandom)
    points, seeds = ot.choose(offer, bits, SESSION, os.urandom)
    wanted = vole.VoleReceiver(*ot.pairs(a, offer, points, vole.BASE, SESSION), SESSION)
    answering = vole.VoleSender(seeds, bits, SESSION)
    columns, pending = wanted.request(layout.entries, os.urandom)
    sums, b = answering.answer(layout.entries, columns, os.urandom)
    mask, values = pending.finish(sums)
    store = okvs.encode(keys, layout.targets(keys), layout.key("store"), os.urandom, layout.room)
    answering.add_products(b, store.view(np.uint64)[:, 0] ^ mask)
    return psi_oprf._own_outputs(layout, keys, values), psi_oprf._evaluate(layout, answering, b, sender)


def equal(mine: np.ndarray, theirs: np.ndarray) -> int:
    return len(set(map(bytes, mine)) & set(map(bytes, theirs)))


def test_a_receiver_that_declares_too_few_ids_can_ask_about_no_more_than_the_entries_of_its_store() -> None:
    """The bound that the module states: some more than declared, and never more than 1.3·n + 104."""
    ids = digests(range(400))
    assert okvs.entries(100) == 235 <= 1.3 * 100 + 106
    assert equal(*oprf(100, ids[:120], ids)) == 120  # 20 more than it declared: possible, and stated
    with pytest.raises(ProtocolError, match="could not be solved"):
        oprf(100, ids[:236], ids)


def test_a_receiver_learns_nothing_of_an_id_that_is_not_in_its_store() -> None:
    """Its own value there, c(x), is not the sender's output: δ·(P(x) ⊕ g(x)) is missing."""
    ids = digests(range(300))
    layout = psi_oprf.OprfLayout(100, 300, SESSION)
    mine, theirs = oprf(100, ids[:100], ids)
    assert equal(mine, theirs[:100]) == 100
    assert equal(mine, theirs[100:]) == 0
    assert layout.output == 8
    # two runs over the same sets have no output in common, so answers cannot be replayed or compared
    assert equal(oprf(100, ids[:100], ids)[1], theirs) == 0


def run_with(who: str, kind: type, change: Any, reveal: str = "receiver") -> tuple[dict[str, Any], Tap]:
    common = {"method": "oprf", "reveal": reveal}
    programs: dict[str, Any] = {
        "receiver": functools.partial(psi.receiver, digests=digests(range(30)), **common),
        "sender": functools.partial(psi.sender, digests=digests(range(20, 60)), **common),
    }
    programs[who] = meddled(programs[who], kind, lambda held, m: [change(m)])
    tap = Tap()
    return InProcess().run_sync(tap.on(programs)), tap


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (psi_oprf.Trees, lambda m: replace(m, sums=os.urandom(len(m.sums)))),
        (psi_oprf.Trees, lambda m: replace(m, sums=bytes(len(m.sums)))),
        (psi_oprf.Outputs, lambda m: replace(m, outputs=os.urandom(len(m.outputs)))),
    ],
)
def test_a_sender_that_answers_wrongly_can_hide_matches_and_not_invent_them(kind: type, change: Any) -> None:
    result, tap = run_with("sender", kind, change)
    assert set(result["receiver"]["rows"].tolist()) < set(range(20, 30))
    honest, honest_tap = run_with("sender", kind, lambda m: m)
    assert honest["receiver"]["size"] == 10
    # and with the result for the receiver alone, the receiver's messages are as many and as long: it sees nothing
    assert [len(f) for f in tap.view("sender")] == [len(f) for f in honest_tap.view("sender")]


@pytest.mark.parametrize("kind", [psi_oprf.Noise, psi_oprf.Store])
def test_a_receiver_that_sends_noise_learns_fewer_matches(kind: type) -> None:
    field = "columns" if kind is psi_oprf.Noise else "entries"
    result, _ = run_with(
        "receiver", kind, lambda m: replace(m, **{field: os.urandom(len(getattr(m, field)))})
    )
    assert result["receiver"]["size"] < 10
