"""What a draft for other parties quotes, proposals that can be pasted, and drafts without a feature."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tacit.config import job, toml
from tacit.data.cell_forms import show_codes, show_form
from tacit.data.findings import guess_label
from tacit.errors import BadData
from tacit.jobs.draft import FLOOR
from tacit.parameters import propose, propose_lines, to_line
from tacit.synth import Table

from .shell import answer, run


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planted(n: int = 400) -> pd.DataFrame:
    """A table with values of single rows in every column, beside frequent ones."""
    rng = np.random.default_rng(0)
    days = pd.Timestamp("2015-01-01") + pd.to_timedelta(rng.integers(0, 700, n), unit="D")
    frame = pd.DataFrame(
        {
            "outcome": rng.choice(["healed", "died"], n),
            "site": rng.choice(["north", "south"], n),
            "person": [f"p{k:05}" for k in rng.integers(0, 250, n)],
            "record": [f"rec{k:05}x" for k in rng.permutation(90_000)[:n]],
            "admitted": days.strftime("%m/%d/%Y"),
            "born": days.strftime("%Y-%m-%d"),
            "stay": days.strftime("%Y%m%d").astype(int),
            "unclear": [f"{k % 12 + 1:02}/{k % 11 + 1:02}/20{k % 60 + 10}" for k in range(n)],
            "at": [f"{k % 24:02}:{k % 60:02}" for k in rng.integers(0, 9999, n)],
            "zip": [f"{v:05}" for v in rng.choice([1067, 80331], n)],
            "code": [f"0{v}" for v in rng.integers(1000, 9999, n)],
            "cost": [f"${v:,.2f}" for v in rng.lognormal(8, 1, n)],
            "lab": rng.normal(100, 15, n).round(3),
            "limit": np.where(rng.random(n) < 0.5, 0.0, rng.integers(100, 41_310, n)),
            "chol": rng.normal(4000, 200, n).round(3),
            "dose": rng.normal(size=n).round(4).astype(str),
            "sex": rng.choice(["female", "male"], n),
            "same": "always",
            "flag": np.where(np.arange(n) == 7, "lonely", None),
            "note": [f"free text about {i * 7919}" for i in range(n)],
        }
    )
    frame.loc[3, "outcome"] = "vanished"
    frame.loc[:3, "site"] = ["tinyward", "tinyward", "oneward", "nroth"]
    frame.loc[4, "zip"] = "04711"
    frame.loc[5, "lab"] = -9999
    frame.loc[6, "limit"] = 99_999
    frame.loc[7, "chol"] = 0
    frame.loc[8:9, "dose"] = ["see Dr. Miller", "unknown"]
    frame.loc[10:11, "sex"] = ["femaale", "diverse"]
    frame.loc[12:14, "flag"] = "seldom"
    return frame


def rare_cells(frame: pd.DataFrame) -> set[str]:
    """The values that fewer rows have than the floor, of four signs or more: a count may look like others."""
    found = set()
    for name in frame.columns:
        counts = frame[name].dropna().astype(str).value_counts()
        rare = counts[counts < FLOOR].index
        found |= {v.removesuffix(".0") for v in rare if len(v.removesuffix(".0")) > 3}
    return found - {"unknown"}  # says that there is no value


def quoted_in(text: str, cells: set[str]) -> set[str]:
    return {v for v in cells if re.search(rf"(?<![\w.]){re.escape(v)}(?!\w)", text)}


@pytest.mark.parametrize("by", [None, "site"])
def test_a_draft_that_other_parties_read_quotes_no_cell_of_few_rows(capsys, by):
    """Before, it had a date, a code, typos, the smallest number, and every category of a small table."""
    frame = planted()
    frame.to_csv("a.csv", index=False)
    cells = rare_cells(frame)
    assert len(cells) > 2000
    words = ["job", "new", "a.csv", "--parties", "--label", "outcome", *(["--by", by] if by else [])]
    code, out, err = run(capsys, *words, "-o", "one.toml")
    assert code == 0, err
    value = answer(capsys, *words, "-o", "two.toml")
    for text in (out, err, Path("one.toml").read_text(), json.dumps(value, ensure_ascii=False)):
        assert not quoted_in(text, cells)
    draft = tomllib.loads(Path("one.toml").read_text())["data"]
    assert draft["labels"] == ["died", "healed"]
    assert draft["categories"]["sex"] == ["female", "male", "other"]
    assert draft["missing_codes"] == {"dose": ["unknown"]}
    found = {(p["problem"], p["column"]) for p in value["problems"]}
    assert {("rare classes", "outcome"), ("sentinel", "lab"), ("typos", "sex")} <= found
    code, _, err = run(capsys, "plan", "one.toml", "--parties", "3")
    assert code == 0, err


def test_the_same_draft_for_ones_own_simulation_still_names_typos_and_codes(capsys):
    planted().to_csv("a.csv", index=False)
    _, out, _ = run(capsys, "job", "new", "a.csv", "--label", "outcome")
    assert "'femaale' for 'female'" in out
    assert "'lab' has -9999 in 1 row" in out


def test_categories_of_a_small_table_have_the_floor_too(capsys):
    """Before, 1% of 60 rows was less than one row, so every value was listed."""
    words = ["often"] * 40 + ["ten"] * FLOOR + ["nine"] * (FLOOR - 1) + ["once"]
    pd.DataFrame({"kind": words, "x": range(60), "y": ["no", "yes"] * 30}).to_csv("a.csv", index=False)
    answer(capsys, "job", "new", "a.csv", "--label", "y", "--parties")
    assert tomllib.loads(Path("job.toml").read_text())["data"]["categories"] == {
        "kind": ["often", "ten", "other"]
    }


def test_classes_of_few_rows_are_not_named_and_the_plan_says_what_to_decide(capsys):
    pd.DataFrame({"x": np.arange(30) % 7, "y": ["no"] * 26 + ["miller"] * 4}).to_csv("a.csv", index=False)
    value = answer(capsys, "job", "new", "a.csv", "--label", "y", "--parties")
    text = Path("job.toml").read_text()
    assert "miller" not in text + json.dumps(value)
    assert "# 1 class is in fewer than 10 rows" in text.split("labels = [")[0].splitlines()[-2]
    code, _, err = run(capsys, "plan", "job.toml", "--parties", "3")
    assert code == 2
    assert "labels is ['no']; it must name at least two" in err


@pytest.mark.parametrize(
    ("cells", "form"),
    [
        (["2015-03-01", "2016-11-12"], "'YYYY-MM-DD'"),
        (["1.3.2015", "12.11.2016", "2015-03-01"], "'D.M.YYYY'"),
        (["03/14/2015", "11/12/2016"], "'NN/NN/YYYY'"),
        (["20150301", "20161112"], "'YYYYMMDD'"),
        (["14:30", "09:05"], "'HH:MM'"),
        (["$1,234.50", "$9,876.10"], "'$N,NNN.NN'"),
        (["3-Mar-2015", "4-Apr-2016"], "'N-AAA-YYYY'"),
    ],
)
def test_a_form_has_no_digit_and_no_letter_of_a_cell(cells, form):
    assert show_form(pd.Series(cells)) == form
    assert show_form(pd.Series(cells), least=4) == ""


def test_codes_are_shown_by_their_length():
    assert show_codes(pd.Series(["01067", "04711", "80331"])) == "leading zeros, of 5 digits"
    assert show_codes(pd.Series(["007", "04711"])) == "leading zeros, of 3 to 5 digits"


def odd(n: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"Site #1": rng.choice(["a", "b"], n), "Lab (mg/dl)": rng.normal(5, 1, n).round(2)})
    frame["Gain.max"] = np.where(rng.random(n) < 0.9, 0.0, rng.integers(100, 41310, n))
    frame['chol "total"'] = rng.normal(200, 20, n).round(1)
    frame.loc[:12, "Lab (mg/dl)"], frame.loc[:12, "Gain.max"], frame.loc[:12, 'chol "total"'] = (
        -9999,
        99999,
        0,
    )
    days = pd.Timestamp("2015-01-01") + pd.to_timedelta(rng.integers(0, 700, n), unit="D")
    frame["Term (yyyy.mm.dd)"] = days.strftime("%m/%d/%Y")
    frame["dose = x"] = [str(x) if x % 9 else "unknown" for x in rng.integers(1, 400, n)]
    frame["über\\weisung"] = rng.choice(["x", "y"], n)
    frame["text, all of it"] = [f"some words of number {i} about him" for i in range(n)]
    frame["it's ill"] = rng.choice(["no", "yes"], n)
    return frame


@pytest.mark.parametrize("more", [(), ("--parties",)])
def test_every_proposal_of_a_draft_can_be_pasted_whatever_the_columns_are_called(capsys, more):
    odd().to_csv("odd.csv", index=False)
    value = answer(capsys, "job", "new", "odd.csv", "--label", "it's ill", *more)
    proposals = [p["proposal"] for p in value["problems"] if p["proposal"]]
    assert proposals == [
        'missing_codes."Gain.max" = [99999]',
        'missing_codes."chol \\"total\\"" = [0]',
    ]
    text = Path("job.toml").read_text()
    for line in proposals:
        assert text.count(f"# {line}\n") == 1
        text = text.replace(f"# {line}\n", f"{line}\n")
    Path("job.toml").write_text(text)
    codes = tomllib.loads(text)["data"]["missing_codes"]
    assert codes["Gain.max"] == [99999]
    assert codes['chol "total"'] == [0]
    code, _, err = run(capsys, "plan", "job.toml", *(("--parties", "3") if more else ()))
    assert code == 0, err


def test_the_proposals_of_errors_about_a_hand_written_job_can_be_pasted(capsys):
    odd().to_csv("odd.csv", index=False)
    data = ['path = "odd.csv"', 'label = "it\'s ill"', "parties = 4"]
    line = re.compile(r'((?:dates|date_formats|missing_codes)\."(?:[^"\\]|\\.)+" = (?:\[[^]]*\]|"[^"]*"))')
    pasted = []
    for _ in range(4):
        Path("job.toml").write_text("\n".join(["[data]", *data, "[model]", 'name = "logistic"']))
        code, _, err = run(capsys, "plan", "job.toml")
        if code == 0:
            break
        found = line.findall(err)
        found += re.findall(r'drop = \["text[^]]*\]', err)
        pasted += found
        data += found
        assert found, err
    assert code == 0, err
    assert pasted == [
        'dates."Term (yyyy.mm.dd)" = ["year", "month", "weekday", "days"]',
        'missing_codes."dose = x" = ["unknown"]',
        'drop = ["text, all of it"]',
        'date_formats."Term (yyyy.mm.dd)" = "%m/%d/%Y"',
    ]


def test_a_setting_on_the_command_line_may_name_any_column():
    tables: dict = {"data": {}}
    toml.change(tables, 'data.missing_codes."Lab (mg/dl) = x.y"=[999]')
    toml.change(tables, 'data.dates.\'it "is"\'=["year"]')
    assert tables["data"] == {
        "missing_codes": {"Lab (mg/dl) = x.y": [999]},
        "dates": {'it "is"': ["year"]},
    }
    with pytest.raises(ValueError, match=r"expected TABLE\.KEY=VALUE"):
        toml.change(tables, 'data.missing_codes."Lab=[999]')


@pytest.mark.parametrize(
    "name", ["a b", 'q"uote', "it's", "back\\slash", "ü", "new\nline", "del\x7f", "x-1", ""]
)
def test_a_proposal_is_python_for_a_call_and_toml_for_a_job_file(name):
    with propose_lines():
        line = propose("missing_codes", [9, "n/a"], name)
    assert line == to_line("missing_codes", [9, "n/a"], name)
    assert tomllib.loads(line) == {"missing_codes": {name: [9, "n/a"]}}
    assert eval(f"dict({propose('missing_codes', [9, 'n/a'], name)})") == {
        "missing_codes": {name: [9, "n/a"]}
    }


def test_the_proposal_for_free_text_in_a_generators_table_can_be_pasted(capsys):
    """Before: Term (yyyy.mm.dd)=identifier(…), which is no Python, with the first words of a cell."""
    from tacit.synth import identifier

    frame = odd().rename(columns={"text, all of it": "Term (text)"})
    with pytest.raises(BadData, match="is free text") as error:
        Table.infer(frame)
    assert "some words" not in str(error.value)
    proposed = re.search(r"columns=\{.*\}", str(error.value))
    given = eval(f"dict({proposed[0]})", {"identifier": identifier, "dict": dict})
    assert Table.infer(frame, **given).columns[-2].kind == "id"
    frame.to_csv("odd.csv", index=False)
    _, _, err = run(capsys, "synth", "odd.csv", "--out", "s.csv")
    line = re.search(r"file of --columns: (.*)", err)[1]
    assert tomllib.loads(line) == {"Term (text)": {"kind": "id", "faker": "sentence"}}


@pytest.mark.parametrize("more", [(), ("--parties",)])
def test_a_draft_without_a_feature_is_written_with_the_reasons(capsys, more):
    frame = odd()[["text, all of it", "it's ill"]].assign(same=1)
    frame.to_csv("a.csv", index=False)
    value = answer(capsys, "job", "new", "a.csv", "--label", "it's ill", *more)
    text = Path("job.toml").read_text()
    assert "# NO FEATURE IS LEFT: each other column was set aside." in text
    assert "#   'text, all of it': identifier" in text
    assert "#   'same': constant" in text
    code, _, err = run(capsys, "plan", "job.toml")
    assert code == 2
    if more:
        assert "Name the columns" in err
    else:
        assert "Set aside are 'text, all of it', 'same' (drop). Take out a column" in err
        assert value["remaining"] in err


def test_a_table_of_one_column_says_so(capsys):
    pd.DataFrame({"co2": np.arange(50) % 9}).to_csv("a.csv", index=False)
    value = answer(capsys, "job", "new", "a.csv")
    assert "The table has no other column: add columns to it" in value["remaining"]
    assert "NO FEATURE IS LEFT: the table has no other column" in Path("job.toml").read_text()


def test_years_of_a_series_are_a_feature():
    frame = pd.DataFrame({"YEAR": np.arange(1700, 2008), "spots": np.arange(308) % 41})
    frame.to_csv("a.csv", index=False)
    from tacit.jobs.draft import draft_job

    draft = draft_job(["a.csv"], "spots")
    assert draft.kinds["YEAR"] == "number"
    assert "drop" not in draft.settings


def test_an_id_is_no_guessed_outcome():
    n = 300
    people = pd.DataFrame({"age": np.arange(n) % 70, "soc_sec_id": np.arange(n) * 31})
    assert guess_label(people) == "age"
    with pytest.raises(BadData, match=r"no column looks like an outcome.*--label"):
        guess_label(people[["soc_sec_id"]].assign(surname=[f"name {k}" for k in range(n)]))


def test_people_with_several_rows_are_not_shared_out_among_more_parties_than_there_are(capsys):
    frame = pd.DataFrame({"id": np.repeat([1, 2, 3], 3), "x": np.arange(9) % 4, "y": [0, 1, 0] * 3})
    frame.to_csv("a.csv", index=False)
    value = answer(capsys, "job", "new", "a.csv", "--label", "y")
    assert value["remaining"] == ""
    (fed,) = job.load("job.toml").federations()
    assert len(fed.parties) == 2


def test_infinite_outcomes_are_declared_as_missing(capsys):
    y = np.arange(60) * 1.5
    y[8] = np.inf
    pd.DataFrame({"x": np.arange(60) % 11, "y": y}).to_csv("a.csv", index=False)
    value = answer(capsys, "job", "new", "a.csv", "--label", "y")
    assert value["remaining"] == ""
    assert job.load("job.toml").dataset().rows.y.isfinite().all()


def test_a_draft_that_other_parties_read_does_not_say_where_a_file_is(capsys, tmp_path):
    """Before, the finding about rows without an outcome had the path on this machine."""
    for name in ("a.csv", "b.csv"):
        pd.DataFrame({"x": range(60), "y": ["no", "yes", None] * 20}).to_csv(tmp_path / name, index=False)
    paths = [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]
    answer(capsys, "job", "new", *paths, "--label", "y", "--parties")
    text = Path("job.toml").read_text()
    assert "the first is row 3 (line 4) of a.csv" in " ".join(text.split())
    assert str(tmp_path) not in text


def test_rows_whose_outcome_is_a_code_for_missing_do_not_stop_a_draft(capsys):
    """Before, texts in such rows alone were an error: they were left out when the columns were inspected."""
    rng = np.random.default_rng(0)
    y = rng.normal(100, 10, 400).round(1)
    y[3:5] = -9999
    lab = rng.integers(0, 50, 400).astype(str).astype(object)
    frame = pd.DataFrame({"age": rng.integers(20, 60, 400), "lab": lab, "y": y})
    frame.loc[3:4, "lab"] = ["refused", "lost"]
    frame.to_csv("a.csv", index=False)
    value = answer(capsys, "job", "new", "a.csv", "--label", "y", "--parties")
    assert ("sentinel", "y") in {(p["problem"], p["column"]) for p in value["problems"]}
    draft = tomllib.loads(Path("job.toml").read_text())["data"]
    assert draft["numbers"] == ["age", "lab"]
