"""What a party's owner requires of every job, whatever a coordinator offers, and who decides about it.

    KIT/policy.toml   [jobs] coordinators = ["server"], guards = ["SecAgg"], min_parties = 3, approval = true
    KIT/requests/     the job of each request, as text; its SHA-256 is the number that people approve
    KIT/audit.jsonl   every request, decision, answer and refusal (audit_log.py)

A request is checked against [jobs] before a row is read and before anything is sent. With `approval = true`
it then waits until a person decides: `tacit party approve` or `deny`. A decision is an entry of the audit
log; the last one about a job counts, also for a job that is running.
"""

from __future__ import annotations

import asyncio
import getpass
import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import guard
from ..config import toml
from ..errors import BadParameter, QueryRefused, TacitError
from ..files import write_atomic
from ..parameters import flag, from_fields, nearest, real, whole
from .audit_log import AuditLog

if TYPE_CHECKING:
    from ..runtimes.kits import Kit

log = logging.getLogger("tacit.party")
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
PRIVATE = "private"  # among `guards`: DP-SGD at this party, the [private] table of a job
FOLDER = "requests"
POLL = 0.2  # seconds between two looks at the log while a person decides
MOST_WAITING = 50  # requests that wait for a decision: a server cannot fill the disk with them
SHORT = 12  # digits of a request's number that are shown
LEAST_DIGITS = 8  # of a number that a person types


class JobRefused(QueryRefused):
    """The owner's policy, or a person, refused a job."""

    outside = "it has not agreed to this job"


@dataclass(frozen=True)
class OwnerPolicy:
    """The [jobs] table of policy.toml. An empty list allows everything."""

    coordinators: tuple[str, ...] = ()  # names of parties that may ask
    verbs: tuple[str, ...] = ()  # commands that may ask: "party", "stats glm", "psi", …
    contracts: tuple[str, ...] = ()  # numbers of jobs, or their first 12 digits
    templates: tuple[str, ...] = ()  # job files in the kit: a job must equal one of them, except in `free`
    free: tuple[str, ...] = ()  # entries in which a job may differ from a template, like "train.seed"
    columns: tuple[str, ...] = ()  # columns that a job may read
    min_rows: int = whole(1, least=1, doc="fewest rows of this party that a job may read")
    min_parties: int = whole(1, least=1, doc="fewest parties of a job, without its coordinator")
    guards: tuple[str, ...] = ()  # stages that a training job must have, or "private" for DP-SGD here
    epsilon: float | None = real(
        None, above=0, none=True, doc="most ε of one job; one without an ε is refused"
    )
    hours: str = ""  # local time in which requests are answered, like "08:00-18:00"
    days: tuple[str, ...] = ()  # days on which requests are answered: "mon", "tue", …
    approval: bool = flag(False, doc="whether a person decides about every job")

    def problems(self) -> list[str]:
        found: list[str] = []
        if self.hours and _hours(self.hours) is None:
            found.append(f"hours is {self.hours!r}; write them like '08:00-18:00'.")
        found += [f"days has {d!r}. {nearest(d, list(DAYS))}" for d in self.days if d not in DAYS]
        known = [*guard.ALL, PRIVATE]
        found += [f"guards has {g!r}. {nearest(g, known)}" for g in self.guards if g not in known]
        found += [
            f"contracts has {c!r}; write at least {SHORT} digits of a job's number."
            for c in self.contracts
            if len(c) < SHORT or set(c) - set("0123456789abcdef")
        ]
        if self.free and not self.templates:
            found.append("free needs templates: it names entries in which a job may differ from them.")
        return found


def read_owner_policy(kit: Path | None) -> OwnerPolicy:
    """Read the [jobs] table of policy.toml in the kit; without it, everything is allowed."""
    place = None if kit is None else kit / "policy.toml"
    if place is None or not place.is_file():
        return OwnerPolicy()
    policy = from_fields(
        toml.read(place).get("jobs", {}), OwnerPolicy, f"{place}, jobs", "a policy has no key"
    )
    if problems := policy.problems():
        raise BadParameter("\n".join(f"{place}, jobs: {p}" for p in problems))
    return policy


