"""`tacit psi`: match tables by an id column, between real parties or with both files on one machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...crypto import group
from ...crypto.okvs import VALUE
from ...data.identifiers import IdSet, MisreadIds, identify
from ...data.table_files import check_decimal, check_table_name, read_chunks, read_header, write_table
from ...errors import BadData, BadKit
from ...files import check_free, write_atomic
from ...parameters import bad, nearest
from ...parties.ledger import Ledger
from ...parties.party import Party, Program
from ...protocols import psi as protocol
from ...protocols import psi_many
from ...protocols.psi_policy import COUNTED
from ...protocols.psi_resume import Checkpoint
from ...protocols.psi_sum import bytes_of_number
from ..kit_run import request_of_verb, run_with_kit, telling
from ..ledger_file import NAME
from .psi import align, check_join, join_rows, psi, record_conclusion, record_conclusion_of_many
from .psi_files import (
    COUNT_ROW,
    COUNTED_IN_MEMORY,
    IN_MEMORY,
    NUMBERS,
    ROW,
    Scratch,
    StoredSet,
    ValueColumn,
    check_ids,
    read_ids_into,
    scratch_in,
    write_shared,
)
from .psi_restart import answering, run_with_restarts
from .query_log import QUERIES, QueryLog, read_policy

if TYPE_CHECKING:
    from ...runtimes.kits import Kit

RECORD = "psi-resume"  # in the kit: what a party that is stopped resumes from
Reading = Mapping[str, Any] | None  # separator, decimal and encoding of a CSV file, where they are given
AT_ONCE = 1 << 18  # rows of a file read at a time: only digests of ids are kept in memory


def read_ids(file: str | Path, column: str, reading: Reading = None) -> IdSet:
    """Read the ids in a column of a .csv file, as text, in one pass."""
    where, misread = f"{file}, column {column!r}", MisreadIds((reading or {}).get("encoding"))
    ids = identify(misread.watch(_column(Path(file), column, reading)), where)
    check_ids(file, ids)
    return replace(ids, notes=(*ids.notes, *misread.notes(where)))


def read_values(
    file: str | Path, column: str, reading: Reading = None, limit: int = protocol.MOST
) -> list[int]:
    """Read a column of integers from 0 to `limit`."""
    return ValueColumn(column, limit).parse(Path(file), _column(Path(file), column, reading), 0)


def exact(file: str | Path, reading: Reading) -> dict[str, Any]:
    """Check `reading` against a file; return it for columns that are read exactly as they are written."""
    how = dict(reading or {})
    check_decimal(file, **how)
    return {key: value for key, value in how.items() if key != "decimal"}


def _column(file: Path, column: str, reading: Reading) -> Iterator[str]:
    for chunk in read_chunks(file, [column], **exact(file, reading)):
        yield from chunk[column].tolist()


def write_rows(file: str | Path, rows: np.ndarray, out: str | Path, reading: Reading = None) -> None:
    """Write these rows of a table, in this order, into another file; −1 is a row of empty cells.

    The separator is the table's. With decimal="," in `reading`, columns of numbers get decimal points.
    """
    import pandas

    how = dict(reading or {})
    table = pandas.concat([chunk.loc[chunk.index.isin(rows)] for chunk in read_chunks(file, **how)])
    selected = table.loc[rows[rows >= 0]]
    missing = pandas.DataFrame("", index=range(int((rows < 0).sum())), columns=table.columns)
    parts = [selected, missing] if len(missing) else selected
    header = read_header(file, how.get("separator"), how.get("encoding"))
    write_table(parts, out, header.separator)


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
    join: str = "inner",
    out: str | Path | None = None,
    force: bool = False,
    policy: str | Path | None = None,
    wait: float | None = None,
    patience: float = 300.0,
    scratch: str | Path | None = None,
    reading: Reading = None,
) -> dict[str, Any]:
    """Run this party: find the rows of `file` whose ids the others hold, and write them with the ledger.

    The rows are written in an order common to all parties. join="left": the receiver's other rows follow, and
    the other party writes as many rows of empty cells. `policy`: a policy file (default: policy.toml in the
    kit, or else the default policy) for queries of others. Queries and the ledger are recorded in the kit.
    If this party cannot start, the others are told. `reading` is how `file` is read: separator, decimal,
    encoding. `scratch`: a folder for the files of a table that is matched on disk (default: next to `out`).
    """
    with scratch_in(scratch, out) as space, ExitStack() as held:
        with telling(kit):
            prepared = _prepare(
                *(kit, file, id, others, receiver, reveal, method, values, limit, join, out, force),
                *(policy, wait, reading, space),
            )
            # before the hub is asked: it takes a second process of this party for the first one, restarted
            held.enter_context(prepared.record.held())
        return prepared.run(file, out, patience)


@dataclass(frozen=True)
class _Match:
    """One party of a matching, ready to start."""

    kit: Kit
    names: frozenset[str]
    first: str
    reveal: str
    join: str
    ids: IdSet | StoredSet
    program: Program
    reading: Reading
    space: Scratch
    record: Checkpoint

    def run(self, file: str | Path, out: str | Path | None, patience: float) -> dict[str, Any]:
        kit, ids = self.kit, self.ids
        request = request_of_verb("psi", kit, self.names, receiver=self.first, reveal=self.reveal)
        result, ledger = run_with_kit(
            "psi", kit, self._run_and_conclude, patience, self.names, may_restart=True, request=request
        )
        sizes = _sizes(kit.name, self.names, len(ids), result)
        kept, is_kept, rows = sizes[self.first], kit.name == self.first, None
        if isinstance(ids, StoredSet):
            if result["rows"] is not None and out is not None:
                shared = result["rows"]
                how = dict(self.reading or {})
                write_shared(Path(file), ids, shared, Path(out), self.space, kept, is_kept, self.join, how)
        elif result["rows"] is not None:
            rows = join_rows(ids, result["rows"], kept, is_kept, self.join)
        value = {
            "party": kit.name,
            "shared": result["size"],
            "sum": result.get("sum"),
            "sizes": sizes,
            "method": result.get("method", "many"),
            "notes": list(ids.notes),
        }
        if kit.directory is not None:
            value["ledger_of_party"] = str(kit.directory / NAME)
        value |= {} if rows is not None or result["rows"] is None or out is None else {"out": str(out)}
        return write_result(file, rows, out, ledger, value, self.reading)

    async def _run_and_conclude(self, me: Party) -> dict[str, Any]:
        result: dict[str, Any] = await self.program(me)
        rest = sorted(self.names - {self.first})
        _conclude(me.ledger, me.name, self.first, rest, self.ids, result, self.reveal, self.join)
        return result


def _prepare(
    kit: Kit,
    file: str | Path,
    id: str,
    others: Sequence[str],
    receiver: str | None,
    reveal: str,
    method: str,
    values: str | None,
    limit: int,
    join: str,
    out: str | Path | None,
    force: bool,
    policy: str | Path | None,
    wait: float | None,
    reading: Reading,
    space: Scratch,
) -> _Match:
    """Check the options and read the ids, before the hub is asked for anything."""
    if out is not None:
        for path in (out, f"{out}.ledger.json"):
            check_free(path, force, [file])
        check_table_name(out, "psi: --out ")
    if kit.role == "hub":
        raise BadKit(f"this is the hub's kit; ids are matched by {', '.join(map(repr, kit.parties))}.")
    names = participants(kit, others)
    first = receiver if receiver is not None else min(names)
    if first not in names:
        raise bad(
            "tacit psi",
            "receiver",
            first,
            f"one of the participants: {', '.join(map(repr, sorted(names)))}",
        )
    many = len(names) > 2
    if many and reveal not in ("both", "receiver"):
        raise bad("tacit psi", "reveal", reveal, "'both' or 'receiver' with more than two parties")
    check_join("tacit psi", "join", join, len(names), reveal == "both")
    protocol.check_options(method, reveal, limit)
    group.ready()
    counted = reveal in COUNTED
    resumes = not many and method != "dh" and not counted
    if (reveal == "sum" and kit.name != first) != (values is not None):
        raise bad(
            "tacit psi",
            "values",
            values,
            "a column of whole numbers at the sender with reveal='sum', and not given otherwise",
        )
    column = None if values is None else ValueColumn(values, limit)
    ids = (
        read_ids_into(
            space,
            Path(file),
            id,
            None if out is None or counted else Path(out),
            exact(file, reading),
            _bytes_of_row(len(names), reveal, limit),
            column,
            COUNTED_IN_MEMORY if counted else IN_MEMORY,
        )
        if method != "dh" or counted
        else read_ids(file, id, reading)
    )
    numbers = [] if column is None else _read_values(file, column, ids, reading)
    rest = sorted(names - {first})
    rules = read_policy(policy, kit.directory)
    queries = None if kit.directory is None else QueryLog(kit.directory / QUERIES)

    terms = {
        "participants": sorted(names),
        "receiver": first,
        "reveal": reveal,
        "method": method,
        "limit": limit if reveal == "sum" else 0,
        "join": join,
    }

    record = Checkpoint(None if kit.directory is None else _record_folder(kit.directory, terms), terms)

    async def program(me: Party) -> dict[str, Any]:
        scope = me.scope("psi")
        async with answering(scope, set(kit.parties) - names - {kit.server}):
            result = await run_with_restarts(
                scope, sorted(names - {kit.name}), terms, match, wait, lambda: bool(record.state)
            )
        record.clear()
        return result

    async def match(scope: Party) -> dict[str, Any]:
        if many:
            common: dict[str, Any] = {
                "others": rest,
                "reveal": "all" if reveal == "both" else "leader",
                "method": method,
            }
            return await (
                psi_many.leader(scope, ids.digests, **common)
                if kit.name == first
                else psi_many.member(
                    scope, ids.digests, leader=first, policy=rules, queries=queries, **common
                )
            )
        common = {
            "method": method,
            "reveal": reveal,
            "limit": limit,
            "checkpoint": record if resumes else None,
        }
        return await (
            protocol.receiver(scope, ids.digests, other=rest[0], **common)
            if kit.name == first
            else protocol.sender(
                scope, ids.digests, other=first, values=numbers, policy=rules, queries=queries, **common
            )
        )

    return _Match(kit, frozenset(names), first, reveal, join, ids, program, reading, space, record)


def _bytes_of_row(parties: int, reveal: str, limit: int) -> int:
    """Return the bytes of a row in files, for this party's own rows."""
    if reveal in COUNTED:
        return COUNT_ROW + NUMBERS * bytes_of_number(limit if reveal == "sum" else None)
    return ROW + (VALUE * (parties - 1) if parties > 2 else 0)


