"""`tacit anonymize` and `tacit risk` as people run them: files in, files out, nothing half-written, nothing
written over.
"""

from __future__ import annotations

import gzip
import json
import os
import stat
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests import warm
from tests.cli.shell import refused, run

ROOT = Path(__file__).parents[2]


def patients(n: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "id": [f"p{i}" for i in range(n)],
            "age": rng.integers(20, 60, n),
            "zip": rng.choice(["37203", "37215", "37217"], n),
            "sex": rng.choice(["m", "f"], n),
            "diagnosis": rng.choice(["flu", "cold", "ulcer"], n),
        }
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    patients().to_csv("patients.csv", index=False)
    patients().to_parquet("patients.parquet", index=False)
    ways = tmp_path / "ways"
    ways.mkdir()
    (ways / "age.csv").write_text(
        "".join(f"{a},{a // 10}0s,{'young' if a < 40 else 'old'},*\n" for a in range(20, 60))
    )
    (ways / "some_hierarchy_zip.csv").write_text("37203;3720*;*\n37215;3721*;*\n37217;3721*;*\n")
    return tmp_path


ASK = ("--quasi", "age,zip,sex", "--sensitive", "diagnosis", "--k", "5")


def test_the_command_of_the_issue(folder, capsys):
    source = Path("patients.csv").read_bytes()
    code, out, err = run(
        capsys,
        "anonymize",
        "patients.csv",
        *ASK,
        "--l",
        "3",
        "--hierarchies",
        "ways/",
        "--out",
        "anon.csv",
        "--report",
        "risk.html",
        "--max-suppressed",
        "0.1",
        "--drop",
        "id",
    )
    assert code == 0, err
    after = pd.read_csv("anon.csv", dtype=str)
    classes = after.groupby(["age", "zip", "sex"])["diagnosis"].agg(["size", "nunique"])
    assert classes["size"].min() >= 5
    assert classes["nunique"].min() >= 3
    assert list(after.columns) == ["age", "zip", "sex", "diagnosis"]
    assert "k = " in out
    assert "report      risk.html" in out
    assert "reading patients.csv …" in err
    assert "</html>" in Path("risk.html").read_text()
    assert Path("patients.csv").read_bytes() == source
    assert sorted(p.name for p in folder.iterdir()) == [
        "anon.csv",
        "patients.csv",
        "patients.parquet",
        "risk.html",
        "ways",
    ]


def test_json_is_one_document_that_agrees_with_the_file(folder, capsys):
    code, out, _ = run(
        capsys, "anonymize", "patients.csv", *ASK, "--out", "anon.csv", "--method", "datafly", "--json"
    )
    value = json.loads(out)
    after = pd.read_csv("anon.csv", dtype=str)
    assert code == 0
    assert value["published"] == len(after) == 300 - value["suppressed"]
    assert value["k"] == after.groupby(["age", "zip", "sex"]).size().min()
    assert value["unchanged"] == ["id"]
    assert any(
        "'id' is neither a quasi-identifier nor sensitive and differs in every row" in w
        for w in value["warnings"]
    )
    assert value["trace"]
    assert value["risk"]["k"] == {"before": 1, "after": value["k"]}


@pytest.mark.parametrize(
    ("source", "out"),
    [
        ("patients.parquet", "anon.parquet"),
        ("patients.parquet", "anon.csv"),
        ("patients.csv", "anon.csv.gz"),
        ("patients.csv", "anon.parquet"),
    ],
)
def test_csv_and_parquet_in_and_out(folder, capsys, source, out):
    assert run(capsys, "anonymize", source, *ASK, "--out", out)[0] == 0
    code, said, err = run(
        capsys, "risk", source, out, "--quasi", "age,zip,sex", "--sensitive", "diagnosis", "--json"
    )
    assert code == 0, err
    assert json.loads(said)["risk"]["k"]["after"] >= 5


def test_the_same_table_from_csv_and_parquet(folder, capsys):
    for kind in ("csv", "parquet"):
        run(capsys, "anonymize", f"patients.{kind}", *ASK, "--out", f"{kind}.csv")
    assert Path("csv.csv").read_text() == Path("parquet.csv").read_text()


