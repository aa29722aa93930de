"""The sealed channel, without a network: whatever a hub does to the bytes, messages arrive once, in order and
unread, or not at all.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.crypto.seal import DATA, Ephemeral, Seal, transcript
from tacit.errors import SealBroken
from tacit.runtimes import channel as channels
from tacit.runtimes.channel import Channel, new_life
from tacit.runtimes.kits import Kit, temporary

_, KITS = temporary("federation", ("alice", "bob"))
_, OTHERS = temporary("federation", ("alice", "bob"))  # the same names, another authority


class End:
    """One party's end, and what it got."""

    def __init__(self, kit: Kit, peer: str, max_bytes: int = 1 << 24):
        self.got: list[tuple[str, bytes]] = []
        self.notes: list[str] = []
        self.kit, self.peer, self.max_bytes = kit, peer, max_bytes
        self.restart()

    def restart(self) -> None:
        self.channel = Channel(
            self.kit,
            new_life(),
            self.peer,
            lambda scope, frame: self.got.append((scope, bytes(frame))),
            self.notes.append,
            self.max_bytes,
        )


def pair() -> tuple[End, End]:
    return End(KITS["alice"], "bob"), End(KITS["bob"], "alice")


class Wire:
    """A hub in the middle. `act(direction, payload)` returns what is forwarded instead."""

    def __init__(self, a: End, b: End, act: Any = lambda direction, payload: [payload]):
        self.a, self.b, self.act, self.now = a, b, act, 0.0
        self.carried: list[bytes] = []

    def run(self, steps: int = 10_000) -> None:
        """Until nothing moves; then time passes, a few times."""
        still = 0
        for _ in range(steps):
            moved = False
            for k, (source, target) in enumerate(((self.a, self.b), (self.b, self.a))):
                payload = source.channel.pull()
                if payload is not None:
                    moved = True
                    self.carried.append(payload)
                    for each in self.act(k, payload):
                        target.channel.receive(memoryview(each))
            if not moved:
                still += 1
                if still > 12:
                    return
                self.now += 3.0
                self.a.channel.tick(self.now)
                self.b.channel.tick(self.now)


def test_messages_of_any_size_arrive_in_order_both_ways() -> None:
    a, b = pair()
    sizes = (0, 1, 100, channels.INLINE, channels.INLINE + 1, 3 * channels.CHUNK + 5, 7)
    rng = random.Random(0)
    there, back = ([(f"round {i}", rng.randbytes(n)) for i, n in enumerate(sizes)] for _ in range(2))
    for x, y in zip(there, back):
        a.channel.send(*x)
        b.channel.send(*y)
    Wire(a, b).run()
    assert (b.got, a.got) == (there, back)
    assert a.channel.idle
    assert b.channel.idle
    assert not a.notes + b.notes


SECRET = b"the patient of row 17 has condition X"


def test_nothing_of_a_message_or_its_scope_can_be_read_on_the_way() -> None:
    a, b = pair()
    a.channel.send("a telling scope", SECRET * 5000)
    wire = Wire(a, b)
    wire.run()
    assert b.got == [("a telling scope", SECRET * 5000)]
    everything = b"|".join(wire.carried)
    assert SECRET not in everything
    assert b"telling" not in everything
    assert not any(SECRET[i : i + 8] in everything for i in range(len(SECRET) - 8))


