"""The programs of record linkage: two parties with tables, and a helper.

    left                                              right
      |--- FieldRates(rows, u) ------------------------>|   and back; weights and threshold follow
      |<-- private set intersection of block values --->|   `protocols/psi.py`, both learn the shared ones
      |--- BlockSizes(padded sizes) ------------------->|   and back; blocks above max_block are left out
      |<-- `mpc/linked.py`, with the helper ----------->|   both learn the match bits

What each party learns, of a semi-honest other one:

    the other's number of rows; how often two of its rows agree on a field (two numbers a field); how many
    blocking values it has, and which of its own the other has, too; for each of these, to how many rows the
    other's block is padded (a power of two); which of its own records have a match, and in which block. So it
    learns of people without a match that the other has somebody with, say, its surname's sound and date of
    birth. Several shared values of one record say more together: one that has all of its keys in common with
    the other table is probably of somebody there. The order of the matched rows is the same at both.

The helper learns the settings, the numbers of rows, and how many blocks there are of each pair of sizes; it
colludes with neither.

Ideal function: `mpc.linked.ideal` on the same blocks (`tests/jobs/test_linking.py` holds the two equal).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...data.identifiers import identify
from ...errors import ProtocolError, QueryRefused
from ...linkage import blocks as blocking
from ...linkage import weights as weighing
from ...linkage.blocks import Keys
from ...linkage.fields import MISSING, Field, Records, read_fields, read_records
from ...linkage.weights import PART, SCALE, FieldWeights
from ...mpc import linked
from ...mpc.linked import LinkField, LinkTerms
from ...parameters import check, real, whole
from ...parties.ledger import Ledger
from ...parties.message import Message
from ...parties.party import Party
from ...protocols.psi_policy import MAX_IDS, PsiPolicy
from .psi import align_rows

MOST_ROWS = 1 << 24


class FieldRates(
    Message,
    reveals="how many rows the other has, and for each field how often two of them are equal, and similar",
):
    rows: int
    rates: list[list[int]]  # in units of 2^-20


class BlockSizes(
    Message,
    reveals="to how many rows each shared block of the other is padded: 2^(k − 1), or 0 if it is left out",
):
    sizes: bytes


@dataclass(frozen=True)
class LinkPlan:
    """The options that both parties agree on."""

    fields: tuple[Field, ...]
    keys: Keys
    threshold: float = real(
        0.9, above=0, below=1, doc="the probability from which two records are one person"
    )
    overlap: float = real(
        0.5, above=0, most=1, doc="the expected share of the smaller table that the other has, too"
    )
    max_block: int = whole(
        32, least=1, most=256, doc="rows of a block at one party; larger blocks are not compared"
    )

    def to_dict(self) -> dict[str, Any]:
        return {
            "fields": {f.name: _plain_field(f) for f in self.fields},
            "keys": [list(key) for key in self.keys],
            "threshold": float(self.threshold),
            "overlap": float(self.overlap),
            "max_block": self.max_block,
        }

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> LinkPlan:
        keys = tuple(tuple(key) for key in table["keys"])
        return cls(
            read_fields(table["fields"]), keys, table["threshold"], table["overlap"], table["max_block"]
        )


def _plain_field(entry: Field) -> dict[str, Any]:
    given = {"m": entry.m, "u": entry.u}
    return {"kind": entry.kind, **{key: list(p) for key, p in given.items() if p is not None}}


def check_plan(plan: LinkPlan, where: str = "link") -> None:
    """Refuse options out of range."""
    check(plan, where)


@dataclass(frozen=True)
class LinkPolicy:
    """KIT/policy.toml   [link] min_threshold = 0.8, max_rows = 100000, fields = ["surname", "born"]"""

    min_threshold: float = real(0.5, least=0, below=1, doc="least `threshold` of a job")
    max_rows: int = whole(1_000_000, least=1, most=MOST_ROWS, doc="rows that the other party may have")
    max_block: int = whole(256, least=1, most=256, doc="largest `max_block` of a job")
    queries_per_day: int = whole(10, least=0, doc="linkages with one party within 24 hours, complete or not")
    fields: tuple[str, ...] = ()  # that may be compared; none: all


def check_policy(policy: LinkPolicy, plan: LinkPlan, columns: Mapping[str, str]) -> None:
    """Refuse what the owner does not allow, before anything is sent; `columns`: its own names of fields."""
    if plan.threshold < policy.min_threshold:
        raise QueryRefused(
            f"the job links records from a probability of {plan.threshold:g} on, and the policy of this "
            f"party requires {policy.min_threshold:g} (min_threshold). Nothing was sent."
        )
    if plan.max_block > policy.max_block:
        raise QueryRefused(
            f"the job compares blocks of up to {plan.max_block} rows, and the policy of this party allows "
            f"{policy.max_block} (max_block). Nothing was sent."
        )
    asked = [columns.get(f.name, f.name) for f in plan.fields]
    refused = [c for c in asked if policy.fields and c not in policy.fields]
    if refused:
        raise QueryRefused(
            f"the job compares {refused[0]!r}, and the policy of this party allows "
            f"{', '.join(policy.fields)} (fields). Nothing was sent."
        )


async def link_rows(
    me: Party,
    texts: Mapping[str, Sequence[str]],
    plan: Mapping[str, Any],
    names: Sequence[str],
    helper: str,
    policy: Mapping[str, Any] | None = None,
    psi_policy: PsiPolicy | None = None,
) -> dict[str, Any]:
    """A party's program; `texts`: its columns. Returns its matched rows, in an order common to both."""
    settings, rules = LinkPlan.read(plan), LinkPolicy(**(policy or {}))
    side = list(names).index(me.name)
    other = names[1 - side]
    records = read_records(texts, settings.fields, f"the table of {me.name!r}")
    rows, rates, theirs = await _exchange_rates(me, other, records, rules)
    sizes = (records.rows, rows) if side == 0 else (rows, records.rows)
    weights = weighing.compute_weights(settings.fields, rates, theirs)
    threshold = weighing.compute_threshold(settings.threshold, settings.overlap, sizes)
    own = blocking.make_blocks(records, settings.keys)
    ids = identify(own.values, f"the blocking values of {me.name!r}")
    most = min(rows * len(settings.keys), MAX_IDS)  # a row has one value of a key: more are made up
    shared = await align_rows(me, ids, parties=list(names), policy=psi_policy, max_ids=most)
    members = [own.members[k] for k in shared.rows.tolist()]
    shapes, left_out = await _exchange_sizes(me, other, side, members, settings.max_block)
    slots = blocking.make_slots(shapes, side, members, me.secret.bytes)
    mine = linked.make_side(
        [e.filters for e in records.encoded], [e.counts for e in records.encoded], MISSING, slots
    )
    terms = _make_terms((names[0], names[1]), helper, settings, sizes, weights, threshold, shapes)
    found = await linked.holder(me, terms.to_dict(), mine)
    matched = linked.find_rows(terms, mine.slots, side, found)
    _check_one_to_one(other, matched)
    record_conclusion(me.ledger, me.name, other, rows, len(own.values), len(members), terms.pairs, len(found))
    notes = list(records.notes)
    if left_out:
        notes.append(
            f"{left_out} of {len(members)} shared blocks have more than {settings.max_block} rows at one "
            "party and were not compared (max_block)."
        )
    return {
        "rows": matched,
        "sizes": list(sizes),
        "blocks": len(members) - left_out,
        "candidates": terms.pairs,
        "weights": show_weights(settings.fields, weights),
        "notes": notes,
    }


