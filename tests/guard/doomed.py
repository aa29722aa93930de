"""Clients that are killed in the middle of a secure sum, and many training runs in the same few processes:
for tests.

The programs are found here by the processes of `tacit.Processes`, so they are functions of a module.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

import tacit
from tacit.files import write_atomic
from tacit.jobs.train import member as members
from tacit.jobs.train import networked, party_rows
from tacit.parties.codec import decode
from tacit.parties.party import Party, Transport
from tacit.protocols.secagg import MaskedVector

from ..clocks import ClockOfTheKilled


class Deadly:
    """Kills this process, as the kernel would, in place of sending the n-th message of a kind (a masked
    vector, if not given); with several runs in this process, once all of them have come so far. `mark` is a
    file: only the first life is so short. It lists the scopes in which that message was due.
    """

    def __init__(self, inner: Transport, nth: int, mark: Path, runs: int = 1, kind: str = MaskedVector.kind):
        self.inner, self.nth, self.mark, self.runs, self.kind = inner, nth, mark, runs, kind
        self.sent: dict[str, int] = {}
        self.due: list[str] = []

    async def deliver(self, sender: str, to: str, scope: str, frame: bytes) -> None:
        run = scope.split("/")[0] if self.runs > 1 else ""
        if decode(frame).kind == self.kind:
            self.sent[run] = self.sent.get(run, 0) + 1
            if self.sent[run] == self.nth:
                self.due.append(scope)
                if sum(n == self.nth for n in self.sent.values()) == self.runs:
                    write_atomic(self.mark, "\n".join(self.due).encode())
                    os.kill(os.getpid(), signal.SIGKILL)
                await asyncio.Event().wait()  # the others are not there yet
        await self.inner.deliver(sender, to, scope, frame)


async def member(
    me: Party, doomed: Mapping[str, int], marks: str, kind: str = MaskedVector.kind, **told: Any
) -> None:
    """A client of a training run, of which those in `doomed` are killed at their n-th message of this
    kind.
    """
    mark = Path(marks) / me.name
    if me.name in doomed and not mark.exists():
        me = replace(me, transport=Deadly(me.transport, doomed[me.name], mark, kind=kind))
    await members.member(me, **told)


def doom(
    monkeypatch: pytest.MonkeyPatch,
    marks: Path,
    kind: str = MaskedVector.kind,
    come_back: bool = False,
    **doomed: int,
) -> None:
    """From now on the clients of training runs across processes are these.

    A deadline of the server passes when all it waits for were killed, and not before. `come_back`: they are
    started again.
    """
    marks.mkdir(exist_ok=True)
    ClockOfTheKilled.use(monkeypatch, Marks(marks, doomed, come_back).lost)
    monkeypatch.setattr(networked, "member", partial(member, doomed=doomed, marks=str(marks), kind=kind))


class Marks:
    """Which of the doomed were killed, by their marks in a folder."""

    def __init__(self, folder: Path, doomed: Iterable[str], come_back: bool = False):
        self.marks, self.come_back = [folder / name for name in doomed], come_back

    def lost(self, scope: str) -> list[str]:
        """Return who will send nothing more in this scope or, for the scope "", cannot be asked again."""
        killed = [mark for mark in self.marks if mark.exists()]
        if not scope:
            return [] if self.come_back else [mark.name for mark in killed]
        return [
            mark.name
            for mark in killed
            if any(f"{scope}/".startswith(f"{due}/") for due in mark.read_text().split("\n"))
        ]

    def clear(self) -> None:
        """Forget who was killed."""
        for mark in self.marks:
            mark.unlink(missing_ok=True)


# many runs in the same processes ----------------------------------------------------------------------------


async def clients(me: Party, runs: Sequence[str], rows: str, state: str, dies: int, mark: str) -> None:
    """One party's part in every run, each in a scope of its own."""
    if dies:
        me = replace(me, transport=Deadly(me.transport, dies, Path(mark), len(runs)))
    await asyncio.gather(
        *(members.member(me.scope(run), data={"folder": rows}, state=f"{state}/{run}") for run in runs)
    )


def train_together(
    fed: Any,
    jobs: Mapping[str, Mapping[str, Any]],
    folder: Path,
    doomed: Mapping[str, int],
    runtime: tacit.Processes,
) -> dict[str, Any]:
    """`tacit.train` for each of `jobs`, all at once: one process a party, in which each run is a scope.
    Starting processes is what takes the time.
    """
    waiting: dict[str, tuple[Any, Future[None]]] = {}
    (folder / "killed").mkdir()
    marks = Marks(folder / "killed", doomed)
    another = threading.Event()

    def meet(trainer: Any, _: Any, program: Any, emitter: Any) -> Iterator[Any]:
        """Records cross from the loop that runs all servers to the thread of this run, one at a time."""
        records: Queue[Any] = Queue()

        async def emit(item: Any) -> None:
            taken: Future[None] = Future()
            records.put((item, taken))
            await asyncio.wrap_future(taken)

        emitter.emit = emit
        done: Future[None] = Future()
        done.add_done_callback(lambda _: records.put(None))
        waiting[threading.current_thread().name] = program, done
        another.set()
        while (entry := records.get()) is not None:
            yield entry[0]
            entry[1].set_result(None)
        done.result()

    async def server(me: Party) -> None:
        async def one(name: str) -> None:
            program, done = waiting[name]
            try:
                here = me.scope(name)
                # time passes in each run alone: in another, clients may still be at work
                await program(replace(here, clock=ClockOfTheKilled(marks.lost)) if doomed else here)
                done.set_result(None)
            except BaseException as error:
                done.set_exception(error)
                raise

        await asyncio.gather(*map(one, jobs))

    def train(name: str) -> Any:
        threading.current_thread().name = name
        return tacit.train(fed, **jobs[name], runtime=runtime)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(len(jobs)) as pool:
        patch.setattr(networked.NetworkedTrainer, "_stream_here", meet)
        if doomed:
            ClockOfTheKilled.use(patch, marks.lost)
        results = {}
        # one after the other until they wait: a model's first values come from torch's one generator, which
        # threads would share
        for name in jobs:
            another.clear()
            results[name] = pool.submit(train, name)
            while not another.wait(0.1):
                if results[name].done():  # none ends before all have met
                    for _, done in waiting.values():
                        done.cancel()
                    raise AssertionError(
                        f"{name} was refused before anything was started: {results[name].exception()}"
                    )
        programs: dict[str, Any] = {"server": server}
        for k, name in enumerate(fed.parties):
            party_rows.save_rows(fed, k, folder / f"rows-{k}")
            programs[name] = partial(
                clients,
                runs=list(jobs),
                rows=str(folder / f"rows-{k}"),
                state=str(folder / f"state-{k}"),
                dies=doomed.get(name, 0),
                mark=str(folder / "killed" / name),
            )
        try:
            runtime.run_sync(programs, here=("server",), may_leave=fed.parties)
        except BaseException as error:
            for _, done in waiting.values():  # their threads would wait for ever, and so would this one
                if not done.done():
                    done.set_exception(error)
            raise
        return {name: r.result(300) for name, r in results.items()}
