from __future__ import annotations

import pytest

from .shell import SMALL


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty place to work in, with a small job in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(SMALL, encoding="utf-8")
    return tmp_path
