"""The reference pages say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tacit import algorithms, data, models
from tacit.parameters import describe

from .pages import PAGES, ROOT
from .tables import MARK, TABLES, filled


@pytest.mark.parametrize("page", [p for p in PAGES if p.name.startswith("reference-")], ids=lambda p: p.name)
def test_the_tables_of_the_reference_are_those_of_the_code(page: Path) -> None:
    text = page.read_text()
    assert filled(text) == text, (
        f"{page.name} is not what the code says; write it anew with: python -m tests.docs.tables"
    )


def test_every_table_is_in_the_reference() -> None:
    used = {m[2] for page in PAGES for m in MARK.finditer(page.read_text())}
    assert used == set(TABLES)


def test_every_parameter_of_every_algorithm_and_part_is_explained() -> None:
    text = (ROOT / "docs" / "reference-algorithms.md").read_text()
    for name, cls in {**algorithms.ALL, **algorithms.PARTS}.items():
        section = text.split(f"### {name}\n")[1].split("\n###")[0]
        for declared, allowed, doc in describe(cls):
            assert doc, f"{name}.{declared} has no doc"
            assert re.search(rf"\| `{re.escape(declared.split('=')[0])}\b", section), (
                f"{name}: {declared} is not in the reference"
            )
            assert allowed in section


def test_the_reference_names_every_member_of_every_room() -> None:
    for page, room in (
        ("algorithms", algorithms.ALL),
        ("skews", data.SKEWS),
        ("models", models.ALL),
        ("data", data.ALL),
    ):
        text = (ROOT / "docs" / f"reference-{page}.md").read_text()
        absent = [name for name in room if not re.search(rf"\b{name}\b", text)]
        assert not absent, f"reference-{page}.md does not name {absent}"
