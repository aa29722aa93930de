"""The layout of the report: tables, figures, tiles, and what folds away."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .markup import Safe, join, plain, tag
from .numbers import count
from .records import RunRecord
from .svg import Figure

_FOLDED = re.compile("<details>.*?</details>", re.DOTALL)
MOST_ROWS = 24  # of a table that is shown at its full height
MOST_SKEWS = 4  # charts of skews that are shown at once; the rest fold away


class Page(NamedTuple):
    """The data that every section is made from."""

    records: Sequence[RunRecord]
    comparison: Mapping[str, Any] | None
    colors: Mapping[str, str]

    @property
    def skews(self) -> list[str]:
        return list(dict.fromkeys(r.skew for r in self.records))

    def under(self, skew: str) -> list[RunRecord]:
        return [r for r in self.records if r.skew == skew]

    def title(self, skew: str) -> str:
        return skew if len(self.skews) > 1 else ""


class Section(NamedTuple):
    """A part of a page; one with a single chart takes half of a wide page, beside another such part."""

    id: str
    title: str
    body: Safe

    @property
    def is_half(self) -> bool:
        return self.body.count("<figure>") == 1 and "<table" not in _FOLDED.sub("", self.body)

    def markup(self, style: str | None = None) -> Safe:
        return tag("section", tag("h2", self.title), self.body, id=self.id, class_=style)


def arrange(sections: Sequence[Section]) -> list[tuple[Section, str | None]]:
    """Return sections and their styles: halves in pairs, the second moved up to the first.

    Readers of the markup meet them in the order in which they are seen.
    """
    rest, found = list(sections), list[tuple[Section, str | None]]()
    while rest:
        first = rest.pop(0)
        second = next((s for s in rest if s.is_half), None) if first.is_half else None
        if second is None:
            found.append((first, "lone" if first.is_half else None))
        else:
            rest.remove(second)
            found += [(first, "half"), (second, "half")]
    return found


def table(
    header: Sequence[Any],
    rows: Sequence[Sequence[Any]],
    *,
    caption: str = "",
    sortable: bool = True,
    marks: Mapping[int, str] | None = None,
    keys: Mapping[tuple[int, int], float] | None = None,
) -> Safe:
    """Make a table whose first column names the row.

    `keys` are sort keys for cells whose text is not a number. A long table scrolls below its header.
    """
    sort, mark = keys or {}, marks or {}
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row"),
            [
                tag("td", c, data_sort=repr(sort[i, j]) if (i, j) in sort else None)
                for j, c in enumerate(row[1:], 1)
            ],
            class_=mark.get(i) or None,
        )
        for i, row in enumerate(rows)
    ]
    inner = tag(
        "table",
        tag("caption", caption) if caption else None,
        tag("thead", tag("tr", [tag("th", h, scope="col") for h in header])),
        tag("tbody", body),
        class_="sortable" if sortable else None,
    )
    return tag(
        "div",
        inner,
        class_="scroll tall" if len(rows) > MOST_ROWS else "scroll",
        tabindex=0,
        role="region",
        aria_label=caption or plain(header[0]),
    )


def figure(drawing: Figure | None) -> Safe:
    """Lay out the panels of a figure, each with its caption and table."""
    return join(
        tag(
            "figure",
            tag("div", panel.markup(), class_="chart"),
            tag("figcaption", panel.caption, _as_table(panel)),
        )
        for panel in (drawing.panels or (drawing,) if drawing else ())
    )


def _as_table(panel: Figure) -> Safe | None:
    if not panel.table or not panel.table.rows:
        return None
    values = table(panel.table.header, panel.table.rows, caption=panel.title)
    return tag("details", tag("summary", "Show as a table"), values)


def grid(drawings: Sequence[Figure | None]) -> Safe | None:
    """Lay out figures side by side."""
    parts = [figure(d) for d in drawings if d]
    return tag("div", parts, class_="figures") if parts else None


def folding(parts: Sequence[Any], most: int, what: str) -> Safe:
    """Show the first few and fold the rest, so that a page with a hundred runs stays readable."""
    return join([*parts[:most], more(len(parts) - most, what, list(parts[most:]))])


def more(many: int, what: str, body: Any) -> Safe | None:
    return (
        tag("details", tag("summary", f"{count(many)} more {what}{'s' if many > 1 else ''}"), body)
        if many > 0
        else None
    )


def tile(name: str, value: str, more: str = "", style: str = "") -> Safe:
    return tag(
        "div",
        tag("dt", name),
        tag("dd", value, tag("small", more) if more else None),
        class_=f"tile {style}".strip(),
    )


def per_skew(skews: Sequence[str], draw: Callable[[str], Figure | None]) -> Safe | None:
    """Lay out one figure for each skew, the first few at once."""
    drawings = [d for skew in skews if (d := draw(skew))]
    rest = more(len(drawings) - MOST_SKEWS, "skew", grid(drawings[MOST_SKEWS:]))
    return join([grid(drawings[:MOST_SKEWS]), rest]) if drawings else None
