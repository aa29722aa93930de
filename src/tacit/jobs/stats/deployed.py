"""`tacit stats`: a query between real parties with their kits, or with all files on this machine."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ... import __version__
from ...accounting.account import Account
from ...config import toml
from ...data.spellings import respell_columns
from ...errors import BadJob, BadKit, BadRun
from ...files import write_atomic
from ...guard.secagg import SecAgg
from ...parties.ledger import Ledger
from ...protocols.sum_replay import replay
from ...results import JobResult
from ...stats.disclosure import require_effective_rows
from ...stats.privacy import Private
from ..kit_run import answering
from ..ledger_file import record_command
from ..lifetime import read_lifetime
from ..owner import Owner, Request, check_rows
from .answers import AnswerFile
from .contract import SumContract
from .parties import Departures, coordinator, party
from .policy import admit, read_policy
from .queries import Query, read_allowed, read_query, read_rows
from .run import run_sums

if TYPE_CHECKING:
    from ...parties.party import Party
    from ...runtimes.kits import Kit
    from ...runtimes.link import Link

log = logging.getLogger(__name__)
Report = Callable[[int, int], None]  # (steps done, most steps)


def agree(kit: Kit, query: Query, job: str | Path) -> tuple[Any, SumContract]:
    """Return the program of a job file and the contract that all parties of the federation must have."""
    clients = [p for p in kit.parties if p != kit.server]
    with toml.named(job):
        program = query.verb.program(query.options, clients)
    return program, SumContract.of(
        program,
        clients,
        federation=kit.federation,
        server=kit.server,
        threshold=query.sums.threshold,
        adversary=query.sums.adversary,
        data=query.agreed_data(),
    )


class SumJournal:
    """The sums a coordinator opened, on its disk: a restarted one goes on after the last."""

    def __init__(self, folder: Path, contract: str, parties: Sequence[str]):
        self.folder, self.parties = folder / f"opened-{contract[:16]}", list(parties)
        self.included: list[list[str]] = []  # the parties in each sum

    def load(self) -> list[np.ndarray]:
        sums: list[np.ndarray] = []
        self.included = []
        while (file := self.folder / f"{len(sums)}.json").exists():
            try:
                entry = json.loads(file.read_text())
                total = np.array(entry["sum"], dtype=np.int64)
                if hashlib.sha256(total.tobytes()).hexdigest() != entry["digest"]:
                    raise ValueError("its digest is wrong")
                included = [str(name) for name in entry.get("parties", self.parties)]
            except (ValueError, KeyError, TypeError, OSError) as error:
                raise BadRun(f"{file} cannot be read: {error}. Remove {self.folder} to ask again.") from None
            sums.append(total)
            self.included.append(included)
        return sums

    def keep(self, step: int, total: np.ndarray, included: Sequence[str]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(np.ascontiguousarray(total, np.int64).tobytes()).hexdigest()
        entry = {"sum": total.tolist(), "digest": digest, "parties": list(included)}
        write_atomic(self.folder / f"{step}.json", json.dumps(entry), 0o600)


def coordinate(
    kit: Kit,
    word: str,
    job: str | Path,
    *,
    changes: list[str] | None = None,
    patience: float = 300.0,
    wait: float | None = None,
    state: str | Path | None = None,
    progress: Report = lambda done, most: None,
    note: Callable[[str], None] = log.info,
) -> JobResult:
    """Run the coordinator's part of a query and return its result; the parties are started by their owners.

    Opened sums are kept in `state` (default: state in the kit): after a kill, the same command goes on.
    `wait`: seconds for the parties to start (None: forever).
    """
    query = read_query(word, job, changes)
    program, _, found, ledger = coordinate_sums(
        kit,
        query,
        job,
        f"stats {word}",
        patience=patience,
        wait=wait,
        state=state,
        progress=progress,
        note=note,
    )
    return query.verb.conclude(query.options, program, found, ledger)


def coordinate_sums(
    kit: Kit,
    query: Query,
    job: str | Path,
    command: str,
    *,
    patience: float,
    wait: float | None,
    state: str | Path | None,
    progress: Report,
    note: Callable[[str], None],
    share: Callable[[Any], Mapping[str, Tensor]] | None = None,
) -> tuple[Any, SumContract, Any, Ledger]:
    """Open the sums of a job; return its program, its contract, the outcome and the ledger.

    `share` gives what all parties receive at the end.
    """
    if kit.role != "server":
        raise BadKit(
            f"this is the kit of {kit.name!r} (a {kit.role}); a job is coordinated with the server's kit. A "
            "party gives --data."
        )
    program, contract = agree(kit, query, job)
    journal = SumJournal(_state(kit, state), contract.digest, contract.tables["parties"])
    sums, ledger = journal.load(), Ledger()
    departures = Departures(contract, program, ledger, note)
    for step, present in enumerate(journal.included):
        departures.add(step, present)

    def opened(step: int, total: np.ndarray, included: Sequence[str]) -> None:
        journal.keep(step, total, included)
        departures.add(step, included)
        progress(min(step + 1, program.max_steps), program.max_steps)

    async def server(me: Party, link: Link) -> Any:
        return await coordinator(
            me,
            contract,
            program,
            within=query.sums.within,
            tries=query.sums.tries,
            sums=sums,
            included=journal.included,
            opened=opened,
            note=note,
            share=share,
            absence=link.measure_absence,
            patience=patience,
            wait=wait,
        )

    with record_command(kit.directory, ledger, command, kit.name):
        found = connect(kit, server, ledger, patience, peers_of(query, contract))
    return program, contract, found, ledger


def read_finished(
    kit: Kit, query: Query, job: str | Path, state: str | Path | None
) -> tuple[Any, SumContract, Any] | None:
    """Return program, contract and outcome of a job whose sums are all on this coordinator's disk, or None.

    Nothing is sent.
    """
    if kit.role != "server":
        return None
    program, contract = agree(kit, query, job)
    journal = SumJournal(_state(kit, state), contract.digest, contract.tables["parties"])
    sums = journal.load()
    found = replay(program, contract.rules(), sums, journal.included) if sums else None
    return None if found is None else (program, contract, found)


def take_part(
    kit: Kit,
    word: str,
    job: str | Path,
    data: str | Path,
    *,
    state: str | Path | None = None,
    patience: float = 300.0,
    wait: float | None = None,
    progress: Report = lambda done, most: None,
    reading: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run a party's part: answer the query of the job file that its owner agreed to, and no other.

    Answers and the history of queries are kept in `state` (default: state in the kit). `reading`: separator,
    decimal and encoding of this party's file, where they are not those of the job.
    """
    check_client(kit)
    value, _ = answer_sums(
        kit,
        read_query(word, job),
        job,
        data,
        f"stats {word}",
        patience=patience,
        wait=wait,
        state=state,
        progress=progress,
        read_job=lambda file: read_query(word, file),
        reading=reading,
    )
    return value


