"""The editor of hierarchies: one HTML file in which an owner inspects, changes and downloads them.

    tacit.anonymity.write_editor("hierarchies.html", frame, ["zip", "diagnosis"])

For each column it shows every value with its word at each level, as suggested (`builders.suggest`) or given.
A word is changed in its cell, or for all values that a filter shows; levels are added and removed. What
`Hierarchy.from_rows` would refuse is shown when it is typed. The download is the CSV that
`tacit anonymize --hierarchies` reads. The page has all values of these columns, and sends nothing anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas

from ..report.layout import Section
from ..report.markup import join, tag
from ..report.numbers import count, names
from ..report.page import assemble, write_page
from .builders import Builder, Codes, Dates, Flat, Intervals, Prefixes, suggest
from .classes import check_columns
from .codes import encode_used
from .hierarchies import NULL, STAR, as_hierarchy

KINDS: dict[type[Builder], str] = {
    Dates: "Suggested for dates: day, month, year and so on.",
    Codes: "Suggested for codes of different lengths, like ICD-10 and NUTS: shorter and shorter beginnings.",
    Prefixes: "Suggested for codes of one length, like postal codes and ISCO: last characters become *.",
    Intervals: "Suggested for numbers: wider and wider intervals.",
    Flat: f"Nothing is known about these values: each one, then {STAR}. Add levels between.",
}


def render_editor(
    frame: pandas.DataFrame, columns: Sequence[str], hierarchies: Mapping[str, Any] | None = None
) -> str:
    """Return the page as text. `hierarchies` are as in `anonymize`; the others are suggested."""
    columns = check_columns(frame, columns, "columns", "write_editor")
    given = dict(hierarchies or {})
    check_columns(frame, list(given), "hierarchies", "write_editor", may_be_empty=True)
    sections = []
    for i, column in enumerate(columns):
        values = [v for v in encode_used(frame[column])[1] if v != NULL]
        builder = suggest(values)
        about = "As given." if given.get(column) is not None else KINDS[type(builder)]
        # a hierarchy may have values that this table has not: they stay in it
        hierarchy = as_hierarchy(given.get(column), column, values) if values else None
        rows = [] if hierarchy is None else [list(row) for row in zip(*hierarchy.levels)]
        body = join(
            [
                tag("p", about, class_="quiet"),
                tag(
                    "div",
                    tag("p", "This page needs JavaScript."),
                    class_="editor",
                    data_column=column,
                    # ASCII with escapes: the page shows replacements of control characters, the file has them
                    data_rows=json.dumps([row for row in rows if row[0] != NULL]),
                    data_column_json=json.dumps(column),
                ),
            ]
        )
        sections.append(Section(f"column-{i + 1}", column, body))
    facts = [f"{count(len(frame))} rows", f"columns {names(list(columns), 9)}"]
    script = Path(__file__).with_name("editor.js").read_text(encoding="utf-8")
    foot = (
        "Written by tacit. This file contains the values of these columns: keep it as you keep the table. "
        "It makes no network request; what you change is lost unless you download it."
    )
    return assemble("Hierarchies", join([tag("span", f) for f in facts]), [], sections, foot, script)


def write_editor(
    path: str | Path,
    frame: pandas.DataFrame,
    columns: Sequence[str],
    hierarchies: Mapping[str, Any] | None = None,
) -> Path:
    """Write the page in which the hierarchies of these columns are edited; return its path."""
    return write_page(path, render_editor(frame, columns, hierarchies))