async def serve(me: Party, names: Sequence[str]) -> dict[str, Any]:
    """The helper's program."""
    terms = await linked.helper(me, names)
    return {"sizes": list(terms.rows), "candidates": terms.pairs}


async def _exchange_rates(
    me: Party, other: str, records: Records, rules: LinkPolicy
) -> tuple[int, list[list[int]], list[list[int]]]:
    """The other's number of rows, and both estimates of u."""
    rng = np.random.default_rng(int.from_bytes(me.secret.bytes(16), "little"))
    own = weighing.estimate_u(records, rng)
    await me.send(other, FieldRates(records.rows, own))
    message = await me.recv(other, FieldRates)
    fits = [len(r) for r in message.rates] == [len(r) for r in own]
    if not fits or not all(1 <= p <= PART for r in message.rates for p in r) or message.rows < 1:
        raise ProtocolError(
            f"{other!r} sent rates of fields that do not fit the job: {message.rates!s:.200} for "
            f"{len(own)} fields. All parties must run the same version on the same job."
        )
    if message.rows > rules.max_rows:
        raise QueryRefused(
            f"{other!r} has {message.rows} rows, and the policy of this party allows {rules.max_rows} "
            "(max_rows). Nothing about records was sent."
        )
    return message.rows, own, message.rates


