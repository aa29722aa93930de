"""A malicious server that sends parties different models, or state of its own choice.

Each test is an attack of the red-team review (with the number of the finding). "without" runs the same attack with one
protection removed, and there it succeeds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tacit.errors import BadJob
from tacit.protocols import rounds, secagg
from tests.security.lying_server import (
    CLIENTS,
    GUARDED,
    WITHOUT,
    Attacker,
    play,
    refusals,
    update_of,
)


@WITHOUT
def test_3_parties_that_are_sent_different_models_give_no_sum(
    protected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pasquini et al. 2022: a model with dead units for all but the victim. What a hidden sum is bound to
    includes the model.
    """
    if not protected:
        monkeypatch.setattr(rounds, "digest_of_request", lambda message, digests=None: b"")

    async def attack(server: Attacker) -> tuple[torch.Tensor, torch.Tensor]:
        await server.offer()
        honest = server.down(0)
        total = await server.ask_sum(
            0, CLIENTS, lambda name: honest if name == "d" else server.down(0, w=honest["w"] * 0 + 0.5)
        )
        return total, update_of("d", tmp_path, server, 0, honest)

    gained, ended = play(attack, tmp_path, GUARDED)
    if protected:
        assert gained is None
        assert any("did not sign" in text for text in refusals(ended))
    else:
        assert isinstance(gained[0], torch.Tensor)  # a sum over different models was opened


def test_2_a_weight_is_a_share_of_an_agreed_number_and_of_nothing_a_server_sends(tmp_path: Path) -> None:
    """The demonstrated attack sent a huge "heaviest" to all but the victim, in the round or in one before
    it.
    """

    async def attack(server: Attacker) -> Any:
        await server.offer()
        huge = {"guard.heaviest": torch.tensor(1e30, dtype=torch.float64)}
        return await server.ask_sum(0, CLIENTS, lambda name: server.down(0, **({} if name == "d" else huge)))

    gained, ended = play(attack, tmp_path, GUARDED)
    assert gained is None
    assert "the server's state 'heaviest' is unexpected" in refusals(ended)[0]
    with pytest.raises(
        BadJob, match=r"its weight is a share of a number that all parties agree on\. Give SecAgg max_rows"
    ):
        play(attack, tmp_path, GUARDED.replace("max_rows = 64", ""))


def test_2_guard_state_of_a_round_that_was_abandoned_is_not_kept(tmp_path: Path) -> None:
    """An adaptive norm is the only guard state that servers send (not against an active one); every round sends it again."""
    job = GUARDED.replace("norm = 20.0", "norm = 20.0\nquantile = 0.5").replace('adversary = "active"', "")

    async def attack(server: Attacker) -> Any:
        await server.offer()
        clip = lambda value: {"guard.clip": torch.tensor(value, dtype=torch.float64)}  # noqa: E731
        for name in CLIENTS:
            tiny = server.down(0, **clip(20.0 if name == "d" else 1e-12))
            await server.me.send(
                name, rounds.Down(0, tiny | {rounds.SESSION: torch.zeros(8, dtype=torch.uint8)})
            )
        with server.me.scope(
            rounds._tag(rounds.Down(0, {rounds.SESSION: torch.zeros(8, dtype=torch.uint8)}))
        ) as here:
            await here.gather(CLIENTS, secagg.AdvertisedKeys)
        return await server.ask_sum(1, CLIENTS, lambda name: server.down(1))  # says nothing of the norm

    gained, ended = play(attack, tmp_path, job)
    assert gained is None
    assert "the server's state 'clip' is unexpected, missing" in refusals(ended)[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            '[algorithm]\nname = "Scaffold"',
            "clients of Scaffold keep state from round to round, and an active server could prepare it",
        ),
        ('[algorithm]\nname = "IFCA"', "a cluster with one party shows its update"),
        ("quantile", "Clip depends on what a server sent before, which an active server chooses"),
    ],
)
def test_2_what_an_active_server_could_prepare_is_not_promised(
    changes: str, words: str, tmp_path: Path
) -> None:
    """The sum of such a job hides single updates from a curious server only, or from none; it is refused
    where it is planned, by every party.
    """
    job = (
        GUARDED.replace("norm = 20.0", "norm = 20.0\nquantile = 0.5")
        if changes == "quantile"
        else GUARDED.replace('[algorithm]\nname = "FedAvg"', changes)
    )

    async def attack(server: Attacker) -> None:
        raise AssertionError("no party starts with this job")

    with pytest.raises(BadJob, match=words):
        play(attack, tmp_path, job)


@pytest.mark.parametrize(
    "state",
    [
        {"guard.clip": torch.tensor(1e9, dtype=torch.float64)},
        {"surprise": torch.zeros(1)},
        {"round": torch.tensor(7.0)},
    ],
    ids=["unknown", "unread", "round"],
)
def test_2_guard_state_that_the_guard_does_not_have_is_refused(
    state: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    async def attack(server: Attacker) -> Any:
        await server.offer()
        return await server.ask_sum(0, CLIENTS, lambda name: server.down(0, **state))

    gained, ended = play(attack, tmp_path, GUARDED)
    assert gained is None
    assert any(
        words in refusals(ended)[0]
        for words in ("Nothing was sent", "nothing in this job reads", "number of another round")
    )
