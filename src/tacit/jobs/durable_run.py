"""Run a party's program so that any party may be killed at any moment, and started again.

    party i                                                     party j
      |--- RunHello(digest of the job, nonce of this start) ---->|    and back, whenever somebody (re)starts
      |--- RunStatus(session, messages of yours that I have) --->|    in a scope named after all nonces
      |    all have the same session: resume (parties/durable.py)
      |    else: begin (align, …)
      |--- RunBegun --------------------------------------------->|   all: write the session to disk
      |    the program …
      |--- RunDone ---------------------------------------------->|   its part is on disk; all: remove the log

FOLDER/run.json        {"format": 1, "job": …, "session": …, "key": …, "begun": …, "is_done": …}
FOLDER/messages.log    `parties/message_log.py`

A party that has sent an `answer` in a session never begins another one of the same job: whoever claims to
have lost his record, or to be at another point, gets the same answers again or none. Only its owner can
remove the folder. Before that, whoever restarts makes all begin again, at most MOST_BEGINS times.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import itertools
import json
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BadJob, BadRun, ProtocolError, QueryRefused
from ..files import write_atomic
from ..parties.durable import make_durable
from ..parties.message import Message
from ..parties.message_log import RECEIVED, SENT, MessageLog
from ..parties.party import Party

log = logging.getLogger("tacit.party")
FORMAT, NONCE, KEY = 1, 16, 32
MOST_BEGINS = 5  # in one start of a party: a kill while parties align makes all of them align again
HEADER, MESSAGES = "run.json", "messages.log"


class RunHello(Message, reveals="a digest of the sender's job, and a random number of its start"):
    job: str
    nonce: bytes


class RunStatus(
    Message,
    reveals="whether the sender has a stopped run of this job on its disk, and how many of the receiver's "
    "messages",
):
    session: str  # "": none
    received: int


class RunBegun(Message, reveals="that the sender is ready"):
    pass


class RunDone(Message, reveals="that the sender has its result on its disk"):
    session: str


class RunFolder:
    """One party's record of a run; another process that uses it is refused."""

    def __init__(self, folder: Path, job: str, session: str, key: bytes, begun: Mapping[str, Any]):
        self.folder, self.job, self.session, self.key, self.begun = folder, job, session, key, begun
        self._lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise BadRun(f"another process of this party uses {folder}. End it first.") from None
        self.log = MessageLog(folder / MESSAGES)

    def close(self) -> None:
        self.log.close()
        os.close(self._lock)

    @classmethod
    def open(cls, folder: Path, job: str) -> RunFolder | None:
        """Read the record of a stopped run, if there is one. Raise BadRun if the run is finished."""
        header = read_header(folder)
        if header is None:
            return None
        if header["job"] != job:
            raise BadRun(f"{folder} contains the record of another job. Use another folder (--state).")
        check_unfinished(folder)
        if not (folder / MESSAGES).exists():  # it is made before the header
            raise BadRun(
                f"{folder / MESSAGES} is missing, which has what this party answered in a stopped run. "
                "Restore it; or remove the folder if its owner agrees to answer the same job again."
            )
        return cls(folder, job, header["session"], bytes.fromhex(header["key"]), header["begun"])

    @classmethod
    def create(cls, folder: Path, job: str, session: str, key: bytes, begun: Mapping[str, Any]) -> RunFolder:
        """Forget an earlier run, and begin one."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / HEADER).unlink(missing_ok=True)
        (folder / MESSAGES).unlink(missing_ok=True)
        made = cls(folder, job, session, key, begun)
        made._write(is_done=False)
        return made

    def _write(self, is_done: bool) -> None:
        content = {"format": FORMAT, "job": self.job, "session": self.session, "is_done": is_done}
        if not is_done:
            content |= {"key": self.key.hex(), "begun": self.begun}
        write_atomic(self.folder / HEADER, json.dumps(content), mode=0o600)

    def finish(self) -> None:
        """Keep only that this job was finished: keys and messages are removed."""
        self._write(is_done=True)
        (self.folder / MESSAGES).unlink(missing_ok=True)


def read_header(folder: Path) -> dict[str, Any] | None:
    file = folder / HEADER
    if not file.is_file():
        return None
    try:
        header = json.loads(file.read_text(encoding="utf-8"))
        if header["format"] != FORMAT or not isinstance(header["job"], str):
            raise ValueError("it has another format")
        if not header["is_done"]:
            bytes.fromhex(header["key"])
            dict(header["begun"])
        return dict(header)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise BadRun(
            f"{file} cannot be read: {error!r:.200}. It records what this party has answered. Restore it "
            "from a copy."
        ) from None


def is_stopped(folder: Path) -> bool:
    """Whether a folder has the record of a run that is not finished."""
    header = read_header(folder)
    return header is not None and not header["is_done"]


def check_unfinished(folder: Path) -> None:
    """Raise BadRun if a folder's run is finished: its questions are not answered a second time."""
    header = read_header(folder)
    if header is not None and header["is_done"]:
        (folder / MESSAGES).unlink(missing_ok=True)  # a kill may have left it
        raise BadRun(
            f"{folder}: this party has finished this job, and does not answer its questions again. To train "
            "again, agree on another job, for instance with another seed; or remove this folder if its owner "
            "agrees to answer the same job again."
        )


