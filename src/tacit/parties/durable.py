"""A party whose program can be killed at any moment and run again, as if it had only been slow.

    first start:   recv → log.received, fsync before the next send; send → log.sent (a digest), fsync, network
    next starts:   recv ← log.received;   send: the digest must be the same, and is skipped if it has arrived
    afterwards:    as at the first start

A program is a function of its inputs, of `me.secret` and of what it receives. The secret follows from a key
on disk and received messages are in the log, so a program that is run again sends the same again, which
`send` checks: nothing is masked or answered in two ways, whatever the others say about where they stopped.
What differs by nature, as fresh encryptions of the same words, is named in `fresh`, and not compared.

`arrived`: how many messages of this party each other one has on its disk, as it said; the rest is sent again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar, cast

from ..errors import BadRun, ProtocolError
from .codec import decode, encode, kind_of
from .ledger import Ledger
from .message import KINDS, Message
from .message_log import RECEIVED, SENT, MessageLog, digest_of
from .party import Gathered, Party
from .secret import StoredSecret

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, eq=False)
class DurableParty(Party):
    """Made by `make_durable`."""

    log: MessageLog = field(kw_only=True)
    arrived: Mapping[str, int] = field(kw_only=True)
    fresh: frozenset[str] = field(kw_only=True)
    seen: Ledger = field(kw_only=True)
    _sent: Counter[str] = field(default_factory=Counter, kw_only=True, repr=False)  # to each
    _read: Counter[str] = field(default_factory=Counter, kw_only=True, repr=False)
    _kept: Counter[str] = field(default_factory=Counter, kw_only=True, repr=False)

    def keep(self, make: Callable[[], bytes]) -> bytes:
        number = self._kept[""]
        self._kept[""] += 1
        return self.log.keep(number, make)

    def scope(self, tag: str) -> Party:
        raise ProtocolError("a run that can be resumed has one scope: its messages are numbered by sender.")

    async def send(self, to: str | Iterable[str], message: Message) -> None:
        frame = encode(message, self.mailbox.max_bytes)
        digest = digest_of(frame)
        for name in (to,) if isinstance(to, str) else to:
            number = self._sent[name]
            self._sent[name] += 1
            before = self.log.read(SENT, name, number)
            if before is None:
                self.log.add(SENT, name, message.kind, digest)
            elif before != digest and message.kind not in self.fresh:
                raise BadRun(
                    f"{self.log.file}: the resumed run of {self.name!r} would send another {message.kind} to "
                    f"{name!r} than before. Were its data or its software changed? Nothing was sent. Restore "
                    "them, or agree on a new run."
                )
            if number >= self.arrived.get(name, 0):
                self.log.flush()  # what this message depends on is on disk before it leaves
                await self.transport.deliver(self.name, name, self.tag, frame)

    async def recv(self, sender: str, *kinds: type[M], within: float | None = None) -> M:
        frame = self.log.read(RECEIVED, sender, self._read[sender])
        self._read[sender] += 1
        if frame is not None:
            message = decode(frame, kinds, self.mailbox.max_bytes)
            self.seen.record(self.name, sender, KINDS[message.kind], bytes=len(frame))
            return cast(M, message)
        letter = self.mailbox.pop(self.tag, sender)
        if letter is None:
            letter = await self._next((sender,), lambda: self._wants(kinds, repr(sender)), within)
        content = bytes(letter.frame)  # a copy: tensors may use the frame's memory
        opened = self._open(letter, kinds)
        self.log.add(RECEIVED, sender, kind_of(content, self.mailbox.max_bytes), content)
        return opened

    async def gather(
        self,
        senders: Iterable[str],
        *kinds: type[M],
        at_least: int | None = None,
        within: float | None = None,
    ) -> Gathered[M]:
        """One message from each sender, in the order requested."""
        if at_least is not None or within is not None:
            raise ProtocolError("a run that can be resumed waits for every message.")
        result = Gathered[M]()
        for name in dict.fromkeys(senders):
            result[name] = await self.recv(name, *kinds)
        return result


def make_durable(
    me: Party, log: MessageLog, key: bytes, arrived: Mapping[str, int], fresh: Iterable[str] = ()
) -> DurableParty:
    """Return a party that writes to `log`; `key` is its own, kept on disk with the log."""
    for name, count in arrived.items():
        sent = log.count(SENT, name)
        if not 0 <= count <= sent:
            raise ProtocolError(
                f"{name!r} claims to have {count} messages of {me.name!r}, which has sent {sent}. Its record "
                "is not of this run."
            )
    return DurableParty(
        me.name,
        me.transport,
        me.mailbox,
        me.clock,
        StoredSecret(key),
        me.seed,
        me.tag,
        me.identity,
        log=log,
        arrived=dict(arrived),
        fresh=frozenset(fresh),
        seen=me.ledger,
    )
