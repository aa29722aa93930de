"""The sender's policy for private set intersection: which queries it answers.

`sender` (psi.py) checks the policy before it sends anything: the kind of result, the declared set size, the
number of queries. The minimum overlap is checked in `psi_sum.py`, where the sender counts the shared ids
before it opens a count or a sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import QueryRefused
from ..parameters import bad, check, whole
from ..parties.message import Message

REVEALS = ("receiver", "both", "size", "sum")
SHARES = "shares"  # nobody learns which ids are shared, nor how many: `tacit.join` computes on shares
RESULTS = (*REVEALS, SHARES)
COUNTED = (
    "size",
    "sum",
)  # results that count shared ids: the minimum set size and overlap apply to these
# per party: ten times the largest set of benchmarks/psi.py, whose buckets and tables fit into memory
MAX_IDS = 100_000_000


class RefusedQuery(Message, reveals="that the sender's policy does not allow the query, and by which rule"):
    rule: str


@dataclass(frozen=True)
class PsiPolicy:
    """A sender's rules for queries.

    `reveal`: the allowed results. `min_ids` and `min_overlap` apply to "size" and "sum", `queries_per_day` to
    each receiver.
    """

    reveal: tuple[str, ...] = RESULTS
    min_ids: int = whole(10, least=0, doc="ids the receiver must declare for a count or a sum")
    min_overlap: int = whole(
        10, least=0, doc="shared ids below which no count and no sum is opened; the sender counts them itself"
    )
    max_ids: int = whole(MAX_IDS, least=1, most=MAX_IDS, doc="ids the receiver may declare")
    queries_per_day: int = whole(
        10,
        least=0,
        doc="queries of one receiver within 24 hours, answered or not; needs a place to count them (a start "
        "kit)",
    )

    @classmethod
    def of(cls, table: dict[str, Any], where: str) -> PsiPolicy:
        """Build a policy from the [psi] table of a policy file."""
        fields: dict[str, Any] = {
            k: tuple(v) if k == "reveal" and isinstance(v, list) else v for k, v in table.items()
        }
        return check_policy(cls(**fields), where)


class Queries(Protocol):
    """A durable count of queries."""

    def admit(self, receiver: str, most: int) -> None:
        """Record one query of this receiver durably, before it is answered.

        Raises QueryRefused if there were `most` within 24 hours.
        """


def check_policy(policy: Any, where: str = "psi") -> PsiPolicy:
    if not isinstance(policy, PsiPolicy):
        raise bad(where, "policy", policy, "a tacit.PsiPolicy(…)")
    if (
        not isinstance(policy.reveal, tuple)
        or not policy.reveal
        or any(r not in RESULTS for r in policy.reveal)
    ):
        raise bad(where, "reveal", policy.reveal, "one or more of " + ", ".join(map(repr, RESULTS)))
    check(policy, where)
    return policy


def policy_of(policy: PsiPolicy | Mapping[str, Any] | None) -> PsiPolicy:
    """Return the policy: from a PsiPolicy, its fields (from another process), or None for the default."""
    return check_policy(
        PsiPolicy() if policy is None else PsiPolicy(**policy) if isinstance(policy, Mapping) else policy
    )


RULES = {
    "reveal": "This result is not among those it allows.",
    "min_ids": "The receiver's set is smaller than it allows for a count or a sum.",
    "max_ids": "The receiver's set is larger than it allows.",
    "queries_per_day": "This receiver has reached the number of queries it allows within 24 hours.",
    "min_overlap": "Fewer ids are shared than it allows for a count or a sum. Their number stays secret.",
}


def refusal(rule: str, sender: str) -> QueryRefused:
    """Return the error of a refused query, the same on both sides: the rule without its numbers."""
    why = f" ({rule}). {RULES[rule]}" if rule in RULES else ". The rule is unknown to this version."
    return QueryRefused(
        f"the policy of {sender!r} refused the query{why} Nothing was opened. Ask its owner, or change what "
        "you ask for."
    )


def broken_rule(policy: PsiPolicy, reveal: str, declared: int) -> str:
    """Return the first rule that a query breaks before anything is compared, or ""."""
    if reveal not in policy.reveal:
        return "reveal"
    if reveal in COUNTED and declared < policy.min_ids:
        return "min_ids"
    return "max_ids" if declared > policy.max_ids else ""
