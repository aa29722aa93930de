"""The command that writes outputs into the pages: its help writes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import session, tables
from .pages import PAGES


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The pages whose text is written."""
    found: list[Path] = []
    monkeypatch.setattr(tables, "filled", lambda text: text + "\n")
    monkeypatch.setattr(session, "refreshed", lambda page: page.read_text() + "\n")
    monkeypatch.setattr(Path, "write_text", lambda self, text: found.append(self))
    return found


@pytest.mark.parametrize(("words", "status"), [(["--help"], 0), (["--page"], 2), (["nowhere.md"], 2)])
def test_help_and_unknown_pages_write_nothing(words: list[str], status: int, written: list[Path]) -> None:
    with pytest.raises(SystemExit) as ended:
        session.main(words)
    assert ended.value.code == status
    assert not written


def test_named_pages_are_written_and_no_other(written: list[Path]) -> None:
    session.main(["docs/coming-from.md"])
    assert {page.name for page in written} == {"coming-from.md"}
    written.clear()
    session.main([])
    assert set(written) == set(PAGES)
