"""`tacit job new`: every problem at once, and a draft that runs as it is."""

from __future__ import annotations

import tomllib
from pathlib import Path

import lifelines.datasets
import numpy as np
import pandas as pd
import pytest

import tacit
from tacit import data
from tacit.config import job
from tacit.data.cell_forms import find_date_format
from tacit.data.findings import inspect_table
from tacit.data.misspellings import is_misspelled
from tacit.errors import BadData, BadParameter
from tacit.jobs.draft import draft_job
from tacit.jobs.train.party_rows import read_party_table, read_rows

from .shell import answer, run


def icu(n: int = 400, seed: int = 0) -> pd.DataFrame:
    """An intensive care table with one problem of each kind."""
    rng = np.random.default_rng(seed)
    days = pd.Timestamp("2014-01-01") + pd.to_timedelta(rng.integers(0, 900, n), unit="D")
    frame = pd.DataFrame(
        {
            "patient_id": [f"p{k:04}" for k in rng.integers(0, 150, n)],
            "record": np.arange(n) + 10_000,
            "hospital": rng.choice(["north", "south", "west", "tiny"], n, p=[0.5, 0.3, 0.18, 0.02]),
            "admitted": days.strftime("%m/%d/%Y"),
            "at": [f"{h:02}:{m:02}" for h, m in zip(rng.integers(0, 24, n), rng.integers(0, 60, n))],
            "zip": [f"{z:05}" for z in rng.choice([1067, 80331, 50667], n)],
            "lab": rng.normal(100, 15, n).round(1),
            "dose": [str(x) if x % 9 else "unknown" for x in rng.integers(1, 400, n)],
            "sex": rng.choice(["female", "male"], n),
            "empty": None,
            "same": 1,
            "note": [f"free text {i}" for i in range(n)],
        }
    )
    frame["died"] = np.where((frame["lab"] > 112) | (rng.random(n) < 0.05), 1.0, 0.0)
    frame["ward_out"] = np.where(frame["died"] == 1, "morgue", "home")
    frame.loc[rng.random(n) < 0.1, "lab"] = -9999
    frame.loc[3, "sex"] = "femal"
    frame.loc[[7, 9], "hospital"] = None
    frame.loc[[20, 21, 22], "died"] = np.nan
    return frame


