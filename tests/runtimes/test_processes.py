"""Every party a process of its own, over real sockets: the same promises as in one process."""

from __future__ import annotations

import functools
import os

import pytest

from tacit.errors import BadParameter, PartyFailed
from tacit.parties import Message, Party
from tacit.runtimes import conformance
from tacit.runtimes.processes import Processes


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda c: c.__name__)
def test_processes_pass_the_runtime_suite(check):
    check(Processes())


class ProcessNumber(Message, reveals="a number"):
    value: int


async def where(me: Party) -> int:
    return os.getpid()


def test_each_party_has_a_process_of_its_own():
    pids = Processes().run_sync({"a": where, "b": where})
    assert len({*pids.values(), os.getpid()}) == 3


async def adds(me: Party, other: str, numbers: list[int], more: int = 0) -> tuple[str, int]:
    await me.send(other, ProcessNumber(sum(numbers) + more))
    return me.name, (await me.recv(other, ProcessNumber)).value


def test_programs_take_plain_arguments_and_give_plain_values():
    alice, bob = functools.partial(adds, other="bob", numbers=[1, 2], more=4), functools.partial(adds, other="alice", numbers=[10])
    results = Processes().run_sync({"alice": alice, "bob": bob})
    assert results == {"alice": ("alice", 10), "bob": ("bob", 7)}


async def tells(me: Party) -> int:
    await me.send("b", ProcessNumber(5))
    return 1


async def hears(me: Party, box: list[int]) -> None:
    box.append((await me.recv("a", ProcessNumber)).value)


def test_what_runs_here_may_be_any_function():
    box: list[int] = []
    Processes().run_sync({"a": tells, "b": lambda me: hears(me, box)}, here=("b",))
    assert box == [5]


async def kills_itself(me: Party) -> None:
    os.kill(os.getpid(), 9)


async def waits(me: Party) -> None:
    await me.recv("a", ProcessNumber)


def test_a_killed_process_is_a_failed_party():
    with pytest.raises(PartyFailed, match="party 'a' failed: ProtocolError: its process was killed by signal 9 before it had a result"):
        Processes().run_sync({"a": kills_itself, "b": waits})


async def returns_an_object(me: Party) -> object:
    return os


def test_a_result_that_is_no_plain_value_names_its_party():
    with pytest.raises(PartyFailed, match="party 'a' failed: BadParameter: what the program of 'a' returned holds a module, which cannot go"):
        Processes().run_sync({"a": returns_an_object})


@pytest.mark.parametrize(("programs", "words"), [
    ({"a": lambda me: where(me)}, r"the program of 'a' is <function <lambda> .*, which another process cannot find"),
    ({"a": functools.partial(adds, other=os)}, "an argument of the program of 'a' holds a module"),
    ({"hub": where}, "the name of a party is 'hub'; it must be a word of at most 64 characters, and not 'hub'")])
def test_what_another_process_cannot_have_is_refused_before_anything_starts(programs, words):
    with pytest.raises(BadParameter, match=words):
        Processes().run_sync(programs)


def test_a_minimum_without_a_deadline_is_refused():
    with pytest.raises(BadParameter, match=r"Processes: at_least is 2; it must be None without a deadline\. Give deadline, too"):
        Processes(at_least=2).run_sync({"a": where})


def test_no_process_is_left_behind():
    pids = list(Processes().run_sync({"a": where, "b": where}).values())
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
