"""Spellings, lines of totals and odd dates: `tacit job new` proposes what becomes of them, and the job runs."""

from __future__ import annotations

import tomllib
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit import data
from tacit.config import job
from tacit.data.findings import inspect_table
from tacit.data.spellings import find_spellings
from tacit.errors import BadData, BadJob
from tacit.jobs.train.party_rows import read_layout, read_rows

from .shell import answer, run


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def clinics(n: int = 300) -> pd.DataFrame:
    """A spreadsheet of patients: an outcome in five spellings, odd dates, and a line of totals."""
    rng = np.random.default_rng(0)
    days = pd.Timestamp("2015-01-01") + pd.to_timedelta(rng.integers(0, 700, n), unit="D")
    frame = pd.DataFrame(
        {
            "hospital": rng.choice(["north", "south", "west"], n),
            "admitted": days.strftime("%Y-%m-%d"),
            "age": rng.integers(20, 90, n),
            "stays": rng.integers(1, 9, n),
            "sex": rng.choice(["male", "Male ", "F", "female"], n),
        }
    )
    ill = frame["age"] + rng.normal(0, 20, n) > 55
    frame["ill"] = np.where(ill, rng.choice(["yes", "Yes ", "Y"], n), rng.choice(["no", "No"], n))
    frame.loc[:11, "admitted"] = "9999-12-31"
    frame.loc[12, "admitted"] = "2015-02-30"
    frame.loc[13:14, "admitted"] = "2099-06-01"
    total = {"hospital": "Total", "age": frame["age"].sum(), "stays": frame["stays"].sum()}
    return pd.concat([frame, pd.DataFrame([total])], ignore_index=True)


def draft(capsys, *words: str) -> tuple[dict, dict]:
    """The findings by (problem, column), and [data] of the drafted file."""
    value = answer(capsys, "job", "new", *words)
    assert value["remaining"] == ""
    return {(p["problem"], p["column"]): p for p in value["problems"]}, tomllib.loads(
        Path("job.toml").read_text()
    )["data"]


def test_a_draft_reads_spellings_as_one_and_leaves_totals_and_odd_dates_out(capsys):
    clinics().to_csv("a.csv", index=False)
    found, settings = draft(capsys, "a.csv", "--label", "ill", "--by", "hospital")
    assert settings["drop_rows"] == {"hospital": ["Total"]}
    assert len(settings["spellings"]["ill"]) == 3  # five spellings of two answers
    assert settings["missing_codes"] == {"admitted": ["2015-02-30", "9999-12-31"]}
    assert "The last row is a line of totals: 'hospital' is 'Total'." in found["totals", "hospital"]["text"]
    (fed,) = job.load("job.toml").federations()
    assert fed.parties == ("north", "south", "west")
    assert fed.sizes.sum() + len(fed.test.y) == 300
    assert fed.classes == 2
    assert len([c for c in fed.columns if c.startswith("sex=")]) == 2
    code, _, err = run(capsys, "run", "job.toml", "--set", "train.rounds=2", "--out", "done", "--quiet")
    assert code == 0, err


def test_dates_in_the_future_are_kept_and_their_proposal_can_be_pasted(capsys):
    clinics().to_csv("a.csv", index=False)
    found, _ = draft(capsys, "a.csv", "--label", "ill", "--by", "hospital")
    future = found["future dates", "admitted"]
    assert "'2099-06-01' in 2 rows" in future["text"]
    text = Path("job.toml").read_text()
    assert f"# {future['proposal']}\n" in text
    declared = 'missing_codes.admitted = ["2015-02-30", "9999-12-31"]\n'
    assert declared in text
    taken = text.replace(declared, "").replace(f"# {future['proposal']}", future["proposal"])
    (drafted, without) = (tomllib.loads(t)["data"]["missing_codes"]["admitted"] for t in (taken, text))
    assert drafted == [*without, "2099-06-01"]
    Path("job.toml").write_text(taken)
    (fed,) = job.load("job.toml").federations()
    assert fed.pipeline.recipe.mean[fed.columns.index("admitted year")] < 2017


def test_a_typo_of_a_class_is_proposed_and_becomes_the_class_when_it_is_taken(capsys):
    frame = clinics().iloc[:-1]
    frame["ill"] = frame["ill"].str.strip().str.lower().str[0].map({"y": "diseased", "n": "healthy"})
    frame.loc[5:7, "ill"] = "diseasd"
    frame.to_csv("a.csv", index=False)
    found, settings = draft(capsys, "a.csv", "--label", "ill", "--by", "hospital")
    assert "spellings" not in settings or "ill" not in settings["spellings"]
    proposal = found["typos", "ill"]["proposal"]
    assert proposal == 'spellings.ill.diseasd = "diseased"'
    text = Path("job.toml").read_text()
    (before,) = job.load("job.toml").federations()
    Path("job.toml").write_text(text.replace(f"# {proposal}", proposal))
    (after,) = job.load("job.toml").federations()
    assert (before.classes, after.classes) == (3, 2)


