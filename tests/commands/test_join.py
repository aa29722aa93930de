"""tacit join, as a user types it: three banks here, and each with its own kit over a hub."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tacit.errors import QueryRefused
from tacit.jobs.vertical import join_deployed
from tests.cli.shell import finish, provision, said

from .test_split import start

JOB = """
[join]
minimum = 10
[[join.queries]]
name = "wealthy"
what = "count"
of = ["cash"]
above = [1500.0]
[[join.queries]]
name = "net"
what = "total"
of = ["cash", "-loans"]
by = "a.region"
[parties.a]
file = "a.csv"
id = "id"
columns = ["cash", "region"]
[parties.b]
file = "b.csv"
id = "client"
columns = ["cash", "loans"]
[parties.c]
file = "c.csv"
id = "id"
columns = ["cash"]
[parties.notary]
helper = true
"""


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    n = 120
    frame = pd.DataFrame(
        {"id": [f"{k:04d}" for k in range(n)], "region": np.where(np.arange(n) % 3, "n", "s")}
    )
    for who in "abc":
        frame[who] = rng.normal(400, 500, n).round(2)
    frame["loans"] = rng.exponential(200, n).round(2)
    frame[["id", "a", "region"]].rename(columns={"a": "cash"}).iloc[:110].to_csv("a.csv", index=False)
    frame["late"] = (rng.random(n) < 0.4).astype(int)
    frame[["id", "b", "loans", "late"]].rename(columns={"b": "cash", "id": "client"}).iloc[5:].to_csv(
        "b.csv", index=False
    )
    frame[["id", "c"]].rename(columns={"c": "cash"}).to_csv("c.csv", index=False)
    Path("job.toml").write_text(JOB)
    return frame.iloc[5:110].assign(cash=lambda f: (f.a + f.b + f.c).round(2))


def check_answers(answers, whole: pd.DataFrame) -> None:
    wealthy, net = answers
    assert (wealthy["name"], wealthy["figures"]) == ("wealthy", [[int((whole.cash > 1500).sum())]])
    expected = (whole.cash - whole.loans).groupby(whole.region).sum().round(2)
    assert net["groups"] == ["n", "s"]
    assert net["figures"] == [[expected["n"]], [expected["s"]]]
    assert net["people"] == whole.groupby("region").size().tolist()


def test_three_banks_here(whole: pd.DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = said(capsys, "join", "job.toml", "--out", "figures", "--json")
    assert code == 0, out
    assert json.loads(out)["people"] == 105
    check_answers(json.loads(out)["answers"], whole)
    assert json.loads(Path("figures/b/part.json").read_text())["answers"] == json.loads(out)["answers"]
    code, out = said(capsys, "join", "job.toml", "--out", "figures")
    assert (code, "which is never overwritten" in out) == (2, True)


def test_each_with_its_kit_over_a_hub_then_a_refused_question(whole: pd.DataFrame) -> None:
    provision("a", "b", "c", "notary")
    names = ("a", "b", "c", "notary")
    Path("kits/c/policy.toml").write_text('[join]\ncolumns = ["cash"]\n')
    hub = start("hub", "--kit", "kits/hub")
    try:
        values = [
            finish(p) for p in [start("join", "job.toml", "--kit", f"kits/{n}", "--json") for n in names]
        ]
        Path("job.toml").write_text(JOB.replace("1500.0", "1501.0"))
        again = [start("join", "job.toml", "--kit", f"kits/{n}", "--out", f"second-{n}") for n in names]
        texts = [p.communicate(timeout=300)[1] for p in again]
    finally:
        hub.send_signal(signal.SIGINT)
        hub.communicate(timeout=300)
    for value in values[:3]:
        check_answers(value["answers"], whole)
    assert values[3]["answers"] == []
    assert any("MATCHED" in stamp for stamp in values[0]["ledger"]["stamps"])
    assert all(p.returncode != 0 for p in again)
    assert any("other thresholds of this measure were answered before" in t for t in texts)
    assert not any(Path(f"second-{n}/part.json").exists() for n in names)


SHARES = """
[join]
reveal = "shares"
how = "HOW"
[[join.queries]]
name = "people"
what = "count"
[[join.queries]]
name = "many"
what = "enough"
people = 60
[[join.queries]]
name = "loans"
what = "total"
of = ["b.loans"]
by = "a.region"
[[join.queries]]
name = "facts"
what = "describe"
of = ["a.cash", "b.loans"]
[[join.queries]]
name = "fit"
what = "regress"
of = ["loans", "a.cash", "b.cash"]
[[join.queries]]
name = "odds"
what = "regress"
family = "binomial"
of = ["b.late", "a.cash"]
[parties.a]
file = "a.csv"
id = "id"
columns = ["cash", "region"]
[parties.b]
file = "b.csv"
id = "client"
columns = ["cash", "loans", "late"]
[parties.notary]
helper = true
"""


def check_shares(answers, whole: pd.DataFrame) -> None:
    people, many, loans, facts, fit, odds = answers
    assert (odds["converged"], odds["people"], list(odds["terms"])) == (
        True,
        len(whole),
        ["a.cash", "Intercept"],
    )
    chance = 1 / (
        1 + np.exp(-sum(odds["terms"][t]["coef"] * v for t, v in (("a.cash", whole.a), ("Intercept", 1))))
    )
    residual = whole.late - chance  # at the maximum of the likelihood its slopes are 0
    assert abs(residual.sum()) < 1e-3
    assert abs((residual * whole.a).sum()) < 1e-2 * whole.a.std()
    assert (people["figures"], many["figures"]) == ([[len(whole)]], [[True]])
    expected = whole.loans.groupby(whole.region).sum().round(2)
    assert loans["figures"] == [[expected["n"]], [expected["s"]]]
    assert facts["columns"]["b.loans"]["mean"] == pytest.approx(whole.loans.mean(), rel=1e-5)
    x = np.column_stack([whole.a, whole.b, np.ones(len(whole))])
    beta, *_ = np.linalg.lstsq(x, whole.loans, rcond=None)
    assert [fit["terms"][t]["coef"] for t in ("a.cash", "b.cash", "Intercept")] == pytest.approx(
        beta, rel=1e-3
    )
    assert (fit["label"], fit["people"]) == ("b.loans", len(whole))


def test_a_join_that_stays_shared_here(whole: pd.DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.toml").write_text(SHARES.replace("HOW", "inner"))
    code, out = said(capsys, "join", "job.toml", "--out", "figures", "--json")
    assert code == 0, out
    value = json.loads(out)
    assert value["people"] is None
    check_shares(value["answers"], whole)
    assert json.loads(Path("figures/b/part.json").read_text())["answers"] == value["answers"]
    Path("job.toml").write_text(SHARES.replace("HOW", "left"))
    code, out = said(capsys, "join", "job.toml", "--out", "left")
    assert code == 0, out
    assert "people: count: 110" in out  # all of a, of whom 105 are customers of b, too
    assert "many: enough: yes" in out
    assert "odds: regress: not shown (too few people)" in out
    assert "fit: regress: not shown (too few people)" in out  # 5 have no match


def test_a_join_that_stays_shared_with_kits_and_then_refused_by_policies(whole: pd.DataFrame) -> None:
    Path("job.toml").write_text(SHARES.replace("HOW", "inner"))
    names = ("a", "b", "notary")
    provision(*names)
    Path("kits/a/policy.toml").write_text("[psi]\nqueries_per_day = 1\n")
    hub = start("hub", "--kit", "kits/hub")
    try:
        values = [
            finish(p) for p in [start("join", "job.toml", "--kit", f"kits/{n}", "--json") for n in names]
        ]
        again = [start("join", "job.toml", "--kit", f"kits/{n}", "--out", f"second-{n}") for n in names]
        texts = [again[0].communicate(timeout=300)[1]]
        for p in again[1:]:
            p.send_signal(signal.SIGINT)
            p.communicate(timeout=300)
    finally:
        hub.send_signal(signal.SIGINT)
        hub.communicate(timeout=300)
    for value in values[:2]:
        check_shares(value["answers"], whole)
        assert not {"SharedIds", "Outputs"} & {line["kind"] for line in value["ledger"]["seen"]}
        assert any("MEMBERSHIP STAYS SHARED" in stamp for stamp in value["ledger"]["stamps"])
    assert (values[2]["people"], values[2]["answers"]) == (None, [])
    assert "(queries_per_day). This receiver has reached" in texts[0]
    assert not Path("second-a/part.json").exists()


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (SHARES.replace("HOW", "outer"), "how is 'outer'; it must be"),
        (
            SHARES.replace("HOW", "inner").replace("people = 60", "people = 6"),
            "enough is 6; it must be at least 10",
        ),
        (
            SHARES.replace("HOW", "inner").replace(
                "people = 60", 'people = 60\n[[join.queries]]\nname = "more"\nwhat = "enough"\npeople = 61'
            ),
            "enough is 61; it must be asked once, with one number of people",
        ),
        (SHARES.replace('"shares"', '"all"').replace("HOW", "inner"), "without reveal = 'shares'"),
        (SHARES.replace('"shares"', '"all"').replace("HOW", "left"), "how is 'left'; it must be 'inner'"),
        (JOB.replace("minimum = 10", 'reveal = "shares"'), "the number of parties is 3; it must be 2"),
        (
            SHARES.replace("HOW", "inner").replace('["loans", "a.cash", "b.cash"]', '["cash", "loans"]'),
            "of 'fit' is ['cash', 'loans']; it must be the label, PARTY.column",
        ),
        (JOB.replace('"count"', '"describe"'), "without reveal = 'shares'"),
        (JOB.replace('of = ["cash"]', 'of = ["cahs"]'), "of is 'cahs'; it must be a column of the parties"),
        (JOB.replace('"count"', '"median"'), "what of 'wealthy' is 'median'; it must be 'total' or 'count'"),
        (JOB.replace('name = "net"', 'name = "wealthy"'), "a different name for each question"),
        (JOB.replace("minimum = 10", "minimum = 1"), "minimum is 1; it must be"),
        (JOB.replace('by = "a.region"', 'by = "region.a"'), "by is 'region.a'"),
        (JOB.replace("helper = true", 'id = "id"'), "4 parties with an id and 0 with helper = true"),
        (JOB.split("[[join")[0] + "[parties" + JOB.split("[parties", 1)[1], "there is no question"),
    ],
)
def test_bad_jobs_write_nothing(whole, capsys: pytest.CaptureFixture[str], job: str, text: str) -> None:
    Path("job.toml").write_text(job)
    code, out = said(capsys, "join", "job.toml", "--out", "figures")
    assert code == 2
    assert text in out
    assert not Path("figures").exists()


@pytest.mark.parametrize(("columns", "refused"), [(["loans", "cash"], "matched"), (["matched"], None)])
def test_a_policy_about_columns_holds_where_membership_stays_shared(
    whole: pd.DataFrame, columns: list[str], refused: str | None
) -> None:
    """A column of the party's own that is called "matched" is a column like others."""
    question = '[[join.queries]]\nname = "m"\nwhat = "count"\nof = ["b.matched"]\nabove = [0]\n'
    policy = join_deployed.JoinPolicy(columns=tuple(columns))
    tables = SHARES.split("[parties.a]")[1].replace('"loans", "late"', '"matched"')
    Path("job.toml").write_text(f'[join]\nreveal = "shares"\nhow = "left"\n{question}[parties.a]{tables}')
    terms = join_deployed._terms(join_deployed.read("job.toml"), 100)
    if refused is None:
        join_deployed.check_policy(policy, "b", terms)
        return
    with pytest.raises(QueryRefused, match=f"asks about '{refused}'"):
        join_deployed.check_policy(policy, "b", terms)
    plain = Path("job.toml").read_text().replace('["cash", "matched"]', '["cash"]')
    Path("job.toml").write_text(plain)
    join_deployed.check_policy(policy, "b", join_deployed._terms(join_deployed.read("job.toml"), 100))
