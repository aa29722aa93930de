"""Taking part: how a client and a server find out, before and during a run, whether they fit together.

    client k                                                   server
      |<-- Call() -----------------------------------------------|   when the server's process starts: the first time, and after a crash
      |--- Join(version, life) ---------------------------------->|   when its process starts: the first time, and after a crash
      |<-- Work(contract, run) ----------------------------------|   or Refused(reason), and the client stops with it
      |  compares the contract with the one its owner agreed to, then reads its own data and makes the model
      |--- Ready(rows, held, features, classes, parameters) ----->|   or Unfit(reason): its data do not fit the job
      …  rounds; after each answer:
      |--- Free() ----------------------------------------------->|   so that the server knows a late party is back

All of it is said in the scope "door". The server learns how many rows each party trains on and holds back,
and that one cannot take part: in a fixed sentence, or, under a contract its owner agreed to, with the
names of columns of that contract. The clients learn the contract.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ProtocolError, TacitError
from ..parties.message import Message

if TYPE_CHECKING:
    from ..parties.party import Party

SCOPE = "door"
SOON = 2.0  # seconds of waiting for a party before that is worth a line in the log


class Join(Message, reveals="that a party has started, and its version of tacit"):
    version: str
    life: str  # random, the same for as long as its process lives


class Call(Message, reveals="that the server has started"):
    pass


class Work(
    Message,
    reveals="the contract: model, algorithm, settings, guard, the columns agreed on; and the server's name "
    "for the run",
):
    contract: str
    run: str


class Refused(Message, reveals="why the server does not let this party take part"):
    reason: str


UNTOLD = -1  # in place of a number of rows, where an ε is to cover it


class Ready(
    Message,
    reveals="how many rows the party trains on and holds back (unless an ε covers them), the shape of a "
    "row, the number of classes and of "
    "parameters",
):
    rows: int
    held: int
    features: list[int]
    classes: int
    parameters: int


class Unfit(
    Message, reveals="why a party's data or software do not fit the job, without a value of its rows"
):
    reason: str


class Free(Message, reveals="that the party has answered and can be asked again"):
    pass


async def attend(me: Party, boss: str, version: str, prepare: Callable[[Work], Ready]) -> None:
    """The client's half, beside its rounds: ask for the job, `prepare` for it, say so; again whenever the
    server calls. It ends by an error only: the server's refusal, or what `prepare` finds wrong, of which the
    server is told the error's `outside` and no more.
    """
    door, life = me.scope(SCOPE), me.secret.bytes(8).hex()
    await door.send(boss, Join(version, life))
    while True:
        said: Any = await door.recv(boss, Call, Work, Refused)
        if isinstance(said, Refused):
            raise ProtocolError(f"the server {boss!r} refuses party {me.name!r}: {said.reason}")
        if isinstance(said, Call):
            await door.send(boss, Join(version, life))
            continue
        try:
            ready = prepare(said)
        except TacitError as error:
            await door.send(boss, Unfit(error.outside))
            raise
        await door.send(boss, ready)


class Admission:
    """The server's half. `job(name)` is what a party is offered, `fits(name, ready)` what is wrong with it,
    if anything; `note` keeps what happened; `everyone`: the run cannot go on without one of them.
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
    ):
        self.me, self.here, self.clients = me, me.scope(SCOPE), list(clients)
        self.version, self.job, self.fits, self.note, self.everyone = version, job, fits, note, everyone
        self.ready: dict[str, Ready] = {}
        self.busy: set[str] = set()
        self.refused: dict[str, str] = {}
        self.processes: dict[str, str] = {}  # of whom we know which process of theirs
        self.last_process: dict[
            str, str
        ] = {}  # the process that was asked last: what it was sent it has, or will have
        self.requests: dict[
            str, dict[str, tuple[Message, bool]]
        ] = {}  # {party: {kind: (what it is asked again if it comes back, whether that keeps it busy)}}
        self.started: dict[str, float] = {}  # when a party was sent the work it is at
        self.durations: dict[str, float] = {}  # seconds each took for its last work, by this clock
        self.changed = asyncio.Event()

    async def run(self) -> None:
        """Answer whoever knocks, for as long as the run lasts."""
        await self.here.send(self.clients, Call())
        while True:
            said: Any
            try:
                name, said = await self.here.first(Join, Ready, Unfit, Free)
            except (
                ProtocolError
            ) as error:  # bytes that are no message, from whomever: they have been taken out of the mailbox
                self.note(f"at the door: {error}")
                continue
            if name not in self.clients:
                await self.refuse(name, "it is not among the parties of this job")
            elif isinstance(said, Join):
                await self._join(name, said)
            elif isinstance(said, Unfit):
                running = name in self.ready
                self._exclude(name, said.reason)
                if (
                    running and self.everyone
                ):  # it was in the middle of the run, and nobody said that the run may go on without it
                    raise ProtocolError(f"the run cannot go on: {name!r}: {said.reason}")
            elif isinstance(said, Free):
                self.busy.discard(name)
                if name in self.started:
                    self.durations[name] = self.me.clock.now() - self.started.pop(name)
            elif name in self.processes:  # else it joined a server that is no more, and is being called
                await self._admit(name, said)
            self.changed.set()

    async def _join(self, name: str, said: Join) -> None:
        if said.life != self.processes.get(name):
            self.ready.pop(name, None)
        if said.version != self.version:
            await self.refuse(
                name,
                f"it runs tacit {said.version}, and this server {self.version}. Install the same version at "
                "all parties",
            )
            return
        if name in self.processes and said.life != self.processes[name]:
            self.note(f"{name!r} was started anew")
        self.processes[name] = said.life
        self.refused.pop(name, None)
        await self.here.send(name, self.job(name))

    async def _admit(self, name: str, ready: Ready) -> None:
        reason = self.fits(name, ready)
        if reason is not None:
            await self.refuse(name, reason)
            return
        self.ready[name] = ready
        if self.last_process.get(name) == self.processes[name]:  # it said so twice
            return
        self.busy.discard(name)
        for message, busy in list(
            self.requests.get(name, {}).values()
        ):  # it came back while an answer is waited for: it is asked again
            if busy:
                self.busy.add(name)
            self.last_process[name] = self.processes[name]
            await self.me.send(name, message)

    def _exclude(self, name: str, reason: str) -> None:
        self.ready.pop(name, None)
        self.refused[name] = reason
        self.note(f"{name!r} cannot take part: {reason}")

    async def refuse(self, name: str, reason: str) -> None:
        self.ready.pop(name, None)
        self.refused[name] = reason
        self.note(f"{name!r} was refused: {reason}")
        await self.here.send(name, Refused(reason))
        self.changed.set()

    def replace_requests(self, names: Sequence[str], message: Message) -> None:
        """`names` are at work on this, and nobody on anything else."""
        self.requests = {}
        self.add_request(names, message, busy=True)

    def add_request(self, names: Sequence[str], message: Message, busy: bool) -> None:
        """`names` are asked this, too; if `busy`, they can be asked nothing else until they have said that
        they are free.
        """
        for name in names:
            self.requests.setdefault(name, {})[message.kind] = message, busy
            if name in self.processes:
                self.last_process[name] = self.processes[name]
        if busy:
            self.busy |= set(names)
        if busy and message.kind == "Down":
            self.started |= dict.fromkeys(names, self.me.clock.now())

    def has_restarted(self, name: str) -> bool:
        """Whether its process is another than the one asked last, which took with it whatever it held."""
        return self.last_process.get(name) != self.processes.get(name)

    def complete_request(self, names: Sequence[str], kind: type[Message], answered: bool = True) -> None:
        """They have answered, and are free before they have said so; or, if not `answered`, they are not
        waited for any more.
        """
        for name in names:
            _, busy = self.requests.get(name, {}).pop(kind.kind, (None, False))
            if busy and answered:
                self.busy.discard(name)

    def available(self, busy: bool) -> list[str]:
        """Who can be reached: of those at work too, if `busy`."""
        return [n for n in self.clients if n in self.ready and (busy or n not in self.busy)]

    async def wait_for_free(self, names: Sequence[str], need: int, within: float | None) -> list[str]:
        clock = self.me.clock
        end = None if within is None else clock.now() + within
        began, said = clock.now(), ""
        while True:
            there = [n for n in names if n in self.ready and n not in self.busy]
            missing = [
                n for n in names if n not in there and (within is None or n not in self.refused)
            ]  # who was refused is not waited for
            if (not missing and len(there) >= need) or (
                end is not None and clock.now() >= end and len(there) >= need
            ):
                return there
            hopeless = {n: self.refused[n] for n in missing if n in self.refused}
            if hopeless and within is None:  # nobody said that the run may go on without it
                raise ProtocolError(
                    "the run cannot go on: " + "; ".join(f"{n!r}: {why}" for n, why in hopeless.items())
                )
            text = (
                f"waiting for {', '.join(map(repr, missing[:8]))}"
                if missing
                else f"waiting until {need} parties can take part"
            )
            if clock.now() - began >= SOON and text != said:
                self.note(text)
                said = text
            self.changed.clear()
            pause = SOON if end is None or clock.now() >= end else min(SOON, end - clock.now())
            timer = clock.at(clock.now() + pause, self.changed.set)
            try:
                await self.changed.wait()
            finally:
                timer.cancel()
