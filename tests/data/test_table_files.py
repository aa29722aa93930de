"""The one table reader: what a cell means, which files are refused, and that all verbs agree."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tacit import data
from tacit.cli import main
from tacit.data import table_files
from tacit.data.identifiers import identify
from tacit.data.table_files import NULLS, read_chunks, read_header, read_table, write_table
from tacit.errors import BadData, BadJob, BadParameter, MissingExtra, MissingFiles
from tacit.jobs.train.party_rows import read_layout, read_rows
from tacit.jobs.vertical.psi_deployed import read_ids

IDS = ["007", "7", "NULL", "NA", "nan", "", " x", "1e3", "a-1", "0", "00", "b"]


def people(rows: int = 12) -> str:
    """Every kind of cell: ids that look like numbers and nulls, codes, numbers with gaps, text, booleans."""
    nulls = ["", "NA", "?", "null", "\\N", "NaN"]
    lines = ["id,zip,age,town,smokes,sick"]
    for k in range(rows):
        age = nulls[k // 2 % len(nulls)] if k % 4 == 3 else str(20 + k)
        town = "n/a" if k % 6 == 5 else ["Ulm", '"Bonn, West"', "none"][k % 3]
        lines.append(f"{IDS[k % len(IDS)]},0{8000 + k % 3},{age}, {town},{k % 2 == 0},{k % 2}")
    return "\n".join(lines) + "\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "people.csv"
    path.write_text(people())
    return path


def test_a_cell_has_one_meaning(file: Path) -> None:
    table = read_table(file, ids=["id"])
    assert table["id"].tolist() == [i.strip() for i in IDS]  # spaces after a separator are not part of a cell
    assert table["zip"].tolist() == [f"0{8000 + k % 3}" for k in range(12)]
    assert table["age"].tolist()[:3] == [20.0, 21.0, 22.0]
    assert table["age"].isna().tolist() == [k % 4 == 3 for k in range(12)]
    assert table["town"].tolist()[:3] == ["Ulm", "Bonn, West", "none"]
    assert table["town"].isna().tolist() == [k % 6 == 5 for k in range(12)]
    assert table["smokes"].dtype == bool
    assert table["sick"].dtype == np.int64


def test_values_are_a_function_of_the_text(file: Path) -> None:
    """The typed table and the text table hold the same cells: a missing value is one of the null tokens, a
    number is its text read as a number, and text is itself.
    """
    typed, text = read_table(file, ids=["id"]), read_table(file, text=True).astype(object)
    assert list(typed) == list(text)
    for name in typed:
        for value, cell in zip(typed[name], text[name], strict=True):
            if name != "id" and cell in NULLS:
                assert pd.isna(value)
            elif isinstance(value, str | bool | np.bool_):
                assert str(value) == cell
            else:
                assert value == float(cell)


def test_every_null_token_is_missing_in_numbers_and_text_and_kept_as_an_id(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "id,number,word\nkept,1,one\n" + "".join(f'"{n}","{n}","{n}"\n' for n in NULLS)
    )
    table = read_table(tmp_path / "t.csv", ids=["id"])
    assert table["id"].tolist() == ["kept", *NULLS]
    assert table["number"].isna().tolist() == table["word"].isna().tolist() == [False] + [True] * len(NULLS)
    assert read_table(tmp_path / "t.csv", text=True)["word"].tolist() == ["one", *NULLS]
    assert identify(table["id"]).rows.tolist() == [0]  # where ids are compared, these are nobody's


def test_all_verbs_read_the_same_values(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file through train (Python and a party's own file), psi, split's table, synth and anonymize."""
    table = read_table(file, ids=["id"])
    # Python: the data set's raw table
    dataset = data.from_csv(file, label="sick", id="id", test_fraction=0)
    pd.testing.assert_frame_equal(dataset.table.frame, table)
    assert dataset.table.recipe.numbers == ("age", "smokes")
    assert dataset.table.recipe.categories["zip"] == ("08000", "08001", "08002")
    assert dataset.table.recipe.missing == ("age", "town")
    # a party of a split network
    columns = data.from_csv(file, id="id", drop=["sick"])
    assert columns.ids.tolist() == table["id"].tolist()
    # a party's own file in federated training
    layout = {
        "label": "sick",
        "labels": ["0", "1"],
        "numbers": ["age"],
        "categories": {"zip": ["08000", "08001", "08002"], "town": ["Bonn, West", "Ulm", "none"]},
        "missing": ["age", "town"],
        "held_fraction": 0.0,
    }
    mine = read_rows("a", file, layout, seed=0)
    zips = mine.rows.x[:, 4:7].argmax(1).tolist()  # columns are in the order of a contract: age, town, zip
    assert [f"0{8000 + k}" for k in zips] == table["zip"].tolist()
    assert mine.rows.x[:, -2].bool().tolist() == table["age"].isna().tolist()
    # private set intersection: the same ids, and the same ones missing
    ids = read_ids(file, "id")
    assert [table["id"][k] for k in ids.rows] == ["007", "7", "x", "1e3", "a-1", "0", "00", "b"]
    np.testing.assert_array_equal(ids.digests, identify(columns.ids).digests)
    # synth and anonymize, at the command line
    monkeypatch.chdir(tmp_path)
    (tmp_path / "big.csv").write_text(people(120))
    assert main(["synth", "big.csv", "--drop", "id", "--model", "independent", "--out", "made.csv"]) == 0
    made = read_table(tmp_path / "made.csv")
    assert set(made["zip"]) <= {"08000", "08001", "08002"}
    assert set(made["town"].dropna()) <= {"Ulm", "Bonn, West", "none"}
    assert made["age"].dtype == np.float64
    assert made["age"].isna().any()
    ask = ["--quasi", "town", "--drop", "id,age,zip,smokes,sick", "--k", "2", "--out", "anonymous.csv"]
    assert main(["anonymize", "big.csv", *ask]) == 0
    cells = set(read_table(tmp_path / "anonymous.csv", text=True)["town"])
    assert cells <= {"Ulm", "Bonn, West", "none", "n/a", "*"}
    capsys.readouterr()


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_separator_and_byte_order_mark_are_recognized(tmp_path: Path, separator: str, start: str) -> None:
    text = start + 'a;,b\nx,"y, z"\nu,w\n'.replace("a;,", '"a;",').replace(",", separator)
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    assert read_header(tmp_path / "t.csv")[:2] == (("a;", "b"), separator)
    assert read_table(tmp_path / "t.csv")["b"].tolist() == [f"y{separator} z", "w"]


