"""What one party can make another party, or the hub, keep in memory: a flood is held back at a limit, and
nothing is lost below it.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import msgpack
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tacit.errors import BadData, BadFrame, BadParameter, PartyFailed, ProtocolError, SealBroken
from tacit.mpc import transfer
from tacit.parties import Ledger, Mailbox, Message, Party
from tacit.parties.codec import MAGIC, decode, encode
from tacit.parties.forms import MAX_ITEMS
from tacit.parties.mailbox import QueuedMessage
from tacit.parties.quota import MAX_SCOPE, MailLimits
from tacit.runtimes import InProcess
from tacit.runtimes import hub as hubs
from tacit.runtimes.certificates import pem, read_certificate
from tacit.runtimes.channel import Channel, new_life
from tacit.runtimes.envelope import LONGEST_SCOPE, MAIL, METHOD, pack
from tacit.runtimes.hub import Hub
from tacit.runtimes.kits import Kit, load, temporary
from tacit.runtimes.link import CLIENT_OPTIONS, Link
from tacit.runtimes.provision import FederationFile, provision
from tests.runtimes.net import Net, NetBall, NetSecret, catch, throw

MB = 1 << 20


class LimitsNested(Message, reveals="lists in lists"):
    lists: list[list[int]]


def unread(box: Mailbox) -> tuple[int, int, int]:
    """(bytes, letters, scopes) that wait, counted from the queues themselves."""
    letters = [
        (scope, letter)
        for scope, queues in box._queues.items()
        for queue in queues.values()
        for letter in queue
    ]
    return sum(len(letter.frame) for _, letter in letters), len(letters), len(box._queues)


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def is_held(link: Link, peer: str) -> bool:
    return peer in link.channels and link.channels[peer].refused is not None


# --- a mailbox at the end of a real connection --------------------------------------------------------------


class Greedy(Channel):
    """A sender that ignores windows and HOLD: it sends every record it has, at once."""

    def pull(self) -> bytes | None:
        self.paused, self.in_flight = False, 0
        return super().pull()


def test_a_party_that_floods_another_fills_its_mailbox_to_the_limit_and_no_further() -> None:
    """`greedy` sends 8 MB that b does not read, whatever b says; b keeps at most its limit of 4 MB, goes on
    playing with c, and loses nothing.
    """
    limits = MailLimits(2 * MB, 4 * MB, 8 * MB)

    async def play() -> None:
        async with Net.of("greedy", "b", "c") as net:

            async def floods(me: Any) -> None:
                link = net.links["greedy"]
                link.channels["b"] = Greedy(
                    link.kit,
                    link.life,
                    "b",
                    lambda scope, frame: link.mailbox.put("b", scope, frame),
                    link.note,
                    MB,
                )
                link.channels["b"].front = pack(MAIL, "greedy", "b")
                for i in range(8):
                    link.channels["b"].send(
                        "flood", encode(NetSecret(str(i), bytes(MB)))
                    )  # past `deliver`, which would wait
                link._news.set()
                await me.recv("b", NetBall)

            async def reads(me: Any) -> list[int]:
                await until(lambda: is_held(net.links["b"], "greedy"))
                await catch(me, "c", 10)  # nobody else is held back
                box = net.links["b"].mailbox
                assert 0 < unread(box)[0] <= 4 * MB
                with me.scope("flood") as inner:
                    got = [int((await inner.recv("greedy", NetSecret)).text) for _ in range(8)]
                await me.send("greedy", NetBall(1))
                assert unread(box) == (0, 0, 0)
                assert (box.quota.bytes, box.quota.letters) == (0, 0)
                return got

            b = asyncio.create_task(net.party("b", reads, max_bytes=2 * MB, limits=limits))
            c = asyncio.create_task(net.party("c", lambda me: throw(me, "b", 10)))
            a = asyncio.create_task(net.party("greedy", floods, linger=0.1))
            async with asyncio.timeout(60):
                assert await b == list(range(8))
                assert await c == list(range(10))
                await a

    asyncio.run(play())


def test_a_program_that_ends_before_its_messages_were_read_stays_until_there_is_room() -> None:
    """Honest: 22 MB to a reader that has room for 16. The sender's link stays longer than `linger`, as the
    reader is there and has no room yet.
    """

    async def play() -> list[int]:
        async with asyncio.timeout(60), Net.of("a", "b") as net:
            ended = asyncio.Event()

            async def sends(me: Any) -> None:
                for i in range(22):
                    await me.send("b", NetSecret(str(i), bytes(MB)))
                ended.set()

            async def reads(me: Any) -> list[int]:
                await ended.wait()
                await until(lambda: is_held(net.links["b"], "a"))
                await asyncio.sleep(1.2)  # beyond the sender's linger
                return [int((await me.recv("a", NetSecret)).text) for _ in range(22)]

            b = asyncio.create_task(net.party("b", reads, max_bytes=2 * MB))
            await net.party("a", sends, linger=1.0)
            return await b

    assert asyncio.run(play()) == list(range(22))


@pytest.mark.parametrize("scopes", [1, 1000], ids=["one scope", "many scopes"])
def test_many_small_messages_are_held_back_by_their_number(scopes: int) -> None:
    limits = MailLimits(MB, 2 * MB, 4 * MB, sender_letters=200, sender_scopes=50)

    async def play() -> tuple[int, int, list[int]]:
        async with Net.of("a", "b") as net:

            async def sends(me: Any) -> None:
                for i in range(500):
                    await me.scope(f"s{i % scopes}").send("b", NetBall(i))

            async def reads(me: Any) -> tuple[int, int, list[int]]:
                await until(lambda: is_held(net.links["b"], "a"))
                _, letters, open_scopes = unread(net.links["b"].mailbox)
                return (
                    letters,
                    open_scopes,
                    [(await me.scope(f"s{i % scopes}").recv("a", NetBall)).x for i in range(500)],
                )

            b = asyncio.create_task(net.party("b", reads, limits=limits))
            await net.party("a", sends)
            return await b

    letters, open_scopes, got = asyncio.run(play())
    assert (letters, open_scopes) == ((200, 1) if scopes == 1 else (50, 50))
    assert got == list(range(500))


def test_a_reader_that_waits_behind_a_flood_it_does_not_read_is_told_so() -> None:
    limits = MailLimits(MB, 2 * MB, 4 * MB, sender_letters=20)

    async def play() -> None:
        async with Net.of("a", "b") as net:

            async def sends(me: Any) -> None:
                for i in range(30):
                    await me.scope("nobody reads this").send("b", NetBall(i))
                await me.send("b", NetSecret("the answer"))

            a = asyncio.create_task(net.party("a", sends, linger=0.1, patience=0.5))
            with pytest.raises(
                ProtocolError,
                match=r"party 'b' waits for NetSecret from 'a', but 20 other messages of 'a' \(\d+ bytes\) "
                r"are unread",
            ):
                await net.party("b", lambda me: me.recv("a", NetSecret), limits=limits, patience=0.5)
            await a

    asyncio.run(play())


def test_channels_and_mailboxes_have_one_limit_for_the_names_of_scopes() -> None:
    assert LONGEST_SCOPE == MAX_SCOPE


def test_a_scope_with_a_long_name_is_refused_by_the_sender_and_dropped_by_the_receiver() -> None:
    async def play() -> None:
        async with Net.of("a", "b") as net, Link(net.kits["a"]) as link:
            with pytest.raises(
                ProtocolError, match=f"a scope whose name has 1025 bytes; at most {MAX_SCOPE} are allowed"
            ):
                await link.deliver("a", "b", "x" * 1025, b"")

    asyncio.run(play())
    ends = Ends()
    ends.a.send("x" * 1025, b"dropped")
    ends.a.send("x" * 1024, b"taken")
    ends.carry()
    assert ends.got == [("x" * 1024, b"taken")]
    assert any(
        "sends a scope's name of 1025 bytes, more than the 1024 allowed here; it is dropped" in text
        for text in ends.notes
    )


class Ends:
    """Two ends of a sealed channel without a network; b has a mailbox."""

    def __init__(self, limits: MailLimits | None = None) -> None:
        _, kits = temporary("limits", ("a", "b"))
        self.box = box = Mailbox("b", Ledger(), MB, limits)
        self.got: list[tuple[str, bytes]] = []
        self.notes: list[str] = []

        def deliver(scope: str, frame: bytearray) -> None:
            self.got.append((scope, bytes(frame)))
            box.put("a", scope, frame)

        self.a = Channel(kits["a"], new_life(), "b", lambda scope, frame: None, lambda text: None, MB)
        self.b = Channel(
            kits["b"],
            new_life(),
            "a",
            deliver,
            self.notes.append,
            MB,
            lambda scope, size: box.reserve("a", scope, size),
            lambda: box.cancel("a"),
        )

    def carry(self, lost: int = 0) -> None:
        """Until nothing moves. The first `lost` payloads do not arrive."""
        moved = True
        while moved:
            moved = False
            for source, target in ((self.a, self.b), (self.b, self.a)):
                while (payload := source.pull()) is not None:
                    moved = True
                    lost -= 1
                    if lost < 0:
                        target.receive(memoryview(payload))

    def read(self) -> QueuedMessage | None:
        """What b's program does, and its link after it."""
        letter = self.box.pop("", "a")
        if self.b.refused is not None and self.box.has_room("a", *self.b.refused):
            self.b.resume()
        return letter


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.integers(0, 300_000)),
            st.tuples(st.just("carry"), st.integers(0, 5)),
            st.just(("read", 0)),
        ),
        max_size=40,
    )
)
def test_whatever_is_lost_on_the_way_every_message_is_read_once_and_in_order_and_the_mailbox_stays_within_its_limits(
    steps: list[tuple[str, int]],
) -> None:
    """Room for three messages or 1 MB; records, HOLD and RESUME may be lost. In the end the network works and
    the program reads.
    """
    ends = Ends(MailLimits(MB, MB + MAX_SCOPE, 4 * MB, sender_letters=3))
    sent: list[bytes] = []
    got: list[bytes] = []

    def read() -> None:
        if (letter := ends.read()) is not None:
            got.append(bytes(letter.frame))

    for step, number in steps:
        if step == "send":
            sent.append(len(sent).to_bytes(4, "big") + bytes(number))
            ends.a.send("", sent[-1])
        elif step == "carry":
            ends.carry(number)
        else:
            read()
        assert unread(ends.box)[1] <= 3
        assert unread(ends.box)[0] <= MB + MAX_SCOPE
    for turn in range(1, 400):
        if len(got) == len(sent):
            break
        ends.carry()
        read()
        for end in (ends.a, ends.b):
            end.tick(3.0 * turn)
    assert got == sent


