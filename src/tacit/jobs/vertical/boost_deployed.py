"""`tacit boost` with different columns of the same people: between organizations with one job file.

    [boost]                  [parties.bank]             [parties.telecom]        [parties.notary]
    trees = 20               file = "bank.csv"          file = "telecom.csv"     helper = true
    depth = 4                id = "customer"            id = "phone"
                             label = "default"

One party has the label; the helper has no table and deals randomness. Without a helper, sums are encrypted
(backend = "he"). Each party gets its own part of the trees.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...boost.vertical_bins import OwnBins
from ...config.vertical import read_parties
from ...config.vertical_boost import BACKENDS, BoostParty, VerticalBoostConfig
from ...errors import BadData, BadJob, QueryRefused
from ...files import write_atomic
from ...parties.ledger import Ledger
from ...parties.party import Party
from ...protocols.splitnn_terms import Asked
from ..boost.query import BoostPolicy
from ..boost.query import read_policy as read_boost_policy
from ..durable_run import DurableJob, check_unfinished, is_stopped, run_durable
from . import boost_programs
from .boost_parts import BoostPart, HelperPart, make_part, read_part
from .boost_programs import ANSWERS, ENCRYPTED
from .boost_result import VerticalBoostResult
from .boost_rows import read_target, to_tensor
from .regress_deployed import check_matched, match_rows, read_complete, roles
from .regress_policy import RegressPolicy, admit_rows
from .split_deployed import check_vacant, job_digest, read_as, run_everyone, run_with_party_kit

if TYPE_CHECKING:
    import pandas as pd

    from ...runtimes.kits import Kit

VERB = "boost"


def read(path: str | Path) -> dict[str, Any]:
    """Read and check a job file: {"boost": all settings, "parties": {name: …}}."""
    settings, parties = read_parties(path, VERB, VerticalBoostConfig, BoostParty)
    check_matched(path, parties, needs_helper=False)
    holders, helpers = roles(parties)
    if not helpers and (settings["backend"] == "shares" or settings["reveal"] == "splits"):
        wish = "reveal = 'splits'" if settings["reveal"] == "splits" else "backend = 'shares'"
        raise BadJob(
            f"{path}: {wish} needs a party with helper = true, without a table. Without one, use backend = "
            "'he' and reveal = 'sums'."
        )
    with_label = [n for n in holders if parties[n].get("label")]
    if len(with_label) != 1:
        raise BadJob(
            f"{path}: exactly one party with a table must have a label; {with_label or 'none'} have."
        )
    return {VERB: settings, "parties": parties}


def possible_backends(settings: Mapping[str, Any], helper: str) -> tuple[str, ...]:
    """The back-ends that a job may run with."""
    name = boost_programs.fix_backend(settings, helper)["backend"]
    return BACKENDS if name == "auto" else (name,)


def check_policy(policy: BoostPolicy, settings: Mapping[str, Any], helper: str) -> None:
    """Raise QueryRefused with all that the owner does not allow, before anything is sent."""
    problems = []
    if settings["min_rows"] < policy.min_rows:
        problems.append(f"min_rows is {settings['min_rows']}, and this party requires {policy.min_rows}")
    for name, most in (("trees", policy.max_trees), ("depth", policy.max_depth)):
        if most is not None and settings[name] > most:
            problems.append(f"{name} is {settings[name]}, and this party allows {most}")
    if policy.reveal == "splits" and settings["reveal"] == "sums":
        problems.append("reveal is 'sums', and this party requires 'splits'")
    refused = [name for name in possible_backends(settings, helper) if name not in policy.backends]
    if refused:
        problems.append(
            f"backend is {settings['backend']!r}, which may be {refused[0]!r}, and this party accepts "
            f"{' and '.join(map(repr, policy.backends))}"
        )
    if problems:
        raise QueryRefused(
            f"the job is not within this party's policy: {'; '.join(problems)}. Nothing was sent."
        )


def state_folder(job: Mapping[str, Any], out: str | Path, kit: str | Path, state: str | Path = "") -> Path:
    """Where a party keeps what it needs to resume: in `state`, its kit, or beside its part."""
    if state:
        return Path(state)
    return Path(kit) / VERB / job_digest(job)[:16] if kit else Path(out) / "state"


def check_folder(folder: Path, state: Path) -> Path:
    """Return a party's folder if it has no part, or the part of a run that others have not finished."""
    if is_stopped(state):
        return folder
    check_vacant(folder)
    check_unfinished(state)
    return folder