@pytest.mark.parametrize("separator", [",", ";"])
def test_a_name_with_a_line_break_is_read(tmp_path: Path, separator: str) -> None:
    """As spreadsheets write it. It ended in an internal error: KeyError."""
    file = tmp_path / "t.csv"
    rows = [["id", '"income\n(a month)"', 'size 5" pipe'], ["007", "3", "1.5"], ["008", "4", "2.5"]]
    file.write_text("".join(separator.join(row) + "\n" for row in rows))
    assert read_header(file) == (("id", "income\n(a month)", 'size 5" pipe'), separator, False)
    table = read_table(file)
    assert table["income\n(a month)"].tolist() == [3, 4]
    assert table['size 5" pipe'].tolist() == [1.5, 2.5]
    assert pd.concat(read_chunks(file))["id"].tolist() == ["007", "008"]


@pytest.mark.parametrize(
    ("name", "pack"), [("t.csv.gz", gzip.compress), ("t.csv.bz2", bz2.compress), ("t.csv.xz", lzma.compress)]
)
def test_packed_files_are_read_by_their_names(tmp_path: Path, name: str, pack) -> None:
    (tmp_path / name).write_bytes(pack(people().encode()))
    (tmp_path / "t.csv").write_text(people())
    pd.testing.assert_frame_equal(
        read_table(tmp_path / name, ids=["id"]), read_table(tmp_path / "t.csv", ids=["id"])
    )