def _record_folder(kit: Path, terms: Mapping[str, Any]) -> Path:
    """Return the place of the record: a matching with others, or of another kind, does not touch it."""
    text = json.dumps(terms, sort_keys=True).encode()
    return kit / RECORD / hashlib.sha256(text).hexdigest()[:16]


def _sizes(name: str, names: AbstractSet[str], own_size: int, result: dict[str, Any]) -> dict[str, int]:
    return {
        name: own_size,
        **(
            result["theirs"]
            if isinstance(result["theirs"], dict)
            else {next(iter(names - {name})): result["theirs"]}
        ),
    }


def _conclude(
    ledger: Ledger,
    name: str,
    first: str,
    rest: list[str],
    ids: IdSet | StoredSet,
    result: dict[str, Any],
    reveal: str,
    join: str,
) -> None:
    """Record what this party learned."""
    whole, sizes = Ledger(), _sizes(name, {first, *rest}, len(ids), result)
    if len(rest) > 1:
        record_conclusion_of_many(whole, name, first, sizes, result["size"] or 0, result["rows"] is not None)
    else:
        record_conclusion(whole, first, rest[0], sizes, result["size"] or 0, reveal, join)
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
    join: str = "inner",
    out: str | Path | None = None,
    force: bool = False,
    policy: str | Path | None = None,
    runtime: Any = None,
    reading: Reading = None,
) -> dict[str, Any]:
    """Run both parties on this machine, for a test.

    `file` is the receiver's; `other` is the sender's, with `values` a column of it and `policy` its policy
    file. `reading` is how both are read.
    """
    if out is not None:
        for path in (out, f"{out}.ledger.json"):
            check_free(path, force, [file, other])
        check_table_name(out, "psi: --out ")
    check_join("tacit psi", "join", join, 2, reveal == "both")
    sets = [read_ids(file, id, reading), read_ids(other, id, reading)]
    column = None if values is None else ValueColumn(values, limit)
    numbers = None if column is None else _read_values(other, column, sets[1], reading)
    # the ids are normalized digests already; normalization does not change hexadecimal text
    texts = [[d.tobytes().hex() for d in s.digests] for s in sets]
    if join == "left":
        result = align(dict(zip(("receiver", "sender"), texts)), method=method, how=join, runtime=runtime)
    else:
        result = psi(
            *texts,
            method=method,
            reveal=reveal,
            values=numbers,
            limit=limit,
            policy=read_policy(policy),
            runtime=runtime,
        )
    rows = sets[0].rows[result.rows["receiver"]] if "receiver" in result.rows else None
    return write_result(
        file,
        rows,
        out,
        result.ledger,
        {
            "party": "receiver",
            "shared": result.size,
            "sum": result.value if reveal == "sum" else None,
            "sizes": result.sizes,
            "method": result.method,
            "notes": [note for s in sets for note in s.notes],
        },
        reading,
    )


def participants(kit: Kit, others: Sequence[str]) -> set[str]:
    """Return the participants: this party and those named, or all clients of the federation."""
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


def _read_values(
    file: str | Path, column: ValueColumn, ids: IdSet | StoredSet, reading: Reading
) -> list[int]:
    """Return the values of ids in memory; those of ids in files are with them."""
    if len(ids) < ids.total:
        raise BadData(
            f"{file}: some rows have a duplicate or empty id, so their values are ambiguous. "
            f"{' '.join(ids.notes)} Sum or drop them first."
        )
    return [] if isinstance(ids, StoredSet) else read_values(file, column.name, reading, column.limit)


def write_result(
    file: str | Path,
    rows: np.ndarray | None,
    out: str | Path | None,
    ledger: Ledger,
    value: dict[str, Any],
    reading: Reading = None,
) -> dict[str, Any]:
    if out is not None:
        if rows is not None:
            write_rows(file, rows, out, reading)
            value["out"] = str(out)
        ledger_path = Path(out).with_name(Path(out).name + ".ledger.json")
        write_atomic(ledger_path, json.dumps(ledger.to_dict(), indent=1))
        value["ledger_file"] = str(ledger_path)
    return {**value, "ledger": ledger.to_dict()}
