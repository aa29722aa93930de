"""What parties that deviate from the vector-OLE protocol of large sets can and cannot do (`protocols/psi_oprf.py`)."""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tacit.crypto import okvs, ot, vole
from tacit.errors import PartyFailed, ProtocolError
from tacit.parties.conformance import Tap
from tacit.protocols import psi, psi_oprf
from tacit.runtimes.inprocess import InProcess
from tests.protocols.test_psi import digests, meddled

SESSION = b"s" * 32


def connected() -> tuple[vole.VoleReceiver, vole.VoleSender]:
    bits = np.unpackbits(np.frombuffer(os.urandom(16), np.uint8), bitorder="little")
    a, offer = ot.offer(os.urandom)
    points, seeds = ot.choose(offer, bits, SESSION, os.urandom)
    wanted = vole.VoleReceiver(*ot.pairs(a, offer, points, vole.BASE, SESSION), SESSION)
    return wanted, vole.VoleSender(seeds, bits, SESSION)


def oprf(declared: int, keys: np.ndarray, sender: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(outputs of a receiver that declares so many ids and puts `keys` into its store; the sender's)."""
    layout = psi_oprf.OprfLayout(declared, len(sender), SESSION)
    wanted, answering = connected()
    columns, pending = wanted.request(layout.entries, os.urandom)
    sums, b = answering.answer(layout.entries, columns, os.urandom)
    mask, values = pending.finish(sums)
    store = okvs.encode(keys, layout.targets(keys), layout.key("store"), os.urandom, layout.room)
    answering.add_products(b, store.view(np.uint64)[:, 0] ^ mask)
    return psi_oprf._own_outputs(layout, keys, values), psi_oprf.evaluate(layout, answering, b, sender)


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


@pytest.mark.parametrize("place", [127, 99, 84, 83])
def test_a_place_outside_of_a_tree_does_not_show_the_senders_key(place: int) -> None:
    """A receiver asks for all leaves of a tree but one that the tree does not have, with the value 1 there.
    If it knew all leaves, their sum in the correction would show δ, and so each of the sender's ids that it
    can guess. Leaf 83 is the tree's last one, where the receiver follows the protocol.
    """
    wanted, answering = connected()
    layout = vole.VoleLayout(5)
    assert (layout.block, layout.depth) == (84, 7)
    places, values = np.zeros(vole.POSITIONS, np.uint64), np.zeros(vole.POSITIONS, np.uint64)
    places[0], values[0] = place, 1
    message, pending = wanted.ask(layout, places, values, os.urandom)
    sums = np.frombuffer(answering.answer(5, message, os.urandom)[0], np.uint64).reshape(
        vole.POSITIONS, -1, 2
    )
    path = pending.rows[64 * vole.POSITIONS : layout.transfers]
    pads = ot.pads(path, vole._tweaks(len(path)), vole._transfer_key(pending.about)).view(np.uint64)
    keys, nodes, rest = vole._node_keys(pending.about), np.zeros((vole.POSITIONS, 1, 2), np.uint64), 0
    for level, (shift, width) in enumerate(layout.widths()):
        nodes, totals = vole._grow(nodes, keys, nodes.shape[1])
        on = place >> shift
        if on < nodes.shape[1]:  # the others follow from the sum of their side
            side = on & 1 ^ 1
            sent = sums[0, 2 * level + side] ^ pads[level]
            nodes[0, on ^ 1] ^= sent ^ totals[0, side]
            nodes[0, on] = 0
        ends = nodes[0, width:]
        rest = rest ^ np.bitwise_xor.reduce(ends, 0)
        nodes = np.ascontiguousarray(nodes[:, :width])
    leaves = np.bitwise_xor.reduce(nodes[0], 0)
    delta = sums[0, -1] ^ leaves ^ rest ^ vole._combine(pending.rows)[0]
    assert not np.array_equal(delta, answering.delta.view(np.uint64))
    assert not np.array_equal(delta ^ rest, answering.delta.view(np.uint64))


def request_with(change: np.ndarray, wanted: vole.VoleReceiver) -> bytes:
    """A request whose columns differ from its choices in these bits, with sums as if they did not."""
    layout, none = vole.VoleLayout(5), np.zeros(vole.POSITIONS, np.uint64)
    message, pending = wanted.ask(layout, none, none, bytes)
    columns = np.frombuffer(message[: layout.columns], np.uint8).reshape(vole.BASE, -1) ^ change
    draws = vole._check_draws(layout, pending.about, columns.tobytes())
    chosen = np.zeros(layout.rows, bool)
    chosen[vole.WORD * vole.POSITIONS : layout.transfers] = True  # paths to leaf 0 choose the right-hand sums
    sums = vole._add_rows(pending.rows, draws).tobytes() + vole._add_choices(chosen, draws).tobytes()
    assert change.any() or message == columns.tobytes() + sums
    return columns.tobytes() + sums


@pytest.mark.parametrize("row", [0, 28_527])
def test_choices_that_differ_between_columns_show_a_bit_of_the_key_only_by_a_guess(row: int) -> None:
    """In a value, in a path, or in the transfers of the check: the receiver guesses that a bit of δ is 0. Without
    the check, it could find 8 such bits after one answer, by one id that both hold, and all 128 by 16 of them.
    """
    seen = set()
    for _ in range(30):  # both bits, but with probability 2^-29
        wanted, answering = connected()
        change = np.zeros((vole.BASE, vole.VoleLayout(5).columns // vole.BASE), np.uint8)
        change[9, row >> 3] = 1 << (row & 7)
        bit = int(answering.delta[1]) >> 1 & 1
        seen.add(bit)
        request = request_with(change, wanted)
        if bit:
            with pytest.raises(ProtocolError, match="different choices in different columns"):
                answering.answer(5, request, os.urandom)
        else:
            answering.answer(5, request, os.urandom)
    assert seen == {0, 1}


def test_a_receiver_that_probes_the_whole_key_is_refused() -> None:
    """It passes only if all 128 bits of δ are 0."""
    wanted, answering = connected()
    change = np.zeros((vole.BASE, vole.VoleLayout(5).columns // vole.BASE), np.uint8)
    change[np.arange(vole.BASE), np.arange(vole.BASE) // 8] = 1 << np.arange(vole.BASE) % 8
    with pytest.raises(ProtocolError, match="Nothing was answered"):
        answering.answer(5, request_with(change, wanted), os.urandom)
    wanted, answering = connected()
    answering.answer(5, request_with(np.zeros_like(change), wanted), os.urandom)


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


def test_a_receiver_that_sends_a_random_store_learns_fewer_matches() -> None:
    result, _ = run_with("receiver", psi_oprf.Store, lambda m: replace(m, entries=os.urandom(len(m.entries))))
    assert result["receiver"]["size"] < 10


def test_a_receiver_that_sends_random_columns_gets_no_answer() -> None:
    with pytest.raises(PartyFailed, match="the other party does not follow the protocol"):
        run_with("receiver", psi_oprf.Noise, lambda m: replace(m, columns=os.urandom(len(m.columns))))
