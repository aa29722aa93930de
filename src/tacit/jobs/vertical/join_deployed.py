"""`tacit join`: sums and counts over matched people, between organizations with one job file.

    [join]                      [parties.bank_a]          [parties.bank_b]         [parties.notary]
    minimum = 10                file = "a.csv"            file = "b.csv"           helper = true
    [[join.queries]]            id = "customer"           id = "client"
    name = "wealthy"            columns = ["cash"]        columns = ["cash"]
    what = "count"
    of = ["cash"]
    above = [100000.0]

All questions are in the job, so that each party's owner agrees to them before anything is compared. Every
party gets the figures.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...config import toml
from ...config.vertical import JoinParty, JoinSettings, read_parties
from ...errors import BadJob, BadParameter, QueryRefused
from ...files import append_line, write_atomic
from ...mpc import joined
from ...mpc.joined import JoinQuery, JoinTerms
from ...mpc.shared_join import SharedTerms, is_match
from ...parameters import bad, from_fields, whole
from ...parties.ledger import Ledger
from ...parties.party import Party
from ...protocols.splitnn_terms import Asked
from .join import MATCHED as MATCHED_PEOPLE
from .join import describe, groups_of, measure, read_query
from .join_shares import check_how
from .join_shares_deployed import (
    admit_match,
    asked_columns,
    gather_parts,
    has_figures,
    has_trees,
    read_plan,
    run_helper,
    run_holder,
)
from .regress_deployed import check_matched, match_rows, read_complete, roles
from .regress_policy import admit_rows
from .split_deployed import check_same_job, job_digest, read_as, run_everyone, run_with_party_kit

if TYPE_CHECKING:
    from ...runtimes.kits import Kit

THRESHOLDS = "thresholds.jsonl"


@dataclass(frozen=True)
class JoinPolicy:
    """KIT/policy.toml   [join] min_count = 10, min_rows = 50, columns = ["cash"]"""

    min_rows: int = whole(50, least=3, doc="fewest shared people")
    min_count: int = whole(10, least=3, doc="least `minimum` of a job")
    min_difference: int = whole(
        10, least=1, doc="fewest people by which those of two jobs may differ, if they differ"
    )
    max_models: int = whole(20, least=1, doc="different jobs about the same people")
    columns: tuple[str, ...] = ()  # that may be asked about; none: all


def read_policy(kit: str) -> JoinPolicy:
    """Read the [join] table of policy.toml in the kit; without it, the default policy."""
    place = Path(kit) / "policy.toml" if kit else None
    if place is None or not place.is_file():
        return JoinPolicy()
    return from_fields(toml.read(place).get("join", {}), JoinPolicy, f"{place}, join", "a policy has no key")


def read(path: str | Path) -> dict[str, Any]:
    """Read and check a job file: {"join": all settings, "parties": {name: …}}."""
    settings, parties = read_parties(path, "join", JoinSettings, JoinParty)
    check_matched(path, parties)
    job = {"join": settings, "parties": parties}
    if not settings["queries"]:
        raise BadJob(f"{path}, join: there is no question. Add [[join.queries]] with name, what and of.")
    try:
        _terms(job, joined.PEOPLE)
        if settings["reveal"] == "shares":
            read_plan(job, joined.PEOPLE)
    except BadParameter as error:
        raise BadJob(f"{path}: {error}") from None
    return job


def _terms(job: Mapping[str, Any], rows: int) -> JoinTerms:
    settings, parties = job["join"], job["parties"]
    holders, (helper,) = roles(parties)
    check_how(settings["how"], settings["reveal"], len(holders))
    if settings["reveal"] == "shares":
        return read_plan(job, rows).terms
    columns = {n: list(parties[n].get("columns", ())) for n in holders}
    queries: list[JoinQuery] = [
        read_query(q["what"], q.get("of", ()), q.get("above"), q.get("by"), columns, settings["decimals"])
        for q in settings["queries"]
        if is_asked_of_matched(q)
    ]
    terms = JoinTerms(tuple(holders), helper, rows, settings["minimum"], tuple(queries))
    joined.check_terms(terms)
    return terms


def is_asked_of_matched(query: Mapping[str, Any]) -> bool:
    """Whether a question can be asked where every party learns who is matched; raise if not."""
    if query["what"] in ("total", "count"):
        return True
    raise bad(
        "join", f"what of {query['name']!r}", query["what"], "'total' or 'count' without reveal = 'shares'"
    )


def check_policy(policy: JoinPolicy, me: str, terms: JoinTerms, more: Iterable[str] = ()) -> None:
    """Refuse what the owner does not allow, before anything is sent."""
    if terms.minimum < policy.min_count:
        raise QueryRefused(
            f"the job opens figures about {terms.minimum} people, and the policy of this party requires "
            f"{policy.min_count} (min_count). Nothing was sent."
        )
    asked = {*more, *(c for q in terms.queries for who, c, _ in q.of if who == me)}
    if isinstance(terms, SharedTerms):  # who is matched is no column of this party's
        asked = {c for c in asked if not is_match(terms, me, c)}
    asked |= {q.by[1] for q in terms.queries if q.by is not None and q.by[0] == me}
    refused = sorted(asked - set(policy.columns)) if policy.columns else []
    if refused:
        allowed = ", ".join(policy.columns)
        raise QueryRefused(
            f"the job asks about {refused[0]!r}, and the policy of this party allows {allowed} (columns). "
            "Nothing was sent."
        )


def admit_thresholds(folder: Path, terms: JoinTerms) -> None:
    """Record the thresholds of each measure, or refuse others than those that were answered before.

    The number of people of "enough" is one, too.
    """
    for query in terms.queries:
        entry: dict[str, Any] = {"of": sorted(map(list, query.of)), "above": list(query.above)}
        if query.what == "enough":
            entry = {"of": ["enough", *(query.by or ())], "above": [query.least]}
        elif not query.above:
            continue

        def check(lines: list[str], entry: dict[str, Any] = entry) -> None:
            for line in lines:
                before = json.loads(line)
                if before["of"] == entry["of"] and before["above"] != entry["above"]:
                    raise QueryRefused(
                        "other thresholds of this measure were answered before. Two counts with nearby "
                        "thresholds differ by few people. Nothing was sent."
                        if entry["of"][:1] != ["enough"]
                        else "another number of people was asked before. Several such answers would tell how "
                        "many they are. Nothing was sent."
                    )

        folder.mkdir(parents=True, exist_ok=True)
        append_line(folder / THRESHOLDS, json.dumps(entry), check)


async def run_party(
    me: Party, job: Mapping[str, Any], file: str, out: str, kit: str = "", wait: float | None = None
) -> dict[str, Any]:
    """Run a party: read its columns, match people, answer the questions, write the figures."""
    settings, parties = job["join"], job["parties"]
    holders, (helper,) = roles(parties)
    digest, policy = job_digest(job), read_policy(kit)
    is_shared = settings["reveal"] == "shares"
    if me.name != helper:
        more = asked_columns(job, me.name) if is_shared else ()
        check_policy(policy, me.name, _terms(job, joined.PEOPLE), more)
    await check_same_job(me, parties, digest, wait)
    if me.name == helper and is_shared:
        await run_helper(me, job, out, digest)
        return {"people": None, "answers": [], "folder": "", "notes": []}
    if me.name == helper:
        rows = (await me.recv(holders[0], Asked)).rows
        await joined.helper(me, _terms(job, rows).to_dict())
        return {"people": rows, "answers": [], "folder": "", "notes": []}
    entry = parties[me.name]
    folder = Path(kit) / "join" if kit else None
    if is_shared:
        columns = entry.get("columns", ())
        # figures are about complete rows, trees about all
        needed = None if has_figures(job) else [entry["id"]]
        frame, notes = read_complete(me.name, file, entry, columns, needed=needed)
        whole = frame
        if needed is None and has_trees(job):
            whole, _ = read_complete(me.name, file, entry, columns, needed=[entry["id"]])
        admit_match(me.name, kit, next(n for n in holders if n != me.name))
        admit_rows(folder, policy, digest, frame[entry["id"]].tolist(), "values")
        if folder is not None:
            admit_thresholds(folder, _terms(job, joined.PEOPLE))
        answers = await run_holder(me, job, frame, whole, kit, out, digest)
        notes = [*notes, *(note for a in answers for note in a.pop("notes", ()))]
        people = len(frame) if settings["how"] == "left" and me.name == holders[0] else None
        return _write(me, out, {"people": people, "answers": answers, "notes": notes})
    frame, notes, _ = await match_rows(me, file, entry, holders, kit, entry.get("columns", ()))
    me.ledger.stamp(MATCHED_PEOPLE)
    terms = _terms(job, len(frame))
    admit_rows(folder, policy, digest, frame[entry["id"]].tolist(), "values")
    if folder is not None:
        admit_thresholds(folder, terms)
    if me.name == holders[0]:
        await me.send(helper, Asked(len(frame), digest))
    results = await joined.holder(
        me,
        terms.to_dict(),
        [measure(q, me.name, frame, settings["decimals"]) for q in terms.queries],
        [groups_of(q, me.name, frame, settings["minimum"]) for q in terms.queries],
    )
    answers = [
        {"name": named["name"], **describe(query, result, settings["decimals"])}
        for named, query, result in zip(settings["queries"], terms.queries, results)
    ]
    return _write(me, out, {"people": len(frame), "answers": answers, "notes": notes})


def _write(me: Party, out: str, content: dict[str, Any]) -> dict[str, Any]:
    place = Path(out)
    place.mkdir(parents=True, exist_ok=True)
    write_atomic(place / "part.json", json.dumps({"kind": "join", **content}, ensure_ascii=False, indent=1))
    write_atomic(place / "ledger.json", json.dumps(me.ledger.to_dict(), indent=1))
    return {**content, "folder": str(place)}


def run_here(
    path: str | Path,
    out: str | Path,
    runtime: Any = None,
    ledger: Ledger | None = None,
    reading: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run all parties of a job on this machine, each with its file in the job: for a test."""
    job = read_as(read(path), reading)
    holders, _ = roles(job["parties"])
    results = run_everyone("join", path, job, run_party, out, runtime, ledger)
    notes = list(dict.fromkeys(n for r in results.values() for n in r["notes"]))
    found = {**results[holders[0]], "folder": str(out), "notes": notes}
    for answer in found["answers"]:
        if answer.get("trees"):
            answer["folder"] = str(gather_parts(out, answer["name"]))
    return found


def take_part(
    kit: Kit,
    path: str | Path,
    file: str | Path | None,
    out: str | Path | None,
    patience: float = 300.0,
    wait: float | None = None,
    reading: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run one party of a job over the federation's hub."""
    return run_with_party_kit("join", kit, path, read, run_party, file, out, patience, wait, reading=reading)
