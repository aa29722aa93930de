"""A party as its program sees it: a name, someone to talk to, randomness of two kinds, a clock.

A program is `async def client(me: Party): …` and touches the world through `me` alone, so it runs unchanged
in one process and across organisations.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from ..errors import BadFrame, ProtocolError
from ..parameters import bad
from .clock import Clock, RealClock
from .codec import decode, encode
from .ledger import Ledger
from .mailbox import Mailbox, MailboxWatch, QueuedMessage
from .message import Message
from .secret import NOT_PRIVATE, Secret

M = TypeVar("M", bound=Message)


class Transport(Protocol):
    """Carries a frame to another party's mailbox. The receiving side takes the sender from the connection,
    not from what it is told.
    """

    async def deliver(self, sender: str, to: str, scope: str, frame: bytes) -> None: ...


class Identity(Protocol):
    """Signs in a party's name, and tells whether others signed in theirs."""

    def sign(self, message: bytes) -> bytes: ...

    def verify(self, name: str, message: bytes, signature: bytes) -> bool: ...


class Runtime(Protocol):
    """Runs one program per party and gives what each returned; raises PartyFailed naming the first that
    failed.
    """

    async def run(
        self, programs: Mapping[str, Program], *, ledger: Ledger | None = None
    ) -> dict[str, Any]: ...


class Gathered(dict[str, M]):
    """Messages by sender, in the order asked for. `missing` are not here; of these, `refused` sent what could
    not be read.
    """

    missing: tuple[str, ...] = ()
    refused: Mapping[str, ProtocolError] = {}


