"""Steps that the secret sums share (secagg.py, lightsecagg.py, encrypted.py).

The server gathers answers and continues with the clients that answered; clients check the keys they receive;
a round may end early. A client whose round continues without it is done. If a round is aborted, nothing was
opened. Keys are signed wherever parties have identities: certificates across processes, generated keys in one
process against an active server.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, NamedTuple, ParamSpec

from torch import Tensor

from ..crypto.agree import PUBLIC, KeyPair, bind, derive, unseal
from ..errors import ProtocolError, SumAborted
from ..parameters import real, whole
from ..parties.codec import encode_parts
from ..parties.message import Message
from ..parties.party import Gathered, Identity, Party
from .consent import RoundSpent

P = ParamSpec("P")


class AdvertisedKeys(Message, reveals="a party's two public keys of this round; nothing about its data"):
    channel: bytes
    mask: bytes
    signature: bytes


class RoundKeys(Message, reveals="who the party masks with in this round, and their public keys"):
    keys: dict[str, tuple[bytes, bytes, bytes]]


class SealedShares(
    Message,
    reveals="shares of a party's secrets of this round, sealed for its neighbors: the server passes them "
    "on and cannot open them",
):
    sealed: dict[str, bytes]


class ForwardedShares(
    Message,
    reveals="one share each of its neighbors' secrets of this round, which say nothing below the threshold",
):
    sealed: dict[str, bytes]


class MaskedVector(
    Message,
    reveals="one party's update and weight under a mask: alone uniformly random, only the sum over all can "
    "be unmasked",
):
    packed: Tensor


class Survivors(Message, reveals="whose updates are in the sum and who dropped out"):
    alive: list[str]
    dropped: list[str]


class RoundOver(Message, reveals="that the round goes on without the party, or was aborted, and why"):
    aborted: bool
    why: str


class SumOutcome(NamedTuple):
    """The sum, the clients included in it, and the step at which each other client dropped out."""

    total: Tensor
    included: tuple[str, ...]
    dropped: dict[str, str]


@dataclass(frozen=True)
class SumTerms:
    """Parameters that all parties of a sum agree on. They are bound into every key: parties whose terms
    differ share no masks.
    """

    federation: str
    parties: int = whole(least=2, doc="N: how many are asked to take part in the round")
    length: int = whole(least=1, doc="numbers in a vector")
    bound: int = whole(least=1, doc="no number is larger; the ring or field holds parties × bound")
    threshold: float = real(
        0.6,
        above=0.5,
        most=1.0,
        doc="the share that must stay to the end; fewer can neither finish nor open anything",
    )
    # digest of what the server sent down in this round; parties that were sent different things share no mask
    sent: bytes = field(default=b"", kw_only=True)

    @property
    def enough(self) -> int:
        """The number of clients needed at every step."""
        return max(2, math.ceil(self.threshold * self.parties))

    def fits(self, names: Sequence[str]) -> None:
        """Check that enough distinct parties take part; absent parties count as dropped."""
        if not self.enough <= len(names) <= self.parties or len(set(names)) < len(names):
            kind = SumAborted if len(names) < self.enough else ProtocolError
            raise kind(
                f"a secure sum of {len(names)} parties ({', '.join(map(repr, names[:8]))}); the terms allow "
                f"{self.enough} to {self.parties} distinct parties. Wait for more parties, or lower the "
                "threshold."
            )


class LeftOut(Exception):
    """The round continues without this client."""


def whether_included(program: Callable[P, Awaitable[None]]) -> Callable[P, Coroutine[Any, Any, bool]]:
    """Make a client's program return whether its vector is in the sum: False where it raises LeftOut."""

    @wraps(program)
    async def client(*args: P.args, **kwargs: P.kwargs) -> bool:
        try:
            await program(*args, **kwargs)
        except LeftOut:
            return False
        return True

    return client


async def receive(me: Party, server: str, *kinds: Any) -> Any:
    """Return the server's next message of this sum. An aborted round raises SumAborted."""
    message = await me.recv(server, *kinds, RoundOver)
    if isinstance(message, RoundOver):
        if message.aborted:
            raise SumAborted(f"the server aborted the round of party {me.name!r}: {message.why:.300}")
        raise LeftOut
    return message


async def leave_unless(me: Party, server: str, allowed: bool) -> None:
    """Leave the sum if the client's commitment does not allow the next step; nothing of it was sent."""
    if not allowed:
        await me.send(server, RoundSpent())
        raise LeftOut


async def advertise(
    me: Party, server: str, about: bytes, identity: Identity | None, *pairs: KeyPair
) -> tuple[bytes, ...]:
    """Send the public keys of these pairs, of a channel and perhaps of masks; return them."""
    mine = tuple(pair.public for pair in pairs)
    signature = b"" if identity is None else identity.sign(bind(about, "keys", me.name, *mine))
    await me.send(server, AdvertisedKeys(mine[0], b"".join(mine[1:]), signature))
    return mine


