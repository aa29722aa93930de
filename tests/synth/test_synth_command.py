"""`tacit synth`, as its users run it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tacit import synth
from tacit.synth.conformance import example
from tests import warm
from tests.cli.shell import refused, run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    frame, _ = example()
    frame.drop(columns="name").to_csv("table.csv", index=False)
    frame.to_parquet("table.parquet")
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    return run(capsys, "synth", *words)


@pytest.mark.parametrize(
    ("real", "made"),
    [("table.csv", "out.csv"), ("table.parquet", "out.parquet"), ("table.csv", "out.csv.gz")],
)
def test_a_table_in_a_table_out_in_every_format(folder, capsys, real, made):
    code, out, err = said(capsys, real, "--out", made, "--rows", "300")
    assert code == 0
    assert "NOT DIFFERENTIALLY PRIVATE" in out
    assert f"300 rows   {made}" in out
    assert "300 of 300 rows written" in err
    read = {"csv": pd.read_csv, "quet": pd.read_parquet}
    rows = read["quet" if made.endswith("parquet") else "csv"](made)
    there = read["quet" if real.endswith("parquet") else "csv"](real)
    assert len(rows) == 300
    assert list(rows.columns) == list(there.columns)
    if real.endswith("parquet"):
        assert rows.dtypes.drop("name").equals(there.dtypes.drop("name"))
    assert not list(folder.glob(".*"))  # no temporary file is left


def test_columns_to_drop_are_a_list_or_several_options(folder, capsys):
    frame = pd.read_csv("table.csv")
    first, second, *rest = frame.columns
    for name, drop in (("a", [f"{first},{second}"]), ("b", [first, second])):
        words = [word for column in drop for word in ("--drop", column)]
        assert said(capsys, "table.csv", "--out", f"{name}.csv", "--rows", "20", *words)[0] == 0
        assert list(pd.read_csv(f"{name}.csv").columns) == rest
    frame.rename(columns={first: "one, two"}).to_csv("comma.csv", index=False)
    assert said(capsys, "comma.csv", "--out", "c.csv", "--rows", "20", "--drop", "one, two")[0] == 0
    assert list(pd.read_csv("c.csv").columns) == [second, *rest]


def test_a_private_model_stays_private_with_a_seed_and_is_stamped_with_an_insecure_one(folder, capsys):
    (folder / "columns.toml").write_text(
        'age = {kind = "integer", low = 0, high = 120}\nsex = {kind = "categorical", values = ["F", "M"]}\n'
    )
    pd.read_csv("table.csv")[["age", "sex"]].to_csv("real.csv", index=False)
    common = ["real.csv", "--model", "mst", "--columns", "columns.toml", "--rows", "200"]
    for name in ("one", "two"):
        code, out, _ = said(capsys, *common, "--out", f"{name}.csv", "--seed", "3")
        assert code == 0
        assert "NOT PRIVATE" not in out
        assert "privacy    ε = 1, δ = 1e-09, record (one row added or removed)" in out
    assert (
        Path("one.csv").read_bytes() != Path("two.csv").read_bytes()
    )  # noise of the operating system: 200 rows the same by chance will not be
    for name in ("three", "four"):
        code, out, _ = said(capsys, *common, "--out", f"{name}.csv", "--insecure-seed", "3")
        assert "NOT PRIVATE: secrets came from a seed that can be replayed" in out
    assert Path("three.csv").read_bytes() == Path("four.csv").read_bytes()
    code, _, error = said(capsys, "real.csv", "--out", "five.csv", "--insecure-seed", "3")
    assert code == 2
    assert "--insecure-seed is for private models, and cart is not private. Use --seed." in error


def test_a_private_model_gives_away_neither_how_many_rows_there_are_nor_that_one_has_a_gap(folder, capsys):
    """Not by a number in its answer, and not by how its numbers are written: with one age missing, pandas
    reads all ages as fractions.
    """
    (folder / "columns.toml").write_text(
        'sex = {kind = "categorical", values = ["F", "M"]}\nage = {kind = "integer", low = 0, high = '
        '120}\nwho = "id"\n'
    )
    real, answers, written = pd.read_csv("table.csv")[["age", "sex"]].assign(who="x"), [], []
    for gap in (False, True):
        real.assign(
            age=real["age"].astype(object).where(real.index > 0, None) if gap else real["age"]
        ).to_csv("real.csv", index=False)
        code, out, _ = said(
            capsys,
            "real.csv",
            "--model",
            "mst",
            "--columns",
            "columns.toml",
            "--rows",
            "30",
            "--out",
            "made.csv",
            "--save",
            "g",
            "--json",
            "--force",
        )
        assert code == 0
        answers.append(json.loads(out))
        written.append(pd.read_csv("made.csv").dtypes.to_dict())
        assert synth.load("g").table.columns[0].to_dict() == {
            "kind": "integer",
            "name": "age",
            "low": 0,
            "high": 120,
            "step": 1.0,
            "dtype": "int64",
            "declared": True,
        }
    assert written[0] == written[1]
    assert list(written[0]) == ["age", "sex", "who"]
    assert set(answers[0]) == set(answers[1])
    assert "trained_on" not in answers[0]
    assert str(len(real)) not in json.dumps({k: v for k, v in answers[0].items() if "seconds" not in k})
    (folder / "columns.toml").write_text('age = {kind = "integer", low = 0, high = 120}\nwho = "id"\n')
    code, _, err = said(
        capsys, "real.csv", "--model", "mst", "--columns", "columns.toml", "--rows", "30", "--out", "more.csv"
    )
    assert code
    assert "columns.toml does not declare the column 'sex'. Declare it, or drop it with --drop sex." in err


def test_the_command_of_the_manual_trains_with_a_progress_line_and_answers_in_json(folder, capsys):
    code, out, err = said(
        capsys,
        "table.csv",
        "--model",
        "ctgan",
        "--epochs",
        "3",
        "--out",
        "s.csv",
        "--save",
        "g.tacit",
        "--condition",
        "sex=F",
        "--condition",
        "age=30..60",
        "--seed",
        "4",
        "--json",
    )
    assert code == 0
    answer = json.loads(out)
    assert answer["model"] == "CTGAN"
    assert [row["epoch"] for row in answer["history"]] == [1, 2, 3]
    assert "NOT DIFFERENTIALLY PRIVATE" in answer["ledger"]["stamps"][0]
    assert "epoch 3/3  generator loss" in err
    rows = pd.read_csv("s.csv")
    assert (rows["sex"] == "F").all()
    assert rows["age"].between(30, 60).all()
    assert len(rows) == answer["trained_on"] == 397


def test_a_saved_generator_draws_the_same_rows_without_the_table(folder, capsys):
    assert said(
        capsys, "table.csv", "--out", "one.csv", "--save", "g.tacit", "--rows", "50", "--seed", "7", "--quiet"
    ) == (0, "", "")
    (folder / "table.csv").unlink()
    assert (
        said(capsys, "--load", "g.tacit", "--out", "two.csv", "--rows", "50", "--seed", "7", "--quiet")[0]
        == 0
    )
    assert Path("one.csv").read_bytes() == Path("two.csv").read_bytes()
    assert Path("one.csv").read_text() == synth.load("g.tacit").sample(50, seed=7).to_csv(index=False)


def test_a_columns_file_declares_domains_and_constraints(folder, capsys):
    Path("columns.toml").write_text(
        'constraints = [{name = "Ordered", columns = ["admitted", "discharged"]}, {name = "Range", column = '
        '"age", low = 10}]\n'
        'sex = "categorical"\n[age]\nkind = "integer"\nlow = 0\nhigh = 120\n'
        '[grade]\nkind = "ordinal"\nvalues = ["low", "mid", "high"]\n'
    )
    code, _, err = said(
        capsys,
        "table.csv",
        "--columns",
        "columns.toml",
        "--model",
        "independent",
        "--save",
        "g.tacit",
        "--out",
        "o.csv",
        "--quiet",
    )
    assert code == 0, err
    table = synth.load("g.tacit").table
    assert (table.columns[0].low, table.columns[0].high) == (10, 120)
    rows = pd.read_csv("o.csv", parse_dates=["admitted", "discharged"])
    assert (rows["admitted"] <= rows["discharged"]).all()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "give either a table to fit"),
        (("table.csv",), "there is no output. Give --out FILE"),
        (("table.csv", "--load", "g", "--out", "o.csv"), "or a saved generator with --load"),
        (("nothing.csv", "--out", "o.csv"), "there is no file nothing.csv"),
        (("table.csv", "--out", "o.xlsx"), "--out o.xlsx must end in .csv, .csv.gz or .parquet"),
        (("table.csv", "--out", "table.csv"), "--out is the real table itself"),
        (("table.csv", "--out", "../{here}/table.csv", "--force"), "--out is the real table itself"),
        (("table.csv", "--out", "no/o.csv"), "--out no/o.csv: the directory does not exist"),
        *(
            (
                ("table.csv", option, "semi.csv"),
                "tacit: semi.csv already exists. Choose another name, or pass --force to overwrite it.",
            )
            for option in ("--out", "--save", "--report")
        ),
        (("table.csv", "--save", "."), "tacit: . is a directory. Give the name of a file."),
        (
            ("table.csv", "--out", "o.csv", "--save", "./o.csv"),
            "--out o.csv and --save ./o.csv are the same file. Give each its own name.",
        ),
        (
            ("table.csv", "--out", "o.csv", "--model", "ctgn"),
            "'ctgn' is not known here. Did you mean 'CTGAN'?",
        ),
        (
            ("table.csv", "--out", "o.csv", "--set", "leef=3"),
            "Cart has no parameter 'leef'. Did you mean 'leaf'?",
        ),
        (
            ("table.csv", "--out", "o.csv", "--set", "leaf=0"),
            "Cart: leaf is 0; it must be a whole number of at least 1",
        ),
        (("table.csv", "--out", "o.csv", "--rows", "0"), "--rows is 0; it must be at least 1"),
        (
            ("table.csv", "--out", "o.csv", "--drop", "agee"),
            "--drop agee: there is no such column. Did you mean 'age'?",
        ),
        (
            ("table.csv", "--out", "o.csv", "--condition", "sex"),
            "--condition: expected COLUMN=VALUE, got sex",
        ),
        (("table.csv", "--out", "o.csv", "--condition", "sex=X"), "'X' is not a value of the column 'sex'"),
        (
            ("table.csv", "--out", "o.csv", "--condition", "age=old"),
            "age is numeric; give a number, or LOW..HIGH",
        ),
        (
            ("table.csv", "--out", "o.csv", "--condition", "agee=3"),
            "there is no modeled column 'agee'. Did you mean 'age'?",
        ),
        (
            ("table.csv", "--out", "o.csv", "--condition", "age=60..30"),
            "age=(60.0, 30.0) is an empty interval",
        ),
        (
            ("table.csv", "--out", "o.csv", "--report", "r.html", "--target", "sx"),
            "--target sx: there is no such column. Did you mean 'sex'?",
        ),
        (("table.csv", "--out", "o.csv", "--target", "sex"), "--target needs --report FILE"),
        (
            ("table.csv", "--out", "o.csv", "--model", "mst", "--rows", "9"),
            "MST is private and does not infer domains from the data. Declare every column in a file",
        ),
        (
            ("table.csv", "--out", "o.csv", "--model", "pategan", "--columns", "c.toml"),
            "would reveal that number. Choose a round number with --rows",
        ),
        (
            ("table.csv", "--out", "o.csv", "--holdout", "2"),
            "--holdout is 2.0; it must be above 0 and below 1",
        ),
        (("broken.csv", "--out", "o.csv"), "broken.csv cannot be read as a table"),
        (("empty.csv", "--out", "o.csv"), "empty.csv has column names and no rows"),
        (
            ("semi.csv", "--out", "o.csv"),
            "semi.csv, column 'weight': the numbers have a decimal comma, like '71,5'.",
        ),
        (
            ("more.csv", "--out", "o.csv"),
            "more.csv has more cells in its rows than names in its first line (2)",
        ),
        (("--load", "table.csv", "--rows", "5", "--out", "o.csv"), "is not a generator saved by tacit"),
        (
            ("--load", "nothing.tacit", "--out", "o.csv"),
            "there is no file nothing.tacit. Give --load the file that --save wrote",
        ),
        (("--load", "table.csv", "--out", "o.csv"), "give the number of rows to sample with --rows"),
        (("table.csv", "--out", "o.csv", "--columns", "broken.csv"), "broken.csv cannot be read"),
    ],
)
def test_unsupported_requests_are_reported_and_nothing_is_written(folder, capsys, words, sentence):
    Path("broken.csv").write_bytes(b'a,b\n1,2\n"')
    Path("empty.csv").write_text("a,b\n")
    Path("semi.csv").write_text("age;weight\n" + "30;71,5\n" * 20)
    Path("more.csv").write_text("a,b\n" + "1,2,3\n" * 20)
    err = refused(capsys, "synth", *(word.format(here=folder.name) for word in words))
    assert sentence in err
    assert "leaves of" not in err  # it is said before anything is learned


def test_a_file_that_may_not_be_read_is_not_called_a_bad_table(folder, capsys, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", "table.csv")

    monkeypatch.setattr("pathlib.Path.open", refuse)  # and not chmod: root may read everything
    code, _, err = said(capsys, "table.csv", "--out", "o.csv")
    assert (code, err) == (
        2,
        "tacit: table.csv may not be read: permission denied. Ask for the right to read it, or give "
        "another file.\n",
    )


@pytest.mark.parametrize("option", ["--out", "--save", "--report"])
def test_an_unwritable_path_is_refused_before_anything_is_fitted(folder, capsys, monkeypatch, option):
    monkeypatch.setattr("os.access", lambda *_, **__: False)  # and not chmod: root may write everywhere
    code, _, err = said(capsys, "table.csv", option, "o.csv")
    assert (code, err) == (
        2,
        f"tacit: synth: {option} o.csv cannot be written: permission denied. Choose a writable location.\n",
    )


def test_a_run_that_is_killed_leaves_the_old_file_and_no_half_of_a_new_one(folder):
    """A real process, killed while it writes; the interrupt also cleans up behind itself."""
    synth.Independent().fit(example()[0]).save("g.tacit")
    Path("big.csv").write_text("the old file\n")
    words = ["synth", "--load", "g.tacit", "--rows", "50000000", "--out", "big.csv", "--force"]
    code = "import sys; from tacit.cli import main; sys.exit(main(sys.argv[1:]))"
    process = warm.Popen([sys.executable, "-c", code, *words], stderr=warm.DEVNULL)
    deadline = time.monotonic() + 300
    while not list(folder.glob(".big.csv.*")) or not next(folder.glob(".big.csv.*")).stat().st_size:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(timeout=300) == 130
    assert Path("big.csv").read_text() == "the old file\n"
    assert not list(folder.glob(".big.csv.*"))


@pytest.mark.slow
def test_drawing_many_rows_takes_the_memory_of_one_chunk(folder):
    """Ten chunks must not take more than two: peak memory is compared between two real processes."""
    synth.Independent().fit(
        pd.DataFrame({"x": np.random.default_rng(0).normal(size=500), "c": ["a", "b"] * 250})
    ).save("g.tacit")
    code = (
        "import resource, sys; from tacit.cli import main; main(sys.argv[1:]); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    peak = {}
    for rows in (131_072, 1_310_720):
        ran = subprocess.run(
            [
                sys.executable,
                "-c",
                code,
                "synth",
                "--load",
                "g.tacit",
                "--rows",
                str(rows),
                "--out",
                "o.csv",
                "--quiet",
                "--force",
            ],
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        peak[rows] = int(ran.stdout)
    assert peak[1_310_720] < 1.15 * peak[131_072]
    with open("o.csv", encoding="utf-8") as file:
        assert sum(1 for _ in file) == 1_310_721


def test_a_report_holds_out_rows_from_the_generator_and_shows_utility_with_risk(folder, capsys):
    """The command of the issue: the table, the synthetic one, and a page that says what it is good for and
    what it gives away.
    """
    code, out, _ = said(
        capsys,
        "table.csv",
        "--model",
        "ctgan",
        "--epochs",
        "2",
        "--out",
        "synthetic.csv",
        "--report",
        "synth.html",
        "--json",
    )
    told, rows = json.loads(out), len(pd.read_csv("table.csv"))
    assert code == 0
    assert told["trained_on"] == rows - round(0.2 * rows)
    assert len(pd.read_csv("synthetic.csv")) == told["trained_on"]
    text = Path("synth.html").read_text(encoding="utf-8")
    for words in ("</html>", "Fidelity", "Privacy", "membership", "exact copies", "<svg"):
        assert words in text, words
    assert {"exact copies", "membership AUC"} <= set(told["scores"])


def test_shares_and_conditions_on_the_command_line(folder, capsys):
    words = [
        "--out",
        "made.csv",
        "--rows",
        "200",
        "--share",
        "sex=F:0.8",
        "--condition",
        "smoker=True",
        "--quiet",
    ]
    assert said(capsys, "table.csv", *words)[0] == 0
    made = pd.read_csv("made.csv")
    assert (made["sex"] == "F").sum() == 160
    assert made["smoker"].all()


def test_one_saved_network_samples_fairly_and_fills_in_a_table(folder, capsys):
    fit = ["table.csv", "--model", "argn", "--epochs", "2", "--save", "net.tacit", "--quiet"]
    assert said(capsys, *fit)[0] == 0
    fair = ["--load", "net.tacit", "--rows", "600", "--fair", "sex:smoker", "--out", "fair.csv", "--quiet"]
    assert said(capsys, *fair)[0] == 0
    shares = pd.read_csv("fair.csv").groupby("smoker")["sex"].apply(lambda s: (s == "F").mean())
    assert abs(shares[True] - shares[False]) < 0.05
    holes = pd.read_csv("table.csv")
    assert holes[["score", "job"]].isna().any().all()
    code, out, _ = said(capsys, "--load", "net.tacit", "--impute", "table.csv", "--out", "filled.csv")
    assert code == 0
    filled = pd.read_csv("filled.csv")
    assert f"{len(holes)} rows   filled.csv" in out
    assert not filled.isna().any().any()
    assert filled["age"].equals(holes["age"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--share", "sex=F"], "expected COLUMN=VALUE:SHARE, got sex=F"),
        (["--share", "sex=F:2"], "shares between 0 and 1"),
        (["--fair", "sex:smoker"], "--fair needs a model that predicts any column from the others, and Cart"),
        (["--impute", "table.csv"], "--impute needs a model"),
        (["--model", "argn", "--fair", "sex"], "expected COLUMN:COLUMN, like income:sex, got sex"),
        (["--model", "argn", "--fair", "sex:smokes"], "there is no modeled column 'smokes'"),
        (["--model", "argn", "--impute", "absent.csv"], "there is no file absent.csv"),
        (
            ["--model", "argn", "--impute", "table.csv", "--rows", "5"],
            "remove --share, --fair, --condition and --rows",
        ),
    ],
)
def test_what_cannot_be_sampled_is_refused_before_anything_is_written(folder, capsys, words, message):
    assert message in refused(capsys, "synth", "table.csv", "--out", "made.csv", *words)


def test_imputation_never_overwrites_the_table_it_reads(folder, capsys):
    words = ["table.csv", "--model", "argn", "--impute", "table.parquet", "--out", "table.parquet", "--force"]
    assert "would be overwritten" in refused(capsys, "synth", *words)
