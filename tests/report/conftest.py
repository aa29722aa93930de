"""A real browser, and the runs the tests look at."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import made
import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "msedge")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--no-first-run"]


@pytest.fixture(scope="session")
def browser_path() -> str:
    found = os.environ.get("TACIT_BROWSER") or next((p for name in BROWSERS if (p := shutil.which(name))), None)
    if not found:
        pytest.fail("no browser to open the report in: set TACIT_BROWSER to one, or install it with: apt-get install chromium")
    return found


@pytest.fixture(scope="module")  # no longer: while it is open an event loop runs in this thread, and other tests call asyncio.run
def browser(browser_path: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of three algorithms and the baselines under two skews, two seeds each."""
    return made.comparison(tmp_path_factory.mktemp("compared") / "study", labels=("FedAvg", "SCAFFOLD", "FedNova", "central", "local only"),
                           skews=("IID()", "Dirichlet(alpha=0.5)"), seeds=2)