def test_the_same_message_twice_looks_different_and_each_session_has_its_own_keys() -> None:
    seen = set()
    for _ in range(3):
        a, b = pair()
        a.channel.send("", SECRET)
        a.channel.send("", SECRET)
        wire = Wire(a, b)
        wire.run()
        seen |= {p[19:] for p in wire.carried if p[:1] == b"R" and p[9] == DATA}
    assert len(seen) == 6


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    loss=st.floats(0, 0.4),
    repeat=st.floats(0, 0.4),
    swap=st.floats(0, 0.4),
    sizes=st.lists(st.integers(0, 200_000), max_size=12),
)
def test_loss_repetition_and_reordering_change_nothing_but_the_time_it_takes(
    seed: int, loss: float, repeat: float, swap: float, sizes: list[int]
) -> None:
    rng = random.Random(seed)
    a, b = pair()
    kept: list[list[bytes]] = [[], []]
    calm = [400]  # after this many envelopes the hub behaves, so that the run ends

    def act(direction: int, payload: bytes) -> list[bytes]:
        calm[0] -= 1
        if calm[0] < 0:
            out = [*kept[direction], payload]
            kept[direction] = []
            return out
        if rng.random() < loss:
            return []
        if rng.random() < swap:
            kept[direction].append(payload)
            return []
        out = [payload, *kept[direction]]
        kept[direction] = []
        return out * 2 if rng.random() < repeat else out

    said = [(str(i), rng.randbytes(n)) for i, n in enumerate(sizes)]
    for message in said:
        a.channel.send(*message)
        b.channel.send(*message)
    a.channel.altered = b.channel.altered = -10_000  # giving up is tested on its own
    wire = Wire(a, b, act)
    for _ in range(60):
        wire.run()
        if a.channel.idle and b.channel.idle:
            break
    assert b.got == said
    assert a.got == said


@pytest.mark.filterwarnings("ignore:Parsed a serial number")  # of an altered certificate
@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, 6), where=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_changed_bit_is_noticed_and_never_reaches_the_program(at: int, where: int, bit: int) -> None:
    a, b = pair()
    count = [-1]

    def act(direction: int, payload: bytes) -> list[bytes]:
        count[0] += 1
        if count[0] != at:
            return [payload]
        changed = bytearray(payload)
        changed[where % len(changed)] ^= 1 << bit
        return [bytes(changed)]

    said = [("s", SECRET), ("s", SECRET * 3000), ("t", b"end")]
    for message in said:
        a.channel.send(*message)
    Wire(a, b, act).run()
    assert b.got == said  # it was asked for again
    assert count[0] >= at


@pytest.mark.filterwarnings("ignore:Parsed a serial number")  # of an altered certificate
def test_every_single_changed_bit_of_what_a_certificate_says_is_refused() -> None:
    """Also those that the parser refuses with an error of its own, such as an unknown version. The number of
    unused bits before the signature says nothing, and the handshake's transcript covers it.
    """
    der, trust = KITS["alice"].der, KITS["bob"].trust
    certificate = x509.load_der_x509_certificate(der)
    signature = der.rindex(certificate.signature)
    trust.party(der, "alice")
    for position in range(len(der)):
        for bit in range(8):
            changed = der[:position] + bytes((der[position] ^ 1 << bit,)) + der[position + 1 :]
            if position == signature - 1:
                continue
            with pytest.raises(SealBroken):
                trust.party(changed, "alice")


def altered_record(direction: int, payload: bytes) -> list[bytes]:
    return (
        [payload[:-1] + bytes((payload[-1] ^ 1,))]
        if payload[:1] == b"R" and payload[9] == DATA
        else [payload]
    )


def test_a_hub_that_alters_every_record_is_named_for_what_it_is() -> None:
    a, b = pair()
    a.channel.send("", b"hello")
    Wire(a, b, altered_record).run()
    assert b.got == []
    assert any("record 0 of 'alice' was altered in transit" in n for n in b.notes)
    assert b.channel.failure is not None
    assert "Do not trust this hub" in str(b.channel.failure)


def test_replay_reordering_and_loss_are_each_noted() -> None:
    for act, words in (
        (lambda d, p: [p, p], "was received twice; the second was dropped"),
        (None, "is missing"),
    ):
        a, b = pair()
        seen = [0]

        def lose(direction: int, payload: bytes, seen: list[int] = seen) -> list[bytes]:
            if direction == 0 and payload[:1] == b"R" and payload[9] == DATA:
                seen[0] += 1
                return [] if seen[0] == 2 else [payload]
            return [payload]

        for i in range(4):
            a.channel.send("", bytes((i,)))
        Wire(a, b, act or lose).run()
        assert [frame for _, frame in b.got] == [b"\0", b"\1", b"\2", b"\3"]
        assert any(words in n for n in b.notes), b.notes


