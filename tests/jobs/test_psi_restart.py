"""A matching whose party is stopped and started again: it begins again with new keys, unless it was answered."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tacit.errors import PartyFailed, QueryRefused
from tacit.jobs.durable_run import MOST_BEGINS
from tacit.jobs.vertical.psi_restart import ANSWERS, run_with_restarts
from tacit.jobs.vertical.query_log import QueryLog
from tacit.parties.codec import decode, kind_of
from tacit.parties.conformance import Tap
from tacit.parties.message import KINDS
from tacit.parties.party import Party, Program, Transport
from tacit.protocols import psi, psi_many, psi_prepared
from tacit.runtimes.inprocess import InProcess
from tests.protocols.test_psi import digests

TERMS = {"participants": ["a", "b"], "method": "oprf"}
MINE, THEIRS = digests(range(30)), digests(range(20, 60))


def matching(
    name: str, other: str, method: str, reveal: str, ids: Any = None, queries: QueryLog | None = None
) -> Program:
    common: dict[str, Any] = {"other": other, "method": method, "reveal": reveal}
    if name == "a":
        inner = functools.partial(psi.receiver, digests=MINE if ids is None else ids, **common)
    else:
        inner = functools.partial(
            psi.sender, digests=THEIRS if ids is None else ids, queries=queries, **common
        )

    async def program(me: Party) -> Any:
        return await run_with_restarts(me.scope("psi"), [other], TERMS, inner)

    return program


class Killing:
    """A transport that ends its party where it would send the first message of a kind."""

    def __init__(self, inner: Transport, kind: str, event: asyncio.Event):
        self.inner, self.kind, self.event = inner, kind, event

    async def deliver(self, sender: str, to: str, scope: str, frame: bytes) -> None:
        if kind_of(frame) == self.kind and not self.event.is_set():
            self.event.set()
            await asyncio.Event().wait()
        await self.inner.deliver(sender, to, scope, frame)


def killed(program: Program, kind: str, times: int = 1, again: Program | None = None) -> Program:
    """A party that is killed before it sends a kind of message, and started again, `times` times."""

    async def restarted(me: Party) -> Any:
        for _ in range(times):
            event = asyncio.Event()
            task = asyncio.ensure_future(program(replace(me, transport=Killing(me.transport, kind, event))))
            await asyncio.wait([task, asyncio.ensure_future(event.wait())], return_when="FIRST_COMPLETED")
            if not event.is_set():
                return await task
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return await (again or program)(me)

    return restarted


@pytest.mark.parametrize(
    ("who", "kind", "method"),
    [
        ("a", "BaseOffer", "oprf"),
        ("a", "Store", "oprf"),
        ("b", "Trees", "oprf"),
        ("b", "Outputs", "oprf"),
        ("a", "BlindedIds", "dh"),
        ("b", "Opening", "dh"),
        ("b", "Tags", "dh"),
    ],
)
@pytest.mark.parametrize("reveal", ["receiver", "both"])
def test_a_party_that_is_killed_and_started_again_matches(
    who: str, kind: str, method: str, reveal: str, tmp_path: Path
) -> None:
    log = QueryLog(tmp_path / "queries.jsonl")
    programs = {
        "a": matching("a", "b", method, reveal),
        "b": matching("b", "a", method, reveal, queries=log),
    }
    programs[who] = killed(programs[who], kind)
    tap = Tap()
    result = InProcess().run_sync(tap.on(programs))
    assert result["a"]["rows"].tolist() == psi.ideal(list(MINE), list(THEIRS))
    begins = [decode(frame) for _, _, _, frame in tap.frames if kind_of(frame) == "Opening"]
    assert len({m.nonce for m in begins}) == len(begins)  # new sessions: nothing of the first one is repeated
    counted = len(log.path.read_text().splitlines())
    assert counted == sum(m.count == len(MINE) for m in begins)  # and the sender counted each of them


@pytest.mark.parametrize(
    ("who", "kind", "answer", "method"),
    [
        ("a", "SharedIds", "Outputs", "oprf"),
        ("a", "SharedIds", "Tags", "dh"),
        ("b", "MatchDone", "SharedIds", "dh"),
    ],
)
def test_who_has_answered_does_not_answer_a_second_set_and_tells_the_other(
    who: str, kind: str, answer: str, method: str
) -> None:
    """The restarted party has other ids this time: it gets no second answer, and does not wait."""
    programs = {n: matching(n, o, method, "both") for n, o in (("a", "b"), ("b", "a"))}
    other = "b" if who == "a" else "a"
    again = matching(who, other, method, "both", digests(range(100, 150)))
    programs[who] = killed(programs[who], kind, again=again)
    tap = Tap()
    with pytest.raises(PartyFailed, match=f"'{who}' was restarted after '{other}' had answered") as failed:
        InProcess().run_sync(tap.on(programs))
    assert isinstance(failed.value.error, QueryRefused)
    assert f"({answer})" in str(failed.value)
    assert sum(kind_of(f) == answer and s == other for s, _, _, f in tap.frames) == 1


def test_a_party_begins_again_only_a_few_times() -> None:
    programs = {n: matching(n, o, "oprf", "receiver") for n, o in (("a", "b"), ("b", "a"))}
    programs["a"] = killed(programs["a"], "Store", MOST_BEGINS)
    with pytest.raises(PartyFailed, match=f"began {MOST_BEGINS} times, and a party was restarted each time"):
        InProcess().run_sync(programs)


def test_every_kind_that_answers_exists() -> None:
    assert {psi_many.SharedTags.kind, psi_prepared.PreparedAnswers.kind} <= ANSWERS
    assert set(KINDS) >= ANSWERS


def test_a_repeated_greeting_is_no_restart() -> None:
    """A lying hub cannot make parties begin again: greetings come through the encrypted channel, once each; and
    a repeated one has the same nonce.
    """

    class Twice:
        def __init__(self, inner: Transport):
            self.inner = inner

        async def deliver(self, sender: str, to: str, scope: str, frame: bytes) -> None:
            await self.inner.deliver(sender, to, scope, frame)
            if kind_of(frame) == "MatchTerms":
                await self.inner.deliver(sender, to, scope, frame)

    programs: dict[str, Callable[[Party], Any]] = {
        n: matching(n, o, "oprf", "receiver") for n, o in (("a", "b"), ("b", "a"))
    }
    inner, tap = programs["a"], Tap()

    async def repeated(me: Party) -> Any:
        return await inner(replace(me, transport=Twice(me.transport)))

    InProcess().run_sync(tap.on({**programs, "a": repeated}))
    assert sum(kind_of(frame) == "Opening" for _, _, _, frame in tap.frames) == 2


@pytest.mark.parametrize("method", ["dh", "oprf"])
@pytest.mark.parametrize(("who", "kind"), [("a", "SharedTags"), ("c", "MatchDone")])
def test_three_parties_do_not_resume_after_an_answer_and_say_so(who: str, kind: str, method: str) -> None:
    """A member that has answered gives no second answer, whatever the restarted party brings."""
    sets = {"a": MINE, "b": THEIRS, "c": digests(range(10, 50))}
    again = {**sets, who: digests(range(300, 330))}

    def party(name: str, held: dict[str, Any]) -> Program:
        common: dict[str, Any] = {"others": ["b", "c"], "method": method}
        inner = (
            functools.partial(psi_many.leader, digests=held[name], **common)
            if name == "a"
            else functools.partial(psi_many.member, digests=held[name], leader="a", **common)
        )

        async def program(me: Party) -> Any:
            return await run_with_restarts(me.scope("psi"), sorted({*sets} - {name}), TERMS, inner)

        return program

    programs = {name: party(name, sets) for name in sets}
    programs[who] = killed(programs[who], kind, again=party(who, again))
    tap = Tap()
    with pytest.raises(PartyFailed, match=f"'{who}' was restarted after '[abc]' had answered .* new query"):
        InProcess().run_sync(tap.on(programs))
    hints = [s for s, _, _, frame in tap.frames if kind_of(frame) == "Hints"]
    assert max(hints.count(name) for name in "bc") == 1
