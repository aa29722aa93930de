"""tacit split and tacit predict, as a user types them: all parties here, in processes, and each with its own
kit over a hub.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tacit.jobs.ledger_file import read_ledger_file
from tests import warm
from tests.cli.shell import finish, process, provision, said

JOB = """
[split]
epochs = 8
lr = 0.3
top = [8]
[parties.bank]
file = "bank.csv"
id = "id"
label = "default"
bottom = [8]
[parties.shop]
file = "shop.csv"
id = "customer"
bottom = [6]
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    n = 240
    whole = pd.DataFrame(
        {
            "id": [f"{k:03d}" for k in range(n)],
            "age": rng.normal(50, 9, n),
            "town": rng.choice(["a", "b"], n),
            "basket": rng.normal(0, 1, n),
        }
    )
    whole["default"] = np.where((whole.age - 50) / 9 + 2 * whole.basket > 0, "yes", "no")
    whole[["id", "age", "default"]].iloc[:200].sample(frac=1, random_state=1).to_csv("bank.csv", index=False)
    whole[["id", "town", "basket"]].iloc[30:].sample(frac=1, random_state=2).rename(
        columns={"id": "customer"}
    ).to_csv("shop.csv", index=False)
    whole[["id", "age"]].iloc[200:].to_csv("bank_new.csv", index=False)
    whole[["id", "town", "basket"]].iloc[195:].rename(columns={"id": "customer"}).to_csv(
        "shop_new.csv", index=False
    )
    whole.to_csv("whole.csv", index=False)
    Path("job.toml").write_text(JOB)
    return tmp_path


def right(file: str) -> float:
    made = pd.read_csv(file, dtype={"id": str})
    whole = pd.read_csv("whole.csv", dtype={"id": str}).set_index("id")
    assert len(made) == 40  # ids 200 to 239: those both new files have
    assert list(made.columns) == ["id", "p(no)", "p(yes)", "prediction"]
    return float((made["prediction"] == whole.loc[made["id"], "default"].to_numpy()).mean())


