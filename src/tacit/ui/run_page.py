"""A run's page: the sections of its report, replaced one by one while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..errors import BadRun
from ..report.catalog import Entry
from ..report.layout import Section, arrange
from ..report.markup import Safe, join, tag
from ..report.page import Contents, contents
from ..report.records import read
from .shell import part


def read_contents(entry: Entry) -> Contents:
    """Return what the report shows of a run, comparison or study so far."""
    if entry.kind == "study":
        from .study_page import study_contents

        return study_contents(entry)
    try:
        return contents(*read(entry.path))
    except BadRun as error:
        return waiting(entry, str(error))


def waiting(entry: Entry, why: str) -> Contents:
    """What is shown before there is anything to show, or where it cannot be read."""
    body = join([tag("p", why), tag("p", "This page changes by itself.", class_="quiet")])
    return Contents(entry.label or entry.id, Safe(""), [], [Section("wait", "Not ready", body)])


def parts(found: Contents) -> dict[str, str]:
    placed = arrange(found.parts)
    head = part(
        "head",
        join([tag("h1", found.title), tag("p", found.facts, class_="facts-line"), *found.stamps]),
    )
    links = part(
        "links", tag("ol", [tag("li", tag("a", s.title, href=f"#{s.id}")) for s, _ in placed]), class_="toc"
    )
    sections = {
        f"section:{s.id}": tag(
            "section",
            tag("h2", s.title),
            s.body,
            id=s.id,
            class_=style,
            data_part=f"section:{s.id}",
        )
        for s, style in placed
    }
    return {"head": head, "links": links, **sections}


def body(made: Mapping[str, str], place: Path | str) -> list[Safe]:
    sections = [Safe(m) for k, m in made.items() if k.startswith("section:")]
    return [
        tag("header", Safe(made["head"])),
        tag(
            "div",
            tag("nav", Safe(made["links"]), aria_label="Sections"),
            tag("main", sections, id="content", data_list="section"),
            class_="columns",
        ),
        tag("p", str(place), class_="place quiet"),
    ]
