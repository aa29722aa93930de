"""All parties in one process: for tests, simulation and development.

Every message is encoded and decoded as over a network, so byte counts are real and no party can access
another's memory. A failed party ends the run and is named. A deadlock raises an error that says who waits for
what.

The run has its own event loop, because only the loop knows when nothing is left to do: then virtual time
advances, or the run is deadlocked.
"""

from __future__ import annotations

import asyncio
import contextvars
import selectors
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import PartyFailed, ProtocolError
from ..parameters import bad, check, choice, nearest, real, whole
from ..parties.clock import Clock, RealClock, VirtualClock
from ..parties.codec import MAX_BYTES
from ..parties.forms import Frame
from ..parties.ledger import Ledger
from ..parties.mailbox import Mailbox
from ..parties.party import LastRead, Party, Program
from ..parties.secret import Secret, SeededSecret
from .streaming import Emitter, drain

T = TypeVar("T")


@dataclass(frozen=True)
class InProcess:
    seed: int | None = whole(0, none=True, doc="every party's rng follows from it; None draws fresh ones")
    clock: str = choice(
        "virtual",
        ("virtual", "real"),
        doc="virtual: deadlines and sleeps take no time, in an order that never changes",
    )
    insecure_seed: int | None = whole(
        None, none=True, doc="for tests only: replayable secrets; the ledger is stamped NOT PRIVATE"
    )
    max_bytes: int = whole(MAX_BYTES, least=64, doc="the largest frame a party sends or reads")
    start: float = real(
        0.0, least=0, doc="what the virtual clock shows first: where a simulation that is resumed had come to"
    )

    def run_sync(self, programs: Mapping[str, Program], *, ledger: Ledger | None = None) -> dict[str, Any]:
        """Run the programs and return what each returned.

        What the parties saw is added to `ledger`, also if the run fails.
        """
        return drain(self.stream(programs, Emitter(), ledger=ledger))

    def stream(
        self, programs: Mapping[str, Program], emitter: Emitter[T], *, ledger: Ledger | None = None
    ) -> Generator[T, None, dict[str, Any]]:
        """Run step by step: yield what a program emits through `emitter`, while all parties wait."""
        return _Run(check(self), programs, ledger).stream(emitter)

    async def run(self, programs: Mapping[str, Program], *, ledger: Ledger | None = None) -> dict[str, Any]:
        """Run from async code, in a separate thread; cancelling this stops all parties first."""
        run = _Run(check(self), programs, ledger)
        pool = ThreadPoolExecutor(1, "tacit")
        job = asyncio.get_running_loop().run_in_executor(pool, contextvars.copy_context().run, run.run_here)
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            run.stop()
            with suppress(BaseException):
                await job
            raise
        finally:
            pool.shutdown(wait=False)


class _Selector(selectors.DefaultSelector):
    """Calls `idle` before waiting without a timeout: the loop has nothing ready and no timer."""

    idle: Callable[[], bool] | None = None

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None and self.idle is not None and self.idle():
            timeout = 0
        return super().select(timeout)


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that knows when it is idle; `thread_jobs` counts jobs in threads."""

    def __init__(self) -> None:
        self.selector = _Selector()
        self.thread_jobs = 0
        super().__init__(self.selector)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        future = super().run_in_executor(executor, func, *args)
        self.thread_jobs += 1
        future.add_done_callback(self._on_done)
        return future

    def _on_done(self, _: object) -> None:
        self.thread_jobs -= 1

    def is_isolated(self) -> bool:
        """Return whether nothing outside can wake this loop: no thread works and no socket is open."""
        return self.thread_jobs == 0 and len(self.selector.get_map()) <= 1


@dataclass(frozen=True)
class _Wire:
    """One party's transport. It sends only in its owner's name."""

    owner: str
    boxes: Mapping[str, Mailbox]

    async def deliver(self, sender: str, to: str, scope: str, frame: Frame) -> None:
        if sender != self.owner:
            raise ProtocolError(
                f"party {self.owner!r} tried to send to {to!r} as {sender!r}. A party can send only in its "
                "own name."
            )
        box = self.boxes.get(to)
        if box is None:
            raise ProtocolError(
                f"party {self.owner!r} sends to {to!r}, which is not a party of this run. "
                f"{nearest(to, list(self.boxes))}"
            )
        while not box.offer(self.owner, scope, frame):
            await self._room(box, scope, len(frame))

    async def _room(self, box: Mailbox, scope: str, size: int) -> None:
        """Wait until the receiver's program has read enough, or has ended."""
        room = asyncio.Event()
        box.on_room.append(room.set)
        try:
            with self.boxes[self.owner].blocked_send(
                f"room in the mailbox of {box.owner!r}, which has not read what {self.owner!r} sent"
            ):
                while not box.fits(self.owner, scope, size):
                    room.clear()
                    await room.wait()
        finally:
            box.on_room.remove(room.set)