async def run_party(
    me: Party,
    job: Mapping[str, Any],
    file: str,
    out: str,
    kit: str = "",
    wait: float | None = None,
    state: str = "",
) -> dict[str, Any]:
    """Run a party: read its table, align, grow trees, save its part. After a kill, resume."""
    settings, parties = job[VERB], job["parties"]
    holders, helpers = roles(parties)
    helper = helpers[0] if helpers else ""
    label_at = next(n for n in holders if parties[n].get("label"))
    names = [label_at, *(n for n in holders if n != label_at)]
    digest, policy = job_digest(job), read_boost_policy(Path(kit) if kit else None)
    shared = {"names": names, "helper": helper, "settings": settings}
    steps: _HelperSteps | _HolderSteps
    if me.name == helper:
        steps = _HelperSteps(shared, label_at, digest, out)
    else:
        check_policy(policy, settings, helper)
        steps = _HolderSteps(shared, label_at, digest, out, parties[me.name], file, kit, policy)
    folder = state_folder(job, out, kit, state)
    plan = DurableJob(
        digest, tuple(parties), folder, steps.begin, steps.run, steps.finish, ANSWERS, ENCRYPTED
    )
    return await run_durable(me, plan, wait)


@dataclass
class _HelperSteps:
    shared: dict[str, Any]
    label_at: str
    digest: str
    out: str
    rows: int = 0
    ledger: Ledger = field(default_factory=Ledger)

    async def begin(self, me: Party) -> dict[str, Any]:
        return {"rows": (await me.recv(self.label_at, Asked)).rows}

    async def run(self, me: Party, begun: Mapping[str, Any]) -> HelperPart:
        rows, names = int(begun["rows"]), tuple(self.shared["names"])
        self.ledger = me.ledger
        found = await boost_programs.help_all(me, label_at=self.label_at, rows=rows, **self.shared)
        mark, key = found["mark"], found["leaf_key"]
        return HelperPart(me.name, names, self.label_at, rows, self.digest, mark, key)

    def finish(self, part: HelperPart) -> dict[str, Any]:
        folder = part.write(Path(self.out))
        write_atomic(folder / "ledger.json", json.dumps(self.ledger.to_dict(), indent=1))
        return {"rows": part.rows, "folder": str(folder), "trees": None, "losses": [], "notes": []}


@dataclass
class _HolderSteps:
    shared: dict[str, Any]
    label_at: str
    digest: str
    out: str
    entry: Mapping[str, Any]
    file: str
    kit: str
    policy: BoostPolicy
    notes: list[str] = field(default_factory=list)
    backend: str = ""
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def _label(self) -> str:
        return str(self.entry.get("label", ""))

    @property
    def _needed(self) -> list[str]:
        return [self.entry["id"], *([self._label] if self._label else [])]

    async def begin(self, me: Party) -> dict[str, Any]:
        """Align; what is kept are the places of this party's rows, and a digest of what it brings."""
        names, id_ = self.shared["names"], self.entry["id"]
        frame, self.notes, rows = await match_rows(
            me, self.file, self.entry, names, self.kit, needed=self._needed
        )
        limits = RegressPolicy(
            min_rows=self.policy.min_shared,
            min_difference=self.policy.min_difference,
            max_models=self.policy.max_models,
        )
        history = Path(self.kit) / VERB if self.kit else None
        admit_rows(history, limits, self.digest, frame[id_].tolist(), "columns")
        inputs = self._read(frame, me.name)
        if me.name == self.label_at and self.shared["helper"]:
            await me.send(self.shared["helper"], Asked(len(frame), self.digest))
        return {"rows": rows, "inputs": inputs.digest(), "notes": self.notes}

    def _read(self, frame: pd.DataFrame, who: str) -> _Inputs:
        """The cells, and at the label holder the label."""
        settings = self.shared["settings"]
        features = frame[[c for c in frame.columns if c not in self._needed]]
        if not len(features.columns) and who != self.label_at:
            raise BadData(f"the table of {who!r} has no columns beside its id.")
        categories = self.entry.get("categories", ())
        own = OwnBins.fit(features, categories, settings["bins"], settings["min_rows"], who)
        y, labels = (
            read_target(frame, self._label, settings["objective"]) if self._label else (None, tuple[str]())
        )
        return _Inputs(own, own.encode(features), y, labels)

    async def run(self, me: Party, begun: Mapping[str, Any]) -> BoostPart:
        complete, _ = read_complete(me.name, self.file, self.entry, needed=self._needed)
        places, self.notes, self.ledger = begun["rows"], list(begun["notes"]), me.ledger
        if not all(0 <= k < len(complete) for k in places):
            raise BadData(CHANGED.format(file=self.file))
        inputs = self._read(complete.iloc[places].reset_index(drop=True), me.name)
        if inputs.digest() != begun["inputs"]:
            raise BadData(CHANGED.format(file=self.file))
        shared, settings = self.shared, self.shared["settings"]
        codes, bins, outputs = to_tensor(inputs.codes), inputs.own.to_dict(), 1
        if inputs.y is not None:
            y, labels = to_tensor(inputs.y), list(inputs.labels)
            result = await boost_programs.hold_label(me, codes=codes, bins=bins, y=y, labels=labels, **shared)
            outputs = len(labels) if settings["objective"] == "multiclass" else 1
        else:
            result = await boost_programs.hold_columns(
                me, label_at=self.label_at, codes=codes, bins=bins, **shared
            )
            outputs = int(result["outputs"])
        self.backend = result["backend"]
        return make_part(
            result,
            me.name,
            tuple(shared["names"]),
            self.label_at,
            shared["helper"],
            settings["objective"],
            inputs.own,
            outputs,
            self._label,
            self.entry["id"],
            self.digest,
        )

    def finish(self, part: BoostPart) -> dict[str, Any]:
        folder = part.write(Path(self.out))
        write_atomic(folder / "ledger.json", json.dumps(self.ledger.to_dict(), indent=1))
        return {
            "rows": part.rows,
            "folder": str(folder),
            "trees": len(part.trees),
            "splits": len(part.splits),
            "losses": list(part.losses),
            "notes": self.notes,
            "backend": self.backend,
        }


