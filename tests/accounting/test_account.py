"""What a run has spent is never forgotten, and never exceeded."""

from __future__ import annotations

import json

import pytest

from tacit.accounting import Account, Release
from tacit.errors import BadRun

RELEASE = Release(2.0)


def test_an_account_stops_before_the_round_that_would_exceed_its_budget():
    account = Account(RELEASE, 1e-5, budget=4.0, rounds=100)
    while account.may_spend():
        account.spend(account.spent + 1)
    assert account.epsilon() <= 4.0 < account.epsilon(account.spent + 1)


def test_what_was_spent_is_on_disk_before_the_round_and_read_back(tmp_path):
    file = tmp_path / "spent.jsonl"
    first = Account(RELEASE, 1e-5, budget=4.0, rounds=10, file=file)
    first.spend(1)
    first.spend(2)
    assert [json.loads(line)["round"] for line in file.read_text().splitlines()] == [1, 2]
    again = Account(RELEASE, 1e-5, budget=4.0, rounds=10, file=file)
    assert again.spent == 2
    assert again.epsilon() == first.epsilon() > 0
    again.spend(2)  # the round that was lost is made again: another release of it
    assert again.spent == 3


def test_a_line_cut_short_by_a_crash_counts_as_spent_and_a_damaged_file_is_refused(tmp_path):
    file = tmp_path / "spent.jsonl"
    Account(RELEASE, 1e-5, file=file).spend(1)
    with open(file, "a") as out:
        out.write('{"round": 2, "beg')
    again = Account(RELEASE, 1e-5, file=file)
    assert again.spent == 2
    again.spend(2)  # the run goes on, and is stopped and resumed once more, twice: no round begun is lost
    third = Account(RELEASE, 1e-5, file=file)
    assert third.spent == 3
    third.spend(3)
    assert Account(RELEASE, 1e-5, file=file).spent == 4
    file.write_text("nonsense\n" + file.read_text())
    with pytest.raises(
        BadRun,
        match=r"spent.jsonl cannot be read: .* It records the privacy that was spent, and the run cannot "
        r"continue without it\.",
    ):
        Account(RELEASE, 1e-5, file=file)
