"""The anonymity report, as text and in a real browser: it says what the figures say, and holds no row and no
script of anybody else's.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.errors import BadData, BadRun
from tests.browsing import SIZES

SECTIONS = [
    "verdict",
    "table",
    "classes",
    "columns",
    "disclosure",
    "utility",
    "lattice",
    "suppressed",
    "trace",
    "hierarchies",
]


def people(n: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "name": [f"secret-person-{i}" for i in range(n)],
            "age": rng.integers(20, 60, n),
            "zip": rng.choice(["37203", "37215", "37217"], n),
            "sex": rng.choice(["m", "f"], n),
            "diagnosis": rng.choice(["flu", "cold", "ulcer"], n, p=[0.6, 0.3, 0.1]),
        },
        index=[f"label-{i}" for i in range(n)],
    )


@pytest.fixture(scope="module")
def made() -> Any:
    return tacit.anonymize(
        people().drop(columns="name"),
        quasi=["age", "zip", "sex"],
        sensitive=["diagnosis"],
        k=5,
        l=2,
        max_suppressed=0.05,
    )


@pytest.fixture(scope="module")
def page(made: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tacit.risk(people().drop(columns="name"), made, target="diagnosis")
    return found.report(tmp_path_factory.mktemp("pages") / "risk.html")


def test_every_part_the_issue_names_is_there(page):
    text = page.read_text()
    assert re.findall(r'<section id="(\w+)"', text) == SECTIONS
    assert "Content-Security-Policy" in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text


def test_the_figures_are_those_of_the_result(made, page):
    found = tacit.risk(people().drop(columns="name"), made)
    text = page.read_text()
    assert f"k = {found.after.k}</h1>" in text
    assert f"at least {found.after.k - 1} others; before" in text
    assert f"{len(made.suppressed)} of 400 rows" in text
    assert f"Chosen: [{', '.join(str(made.levels[q]) for q in made.quasi)}]" in text
    for step in made.trace:
        assert str(step)[:40].replace("'", "&#x27;") in text


def test_no_row_and_no_label_of_a_table_is_in_it(tmp_path, made):
    frame = people()
    with_names = tacit.risk(
        frame, frame.iloc[sorted(made.rows)].assign(age="*"), ["age", "zip", "sex"], sensitive="diagnosis"
    )
    for file in (with_names.report(tmp_path / "a.html"), made.report(tmp_path / "b.html")):
        assert "secret-person" not in file.read_text()
        assert "label-" not in file.read_text()


def test_a_table_with_unique_rows_is_stamped(tmp_path):
    frame = people().drop(columns="name")
    text = tacit.risk(frame, frame, ["age", "zip", "sex"]).report(tmp_path / "r.html").read_text()
    assert "NOT ANONYMOUS: " in text
    assert "still unique" in text


def test_it_is_the_same_file_each_time(tmp_path, made):
    assert made.report(tmp_path / "1.html").read_bytes() == made.report(tmp_path / "2.html").read_bytes()


@pytest.mark.parametrize(
    "method", sorted(set(tacit.anonymity.ALL) - {"private"})
)  # its report: test_private.py
def test_every_method_has_a_report(tmp_path, method):
    rows = 8 if method in ("cells", "ambiguity") else 60
    frame = people(rows)[["age", "zip", "sex"]].assign(age=lambda f: f["age"] // 10 * 10)
    made = tacit.anonymize(frame, quasi=list(frame), k=2, method=method, max_suppressed=0.5)
    assert "</html>" in made.report(tmp_path / f"{method}.html").read_text()


def test_what_cannot_be_reported_says_why(tmp_path, made):
    import dataclasses

    with pytest.raises(
        BadData,
        match=r"the report needs the original table, which this result does not contain. Use "
        r"tacit.risk\(before, anonymized\)",
    ):
        dataclasses.replace(made, original=None).report(tmp_path / "r.html")
    with pytest.raises(BadRun, match="the report cannot be written to"):
        made.report("/proc/nowhere/r.html")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desk", "phone"])
def test_every_chart_is_seen_and_the_page_never_scrolls_sideways(opened, page, size, scheme):
    shown = opened(page, size, scheme)
    assert shown.evaluate("document.documentElement.scrollWidth") <= SIZES[size]["width"]
    boxes = [svg.bounding_box() for svg in shown.query_selector_all("svg.tacit-chart") if svg.is_visible()]
    assert len(boxes) >= 7
    assert all(b["width"] > 250 and b["height"] > 60 for b in boxes)


def test_hovering_over_the_lattice_names_the_chosen_node(opened, page, made):
    shown = opened(page)
    shown.locator("#lattice svg g.c1 rect").last.hover(force=True)
    assert shown.inner_text("#tip").startswith(
        f"levels [{', '.join(str(made.levels[q]) for q in made.quasi)}]: anonymous"
    )
    assert "chosen" in shown.inner_text("#tip")


def test_the_combinations_sort(opened, page):
    shown = opened(page)
    shown.click("#columns > .scroll thead th:nth-child(2) button")
    values = shown.eval_on_selector_all(
        "#columns > .scroll > table tbody td:nth-child(2)",
        "cells => cells.map(c => Number(c.textContent.replace(',', '')))",
    )
    assert values == sorted(values)


def test_names_from_a_table_run_nothing(opened, tmp_path):
    bad = "<script>document.title='owned'</script>"
    worse = '"><img src=x onerror="document.title=\'owned\'">'
    frame = pd.DataFrame({bad: [worse, worse, "b", "b"], worse: ["x", "x", bad, bad]})
    made = tacit.anonymize(
        frame,
        quasi=[bad],
        sensitive=[worse],
        k=3,
        method="datafly",
        hierarchies={bad: [[worse, bad], ["b", bad]]},
    )
    shown = opened(made.report(tmp_path / "r.html"), "phone")
    assert "owned" not in shown.title()
    assert bad in shown.inner_text("header")
    assert f"{worse} → {bad}" in shown.inner_text("#hierarchies")
    assert shown.evaluate("document.documentElement.scrollWidth") <= 375


def test_on_paper_and_without_scripts_it_can_be_read(opened, page):
    shown = opened(page, "desk", "dark", java_script_enabled=False)
    assert shown.is_visible("#table table")
    shown.emulate_media(media="print")
    assert not shown.is_visible("nav")
