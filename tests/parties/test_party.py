"""Sending, receiving, gathering, scopes, randomness: what a program may rely on."""

from __future__ import annotations

import asyncio
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tacit.errors import BadFrame, BadParameter, PartyFailed, ProtocolError
from tacit.parties import Ledger, Mailbox, Message, Party, Secret, SeededSecret
from tacit.parties.codec import decode, encode
from tacit.parties.party import LastRead
from tacit.runtimes import InProcess


class PartyWord(Message, reveals="a word"):
    word: str


class PartyNumber(Message, reveals="a number"):
    n: int


async def idle(me):
    pass


def says(*words, to="server", scope=None):
    async def program(me):
        here = me.scope(scope) if scope else me
        for word in words:
            await here.send(to, PartyNumber(word) if isinstance(word, int) else PartyWord(word))

    return program


def run(server, **others):
    return InProcess().run_sync({**others, "server": server})["server"]


def test_a_wrong_kind_names_both_parties_what_was_expected_and_what_came():
    async def server(me):
        await me.scope("round 3").recv("p0", PartyWord)

    with pytest.raises(
        PartyFailed, match="party 'server' expected PartyWord from 'p0' in scope 'round 3', got 'PartyNumber'"
    ) as failed:
        run(server, p0=says(1, scope="round 3"))
    assert isinstance(failed.value.__cause__, ProtocolError)


def test_recv_takes_any_of_several_kinds_in_the_order_sent():
    async def server(me):
        return [await me.recv("p0", PartyWord, PartyNumber) for _ in range(3)]

    assert run(server, p0=says("a", 1, "b")) == [PartyWord("a"), PartyNumber(1), PartyWord("b")]


def test_recv_after_its_deadline_says_who_did_not_answer():
    async def server(me):
        await me.recv("p0", PartyWord, within=5)

    with pytest.raises(
        PartyFailed, match="party 'server' waited 5 s for PartyWord from 'p0', which did not arrive"
    ):
        run(server, p0=idle)


def test_first_returns_the_first_message():
    async def late(me):
        await me.clock.sleep({"p0": 3.0, "p1": 1.0, "p2": 2.0}[me.name])
        await me.send("server", PartyWord(me.name))

    async def server(me):
        order = [await me.first(PartyWord, PartyNumber) for _ in range(2)]
        return [sender for sender, _ in order] + [(await me.first(PartyWord, senders=["p0"]))[0]]

    assert run(server, p0=late, p1=late, p2=late) == ["p1", "p2", "p0"]


def test_first_reads_waiting_mail_in_order_of_arrival_and_has_a_deadline():
    async def server(me):
        await me.clock.sleep(1)
        came = [await me.first(PartyWord) for _ in range(3)]
        with pytest.raises(ProtocolError, match="waited 2 s for PartyWord from anyone"):
            await me.first(PartyWord, within=2)
        with pytest.raises(ProtocolError, match="PartyWord from any of 'p0', 'p1'"):
            await me.first(PartyWord, senders=["p1", "p0"], within=2)
        return [(sender, message.word) for sender, message in came]

    assert run(server, p1=says("x", "y"), p0=says("z")) == [("p1", "x"), ("p1", "y"), ("p0", "z")]


names = [f"p{i}" for i in range(6)]


@given(st.permutations(names), st.sets(st.sampled_from(names)), st.integers(0, 6))
@settings(max_examples=40, deadline=None)
def test_gather_returns_answers_in_the_requested_order_or_names_the_missing(asked, silent, need):
    async def server(me):
        came = await me.gather(asked, PartyWord, at_least=need, within=10)
        return [(name, message.word) for name, message in came.items()], came.missing

    programs = {name: idle if name in silent else says(name) for name in names}
    speaking = [name for name in asked if name not in silent]
    if len(speaking) >= need:
        assert run(server, **programs) == (
            [(name, name) for name in speaking],
            tuple(name for name in asked if name in silent),
        )
    else:
        said = f"needs PartyWord from {need} of 6 parties and has {len(speaking)}.*did not answer within 10 s"
        with pytest.raises(PartyFailed, match=said) as failed:
            run(server, **programs)
        assert all(repr(name) in str(failed.value) for name in silent)


