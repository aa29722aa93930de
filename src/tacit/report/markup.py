"""Markup that is escaped by construction: only what `tag` and `Safe` made is trusted, everything else is
text.

Party names, labels and notes in a run come from other organisations; a name such as `<script>` must arrive on
the page as those letters.
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
    """Text that any reader can show."""
    return _UNPRINTABLE.sub("\ufffd", str(value))


def text(value: object) -> Safe:
    """Text as markup; markup stays as it is."""
    return value if isinstance(value, Safe) else Safe(html.escape(plain(value), quote=True))


def number(value: float) -> str:
    """A coordinate: two decimals are finer than any screen, and keep the file small."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def tag(name: str, /, *children: Any, **attributes: Any) -> Safe:
    """`tag("td", "a < b", class_="num")`; an attribute that is None is left out, `_` stands for `-`."""
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(number(value) if isinstance(value, float) else value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = join(children)
    return Safe(f"<{name}{pairs}/>" if name in _EMPTY else f"<{name}{pairs}>{inner}</{name}>")


def join(parts: Any) -> Safe:
    """Markup and text in a row; None and nested lists are allowed."""
    return Safe("".join(join(p) if isinstance(p, (list, tuple)) else text(p) for p in parts if p is not None))
