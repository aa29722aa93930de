"""The report in a real browser: no error, no request, readable in light, dark and on a phone, and its
controls work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tacit.report import read, write
from tests.browsing import SIZES

from . import made


@pytest.fixture(scope="module")
def report(compared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("pages") / "report.html", *read(compared))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desk", "phone"])
def test_every_chart_is_seen_and_the_page_never_scrolls_sideways(
    opened: Any, report: Path, size: str, scheme: str
) -> None:
    page = opened(report, size, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size]["width"]
    boxes = [svg.bounding_box() for svg in page.query_selector_all("svg.tacit-chart") if svg.is_visible()]
    assert len(boxes) >= 16
    assert all(b["width"] > 250 and b["height"] > 60 for b in boxes)
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    ink = page.evaluate("getComputedStyle(document.querySelector('svg .title')).fill")
    bright = [sum(map(int, c.strip("rgb()").split(","))) for c in (light, ink)]
    assert (bright[0] > bright[1]) == (scheme == "light")
    assert abs(bright[0] - bright[1]) > 300


@pytest.mark.parametrize("size", ["laptop", "wide"])
def test_no_table_is_cut_and_two_charts_fill_the_width(
    opened: Any, report: Path, size: str, tmp_path: Path
) -> None:
    page = opened(report, size)
    cut = "all => all.filter(e => !e.closest('details') && e.scrollWidth > e.clientWidth + 1).length"
    assert page.eval_on_selector_all("main .scroll", cut) == 0
    main = page.locator("main").bounding_box()["width"]
    charts = [svg.bounding_box()["width"] for svg in page.query_selector_all("#curves svg")[:2]]
    assert sum(charts) > 0.85 * main
    run = made.run(tmp_path / "r", parties=5)
    page = opened(write(tmp_path / "r.html", *read(run)), size)
    tops = [page.locator(f"#{id}").bounding_box() for id in ("bytes", "parties")]
    assert (tops[0]["y"] == tops[1]["y"]) == (size == "wide")  # side by side where there is room


def test_untrusted_names_run_nothing(opened: Any, tmp_path: Path) -> None:
    names = [
        "<script>document.title='owned'</script>",
        "<img src=x onerror=\"document.title='owned'\">",
        '"><svg onload="document.title=\'owned\'">',
    ]
    page = opened(
        write(
            tmp_path / "r.html", *read(made.run(tmp_path / "r", parties=3, names=names, with_landscape=True))
        ),
        "phone",
    )
    page.locator("#skew svg rect").first.hover(force=True)  # the cell's number lies over it
    assert "<script>" in page.inner_text("#tip")
    assert "owned" not in page.title()
    assert page.evaluate("document.documentElement.scrollWidth") <= 375


def test_a_table_sorts_both_ways_by_value(opened: Any, report: Path) -> None:
    page = opened(report)
    for direction in ("ascending", "descending"):
        page.click("#results thead th:nth-child(2) button")
        values = page.eval_on_selector_all(
            "#results tbody td:nth-child(2)", "cells => cells.map(c => Number(c.dataset.sort))"
        )
        assert values == sorted(values, reverse=direction == "descending")
        assert page.get_attribute("#results thead th:nth-child(2)", "aria-sort") == direction
    page.click("#results thead th:nth-child(1) button")
    assert page.inner_text("#results tbody tr:first-child th") == "central"


def test_the_copy_button_copies_the_job(opened: Any, report: Path, compared: Path) -> None:
    page = opened(report, permissions=["clipboard-read", "clipboard-write"])
    page.click("[aria-label='Copy job.toml']")
    page.wait_for_function(
        "document.querySelector(\"[aria-label='Copy job.toml']\").textContent === 'Copied'"
    )
    assert page.evaluate("navigator.clipboard.readText()") == (compared / "job.toml").read_text()


def test_hovering_shows_values_and_a_key_hides_its_curve(opened: Any, report: Path) -> None:
    page = opened(report)
    page.locator("#curves svg .area").first.scroll_into_view_if_needed()
    page.locator("#curves svg .area").first.hover(force=True)
    assert page.is_visible("#tip")
    before = page.inner_text("#tip").splitlines()
    assert len(before) == 6  # the round, then five curves
    assert before[0] == "10"
    key = page.locator("#curves svg .key").first
    key.focus()
    page.keyboard.press("Enter")
    assert key.get_attribute("aria-pressed") == "false"
    page.locator("#curves svg .area").first.hover(force=True)
    after = page.inner_text("#tip").splitlines()
    assert set(before) - set(after) == {next(line for line in before if line.startswith("FedAvg"))}


def test_without_scripts_everything_is_there(opened: Any, report: Path) -> None:
    page = opened(report, java_script_enabled=False)
    assert page.is_visible("#results table")
    assert page.locator("button:visible").count() == 0
    assert page.locator("svg.tacit-chart").first.is_visible()


def test_on_paper_it_is_dark_on_white(opened: Any, report: Path) -> None:
    page = opened(report, "desk", "dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.querySelector('svg .title')).fill") == "rgb(29, 39, 51)"
    assert not page.is_visible("nav")
