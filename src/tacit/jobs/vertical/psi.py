"""`tacit.psi` and `tacit.align`: whom do we share, without showing the rest. Ids become digests, each party
gets its program, rows come back.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ...crypto import group
from ...data.identifiers import IdSet, identify, normal
from ...errors import BadData, BadParameter, PartyFailed, ProtocolError, QueryRefused
from ...parameters import bad
from ...parties.ledger import Ledger
from ...parties.message import Message
from ...parties.party import Party
from ...protocols import psi as protocol
from ...protocols import psi_agrawal, psi_many
from ...protocols.psi_policy import PsiPolicy, Queries, check_policy
from ..programs import to_the_end

KEY = 32  # bytes of an OrderKey


@dataclass
class PsiResult:
    """`value`: the shared ids as the receiver wrote them; with reveal="size" how many, with "sum" the sum
    over them. `rows`: for each party that may know, its rows in one common order. `size`: how many are
    shared. `notes`: duplicates, empty ids and mixed kinds that were found.
    """

    value: Any
    ledger: Ledger
    rows: dict[str, np.ndarray] = field(repr=False)
    size: int
    sizes: dict[str, int]
    method: str
    notes: tuple[str, ...] = ()


def psi(
    receiver: Iterable[Any],
    sender: Iterable[Any],
    *,
    method: str = "auto",
    reveal: str = "receiver",
    values: Sequence[int] | None = None,
    limit: int = protocol.LIMIT,
    names: tuple[str, str] = ("receiver", "sender"),
    policy: PsiPolicy | None = None,
    runtime: Any = None,
    teaching: bool = False,
) -> PsiResult:
    """Which ids two parties share.

    `reveal`: the "receiver" learns which, "both" do, the receiver learns only the "size", or size and "sum"
    of the sender's `values` (whole numbers from 0 to `limit`, one for each of its rows). `method`: "dh"
    (Diffie-Hellman), "oprf" (large sets), or what "auto" takes for these sizes; "agrawal" is for teaching.
    `policy` (`tacit.PsiPolicy`; None: the default one) is the sender's: its program checks it, and a query
    that it does not allow raises `tacit.errors.QueryRefused`. By default "size" and "sum" need 10 shared ids.
    `queries_per_day` is counted between real parties only (`tacit psi --kit`). Both programs really run and
    exchange messages; `runtime` is `tacit.InProcess()` or `tacit.Processes()`.
    """
    if method == "agrawal":
        return _agrawal(receiver, sender, reveal, names, runtime, teaching)
    protocol.allow(method, reveal, limit)
    rules = check_policy(PsiPolicy() if policy is None else policy)
    _different(names)
    group.ready()
    mine, yours = _held(receiver), _held(sender)
    sets = {name: identify(ids, f"the ids of {name!r}") for name, ids in zip(names, (mine, yours))}
    theirs = sets[names[1]]
    weights = _weights(values, theirs, reveal, names[1])
    ledger = Ledger()
    common: dict[str, Any] = {"method": method, "reveal": reveal, "limit": limit}
    try:
        made = to_the_end("psi", runtime).run_sync(
            {
                names[0]: functools.partial(
                    protocol.receiver, digests=sets[names[0]].digests, other=names[1], **common
                ),
                names[1]: functools.partial(
                    protocol.sender,
                    digests=theirs.digests,
                    other=names[0],
                    values=weights,
                    policy=asdict(rules),
                    **common,
                ),
            },
            ledger=ledger,
        )
    except PartyFailed as failed:
        if isinstance(failed.error, QueryRefused):
            raise failed.error from None
        raise
    answer, sizes = made[names[0]], {name: len(found) for name, found in sets.items()}
    rows = {
        name: found.rows[np.asarray(made[name]["rows"])]
        for name, found in sets.items()
        if made[name]["rows"] is not None
    }
    tell(ledger, names[0], names[1], sizes, answer["size"], reveal)
    value = (
        {"size": answer["size"], "sum": answer["sum"]}[reveal]
        if reveal in ("size", "sum")
        else [mine[row] for row in rows[names[0]].tolist()]
    )
    return PsiResult(
        value,
        ledger,
        rows,
        answer["size"],
        sizes,
        answer["method"],
        tuple(note for found in sets.values() for note in found.notes),
    )


def align(
    ids: Mapping[str, Iterable[Any]], *, reveal: str = "all", method: str = "auto", runtime: Any = None
) -> PsiResult:
    """The rows that all of two or more parties share, in one order: row `shared.rows["a"][k]` of a and
    `shared.rows["b"][k]` of b are the same person.

    The first party leads and learns every set size. reveal="all": all learn which of their own ids everybody
    holds; "leader": only the first does.
    """
    names = tuple(ids)
    _different(names)
    if len(names) < 2:
        raise BadParameter(f"align: there is {len(names)} party; it takes two or more.")
    if reveal not in psi_many.REVEALS:
        raise bad("align", "reveal", reveal, "one of " + ", ".join(map(repr, psi_many.REVEALS)))
    if len(names) == 2:
        return psi(
            ids[names[0]],
            ids[names[1]],
            method=method,
            reveal="both" if reveal == "all" else "receiver",
            names=(names[0], names[1]),
            runtime=runtime,
        )
    if method not in ("auto", "dh"):
        raise bad("align", "method", method, "'auto' or 'dh' for more than two parties")
    group.ready()
    given = {name: _held(column) for name, column in ids.items()}
    sets = {name: identify(column, f"the ids of {name!r}") for name, column in given.items()}
    first, others, ledger = names[0], list(names[1:]), Ledger()
    programs: dict[str, Any] = {
        name: functools.partial(
            psi_many.member, digests=sets[name].digests, leader=first, others=others, reveal=reveal
        )
        for name in others
    }
    programs[first] = functools.partial(
        psi_many.leader, digests=sets[first].digests, others=others, reveal=reveal
    )
    made = to_the_end("psi", runtime).run_sync(programs, ledger=ledger)
    sizes = {name: len(found) for name, found in sets.items()}
    rows = {
        name: sets[name].rows[np.asarray(made[name]["rows"])]
        for name in names
        if made[name]["rows"] is not None
    }
    for name in names:
        tell_one(ledger, name, first, sizes, made[first]["size"], name in rows)
    return PsiResult(
        [given[first][row] for row in rows[first].tolist()],
        ledger,
        rows,
        made[first]["size"],
        sizes,
        "many",
        tuple(note for found in sets.values() for note in found.notes),
    )


class OrderKey(
    Message, reveals="a random key, by which parties that hold the same ids compare their order: nothing"
):
    key: bytes


@dataclass(frozen=True)
class Alignment:
    """`rows`: mine that all share, in the common order. `key`: a secret of those who were aligned, and of
    nobody else. `notes`: about my ids.
    """

    rows: np.ndarray
    key: bytes
    notes: tuple[str, ...]


async def aligned(
    me: Party, ids: Iterable[Any] | IdSet, *, parties: Sequence[str], method: str = "auto"
) -> np.ndarray:
    """`align` as a part of a program that goes on: my rows that all `parties` share, in the common order. The
    first named leads.
    """
    return (await align_rows(me, ids, parties=parties, method=method)).rows


async def align_rows(
    me: Party,
    ids: Iterable[Any] | IdSet,
    *,
    parties: Sequence[str],
    method: str = "auto",
    policy: PsiPolicy | None = None,
    queries: Queries | None = None,
) -> Alignment:
    """`aligned` with a key that only `parties` have. What this party learned is added to its ledger. `policy`
    and `queries` are those of a party that does not lead; the leader's answer to each other party is a result
    with reveal="both".
    """
    found = ids if isinstance(ids, IdSet) else identify(ids, f"the ids of {me.name!r}")
    inside, first, others = me.scope("align"), parties[0], list(parties[1:])
    if len(parties) == 2:
        other = others[0] if me.name == first else first
        got = await (
            protocol.receiver(inside, found.digests, other=other, method=method, reveal="both")
            if me.name == first
            else protocol.sender(
                inside,
                found.digests,
                other=other,
                method=method,
                reveal="both",
                policy=policy,
                queries=queries,
            )
        )
    elif me.name == first:
        got = await psi_many.leader(inside, found.digests, others=others)
    else:
        got = await psi_many.member(
            inside, found.digests, leader=first, others=others, policy=policy, queries=queries
        )
    theirs = (
        got["theirs"]
        if isinstance(got["theirs"], dict)
        else {others[0] if me.name == first else first: got["theirs"]}
    )
    tell_one(me.ledger, me.name, first, {me.name: len(found), **theirs}, len(got["rows"]), True)
    key = me.secret.bytes(KEY)
    if me.name == first:
        await inside.send(others, OrderKey(key))
    else:
        key = (await inside.recv(first, OrderKey)).key
        if len(key) != KEY:
            raise ProtocolError(f"party {first!r} sends a key of {len(key)} bytes; it must be {KEY}.")
    return Alignment(found.rows[got["rows"]], key, found.notes)


def tell(
    ledger: Ledger, receiver: str, sender: str, sizes: Mapping[str, int], shared: int, reveal: str
) -> None:
    """What each side has learned, in one sentence each: bytes that arrived stand in lines of their own, what
    follows from them here.
    """
    which = f"which of its own ids are shared ({shared} of {sizes[receiver]})"
    amount = (
        "the sum of the other's values over them" if shared != 1 else "the other's value of this one person"
    )
    learns = {
        "size": f"how many ids are shared ({shared}), {_known(shared, sizes[receiver])}",
        "receiver": which,
        "both": which,
        "sum": f"how many ids are shared ({shared}) and {amount}, {_known(shared, sizes[receiver])}",
    }[reveal]
    ledger.record(receiver, sender, "Conclusion", f"that {sender!r} holds {sizes[sender]} ids, and {learns}")
    learns = {
        "both": f"which of its own ids are shared ({shared} of {sizes[sender]})",
        "receiver": "nothing about which are shared",
    }.get(reveal, f"how many ids are shared ({shared}), {_known(shared, sizes[sender])}")
    ledger.record(
        sender, receiver, "Conclusion", f"that {receiver!r} holds {sizes[receiver]} ids, and {learns}"
    )


def _known(shared: int, held: int) -> str:
    """Whether a count says which: it does if all or none of a party's own ids are shared."""
    return (
        "not which"
        if 0 < shared < held
        else "and so which: none of its own"
        if not shared
        else "and so which: all of its own"
    )