def test_a_flood_of_questions_gets_one_answer() -> None:
    """Whatever a peer or the hub asks while this party's own sending is stuck, its answers take a constant
    room.
    """
    ends = Ends()
    ends.a.send("", b"hello")
    ends.carry()
    for _ in range(1000):
        ends.a.ask()
        probe = ends.a.pull()
        assert probe is not None
        ends.b.receive(memoryview(probe))
        ends.b.receive(memoryview(b"R" + bytes(60)))  # of a session nobody knows
    assert len(ends.b.control) + len(ends.b.greetings) <= 2


def test_a_message_that_is_begun_and_never_finished_keeps_its_room_once() -> None:
    ends = Ends(MailLimits(MB, MB + MAX_SCOPE, 4 * MB))
    for _ in range(50):
        ends.a.send("", bytes(MB))
        while len(ends.a.records) > 1:  # the sender throws away all but the head
            ends.a.records.pop()
        ends.carry()
    assert ends.box.quota.bytes == ends.box.quota.senders["a"].bytes == MB
    ends.a.send("", b"whole")
    ends.carry()
    assert ends.got == [("", b"whole")]
    assert ends.box.quota.bytes == 5


# --- a mailbox alone ----------------------------------------------------------------------------------------


SMALL = MailLimits(
    max_bytes=600,
    sender_bytes=1700,
    total_bytes=2400,
    sender_letters=6,
    total_letters=6,
    sender_scopes=3,
    floor_bytes=60,
    floor_letters=2,
)
FRAME = encode(NetBall(1))
SENDERS, SCOPES = ("a", "b", "c"), ("", "x", "x/y", "z", "w", "v")


