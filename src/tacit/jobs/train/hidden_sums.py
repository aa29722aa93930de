"""The guard's last stage as a protocol: updates, and counts of evaluations, are added up in secret."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...algorithms.types import State
from ...crypto import exact
from ...crypto.agree import SIGNATURE, Identity
from ...engine.metrics import Counts
from ...engine.subgroups import Tally
from ...errors import BadParameter
from ...guard import Guard
from ...guard.encrypt import Encrypt
from ...guard.lightsecagg import LightSecAgg
from ...guard.secagg import SecAgg
from ...parameters import check
from ...parties.party import Party
from ...protocols import encrypted, lightsecagg, secagg
from ...protocols.consent import Commitment
from ...protocols.rounds import SESSION, SESSION_BYTES
from .counts import unpack_tally
from .plan import Plan
from .traffic import MessageSizes, round_sizes

LARGEST = 1e33  # of a sum: `exact` encodes up to 5e33
HALF = 16  # bits of half a limb of an exact sum: then counts and limbs fit a ring of 32 bits


class HiddenSum:
    """What `protocols.rounds` calls instead of Upload.

    Between real parties `federation` is the digest of the contract. In one process, `identities` are the
    signing keys that certificates carry elsewhere.
    """

    def __init__(self, guard: Guard, federation: str, identities: Mapping[str, Any] | None = None):
        self.guard, self.federation, self.identities = guard, federation, identities or {}
        assert guard.hiding is not None
        self.tries: int = guard.hiding.tries  # type: ignore[attr-defined]
        self.enough = guard.hiding.survivors(guard.clients)

    def terms(self, r: int, sent: bytes = b"") -> tuple[Any, Any]:
        """Return the protocol and its terms in round r, which both sides derive from contract and model."""
        stage, form = self.guard.hiding, self.guard.output_form(r)
        common = (self.federation, self.guard.clients, form.dimension, form.limit)
        match stage:
            case SecAgg():
                return secagg, check(
                    secagg.SecAggTerms(*common, stage.threshold, stage.neighbors, stage.adversary, sent=sent)
                )
            case LightSecAgg():
                return lightsecagg, check(
                    lightsecagg.LightSecAggTerms(*common, stage.threshold, stage.colluding, sent=sent)
                )
            case Encrypt():
                return encrypted, check(encrypted.EncryptedSumTerms(*common, stage.threshold, sent=sent))
        raise BadParameter(
            f"guard: {type(stage).__name__} says that it hides updates, and no protocol is known for it."
        )

    def traffic(self, names: Sequence[str]) -> tuple[int, int]:
        """Return the mean bytes that a client sends and receives for a round's sum if nobody leaves.

        That is in one process, where no certificates are sent.
        """
        return _mean_traffic(*self.terms(0), self.guard, names)

    async def server(
        self, me: Party, r: int, names: Sequence[str], within: float | None, sent: bytes
    ) -> tuple[Tensor, Sequence[str], Mapping[str, str]]:
        protocol, terms = self.terms(r, sent)
        return await protocol.server(me, names, terms, within=self.guard.hiding.within, first=within)  # type: ignore[union-attr]

    async def client(
        self, me: Party, r: int, vectors: State, boss: str, sent: bytes, commitment: Commitment
    ) -> None:
        protocol, terms = self.terms(r, sent)
        await protocol.client(
            me, self.guard.unpack(vectors, r), terms, self.identities.get(me.name), boss, commitment
        )


class HiddenCounts:
    """The counts of an evaluation as a hidden sum over all parties: secure aggregation in a ring of 32 bits.

    It is over all parties or none: counts hardly change with the model, so two sums over different parties
    would differ by one party's counts.

    `blank` are the counts of no rows; their shapes give the vector's layout. Counts are whole numbers; losses
    and moments are summed exactly (crypto/exact.py), in limbs of 16 bits. A party with a sum that is not
    finite, or too large, says so in a number of its own, and the total's sums are then infinite; likewise,
    in a second number, for the sums of a user's own metrics, where there are any.
    """

    def __init__(
        self,
        guard: Guard,
        parties: int,
        blank: Tally,
        federation: str,
        identities: Mapping[str, Any] | None = None,
    ):
        assert guard.hiding is not None
        self.guard, self.parties, self.blank, self.federation, self.identities = (
            guard,
            parties,
            blank,
            federation,
            identities or {},
        )
        self.tries = 1  # figures can wait for the next evaluation
        self.enough = self.terms().enough

    @property
    def bound(self) -> int:
        """The most rows of a party: their sum fits 31 bits. With many parties, half a limb must fit."""
        return max((1 << 31) // (2 * self.parties), 1 << HALF)

    @property
    def flags(self) -> int:
        return 2 if len(self.blank.own) else 1

    def terms(self, sent: bytes = b"") -> secagg.SecAggTerms:
        stage = self.guard.hiding
        length = self.flags + 2 * exact.LIMBS * len(self.blank.sums) + len(self.blank.numbers)
        active = isinstance(stage, SecAgg) and stage.adversary == "active"
        return check(
            secagg.SecAggTerms(
                self.federation,
                self.parties,
                length,
                self.bound,
                1.0,
                adversary="active" if active else "curious",
                sent=sent,
            )
        )

    def traffic(self, names: Sequence[str]) -> tuple[int, int]:
        return _mean_traffic(secagg, self.terms(), self.guard, names)

    def encode(self, sent: Mapping[str, Tensor]) -> Tensor:
        """Return one party's counts as integers; zeros if it reports none."""
        mine = unpack_tally(sent, self.blank) if sent else self.blank
        sums = mine.sums.numpy()
        fits = np.abs(sums) < LARGEST  # not so the loss of a diverged model
        limbs, first = exact.encode(np.where(fits, sums, 0.0)), len(sums) - len(mine.own)
        bad = [int(not fits[:first].all()), int(not fits[first:].all())][: self.flags]
        sign, size = np.sign(limbs), np.abs(limbs)
        low, high = sign * (size & ((1 << HALF) - 1)), sign * (size >> HALF)
        halves = torch.from_numpy(np.concatenate([low, high]))
        return torch.cat([torch.tensor(bad), halves, mine.numbers])

    def decode(self, total: Tensor) -> Tally:
        n = exact.LIMBS * len(self.blank.sums)
        flags, rest = total[: self.flags], total[self.flags :]
        low, high, numbers = rest.split([n, n, len(self.blank.numbers)])
        sums = torch.from_numpy(exact.decode((low + (high << HALF)).numpy()))
        tally = self.blank.fill(sums, numbers)
        if int(flags[-1]) and len(tally.own):
            tally = tally._replace(own=torch.full_like(tally.own, math.nan))
        if not int(flags[0]):
            return tally
        cells = tally.cells
        return tally._replace(
            total=_without_loss(tally.total),
            cells=None if cells is None else _without_loss(cells),
            members=torch.full_like(tally.members, math.inf),
        )

    async def server(
        self, me: Party, r: int, names: Sequence[str], within: float | None, sent: bytes
    ) -> tuple[Tensor, Sequence[str], Mapping[str, str]]:
        return await secagg.server(me, names, self.terms(sent), within=self.guard.hiding.within, first=within)  # type: ignore[union-attr]

    async def client(
        self, me: Party, r: int, vectors: State, boss: str, sent: bytes, commitment: Commitment
    ) -> None:
        await secagg.client(
            me, self.encode(vectors), self.terms(sent), self.identities.get(me.name), boss, commitment
        )