def test_gather_takes_one_message_from_each_and_leaves_the_next_for_later():
    async def server(me):
        first = await me.gather(["a", "b"], PartyNumber)
        second = await me.gather(["a", "b"], PartyNumber)
        return [m.n for m in (*first.values(), *second.values())]

    for order in (
        ("a", "b", "server"),
        ("server", "b", "a"),
    ):  # the mail is there before, and while, the server waits
        programs = {"a": says(1, 2), "b": says(3, 4), "server": server}
        assert InProcess().run_sync({name: programs[name] for name in order})["server"] == [1, 3, 2, 4]


def test_gather_with_a_minimum_counts_an_unreadable_answer_as_missing_and_keeps_the_reason():
    async def garbage(me):
        await me.transport.deliver(me.name, "server", "", b"not a frame")

    async def server(me):
        came = await me.gather(["good", "wrong", "garbage"], PartyWord, at_least=1, within=1)
        return list(came), came.missing, {name: type(error) for name, error in came.refused.items()}

    programs = {"good": says("x"), "wrong": says(1), "garbage": garbage}
    assert run(server, **programs) == (
        ["good"],
        ("wrong", "garbage"),
        {"wrong": ProtocolError, "garbage": BadFrame},
    )

    async def strict(me):
        await me.gather(["good", "garbage"], PartyWord, within=1)

    with pytest.raises(
        PartyFailed,
        match="expected PartyWord from 'garbage' and received an unreadable message: these bytes are not a "
        "tacit",
    ):
        run(strict, good=says("x"), garbage=garbage)

    async def demanding(me):
        await me.gather(["good", "garbage"], PartyWord, at_least=2, within=1)

    with pytest.raises(
        PartyFailed, match=r"from 2 of 2 parties and has 1\. party 'server' expected PartyWord from 'garbage'"
    ):
        run(demanding, good=says("x"), garbage=garbage)


def test_gather_refuses_a_minimum_that_cannot_be_met():
    async def server(me):
        await me.gather(["a"], PartyWord, at_least=2)

    with pytest.raises(PartyFailed, match="at_least is 2; it must be between 0 and the 1 senders asked"):
        run(server, a=idle)


paths = ["", "a", "b", "a/c", "a/b"]


@given(st.lists(st.tuples(st.sampled_from(paths), st.integers(0, 99)), max_size=20), st.permutations(paths))
@settings(max_examples=40, deadline=None)
def test_each_scope_receives_its_own_messages_in_order_whatever_is_read_first(sent, order):
    def at(me, path):
        for tag in filter(None, path.split("/")):
            me = me.scope(tag)
        return me

    async def sender(me):
        for path, n in sent:
            await at(me, path).send("server", PartyNumber(n))

    async def server(me):
        return {
            path: [(await at(me, path).recv("p0", PartyNumber)).n for p, _ in sent if p == path]
            for path in order
        }

    assert run(server, p0=sender) == {path: [n for p, n in sent if p == path] for path in order}


def test_a_message_sent_alone_is_in_a_scope_that_keeps_nothing():
    async def sender(me):
        await me.scope("outer").send_alone("round 1", "server", PartyNumber(7))
        await me.recv("server", PartyNumber)
        return list(me.mailbox._queues)

    async def server(me):
        here = me.scope("outer").scope("round 1")
        found = (await here.recv("p0", PartyNumber)).n
        await here.send("p0", PartyNumber(0))  # too late: nobody reads it
        await me.send("p0", PartyNumber(1))
        return found

    results = InProcess().run_sync({"p0": sender, "server": server})
    assert results == {"p0": [], "server": 7}


def test_a_scopes_tag_may_not_imitate_a_nested_one():
    me = lone_party()
    for tag in ("a/b", "", "/"):
        with pytest.raises(BadParameter, match="must be a word without '/'"):
            me.scope(tag)