@dataclass(frozen=True)
class DurableJob:
    """What `run_durable` runs.

    begin      aligns the parties and whatever else is done once; returns plain values, which are kept
    program    the part that is resumed: a function of what was begun, `me.secret` and messages
    finish     writes the party's result; it may be called again after a kill
    answers    kinds of messages that tell others something: sent in one version only
    fresh      kinds of messages that contain fresh encryptions of the same values
    """

    digest: str
    parties: tuple[str, ...]
    folder: Path
    begin: Callable[[Party], Awaitable[dict[str, Any]]]
    program: Callable[[Party, Mapping[str, Any]], Awaitable[Any]]
    finish: Callable[[Any], dict[str, Any]]
    answers: frozenset[str]
    fresh: frozenset[str] = frozenset()


async def run_durable(me: Party, job: DurableJob, wait: float | None = None) -> dict[str, Any]:
    """Run a party; when another one restarts, go back to where all were. `wait`: seconds for all to start."""
    others = [n for n in job.parties if n != me.name]
    hello, nonce = me.scope("hello"), me.secret.bytes(NONCE)
    known: dict[str, bytes] = {}
    has_news = asyncio.Event()
    begins = itertools.count(1)

    async def listen() -> None:
        while True:
            runs = all(n in known for n in others)  # then nobody has to start again
            name, message = await hello.first(RunHello, senders=others, background=runs)
            if message.job != job.digest:
                raise BadJob(
                    f"{name!r} and {me.name!r} have different job files, or parts of different runs. All job "
                    "files must be equal, except for local file options."
                )
            if known.get(name) != message.nonce:
                known[name] = message.nonce
                await hello.send(name, RunHello(job.digest, nonce))
                has_news.set()

    await hello.send(others, RunHello(job.digest, nonce))
    tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(listen())]
    try:
        await until_started(me, others, known, has_news, tasks[0], wait)
        while True:
            has_news.clear()
            names = sorted([*known.items(), (me.name, nonce)])
            epoch = hashlib.sha256(json.dumps([[n, k.hex()] for n, k in names]).encode()).hexdigest()
            with me.scope(f"run-{epoch[:16]}") as scoped:
                attempt = asyncio.ensure_future(_attempt(scoped, job, others, epoch, begins))
                news = asyncio.ensure_future(has_news.wait())
                tasks[1:] = [attempt, news]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if attempt.done():
                    return await attempt
                if tasks[0].done():
                    tasks[0].result()
                await cancel_all([attempt, news])
            log.info("party %r: another party was restarted; all resume where they were", me.name)
    finally:
        await cancel_all(tasks)


async def until_started(
    me: Party,
    others: Iterable[str],
    known: Mapping[str, bytes],
    has_news: asyncio.Event,
    listener: asyncio.Future[None],
    wait: float | None,
) -> None:
    """Wait until all others are in `known`, which the `listener` fills."""
    until = None if wait is None else me.clock.now() + wait
    while missing := [n for n in others if n not in known]:
        has_news.clear()
        news = asyncio.ensure_future(has_news.wait())
        left = None if until is None else max(0.0, until - me.clock.now())
        both: list[asyncio.Future[Any]] = [listener, news]
        await asyncio.wait(both, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        await cancel_all([news])
        if listener.done():
            listener.result()
        if until is not None and me.clock.now() >= until and not has_news.is_set():
            raise ProtocolError(
                f"{', '.join(map(repr, sorted(missing)))} did not start within {wait:g} s, so {me.name!r} "
                "stopped. Start all parties, or wait longer (--wait)."
            )


async def cancel_all(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _attempt(
    me: Party, job: DurableJob, others: list[str], epoch: str, begins: Iterator[int]
) -> dict[str, Any]:
    state = RunFolder.open(job.folder, job.digest)
    try:
        for name in others:
            has = 0 if state is None else state.log.count(RECEIVED, name)
            await me.send(name, RunStatus("" if state is None else state.session, has))
        statuses = await me.gather(others, RunStatus)
        if state is not None and all(s.session == state.session for s in statuses.values()):
            arrived = {name: s.received for name, s in statuses.items()}
            log.info("party %r: resumes a stopped run", me.name)
        else:
            _check_may_begin(job, state, statuses)
            if next(begins) > MOST_BEGINS:
                raise QueryRefused(
                    f"the parties of this job began {MOST_BEGINS} times, and one was restarted each time "
                    "before the run began. Every beginning compares ids once more, so this party stops. Ask "
                    "the others why, and start it again."
                )
            begun = await job.begin(me)
            await me.send(others, RunBegun())  # all tables were read: nobody writes for a run that cannot be
            await me.gather(others, RunBegun)
            session = hashlib.sha256(f"{job.digest}|{epoch}".encode()).hexdigest()
            if state is not None:
                state.close()
                state = None
            key = me.secret.bytes(KEY)
            state, arrived = RunFolder.create(job.folder, job.digest, session, key, begun), {}
        durable = make_durable(me, state.log, state.key, arrived, job.fresh)
        result = await job.program(durable, state.begun)
        state.log.flush()
        value = job.finish(result)
        await me.send(others, RunDone(state.session))
        await me.gather(others, RunDone)
        state.finish()
        return value
    finally:
        if state is not None:
            state.close()


def _check_may_begin(job: DurableJob, state: RunFolder | None, statuses: Mapping[str, RunStatus]) -> None:
    if state is None or not state.log.kinds(SENT) & job.answers:
        return
    lost = [n for n, s in statuses.items() if s.session != state.session]
    raise QueryRefused(
        f"{', '.join(map(repr, lost))} cannot resume the run of this job which this party has answered in: "
        "the record of that run is missing there. This party does not answer the same job from the start "
        "again, as two answers would show more than one. Restore the record there, or agree on another job "
        f"(for instance another seed). This party's own record is {job.folder}."
    )