def test_the_separator_of_the_file_is_kept_and_its_words_stay_as_they_are(folder, capsys):
    """NA is Namibia, an empty cell is an empty cell, 007 is not 7."""
    Path("odd.csv").write_text(
        "country;code;note\nNA;007;\nNA;007;null\nNA;007;\nDE;010;NA\nDE;010;\nDE;010;x\n", encoding="utf-8"
    )
    assert (
        run(
            capsys,
            "anonymize",
            "odd.csv",
            "--quasi",
            "country,code",
            "--k",
            "3",
            "--method",
            "datafly",
            "--out",
            "o.csv",
        )[0]
        == 0
    )
    made, original = (Path(name).read_text().splitlines() for name in ("o.csv", "odd.csv"))
    assert made[0] == original[0]
    assert sorted(made) == sorted(original)


def test_an_empty_cell_is_a_value_of_its_own(folder, capsys):
    Path("t.csv").write_text("age,sex\n30,m\n30,m\n,m\n", encoding="utf-8")
    _, out, _ = run(capsys, "risk", "t.csv", "t.csv", "--quasi", "age,sex", "--json")
    assert json.loads(out)["risk"]["unique rows"]["after"] == 1


def test_suppressed_rows_kept_as_stars_are_not_a_class_when_read_again(folder, capsys):
    Path("t.csv").write_text(
        "town,sex\n" + "Ulm,m\n" * 20 + "Bonn,f\n" * 20 + "Kiel,f\nKiel,m\n", encoding="utf-8"
    )
    code, out, _ = run(
        capsys,
        "anonymize",
        "t.csv",
        "--quasi",
        "town,sex",
        "--out",
        "anon.csv",
        "--max-suppressed",
        "0.1",
        "--suppressed",
        "star",
        "--json",
    )
    assert code == 0
    made = json.loads(out)
    assert made["suppressed"] == (pd.read_csv("anon.csv", dtype=str)["town"] == "*").sum() == 2
    _, out, _ = run(capsys, "risk", "t.csv", "anon.csv", "--quasi", "town,sex", "--json")
    again = json.loads(out)["risk"]
    assert again["k"]["after"] == made["k"] == 20
    assert again["rows suppressed"]["after"] == 2
    assert made["risk"]["entropy loss"]["after"] > 0
    assert again["entropy loss"]["after"] is None  # the rows of the file are in another order


def test_nothing_is_written_over_unless_forced_and_the_input_never(folder, capsys):
    Path("anon.csv").write_text("precious")
    code, out, err = run(capsys, "anonymize", "patients.csv", *ASK, "--out", "anon.csv")
    assert (code, out) == (2, "")
    assert "anon.csv already exists. Choose another name, or pass --force to overwrite it." in err
    assert Path("anon.csv").read_text() == "precious"
    assert run(capsys, "anonymize", "patients.csv", *ASK, "--out", "anon.csv", "--force")[0] == 0
    assert Path("anon.csv").read_text() != "precious"
    source = Path("patients.csv").read_bytes()
    Path("link.csv").symlink_to("patients.csv")
    for name in ("patients.csv", "link.csv"):
        code, _, err = run(capsys, "anonymize", "patients.csv", *ASK, "--out", name, "--force")
        assert code == 2
        assert "is the input table, which is never overwritten" in err
    assert Path("patients.csv").read_bytes() == source


def test_a_failure_leaves_nothing_behind(folder, capsys):
    before = sorted(p.name for p in folder.iterdir())
    code, _, err = run(
        capsys, "anonymize", "patients.csv", *ASK, "--out", "anon.csv", "--report", "patients.csv", "--force"
    )
    assert code == 2
    assert "--report patients.csv is also the name of a table" in err
    code, _, err = run(
        capsys, "anonymize", "patients.csv", *ASK, "--out", "anon.csv", "--report", "no/where.html"
    )
    assert code == 2
    assert "cannot be written: no is not a writable directory" in err
    code, _, err = run(
        capsys, "anonymize", "patients.csv", "--quasi", "age", "--k", "301", "--out", "anon.csv"
    )
    assert code == 2
    assert "301" in err
    assert sorted(p.name for p in folder.iterdir()) == before