CHANGED = (
    "{file} was changed since the run began: masks of other values under the same keys would show what was "
    "changed. Restore it, or agree on a new run. Nothing was sent."
)


@dataclass
class _Inputs:
    """What a party brings to the trees."""

    own: OwnBins
    codes: np.ndarray
    y: np.ndarray | None
    labels: tuple[str, ...]

    def digest(self) -> str:
        h = hashlib.sha256(json.dumps([self.own.to_dict(), list(self.labels), self.codes.shape]).encode())
        h.update(np.ascontiguousarray(self.codes).tobytes())
        if self.y is not None:
            h.update(np.ascontiguousarray(self.y).tobytes())
        return h.hexdigest()


def run_here(
    path: str | Path,
    out: str | Path,
    runtime: Any = None,
    ledger: Ledger | None = None,
    reading: Mapping[str, Any] | None = None,
) -> VerticalBoostResult:
    """Run all parties of a job on this machine, each with its file in the job: for a test."""
    job = read_as(read(path), reading)
    ledger = Ledger() if ledger is None else ledger
    results = run_everyone(
        VERB,
        path,
        job,
        run_party,
        out,
        runtime,
        ledger,
        lambda folder: check_folder(folder, state_folder(job, folder, "")),
    )
    holders, _ = roles(job["parties"])
    parts = {n: read_part(results[n]["folder"]) for n in holders}
    names = next(iter(parts.values())).parties
    notes = dict.fromkeys(n for r in results.values() for n in r["notes"])
    losses = parts[names[0]].losses
    best = min(range(len(losses)), key=losses.__getitem__) if losses else None
    backend = results[names[0]]["backend"]
    return VerticalBoostResult({n: parts[n] for n in names}, ledger, best, tuple(notes), backend)


def take_part(
    kit: Kit,
    path: str | Path,
    file: str | Path | None,
    out: str | Path | None,
    patience: float = 300.0,
    wait: float | None = None,
    state: str | Path | None = None,
    reading: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run one party of a job over the federation's hub.

    What it needs to resume is kept in `state` (default: in the kit): after a kill of any party, the same
    command goes on.
    """

    def check_place(folder: Path, job: Mapping[str, Any]) -> Path:
        return check_folder(folder, state_folder(job, folder, kit.directory or "", state or ""))

    return run_with_party_kit(
        VERB,
        kit,
        path,
        read,
        run_party,
        file,
        out,
        patience,
        wait,
        check_place,
        state="" if state is None else str(state),
        reading=reading,
    )