def test_a_number_is_a_code_only_with_a_leading_zero(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("plain,share,code,gap\n0,0.5,01,007\n10,-0.25,10,\n20,0,2,8\n")
    table = read_table(tmp_path / "t.csv")
    assert table["plain"].tolist() == [0, 10, 20]
    assert table["share"].tolist() == [0.5, -0.25, 0.0]
    assert table["code"].tolist() == ["01", "10", "2"]
    assert table["gap"].isna().tolist() == [False, True, False]
    assert table["gap"].dropna().tolist() == ["007", "8"]


def test_an_integer_with_more_digits_than_a_float_has_is_text(tmp_path: Path) -> None:
    """With a missing cell pandas reads a column as float64, in which 2^53 + 1 is 2^53."""
    long, short = str(2**53 + 1), str(2**53 // 2)
    text = f"long,short,huge,gap\n{long},{short},{10**19 + 1},\n1,2,3,{10**16 + 1}\n,,,{10**16 + 3}\n"
    (tmp_path / "t.csv").write_text(text)
    table = read_table(tmp_path / "t.csv")
    assert table["long"].dropna().tolist() == [long, "1"]
    assert table["short"].dropna().tolist() == [2**53 // 2, 2]
    assert table["huge"].dropna().tolist() == [str(10**19 + 1), "3"]
    assert table["gap"].dropna().tolist() == [str(10**16 + 1), str(10**16 + 3)]


def test_parquet_keeps_its_types_and_nulls_and_ids_are_text(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"id": pd.array([7, None, 2**60 + 1], dtype="Int64"), "zip": ["007", "NA", None], "x": [1.5, None, 2]}
    )
    frame.to_parquet(tmp_path / "t.data")  # the content decides, not the name
    table = read_table(tmp_path / "t.data", ids=["id"])
    assert table["id"][[0, 2]].tolist() == ["7", str(2**60 + 1)]
    assert table["id"].isna().tolist() == [False, True, False]
    assert table["zip"].tolist()[:2] == ["007", "NA"]
    assert table["zip"].isna().tolist() == [False, False, True]
    assert read_ids(tmp_path / "t.data", "id").rows.tolist() == [0, 2]


def test_a_file_is_read_in_parts_as_it_is_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "CHUNK", 5)
    (tmp_path / "t.csv").write_text(people(23))
    whole = pd.concat(read_chunks(tmp_path / "t.csv"))
    assert whole.index.tolist() == list(range(23))
    assert whole.astype(object).equals(read_table(tmp_path / "t.csv", text=True).astype(object))
    parts = [chunk["id"].tolist() for chunk in read_chunks(tmp_path / "t.csv", ["id"])]
    assert list(map(len, parts)) == [5, 5, 5, 5, 3]


def test_a_row_counter_is_dropped_in_every_way_of_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "CHUNK", 3)
    (tmp_path / "r.csv").write_text(
        '"a","b"\n' + "".join(f'"{k}",{k / 2},{k % 3 or ""}\n' for k in range(1, 8))
    )
    assert read_table(tmp_path / "r.csv")["a"].tolist() == [k / 2 for k in range(1, 8)]
    assert read_table(tmp_path / "r.csv", text=True)["a"].tolist() == [str(k / 2) for k in range(1, 8)]
    (tmp_path / "r.csv").write_text("a,b\n9,1,2\n8,3,4\n")
    for ask in ({}, {"text": True}):
        with pytest.raises(BadData, match="more cells in its rows than names"):
            read_table(tmp_path / "r.csv", **ask)


@pytest.mark.parametrize("ask", [{}, {"text": True}], ids=["values", "text"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "t.csv is empty. The first line must name the columns."),
        (b"\n\n", "t.csv is empty"),
        (b"a,b\n", "t.csv has column names and no rows"),
        (b"a,b,a\n1,2,3\n", "two columns are named 'a'"),
        (b"a,b\n1,2\n3\n", r"row 2 \(line 3\) has 1 cells, and the table has 2 columns"),
        (b"a,b\n1,2\n3,4,5\n", "cannot be read as a table"),
        ("a,größe\n1,2\n".encode("latin-1"), "is not UTF-8 text"),
        (b"a,b\n1,2\n3,\xff\n", "is not UTF-8 text"),
        (gzip.compress(b"a,b\n1,2\n", mtime=0), "A packed file must end in .gz, .bz2 or .xz"),
        (b"PK\x03\x04rest", "is a spreadsheet or a zip archive"),
        (b"PAR1 and no more", "cannot be read as Parquet"),
    ],
)
def test_what_is_not_a_table_is_refused_with_its_reason(tmp_path: Path, content, words, ask) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(BadData, match=words):
        read_table(tmp_path / "t.csv", **ask)