async def _exchange_sizes(
    me: Party, other: str, side: int, members: Sequence[np.ndarray], most: int
) -> tuple[blocking.Shapes, int]:
    """The shapes of the shared blocks, and how many blocks are left out."""
    own = [blocking.pad_size(len(rows), most) for rows in members]
    await me.send(other, BlockSizes(bytes(size.bit_length() for size in own)))
    sent = (await me.recv(other, BlockSizes)).sizes
    theirs = [1 << k - 1 if 0 < k <= 9 else 0 if k == 0 else -1 for k in sent]
    blocking.check_sizes(theirs, len(own), most, other)
    shapes = blocking.make_shapes(*((own, theirs) if side == 0 else (theirs, own)))
    return shapes, len(own) - sum(len(b) for b in shapes.blocks)


def _make_terms(
    names: tuple[str, str],
    helper: str,
    plan: LinkPlan,
    rows: tuple[int, int],
    weights: Sequence[FieldWeights],
    threshold: int,
    shapes: blocking.Shapes,
) -> LinkTerms:
    fields = tuple(LinkField(f.how.bits, f.how.levels, w.base, w.steps) for f, w in zip(plan.fields, weights))
    sizes = tuple((n, m, len(b)) for (n, m), b in zip(shapes.sizes, shapes.blocks))
    return LinkTerms(names, helper, rows, len(plan.keys), fields, threshold, sizes)


def _check_one_to_one(other: str, matched: np.ndarray) -> None:
    """The protocol matches no empty slot and no record twice; the other party can break that."""
    if (matched < 0).any() or len(np.unique(matched)) < len(matched):
        raise ProtocolError(
            f"the opened matches have an empty slot, or a record twice: {other!r} or the helper did not "
            "follow the protocol. The result was discarded."
        )


def show_weights(fields: Sequence[Field], weights: Sequence[FieldWeights]) -> list[dict[str, Any]]:
    """What each level of each field adds to a pair's score, in bits; u is what gives this weight."""
    lines = []
    for entry, w in zip(fields, weights):
        m = entry.m or entry.how.m
        words = ("equal", "similar")[: len(w.steps)]
        for k, (word, chance) in enumerate(zip((*words, "different"), (*m, 1 - sum(m)))):
            bits = (w.base + sum(w.steps[k:])) / SCALE
            u = round(min(chance / 2**bits, 1.0), 6)
            lines.append(
                {"field": entry.name, "level": word, "m": round(chance, 6), "u": u, "weight": round(bits, 3)}
            )
    return lines


def record_conclusion(
    ledger: Ledger, name: str, other: str, rows: int, values: int, shared: int, pairs: int, matched: int
) -> None:
    """Record in the ledger what this party learned."""
    ledger.record(
        name,
        other,
        "Conclusion",
        f"that {other!r} has {rows} rows; which of its own {values} blocking values {other!r} has, too "
        f"({shared}), and to how many rows each is padded there; which of its own records match one of "
        f"{other!r} ({matched}, one to one), of {pairs} compared pairs. Similarities stayed shared",
    )