class MailboxMachine(RuleBasedStateMachine):
    """A transport that asks before it puts, against plain lists of what was accepted. Three of the largest
    messages exceed a sender's limit.
    """

    def __init__(self) -> None:
        super().__init__()
        self.box = Mailbox("me", Ledger(), 600, SMALL)
        self.model: dict[tuple[str, str], deque[bytes]] = {}
        self.reserved: dict[str, tuple[str, bytes]] = {}
        self.closed: set[str] = set()
        self.number = 0

    def accepted(self, sender: str, scope: str, frame: bytes) -> None:
        if not any(scope == c or scope.startswith(c + "/") for c in self.closed):
            self.model.setdefault((scope, sender), deque()).append(frame)

    def frame(self, size: int) -> bytes:
        self.number += 1
        return self.number.to_bytes(4, "big") + bytes(size)

    @rule(
        sender=st.sampled_from(SENDERS),
        scopes=st.lists(st.sampled_from(SCOPES), min_size=1, max_size=8),
        size=st.one_of(st.just(0), st.integers(0, 596)),
    )
    def put(self, sender: str, scopes: list[str], size: int) -> None:
        for scope in scopes:
            frame = self.frame(size)
            if sender not in self.reserved and self.box.fits(sender, scope, len(frame)):
                self.box.put(sender, scope, frame)
                self.accepted(sender, scope, frame)

    @rule(sender=st.sampled_from(SENDERS), scope=st.sampled_from(SCOPES), size=st.integers(0, 596))
    def reserve(self, sender: str, scope: str, size: int) -> None:
        frame = self.frame(size)
        self.reserved.pop(sender, None)
        if self.box.reserve(sender, scope, len(frame)):
            self.reserved[sender] = scope, frame

    @precondition(lambda self: self.reserved)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        sender = data.draw(st.sampled_from(sorted(self.reserved)))
        scope, frame = self.reserved.pop(sender)
        self.box.put(sender, scope, frame)
        self.accepted(sender, scope, frame)

    @rule(sender=st.sampled_from(SENDERS))
    def cancel(self, sender: str) -> None:
        self.box.cancel(sender)
        self.reserved.pop(sender, None)

    @rule(sender=st.sampled_from(SENDERS), scope=st.sampled_from(SCOPES))
    def pop(self, sender: str, scope: str) -> None:
        letter, queue = self.box.pop(scope, sender), self.model.get((scope, sender))
        assert (None if letter is None else letter.frame) == (queue.popleft() if queue else None)

    @rule(scope=st.sampled_from(SCOPES[1:]))
    def close(self, scope: str) -> None:
        self.box.close(scope)
        self.closed.add(scope)
        for key in [k for k in self.model if k[0] == scope or k[0].startswith(scope + "/")]:
            del self.model[key]

    @rule()
    def reopen(self) -> None:
        """As after REMEMBER_CLOSED more scopes: mail for those waits again."""
        self.box._closed.clear()
        self.closed.clear()

    @invariant()
    def nothing_is_lost_and_all_is_bounded(self) -> None:
        waiting = {key: list(queue) for key, queue in self.model.items() if queue}
        assert waiting == {
            (scope, s): [x.frame for x in q]
            for scope, queues in self.box._queues.items()
            for s, q in queues.items()
        }
        quota = self.box.quota
        for sender in SENDERS:
            frames = [(scope, f) for (scope, s), queue in waiting.items() if s == sender for f in queue]
            kept = self.reserved.get(sender)
            used = quota.senders.get(sender)
            size = sum(len(f) + len(scope) for scope, f in frames) + (
                len(kept[1]) + len(kept[0]) if kept else 0
            )
            letters = len(frames) + (kept is not None)
            assert (used.bytes, used.letters) == (size, letters) if used else letters == 0
            assert size <= SMALL.sender_bytes
            assert letters <= SMALL.sender_letters
            assert len({scope for scope, _ in frames}) <= SMALL.sender_scopes
        assert quota.letters <= SMALL.total_letters + len(SENDERS) * SMALL.floor_letters
        assert quota.bytes <= SMALL.total_bytes + len(SENDERS) * SMALL.floor_bytes
        assert not self.box._dropped

    @invariant()
    def an_empty_queue_always_has_room_below_the_floor(self) -> None:
        for sender in SENDERS:
            if sender not in self.box.quota.senders or not self.box.quota.senders[sender].letters:
                assert self.box.fits(sender, "", 50)


