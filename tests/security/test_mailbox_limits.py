"""A mailbox keeps within its limits, alone and between the parties of one process."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from typing import Any

import msgpack
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tacit.errors import BadFrame, BadParameter, ProtocolError
from tacit.parties import Ledger, Mailbox, Message, Party
from tacit.parties.codec import MAGIC, decode, encode
from tacit.parties.forms import MAX_ITEMS
from tacit.parties.quota import MailLimits
from tacit.runtimes import InProcess
from tests.runtimes.net import NetBall, NetSecret
from tests.security.mail import MB, unread


class LimitsNested(Message, reveals="lists in lists"):
    lists: list[list[int]]


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
    """Unknown kinds, bytes that are not a message, any number of scopes: one line per sender."""
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
