"""tacit boost and tacit predict with different columns of the same people, as a user types them: all parties
here, and each with its own kit over a hub; a killed party, policies, and people that differ by one.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import tacit
from tests.cli.shell import Role, finish, provision, said

from .test_split import start

JOB = """
[boost]
trees = 3
depth = 3
bins = 8
min_rows = 10
[parties.bank]
file = "bank.csv"
id = "customer"
label = "default"
[parties.telecom]
file = "telecom.csv"
id = "phone"
categories = ["plan"]
[parties.notary]
helper = true
"""
OPTIONS = {"trees": 3, "depth": 3, "bins": 8, "min_rows": 10}
COLUMNS = ["income", "plan", "bill"]
KITS = ("bank", "telecom", "notary")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    n = 340
    whole = pd.DataFrame(
        {
            "customer": [f"{k:03d}" for k in range(n)],
            "income": rng.normal(30, 9, n).round(2),
            "plan": rng.integers(1, 4, n),
            "bill": rng.gamma(2, 10, n).round(2),
        }
    )
    z = (30 - whole.income) / 8 + (whole.plan == 2) + whole.bill / 20 - 1
    whole.loc[rng.random(n) < 0.1, "bill"] = None
    whole["default"] = np.where(rng.random(n) < 1 / (1 + np.exp(-z)), "yes", "no")
    telecom = whole[["customer", "plan", "bill"]].rename(columns={"customer": "phone"})
    bank = whole[["customer", "income", "default"]]
    bank.iloc[:260].sample(frac=1, random_state=1).to_csv("bank.csv", index=False)
    telecom.iloc[20:].sample(frac=1, random_state=2).to_csv("telecom.csv", index=False)
    bank.drop(columns="default").iloc[260:].to_csv("bank_new.csv", index=False)
    telecom.iloc[255:].replace({"plan": {3: 9}}).to_csv("telecom_new.csv", index=False)
    whole.iloc[20:260].to_csv("shared.csv", index=False)
    whole.iloc[260:].replace({"plan": {3: 9}}).to_csv("new.csv", index=False)
    Path("job.toml").write_text(JOB)
    return tmp_path


def check_predictions(file: str, ids: str = "customer") -> None:
    """Those of trees on the pooled rows, for new people with an unknown plan and missing bills."""
    made = pd.read_csv(file, dtype={ids: str}).set_index(ids)
    new = pd.read_csv("new.csv", dtype={"customer": str}).set_index("customer")
    shared = pd.read_csv("shared.csv")
    assert list(made.columns) == ["prediction", "p(no)", "p(yes)"]
    assert sorted(made.index) == sorted(new.index)
    model = tacit.boost.train(
        {"all": shared}, label="default", features=COLUMNS, categories=["plan"], **OPTIONS
    )
    # vertical parties merge the rare cell of other levels with the largest level; pooled trees keep it
    known = new["plan"] != 9
    expected = pd.Series(model.predict(new), index=new.index)
    assert (made["p(yes)"] - expected)[known].abs().max() < 1e-6
    assert (made["prediction"] == np.where(made["p(yes)"] > 0.5, "yes", "no")).all()


PREDICT = (
    *("predict", "parts", "--file", "bank=bank_new.csv", "--file", "telecom=telecom_new.csv"),
    *("--out", "out.csv"),
)


def test_everybody_here_equals_pooled_trees_then_new_people(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = said(capsys, "boost", "job.toml", "--out", "parts", "--report", "report.html", "--json")
    assert code == 0, out
    value = json.loads(out)
    assert (value["rows"], value["trees"], value["objective"]) == (240, 3, "binary")
    assert {row["feature"] for row in value["importances"]} == set(COLUMNS)
    assert "OPENED: the label holder learned the sums" in Path("report.html").read_text()
    assert "income" not in Path("parts/telecom/part.json").read_text()
    assert "bill" not in Path("parts/bank/part.json").read_text()
    code, out = said(capsys, *PREDICT)
    assert code == 0, out
    assert "80 rows, predictions in out.csv" in out
    assert "column 'plan': 1 values are not among the levels of training, like '9'" in out
    check_predictions("out.csv")
    code, out = said(capsys, *PREDICT)
    assert (code, "already exists" in out) == (2, True)
    code, out = said(capsys, *PREDICT[:-1], "telecom_out.csv", "--receiver", "telecom")
    assert code == 0, out
    check_predictions("telecom_out.csv", "phone")
    code, out = said(capsys, *PREDICT[:-1], "x.csv", "--receiver", "nobody")
    assert (code, "receiver is 'nobody'; it must be one of bank, telecom" in out) == (2, True)
    code, out = said(capsys, "boost", "job.toml", "--out", "parts")
    assert (code, "already contains a party's part, which is never overwritten" in out) == (2, True)


def test_each_with_its_kit_over_a_hub_then_new_people(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("job.toml").write_text(JOB.replace("[boost]", '[boost]\nreveal = "splits"'))
    provision(*KITS)
    Path("kits/telecom/policy.toml").write_text('[boost]\nreveal = "splits"\nmax_trees = 3\n')
    hub = start("hub", "--kit", "kits/hub")
    try:
        bank, telecom, notary = map(
            finish, [start("boost", "job.toml", "--kit", f"kits/{n}", "--json") for n in KITS]
        )
        files = {"bank": ["--file", "bank_new.csv"], "telecom": ["--file", "telecom_new.csv"], "notary": []}
        for process in [
            start(
                *("predict", f"kits/{n}/part", "--kit", f"kits/{n}", *f, "--out", f"{n}_out.csv", "--json"),
            )
            for n, f in files.items()
        ]:
            finish(process)
        # one person fewer: the difference of two models would be about this one
        pd.read_csv("telecom.csv", dtype=str).sort_values("phone").iloc[1:].to_csv("less.csv", index=False)
        again = [
            start("boost", "job.toml", "--kit", "kits/bank", "--out", "second-bank"),
            start(
                "boost", "job.toml", "--kit", "kits/telecom", "--data", "less.csv", "--out", "second-telecom"
            ),
            start("boost", "job.toml", "--kit", "kits/notary", "--out", "second-notary"),
        ]
        texts = [process.communicate(timeout=120)[1] for process in again]
    finally:
        hub.send_signal(signal.SIGINT)
        hub.communicate(timeout=30)
    assert (bank["rows"], bank["trees"], notary["trees"]) == (240, 3, None)
    assert bank["splits"] > 0
    assert telecom["splits"] > 0
    check_predictions("bank_out.csv")
    assert not Path("telecom_out.csv").exists()
    kinds = {line["kind"] for line in telecom["ledger"]["seen"]}
    assert {"MaskedVectors", "SplitRequest", "TreeShapes"} <= kinds
    assert "SumShares" not in {line["kind"] for line in bank["ledger"]["seen"]}
    assert all(process.returncode != 0 for process in again)
    assert any(
        "differ from those of an earlier one by 1 people; at least 10 are required" in t for t in texts
    )
    assert not Path("second-bank/part.json").exists()
    assert not Path("second-telecom/part.json").exists()


@pytest.mark.slow
def test_a_killed_party_stops_the_others_and_all_can_start_again(place: Path) -> None:
    provision(*KITS)
    Path("job.toml").write_text(JOB.replace("trees = 3", "trees = 9000"))  # it does not end before the kill
    hub = start("hub", "--kit", "kits/hub")
    try:
        waiting = start("boost", "job.toml", "--kit", "kits/bank", "--patience", "3")
        helper = start("boost", "job.toml", "--kit", "kits/notary", "--patience", "3")
        telecom = Role(place, "telecom", "boost", "job.toml", "--kit", "kits/telecom")
        telecom.wait_for("channel with 'notary' is open")
        telecom.process.kill()
        telecom.wait()
        for process in (waiting, helper):
            _, text = process.communicate(timeout=120)
            assert process.returncode != 0
            assert "telecom" in text or (process is helper and "bank" in text)  # whoever it heard of first
            assert "Traceback" not in text
        assert not Path("kits/bank/part").exists()
        Path("job.toml").write_text(JOB)
        values = [
            finish(p) for p in [start("boost", "job.toml", "--kit", f"kits/{n}", "--json") for n in KITS]
        ]
        assert [v["rows"] for v in values] == [240] * 3
    finally:
        hub.send_signal(signal.SIGINT)
        hub.communicate(timeout=30)


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (JOB.replace("helper = true", 'id = "x"'), "3 parties with an id and 0 with helper = true"),
        (JOB.replace('label = "default"', ""), "exactly one party with a table must have a label; none have"),
        (JOB.replace("depth = 3", "depth = 30"), "depth is 30; it must be"),
        (
            JOB.replace("[boost]", '[boost]\nobjective = "ranking"'),
            "objective is 'ranking'; it must be one of",
        ),
        (JOB.replace("[boost]", '[boost]\nobjective = "regression"'), "'default' is not a number"),
        (JOB.replace('"default"', '"defalt"'), "has no column 'defalt'. Did you mean 'default'?"),
        (JOB.replace("[boost]", "[boost]\ntree = 3\nthing = 1"), "it has no key 'tree'"),
        (JOB.replace('["plan"]', '["plam"]'), "has no column 'plam'. Did you mean 'plan'?"),
        (JOB.replace("min_rows = 10", "min_rows = 10\nreveal = 'all'"), "reveal is 'all'; it must be"),
    ],
)
def test_bad_jobs_write_nothing(place: Path, capsys: pytest.CaptureFixture[str], job: str, text: str) -> None:
    Path("job.toml").write_text(job)
    code, out = said(capsys, "boost", "job.toml", "--out", "parts")
    assert code == 2
    assert text in out
    assert not Path("parts").exists()


def test_options_of_the_other_kind_of_job_are_refused(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for extra, text in (
        (["--set", "boost.trees=2"], "--set and --state are for parties with the same columns"),
        (["--data", "bank.csv", "--out", "parts"], "Give --out for their parts and no --data"),
        ([], "Give --out for their parts"),
    ):
        code, out = said(capsys, "boost", "job.toml", *extra)
        assert (code, text in out) == (2, True), out
    Path("part").mkdir()
    Path("part/part.json").write_text('{"kind": "boost", "format": 1}')
    code, out = said(capsys, "predict", "part", "--file", "bank=bank_new.csv")
    assert (code, "there are no parts of boosted trees of all parties" in out) == (2, True), out