def _without_loss(counts: Counts) -> Counts:
    return counts._replace(loss=torch.full_like(counts.loss, math.inf))


def _mean_traffic(protocol: Any, terms: Any, guard: Guard, names: Sequence[str]) -> tuple[int, int]:
    signature = SIGNATURE if guard.hiding is not None and guard.hiding.adversary == "active" else 0
    up, down = _traffic(protocol, tuple(names), terms, signature)
    return up // len(names), down // len(names)


@lru_cache(maxsize=64)
def _traffic(protocol: Any, names: tuple[str, ...], terms: Any, signature: int) -> tuple[int, int]:
    """Count once for all rounds, with messages of the real size."""
    return protocol.traffic(list(names), terms, signature)


def hidden_sizes(p: Plan, guard: Guard, r: int, down: State) -> MessageSizes:
    """Return what a client receives and sends on average in round r (counted from 1), where updates are
    hidden.

    That is the model, the keys, the shares and the masked vector.
    """
    up, received = HiddenSum(guard, p.fed.name).traffic(p.fed.parties[: p.per_round])
    model = round_sizes(r, down | {SESSION: torch.zeros(SESSION_BYTES, dtype=torch.uint8)}, {}).down
    return MessageSizes(model + received, up)


def signing_keys(p: Plan, guard: Guard | None) -> Mapping[str, Any] | None:
    """Make keys against an active adversary in one process; elsewhere parties have certificates."""
    hiding = None if guard is None else guard.hiding
    active = hiding is not None and hiding.adversary == "active" and p.runtime == "inprocess"
    return Identity.provision(list(p.fed.parties), secrets.token_bytes) if active else None
