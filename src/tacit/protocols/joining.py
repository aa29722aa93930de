"""Admission: how a client joins a run, and how the server learns who is ready.

    client k                                                   server
      |<-- Call() -----------------------------------------------|   when the server starts or restarts
      |--- Join(version, life) --------------------------------->|   when the client starts or restarts
      |<-- Work(contract, run) ----------------------------------|   or Refused(reason), and the client stops
      |  compares the contract with the agreed one, reads its data, builds the model
      |--- Ready(rows, held, features, classes, …) ------------->|   or Unfit(reason): data do not fit
      …  rounds; after each answer:
      |--- Free() ---------------------------------------------->|   a late client is available again
      |<-- Final(run, vectors, metrics) -------------------------|   real parties only, after the last round
      |<-- GaveUp(reason) ---------------------------------------|   the run ended early; the client stops

All messages are in the scope "door". The server learns how many rows each client trains on and holds back,
and why a client cannot take part: in a fixed sentence or, under a contract its owner agreed to, with the
names of columns of that contract. The clients learn the contract.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..errors import ProtocolError, TacitError
from ..parties.message import Message

if TYPE_CHECKING:
    from ..parties.party import Party

SCOPE = "door"
MOST_SHOWN = 1000  # characters of another party's text that are shown
SOON = 2.0  # seconds of waiting for a party before it is logged


class Join(Message, reveals="that a party has started, and its version of tacit"):
    version: str
    life: str  # random, the same for as long as its process lives


class Call(Message, reveals="that the server has started"):
    pass


class Work(
    Message,
    reveals="the contract: model, algorithm, settings, guard, the columns agreed on; the server's name for "
    "the run; and, after a preparation, the statistics over all parties",
):
    contract: str
    run: str
    prepared: str = ""  # the result of the preparation, for a client that has restarted since


class Refused(Message, reveals="why the server does not let this party take part"):
    reason: str


class GaveUp(Message, reveals="that the server ended the run early, and why"):
    reason: str


FINAL = "final"  # the scope of the last message


class Final(
    Message,
    reveals="the final model and, of three parties or more, its metrics on the held-out rows of all parties",
):
    run: str
    vectors: dict[str, Tensor]
    metrics: dict[str, float]


WITHHELD = -1  # in place of a number of rows that an ε covers
TOO_FEW = 0  # in place of a number of rows below the one agreed on: the party contributes none


class Ready(
    Message,
    reveals="how many rows the party trains on and holds back (unless an ε covers them, or they are fewer "
    "than agreed), the shape of a row, the number of classes and of "
    "parameters, a digest of those that nobody trains",
):
    rows: int
    held: int
    features: list[int]
    classes: int
    parameters: int
    frozen: str  # a digest of the model's constants, which are never sent; "" if there are none


class Unfit(
    Message, reveals="why a party's data or software do not fit the job, without a value of its rows"
):
    reason: str


class Free(Message, reveals="that the party has answered and can be asked again"):
    pass


def shown(text: str) -> str:
    """The text of another party, for a log: on one line, and not longer than a paragraph."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[:MOST_SHOWN]).split()).rstrip(".")


