"""`tacit.psi` and `tacit.align`: private set intersection, and the alignment of rows by shared ids."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
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
from ...protocols.psi_policy import MAX_IDS, PsiPolicy, Queries, check_policy
from ...results import JobResult
from ...runtimes.choose import SyncRuntime, choose_runtime

KEY = 32  # bytes of an OrderKey


@dataclass
class PsiResult(JobResult):
    """The result of `tacit.psi` or `tacit.align`.

    `value`: the shared ids as the receiver wrote them; with reveal="size" their number, with "sum" the sum
    over them. `rows`: for each party that learns it, its shared rows in a common order; in a left join, then
    the first party's other rows, for which the other party has −1. `size`: the number of shared ids. `notes`:
    duplicate, empty and mixed ids.
    """

    title = "Private set intersection"
    facts = ("value", "rows", "size", "sizes", "method", "notes")

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
    runtime: SyncRuntime | str | None = None,
    teaching: bool = False,
) -> PsiResult:
    """Compute the ids that two parties share.

    `reveal`: the "receiver" learns which ids are shared, "both" parties do, the receiver learns only the
    "size", or the size and the "sum" of the sender's `values` (integers from 0 to `limit`, one for each of
    its rows). `method`: "dh" (Diffie-Hellman), "oprf" (large sets), or "auto" to choose by size; "agrawal" is
    for teaching. `policy` (`tacit.PsiPolicy`; None: the default) belongs to the sender, whose program checks
    it; a query that it does not allow raises `tacit.errors.QueryRefused`. By default "size" and "sum" need 10
    shared ids. `queries_per_day` is counted only between real parties (`tacit psi --kit`). Both programs are
    executed and exchange messages. `runtime`: "inprocess" (default), "processes", `tacit.InProcess()` or
    `tacit.Processes()`.
    """
    if method == "agrawal":
        return _agrawal(receiver, sender, reveal, names, runtime, teaching)
    return _match(receiver, sender, method, reveal, values, limit, names, policy, runtime, "inner")


def _match(
    receiver: Iterable[Any],
    sender: Iterable[Any],
    method: str,
    reveal: str,
    values: Sequence[int] | None,
    limit: int,
    names: tuple[str, str],
    policy: PsiPolicy | None,
    runtime: SyncRuntime | str | None,
    how: str,
) -> PsiResult:
    protocol.check_options(method, reveal, limit)
    rules = check_policy(PsiPolicy() if policy is None else policy)
    _check_names(names)
    group.ready()
    receiver_ids, sender_ids = _as_sequence(receiver), _as_sequence(sender)
    sets = {
        name: identify(ids, f"the ids of {name!r}") for name, ids in zip(names, (receiver_ids, sender_ids))
    }
    sender_set = sets[names[1]]
    numbers = _check_values(values, sender_set, reveal, names[1])
    ledger = Ledger()
    common: dict[str, Any] = {"method": method, "reveal": reveal, "limit": limit}
    try:
        results = choose_runtime("psi", runtime, all_stay=True).run_sync(
            {
                names[0]: functools.partial(
                    protocol.receiver, digests=sets[names[0]].digests, other=names[1], **common
                ),
                names[1]: functools.partial(
                    protocol.sender,
                    digests=sender_set.digests,
                    other=names[0],
                    values=numbers,
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
    answer, sizes = results[names[0]], {name: len(id_set) for name, id_set in sets.items()}
    rows = {
        name: join_rows(id_set, results[name]["rows"], sizes[names[0]], name == names[0], how)
        for name, id_set in sets.items()
        if results[name]["rows"] is not None
    }
    record_conclusion(ledger, names[0], names[1], sizes, answer["size"], reveal, how)
    value = (
        {"size": answer["size"], "sum": answer["sum"]}[reveal]
        if reveal in ("size", "sum")
        else [receiver_ids[row] for row in rows[names[0]][: answer["size"]].tolist()]
    )
    return PsiResult(
        value,
        ledger,
        rows,
        answer["size"],
        sizes,
        answer["method"],
        tuple(note for id_set in sets.values() for note in id_set.notes),
    )


def align(
    ids: Mapping[str, Iterable[Any]],
    *,
    reveal: str = "all",
    method: str = "auto",
    how: str = "inner",
    runtime: SyncRuntime | str | None = None,
) -> PsiResult:
    """Align two or more parties by their shared ids.

    Row `shared.rows["a"][k]` of a and `shared.rows["b"][k]` of b have the same id. The first party leads and
    learns every set size. reveal="all": all parties learn which of their own ids all hold; "leader": only the
    first does. `runtime` as in `tacit.psi`.

    `how`: "inner" keeps shared ids only. "left", for two parties, keeps every id of the first: after the
    shared rows come its other rows, where the second party has −1, which stands for missing values. Nobody
    learns more than with "inner": the second party learns how many of the first party's ids it lacks, which
    is the first party's set size minus the number of shared ids.
    """
    names = tuple(ids)
    _check_names(names)
    if len(names) < 2:
        raise BadParameter(f"align: {len(names)} party given; at least two are needed.")
    if reveal not in psi_many.REVEALS:
        raise bad("align", "reveal", reveal, "one of " + ", ".join(map(repr, psi_many.REVEALS)))
    check_join("align", "how", how, len(names), reveal == "all")
    if len(names) == 2:
        return _match(
            ids[names[0]],
            ids[names[1]],
            method,
            "both" if reveal == "all" else "receiver",
            None,
            protocol.LIMIT,
            (names[0], names[1]),
            None,
            runtime,
            how,
        )
    if method not in protocol.METHODS:
        raise bad("align", "method", method, "one of " + ", ".join(map(repr, protocol.METHODS)))
    group.ready()
    columns = {name: _as_sequence(column) for name, column in ids.items()}
    sets = {name: identify(column, f"the ids of {name!r}") for name, column in columns.items()}
    first, others, ledger = names[0], list(names[1:]), Ledger()
    programs: dict[str, Any] = {
        name: functools.partial(
            psi_many.member,
            digests=sets[name].digests,
            leader=first,
            others=others,
            reveal=reveal,
            method=method,
        )
        for name in others
    }
    programs[first] = functools.partial(
        psi_many.leader, digests=sets[first].digests, others=others, reveal=reveal, method=method
    )
    results = choose_runtime("align", runtime, all_stay=True).run_sync(programs, ledger=ledger)
    sizes = {name: len(id_set) for name, id_set in sets.items()}
    rows = {
        name: sets[name].rows[np.asarray(results[name]["rows"])]
        for name in names
        if results[name]["rows"] is not None
    }
    for name in names:
        record_conclusion_of_many(ledger, name, first, sizes, results[first]["size"], name in rows)
    return PsiResult(
        [columns[first][row] for row in rows[first].tolist()],
        ledger,
        rows,
        results[first]["size"],
        sizes,
        "many",
        tuple(note for id_set in sets.values() for note in id_set.notes),
    )


JOINS = ("inner", "left")


def check_join(owner: str, name: str, how: str, parties: int, both_learn: bool) -> None:
    """Check the kind of a join: a left join needs two parties that both learn which ids are shared."""
    if how not in JOINS:
        raise bad(owner, name, how, "'inner' or 'left'")
    if how == "left" and parties != 2:
        raise bad(
            owner,
            name,
            how,
            f"'inner' with {parties} parties",
            "For a left join each pair would have to learn which ids the two share, which the protocol for "
            "several parties hides. Use 'inner' for the people that all hold, or a left join of the first "
            "party with one other.",
        )
    if how == "left" and not both_learn:
        raise bad(
            owner,
            name,
            how,
            "'inner' where only one party learns the result",
            "A left join needs the rows of both.",
        )


def join_rows(id_set: IdSet, shared: Any, kept: int, is_kept: bool, how: str) -> np.ndarray:
    """Return a party's rows: the shared ones, and in a left join a row for every other id of the kept party.

    The kept party's other rows follow in the order of its table, so their order depends on nothing the other
    party could compare with ids. The other party has −1 there. `kept` is the kept party's set size.
    """
    rows = id_set.rows[np.asarray(shared)]
    if how == "inner":
        return rows
    rest = np.setdiff1d(id_set.rows, rows) if is_kept else np.full(kept - len(rows), -1, np.int64)
    return np.concatenate([rows, rest])


class OrderKey(
    Message, reveals="a random key, by which parties that hold the same ids compare their order: nothing"
):
    key: bytes


@dataclass(frozen=True)
class Alignment:
    """`rows`: my rows in the common order (−1: none). `key`: a secret of the aligned parties.

    `notes`: on my ids. `shared`: how many of the rows both have; the others are at the end.
    """

    rows: np.ndarray
    key: bytes
    notes: tuple[str, ...]
    shared: int


async def align_rows(
    me: Party,
    ids: Iterable[Any] | IdSet,
    *,
    parties: Sequence[str],
    method: str = "auto",
    policy: PsiPolicy | None = None,
    queries: Queries | None = None,
    how: str = "inner",
    max_ids: int = MAX_IDS,
) -> Alignment:
    """Align rows as part of a program, and agree on a key that only `parties` have.

    What this party learned is added to its ledger. `policy` and `queries` are those of a party that does not
    lead; the result counts as reveal="both". `how` as in `align`; a left join keeps the first party's rows.
    `max_ids`: ids that the other one of two parties may declare, whichever it is.
    """
    check_join("align_rows", "how", how, len(parties), True)
    id_set = ids if isinstance(ids, IdSet) else identify(ids, f"the ids of {me.name!r}")
    scope, first, others = me.scope("align"), parties[0], list(parties[1:])
    if len(parties) == 2:
        other = others[0] if me.name == first else first
        result = await (
            protocol.receiver(
                scope, id_set.digests, other=other, method=method, reveal="both", max_ids=max_ids
            )
            if me.name == first
            else protocol.sender(
                scope,
                id_set.digests,
                other=other,
                method=method,
                reveal="both",
                policy=replace(policy or PsiPolicy(), max_ids=min(max_ids, (policy or PsiPolicy()).max_ids)),
                queries=queries,
            )
        )
    elif me.name == first:
        result = await psi_many.leader(scope, id_set.digests, others=others, method=method)
    else:
        result = await psi_many.member(
            scope,
            id_set.digests,
            leader=first,
            others=others,
            method=method,
            policy=policy,
            queries=queries,
        )
    other_sizes = (
        result["theirs"]
        if isinstance(result["theirs"], dict)
        else {others[0] if me.name == first else first: result["theirs"]}
    )
    sizes = {me.name: len(id_set), **other_sizes}
    record_conclusion_of_many(me.ledger, me.name, first, sizes, len(result["rows"]), True, how)
    key = me.secret.bytes(KEY)
    if me.name == first:
        await scope.send(others, OrderKey(key))
    else:
        key = (await scope.recv(first, OrderKey)).key
        if len(key) != KEY:
            raise ProtocolError(f"party {first!r} sent a key of {len(key)} bytes; expected {KEY}.")
    rows = join_rows(id_set, result["rows"], sizes[first], me.name == first, how)
    return Alignment(rows, key, id_set.notes, len(result["rows"]))


def record_conclusion(
    ledger: Ledger,
    receiver: str,
    sender: str,
    sizes: Mapping[str, int],
    shared: int,
    reveal: str,
    how: str = "inner",
) -> None:
    """Record in the ledger what each party learned from the messages it received."""
    which = f"which of its own ids are shared ({shared} of {sizes[receiver]})"
    amount = (
        "the sum of the other's values over them" if shared != 1 else "the other's value of this one person"
    )
    learns = {
        "size": f"how many ids are shared ({shared}), {_what_count_reveals(shared, sizes[receiver])}",
        "receiver": which,
        "both": which,
        "sum": f"how many ids are shared ({shared}) and {amount}, "
        f"{_what_count_reveals(shared, sizes[receiver])}",
    }[reveal]
    left = _what_left_join_adds(receiver, sizes[receiver] - shared) if how == "left" else ("", "")
    ledger.record(
        receiver, sender, "Conclusion", f"that {sender!r} holds {sizes[sender]} ids, and {learns}{left[0]}"
    )
    learns = {
        "both": f"which of its own ids are shared ({shared} of {sizes[sender]})",
        "receiver": "nothing about which are shared",
    }.get(reveal, f"how many ids are shared ({shared}), {_what_count_reveals(shared, sizes[sender])}")
    ledger.record(
        sender,
        receiver,
        "Conclusion",
        f"that {receiver!r} holds {sizes[receiver]} ids, and {learns}{left[1]}",
    )


def _what_left_join_adds(first: str, alone: int) -> tuple[str, str]:
    """Describe the left join to the party that keeps all its rows, and to the other one."""
    return (
        f"; it keeps the other {alone} as well, with missing values for the other's columns",
        f"; so {alone} rows of {first!r} have no match here, not which people they are",
    )


def _what_count_reveals(shared: int, total: int) -> str:
    """Describe what a count reveals: if all or none of a party's ids are shared, also which."""
    return (
        "not which"
        if 0 < shared < total
        else "and so which: none of its own"
        if not shared
        else "and so which: all of its own"
    )


