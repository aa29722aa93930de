"""The guard's last stage as a protocol: how a round's updates are added up without the server seeing one of them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ..algorithms.types import State
from ..crypto.agree import Identity
from ..errors import BadParameter
from ..guard import Guard
from ..guard.encrypt import Encrypt
from ..guard.lightsecagg import LightSecAgg
from ..guard.secagg import SecAgg
from ..parameters import check
from ..parties.party import Party
from ..protocols import encrypted, lightsecagg, secagg
from .plan import Plan


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

    async def server(self, me: Party, r: int, names: Sequence[str], within: float | None) -> tuple[Tensor, Sequence[str], Mapping[str, str]]:
        protocol, terms = self.terms(r)
        return await protocol.server(me, names, terms, within=self.guard.hiding.within, first=within)  # type: ignore[union-attr]

    async def client(self, me: Party, r: int, vectors: State, boss: str) -> None:
        protocol, terms = self.terms(r)
        await protocol.client(me, self.guard.unpack(vectors, r), terms, self.identities.get(me.name), boss)


def hidden_sum(p: Plan, guard: Guard | None, federation: str | None = None) -> HiddenSum | None:
    """The plan's, if its guard hides updates."""
    if guard is None or guard.hiding is None:
        return None
    active = getattr(guard.hiding, "adversary", "") == "active" and p.runtime == "inprocess"  # elsewhere parties have certificates
    return HiddenSum(guard, federation or p.fed.name, Identity.provision(list(p.fed.parties), secrets.token_bytes) if active else None)
