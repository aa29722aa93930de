"""`tacit infer`: a model of one organization on rows of another, on secret shares, with one job file.

    holder of the model                       holder of the rows                        helper
      |--- digest of the job --------------------->|--------------------------------------->|   and back
      |--- ModelDescription(columns, classes) ---->|
      |              the programs of `mpc/inference.py`, or `mpc/checked.py`                 |
      |   scores, at the agreed receiver

The holder of the rows encodes the columns that the job names, and no others, whatever the description says.
It compares what is announced on the way (what is opened, to whom) with the job.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..config import toml
from ..config.infer import InferParty, InferPolicy, InferSettings
from ..config.vertical import read_parties
from ..data.table_files import READING, check_table_name, reading_in, write_table
from ..errors import BadJob, BadKit, ProtocolError, QueryRefused
from ..files import append_line, check_new
from ..mpc import checked, inference
from ..mpc.inference import CLIENT, OWNER, Architecture
from ..mpc.prime import FixedPointPrime
from ..mpc.ring import FixedPoint
from ..parameters import from_fields
from ..parties.ledger import Ledger
from ..parties.message import Message
from ..parties.party import Party
from ..runtimes.choose import choose_runtime
from .infer import check_extra
from .infer_model import PublicModel, read_rows, read_saved
from .kit_run import run_with_kit, telling
from .vertical.split_deployed import check_same_job, read_as, request_of_job

if TYPE_CHECKING:
    from ..runtimes.kits import Kit

log = logging.getLogger(__name__)
VERB = "infer"
ROWS = "infer-rows.jsonl"
DAY = 24 * 3600.0
MOST_ROWS = 1 << 20  # of a run


class ModelDescription(
    Message,
    reveals="the model's columns, the levels of its categories and its classes; of a network also how its "
    "columns are scaled: statistics of its training rows",
):
    text: str


class InferenceDone(Message, reveals="that the sender has finished: the helper then ends, too"):
    pass


def read(path: str | Path) -> dict[str, Any]:
    """Read and check a job file: {"infer": all settings, "parties": {name: …}}."""
    settings, parties = read_parties(path, VERB, InferSettings, InferParty)
    for name, entry in parties.items():
        if (entry.get("holds", "") != "") == (entry.get("helper") is True):
            raise BadJob(
                f"{path}, parties.{name}: give holds = 'model' or 'rows', or helper = true for a party that "
                "deals randomness."
            )
        if "id" in entry and entry.get("holds") != "rows":
            raise BadJob(f"{path}, parties.{name}: id is for the party with holds = 'rows'.")
    held = [entry.get("holds") for entry in parties.values()]
    helpers = held.count(None) + held.count("")
    if held.count("model") != 1 or held.count("rows") != 1 or helpers > 1:
        raise BadJob(
            f"{path}: there are {held.count('model')} parties with a model, {held.count('rows')} with rows "
            f"and {helpers} helpers; there must be one, one, and at most one."
        )
    if settings["adversary"] == "active" and not helpers:
        raise BadJob(f"{path}: adversary = 'active' needs a party with helper = true.")
    if settings["products"] != "he" and helpers:
        raise BadJob(f"{path}: products is for jobs without a helper, who deals all products. Leave it out.")
    return {VERB: settings, "parties": parties}


def roles(parties: Mapping[str, Any]) -> tuple[str, str, str | None]:
    """(holder of the model, holder of the rows, helper or None)."""
    by = {entry.get("holds", ""): name for name, entry in parties.items() if not entry.get("helper")}
    return by["model"], by["rows"], next((n for n, e in parties.items() if e.get("helper")), None)


def receiver_of(job: Mapping[str, Any]) -> str:
    owner, client, _ = roles(job["parties"])
    return owner if job[VERB]["receiver"] == "model" else client


def digest_job(job: Mapping[str, Any]) -> str:
    """A digest of all but each party's own file, and how it is read."""
    own = ("file", *READING)
    parties = {n: {k: v for k, v in e.items() if k not in own} for n, e in job["parties"].items()}
    return hashlib.sha256(json.dumps({**job, "parties": parties}, sort_keys=True).encode()).hexdigest()


def read_policy(kit: str) -> InferPolicy:
    """Read the [infer] table of policy.toml in the kit; without it, the default policy."""
    place = Path(kit) / "policy.toml" if kit else None
    if place is None or not place.is_file():
        return InferPolicy()
    return from_fields(toml.read(place).get(VERB, {}), InferPolicy, f"{place}, {VERB}", "a policy has no key")