TestMailboxMachine = MailboxMachine.TestCase
TestMailboxMachine.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)


def test_one_party_cannot_use_up_the_room_of_another() -> None:
    """Two senders fill the total; a third still has its floor, and all of a message if the program waits for
    it.
    """
    limits = MailLimits(
        max_bytes=1000,
        sender_bytes=5000,
        total_bytes=6000,
        sender_letters=100,
        total_letters=50,
        floor_bytes=100,
        floor_letters=2,
    )
    box = Mailbox("me", Ledger(), 1000, limits)
    for sender in ("a", "b"):
        while box.fits(sender, "", 900):
            box.put(sender, "", bytes(900))
    assert box.quota.bytes <= 6000 + 200
    assert not box.fits("c", "", 900)
    assert box.fits("c", "", 100)

    async def waits() -> str:
        me = Party("me", None, box)  # type: ignore[arg-type]
        got = asyncio.create_task(me.recv("c", NetBall, NetSecret))
        await asyncio.sleep(0)
        assert box.fits("c", "", 900)
        assert not box.fits("a", "", 900)
        box.put("c", "", encode(NetSecret("c", bytes(700))))
        return (await got).text  # type: ignore[union-attr]

    assert asyncio.run(waits()) == "c"


def test_a_transport_that_does_not_ask_loses_the_message_and_the_reader_is_told_so() -> None:
    box = Mailbox("me", Ledger(), 1000, MailLimits(1000, 5000, 10_000, sender_letters=3))
    me = Party("me", None, box)  # type: ignore[arg-type]
    for i in range(5):
        box.put("a", "", encode(NetBall(i)))
    box.put("b", "", encode(NetBall(7)))

    async def read() -> None:
        assert [(await me.recv("a", NetBall)).x for _ in range(3)] == [0, 1, 2]
        box.put("a", "", encode(NetBall(5)))  # there is room again, but one before it is missing
        with pytest.raises(
            ProtocolError,
            match=r"expected NetBall from 'a', but 'a' sent more than the mailbox of 'me' holds unread \(3 "
            r"messages",
        ):
            await me.recv("a", NetBall)
        got = await me.gather(["a", "b"], NetBall, at_least=1)
        assert {name: m.x for name, m in got.items()} == {"b": 7}
        assert "a message was dropped" in str(got.refused["a"])

    asyncio.run(read())
    assert {(s.kind, s.count) for s in box.ledger.seen if s.sender == "a"} == {
        ("NetBall", 3),
        ("(dropped)", 3),
    }