def tell_one(
    ledger: Ledger, name: str, leader: str, sizes: Mapping[str, int], shared: int, knows: bool
) -> None:
    """The same for one of many."""
    which = (
        f"which of its own ids all share ({shared} of {sizes[name]})"
        if knows
        else "nothing about which are shared"
    )
    if name == leader:
        others = ", ".join(f"{other!r} {n}" for other, n in sizes.items() if other != leader)
        ledger.record(name, "all others", "Conclusion", f"how many ids each holds ({others}), and {which}")
    else:
        ledger.record(name, leader, "Conclusion", f"that {leader!r} holds {sizes[leader]} ids, and {which}")


def _agrawal(
    receiver: Iterable[Any],
    sender: Iterable[Any],
    reveal: str,
    names: tuple[str, str],
    runtime: Any,
    teaching: bool,
) -> PsiResult:
    if teaching is not True:
        raise BadParameter(f"psi: {psi_agrawal.REFUSAL}")
    if reveal != "receiver":
        raise bad("psi", "reveal", reveal, "'receiver' with method='agrawal'")
    _different(names)
    held = {name: _held(ids) for name, ids in zip(names, (receiver, sender))}
    sets = {name: identify(ids, f"the ids of {name!r}") for name, ids in held.items()}
    texts = {
        name: [normal(str(held[name][row])) for row in found.rows.tolist()] for name, found in sets.items()
    }
    ledger = Ledger()
    found = to_the_end("psi", runtime).run_sync(
        {
            names[0]: functools.partial(
                psi_agrawal.receiver, values=texts[names[0]], other=names[1], teaching=True
            ),
            names[1]: functools.partial(
                psi_agrawal.sender, values=texts[names[1]], other=names[0], teaching=True
            ),
        },
        ledger=ledger,
    )[names[0]]
    at = {text: row for text, row in zip(texts[names[0]], sets[names[0]].rows.tolist())}
    rows, sizes = np.array([at[text] for text in found], np.int64), {name: len(s) for name, s in sets.items()}
    return PsiResult(
        [held[names[0]][row] for row in rows.tolist()],
        ledger,
        {names[0]: rows},
        len(rows),
        sizes,
        "agrawal",
        tuple(note for s in sets.values() for note in s.notes),
    )


