"""`tacit boost`: training between real parties with their kits, or with all files on this machine."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...boost.agreement import declare_category
from ...boost.program import Boosted, BoostProgram
from ...boost.result import BoostResult
from ...boost.xgboost_json import from_json, to_json
from ...errors import BadData, ProtocolError
from ...files import check_free, write_atomic
from ...parameters import propose
from ...parties.ledger import Ledger
from ...stats.columns import numbers
from ...stats.tables import check_columns
from ..stats.deployed import Report, answer_sums, check_client, coordinate_sums, read_finished, sum_here
from ..stats.queries import Query, read_rows
from .horizontal import conclude
from .query import WORD, check_policy, read_job, read_policy

if TYPE_CHECKING:
    from ...runtimes.kits import Kit

log = logging.getLogger(__name__)
MODEL = "model"  # what all parties receive at the end


def coordinate(
    kit: Kit,
    job: str | Path,
    *,
    changes: list[str] | None = None,
    patience: float = 300.0,
    wait: float | None = None,
    state: str | Path | None = None,
    progress: Report = lambda done, most: None,
    note: Callable[[str], None] = log.info,
) -> BoostResult:
    """Run the coordinator's part and return the model; the parties are started by their owners.

    Opened sums are kept in `state` (default: state in the kit): after a kill, the same command goes on.
    """
    program, contract, found, ledger = coordinate_sums(
        kit,
        read_job(job, changes),
        job,
        WORD,
        patience=patience,
        wait=wait,
        state=state,
        progress=progress,
        note=note,
        share=_share,
    )
    return conclude(program, found, ledger, len(contract.tables["parties"]))


def find_written(
    kit: Kit,
    job: str | Path,
    out: str | Path,
    *,
    changes: list[str] | None = None,
    state: str | Path | None = None,
) -> BoostResult | None:
    """Return the result of a coordinator that ended, or was killed, after it wrote its model to `out`.

    The sums it opened are all in its `state` and give the file, byte for byte; None: they do not.
    The model is written when all parties have received it, so there is nothing left to send.
    """
    file = Path(out)
    if not file.is_file():
        return None
    done = read_finished(kit, read_job(job, changes), job, state)
    if done is None:
        return None
    program, contract, found = done
    result = conclude(program, found, Ledger(), len(contract.tables["parties"]))
    return result if file.read_bytes() == result.to_text().encode() else None


def _share(found: Boosted) -> Mapping[str, Tensor]:
    text = json.dumps(to_json(found.model), ensure_ascii=False).encode()
    return {MODEL: torch.frombuffer(bytearray(text), dtype=torch.uint8)}


def take_part(
    kit: Kit,
    job: str | Path,
    data: str | Path,
    *,
    out: str | Path | None = None,
    force: bool = False,
    state: str | Path | None = None,
    patience: float = 300.0,
    wait: float | None = None,
    progress: Report = lambda done, most: None,
    reading: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run a party's part: answer the job that its owner agreed to, and no other; write the model to `out`.

    `force` overwrites an existing `out`. Answers are kept in `state` (default: state in the kit). `reading`:
    separator, decimal and encoding of this party's file, where they are not those of the job.
    """
    check_client(kit)
    target = None if out is None else check_free(out, force, [data])
    query = read_job(job)
    check_policy(read_policy(kit.directory), query.options)
    value, shared = answer_sums(
        kit,
        query,
        job,
        data,
        WORD,
        patience=patience,
        wait=wait,
        state=state,
        progress=progress,
        read_job=read_job,
        reading=reading,
    )
    if target is not None:
        write_atomic(target, _received(shared, tuple(query.options.features)))
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


def run_here(
    job: str | Path,
    *,
    changes: list[str] | None = None,
    runtime: Any = "cohort",
    reading: Mapping[str, Any] | None = None,
) -> BoostResult:
    """Train with all files on this machine: [parties] of the job file."""
    query = read_job(job, changes).read_as(reading)
    try:
        program, found, ledger = sum_here(query, job, WORD, runtime)
    except BadData:
        problems = _find_problems(query)
        if problems:
            raise BadData("\n".join(problems)) from None
        raise
    return conclude(program, found, ledger, len(query.parties))


def _find_problems(query: Query) -> list[str]:
    """Return what is wrong with the tables of all parties, by party: a sum stops at the first."""
    program = query.verb.program(query.options, list(query.parties))
    if not isinstance(program, BoostProgram):
        return []
    terms, problems = program.about, list[str]()
    for name, file in query.parties.items():
        frame, where = read_rows(file, query.data, program), f"party {name!r} ({file})"
        try:
            check_columns(frame, [*terms.columns, terms.label], name)
        except BadData as error:
            problems.append(f"{where}: {error}")
            continue  # the rest reads these columns
        advice = {c: declare_category(c) for c in terms.numeric}
        if not terms.has_classes:
            advice[terms.label] = f"if it has classes, set {propose('objective', 'multiclass')}"
        for column, otherwise in advice.items():
            try:
                numbers(frame, column, otherwise)
            except BadData as error:
                problems.append(f"{where}: {error}")
        missing = int(frame[terms.label].isna().sum())
        if missing:
            problems.append(f"{where}: {missing} rows have no label ({terms.label!r}). Remove them.")
    return problems
