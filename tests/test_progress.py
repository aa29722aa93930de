"""The progress display: lines without a terminal, nothing when quiet, a bar in a terminal."""

from __future__ import annotations

import pytest

from tacit.progress import Progress


def test_without_a_terminal_every_tenth_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as progress:
        assert not progress.is_live
        progress.step("reading a[b].csv")
        for k in range(101):
            progress.share(f"{k} rows", k / 100)
        progress.start("not shown", total=5)
        progress.update(3, "not shown")
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert lines[0] == "reading a[b].csv …"
    assert lines[1] == "0 rows"
    assert lines[2].startswith("10 rows  ")
    assert lines[2].endswith(" s left")
    assert lines[-1] == "100 rows"
    assert len(lines) == 12


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(quiet=True) as progress:
        progress.step("reading")
        progress.share("half", 0.5)
        progress.line("a note")
    assert capsys.readouterr() == ("", "")


def test_in_a_terminal_there_is_a_bar_and_names_are_not_markup(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with Progress(count_bytes=True) as progress:
        assert progress.is_live
        progress.start("train-images[idx].gz", total=100, done=10)
        progress.update(50, "detail [here]")
        progress.share("[70%]", 0.7)
        progress.line("a [note]")
    err = capsys.readouterr().err
    assert "a [note]" in err
    assert "[70%]" in err
