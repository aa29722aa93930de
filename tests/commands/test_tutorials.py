"""The commands of the tutorials that need several processes, taken from the pages themselves."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from tacit import cli
from tests.cli.shell import Role, answer, said
from tests.docs.pages import ROOT, Block, alike, blocks
from tests.ports import free_port

PAGE = ROOT / "docs" / "tutorial-hospitals.md"
BANKS = ROOT / "docs" / "tutorial-aml.md"


def commands(block: Block) -> list[list[str]]:
    return [shlex.split(line, comments=True)[1:] for line in block.code.splitlines()]


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


def test_the_banks_of_the_tutorial_compute_with_kits_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """South's commands of the page at every bank and at the notary; the sums and scores are those of one machine."""
    monkeypatch.chdir(tmp_path)
    page = blocks(BANKS.read_text())
    exec(next(b.code for b in page if b.kind == "python"), {})
    new = pd.read_csv("north_new.csv")
    new.drop(columns=["reported", "cash_here"]).to_csv("north_ask.csv", index=False)
    for block in page:
        if block.kind == "toml":
            Path(block.words[1]).write_text(block.code.replace(":8443", f":{free_port()}"))
    assert cli.main(["provision", "federation.toml", "-o", "kits"]) == 0
    Path("policy.toml").rename("kits/south/policy.toml")
    (shell,) = (commands(b) for b in page if b.kind == "bash")
    hub = Role(tmp_path, "hub", *shell[0][:3])
    try:
        for words in shell[1:]:
            roles = [Role(tmp_path, f"{bank}-{words[0]}", *at(bank, words)) for bank in ALL]
            assert [role.wait() for role in roles] == [0] * 4, [r.log.read_text()[-2000:] for r in roles]
    finally:
        hub.process.terminate()
        hub.wait()
    shown = next(b.code for b in page if b.code.startswith("$ tacit join")).splitlines()[2:-1]
    (log,) = tmp_path.glob("east-join-*.log")
    assert all(line in log.read_text() for line in shown)
    assert sorted(p.name for p in tmp_path.glob("scores-*.csv")) == ["scores-north.csv"]
    # Trees of another training may differ where two splits have the same gain, so both score with the same trees.
    for bank in ALL[:3]:
        shutil.copytree(f"trees-{bank}", f"trees/{bank}")
    here = ["predict", "trees", *(w for b in ALL[:3] for w in ("--file", f"{b}={new_rows(b)}"))]
    assert cli.main([*here, "--out", "here.csv"]) == 0
    joint, alone = (pd.read_csv(f).sort_values("tax_id") for f in ("scores-north.csv", "here.csv"))
    assert list(joint.tax_id) == list(alone.tax_id)
    assert abs(joint["p(yes)"].to_numpy() - alone["p(yes)"].to_numpy()).max() < 1e-6
    assert roc_auc_score(new.set_index("tax_id").reported[joint.tax_id] == "yes", joint["p(yes)"]) > 0.9
    capsys.readouterr()
    found = answer(capsys, "party", "log", "--kit", "kits/south", "--verify")
    assert found["ok"]
    assert found["entries"] > 6


ALL = ("north", "south", "east", "notary")


def new_rows(bank: str) -> str:
    return "north_ask.csv" if bank == "north" else f"{bank}_new.csv"


def at(bank: str, words: list[str]) -> list[str]:
    """South's command as this bank runs it; the notary has no file."""
    own = [new_rows(bank) if w == "south_new.csv" else w.replace("south", bank) for w in words]
    if bank == "notary" and "--file" in own:
        place = own.index("--file")
        del own[place : place + 2]
    return own