PROBLEMS = {
    ("label", "died"),
    ("parties", "hospital"),
    ("missing outcome", "died"),
    ("class balance", "died"),
    ("several rows of one person", "patient_id"),
    ("identifier", "record"),
    ("date", "admitted"),
    ("time", "at"),
    ("leading zeros", "zip"),
    ("sentinel", "lab"),
    ("mixed", "dose"),
    ("typos", "sex"),
    ("empty", "empty"),
    ("constant", "same"),
    ("identifier", "note"),
    ("leakage", "ward_out"),
    ("missing party", "hospital"),
    ("tiny parties", "hospital"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    icu().to_csv("icu.csv", index=False)
    return tmp_path


def test_all_problems_are_listed_at_once_and_the_draft_runs(folder, capsys):
    value = answer(capsys, "job", "new", "icu.csv")
    assert {(p["problem"], p["column"]) for p in value["problems"]} == PROBLEMS
    assert value["remaining"] == ""
    text = Path("job.toml").read_text()
    for finding in value["problems"]:  # each is in the file, too
        assert finding["text"].split("'")[1] in text
    drafted = job.load("job.toml", ["train.rounds=2"])
    (fed,) = drafted.federations()
    assert fed.parties == ("north", "small parties", "south", "west")
    assert not {"record", "note", "same", "ward_out=home"} & set(fed.columns)
    assert {"zip=01067", "lab missing", "dose missing", "admitted year", "at hour sin"} <= set(fed.columns)
    code, _, err = run(capsys, "run", "job.toml", "--set", "train.rounds=2", "--out", "done", "--quiet")
    assert code == 0, err


def test_the_console_shows_kinds_and_numbered_problems(folder, capsys):
    code, out, _ = run(capsys, "job", "new", "icu.csv", "--label", "died", "--by", "hospital")
    assert code == 0
    assert "16 problems found:" in out
    assert "'ward_out' alone predicts 'died' with an AUC of 1.000" in out
    assert "lab         number" in out
    code, _, err = run(capsys, "job", "new", "icu.csv")
    assert code == 2
    assert "job.toml exists. Choose another name with --out, or overwrite it with --force." in err
    code, _, err = run(capsys, "job", "new", "icu.csv", "--force", "--label", "dead")
    assert code != 0
    assert "there is no column 'dead' (label). Did you mean" in err


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet"])
def test_each_partys_file_fits_the_layout_drafted_for_real_parties(folder, capsys, kind):
    frame = icu().dropna(subset=["died", "hospital"])
    for site, part in frame.groupby("hospital"):
        rows = part.drop(columns="hospital")
        if kind == "parquet":
            rows.to_parquet(f"{site}.parquet", index=False)
        else:
            rows.to_csv(f"{site}.{kind}", index=False)
    files = [f"{s}.{kind}" for s in ("north", "south", "west")]
    value = answer(capsys, "job", "new", *files, "--parties", "--label", "died", "--out", "net.toml")
    assert value["remaining"] == ""
    layout = tomllib.loads(Path("net.toml").read_text())["data"]
    assert layout["labels"] == ["0", "1"]
    assert set(layout["numbers"]) == {"lab", "dose"}
    assert layout["group"] == "patient_id"
    feds = [read_rows(f, f, layout, seed=0) for f in files]
    assert len({fed.columns for fed in feds}) == 1
    answer(capsys, "job", "new", *files, "--label", "died")
    (fed,) = job.load("job.toml").federations()
    assert fed.parties == ("north", "south", "west")


def test_small_sites_are_left_out_in_a_draft_for_real_parties(folder, capsys):
    icu().dropna(subset=["died", "hospital"]).to_csv("icu.csv", index=False)
    words = ("icu.csv", "--parties", "--label", "died", "--by", "hospital", "--out", "net.toml")
    value = answer(capsys, "job", "new", *words)
    assert value["remaining"] == ""
    layout = tomllib.loads(Path("net.toml").read_text())["data"]
    assert (layout["min_rows"], layout["small"]) == (20, "drop")
    (tiny,) = [p for p in value["problems"] if p["problem"] == "tiny parties"]
    assert tiny["treatment"].startswith("They contribute no rows")


def test_a_missing_outcome_is_located_in_its_file_and_left_out_also_by_real_parties(folder, capsys):
    frame = pd.DataFrame({"age": range(20, 60), "ill": ["no", "yes"] * 20})
    frame.to_csv("a.csv", index=False)
    frame.assign(ill=frame["ill"].where(frame.index != 4)).to_csv("b.csv", index=False)
    command = ("job", "new", "a.csv", "b.csv", "--label", "ill")
    found = "1 of 80 rows have no 'ill', the first is row 5 (line 6) of b.csv.\n     They are left out."
    for more in ((), ("--parties",)):
        _, shown, _ = run(capsys, *command, *more, "-o", "job.toml", "--force")
        assert found in shown
        drafted = tomllib.loads(Path("job.toml").read_text())["data"]
        assert drafted["missing_label"] == "drop"
    assert len(read_party_table("b", "b.csv", drafted, 0).y) == 39


def test_files_of_windows_with_decimal_commas_are_read(folder, capsys):
    frame = pd.DataFrame({"größe": np.linspace(150, 190, 60), "y": ["ja", "nein"] * 30})
    frame.to_csv("alt.csv", index=False, sep=";", decimal=",", encoding="cp1252")
    value = answer(capsys, "job", "new", "alt.csv", "--label", "y")
    assert {p["problem"] for p in value["problems"]} == {"encoding", "decimal"}
    (fed,) = job.load("job.toml").federations()
    assert fed.columns == ("größe",)


def test_files_in_different_encodings_become_one_job_that_each_party_can_read(folder, capsys):
    """A byte order mark, UTF-8 and Windows; a party's owner scores such files without saying how they are read."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"größe": rng.normal(170, 9, 180).round(1), "art": rng.choice(["prä", "post"], 180)})
    table["y"] = np.where(table["größe"] + 9 * (table["art"] == "prä") > 175, "ja", "nein")
    names = {"a.csv": "utf-8-sig", "b.csv": "utf-8", "c.csv": "cp1252"}
    parts = dict(zip(names, np.split(np.arange(180), 3)))
    for name, encoding in names.items():
        table.iloc[parts[name]].to_csv(name, index=False, sep=";", decimal=",", encoding=encoding)
    (problem,) = [
        p
        for p in answer(capsys, "job", "new", *names, "--label", "y", "--parties")["problems"]
        if p["problem"] == "encoding"
    ]
    assert problem["text"].startswith("Not all files are UTF-8")
    layout = tomllib.loads(Path("job.toml").read_text())["data"]
    assert (layout["encoding"], layout["decimal"]) == ("utf-8, cp1252", ",")
    for name, rows in parts.items():
        mine = read_party_table(name, name, layout, 0)
        assert len(mine.y) == 60
        pd.testing.assert_series_equal(
            mine.frame["größe"].reset_index(drop=True), table["größe"].iloc[rows].reset_index(drop=True)
        )
        assert set(mine.frame["art"].astype(str)) == {"prä", "post"}
    answer(capsys, "job", "new", *names, "--label", "y", "-o", "sim.toml")
    assert run(capsys, "run", "sim.toml", "--out", "run", "--quiet")[0] == 0
    scores = []
    for name in names:
        code, _, err = run(capsys, "predict", "run", name, "--out", f"scored-{name}")
        assert code == 0, err
        scores.append(pd.read_csv(f"scored-{name}"))
    expected = tacit.load("run").predict(table.drop(columns="y"))
    np.testing.assert_allclose(pd.concat(scores)["p(ja)"], expected["p(ja)"], rtol=0, atol=1e-6)


def test_files_with_different_decimal_signs_are_refused_unless_they_have_no_fractions(folder):
    frame = pd.DataFrame({"a": np.arange(60) / 7, "b": np.arange(60) % 5, "y": ["n", "p"] * 30})
    frame.to_csv("comma.csv", index=False, sep=";", decimal=",")
    frame.to_csv("point.csv", index=False, sep=";")
    with pytest.raises(BadData, match=r"decimal sign: comma\.csv has ',' and point\.csv has '\.'"):
        draft_job(["point.csv", "comma.csv"], label="y")
    frame.assign(a=range(60)).to_csv("whole.csv", index=False, sep=";")
    assert draft_job(["whole.csv", "comma.csv"], label="y").settings["decimal"] == ","


def test_files_with_commas_between_cells_beside_decimal_commas_are_refused_by_name(folder):
    frame = pd.DataFrame({"a": np.arange(60) / 7, "b": np.arange(60) % 5, "y": ["n", "p"] * 30})
    frame.to_csv("german.csv", index=False, sep=";", decimal=",")
    frame.to_csv("english.csv", index=False)
    why = r"german\.csv has the decimal sign ',', and english\.csv has commas between cells\..*save both"
    for files in (["german.csv", "english.csv"], ["english.csv", "german.csv"]):
        with pytest.raises(BadData, match=why):
            draft_job(files, label="y")
    with pytest.raises(BadParameter, match=r"english\.csv: decimal is ',';"):
        draft_job(["english.csv"], label="y", reading={"decimal": ","})


def write_german_costs(name="costs.csv"):
    rows = [f"{1 + k % 9}.{100 + 7 * k};{k},5;{k % 3};{'ja' if k % 2 else 'nein'}" for k in range(120)]
    Path(name).write_text("\n".join(["kosten;x;z;y", *rows]) + "\n", encoding="utf-8")


@pytest.mark.parametrize("parties", [False, True])
def test_points_that_seem_to_separate_thousands_are_named_and_the_column_is_left_out(folder, capsys, parties):
    """The draft quotes no number: with --parties others read it."""
    write_german_costs()
    options = ("--parties",) if parties else ()
    problems = answer(capsys, "job", "new", "costs.csv", "--label", "y", *options)["problems"]
    (problem,) = [p for p in problems if p["problem"] == "thousands"]
    assert problem["column"] == "kosten"
    assert "it seems to separate thousands, as in 1.234 for 1234" in problem["text"]
    assert ("`numbers`" if parties else "`drop`") in problem["treatment"]
    text = Path("job.toml").read_text(encoding="utf-8")
    assert "1.100" not in text
    settings = tomllib.loads(text)["data"]
    if parties:
        assert settings["numbers"] == ["x", "z"]
        assert len(read_party_table("a", "costs.csv", settings, 0).y) == 120
    else:
        assert settings["drop"] == ["kosten"]
        assert run(capsys, "run", "job.toml", "--out", "run", "--quiet")[0] == 0
        Path("job.toml").write_text(text.replace('drop = ["kosten"]', ""), encoding="utf-8")
        for verb in (("run", "job.toml", "--out", "again"), ("plan", "job.toml")):
            code, out, err = run(capsys, *verb)
            assert code == 2, out
            assert "costs.csv, column 'kosten': '1.100' in row 1 (line 2 of a CSV file)" in err


def test_a_label_with_separators_of_thousands_is_refused(folder):
    write_german_costs()
    with pytest.raises(BadData, match=r"the label 'kosten' has numbers with a point.* Write 1234"):
        draft_job(["costs.csv"], label="kosten")


def test_a_column_of_different_whole_numbers_is_kept_by_taking_it_out_of_drop(folder, capsys):
    frame = pd.DataFrame(
        {"costs": np.arange(300) * 37 % 3000, "x": np.arange(300) % 7, "y": ["n", "p"] * 150}
    )
    frame.to_csv("t.csv", index=False)
    draft = draft_job(["t.csv"], label="y")
    (finding,) = [f for f in draft.findings if f.column == "costs"]
    assert finding.treatment == "Left out; take it out of `drop` if it is a quantity (costs, a volume)."
    (finding,) = [f for f in draft_job(["t.csv"], "y", real_parties=True).findings if f.column == "costs"]
    assert finding.treatment == "Left out; list it in `numbers` if it is a quantity (costs, a volume)."
    assert 'drop = ["costs"]' in draft.text
    Path("job.toml").write_text(draft.text.replace('drop = ["costs"]', ""), encoding="utf-8")
    assert run(capsys, "run", "job.toml", "--out", "run", "--quiet")[0] == 0
    assert "costs" in tacit.load("run").pipeline.recipe.numbers


def test_columns_that_not_all_files_have_are_left_out_and_named(folder):
    frame = pd.DataFrame({"a": np.arange(60) / 7, "b": np.arange(60.0) % 5, "y": ["n", "p"] * 30})
    frame.to_csv("one.csv", index=False)
    frame.drop(columns="b").assign(a=lambda f: f["a"] + 0.01).to_csv("two.csv", index=False)
    draft = draft_job(["one.csv", "two.csv"], label="y")
    assert [(f.problem, f.column) for f in draft.findings] == [("columns differ", "b")]
    (fed,) = job.from_tables(tomllib.loads(draft.text), Path("job.toml")).federations()
    assert fed.columns == ("a",)


def test_an_integer_outcome_is_a_regression_with_a_word_about_classes():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=200), "stage": rng.integers(0, 4, 200)})
    found = inspect_table(frame, "stage")
    assert found.settings["regression"] is True
    assert "set regression = false if the values are classes" in found.findings[0].treatment


def test_real_measurements_are_not_called_sentinels_or_leaks():
    frame = data.heart_disease(test_fraction=0).table.frame
    found = inspect_table(frame, "num", "hospital")
    assert {f.problem for f in found.findings} == {"zeros", "few values", "duplicates"}
    assert not {*found.settings} & {
        "missing_codes",
        "drop",
        "categories",
    }  # they are notes, and change nothing
    values = pd.DataFrame({"temperature": [*range(-12, 28)] * 3, "y": ["a", "b"] * 60})
    assert "missing_codes" not in inspect_table(values, "y").settings


@pytest.mark.parametrize(
    ("values", "form"),
    [
        (["03/25/2014", "04/01/2014"], "%m/%d/%Y"),
        (["25/03/2014", "01/04/2014"], "%d/%m/%Y"),
        (["03/04/2014", "01/02/2014"], None),
    ],
)
def test_a_date_form_is_taken_only_if_it_is_the_only_one(values, form):
    assert find_date_format(pd.Series(values)) == form


def test_zeros_far_below_all_other_values_and_codes_are_pointed_out():
    rng = np.random.default_rng(0)
    n = 300
    frame = pd.DataFrame(
        {
            "age": rng.normal(50, 9, n),
            "chol": np.where(rng.random(n) < 0.2, 0, rng.integers(120, 400, n)),
            "visits": rng.poisson(20, n),
            "dose": rng.choice([0, 50, 100], n),
            "pain": rng.integers(1, 5, n),
            "smoker": rng.integers(0, 2, n),
            "y": rng.choice(["a", "b"], n),
        }
    )
    found = {(f.problem, f.column): f.text for f in inspect_table(frame, "y").findings}
    zeros, least = int((frame["chol"] == 0).sum()), frame["chol"][frame["chol"] > 0].min()
    assert found == {
        ("zeros", "chol"): f"'chol' is 0 in {zeros} rows, and at least {least} in all others.",
        ("few values", ""): "Whole numbers with 3 to 10 different values: 'dose', 'pain'.",
    }


def test_columns_named_as_categories_are_categories_in_both_drafts(folder, capsys):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": rng.normal(50, 9, 90),
            "pain": rng.integers(1, 5, 90).astype(float),
            "ill": rng.choice(["n", "y"], 90),
        }
    )
    frame.to_csv("one.csv", index=False)
    words = ("job", "new", "one.csv", "--label", "ill", "--categories", "pain")
    value = answer(capsys, *words, "--out", "one.toml")
    assert value["columns"]["pain"] == "category: 4 values"
    assert not value["problems"]
    tables = tomllib.loads(Path("one.toml").read_text())
    assert tables["data"]["categories"] == ["pain"]
    assert "train" not in tables  # rounds would replace the defaults for tables
    answer(capsys, *words, "--parties", "--out", "parties.toml")
    text = Path("parties.toml").read_text()
    assert tomllib.loads(text)["data"]["categories"] == {"pain": ["1", "2", "3", "4"]}
    assert "tacit party --kit KIT parties.toml" in text
    code, _, err = run(capsys, "job", "new", "one.csv", "--categories", "pian", "--out", "two.toml")
    assert code == 2
    assert "there is no column 'pian' (categories). Did you mean 'pain'?" in err


def findings(frame: pd.DataFrame, label: str | None = None) -> tuple[dict[tuple[str, str], str], dict]:
    found = inspect_table(frame, label)
    return {(f.problem, f.column): str(f) for f in found.findings}, found.settings


def test_a_code_that_may_be_a_limit_is_proposed_and_not_applied():
    """Adult: capital gains end at 41,310 and 99,999; an age of 999 is no age."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "capital-gain": np.where(rng.random(400) < 0.9, 0.0, rng.integers(100, 41310, 400)),
            "age": rng.integers(18, 90, 400),
            "y": ["no", "yes"] * 200,
        }
    )
    frame.loc[:6, "capital-gain"], frame.loc[:3, "age"] = 99999, 999
    texts, settings = findings(frame, "y")
    assert settings["missing_codes"] == {"age": [999]}
    proposals = {f.column: f.proposal for f in inspect_table(frame, "y").findings}
    assert "'capital-gain' has 99999 in 7 rows" in texts["doubtful sentinel", "capital-gain"]
    assert proposals["capital-gain"] == "missing_codes.capital-gain = [99999]"


