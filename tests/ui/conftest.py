"""A server of pages in a thread, and a browser that looks at it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tacit.ui.serve import serve
from tests.browsing import PATIENCE, SIZES, browser, browser_path  # noqa: F401  # fixtures


@contextmanager
def served(runs: Path, **options: Any) -> Iterator[str]:
    """The address of a server over these runs."""
    until, addresses = threading.Event(), queue.Queue[str]()
    thread = threading.Thread(
        target=serve,
        args=(runs,),
        kwargs={"port": 0, "until": until, "ready": addresses.put, **options},
        daemon=True,
    )
    thread.start()
    try:
        yield addresses.get(timeout=300)
    finally:
        until.set()
        thread.join(300)
    assert not thread.is_alive()


@pytest.fixture
def seen(browser: Any) -> Iterator[Callable[..., Any]]:  # noqa: F811
    """Open an address and check at the end that there was no error, and no request to anywhere else."""
    said: list[str] = []
    contexts = []

    def look(address: str, size: str = "desk", scheme: str = "light", **more: Any) -> Any:
        context = browser.new_context(viewport=SIZES[size], color_scheme=scheme, **more)
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        own = urlsplit(address).netloc
        page.on(
            "console",
            lambda m: said.append(f"console {m.type}: {m.text}") if m.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda e: said.append(f"page error: {e}"))
        page.on(
            "request",
            lambda r: (
                None
                if urlsplit(r.url).netloc == own or r.url == "data:,"
                else said.append(f"request: {r.url}")
            ),
        )
        page.goto(address)
        return page

    yield look
    for context in contexts:
        context.close()
    assert said == []