def _hours(text: str) -> tuple[int, int] | None:
    """Minutes since midnight of "08:00-18:00"; None if it is not of this form."""
    try:
        start, end = (datetime.strptime(part.strip(), "%H:%M") for part in text.split("-"))
    except ValueError:
        return None
    return start.hour * 60 + start.minute, end.hour * 60 + end.minute


@dataclass(frozen=True)
class Request:
    """What is asked of a party: `text` is the job in canonical form, and its SHA-256 is its number.

    `askers` are the coordinator or, where there is none, the other parties. `about` is one line for people.
    `columns`, `guards`: None where the job does not say. `epsilon`: None for a job without an ε that this
    party enforces. `read_template` returns the tables of a template.
    """

    verb: str
    askers: tuple[str, ...]
    parties: tuple[str, ...]
    text: str
    about: str
    columns: tuple[str, ...] | None = None
    guards: tuple[str, ...] | None = None
    epsilon: float | None = None
    read_template: Callable[[Path], Mapping[str, Any]] | None = field(default=None, compare=False)

    @property
    def digest(self) -> str:
        return digest_of(self.text)


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def check_hours(policy: OwnerPolicy, now: datetime | None = None) -> None:
    """Raise JobRefused outside the hours and days of the policy, by this machine's clock."""
    now = datetime.now() if now is None else now
    if policy.days and DAYS[now.weekday()] not in policy.days:
        raise JobRefused(
            f"today is {DAYS[now.weekday()]}, and this party answers on {', '.join(policy.days)} only "
            "(policy.toml, [jobs] days). Nothing was sent."
        )
    if policy.hours:
        bounds = _hours(policy.hours)
        assert bounds is not None
        (start, end), minute = bounds, now.hour * 60 + now.minute
        inside = start <= minute < end if start <= end else minute >= start or minute < end
        if not inside:
            raise JobRefused(
                f"it is {now:%H:%M}, and this party answers from {policy.hours} only (policy.toml, [jobs] "
                "hours). Nothing was sent."
            )


def check_request(
    policy: OwnerPolicy, request: Request, kit: Path | None = None, now: datetime | None = None
) -> None:
    """Raise JobRefused with everything in a request that the owner does not allow."""
    found: list[str] = []
    if policy.coordinators and (other := [a for a in request.askers if a not in policy.coordinators]):
        found.append(f"{', '.join(map(repr, other))} may not ask (coordinators)")
    if policy.verbs and request.verb not in policy.verbs:
        found.append(f"`tacit {request.verb}` is not allowed (verbs)")
    if len(request.parties) < policy.min_parties:
        found.append(
            f"it has {len(request.parties)} parties, and {policy.min_parties} are required (min_parties)"
        )
    if policy.columns and request.columns is not None:
        extra = [c for c in request.columns if c not in policy.columns]
        if extra:
            found.append(f"it reads {', '.join(map(repr, extra[:8]))}, which is not allowed (columns)")
    if policy.guards and request.guards is not None:
        missing = [g for g in policy.guards if g not in request.guards]
        if missing:
            found.append(f"it lacks {', '.join(missing)} (guards)")
    if policy.epsilon is not None:
        if request.epsilon is None:
            found.append(
                f"it has no ε that this party enforces, and ε ≤ {policy.epsilon:g} is required (epsilon)"
            )
        elif request.epsilon > policy.epsilon * (1 + 1e-9):
            found.append(
                f"it has ε = {request.epsilon:g}, and at most {policy.epsilon:g} is allowed (epsilon)"
            )
    if policy.contracts or policy.templates:
        named = any(request.digest.startswith(c) for c in policy.contracts)
        if not named and (why := _differs(policy, request, kit)):
            found.append(why)
    if found:
        raise JobRefused(
            f"the job {request.digest[:SHORT]} is not within this party's policy (policy.toml, [jobs]): "
            f"{'; '.join(found)}. Nothing was read or sent."
        )
    check_hours(policy, now)