def test_words_for_two_answers_are_one_value_only_where_all_values_are_such_words():
    def of(*words: str) -> dict[str, str]:
        return find_spellings(pd.Series([w for k, w in enumerate(words) for _ in range(9 - k)]))

    assert of("yes", "no", "Y", "n", "1") == {"Y": "yes", "n": "no", "1": "yes"}
    assert of("yes", "no", "maybe", "Y") == {}
    assert of("a", "b", "A ") == {"A ": "a"}
    assert of("a ", "b", "a") == {"a ": "a"}
    assert of("a ", "b") == {}
    assert of("1", "0") == {}
    assert of("m", "f", "Male") == {"Male": "m"}
    assert of("Yes", "no", "yes", "N") == {"Yes": "yes", "N": "no"}  # as classes: no, yes
    assert of("No", "yes", "Yes ") == {"No": "no", "Yes ": "yes"}
    assert of("Yes", "No", "YES") == {"YES": "Yes"}
    assert of("Yes", "no") == {}
    assert of("0", "1", "no", "yes") == {"0": "no", "1": "yes"}
    assert of("t", "n", "m") == {}  # stages of a tumor
    assert of("y", "yes") == {}  # one answer alone


def test_a_prediction_and_its_onnx_file_read_spellings_as_training_did():
    frame = clinics().iloc[:-1].drop(columns="admitted")
    spellings = {"ill": {"Yes ": "yes", "Y": "yes", "No": "no"}, "sex": {"Male ": "male", "F": "female"}}
    fed = data.from_frame(frame, "ill", spellings=spellings).by("hospital")
    run = tacit.train(fed, model="logistic", rounds=3, out="done")
    new = frame.iloc[:20].assign(sex=["Male ", "male", "F", "female", "other"] * 4)
    scored = tacit.load("done").predict(new)
    plain = run.predict(new.assign(sex=["male", "male", "female", "female", "other"] * 4))
    assert scored.equals(plain)
    assert list(scored.columns) == ["p(no)", "p(yes)", "prediction"]
    import onnxruntime

    run.export("m.onnx")
    session = onnxruntime.InferenceSession("m.onnx", providers=["CPUExecutionProvider"])
    inputs = {"age": new[["age"]].to_numpy(float), "stays": new[["stays"]].to_numpy(float)}
    p = session.run(["probabilities"], {**inputs, "sex": new[["sex"]].to_numpy(object)})[0]
    np.testing.assert_allclose(p, scored[["p(no)", "p(yes)"]].to_numpy(), atol=1e-12)


def test_real_parties_agree_on_spellings_and_rows_and_a_party_reads_its_file_so(capsys):
    clinics().replace("2015-02-30", None).to_csv("a.csv", index=False)  # its only row: nobody else may know
    answer(capsys, "job", "new", "a.csv", "--label", "ill", "--by", "hospital", "--parties")
    layout = tomllib.loads(Path("job.toml").read_text())["data"]
    assert layout["drop_rows"] == {"hospital": ["Total"]}
    assert len(layout["labels"]) == 2
    assert len(layout["categories"]["sex"]) == 2
    rows = read_rows("a", "a.csv", layout, seed=0)
    assert len(rows.rows.y) == 300
    with pytest.raises(BadData, match=r"there is no column 'ward' \(drop_rows\)"):
        read_rows("a", "a.csv", layout | {"drop_rows": {"ward": ["Total"]}}, seed=0)
    with pytest.raises(BadJob, match="spellings of 'sex' name 'mael', which is not one of its values"):
        read_layout(layout | {"spellings": {"sex": {"M": "mael"}}})
    with pytest.raises(BadJob, match=r"drop_rows is .*; it must be a table by column"):
        read_layout(layout | {"drop_rows": {"hospital": "Total"}})
    with pytest.raises(BadJob, match="'yes' is a spelling of another value and the meaning of one"):
        read_layout(layout | {"spellings": {"ill": {"Y": "yes", "yes": "Y"}}})


def test_a_draft_for_others_names_no_sum_and_no_spelling_of_few_rows(capsys):
    frame = clinics()
    frame.loc[300, "hospital"] = None
    frame.loc[:3, "hospital"] = "NORTH"
    frame["ward"] = frame["hospital"]
    frame["hospital"] = "a"
    frame.to_csv("a.csv", index=False)
    total = str(int(frame["age"].iloc[-1]))
    value = answer(capsys, "job", "new", "a.csv", "--label", "ill", "--parties")
    text = Path("job.toml").read_text() + str(value)
    assert "NORTH" not in text
    assert total not in text
    found = {(p["problem"], p["column"]): p for p in value["problems"]}
    assert found["totals", "age"]["treatment"] == "Remove them from the file."
    assert "1 of few rows, not shown" in found["spellings", "ward"]["text"]


