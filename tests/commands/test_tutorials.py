"""The commands of the tutorials that need several processes, taken from the pages themselves."""

from __future__ import annotations

import shlex
from pathlib import Path

import pandas as pd
import pytest

from tacit import cli
from tests.cli.shell import Role, free_port, said
from tests.docs.pages import ROOT, Block, alike, blocks

PAGE = ROOT / "docs" / "tutorial-hospitals.md"


def commands(block: Block) -> list[list[str]]:
    return [shlex.split(line)[1:] for line in block.code.splitlines()]


def test_the_hospitals_of_the_tutorial_train_in_processes_of_their_own_and_score_patients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page's files, job and commands; the port is one that is free here."""
    monkeypatch.chdir(tmp_path)
    page = blocks(PAGE.read_text())
    exec(next(b.code for b in page if b.kind == "python"), {})
    for block in page:
        if block.kind == "toml":
            Path(block.words[1]).write_text(block.code.replace(":8443", f":{free_port()}"))
    assert cli.main(["provision", "federation.toml", "-o", "kits"]) == 0
    shell = [at for at, b in enumerate(page) if b.kind == "bash"]
    start, use = (commands(page[at]) for at in shell)
    hub, *rest = (Role(tmp_path, words[2].replace("/", "-"), *words) for words in start)
    try:
        assert [role.wait() for role in rest] == [0] * 4, [role.log.read_text()[-2000:] for role in rest]
    finally:
        hub.process.terminate()
        hub.wait()
    server = rest[0].log.read_text()
    shown = page[shell[0] + 1].code
    assert alike(shown, "\n".join(server.splitlines()[-shown.count("\n") :])), server

    code, text = said(capsys, *use[0])
    assert (code, text) == (0, page[shell[1] + 1].code)
    assert (
        cli.main(["predict", "runs/hospitals", "new.csv", "--out", "at-server.csv", "--keep", "patient"]) == 0
    )
    scored = Path("scored-at-va.csv").read_text()
    assert scored == Path("at-server.csv").read_text()
    table = pd.read_csv("scored-at-va.csv")
    assert list(table) == ["patient", "p(no)", "p(yes)", "prediction"]
    assert len(table) == 20
    assert table["p(yes)"].std() > 0.1