def record_conclusion_of_many(
    ledger: Ledger,
    name: str,
    leader: str,
    sizes: Mapping[str, int],
    shared: int,
    knows: bool,
    how: str = "inner",
) -> None:
    """Record what one of several parties learned."""
    which = (
        f"which of its own ids all share ({shared} of {sizes[name]})"
        if knows
        else "nothing about which are shared"
    )
    if how == "left":
        which += _what_left_join_adds(leader, sizes[leader] - shared)[name != leader]
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
    _check_names(names)
    columns = {name: _as_sequence(ids) for name, ids in zip(names, (receiver, sender))}
    sets = {name: identify(ids, f"the ids of {name!r}") for name, ids in columns.items()}
    texts = {
        name: [normal(str(columns[name][row])) for row in shared.rows.tolist()]
        for name, shared in sets.items()
    }
    ledger = Ledger()
    shared = choose_runtime("psi", runtime, all_stay=True).run_sync(
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
    rows, sizes = (
        np.array([at[text] for text in shared], np.int64),
        {name: len(s) for name, s in sets.items()},
    )
    return PsiResult(
        [columns[names[0]][row] for row in rows.tolist()],
        ledger,
        {names[0]: rows},
        len(rows),
        sizes,
        "agrawal",
        tuple(note for s in sets.values() for note in s.notes),
    )


def _check_values(values: Sequence[int] | None, id_set: IdSet, reveal: str, name: str) -> list[int]:
    """Return a number for each id of the sender."""
    if (values is None) == (reveal == "sum"):
        raise bad(
            "psi",
            "values",
            "None" if values is None else f"{len(values)} numbers",
            "given with reveal='sum', and only then",
        )
    if values is None:
        return []
    if len(values) != id_set.total:
        raise BadData(
            f"the values of {name!r}: there are {len(values)} for {id_set.total} rows; there must be one for "
            "each."
        )
    if len(id_set) < id_set.total:
        raise BadData(
            f"the values of {name!r} belong to rows with duplicate or empty ids ({' '.join(id_set.notes)}) "
            "Sum or drop them first, so that each id has one value."
        )
    whole = np.asarray(values)
    if whole.dtype.kind not in "iu":
        raise BadData(
            f"the values of {name!r} are {whole.dtype}; the sum is exact, so they must be integers. Scale "
            "and round them first."
        )
    return [int(whole[row]) for row in id_set.rows]


def _as_sequence(ids: Iterable[Any]) -> Any:
    """Return ids that can be indexed by row; lists and arrays are not copied."""
    return ids if isinstance(ids, list | tuple | np.ndarray | str) else list(ids)


def _check_names(names: Sequence[str]) -> None:
    if len(set(names)) < len(names) or not all(isinstance(name, str) and name for name in names):
        raise bad("psi", "names", tuple(names), "different words, one for each party")