def test_categories_with_many_values_are_pointed_out():
    rng = np.random.default_rng(0)
    zips = [f"{k:05}" for k in rng.integers(1000, 1200, 3000)]
    texts, settings = findings(pd.DataFrame({"zip": zips, "y": ["no", "yes"] * 1500}), "y")
    assert settings["categories"] == ["zip"]
    assert 'use name = "table_network" in [model]' in texts["many values", "zip"]


def test_the_time_until_an_event_is_no_feature_of_it():
    lung = lifelines.datasets.load_lung()
    texts, settings = findings(lung)
    assert "'status' is a guess" in texts["label", "status"]
    assert ("duration", "time") in texts
    assert settings["drop"] == ["time"]
    assert "'3', '11'" in texts["tiny parties", "inst"]  # not '3.0'
    assert ("duration", "time") not in findings(lung, "sex")[0]


def test_a_guessed_label_has_values():
    frame = pd.DataFrame({"a": range(30), "sex": ["f", "m"] * 15, "b": [0, 1, 1] * 10, "empty": [None] * 30})
    assert inspect_table(frame).label == "b"
    with pytest.raises(BadData, match="no column has two different values"):
        inspect_table(frame[["empty"]])


def test_similar_words_of_similar_frequency_are_no_typos():
    words = ["Iceland"] * 9 + ["Ireland"] * 8 + ["Denmark"] * 700 + ["denmark "] * 3 + ["Denmarc"] * 2
    texts, _ = findings(pd.DataFrame({"land": words, "y": (["no", "yes"] * 400)[: len(words)]}), "y")
    assert "'denmark ' for 'Denmark'" in texts["spellings", "land"]
    assert "'Denmarc' for 'Denmark'" in texts["typos", "land"]
    assert "Iceland" not in texts["typos", "land"]


