from __future__ import annotations

import gzip

import numpy as np
import pandas as pd
import pytest
import torch

from tacit import data
from tacit.config import job
from tacit.data.conformance import check_dataset, check_federation
from tacit.data.table_files import read_header
from tacit.data.tables import INFERRED_LAYOUT
from tacit.errors import BadData, BadParameter, MissingFiles
from tacit.parameters import propose_lines


def patients(n: int = 60, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    hospital = np.array(["north", "south", "west"])[np.arange(n) % 3]
    age = rng.normal(50 + 10 * (hospital == "west"), 8, n).round()
    frame = pd.DataFrame(
        {
            "age": age,
            "sex": rng.choice(["f", "m"], n),
            "hospital": hospital,
            "pulse": rng.normal(70, 9, n),
            "ill": rng.choice(["yes", "no"], n),
        }
    )
    frame.loc[rng.choice(n, 6, replace=False), "pulse"] = np.nan
    frame.loc[rng.choice(n, 4, replace=False), "sex"] = np.nan
    return frame


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "patients.csv"
    patients().to_csv(path, index=False)
    return path


def test_a_table_becomes_numbers_one_hot_categories_and_indicators(csv):
    made = check_dataset(data.from_csv(csv, label="ill", groups=["hospital"]))
    assert made.columns == ("age", "pulse", "sex=f", "sex=m", "sex missing", "pulse missing")
    assert made.labels == ("no", "yes")
    one_hot = made.rows.x[:, 2:5]
    assert set(one_hot.flatten().tolist()) == {0, 1}
    assert (one_hot.sum(1) == 1).all()  # a category, or missing
    assert made.name == "patients"


def test_each_party_standardizes_by_its_own_training_rows(csv):
    fed = data.from_csv(csv, label="ill", fit="party").by("hospital")
    raw = data.from_csv(csv, label="ill", fit="none").by("hospital")
    for k in range(3):
        mine = fed.train.of(k)
        assert torch.equal(mine, raw.train.of(k))
        age = raw.rows.x[mine, 0]
        assert torch.allclose(fed.rows.x[mine, 0], (age - age.mean()) / age.std(correction=0), atol=1e-5)
        held, held_age = fed.rows.x[fed.held.of(k), 0], raw.rows.x[fed.held.of(k), 0]
        assert torch.allclose(held, (held_age - age.mean()) / age.std(correction=0), atol=1e-5)


def test_a_partys_rows_do_not_depend_on_another_partys_numbers(csv, tmp_path):
    """The point of fit='party': change every number of one hospital and the others see no difference."""
    frame = patients()
    frame.loc[frame["hospital"] == "west", ["age", "pulse"]] *= 100
    frame.to_csv(tmp_path / "other.csv", index=False)
    a, b = (data.from_csv(p, label="ill", fit="party").by("hospital") for p in (csv, tmp_path / "other.csv"))
    for k, name in enumerate(a.parties):
        same = torch.equal(a.party(k).rows.x, b.party(k).rows.x)
        assert same or name == "west"
    pooled = [
        data.from_csv(p, label="ill", fit="pooled").by("hospital").party(0).rows.x
        for p in (csv, tmp_path / "other.csv")
    ]
    assert not torch.equal(*pooled)


def test_a_test_row_is_standardized_as_the_party_it_came_from(csv):
    made = data.from_csv(csv, label="ill", test_fraction=0.3, fit="party")
    fed, raw = (
        made.by("hospital"),
        data.from_csv(csv, label="ill", test_fraction=0.3, fit="none").by("hospital"),
    )
    came_from = made.column("hospital", test=True)
    for k, name in enumerate(fed.parties):
        age = raw.rows.x[fed.train.of(k), 0]
        mine = torch.from_numpy(came_from == name)
        assert torch.allclose(
            fed.test.x[mine, 0], (raw.test.x[mine, 0] - age.mean()) / age.std(correction=0), atol=1e-5
        )


def test_without_a_column_to_go_by_the_test_set_uses_its_own_statistics(csv):
    fed = data.from_csv(csv, label="ill", test_fraction=0.3, fit="party").split(3)
    assert fed.test.x[:, 0].mean().abs() < 1e-5
    assert (fed.test.x[:, 0].std(correction=0) - 1).abs() < 1e-4


def test_pooled_statistics_come_from_all_training_rows_and_are_noted(csv):
    fed = data.from_csv(csv, label="ill", fit="pooled").split(3)
    assert fed.rows.x[fed.train.index][:, 0].mean().abs() < 1e-5
    assert any("pooled over all parties" in note for note in fed.notes)
    assert INFERRED_LAYOUT in fed.notes


def test_a_missing_number_is_the_mean_and_says_so(csv):
    fed = data.from_csv(csv, label="ill").by("hospital")
    missing = fed.rows.x[:, fed.columns.index("pulse missing")] == 1
    assert int(missing.sum()) > 0
    assert (fed.rows.x[missing, fed.columns.index("pulse")] == 0).all()
    assert torch.isfinite(fed.rows.x).all()


def test_the_column_that_partitions_the_rows_is_not_a_feature(csv):
    made = data.from_csv(csv, label="ill")
    assert "hospital=north" in made.columns
    assert not any(c.startswith("hospital") for c in made.by("hospital").columns)
    check_federation(made.by("hospital"), len(made))
    check_federation(made.split(4, data.CovariateShift()), len(made))


def test_a_declared_recipe_is_used_as_it_is_and_nothing_is_read_off(csv):
    recipe = data.Recipe(("age",), {"sex": ("f", "m", "x")}, missing=("sex",), mean=(50.0,), std=(10.0,))
    fed = data.from_csv(csv, label="ill", fit=recipe).split(2)
    assert fed.columns == ("age", "sex=f", "sex=m", "sex=x", "sex missing")
    assert fed.notes == ()
    ages = torch.sort(fed.rows.x[:, 0] * 10 + 50).values
    assert torch.allclose(ages, ages.round(), atol=1e-4)


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (
            data.Recipe(("agee",)),
            r"the recipe needs a column 'agee' and the table has none. Did you mean 'age'?",
        ),
        (data.Recipe(("sex",)), "the recipe declares 'sex' as a number; the table contains text"),
        (
            data.Recipe(("pulse",)),
            "the column 'pulse' has missing values; the recipe must allow them: missing=('pulse',)",
        ),
        (
            data.Recipe((), {"sex": ("f",)}, ("sex",)),
            "the column 'sex' has the value 'm', which is not in the recipe, in row",
        ),
    ],
)
def test_a_table_that_does_not_fit_the_recipe_is_refused(csv, recipe, words):
    with pytest.raises(BadData) as caught:
        data.from_csv(csv, label="ill", fit=recipe)
    assert words in str(caught.value)


