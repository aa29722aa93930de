"""A real browser for the report."""

from __future__ import annotations

from tests.browsing import browser, browser_path, opened  # noqa: F401  # fixtures