@pytest.mark.parametrize(
    ("written", "meant", "is_typo"),
    [
        ("verifed", "verified", True),
        ("femal", "female", True),
        ("cardiolgoy", "cardiology", True),  # neighbors are swapped: one edit
        ("verrifeid", "verified", True),  # two edits of a long word
        ("residential high", "residential low", False),
        ("unfinished", "finished", False),
        ("half unf", "half fin", False),
        ("male", "female", False),
        ("fusep", "fusea", False),
        ("ward 12", "ward 13", False),
    ],
)
def test_a_typo_is_a_letter_or_two_and_not_another_word(written, meant, is_typo):
    assert is_misspelled(written, meant) == is_typo


def test_spellings_that_differ_in_case_are_named_however_frequent_they_are():
    frame = pd.DataFrame({"air": ["Y"] * 200 + ["y"] * 90 + ["N"] * 60, "x": range(350), "y": [0, 1] * 175})
    texts, settings = findings(frame, "y")
    assert texts["spellings", "air"].startswith("'air' has several spellings of one value: 'y' for 'Y'.")
    assert settings["spellings"] == {"air": {"y": "Y"}}


def test_names_and_addresses_of_people_are_no_features():
    rng = np.random.default_rng(0)
    names = {c: rng.choice([f"v{k}" for k in range(60)], 400) for c in ("first_name", "e-mail", "Surname")}
    names |= {
        "hospital_name": rng.choice(["north", "south"], 400),
        "street_type": rng.choice(["a", "b"], 400),
    }
    texts, found = findings(pd.DataFrame({**names, "y": rng.choice(["no", "yes"], 400)}), "y")
    assert {column for problem, column in texts if problem == "identifier"} == {
        "first_name",
        "e-mail",
        "Surname",
    }
    assert set(found["drop"]) == {"first_name", "e-mail", "Surname"}


