"""Conformance checks for runtimes: a program runs unchanged on each of them.

The programs are module-level functions, because a runtime may start them in another process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..errors import ProtocolError
from ..parties.conformance import demand, expect_failure, run_within
from ..parties.ledger import Ledger
from ..parties.message import Message
from ..parties.party import Party, Program, Runtime

PATIENCE = 120.0  # seconds of real time for one check, process start-up included
LATE = 0.2  # seconds a gather waits for a silent party; the other messages have arrived before


class CheckNumber(Message, reveals="a number used to check a runtime"):
    value: int


class CheckTensor(Message, reveals="a tensor used to check a runtime"):
    value: Tensor


class CheckWord(Message, reveals="a word used to check a runtime"):
    value: str


def check_runtime(runtime: Runtime) -> None:
    """Raise AssertionError with the reason unless the runtime passes all CHECKS."""
    for check in CHECKS:
        check(runtime)


def _run(runtime: Runtime, programs: dict[str, Program]) -> tuple[dict[str, Any], Ledger]:
    ledger = Ledger()
    return run_within(runtime, programs, ledger, PATIENCE), ledger


async def _serve(me: Party) -> int:
    await me.send("returner", CheckNumber(41))
    return (await me.recv("returner", CheckNumber)).value


async def _return(me: Party) -> str:
    await me.send("server", CheckNumber((await me.recv("server", CheckNumber)).value + 1))
    return me.name


def ping_pong_is_answered_and_recorded(runtime: Runtime) -> None:
    results, ledger = _run(runtime, {"server": _serve, "returner": _return})
    demand(results == {"server": 42, "returner": "returner"}, f"{runtime!r}: ping-pong gave {results}.")
    seen = {(line.party, line.sender, line.kind, line.count, line.bytes > 0) for line in ledger.seen}
    expected = {(*pair, "CheckNumber", 1, True) for pair in (("server", "returner"), ("returner", "server"))}
    demand(seen == expected, f"{runtime!r}: the ledger of a ping-pong is {seen}.")


async def _count(me: Party) -> None:
    for i in range(100):
        await me.send("listener", CheckNumber(i))


async def _listen(me: Party) -> dict[str, list[int]]:
    return {who: [(await me.recv(who, CheckNumber)).value for _ in range(100)] for who in ("second", "first")}


def each_senders_messages_arrive_in_order(runtime: Runtime) -> None:
    results, _ = _run(runtime, {"first": _count, "second": _count, "listener": _listen})
    demand(
        all(values == list(range(100)) for values in results["listener"].values()),
        f"{runtime!r} changes the order of one sender's messages.",
    )


async def _send_word(me: Party) -> None:
    await me.send("server", CheckWord(me.name))
    await me.scope("arrived").send("server", CheckWord(me.name))


async def _await_words(me: Party, *names: str) -> None:
    """Wait until these parties' messages have arrived: a process may take long to start."""
    await me.scope("arrived").gather(names, CheckWord)


async def _silent(me: Party) -> None:
    pass


async def _collect(me: Party) -> tuple[dict[str, str], tuple[str, ...]]:
    await _await_words(me, "a", "b", "c")
    messages = await me.gather(["c", "silent", "a", "b"], CheckWord, at_least=3, within=LATE)
    return {name: message.value for name, message in messages.items()}, messages.missing


async def _collect_all(me: Party) -> None:
    await _await_words(me, "a")
    await me.gather(["a", "silent"], CheckWord, within=LATE)


def gather_goes_on_without_a_silent_party(runtime: Runtime) -> None:
    results, _ = _run(
        runtime, {"server": _collect, "a": _send_word, "b": _send_word, "c": _send_word, "silent": _silent}
    )
    words, missing = results["server"]
    demand(
        list(words.items()) == [("c", "c"), ("a", "a"), ("b", "b")],
        f"{runtime!r}: gather gave {words}, not c, a, b in the order asked.",
    )
    demand(tuple(missing) == ("silent",), f"{runtime!r}: gather names {missing} as missing.")
    failed = expect_failure(
        partial(_run, runtime, {"server": _collect_all, "a": _send_word, "silent": _silent}),
        f"{runtime!r}: a gather that needs everyone came back without 'silent'.",
    )
    demand(
        failed.party == "server" and isinstance(failed.error, ProtocolError) and "'silent'" in str(failed),
        f"{runtime!r}: {failed}",
    )


