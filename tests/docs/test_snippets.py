"""Every snippet of the documentation runs, and prints what the page says it prints."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import warm

from .pages import PAGES, Block, alike, blocks
from .parts import parts
from .session import DATA, play

NEEDS = {
    "tutorial-large-table.md": "adult",
    "tutorial-credit.md": "fate_vfl",
}  # pages whose reader downloads a data set
PARTS = [
    pytest.param(page, part, id=f"{page.name}, line {part[0].line}")
    for page in PAGES
    for part in parts(blocks(page.read_text()))
    if any(b.kind in ("python", "console") for b in part)
    and (page.name not in NEEDS or (DATA / NEEDS[page.name]).is_dir())  # as on CI
]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", warm.start)
    monkeypatch.setenv("TACIT_DATA", str(DATA))
    monkeypatch.setenv("COLUMNS", "200")  # no wrapped lines in what the command line prints


@pytest.mark.parametrize(("page", "part"), PARTS)
def test_every_snippet_runs_and_prints_what_the_page_shows(
    page: Path, part: list[Block], tmp_path: Path
) -> None:
    for s in play(page, tmp_path, part):
        where = f"{page.name}, line {s.first}: {s.command}"
        assert not s.failed, f"{where} ended with {s.failed}"
        assert not s.shown.strip() or alike(s.shown, s.printed), (
            f"{where}: the page shows\n{s.shown}\nbut this was printed\n{s.printed}"
        )


def test_every_block_that_runs_is_in_one_part() -> None:
    for page in PAGES:
        found = [b for b in blocks(page.read_text()) if b.kind in ("python", "console")]
        tested = [b for part in parts(found) for b in part]
        assert sorted(tested, key=lambda b: b.line) == found


def test_blocks_that_share_a_name_or_a_file_are_in_one_part() -> None:
    text = "```python\nimport a\nx = a.b()\n```\n```python\nprint(x)\n```\n```text\n1\n```\n```python\na.c(out='run')\n```\n"
    text += "```toml job.toml\n```\n```console\n$ tacit run job.toml --out other\n$ tacit show run/log\n```\n"
    assert [[b.line for b in part] for part in parts(blocks(text))] == [[2, 6, 9], [12, 15, 17]]


def test_every_block_says_what_it_is() -> None:
    """`python` runs, `console` runs its tacit commands, `text` is compared, `py` and `java` are other
    projects' code; a misspelled word would silently do nothing."""
    known = {
        ("python",),
        ("console",),
        ("text",),
        ("toml",),
        ("bash",),
        ("mermaid",),
        ("json",),
        ("py",),
        ("java",),
        (),
    }
    for page in PAGES:
        for b in blocks(page.read_text()):
            assert b.words in known or b.is_file, (
                f"{page.name}, line {b.line}: {' '.join(b.words)!r} is no kind of block"
            )


def test_code_of_other_projects_is_python_at_least() -> None:
    """It is not run: those projects are not installed here. A misspelled line would mislead all the same."""
    found = [(page, b) for page in PAGES for b in blocks(page.read_text()) if b.words == ("py",)]
    assert len(found) > 4
    for page, b in found:
        compile(b.code, f"{page.name}, line {b.line}", "exec")


def test_the_comparison_of_outputs_can_fail() -> None:
    assert alike("accuracy 0.951 ± 0.002", "accuracy   0.953 ± 0.001")
    assert alike("a 1\n…\n", "a 1\nb 2\nc 3")
    assert not alike("accuracy 0.951", "accuracy 0.700")
    assert not alike("FedAvg 0.951", "FedProx 0.951")
    assert not alike("one line", "one line and more")
