"""Every party a process of its own, over real sockets: the same promises as in one process."""

from __future__ import annotations

import functools
import os
from pathlib import Path

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


def test_processes_start_in_a_new_interpreter(new_interpreter):
    conformance.ping_pong_is_answered_and_recorded(Processes())


def test_each_party_has_a_process_of_its_own():
    pids = Processes().run_sync({"a": where, "b": where})
    assert len({*pids.values(), os.getpid()}) == 3


async def adds(me: Party, other: str, numbers: list[int], more: int = 0) -> tuple[str, int]:
    await me.send(other, ProcessNumber(sum(numbers) + more))
    return me.name, (await me.recv(other, ProcessNumber)).value


def test_programs_take_plain_arguments_and_give_plain_values():
    alice, bob = (
        functools.partial(adds, other="bob", numbers=[1, 2], more=4),
        functools.partial(adds, other="alice", numbers=[10]),
    )
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
    with pytest.raises(
        PartyFailed,
        match="party 'a' failed: ProtocolError: its process was killed by signal 9 before it returned a "
        "result",
    ):
        Processes().run_sync({"a": kills_itself, "b": waits})


async def dies_once(me: Party, marker: str) -> str:
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), 9)
    await me.send("b", ProcessNumber(5))
    return "alive"


async def hears_one(me: Party) -> int:
    return (await me.recv("a", ProcessNumber)).value


def test_a_killed_process_is_restarted_if_requested(tmp_path):
    results = Processes(restart=True).run_sync(
        {"a": functools.partial(dies_once, marker=str(tmp_path / "died")), "b": hears_one}
    )
    assert results == {"a": "alive", "b": 5}
    assert (tmp_path / "died").exists()


async def kills_the_hub(me: Party, between: int, count: int) -> int:
    """Sends numbers; before one of them it kills the oldest process its own parent has, which is the hub."""
    for k in range(count):
        if k == between:
            siblings = [
                int(p.name)
                for p in Path("/proc").iterdir()
                if p.name.isdigit() and _stat(int(p.name))[1] == os.getppid()
            ]
            hub = min(siblings, key=lambda pid: (_stat(pid)[19], pid))  # ids begin again at some number
            os.kill(hub, 9)
        await me.send("b", ProcessNumber(k))
        await me.recv("b", ProcessNumber)
    return hub


def _stat(pid: int) -> list[int]:
    """What the kernel counts about a process: item 1 is its parent's id, item 19 when it was started."""
    try:
        state, *numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return [-1] * 20
    return [ord(state), *map(int, numbers)]


async def echoes(me: Party, count: int) -> list[int]:
    got = []
    for _ in range(count):
        got.append((await me.recv("a", ProcessNumber)).value)
        await me.send("a", ProcessNumber(got[-1]))
    return got


def test_a_killed_hub_is_started_again_and_nothing_is_lost_or_doubled():
    results = Processes(restart=True).run_sync(
        {"a": functools.partial(kills_the_hub, between=3, count=6), "b": functools.partial(echoes, count=6)}
    )
    assert results["b"] == list(range(6))
    assert results["a"] != os.getpid()


async def fails(me: Party) -> None:
    raise ValueError("a bug of its own")


def test_a_program_that_failed_by_itself_is_not_started_again():
    with pytest.raises(PartyFailed, match="party 'a' failed: ValueError: a bug of its own"):
        Processes(restart=True).run_sync({"a": fails, "b": hears_one})


async def returns_an_object(me: Party) -> object:
    return os


def test_a_result_that_is_not_a_plain_value_names_its_party():
    with pytest.raises(
        PartyFailed,
        match="party 'a' failed: BadParameter: what the program of 'a' returned contains a module, which "
        "cannot be sent",
    ):
        Processes().run_sync({"a": returns_an_object})


@pytest.mark.parametrize(
    ("programs", "words"),
    [
        (
            {"a": lambda me: where(me)},
            r"the program of 'a' is <function <lambda> .*, which another process cannot import",
        ),
        ({"a": functools.partial(adds, other=os)}, "an argument of the program of 'a' contains a module"),
        (
            {"hub": where},
            "the name of a party is 'hub'; it must be a word of at most 64 characters, and not 'hub'",
        ),
    ],
)
def test_what_another_process_cannot_have_is_refused_before_anything_starts(programs, words):
    with pytest.raises(BadParameter, match=words):
        Processes().run_sync(programs)


def test_a_minimum_without_a_deadline_is_refused():
    with pytest.raises(
        BadParameter,
        match=r"Processes: at_least is 2; it must be None without a deadline\. Give deadline, too",
    ):
        Processes(at_least=2).run_sync({"a": where})


def test_no_process_is_left_behind():
    pids = list(Processes().run_sync({"a": where, "b": where}).values())
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