def test_a_number_with_a_word_among_its_cells_is_refused_with_the_word():
    """Before, the error named the first cell, which is a number as it should be."""
    recipe = data.Recipe(("age",))
    with pytest.raises(BadData, match=r"e\.g\. '1\.000,5'"):
        recipe.raw(pd.DataFrame({"age": ["3.2", None, "1.000,5"]}))


def test_csv_packed_csv_and_parquet_give_the_same_rows(csv, tmp_path):
    packed, parquet = tmp_path / "patients.csv.gz", tmp_path / "patients.parquet"
    packed.write_bytes(gzip.compress(csv.read_bytes()))
    pd.read_csv(csv).to_parquet(parquet)
    readers = ((data.from_csv, csv), (data.from_csv, packed), (data.from_parquet, parquet))
    rows = [read(path, label="ill").split(3) for read, path in readers]
    assert all(torch.equal(r.rows.x, rows[0].rows.x) and torch.equal(r.rows.y, rows[0].rows.y) for r in rows)


def test_a_test_file_of_its_own(csv, tmp_path):
    patients(30, seed=1).to_csv(tmp_path / "test.csv", index=False)
    made = check_dataset(data.from_csv(csv, label="ill", test=tmp_path / "test.csv"))
    assert (len(made), len(made.test.y)) == (60, 30)


def test_numbers_can_be_declared_categories_and_columns_dropped(tmp_path):
    pd.DataFrame({"zip": [10, 20, 10, 20], "id": [1, 2, 3, 4], "y": [0, 1, 0, 1]}).to_csv(
        tmp_path / "t.csv", index=False
    )
    made = data.from_csv(tmp_path / "t.csv", label="y", categories=["zip"], drop=["id"], test_fraction=0)
    assert made.columns == ("zip=10", "zip=20")


def test_a_regression_keeps_its_targets(csv):
    made = check_dataset(data.from_csv(csv, label="age", regression=True))
    assert made.classes is None
    assert made.rows.y.dtype == torch.float32