def _weights(values: Sequence[int] | None, found: IdSet, reveal: str, name: str) -> list[int]:
    """A number for each id of the sender."""
    if (values is None) == (reveal == "sum"):
        raise bad(
            "psi",
            "values",
            "None" if values is None else f"{len(values)} numbers",
            "given with reveal='sum', and only then",
        )
    if values is None:
        return []
    if len(values) != found.total:
        raise BadData(
            f"the values of {name!r}: there are {len(values)} for {found.total} rows; there must be one for "
            "each."
        )
    if len(found) < found.total:
        raise BadData(
            f"the values of {name!r} belong to rows of which some have the same id or none "
            f"({' '.join(found.notes)}) "
            "Add them up or drop them first, so that each id has one value."
        )
    whole = np.asarray(values)
    if whole.dtype.kind not in "iu":
        raise BadData(
            f"the values of {name!r} are {whole.dtype}; a sum is exact, so they must be whole numbers. "
            "Multiply and round them first."
        )
    return [int(whole[row]) for row in found.rows]


def _held(ids: Iterable[Any]) -> Any:
    """Ids that can be looked up by their row; a list or an array as it is, so that ten million are not
    copied.
    """
    return (
        ids
        if hasattr(ids, "__getitem__") and hasattr(ids, "__len__") and not hasattr(ids, "iloc")
        else ids
        if isinstance(ids, str)
        else list(ids)
    )


def _different(names: Sequence[str]) -> None:
    if len(set(names)) < len(names) or not all(isinstance(name, str) and name for name in names):
        raise bad("psi", "names", tuple(names), "different words, one for each party")