BAD = [
    (("missing.csv", "--quasi", "a"), "there is no file missing.csv."),
    (("patient.csv", "--quasi", "age"), "there is no file patient.csv. Did you mean 'patients.csv'?"),
    (("patients.csv", "--quasi", "agee"), "there is no column 'agee' (--quasi). Did you mean 'age'?"),
    (
        ("patients.csv", "--quasi", "age,,sex"),
        "--quasi is 'age,,sex'; expected column names separated by commas",
    ),
    (("patients.csv", "--quasi", "age", "--method", "mondrain"), "--method is 'mondrain'; it must be one of"),
    (("patients.csv", "--quasi", "age", "--metric", "los"), "--metric is 'los'; it must be one of loss"),
    (("patients.csv", "--quasi", "age", "--k", "0"), "--k is 0; it must be a whole number"),
    (("patients.csv", "--quasi", "age", "--epsilon", "0"), "--epsilon is 0.0; it must be a number above 0"),
    (("patients.csv", "--quasi", "age", "--l", "2"), "--l needs --sensitive"),
    (("patients.csv", "--quasi", "age", "--t", "0.2"), "--t needs --sensitive"),
    (("patients.csv", "--quasi", "age", "--drop", "idd"), "there is no column 'idd' (--drop). Did you mean"),
    (
        ("numbers.csv", "--quasi", "age"),
        "two columns are named '1.0'. Give each column its own name. The first line must contain column "
        "names; this one contains numbers.",
    ),
    (
        ("patients.csv", "--quasi", "age", "--max-suppressed", "4"),
        "max_suppressed is 4.0; it must be a fraction of the rows between 0 and 1",
    ),
    (
        ("patients.csv", "--quasi", "age", "--hierarchies", "nowhere"),
        "--hierarchies nowhere: there is no such directory",
    ),
    (
        ("patients.csv", "--quasi", "sex", "--hierarchies", "ways"),
        "it has no file for sex. Name them like sex.csv.",
    ),
    (
        ("patients.csv", "--quasi", "age", "--pseudonymize", "id"),
        "--pseudonymize and --key must be used together",
    ),
    (
        ("patients.csv", "--quasi", "age", "--pseudonymize", "age", "--key", "k"),
        "--pseudonymize is 'age'; it must be columns that are neither",
    ),
    (
        ("patients.csv", "--quasi", "age", "--pseudonymize", "id", "--key", "k"),
        "there is no key file k. Create one",
    ),
    (("empty.csv", "--quasi", "age"), "empty.csv is empty. The first line must name the columns."),
    (("norows.csv", "--quasi", "age"), "norows.csv has column names and no rows"),
    (("twice.csv", "--quasi", "age"), "two columns are named 'age'"),
    (("short.csv", "--quasi", "age"), "row 2 (line 3) has 1 cells, and the table has 2 columns"),
    (("long.csv", "--quasi", "age"), "Expected 2 fields in line 3, saw 3"),
    (("latin.csv", "--quasi", "age"), "latin.csv is not UTF-8 text"),
    (("noparquet.parquet", "--quasi", "age"), "noparquet.parquet cannot be read as Parquet"),
    (("nogzip.csv.gz", "--quasi", "age"), "A packed file must end in .gz, .bz2 or .xz"),
    (("patients.csv", "--quasi", "age", "--hierarchies", "torn"), "39"),
]


@pytest.mark.parametrize("name", ["anon.xlsx", "anon"])
def test_a_table_of_another_ending_is_refused_before_the_input_is_read(folder, capsys, name):
    words = f"anonymize: --out {name} must end in .csv, .csv.gz or .parquet"
    assert words in refused(capsys, "anonymize", "empty.csv", "--quasi", "age", "--out", name)
    assert not Path(name).exists()