def test_missing_files_columns_and_packages_are_named(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MissingFiles, match=r"there is no file .*Did you mean 'people.csv'"):
        read_table(tmp_path / "peple.csv")
    with pytest.raises(MissingFiles, match="is a folder"):
        read_table(tmp_path)
    with pytest.raises(BadData, match="has no column 'idd'"):
        read_table(file, ids=["idd"])
    with pytest.raises(BadData, match="has no column 'idd'"):
        list(read_chunks(file, ["idd"]))
    (tmp_path / "t.parquet").write_text("a,b\n1,2\n")
    with pytest.raises(BadData, match="does not begin with the bytes PAR1"):
        read_table(tmp_path / "t.parquet")
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "t.parquet")
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=r"pip install 'tacit\[data\]'"):
        read_table(tmp_path / "t.parquet")
    with pytest.raises(MissingExtra, match=r"writing Parquet needs the package 'pyarrow'"):
        write_table(pd.DataFrame({"a": [1]}), tmp_path / "u.parquet")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["people.csv", "t.parquet"]


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
def test_what_is_written_is_read_back(tmp_path: Path, name: str) -> None:
    frame = pd.DataFrame({"code": ["007", "10"], "x": [0.1, np.nan], "word": ["a,b", 'c"d']})
    write_table(frame, tmp_path / name)
    pd.testing.assert_frame_equal(read_table(tmp_path / name), frame, check_dtype=False)
    empty = pd.DataFrame({"code": [None], "x": [1.0], "word": ["e"]})
    write_table([empty, frame], tmp_path / name, text_columns=["code", "word"])
    back = read_table(tmp_path / name)
    assert back["code"].tolist()[1:] == ["007", "10"]
    assert len(back) == 3


@pytest.mark.parametrize("name", ["t.xlsx", "t", "t.gz", "t.txt"])
def test_a_table_is_not_written_under_another_ending(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadParameter, match=r"must end in \.csv, \.csv\.gz or \.parquet"):
        write_table(pd.DataFrame({"a": [1]}), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_table_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("old")

    def parts():
        yield pd.DataFrame({"a": [1]})
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_table(parts(), tmp_path / "t.csv")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("t.csv", "old")]
    with pytest.raises(BadParameter, match="cannot be written: No such file or directory"):
        write_table(pd.DataFrame({"a": [1]}), tmp_path / "none" / "t.csv")


def test_numbers_are_read_to_the_last_bit_as_pandas_reads_them(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=1000) * 10.0 ** np.arange(-5, 5).repeat(100)
    pd.DataFrame({"x": values}).to_csv(tmp_path / "t.csv", index=False)
    expected = pd.read_csv(io.StringIO((tmp_path / "t.csv").read_text()))["x"]
    assert read_table(tmp_path / "t.csv")["x"].to_numpy().tobytes() == expected.to_numpy().tobytes()


def test_of_several_encodings_the_first_that_fits_is_used(tmp_path: Path) -> None:
    for encoding in ("utf-8", "utf-8-sig", "cp1252"):
        file = tmp_path / f"{encoding}.csv"
        file.write_bytes("größe,y\n1,ä\n2,b\n".encode(encoding))
        assert read_table(file, encoding="utf-8, cp1252").to_dict("list") == {
            "größe": [1, 2],
            "y": ["ä", "b"],
        }
    with_mark = tmp_path / "utf-8-sig.csv"
    assert list(read_table(with_mark, encoding="utf-8")) == ["größe", "y"]  # the mark is not a letter
    with pytest.raises(BadParameter, match="encoding is 'utf-8, klingon'"):
        read_table(with_mark, encoding="utf-8, klingon")
    with pytest.raises(BadData, match=r"is not utf-8, ascii text"):
        read_table(tmp_path / "cp1252.csv", encoding="utf-8, ascii")