def test_a_reader_that_waits_already_is_woken_when_a_message_is_dropped() -> None:
    box = Mailbox("me", Ledger(), 1000, MailLimits(1000, 5000, 10_000, sender_letters=2))
    me = Party("me", None, box)  # type: ignore[arg-type]

    async def read() -> None:
        waits = asyncio.create_task(me.recv("a", NetBall))
        await asyncio.sleep(0)
        for i in range(3):
            box.put("a", "elsewhere", encode(NetBall(i)))
        with pytest.raises(ProtocolError, match="a message was dropped"):
            await waits

    asyncio.run(read())


def test_limits_below_one_message_are_refused() -> None:
    with pytest.raises(BadParameter, match="sender_bytes is 1000; it must be at least max_bytes \\+ 1024"):
        MailLimits(1000, 1000, 5000)
    with pytest.raises(BadParameter, match="at least 1"):
        MailLimits(1000, 5000, 5000, sender_letters=0)


def test_the_ledger_does_not_grow_with_what_others_invent() -> None:
    """Kinds nobody knows, bytes that are no message, scopes without number: one line for each sender."""
    box = Mailbox("me", Ledger())
    for i in range(500):
        head = msgpack.packb([f"Invented{i}", {}])
        box.put("a", f"scope {i}", MAGIC + len(head).to_bytes(4, "little") + head)
        box.put("a", f"scope {i}", b"no message")
        box.pop(f"scope {i}", "a")
        box.pop(f"scope {i}", "a")
    assert [(s.kind, s.count) for s in box.ledger.seen] == [("(unreadable)", 1000)]


def test_a_message_of_empty_lists_is_refused_before_it_takes_64_times_its_bytes() -> None:
    assert decode(encode(LimitsNested([[1], []])), LimitsNested).lists == [[1], []]  # type: ignore[attr-defined]
    count = MAX_ITEMS + 1
    head = (
        b"\x92"
        + msgpack.packb("LimitsNested")
        + b"\x81"
        + msgpack.packb("lists")
        + b"\xdd"
        + count.to_bytes(4, "big")
        + b"\x90" * count
    )
    frame = MAGIC + len(head).to_bytes(4, "little") + head + bytes(-len(head) % 8)
    with pytest.raises(BadFrame, match=f"hold at most {MAX_ITEMS} values"):
        decode(frame, LimitsNested)


# --- in one process -----------------------------------------------------------------------------------------


def test_in_one_process_a_sender_waits_for_room_and_nothing_is_lost() -> None:
    async def sends(me: Party) -> None:
        for i in range(100):
            await me.send("b", NetSecret(str(i), bytes(MB)))

    async def reads(me: Party) -> list[int]:
        await me.clock.sleep(1)
        assert unread(me.mailbox)[0] <= me.mailbox.limits.sender_bytes < 17 * MB
        return [int((await me.recv("a", NetSecret)).text) for _ in range(100)]

    assert InProcess(max_bytes=2 * MB).run_sync({"a": sends, "b": reads})["b"] == list(range(100))


def test_in_one_process_two_that_send_and_never_read_are_named() -> None:
    async def sends(me: Party, to: str) -> None:
        for _ in range(40):
            await me.send(to, NetSecret("", bytes(MB)))
        await me.recv(to, NetSecret)

    with pytest.raises(
        ProtocolError,
        match=r"no party can continue: 'a' waits for room in the mailbox of 'b', which has not read what 'a' "
        r"sent; 'b' waits",
    ):
        InProcess(max_bytes=2 * MB).run_sync(
            {"a": functools.partial(sends, to="b"), "b": functools.partial(sends, to="a")}
        )


