"""tacit regress and tacit predict with it, as a user types them: all parties here, in processes, and each with
its own kit over a hub; a killed party, policies, and questions that differ in few people.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf

from tests.cli.shell import Role, finish, provision, said

from .test_split import start

JOB = """
[regress]
family = "binomial"
steps = 6
[parties.clinic]
file = "clinic.csv"
id = "patient"
label = "relapse"
[parties.lab]
file = "lab.csv"
id = "person"
categories = ["ward"]
[parties.notary]
helper = true
"""
FORMULA = "relapse ~ age + C(ward) + marker"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    n = 340
    whole = pd.DataFrame(
        {
            "patient": [f"{k:03d}" for k in range(n)],
            "age": rng.normal(60, 9, n).round(1),
            "ward": rng.integers(1, 4, n),
            "marker": rng.normal(2, 1, n).round(3),
        }
    )
    z = 0.08 * (whole.age - 60) - 0.7 * (whole.ward == 2) + 0.6 * (whole.marker - 2)
    whole["relapse"] = np.where(rng.random(n) < 1 / (1 + np.exp(-z)), "yes", "no")
    whole[["patient", "age", "relapse"]].iloc[:260].sample(frac=1, random_state=1).to_csv(
        "clinic.csv", index=False
    )
    lab = whole[["patient", "ward", "marker"]].rename(columns={"patient": "person"})
    lab.iloc[20:].sample(frac=1, random_state=2).to_csv("lab.csv", index=False)
    whole[["patient", "age"]].iloc[260:].to_csv("clinic_new.csv", index=False)
    lab.iloc[255:].to_csv("lab_new.csv", index=False)
    whole.iloc[20:260].to_csv("shared.csv", index=False)
    whole.iloc[260:].to_csv("new.csv", index=False)
    Path("job.toml").write_text(JOB)
    return tmp_path


def pooled():
    shared = pd.read_csv("shared.csv", dtype={"patient": str})
    return smf.logit(FORMULA, shared.assign(relapse=(shared.relapse == "yes").astype(int))).fit(disp=0)


def check_table(records) -> None:
    """Coefficients, standard errors and p values of the pooled fit."""
    names = {"ward[T.2]": "C(ward)[T.2]", "ward[T.3]": "C(ward)[T.3]"}
    expected = pooled()
    for row in records:
        term = names.get(row["term"], row["term"])
        assert row["coef"] == pytest.approx(expected.params[term], abs=3e-5 * expected.bse[term])
        assert row["se"] == pytest.approx(expected.bse[term], rel=3e-5)
        assert row["p"] == pytest.approx(expected.pvalues[term], rel=1e-4)
        assert row["low"] == pytest.approx(expected.conf_int().loc[term, 0], abs=1e-5)


def check_predictions(file: str) -> None:
    made = pd.read_csv(file, dtype={"patient": str}).set_index("patient")
    new = pd.read_csv("new.csv", dtype={"patient": str}).set_index("patient")
    assert list(made.columns) == ["prediction", "p(no)", "p(yes)"]
    assert sorted(made.index) == sorted(new.index)
    expected = pooled().predict(new)
    assert (made["p(yes)"] - expected).abs().max() < 1e-6
    assert (made["prediction"] == np.where(made["p(yes)"] > 0.5, "yes", "no")).all()


PREDICT = (
    "predict",
    "parts",
    "--file",
    "clinic=clinic_new.csv",
    "--file",
    "lab=lab_new.csv",
    "--out",
    "out.csv",
)


def test_everybody_here_equals_statsmodels_then_new_people(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = said(capsys, "regress", "job.toml", "--out", "parts", "--json")
    assert code == 0, out
    value = json.loads(out)
    assert (value["rows"], value["converged"]) == (240, True)
    assert [row["term"] for row in value["table"]] == ["Intercept", "age", "ward[T.2]", "ward[T.3]", "marker"]
    check_table(value["table"])
    part = json.loads(Path("parts/lab/part.json").read_text())
    assert "age" not in str(part)
    assert part["intercept"] is None  # each part has its own columns only
    code, out = said(capsys, *PREDICT)
    assert code == 0, out
    assert "80 rows, predictions in out.csv" in out
    check_predictions("out.csv")
    code, out = said(capsys, *PREDICT)
    assert (code, "already exists" in out) == (2, True)
    code, out = said(capsys, "regress", "job.toml", "--out", "parts")
    assert (code, "already contains a party's part, which is never overwritten" in out) == (2, True)


def test_an_offset_and_weights_in_a_job_file(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The offset is used for new people, too; both columns stay out of the model."""
    rng = np.random.default_rng(1)
    for file in ("clinic.csv", "clinic_new.csv"):
        frame = pd.read_csv(file, dtype={"patient": str})
        frame["known"], frame["n"] = rng.normal(0, 2, len(frame)), rng.integers(1, 5, len(frame))
        frame["cost"] = frame["age"] / 5 + frame["known"] + rng.normal(0, 1, len(frame))
        frame = frame[["patient", "age", "known", *(["n", "cost"] if file == "clinic.csv" else [])]]
        frame.to_csv(file, index=False)
    job = JOB.replace("binomial", "gaussian").replace("steps = 6\n", "")
    job = job.replace('label = "relapse"', 'label = "cost"\noffset = "known"\nweights = "n"')
    Path("job.toml").write_text(job)
    code, out = said(capsys, "regress", "job.toml", "--out", "parts", "--json")
    assert code == 0, out
    value = json.loads(out)
    lab = pd.read_csv("lab.csv", dtype={"person": str}).rename(columns={"person": "patient"})
    both = pd.read_csv("clinic.csv", dtype={"patient": str}).merge(lab, on="patient")
    formula = "cost ~ age + C(ward) + marker"
    pooled = smf.glm(formula, both, offset=both["known"], var_weights=both["n"]).fit()
    found = {row["term"]: row for row in value["table"]}
    assert set(found) == {"Intercept", "age", "ward[T.2]", "ward[T.3]", "marker"}
    for term in ("Intercept", "age", "marker"):
        assert found[term]["coef"] == pytest.approx(pooled.params[term], abs=3e-5 * pooled.bse[term])
        assert found[term]["se"] == pytest.approx(pooled.bse[term], rel=3e-5)
    assert value["metrics"]["deviance"] == pytest.approx(pooled.deviance, rel=1e-5)
    code, out = said(capsys, *PREDICT)
    assert code == 0, out
    made = pd.read_csv("out.csv", dtype={"patient": str}).set_index("patient")
    new = pd.read_csv("clinic_new.csv", dtype={"patient": str})
    rows = new.merge(pd.read_csv("lab_new.csv", dtype={"person": str}), left_on="patient", right_on="person")
    expected = pooled.predict(rows, offset=rows["known"]).to_numpy()
    assert np.abs(made.loc[rows["patient"], "prediction"] - expected).max() < 1e-4


