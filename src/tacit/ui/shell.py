"""The frame of every page: navigation, the two files it loads, and the parts that are replaced live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from ..report.markup import Safe, tag
from ..report.page import page_script, style_sheet

HERE = Path(__file__)


def style() -> str:
    return style_sheet() + HERE.with_name("ui.css").read_text(encoding="utf-8")


def script() -> str:
    return page_script() + HERE.with_name("ui.js").read_text(encoding="utf-8")


def href(root: str, *parts: str) -> str:
    """Return an address below the token; parts are quoted, except for the `/` of a run's id."""
    return "/".join((root, *(quote(p, safe="/") for p in parts)))


def part(key: str, markup: Safe | str, name: str = "div", **attributes: str | None) -> Safe:
    """An element that is replaced when its content changes."""
    return tag(name, markup, data_part=key, **attributes)


def document(
    root: str,
    title: str,
    body: Sequence[Safe | None],
    *,
    here: str = "",
    live: str | None = None,
    rooms: Mapping[str, str],
) -> str:
    """Return a page. `rooms` are names and addresses of the main pages; `live` is its stream of changes."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="same-origin"),
        tag("link", rel="icon", href="data:,"),
        tag("link", rel="stylesheet", href=f"{root}/ui.css"),
        tag("title", f"{title} · tacit"),
    )
    links = [
        tag("a", name, href=address, aria_current="page" if name == here else None)
        for name, address in rooms.items()
    ]
    top = tag(
        "div",
        tag("a", "tacit", href=f"{root}/", class_="mark"),
        tag("nav", *links, class_="rooms", aria_label="Pages"),
        tag("span", "", id="state", role="status"),
        class_="top",
    )
    page = tag(
        "body",
        tag("a", "Skip to the content", href="#content", class_="skip"),
        top,
        *[b for b in body if b is not None],
        tag(
            "footer",
            tag(
                "p",
                "Keys: ",
                tag("kbd", "/"),
                " search, ",
                tag("kbd", "j"),
                " ",
                tag("kbd", "k"),
                " next and previous row, ",
                tag("kbd", "x"),
                " select, ",
                tag("kbd", "Enter"),
                " open, ",
                tag("kbd", "c"),
                " compare, ",
                tag("kbd", "r"),
                " all runs. This page loads nothing from elsewhere.",
            ),
        ),
        tag("div", "", id="tip", role="status", hidden="hidden"),
        tag("script", "", src=f"{root}/ui.js"),
        data_root=root,
        data_live=live,
    )
    return f"<!doctype html>\n{tag('html', head, page, lang='en')}\n"
