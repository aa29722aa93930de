"""The matrix of features agrees with the code, and the documentation site builds with every link checked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tacit
from tacit import cli

from .pages import ROOT

ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "features.md").read_text().splitlines()
    if line.startswith("| ") and "`tacit" in line
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_features_are_as_the_matrix_says(row: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    _, python, commands, between, _ = row
    for name in re.findall(r"`tacit\.(\w+)`", python):
        assert hasattr(tacit, name)
    kits = []
    for verb in re.findall(r"`tacit ([\w-]+)`", commands):
        with pytest.raises(SystemExit) as stopped:
            cli.main([verb, "--help"])
        assert stopped.value.code == 0
        kits.append("--kit" in capsys.readouterr().out)
    assert any(kits) == (between == "yes")


def test_every_verb_of_the_matrix_is_listed_once() -> None:
    verbs = [v for row in ROWS for v in re.findall(r"`tacit ([\w-]+)`", row[2])]
    assert {v for v in verbs if verbs.count(v) > 1} <= {"run"}


def test_the_site_builds_and_no_link_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True)
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    assert "aalen_johansen" in (tmp_path / "api" / "stats.html").read_text()
    assert (tmp_path / "how-to-boost.html").is_file()
