"""`tacit join` with reveal = "shares": a join whose membership stays shared, between two organizations and a
helper.

    [join]                      [parties.bank]            [parties.shop]           [parties.notary]
    reveal = "shares"           file = "bank.csv"         file = "shop.csv"        helper = true
    how = "left"                id = "customer"           id = "client"
    [[join.queries]]            columns = ["cash"]        columns = ["spent"]
    name = "spending"
    what = "regress"
    of = ["shop.spent", "bank.cash"]

The first party of the file keeps its ids in bins (`psi_circuit.py`). No party knows who is matched, so none
can tell whether the people of two jobs differ by few: each counts its jobs (`queries_per_day`), and refuses
one about a table of its own that differs from an earlier one by few rows.

A question with what = "boost" grows trees (`join_boost.py`), with a match of its own; each party's part of
them is written to a folder of its own, and the helper's too, so that they can predict together.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...config.join_boost import JOIN_BOOST_OPTIONS, JoinBoostConfig
from ...data.identifiers import identify
from ...errors import QueryRefused, TacitError
from ...files import write_atomic
from ...mpc import shared_join, shared_logistic, shared_moments
from ...mpc.joined import JoinQuery
from ...mpc.shared_join import CODE, SCORE, VALUE, SharedTerms
from ...mpc.shared_trees import TreeTerms
from ...parameters import bad, check
from ...parties.message import Message
from ...parties.party import Party
from ...protocols.psi_policy import SHARES, refusal
from .boost_parts import HelperPart
from .join import describe, read_query
from .join_boost import encode_rows, help_trees, keeps_missing, make_program, make_terms, parties_of, to_part
from .join_moments import Moments
from .join_shares import (
    FAMILIES,
    SHARED,
    Side,
    columns_of,
    encode_own,
    encode_words,
    help_match,
    match_first,
    match_second,
    prepare,
    scale_of,
)
from .query_log import QUERIES, QueryLog
from .regress_deployed import roles
from .split import folder_of
from .split_deployed import policy_in

if TYPE_CHECKING:
    import pandas as pd

MOMENTS = ("describe", "regress")
BOOST = "boost"


class LogisticFollows(Message, reveals="whether a logistic regression follows, because enough are matched"):
    follows: bool


@dataclasses.dataclass(frozen=True)
class SharesPlan:
    """The questions of a job: sums and counts in `terms`, and the columns of those about moments by name."""

    terms: SharedTerms
    moments: dict[str, tuple[list[str], list[str]]]
    boosts: dict[str, TreesQuestion]

    @property
    def has_figures(self) -> bool:
        """Whether there is a question about figures; trees have a match of their own."""
        return bool(self.terms.queries or self.moments)


@dataclasses.dataclass(frozen=True)
class TreesQuestion:
    """Boosted trees: `categories` are columns of codes, by party."""

    terms: TreeTerms
    config: JoinBoostConfig
    categories: dict[str, list[str]]


def read_plan(job: Mapping[str, Any], bins: int) -> SharesPlan:
    """Resolve the questions; what each of the second party's columns is shared as follows from them."""
    settings, parties = job["join"], job["parties"]
    holders, (helper,) = roles(parties)
    if len(holders) != 2:
        raise bad("join", "the number of parties", len(holders), "2 with reveal = 'shares'")
    first, second = holders
    columns = {n: list(parties[n].get("columns", ())) for n in holders}
    queries: list[JoinQuery] = []
    words: dict[tuple[str, str], None] = {}
    moments: dict[str, tuple[list[str], list[str]]] = {}
    boosts: dict[str, TreesQuestion] = {}
    for q in settings["queries"]:
        if q["what"] == BOOST:
            boosts[q["name"]] = read_trees_question(q, settings, (first, second), helper, columns)
            continue
        if q["what"] in MOMENTS:
            found = read_query("total", q.get("of", ()), None, None, columns, settings["decimals"])
            sides = [c for w, c, _ in found.of if w == first], [c for w, c, _ in found.of if w == second]
            if any(sign < 0 for _, _, sign in found.of) or q.get("above") or q.get("by"):
                raise bad("join", f"of {q['name']!r}", q["of"], "columns, without -, above and by")
            if q["what"] == "regress":
                label = read_query("total", q["of"][:1], None, None, columns, settings["decimals"])
                if len(label.of) != 1 or len(found.of) < 2:
                    raise bad(
                        "join",
                        f"of {q['name']!r}",
                        q["of"],
                        "the label, PARTY.column, then at least one column",
                    )
                if q.get("family", FAMILIES[0]) not in FAMILIES:
                    raise bad("join", f"family of {q['name']!r}", q["family"], "'gaussian' or 'binomial'")
            moments[q["name"]] = sides
            words |= dict.fromkeys((c, SCORE) for c in sides[1])
            continue
        query = read_query(
            q["what"],
            q.get("of", ()),
            q.get("above"),
            q.get("by"),
            columns_of(columns, settings["how"]),
            settings["decimals"],
            q.get("people", 0),
        )
        queries.append(query)
        known = columns[second]
        words |= dict.fromkeys((c, VALUE) for w, c, _ in query.of if w == second and c in known)
        if query.by is not None and query.by[0] == second:
            words[query.by[1], CODE] = None
    terms = SharedTerms(
        (first, second),
        helper,
        bins,
        settings["minimum"],
        tuple(queries),
        settings["how"],
        tuple(words),
        settings["decimals"],
    )
    shared_join.check_shared(terms)
    for first_columns, second_columns in moments.values():
        shared_moments.check_columns(terms, len(first_columns), second_columns)
    return SharesPlan(terms, moments, boosts)


