"""What the secret sums (secagg.py, lightsecagg.py, encrypted.py) share: how a server asks many and goes on
with those that answer, how clients check the keys they are given, and how a round ends early.

A client that is told that its round is over without it has nothing more to do; that it is aborted, nothing
was opened. Keys are signed by their owners wherever parties have identities: in one process they are given
out for an active server, across processes they are the certificates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from ..crypto.agree import PUBLIC, agree, bind, unseal
from ..errors import ProtocolError, SumAborted
from ..parties.codec import encode_parts
from ..parties.message import Message
from ..parties.party import Gathered, Identity, Party
from .consent import RoundSpent


class RoundOver(Message, reveals="that the round goes on without the party, or was aborted, and why"):
    aborted: bool
    why: str


class SumOutcome(NamedTuple):
    """The sum, who is in it, and who left at which step."""

    total: Tensor
    included: tuple[str, ...]
    dropped: dict[str, str]


async def hear(me: Party, boss: str, *kinds: Any) -> Any:
    """The server's next word; None when it goes on without this client. An aborted round is an error."""
    message = await me.recv(boss, *kinds, RoundOver)
    if isinstance(message, RoundOver):
        if message.aborted:
            raise SumAborted(f"party {me.name!r} was told that the round is aborted: {message.why:.300}")
        return None
    return message


def signed_keys(me: Party, mine: tuple[bytes, ...], about: bytes, identity: Identity | None) -> bytes:
    return b"" if identity is None else identity.sign(bind(about, "keys", me.name, *mine))


def check_keys(
    me: Party,
    keys: Mapping[str, Sequence[bytes]],
    mine: tuple[bytes, ...],
    least: int,
    most: int,
    about: bytes,
    identity: Identity | None,
) -> None:
    """The keys a server gives out: ours as we sent them, nobody's twice, not too few to hide among and no
    more than agreed; each signed by its owner.
    """
    if tuple(keys.get(me.name, ()))[: len(mine)] != mine:
        raise ProtocolError(
            f"party {me.name!r} does not find its own keys among those it was given. "
            "The server mixed them up or changed them; the round is left."
        )
    public = [k for entry in keys.values() for k in entry[: len(mine)]]
    if len(set(public)) < len(public) or any(len(k) != PUBLIC for k in public):
        raise ProtocolError(
            f"party {me.name!r} was given the same public key twice, or one that is none. The round is left."
        )
    if not least <= len(keys) <= most:
        raise ProtocolError(
            f"party {me.name!r} was given {len(keys)} parties to mask with, itself included; agreed were "
            f"{least} to {most}. The round is left."
        )
    for name, entry in keys.items() if identity is not None else ():
        check_owner(me, name, entry[: len(mine)], entry[-1], about, identity)


def check_owner(
    me: Party, name: str, keys: Sequence[bytes], signature: bytes, about: bytes, identity: Identity | None
) -> None:
    if identity is not None and not identity.verify(name, bind(about, "keys", name, *keys), signature):
        raise ProtocolError(
            f"party {me.name!r} was given keys of {name!r} that {name!r} did not sign. Someone may be "
            "posing as it; the round is left."
        )


def channels(
    me: Party, about: bytes, private: bytes, public: bytes, others: Mapping[str, bytes]
) -> dict[tuple[str, str], bytes]:
    """A key for each direction between this party and each other."""
    keys = {}
    for name, theirs in others.items():
        if name != me.name:
            for ends in ((me.name, public, name, theirs), (name, theirs, me.name, public)):
                keys[ends[0], ends[2]] = agree(private, theirs, bind(about, "channel", *ends))
    return keys


def opened(
    me: Party,
    name: str,
    sealed: bytes,
    lines: Mapping[tuple[str, str], bytes],
    about: bytes,
    size: int | None = None,
) -> bytes:
    if (name, me.name) not in lines:
        raise ProtocolError(f"party {me.name!r} was sent shares of {name!r}, with whom it agreed on no key.")
    try:
        plain = unseal(lines[name, me.name], sealed, bind(about, name, me.name))
    except ProtocolError as error:
        raise ProtocolError(f"party {me.name!r} cannot open the shares of {name!r}: {error}") from None
    if size is not None and len(plain) != size:
        raise ProtocolError(
            f"party {me.name!r} was sent shares of {name!r} of {len(plain)} bytes; they have {size}."
        )
    return plain


def some_of(names: Sequence[str], parties: int, enough: int) -> None:
    """Fewer than the terms say may be asked: those that are not there count as dropped."""
    if not enough <= len(names) <= parties or len(set(names)) < len(names):
        kind = SumAborted if len(names) < enough else ProtocolError
        raise kind(
            f"{len(names)} parties are asked for a secure sum ({', '.join(map(repr, names[:8]))}); agreed "
            f"were at most {parties}, all "
            f"different, of whom {enough} must stay. Wait for more parties, or lower the threshold."
        )


class SumSteps:
    """Asking many, and going on with those that answer. `spent` are parties that refuse because they took
    part in an earlier sum of the round: shares that arrive late could still open it.
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
    ) -> Gathered[Any]:
        """One message of each; whoever is late, or says what cannot be, is out of this round. Too few left:
        the round is aborted.
        """
        names = list(names)
        got: Gathered[Any] = await self.me.gather(
            names, kind, RoundSpent, at_least=0, within=self.within if within is None else within
        )
        spent = [name for name in got if isinstance(got[name], RoundSpent)]
        for name in spent:
            self.dropped[name] = f"{step}: it already took part in a sum of this round"
            del got[name]
        self.spent |= set(spent)
        late = [name for name in names if name not in got and name not in spent]
        wrong = [name for name in got if not valid(name, got[name])]
        for name in (*late, *wrong):
            self.dropped[name] = step
            got.pop(name, None)
            why = got.refused.get(
                name,
                f"its {kind.kind} is not what this round needs"
                if name in wrong
                else "it did not answer in time",
            )
            await self.me.send(name, RoundOver(False, f"{step}: {why}"))
        need = self.enough if enough is None else enough
        if len(got) < need:
            silent = f"{', '.join(map(repr, (*late, *wrong)[:8]))} did not" if late or wrong else ""
            refused = (
                f"{', '.join(map(repr, spent[:8]))} already took part in a sum of this round" if spent else ""
            )
            raise await self.abort(
                names,
                f"{step}: {len(got)} of {len(names)} parties answered and {need} are needed "
                f"({'; '.join(filter(None, (silent, refused)))})",
            )
        return got

    async def abort(self, names: Iterable[str], why: str) -> SumAborted:
        """Tell those that are still there; nothing has been opened, and what they sent stays masked."""
        for name in names:
            if name not in self.dropped:
                await self.me.send(name, RoundOver(True, why))
        advice = "" if self.spent else " Wait for more parties, or lower the threshold."
        return SumAborted(
            f"secure aggregation was aborted, and no update was opened. {why}.{advice}",
            spent=bool(self.spent),
        )


def weigh(messages: Iterable[Message]) -> int:
    return sum(len(part) for m in messages for part in encode_parts(m))
