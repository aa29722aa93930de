"""A real browser for the reports: a conftest.py imports what it needs from here."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "msedge")
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
PATIENCE = 240_000  # ms for what must happen in a page: Playwright's 30 s are too few on a busy machine
SIZES = {
    "desk": {"width": 1280, "height": 900},
    "laptop": {"width": 1200, "height": 800},
    "wide": {"width": 1680, "height": 1000},
    "phone": {"width": 375, "height": 700},
}


@pytest.fixture(scope="session")
def browser_path() -> str:
    found = os.environ.get("TACIT_BROWSER") or next(
        (p for name in BROWSERS if (p := shutil.which(name))), None
    )
    if not found:
        pytest.fail(
            "no browser to open the report in: set TACIT_BROWSER to one, or install it with: apt-get "
            "install chromium"
        )
    return found


@pytest.fixture(
    scope="module"
)  # no longer: while it is open an event loop runs in this thread, and other tests call asyncio.run
def browser(browser_path: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=QUIET, timeout=PATIENCE)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a file and check at the end of the test that there was no console error, no page error, and no request except
    for the file itself.
    """
    said: list[str] = []
    contexts = []

    def look(path: Path, size: str = "desk", scheme: str = "light", **more: Any) -> Any:
        context = browser.new_context(viewport=SIZES[size], color_scheme=scheme, **more)
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.on(
            "console",
            lambda m: said.append(f"console {m.type}: {m.text}") if m.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda e: said.append(f"page error: {e}"))
        page.on(
            "request",
            lambda r: said.append(f"request: {r.url}") if r.url not in (path.as_uri(), "data:,") else None,
        )
        page.goto(path.as_uri())
        return page

    yield look
    for context in contexts:
        context.close()
    assert said == []