def read_trees_question(
    q: Mapping[str, Any],
    settings: Mapping[str, Any],
    names: tuple[str, str],
    helper: str,
    columns: Mapping[str, Sequence[str]],
) -> TreesQuestion:
    """A question with what = "boost": `of` has the label first."""

    def resolve(words: Any) -> list[tuple[str, str]]:
        found = read_query("total", words, None, None, columns, settings["decimals"]).of
        if any(sign < 0 for _, _, sign in found):
            raise bad("join", f"of {q['name']!r}", list(words), "columns, without -")
        return [(who, c) for who, c, _ in found]

    of = list(q.get("of", ()))
    label, used = resolve(of[:1]), resolve(of)
    if len(label) != 1 or len(used) < 2:
        raise bad("join", f"of {q['name']!r}", of, "the label, PARTY.column, then at least one column")
    for key in ("above", "by", "people", "family"):
        if key in q:
            raise bad("join", f"{key} of {q['name']!r}", q[key], "left out with 'boost'")
    options = {key: q[key] for key in JOIN_BOOST_OPTIONS if key in q}
    config = check(JoinBoostConfig(**options), f"join, {q['name']!r}")
    first, second = ([c for who, c in used if who == n and (who, c) != label[0]] for n in names)
    coded = resolve(q["categories"]) if q.get("categories") else []
    for who, c in coded:
        if (who, c) not in used or (who, c) == label[0]:
            raise bad("join", f"categories of {q['name']!r}", f"{who}.{c}", "columns of the question")
    terms = make_terms(names, helper, settings["how"], settings["minimum"], (first, second), label[0], config)
    return TreesQuestion(terms, config, {n: [c for who, c in coded if who == n] for n in names})


def logistic_questions(job: Mapping[str, Any]) -> set[str]:
    return {q["name"] for q in job["join"]["queries"] if q.get("family") == "binomial"}


def asked_columns(job: Mapping[str, Any], me: str) -> set[str]:
    """This party's columns that a question about moments or trees opens something of."""
    plan, (holders, _) = read_plan(job, 1), roles(job["parties"])
    at = holders.index(me)
    found = {c for sides in plan.moments.values() for c in sides[at]}
    for question in plan.boosts.values():
        found |= {*question.terms.columns[at], *([question.terms.label] * (question.terms.label_at == at))}
    return found


def has_figures(job: Mapping[str, Any]) -> bool:
    return read_plan(job, 1).has_figures


def has_trees(job: Mapping[str, Any]) -> bool:
    return bool(read_plan(job, 1).boosts)


