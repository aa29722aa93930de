"""tacit ftl, as a user types it: all parties here, in processes, each with its own kit over a hub; then new
rows of the target alone.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.cli.shell import finish, provision, said

from .test_split import start

JOB = """
[ftl]
width = 4
epochs = 100
[parties.bank]
file = "bank.csv"
id = "id"
label = "default"
[parties.shop]
file = "shop.csv"
id = "customer"
"""
SHARED = JOB.replace("[ftl]", '[ftl]\nsecure = "shared"') + "[parties.notary]\nhelper = true\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    n = 240
    x = rng.normal(size=(n, 3))
    whole = pd.DataFrame(
        {
            "id": [f"{k:03d}" for k in range(n)],
            "age": 50 + 9 * x[:, 0],
            "income": x[:, 1],
            "basket": x[:, 0] + 0.3 * x[:, 2],
            "visits": 4 + x[:, 1] - 0.3 * x[:, 2],
        }
    )
    whole["default"] = np.where(x[:, 0] + x[:, 1] > 0, "yes", "no")
    whole[["id", "age", "income", "default"]].iloc[:140].sample(frac=1, random_state=1).to_csv(
        "bank.csv", index=False
    )
    whole[["id", "basket", "visits"]].iloc[110:220].sample(frac=1, random_state=2).rename(
        columns={"id": "customer"}
    ).to_csv("shop.csv", index=False)
    whole[["id", "basket", "visits"]].iloc[220:].rename(columns={"id": "customer"}).to_csv(
        "new.csv", index=False
    )
    whole.to_csv("whole.csv", index=False)
    Path("job.toml").write_text(JOB)
    Path("shared.toml").write_text(SHARED)
    return tmp_path


def right(file: str | Path, rows: int) -> float:
    made = pd.read_csv(file, dtype={"customer": str})
    whole = pd.read_csv("whole.csv", dtype={"id": str}).set_index("id")
    assert len(made) == rows
    assert list(made.columns) == ["customer", "p(no)", "p(yes)", "prediction"]
    return float((made["prediction"] == whole.loc[made["customer"], "default"].to_numpy()).mean())


@pytest.mark.parametrize("job", ["job.toml", "shared.toml"])
def test_everybody_here_then_new_rows(place: Path, capsys: pytest.CaptureFixture[str], job: str) -> None:
    code, out = said(capsys, "ftl", job, "--out", "made")
    assert code == 0, out
    assert "rows    30 shared" in out
    assert sorted(p.name for p in (place / "made" / "shop").iterdir()) == [
        "answers.csv",
        "ledger.json",
        "part.json",
        "part.safetensors",
    ]
    assert right("made/shop/answers.csv", 110) > 0.8
    before = Path("made/shop/part.safetensors").stat().st_mtime_ns
    code, out = said(capsys, "ftl", job, "--out", "made")
    assert code == 2
    assert "made/bank already contains a party's part, which is never overwritten. Use another --out." in out
    assert Path("made/shop/part.safetensors").stat().st_mtime_ns == before
    code, out = said(capsys, "predict", "made", "--file", "shop=new.csv", "--out", "new_answers.csv")
    assert code == 0, out
    assert right("new_answers.csv", 20) > 0.8


def test_processes_give_the_same_answers_as_one_process(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, "ftl", "job.toml", "--out", "one")[0] == 0
    code, out = said(capsys, "ftl", "job.toml", "--out", "two", "--processes")
    assert code == 0, out
    assert Path("one/shop/answers.csv").read_text() == Path("two/shop/answers.csv").read_text()


def test_labels_of_the_target_are_measured_by_where_it_names_them(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop, whole = pd.read_csv("shop.csv", dtype=str), pd.read_csv("whole.csv", dtype=str).set_index("id")
    shop.assign(late=whole.loc[shop["customer"], "default"].to_numpy()).to_csv("shop.csv", index=False)
    Path("job.toml").write_text(JOB + 'measure = "late"\n')
    code, out = said(capsys, "ftl", "job.toml", "--out", "made", "--json")
    assert code == 0, out
    assert json.loads(out)["metrics"]["auc"] > 0.85


def test_each_with_its_kit_over_a_hub(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    provision("bank", "shop", "notary")
    hub = start("hub", "--kit", "kits/hub")
    try:
        bank, shop, notary = map(
            finish,
            [
                start("ftl", "shared.toml", "--kit", f"kits/{name}", "--json")
                for name in ("bank", "shop", "notary")
            ],
        )
    finally:
        hub.send_signal(signal.SIGINT)
        hub.communicate(timeout=300)
    assert right("kits/shop/part/answers.csv", 110) > 0.8
    code, out = said(
        capsys, "ftl", "shared.toml", "--kit", "kits/shop"
    )  # the hub is gone, and is not even sought
    assert code == 2
    assert "kits/shop/part already contains a party's part, which is never overwritten." in out
    assert bank["rows"] == shop["rows"] == notary["rows"] == 30
    assert {line["kind"] for line in bank["ledger"]["seen"]} & {
        "Activations",
        "CutGradients",
        "SumsShare",
    } == set()


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (
            JOB.replace('label = "default"', ""),
            "0 parties with id and label (the source), 2 with only an id (the target)",
        ),
        (
            JOB.replace("[ftl]", '[ftl]\nsecure = "magic"'),
            "ftl: secure is 'magic'; it must be one of 'cut', 'shared'.",
        ),
        (JOB.replace("width", "breadth"), "ftl: it has no key 'breadth'."),
        (
            JOB.replace("width = 4", "width = 0"),
            "job.toml, ftl: width is 0; it must be a whole number of at least 1.",
        ),
        (
            JOB.replace("width = 4", 'lr = "fast"'),
            "job.toml, ftl: lr is 'fast'; it must be a number above 0.",
        ),
        (
            JOB.replace("width = 4", 'guards = [{ name = "ClipRows", norm = 0 }]'),
            "job.toml, ftl, guards[0]: ClipRows: norm is 0; it must be a number above 0.",
        ),
        (
            JOB.replace("width = 4", "protect = 3"),
            "job.toml, ftl, protect: value is 3; it must be a table with a `name`",
        ),
        (JOB.replace('id = "customer"', "id = 3"), "job.toml, parties.shop: id is 3; it must be text."),
        ("parties = 3", "job.toml: parties is 3; it must be a table, written as [parties]."),
        (JOB.replace('file = "shop.csv"', ""), "parties.shop: file is missing"),
        (
            SHARED.replace("[parties.notary]\nhelper = true\n", ""),
            "with secure = 'shared' there must be 1, 1 and 1",
        ),
        (
            SHARED.replace("width", 'guards = [{ name = "ClipRows" }]\nwidth'),
            "guards and protect apply to a cut",
        ),
    ],
    ids=[
        "label",
        "secure",
        "setting",
        "width",
        "lr",
        "norm",
        "protect",
        "id",
        "parties",
        "file",
        "helper",
        "guards",
    ],
)
def test_bad_jobs(place: Path, capsys: pytest.CaptureFixture[str], job: str, text: str) -> None:
    Path("job.toml").write_text(job)
    code, out = said(capsys, "ftl", "job.toml", "--out", "made")
    assert code == 2
    assert text in " ".join(out.split())
    assert not Path("made").exists()
