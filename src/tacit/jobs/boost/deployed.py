"""`tacit boost`: training between real parties with their kits, or with all files on this machine."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...boost.program import Boosted
from ...boost.result import BoostResult
from ...boost.xgboost_json import from_json, to_json
from ...config import toml
from ...errors import BadJob, BadKit, ProtocolError
from ...files import write_atomic
from ...guard.secagg import SecAgg
from ...parties.ledger import Ledger
from ...results import check_absent
from ..ledger_file import record_command
from ..stats.answers import AnswerFile
from ..stats.deployed import Report, SumJournal, agree, connect, peers_of
from ..stats.parties import coordinator, party
from ..stats.policy import admit
from ..stats.policy import read_policy as read_stats_policy
from ..stats.queries import read_rows
from ..stats.run import run_sums
from .horizontal import conclude
from .query import check_policy, read_job, read_policy

if TYPE_CHECKING:
    from ...parties.party import Party
    from ...runtimes.kits import Kit

log = logging.getLogger(__name__)
MODEL = "model"  # what all parties receive at the end


def coordinate(
    kit: Kit,
    job: str | Path,
    *,
    changes: list[str] | None = None,
    patience: float = 300.0,
    state: str | Path | None = None,
    progress: Report = lambda done, most: None,
    note: Callable[[str], None] = log.info,
) -> BoostResult:
    """Run the coordinator's part and return the model; the parties are started by their owners.

    Opened sums are kept in `state` (default: state in the kit): after a kill, the same command goes on.
    """
    if kit.role != "server":
        raise BadKit(
            f"this is the kit of {kit.name!r} (a {kit.role}); training is coordinated with the server's kit. "
            "A party gives --data."
        )
    query = read_job(job, changes)
    program, contract = agree(kit, query, job)
    journal = SumJournal(_state(kit, state), contract.digest)
    sums, ledger = journal.load(), Ledger()

    def opened(step: int, total: np.ndarray, included: Any) -> None:
        journal.keep(step, total)
        progress(step + 1, program.max_steps)

    async def server(me: Party) -> Any:
        return await coordinator(
            me,
            contract,
            program,
            within=query.sums.within,
            tries=query.sums.tries,
            sums=sums,
            opened=opened,
            note=note,
            share=_share,
        )

    with record_command(kit.directory, ledger, "boost", kit.name):
        found = connect(kit, server, ledger, patience, peers_of(query, contract))
    return conclude(program, found, ledger, len(contract.tables["parties"]))


def _share(found: Boosted) -> Mapping[str, Tensor]:
    text = json.dumps(to_json(found.model), ensure_ascii=False).encode()
    return {MODEL: torch.frombuffer(bytearray(text), dtype=torch.uint8)}


def take_part(
    kit: Kit,
    job: str | Path,
    data: str | Path,
    *,
    out: str | Path | None = None,
    state: str | Path | None = None,
    patience: float = 300.0,
    progress: Report = lambda done, most: None,
) -> dict[str, Any]:
    """Run a party's part: answer the job that its owner agreed to, and no other; write the model to `out`.

    Answers are kept in `state` (default: state in the kit).
    """
    if kit.role != "client":
        raise BadKit(f"this is the kit of {kit.name!r} (a {kit.role}); --data is given with a client's kit.")
    target = None if out is None else check_absent(out)
    query = read_job(job)
    check_policy(read_policy(kit.directory), query.options)
    program, contract = agree(kit, query, job)
    folder, policy = _state(kit, state), read_stats_policy(kit.directory)
    answers = AnswerFile(folder, kit.name, contract.digest)
    ledger = Ledger()

    def read() -> Any:
        table = read_rows(data, query.data)
        admit(policy, contract, program, table, answers, folder, query.data.person)
        return table

    async def client(me: Party) -> Any:
        return await party(
            me,
            contract,
            read,
            answers,
            server=kit.server,
            within=query.sums.within,
            answered=lambda step: progress(step + 1, program.max_steps),
        )

    with record_command(kit.directory, ledger, "boost", kit.name):
        vectors = connect(kit, client, ledger, patience, peers_of(query, contract))
    value = {
        "party": kit.name,
        "contract": contract.digest,
        "answered": len(answers.sent),
        "state": str(folder),
        "ledger": ledger.to_dict(),
    }
    if target is not None:
        write_atomic(target, _received(vectors, program.about.columns))
        value["model"] = str(target)
    return value


def _received(vectors: Mapping[str, Tensor], columns: tuple[str, ...]) -> str:
    """Return the model that the coordinator sent, as text; raise ProtocolError if it is not one."""
    sent = vectors.get(MODEL)
    if sent is None or sent.dtype != torch.uint8 or sent.ndim != 1:
        raise ProtocolError("the coordinator sent no model at the end. Nothing was written.")
    try:
        text = sent.numpy().tobytes().decode()
        model = from_json(json.loads(text), "the coordinator's model")
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(
            f"what the coordinator sent is not a model: {error}. Nothing was written."
        ) from None
    if tuple(model.bins.names) != columns:
        raise ProtocolError("the coordinator's model has other columns than agreed. Nothing was written.")
    return text


def run_here(job: str | Path, *, changes: list[str] | None = None, runtime: Any = "cohort") -> BoostResult:
    """Train with all files on this machine: [parties] of the job file."""
    query = read_job(job, changes)
    if len(query.parties) < 2:
        raise BadJob(
            f"{job}: without --kit all parties run here, and [parties] names {len(query.parties)} of them. "
            'Add one line for each, like north = "north.csv", or give --kit.'
        )
    frames = {name: read_rows(file, query.data) for name, file in query.parties.items()}
    with toml.named(job):
        program = query.verb.build(query.options, len(frames))
    sums = {f.name: getattr(query.sums, f.name) for f in dataclasses.fields(query.sums)}
    found, ledger = run_sums(program, frames, runtime=runtime, guard=SecAgg(**sums), owner="boost")
    return conclude(program, found, ledger, len(frames))


def _state(kit: Kit, state: str | Path | None) -> Path:
    return Path(state) if state is not None else (kit.directory or Path(".")) / "state"