def test_lines_of_totals_are_found_at_the_end_of_every_file(capsys):
    frame = clinics().drop(columns=["admitted"])
    for name in ("north", "south"):
        mine = frame[frame["hospital"] == name].drop(columns="hospital")
        words = {"record": [f"r{k}" for k in range(len(mine))]}
        sums = {"record": "TOTAL", "age": mine["age"].sum(), "stays": mine["stays"].sum()}
        pd.concat([mine.assign(**words), pd.DataFrame([sums])]).to_csv(f"{name}.csv", index=False)
    found, settings = draft(capsys, "north.csv", "south.csv", "--label", "ill")
    assert settings["drop_rows"] == {"record": ["TOTAL"]}
    assert ("missing outcome", "ill") not in found
    (fed,) = job.load("job.toml").federations()
    assert fed.sizes.sum() + len(fed.test.y) == frame["hospital"].isin(["north", "south"]).sum()


def test_a_last_row_that_only_looks_like_others_stays():
    frame = clinics().iloc[:-1]
    assert "drop_rows" not in inspect_table(frame, "ill", "hospital").settings
    frame["method"] = ["sum", "mean"] * 150  # a category, and no line of totals
    assert "drop_rows" not in inspect_table(frame, "ill", "hospital").settings


def test_rows_are_numbered_as_in_the_file_although_totals_were_left_out(capsys):
    frame = clinics()
    frame.loc[7, "ill"] = None
    frame.to_csv("a.csv", index=False)
    found, _ = draft(capsys, "a.csv", "--label", "ill", "--by", "hospital")
    assert (
        "1 of 300 rows have no 'ill', the first is row 8 (line 9" in found["missing outcome", "ill"]["text"]
    )


def test_an_old_date_is_a_stand_in_only_if_it_is_far_from_the_others():
    born = [f"{1890 + k % 60}-01-01" for k in range(200)]
    frame = pd.DataFrame({"born": born, "x": range(200), "y": [0, 1] * 100})
    assert "missing_codes" not in inspect_table(frame, "y").settings
    frame["born"] = [f"{2010 + k % 10}-01-01" for k in range(195)] + ["1900-01-01"] * 5
    assert inspect_table(frame, "y").settings["missing_codes"] == {"born": ["1900-01-01"]}
    frame["born"] = [f"{date.today().year + 1 + k % 10}-01-01" for k in range(200)]  # appointments
    assert not {f.problem for f in inspect_table(frame, "y").findings} & {"future dates", "stand-in dates"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spellings": {"sex": "M"}}, "spellings is .* it must be a table by column"),
        ({"spellings": {"sx": {"M": "m"}}}, "there is no column 'sx' .spellings.. Did you mean 'sex'"),
        ({"drop_rows": {"hospital": []}}, "drop_rows is .* it must be a table by column, of lists"),
        ({"drop_rows": {"hospitl": ["Total"]}}, "there is no column 'hospitl' .drop_rows."),
        ({"drop_rows": {"sex": ["male", "Male ", "F", "female"]}}, "drop_rows leaves out every row"),
    ],
)
def test_wrong_declarations_are_refused(options, message):
    with pytest.raises(BadData, match=message):
        data.from_frame(clinics().iloc[:-1].drop(columns="admitted"), "ill", **options)


def test_findings_of_a_new_user_with_real_tables():
    """Each was wrong in a draft of a table that a package ships: see the comment of each."""
    n = 400
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"class": rng.integers(0, 4, n), "lang": rng.normal(size=n).round(3)})
    frame["IQ"] = rng.normal(size=n).round(3)
    assert inspect_table(frame, by="class").label == "IQ"  # nlschools: the parties were the label
    frame["y"] = rng.choice(["no", "yes"], n)
    frame["kids"] = rng.integers(0, 9, n)
    frame.loc[:20, "kids"] = rng.choice([97, 98, 99], 21)  # PSID: 98 hid 99
    frame["town"] = np.repeat([f"t{k}" for k in range(134)], 3)[:n]  # scorecard: all would be "other"
    frame["politycode"] = rng.integers(0, 30, n)  # dd: codes were numbers
    found = inspect_table(frame, "y")
    assert set(found.settings["missing_codes"]["kids"]) == {97, 98, 99}
    assert "town" in found.settings["drop"]
    assert found.settings["categories"] == ["politycode"]
    (town,) = (f for f in found.findings if f.column == "town")
    assert town.proposal == 'group = "town"'
    frame["site"] = [f"s{k:03}" for k in rng.integers(0, 60, n)]  # Fatality: all were merged into one party
    found = inspect_table(frame, "y", "site")
    assert "min_rows" not in found.settings
    assert [f for f in found.findings if "All 60 parties have fewer than 20 rows" in f.text]