@pytest.mark.parametrize(("argv", "words"), BAD, ids=[" ".join(a)[:60] for a, _ in BAD])
def test_bad_input_is_named_and_nothing_is_written(folder, capsys, argv, words):
    Path("empty.csv").write_text("")
    Path("norows.csv").write_text("age,sex\n")
    Path("twice.csv").write_text("age,age\n1,2\n")
    Path("numbers.csv").write_text("1.0,2,1.0\n3,4,5\n")
    Path("short.csv").write_text("age,sex\n30,m\n31\n")
    Path("long.csv").write_text("age,sex\n30,m\n31,f,x\n")
    Path("latin.csv").write_bytes("age,name\n30,José\n".encode("latin-1"))
    Path("noparquet.parquet").write_text("age\n1\n")
    Path("nogzip.csv.gz").write_text("age\n1\n")
    Path("torn").mkdir()
    Path("torn/age.csv").write_text("".join(f"{a},*\n" for a in range(20, 39)))  # 39 and more are missing
    assert words in refused(capsys, "anonymize", *argv, "--out", "anon.csv")


def test_pseudonyms_with_a_generated_key(folder, capsys):
    ask = (*ASK, "--pseudonymize", "id", "--key", "id.key")
    assert run(capsys, "anonymize", "patients.csv", *ask, "--new-key", "--out", "a.csv")[0] == 0
    assert stat.S_IMODE(os.stat("id.key").st_mode) == 0o600
    assert run(capsys, "anonymize", "patients.csv", *ask, "--out", "b.csv")[0] == 0
    assert Path("a.csv").read_text() == Path("b.csv").read_text()
    after = pd.read_csv("a.csv", dtype=str)
    assert after["id"].str.fullmatch("[0-9a-f]{32}").all()
    code, _, err = run(capsys, "anonymize", "patients.csv", *ask, "--new-key", "--out", "c.csv")
    assert code == 2
    assert "A key is never overwritten" in err
    assert Path("id.key").read_text().strip() not in Path("a.csv").read_text()


def test_a_pseudonymized_column_is_not_called_an_identifier(folder, capsys):
    assert "The column 'id' is neither" in run(capsys, "anonymize", "patients.csv", *ASK, "--out", "a.csv")[1]
    ask = (
        *ASK,
        "--pseudonymize",
        "id",
        "--key",
        "id.key",
        "--new-key",
        "--out",
        "b.csv",
        "--report",
        "b.html",
    )
    code, out, err = run(capsys, "anonymize", "patients.csv", *ask)
    assert code == 0, err
    assert "differs in every row" not in out + Path("b.html").read_text()


def test_columns_to_drop_are_a_list_or_several_options(folder, capsys):
    for name, drop in (("a.csv", ["--drop", "id,zip"]), ("b.csv", ["--drop", "id", "--drop", "zip"])):
        code, out, err = run(capsys, "anonymize", "patients.csv", "--quasi", "age,sex", *drop, "--out", name)
        assert code == 0, err
        assert "(granularity), " in out
        assert list(pd.read_csv(name).columns) == ["age", "sex", "diagnosis"]


def test_a_missing_file_is_refused_with_at_most_five_tables_of_its_folder(folder, capsys):
    for name in ("a.csv", "b.csv.gz", "c.tsv", "d.py", "z.csv"):
        Path(name).touch()
    err = refused(capsys, "risk", "quite-another", "a.csv", "--quasi", "age")
    assert (
        "there is no file quite-another. Files in this folder: a.csv, b.csv.gz, c.tsv, patients.csv, "
        "patients.parquet, …\n" in err
    )


def test_risk_prints_both_tables_and_the_columns_that_single_out(folder, capsys):
    run(capsys, "anonymize", "patients.csv", *ASK, "--out", "anon.csv", "--quiet")
    code, out, _ = run(
        capsys,
        "risk",
        "patients.csv",
        "anon.csv",
        "--quasi",
        "age,zip,sex",
        "--report",
        "r.html",
        "--population-size",
        "30000",
    )
    assert code == 0
    assert "before" in out
    assert "columns with the most minimal uniques: age, zip, sex" in out
    assert "population uniques" in out
    assert Path("r.html").exists()
    assert (
        run(capsys, "risk", "patients.csv", "anon.csv", "--quasi", "age,zip,sex", "--report", "r.html")[0]
        == 2
    )
    assert (
        run(capsys, "risk", "patients.csv", "anon.csv", "--quasi", "age,zip,sex", "--population-size", "10")[
            0
        ]
        == 2
    )