def test_a_closed_scope_keeps_nothing_and_cannot_be_entered_again():
    me = lone_party()
    with me.scope("round 1") as here:
        me.mailbox.put("x", "round 1", b"late")
        me.mailbox.put("x", "round 1/inner", b"late")
        me.mailbox.put("x", "round 10", b"another")
        assert here.tag == "round 1"
    me.mailbox.put("x", "round 1", b"later still")
    assert list(me.mailbox._queues) == ["round 10"]
    assert sum(line.count for line in me.ledger.seen) == 4  # dropped, but seen
    with pytest.raises(
        ProtocolError, match=r"scope 'round 1' was closed, and messages for it are dropped\. Use a new tag"
    ):
        me.scope("round 1")
    with pytest.raises(ProtocolError, match="only a scope can be closed"), me:
        pass


def test_thousands_of_rounds_leave_no_trace_in_a_mailbox():
    async def client(me):
        for r in range(3000):
            with me.scope(f"round {r}") as here:
                await here.send("server", PartyNumber(r))
                await here.recv("server", PartyNumber, within=60)

    async def server(me):
        for r in range(3000):
            with me.scope(f"round {r}") as here:
                await here.send("p0", (await here.recv("p0", PartyNumber, within=60)))
        box = me.mailbox
        return (
            len(box._queues),
            len(box._watches),
            len(box._closed) <= 1024,
            len(me._turns),
            len(me.clock._alarms) < 200,
        )

    assert run(server, p0=client) == (0, 0, True, 0, True)


def lone_party(name="me", **given) -> Party:
    return Party(name, None, Mailbox(name, Ledger()), **given)  # type: ignore[arg-type]


def test_rng_is_reproducible_and_differs_between_seeds_names_and_scopes_also_a_scope_entered_twice():
    def draws(seed=0, name="a"):
        me = lone_party(name, seed=seed)
        return [
            tuple(p.rng.random(4))
            for p in (me, me.scope("x"), me.scope("y"), me.scope("x").scope("y"), me.scope("x"))
        ]

    assert draws() == draws()
    streams = [*draws(), *draws(seed=1), *draws(name="b")]
    assert all(a != b for a, b in itertools.combinations(streams, 2))


def test_without_a_seed_rng_is_fresh():
    assert lone_party().rng.random() != lone_party().rng.random()


def test_what_one_scope_draws_does_not_move_another():
    a, b = lone_party(seed=0), lone_party(seed=0)
    a.scope("x").rng.random(100)
    assert a.scope("y").rng.random() == (b.scope("x"), b.scope("y"))[1].rng.random()


def test_secrets_come_from_the_system_and_a_seeded_one_stamps_the_ledger():
    me = lone_party()
    assert len(me.secret.bytes(32)) == 32
    assert me.secret.bytes(32) != me.secret.bytes(32)
    assert type(me.secret) is Secret
    assert me.ledger.stamps == []
    seeded = [lone_party(secret=SeededSecret(7)) for _ in range(2)]
    assert seeded[0].secret.bytes(16) == (first := seeded[1].secret.bytes(16)) != seeded[1].secret.bytes(16)
    assert first != SeededSecret(8).bytes(16)
    assert all(
        len(me.ledger.stamps) == 1 and me.ledger.stamps[0].startswith("NOT PRIVATE: ") for me in seeded
    )


def test_two_tasks_of_one_party_share_its_mail_and_a_cancelled_wait_loses_none():
    async def server(me):
        task = asyncio.create_task(me.recv("p0", PartyNumber))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await me.send("p0", PartyWord("go"))
        both = await asyncio.gather(me.recv("p0", PartyNumber), me.recv("p0", PartyNumber))
        return [m.n for m in both]

    async def p0(me):
        await me.recv("server", PartyWord)
        for n in (1, 2):
            await me.send("server", PartyNumber(n))

    assert run(server, p0=p0) == [1, 2]


def test_one_message_can_go_to_several_and_nothing_mutable_is_shared():
    async def server(me):
        await me.send(["a", "b"], PartyWord("hello"))

    async def client(me):
        return (await me.recv("server", PartyWord)).word

    assert InProcess().run_sync({"server": server, "a": client, "b": client}) == {
        "server": None,
        "a": "hello",
        "b": "hello",
    }


