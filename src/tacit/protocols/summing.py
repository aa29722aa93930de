"""Steps that the secret sums share (secagg.py, lightsecagg.py, encrypted.py).

The server gathers answers and continues with the clients that answered; clients check the keys they receive;
a round may end early. A client whose round continues without it is done. If a round is aborted, nothing was
opened. Keys are signed wherever parties have identities: certificates across processes, generated keys in one
process against an active server.
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
    """The sum, the clients included in it, and the step at which each other client dropped out."""

    total: Tensor
    included: tuple[str, ...]
    dropped: dict[str, str]


async def receive_or_end(me: Party, server: str, *kinds: Any) -> Any:
    """Return the server's next message, or None if the round continues without this client.

    An aborted round raises SumAborted.
    """
    message = await me.recv(server, *kinds, RoundOver)
    if isinstance(message, RoundOver):
        if message.aborted:
            raise SumAborted(f"the server aborted the round of party {me.name!r}: {message.why:.300}")
        return None
    return message


def sign_keys(me: Party, mine: tuple[bytes, ...], about: bytes, identity: Identity | None) -> bytes:
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
            f"party {me.name!r} was given keys of {name!r} that {name!r} did not sign. Another party may "
            "impersonate it; the party leaves the round."
        )


def channels(
    me: Party, about: bytes, private: bytes, public: bytes, others: Mapping[str, bytes]
) -> dict[tuple[str, str], bytes]:
    """Return a key for each direction between this party and each other party."""
    keys = {}
    for name, theirs in others.items():
        if name != me.name:
            for ends in ((me.name, public, name, theirs), (name, theirs, me.name, public)):
                keys[ends[0], ends[2]] = agree(private, theirs, bind(about, "channel", *ends))
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


def check_participants(names: Sequence[str], parties: int, enough: int) -> None:
    """Check that enough distinct parties take part; absent parties count as dropped."""
    if not enough <= len(names) <= parties or len(set(names)) < len(names):
        kind = SumAborted if len(names) < enough else ProtocolError
        raise kind(
            f"a secure sum of {len(names)} parties ({', '.join(map(repr, names[:8]))}); the terms allow "
            f"{enough} to {parties} distinct parties. Wait for more parties, or lower the threshold."
        )


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
    ) -> Gathered[Any]:
        """Gather one message from each party.

        Parties that are late or send an invalid message are dropped from the round. If too few remain, the
        round is aborted.
        """
        names = list(names)
        answers: Gathered[Any] = await self.me.gather(
            names, kind, RoundSpent, at_least=0, within=self.within if within is None else within
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