def test_a_column_that_tells_one_of_three_classes_is_a_leakage_suspect():
    """Before, three classes were compared as the numbers 0, 1 and 2, or by accuracy, where one had 90%."""
    rng = np.random.default_rng(0)
    result = rng.choice(["invalid", "negative", "positive"], 3000, p=[0.03, 0.92, 0.05])
    frame = pd.DataFrame({"result": result, "age": rng.integers(0, 90, 3000)})
    frame["cycles"] = np.where(result == "positive", rng.uniform(15, 44, 3000).round(1), 45.0)
    frame["isolated"] = np.where(result == "positive", "yes", "no")
    frame["ward"] = rng.choice([f"w{k}" for k in range(400)], 3000)  # levels of a few rows tell nothing
    texts, _ = findings(frame, "result")
    assert {column for problem, column in texts if problem == "leakage"} == {"cycles", "isolated"}
    assert (
        "'cycles' alone predicts the 'result' 'positive' with an AUC of 1.000" in texts["leakage", "cycles"]
    )


def test_dates_in_several_forms_are_read_and_named():
    iso = pd.Series(["2020-03-01", "2.3.2020", "2020-3-14"] * 20)
    slashed = pd.Series(["03/14/2020", "2020-03-01", "03/02/2020"] * 20)
    unclear = pd.Series(["03/04/2020", "2020-03-01"] * 30)
    frame = pd.DataFrame({"a": iso, "b": slashed, "c": unclear, "y": ["no", "yes"] * 30})
    texts, found = findings(frame, "y")
    assert "Some are written like YYYY-MM-DD and some like D.M.YYYY; both are read." in texts["date", "a"]
    assert found["date_formats"] == {"b": "%m/%d/%Y | %Y-%m-%d"}
    assert found["drop"] == ["c"]


