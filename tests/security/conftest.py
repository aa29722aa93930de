"""No test of this folder is about a finished party's wait for others that have left."""

from __future__ import annotations

import pytest

from tacit.runtimes import link


@pytest.fixture(autouse=True)
def leave_the_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose last message is for a party that it refused, which has left, ends without a second's wait.

    It still waits for the parties that are connected.
    """
    monkeypatch.setattr(link, "ABSENT_SHARE", 0.0)