def _differs(policy: OwnerPolicy, request: Request, kit: Path | None) -> str:
    """Why a request equals no template; "" if it equals one except in `free`."""
    if not policy.templates:
        return "it is not one of the allowed jobs (contracts)"
    asked, reasons = _flatten(json.loads(request.text)), []
    for name in policy.templates:
        place = (kit or Path()) / name
        try:
            if request.read_template is None:
                raise BadParameter(f"`tacit {request.verb}` has no job file")
            ours = _flatten(request.read_template(place))
        except (TacitError, OSError) as error:
            reasons.append(f"{name} cannot be used as a template of it: {error}")
            continue
        other = [
            key
            for key in sorted({*ours, *asked})
            if ours.get(key) != asked.get(key)
            and not any(key == f or key.startswith(f + ".") for f in policy.free)
        ]
        if not other:
            return ""
        reasons.append(f"it differs from {name} in {', '.join(other[:5])}")
    return "; ".join(reasons) + " (templates)"


def _flatten(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping) and value:
            found |= _flatten(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return found


class Owner:
    """The owner's side of one party: its policy, its log, and the decisions of people."""

    def __init__(self, kit: Path, party: str):
        self.kit, self.party, self.log = kit, party, AuditLog(kit)
        self.policy = read_owner_policy(kit)
        self._size, self._decisions = -1, dict[str, str]()

    @classmethod
    def of(cls, kit: Kit) -> Owner | None:
        """The owner of a kit; None for the in-memory kits of one user who runs all parties."""
        return None if kit.directory is None else cls(kit.directory, kit.name)

    # --- decisions ------------------------------------------------------------------------------------------

    def decisions(self) -> dict[str, str]:
        """The last decision about each job: {number: "approved" or "denied"}."""
        size = self.log.file.stat().st_size if self.log.file.exists() else 0
        if size != self._size:
            entries = self.log.read()
            self._decisions = {e["job"]: e["kind"] for e in entries if e["kind"] in ("approved", "denied")}
            self._size = size
        return self._decisions

    def decide(self, digest: str, kind: str, by: str = "", note: str = "") -> dict[str, Any]:
        self.decisions()  # raises if the log was modified
        who = by or getpass.getuser()
        return self.log.append(kind, party=self.party, job=digest, by=who, note=note)

    def requests(self) -> list[dict[str, Any]]:
        """Every job that was asked, newest first: {"job", "state", "asked", "verb", "by", "about", …}."""
        found: dict[str, dict[str, Any]] = {}
        for e in self.log.read():
            digest = e.get("job")
            if not isinstance(digest, str):
                continue
            if e["kind"] == "request":
                known = found.pop(digest, {"job": digest, "state": "asked", "answers": 0, "reason": ""})
                found[digest] = known | {k: e.get(k, "") for k in ("verb", "by", "about")}
                found[digest]["asked"] = e["time"]
            elif digest in found:
                entry = found[digest]
                if e["kind"] == "answer":
                    entry["answers"] += 1
                elif e["kind"] in ("waiting", "approved", "denied", "accepted", "refused", "ended"):
                    entry["state"] = e["kind"]
                    entry["reason"] = e.get("reason", e.get("note", ""))
        return list(reversed(found.values()))

    def find(self, typed: str) -> str:
        """The number of a job from its first digits; a full number need not have been asked yet."""
        typed = typed.lower()
        if len(typed) < LEAST_DIGITS or set(typed) - set("0123456789abcdef"):
            raise BadParameter(
                f"job {typed!r}: give at least the first {LEAST_DIGITS} digits of the number that `tacit "
                "party requests` shows."
            )
        known = sorted({r["job"] for r in self.requests() if r["job"].startswith(typed)})
        if len(known) > 1:
            raise BadParameter(f"job {typed!r}: {len(known)} requests begin with it. Give more digits.")
        if not known and len(typed) != 64:
            raise BadParameter(
                f"job {typed!r}: no request has this number. See `tacit party requests`; to decide before a "
                "job is asked, give all 64 digits."
            )
        return known[0] if known else typed

    def text_of(self, digest: str) -> str | None:
        """The job of a request, checked against its number; None if it has not been asked."""
        file = self.kit / FOLDER / f"{digest}.json"
        if not file.is_file():
            return None
        text = file.read_text(encoding="utf-8")
        if digest_of(text) != digest:
            raise BadParameter(f"{file} was modified: it is not the job {digest[:SHORT]}. Remove it.")
        return text

    # --- requests -------------------------------------------------------------------------------------------

    def ask(self, request: Request, now: datetime | None = None) -> bool:
        """Record a request and check it; return whether it may be answered now, or waits for a person."""
        known = self.decisions()
        waiting = self.policy.approval and request.digest not in known
        if waiting:
            asked = [r for r in self.requests() if r["state"] == "waiting" and r["job"] != request.digest]
            if len(asked) >= MOST_WAITING:
                raise JobRefused(
                    f"{len(asked)} requests wait for a decision already. Decide about them first (`tacit "
                    "party requests`)."
                )
        folder = self.kit / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / f"{request.digest}.json").exists():
            write_atomic(folder / f"{request.digest}.json", request.text, 0o600)
        self.log.append(
            "request",
            party=self.party,
            job=request.digest,
            verb=request.verb,
            by=", ".join(request.askers),
            about=request.about,
        )
        check_request(self.policy, request, self.kit, now)
        if self.may_answer(request.digest):
            self.log.append("accepted", party=self.party, job=request.digest)
            return True
        self.log.append("waiting", party=self.party, job=request.digest)
        log.warning(
            "party %r was asked for job %s and waits for a decision. Look at it: tacit party requests %s "
            "--kit %s. Decide: tacit party approve %s --kit %s (or deny)",
            self.party,
            request.digest[:SHORT],
            request.digest[:SHORT],
            self.kit,
            request.digest[:SHORT],
            self.kit,
        )
        return False

    def may_answer(self, digest: str) -> bool:
        """Whether a job may be answered by the decisions so far; raise JobRefused if it was denied."""
        decision = self.decisions().get(digest)
        if decision == "denied":
            raise JobRefused(
                f"the owner of {self.party!r} denied the job {digest[:SHORT]}. Nothing was sent."
            )
        return decision == "approved" or not self.policy.approval

    async def admit(self, request: Request) -> None:
        """Return when a request may be answered; raise JobRefused if it may not."""
        if self.ask(request):
            return
        while not self.may_answer(request.digest):
            await asyncio.sleep(POLL)
        self.log.append("accepted", party=self.party, job=request.digest)

    def admit_and_wait(self, request: Request, wait: float | None = None) -> None:
        """As `admit`, for a party that is not connected yet; at most `wait` seconds."""
        try:
            if self.ask(request):
                return
            end = None if wait is None else time.monotonic() + wait
            while not self.may_answer(request.digest):
                if end is not None and time.monotonic() > end:
                    raise JobRefused(
                        f"nobody decided about the job {request.digest[:SHORT]} within {wait:g} s. Approve "
                        "it and start again: the decision counts then."
                    )
                time.sleep(POLL)
        except TacitError as error:
            self.refuse(request.digest, str(error))
            raise
        self.log.append("accepted", party=self.party, job=request.digest)

    def answer(self, digest: str, what: str) -> None:
        """Record what is about to be sent. An entry says that it may have left, also if a crash followed."""
        self.log.append("answer", party=self.party, job=digest, what=what)

    def check_running(self, digest: str) -> None:
        """Raise JobRefused if the owner no longer allows a running job: hours, or a decision since."""
        check_hours(self.policy)
        if not self.may_answer(digest):
            raise JobRefused(f"the job {digest[:SHORT]} is not approved. Nothing was sent.")

    def refuse(self, digest: str, reason: str) -> None:
        self.log.append("refused", party=self.party, job=digest, reason=reason)

    def end(self, digest: str, reason: str, **content: Any) -> None:
        self.log.append("ended", party=self.party, job=digest, reason=reason, **content)


def check_rows(policy: OwnerPolicy, rows: int) -> None:
    if rows < policy.min_rows:
        raise JobRefused(
            f"the job would read {rows} rows of this party, and its policy requires {policy.min_rows} "
            "(policy.toml, [jobs] min_rows). Nothing was sent."
        )