def test_a_party_reads_its_file_with_the_separator_decimal_sign_and_encoding_of_the_job(
    tmp_path: Path,
) -> None:
    """Declared statistics are used as they are: (60,5 − 50) / 10 and (40,5 − 50) / 10."""
    file = tmp_path / "a.csv"
    file.write_bytes("größe;größer\n60,5;ja\n40,5;nein\n".encode("cp1252"))
    layout = {
        "label": "größer",
        "labels": ["nein", "ja"],
        "numbers": ["größe"],
        "mean": [50.0],
        "std": [10.0],
        "separator": ";",
        "decimal": ",",
        "encoding": "cp1252",
        "held_fraction": 0.0,
    }
    mine = read_rows("a", file, layout, seed=0)
    np.testing.assert_allclose(mine.rows.x[:, 0].numpy(), [1.05, -0.95], rtol=1e-6)
    assert mine.rows.y.tolist() == [1, 0]
    with pytest.raises(BadData, match=r"a\.csv is not UTF-8 text.*or give its encoding"):
        read_rows("a", file, {k: v for k, v in layout.items() if k != "encoding"}, seed=0)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {"mean": [1.0, 2.0], "std": [1.0, 1.0]},
            "[data]: mean has 2 values for 1 numbers. Give one for each.",
        ),
        ({"mean": [1.0], "std": [0.0]}, "[data]: std has a value that is not above 0."),
        ({"mean": [1.0]}, "mean is [1.0]; it must be given together with std"),
        ({"separator": "ab"}, "separator is 'ab'; it must be one character"),
        ({"decimal": ";"}, "decimal is ';'; it must be '.' or ','"),
        ({"separator": ",", "decimal": ","}, "decimal is ','; it must be different from the separator"),
        ({"encoding": "klingon"}, "encoding is 'klingon'; it must be the name of an encoding"),
        ({"encoding": "hex"}, "encoding is 'hex'; it must be the name of an encoding"),
    ],
)
def test_a_job_whose_file_format_cannot_be_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(BadJob, match=re.escape(why)):
        read_layout({"label": "y", "numbers": ["x"]} | change)


def test_parts_of_a_file_have_the_decimal_points_that_the_whole_file_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a column has numbers is decided by all of its cells, also by those of later parts."""
    monkeypatch.setattr(table_files, "CHUNK", 2)
    file = tmp_path / "t.csv"
    file.write_text("a;b;c;d\n1,5;1,5;1;NA\n2;2;2;\nNA;x,5;3;1,5\n4,25;4;4;2\n")
    parts = pd.concat(read_chunks(file, decimal=","))
    assert parts.to_dict("list") == {
        "a": ["1.5", "2", "NA", "4.25"],
        "b": ["1,5", "2", "x,5", "4"],
        "c": ["1", "2", "3", "4"],
        "d": ["NA", "", "1.5", "2"],
    }
    assert parts.to_dict("list") == read_table(file, text=True, decimal=",").to_dict("list")
    exact = pd.concat(read_chunks(file))
    assert exact["a"].tolist() == ["1,5", "2", "NA", "4,25"]
    with pytest.raises(BadParameter, match=re.escape("decimal is ';'; it must be '.' or ','")):
        next(read_chunks(file, decimal=";"))


@pytest.mark.parametrize("separator", [",", ";"])
def test_a_cell_with_a_line_break_of_any_system_is_written_so_that_it_is_read_back(
    tmp_path: Path, separator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pandas does not quote a carriage return, which ended the row."""
    monkeypatch.setattr(table_files, "CHUNK", 2)
    frame = pd.DataFrame({"a": ["x", "y\rz", "p\r\nq", 'm\n"n"', None], "b": [1, 2, 3, 4, 5]})
    read = read_table(write_table(frame, tmp_path / "t.csv", separator))
    pd.testing.assert_frame_equal(read, frame, check_dtype=False)
    empty = write_table(frame.iloc[:0], tmp_path / "empty.csv", separator)
    assert empty.read_text() == f"a{separator}b\n"


def test_a_missing_file_is_compared_by_its_name_without_the_ending(tmp_path: Path) -> None:
    """nix.csv and i6.csv share .csv, and are not similar."""
    for name in ("i6.csv", "patients.csv.gz"):
        (tmp_path / name).write_text("a\n1\n", encoding="utf-8")
    with pytest.raises(MissingFiles, match=r"Files in this folder: i6\.csv, patients\.csv\.gz\."):
        read_table(tmp_path / "nix.csv")
    for near in ("patient.csv", "patients.parquet", "Patients.csv"):
        with pytest.raises(MissingFiles, match=r"Did you mean 'patients\.csv\.gz'\?"):
            read_table(tmp_path / near)
