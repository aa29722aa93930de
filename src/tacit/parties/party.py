"""A party as its program sees it: name, messages to other parties, two kinds of randomness, clock.

A program is `async def client(me: Party): …` and has effects only through `me`, so it runs unchanged in one
process and across organizations.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np

from ..errors import BadFrame, ProtocolError
from ..parameters import bad
from .clock import Clock, RealClock
from .codec import decode, encode, encode_on_device
from .forms import Frame
from .ledger import Ledger
from .mailbox import Mailbox, MailboxWatch, QueuedMessage
from .message import Message
from .secret import NOT_PRIVATE, Secret

M = TypeVar("M", bound=Message)


class Transport(Protocol):
    """Delivers a frame to another party's mailbox; the receiver takes the sender from the connection."""

    async def deliver(self, sender: str, to: str, scope: str, frame: Any) -> None: ...


class Identity(Protocol):
    """Signs in a party's name and verifies the signatures of others."""

    def sign(self, message: bytes) -> bytes: ...

    def verify(self, name: str, message: bytes, signature: bytes) -> bool: ...


class Runtime(Protocol):
    """Runs one program per party; returns their results, or raises PartyFailed naming the first failure."""

    async def run(
        self, programs: Mapping[str, Program], *, ledger: Ledger | None = None
    ) -> dict[str, Any]: ...


class Gathered(dict[str, M]):
    """Messages by sender, in the order requested. `missing` did not answer; `refused` were unreadable."""

    missing: tuple[str, ...] = ()
    refused: Mapping[str, ProtocolError] = {}


class LastRead:
    """The last read-only message that a party of this process decoded, and its frame.

    A frame in memory that cannot change says the same to every party, so it is decoded once for all of them.
    Who declares a message as read-only gives its vectors to no program that could change them
    (sum_steps.SharedVectors).
    """

    def __init__(self) -> None:
        self.entry: tuple[Frame, Message] | None = None

    def find(self, frame: Frame, kinds: tuple[type[M], ...]) -> M | None:
        """Return the message of this very frame, if it is of one of these kinds."""
        entry = self.entry
        if entry is None or entry[0] is not frame or type(entry[1]) not in kinds:
            return None
        return cast(M, entry[1])

    def keep(self, frame: Frame, message: Message) -> None:
        if message.is_read_only and type(frame) is bytes:
            self.entry = frame, message


