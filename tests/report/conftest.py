"""A real browser, and the runs the tests look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browsing import browser, browser_path, opened  # noqa: F401  # fixtures

from . import made


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of three algorithms and the baselines under two skews, two seeds each."""
    return made.comparison(
        tmp_path_factory.mktemp("compared") / "study",
        labels=("FedAvg", "SCAFFOLD", "FedNova", "central", "local only"),
        skews=("IID()", "Dirichlet(alpha=0.5)"),
        seeds=2,
    )