def test_days_of_an_event_and_other_events_are_known_only_afterwards():
    """lymph_node: days of death and of the last look were features, and the second event, too."""
    rng = np.random.default_rng(0)
    days = pd.Timestamp("2001-01-01") + pd.to_timedelta(rng.integers(0, 900, 300), unit="D")
    frame = pd.DataFrame(
        {"diagdate": days, "deathdate": days + pd.Timedelta(days=90), "age": rng.integers(20, 90, 300)}
    )
    frame[["diagdate", "deathdate"]] = frame[["diagdate", "deathdate"]].astype(str)
    frame["survtime"] = rng.integers(1, 999, 300)
    frame["censdead"], frame["censrec"] = rng.integers(0, 2, 300), rng.integers(0, 2, 300)
    found = inspect_table(frame, "censdead")
    assert set(found.settings["drop"]) == {"deathdate", "survtime"}
    assert list(found.settings["dates"]) == ["diagdate"]
    assert [f.text for f in found.findings if f.problem == "other outcomes"] == [
        "Perhaps outcomes, too, and known only afterwards: 'censrec'."
    ]


def test_a_minus_one_beside_the_two_values_of_an_outcome_may_mean_not_known():
    frame = pd.DataFrame({"x": range(300), "hiv": [0, 1, 0] * 99 + [-1] * 3})  # thornton_hiv
    (finding,) = (f for f in inspect_table(frame, "hiv").findings if f.problem == "integer outcome")
    assert finding.proposal == "missing_codes.hiv = [-1]"


def test_an_outcome_that_is_the_mean_of_two_columns_is_found():
    """Caschool: testscr is the mean of readscr and mathscr, and the model had an R² of 1."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({name: rng.normal(600, 20, 200).round(1) for name in ("readscr", "mathscr")})
    frame["income"] = rng.normal(10, 2, 200)
    frame["testscr"] = ((frame["readscr"] + frame["mathscr"]) / 2).round(2)
    found = inspect_table(frame, "testscr")
    assert found.settings["drop"] == ["readscr", "mathscr"]
    assert "together give 'testscr'" in found.findings[-1].text
    frame["testscr"] += rng.normal(0, 2, 200)
    assert "drop" not in inspect_table(frame, "testscr").settings


def draft_for_others(frame: pd.DataFrame, capsys) -> tuple[dict, str]:
    """[data] of a draft for real parties, which its file can be read by, and everything that is written."""
    frame.to_csv("a.csv", index=False)
    value = answer(capsys, "job", "new", "a.csv", "--label", "ill", "--parties")
    text = Path("job.toml").read_text()
    layout = tomllib.loads(text)["data"]
    assert len(read_rows("a", "a.csv", layout, seed=0).rows.y) == len(frame)
    return layout, text + str(value)


def people(n: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"age": rng.integers(20, 90, n), "ill": rng.choice(["no", "yes"], n)})


def test_a_draft_for_others_declares_spellings_of_the_values_that_it_lists_only(capsys):
    """Before, "Y" was read as "yes", which was no category of the job, and the job was refused."""
    frame = people().assign(rare="no")
    frame.loc[:2, "rare"], frame.loc[3:4, "rare"] = "yes", "Y"
    layout, _ = draft_for_others(frame, capsys)
    assert layout["categories"]["rare"] == ["no", "other"]
    assert "spellings" not in layout


def test_a_draft_for_others_declares_spellings_of_words_among_numbers(capsys):
    """Before, they were left out, and the party was refused for "Unknown"."""
    frame = people().assign(dose=np.arange(300).astype(object) % 14)
    frame.loc[:30, "dose"], frame.loc[31:50, "dose"] = "unknown", "Unknown"
    layout, _ = draft_for_others(frame, capsys)
    assert layout["spellings"] == {"dose": {"Unknown": "unknown"}}
    assert layout["missing_codes"] == {"dose": ["unknown"]}


def test_a_proposal_about_future_dates_names_no_other_date_of_few_rows(capsys):
    days = pd.Series([f"2015-{1 + k % 9:02}-11" for k in range(300)])
    days[:12], days[12:15] = "2099-06-01", "1900-01-01"
    frame = people().assign(admitted=days)
    _, written = draft_for_others(frame, capsys)
    assert 'missing_codes.admitted = ["2099-06-01"]' in written
    assert "1900-01-01" not in written
