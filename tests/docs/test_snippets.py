"""Every snippet of the documentation runs, and prints what the page says it prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import tacit

from .pages import PAGES, PLANNED, Block, alike, blocks
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
        assert not s.shown.strip() or alike(s.shown, s.printed), f"{where}: the page shows\n{s.shown}\nbut this was printed\n{s.printed}"


def planned() -> list[tuple[str, Block]]:
    return [(page.name, b) for page in PAGES for b in blocks(page.read_text()) if b.words == ("python", "planned")]


def test_what_is_marked_planned_is_named_in_the_issues_and_not_there_yet() -> None:
    assert planned(), "the README shows all six jobs, so something must still be planned; if not, delete this test"
    for page, block in planned():
        compile(block.code, page, "exec")
        named = [name for name in PLANNED if re.search(rf"\b{name}\b", block.code)]
        assert named, f"{page}, line {block.line}: a planned snippet names nothing that is planned"
        there = [name for name in re.findall(r"tacit\.(\w+)", block.code) if name in PLANNED and hasattr(tacit, name)]
        assert not there, f"{page}, line {block.line}: {there} exists now; show it as working code"


def test_every_block_says_what_it_is() -> None:
    """`python` runs, `console` runs where it says tacit, `text` is compared; a misspelt word would silently do nothing."""
    known = {("python",), ("python", "planned"), ("console",), ("text",), ("toml",), ("bash",), ("mermaid",), ("json",), ()}
    for page in PAGES:
        for b in blocks(page.read_text()):
            assert b.words in known or b.kind == "toml", f"{page.name}, line {b.line}: {' '.join(b.words)!r} is no kind of block"


def test_the_comparison_of_outputs_can_fail() -> None:
    assert alike("accuracy 0.951 ± 0.002", "accuracy   0.953 ± 0.001")
    assert alike("a 1\n…\n", "a 1\nb 2\nc 3")
    assert not alike("accuracy 0.951", "accuracy 0.700")
    assert not alike("FedAvg 0.951", "FedProx 0.951")
    assert not alike("one line", "one line and more")
