"""Rounds that ask more clients than they need, and continue with the first that answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from tacit.errors import BadParameter
from tacit.jobs.train.elsewhere import Deployed
from tacit.parameters import check
from tacit.protocols import rounds
from tests.runtimes.net import Net

ROUNDS = range(3)


def answer(value: float) -> Any:
    """A client that answers with one number, until the end."""

    async def program(me: Any) -> None:
        await rounds.client(me, lambda r, v: (1.0, {"w": torch.tensor([value])}), lambda r, v: {})

    return program


async def silent(me: Any) -> None:
    """Receive the model, and send nothing until the run is over."""
    while not isinstance(await me.recv("server", *rounds.ASKS), rounds.Stop):
        pass


def run(clients: dict[str, Any], **options: Any) -> tuple[list[dict[str, float]], list[dict[str, str]]]:
    """Return {client: what it sent} of each round, and {client: why it was left out}."""
    merged: list[dict[str, float]] = []
    left: list[dict[str, str]] = []

    async def server(me: Any) -> None:
        async def merge(r: int, uploads: Any) -> None:
            merged.append({name: vectors["w"].item() for name, (_, vectors) in uploads.items()})

        async def no_model(r: int) -> None:
            return None

        async def untested(r: int, answers: Any) -> None:
            raise AssertionError

        await rounds.server(
            me,
            list(clients),
            ROUNDS,
            lambda r: list(clients),
            lambda r: {"w": torch.zeros(1)},
            merge,
            no_model,
            untested,
            dropped=lambda r, who: left.append(dict(who)),
            **options,
        )

    async def all_of_it() -> None:
        async with Net.of("server", *clients) as net:
            await net.run(server=server, **clients)

    asyncio.run(all_of_it())
    return merged, left


def test_a_round_continues_with_the_first_answers_although_one_client_never_answers() -> None:
    """Without a deadline: the silent client would hold a round of all of them for ever."""
    clients = {"a": answer(1), "b": answer(2), "c": silent}
    merged, left = run(clients, wanted=lambda r: 2)
    assert merged == [{"a": 1, "b": 2}] * len(ROUNDS)
    assert left == [{"c": "2 others had answered"}] * len(ROUNDS)


def test_a_round_takes_as_many_answers_as_it_wants_and_no_more() -> None:
    clients = {name: answer(i) for i, name in enumerate("abcd")}
    merged, left = run(clients, wanted=lambda r: 3)
    assert [len(m) for m in merged] == [3] * len(ROUNDS)
    for m, out in zip(merged, left):
        assert set(m) | set(out) == set("abcd")
        assert not set(m) & set(out)


def test_an_invalid_answer_is_none_of_the_first() -> None:
    clients = {"a": answer(1), "b": answer(2), "liar": answer(-1)}
    merged, _ = run(
        clients,
        wanted=lambda r: 2,
        wrong=lambda name, up: "it is negative" if up.vectors["w"].item() < 0 else None,
    )
    assert merged == [{"a": 1, "b": 2}] * len(ROUNDS)


def test_after_the_deadline_a_round_continues_with_fewer() -> None:
    clients = {"a": answer(1), "b": silent, "c": silent}
    merged, left = run(clients, wanted=lambda r: 2, within=0.2, at_least=1)
    assert merged == [{"a": 1}] * len(ROUNDS)
    assert left == [dict.fromkeys("bc", "no answer within 0.2 s")] * len(ROUNDS)


def test_over_selection_needs_a_deadline_and_a_factor_of_at_least_one() -> None:
    with pytest.raises(BadParameter, match="1 without a deadline"):
        check(Deployed(None, {}, over_select=1.3))
    with pytest.raises(BadParameter, match="over_select"):
        check(Deployed(None, {}, deadline=5.0, over_select=0.5))
    check(Deployed(None, {}, deadline=5.0, over_select=1.3))