@pytest.mark.parametrize(
    ("text", "more", "words"),
    [
        ("", {}, "t.csv is empty. The first line must name the columns."),
        ("a,y\n", {}, "has column names and no rows"),
        ("a,y\n1,0\n2,0\n", {}, "every row has the label '0'"),
        ("a,yy\n1,0\n2,1\n", {}, "there is no column 'y' (label). Did you mean 'yy'?"),
        ("y\n0\n1\n", {}, "there is no feature besides the label"),
        ("a,y\n1,0\n2,\n", {}, "1 rows have no 'y', the first is row 2 (line 3 of a CSV file)"),
        (
            "a,y\n1,0.5\n2,0.7\n",
            {"regression": False},
            "the label 'y' has fractions, e.g. 0.5. If it is a quantity to predict, pass regression=True",
        ),
        (
            "a,y\n1,no\n2,yes\n",
            {"regression": True},
            "the label 'y' contains text, e.g. 'no'; a regression needs numbers",
        ),
        ("a,y\ninf,0\n2,1\n", {}, "the column 'a' has an infinite value in row 1 (line 2 of a CSV file)"),
        (
            "a,y\n" + "1,0\n2,1\n" * 10 + "1o,0\n",
            {},
            "the column 'a' contains numbers, but 1 of 21 values are not numeric, the first '1o' in row 21 (line",
        ),
        (
            "a,y\n" + "".join(f"name{i},{i % 2}\n" for i in range(150)),
            {},
            "has 150 different values in 150 rows: an identifier or free text",
        ),
        (
            "a,b,y\n" + "".join(f"name{i},word{i},{i % 2}\n" for i in range(150)),
            {},
            "Leave it out with drop=['a', 'b']: the same holds for 'b'.",
        ),
        (
            "a,y\n" + "".join(f"{2000 + i // 12}-{i % 12 + 1:02}-07,{i % 2}\n" for i in range(150)),
            {},
            "dates or times, not categories. Declare the parts to use with dates={'a': ['year', 'month', ",
        ),
        (
            "a;y\n" + "".join(f"{i},5;{i % 2}\n" for i in range(150)),
            {"separator": ";"},
            "the numbers have a decimal comma, like '0,5'. Read the file with decimal=','",
        ),
        (
            "a;y\n" + "0,5;1\n1;0\n" * 9,
            {"separator": ";"},
            "column 'a': the numbers have a decimal comma, like '0,5'. Read the file with decimal=','",
        ),
        (
            "a,y\n1,0,7\n5,1,8\n",
            {},
            "t.csv has more cells in its rows than names in its first line (2). Name every column",
        ),
        (
            "a;y\n1;0\n2;1\n",
            {"separator": ","},
            "has one column, 'a;y', if the separator is ','. The file seems to use ';': pass separator=';', "
            "or "
            "leave separator out.",
        ),
        ("a,y\n1,0\n2,1\n", {"groups": ["hospitl"]}, "there is no column 'hospitl' (groups)"),
        ("a,y\n1,0\n2,1,3,4\n", {}, "cannot be read as a table"),
        ("# from a page\na,b,y\n1,2,0\n", {}, "the first line names 1 column, and the next has 3 cells."),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(tmp_path, text, more, words):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(BadData) as caught:
        data.from_csv(path, label="y", **more)
    assert words in str(caught.value)


def test_numbers_with_a_comma_may_be_declared_categories(tmp_path):
    (tmp_path / "t.csv").write_text("a;y\n" + "0,5;1\n1;0\n" * 9)
    assert data.from_csv(tmp_path / "t.csv", label="y", separator=";", categories=["a"]).columns == (
        "a=0,5",
        "a=1",
    )


def test_numbers_with_a_comma_are_the_numbers_with_a_point(tmp_path):
    patients().to_csv(tmp_path / "point.csv", index=False)
    patients().to_csv(tmp_path / "comma.csv", index=False, sep=";", decimal=",")
    one = data.from_csv(tmp_path / "point.csv", label="ill").by("hospital")
    assert torch.equal(
        data.from_csv(tmp_path / "comma.csv", label="ill", separator=";", decimal=",").by("hospital").rows.x,
        one.rows.x,
    )
    (tmp_path / "job.toml").write_text(
        '[data]\npath = "comma.csv"\nlabel = "ill"\nby = "hospital"\nseparator = ";"\ndecimal = ","\n'
    )
    (fed,) = job.load(tmp_path / "job.toml").federations()
    assert torch.equal(fed.rows.x, one.rows.x)
    for decimal, words in (
        (";", "decimal is ';'; it must be '.' or ','"),
        (",", "decimal is ','; it must be different from the separator"),
    ):
        with pytest.raises(BadParameter, match=f"read_table: .*{words}"):
            data.from_csv(tmp_path / "point.csv", label="ill", decimal=decimal)


def test_a_row_counter_as_r_writes_it_is_not_a_column(tmp_path):
    (tmp_path / "r.csv").write_text("a,y\n" + "".join(f"{i},{i / 4},{i % 2}\n" for i in range(1, 9)))
    made = data.from_csv(tmp_path / "r.csv", label="y")
    assert made.columns == ("a",)
    assert made.classes == 2


def test_a_number_that_only_counts_rows_is_noted(tmp_path):
    frame = patients(130).assign(number=[str(2**40 + i) for i in range(130)])
    fed = data.from_frame(frame, label="ill").by("hospital")
    assert [note for note in fed.notes if "'number' has a different integer in every row" in note] == [
        fed.notes[1]
    ]
    assert "drop=['number']" in fed.notes[1]
    assert len(data.from_frame(frame, label="ill", drop=["number"]).by("hospital").notes) == 1


def test_columns_that_are_named_by_numbers_are_columns_like_others():
    frame = pd.DataFrame({0: [1.0, 2.0, 3.0, 4.0] * 5, 1: [0, 1] * 10, 2: ["a"] * 20})
    assert data.from_frame(frame, label=1, drop=[2]).columns == ("0",)
    with pytest.raises(BadData, match=r"there is no column '7' \(label\)"):
        data.from_frame(frame, label=7)


def test_a_file_of_another_encoding_and_a_folder_are_refused_as_such(tmp_path):
    (tmp_path / "old.csv").write_bytes("größe,y\n1,0\n2,1\n".encode("latin-1"))
    with pytest.raises(BadData, match=r"old.csv is not UTF-8 text.*Save it as UTF-8"):
        data.from_csv(tmp_path / "old.csv", label="y")
    with pytest.raises(MissingFiles, match=r"is a folder\. Give a file in it."):
        data.from_csv(tmp_path, label="y")


def test_a_file_that_may_not_be_read_is_not_called_a_bad_table(csv, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", str(csv))

    monkeypatch.setattr("pandas.read_csv", refuse)  # and not chmod: root may read everything
    with pytest.raises(MissingFiles, match="may not be read: permission denied"):
        data.from_csv(csv, label="ill")


def test_bad_arguments_and_missing_files(csv, tmp_path):
    with pytest.raises(MissingFiles, match=r"there is no file .*patient.csv. Did you mean 'patients.csv'\?"):
        data.from_csv(tmp_path / "patient.csv", label="ill")
    with pytest.raises(
        BadParameter,
        match="fit is 'all'; it must be one of 'federated', 'party', 'pooled', 'none', or a Recipe",
    ):
        data.from_csv(csv, label="ill", fit="all")
    with pytest.raises(
        BadParameter, match=r"drop is 'age'; it must be a list of column names, like \['age'\]"
    ):
        data.from_csv(csv, label="ill", drop="age")
    with pytest.raises(
        BadData, match=r"patients has no column 'hospitals' to partition by. Did you mean 'hospital'\?"
    ):
        data.from_csv(csv, label="ill").by("hospitals")
    with pytest.raises(BadData, match="4 rows have no 'sex', so they belong to no party"):
        data.from_csv(csv, label="ill", test_fraction=0).by("sex")
    (tmp_path / "t.parquet").write_bytes(b"no parquet")
    with pytest.raises(BadData, match="cannot be read as Parquet"):
        data.from_parquet(tmp_path / "t.parquet", label="y")


def test_the_command_line_is_advised_to_leave_the_separator_out(tmp_path):
    """Before: "pass separator='\\t'", which a shell does not pass on as a tab."""
    (tmp_path / "t.csv").write_text("a\ty\n1\t0\n2\t1\n")
    with propose_lines(), pytest.raises(BadData, match="leave --separator out") as error:
        read_header(tmp_path / "t.csv", ",")
    assert "pass separator" not in str(error.value)