class _Run:
    """One run, from its parties to their results."""

    def __init__(self, runtime: InProcess, programs: Mapping[str, Program], ledger: Ledger | None):
        for name in programs:
            if not isinstance(name, str) or not name:
                raise bad("InProcess.run", "the name of a party", name, "a word")
        self.programs, self.ledger = dict(programs), ledger
        self.clock: Clock = VirtualClock(runtime.start) if runtime.clock == "virtual" else RealClock()
        self.boxes = {name: Mailbox(name, Ledger(), runtime.max_bytes) for name in self.programs}
        seed, last_read = runtime.insecure_seed, LastRead()
        self.parties = {
            name: Party(
                name,
                _Wire(name, self.boxes),
                box,
                self.clock,
                Secret() if seed is None else SeededSecret(f"{seed}/{name}"),
                runtime.seed,
                last_read=last_read,
                same_process=True,
            )
            for name, box in self.boxes.items()
        }
        self.results: dict[str, Any] = {}
        self.live = set(self.programs)
        self.stopped = False
        self.task: asyncio.Task[Any] | None = None

    def run_here(self) -> dict[str, Any]:
        """Run to the end in this thread."""
        return drain(self.stream(Emitter()))

    def stream(self, emitter: Emitter[T]) -> Generator[T, None, dict[str, Any]]:
        try:
            return (yield from emitter.stream(self.main, _Loop))
        finally:
            if self.ledger is not None:
                for box in self.boxes.values():
                    self.ledger.merge(box.ledger)

    def stop(self) -> None:
        """Cancel everything, from another thread."""
        self.stopped = True
        if self.task is not None:
            with suppress(RuntimeError):  # the loop has just closed
                self.task.get_loop().call_soon_threadsafe(self.task.cancel)

    async def main(self) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, _Loop)
        self.task = asyncio.current_task()
        if self.stopped:  # stopped before there was a task to cancel
            raise asyncio.CancelledError
        over: asyncio.Future[None] = loop.create_future()
        loop.selector.idle = lambda: self.on_idle(loop, over)
        try:
            async with asyncio.TaskGroup() as group:
                for name, party in self.parties.items():
                    group.create_task(self.run_party(name, party, over), name=f"party {name}")
                if self.live:
                    await over
        except BaseExceptionGroup as failures:
            stuck = over.exception() if over.done() and not over.cancelled() else None
            first = stuck or failures.exceptions[0]
            for other in failures.exceptions:
                if other is not first:
                    first.add_note(f"while the run was being stopped: {other}")
            raise first  # noqa: B904  # its cause is the party's error
        finally:
            loop.selector.idle = None
        for name in self.programs:
            if name not in self.results:
                raise PartyFailed(name, asyncio.CancelledError("its program cancelled itself"))
        return {name: self.results[name] for name in self.programs}

    async def run_party(self, name: str, party: Party, over: asyncio.Future[None]) -> None:
        try:
            self.results[name] = await self.programs[name](party)
        except Exception as error:
            raise PartyFailed(name, error) from error
        finally:
            self.live.discard(name)
            self.boxes[name].end()
            if not self.live and not over.done():
                over.set_result(None)

    def on_idle(self, loop: _Loop, over: asyncio.Future[None]) -> bool:
        """Advance virtual time, or report a deadlock; False: something outside can still wake the loop."""
        if not loop.is_isolated():
            return False
        if isinstance(self.clock, VirtualClock) and self.clock.advance():
            return True
        waits = {name: self.boxes[name].waiting() for name in self.programs if name in self.live}
        if over.done() or not waits or not all(waits.values()):
            return False
        done = [repr(name) for name in self.programs if name not in self.live]
        who = [f"{name!r} waits for {' and for '.join(wants)}" for name, wants in waits.items()]
        over.set_exception(
            ProtocolError(
                "no party can continue: "
                f"{'; '.join(who[:8])}{f'; and {len(who) - 8} more' if len(who) > 8 else ''}."
                + (
                    f" Already finished: {', '.join(done[:8])}{', …' if len(done) > 8 else ''}."
                    if done
                    else ""
                )
                + " Send the missing message, or give the wait a deadline (within=…)."
            )
        )
        return True
