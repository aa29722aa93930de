"""A malicious server that uses `drop_rows` and `spellings` of [data] to single people out.

Rows that are left out by a value of the server's choice tell by their number, and by the difference of two
updates, who has it. A value that is read as another one does the same.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tacit.errors import BadJob
from tacit.jobs.train import client_work
from tacit.jobs.train.contract import Contract, Limits
from tacit.jobs.train.contract_request import request_of
from tacit.jobs.train.party_rows import read_layout
from tests.security.lying_server import JOB, SIZES, WITHOUT, Attacker, play, refusals
from tests.security.test_owner_policy import attack as against_policy
from tests.security.test_server_contract import offered

SICK = {"label": "sick", "labels": ["no", "yes"], "numbers": ["age", "chol"], "fit": "party"}
FIXED = "it declined; its own log says why"
DROPS = JOB.replace('fit = "party"\n', 'fit = "party"\ndrop_rows = {{ {} = [37] }}\n')


@WITHOUT
def test_a_server_does_not_count_the_rows_of_a_value_of_its_choice(
    protected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for training without whoever is 50 or older, and a party says how many rows are left."""
    if not protected:
        monkeypatch.setattr(Limits, "check_contract", lambda *given: None)
    answers: dict[str, Any] = {}

    async def attack(server: Attacker) -> None:
        ages = pd.read_csv(tmp_path / "a.csv")["age"]
        chosen = sorted(float(age) for age in ages if age >= 50)
        answers.update(await server.offer(["a"], offered(server, data__drop_rows={"age": chosen})))

    _, ended = play(attack, tmp_path, JOB, agreed=None, through=protected)
    young = int((pd.read_csv(tmp_path / "a.csv")["age"] < 50).sum())
    if protected:
        assert "leaves out rows by their values, in the column 'age' (drop_rows)" in refusals(ended)[0]
        assert answers["a"].reason == FIXED
    else:
        assert answers["a"].rows + answers["a"].held == young < SIZES["a"]


@pytest.mark.parametrize(
    ("agreed", "words"),
    [
        ("same", r"data.{} \(agreed: null, offered: "),
        (None, r"in the column '(age|sick)' \({}\); without an agreed job"),
    ],
    ids=["agreed", "not agreed"],
)
@pytest.mark.parametrize(
    "change",
    [{"drop_rows": {"age": [50]}}, {"spellings": {"sick": {"very": "yes"}}}],
    ids=lambda c: next(iter(c)),
)
def test_neither_key_is_added_to_a_job_before_a_row_is_read(
    change: dict[str, Any],
    agreed: str | None,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []
    monkeypatch.setattr(client_work, "read_party_table", lambda *given: read.append("rows"))
    answers: dict[str, Any] = {}

    async def attack(server: Attacker) -> None:
        answers.update(await server.offer(["a"], offered(server, data=SICK | change)))

    _, ended = play(attack, tmp_path, JOB.replace("held_fraction = 0.4\n", ""), agreed, through=True)
    assert read == []
    (key,) = change
    assert re.search(words.format(key), refusals(ended)[0]), refusals(ended)
    assert answers["a"].reason == (FIXED if agreed is None else "it has not agreed to this job")


def test_the_column_that_says_which_rows_are_left_out_is_one_that_the_owner_must_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`columns` of policy.toml: before, a job could leave out rows by any column of the file."""
    monkeypatch.setattr(client_work, "read_party_table", lambda *given: pytest.fail("rows were read"))

    async def program(server: Attacker) -> Any:
        return await server.offer(["a"])

    policy = '[jobs]\ncolumns = ["age", "chol", "sick"]\n'
    gained, ended, _ = against_policy(tmp_path, DROPS.format("hiv"), policy, program)
    assert "it reads 'hiv', which is not allowed (columns)" in str(ended)
    assert gained["a"].reason == "it has not agreed to this job"


def test_an_owner_is_told_of_rows_that_are_left_out_and_of_values_read_as_others(tmp_path: Path) -> None:
    found: dict[str, Any] = {}

    async def attack(server: Attacker) -> None:
        request = request_of(Contract.read(server.contract.text), server.plan, None)
        found.update(columns=request.columns, about=request.about)

    job = DROPS.format("hiv").replace("[model]", 'spellings.sick.ill = "yes"\n[model]')
    play(attack, tmp_path, job)
    assert found["columns"] == ("age", "chol", "hiv", "sick")
    assert "; rows are left out by values of 'hiv'; values are read as others in 'sick'" in found["about"]


def test_a_number_is_no_spelling_of_another_one() -> None:
    """Otherwise a job could read the cholesterol of whoever is 57 years old a million times as large."""
    with pytest.raises(
        BadJob, match=r"spellings of 'age': '57' is a number already, and the column is one of"
    ):
        read_layout(SICK | {"spellings": {"age": {"57": "57000000"}}})
    assert read_layout(SICK | {"spellings": {"age": {"<20": "20"}}}).recipe.spellings == {
        "age": {"<20": "20"}
    }
