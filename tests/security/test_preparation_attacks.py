"""A malicious server against the federated preparation of parties' tables.

The adversary has the server's kit. It wants a sum over fewer parties than all, a second sum of a step, another
recipe, or parties that encode their rows by different statistics.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tacit.data.pipeline import Pipeline
from tacit.jobs.train import preparing
from tacit.protocols import joining, rounds, secagg, sum_program
from tests.security.lying_server import CLIENTS, JOB, SECAGG, Attacker, play, refusals

PREPARED = JOB.replace('fit = "party"\n', "")
HIDDEN = PREPARED + SECAGG


def program(server: Attacker) -> Any:
    found = preparing.program_of(server.plan, server.contract.tables["data"])
    assert found is not None
    return found


def statistics(server: Attacker, mean: float = 50.0) -> str:
    """A result of the agreed recipe that no sum gave."""
    agreed: Pipeline = program(server).pipeline
    fitted = replace(agreed.recipe, mean=(mean, 200.0), std=(10.0, 30.0), fill=(mean, 200.0))
    return preparing.to_text(replace(agreed, recipe=fitted))


async def ask_step(
    server: Attacker, names: tuple[str, ...], step: int = 0, vectors: Any = None, parties: int | None = None
) -> torch.Tensor:
    """One sum of a step among `names`; the parties believe what they agreed to."""
    vectors = vectors or {}
    rules = preparing.rules_of(server.contract.digest, CLIENTS)
    terms = rules.terms(
        program(server).length(step, vectors),
        program(server).bound,
        sum_program.digest_of_step(step, vectors),
    )
    if parties is not None:
        terms = replace(terms, parties=parties)
    me = server.me.scope(preparing.SCOPE)
    message = sum_program.SumStep(step, os.urandom(8), vectors)
    with me.scope(sum_program._tag(message)) as scope:
        await me.send(list(names), message)
        return (await secagg.server(scope, list(names), terms, 5.0, 5.0)).total


def test_an_honest_sum_is_opened(tmp_path: Path) -> None:
    """The control of the attacks below."""

    async def attack(server: Attacker) -> Any:
        await server.offer()
        return await ask_step(server, CLIENTS)

    total, _ = play(attack, tmp_path, PREPARED)
    assert int(total[0]) == 24 + 15 + 7 + 18  # the training rows of all


def test_a_step_with_fewer_participants_is_not_answered(tmp_path: Path) -> None:
    """First with everyone, then without c: the difference would be c's own sums."""
    opened: list[torch.Tensor] = []

    async def attack(server: Attacker) -> Any:
        await server.offer()
        opened.append(await ask_step(server, CLIENTS))
        opened.append(await ask_step(server, ("a", "b", "d"), parties=3))

    gained, ended = play(attack, tmp_path, PREPARED)
    assert gained is None
    assert len(opened) == 1
    assert refusals(ended)


def test_a_step_is_answered_once_with_one_request(tmp_path: Path) -> None:
    """The second time with another mean: Σ(x − m)² for two m gives the sum, and more the values."""
    opened: list[int] = []

    async def attack(server: Attacker) -> Any:
        await server.offer()
        await ask_step(server, CLIENTS)
        for mean in (50.0, 51.0):
            cells = torch.zeros(len(program(server).inner.probes), dtype=torch.int64)
            down = {"mean": torch.tensor([mean, 200.0], dtype=torch.float64), "cells": cells}
            await ask_step(server, CLIENTS, 1, down)
            opened.append(1)

    gained, ended = play(attack, tmp_path, PREPARED)
    assert gained is None
    assert opened == [1]
    assert any("again with other vectors than before. A step is answered once" in t for t in refusals(ended))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"mean": [float("1e300"), 0.0], "std": [0.0, 1.0]}, "is not above 0"),
        ({"mean": [50.0]}, "cannot be used"),
        (
            {"numbers": ["age"], "mean": [50.0], "std": [1.0], "fill": [50.0]},
            "another recipe than the agreed",
        ),
        ({"limits": {"age": [5.0, 1.0]}}, "limits has another type or form"),
        ({"limits": [1.0, 5.0]}, "limits has another type or form"),
        ({"mean": [10**400, 0.0]}, "cannot be used"),
        ({"limits": {"sick": [1.0, 5.0]}}, "the limits of 'sick'"),
        ({"knots": {"age": [1.0, 2.0]}}, "knots has another type or form"),
        ({"fill": None}, "fill is not a list of 2 finite numbers"),
        ({"winsorize": "none"}, "another recipe than the agreed"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_statistics_that_are_not_of_the_agreed_recipe_are_refused(
    change: dict[str, Any], why: str, tmp_path: Path
) -> None:
    async def attack(server: Attacker) -> Any:
        values = json.loads(statistics(server))
        values["recipe"] |= change
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
        await server.offer(["a"])
        await server.door.send("a", joining.Work(server.contract.text, "run", text))
        await asyncio.Event().wait()  # until the party refuses

    gained, ended = play(attack, tmp_path, PREPARED)
    assert gained is None
    assert why in str(ended["a"])


def test_statistics_in_a_job_without_a_preparation_are_refused(tmp_path: Path) -> None:
    async def attack(server: Attacker) -> Any:
        await server.offer(["a"])
        await server.door.send("a", joining.Work(server.contract.text, "run", "{}"))
        await asyncio.Event().wait()  # until the party refuses

    gained, ended = play(attack, tmp_path, JOB)
    assert gained is None
    assert "statistics, and the agreed job has no preparation" in str(ended["a"])


@pytest.mark.parametrize("lie", ["another run", "another shape", "unknown vector"])
def test_a_final_model_that_is_not_of_this_run_is_not_written(lie: str, tmp_path: Path) -> None:
    async def attack(server: Attacker) -> Any:
        await server.offer(["a"])
        w = server.task.initial()["w"]
        final = {
            "another run": joining.Final("other", {"w": w}, {}),
            "another shape": joining.Final("run", {"w": w[:-1]}, {}),
            "unknown vector": joining.Final("run", {"w": w, "code": w}, {}),
        }[lie]
        await server.me.scope(joining.FINAL).send("a", final)
        await server.me.send("a", rounds.Stop())
        await asyncio.Event().wait()  # until the party refuses

    _, ended = play(attack, tmp_path, JOB)
    assert isinstance(ended["a"], Exception)
    assert not (tmp_path / "state-a" / "model").exists()
