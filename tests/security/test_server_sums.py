"""A malicious server that wants a second sum of one round.

Each test is an attack of the red-team review (with the number of the finding). "without" runs the same attack with one
protection removed, and there it succeeds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tacit.jobs.train.record import Record, RecordedSum
from tacit.protocols import rounds, secagg
from tacit.protocols.consent import RoundSpent
from tests.security.lying_server import (
    CLIENTS,
    GUARDED,
    JOB,
    WITHOUT,
    Attacker,
    play,
    refusals,
    update_of,
)


@WITHOUT
def test_4_the_same_round_with_other_participants_gives_no_second_sum(
    protected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not protected:
        monkeypatch.setattr(Record, "spent", lambda self, kind, r: False)
        monkeypatch.setattr(RecordedSum, "upload", lambda self, participants: True)

    async def attack(server: Attacker) -> Any:
        await server.offer()
        first = await server.ask_sum(0, CLIENTS, lambda name: server.down(0))
        try:
            second = await server.ask_sum(0, CLIENTS[:3], lambda name: server.down(0))
        except secagg.ProtocolError as error:
            return error
        return first - second, update_of("d", tmp_path, server, 0, server.down(0))

    gained, _ = play(attack, tmp_path, GUARDED)
    if protected:
        assert isinstance(gained, rounds.SumAborted)
        assert gained.spent
        assert "already took part in a sum of this round" in str(gained)
    else:
        difference, mine = gained
        assert torch.equal(difference, mine)


@WITHOUT
def test_5_a_try_that_was_abandoned_at_unmasking_leaves_no_second_sum(
    protected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody's masked vector and the shares of some arrived; the server says "aborted", asks again without
    one party, and opens the first try later.
    """
    if not protected:
        monkeypatch.setattr(Record, "spent", lambda self, kind, r: False)
        monkeypatch.setattr(RecordedSum, "upload", lambda self, participants: True)

    async def attack(server: Attacker) -> Any:
        await server.offer()
        asked = secagg.SumSteps.ask

        async def hold_back(self: Any, names: Any, kind: Any, step: str, *more: Any, **options: Any) -> Any:
            got = await asked(self, names, kind, step, *more, **options)
            if step == "unmasking":
                raise await self.abort(names, "a pretext")  # with all shares in hand
            return got

        monkeypatch.setattr(secagg.SumSteps, "ask", hold_back)
        with pytest.raises(secagg.ProtocolError, match="a pretext"):
            await server.ask_sum(0, CLIENTS, lambda name: server.down(0))
        monkeypatch.setattr(secagg.SumSteps, "ask", asked)
        try:
            return await server.ask_sum(0, CLIENTS[:3], lambda name: server.down(0))
        except secagg.ProtocolError as error:
            return error

    gained, _ = play(attack, tmp_path, GUARDED)
    assert isinstance(gained, rounds.SumAborted) if protected else isinstance(gained, torch.Tensor)


def test_4_a_round_that_was_broken_off_before_shares_is_repeated_with_the_same_participants_only(
    tmp_path: Path,
) -> None:
    """What an honest server needs after it was killed in a round, and what a malicious one does not get: the same round
    with one party fewer.
    """

    async def attack(server: Attacker) -> Any:
        await server.offer()
        assert server.hidden is not None
        session = torch.zeros(8, dtype=torch.uint8)
        message = rounds.Down(0, server.down(0) | {rounds.SESSION: session})
        await server.me.send(CLIENTS, message)
        with server.me.scope(rounds._tag(message)) as here:  # up to the masked vectors, and no further
            keys = await here.gather(CLIENTS, secagg.AdvertisedKeys)
            await here.send(
                CLIENTS, secagg.RoundKeys({v: (m.channel, m.mask, m.signature) for v, m in keys.items()})
            )
            shares = await here.gather(CLIENTS, secagg.SealedShares)
            for name in CLIENTS:
                await here.send(
                    name, secagg.ForwardedShares({v: m.sealed[name] for v, m in shares.items() if v != name})
                )
            await here.gather(CLIENTS, secagg.MaskedVector)
        fewer: Any = None
        try:
            fewer = await server.ask_sum(0, CLIENTS[:3], lambda name: server.down(0))
        except secagg.ProtocolError as error:
            fewer = error
        again = await server.ask_sum(0, CLIENTS, lambda name: server.down(0))
        return fewer, again

    (fewer, again), _ = play(attack, tmp_path, GUARDED)
    assert isinstance(fewer, rounds.SumAborted)
    assert isinstance(again, torch.Tensor)


