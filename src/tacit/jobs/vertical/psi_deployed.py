"""Matching tables of real parties by an id column: what each operator starts on its own machine, and the same
tried out with both files at hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...crypto import group
from ...data.identifiers import IdSet, identify
from ...data.table_files import read_chunks, read_header, write_table
from ...errors import BadData, BadKit
from ...files import write_atomic
from ...parameters import bad, nearest
from ...parties.ledger import Ledger
from ...parties.party import Party
from ...protocols import psi as protocol
from ...protocols import psi_many
from ..kit_run import run_with_kit
from ..ledger_file import NAME
from .psi import psi, tell, tell_one
from .query_log import QUERIES, QueryLog, read_policy

if TYPE_CHECKING:
    from ...runtimes.kits import Kit

AT_ONCE = 1 << 18  # rows of a file read at a time: of ten million, ids stand in memory as digests alone


def read_ids(file: str | Path, column: str) -> IdSet:
    """The ids of a .csv file's column, read as text, in one pass."""
    return identify(_column(Path(file), column), f"{file}, column {column!r}")


def read_values(file: str | Path, column: str) -> list[int]:
    """A column of whole numbers."""
    values = []
    for row, text in enumerate(_column(Path(file), column)):
        try:
            values.append(int(text))
        except ValueError:
            raise BadData(
                f"{file}, column {column!r}: row {row} has {text!r:.80}; a sum is exact, so it must be a "
                "whole number."
            ) from None
    return values


def _column(file: Path, column: str) -> Iterator[str]:
    for chunk in read_chunks(file, [column]):
        yield from chunk[column].tolist()


def write_rows(file: str | Path, rows: np.ndarray, out: str | Path) -> None:
    """Write these rows of a table, in this order, into another file."""
    import pandas

    table = pandas.concat([chunk.loc[chunk.index.isin(rows)] for chunk in read_chunks(file)])
    write_table(table.loc[rows], out, read_header(file).separator)


def match_with(
    kit: Kit,
    file: str | Path,
    id: str,
    *,
    others: Sequence[str] = (),
    receiver: str | None = None,
    reveal: str = "both",
    method: str = "auto",
    values: str | None = None,
    limit: int = protocol.LIMIT,
    out: str | Path | None = None,
    policy: str | Path | None = None,
    wait: float | None = None,
    patience: float = 300.0,
) -> dict[str, Any]:
    """This party's part: whom of `file` do the others hold, too? Writes the shared rows, in the order that
    everybody's have, and the ledger beside them.

    `policy`: a policy file (default: policy.toml in the kit, or else the default policy), by which this party
    answers others. Queries are counted, and the ledger is kept, in the kit.
    """
    if kit.role == "hub":
        raise BadKit(f"this is the hub's kit; ids are matched by {', '.join(map(repr, kit.parties))}.")
    names = _everyone(kit, others)
    first = receiver if receiver is not None else min(names)
    if first not in names:
        raise bad(
            "tacit psi",
            "receiver",
            first,
            f"one of those who take part: {', '.join(map(repr, sorted(names)))}",
        )
    many = len(names) > 2
    if many and reveal not in ("both", "receiver"):
        raise bad("tacit psi", "reveal", reveal, "'both' or 'receiver' with more than two parties")
    protocol.allow(method, reveal, limit)
    group.ready()
    held = read_ids(file, id)
    if (reveal == "sum" and kit.name != first) != (values is not None):
        raise bad(
            "tacit psi",
            "values",
            values,
            "a column of whole numbers at the sender with reveal='sum', and not given otherwise",
        )
    numbers = [] if values is None else _numbers(file, values, held)
    rest = sorted(names - {first})
    rules = read_policy(policy, kit.directory)
    queries = None if kit.directory is None else QueryLog(kit.directory / QUERIES)

    async def program(me: Party) -> dict[str, Any]:
        inside = me.scope("psi")
        common: dict[str, Any] = {"within": wait}
        if many:
            common |= {"others": rest, "reveal": "all" if reveal == "both" else "leader"}
            return await (
                psi_many.leader(inside, held.digests, **common)
                if kit.name == first
                else psi_many.member(
                    inside, held.digests, leader=first, policy=rules, queries=queries, **common
                )
            )
        common |= {"method": method, "reveal": reveal, "limit": limit}
        return await (
            protocol.receiver(inside, held.digests, other=rest[0], **common)
            if kit.name == first
            else protocol.sender(
                inside, held.digests, other=first, values=numbers, policy=rules, queries=queries, **common
            )
        )

    async def concluded(me: Party) -> dict[str, Any]:
        made = await program(me)
        _conclude(me.ledger, kit.name, first, rest, held, made, reveal)
        return made

    found, seen = run_with_kit("psi", kit, concluded, patience)
    sizes = _sizes(kit.name, names, len(held), found)
    rows = None if found["rows"] is None else held.rows[found["rows"]]
    value = {
        "party": kit.name,
        "shared": found["size"],
        "sum": found.get("sum"),
        "sizes": sizes,
        "method": found.get("method", "many"),
        "notes": list(held.notes),
    }
    if kit.directory is not None:
        value["ledger_of_party"] = str(kit.directory / NAME)
    return _kept(file, rows, out, seen, value)