@dataclass(frozen=True, eq=False)
class Party:
    name: str
    transport: Transport
    mailbox: Mailbox
    clock: Clock = field(default_factory=RealClock)
    secret: Secret = field(default_factory=Secret)
    seed: int | None = None  # None: `rng` is fresh and cannot be reproduced
    tag: str = ""  # the scope this handle speaks in
    identity: Identity | None = None  # where parties have certificates: signs with this one's
    _turn: int = 0
    _turns: Counter[str] = field(default_factory=Counter, repr=False)

    def __post_init__(self) -> None:
        if self.secret.replayable:  # here, so that no runtime can forget it
            self.ledger.stamp(NOT_PRIVATE)

    @property
    def ledger(self) -> Ledger:
        return self.mailbox.ledger

    @cached_property
    def rng(self) -> np.random.Generator:
        """Reproducible from (seed, name, scope), whatever other scopes draw meanwhile. Never for secrets:
        those come from `secret`.
        """
        if self.seed is None:
            return np.random.default_rng()
        text = json.dumps([self.seed, self.name, self.tag, self._turn])
        return np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest(), "little"))

    def scope(self, tag: str) -> Party:
        """This party inside a sub-protocol: what is said in one scope is never heard in another.

        Used as `with me.scope(f"round {r}") as me:` it forgets late mail at the end; its tag must then not be
        used again.
        """
        if not tag or "/" in tag:
            raise bad("Party.scope", "tag", tag, "a word without '/'", "Nest scopes by calling scope twice.")
        full = f"{self.tag}/{tag}" if self.tag else tag
        if self.mailbox.closed(full):
            raise ProtocolError(
                f"party {self.name!r}: scope {full!r} was closed, and mail for it is dropped. "
                "Use a new tag, for instance with the round in it."
            )
        self._turns[full] += 1  # entering a scope again must not replay its random numbers
        return replace(self, tag=full, _turn=self._turns[full])

    def __enter__(self) -> Party:
        if not self.tag:
            raise ProtocolError(
                f"party {self.name!r}: only a scope can be closed, not the party itself. Use `with "
                "me.scope(tag) as …`."
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.mailbox.close(self.tag)
        self._turns.pop(self.tag, None)

    async def send(self, to: str | Iterable[str], message: Message) -> None:
        """To one party, or the same to several (written out once). Returns when the transport has it, not
        when it is read.
        """
        frame = encode(message, self.mailbox.max_bytes)
        for name in (to,) if isinstance(to, str) else to:
            await self.transport.deliver(self.name, name, self.tag, frame)

    async def recv(self, sender: str, *kinds: type[M], within: float | None = None) -> M:
        """The next message of `sender`, which must be of one of these kinds."""
        letter = self.mailbox.pop(self.tag, sender)
        if letter is None:
            with MailboxWatch(
                self.mailbox, self.tag, (sender,), lambda: self._wants(kinds, repr(sender))
            ).deadline(self.clock, within) as watch:
                letter = await watch.next()
        if letter is None:
            raise ProtocolError(
                f"party {self.name!r} waited {within:g} s for {self._wants(kinds, repr(sender))}, which did "
                "not come."
            )
        return self._open(letter, kinds)

    async def first(
        self, *kinds: type[M], senders: Iterable[str] | None = None, within: float | None = None
    ) -> tuple[str, M]:
        """Whoever speaks first in this scope, and what it says."""
        among = None if senders is None else frozenset(senders)
        wants = self._wants(
            kinds, "anyone" if among is None else "any of " + ", ".join(sorted(map(repr, among)))
        )
        with MailboxWatch(self.mailbox, self.tag, among, lambda: wants).deadline(self.clock, within) as watch:
            letter = await watch.next()
        if letter is None:
            raise ProtocolError(f"party {self.name!r} waited {within:g} s for {wants}, which did not come.")
        return letter.sender, self._open(letter, kinds)

    async def gather(
        self,
        senders: Iterable[str],
        *kinds: type[M],
        at_least: int | None = None,
        within: float | None = None,
    ) -> Gathered[M]:
        """One message from each. Waits for all until `within` seconds have passed; then `at_least` of them
        will do (all, if not given).

        With `at_least`, a sender whose message cannot be read counts as missing and stands in `refused`;
        without it, that is an error.
        """
        names = tuple(dict.fromkeys(senders))
        need = len(names) if at_least is None else at_least
        if not 0 <= need <= len(names):
            raise bad("Party.gather", "at_least", at_least, f"between 0 and the {len(names)} senders asked")
        left = dict.fromkeys(names)
        came: dict[str, M] = {}
        refused: dict[str, ProtocolError] = {}
        with MailboxWatch(self.mailbox, self.tag, left, lambda: self._wants(kinds, _names(left))).deadline(
            self.clock, within
        ) as watch:
            while left:
                letter = await watch.next()
                if letter is None:
                    break
                del left[letter.sender]
                try:
                    came[letter.sender] = self._open(letter, kinds)
                except ProtocolError as error:
                    if at_least is None:
                        raise
                    refused[letter.sender] = error
        if len(came) < need:
            late = (
                f" {_names(left)} did not answer{'' if within is None else f' within {within:g} s'}."
                if left
                else ""
            )
            bad_ones = "".join(f" {error}" for error in refused.values())
            raise ProtocolError(
                f"party {self.name!r} needs {self._wants(kinds, f'{need} of {len(names)} parties')} and has "
                f"{len(came)}."
                f"{late}{bad_ones}"
            )
        result = Gathered[M]((name, came[name]) for name in names if name in came)
        result.missing = tuple(name for name in names if name not in came)
        result.refused = refused
        return result

    async def soonest(
        self, senders: Iterable[str], *kinds: type[M], until: float | None = None
    ) -> Gathered[M]:
        """Whoever speaks first, and whoever else speaks in the same instant; nobody, once the clock shows
        `until`.

        On a virtual clock an instant is over when nothing else is left to happen in it, so what comes out
        does not hang on the order in which the parties were woken. A sender whose message cannot be read
        stands in `refused`.
        """
        left = dict.fromkeys(senders)
        result = Gathered[M]()
        refused: dict[str, ProtocolError] = {}
        for opening in (True, False):
            end = until if opening else self.clock.now()
            with MailboxWatch(
                self.mailbox, self.tag, left, lambda: self._wants(kinds, "any of " + _names(left))
            ).until(self.clock, end) as watch:
                while left and (letter := await watch.next()) is not None:
                    del left[letter.sender]
                    try:
                        result[letter.sender] = self._open(letter, kinds)
                    except ProtocolError as error:
                        refused[letter.sender] = error
                    if opening:
                        break
                else:
                    break
        result.missing, result.refused = tuple(left), refused
        return result

    def _wants(self, kinds: tuple[type[Message], ...], whom: str) -> str:
        return f"{_kinds(kinds)} from {whom}" + (f" in scope {self.tag!r}" if self.tag else "")

    def _open(self, letter: QueuedMessage, kinds: tuple[type[M], ...]) -> M:
        if letter.is_lost:
            raise ProtocolError(
                f"party {self.name!r} expected {self._wants(kinds, repr(letter.sender))}, but "
                f"{self.mailbox.why_dropped(letter.sender)}"
            )
        if letter.kind is not None and all(letter.kind != kind.kind for kind in kinds):
            raise ProtocolError(
                f"party {self.name!r} expected {self._wants(kinds, repr(letter.sender))}, got "
                f"{letter.kind!r:.80}."
            )
        try:
            # a network's frame is a bytearray of ours alone: its tensors may lie in it
            return cast(
                M,
                decode(
                    letter.frame, kinds, self.mailbox.max_bytes, reuse=isinstance(letter.frame, bytearray)
                ),
            )
        except BadFrame as error:
            wanted = self._wants(kinds, repr(letter.sender))
            raise BadFrame(
                f"party {self.name!r} expected {wanted} and cannot read what came: {error}"
            ) from error


Program = Callable[[Party], Awaitable[Any]]


def _kinds(kinds: tuple[type[Message], ...]) -> str:
    return " or ".join(kind.kind for kind in kinds)


def _names(names: Iterable[str]) -> str:
    listed = [repr(name) for name in names]
    return ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