@dataclass(frozen=True, eq=False)
class Party:
    name: str
    transport: Transport
    mailbox: Mailbox
    clock: Clock = field(default_factory=RealClock)
    secret: Secret = field(default_factory=Secret)
    seed: int | None = None  # None: `rng` is fresh and cannot be reproduced
    tag: str = ""  # the scope of this handle
    identity: Identity | None = None  # signs with the party's certificate, where there is one
    last_read: LastRead | None = None  # of all parties of this process
    same_process: bool = False  # as all other parties: tensors of a GPU need not leave it
    _turn: int = 0
    _turns: Counter[str] = field(default_factory=Counter, repr=False)

    def __post_init__(self) -> None:
        if self.secret.replayable:  # here, so that it holds for every runtime
            self.ledger.stamp(NOT_PRIVATE)

    @property
    def ledger(self) -> Ledger:
        return self.mailbox.ledger

    @cached_property
    def rng(self) -> np.random.Generator:
        """A generator that follows from (seed, name, scope). Use `secret` for secrets."""
        if self.seed is None:
            return np.random.default_rng()
        text = json.dumps([self.seed, self.name, self.tag, self._turn])
        return np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest(), "little"))

    def scope(self, tag: str) -> Party:
        """Return this party in a sub-protocol, whose messages are separate from other scopes.

        Used as `with me.scope(f"round {r}") as me:`, it drops late messages at the end; its tag must then not
        be reused.
        """
        if not tag or "/" in tag:
            raise bad("Party.scope", "tag", tag, "a word without '/'", "Nest scopes by calling scope twice.")
        full = self.full_tag(tag)
        if self.mailbox.closed(full):
            raise ProtocolError(
                f"party {self.name!r}: scope {full!r} was closed, and messages for it are dropped. "
                "Use a new tag, for instance with the round in it."
            )
        self._turns[full] += 1  # entering a scope again must not replay its random numbers
        scoped = object.__new__(type(self))  # dataclasses.replace takes five times as long
        scoped.__dict__.update(self.__dict__, tag=full, _turn=self._turns[full])
        scoped.__dict__.pop("rng", None)  # of this scope, not of the one around it
        return scoped

    def full_tag(self, tag: str) -> str:
        """Return the name of the scope `tag` within this one."""
        return f"{self.tag}/{tag}" if self.tag else tag

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

    def keep(self, make: Callable[[], bytes]) -> bytes:
        """Return `make()`; a party whose run can be resumed (durable.py) returns the first result again.

        For local values that are not drawn from `secret`, such as keys of a library.
        """
        return make()

    async def send(self, to: str | Iterable[str], message: Message) -> None:
        """Send to one party, or the same to several (encoded once).

        Returns when the transport has accepted the message, not when it is read.
        """
        frame = (encode_on_device if self.same_process else encode)(message, self.mailbox.max_bytes)
        for name in (to,) if isinstance(to, str) else to:
            await self.transport.deliver(self.name, name, self.tag, frame)

    async def send_alone(self, tag: str, to: str, message: Message) -> None:
        """Send one message in a scope that ends with it: as `with me.scope(tag) as me: await me.send(…)`."""
        full = self.full_tag(tag)
        await self.transport.deliver(self.name, to, full, encode(message, self.mailbox.max_bytes))
        self.mailbox.close(full)

    async def recv(self, sender: str, *kinds: type[M], within: float | None = None) -> M:
        """Return the next message of `sender`, which must be of one of these kinds."""
        letter = self.mailbox.pop(self.tag, sender)
        if letter is None:
            letter = await self._next((sender,), lambda: self._wants(kinds, repr(sender)), within)
        return self._open(letter, kinds)

    def listen(self, sender: str, *kinds: type[M]) -> Inbox[M]:
        """Return what gives one message of `sender` after the other, as `recv` does.

        Used as `with me.listen(…) as inbox: await inbox.next()`, by programs with many messages.
        """
        return Inbox(self, sender, kinds)

    async def first(
        self,
        *kinds: type[M],
        senders: Iterable[str] | None = None,
        within: float | None = None,
        background: bool = False,
    ) -> tuple[str, M]:
        """Return the first (sender, message) in this scope.

        `background`: the message need not come, so that a sender that stopped is no reason to end.
        """
        among = None if senders is None else frozenset(senders)
        wants = self._wants(
            kinds, "anyone" if among is None else "any of " + ", ".join(sorted(map(repr, among)))
        )
        letter = await self._next(among, lambda: wants, within, background)
        return letter.sender, self._open(letter, kinds)

    async def _next(
        self,
        senders: Collection[str] | None,
        wants: Callable[[], str],
        within: float | None,
        background: bool = False,
    ) -> QueuedMessage:
        """Wait for the next message of these senders; `wants` describes it."""
        with MailboxWatch(self.mailbox, self.tag, senders, wants).deadline(self.clock, within) as watch:
            watch.is_background = background
            letter = await watch.next()
        if letter is None:
            raise ProtocolError(
                f"party {self.name!r} waited {within:g} s for {wants()}, which did not arrive."
            )
        return letter

    async def gather(
        self,
        senders: Iterable[str],
        *kinds: type[M],
        at_least: int | None = None,
        within: float | None = None,
    ) -> Gathered[M]:
        """Return one message from each sender; after `within` seconds `at_least` suffice (default: all).

        With `at_least`, a sender of an unreadable message counts as missing and is listed in `refused`;
        without it, that is an error.
        """
        names = tuple(dict.fromkeys(senders))
        need = len(names) if at_least is None else at_least
        if not 0 <= need <= len(names):
            raise bad("Party.gather", "at_least", at_least, f"between 0 and the {len(names)} senders asked")
        waiting = dict.fromkeys(names)
        messages: dict[str, M] = {}
        refused: dict[str, ProtocolError] = {}
        with MailboxWatch(
            self.mailbox, self.tag, waiting, lambda: self._wants(kinds, _names(waiting))
        ).deadline(self.clock, within) as watch:
            while waiting:
                letter = await watch.next()
                if letter is None:
                    break
                del waiting[letter.sender]
                try:
                    messages[letter.sender] = self._open(letter, kinds)
                except ProtocolError as error:
                    if at_least is None:
                        raise
                    refused[letter.sender] = error
        if len(messages) < need:
            late = (
                f" {_names(waiting)} did not answer{'' if within is None else f' within {within:g} s'}."
                if waiting
                else ""
            )
            raise ProtocolError(
                f"party {self.name!r} needs {self._wants(kinds, f'{need} of {len(names)} parties')} and has "
                f"{len(messages)}.{late}" + "".join(f" {error}" for error in refused.values())
            )
        result = Gathered[M]((name, messages[name]) for name in names if name in messages)
        result.missing = tuple(name for name in names if name not in messages)
        result.refused = refused
        return result

    async def soonest(
        self, senders: Iterable[str], *kinds: type[M], until: float | None = None
    ) -> Gathered[M]:
        """Return the first message and all others of the same instant; none after time `until`.

        On a virtual clock an instant ends when nothing else can happen in it, so the result does not depend
        on the order in which parties run. A sender of an unreadable message is listed in `refused`.
        """
        waiting = dict.fromkeys(senders)
        result = Gathered[M]()
        refused: dict[str, ProtocolError] = {}
        for opening in (True, False):
            end = until if opening else self.clock.now()
            with MailboxWatch(
                self.mailbox, self.tag, waiting, lambda: self._wants(kinds, "any of " + _names(waiting))
            ).until(self.clock, end) as watch:
                while waiting and (letter := await watch.next()) is not None:
                    del waiting[letter.sender]
                    try:
                        result[letter.sender] = self._open(letter, kinds)
                    except ProtocolError as error:
                        refused[letter.sender] = error
                    if opening:
                        break
                else:
                    break
        result.missing, result.refused = tuple(waiting), refused
        return result

    def _wants(self, kinds: tuple[type[Message], ...], whom: str) -> str:
        names = " or ".join(kind.kind for kind in kinds)
        return f"{names} from {whom}" + (f" in scope {self.tag!r}" if self.tag else "")

    def _open(self, letter: QueuedMessage, kinds: tuple[type[M], ...]) -> M:
        if letter.is_lost:
            raise ProtocolError(
                f"party {self.name!r} expected {self._wants(kinds, repr(letter.sender))}, but "
                f"{self.mailbox.why_dropped(letter.sender)}"
            )
        if letter.kind is not None and letter.kind not in [kind.kind for kind in kinds]:
            raise ProtocolError(
                f"party {self.name!r} expected {self._wants(kinds, repr(letter.sender))}, got "
                f"{letter.kind!r:.80}."
            )
        frame, shared = letter.frame, self.last_read
        if shared is not None and (known := shared.find(frame, kinds)) is not None:
            return known
        try:
            # a frame from the network is a bytearray of our own: tensors may use its memory
            message = decode(frame, kinds, self.mailbox.max_bytes, reuse=isinstance(frame, bytearray))
        except BadFrame as error:
            raise BadFrame(
                f"party {self.name!r} expected {self._wants(kinds, repr(letter.sender))} and received an "
                f"unreadable message: {error}"
            ) from error
        if shared is not None:
            shared.keep(frame, message)
        return cast(M, message)


class Inbox(Generic[M]):
    """The messages of one sender in one scope, one after the other (`Party.listen`)."""

    def __init__(self, me: Party, sender: str, kinds: tuple[type[M], ...]) -> None:
        self._me, self._sender, self._kinds = me, sender, kinds

    def __enter__(self) -> Inbox[M]:
        me, sender = self._me, self._sender
        self._watch = MailboxWatch(
            me.mailbox, me.tag, (sender,), lambda: me._wants(self._kinds, repr(sender))
        )
        # a watch looks once at each sender, and this one reads all that it has sent
        self._watch.news.extend([sender] * (me.mailbox.count(me.tag, sender) - 1))
        self._watch.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.__exit__()

    async def next(self) -> M:
        """Return the next message, which must be of one of the kinds."""
        letter = await self._watch.next()
        assert letter is not None  # there is no deadline
        return self._me._open(letter, self._kinds)


Program = Callable[[Party], Awaitable[Any]]


def _names(names: Iterable[str]) -> str:
    listed = list(names)
    shown = ", ".join(map(repr, listed[:8]))
    return shown + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