async def attend(
    me: Party,
    server: str,
    version: str,
    prepare: Callable[[Work], Ready],
    admit: Callable[[Work], Awaitable[None]] | None = None,
) -> None:
    """Join as a client: request the job, `prepare`, report; repeat when the server calls.

    `admit` returns when the owner allows a job. A person may take hours for that; meanwhile the server may
    call again, offer another job or end the run. `attend` runs concurrently with the client's rounds, and
    ends only with an error: the server's refusal, its end of the run, or an error of `admit` or `prepare`, of
    which the server receives `outside` and nothing else.
    """
    scope, life = me.scope(SCOPE), me.secret.bytes(8).hex()
    await scope.send(server, Join(version, life))
    waiting: tuple[Work, asyncio.Future[None]] | None = None  # an offer that the owner has not decided about
    try:
        while True:
            message: Any = await _next_message(scope, server, waiting)
            if isinstance(message, Refused):
                raise ProtocolError(
                    f"the server {server!r} refuses party {me.name!r}: {shown(message.reason)}"
                )
            if isinstance(message, GaveUp):
                raise ProtocolError(
                    f"the server {server!r} ended the run early: {shown(message.reason)}. What this party "
                    "answered is on its record. If the server resumes the run, start this party again as "
                    "before."
                )
            if isinstance(message, Call):
                await scope.send(server, Join(version, life))
                continue
            if message is None:  # the owner has decided
                assert waiting is not None
                (offer, decision), waiting = waiting, None
            elif admit is None:
                offer, decision = message, None
            elif waiting is not None and waiting[0] == message:  # the same offer again
                continue
            else:
                if waiting is not None:
                    waiting[1].cancel()
                waiting = message, asyncio.ensure_future(admit(message))
                continue
            try:
                if decision is not None:
                    decision.result()
                ready = prepare(offer)
            except TacitError as error:
                await scope.send(server, Unfit(error.outside))
                raise
            await scope.send(server, ready)
    finally:
        if waiting is not None:
            waiting[1].cancel()


async def _next_message(scope: Party, server: str, waiting: tuple[Work, asyncio.Future[None]] | None) -> Any:
    """Return the server's next message, or None if the owner decides first."""
    if waiting is None:
        return await scope.recv(server, Call, Work, Refused, GaveUp)
    message: asyncio.Future[Any] = asyncio.ensure_future(scope.recv(server, Call, Work, Refused, GaveUp))
    pair: list[asyncio.Future[Any]] = [message, waiting[1]]
    try:
        await asyncio.wait(pair, return_when=asyncio.FIRST_COMPLETED)
        return message.result() if message.done() else None
    finally:
        message.cancel()