def test_4_a_restarted_party_still_knows_what_it_answered(tmp_path: Path) -> None:
    async def once(server: Attacker) -> Any:
        await server.offer()
        return await server.ask_sum(0, CLIENTS, lambda name: server.down(0))

    first, _ = play(once, tmp_path / "one", GUARDED, state=tmp_path)
    assert isinstance(first, torch.Tensor)

    async def again(server: Attacker) -> Any:  # other processes of the parties, another name of the run
        await server.offer(run="another")
        with pytest.raises(rounds.SumAborted) as error:
            await server.ask_sum(0, CLIENTS, lambda name: server.down(0))
        return error.value.spent

    second, _ = play(again, tmp_path / "two", GUARDED, state=tmp_path)
    # another federation's authority made the kits, so its name and parties are the same, and so is the
    # contract
    assert second is True


def test_4_one_model_a_round_in_the_clear_too(tmp_path: Path) -> None:
    async def attack(server: Attacker) -> Any:
        await server.offer()
        for k in range(2):
            await server.me.send("a", rounds.Down(0, server.down(0, w=server.down(0)["w"] + 0.1 * k)))
            gained = await server.me.scope("round 0").recv("a", rounds.Upload)
        return gained

    gained, ended = play(attack, tmp_path, JOB)
    assert gained is None
    assert "a different model 0 than before" in refusals(ended)[0]


@pytest.mark.parametrize("batch", ['"none"', "32"])  # no party has more than 24 rows to train on
def test_5_with_whole_batches_a_model_is_answered_once(batch: str, tmp_path: Path) -> None:
    """The next round on the same model would give the same update: its sum over fewer parties could be
    subtracted.
    """

    async def attack(server: Attacker) -> Any:
        await server.offer()
        await server.ask_sum(0, CLIENTS, lambda name: server.down(0))
        try:
            return await server.ask_sum(1, CLIENTS[:3], lambda name: server.down(1))
        except secagg.ProtocolError as error:
            return error

    gained, _ = play(attack, tmp_path, GUARDED.replace("rounds = 3", f"rounds = 3\nbatch_size = {batch}"))
    assert isinstance(gained, rounds.SumAborted)
    assert gained.spent


def test_one_client_that_sends_bad_shares_ends_the_sum_and_not_the_other_clients(tmp_path: Path) -> None:
    async def attack(server: Attacker) -> Any:
        await server.offer()
        message = rounds.Down(0, server.down(0) | {rounds.SESSION: torch.zeros(8, dtype=torch.uint8)})
        await server.me.send(CLIENTS, message)
        with server.me.scope(rounds._tag(message)) as here:
            keys = await here.gather(CLIENTS, secagg.AdvertisedKeys)
            await here.send(
                CLIENTS, secagg.RoundKeys({v: (m.channel, m.mask, m.signature) for v, m in keys.items()})
            )
            shares = await here.gather(CLIENTS, secagg.SealedShares)
            for name in CLIENTS:  # those of "c" are zeros, as a malicious "c" would send them
                boxes = {
                    v: bytes(len(m.sealed[name])) if v == "c" else m.sealed[name]
                    for v, m in shares.items()
                    if v != name
                }
                await here.send(name, secagg.ForwardedShares(boxes))
            spent = await here.gather([n for n in CLIENTS if n != "c"], RoundSpent)
        return len(spent), await server.ask_sum(1, CLIENTS, lambda name: server.down(1))

    gained, _ = play(attack, tmp_path, GUARDED)
    assert gained[0] == 3
    assert isinstance(gained[1], torch.Tensor)  # they are there in the next round