async def _scoped_sender(me: Party) -> None:
    for tag in ("second", "first"):
        await me.scope(tag).send("reader", CheckWord(tag))
        await me.scope(tag).scope("inner").send("reader", CheckWord(f"{tag}/inner"))
    await me.send("reader", CheckWord("outer"))


async def _scoped_reader(me: Party) -> list[str]:
    first, second = me.scope("first"), me.scope("second")
    return [
        (await here.recv("writer", CheckWord)).value
        for here in (me, first.scope("inner"), first, second, second.scope("inner"))
    ]


def scopes_do_not_hear_each_other(runtime: Runtime) -> None:
    results, _ = _run(runtime, {"writer": _scoped_sender, "reader": _scoped_reader})
    demand(
        results["reader"] == ["outer", "first/inner", "first", "second", "second/inner"],
        f"{runtime!r}: scopes cross: {results}.",
    )


def _large() -> Tensor:
    return torch.arange(
        4_000_000, dtype=torch.float32
    )  # 16 MB: larger than any frame of HTTP/2 or default gRPC message


async def _send_large(me: Party) -> bool:
    mine = _large()
    await me.send("reader", CheckTensor(mine))
    await me.recv("reader", CheckWord)
    return torch.equal(mine, _large())


async def _read_large(me: Party) -> bool:
    value = (await me.recv("writer", CheckTensor)).value
    same = torch.equal(value, _large())
    value.zero_()  # a received tensor belongs to the receiver alone
    await me.send("writer", CheckWord("changed"))
    return same


def a_large_tensor_arrives_whole_and_unshared(runtime: Runtime) -> None:
    results, _ = _run(runtime, {"writer": _send_large, "reader": _read_large})
    demand(results["reader"], f"{runtime!r}: a 16 MB tensor did not arrive as it was sent.")
    demand(results["writer"], f"{runtime!r}: the receiver changed the sender's tensor: they share memory.")


async def _fail(me: Party) -> None:
    await me.recv("server", CheckWord)
    raise ZeroDivisionError("made to fail")


async def _wait_forever(me: Party) -> None:
    await me.send("faulty", CheckWord("go"))
    await me.recv("faulty", CheckWord)


def a_failing_party_is_named_and_ends_the_run(runtime: Runtime) -> None:
    failed = expect_failure(
        partial(_run, runtime, {"server": _wait_forever, "faulty": _fail}),
        f"{runtime!r}: a party failed and the run ended without an error.",
    )
    demand(
        failed.party == "faulty" and "made to fail" in str(failed),
        f"{runtime!r}: 'faulty' failed, the error says: {failed}",
    )


async def _draw(me: Party) -> list[float]:
    return [*me.rng.random(3), *me.scope("inner").rng.random(3)]


def the_same_seed_gives_the_same_result(runtime: Runtime) -> None:
    once, again = (_run(runtime, {"a": _draw, "b": _draw})[0] for _ in range(2))
    demand(once == again, f"{runtime!r}: two runs with one seed differ.")
    demand(once["a"] != once["b"], f"{runtime!r}: two parties draw the same random numbers.")


async def _close_round(me: Party) -> int:
    with me.scope("round 1") as here:
        await here.recv("other", CheckNumber)
    return (await me.scope("round 2").recv("other", CheckNumber)).value


async def _talk_late(me: Party) -> None:
    for value in (1, 2):  # the second arrives after the round was closed
        await me.scope("round 1").send("server", CheckNumber(value))
    await me.scope("round 2").send("server", CheckNumber(3))


def late_mail_of_a_closed_round_stays_out_of_the_next(runtime: Runtime) -> None:
    results, _ = _run(runtime, {"server": _close_round, "other": _talk_late})
    demand(results["server"] == 3, f"{runtime!r}: mail of a closed round was read in the next.")


CHECKS: tuple[Callable[[Runtime], None], ...] = (
    ping_pong_is_answered_and_recorded,
    each_senders_messages_arrive_in_order,
    gather_goes_on_without_a_silent_party,
    scopes_do_not_hear_each_other,
    a_large_tensor_arrives_whole_and_unshared,
    a_failing_party_is_named_and_ends_the_run,
    the_same_seed_gives_the_same_result,
    late_mail_of_a_closed_round_stays_out_of_the_next,
)
