"""Asynchronous training: the server does not wait for the slowest client.

    server                                         client k
      |---- Order(number, version, vectors) ---------->|   when the scheduler says so, with the current model
      |                                                |  local(…) on its own rows
      |<--- Answer(number, weight, vectors) -----------|   to the last order only; a new order cancels it
      |  enough answers: a new version                 |
      …                                                …
      |---- Test(version, vectors) ------------------->|   now and then, to all clients, busy or not
      |<--- Tested(counts) ----------------------------|
      |---- Stop() ----------------------------------->|   at the end

The scheduler (tacit.pace: FedBuff, FedAsync, SAFA) decides when each client is asked and how many answers
make a new version. Answers that arrive at the same instant are processed in the order of their requests
before anyone is asked again, so clients of equal speed give synchronous rounds. With a deadline, an order
that is not answered in time is cancelled and the client is reported; it is asked again when it is back.

The server learns each update and its weight in the clear, the speed of each client, and the clients' counts
on their held-out rows. Clients learn the model and, from the version number, how often others answered. No
rows are sent. Single updates cannot be hidden: the masks of a secure sum belong to the parties of one round,
and here there are no rounds.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from ..crypto.digest import Digests
from ..errors import ProtocolError
from ..parties.message import Message
from .consent import UNCOMMITTED, Consent
from .rounds import Stop, Test, Tested, Vectors, check_replies

if TYPE_CHECKING:
    from ..parties.party import Party
    from .joining import Admission

SCOPE = "work"
LOOK = 1.0  # seconds after which a server with free capacity checks for returning clients


class Order(
    Message,
    reveals="the server's current model and its version, and the part of its state that the algorithm sends",
):
    number: int  # of the party's pieces of work, from 0
    version: int
    vectors: dict[str, Tensor]


class Answer(
    Message,
    reveals="one party's model update and its weight (its number of rows), in the clear, and when it was "
    "done",
):
    number: int
    weight: float
    vectors: dict[str, Tensor]


class Scheduler(Protocol):
    """Decides which client works on which version: tacit.pace.Scheduler."""

    version: int
    at_work: dict[str, Any]
    closes: float | None  # the time at which it stops waiting for further answers

    def next_orders(self, now: float, there: Collection[str] | None = None) -> list[Any]: ...
    def finish(self, name: str, number: int) -> Any: ...
    def give_up(self, name: str) -> None: ...
    def check_deadline(self, now: float) -> None: ...


async def server(
    me: Party,
    clients: Sequence[str],
    scheduler: Scheduler,
    last: int,
    down: Callable[[Any], Vectors],
    receive: Callable[[Any, float, Vectors], None],
    merge: Callable[[], Awaitable[bool]],
    test: Callable[[int], Vectors | None],
    tested: Callable[[int, dict[str, Vectors]], Awaitable[None]],
    *,
    within: float | None = None,
    at_least: int | None = None,
    admission: Admission | None = None,
    wrong: Callable[[str, Message], str | None] = lambda name, message: None,
    dropped: Callable[[int, Mapping[str, str]], None] = lambda version, who: None,
    pending: int | None = None,
    farewell: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Serve until there are `last` versions.

    `down` returns the vectors of an order; `receive` takes an answer; `merge` makes a version if there are
    enough answers, and returns whether it did. If `test` returns a model, all clients test it. After a
    restart of the server, orders in progress are sent again; `pending` is a version that was not tested yet.
    """
    scope = me.scope(SCOPE)
    sent_at: dict[str, float] = {}

    async def send_order(order: Any) -> None:
        message = Order(order.number, order.version, down(order))
        sent_at[order.name] = me.clock.now()
        if admission is not None:
            admission.add_request((order.name,), message, busy=True)
        await me.send(order.name, message)

    async def drop(name: str, reason: str) -> None:
        scheduler.give_up(name)
        dropped(scheduler.version, {name: reason})
        if admission is None:
            raise ProtocolError(f"party {me.name!r} has no valid answer of {name!r}: {reason}")
        await admission.refuse(name, reason)
        if within is None:
            await admission.wait_for_free(
                (name,), 1, None
            )  # raises: without a deadline the run needs every client

    async def run_test(version: int) -> None:
        model = test(version)
        if model is None:
            return
        message = Test(version, model)
        testers = (
            clients
            if admission is None
            else admission.available(busy=True) or await admission.wait_for_free(clients, 1, within)
        )
        with me.scope(f"test {version}") as place:
            if admission is not None:
                admission.add_request(testers, message, busy=False)
            await me.send(testers, message)
            answers = await place.gather(
                testers, Tested, at_least=None if admission is None else 0, within=within
            )
        if admission is not None:
            admission.complete_request(testers, Test)
        valid, invalid = check_replies(answers, wrong)
        for name, reason in invalid.items():
            await drop(name, reason)
        late = {name: f"no answer within {within:g} s" for name in answers.missing if name not in invalid}
        if late:
            dropped(version, late)
            if admission is not None:
                admission.miss(late)
        if not valid:
            raise ProtocolError(
                f"party {me.name!r} has no valid Tested of version {version + 1}: "
                + "; ".join(f"{name!r}: {why}" for name, why in {**invalid, **late}.items())
            )
        await tested(version, {name: answer.counts for name, answer in valid.items()})

    async def collect() -> None:
        """Wait for the next answers; drop clients whose deadline has passed."""
        deadlines = [sent_at[n] + within for n in scheduler.at_work] if within is not None else []
        if admission is not None:
            deadlines.append(me.clock.now() + LOOK)
        if scheduler.closes is not None:
            deadlines.append(scheduler.closes)
        answers = await scope.soonest(scheduler.at_work, Answer, until=min(deadlines, default=None))
        for name in sorted({*answers, *answers.refused}, key=lambda n: scheduler.at_work[n].serial):
            if name in answers.refused:
                await drop(name, str(answers.refused[name]))
                continue
            answer = answers[name]
            if scheduler.at_work[name].number != answer.number:
                continue  # answers a cancelled order
            reason = wrong(name, answer)
            if admission is not None:
                admission.complete_request((name,), Order)
            if reason is None:
                receive(scheduler.finish(name, answer.number), answer.weight, answer.vectors)
            else:
                await drop(name, reason)
        if within is not None:
            for name in [n for n in scheduler.at_work if me.clock.now() >= sent_at[n] + within]:
                scheduler.give_up(name)
                dropped(scheduler.version, {name: f"no answer within {within:g} s"})
                if admission is not None:
                    admission.complete_request((name,), Order, answered=False)
                    admission.miss((name,))
        scheduler.check_deadline(me.clock.now())

    if admission is not None:
        if (
            scheduler.version >= last and pending is None
        ):  # restarted after its last version: clients may have received Stop already
            if farewell is not None:
                await farewell()
            await me.send(clients, Stop())
            return
        await admission.wait_for_free(
            clients,
            len(clients) if within is None or at_least is None else min(at_least, len(clients)),
            within,
        )
    if scheduler.version == 0 and not scheduler.at_work:
        await run_test(-1)
    if pending is not None:
        await run_test(pending)
    for order in list(scheduler.at_work.values()):
        await send_order(order)
    while scheduler.version < last:
        if await merge():
            await run_test(scheduler.version - 1)
            continue
        for order in scheduler.next_orders(
            me.clock.now(), None if admission is None else admission.available(busy=False)
        ):
            await send_order(order)
        if scheduler.at_work:
            await collect()
        elif admission is not None:
            await admission.wait_for_free(clients, 1, within)
        else:
            raise ProtocolError(
                f"party {me.name!r} has no client at work and asks none, so version {scheduler.version} of "
                f"{last} cannot be reached."
            )
    if farewell is not None:
        await farewell()
    await me.send(clients, Stop())


