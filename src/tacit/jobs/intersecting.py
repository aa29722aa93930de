"""`tacit.psi` and `tacit.align`: whom do we share, without showing the rest. Ids become digests, each party gets its program, rows come back."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..data.identifiers import Identified, identify
from ..errors import BadParameter
from ..parameters import bad
from ..parties.ledger import Ledger
from ..parties.party import Party
from ..protocols import psi as protocol
from ..runtimes.inprocess import InProcess


@dataclass
class Shared:
    """`value`: the shared ids as the receiver wrote them (with reveal="size" how many). `rows`: for each party that may know, its rows in one common order."""

    value: Any
    ledger: Ledger
    rows: dict[str, np.ndarray] = field(repr=False)
    sizes: dict[str, int]
    method: str
    notes: tuple[str, ...] = ()


def psi(receiver: Iterable[Any], sender: Iterable[Any], *, method: str = "auto", reveal: str = "receiver", names: tuple[str, str] = ("receiver", "sender"),
        runtime: Any = None) -> Shared:
    """Which ids two parties share.

    `reveal`: "receiver" learns which, "both" do, or the receiver learns only the "size". `method`: "dh" (Diffie-Hellman, fewest bytes), or what "auto" takes
    for these sizes. Both programs really run and exchange messages; `runtime` is `tacit.InProcess()` or `tacit.Processes()`.
    """
    protocol.allow(method, reveal)
    _names(names)
    mine, yours = list(receiver), sender
    sets = {names[0]: identify(mine, f"the ids of {names[0]!r}"), names[1]: identify(yours, f"the ids of {names[1]!r}")}
    ledger = Ledger()
    made = (runtime or InProcess()).run_sync({
        names[0]: functools.partial(protocol.receiver, digests=sets[names[0]].digests, other=names[1], method=method, reveal=reveal),
        names[1]: functools.partial(protocol.sender, digests=sets[names[1]].digests, other=names[0], method=method, reveal=reveal)}, ledger=ledger)
    rows = {name: found.rows[np.asarray(made[name]["rows"])] for name, found in sets.items() if made[name]["rows"] is not None}
    tell(ledger, names, {name: len(found) for name, found in sets.items()}, made[names[0]]["size"], reveal)
    value = made[names[0]]["size"] if reveal == "size" else [mine[row] for row in rows[names[0]].tolist()]
    return Shared(value, ledger, rows, {name: len(found) for name, found in sets.items()}, made[names[0]]["method"],
                  tuple(note for found in sets.values() for note in found.notes))


def tell(ledger: Ledger, names: tuple[str, str], sizes: Mapping[str, int], shared: int, reveal: str) -> None:
    """What each side has learned, in one sentence each: bytes that arrived are in the lines above, conclusions are here."""
    receiver, sender = names
    which = {"size": f"how many ids are shared ({shared}), not which", "receiver": f"which of its own ids are shared ({shared} of {sizes[receiver]})",
             "both": f"which of its own ids are shared ({shared} of {sizes[receiver]})"}[reveal]
    ledger.record(receiver, sender, "Conclusion", f"that {sender!r} holds {sizes[sender]} ids, and {which}")
    which = f", and which of its own ids are shared ({shared} of {sizes[sender]})" if reveal == "both" else ", and nothing about which are shared"
    ledger.record(sender, receiver, "Conclusion", f"that {receiver!r} holds {sizes[receiver]} ids{which}")


def align(ids: Mapping[str, Iterable[Any]], *, method: str = "auto", runtime: Any = None) -> Shared:
    """The rows that all parties share, in one order: row `shared.rows["a"][k]` of a and `shared.rows["b"][k]` of b are the same person.

    All of them learn which of their own ids everybody holds.
    """
    names = tuple(ids)
    if len(names) != 2:
        raise BadParameter(f"align: there are {len(names)} parties; it takes two.")
    first, second = names
    return psi(ids[first], ids[second], method=method, reveal="both", names=(first, second), runtime=runtime)


async def aligned(me: Party, ids: Iterable[Any] | Identified, *, parties: list[str], method: str = "auto") -> np.ndarray:
    """The same as a part of a program that goes on: my rows that all `parties` share, in the common order. The first named is the receiver."""
    found = ids if isinstance(ids, Identified) else identify(ids, f"the ids of {me.name!r}")
    other, = (name for name in parties if name != me.name)
    run = protocol.receiver if me.name == parties[0] else protocol.sender
    got = await run(me.scope("align"), found.digests, other=other, method=method, reveal="both")
    return found.rows[got["rows"]]


def _names(names: tuple[str, ...]) -> None:
    if len(set(names)) < len(names) or not all(isinstance(name, str) and name for name in names):
        raise bad("psi", "names", names, "different words, one for each party")
