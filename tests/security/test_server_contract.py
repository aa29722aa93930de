"""A malicious server that offers another contract than the agreed one, or none was agreed.

Each test is an attack of the red-team review (with the number of the finding). "without" runs the same attack with one
protection removed, and there it succeeds.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tacit.jobs.train import client_work
from tacit.jobs.train.contract import Contract
from tacit.protocols import buffered, joining, rounds
from tests.security.lying_server import (
    GUARDED,
    JOB,
    SIZES,
    Attacker,
    play,
    refusals,
)


def offered(attacker: Attacker, **changes: Any) -> str:
    """The agreed contract with entries changed: {"train.batch_size": 1}."""
    tables = json.loads(attacker.contract.text)
    for path, value in changes.items():
        *outer, last = path.split("__")
        here = tables
        for key in outer:
            here = here[key]
        here[last] = value
    return Contract(tables).text


@pytest.mark.parametrize(
    "changes",
    [
        {"pace": {"name": "FedBuff", "buffer": 1}},
        {"train__batch_size": 1, "train__local_steps": 1},
        {"train__rounds": 1000},
        {"train__seed": 7},
        {"train__evaluate_every": 0},
        {"guard": []},
        {"parties": ["a", "b"]},
        {"train__local_epochs": 50},
        {"data__held_fraction": 0.9},
        {"losses": True},
        {"train__subgroups": ["age: 30, 31"]},
        {"train__threshold": 0.01},
        {"algorithm__lr": 1e9},
        {"federation": "other"},
    ],
    ids=lambda changes: ", ".join(changes),
)
def test_1_and_8_any_other_contract_than_the_agreed_one_is_refused_before_a_row_is_read(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr(client_work, "read_party_table", lambda *given: read.append("rows"))
    answers: dict[str, Any] = {}

    async def attack(server: Attacker) -> None:
        answers.update(await server.offer(["a"], offered(server, **changes)))

    _, ended = play(attack, tmp_path, GUARDED, through=True)
    assert read == []
    assert answers["a"] == joining.Unfit(
        "it has not agreed to this job"
    )  # a fixed text: no path, no column, no value
    assert "to which this party agreed, in" in refusals(ended)[0]  # the owner is told what differs


def test_1_a_party_that_hides_its_updates_answers_no_order_of_an_asynchronous_run(tmp_path: Path) -> None:
    """The agreed contract is accepted, and the server speaks the protocol of another pace."""

    async def attack(server: Attacker) -> Any:
        await server.offer()
        await server.me.send("a", buffered.Order(0, 0, server.down(0)))
        return await server.me.scope(buffered.SCOPE).recv("a", buffered.Answer)

    gained, ended = play(attack, tmp_path, GUARDED)
    assert gained is None
    assert "got 'Order'" in refusals(ended)[0]


def test_1_a_party_that_hides_its_updates_is_not_asked_for_them_in_the_clear(tmp_path: Path) -> None:
    async def attack(server: Attacker) -> Any:
        await server.offer()
        await server.me.send("a", rounds.Down(0, server.down(0)))
        return await server.me.scope("round 0").recv("a", rounds.Upload)

    gained, ended = play(attack, tmp_path, GUARDED)
    assert gained is None
    assert "the server requests them in the clear" in refusals(ended)[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train__min_rows": 1}, "min_rows = 1; without an agreed job at least 10"),
        (
            {"train__batch_size": 1, "train__local_steps": 1},
            "a batch size of 1; without an agreed job at least 8",
        ),
        ({"train__rounds": 5000}, "has 5000 rounds"),
        (
            {"train__subgroups": ["age: 30, 31"]},
            r"counts by subgroup \(age: 30, 31\); without an agreed job none are sent",
        ),
        (
            # λ of a network is stated; that of a linear model follows from each party's rows
            {"model": {"name": "mlp", "hidden": [30000, 30000]}, "train__l2": 0.003},
            "parameters; without an agreed job at most 50,000,000",
        ),
        (
            {
                "data": {
                    **{"label": "sick", "labels": ["no", "yes"], "numbers": ["age", "chol"]},
                    **{"fit": "party", "time": "day", "test_after": "2016-01-01"},
                }
            },
            "chooses the held-out rows by their time; without an agreed job it may not",
        ),
        (
            {
                "data": {
                    **{"label": "sick", "labels": ["no", "yes"], "numbers": ["age", "chol"]},
                    **{"fit": "party", "group": "hiv"},
                }
            },
            "chooses the held-out rows by the column 'hiv'; without an agreed job it may not",
        ),
        ({"parties": ["a", "evil"]}, "names another parties than this party's kit"),
        (
            {"pace": {"name": "FedBuff", "buffer": 2, "staleness": {"name": "Polynomial", "a": 0.5}}},
            "cannot be combined with FedBuff",
        ),
        ({"train__surprise": 1}, "cannot be used|not in canonical form"),
    ],
)
def test_8_and_14_without_an_agreed_job_default_limits_apply(
    changes: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr(client_work, "read_party_table", lambda *given: read.append("rows"))
    answers: dict[str, Any] = {}

    async def attack(server: Attacker) -> None:
        answers.update(await server.offer(["a"], offered(server, **changes)))

    _, ended = play(attack, tmp_path, GUARDED, agreed=None, through=True)
    assert read == []
    assert re.search(words, refusals(ended)[0]), refusals(ended)
    assert answers["a"].reason in ("it has not agreed to this job", "it declined; its own log says why")


def test_14_a_refusal_tells_the_server_nothing_local(tmp_path: Path) -> None:
    """Columns and labels that the file does not have: without an agreed job the server gets the same fixed text."""
    answers: dict[str, Any] = {}

    async def attack(server: Attacker) -> None:
        tables = json.loads(server.contract.text)
        tables["data"]["numbers"] = ["age", "weight"]
        answers.update(await server.offer(["a"], Contract(tables).text))

    _, ended = play(attack, tmp_path, JOB, agreed=None, through=True)
    assert "weight" in refusals(ended)[0]
    assert answers["a"].reason == "it declined; its own log says why"


def test_hidden_sums_stay_hidden_for_a_party_that_gave_no_job(tmp_path: Path) -> None:
    async def accept(server: Attacker) -> Any:
        answers = await server.offer(["a"])
        return answers["a"]

    first, _ = play(accept, tmp_path / "one", GUARDED, agreed=None, state=tmp_path)
    assert isinstance(first, joining.Ready)
    second, ended = play(accept, tmp_path / "two", JOB, agreed=None, state=tmp_path, through=True)
    assert second is None or isinstance(second, joining.Unfit)
    assert (
        "asks for single updates in the clear, and this party has taken part in hidden sums before"
        in refusals(ended)[0]
    )
    (shown,) = (tmp_path / "state-a").glob("contract-*.json")
    assert (
        json.loads(shown.read_text())["guard"][-1]["name"] == "SecAgg"
    )  # what was accepted is there for its owner


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data__held_fraction": 0.99}, "would train on 1 rows; without an agreed job at least 8"),
        ({"train__local_epochs": 1000}, "has 1000 local epochs"),
        (
            {"classes": 20000, "data__labels": [f"l{k}" for k in range(20000)]},
            "has 20000 classes; without an agreed job at most 1000",
        ),
    ],
)
def test_without_an_agreed_job_few_rows_and_large_jobs_are_refused(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    answers: dict[str, Any] = {}

    async def attack(server: Attacker) -> None:
        answers.update(await server.offer(["a"], offered(server, **changes)))

    _, ended = play(attack, tmp_path, JOB, agreed=None, through=True)
    assert words in refusals(ended)[0]
    assert isinstance(answers["a"], joining.Unfit)


def test_without_an_agreed_job_a_server_does_not_get_new_contracts_without_end(tmp_path: Path) -> None:
    """Every seed is another contract, with another record and another account."""

    def attack(seed: int) -> Any:
        async def offer(server: Attacker) -> Any:
            return (await server.offer(["a"], offered(server, train__seed=seed)))["a"]

        return offer

    answers = [
        play(attack(seed), tmp_path / str(seed), JOB, agreed=None, state=tmp_path, through=seed == 3)[0]
        for seed in range(4)
    ]
    assert [type(answer) for answer in answers] == [joining.Ready] * 3 + [joining.Unfit]


def test_a_party_answers_a_job_on_one_file(tmp_path: Path) -> None:
    """Two updates on the same model, from files that differ by some rows, would show those rows."""

    async def attack(server: Attacker) -> Any:
        answers = await server.offer(["a"])
        if isinstance(answers["a"], joining.Unfit):
            return answers["a"].reason
        await server.me.send("a", rounds.Down(0, server.down(0)))
        return await server.me.scope("round 0").recv("a", rounds.Upload)

    assert isinstance(play(attack, tmp_path / "one", JOB, state=tmp_path)[0], rounds.Upload)
    assert isinstance(
        play(attack, tmp_path / "two", JOB, state=tmp_path)[0], rounds.Upload
    )  # the same file, the same model: the same answer
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SIZES, "a", 39)
        gained, ended = play(attack, tmp_path / "three", JOB, state=tmp_path, through=True)
    assert gained == "it declined; its own log says why"
    assert "is not the file that 'a' answered this job with before" in refusals(ended)[0]


def test_a_party_answers_a_job_on_one_reading_of_its_file(tmp_path: Path) -> None:
    """The same bytes with another decimal sign or encoding may be other rows: answers on both would differ by them."""

    async def attack(server: Attacker) -> Any:
        answers = await server.offer(["a"])
        if isinstance(answers["a"], joining.Unfit):
            return answers["a"].reason
        await server.me.send("a", rounds.Down(0, server.down(0)))
        return await server.me.scope("round 0").recv("a", rounds.Upload)

    german = {"encoding": "cp1252"}
    for name in ("one", "again"):
        gained, _ = play(attack, tmp_path / name, JOB, state=tmp_path, reading=german)
        assert isinstance(gained, rounds.Upload)
    for reading in (None, {"encoding": "latin-1"}):
        gained, ended = play(attack, tmp_path / "other", JOB, state=tmp_path, through=True, reading=reading)
        assert gained == "it declined; its own log says why"
        assert "or it is read by other options (separator, decimal, encoding)" in refusals(ended)[0]


def test_a_party_reads_its_file_by_its_own_options_whatever_the_server_offers(tmp_path: Path) -> None:
    """What [data] of an offer says about files is for parties that give no options: it is agreed, or refused."""

    async def attack(server: Attacker) -> Any:
        return (await server.offer(["a"], offered(server, data__encoding="utf-16")))["a"]

    for agreed, gain in (("same", joining.Unfit), (None, joining.Ready)):
        gained, _ = play(
            attack,
            tmp_path / str(agreed),
            JOB,
            agreed=agreed,
            through=agreed is not None,
            reading={"encoding": "utf-8"},
        )
        assert isinstance(gained, gain)
