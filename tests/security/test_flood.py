"""What one party can make another party keep in memory over a real connection: a flood is held back at a limit,
and nothing is lost below it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import ProtocolError
from tacit.parties import Ledger, Mailbox
from tacit.parties.codec import encode
from tacit.parties.mailbox import QueuedMessage
from tacit.parties.quota import MAX_SCOPE, MailLimits
from tacit.runtimes.channel import Channel, new_life
from tacit.runtimes.envelope import LONGEST_SCOPE, MAIL, pack
from tacit.runtimes.kits import temporary
from tacit.runtimes.link import Link
from tests.runtimes.net import Net, NetBall, NetSecret, catch, throw
from tests.security.mail import MB, is_held, unread, until


class Greedy(Channel):
    """A sender that ignores windows and HOLD: it sends every record it has, at once."""

    def pull(self) -> bytes | None:
        self.paused, self.in_flight = False, 0
        return super().pull()


def test_a_party_that_floods_another_fills_its_mailbox_to_the_limit_and_no_further() -> None:
    """`greedy` sends 8 MB that b does not read, whatever b answers; b stores at most its limit of 4 MB, continues with c,
    and loses nothing.
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
                link._wake(link.channels["b"])
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
            a = asyncio.create_task(net.party("greedy", floods))
            async with asyncio.timeout(300):
                assert await b == list(range(8))
                assert await c == list(range(10))
                await a

    asyncio.run(play())


def test_a_program_that_ends_before_its_messages_were_read_stays_until_there_is_room() -> None:
    """Honest: 22 MB to a reader that has room for 16. The sender's link stays longer than `linger`, as the
    reader is there and has no room yet.
    """

    async def play() -> list[int]:
        async with asyncio.timeout(300), Net.of("a", "b") as net:
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

            a = asyncio.create_task(net.party("a", sends))  # it stays for as long as b is there
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
