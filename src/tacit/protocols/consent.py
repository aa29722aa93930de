"""Consent: what a client's owner allows a server to request, checked by the client's program.

A hidden sum protects a party only if the server opens one sum per round: two sums of the same updates over
different participants can be subtracted. So a client commits twice in a round: to the set of participants
before it sends its masked vector, and to the sum before it reveals shares.

    upload(A)   recorded before MaskedVector. A later attempt of the round is joined only with participants A.
    reveal()    recorded before RevealedShares. After it, no other attempt of the round is joined.

Claim: a party's vector is in at most one opened sum of a round. Suppose it is in two, over A and A'. The
party committed to one set, so A = A'. Opening either sum takes shares from t of these participants, t >
|A|/2, and each of them reveals in one attempt only: 2t <= |A|, a contradiction.

Where this argument does not hold, `upload(None)` is final and the round is never joined again: a sparse graph
is redrawn in each attempt, and under a shared encryption key a single client can open the sum.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from ..crypto.digest import Digests
from ..errors import ProtocolError
from ..parties.message import Message


class RoundSpent(
    Message,
    reveals="that the party already took part in a sum of this round, and does not take part in another",
):
    pass


class Commitment(Protocol):
    """One hidden sum of one round, as the client's owner allows it."""

    def upload(self, participants: Sequence[str] | None) -> bool:
        """Record that a masked vector is about to be sent.

        False: another sum of this round may still be opened, so nothing is sent.
        """

    def reveal(self, alive: Collection[str] = ()) -> bool:
        """Record that shares are about to be revealed, which open the sum over `alive`, if that is known.

        False: shares were already revealed in another sum of this round, or it is not to be opened.
        """


class Consent(Protocol):
    """What a client's owner allows its server to request."""

    def admit(self, kind: str, r: int, sent: Digests) -> bool:
        """Check a request ("update", "test" or "loss") of round r before anything is computed.

        `sent` is what the server sent with it. Raises if the contract does not contain the request; False:
        its hidden sum is spent.
        """

    def commit(self, kind: str, r: int) -> Commitment:
        """Return the commitment of the hidden sum that answers this request."""


class Uncommitted:
    """Allow everything: for simulations, in which one process runs every party."""

    def admit(self, kind: str, r: int, sent: Digests) -> bool:
        return True

    def commit(self, kind: str, r: int) -> Uncommitted:
        return self

    def upload(self, participants: Sequence[str] | None) -> bool:
        return True

    def reveal(self, alive: Collection[str] = ()) -> bool:
        return True


UNCOMMITTED = Uncommitted()


class OneSum:
    """A commitment in memory, for a program that lives as long as its run.

    `most`: the parties of the sum before, beside whom nobody may be in this one; None: not known.
    """

    def __init__(self, most: Collection[str] | None = None) -> None:
        self.most = most
        self.alive: frozenset[str] | None = None
        self.participants: tuple[str, ...] | None = None
        self.uploaded = self.revealed = False

    def upload(self, participants: Sequence[str] | None) -> bool:
        named = None if participants is None else tuple(participants)
        if self.revealed or (self.uploaded and (named is None or named != self.participants)):
            return False
        self.uploaded, self.participants = True, named
        return True

    def reveal(self, alive: Collection[str] = ()) -> bool:
        if self.revealed or (self.most is not None and not set(alive) <= set(self.most)):
            return False
        self.revealed, self.alive = True, frozenset(alive) or None
        return True


class OneSumEach:
    """At most one hidden sum per kind of request and round, recorded in memory."""

    def __init__(self) -> None:
        self.sums: dict[tuple[str, int], OneSum] = {}

    def admit(self, kind: str, r: int, sent: Digests) -> bool:
        return not ((kind, r) in self.sums and self.sums[kind, r].revealed)

    def commit(self, kind: str, r: int) -> OneSum:
        return self.sums.setdefault((kind, r), OneSum())


class OncePerRound(OneSumEach):
    """At most one hidden sum of updates for each of rounds 0 to rounds − 1, and no other requests."""

    def __init__(self, rounds: int):
        super().__init__()
        self.rounds = rounds

    def admit(self, kind: str, r: int, sent: Digests) -> bool:
        if kind != "update" or not 0 <= r < self.rounds:
            raise ProtocolError(
                f"the server asks for a {kind} of round {r + 1}; this job has {self.rounds} rounds of "
                "updates and nothing else. Nothing was sent."
            )
        return super().admit(kind, r, sent)
