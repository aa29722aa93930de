"""A matching between real parties, any of which may be stopped and started again.

    party i                                                     party j
      |--- MatchTerms(options, nonce of this start) ----------->|    and back, whenever somebody (re)starts
      |    the options must be equal                            |    in a scope named after all nonces:
      |    `protocols/psi.py` or `psi_many.py`, from the start  |
      |--- MatchDone ------------------------------------------>|    before that, nobody leaves

A matching of several buckets resumes at a bucket (`protocols/psi_resume.py`). Nothing else is resumed in the
middle: a matching that begins again has new keys, so no answer of the first one can be compared with one of
the second. A sender counts each beginning as a query of its own (`queries_per_day`),
as it cannot know whether a restarted party has the same ids. A party that has answered, that is, sent what
tells the other about ids (`ANSWERS`), does not begin again in the same start: it ends, and tells the others.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import ProtocolError, QueryRefused
from ...parties.codec import kind_of
from ...parties.message import Message
from ...parties.party import Party, Transport
from ..durable_run import MOST_BEGINS, cancel_all, until_started

log = logging.getLogger("tacit.party")
NONCE = 16
UNREADABLE = "party {name!r} sent options that cannot be read."
# what tells another party about ids: results, and evaluations of a function at its ids
ANSWERS = frozenset(
    {
        *("Tags", "Outputs", "SharedIds", "Answers", "Hints", "SharedTags", "ReturnedIds", "OpenedCount"),
        "PreparedAnswers",
    }
)


class MatchTerms(
    Message,
    reveals="how the sender wants to match: with whom, who receives, what is revealed, and how; and a random "
    "number of its start",
):
    terms: str


class MatchDone(Message, reveals="that the sender has its result"):
    pass


def differences(name: str, message: MatchTerms, terms: Mapping[str, Any]) -> str:
    """Return in which options another party's terms differ from this one's; "" if in none."""
    theirs = _read(name, message)
    try:
        differs = {k: theirs.get(k) for k, v in terms.items() if theirs.get(k) != v}
        if "participants" in differs:  # the others follow from it
            differs = {"participants": differs["participants"]}
        return "; ".join(f"{k} is {terms[k]!r} here and {v!r:.80} there" for k, v in differs.items())
    except RecursionError:  # nested without end
        raise ProtocolError(UNREADABLE.format(name=name)) from None


def _read(name: str, message: MatchTerms) -> dict[str, Any]:
    try:
        theirs = json.loads(message.terms)
    except (ValueError, RecursionError):
        theirs = None
    if not isinstance(theirs, dict):
        raise ProtocolError(UNREADABLE.format(name=name))
    return theirs


async def answer_strangers(me: Party, strangers: Collection[str]) -> None:
    """Tell parties that want to match with this one, and are not among its participants, that it does not.

    They would wait for it. They learn nothing else, and cannot end this matching.
    """
    waiting = set(strangers)
    while waiting:
        arrived = await me.soonest(sorted(waiting), MatchTerms)
        for name in {*arrived, *arrived.refused}:
            waiting.discard(name)
            log.warning(
                "party %r wants to match with %r, which was started with other participants (--with)",
                name,
                me.name,
            )
            await me.send([name], MatchTerms(json.dumps({"participants": f"others than {name!r}"})))


@asynccontextmanager
async def answering(me: Party, strangers: Collection[str]) -> AsyncIterator[None]:
    """Answer strangers for as long as the block runs."""
    task = asyncio.ensure_future(answer_strangers(me, strangers))
    try:
        yield
    finally:
        await cancel_all([task])


@dataclass
class WatchedTransport:
    """A transport that remembers the first answer it delivered."""

    inner: Transport
    answer: str = field(default="")

    async def deliver(self, sender: str, to: str, scope: str, frame: bytes) -> None:
        if not self.answer and (kind := kind_of(frame)) in ANSWERS:
            self.answer = kind
        await self.inner.deliver(sender, to, scope, frame)


async def run_with_restarts(
    me: Party,
    others: Sequence[str],
    terms: Mapping[str, Any],
    program: Callable[[Party], Awaitable[dict[str, Any]]],
    wait: float | None = None,
    may_resume: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Compare the options of all parties, then run the program; again if another party is started again.

    `wait`: seconds for all to start. `may_resume`: whether the program has a record with which it
    decides itself if it resumes or ends (`protocols/psi_resume.py`).
    """
    greeting = MatchTerms(json.dumps({**terms, "start": me.secret.bytes(NONCE).hex()}, sort_keys=True))
    known: dict[str, bytes] = {}
    restarted: list[str] = []
    has_news = asyncio.Event()

    async def listen() -> None:
        while True:
            # while the matching runs, nobody has to start again
            runs = all(n in known for n in others)
            name, message = await me.first(MatchTerms, senders=others, background=runs)
            if text := differences(name, message, terms):
                raise ProtocolError(
                    f"{me.name!r} and {name!r} were started with different options: {text}. Nothing was "
                    "compared. Use the same options at all parties."
                )
            start = hashlib.sha256(str(_read(name, message).get("start")).encode()).digest()
            if known.get(name) != start:
                restarted.append(name)
                known[name] = start
                await me.send([name], greeting)
                has_news.set()

    mine = hashlib.sha256(str(json.loads(greeting.terms)["start"]).encode()).digest()
    transport = WatchedTransport(me.transport)
    await me.send(others, greeting)
    tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(listen())]
    try:
        await until_started(me, others, known, has_news, tasks[0], wait)
        for _ in range(MOST_BEGINS):
            has_news.clear()
            restarted.clear()
            log.info("party %r: all parties are here; the matching begins", me.name)
            names = sorted([*known.items(), (me.name, mine)])
            epoch = hashlib.sha256(json.dumps([[n, k.hex()] for n, k in names]).encode()).hexdigest()
            with replace(me, transport=transport).scope(f"run-{epoch[:16]}") as scoped:
                attempt = asyncio.ensure_future(_attempt(scoped, others, program))
                news = asyncio.ensure_future(has_news.wait())
                tasks[1:] = [attempt, news]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if attempt.done():
                    return await attempt
                if tasks[0].done():
                    tasks[0].result()
                await cancel_all([attempt, news])
            who = ", ".join(map(repr, restarted))
            if transport.answer and not may_resume():
                raise QueryRefused(
                    f"{who} was restarted after {me.name!r} had answered ({transport.answer}). With other "
                    "ids, another answer would show more than the parties agreed to. Nothing was written. "
                    "Start again at all parties: that is a new query."
                )
            log.info("party %r: %s was restarted; the matching begins again", me.name, who)
        raise QueryRefused(
            f"this matching began {MOST_BEGINS} times, and a party was restarted each time, so {me.name!r} "
            "stops. Ask the others why, and start again at all parties."
        )
    finally:
        await cancel_all(tasks)


async def _attempt(
    me: Party, others: Sequence[str], program: Callable[[Party], Awaitable[dict[str, Any]]]
) -> dict[str, Any]:
    result = await program(me)
    await me.send(others, MatchDone())
    await me.gather(others, MatchDone)
    return result