def test_in_one_process_no_party_waits_for_space_at_a_party_that_has_ended() -> None:
    async def sends(me: Party) -> int:
        for _ in range(40):
            await me.send("b", NetSecret("", bytes(MB)))
        return 40

    async def leaves(me: Party) -> None:
        await me.recv("a", NetSecret)
        await me.clock.sleep(1)

    assert InProcess(max_bytes=2 * MB).run_sync({"a": sends, "b": leaves})["a"] == 40


def test_a_round_of_a_thousand_parties_in_one_process_is_nowhere_near_the_limits() -> None:
    """All 1,000 send three messages before the server reads any, one party after the other and the last
    message in another scope first.
    """
    names = [f"p{i}" for i in range(1000)]

    async def client(me: Party) -> None:
        for k in range(2):
            await me.send("server", NetBall(k))
        await me.scope("after").send("server", NetBall(2))

    async def server(me: Party) -> int:
        await me.clock.sleep(1)
        assert unread(me.mailbox)[1] == 3000
        assert not me.mailbox.quota.held
        late = await me.scope("after").gather(names, NetBall)
        return sum(m.x for m in late.values()) + sum(
            [(await me.recv(name, NetBall)).x for name in reversed(names) for _ in range(2)]
        )

    programs: dict[str, Any] = {name: client for name in names} | {"server": server}
    assert InProcess().run_sync(programs)["server"] == 3000