def test_a_column_that_is_missing_for_one_class_alone_is_a_leakage_suspect():
    rng = np.random.default_rng(0)
    died = np.where(rng.random(600) < 0.2, "yes", "no")
    frame = pd.DataFrame({"died": died, "age": rng.integers(20, 90, 600)})
    frame["year of death"] = np.where(died == "yes", rng.integers(83, 93, 600), np.nan)
    frame["lab"] = np.where(rng.random(600) < 0.5, np.nan, rng.normal(size=600))  # missing by chance
    texts, found = findings(frame, "died")
    assert {column for problem, column in texts if problem == "leakage"} == {"year of death"}
    assert texts["leakage", "year of death"].startswith(
        "Whether 'year of death' is missing alone predicts 'died' with an AUC of 1.000"
    )
    assert found["drop"] == ["year of death"]


def test_codes_in_any_order_and_the_outcome_on_another_scale_are_leakage_suspects():
    rng = np.random.default_rng(0)
    ill = rng.random(600) < 0.4
    frame = pd.DataFrame({"ill": np.where(ill, "yes", "no"), "age": rng.integers(20, 90, 600)})
    frame["exit"] = np.where(ill, 2, rng.choice([1, 3], 600))  # 2 is between the others
    texts, _ = findings(frame, "ill")
    assert {column for problem, column in texts if problem == "leakage"} == {"exit"}
    wage = pd.DataFrame({"age": rng.integers(20, 90, 600)})
    wage["wage"] = np.exp(wage["age"] / 60 + rng.normal(size=600))
    wage["ln"] = np.log(wage["wage"]).round(4)
    texts, _ = findings(wage, "wage")
    assert {column for problem, column in texts if problem == "leakage"} == {"ln"}


def test_ids_of_several_rows_group_them_and_codes_by_name_are_categories():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"nr": np.repeat(np.arange(13, 213), 3), "y": rng.choice(["no", "yes"], 600)})
    frame["store_id"] = rng.integers(1, 60, 600)
    frame["zip"] = rng.choice([10115, 20095, 80331], 600)
    frame["paid"] = rng.integers(1, 60, 600)  # ends with "id"
    texts, found = findings(frame, "y")
    assert found["group"] == "nr"
    assert found["categories"] == ["store_id", "zip"]
    assert "'store_id' has whole numbers and the name of a code." in texts["codes", "store_id"]
    assert "paid" not in {column for _, column in texts}


@pytest.mark.parametrize("form", ["{}", "P-{:04d}"])
def test_rows_that_each_party_numbers_anew_are_ids_and_not_people_with_several_rows(form):
    rng = np.random.default_rng(0)
    sizes = {"a": 150, "b": 120, "c": 3}
    frame = pd.concat(
        pd.DataFrame(
            {
                "site": site,
                "patient_id": [form.format(k) for k in range(1, n + 1)],
                "fallnummer": [form.format(k) for k in range(501, n + 501)],
                "age": rng.integers(20, 90, n),
                "y": rng.choice(["no", "yes"], n),
            }
        )
        for site, n in sizes.items()
    ).reset_index(drop=True)
    if form == "{}":
        frame = frame.astype({"patient_id": int, "fallnummer": int})
    found = inspect_table(frame, "y", "site")
    assert found.settings["drop"] == ["patient_id", "fallnummer"]
    assert "group" not in found.settings
    assert "each numbers its own rows" in found.findings[0].text
    people = frame["site"].map({"a": 0, "b": 1, "c": 2}).to_numpy()
    frame["patient_id"] = rng.permutation(9000)[np.arange(len(frame)) - 140 * (people > 0)]
    assert inspect_table(frame, "y", "site").settings["group"] == "patient_id"  # people whom parties share


