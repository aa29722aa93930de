"""A malicious server against a preparation with fit_epsilon: it wants a second draw, or less noise.

Each party adds noise that suffices alone, charges its own account before its answer leaves, and answers once.
"""

from __future__ import annotations

import asyncio
import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tacit.accounting.account_file import AccountFile
from tacit.accounting.mixture import mixed_epsilon
from tacit.data.private_preparation import PrivatePreparation
from tacit.errors import BudgetSpent, ProtocolError
from tacit.jobs.train import preparing
from tacit.jobs.train.contract import Contract
from tacit.jobs.train.party_rows import read_layout
from tacit.jobs.train.preparation_account import PaidAnswers
from tacit.protocols import joining
from tests.security.lying_server import CLIENTS, JOB, Attacker, play, refusals
from tests.security.test_preparation_attacks import ask_step

NOISY = JOB.replace(
    'fit = "party"\n', "fit_epsilon = 2.0\nfit_delta = 1e-6\nbounds = { age = [0, 120], chol = [50, 400] }\n"
)


def charges(folder: Path, name: str = "a") -> list[Any]:
    """The lines of a party's own account about preparations."""
    file = AccountFile(folder / f"state-{name}" / "spent.jsonl")
    if not file.path.exists():
        return []
    file.refresh()
    return [line for line in file.lines if str(line.key).endswith(" preparation")]


def test_a_repeated_question_gets_the_same_noise_and_is_charged_once(tmp_path: Path) -> None:
    """Also when all parties were restarted in between. The mean of many draws would have no noise."""
    totals: list[torch.Tensor] = []

    async def attack(server: Attacker) -> None:
        await server.offer(run=f"run {len(totals)}")
        for _ in range(2):
            totals.append(await ask_step(server, CLIENTS, within=None))

    for _ in range(2):
        play(attack, tmp_path, NOISY)
    assert len(totals) == 4
    assert all(torch.equal(totals[0], other) for other in totals)
    for name in CLIENTS:
        (line,) = charges(tmp_path, name)
        assert line.times == 1
        assert mixed_epsilon([(line.release, 1)], 1e-6) == pytest.approx(2.0, rel=1e-6)


def test_nothing_that_is_sent_changes_the_sum(tmp_path: Path) -> None:
    async def attack(server: Attacker) -> Any:
        await server.offer()
        return await ask_step(server, CLIENTS, 0, {"multiplier": torch.zeros(1)}, within=None)

    gained, ended = play(attack, tmp_path, NOISY)
    assert gained is None
    assert any("a noisy sum depends on nothing that is sent" in text for text in refusals(ended))
    assert charges(tmp_path) == []


@pytest.mark.parametrize(
    ("step", "vectors", "why"),
    [
        (0, {"multiplier": torch.zeros(1)}, "again with other vectors than before. A step is answered once"),
        (1, {}, "the agreed program has 1 steps"),
    ],
    ids=["other vectors", "second step"],
)
def test_there_is_one_question(step: int, vectors: dict[str, Any], why: str, tmp_path: Path) -> None:
    async def attack(server: Attacker) -> Any:
        await server.offer()
        await ask_step(server, CLIENTS, within=None)
        return await ask_step(server, CLIENTS, step, vectors, within=None)

    gained, ended = play(attack, tmp_path, NOISY)
    assert gained is None
    assert any(why in text for text in refusals(ended)), refusals(ended)
    assert len(charges(tmp_path)) == 1


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"data__fit_epsilon": 200.0}, "data.fit_epsilon (agreed: 2.0, offered: 200.0)"),
        ({"data__fit_delta": 0.5}, "data.fit_delta (agreed: 1e-06, offered: 0.5)"),
        ({"data__bounds": {"age": [0, 1], "chol": [50, 400]}}, "data.bounds (agreed: "),
        ({"preparation__epsilon": 200.0}, "preparation.epsilon (agreed: 2.0, offered: 200.0)"),
        ({"data__group": "chol"}, "data.group (agreed: null"),
        ({"data__min_rows": 1}, "data.min_rows (agreed: null, offered: 1)"),
        ({"data__test_after": "2016-01-01"}, "data.test_after (agreed: null"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_contract_with_less_noise_or_other_bounds_is_refused(
    change: dict[str, Any], what: str, tmp_path: Path
) -> None:
    async def attack(server: Attacker) -> Any:
        tables = json.loads(server.contract.text)
        for path, value in change.items():
            outer, last = path.split("__")
            tables[outer][last] = value
        await server.offer(["a"], Contract(tables).text)
        await asyncio.Event().wait()  # until the party has raised

    _, ended = play(attack, tmp_path, NOISY)
    assert what in str(ended["a"])
    assert not (tmp_path / "state-a" / "spent.jsonl").exists()


def fitted(**changes: Any) -> str:
    """An honest result, with changes."""
    agreed = read_layout(tomllib.loads(NOISY)["data"]).pipeline
    recipe = replace(
        agreed.recipe,
        **{"mean": (50.0, 200.0), "std": (10.0, 30.0), "fill": (50.0, 200.0)},
        limits={"age": (0.0, 120.0), "chol": (50.0, 400.0)},
    )
    values = json.loads(preparing.to_text(replace(agreed, recipe=recipe)))
    values["recipe"] |= changes
    return json.dumps(values, sort_keys=True, separators=(",", ":"))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"limits": {"age": [0.0, 1.0], "chol": [50.0, 400.0]}}, "not clipped at the agreed bounds"),
        ({"limits": {}}, "not clipped at the agreed bounds"),
        ({"mean": [500.0, 200.0]}, "the mean of 'age' is not within its agreed bounds"),
        ({"std": [0.0, 30.0]}, "is not above 0"),
    ],
    ids=["other bounds", "no bounds", "mean", "deviation"],
)
def test_a_result_that_no_sum_can_give_is_refused(changes: dict[str, Any], why: str) -> None:
    agreed = read_layout(tomllib.loads(NOISY)["data"])
    check = agreed.pipeline, agreed.private_preparation(4)
    assert preparing.check_result(fitted(), *check).recipe.mean == (50.0, 200.0)
    with pytest.raises(ProtocolError, match=why):
        preparing.check_result(fitted(**changes), *check)