def test_quiet_says_nothing(folder, capsys):
    assert run(capsys, "anonymize", "patients.csv", *ASK, "--out", "anon.csv", "--quiet") == (0, "", "")


def test_a_process_that_is_killed_leaves_no_table(folder):
    """Interrupted while it reads or searches: no anon.csv, nor a part of one."""
    big = pd.concat([patients(3000)] * 20)
    big.assign(zip=np.arange(len(big)).astype(str)).to_csv("big.csv", index=False)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    argv = [
        sys.executable,
        "-m",
        "tacit",
        "anonymize",
        "big.csv",
        "--quasi",
        "age,zip,sex",
        "--out",
        "anon.csv",
    ]
    with warm.Popen(argv, env=env, stderr=warm.PIPE, stdout=warm.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "reading" in process.stderr.readline()
        process.kill()
    assert not [p.name for p in folder.iterdir() if "anon.csv" in p.name]


def test_gzip_is_the_same_bytes_each_time(folder, capsys):
    for name in ("a.csv.gz", "b.csv.gz"):
        run(capsys, "anonymize", "patients.csv", *ASK, "--out", name)
    assert Path("a.csv.gz").read_bytes() == Path("b.csv.gz").read_bytes()
    assert gzip.decompress(Path("a.csv.gz").read_bytes()).startswith(b"id,age,zip,sex,diagnosis\n")


def test_differential_privacy_on_the_command_line(folder, capsys):
    frame = pd.concat([patients()[["zip", "sex"]]] * 4)
    frame.to_csv("two.csv", index=False)
    Path("ways/sex.csv").write_text("m,*\nf,*\n")
    ask = ("anonymize", "two.csv", "--quasi", "zip,sex", "--hierarchies", "ways/", "--out", "anon.csv")
    code, out, err = run(capsys, *ask, "--epsilon", "1", "--json")
    assert code == 0, err
    made = json.loads(out)
    assert [(s["epsilon"], s["delta"]) for s in made["spent"]] == [(1.5, 1e-6)]
    after = pd.read_csv("anon.csv", dtype=str)
    assert len(after) == made["published"]
    assert after.groupby(["zip", "sex"]).size().min() >= 74
    code, out, err = run(capsys, *ask, "--epsilon", "1", "--method", "fixed", "--levels", "zip=1", "--force")
    assert code == 0, err
    assert (
        "privacy     spent ε = 1, δ = 1e-06 for each row, added or removed, by sampling at 0.6321, levels "
        "fixed in advance" in out
    )
    code, _, err = run(capsys, *ask, "--epsilon", "1", "--method", "optimal", "--force")
    assert code == 2
    assert "--epsilon needs --method private or fixed, got 'optimal'" in err
    code, _, err = run(
        capsys,
        "anonymize",
        "patients.csv",
        "--quasi",
        "zip",
        "--hierarchies",
        "ways/",
        "--out",
        "x.csv",
        "--epsilon",
        "1",
    )
    assert code == 2
    assert "Add 'id', 'age', 'sex', 'diagnosis' to --quasi, or --drop them." in err


def test_thresholds_and_fixed_levels_on_the_command_line(folder, capsys):
    code, out, err = run(
        capsys,
        "anonymize",
        "patients.csv",
        *ASK[:4],
        "--k",
        "1",
        "--max-average-risk",
        "0.1",
        "--max-suppressed",
        "0.1",
        "--out",
        "a.csv",
        "--json",
    )
    assert code == 0, err
    assert json.loads(out)["risk"]["prosecutor risk, average"]["after"] <= 0.1
    code, out, err = run(
        capsys,
        "anonymize",
        "patients.csv",
        *ASK[:4],
        "--k",
        "1",
        "--max-uniques",
        "0.001",
        "--population-size",
        "3000",
        "--out",
        "b.csv",
        "--max-suppressed",
        "0.1",
        "--json",
    )
    assert code == 0, err
    assert (
        json.loads(out)["risk"]["unique share"]["after"] < json.loads(out)["risk"]["unique share"]["before"]
    )
    code, out, err = run(
        capsys,
        "anonymize",
        "patients.csv",
        *ASK,
        "--method",
        "fixed",
        "--levels",
        "age=2,sex=1",
        "--hierarchies",
        "ways/",
        "--out",
        "c.csv",
        "--json",
    )
    assert code == 0, err
    assert json.loads(out)["levels"] == {"age": 2, "zip": 0, "sex": 1}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            ("--max-uniques", "0.1"),
            "--max-uniques is a fraction of the population. Also pass --population-size",
        ),
        (
            ("--levels", "age=2"),
            "--levels cannot be combined with --method optimal, which chooses them. Omit it, or use "
            "--method fixed",
        ),
        (
            ("--levels", "age", "--method", "fixed"),
            "--levels is 'age'; expected COLUMN=LEVEL,…, like age=2,zip=1",
        ),
        (("--max-average-risk", "0"), "anonymize: --max-average-risk is 0.0; it must be a number above 0"),
        (("--epsilon", "0"), "anonymize: --epsilon is 0.0; it must be a number above 0"),
    ],
)
def test_bad_thresholds_and_levels_are_refused_on_the_command_line(folder, capsys, more, words):
    code, _, err = run(capsys, "anonymize", "patients.csv", *ASK[:4], "--out", "a.csv", *more)
    assert code == 2
    assert words in err