def test_everybody_here_then_new_rows(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = said(capsys, "split", "job.toml", "--out", "parts")
    assert code == 0, out
    assert "rows    170 shared" in out
    assert sorted(p.name for p in (place / "parts" / "shop").iterdir()) == [
        "ledger.json",
        "part.json",
        "part.safetensors",
    ]
    code, out = said(
        capsys,
        "predict",
        "parts",
        "--file",
        "bank=bank_new.csv",
        "--file",
        "shop=shop_new.csv",
        "--out",
        "answer.csv",
    )
    assert code == 0, out
    assert "40 rows, predictions in answer.csv" in out
    assert right("answer.csv") > 0.85
    Path("answer.csv").write_text("precious")
    ask = (
        "predict",
        "parts",
        "--file",
        "bank=bank_new.csv",
        "--file",
        "shop=shop_new.csv",
        "--out",
        "answer.csv",
    )
    code, out = said(capsys, *ask)
    assert (code, out) == (
        2,
        "tacit: answer.csv already exists. Choose another name, or pass --force to overwrite it.\n",
    )
    assert Path("answer.csv").read_text() == "precious"
    assert said(capsys, *ask, "--force")[0] == 0
    assert right("answer.csv") > 0.85


def test_processes_give_the_same_parts_as_one_process(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import load_file

    assert said(capsys, "split", "job.toml", "--out", "one")[0] == 0
    code, out = said(capsys, "split", "job.toml", "--out", "many", "--processes", "--json")
    assert code == 0, out
    for party in ("bank", "shop"):
        one, many = (load_file(place / run / party / "part.safetensors") for run in ("one", "many"))
        assert all(float((one[k] - many[k]).abs().max()) < 1e-6 for k in one)


def start(*words: str) -> warm.Popen:
    return process(*words, cwd=Path.cwd())


def test_two_organizations_with_their_own_kits_train_and_predict_over_a_hub(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    provision("bank", "shop")
    hub = start("hub", "--kit", "kits/hub")
    try:
        (place / "shops.toml").write_text(
            JOB.replace('file = "bank.csv"', "").replace('file = "shop.csv"', "")
        )  # nobody need know where others' files lie
        both = [
            start("split", "job.toml", "--kit", "kits/bank", "--out", "bank-part", "--json"),
            start(
                "split",
                "shops.toml",
                "--kit",
                "kits/shop",
                "--file",
                "shop.csv",
                "--out",
                "shop-part",
                "--json",
            ),
        ]
        bank, shop = map(finish, both)
        assert bank["history"][-1]["auc"] > 0.9
        assert shop["history"] == []
        assert {line["kind"] for line in shop["ledger"]["seen"]} >= {"CutGradients", "Agreed"}
        both = [
            start(
                "predict",
                "bank-part",
                "--kit",
                "kits/bank",
                "--file",
                "bank_new.csv",
                "--out",
                "answer.csv",
                "--json",
            ),
            start("predict", "shop-part", "--kit", "kits/shop", "--file", "shop_new.csv", "--json"),
        ]
        bank, shop = map(finish, both)
        assert "out" not in shop
        assert right("answer.csv") > 0.85
        for name, learned in (
            ("bank", "which of its own ids all share (170 of 200)"),
            ("shop", "which of its own ids all share (40 of 45)"),
        ):
            entries = read_ledger_file(place / "kits" / name / "ledger.jsonl")
            assert [(e.verb, e.party, e.failed) for e in entries] == [
                ("split", name, ""),
                ("predict", name, ""),
            ]
            assert learned in str(entries[0 if name == "bank" else 1].ledger)
        code, out = said(
            capsys,
            "predict",
            "bank-part",
            "--kit",
            "kits/bank",
            "--file",
            "bank_new.csv",
            "--out",
            "answer.csv",
            "--patience",
            "2",
        )
        assert (code, out) == (
            2,
            "tacit: answer.csv already exists. Choose another name, or pass --force to overwrite it.\n",
        )  # and nobody waited
    finally:
        hub.send_signal(signal.SIGINT)
        hub.communicate(timeout=300)


def test_a_party_in_the_middle_and_the_u_shape(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The bank alone has columns and labels; a server without a table holds the middle."""
    (place / "u.toml").write_text(
        '[split]\nepochs = 40\nlr = 0.3\n[parties.bank]\nfile = "whole.csv"\nid = "id"\nlabel = '
        '"default"\nbottom = [8]\n'
        "[parties.server]\nmiddle = [8]\n"
    )
    code, out = said(capsys, "split", "u.toml", "--out", "parts", "--json")
    assert code == 0, out
    value = json.loads(out)
    assert value["history"][-1]["auc"] > 0.9
    seen = {(line["party"], line["kind"]) for line in value["ledger"]["seen"]}
    assert ("server", "Activations") in seen
    assert ("server", "BlindedIds") not in seen


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("epochs = 8", "epoch = 8"), "split: it has no key 'epoch'. Did you mean 'epochs'?"),
        (
            ("bottom = [6]", "bottom = 6"),
            "parties.shop: bottom is 6; it must be a list of widths, like [16].",
        ),
        (('label = "default"', ""), "the parties with a label are none; exactly one is needed"),
        (('id = "customer"', 'id = "client"'), "shop.csv has no column 'client'."),
        (('file = "shop.csv"', ""), "parties.shop: file is missing; to run all parties here"),
        (("lr = 0.3", "lr = -1"), "job.toml, split: lr is -1; it must be a number above 0"),
        (
            ("epochs = 8", "epochs = 1.5"),
            "job.toml, split: epochs is 1.5; it must be a whole number of at least 0",
        ),
        (("lr = 0.3", "seed = -1"), "job.toml, split: seed is -1; it must be a whole number of at least 0"),
        (("lr = 0.3", "nopeek = -1"), "job.toml, split: nopeek is -1; it must be a number of at least 0"),
        (
            ("lr = 0.3", "test_fraction = 2"),
            "job.toml, split: test_fraction is 2; it must be a number of at least 0 and below 1",
        ),
        (
            ("lr = 0.3", 'regression = "yes"'),
            "job.toml, split: regression is 'yes'; it must be true or false",
        ),
        (("lr = 0.3", "guards = 3"), "job.toml, split: guards is 3; it must be a list of tables"),
        (
            ("lr = 0.3", 'merge = "sum"'),
            "job.toml, split: merge is 'sum', and the bottoms have output widths [8, 6]",
        ),
        (("top = [8]", "top = 8"), "job.toml, split: top is 8; it must be a list of widths, like [16]."),
        (('file = "shop.csv"', "drop = 3"), "job.toml, parties.shop: drop is 3; it must be a list of texts."),
        (
            ("[split]", "[[split]]"),
            "job.toml: split is [{'epochs': 8, 'lr': 0.3, 'top': [8]}]; it must be a table, written as "
            "[split].",
        ),
    ],
)
def test_an_error_in_a_job_names_its_position(
    place: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], words: str
) -> None:
    (place / "job.toml").write_text(JOB.replace(*change))
    code, out = said(capsys, "split", "job.toml", "--out", "parts")
    assert code == 2
    assert words in out


def test_job_files_that_differ_are_noticed_and_parts_go_to_their_own_party(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tacit.errors import PartyFailed
    from tacit.jobs.vertical import split_deployed as deployed
    from tacit.runtimes import InProcess

    job, other = deployed.read("job.toml"), deployed.read("job.toml")
    other["split"]["lr"] = 0.2
    with pytest.raises(PartyFailed, match="have different job files"):
        InProcess().run_sync(
            {
                "bank": lambda me: deployed.run_party(me, job, "bank.csv", "x"),
                "shop": lambda me: deployed.run_party(me, other, "shop.csv", "y"),
            }
        )
    said(capsys, "split", "job.toml", "--out", "parts")
    for words, told in (
        (("predict", "parts", "--file", "bank_new.csv"), "expected --file PARTY=FILE.csv"),
        (("predict", "parts", "--file", "bnk=bank_new.csv"), "there is no party 'bnk'"),
        (
            ("predict", "parts", "--file", "bank=bank_new.csv"),
            "'shop' has columns in this network; give the file",
        ),
        (
            ("predict", "nowhere"),
            "no saved split network in nowhere. Give the folder that `tacit split --out` or `tacit ftl "
            "--out` wrote",
        ),
        (("split", "job.toml", "--out", "job.toml/made"), "job.toml is not a folder. Choose another folder"),
        (("predict", "parts", "--out", "a.xlsx"), "--out a.xlsx must end in .csv, .csv.gz or .parquet"),
        (("predict", "parts", "--out", "job.toml/a.csv"), "job.toml is not a folder. Choose another folder"),
        (
            ("split", "job.toml", "--out", "parts"),
            "parts/bank already contains a party's part, which is never overwritten. Use another --out",
        ),
        (("split", "job.toml"), "Give --out for their parts"),
    ):
        code, out = said(capsys, *words)
        assert code == 2, words
        assert told in out