def check_policy(policy: InferPolicy, settings: Mapping[str, Any], holds: str) -> None:
    """Raise QueryRefused with all that the owner does not allow, before anything is sent."""
    problems = []
    if policy.adversary == "active" and settings["adversary"] != "active":
        problems.append("adversary is 'semi-honest', and this party requires 'active'")
    if holds == "model" and policy.reveal == "argmax" and settings["reveal"] == "logits":
        problems.append("reveal is 'logits', and this party allows 'argmax' only")
    if holds == "rows" and settings["receiver"] == "model" and not policy.scores_to_model:
        problems.append(
            "receiver is 'model', and this party does not show scores to the holder of a model that it "
            "cannot see (scores_to_model)"
        )
    if problems:
        raise QueryRefused(
            f"the job is not within this party's policy: {'; '.join(problems)}. Nothing was sent."
        )


def admit_rows(kit: str, policy: InferPolicy, client: str, rows: int, clock: Callable[[], float]) -> None:
    """Count a client's rows on disk before they are scored, or raise what the policy does not allow."""
    if rows > policy.max_rows:
        raise QueryRefused(
            f"{client!r} has {rows} rows; the policy of this party allows {policy.max_rows} in a run "
            "(max_rows). Nothing was computed."
        )
    if not kit:
        return
    now = clock()

    def check(lines: list[str]) -> None:
        before = sum(_rows_of(line, client, now) for line in lines)
        if before + rows > policy.rows_per_day:
            raise QueryRefused(
                f"{client!r} had {before} rows scored within 24 hours and has {rows} more; the policy of "
                f"this party allows {policy.rows_per_day} (rows_per_day). Nothing was computed."
            )

    append_line(Path(kit) / ROWS, json.dumps({"time": now, "client": client, "rows": rows}), check)


def _rows_of(line: str, client: str, now: float) -> int:
    try:
        entry = json.loads(line)
        # times to come count as well: setting the clock back does not restore rows
        return int(entry["rows"]) if entry["client"] == client and float(entry["time"]) > now - DAY else 0
    except (ValueError, KeyError, TypeError):
        return 0


async def run_party(
    me: Party, job: Mapping[str, Any], file: str, out: str, kit: str = "", wait: float | None = None
) -> dict[str, Any]:
    """Run a party; the receiver writes the scores to `out`."""
    settings, parties = job[VERB], job["parties"]
    owner, client, helper = roles(parties)
    policy = read_policy(kit)
    is_active = settings["adversary"] == "active"
    fixed = (FixedPointPrime if is_active else FixedPoint)(settings["fraction"])
    receiver = OWNER if settings["receiver"] == "model" else CLIENT
    check_policy(policy, settings, parties[me.name].get("holds", ""))
    saved = read_saved(file, settings["reveal"], fixed) if me.name == owner else None
    if saved is not None:
        check_columns(saved.public, settings["columns"], f"the model in {file}")
    await check_same_job(me, parties, digest_job(job), wait)
    protocol: Any = checked if is_active else inference
    common: dict[str, Any] = {"receiver": receiver}
    check = functools.partial(check_architecture, owner=owner, settings=settings)
    if me.name == helper:
        sane = functools.partial(count_rows, batch=settings["batch"], client=client)
        await protocol.helper(me, owner=owner, client=client, check=check, admit=sane, **common)
        await me.gather([owner, client], InferenceDone)
        return {"rows": None, "notes": []}
    if helper is None:
        common["products"] = settings["products"]
    common |= {"helper": helper, "report": lambda k, n: log.info("batch %d of %d", k, n)}
    notes: list[str] = []
    if saved is not None:
        public, ids, counted = saved.public, None, list[int]()

        def admit(shapes: list[list[int]]) -> None:
            counted.append(count_rows(shapes, settings["batch"], client))
            admit_rows(kit, policy, client, counted[0], time.time)

        await me.send(client, ModelDescription(public.to_text()))
        found = await protocol.owner(
            me,
            saved.layers,
            saved.weights,
            reveal=settings["reveal"],
            fraction=settings["fraction"],
            client=client,
            admit=admit,
            **common,
        )
        rows = counted[0]
    else:
        public = PublicModel.from_text((await me.recv(owner, ModelDescription)).text, owner)
        check_columns(public, settings["columns"], f"the model of {owner!r}")
        entry = parties[me.name]
        frame, ids = read_rows(
            file, settings["columns"], entry.get("id", ""), public.inputs is None, reading_in(entry)
        )
        x, notes = public.encode(frame, fixed)
        rows = len(x)
        batches = [part.contiguous() for part in x.split(settings["batch"])]
        found = await protocol.client(me, batches, owner=owner, check=check, **common)
    if helper is not None:
        await me.send(helper, InferenceDone())
    if "value" not in found:
        return {"rows": rows, "notes": notes}
    write_scores(Path(out), parties[client].get("id", ""), ids, public, found["value"], settings["reveal"])
    return {"rows": rows, "out": out, "notes": notes}


