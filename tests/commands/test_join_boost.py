"""tacit join with what = "boost": trees over people whom nobody knows, here and with kits, and predictions."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from tacit.errors import QueryRefused
from tacit.jobs.vertical import join_deployed
from tests.cli.shell import finish, provision, said

from .test_split import start

JOB = """
[join]
reveal = "shares"
[[join.queries]]
name = "risk"
what = "boost"
of = ["b.late", "a.cash", "a.region", "b.loans"]
trees = 3
depth = 2
bins = 8
[parties.a]
file = "a.csv"
id = "id"
columns = ["cash", "region"]
[parties.b]
file = "b.csv"
id = "client"
columns = ["loans", "late"]
[parties.notary]
helper = true
"""
COUNT = '[[join.queries]]\nname = "people"\nwhat = "count"\n'


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """240 people at both; b has some loans missing, and new people in files of their own."""
    monkeypatch.chdir(tmp_path)
    rng, n = np.random.default_rng(0), 340
    frame = pd.DataFrame({"id": [f"{k:04d}" for k in range(n)], "cash": rng.normal(400, 300, n).round(2)})
    frame["region"] = np.where(np.arange(n) % 3, "n", "s")
    frame["loans"] = rng.exponential(200, n).round(2)
    frame["late"] = np.where(frame.loans - frame.cash / 2 + rng.normal(0, 60, n) > 0, "yes", "no")
    frame.loc[rng.random(n) < 0.2, "loans"] = np.nan
    old, new = frame.iloc[:300], frame.iloc[300:]
    old[["id", "cash", "region"]].iloc[:270].to_csv("a.csv", index=False)
    old[["id", "loans", "late"]].rename(columns={"id": "client"}).iloc[30:].to_csv("b.csv", index=False)
    new[["id", "cash", "region"]].to_csv("new-a.csv", index=False)
    new[["id", "loans"]].rename(columns={"id": "client"}).to_csv("new-b.csv", index=False)
    Path("job.toml").write_text(JOB)
    return frame


def check_scores(file: str, whole: pd.DataFrame) -> None:
    found = pd.read_csv(file, dtype={"client": str, "id": str})
    late = whole.set_index("id").late[found.iloc[:, 0]] == "yes"
    assert len(found) == 40
    assert roc_auc_score(late, found["p(yes)"]) > 0.75


def test_trees_here_and_then_joint_predictions(
    whole: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("job.toml").write_text(JOB.replace("[parties.a]", COUNT + "[parties.a]"))
    code, out = said(capsys, "join", "job.toml", "--out", "figures")
    assert code == 0, out
    people = int(whole.iloc[30:270].loans.notna().sum())  # figures are about complete rows
    assert f"people: count: {people}" in out
    assert "risk: boost: 3 trees, figures/boost-risk" in out
    code, out = said(
        capsys, "predict", "figures/boost-risk", "--file", "a=new-a.csv", "--file", "b=new-b.csv",
        "--out", "scores.csv",
    )  # fmt: skip
    assert code == 0, out
    check_scores("scores.csv", whole)


def test_trees_with_kits_and_then_joint_predictions(whole: pd.DataFrame) -> None:
    names = ("a", "b", "notary")
    provision(*names)
    hub = start("hub", "--kit", "kits/hub")
    try:
        grown = [
            finish(p)
            for p in [
                start("join", "job.toml", "--kit", f"kits/{n}", "--out", f"out-{n}", "--json") for n in names
            ]
        ]
        asked = [
            start("predict", f"out-{n}/boost-risk", "--kit", f"kits/{n}", *more, "--json")
            for n, more in (
                ("a", ["--file", "new-a.csv"]),
                ("b", ["--file", "new-b.csv", "--out", "scores.csv"]),
                ("notary", []),
            )
        ]
        for p in asked:
            finish(p)
    finally:
        hub.send_signal(signal.SIGINT)
        hub.communicate(timeout=300)
    for value in grown[:2]:
        (answer,) = value["answers"]
        assert (answer["what"], answer["trees"], answer["people"]) == ("boost", 3, None)
        assert not {"SharedIds", "Outputs"} & {line["kind"] for line in value["ledger"]["seen"]}
        assert any(
            s.startswith("OPENED: both parties learned which column") for s in value["ledger"]["stamps"]
        )
    assert not {line["kind"] for line in grown[0]["ledger"]["seen"]} & {"TreeShare"}
    check_scores("scores.csv", whole)


def test_few_matched_people_have_no_trees_and_other_answers_stay(
    whole: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    pd.read_csv("b.csv", dtype={"client": str}).iloc[205:].fillna(50.0).to_csv("b.csv", index=False)
    Path("job.toml").write_text(JOB.replace("[parties.a]", COUNT + "[parties.a]"))
    code, out = said(capsys, "join", "job.toml", "--out", "figures", "--json")
    assert code == 0, out
    risk, people = json.loads(out)["answers"]
    assert (risk["trees"], risk["folder"]) == (None, "")
    assert people["figures"][0][0] > 10
    code, out = said(capsys, "join", "job.toml", "--out", "again")
    assert "risk: boost: not grown (too few people)" in out


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('["b.late", "a.cash", "a.region", "b.loans"]', '["b.late"]', "the label, PARTY.column, then at least"),
        ('"b.loans"]', '"-b.loans"]', "columns, without -"),
        ("bins = 8", "bins = 8\nmin_rows = 5", "min_rows is 5; it must be at least 10, the minimum of the join"),
        ("bins = 8", "bins = 1", "bins is 1; it must be"),
        ("bins = 8", 'bins = 8\nby = "a.region"', "by of 'risk' is 'a.region'; it must be left out"),
        ("bins = 8", 'bins = 8\ncategories = ["b.late"]', "columns of the question"),
        ('what = "boost"', 'what = "count"', "trees of 'risk' is 3; it must be left out without 'boost'"),
        ('reveal = "shares"', "", "what of 'risk' is 'boost'; it must be 'total' or 'count' without reveal"),
        ('reveal = "shares"', 'reveal = "shares"\nhow = "left"', "label is 'b.late'; it must be a column of 'a'"),
    ],
)  # fmt: skip
def test_bad_questions_write_nothing(
    whole: pd.DataFrame, capsys: pytest.CaptureFixture[str], old: str, new: str, text: str
) -> None:
    Path("job.toml").write_text(JOB.replace(old, new))
    code, out = said(capsys, "join", "job.toml", "--out", "figures")
    assert code == 2
    assert text in out
    assert not Path("figures").exists()


def test_a_policy_about_columns_holds_for_trees(whole: pd.DataFrame) -> None:
    job = join_deployed.read("job.toml")
    terms, more = join_deployed._terms(job, 100), join_deployed.asked_columns(job, "b")
    assert more == {"loans", "late"}
    with pytest.raises(QueryRefused, match="asks about 'late'"):
        join_deployed.check_policy(join_deployed.JoinPolicy(columns=("loans",)), "b", terms, more)