def test_a_job_that_all_parties_read_does_not_show_codes_of_few_rows(folder, capsys):
    """Before, all postal codes were in it, also those of one patient."""
    rng = np.random.default_rng(0)
    n = 400
    frame = pd.DataFrame({"age": rng.integers(20, 90, n), "y": rng.choice(["no", "yes"], n)})
    frame["plz"] = [f"{v:05d}" for v in np.repeat(rng.permutation(9000)[:200], 2)]
    frame["kind"] = ["007"] * 200 + ["008"] * 197 + ["001", "002", "003"]
    frame.to_csv("codes.csv", index=False)
    value = answer(capsys, "job", "new", "codes.csv", "--label", "y", "--parties", "-o", "parties.toml")
    assert ("rare values", "plz") in {(p["problem"], p["column"]) for p in value["problems"]}
    layout = tomllib.loads(Path("parties.toml").read_text())["data"]
    assert layout["categories"] == {"kind": ["007", "008", "other"]}
    text = Path("parties.toml").read_text()
    assert not [code for code in (*frame["plz"], "001", "002", "003") if code in text]
    assert "kind=other" in read_rows("a", "codes.csv", layout, seed=0).columns


def test_spellings_of_a_party_are_named():
    frame = pd.DataFrame({"site": ["Berlin"] * 90 + ["berlin "] * 30 + ["Paris"] * 80, "y": ["a", "b"] * 100})
    found = inspect_table(frame, "y", "site")
    (finding,) = (f for f in found.findings if f.problem == "spellings")
    assert "'berlin ' for 'Berlin'" in finding.text
    assert found.settings["spellings"] == {"site": {"berlin ": "Berlin"}}
    frame["site"] = frame["site"].replace("berlin ", "Berlim")
    frame.loc[90:112, "site"] = "Paris"
    (typos,) = (f for f in inspect_table(frame, "y", "site").findings if f.problem == "typos")
    assert "'Berlim' for 'Berlin'" in typos.text
    assert "they are parties of their own" in typos.treatment
    assert typos.proposal == 'spellings.site.Berlim = "Berlin"'


def test_a_draft_of_infinite_numbers_days_zones_and_signs_runs(folder, capsys):
    """Infinite numbers stopped the drafted job, and times with a zone the drafting."""
    rng = np.random.default_rng(0)
    n = 240
    frame = pd.DataFrame({"site": rng.choice(["a", "b", "c"], n), "y": rng.choice(["no", "yes"], n)})
    frame["ratio"] = rng.normal(size=n).round(3)
    frame.loc[[3, 8], "ratio"] = [np.inf, -np.inf]
    frame["dose"] = rng.normal(size=n).round(3).astype(str)
    frame.loc[[4, 9, 11], "dose"] = ["inf", "$3", "1e400"]
    days = pd.Timestamp("2015-01-01") + pd.to_timedelta(rng.integers(0, 700, n), unit="D")
    frame["day"] = days.strftime("%Y%m%d")
    frame["seen"] = days.strftime("%Y-%m-%dT10:30:00+01:00")
    frame["born"] = days.strftime("%d-%b-%Y")
    frame["cost"] = [f"${v:,.2f}" for v in rng.lognormal(8, 1, n)]
    frame["share"] = [f"{v}%" for v in rng.integers(0, 100, n)]
    frame["count"] = [f"{v:,}" for v in rng.integers(1000, 99_999, n)]
    frame["flag"] = np.where(rng.random(n) < 0.3, "x", None)
    frame.to_csv("new.csv", index=False)
    value = answer(capsys, "job", "new", "new.csv", "--label", "y", "--by", "site")
    assert value["remaining"] == ""
    text = {(p["problem"], p["column"]): p["text"] for p in value["problems"]}
    assert {c for p, c in text if p == "formatted numbers"} == {"cost", "share", "count"}
    assert "'ratio' is infinite in 2 rows." in text["infinite", "ratio"]
    assert "'$3', '1e400', 'inf' in 3 of 240 rows" in text["mixed", "dose"]
    assert {c for p, c in text if p == "date"} == {"day", "seen", "born"}
    assert "has one value ('x') in" in text["constant", "flag"]
    code, _, err = run(capsys, "run", "job.toml", "--set", "train.rounds=2", "--out", "done", "--quiet")
    assert code == 0, err
    fed = job.load("job.toml").federations()[0]
    one = fed.pipeline.encode(frame.iloc[[5]])
    assert one[0, fed.columns.index("seen days")] == one[0, fed.columns.index("day days")]


