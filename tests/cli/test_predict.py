"""`tacit predict` and `tacit export` of a run: files in, files out, and nothing half-written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit import data
from tacit.data import table_files

from .shell import answer, refused, run


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tacit.Result:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": rng.normal(60, 10, 300).round(1),
            "smoker": rng.choice([True, False], 300),
            "stage": rng.choice(["1", "2", "3"], 300),
            "note": rng.choice(["0.10", "0.2", "x"], 300),
            "ill": rng.choice(["yes", "no"], 300),
        }
    )
    fed = data.from_frame(frame, "ill", categories=["stage", "smoker", "note"]).split(3)
    return tacit.train(fed, model="logistic", rounds=2, out=tmp_path_factory.mktemp("cli") / "run")


def write(folder: Path, text: str, name: str = "new.csv") -> None:
    (folder / name).write_text(text, encoding="utf-8")


HEADER = "id,age,smoker,stage,note\n"


def test_a_file_is_scored_in_its_order_and_columns_are_kept(folder, capsys, trained):
    write(folder, f"{HEADER}007,61.5,True,1,0.10\n008,,False,9,x\n")
    value = answer(capsys, "predict", str(trained.directory), "new.csv", "--out", "s.csv", "--keep", "id")
    unseen = (
        "'stage' has values that are not among its categories, in 1 row, like '9': they count as no category."
    )
    assert value == {"rows": 2, "out": "s.csv", "notes": [unseen]}
    scored = pd.read_csv(folder / "s.csv", dtype={"id": str})
    assert list(scored.columns) == ["id", "p(no)", "p(yes)", "prediction"]
    assert list(scored["id"]) == ["007", "008"]
    code, out, _ = run(capsys, "predict", str(trained.directory), "new.csv", "--out", "t.csv")
    assert code == 0
    ignored = "columns that the model does not use were ignored: 'id'."
    assert {f"note    {text}" for text in (unseen, ignored)} | {"2 rows, scores in t.csv"} == set(
        out.splitlines()
    )


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("1,61.5,TRUE,1.0,0.10", "1,61.5,True,1,0.10"),  # as pandas would read a column of such cells
        ("1,61.50,true,2,x", "1,61.5,True,2,x"),
        ("1,NA,False,?,x", "1,,False,,x"),
        ("1, 61.5, False, 3, x", "1,61.5,False,3,x"),
    ],
)
def test_a_cell_means_the_same_in_a_file_of_one_row(folder, capsys, trained, text, same):
    """Text, numbers and booleans are read as the training table was, whatever the other rows are."""
    for name, line in (("a", text), ("b", same)):
        write(folder, f"{HEADER}{line}\n", f"{name}.csv")
        answer(capsys, "predict", str(trained.directory), f"{name}.csv", "--out", f"{name}-out.csv")
    write(folder, f"{HEADER}{text}\n2,50,False,2,zzz\n3,40.25,True,other,0.2\n", "c.csv")
    answer(capsys, "predict", str(trained.directory), "c.csv", "--out", "c-out.csv")
    a, b, c = (pd.read_csv(folder / f"{n}-out.csv") for n in "abc")
    pd.testing.assert_frame_equal(a, b)
    pd.testing.assert_frame_equal(a, c.iloc[:1], rtol=1e-12)


def test_a_long_file_is_scored_in_pieces_with_the_same_scores(folder, capsys, trained, monkeypatch):
    rows = "".join(f"{k},{40 + k % 40},True,{1 + k % 3},x\n" for k in range(50))
    write(folder, HEADER + rows)
    answer(capsys, "predict", str(trained.directory), "new.csv", "--out", "whole.csv")
    monkeypatch.setattr(table_files, "CHUNK", 7)
    value = answer(capsys, "predict", str(trained.directory), "new.csv", "--out", "pieces.csv")
    assert value["rows"] == 50
    whole, pieces = (pd.read_csv(folder / f"{n}.csv") for n in ("whole", "pieces"))
    pd.testing.assert_frame_equal(whole, pieces, rtol=1e-12)
    write(folder, HEADER + rows + "51,old,True,1,x\n")
    text = refused(capsys, "predict", str(trained.directory), "new.csv", "--out", "bad.csv")
    assert "new.csv, in rows from 50 on: the recipe declares 'age' as a number" in text


def test_a_decimal_comma_is_declared(folder, capsys, trained):
    write(folder, "age;smoker;stage;note\n61,5;True;1;x\n")
    text = refused(capsys, "predict", str(trained.directory), "new.csv", "--out", "s.csv")
    assert "column 'age': the numbers have a decimal comma, like '61,5'" in text
    answer(capsys, "predict", str(trained.directory), "new.csv", "--out", "s.csv", "--decimal", ",")
    write(folder, "age,smoker,stage,note\n61.5,True,1,x\n", "b.csv")
    answer(capsys, "predict", str(trained.directory), "b.csv", "--out", "t.csv")
    assert (folder / "s.csv").read_text() == (folder / "t.csv").read_text()


def test_a_file_without_rows_is_refused_and_a_table_without_rows_has_no_scores(folder, capsys, trained):
    frame = pd.DataFrame({"x": [*range(40)], "y": [float(k % 7) for k in range(40)]})
    numbers = data.from_frame(frame, "y", regression=True).split(2)
    run_of_numbers = tacit.train(numbers, model="linear", rounds=1, out=folder / "numbers")
    for result, header in ((trained, "age,smoker,stage,note"), (run_of_numbers, "x")):
        write(folder, f"{header}\n")
        text = refused(capsys, "predict", str(result.directory), "new.csv", "--out", "s.csv")
        assert "new.csv has column names and no rows. Give at least one row." in text
        assert not (folder / "s.csv").exists()
    scores = run_of_numbers.predict(frame[["x"]].iloc[:0])
    assert list(scores.columns) == list(run_of_numbers.predict(frame[["x"]]).columns)
    assert len(scores) == 0


def test_a_number_with_separators_of_thousands_is_refused(folder, capsys, trained, monkeypatch):
    """Each part of a file is checked: the first has nothing but empty cells."""
    monkeypatch.setattr(table_files, "CHUNK", 3)
    write(folder, "age;smoker;stage;note\n" + 4 * ";True;1;x\n" + "1.157;True;1;1.100\n;True;1;x\n")
    where = ("predict", str(trained.directory), "new.csv", "--out", "s.csv")
    text = refused(capsys, *where, "--decimal", ",")
    assert "new.csv, column 'age': '1.157' in row 5 (line 6 of a CSV file)" in text
    assert text.count("new.csv, ") == 1
    assert not (folder / "s.csv").exists()
    answer(capsys, *where)  # with a decimal point it is a number


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (
            "id,ages,smoker,stage,note",
            "new.csv has no column 'age'; the model needs it. Did you mean 'ages'?",
        ),
        (
            "id,alter,smoker,stage,note",
            "new.csv has no column 'age'; the model needs it. Its columns that the model does not use, "
            "nearest first: 'alter', 'id'.",
        ),
        (
            "Id,Raucher,smoked,stage,note",
            "new.csv has no columns 'age', 'smoker'; the model needs them. Its columns that the model does "
            "not use, nearest first: 'smoked', 'Raucher', 'Id'.",
        ),
    ],
)
def test_a_missing_column_is_named_with_the_file_and_its_columns(folder, capsys, trained, header, says):
    """Before: "the table has no column 'age'; the model needs it. Known: ."."""
    write(folder, f"{header}\n1,61,True,1,x\n")
    assert says in refused(capsys, "predict", str(trained.directory), "new.csv", "--out", "s.csv")


def test_a_file_without_other_columns_lacks_one(folder, capsys, trained):
    write(folder, "smoker,stage,note\nTrue,1,x\n")
    err = refused(capsys, "predict", str(trained.directory), "new.csv", "--out", "s.csv")
    assert "no column 'age'; the model needs it. All its other columns are used." in err


def test_what_cannot_be_scored_is_refused_and_writes_nothing(folder, capsys, trained):
    where = str(trained.directory)
    write(folder, HEADER + "1,61,True,1,x\n")
    (folder / "old.csv").write_text("precious")
    cases = {
        ("predict", where, "new.csv", "--out", "old.csv"): "already exists",
        ("predict", where, "new.csv", "--out", "new.csv", "--force"): "is the input table",
        ("predict", where, "new.csv", "--out", "s.txt"): "must end in .csv",
        ("predict", where, "none.csv", "--out", "s.csv"): "there is no file none.csv",
        ("predict", where, "--out", "s.csv"): "give it the new rows",
        ("predict", where, "new.csv", "--file", "a=b.csv", "--out", "s.csv"): "without --file",
        ("predict", str(folder), "new.csv", "--out", "s.csv"): "holds no model of a run",
        ("predict", "nowhere", "new.csv", "--out", "s.csv"): "there is no directory nowhere",
        (
            "predict",
            where,
            "new.csv",
            "--out",
            "s.csv",
            "--keep",
            "ID",
        ): "no column 'ID' to keep. Did you mean 'id'",
        ("predict", where, "new.csv", "--out", "s.csv", "--threshold", "2"): "a probability between 0 and 1",
        ("predict", where, "new.csv", "--out", "s.csv", "--decimal", "x"): "'.' or ','",
    }
    for words, why in cases.items():
        assert why in refused(capsys, *words), words
    write(folder, "id,age\n1,61\n")
    text = refused(capsys, "predict", where, "new.csv", "--out", "s.csv")
    assert "no columns 'smoker', 'stage', 'note'" in text
    write(folder, HEADER)
    assert "no rows" in refused(capsys, "predict", where, "new.csv", "--out", "s.csv")
    assert (folder / "old.csv").read_text() == "precious"


def test_a_job_file_in_the_place_of_a_run_and_a_table_in_that_of_a_job_are_named(folder, capsys, trained):
    """Before: "is not JSON" and "is not TOML"."""
    Path("job.toml").write_text("[data]\n")
    Path("new.csv").write_text("a,y\n1,2\n")
    words = refused(capsys, "predict", "job.toml", "new.csv")
    assert (
        "job.toml is a job file, and has no model. Run it, and give the run: tacit run job.toml --out RUN"
        in words
    )
    for verb in ("plan", "run", "compare"):
        words = refused(capsys, verb, "new.csv")
        assert "new.csv is a table, not a job file. Draft a job from it: tacit job new new.csv" in words


def test_force_overwrites_and_a_parquet_file_is_read_and_written(folder, capsys, trained):
    frame = pd.DataFrame({"age": [61.5], "smoker": [True], "stage": ["1"], "note": ["x"], "id": [7]})
    frame.to_parquet(folder / "new.parquet")
    (folder / "s.parquet").write_text("old")
    answer(capsys, "predict", str(trained.directory), "new.parquet", "--out", "s.parquet", "--force")
    scored = pd.read_parquet(folder / "s.parquet")
    expected = trained.predict(frame)
    np.testing.assert_allclose(scored["p(yes)"], expected["p(yes)"], rtol=1e-12)


def test_a_model_is_exported_from_the_command_line(folder, capsys, trained):
    value = answer(capsys, "export", str(trained.directory), "--out", "m.onnx")
    assert value["out"] == "m.onnx"
    assert (folder / "m.onnx").stat().st_size > 500
    assert "already exists" in refused(capsys, "export", str(trained.directory), "--out", "m.onnx")
    assert "must end in .onnx or .pt2" in refused(capsys, "export", str(trained.directory), "--out", "m.pkl")


def test_a_run_of_the_command_line_can_be_used(folder, capsys):
    """From a job file to scores, with the card beside the report."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"age": rng.normal(60, 9, 200), "site": rng.choice(["a", "b"], 200)})
    frame["ill"] = np.where(frame["age"] + rng.normal(0, 5, 200) > 60, "yes", "no")
    frame.to_csv(folder / "patients.csv", index=False)
    (folder / "job.toml").write_text(
        '[data]\npath = "patients.csv"\nlabel = "ill"\nby = "site"\n[model]\nname = "logistic"\n'
        '[train]\nrounds = 5\nintended_use = "Teaching only."\n'
    )
    value = answer(capsys, "run", "job.toml", "--out", "run", "--quiet")
    card = Path(value["card"]).read_text()
    assert "Teaching only." in card
    assert "TO BE FILLED IN" not in card
    frame.drop(columns=["ill", "site"]).to_csv(folder / "new.csv", index=False)
    answer(capsys, "predict", "run", "new.csv", "--out", "scored.csv")
    scored = pd.read_csv(folder / "scored.csv")
    assert (scored["prediction"] == frame["ill"]).mean() > 0.7
