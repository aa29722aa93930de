"""tacit boost and tacit predict with different columns of the same people, as a user types them: all parties
here, and each with its own kit over a hub; a killed party, policies, and people that differ by one.
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import tacit
from tests.cli.shell import Role, finish, provision, said
from tests.jobs.test_vertical_boost_resume import without_mask

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
ALONE = JOB.replace("[parties.notary]\nhelper = true\n", "")  # without a helper
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
    assert (
        "column 'plan': 1 values are not among the levels of training (new, or rare there), like '9'" in out
    )
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
        Path("job.toml").write_text(JOB.replace("[boost]", '[boost]\nreveal = "splits"\nseed = 1'))
        again = [
            start("boost", "job.toml", "--kit", "kits/bank", "--out", "second-bank"),
            start(
                "boost", "job.toml", "--kit", "kits/telecom", "--data", "less.csv", "--out", "second-telecom"
            ),
            start("boost", "job.toml", "--kit", "kits/notary", "--out", "second-notary"),
        ]
        texts = [process.communicate(timeout=300)[1] for process in again]
    finally:
        hub.send_signal(signal.SIGINT)
        hub.communicate(timeout=300)
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


def test_two_parties_without_a_helper_train_and_predict_over_a_hub(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("job.toml").write_text(ALONE)
    assert said(capsys, "boost", "job.toml", "--out", "here")[0] == 0
    provision("bank", "telecom")
    Path("kits/telecom/policy.toml").write_text('[boost]\nbackends = ["he"]\n')
    hub = start("hub", "--kit", "kits/hub")
    try:
        bank, telecom = map(
            finish, [start("boost", "job.toml", "--kit", f"kits/{n}", "--json") for n in ("bank", "telecom")]
        )
        for process in [
            start(
                *("predict", f"kits/{n}/part", "--kit", f"kits/{n}", "--file", f"{n}_new.csv"),
                *("--out", f"{n}_out.csv", "--receiver", "telecom"),
            )
            for n in ("bank", "telecom")
        ]:
            assert process.communicate(timeout=300) is not None
            assert process.returncode == 0
    finally:
        hub.send_signal(signal.SIGINT)
        hub.communicate(timeout=300)
    assert (bank["backend"], telecom["backend"]) == ("he", "he")
    for name in ("bank", "telecom"):
        here, there = (
            json.loads(Path(p, "part.json").read_text()) for p in (f"here/{name}", f"kits/{name}/part")
        )
        assert without_mask(here) == without_mask(there)
    check_predictions("telecom_out.csv", "phone")
    assert not Path("bank_out.csv").exists()
    assert "there is no helper" in json.dumps(telecom["ledger"])
    assert {"EncryptedMasks", "MaskedVectors", "ChosenSplits"} <= {
        line["kind"] for line in telecom["ledger"]["seen"]
    }


def wait_for_records(name: str, role: Role, size: int) -> None:
    """Return when a party's log has grown to so many bytes."""
    while sum(f.stat().st_size for f in Path("kits", name, "boost").glob("*/messages.log")) < size:
        assert role.process.poll() is None, role.log.read_text()
        time.sleep(0.01)


@pytest.mark.parametrize("job", [JOB, ALONE], ids=["shares", "he"])
def test_any_party_may_be_killed_and_started_again(
    place: Path, capsys: pytest.CaptureFixture[str], job: str
) -> None:
    """Only the killed party is started again; the others wait for it, and all resume."""
    Path("job.toml").write_text(job.replace("trees = 3", "trees = 40" if job == JOB else "trees = 12"))
    names = KITS if job == JOB else KITS[:2]
    sizes = {"notary": 4_000, "telecom": 60_000, "bank": 100_000}  # of a log when it is killed
    sizes = sizes if job == JOB else {"telecom": 500_000, "bank": 1_000_000}
    assert said(capsys, "boost", "job.toml", "--out", "here")[0] == 0
    provision(*names)
    hub = Role(place, "hub", "hub", "--kit", "kits/hub")

    def begin(name: str) -> Role:
        return Role(place, name, "boost", "job.toml", "--kit", f"kits/{name}")

    try:
        hub.wait_for("listens on")
        roles = {name: begin(name) for name in names}
        for victim, size in sizes.items():
            wait_for_records(victim, roles[victim], size)
            roles[victim].process.kill()
            assert roles[victim].wait() == -signal.SIGKILL
            roles[victim] = begin(victim)
        assert [role.wait() for role in roles.values()] == [0] * len(names), [
            role.log.read_text() for role in roles.values()
        ]
    finally:
        hub.process.send_signal(signal.SIGINT)
        hub.wait()
    for name in names[:2]:
        here, there = (
            json.loads(Path(p, "part.json").read_text()) for p in (f"here/{name}", f"kits/{name}/part")
        )
        assert without_mask(here) == without_mask(there)
    assert all("resumes a stopped run" in role.log.read_text() for role in roles.values())
    assert not list(Path("kits").glob("*/boost/*/messages.log"))
    ledger = json.loads(Path("kits/telecom/part/ledger.json").read_text())
    assert sum(line["count"] for line in ledger["seen"] if line["kind"] == "MaskedVectors") >= 12


def test_a_plan_says_what_each_back_end_costs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for job, chosen in ((JOB, "shares"), (ALONE, "he")):
        Path("job.toml").write_text(job)
        code, out = said(capsys, "plan", "job.toml")
        assert code == 0, out
        lines = [line for line in out.splitlines() if "CPU seconds and" in line]
        assert [line.split("'")[1] for line in lines] == ["shares", "he"]
        assert [line.split("'")[1] for line in lines if line.endswith("chosen")] == [chosen]
        assert "bank sees: with the receiver's share: sums of the receiver's own numbers" in out
        assert ("notary sees: how many sums and splits there are" in out) == (chosen == "shares")
        assert "estimated for 260 shared people, 2 columns of 8 bins" in out
    Path("telecom.csv").unlink()
    code, out = said(capsys, "plan", "job.toml")
    assert (code, "the tables of telecom are not here" in out) == (0, True), out


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (JOB + "[parties.second]\nhelper = true\n", "2 parties with an id and 2 with helper = true"),
        (
            ALONE.replace("[boost]", '[boost]\nbackend = "shares"'),
            "backend = 'shares' needs a party with helper = true",
        ),
        (
            ALONE.replace("[boost]", '[boost]\nreveal = "splits"'),
            "reveal = 'splits' needs a party with helper = true",
        ),
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
        (["--set", "boost.trees=2"], "--set is for parties with the same columns"),
        (["--data", "bank.csv", "--out", "parts"], "Give --out for their parts and no --data"),
        ([], "Give --out for their parts"),
    ):
        code, out = said(capsys, "boost", "job.toml", *extra)
        assert (code, text in out) == (2, True), out
    Path("part").mkdir()
    Path("part/part.json").write_text('{"kind": "boost", "format": 1}')
    code, out = said(capsys, "predict", "part", "--file", "bank=bank_new.csv")
    assert (code, "there are no parts of boosted trees of all parties" in out) == (2, True), out