def test_a_whole_conversation_played_again_opens_nothing() -> None:
    a, b = pair()
    a.channel.send("", SECRET)
    wire = Wire(a, b)
    wire.run()
    there = [p for p in wire.carried if p[:1] in (b"H", b"F", b"R")]
    b.restart()
    b.got.clear()
    for payload in there * 3:
        b.channel.receive(memoryview(payload))
    assert b.got == []


def test_a_man_in_the_middle_with_certificates_of_another_authority_is_refused() -> None:
    a, b, mallory = End(KITS["alice"], "bob"), End(KITS["bob"], "alice"), End(OTHERS["bob"], "alice")
    a.channel.send("", SECRET)
    Wire(a, mallory).run()
    assert mallory.got == []
    assert any(
        "was not issued by the authority of federation 'federation'" in n for n in a.notes + mallory.notes
    )
    assert b.got == []


def test_a_member_cannot_pose_as_another() -> None:
    """Mallory has a good certificate, of its own name."""
    _, kits = temporary("f", ("alice", "bob", "mallory"))
    a, mallory = End(kits["alice"], "bob"), End(kits["mallory"], "alice")
    a.channel.send("", SECRET)
    Wire(a, mallory).run()
    assert mallory.got == []
    assert any("'bob' presented the certificate of 'mallory'" in n for n in a.notes)


def test_a_restarted_process_gets_undelivered_messages_and_nothing_twice() -> None:
    a, b = pair()
    a.channel.send("", b"first")
    Wire(a, b).run()
    b.restart()
    a.channel.send("", b"to the old process")
    a.channel.pull()  # on its way when the process ended
    a.channel.present = False  # as the hub says
    a.channel.send("", b"later")
    b.channel.send("", b"I am new")
    a.channel.reconnect()
    b.channel.receive(memoryview(a.channel.pull() or b""))
    Wire(a, b).run()
    assert [f for _, f in b.got] == [b"first", b"later"]
    assert [f for _, f in a.got] == [b"I am new"]
    assert any("'bob' was restarted" in n for n in a.notes)


def test_a_message_larger_than_allowed_is_dropped_before_it_is_held() -> None:
    a, b = End(KITS["alice"], "bob"), End(KITS["bob"], "alice", max_bytes=1000)
    a.channel.send("", bytes(1001))
    a.channel.send("", bytes(1000))
    Wire(a, b).run()
    assert [len(f) for _, f in b.got] == [1000]
    assert any("sends a message of 1001 bytes, more than the 1000 allowed here" in n for n in b.notes)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_at_any_moment_are_survived(junk: bytes) -> None:
    a, b = pair()
    b.channel.receive(memoryview(junk))
    a.channel.send("", b"hello")
    Wire(a, b, lambda d, p: [junk, p] if d == 0 else [p]).run(60)
    assert b.got in ([("", b"hello")], [])
    assert b.got or b.channel.failure is not None


def test_a_frame_kept_for_sending_again_is_not_copied() -> None:
    a, _ = pair()
    frame = bytearray(5 * channels.CHUNK)
    a.channel.send("", frame)
    assert all(r.body.obj is frame for r in a.channel.records)


def test_the_keys_need_both_halves_and_the_whole_conversation() -> None:
    x, y = Ephemeral(), Ephemeral()
    t = transcript("f", ("a", b"1", x.public, b"A"), ("b", b"2", y.public, b"B"))
    there, here = Seal(x.agree(y.public), t, True), Seal(y.agree(x.public), t, False)
    assert here.open(DATA, 5, there.close(DATA, 5, b"hello")) == b"hello"
    for space, counter, other in (
        (DATA, 6, here),
        (DATA + 1, 5, here),
        (DATA, 5, there),
        (
            DATA,
            5,
            Seal(
                y.agree(x.public),
                transcript("g", ("a", b"1", x.public, b"A"), ("b", b"2", y.public, b"B")),
                False,
            ),
        ),
    ):
        with pytest.raises(SealBroken, match="modified in transit"):
            other.open(space, counter, there.close(DATA, 5, b"hello"))
    with pytest.raises(SealBroken, match="handshake key is invalid"):
        x.agree(bytes(32))
