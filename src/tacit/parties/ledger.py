"""The ledger: who saw what, and what privacy was spent. Made for data-protection officers.

A line is added when a message arrives, read or not: a party may keep any bytes that reached it.
"""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ..errors import BadRun
from ..numbers import each, size
from ..parameters import bad

if TYPE_CHECKING:
    import pandas

    from .message import Message

How = Literal["executed", "ideal"]
MANY = 8  # equal lines of more parties than this are printed as one


@dataclass(frozen=True)
class Seen:
    """`party` received `count` messages of this kind from `sender`.

    how="ideal": the protocol was simulated by its ideal function, not executed.
    """

    party: str
    sender: str
    kind: str
    reveals: str
    count: int
    bytes: int
    how: How = "executed"


@dataclass(frozen=True)
class Spend:
    """One (ε, δ) guarantee: what it protects (`unit`), against whom, and the sampling it assumes."""

    mechanism: str
    epsilon: float
    delta: float
    unit: str
    adversary: str
    sampling: str
    note: str = ""

    def __post_init__(self) -> None:
        if not self.epsilon >= 0:
            raise bad(
                "Spend",
                "epsilon",
                self.epsilon,
                "a number of at least 0 (infinite when nothing is guaranteed)",
            )
        if not 0 <= self.delta <= 1:
            raise bad("Spend", "delta", self.delta, "a probability between 0 and 1")


