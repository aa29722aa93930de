"""Every snippet of the documentation runs, and prints what the page says it prints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from .pages import PAGES, alike, blocks
from .session import play

WITH_CODE = [page for page in PAGES if any(b.kind in ("python", "console") for b in blocks(page.read_text()))]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")  # no wrapped lines in what the command line prints
    torch.set_num_threads(1)


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda p: p.name)
def test_every_snippet_runs_and_prints_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    for s in play(page, tmp_path):
        where = f"{page.name}, line {s.first}: {s.command}"
        assert not s.failed, f"{where} ended with {s.failed}"
        assert not s.shown.strip() or alike(s.shown, s.printed), (
            f"{where}: the page shows\n{s.shown}\nbut this was printed\n{s.printed}"
        )


def test_every_block_says_what_it_is() -> None:
    """`python` runs, `console` runs its tacit commands, `text` is compared; a misspelled word would silently do nothing."""
    known = {("python",), ("console",), ("text",), ("toml",), ("bash",), ("mermaid",), ("json",), ()}
    for page in PAGES:
        for b in blocks(page.read_text()):
            assert b.words in known or b.kind == "toml", (
                f"{page.name}, line {b.line}: {' '.join(b.words)!r} is no kind of block"
            )


def test_the_comparison_of_outputs_can_fail() -> None:
    assert alike("accuracy 0.951 ± 0.002", "accuracy   0.953 ± 0.001")
    assert alike("a 1\n…\n", "a 1\nb 2\nc 3")
    assert not alike("accuracy 0.951", "accuracy 0.700")
    assert not alike("FedAvg 0.951", "FedProx 0.951")
    assert not alike("one line", "one line and more")
