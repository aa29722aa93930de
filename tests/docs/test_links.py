"""Links lead somewhere, the changelog knows the version, and the pages say nothing about the machine they
were written on.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tacit
from tacit import algorithms, data

from .pages import PAGES, ROOT, anchors, blocks, links


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_relative_link_resolves(page: Path) -> None:
    text = page.read_text()
    for link in links(text):
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}, and there is no {path}"
        if anchor:
            assert anchor in anchors(target.read_text()), (
                f"{page.name} links to {link}, and {target.name} has no such heading"
            )


def test_every_page_is_in_the_index() -> None:
    index = links((ROOT / "docs" / "README.md").read_text())
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or page.name in index, f"docs/README.md does not link to {page.name}"


def test_the_newest_entry_of_the_changelog_is_this_version() -> None:
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert versions[0] == tacit.__version__


def test_the_readme_shows_each_job_in_at_most_eight_lines() -> None:
    text = (ROOT / "README.md").read_text()
    jobs = text.split("## Six jobs")[1].split("\n## ")[0]
    found = [b for b in blocks(jobs) if b.kind == "python"]
    assert len(found) == 6
    for block in found:
        lines = [line for line in block.code.splitlines() if line.strip()]
        assert len(lines) <= 8, f"this job takes {len(lines)} lines:\n{block.code}"


def test_the_readme_counts_algorithms_and_skews_right() -> None:
    words = {
        9: "nine",
        10: "ten",
        11: "eleven",
        12: "twelve",
        13: "thirteen",
        14: "fourteen",
        15: "fifteen",
        16: "sixteen",
        21: "twenty-one",
        22: "twenty-two",
        23: "twenty-three",
        24: "twenty-four",
        25: "twenty-five",
        26: "twenty-six",
        27: "twenty-seven",
        28: "twenty-eight",
    }
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"{words[len(algorithms.ALL)]} algorithms" in text
    assert f"{words[len(data.SKEWS)]} kinds of skew" in text


def test_no_page_names_the_machine_it_was_written_on() -> None:
    for page in PAGES:
        found = re.findall(r"(?<![\w.])/(?:work|root|tmp|home)/\S+", page.read_text())
        assert not found, f"{page.name} has {found[0]}"


def test_pictures_are_small_and_shown_on_a_page() -> None:
    text = "".join(page.read_text() for page in (*PAGES, *(ROOT / "docs" / "results").glob("*.md")))
    for picture in (ROOT / "docs" / "images").iterdir():
        assert 1_000 < picture.stat().st_size < 120_000, picture.name
        assert f"images/{picture.name})" in text, picture.name
