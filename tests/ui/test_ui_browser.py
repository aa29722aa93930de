"""`tacit ui` in a real browser, over runs that are written meanwhile."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import tacit
from tacit import data
from tests.report import made

from .conftest import served

EVIL = "<img src=x onerror=\"document.title='owned'\">"
LIVE = "#state.live"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ui") / "runs"
    made.run(root / "alpha", parties=5)
    made.run(root / "beta", parties=5, label="SCAFFOLD")
    made.run(root / "gamma", parties=5, label="FedNova", rounds=12)
    (root / "beta" / "tags.json").write_text('["baseline"]')
    return root


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    with served(runs) as found:
        yield found


def test_the_list_is_searched_by_words_tags_and_state(seen: Any, address: str) -> None:
    page = seen(address)
    shown = "tbody#rows tr:not([hidden]) a"
    assert sorted(page.locator(shown).all_inner_texts()) == ["alpha", "beta", "gamma"]
    assert page.locator("#rows svg.spark").count() == 3
    assert page.locator("#rows progress").first.get_attribute("value") == "12"
    page.keyboard.press("/")
    page.keyboard.type("tag:baseline")
    assert page.locator(shown).all_inner_texts() == ["beta"]
    assert page.inner_text("#found") == "1 of 3"
    page.fill("#search", "fednova state:finished")
    assert page.locator(shown).all_inner_texts() == ["gamma"]
    page.reload()  # the search is in the address
    assert page.locator(shown).all_inner_texts() == ["gamma"]


def test_the_keyboard_selects_runs_and_compares_them_in_one_chart(seen: Any, address: str) -> None:
    page = seen(address)
    for key in ("j", "x", "j", "x", "c"):
        page.keyboard.press(key)
    page.wait_for_url("**/compare?*")
    assert page.inner_text("h1") == "2 runs compared"
    assert page.locator("#curves svg").first.locator(".series").count() == 2
    assert page.locator("#results tbody tr").count() == 2
    page.keyboard.press("r")
    page.wait_for_url(address)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_never_scrolls_sideways(seen: Any, address: str, scheme: str) -> None:
    page = seen(address, "phone", scheme)
    for place in ("", "run/alpha", "compare?run=alpha&run=beta"):
        page.goto(address + place)
        assert page.evaluate("document.documentElement.scrollWidth") <= 375
        light = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, light.strip("rgb()").split(","))) > 380) == (scheme == "light")


def test_a_finished_run_shows_the_sections_of_its_report(seen: Any, address: str, runs: Path) -> None:
    page = seen(address + "run/alpha")
    ids = page.eval_on_selector_all("main > section", "all => all.map(s => s.id)")
    report = tacit.report.render(*tacit.report.read(runs / "alpha"))
    assert ids
    assert [f'id="{i}"' in report for i in ids] == [True] * len(ids)
    assert report.count("<section") == len(ids)
    page.locator("#curves svg .area").first.scroll_into_view_if_needed()
    page.locator("#curves svg .area").first.hover(force=True)  # the script of the report works here, too
    assert page.is_visible("#tip")


def test_pages_follow_a_real_run_and_keep_what_the_reader_opened(seen: Any, tmp_path: Path) -> None:
    """Two tabs, one on the list and one on the run, while training waits for them after each round.

    A round is written before its callbacks, so the page is one round ahead of them.
    """
    step, done = threading.Semaphore(0), threading.Event()

    def wait(record: Any, model: Any) -> None:
        if record["round"]:
            step.acquire(timeout=300)

    def train() -> None:
        tacit.train(
            data.iris().split(3, seed=0),
            model="logistic",
            algorithm="FedAvg",
            rounds=4,
            callbacks=[wait],
            out=tmp_path / "runs" / "live",
        )
        done.set()

    (tmp_path / "runs").mkdir()
    with served(tmp_path / "runs") as address:
        first = seen(address)
        first.wait_for_selector(LIVE)
        assert first.locator("#rows tr").count() == 0
        thread = threading.Thread(target=train, daemon=True)
        thread.start()
        step.release()
        first.wait_for_selector("#rows tr")  # it appears by itself
        first.click("text=live >> nth=-1")
        first.wait_for_url("**/run/live")
        second = first.context.new_page()
        second.goto(address)
        second.wait_for_selector(LIVE)
        first.bring_to_front()  # a page in the background draws nothing, which a wait would wait for
        step.release()
        first.wait_for_selector("#participants .quiet:has-text('Round 3')")
        first.click("#curves summary >> nth=0")
        step.release()
        first.wait_for_selector("#participants .quiet:has-text('Round 4')")
        assert first.locator("#curves details").first.get_attribute("open") is not None
        assert first.is_visible(".unfinished")
        step.release()
        first.wait_for_selector("#ledger table")  # the end: the report, on the same page
        assert first.locator(".unfinished").count() == 0
        second.bring_to_front()
        second.wait_for_selector("#rows .badge-state.finished")
        thread.join(300)
        first.context.close()
    assert done.is_set()


def test_a_party_that_leaves_shows_at_once_with_the_reason(seen: Any, tmp_path: Path) -> None:
    run = made.run(tmp_path / "runs" / "r", parties=3, names=["north", "south", "west"], done=2)
    with served(tmp_path / "runs") as address:
        page = seen(address + "run/r")
        page.wait_for_selector(LIVE)
        assert "round 3: it has gone" not in page.inner_text("#participants")
        event = {"kind": "round", "round": 3, "loss": 1.0, "accuracy": 0.5, "seconds": 0.1, "sampled": 2}
        with open(run / "events.jsonl", "a") as file:
            file.write(json.dumps({**event, "dropped": {"south": "it has gone"}}) + "\n")
        page.wait_for_selector("#participants :text('it has gone')")
        row = page.locator("#participants tbody tr").first.inner_text()
        assert row.split("\t")[0].strip() == "south"
        assert "round 3: it has gone" in row
        page.context.close()


def test_markup_in_names_is_text_also_in_parts_that_arrive_later(seen: Any, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    names = [EVIL, '"><svg onload="document.title=\'owned\'">', "c"]
    run = made.run(root / EVIL.replace("/", "_"), parties=3, names=names, done=1)
    (run / "tags.json").write_text(json.dumps([EVIL[:40]]))
    with served(root) as address:
        page = seen(address)
        page.wait_for_selector(LIVE)
        made.run(root / "'><b>", parties=2, names=[EVIL, "b"], done=1)
        page.wait_for_selector("#rows tr:nth-child(2)")
        assert page.locator("#rows img, #rows b").count() == 0
        page.click("#rows a:has-text('img')")
        page.wait_for_selector(LIVE)
        with open(run / "events.jsonl", "a") as file:
            file.write(json.dumps({"kind": "note", "text": f"</script>{EVIL}"}) + "\n")
        page.wait_for_selector("#notes")
        assert EVIL in page.inner_text("#notes")
        assert page.locator("main img, main script").count() == 0
        assert "owned" not in page.title()
        page.context.close()


def test_a_thousand_runs_are_listed_and_searched(seen: Any, tmp_path: Path) -> None:
    run = made.run(tmp_path / "runs" / "r0", parties=2, rounds=5)
    for k in range(1, 1000):
        copy = tmp_path / "runs" / f"r{k}"
        copy.mkdir()
        (copy / "events.jsonl").hardlink_to(run / "events.jsonl")
        (copy / "ledger.json").hardlink_to(run / "ledger.json")
    with served(tmp_path / "runs") as address:
        page = seen(address)
        assert page.locator("#rows tr").count() == 1000
        page.fill("#search", "r77")
        assert page.locator("#rows tr:not([hidden])").count() == 11
        page.context.close()


def test_a_click_reaches_what_was_pressed_although_it_changes_meanwhile(seen: Any, tmp_path: Path) -> None:
    """The row is replaced when the run writes a round; a press and a release on two elements are no click."""
    run = made.run(tmp_path / "runs" / "r", parties=3, done=2)
    with served(tmp_path / "runs") as address:
        page = seen(address)
        page.wait_for_selector(LIVE)
        box = page.locator("#rows a").bounding_box()
        page.mouse.move(box["x"] + 5, box["y"] + 5)
        page.mouse.down()
        event = {"kind": "round", "round": 3, "loss": 1.0, "accuracy": 0.5, "seconds": 0.1, "sampled": 3}
        with open(run / "events.jsonl", "a") as file:
            file.write(json.dumps(event) + "\n")
        page.wait_for_selector("body[data-updates='1']")  # it arrived while the button is down
        assert "2 of " in page.inner_text("#rows .bar-cell")
        page.mouse.up()
        page.wait_for_url("**/run/r")
        page.go_back()
        page.wait_for_selector("#rows .bar-cell:has-text('3 of ')")
        page.context.close()


def test_a_browser_without_the_token_sees_nothing(browser: Any, address: str) -> None:
    where = urlsplit(address)
    context = browser.new_context()
    try:
        page = context.new_page()
        for place in ("/", "/run/alpha", "/x" * 3):
            answer = page.goto(f"http://{where.netloc}{place}")
            assert answer.status == 403
            assert "alpha" not in page.content()
            assert where.path.strip("/") not in page.content()
    finally:
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_run_of_a_thousand_parties_fits_the_screen(seen: Any, tmp_path: Path, scheme: str) -> None:
    made.run(tmp_path / "runs" / "r", parties=1000, rounds=4)
    with served(tmp_path / "runs") as address:
        page = seen(address + "run/r", "laptop", scheme)
        page.wait_for_selector(LIVE)
        table = page.locator("#participants .tall")
        assert table.bounding_box()["height"] < 600
        assert table.locator("tbody tr").count() == 100
        assert "900 more parties" in page.inner_text("#participants")
        assert page.evaluate("document.documentElement.scrollWidth") <= 1200
        assert page.evaluate("document.querySelectorAll('*').length") < 8000
        cut = "e => !e.closest('details:not([open])') && e.scrollWidth > e.clientWidth + 1"
        assert page.evaluate(f"[...document.querySelectorAll('.scroll, .chart')].filter({cut}).length") == 0
        page.context.close()


@pytest.mark.parametrize("place", ["", "run/alpha", "compare?run=alpha&run=beta"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read_in_both_schemes(seen: Any, address: str, place: str, scheme: str) -> None:
    """WCAG 2, level AA: a contrast of 4.5 for text, computed from what the browser paints."""
    page = seen(address + place, "desk", scheme)
    page.wait_for_selector(LIVE)
    assert page.evaluate(CONTRAST) == []


CONTRAST = """() => {
  const parse = (text) => { const v = text.match(/[\\d.]+/g).map(Number); return v.length < 4 ? [...v, 1] : v; };
  const light = (c) => c.slice(0, 3).map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
  const found = [];
  for (const e of document.querySelectorAll("body *:not(svg *):not(script)")) {
    const text = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!text || !e.checkVisibility() || e.disabled || e.closest(".skip")) continue;
    let under = e, back = [0, 0, 0, 0];
    while (under && back[3] === 0) { back = parse(getComputedStyle(under).backgroundColor); under = under.parentElement; }
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(back)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) found.push(`${e.tagName} ${e.className} ${e.textContent.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return found;
}"""