async def client(
    me: Party,
    work: Callable[[int, int, Vectors], Awaitable[tuple[float, Vectors]]],
    test: Callable[[int, Vectors], Vectors],
    server: str = "server",
    *,
    done: Callable[[], Awaitable[None]] | None = None,
    consent: Consent = UNCOMMITTED,
) -> None:
    """Work on the latest order until Stop, and answer tests meanwhile.

    `done` is awaited after each answer. `consent` is consulted before every answer.
    """
    scope = me.scope(SCOPE)
    listen_task: asyncio.Future[Any] = asyncio.ensure_future(me.recv(server, Order, Test, Stop))
    work_task: asyncio.Future[tuple[float, Vectors]] | None = None
    number = -1
    try:
        while True:
            await asyncio.wait(
                [t for t in (work_task, listen_task) if t is not None], return_when=asyncio.FIRST_COMPLETED
            )
            if work_task is not None and work_task.done():
                finished, work_task = work_task, None
                await scope.send(server, Answer(number, *finished.result()))
                if done is not None:
                    await done()
            if listen_task.done():
                message = listen_task.result()
                if isinstance(message, Stop):
                    return
                listen_task = asyncio.ensure_future(me.recv(server, Order, Test, Stop))
                if isinstance(message, Test):
                    consent.admit("test", message.round, Digests(message.vectors))
                    await me.scope(f"test {message.round}").send(
                        server, Tested(test(message.round, message.vectors))
                    )
                    continue
                if work_task is not None:
                    work_task.cancel()  # the server no longer waits for this answer
                number = message.number
                consent.admit("update", message.version, Digests(message.vectors))
                work_task = asyncio.ensure_future(work(number, message.version, message.vectors))
    finally:
        open_tasks = [task for task in (listen_task, work_task) if task is not None]
        for task in open_tasks:
            task.cancel()
        await asyncio.gather(*open_tasks, return_exceptions=True)


def ideal(
    scheduler: Scheduler,
    last: int,
    seconds: Callable[[Sequence[Any]], Sequence[float]],
    answer: Callable[[Any], tuple[float, Vectors]],
    receive: Callable[[Any, float, Vectors], None],
    merge: Callable[[], bool],
    now: float = 0.0,
) -> Iterator[float]:
    """Compute the same on a virtual clock, where an order takes `seconds`; yield the time of each version."""
    due: list[tuple[float, int, Any]] = []

    def start(orders: Sequence[Any]) -> None:
        for order, duration in zip(orders, seconds(orders)):
            heapq.heappush(due, (order.begun + duration, order.serial, order))

    start(list(scheduler.at_work.values()))
    while scheduler.version < last:
        if merge():
            yield now
            continue
        start(scheduler.next_orders(now))
        now = due[0][0] if scheduler.closes is None else min(due[0][0], scheduler.closes)
        while due and due[0][0] == now:
            order = heapq.heappop(due)[2]
            if (
                scheduler.at_work.get(order.name) == order
                and scheduler.finish(order.name, order.number) is not None
            ):
                receive(order, *answer(order))
        scheduler.check_deadline(now)
