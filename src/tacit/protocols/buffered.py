"""Asynchronous training: the server does not wait for the slowest.

    server                                         client k
      |---- Order(number, version, vectors) ---------->|   whenever its desk says so: on the model as it is at that moment
      |                                                |  local(…) on its own rows, while others may have answered
      |<--- Answer(number, weight, vectors) ---------------|   to the last order only; an earlier one is given up when a new one comes
      |  enough has come: a new version                |
      …                                                …
      |---- Test(version, vectors) -------------------->|   now and then, to everyone, at work or not
      |<--- Tested(counts) -----------------------------|
      |---- Stop() ------------------------------------>|   at the end

Who is asked when, and how many answers make a new version, the desk decides (tacit.pace: FedBuff,
FedAsync, SAFA). What comes in one instant is put in the order in which it was asked for before anybody is
asked anew: so parties of one speed come out as synchronous rounds. With a deadline an order that is not
answered in time is given up, and the party named; it is asked again when it is back.

The server learns each answer's weight and update in the clear, when each party answers and so how fast it
is, and everyone's counts on its own held-out rows; the clients learn the model, and from the version's
number how often others answered. Nobody's rows are sent. Single updates cannot be hidden here: the masks
of a secure sum are agreed by the parties of one round, and here there is none.
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
from .rounds import Stop, Test, Tested, Vectors

if TYPE_CHECKING:
    from ..parties.party import Party
    from .joining import Admission

SCOPE = "work"
LOOK = 1.0  # seconds after which a server with a free place looks who has come back


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
    """Who is at work on what: tacit.pace.Scheduler."""

    version: int
    at_work: dict[str, Any]
    closes: float | None  # when it must do with what has come

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
    came: Callable[[Any, float, Vectors], None],
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
) -> None:
    """Until there are `last` versions. `down` is what an order is sent with; `came` takes an answer, `merge`
    makes a version of what has come, if that is enough, and says whether; where `test` gives a model,
    everyone tests it. Work under way when a server was stopped is asked for again; `pending` is a version
    that it had not tested yet.
    """
    here = me.scope(SCOPE)
    since: dict[str, float] = {}

    async def tell(order: Any) -> None:
        message = Order(order.number, order.version, down(order))
        since[order.name] = me.clock.now()
        if admission is not None:
            admission.add_request((order.name,), message, busy=True)
        await me.send(order.name, message)

    async def out(name: str, reason: str) -> None:
        scheduler.give_up(name)
        dropped(scheduler.version, {name: reason})
        if admission is None:
            raise ProtocolError(f"party {me.name!r} has no answer of {name!r} it can use: {reason}")
        await admission.refuse(name, reason)
        if within is None:
            await admission.wait_for_free(
                (name,), 1, None
            )  # which says that the run cannot go on: nobody said that it may do so without it

    async def examine(version: int) -> None:
        model = test(version)
        if model is None:
            return
        message = Test(version, model)
        asked = (
            clients
            if admission is None
            else admission.available(busy=True) or await admission.wait_for_free(clients, 1, within)
        )
        with me.scope(f"test {version}") as place:
            if admission is not None:
                admission.add_request(asked, message, busy=False)
            await me.send(asked, message)
            answers = await place.gather(
                asked, Tested, at_least=None if admission is None else 0, within=within
            )
        if admission is not None:
            admission.complete_request(asked, Test)
        found = {}
        reasons = {name: str(error) for name, error in answers.refused.items()}
        for name, answer in answers.items():
            reason = wrong(name, answer)
            if reason is None:
                found[name] = answer.counts
            else:
                reasons[name] = reason
        for name, reason in reasons.items():
            await out(name, reason)
        late = {name: f"no answer within {within:g} s" for name in answers.missing if name not in reasons}
        if late:
            dropped(version, late)
        if not found:
            raise ProtocolError(
                f"party {me.name!r} has no Tested it can use of version {version + 1}: "
                + "; ".join(f"{name!r}: {why}" for name, why in {**reasons, **late}.items())
            )
        await tested(version, found)

    async def take() -> None:
        """What comes next: answers, or that some of them did not come in time."""
        ends = [since[n] + within for n in scheduler.at_work] if within is not None else []
        if admission is not None:
            ends.append(me.clock.now() + LOOK)
        if scheduler.closes is not None:
            ends.append(scheduler.closes)
        answers = await here.soonest(scheduler.at_work, Answer, until=min(ends, default=None))
        for name in sorted({*answers, *answers.refused}, key=lambda n: scheduler.at_work[n].serial):
            if name in answers.refused:
                await out(name, str(answers.refused[name]))
                continue
            answer = answers[name]
            if scheduler.at_work[name].number != answer.number:
                continue  # to an order that was given up
            reason = wrong(name, answer)
            if admission is not None:
                admission.complete_request((name,), Order)
            if reason is None:
                came(scheduler.finish(name, answer.number), answer.weight, answer.vectors)
            else:
                await out(name, reason)
        if within is not None:
            for name in [n for n in scheduler.at_work if me.clock.now() >= since[n] + within]:
                scheduler.give_up(name)
                dropped(scheduler.version, {name: f"no answer within {within:g} s"})
                if admission is not None:
                    admission.complete_request((name,), Order, answered=False)
        scheduler.check_deadline(me.clock.now())

    if admission is not None:
        if (
            scheduler.version >= last and pending is None
        ):  # stopped after its last version: clients may have heard Stop from it, and are not waited for
            await me.send(clients, Stop())
            return
        await admission.wait_for_free(
            clients,
            len(clients) if within is None or at_least is None else min(at_least, len(clients)),
            within,
        )
    if scheduler.version == 0 and not scheduler.at_work:
        await examine(-1)
    if pending is not None:
        await examine(pending)
    for order in list(scheduler.at_work.values()):
        await tell(order)
    while scheduler.version < last:
        if await merge():
            await examine(scheduler.version - 1)
            continue
        for order in scheduler.next_orders(
            me.clock.now(), None if admission is None else admission.available(busy=False)
        ):
            await tell(order)
        if scheduler.at_work:
            await take()
        elif admission is not None:
            await admission.wait_for_free(clients, 1, within)
        else:
            raise ProtocolError(
                f"party {me.name!r} has nobody at work and asks nobody: version {scheduler.version} of {last} "
                "cannot come about."
            )
    await me.send(clients, Stop())


async def client(
    me: Party,
    work: Callable[[int, int, Vectors], Awaitable[tuple[float, Vectors]]],
    test: Callable[[int, Vectors], Vectors],
    boss: str = "server",
    *,
    done: Callable[[], Awaitable[None]] | None = None,
    consent: Consent = UNCOMMITTED,
) -> None:
    """Work on the last order until the server says stop, and test whatever is to be tested meanwhile. `done`
    is awaited after each answer. `consent` is asked before every answer.
    """
    here = me.scope(SCOPE)
    listening: asyncio.Future[Any] = asyncio.ensure_future(me.recv(boss, Order, Test, Stop))
    working: asyncio.Future[tuple[float, Vectors]] | None = None
    number = -1
    try:
        while True:
            await asyncio.wait(
                [t for t in (working, listening) if t is not None], return_when=asyncio.FIRST_COMPLETED
            )
            if working is not None and working.done():
                finished, working = working, None
                await here.send(boss, Answer(number, *finished.result()))
                if done is not None:
                    await done()
            if listening.done():
                message = listening.result()
                if isinstance(message, Stop):
                    return
                listening = asyncio.ensure_future(me.recv(boss, Order, Test, Stop))
                if isinstance(message, Test):
                    consent.admit("test", message.round, Digests(message.vectors))
                    await me.scope(f"test {message.round}").send(
                        boss, Tested(test(message.round, message.vectors))
                    )
                    continue
                if working is not None:
                    working.cancel()  # it lags too far behind: what it would answer is not wanted any more
                number = message.number
                consent.admit("update", message.version, Digests(message.vectors))
                working = asyncio.ensure_future(work(number, message.version, message.vectors))
    finally:
        for task in (listening, working):
            if task is not None:
                task.cancel()
        await asyncio.gather(*(t for t in (listening, working) if t is not None), return_exceptions=True)


def ideal(
    scheduler: Scheduler,
    last: int,
    seconds: Callable[[Sequence[Any]], Sequence[float]],
    answer: Callable[[Any], tuple[float, Vectors]],
    came: Callable[[Any, float, Vectors], None],
    merge: Callable[[], bool],
    now: float = 0.0,
) -> Iterator[float]:
    """What the programs compute on a virtual clock, where an order takes `seconds`: every answer in its turn,
    and a version whenever there is enough. Yields the time of each new version.
    """
    due: list[tuple[float, int, Any]] = []

    def begin(orders: Sequence[Any]) -> None:
        for order, takes in zip(orders, seconds(orders)):
            heapq.heappush(due, (order.begun + takes, order.serial, order))

    begin(list(scheduler.at_work.values()))
    while scheduler.version < last:
        if merge():
            yield now
            continue
        begin(scheduler.next_orders(now))
        now = due[0][0] if scheduler.closes is None else min(due[0][0], scheduler.closes)
        while due and due[0][0] == now:
            order = heapq.heappop(due)[2]
            if (
                scheduler.at_work.get(order.name) == order
                and scheduler.finish(order.name, order.number) is not None
            ):
                came(order, *answer(order))
        scheduler.check_deadline(now)