def check_client(kit: Kit) -> None:
    if kit.role != "client":
        raise BadKit(f"this is the kit of {kit.name!r} (a {kit.role}); --data is given with a client's kit.")


def answer_sums(
    kit: Kit,
    query: Query,
    job: str | Path,
    data: str | Path,
    command: str,
    *,
    patience: float,
    wait: float | None,
    state: str | Path | None,
    progress: Report,
    read_job: Callable[[str | Path], Query],
    reading: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
    """Answer the sums of a job within the owner's policy; return what was done and what the server shared.

    `read_job` reads the owner's templates.
    """
    program, contract = agree(kit, query, job)
    own = query.read_as(reading)  # the contract is that of the query as all parties have it
    folder, owner = _state(kit, state), Owner.of(kit)
    policy, lifetime = read_policy(kit.directory), read_lifetime(kit.directory)
    answers = AnswerFile(folder, kit.name, contract.digest)
    ledger = Ledger()

    def read() -> Any:
        table = read_allowed(data, own.data, program, () if owner is None else owner.policy.columns)
        if owner is not None and not isinstance(program, Private):  # a refusal would show what the ε hides
            check_rows(owner.policy, len(table))
        prepared = query.verb.prepare(respell_columns(table, own.data.spellings), kit.name)
        admit(policy, contract, program, table, answers, folder, query.data.person, lifetime, prepared)
        return prepared

    def allow(step: int) -> None:
        if owner is not None:  # who may have denied the query since it began
            owner.check_running(contract.digest)

    async def client(me: Party, link: Link) -> Any:
        return await party(
            me,
            contract,
            read,
            answers,
            server=kit.server,
            within=query.sums.within,
            allow=allow,
            answered=lambda step: progress(step + 1, program.max_steps),
            wait=wait,
        )

    request = Request(
        command,
        (kit.server,),
        tuple(contract.tables["parties"]),
        contract.text,
        f"{command}: hidden sums in at most {program.max_steps} steps over "
        f"{len(contract.tables['parties'])} parties",
        guards=("SecAgg",),
        epsilon=Account(program.release, program.delta).epsilon(1) if isinstance(program, Private) else None,
        read_template=lambda file: agree(kit, read_job(file), file)[1].tables,
    )
    with (
        record_command(kit.directory, ledger, command, kit.name),
        answering(owner, kit, request),
        require_effective_rows(policy.effective_rows),
    ):
        # a party awaits the coordinator only, which may restart, and no longer than `patience`
        shared = connect(kit, client, ledger, patience, peers_of(query, contract), away=patience)
    return {
        "party": kit.name,
        "contract": contract.digest,
        "answered": len(answers.sent),
        "state": str(folder),
        "ledger": ledger.to_dict(),
    }, shared


def _state(kit: Kit, state: str | Path | None) -> Path:
    return Path(state) if state is not None else (kit.directory or Path(".")) / "state"


def run_here(
    word: str,
    job: str | Path,
    *,
    changes: list[str] | None = None,
    runtime: Any = "cohort",
    reading: Mapping[str, Any] | None = None,
) -> JobResult:
    """Run a query with all files on this machine: [parties] of the job file."""
    query = read_query(word, job, changes).read_as(reading)
    return query.verb.conclude(query.options, *sum_here(query, job, f"stats {word}", runtime))


def sum_here(query: Query, job: str | Path, owner: str, runtime: Any) -> tuple[Any, Any, Ledger]:
    """Run all parties of a job on this machine; return the program, the outcome and the ledger."""
    if len(query.parties) < 2:
        raise BadJob(
            f"{job}: without --kit all parties run here, and [parties] names {len(query.parties)} of them. "
            'Add one line for each, like north = "north.csv", or give --kit.'
        )
    with toml.named(job):
        program = query.verb.program(query.options, list(query.parties))
    frames = {
        name: query.verb.prepare(read_rows(file, query.data, program), name)
        for name, file in query.parties.items()
    }
    guard = SecAgg(**{f.name: getattr(query.sums, f.name) for f in dataclasses.fields(query.sums)})
    return program, *run_sums(program, frames, runtime=runtime, guard=guard, owner=owner)


def peers_of(query: Query, contract: SumContract) -> list[str]:
    """The parties whose failure ends the query for all; with a threshold below 1, only the coordinator's."""
    server = contract.tables["server"]
    return [server, *contract.tables["parties"]] if query.sums.threshold == 1 else [server]


def connect(
    kit: Kit,
    program: Callable[[Party, Link], Any],
    ledger: Ledger,
    patience: float,
    peers: list[str],
    away: float | None = None,
) -> Any:
    from ...runtimes.link import Link

    async def connected() -> Any:
        async with Link(kit, patience=patience, version=__version__, away=away, may_restart=True) as link:
            try:
                return await link.run(lambda me: program(me, link), peers)
            finally:
                ledger.merge(link.mailbox.ledger)

    return asyncio.run(connected())