# --- the hub ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def deaf(kit: Kit) -> AsyncIterator[Any]:
    """A party that writes what it likes and never reads after the hub's welcome. Its window is small, so that
    the hub's writes wait soon.
    """
    authority, key, certificate = kit.pems()
    options = [*CLIENT_OPTIONS, ("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]
    async with grpc.aio.secure_channel(
        kit.address, grpc.ssl_channel_credentials(authority, key, certificate), options=options
    ) as channel:
        call = channel.stream_stream(METHOD)()
        await call.read()
        yield call


def test_notes_about_absent_parties_wait_once_for_each_party() -> None:
    async def play() -> None:
        read = 0

        def tap(sender: str, to: str, data: bytes) -> list[bytes]:
            nonlocal read
            read += sender == "mallory"
            return [data]

        absent = [
            "x" * 63,
            "y" * 63,
        ]  # 5,000 notes about them are more than what is under way to a party that does not read
        async with Net.of("mallory", *absent, tap=tap) as net, deaf(net.kits["mallory"]) as call:
            for i in range(5000):
                await call.write(pack(MAIL, "mallory", absent[i % 2]))
            await until(lambda: read == 5000)
            assert len(net.hub.connections["mallory"].waiting) <= 2

    asyncio.run(play())


def test_garbage_from_one_member_does_not_end_the_run_of_others() -> None:
    """What mallory sends is neither handshake nor record; b and c do not need it, and go on. A party that
    waits for mallory is told.
    """

    async def play() -> None:
        async with Net.of("mallory", "b", "c", "d") as net, deaf(net.kits["mallory"]) as call:

            async def plays(me: Any) -> list[int]:
                got = await throw(me, "c", 5)
                for _ in range(10):
                    await call.write(pack(MAIL, "mallory", "b", b"garbage"))
                await until(
                    lambda: (
                        "mallory" in net.links["b"].channels
                        and net.links["b"].channels["mallory"].failure is not None
                    )
                )
                return got + await throw(me, "c", 5)

            assert (await net.run(b=plays, c=lambda me: catch(me, "b", 10)))["b"] == [*range(5), *range(5)]
            waits = asyncio.create_task(net.party("d", lambda me: me.recv("mallory", NetBall)))
            await until(lambda: "d" in net.hub.connections)
            for _ in range(10):
                await call.write(pack(MAIL, "mallory", "d", b"garbage"))
            with pytest.raises(
                SealBroken,
                match=r"in the name of 'mallory' were not authentic.*Do not trust this hub, or this party",
            ):
                await waits

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await play()

    asyncio.run(bounded())


def test_notes_about_parties_that_do_not_exist_count_against_whoever_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every name is another: each note waits, and when they make up the sender's quota the hub reads no more
    from it.
    """
    monkeypatch.setattr(hubs, "QUOTA", 64 << 10)

    async def play() -> None:
        async with Net.of("mallory", "b", "c") as net, deaf(net.kits["mallory"]) as call:
            for i in range(
                2000
            ):  # 8 quotas; what the hub does not read waits in the connection, at its sender's cost
                await call.write(pack(MAIL, "mallory", f"{i:0250}"))
            await until(lambda: net.hub.held["mallory"] > hubs.QUOTA)
            assert (await net.run(b=lambda me: throw(me, "c", 5), c=lambda me: catch(me, "b", 5)))[
                "b"
            ] == list(range(5))
            assert net.hub.held["mallory"] <= hubs.QUOTA + hubs.ENTRY + 250
            assert len(net.hub.connections["mallory"].waiting) <= hubs.QUOTA // (hubs.ENTRY + 250) + 1

    asyncio.run(play())


def test_a_revoked_party_that_does_not_read_is_cut_off_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection cannot be ended in order while the hub waits to write to it. Nothing more of it is
    passed on, and what waited for it is forgotten.
    """
    monkeypatch.setattr(hubs, "LOOK_AGAIN", 0.05)
    federation = FederationFile("f", "127.0.0.1:1", "127.0.0.1:0", "server", ("a", "mallory"))
    provision(federation, tmp_path)

    async def play() -> None:
        hub = Hub(load(tmp_path / "hub"))
        at = f"127.0.0.1:{await hub.start()}"
        async with (
            deaf(load(tmp_path / "mallory").at(at)) as call,
            deaf(load(tmp_path / "a").at(at)) as other,
        ):
            for _ in range(400):
                await other.write(pack(MAIL, "a", "mallory", bytes(4096)))
            await until(lambda: hub.relayed == 400)
            assert hub.held["a"] > 0
            provision(federation, tmp_path, revoke=("mallory",))
            await until(lambda: "mallory" not in hub.connections)
            await until(lambda: hub.held["a"] == 0)
            try:
                for _ in range(50):
                    await asyncio.wait_for(call.write(pack(MAIL, "mallory", "a", b"after")), 1.0)
            except (TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass
            assert hub.relayed == 400
        await hub.stop()

    asyncio.run(play())


# --- revocations --------------------------------------------------------------------------------------------


@pytest.fixture
def revoked(tmp_path: Path) -> tuple[Path, bytes, bytes]:
    """Kits of a, b and mallory, of whom the authority has revoked mallory; only the hub has been told.
    (folder, the list of before, the list now).
    """
    federation = FederationFile("f", "127.0.0.1:1", "127.0.0.1:0", "server", ("a", "b", "mallory"))
    provision(federation, tmp_path)
    old = (tmp_path / "a" / "revoked.crl").read_bytes()
    provision(federation, tmp_path, revoke=("mallory",))  # within the same second, too, it is the newer one
    (tmp_path / "a" / "revoked.crl").write_bytes(old)
    return tmp_path, old, (tmp_path / "hub" / "revoked.crl").read_bytes()


async def visit(folder: Path, hub_list: bytes) -> Link:
    """Party a connects to a hub that has this list, and leaves again; as in a process of its own, with the
    kit as it is on disk.
    """
    (folder / "hub" / "revoked.crl").write_bytes(hub_list)
    hub = Hub(load(folder / "hub"))
    at = f"127.0.0.1:{await hub.start()}"
    async with Link(load(folder / "a").at(at), linger=0.1) as link:
        await until(lambda: link.connected.is_set())  # the hub's welcome, with its list, has been read
    await hub.stop()
    return link


def test_a_newer_list_of_revocations_survives_a_restart_and_is_never_rolled_back(
    revoked: tuple[Path, bytes, bytes],
) -> None:
    folder, old, new = revoked
    kit = load(folder / "mallory")
    serial = kit.certificate.serial_number

    def knows(trust: Any) -> bool:
        return trust.revoked.get_revoked_certificate_by_serial_number(serial) is not None

    assert not knows(load(folder / "a").trust)
    link = asyncio.run(visit(folder, new))
    assert knows(link.kit.trust)
    assert (folder / "a" / "revoked.crl").read_bytes() == new
    assert knows(load(folder / "a").trust)  # restarted

    link = asyncio.run(visit(folder, old))  # a hub that withholds the newer list, as one that was bribed to
    assert knows(link.kit.trust)
    assert (folder / "a" / "revoked.crl").read_bytes() == new
    assert link.notes == []


def test_a_list_another_authority_signed_is_not_written(revoked: tuple[Path, bytes, bytes]) -> None:
    folder, old, _ = revoked
    hub, _ = temporary("f", ("a",))  # the same name, another authority
    assert hub.trust.revoked is not None
    forged = json.dumps({"revoked": pem(hub.trust.revoked).decode()}).encode()

    async def told() -> list[str]:
        link = Link(load(folder / "a"))
        link._renew(memoryview(forged))
        return link.notes

    assert any("was not signed by the authority" in text for text in asyncio.run(told()))
    assert (folder / "a" / "revoked.crl").read_bytes() == old


def test_a_list_that_cannot_be_written_is_used_with_a_warning(
    revoked: tuple[Path, bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _, new = revoked

    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tacit.files.write_atomic", full)

    async def told() -> Link:
        link = Link(load(folder / "a"))
        link._renew(memoryview(json.dumps({"revoked": new.decode()}).encode()))
        return link

    link = asyncio.run(told())
    with pytest.raises(SealBroken, match="was revoked"):
        link.kit.trust.check(load_certificate(folder / "mallory"))
    assert link.notes == [
        f"the hub's newer revocation list is in use, but cannot be written to {folder / 'a'}: No space "
        "left on device. After a restart the hub must send it again."
    ]


def test_a_hub_writes_its_newer_list_back_over_an_older_one_and_tells_those_who_are_connected(
    revoked: tuple[Path, bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "LOOK_AGAIN", 0.05)
    folder, old, new = revoked
    file = folder / "hub" / "revoked.crl"

    async def play() -> None:
        file.write_bytes(old)
        hub = Hub(load(folder / "hub"))
        at = f"127.0.0.1:{await hub.start()}"
        async with Link(load(folder / "a").at(at)) as link:
            await until(lambda: link.connected.is_set())
            file.write_bytes(new)
            await until(
                lambda: (folder / "a" / "revoked.crl").read_bytes() == new
            )  # sent to those who are connected, and kept there
            file.write_bytes(old)
            await until(lambda: file.read_bytes() == new)
        await hub.stop()

    asyncio.run(play())
    with pytest.raises(SealBroken, match="was revoked"):
        load(folder / "hub").trust.check(load_certificate(folder / "mallory"))


def load_certificate(folder: Path) -> Any:
    return read_certificate((folder / "party.crt").read_bytes(), "")


# --- transfer on shares -------------------------------------------------------------------------------------


def test_faint_scores_do_not_count_as_blur() -> None:
    """14 shared rows, 7 sums, γ = 1, but scores of deviation .01: trying all 2^14 labels finds the right
    ones, so the margin is that of γ = 0.
    """
    g = torch.Generator().manual_seed(0)
    y, scores = torch.randint(2, (14,), generator=g), 0.01 * torch.randn(14, 1, generator=g)
    h = torch.tanh(torch.randn(14, 6, generator=g))
    every, full = torch.cartesian_prod(*[torch.tensor([0, 1])] * 14), transfer.add_intercept(h)
    sums = full.T @ transfer.compute_targets(y, scores, 1.0) / 14
    guesses = (every.double() - 0.5) / 2.25 @ full / 14
    assert every[(guesses - sums.T).square().sum(1).argmin()].tolist() == y.tolist()  # the attack

    def run(scores: torch.Tensor, gamma: float) -> Any:
        return InProcess().run_sync(
            {
                "a": functools.partial(
                    transfer.source, names=("a", "b"), helper="h", width=6, y=y, scores=scores, gamma=gamma
                ),
                "b": functools.partial(
                    transfer.target, names=("a", "b"), helper="h", h=h, decay=0.03, gamma=gamma
                ),
                "h": functools.partial(transfer.helper, names=("a", "b"), rows=14, width=6),
            }
        )

    two_values = torch.where(y == 1, 3.0, -3.0)[
        :, None
    ]  # a source that fits its labels exactly: large scores, and a label is all they say
    for few in (scores, two_values):  # at once: the source refuses before anything is sent
        with pytest.raises(
            PartyFailed, match=r"party 'a' failed: BadData: 14 rows are shared, .* Share at least 126 rows"
        ):
            run(few, 1.0)
    assert run(100 * scores, 1.0)["b"].shape == (7, 1)


def test_the_margin_of_shared_transfer_has_no_default_gamma() -> None:
    """Both programs check with the γ they are given: one below FAINT is refused at the target too, whoever
    calls them.
    """
    with pytest.raises(BadData, match="Share at least 126 rows"):
        asyncio.run(transfer.target(None, ("a", "b"), "h", torch.zeros(14, 6), 0.03, 0.1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="gamma"):
        transfer.check_margin(14, 6)  # type: ignore[call-arg]
