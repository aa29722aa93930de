"""Declared spellings and left-out rows in jobs of statistics: they are no way around what an owner allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tacit.errors import BadData, QueryRefused
from tacit.jobs.stats.answers import AnswerFile
from tacit.jobs.stats.contract import SumContract
from tacit.jobs.stats.policy import StatsPolicy, admit
from tacit.jobs.stats.queries import Query, read_allowed, read_query

NAMES = ("a", "b", "c")


def write_people(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    people = pd.DataFrame(
        {
            "id": [f"p{k}" for k in range(60)],
            "age": rng.integers(20, 90, 60),
            "arm": rng.choice(["x", "y"], 60),
        }
    )
    people.to_csv(folder / "a.csv", index=False)
    return folder / "a.csv"


def query_of(folder: Path, declared: str) -> Query:
    (folder / "job.toml").write_text(f'[stats]\nnumbers = ["age"]\n[data]\n{declared}\n')
    return read_query("describe", folder / "job.toml")


def ask(folder: Path, file: Path, declared: str, columns: tuple[str, ...] = ()) -> Any:
    """What a party does with a query before its first answer."""
    query = query_of(folder, declared)
    program = query.verb.program(query.options, NAMES)
    contract = SumContract.of(program, list(NAMES), data=query.agreed_data())
    table = read_allowed(file, query.data, program, columns)
    admit(StatsPolicy(), contract, program, table, AnswerFile(folder, "a", contract.digest), folder)
    return table


@pytest.mark.parametrize(
    "declared",
    [
        'drop_rows = { id = ["p17"] }',
        # every row has another text
        'drop_rows = { id = ["p17"] }\nspellings = { arm = { x = "u", y = "v" } }',
    ],
)
def test_a_query_without_one_person_after_a_query_with_them_is_refused(declared: str, tmp_path: Path) -> None:
    file = write_people(tmp_path)
    assert len(ask(tmp_path, file, "")) == 60
    with pytest.raises(QueryRefused, match="differ from those of an earlier one by 1 people"):
        ask(tmp_path, file, declared)


def test_rows_are_not_chosen_by_a_column_that_the_owner_does_not_allow(tmp_path: Path) -> None:
    file = write_people(tmp_path)
    assert list(ask(tmp_path, file, 'drop_rows = { arm = ["x"] }', ("age", "arm"))) == ["age", "arm"]
    with pytest.raises(BadData, match=r"policy does not allow the column 'arm' of drop_rows"):
        ask(tmp_path, file, 'drop_rows = { arm = ["x"] }', ("age",))


def test_the_contract_states_what_is_declared(tmp_path: Path) -> None:
    """A coordinator that adds a row to leave out asks another query than the one that was agreed on."""
    plain, more = query_of(tmp_path, ""), query_of(tmp_path, 'drop_rows = { id = ["p17"] }')
    assert {"spellings", "drop_rows"}.isdisjoint(plain.agreed_data())
    program = plain.verb.program(plain.options, NAMES)
    contracts = [SumContract.of(program, list(NAMES), data=q.agreed_data()) for q in (plain, more)]
    assert contracts[0].digest != contracts[1].digest