def test_each_with_its_kit_over_a_hub_then_new_people(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("job.toml").write_text(JOB.replace("[regress]", "[regress]\npublish = true"))
    provision("clinic", "lab", "notary")
    hub = start("hub", "--kit", "kits/hub")
    try:
        clinic, lab, notary = map(
            finish,
            [
                start("regress", "job.toml", "--kit", f"kits/{n}", "--json")
                for n in ("clinic", "lab", "notary")
            ],
        )
        files = {"clinic": "clinic_new.csv", "lab": "lab_new.csv"}
        for process in [
            start(
                "predict",
                f"kits/{n}/part",
                "--kit",
                f"kits/{n}",
                "--file",
                f,
                "--out",
                f"{n}_out.csv",
                "--json",
            )
            for n, f in files.items()
        ]:
            finish(process)
        # one person fewer: the difference of two answers would be about this one
        pd.read_csv("lab.csv", dtype=str).sort_values("person").iloc[1:].to_csv("less.csv", index=False)
        again = [
            start("regress", "job.toml", "--kit", "kits/clinic", "--out", "second-clinic"),
            start("regress", "job.toml", "--kit", "kits/lab", "--file", "less.csv", "--out", "second-lab"),
            start("regress", "job.toml", "--kit", "kits/notary", "--out", "second-notary"),
        ]
        texts = [process.communicate(timeout=300)[1] for process in again]
    finally:
        hub.send_signal(signal.SIGINT)
        hub.communicate(timeout=300)
    check_table(clinic["table"])
    assert [(r["party"], r["term"]) for r in lab["table"]] == [
        (r["party"], r["term"]) for r in clinic["table"]
    ]
    assert notary["table"] == []
    assert notary["rows"] == 240
    check_predictions("clinic_out.csv")
    assert not Path("lab_out.csv").exists()
    assert not Path("kits/notary/part").exists()
    kinds = {line["kind"] for line in lab["ledger"]["seen"]}
    assert {"EstimateShare", "Verdict", "Estimates", "LabelFacts"} <= kinds
    assert "InterceptShare" not in kinds
    assert "CheckShare" not in kinds
    assert all(process.returncode != 0 for process in again)
    assert any(
        "differ from those of an earlier one by 1 people; at least 10 are required" in t for t in texts
    )
    assert not Path("second-clinic/part.json").exists()
    assert not Path("second-lab/part.json").exists()


def test_a_killed_party_stops_the_others_and_all_can_start_again(place: Path) -> None:
    provision("clinic", "lab", "notary")
    Path("job.toml").write_text(JOB.replace("steps = 6", "steps = 15"))  # it does not end before the kill
    hub = Role(place, "hub", "hub", "--kit", "kits/hub")
    try:
        hub.wait_for("listens on")  # the parties' patience of 3 s is not for its start
        both = {
            name: Role(place, name, "regress", "job.toml", "--kit", f"kits/{name}", "--patience", "3")
            for name in ("clinic", "notary")
        }
        lab = Role(place, "lab", "regress", "job.toml", "--kit", "kits/lab")
        for role in both.values():  # one that has not heard of it yet would wait for its start
            role.wait_for("the encrypted channel with 'lab' is open")
        lab.process.kill()
        assert lab.wait() == -signal.SIGKILL
        codes = [role.wait() for role in both.values()]
        texts = [role.log.read_text() for role in both.values()]
        assert 0 not in codes, texts
        for text, other in zip(texts, ("notary", "clinic"), strict=True):
            # Each names the party that it heard of first: the killed one, or the other that had ended for it.
            assert "party 'lab' has been" in text or f"party '{other}' stopped" in text, text
            assert "Traceback" not in text
        assert any("party 'lab' has been disconnected" in text for text in texts), texts
        assert not Path("kits/clinic/part").exists()
        Path("job.toml").write_text(JOB)
        values = [
            finish(p)
            for p in [
                start("regress", "job.toml", "--kit", f"kits/{n}", "--json")
                for n in ("clinic", "lab", "notary")
            ]
        ]
        check_table(values[0]["table"])
    finally:
        hub.process.send_signal(signal.SIGINT)
        hub.wait()


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (JOB.replace("helper = true", 'id = "x"'), "3 parties with an id and 0 with helper = true"),
        (JOB.replace('label = "relapse"', ""), "family 'binomial' needs label at exactly one party"),
        (JOB.replace("binomial", "cox"), "family 'cox' needs time and event at exactly one party"),
        (JOB.replace("binomial", "normal"), "family is 'normal'; it must be one of"),
        (JOB.replace("relapse", "relaps"), "has no column 'relaps'. Did you mean 'relapse'?"),
        (JOB.replace("steps = 6", "steps = 1"), "steps is 1; it must be"),
        (JOB.replace("[regress]", "[regress]\nstep = 3\nthing = 1"), "it has no key 'step'"),
        (
            JOB.replace('id = "person"', 'id = "person"\ndrop = ["warp"]'),
            "has no column 'warp'. Did you mean 'ward'?",
        ),
        (
            JOB.replace('id = "person"', 'id = "person"\nweights = "marker"'),
            "parties.lab: offset and weights belong to 'clinic', with the label",
        ),
        (
            JOB.replace('id = "patient"', 'id = "patient"\noffset = "ages"'),
            "has no column 'ages'. Did you mean 'age'?",
        ),
    ],
)
def test_bad_jobs_write_nothing(place: Path, capsys: pytest.CaptureFixture[str], job: str, text: str) -> None:
    Path("job.toml").write_text(job)
    code, out = said(capsys, "regress", "job.toml", "--out", "parts")
    assert code == 2
    assert text in out
    assert not Path("parts").exists()