class Admission:
    """The server's side: which clients are ready, busy or refused.

    `job(name)` is the offer to a client; `fits(name, ready)` returns why it cannot take part, or None; `note`
    logs events; `everyone`: the run needs all clients.

    Over a network, `absence(name)` is for how many seconds a client that was connected has been disconnected.
    A run that needs all clients waits `patience` seconds for one to come back; None: forever.
    """

    def __init__(
        self,
        me: Party,
        clients: Sequence[str],
        version: str,
        job: Callable[[str], Work],
        fits: Callable[[str, Ready], str | None],
        note: Callable[[str], None],
        everyone: bool = False,
        absence: Callable[[str], float] = lambda name: 0.0,
        patience: float | None = None,
    ):
        self.me, self.scope, self.clients = me, me.scope(SCOPE), list(clients)
        self.version, self.job, self.fits, self.note, self.everyone = version, job, fits, note, everyone
        self.absence, self.patience = absence, patience
        self.ready: dict[str, Ready] = {}
        self.busy: set[str] = set()
        self.refused: dict[str, str] = {}
        self.processes: dict[str, str] = {}  # a random id of each client's process
        self.last_process: dict[str, str] = {}  # the process to which the last request was sent
        self.requests: dict[
            str, dict[str, tuple[Message, bool]]
        ] = {}  # {client: {kind: (request to repeat after a restart, whether it keeps the client busy)}}
        self.started: dict[str, float] = {}  # when a client received its current work
        self.durations: dict[str, float] = {}  # seconds of each client's last work
        # clients that missed a deadline: not awaited again until they reconnect or answer
        self.overdue: set[str] = set()
        self.has_asked = False  # whether this process of the server has asked any client for anything
        self.changed = asyncio.Event()

    async def run(self) -> None:
        """Answer clients for as long as the run lasts."""
        await self.scope.send(self.clients, Call())
        while True:
            message: Any
            try:
                name, message = await self.scope.first(Join, Ready, Unfit, Free)
            except ProtocolError as error:  # an unreadable message, which has been removed from the mailbox
                self.note(f"a message to the admission was dropped: {error}")
                continue
            if name not in self.clients:
                await self.refuse(name, "it is not a party of this job")
            elif isinstance(message, Join):
                await self._join(name, message)
            elif isinstance(message, Unfit):
                running = name in self.ready
                self._exclude(name, message.reason, "cannot take part")
                if running and self.everyone:  # it took part in the run, which needs every client
                    raise ProtocolError(f"the run cannot continue: {name!r}: {message.reason}")
            elif isinstance(message, Free):
                self.busy.discard(name)
                self.overdue.discard(name)
                if name in self.started:
                    self.durations[name] = self.me.clock.now() - self.started.pop(name)
            elif (
                name in self.processes
            ):  # else it joined an earlier process of this server, and will join again
                await self._admit(name, message)
            self.changed.set()

    async def _join(self, name: str, message: Join) -> None:
        self.overdue.discard(name)  # it is back, and is awaited while it prepares
        if message.life != self.processes.get(name):
            self.ready.pop(name, None)
        if message.version != self.version:
            await self.refuse(
                name,
                f"it runs tacit {message.version}, this server {self.version}. Install the same version at "
                "all parties",
            )
            return
        if name in self.processes and message.life != self.processes[name]:
            self.note(f"{name!r} was restarted")
        self.processes[name] = message.life
        self.refused.pop(name, None)
        await self.scope.send(name, self.job(name))

    async def _admit(self, name: str, ready: Ready) -> None:
        reason = self.fits(name, ready)
        if reason is not None:
            await self.refuse(name, reason)
            return
        self.ready[name] = ready
        if self.last_process.get(name) == self.processes[name]:  # a repeated message
            return
        self.busy.discard(name)
        for message, busy in list(
            self.requests.get(name, {}).values()
        ):  # it restarted while an answer is awaited: repeat the request
            if busy:
                self.busy.add(name)
            self.last_process[name] = self.processes[name]
            await self.me.send(name, message)

    def _exclude(self, name: str, reason: str, what: str) -> None:
        self.ready.pop(name, None)
        self.refused[name] = reason
        self.note(f"{name!r} {what}: {reason}")

    async def give_up(self, reason: str) -> None:
        """Tell every client that the run has ended early."""
        await self.scope.send(self.clients, GaveUp(reason))

    async def refuse(self, name: str, reason: str) -> None:
        self._exclude(name, reason, "was refused")
        await self.scope.send(name, Refused(reason))
        self.changed.set()

    def replace_requests(self, names: Sequence[str], message: Message) -> None:
        """Make this the only pending request, for `names`."""
        self.requests = {}
        self.add_request(names, message, busy=True)

    def add_request(self, names: Sequence[str], message: Message, busy: bool) -> None:
        """Add a pending request for `names`; if `busy`, they receive no other until they send Free."""
        self.has_asked = self.has_asked or bool(names)
        for name in names:
            self.requests.setdefault(name, {})[message.kind] = message, busy
            if name in self.processes:
                self.last_process[name] = self.processes[name]
        if busy:
            self.busy |= set(names)
        if busy and message.kind == "Down":
            self.started |= dict.fromkeys(names, self.me.clock.now())

    def note_processes(self, names: Sequence[str]) -> None:
        """Note whose processes are asked, with a request that is not repeated if one restarts."""
        known = self.processes
        self.last_process.update({name: known[name] for name in names if name in known})

    def has_restarted(self, name: str) -> bool:
        """Return whether its process differs from the one asked last; that one's state is lost."""
        return self.last_process.get(name) != self.processes.get(name)

    def complete_request(self, names: Sequence[str], kind: type[Message], answered: bool = True) -> None:
        """Remove a request: they answered and are free or, if not `answered`, are no longer awaited."""
        for name in names:
            _, busy = self.requests.get(name, {}).pop(kind.kind, (None, False))
            if busy and answered:
                self.busy.discard(name)

    def available(self, busy: bool) -> list[str]:
        """Return the ready clients; with `busy`, also those at work that missed no deadline."""
        return [
            n
            for n in self.clients
            if n in self.ready and (n not in self.overdue if busy else n not in self.busy)
        ]

    def miss(self, names: Iterable[str]) -> None:
        """Record that these clients missed a deadline: the next rounds do not wait for them."""
        self.overdue |= {n for n in names if n not in self.ready or n in self.busy}

    def list_absent(self, names: Iterable[str]) -> list[str]:
        """Return those of `names` that disconnected, where the run needs all; raise if one stays away."""
        if not self.everyone:
            return []
        absent = {name: seconds for name in names if (seconds := self.absence(name)) > 0}
        for name, seconds in absent.items():
            if self.patience is not None and seconds > self.patience:
                raise ProtocolError(
                    f"party {name!r} has been disconnected for {seconds:.0f} s (--patience), and every sum "
                    "is over all parties. Its process ended, or it lost its connection to the hub. When it "
                    "can run again, start the same command at all parties: they resume after the last sum."
                )
        return list(absent)

    async def wait_for_change(self) -> None:
        """Return when a client joined, left or answered, or when it is time to look who is absent."""
        if self.patience is None:
            await self.changed.wait()
            return
        timer = self.me.clock.at(self.me.clock.now() + min(SOON, self.patience), self.changed.set)
        try:
            await self.changed.wait()
        finally:
            timer.cancel()

    async def wait_for_joined(self, names: Sequence[str], within: float | None) -> None:
        """Wait until each of `names` has its job, for `within` seconds at most: before, it reads no Stop.

        Refused clients, and those that missed a deadline, are not awaited.
        """
        clock = self.me.clock
        began, last_note = clock.now(), ""
        while missing := [
            n for n in names if n not in self.ready and n not in self.refused and n not in self.overdue
        ]:
            now = clock.now()
            if within is not None and now >= began + within:
                self.miss(missing)
                return
            text = f"waiting for {', '.join(map(repr, missing[:8]))}"
            if now - began >= SOON and text != last_note:
                self.note(text)
                last_note = text
            self.changed.clear()
            pause = SOON if within is None else min(SOON, began + within - now)
            timer = clock.at(now + pause, self.changed.set)
            try:
                await self.changed.wait()
            finally:
                timer.cancel()

    async def wait_for_free(self, names: Sequence[str], need: int, within: float | None) -> list[str]:
        """Return those of `names` that can be asked, at least `need`, after `within` seconds at most.

        A client that missed a deadline before is not awaited, unless there are too few without it.
        """
        clock = self.me.clock
        end = None if within is None else clock.now() + within
        began, last_note = clock.now(), ""
        while True:
            absent = set(self.list_absent(names))
            free = [n for n in names if n in self.ready and n not in self.busy and n not in absent]
            can_start = set(free)
            missing = [
                n
                for n in names
                if n not in can_start
                and (within is None or (n not in self.refused and n not in self.overdue))
            ]  # refused clients are not awaited
            if (not missing and len(free) >= need) or (
                end is not None and clock.now() >= end and len(free) >= need
            ):
                if within is not None:
                    self.miss(missing)
                return free
            hopeless = [f"{n!r}: {self.refused[n]}" for n in missing if n in self.refused]
            if hopeless and within is None:  # without a deadline the run needs every client
                raise ProtocolError("the run cannot continue: " + "; ".join(hopeless))
            text = (
                f"waiting for {', '.join(map(repr, missing[:8]))}"
                if missing
                else f"waiting until {need} parties can take part"
            )
            if clock.now() - began >= SOON and text != last_note:
                self.note(text)
                last_note = text
            self.changed.clear()
            pause = SOON if end is None or clock.now() >= end else min(SOON, end - clock.now())
            timer = clock.at(clock.now() + pause, self.changed.set)
            try:
                await self.changed.wait()
            finally:
                timer.cancel()