class PartyNotice(Message, reveals="a number", is_read_only=True):
    value: Tensor


def test_a_read_only_message_to_several_parties_of_one_process_is_decoded_once():
    """Of the same frame only: a sender that tells one party something else is read by that party itself."""

    async def sender(me):
        for value in (1.0, 2.0):
            await me.send(["b", "c"], PartyNotice(torch.tensor([value])))
        await me.send("b", PartyNotice(torch.tensor([3.0])))
        await me.send("c", PartyNotice(torch.tensor([4.0])))

    async def receiver(me):
        return [(await me.recv("a", PartyNotice)).value for _ in range(3)]

    found = InProcess().run_sync({"a": sender, "b": receiver, "c": receiver})
    assert [v.item() for v in found["b"]] == [1.0, 2.0, 3.0]
    assert [v.item() for v in found["c"]] == [1.0, 2.0, 4.0]

    async def wrong(me):
        with pytest.raises(ProtocolError, match="expected PartyNumber"):
            await me.recv("a", PartyNumber)

    async def once(me):
        await me.send(["b", "c"], PartyNotice(torch.tensor([1.0])))

    async def right(me):
        return (await me.recv("a", PartyNotice)).value

    assert InProcess().run_sync({"a": once, "b": right, "c": wrong})["b"].item() == 1.0


def test_only_the_very_same_frame_is_known():
    shared, frame = LastRead(), encode(PartyNotice(torch.tensor([1.0])))
    message = decode(frame, PartyNotice)
    shared.keep(frame, message)
    assert shared.find(frame, (PartyNotice,)) is message
    assert shared.find(frame, (PartyNumber,)) is None
    assert shared.find(bytes(bytearray(frame)), (PartyNotice,)) is None  # equal, and another object
    changeable = bytearray(frame)
    shared.keep(changeable, message)  # memory that a receiver may use, or that may change
    assert shared.find(changeable, (PartyNotice,)) is None
    other = encode(PartyNumber(1))
    shared.keep(other, decode(other, PartyNumber))  # not declared as read-only
    assert shared.find(other, (PartyNumber,)) is None


def test_an_inbox_gives_the_messages_of_one_sender_in_order():
    """Also those that came before it, and none that another task of the party took."""

    async def sender(me):
        for n in range(4):
            await me.send("b", PartyNumber(n))
            await me.clock.sleep(1)

    async def receiver(me):
        await me.clock.sleep(1.5)  # two are there
        found = []
        with me.listen("a", PartyNumber) as inbox:
            found.append((await inbox.next()).n)
            found.append((await me.recv("a", PartyNumber)).n)
            other = asyncio.ensure_future(me.recv("a", PartyNumber))
            found.append((await other).n)
            found.append((await inbox.next()).n)
            waiting = asyncio.ensure_future(inbox.next())
            await me.clock.sleep(1)
            assert me.mailbox.waiting() == ["PartyNumber from 'a'"]
            waiting.cancel()
        assert me.mailbox.waiting() == []
        return found

    assert InProcess().run_sync({"a": sender, "b": receiver})["b"] == [0, 1, 2, 3]


def test_an_inbox_gives_all_messages_that_came_before_it():
    async def sender(me):
        for n in range(3):
            await me.send("b", PartyNumber(n))

    async def receiver(me):
        await me.clock.sleep(1)  # all three are there, and no other comes
        inbox = me.listen("a", PartyNumber)
        with inbox:
            return [(await inbox.next()).n for _ in range(3)]

    assert InProcess().run_sync({"a": sender, "b": receiver})["b"] == [0, 1, 2]


def test_an_inbox_refuses_another_kind():
    async def sender(me):
        await me.send("b", PartyWord("hello"))

    async def receiver(me):
        with me.listen("a", PartyNumber) as inbox:
            await inbox.next()

    with pytest.raises(PartyFailed, match="expected PartyNumber from 'a', got 'PartyWord'"):
        InProcess().run_sync({"a": sender, "b": receiver})
