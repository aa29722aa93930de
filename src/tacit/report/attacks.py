"""The attacks on a run before its release, as its audit recorded them: a section and a figure beside ε."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .layout import Page, Section, table, tile
from .markup import Safe, join, plain, tag
from .numbers import is_finite


def section(page: Page) -> Section | None:
    """What each adversary could do, did, and what would stop it."""
    if page.comparison or not page.records or page.records[0].audit is None:
        return None
    audit = page.records[0].audit
    findings = audit["findings"]
    overview = table(
        ["attack", "adversary", "value", "limit", "verdict"],
        [
            [
                plain(f.get("attack")),
                plain(f.get("adversary")),
                f"{f['value']:.3g}" if is_finite(f.get("value")) else "–",
                f"{f['limit']:g}" if is_finite(f.get("limit")) else "–",
                plain(f.get("verdict")),
            ]
            for f in findings
        ],
    )
    parts = [tag("p", plain(audit.get("headline") or _verdict(audit)), class_="headline"), overview]
    for who in dict.fromkeys(plain(f.get("adversary")) for f in findings):
        parts.append(tag("h3", who[:1].upper() + who[1:]))
        mine = [f for f in findings if plain(f.get("adversary")) == who]
        parts += [_show(f) for f in mine]
        stops = dict.fromkeys(plain(f["stops"]) for f in mine if f.get("stops"))
        parts += [tag("p", tag("strong", "What stops it: "), text) for text in stops]
    parts.append(
        tag(
            "p",
            "Curves and pictures are in audit.html. An attack that failed is this attack with this budget.",
        )
    )
    return Section("attacks", "Attacks before release", join(parts))


def _show(f: Mapping[str, Any]) -> Safe:
    return tag(
        "p", tag("strong", plain(f.get("attack")) + ": "), plain(f.get("could")), " ", plain(f.get("did"))
    )


def _verdict(audit: Mapping[str, Any]) -> str:
    return "PASSED" if audit.get("passed") is True else "REFUSED"


def audit_tile(audit: Mapping[str, Any]) -> Safe:
    """The verdict, for the first lines of a report."""
    ran = [f for f in audit["findings"] if is_finite(f.get("value"))]
    over = [plain(f.get("attack")) for f in ran if f.get("verdict") == "exceeded"]
    if audit.get("passed") is True:
        return tile("Attacks before release", "passed", f"{len(ran)} attacks within their limits; no proof")
    return tile(
        "Attacks before release", "refused", ", ".join(over) or "a limit was not tested", style="warn"
    )
