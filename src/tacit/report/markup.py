"""HTML that is escaped by construction: everything except `Safe` is text.

Party names, labels and notes come from other organizations; a name such as `<script>` must be displayed
literally.
"""

from __future__ import annotations

import html
import re
from typing import Any

# No XML or UTF-8 writer accepts these (control characters, lone surrogates), and bidirectional overrides can
# make a name read as another.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]"
)
_EMPTY = {"br", "circle", "col", "hr", "line", "link", "meta", "path", "polyline", "rect"}


class Safe(str):
    """Markup, as opposed to text."""

    __slots__ = ()


def plain(value: object) -> str:
    """Replace characters that cannot be displayed or that reorder text."""
    return _UNPRINTABLE.sub("\ufffd", str(value))


def text(value: object) -> Safe:
    """Escape text; markup stays as it is."""
    return value if isinstance(value, Safe) else Safe(html.escape(plain(value), quote=True))


def number(value: float) -> str:
    """Format a coordinate with two decimals, which keeps the file small."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def tag(name: str, /, *children: Any, **attributes: Any) -> Safe:
    """Make an element: `tag("td", "a < b", class_="num")`.

    An attribute that is None is left out; `_` in a name becomes `-`.
    """
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(number(value) if isinstance(value, float) else value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = join(children)
    return Safe(f"<{name}{pairs}/>" if name in _EMPTY else f"<{name}{pairs}>{inner}</{name}>")


def join(parts: Any) -> Safe:
    """Join markup and text; None and nested lists are allowed."""
    return Safe("".join(join(p) if isinstance(p, (list, tuple)) else text(p) for p in parts if p is not None))