def test_a_second_release_by_the_command_line(folder, capsys):
    ask = (*ASK, "--person", "id", "--hierarchies", "ways", "--max-suppressed", "0.1")
    code, out, err = run(
        capsys, "anonymize", "patients.csv", *ask, "--out", "one.csv", "--history", "one.json"
    )
    assert code == 0, err
    assert "history     one.json" in out
    later = pd.concat([patients().drop(index=[0, 1]), patients(301).tail(1)])
    later.to_csv("later.csv", index=False)
    again = ("anonymize-again", "later.csv", "--after", "one.json", "--out", "two.csv")
    code, out, err = run(capsys, *again, "--history", "two.json", "--report", "two.html", "--json")
    assert code == 0, err
    value = json.loads(out)
    assert (value["releases"], value["rows"]) == (2, 299)
    assert value["k_over_releases"] >= 5
    assert "id" not in pd.read_csv("two.csv").columns
    assert stat.S_IMODE(os.stat("two.json").st_mode) == 0o600
    assert "two.json already exists" in refused(capsys, *again, "--force", "--history", "two.json")
    code, out, err = run(capsys, *again, "--force")
    assert "history     not written: pass --history before you publish" in out


def test_a_history_needs_ids_and_is_whole(folder, capsys):
    assert "--history needs --person" in refused(
        capsys, "anonymize", "patients.csv", *ASK, "--out", "x.csv", "--history", "h"
    )
    Path("h.json").write_text("{}")
    again = ("anonymize-again", "patients.csv", "--out", "x.csv", "--after")
    assert "h.json is not a history of releases, or is damaged" in refused(capsys, *again, "h.json")
    assert "There is no history of releases" in refused(capsys, *again, "none.json")
    assert not Path("x.csv").exists()


def test_counts_by_the_command_line(folder, capsys):
    table = ("tabulate", "patients.csv", "--by", "age,sex", "--out", "counts.csv")
    code, out, err = run(capsys, *table)
    assert code == 0, err
    assert "no small count can be narrowed to fewer than" in out
    shown = pd.read_csv("counts.csv")
    true = patients().value_counts(["age", "sex"])
    cells = shown[(shown["age"] != "total") & (shown["sex"] != "total")].dropna()
    assert all(true.get((int(a), s), 0) == n for a, s, n in cells.to_numpy())
    assert shown["count"].min() in (0, *range(5, 300))
    code, out, err = run(capsys, *table, "--force", "--method", "round", "--base", "3", "--json")
    assert json.loads(out)["base"] == 3
    assert (pd.read_csv("counts.csv")["count"] % 3 == 0).all()
    assert "there is no column 'town'" in refused(
        capsys, "tabulate", "patients.csv", "--by", "town", "--out", "x.csv"
    )
    assert "already exists" in refused(capsys, *table)
    gaps = patients()
    gaps.loc[gaps.index % 5 == 0, "sex"] = None
    gaps.to_csv("gaps.csv", index=False)
    assert run(capsys, "tabulate", "gaps.csv", "--by", "sex", "--out", "gaps-counts.csv")[0] == 0
    assert "missing" in pd.read_csv("gaps-counts.csv")["sex"].tolist()  # not an empty cell, as a hidden count