def test_a_party_checks_the_result_before_it_uses_it(tmp_path: Path) -> None:
    async def attack(server: Attacker) -> Any:
        await server.offer(["a"])
        await server.door.send("a", joining.Work(server.contract.text, "run", fitted(limits={})))
        await asyncio.Event().wait()  # until the party refuses

    _, ended = play(attack, tmp_path, NOISY)
    assert "not clipped at the agreed bounds" in str(ended["a"])


# killed at any point -----------------------------------------------------------------------------------------


def answers(folder: Path, contract: str = "contract") -> PaidAnswers:
    agreed = read_layout(tomllib.loads(NOISY)["data"])
    return PaidAnswers(folder, "a", contract, agreed.private_preparation(4))


VECTOR = np.arange(3)


class KilledError(Exception):
    pass


@pytest.mark.parametrize("at", ["spend", "keep"], ids=["before the charge", "after the charge"])
def test_a_party_that_was_killed_pays_once_and_answers(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any, **__: Any) -> None:
        raise KilledError

    target = "tacit.accounting.Account.spend" if at == "spend" else "tacit.jobs.stats.answers.write_atomic"
    with monkeypatch.context() as patch:
        patch.setattr(target, die)
        with pytest.raises(KilledError):
            answers(tmp_path).keep(0, b"s", VECTOR)
    again = answers(tmp_path)
    assert again.find(0) is None
    again.keep(0, b"s", VECTOR)
    sent, kept = answers(tmp_path).find(0) or (b"", None)
    assert sent == b"s"
    assert np.array_equal(kept, VECTOR)
    file = AccountFile(tmp_path / "spent.jsonl")
    file.refresh()
    assert [line.times for line in file.lines] == [1]


def test_an_answer_that_was_lost_is_not_drawn_again(tmp_path: Path) -> None:
    """Whoever removes a party's file of answers does not get a second draw."""
    first = answers(tmp_path)
    first.keep(0, b"s", VECTOR)
    first.file.unlink()
    for _ in range(2):
        with pytest.raises(BudgetSpent, match="another answer would be a second release"):
            answers(tmp_path).keep(0, b"s", VECTOR)
    answers(tmp_path, "another agreement").keep(0, b"s", VECTOR)  # charged beside the first
    file = AccountFile(tmp_path / "spent.jsonl")
    file.refresh()
    release = [(line.release, line.times) for line in file.lines]
    assert mixed_epsilon(release, 1e-6) > 2.0


def test_the_program_is_the_agreed_one() -> None:
    found = answers(Path("nowhere")).program
    assert isinstance(found, PrivatePreparation)
    assert (found.epsilon, found.delta, found.parties) == (2.0, 1e-6, 4)
