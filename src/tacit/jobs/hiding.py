"""The guard's last stage as a protocol: how a round's updates are added up without the server seeing one of them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..algorithms.types import State
from ..crypto.agree import SIGNATURE, Identity
from ..errors import BadParameter
from ..guard import Guard
from ..guard.encrypt import Encrypt
from ..guard.lightsecagg import LightSecAgg
from ..guard.secagg import SecAgg
from ..parameters import check
from ..parties.party import Party
from ..protocols import encrypted, lightsecagg, secagg
from ..protocols.rounds import SESSION
from .plan import Plan
from .simulated import wire_bytes


class HiddenSum:
    """What `protocols.rounds` calls instead of Upload. In one process it also gives out the signing keys that certificates carry elsewhere."""

    def __init__(self, guard: Guard, federation: str, identities: Mapping[str, Any] | None = None):
        self.guard, self.federation, self.identities = guard, federation, identities or {}
        assert guard.hiding is not None
        self.tries: int = guard.hiding.tries  # type: ignore[attr-defined]
        self.enough = guard.hiding.survivors(guard.clients)

    def terms(self, r: int) -> tuple[Any, Any]:
        """(the protocol, its terms in round r): both sides come to the same from the job."""
        stage, form = self.guard.hiding, self.guard.leaves(r)
        common = (self.federation, self.guard.clients, form.dimension, form.limit)
        match stage:
            case SecAgg():
                return secagg, check(secagg.Terms(*common, stage.threshold, stage.neighbours, stage.adversary))
            case LightSecAgg():
                return lightsecagg, check(lightsecagg.Terms(*common, stage.threshold, stage.colluding))
            case Encrypt():
                return encrypted, check(encrypted.Terms(*common, stage.threshold))
        raise BadParameter(f"guard: {type(stage).__name__} says that it hides updates, and no protocol is known for it.")

    def traffic(self, names: Sequence[str]) -> tuple[int, int]:
        """Bytes that a client of these sends for a round's sum on average, and hears, when nobody leaves; as in one process, where no certificates go along."""
        protocol, terms = self.terms(0)
        signature = SIGNATURE if getattr(self.guard.hiding, "adversary", "") == "active" else 0
        up, down = _traffic(protocol, tuple(names), terms, signature)
        return up // len(names), down // len(names)

    async def server(self, me: Party, r: int, names: Sequence[str], within: float | None) -> tuple[Tensor, Sequence[str], Mapping[str, str]]:
        protocol, terms = self.terms(r)
        return await protocol.server(me, names, terms, within=self.guard.hiding.within, first=within)  # type: ignore[union-attr]

    async def client(self, me: Party, r: int, vectors: State, boss: str) -> None:
        protocol, terms = self.terms(r)
        await protocol.client(me, self.guard.unpack(vectors, r), terms, self.identities.get(me.name), boss)


@lru_cache(maxsize=64)
def _traffic(protocol: Any, names: tuple[str, ...], terms: Any, signature: int) -> tuple[int, int]:
    """Once for all rounds: messages of the real size are made to be weighed."""
    return protocol.traffic(list(names), terms, signature)


def bytes_of(p: Plan, guard: Guard, r: int, down: State) -> tuple[int, int]:
    """What a client hears and sends on average in round r (counted from 1), where updates are hidden: the model, the keys, the shares, the masked vector."""
    up, heard = HiddenSum(guard, p.fed.name).traffic(p.fed.parties[: p.per_round])
    return wire_bytes(r, down | {SESSION: torch.zeros(8, dtype=torch.uint8)}, {})[0] + heard, up


def hidden_sum(p: Plan, guard: Guard | None, federation: str | None = None) -> HiddenSum | None:
    """The plan's, if its guard hides updates."""
    if guard is None or guard.hiding is None:
        return None
    active = getattr(guard.hiding, "adversary", "") == "active" and p.runtime == "inprocess"  # elsewhere parties have certificates
    return HiddenSum(guard, federation or p.fed.name, Identity.provision(list(p.fed.parties), secrets.token_bytes) if active else None)