class Ledger:
    """Lines summed by party, sender, kind and `how`; 10,000 rounds take no more memory than one."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, str, str, How], list[int]] = {}
        self.spent: list[Spend] = []
        self.stamps: list[str] = []

    @property
    def seen(self) -> list[Seen]:
        return [
            Seen(party, sender, kind, reveals, count, total, how)
            for (party, sender, kind, reveals, how), (count, total) in self._seen.items()
        ]

    def record(
        self,
        party: str,
        sender: str,
        kind: str | type[Message],
        reveals: str | None = None,
        *,
        count: int = 1,
        bytes: int = 0,
        how: How = "executed",
    ) -> None:
        """Record that `party` saw `count` messages, `bytes` in total.

        A simulation may record one line for many senders: sender="each of 1000 parties".
        """
        name = kind if isinstance(kind, str) else kind.kind
        if reveals is None:
            if isinstance(kind, str):
                raise bad(
                    "Ledger.record",
                    "reveals",
                    None,
                    "a sentence: what the receiver learns",
                    "Or give the Message class as kind.",
                )
            reveals = kind.reveals
        if how not in ("executed", "ideal"):
            raise bad("Ledger.record", "how", how, "'executed' or 'ideal'")
        if count < 0 or bytes < 0:
            raise bad("Ledger.record", "count and bytes", (count, bytes), "at least 0")
        line = self._seen.setdefault((party, sender, name, reveals, how), [0, 0])
        line[0] += count
        line[1] += bytes

    def see(self, party: str, sender: str, kind: type[Message], size: int) -> None:
        """As `record`, of one message that was executed."""
        key: tuple[str, str, str, str, How] = party, sender, kind.kind, kind.reveals, "executed"
        line = self._seen.get(key)
        if line is None:
            line = self._seen[key] = [0, 0]
        line[0] += 1
        line[1] += size

    def spend(self, spend: Spend) -> None:
        self.spent.append(spend)

    def stamp(self, text: str) -> None:
        """Add a sentence that is printed before everything else, once."""
        if text not in self.stamps:
            self.stamps.append(text)

    def merge(self, other: Ledger) -> None:
        """Add the lines of another ledger (of another party or round)."""
        for line in other.seen:
            self.record(**dataclasses.asdict(line))
        self.spent.extend(other.spent)
        for text in other.stamps:
            self.stamp(text)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ledger.json. JSON has no infinity: it is written as inf."""
        return {
            "seen": [dataclasses.asdict(line) for line in self.seen],
            "spent": [
                {
                    k: "inf" if v == math.inf else v
                    for k, v in dataclasses.asdict(s).items()
                    if k != "note" or v
                }
                for s in self.spent
            ],
            "stamps": list(self.stamps),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Ledger:
        ledger = cls()
        try:
            for line in data["seen"]:
                ledger.record(**dataclasses.asdict(Seen(**line)))
            for entry in data["spent"]:
                ledger.spend(
                    Spend(**{**entry, "epsilon": float(entry["epsilon"]), "delta": float(entry["delta"])})
                )
            for text in data["stamps"]:
                ledger.stamp(text)
        except (KeyError, TypeError, ValueError) as error:
            raise BadRun(
                f"not a ledger: {type(error).__name__}: {error}. "
                "Expected `seen`, `spent` and `stamps` as tacit writes them."
            ) from error
        return ledger

    def table(self) -> pandas.DataFrame:
        """Return a data frame with one row for each line of `seen`."""
        import pandas

        return pandas.DataFrame(
            [dataclasses.asdict(line) for line in self.seen],
            columns=[f.name for f in dataclasses.fields(Seen)],
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and (self._seen, self.spent, self.stamps) == (
            other._seen,
            other.spent,
            other.stamps,
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"<Ledger: {len(self._seen)} lines seen, {len(self.spent)} "
            f"spent{', stamped' if self.stamps else ''}>"
        )

    def __str__(self) -> str:
        lines = list(self.stamps)
        for m in _group_lines(_group_lines(self.seen, "sender"), "party"):
            mark = (
                " [ideal: computed in one place by the simulation, not executed]" if m.how == "ideal" else ""
            )
            lines.append(
                f"{m.party} saw {m.count} {m.kind} from {m.sender} ({size(m.bytes)}): {m.reveals}{mark}"
            )
        lines += [
            f"spent ε = {s.epsilon:.4g}, δ = {s.delta:.4g} for {each(s.unit)}, by {s.mechanism}, against "
            f"{s.adversary}, assuming {s.sampling} sampling." + (f" {s.note}" if s.note else "")
            for s in self.spent
        ]
        return "\n".join(lines) or "nobody saw anything, and no privacy was spent."

    def _repr_html_(self) -> str:
        """Show the ledger in a notebook as two tables; all text is escaped."""
        parts = [f"<p><strong>{html.escape(stamp)}</strong></p>" for stamp in self.stamps]
        merged = _group_lines(_group_lines(self.seen, "sender"), "party")
        seen = [(m.party, m.sender, m.kind, m.reveals, m.how, str(m.count), size(m.bytes)) for m in merged]
        spent = [
            (s.mechanism, f"{s.epsilon:.4g}", f"{s.delta:.4g}", s.unit, s.adversary, s.sampling, s.note)
            for s in self.spent
        ]
        heads = ("seen by", "from", "message", "what it reveals", "protocol", "count", "bytes")
        parts.append(_html_table(heads, seen) if seen else "<p>Nobody saw anything.</p>")
        heads = ("mechanism", "ε", "δ", "protects", "against", "sampling assumed", "note")
        parts.append(_html_table(heads, spent) if spent else "<p>No privacy was spent.</p>")
        return "".join(parts)


def _html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(h)}</th>" for h in header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _group_lines(lines: list[Seen], field: str) -> list[Seen]:
    """Merge lines that differ only in `field` and in their numbers, if they are many."""
    groups: dict[Seen, list[Seen]] = {}
    for line in lines:
        blank: dict[str, Any] = {"count": 0, "bytes": 0, field: ""}
        groups.setdefault(dataclasses.replace(line, **blank), []).append(line)
    short = []
    for alike, members in groups.items():
        if len(members) > MANY:
            names = f"{len(members)} parties ({', '.join(getattr(m, field) for m in members[:3])}, …)"
            total: dict[str, Any] = {
                "count": sum(m.count for m in members),
                "bytes": sum(m.bytes for m in members),
                field: names,
            }
            members = [dataclasses.replace(alike, **total)]
        short += members
    return short