def admit_match(me: str, kit: str, other: str) -> None:
    """Refuse or count a match that stays shared, by the [psi] table of this party's policy."""
    policy = policy_in(kit)
    if SHARES not in policy.reveal:
        raise QueryRefused(
            "the policy of this party does not allow reveal = 'shares' ([psi], reveal). Nothing was sent."
        )
    if kit:
        try:
            QueryLog(Path(kit) / QUERIES).admit(other, policy.queries_per_day)
        except QueryRefused:
            raise refusal("queries_per_day", me) from None


async def run_helper(me: Party, job: Mapping[str, Any], out: str, digest: str) -> None:
    """The helper; its parts of trees are written to `out`, so that it can help to predict."""
    plan = read_plan(job, 1)
    if plan.has_figures:
        await _help_figures(me, job, plan)
    for k, (name, question) in enumerate(plan.boosts.items()):
        found = await help_trees(me.scope(f"boost {k}"), question.terms.to_dict())
        if found is not None:
            parties = parties_of(question.terms)
            marks = found["mark"], found["leaf_key"]
            part = HelperPart(me.name, parties, parties[0], found["rows"], digest, *marks)
            part.write(trees_folder(out, name))


def trees_folder(out: str | Path, name: str) -> Path:
    """Where a party keeps its part of the trees of a question."""
    return Path(out) / f"boost-{folder_of(name, 0)}"


def gather_parts(out: str | Path, name: str) -> Path:
    """Move all parties' parts of a question into one folder, where `tacit predict` looks for them."""
    folder = trees_folder(out, name)
    folder.mkdir()
    for part in sorted(Path(out).glob(f"*/{folder.name}")):
        part.rename(folder / part.parent.name)
    return folder


async def _help_figures(me: Party, job: Mapping[str, Any], plan: SharesPlan) -> None:
    bins = await help_match(me, plan.terms.names)
    plan = read_plan(job, bins)
    if plan.terms.queries:
        await shared_join.helper(me.scope("figures"), plan.terms.to_dict())
    for k, (name, columns) in enumerate(plan.moments.items()):
        scope = me.scope(f"moments {k}")
        await shared_moments.helper(scope, plan.terms.to_dict(), columns)
        if (
            name in logistic_questions(job)
            and (await scope.recv(plan.terms.names[0], LogisticFollows)).follows
        ):
            await shared_logistic.helper(scope.scope("logistic"), plan.terms.to_dict(), columns)


async def run_holder(
    me: Party,
    job: Mapping[str, Any],
    frame: pd.DataFrame,
    whole: pd.DataFrame,
    kit: str,
    out: str,
    digest: str,
) -> list[dict[str, Any]]:
    """Answer the job's questions: figures about this party's complete rows, trees about all (`whole`)."""
    queries, plan = job["join"]["queries"], read_plan(job, 1)
    results = await _answer_figures(me, job, plan, frame, kit) if plan.has_figures else {}
    for k, (name, question) in enumerate(plan.boosts.items()):
        query = next(q for q in queries if q["name"] == name)
        plain = {"what": BOOST, "of": list(query["of"]), "people": None}
        id = job["parties"][me.name]["id"]
        found = await _grow(me.scope(f"boost {k}"), question, whole, id, kit, trees_folder(out, name), digest)
        results[name] = plain | found
    return [{"name": q["name"], **results[q["name"]]} for q in queries]


async def _grow(
    me: Party, question: TreesQuestion, whole: pd.DataFrame, id: str, kit: str, folder: Path, digest: str
) -> dict[str, Any]:
    """Grow the trees of a question and write this party's part."""
    terms = question.terms
    at = terms.names.index(me.name)
    label = terms.label if terms.label_at == at else ""
    rows = encode_rows(
        whole,
        me.name,
        id,
        terms.columns[at],
        label,
        question.config,
        question.categories[me.name],
        keeps_missing(terms, me.name),
    )
    result = await make_program(terms, rows, policy_in(kit))(me)
    if result is None:
        return {"trees": None, "folder": "", "notes": list(rows.notes)}
    part = to_part(result, me.name, terms, rows.bins, id, digest)
    part.write(folder)
    write_atomic(folder / "ledger.json", json.dumps(me.ledger.to_dict(), indent=1))
    return {"trees": len(part.trees), "folder": str(folder), "notes": list(rows.notes)}


