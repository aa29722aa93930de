"""One round of secure aggregation among synthetic clients, with configurable dropouts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tacit.crypto.agree import Identity
from tacit.parties.conformance import Tap
from tacit.parties.ledger import Ledger
from tacit.protocols import secagg
from tacit.protocols.secagg import SecAggTerms, SumOutcome
from tacit.runtimes.inprocess import InProcess

from .leaving import leaving


def names_of(n: int) -> list[str]:
    return [f"c{i}" for i in range(n)]


def inputs(terms: Any, seed: int = 0) -> dict[str, Tensor]:
    """Whole numbers over the whole range, its ends included."""
    draw = torch.Generator().manual_seed(seed)
    made = torch.randint(-terms.bound, terms.bound + 1, (terms.parties, terms.length), generator=draw)
    made[0] = terms.bound
    return dict(zip(names_of(terms.parties), made))


def programs(
    terms: Any,
    values: Mapping[str, Tensor],
    protocol: Any = secagg,
    tag: str = "round 1",
    within: float | None = 5.0,
    **more: Any,
) -> dict[str, Any]:
    names = list(values)
    ids = Identity.provision(names, os.urandom)
    signed = (
        (lambda name: {"identity": ids[name]})
        if getattr(terms, "adversary", "") == "active"
        else (lambda name: {})
    )
    clients = {
        name: (
            lambda me, name=name: protocol.client(me.scope(tag), values[name], terms, **signed(name), **more)
        )
        for name in names
    }
    return {"server": lambda me: protocol.server(me.scope(tag), names, terms, within=within), **clients}


def aggregate(
    terms: SecAggTerms,
    values: Mapping[str, Tensor],
    after: Mapping[str, int] | None = None,
    *,
    protocol: Any = secagg,
    tap: Tap | None = None,
    ledger: Ledger | None = None,
    tag: str = "round 1",
    insecure_seed: int | None = None,
) -> tuple[SumOutcome, dict[str, Any]]:
    """(what the server got, what each client returned)."""
    run = leaving(programs(terms, values, protocol, tag), after or {})
    out = InProcess(insecure_seed=insecure_seed).run_sync(run if tap is None else tap.on(run), ledger=ledger)
    return out.pop("server"), out
