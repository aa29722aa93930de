"""The report of a synthetic table in a real browser: score → property → column → plot, no error, no request,
and hostile names stay text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.errors import BadRun
from tacit.synth import Evaluation, evaluate
from tacit.synth.report import render
from tests.browsing import PATIENCE, browser, browser_path  # noqa: F401  # fixtures

from .clinic import patients

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def seen() -> Evaluation:
    tables = [patients(400, k).rename(columns={"ward": HOSTILE}) for k in range(3)]
    tables[0].loc[3, HOSTILE] = '"><img src=x onerror=alert(2)>'
    tables[0].loc[np.arange(5, 40), "age"] = np.nan
    return evaluate(tables[0], tables[1], holdout=tables[2], target="ill", name="study <b>")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (375, "dark")])
def test_it_opens_without_a_word_and_leads_from_the_score_to_the_plot(
    seen: Evaluation,
    browser: Any,  # noqa: F811
    tmp_path: Path,
    width: int,
    scheme: str,
) -> None:
    path = seen.report(tmp_path / "new" / "synth.html")
    said: list[str] = []
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.on("console", lambda m: said.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: said.append(str(e)))
    page.on("request", lambda r: said.append(r.url) if r.url not in (path.as_uri(), "data:,") else None)
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for section in ("summary", "fidelity", "utility", "privacy", "distances", "columns", "pairs"):
        assert page.query_selector(f"section#{section}"), section
    assert "exact copies" in page.inner_text("#utility")
    assert "membership AUC" in page.inner_text("#utility")
    part = page.query_selector("#fidelity details")
    part.query_selector("summary").click()
    column = page.query_selector_all("#columns > details")[-1]
    assert not column.query_selector("svg").is_visible()
    column.query_selector("summary").click()
    assert column.query_selector("svg").is_visible()
    assert column.query_selector(".series")
    context.close()
    assert said == []


def test_names_from_the_data_stay_text(seen: Evaluation) -> None:
    page = render(seen)
    assert HOSTILE not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "<img src=x" not in page
    assert "study &lt;b&gt;" in page
    assert re.search(r"Content-Security-Policy", page)


def test_points_of_real_people_can_be_left_out_and_the_page_says_what_it_shows(seen: Evaluation) -> None:
    with_points, without = render(seen), render(seen, points=False)
    assert "some rows as points. Keep it where the real table is kept." in with_points
    assert "Numeric pairs with the largest difference" in with_points
    assert "Numeric pairs with the largest difference" not in without
    assert "histograms of the real table. Keep it where" in without


def test_an_evaluation_without_holdout_has_a_report_too_and_shows_no_utility(tmp_path: Path) -> None:
    bare = evaluate(patients(100, 0), patients(100, 1))
    text = bare.report(tmp_path / "r.html").read_text()
    assert 'id="utility"' not in text
    assert "Without a holdout no attack was run" in text


def test_a_place_that_cannot_be_written_is_named(seen: Evaluation, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadRun, match=r"the report cannot be written to .*Choose a place you may write to"):
        seen.report(tmp_path / "file" / "r.html")
