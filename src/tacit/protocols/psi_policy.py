"""What the sender of a private set intersection allows: it is the sender's data that a query is about, so the
sender decides and checks.

`sender` (psi.py) checks the policy before it sends anything: the kind of result, the declared set size, the
number of queries. The minimum overlap is checked inside `psi_sum.py`, where the sender counts the shared ids
itself before it opens a count or a sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import QueryRefused
from ..parameters import bad, check, whole
from ..parties.message import Message

REVEALS = ("receiver", "both", "size", "sum")
COUNTED = (
    "size",
    "sum",
)  # results that count shared ids without naming them: the minimum set size and overlap apply to these
# of one party: ten times the largest set of benchmarks/psi.py; buckets and tables of that many fit into
# memory
MAX_IDS = 100_000_000


class RefusedQuery(Message, reveals="that the sender's policy does not allow the query, and by which rule"):
    rule: str


@dataclass(frozen=True)
class PsiPolicy:
    """A sender's rules. `reveal`: the results it allows. `min_ids` and `min_overlap` hold for "size" and
    "sum", `queries_per_day` for each receiver.
    """

    reveal: tuple[str, ...] = REVEALS
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
        """From the [psi] table of a policy file."""
        given: dict[str, Any] = {
            k: tuple(v) if k == "reveal" and isinstance(v, list) else v for k, v in table.items()
        }
        return check_policy(cls(**given), where)


class Queries(Protocol):
    """Counts queries where a restart does not forget them."""

    def admit(self, receiver: str, most: int) -> None:
        """Count one query of this receiver, durably, before it is answered. QueryRefused if there were `most`
        within 24 hours.
        """


def check_policy(policy: Any, where: str = "psi") -> PsiPolicy:
    if not isinstance(policy, PsiPolicy):
        raise bad(where, "policy", policy, "a tacit.PsiPolicy(…)")
    if (
        not isinstance(policy.reveal, tuple)
        or not policy.reveal
        or any(r not in REVEALS for r in policy.reveal)
    ):
        raise bad(where, "reveal", policy.reveal, "one or more of " + ", ".join(map(repr, REVEALS)))
    check(policy, where)
    return policy


def policy_of(given: PsiPolicy | Mapping[str, Any] | None) -> PsiPolicy:
    """A policy as a party's program is given it: itself, its fields (as another process has them), or None
    for the default one.
    """
    return check_policy(
        PsiPolicy() if given is None else PsiPolicy(**given) if isinstance(given, Mapping) else given
    )


RULES = {
    "reveal": "This result is not among those it allows.",
    "min_ids": "The receiver's set is smaller than it allows for a count or a sum.",
    "max_ids": "The receiver's set is larger than it allows.",
    "queries_per_day": "This receiver has asked as often as it allows within 24 hours.",
    "min_overlap": "Fewer ids are shared than it allows for a count or a sum. How many, it does not say.",
}


def refusal(rule: str, sender: str) -> QueryRefused:
    """The error of a query that the policy of `sender` refuses, the same text on both sides: it says the rule
    and none of its numbers.
    """
    why = RULES.get(rule, "It names no rule that is known here.")
    known = f" ({rule})" if rule in RULES else ""
    return QueryRefused(
        f"the policy of {sender!r} refused the query{known}. {why} Nothing was opened. Ask its owner, or "
        "change what you ask for."
    )


def broken_rule(policy: PsiPolicy, reveal: str, declared: int) -> str:
    """The first rule that a query breaks before anything is compared, or ""."""
    if reveal not in policy.reveal:
        return "reveal"
    if reveal in COUNTED and declared < policy.min_ids:
        return "min_ids"
    return "max_ids" if declared > policy.max_ids else ""
