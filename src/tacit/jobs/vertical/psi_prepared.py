"""`tacit psi --prepare`, `--prepared`, `--table`: match a small table with a large one that was prepared."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...crypto import group
from ...data.identifiers import identify_rows
from ...data.table_files import check_table_name, read_chunks
from ...errors import BadData, BadKit
from ...files import check_free
from ...parameters import bad
from ...parties.ledger import Ledger
from ...parties.party import Party
from ...protocols import psi_prepared as protocol
from ...protocols.prepared_set import PreparedKey, PreparedTable, prepare
from ..kit_run import request_of_verb, run_with_kit, telling
from .psi import record_conclusion
from .psi_deployed import Reading, exact, participants, read_ids, write_result
from .psi_restart import answering, run_with_restarts
from .query_log import QUERIES, QueryLog, read_policy

if TYPE_CHECKING:
    from ...runtimes.kits import Kit

AT_ONCE = 1 << 16  # ids as text in memory
METHOD = "prepared"


def prepare_ids(ids: Iterable[Any], folder: str | Path) -> PreparedTable:
    """Prepare a set: write a secret key and a table into a folder. Rows without an id are left out."""
    group.ready()

    def chunks() -> Iterator[np.ndarray]:
        some: list[Any] = []
        for value in ids:
            some.append(value)
            if len(some) == AT_ONCE:
                yield identify_rows(some)[0]
                some = []
        yield identify_rows(some)[0]

    return prepare(chunks(), folder)


def prepare_file(
    file: str | Path,
    id: str,
    folder: str | Path,
    progress: Callable[[int], None] = lambda ids: None,
    reading: Reading = None,
) -> dict[str, Any]:
    """Prepare the ids in a column of a .csv file, in parts; return the facts that the command prints."""
    group.ready()
    rows = read_chunks(file, [id], **exact(file, reading))
    first = next(rows, None)
    if first is None or first.empty:
        raise BadData(f"{file} has column names and no rows. Give at least one row.")
    chunks = (
        identify_rows(chunk[id].tolist(), f"{file}, {id}")[0] for chunk in itertools.chain([first], rows)
    )
    table = prepare(chunks, folder, progress=progress)
    return {"ids": table.count, "table": str(table.path), "folder": str(folder)}


def match_prepared(
    kit: Kit,
    *,
    other: str,
    folder: str | Path | None = None,
    file: str | Path | None = None,
    id: str | None = None,
    table: str | Path | None = None,
    out: str | Path | None = None,
    force: bool = False,
    policy: str | Path | None = None,
    wait: float | None = None,
    patience: float = 300.0,
    reading: Reading = None,
) -> dict[str, Any]:
    """Run this party: the owner of a prepared set (`folder`) or who has its table (`table`, `file`, `id`).

    The latter learns which of its ids are in the set. `policy`, `out` and the rest as in
    `psi_deployed.match_with`.
    """
    asks = folder is None
    with telling(kit):
        if out is not None:
            for path in (out, f"{out}.ledger.json"):
                check_free(path, force, [] if file is None else [file])
            check_table_name(out, "psi: --out ")
        if kit.role == "hub":
            raise BadKit(f"this is the hub's kit; ids are matched by {', '.join(map(repr, kit.parties))}.")
        names = participants(kit, [other])
        group.ready()
        ids = None
        if asks:
            if file is None or id is None or table is None:
                raise bad("tacit psi", "table", table, "given with --file and --id")
            ids, size = read_ids(file, id, reading), PreparedTable.open(table).count
        else:
            assert folder is not None
            size = PreparedKey.read(folder).count
        rules = read_policy(policy, kit.directory)
        queries = None if kit.directory is None else QueryLog(kit.directory / QUERIES)
    receiver, sender = (kit.name, other) if asks else (other, kit.name)
    terms = {
        "participants": sorted(names),
        "receiver": receiver,
        "reveal": "receiver",
        "method": METHOD,
        "limit": 0,
        "join": "inner",
    }

    async def match(me: Party) -> dict[str, Any]:
        if ids is not None:
            return await protocol.receiver(me, ids.digests, table=str(table), other=other)
        return await protocol.sender(me, str(folder), other=other, policy=rules, queries=queries)

    async def program(me: Party) -> dict[str, Any]:
        scope = me.scope("psi")
        async with answering(scope, set(kit.parties) - names - {kit.server}):
            result = await run_with_restarts(scope, [other], terms, match, wait)
        lines, sizes = Ledger(), {kit.name: size if ids is None else len(ids), other: result["theirs"]}
        record_conclusion(lines, receiver, sender, sizes, result["size"] or 0, "receiver")
        for line in lines.seen:
            if line.party == me.name:
                me.ledger.record(line.party, line.sender, line.kind, line.reveals)
        return {**result, "sizes": sizes}

    request = request_of_verb("psi", kit, names, receiver=receiver, reveal="receiver")
    result, ledger = run_with_kit("psi", kit, program, patience, names, may_restart=True, request=request)
    value = {
        "party": kit.name,
        "shared": result["size"],
        "sum": None,
        "sizes": result["sizes"],
        "method": METHOD,
        "notes": [] if ids is None else list(ids.notes),
    }
    rows = None if ids is None else ids.rows[np.asarray(result["rows"])]
    return write_result("" if file is None else file, rows, out, ledger, value, reading)
