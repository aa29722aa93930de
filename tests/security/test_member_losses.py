"""A malicious server that uses the losses of members as an oracle: each member is a model of its choice.

A loss at two points is a directional derivative, and so something about the rows. What limits it: an evaluation
answers one vector of the agreed number of members, once for each agreed round and once at the end, with sums over
at least `min_rows` held-out rows, or over those of all parties.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tacit.errors import ProtocolError
from tacit.jobs.train.contract import Contract
from tacit.jobs.train.counts import blank_tally, pack_tally, unpack_tally
from tacit.jobs.train.hidden_sums import HiddenCounts
from tacit.jobs.train.plan import make_plan
from tacit.jobs.train.record import Record
from tacit.protocols import rounds, secagg
from tests.jobs.test_member_stops import FED, STOPS
from tests.security.lying_server import CLIENTS, JOB, SECAGG, WITHOUT, Attacker, play, refusals

MEMBERS = """[model]
name = "MLP"
hidden = [3]
members = 3
"""
STOPPED = JOB.replace('[model]\nname = "logistic"\n', MEMBERS) + 'patience = 2\nstop_by = "loss"\n'
HIDDEN = STOPPED + SECAGG
LAST = 3  # the number of the evaluation after the last of three rounds


def crafted(server: Attacker, seed: int) -> dict[str, Any]:
    """Members that have nothing to do with each other, or with training."""
    return {"w": torch.randn(server.task.dim, generator=torch.Generator().manual_seed(seed))}


async def ask(server: Attacker, name: str, r: int, model: dict[str, Any]) -> list[float]:
    """The summed losses of the members on the held-out rows of a party."""
    await server.me.send(name, rounds.Test(r, model))
    answer = await server.me.scope(f"test {r}").recv(name, rounds.Tested)
    return unpack_tally(answer.counts, blank_tally(server.plan)).members.tolist() if answer.counts else []


@WITHOUT
def test_a_server_gets_as_many_losses_as_the_contract_says_and_none_of_few_rows(
    protected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not protected:
        monkeypatch.setattr(Record, "bind", lambda self, key, digest: None)
    gained: list[list[float]] = []

    async def attack(server: Attacker) -> None:
        await server.offer()
        assert await ask(server, "c", -1, crafted(server, 0)) == []  # five held-out rows
        for r in (-1, 0, 1, 2, LAST):
            gained.append(await ask(server, "a", r, crafted(server, r)))
        gained.append(await ask(server, "a", LAST, crafted(server, 99)))

    _, ended = play(attack, tmp_path, STOPPED)
    assert all(len(losses) == len(set(losses)) == 3 for losses in gained)
    assert len(gained) == (5 if protected else 6)
    if protected:
        assert f"a different model {LAST + 1} than before" in refusals(ended)[0]


@pytest.mark.parametrize(
    ("job", "r"),
    [
        (STOPPED, LAST + 1),
        (STOPPED.replace("members = 3", "members = 1"), LAST),
        (STOPPED.replace('stop_by = "loss"', 'stop_by = "auc"'), LAST),
        (STOPPED.replace('patience = 2\nstop_by = "loss"', ""), LAST),
    ],
    ids=["beyond", "one network", "by AUC", "no patience"],
)
def test_there_is_no_evaluation_at_the_end_that_was_not_agreed(job: str, r: int, tmp_path: Path) -> None:
    async def attack(server: Attacker) -> Any:
        await server.offer(["a"])
        return await ask(server, "a", r, crafted(server, 0))

    gained, ended = play(attack, tmp_path, job)
    assert gained is None
    assert "which is not part of the contract" in refusals(ended)[0]


@pytest.mark.parametrize("members", [2, 64])
def test_a_server_cannot_ask_for_the_losses_of_more_members_than_agreed(members: int, tmp_path: Path) -> None:
    """Neither by another contract nor by a longer vector."""

    async def offer(server: Attacker) -> Any:
        answers = await server.offer(["a"])
        return type(answers["a"]).__name__

    other = STOPPED.replace("members = 3", f"members = {members}")
    gained, ended = play(offer, tmp_path / "contract", other, agreed=STOPPED, through=True)
    assert gained in (None, "Unfit")
    assert "model.members" in refusals(ended)[0]

    async def attack(server: Attacker) -> Any:
        await server.offer(["a"])
        size = server.task.dim // 3 * members
        return await ask(server, "a", -1, {"w": torch.zeros(size)})

    gained, ended = play(attack, tmp_path / "vector", STOPPED)
    assert gained is None
    assert "a model of shape" in refusals(ended)[0]


@WITHOUT
def test_with_hidden_sums_the_losses_of_one_model_are_summed_once(
    protected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of the same members over other parties could be subtracted: the losses of one party."""
    if not protected:
        monkeypatch.setattr(Record, "earlier", lambda self, *_, **__: False)

    async def attack(server: Attacker) -> Any:
        await server.offer()
        blank = blank_tally(server.plan)
        counted = HiddenCounts(server.guard, len(CLIENTS), blank, server.contract.digest)
        assert server.hidden is not None
        server.hidden = counted  # type: ignore[assignment]
        found = []
        for r in (2, LAST):
            try:
                total = await sum_of(server, counted, r, crafted(server, 7))
            except secagg.ProtocolError as error:
                return found, error
            found.append(counted.decode(total).members.tolist())
        return found, None

    (found, error), _ = play(attack, tmp_path, HIDDEN)
    assert len(set(found[0])) == 3
    if protected:
        assert len(found) == 1
        assert "already took part" in str(error)
    else:
        assert found[1] == found[0]


async def sum_of(server: Attacker, counted: HiddenCounts, r: int, model: dict[str, Any]) -> torch.Tensor:
    session = torch.frombuffer(bytearray(range(8)), dtype=torch.uint8)
    message = rounds.Test(r, model | {rounds.SESSION: session})
    await server.me.send(CLIENTS, message)
    with server.me.scope(rounds._tag(message)) as here:
        total, _, _ = await counted.server(here, r, CLIENTS, None, rounds.digest_of_request(message))
    return total


def test_counts_with_another_number_of_losses_are_refused() -> None:
    p = make_plan(FED, **STOPS)
    blank = blank_tally(p)
    for members in (torch.zeros(0), torch.zeros(2), torch.zeros(4)):
        with pytest.raises(ProtocolError, match="no sums, or not as many as this job has"):
            unpack_tally(pack_tally(blank._replace(members=members.double())), blank)
    assert torch.equal(unpack_tally(pack_tally(blank), blank).members, torch.zeros(3, dtype=torch.float64))


def test_an_owner_is_told_that_losses_of_members_are_sent() -> None:
    def contract(**options: Any) -> Contract:
        return Contract.of(make_plan(FED, **STOPS | options), None, "server", [5])

    assert "the loss of each of the model's 3 networks" in contract().describe()
    assert "of each of the model's" not in contract(stop_by="auc").describe()