def check_keys(
    me: Party,
    keys: Mapping[str, Sequence[bytes]],
    mine: tuple[bytes, ...],
    least: int,
    most: int,
    about: bytes,
    identity: Identity | None,
) -> None:
    """Check the keys a server distributes.

    Our own must be unchanged, no key may occur twice, their number must be within the agreed range, and each
    must be signed by its owner.
    """
    if tuple(keys.get(me.name, ()))[: len(mine)] != mine:
        raise ProtocolError(
            f"party {me.name!r} does not find its own keys among those it received. The server mixed them up "
            "or changed them; the party leaves the round."
        )
    public = [k for entry in keys.values() for k in entry[: len(mine)]]
    if len(set(public)) < len(public) or any(len(k) != PUBLIC for k in public):
        raise ProtocolError(
            f"party {me.name!r} received a public key twice, or an invalid one. It leaves the round."
        )
    if not least <= len(keys) <= most:
        raise ProtocolError(
            f"party {me.name!r} received the keys of {len(keys)} parties, itself included; {least} to {most} "
            "were agreed on. It leaves the round."
        )
    for name, entry in keys.items() if identity is not None else ():
        check_owner(me, name, entry[: len(mine)], entry[-1], about, identity)


def check_owner(
    me: Party, name: str, keys: Sequence[bytes], signature: bytes, about: bytes, identity: Identity | None
) -> None:
    if identity is not None and not identity.verify(name, bind(about, "keys", name, *keys), signature):
        raise ProtocolError(
            f"party {me.name!r} received keys of {name!r} that {name!r} did not sign. Another party may "
            "impersonate it; the party leaves the round."
        )


def channels(
    me: Party, about: bytes, own: KeyPair, others: Mapping[str, bytes]
) -> dict[tuple[str, str], bytes]:
    """Return a key for each direction between this party and each other party."""
    keys = {}
    for name, theirs in others.items():
        if name != me.name:
            shared = own.exchange(theirs)
            for ends in ((me.name, own.public, name, theirs), (name, theirs, me.name, own.public)):
                keys[ends[0], ends[2]] = derive(shared, bind(about, "channel", *ends))
    return keys


def open_share(
    me: Party,
    name: str,
    sealed: bytes,
    lines: Mapping[tuple[str, str], bytes],
    about: bytes,
    size: int | None = None,
) -> bytes:
    if (name, me.name) not in lines:
        raise ProtocolError(f"party {me.name!r} received shares of {name!r}, with which it has no key.")
    try:
        plain = unseal(lines[name, me.name], sealed, bind(about, name, me.name))
    except ProtocolError as error:
        raise ProtocolError(f"party {me.name!r} cannot decrypt the shares of {name!r}: {error}") from None
    if size is not None and len(plain) != size:
        raise ProtocolError(
            f"party {me.name!r} received shares of {name!r} of {len(plain)} bytes; expected {size}."
        )
    return plain


class SumSteps:
    """The server's steps: gather answers and continue with the clients that answered.

    `spent` are parties that refuse because they took part in an earlier sum of the round, which late shares
    could still open.
    """

    def __init__(self, me: Party, enough: int, within: float | None):
        self.me, self.enough, self.within = me, enough, within
        self.dropped: dict[str, str] = {}
        self.spent: set[str] = set()

    async def ask(
        self,
        names: Iterable[str],
        kind: Any,
        step: str,
        valid: Callable[[str, Any], bool] = lambda name, message: True,
        enough: int | None = None,
        within: float | None = None,
        also: tuple[type[Message], ...] = (),
    ) -> Gathered[Any]:
        """Gather one message from each party, of this kind or of one of those in `also`.

        Parties that are late or send an invalid message are dropped from the round. If too few remain, the
        round is aborted.
        """
        names = list(names)
        answers: Gathered[Any] = await self.me.gather(
            names, kind, *also, RoundSpent, at_least=0, within=self.within if within is None else within
        )
        spent = [name for name in answers if isinstance(answers[name], RoundSpent)]
        for name in spent:
            self.dropped[name] = f"{step}: it already took part in a sum of this round"
            del answers[name]
        self.spent |= set(spent)
        late = [name for name in names if name not in answers and name not in spent]
        wrong = [name for name in answers if not valid(name, answers[name])]
        for name in (*late, *wrong):
            self.dropped[name] = step
            answers.pop(name, None)
            why = answers.refused.get(
                name,
                f"its {kind.kind} is invalid in this round" if name in wrong else "it did not answer in time",
            )
            await self.me.send(name, RoundOver(False, f"{step}: {why}"))
        need = self.enough if enough is None else enough
        if len(answers) < need:
            silent = f"{', '.join(map(repr, (*late, *wrong)[:8]))} did not" if late or wrong else ""
            refused = (
                f"{', '.join(map(repr, spent[:8]))} already took part in a sum of this round" if spent else ""
            )
            raise await self.abort(
                names,
                f"{step}: {len(answers)} of {len(names)} parties answered and {need} are needed "
                f"({'; '.join(filter(None, (silent, refused)))})",
            )
        return answers

    async def abort(self, names: Iterable[str], why: str) -> SumAborted:
        """Notify the remaining clients. Nothing was opened; what they sent stays masked."""
        for name in names:
            if name not in self.dropped:
                await self.me.send(name, RoundOver(True, why))
        advice = "" if self.spent else " Wait for more parties, or lower the threshold."
        return SumAborted(
            f"secure aggregation was aborted, and no update was opened. {why}.{advice}",
            spent=bool(self.spent),
        )


def message_bytes(messages: Iterable[Message]) -> int:
    return sum(len(part) for m in messages for part in encode_parts(m))
