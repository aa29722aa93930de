"""The editor of hierarchies in a real browser: what is downloaded is what `anonymize` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas
import pytest

import tacit
from tacit.anonymity import Hierarchy, write_editor
from tacit.errors import BadData
from tests.browsing import SIZES
from tests.cli.shell import run

CODES = ["E11.9", "E11.0", "E10.1", "I10", "I21.4", "C50"]
HOSTILE = [
    "<script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    '"><svg onload="document.title=\'owned\'">',
    "</script><script>document.title='owned'</script>",
    "a;b",
    'say "x"',
    "two\nlines",
    "\u202etxt.exe",
    "&amp;",
    "=1+1",
]


def visits() -> pandas.DataFrame:
    return pandas.DataFrame({"code": CODES * 5, "zip": ["79111", "79112", "79205"] * 10})


def download(page: Any, column: int, folder: Path) -> Path:
    with page.expect_download() as waiting:
        page.click(f"#column-{column} button:has-text('Download')")
    path = folder / waiting.value.suggested_filename
    waiting.value.save_as(path)
    return path


def test_an_unchanged_suggestion_is_downloaded_as_it_was_suggested(opened: Any, tmp_path: Path) -> None:
    page = opened(write_editor(tmp_path / "page.html", visits(), ["code", "zip"]), accept_downloads=True)
    for i, column in enumerate(("code", "zip"), 1):
        path = download(page, i, tmp_path)
        assert path.name == f"{column}.csv"
        values = list(dict.fromkeys(visits()[column]))
        assert Hierarchy.from_csv(path) == tacit.anonymity.suggest(values).build(values)


def test_edited_words_and_levels_are_what_anonymize_uses(opened: Any, tmp_path: Path) -> None:
    """A level is removed and one is added: E11.9 → E11.9 → E11 → E → *; then E10 and E11 become diabetes."""
    page = opened(write_editor(tmp_path / "page.html", visits(), ["code"]), accept_downloads=True)
    editor = page.locator("#column-1")
    editor.locator("select").select_option("2")
    editor.locator("button:has-text('Remove the level')").click()
    editor.locator("select").select_option("1")
    editor.locator("button:has-text('Add a level below')").click()
    editor.locator("input[type=search]").fill("E1")
    editor.locator("select").select_option("2")
    editor.locator("input[aria-label=Word]").fill("diabetes")
    editor.locator("button:has-text('Set for all')").click()
    editor.locator("input[type=search]").fill("")
    path = download(page, 1, tmp_path)
    made = Hierarchy.from_csv(path)
    assert [level[0] for level in made.levels] == ["E11.9", "E11.9", "diabetes", "E", "*"]
    assert [level[3] for level in made.levels] == ["I10", "I10", "I10", "I", "*"]
    result = tacit.anonymize(visits(), quasi=["code"], k=5, hierarchies={"code": path})
    assert result.hierarchies["code"] == made


def test_a_word_with_two_parents_is_shown_and_cannot_be_downloaded(opened: Any, tmp_path: Path) -> None:
    page = opened(write_editor(tmp_path / "page.html", visits(), ["zip"]), accept_downloads=True)
    cell = page.locator("#column-1 input[aria-label='level 1 of 79205']")
    cell.fill("7911*")
    cell.press("Tab")
    assert "7911* at level 1 is both 791** and 792** at level 2" in page.inner_text("#column-1 [role=alert]")
    save = page.locator("#column-1 button:has-text('Download')")
    assert save.is_disabled()
    cell.fill("7920*")
    cell.press("Tab")
    assert save.is_enabled()
    assert page.locator("#column-1 [role=alert]").is_hidden()


@pytest.mark.parametrize("size", ["desk", "phone"])
def test_hostile_values_are_text_and_survive_the_download(opened: Any, tmp_path: Path, size: str) -> None:
    frame = pandas.DataFrame({"<b>x</b>": HOSTILE})
    page = opened(write_editor(tmp_path / "page.html", frame, ["<b>x</b>"]), size, accept_downloads=True)
    assert page.locator("#column-1 tbody tr").count() == len(HOSTILE)
    assert page.locator("#column-1 table img, #column-1 table svg, #column-1 table script").count() == 0
    assert "<script>" in page.inner_text("#column-1 tbody tr:first-child th")
    assert "\u202e" not in page.inner_text("#column-1 table")
    page.locator("#column-1 input[aria-label=Word]").fill(HOSTILE[0])
    page.locator("#column-1 button:has-text('Set for all')").click()
    assert "owned" not in page.title()
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size]["width"]
    made = Hierarchy.from_csv(download(page, 1, tmp_path))
    assert list(made.values) == HOSTILE
    assert set(made.levels[1]) == {HOSTILE[0]}


def test_the_command_writes_a_page_that_starts_from_given_files(
    opened: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    visits().to_csv(tmp_path / "visits.csv", index=False)
    folder = tmp_path / "given"
    folder.mkdir()
    rows = [[v, "south" if v != "79205" else "north", "*"] for v in ("79111", "79112", "79205")]
    Hierarchy.from_rows(rows).to_csv(folder / "zip.csv")
    out = tmp_path / "page.html"
    more = ("--hierarchies", str(folder))
    source = str(tmp_path / "visits.csv")
    code, said, _ = run(capsys, "hierarchies", source, "--columns", "zip,code", "--out", str(out), *more)
    assert code == 0
    assert "download zip.csv, code.csv into a directory" in said
    page = opened(out, accept_downloads=True)
    assert Hierarchy.from_csv(download(page, 1, tmp_path)) == Hierarchy.from_csv(folder / "zip.csv")


def test_unknown_columns_are_refused() -> None:
    with pytest.raises(
        BadData, match=r"write_editor: there is no column 'cod' \(columns\). Did you mean 'code'"
    ):
        write_editor("never.html", visits(), ["cod"])


def test_a_page_with_the_name_of_a_table_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    visits().to_csv(tmp_path / "visits.csv", index=False)
    out = tmp_path / "zip.csv"
    code, _, said = run(
        capsys, "hierarchies", str(tmp_path / "visits.csv"), "--columns", "zip", "--out", str(out)
    )
    assert code == 2
    assert "expected the name of an .html file" in said
    assert not out.exists()
