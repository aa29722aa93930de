"""Parties in one process: the conformance suite, how a run fails, and that it never hangs."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tacit.errors import BadParameter, PartyFailed, ProtocolError
from tacit.parties import Ledger, Message, encode
from tacit.runtimes import InProcess
from tacit.runtimes.conformance import CHECKS, check_runtime


class InBall(Message, reveals="where the ball is"):
    n: int


class InWeights(Message, reveals="the weights"):
    w: Tensor


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("clock", ["virtual", "real"])
def test_in_process_passes_the_runtime_suite(clock, check):
    check(InProcess(clock=clock))


class Broken:
    """A runtime that fails one promise at a time: the suite must notice each."""

    def __init__(self, fault):
        self.fault = fault

    async def run(self, programs, *, ledger=None):
        if self.fault == "swallows failures":
            try:
                return await InProcess().run(programs, ledger=ledger)
            except PartyFailed:
                return dict.fromkeys(programs)
        if self.fault == "forgets the ledger":
            return await InProcess().run(programs)
        if self.fault == "names the wrong one":
            try:
                return await InProcess().run(programs, ledger=ledger)
            except PartyFailed as failed:
                raise PartyFailed("server", failed.error) from failed
        return await InProcess(seed=None).run(programs, ledger=ledger)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("swallows failures", "came back without 'silent'"),
        ("forgets the ledger", "the ledger of a ping-pong"),
        ("names the wrong one", "'faulty' failed, the error says"),
        ("ignores the seed", "two runs with one seed differ"),
    ],
)
def test_the_runtime_suite_notices_a_broken_runtime(fault, reason):
    with pytest.raises(AssertionError, match=reason):
        check_runtime(Broken(fault))


async def idle(me):
    pass


async def waits(me):
    await me.recv("b" if me.name == "a" else "a", InBall)


def test_parties_that_wait_for_each_other_are_an_error_that_says_who_waits_for_what():
    said = (
        r"no party can continue: 'a' waits for InBall from 'b'; 'b' waits for InBall from 'a'\. Send "
        r"the missing message"
    )
    with pytest.raises(ProtocolError, match=said):
        InProcess().run_sync({"a": waits, "b": waits})


@pytest.mark.parametrize("clock", ["virtual", "real"])
def test_waiting_for_a_party_that_has_finished_is_an_error_not_a_hang(clock):
    with pytest.raises(ProtocolError, match=r"'a' waits for InBall from 'b'\. Already finished: 'b'\."):
        InProcess(clock=clock).run_sync({"a": waits, "b": idle})


def test_a_deadlock_among_the_tasks_of_a_party_is_found_and_all_waits_are_listed():
    async def many(me):
        async with asyncio.TaskGroup() as group:
            group.create_task(me.recv("b", InBall))
            group.create_task(me.scope("x").gather(["b", "c"], InBall))

    with pytest.raises(
        ProtocolError, match="'a' waits for InBall from 'b' and for InBall from 'b', 'c' in scope 'x'"
    ):
        InProcess().run_sync({"a": many, "b": idle, "c": idle})


def test_work_on_a_thread_and_real_timers_are_not_mistaken_for_a_deadlock():
    async def slow(me):
        await asyncio.to_thread(time.sleep, 0.05)
        await asyncio.sleep(0.02)
        await me.send("a", InBall(1))

    async def asks(me):
        return (await me.recv("b", InBall)).n

    async def both(me):  # waits for mail while another of its tasks is away on a thread
        got, _ = await asyncio.gather(me.recv("a", InBall), slow(me))
        return got.n

    async def echo(me):
        await me.send("b", await me.recv("b", InBall))

    assert InProcess().run_sync({"a": asks, "b": slow})["a"] == 1
    assert InProcess().run_sync({"a": echo, "b": both})["b"] == 1


def test_a_failing_party_cancels_the_others_and_the_error_chains_the_original():
    cleaned = []

    async def fails(me):
        await me.recv("a", InBall)
        raise KeyError("patients.csv")

    async def lives(me):
        await me.send("b", InBall(1))
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(me.name)

    with pytest.raises(PartyFailed, match=r"party 'b' failed: KeyError: 'patients\.csv'") as failed:
        InProcess().run_sync({"a": lives, "b": fails})
    assert failed.value.party == "b"
    assert isinstance(failed.value.__cause__, KeyError)
    assert cleaned == ["a"]


def test_errors_while_stopping_are_noted_and_do_not_hide_the_first():
    async def fails(me):
        raise ValueError("first")

    async def untidy(me):
        try:
            await asyncio.Event().wait()
        finally:
            raise RuntimeError("second")

    with pytest.raises(PartyFailed, match="party 'a' failed: ValueError: first") as failed:
        InProcess().run_sync({"b": untidy, "a": fails})
    assert "party 'b' failed: RuntimeError: second" in failed.value.__notes__[0]


def test_a_program_that_is_not_a_coroutine_or_cancels_itself_is_a_failed_party():
    async def gives_up(me):
        raise asyncio.CancelledError

    with pytest.raises(PartyFailed, match="party 'a' failed: TypeError"):
        InProcess().run_sync({"a": lambda me: 3})
    with pytest.raises(PartyFailed, match="party 'a' failed: CancelledError"):
        InProcess().run_sync({"a": gives_up})


def test_sending_to_an_unknown_party_names_the_nearest_one():
    async def lost(me):
        await me.send("hospital-d", InBall(1))

    with pytest.raises(
        PartyFailed,
        match=r"'a' sends to 'hospital-d', which is not a party of this run\. Did you mean 'hospital-b'\?",
    ):
        InProcess().run_sync({"a": lost, "hospital-b": idle})


def test_the_ledger_holds_the_bytes_of_the_wire_for_each_receiver_even_if_unread_or_failed():
    message = InWeights(torch.zeros(100))

    async def talks(me):
        for _ in range(3):
            await me.send("b", message)

    async def fails(me):
        await me.recv("a", InWeights)
        raise ValueError

    for listener in (idle, fails):
        ledger = Ledger()
        ledger.record("b", "a", InWeights, bytes=1)  # what was there before stays
        try:
            InProcess().run_sync({"a": talks, "b": listener}, ledger=ledger)
        except PartyFailed:
            assert listener is fails
        [line] = ledger.seen
        assert (line.party, line.sender, line.kind, line.reveals, line.count) == (
            "b",
            "a",
            "InWeights",
            "the weights",
            4,
        )
        assert line.bytes == 1 + 3 * len(encode(message))
        assert line.how == "executed"


def test_parties_do_not_share_memory():
    w = torch.zeros(3)

    async def owner(me):
        await me.send("b", InWeights(w))
        await me.recv("b", InBall)
        return w.tolist()

    async def vandal(me):
        (await me.recv("a", InWeights)).w.fill_(9.0)
        await me.send("a", InBall(0))

    assert InProcess().run_sync({"a": owner, "b": vandal})["a"] == [0, 0, 0]


@given(st.integers(2, 5), st.integers(1, 30), st.integers(0, 3))
@settings(max_examples=15, deadline=None)
def test_a_run_with_sleeps_draws_and_races_comes_out_the_same_every_time(parties, hops, seed):
    names = [f"p{i}" for i in range(parties)]

    async def wander(me):
        log = []
        if me.name == "p0":
            await me.send("p1", InBall(hops))
        while True:
            try:
                sender, ball = await me.first(InBall, within=50)
            except ProtocolError:
                return log, me.clock.now()
            log.append((sender, ball.n))
            if ball.n:
                await me.clock.sleep(float(me.rng.random()))
                await me.send(names[int(me.rng.integers(parties))], InBall(ball.n - 1))

    once, again = (InProcess(seed=seed).run_sync(dict.fromkeys(names, wander)) for _ in range(2))
    assert once == again
    assert sum(len(log) for log, _ in once.values()) == hops + 1


def test_a_seeded_secret_is_replayed_and_the_ledger_says_so():
    async def secret(me):
        return me.secret.bytes(16)

    ledger = Ledger()
    runs = [InProcess(insecure_seed=1).run_sync({"a": secret, "b": secret}, ledger=ledger) for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0]["a"] != runs[0]["b"]
    assert len(ledger.stamps) == 1
    assert ledger.stamps[0].startswith("NOT PRIVATE")
    assert InProcess().run_sync({"a": secret}) != InProcess().run_sync({"a": secret})


def test_it_runs_from_async_code_from_a_taken_loop_and_inside_a_party():
    async def name(me):
        return me.name

    async def nested(me):
        return await InProcess().run({"inner": name})

    async def outside():
        return await InProcess().run({"a": nested}), InProcess().run_sync({"b": name})

    assert asyncio.run(outside()) == ({"a": {"inner": "inner"}}, {"b": "b"})
    assert InProcess().run_sync({}) == {}


def test_cancelling_a_run_stops_every_party_first():
    started, stopped = threading.Event(), []

    async def endless(me):
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(me.name)

    async def outside():
        task = asyncio.create_task(InProcess().run({"a": endless, "b": endless}))
        await asyncio.to_thread(started.wait)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled(), sorted(stopped)

    assert asyncio.run(outside()) == (True, ["a", "b"])


def test_an_oversized_message_is_refused_at_its_sender():
    async def heavy(me):
        await me.send("b", InWeights(torch.zeros(1000)))

    with pytest.raises(
        PartyFailed,
        match=r"party 'a' failed: ProtocolError: InWeights takes .* more than the 1000 a frame may have",
    ):
        InProcess(max_bytes=1000).run_sync({"a": heavy, "b": idle})


def test_bad_parameters_are_refused():
    with pytest.raises(
        BadParameter, match="InProcess: clock is 'sundial'; it must be one of 'virtual', 'real'"
    ):
        InProcess(clock="sundial").run_sync({})
    with pytest.raises(BadParameter, match="the name of a party is ''; it must be a word"):
        InProcess().run_sync({"": idle})


def test_importing_the_room_loads_no_runtime():
    import subprocess
    import sys

    code = (
        "import sys, tacit.runtimes; sys.exit(bool({'torch', 'msgpack', 'tacit.runtimes.inprocess'} & "
        "set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