def test_points_by_the_command_line(folder, capsys):
    rng = np.random.default_rng(1)
    where = rng.normal(0, 1500, (300, 2)).round(1)
    patients().assign(east=where[:, 0], north=where[:, 1]).to_csv("homes.csv", index=False)
    ask = ("anonymize", "homes.csv", *ASK, "--points", "east,north", "--out", "cells.csv", "--drop", "id")
    more = ("--hierarchies", "ways", "--max-suppressed", "0.2")
    code, out, err = run(capsys, *ask, *more, "--cells", "250:16000", "--json")
    assert code == 0, err
    value, table = json.loads(out), pd.read_csv("cells.csv")
    assert not {"east", "north"} & set(table.columns)
    assert table.groupby(["cell", "age", "zip", "sex"]).size().min() >= 5
    assert value["published"] + value["suppressed"] == 300
    assert "expected two columns and two sides" in refused(capsys, *ask, *more, "--force")
    assert "there is no column 'x'" in refused(capsys, *ask, *more, "--force", "--points", "x,north")


def test_text_columns_by_the_command_line(folder, capsys):
    notes = patients().assign(note="Seen by Dr. Weiss on 2024-03-05 with Zoe", who="Zoe B")
    notes.to_csv("notes.csv", index=False)
    Path("names.txt").write_text("Miller\n")
    ask = ("anonymize", "notes.csv", *ASK, "--out", "masked.csv", "--drop", "id,who", "--hierarchies", "ways")
    more = ("--mask", "note", "--names", "names.txt", "--names-from", "who", "--max-suppressed", "0.1")
    code, out, err = run(capsys, *ask, *more)
    assert code == 0, err
    assert "masked      note: 300 date, 600 name; have somebody read them" in out
    assert set(pd.read_csv("masked.csv")["note"]) == {"Seen by Dr. [NAME] on [DATE] with [NAME]"}
    refuse = (*ask, "--force", "--max-suppressed", "0.1")
    assert "need --mask" in refused(capsys, *refuse, "--names", "names.txt")
    assert "there is no such file" in refused(capsys, *refuse, "--mask", "note", "--names", "none.txt")
    assert "there is no column 'text'" in refused(capsys, *refuse, "--mask", "text")


def test_files_with_decimal_commas_in_another_encoding_are_read_as_numbers(folder, capsys):
    """Before, ages like 59,1 were categories in silence, so that all of them became *."""
    table = patients().assign(age=lambda t: t["age"] + 0.5, weight=lambda t: t["age"] * 1.5)
    table["Straße"] = ["Köln", "Bonn"] * 150
    table.loc[0, "weight"] = None
    table.to_csv("de.csv", sep=";", decimal=",", index=False, encoding="cp1252")
    ask = ("--quasi", "age", "--sensitive", "diagnosis", "--drop", "id,zip,Straße", "--out", "out.csv")
    message = refused(capsys, "anonymize", "de.csv", *ask, "--encoding", "cp1252")
    assert "the numbers of 'age' have a decimal comma, like '" in message
    reading = ("--encoding", "cp1252", "--decimal", ",")
    assert run(capsys, "anonymize", "de.csv", *ask, *reading)[0] == 0
    published = pd.read_csv("out.csv", sep=";")
    assert published["age"].nunique() > 3
    assert sorted(published["weight"].dropna()) == sorted(table["weight"].dropna())
    code, out, _ = run(capsys, "risk", "de.csv", "de.csv", "--quasi", "age,Straße", *reading)
    assert code == 0, out
    assert run(capsys, "tabulate", "de.csv", "--by", "Straße", "--out", "t.csv", *reading)[0] == 0
    assert "Köln;150" in Path("t.csv").read_text()
    synthesized = ("--drop", "id", "--out", "s.csv", "--model", "independent")
    code, _, err = run(capsys, "synth", "de.csv", *synthesized, *reading)
    assert code == 0, err
    assert pd.read_csv("s.csv")["weight"].dtype.kind == "f"