def check_columns(public: PublicModel, columns: list[str], what: str) -> None:
    """Raise BadJob unless a model takes the agreed columns."""
    other = sorted(set(public.columns) ^ set(columns))
    if other:
        raise BadJob(
            f"infer: {what} takes the columns {', '.join(map(repr, public.columns))}, and the job names "
            f"{', '.join(map(repr, columns))}; {other[0]!r} is in one of them only. Nothing was encoded."
        )


def check_architecture(architecture: Architecture, owner: str, settings: Mapping[str, Any]) -> None:
    """Refuse what the model's holder announces, unless it is what the job says."""
    told = architecture.private_model, architecture.reveal, architecture.fraction
    if told != (True, settings["reveal"], settings["fraction"]):
        raise ProtocolError(
            f"{owner!r} announced reveal={architecture.reveal!r:.20}, {architecture.fraction} fractional "
            f"bits and a {'hidden' if architecture.private_model else 'public'} model, which is not what the "
            "job says. Nothing was sent."
        )


def count_rows(shapes: list[list[int]], batch: int, client: str) -> int:
    """The rows of announced batches; raise ProtocolError if they are not those of a table."""
    if (
        not shapes
        or any(len(shape) != 2 or not 1 <= shape[0] <= batch for shape in shapes)
        or sum(shape[0] for shape in shapes) > MOST_ROWS
    ):
        raise ProtocolError(
            f"{client!r} announced batches that are not those of a table of up to {MOST_ROWS} rows."
        )
    return sum(shape[0] for shape in shapes)


def write_scores(
    out: Path, id_: str, ids: list[str] | None, public: PublicModel, value: torch.Tensor, reveal: str
) -> None:
    """Write one row for each row, with its id, or its number where the receiver has no ids."""
    import pandas as pd

    columns = public.decode(value, reveal)
    named = ids is not None and id_
    first = ids if named else [str(k) for k in range(1, len(value) + 1)]
    out.parent.mkdir(parents=True, exist_ok=True)
    write_table(pd.DataFrame({id_ if named else "row": first, **columns}), out)


# --- started by an operator ---------------------------------------------------------------------------------


def check_output(out: str | Path | None, force: bool) -> str:
    return str(check_table_name(check_new(out or "scores.csv", force), "infer: --out "))


def run_here(
    path: str | Path,
    out: str | Path | None,
    runtime: Any = None,
    ledger: Ledger | None = None,
    force: bool = False,
    reading: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run all parties of a job on this machine, each with its file in the job: for a test."""
    job = read_as(read(path), reading)
    target = check_output(out, force)
    check_extra(roles(job["parties"])[2], job[VERB]["products"])
    programs = {}
    for name, entry in job["parties"].items():
        if not entry.get("helper") and not entry.get("file"):
            raise BadJob(f"{path}, parties.{name}: file is missing; to run all parties here, name all files.")
        file = str(Path(path).parent / entry.get("file", ""))
        programs[name] = functools.partial(run_party, job=job, file=file, out=target)
    results = choose_runtime(VERB, runtime, all_stay=True).run_sync(programs, ledger=ledger)
    found = results[receiver_of(job)]
    notes = list(dict.fromkeys(n for r in results.values() for n in r["notes"]))
    return {"rows": found["rows"], "out": found["out"], "notes": notes}


def take_part(
    kit: Kit,
    path: str | Path,
    file: str | Path | None,
    out: str | Path | None,
    patience: float = 300.0,
    wait: float | None = None,
    force: bool = False,
    reading: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run one party of a job over the federation's hub. If it cannot start, the others are told."""
    with telling(kit):
        job = read_as(read(path), reading, kit.name)
        if kit.name not in job["parties"]:
            raise BadKit(
                f"this is the kit of {kit.name!r}, which is not a party of {path}. Its parties are "
                f"{', '.join(job['parties'])}."
            )
        entry = job["parties"][kit.name]
        where = file if file is not None else Path(path).parent / entry["file"] if entry.get("file") else ""
        if not entry.get("helper") and not where:
            raise BadJob(f"{path}, parties.{kit.name}: file is missing; give it with --file.")
        target = check_output(out, force) if kit.name == receiver_of(job) else ""
        check_extra(roles(job["parties"])[2], job[VERB]["products"])
    program = functools.partial(
        run_party, job=job, file=str(where), out=target, kit=str(kit.directory or ""), wait=wait
    )
    request = request_of_job(VERB, kit, job, read, "")
    result, ledger = run_with_kit(VERB, kit, program, patience, job["parties"], request=request)
    return {"party": kit.name, **result, "ledger": ledger.to_dict()}
