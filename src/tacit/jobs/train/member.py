"""The program of a client of a training run on its own machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from ... import __version__
from ...errors import TacitError
from ...parties.party import Party
from ...protocols import buffered, joining, rounds, sum_program
from ..eligibility import Eligibility, read_eligibility
from ..owner import Owner
from . import preparing
from .client_work import ClientWork
from .contract import Agreement
from .own_loop import Exchange


async def member(
    me: Party,
    data: Mapping[str, str],
    state: str,
    model: str = "",
    boss: str = "server",
    agreement: Agreement | None = None,
    device: str = "cpu",
    again: bool = False,
    watch: Callable[[dict[str, Any]], None] = lambda event: None,
    code: str = "",
    loop: Exchange | None = None,
    owner: Owner | None = None,
) -> dict[str, Any]:
    """Run the program of a client; return what it contributed.

    `data` is {"table": a file of its own, and how it is read where that is not as agreed} or {"folder": a
    folder that `save_rows` wrote}; `state` is a folder for its state; `agreement` is what its owner agreed to
    (None only where one user runs all parties on one machine); `device` is where it trains; `again` allows
    one more run of a contract in the clear; `watch` is called with {"kind": "accepted" or "answered", …} for
    a display; `code` is what `code_spec` returned, of the user who runs all parties on one machine; `loop`
    leads to the owner's training loop, if there is one; `owner` decides about every job and keeps the log of
    what is answered.
    """
    work = ClientWork(me.name, data, Path(state), model, agreement, device, again, watch, code, loop, owner)

    eligible = Eligibility() if owner is None else read_eligibility(owner.kit)
    answered: asyncio.Queue[None] = asyncio.Queue()

    async def free() -> None:
        work.report()
        await me.scope(joining.SCOPE).send(boss, joining.Free())

    async def free_when_eligible() -> None:
        """Say that this party can be asked again; the end of the run is read meanwhile."""
        if eligible == Eligibility():
            await free()
        else:
            answered.put_nowait(None)

    async def offer_again() -> None:
        while True:
            await answered.get()
            await eligible.wait(me.name)
            await free()

    async def admit(offer: joining.Work) -> None:
        await work.ask_owner(offer)
        await eligible.wait(me.name)

    async def play() -> None:
        try:
            work_of_rounds = answer() if loop is None else run_alongside(answer(), loop.fail())
            await run_alongside(work_of_rounds, offer_again())
        except TacitError as error:
            if agreement is not None:  # on one machine, the user who started it sees the error
                await me.scope(joining.SCOPE).send(boss, joining.Unfit(error.outside))
            raise

    async def answer() -> None:
        # a round that was sent to this party's previous process may come before the job
        await work.prepared.wait()
        if work.program is None:
            await take_part()
        else:
            await run_alongside(take_part(), prepare_table(me, work, boss))

    async def take_part() -> None:
        if work.program is not None:
            await work.fitted.wait()  # no request of a round is read before
        if work.paced:
            await buffered.client(
                me, work.local_in_thread, work.test, boss, done=free_when_eligible, consent=work
            )
        else:
            await rounds.client(
                me,
                work.local if loop is None else work.local_in_loop,
                work.test,
                boss,
                look=work.look,
                done=free_when_eligible,
                hidden=lambda: work.hidden,
                counted=lambda: work.counted,
                scores=lambda: work.scores,
                consent=work,
            )
        if agreement is not None:  # it was sent before Stop, so it is here if there is one
            last = await me.scope(joining.FINAL).gather([boss], joining.Final, at_least=0, within=0.0)
            if boss in last:
                work.finish(last[boss])

    try:
        await run_alongside(
            play(),
            joining.attend(me, boss, __version__, work.prepare, None if owner is None else admit),
        )
        work.record_end("")
        return work.summary()
    except BaseException as error:
        work.record_end(f"{type(error).__name__}: {error}")
        raise
    finally:
        work.record_spending(me.ledger)


async def prepare_table(me: Party, work: ClientWork, boss: str) -> None:
    """Answer the sums of the preparation and accept their result, for as long as the run lasts.

    A server that was restarted without its sums asks for them again, and gets the same.
    """
    program, table, rules = work.program, work.table, work.rules
    assert program is not None
    assert table is not None
    assert rules is not None
    answers = work.answers
    assert answers is not None
    answers.bind_table(work.record.bound["data"])  # sums over changed rows could be subtracted
    while True:
        vectors = await sum_program.client(
            me.scope(preparing.SCOPE),
            program,
            table.training_rows,
            rules,
            server=boss,
            answers=answers,
            allow=lambda step: work.allow_step(step, program.max_steps),
            answered=lambda step: work.report_step(step, program.max_steps),
        )
        work.take_statistics(preparing.from_vectors(vectors))


async def run_alongside(main: Coroutine[Any, Any, Any], other: Coroutine[Any, Any, Any]) -> Any:
    """Run `main` to its end, with `other` running as long; if `other` fails first, raise its error."""
    first, second = asyncio.ensure_future(main), asyncio.ensure_future(other)
    try:
        await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
        if second.done() and not first.done():
            second.result()
        return await first
    finally:
        for task in (first, second):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
