"""The HTML report: one file that makes no network request and runs only its own script.

Its content security policy allows one style sheet and one script, by their hashes, and no connection. Even
markup that got into a record could neither run nor connect.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import BadRun
from ..files import write_atomic
from . import sections
from .figures import styles
from .markup import Safe, join, plain, tag
from .numbers import count, truncate
from .records import RunRecord
from .svg import STYLE
from .verdict import baselines


def render(records: Sequence[RunRecord], comparison: Mapping[str, Any] | None = None) -> str:
    """Return the page as text."""
    if not records and not comparison:
        raise BadRun(
            "there is nothing to report: no run and no comparison was given. Give at least one run directory."
        )
    index = [str(x) for x in comparison["table"]["index"]] if comparison else []
    page = sections.Page(records, comparison, styles([*index, *(r.label for r in records)]))
    parts = [s for make in sections.ALL if (s := make(page))]
    return assemble(
        _title(page),
        _facts(page),
        _stamps(page),
        parts,
        "Made by tacit from the run's own records. This file makes no network request.",
    )


def assemble(
    title: str, facts: Safe, stamps: Sequence[Safe], parts: Sequence[sections.Section], foot: str
) -> str:
    """Make a page from its sections, under the content security policy."""
    here = Path(__file__)
    css = Safe(here.with_name("style.css").read_text(encoding="utf-8") + STYLE)
    script = Safe(here.with_name("page.js").read_text(encoding="utf-8"))
    policy = (
        f"default-src 'none'; style-src {_hash(css)}; script-src {_hash(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("link", rel="icon", href="data:,"),
        tag("title", f"{title} · tacit"),
        tag("style", css),
    )
    nav = tag(
        "nav",
        tag("ol", [tag("li", tag("a", s.title, href=f"#{s.id}")) for s in parts]),
        aria_label="Sections",
    )
    main = tag("main", [tag("section", tag("h2", s.title), s.body, id=s.id) for s in parts], id="report")
    top = tag(
        "header",
        tag("p", "tacit", class_="mark"),
        tag("h1", title),
        tag("p", facts, class_="facts-line"),
        *stamps,
    )
    body = tag(
        "body",
        tag("a", "Skip to the report", href="#report", class_="skip"),
        top,
        tag("div", nav, main, class_="columns"),
        tag("footer", tag("p", foot)),
        tag("div", "", id="tip", role="status", hidden="hidden"),
        tag("script", script),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def write(
    path: str | Path, records: Sequence[RunRecord], comparison: Mapping[str, Any] | None = None
) -> Path:
    """Write the report atomically."""
    return write_page(path, render(records, comparison))


def write_page(path: str | Path, text: str) -> Path:
    """Write a page into a file atomically."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)
    except OSError as error:
        raise BadRun(
            f"the report cannot be written to {path}: {error.strerror}. Choose a place you may write to."
        ) from None
    return path


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _title(page: sections.Page) -> str:
    data = plain(next((r.federation.get("name") for r in page.records if r.federation.get("name")), ""))
    what = page.records[0].label if page.records else ""
    if page.comparison:
        many = sum(x not in baselines(page.comparison) for x in page.comparison["table"]["index"])
        what = "1 algorithm" if many == 1 else f"{count(many)} algorithms compared"
    return f"{what} on {truncate(data, 60)}" if data else what


def _facts(page: sections.Page) -> Safe:
    if not page.records:
        return Safe("")
    first = page.records[0]
    parties = count(len(first.federation.get("parties") or []))
    model = first.start.get("model") or {}
    facts = [
        "1 party" if parties == "1" else f"{parties} parties",
        "" if page.comparison else first.skew,
        f"model {model.get('name')}" if model else "",
        f"{count(first.planned)} rounds",
        f"{count(len(page.records))} runs" if len(page.records) > 1 else f"seed {first.seed}",
        str(first.start.get("time") or "")[:16].replace("T", " "),
    ]
    return join([tag("span", f) for f in facts if f])


def _stamps(page: sections.Page) -> list[Safe]:
    """Warnings that are shown first."""
    stamps = dict.fromkeys(plain(s) for r in page.records for s in (r.ledger or {}).get("stamps") or [])
    out = [tag("p", tag("strong", s), class_="stamp", role="alert") for s in stamps]
    if page.records and any(not r.is_finished for r in page.records):
        torn = (
            " The last line of the record was cut short and is left out."
            if any(r.warnings for r in page.records)
            else ""
        )
        out.append(
            tag(
                "p",
                f"Not finished: this report shows the rounds so far.{torn}",
                class_="stamp going",
                role="status",
            )
        )
    return out
