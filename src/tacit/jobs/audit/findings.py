"""What an audit found: one finding an attack, the limits it is judged by, and the page about all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from ...config.audit import AuditLimits
from ...parties.ledger import Ledger
from ...report.layout import Page, Section, figure, table
from ...report.markup import Safe, join, tag
from ...report.page import assemble
from ...report.records import RunRecord
from ...report.sections import ledger as ledger_section
from ...report.svg import Figure
from ...results import JobResult, encode_plain

FOOT = (
    "Made by tacit. An attack that failed is this attack with this budget; it proves nothing about others. "
    "This file makes no network request."
)

LEAST = 100  # non-members, on which a false-alarm rate of 1% is counted


def untested_members(limits: AuditLimits, outside: int) -> str:
    """What to say where too few non-members leave the limit `members` untested; else ""."""
    if limits.members is None or outside >= LEAST:
        return ""
    return f"; the limit members was not tested, for which {LEAST} others are needed"


@dataclass
class Finding:
    """One attack by one adversary: what it could do, what it did, what would stop it."""

    adversary: str
    attack: str
    could: str
    did: str
    stops: str
    value: float | None = None  # None: the attack was not run
    limit: float | None = None
    exceeded: bool = False
    applies: bool = True  # False: no attack of this kind exists for this run; it is said, and not judged
    seconds: float = 0.0
    details: dict[str, Any] = field(default_factory=dict, repr=False)
    drawing: Figure | None = field(default=None, repr=False)
    pictures: Safe | None = field(default=None, repr=False)

    @property
    def has_result(self) -> bool:
        """Whether the attack was run and has a result: NaN is below every limit, and tests none."""
        return self.value is not None and math.isfinite(self.value)

    @property
    def verdict(self) -> str:
        if not self.has_result:
            return "not run" if self.applies else "does not apply"
        return "exceeded" if self.exceeded else "within the limit" if self.limit is not None else "no limit"

    def to_dict(self) -> dict[str, Any]:
        names = ("adversary", "attack", "could", "did", "stops", "value", "limit", "verdict", "seconds")
        return {**{name: getattr(self, name) for name in names}, **self.details}


@dataclass
class ReleaseAudit(JobResult):
    """The attacks on a run before its model is released. `passed`: none exceeded its limit."""

    title: ClassVar[str] = "Audit before release"

    findings: list[Finding]
    budget: float
    limits: AuditLimits
    ledger: Ledger = field(repr=False)
    name: str = ""
    directory: Path | None = None

    @property
    def value(self) -> bool:
        return self.passed

    @property
    def passed(self) -> bool:
        """Whether an attack was run, none exceeded its limit, and each limit was tested by at least one."""
        return not self.exceeded and not self.untested and any(f.has_result for f in self.findings)

    @property
    def exceeded(self) -> list[Finding]:
        return [f for f in self.findings if f.exceeded]

    @property
    def untested(self) -> list[str]:
        """Limits of attacks that apply to this run and of which none could be run."""
        declared = {f.name for f in fields(AuditLimits) if getattr(self.limits, f.name) is not None}
        asked = {
            f.details["limit_name"] for f in self.findings if f.applies and f.details.get("limit_name")
        } & declared
        tested = {
            f.details["limit_name"] for f in self.findings if f.has_result and f.details.get("limit_name")
        }
        return sorted(asked - tested)

    @property
    def inapplicable(self) -> list[Finding]:
        """Kinds of attack that do not exist for this run: nothing is known about them."""
        return [f for f in self.findings if f.value is None and not f.applies]

    def to_dict(self) -> dict[str, Any]:
        return encode_plain(
            {
                "passed": self.passed,
                "headline": self.headline(),
                "budget": self.budget,
                "limits": self.limits,
                "untested": self.untested,
                "findings": [f.to_dict() for f in self.findings],
                "ledger": self.ledger,
            }
        )

    def report(self, path: str | Path | None = None) -> Path:
        """Write the page of the audit; without a path: audit.html in the run's directory."""
        default = (self.directory or Path()) / "audit.html"
        return self._write_page(default if path is None else path, self._page())

    def lines(self) -> list[str]:
        """The verdict, and each attack in one line."""
        lines = [self.headline()]
        for f in self.findings:
            lines.append(f"  {f.adversary}: {f.attack}: {f.did} [{f.verdict}]")
        return lines

    def headline(self) -> str:
        if self.exceeded:
            names = ", ".join(dict.fromkeys(f.attack for f in self.exceeded))
            return f"REFUSED: {names} exceeded the limit. {self.exceeded[0].stops}"
        if self.untested:
            name = self.untested[0]
            why = next(f.did for f in self.findings if f.applies and f.details.get("limit_name") == name)
            return (
                f"REFUSED: no attack tested the limit {name!r}: {why} To release without this test, set the "
                f"limit to none ({name}=none)."
            )
        ran = sum(f.has_result for f in self.findings)
        if not ran:
            return "REFUSED: no attack was run, so nothing is known." + "".join(
                f" Not tried: {f.attack} ({f.did})" for f in self.inapplicable
            )
        return (
            f"PASSED: {ran} attacks within {self.budget:g} s stayed within their limits. This is what these "
            "attacks with this budget can do; it is no proof."
            + "".join(f" Not tried: {f.attack} ({f.did})" for f in self.inapplicable)
        )

    def _summary(self) -> str:
        return "\n".join(self.lines())

    def _page(self) -> str:
        seen = self.ledger.to_dict()
        head = tag("p", self.headline(), class_="headline")
        overview = table(
            ["attack", "adversary", "value", "limit", "verdict", "seconds"],
            [
                [
                    f.attack,
                    f.adversary,
                    "–" if f.value is None else f"{f.value:.3g}",
                    "–" if f.limit is None else f"{f.limit:g}",
                    f.verdict,
                    f"{f.seconds:.1f}",
                ]
                for f in self.findings
            ],
        )
        sections = [Section("verdict", "Verdict", join([head, _claims(self.ledger), overview]))]
        for k, who in enumerate(dict.fromkeys(f.adversary for f in self.findings)):
            mine = [f for f in self.findings if f.adversary == who]
            sections.append(Section(f"adversary-{k}", who[:1].upper() + who[1:], join(map(_show, mine))))
        sections.append(ledger_section(Page([RunRecord({}, [], seen)], None, {})))
        stamps = [tag("p", tag("strong", s), class_="stamp", role="alert") for s in seen["stamps"]]
        facts = tag("span", f"budget {self.budget:g} s")
        return assemble(
            f"{self.title}: {self.name}" if self.name else self.title, facts, stamps, sections, FOOT
        )


def _claims(ledger: Ledger) -> Safe:
    if not ledger.spent:
        return tag("p", "The run claims no ε: nothing bounds what other attacks may find.")
    rows = [[s.unit, f"{s.epsilon:.3g}", f"{s.delta:.1g}", s.adversary] for s in ledger.spent[:20]]
    return table(["protected unit", "ε", "δ", "against"], rows, caption="claimed by the run")


def _show(f: Finding) -> Safe:
    return join(
        [
            tag("h3", f"{f.attack}: {f.verdict}"),
            tag("p", tag("strong", "Could: "), f.could),
            tag("p", tag("strong", "Did: "), f.did),
            figure(f.drawing),
            f.pictures,
            tag("p", tag("strong", "What stops it: "), f.stops),
        ]
    )