async def _answer_figures(
    me: Party, job: Mapping[str, Any], plan: SharesPlan, frame: pd.DataFrame, kit: str
) -> dict[str, dict[str, Any]]:
    """Match this party's complete rows, and answer the questions about figures."""
    settings, entry = job["join"], job["parties"][me.name]
    names, helper = plan.terms.names, plan.terms.helper
    me.ledger.stamp(SHARED)
    digests = identify(frame[entry["id"]].tolist(), f"the ids of {me.name!r}").digests
    table = frame.drop(columns=entry["id"]).reset_index(drop=True)
    groups: dict[str, list[str]] = {}
    if me.name == names[0]:
        found = await match_first(me, names, helper, digests, len(plan.terms.words))
    else:
        payload, groups = encode_words(
            table, me.name, plan.terms.words, settings["decimals"], settings["minimum"]
        )
        found = await match_second(me, names, helper, digests, payload, policy_in(kit))
    side = Side(found["rows"], found["own"], groups)
    plan = read_plan(job, len(side.rows[0]))
    results: dict[str, dict[str, Any]] = {}
    if plan.terms.queries:
        measures, own_groups = prepare(
            plan.terms.queries, plan.terms, me.name, table, side, settings["decimals"]
        )
        scope = me.scope("figures")
        figures = await shared_join.holder(scope, plan.terms.to_dict(), side.rows, measures, own_groups)
        asked = [q["name"] for q in settings["queries"] if q["what"] not in (*MOMENTS, BOOST)]
        for name, query, result in zip(asked, plan.terms.queries, figures):
            results[name] = describe(query, result, settings["decimals"])
    for k, (name, columns) in enumerate(plan.moments.items()):
        query = next(q for q in settings["queries"] if q["name"] == name)
        results[name] = await _answer_moments(me.scope(f"moments {k}"), plan, table, side, columns, query)
    return results


async def _answer_moments(
    me: Party,
    plan: SharesPlan,
    table: pd.DataFrame,
    side: Side,
    columns: tuple[Sequence[str], Sequence[str]],
    query: Mapping[str, Any],
) -> dict[str, Any]:
    """The answer of a question about moments, as plain values."""
    names = plan.terms.names
    mine = columns[names.index(me.name)]
    own = torch.zeros(0, 0, dtype=torch.int64)
    if side.own is not None:
        own = encode_own(table, me.name, mine, side.own)
    scales = [scale_of(table, me.name, c) for c in mine]
    result = await shared_moments.holder(
        me, plan.terms.to_dict(), side.rows, own, [(s.center, s.exponent) for s in scales], columns
    )
    plain: dict[str, Any] = {"what": query["what"], "of": list(query["of"]), "people": None}
    is_logistic = query.get("family") == "binomial"
    if not result["enough"]:
        if is_logistic and side.own is not None:
            await me.send(plan.terms.helper, LogisticFollows(False))
        return plain
    labels = [f"{names[0]}.{c}" for c in columns[0]], [f"{names[1]}.{c}" for c in columns[1]]
    moments = Moments.of(result["gram"].numpy(), result["scales"], labels, names[1], plan.terms.how)
    plain["people"] = moments.people
    if query["what"] == "describe":
        return plain | {"columns": moments.describe().to_dict("index")}
    label = next(name for name in moments.names if query["of"][0] in (name, name.split(".", 1)[1]))
    if is_logistic:
        try:
            start = moments.start_logistic(label)
        except TacitError:
            if side.own is not None:
                await me.send(plan.terms.helper, LogisticFollows(False))
            raise
        if side.own is not None:
            await me.send(plan.terms.helper, LogisticFollows(True))
        found = await shared_logistic.holder(
            me.scope("logistic"),
            plan.terms.to_dict(),
            side.rows,
            own,
            columns,
            (*start[:3], torch.from_numpy(start[3])),
        )
        fit = moments.finish_logistic(label, found)
        more = {"loglik": fit.loglik, "converged": fit.converged}
    else:
        fit = moments.regress(label)
        more = {"r2": fit.r2}
    return plain | {"label": fit.label, "terms": fit.table.to_dict("index"), **more}