def test_a_table_in_utf_16_is_declared_so(folder, capsys):
    icu().drop(columns="empty").to_csv("wide.csv", index=False, encoding="utf-16")
    value = answer(capsys, "job", "new", "wide.csv", "--label", "died", "--by", "hospital")
    assert tomllib.loads(Path("job.toml").read_text())["data"]["encoding"] == "utf-16"
    assert value["remaining"] == ""
    with pytest.raises(BadData, match="such as 'utf-16'"):
        data.from_csv("wide.csv", label="died")


def test_an_outcome_coded_9_is_named_as_perhaps_unknown():
    frame = pd.DataFrame({"y": [0, 1] * 60 + [9] * 5, "x": range(125)})
    assert "If 9 means not known" in next(
        f.treatment for f in inspect_table(frame, "y").findings if f.problem == "integer outcome"
    )
    frame["y"] = frame["y"].replace(9, 2)
    assert all("not known" not in f.treatment for f in inspect_table(frame, "y").findings)


def problems_of(frame: pd.DataFrame, **how) -> dict[tuple[str, str], str]:
    return {(f.problem, f.column): str(f) for f in inspect_table(frame, **how).findings}


def test_a_column_without_a_name_is_pointed_out_unless_it_is_left_out(folder, capsys):
    frame = icu()[["lab", "sex", "died"]].dropna().assign(score=np.resize([0.5, 1.5, 2.5], 400)[:397])
    names = ["", "lab", "sex", "died", ""]
    frame.insert(0, "row", [f"r{k}" for k in range(len(frame))])
    frame.to_csv("unnamed.csv", index=False, header=names)
    found = {(p["problem"], p["column"]): p for p in answer(capsys, "job", "new", "unnamed.csv")["problems"]}
    assert ("identifier", "Unnamed: 0") in found
    assert [c for problem, c in found if problem == "no name"] == ["Unnamed: 4"]
    text = found["no name", "Unnamed: 4"]["text"]
    assert text == "Column 5 has no name in the file; it is called 'Unnamed: 4'."


def test_parties_with_one_class_are_named_but_not_to_other_parties():
    frame = icu().dropna(subset=["died", "hospital"])
    frame.loc[frame["hospital"] == "west", "died"] = 0.0
    how = {"label": "died", "by": "hospital"}
    text = problems_of(frame, **how)["one class", "hospital"]
    assert text.startswith("1 of 4 parties has one value of 'died' only: 'west'.")
    assert ("one class", "hospital") not in problems_of(frame, **how, least=10)
    assert ("one class", "hospital") not in problems_of(icu().dropna(subset=["died", "hospital"]), **how)


def test_a_label_with_two_values_and_fractions_is_a_regression_and_its_draft_runs(folder, capsys):
    half = np.where(np.arange(200) % 3 == 0, 0.5, 0.0)
    pd.DataFrame({"x": np.random.default_rng(0).normal(size=200), "share": half}).to_csv(
        "two.csv", index=False
    )
    value = answer(capsys, "job", "new", "two.csv", "--label", "share")
    assert (value["remaining"], value["columns"]["share"]) == ("", "label: a number (regression)")
    assert tomllib.loads(Path("job.toml").read_text())["data"]["regression"] is True


def test_a_date_is_not_guessed_as_the_label():
    """`death_date`, named like an outcome, was."""
    rng = np.random.default_rng(0)
    days = [f"1992-04-{d:02}" for d in rng.integers(1, 30, 60)]
    frame = pd.DataFrame(
        {"age": rng.integers(20, 80, 60), "kind": rng.choice(["a", "b"], 60), "death_date": days}
    )
    assert inspect_table(frame).label == "kind"
    assert inspect_table(frame, label="death_date").label == "death_date"


def test_a_day_that_has_not_come_written_as_a_number_is_a_stand_in():
    days = pd.Timestamp("2015-01-01") + pd.to_timedelta(np.arange(120), unit="D")
    written = days.strftime("%Y%m%d").astype(int).to_numpy()
    frame = pd.DataFrame({"left": np.where(np.arange(120) % 20 == 3, 99991231, written), "y": [0, 1] * 60})
    found = inspect_table(frame, "y")
    assert found.settings["missing_codes"] == {"left": ["99991231"]}
    note = next(f for f in found.findings if f.problem == "stand-in dates")
    assert note.text == "'left' has '99991231' in 6 rows, far from its other dates."
    known = frame.assign(left=frame["left"].where(frame["left"] != 99991231))
    declared = {"label": "y", "test_fraction": 0, **found.settings}
    rows, blank = (
        data.from_frame(frame, **declared),
        data.from_frame(known, **declared | {"missing_codes": None}),
    )
    np.testing.assert_array_equal(rows.rows.x, blank.rows.x)
    # numbers of eight digits that are no days, and days of many far years
    for other in (written * 7 + 13, written + 80_000_000):
        assert "dates" not in inspect_table(frame.assign(left=other), "y").settings
