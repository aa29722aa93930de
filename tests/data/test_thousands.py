"""With a decimal comma 1.157 is 1157 to its writer, and 1.157 to a parser: it is refused, not guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tacit import data
from tacit.data.table_files import read_table
from tacit.data.thousands import find_thousands
from tacit.errors import BadData
from tacit.jobs.train.party_rows import read_party_table


def write(folder: Path, cells: list[str], name: str = "cost") -> Path:
    file = folder / "t.csv"
    lines = [f"{c};{k},5;{'yes' if k % 2 else 'no'}" for k, c in enumerate(cells)]
    file.write_text("\n".join([f"{name};x;y", *lines]) + "\n", encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("cells", "row", "advice"),
    [
        (["981", "1.157", "2.300"], 2, "Write 1157 (or 1157,0) if the point separates thousands, and 1,157"),
        (["-12.500", "3,5", ""], 1, "Write -12500 (or -12500,0)"),
        (["1", "2", "1.234.567"], 3, "Write 1234567 (or 1234567,0) if the point separates thousands. If"),
        (["1.157,25", "2,5", "3,5"], 1, "Write 1157,25 if the point separates thousands. If"),
        (["unknown", "1.157", "NA", "5"], 2, "Write 1157"),
    ],
)
def test_thousands_are_refused_with_the_place_and_what_to_do(
    tmp_path: Path, cells: list[str], row: int, advice: str
) -> None:
    file = write(tmp_path, cells)
    with pytest.raises(BadData) as error:
        read_table(file, decimal=",")
    word = cells[row - 1]
    assert f"{file}, column 'cost': {word!r} in row {row} (line {row + 1} of a CSV file)" in str(error.value)
    assert advice in str(error.value)


@pytest.mark.parametrize(
    "cells",
    [
        ["21.03.2015", "1.4.2016"],  # dates
        ["0.123", "0.5"],  # no thousands have a leading zero
        ["10.0.0.1", "10.0.0.2"],
        ["see 1.157", "1.157", "text", "more"],  # free text
        ["1157", "2300,5"],
    ],
)
def test_other_points_are_read_as_before(tmp_path: Path, cells: list[str]) -> None:
    assert len(read_table(write(tmp_path, cells), decimal=",")) == len(cells)


def test_ids_and_declared_columns_are_not_numbers(tmp_path: Path) -> None:
    file = write(tmp_path, ["1.234", "1.235"])
    for exempt in ({"ids": ["cost"]}, {"text_columns": ["cost"]}, {"declared": {"cost": ["1.234"]}}):
        options: dict[str, Any] = exempt
        assert read_table(file, decimal=",", **options)["cost"].tolist() == ["1.234", "1.235"]


def test_without_a_decimal_comma_points_are_decimal(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("a;b\n1.157;x\n2.5;y\n", encoding="utf-8")
    assert read_table(file)["a"].tolist() == [1.157, 2.5]


def test_categories_and_dropped_columns_of_a_training_table_may_have_points(tmp_path: Path) -> None:
    file = write(tmp_path, ["1.100", "1.200"] * 10)
    with pytest.raises(BadData, match=r"'1\.100' in row 1 "):
        data.from_csv(file, "y", decimal=",")
    dropped = data.from_csv(file, "y", decimal=",", drop=["cost"])
    declared = data.from_csv(file, "y", decimal=",", categories=["cost"])
    assert declared.table is not None
    assert dropped.table is not None
    assert declared.table.recipe.categories == {"cost": ("1.100", "1.200")}
    assert dropped.table.recipe.inputs == ("x",)


def test_a_party_checks_only_the_numbers_of_its_job(tmp_path: Path) -> None:
    file = write(tmp_path, ["1.157", "2.300"] * 10)
    layout = {"label": "y", "labels": ["no", "yes"], "decimal": ","}
    with pytest.raises(BadData, match=r"column 'cost': '1\.157' in row 1 ") as error:
        read_party_table("a", file, {**layout, "numbers": ["x", "cost"]}, 0)
    assert "1.157" not in str(error.value.outside)  # what the other parties are told
    assert read_party_table("a", file, {**layout, "numbers": ["x"]}, 0)


def test_empty_cells_do_not_count_and_typed_columns_are_not_searched() -> None:
    assert find_thousands(pd.Series(["", "NA", "1.157", "", "x", "3"])) == (2, "1.157")
    assert find_thousands(pd.Series(["a", "b", "1.157"])) is None
    assert find_thousands(pd.Series(["a", "b", "1.157"]), least=0) == (2, "1.157")
    assert find_thousands(pd.Series(["1.157", None, "2"], dtype="category")) == (0, "1.157")
    assert find_thousands(pd.Series([1.157, 2.0])) is None