def _sizes(name: str, names: set[str], held: int, found: dict[str, Any]) -> dict[str, int]:
    return {
        name: held,
        **(
            found["theirs"]
            if isinstance(found["theirs"], dict)
            else {next(iter(names - {name})): found["theirs"]}
        ),
    }


def _conclude(
    ledger: Ledger,
    name: str,
    first: str,
    rest: list[str],
    held: IdSet,
    found: dict[str, Any],
    reveal: str,
) -> None:
    """What this party has learned; of the others it cannot know more."""
    whole, sizes = Ledger(), _sizes(name, {first, *rest}, len(held), found)
    if len(rest) > 1:
        tell_one(whole, name, first, sizes, found["size"] or 0, found["rows"] is not None)
    else:
        tell(whole, first, rest[0], sizes, found["size"] or 0, reveal)
    for line in whole.seen:
        if line.party == name:
            ledger.record(line.party, line.sender, line.kind, line.reveals)


def match_here(
    file: str | Path,
    other: str | Path,
    id: str,
    *,
    reveal: str = "both",
    method: str = "auto",
    values: str | None = None,
    limit: int = protocol.LIMIT,
    out: str | Path | None = None,
    policy: str | Path | None = None,
    runtime: Any = None,
) -> dict[str, Any]:
    """The same with both files on this machine, to try it out: `file` is the receiver's, `other` the
    sender's, with `values` a column of it and `policy` its policy file.
    """
    sets = [read_ids(file, id), read_ids(other, id)]
    numbers = None if values is None else _numbers(other, values, sets[1])
    # ids were made into digests by the rule already; as hexadecimal text the rule leaves them as they are
    found = psi(
        *([d.tobytes().hex() for d in s.digests] for s in sets),
        method=method,
        reveal=reveal,
        values=numbers,
        limit=limit,
        policy=read_policy(policy),
        runtime=runtime,
    )
    rows = sets[0].rows[found.rows["receiver"]] if "receiver" in found.rows else None
    return _kept(
        file,
        rows,
        out,
        found.ledger,
        {
            "party": "receiver",
            "shared": found.size,
            "sum": found.value if reveal == "sum" else None,
            "sizes": found.sizes,
            "method": found.method,
            "notes": [note for s in sets for note in s.notes],
        },
    )


def _everyone(kit: Kit, others: Sequence[str]) -> set[str]:
    """Who takes part: those named and this party, or all clients of the federation."""
    for name in others:
        if name not in kit.parties or name == kit.name:
            raise bad(
                "tacit psi",
                "with",
                name,
                "another party of the federation",
                nearest(name, [p for p in kit.parties if p != kit.name]),
            )
    names = {kit.name, *others} if others else {kit.name, *(p for p in kit.parties if p != kit.server)}
    if len(names) < 2:
        raise bad(
            "tacit psi", "with", None, "another party of the federation", f"Known: {', '.join(kit.parties)}."
        )
    return names


def _numbers(file: str | Path, column: str, held: IdSet) -> list[int]:
    if len(held) < held.total:
        raise BadData(
            f"{file}: some rows have the same id or none, so it is not clear which value counts. "
            f"{' '.join(held.notes)} "
            "Add them up or drop them first."
        )
    return read_values(file, column)


def _kept(
    file: str | Path, rows: np.ndarray | None, out: str | Path | None, ledger: Ledger, value: dict[str, Any]
) -> dict[str, Any]:
    if out is not None:
        if rows is not None:
            write_rows(file, rows, out)
            value["out"] = str(out)
        beside = Path(out).with_name(Path(out).name + ".ledger.json")
        write_atomic(beside, json.dumps(ledger.to_dict(), indent=1))
        value["ledger_file"] = str(beside)
    return {**value, "ledger": ledger.to_dict()}
