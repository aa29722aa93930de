"""Secure aggregation between operating-system processes over real sockets, one of which is killed in the
middle.
"""

from __future__ import annotations

import functools
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tacit.crypto.agree import public_of
from tacit.errors import PartyFailed
from tacit.parties.party import Party, Transport
from tacit.protocols import secagg
from tacit.runtimes.processes import Processes

from ..clocks import ClockAfterEvent

NAMES = [f"c{i}" for i in range(4)]
TERMS = {"federation": "fed", "parties": 4, "length": 6, "bound": 1000}
VALUES = {name: [(-1) ** k * (100 * i + k) for k in range(6)] for i, name in enumerate(NAMES)}


class Deadly:
    """Kills this process, as the kernel would, when it is about to send its n-th message."""

    def __init__(self, inner: Transport, left: int):
        self.inner, self.left = inner, left

    async def deliver(self, sender: str, to: str, scope: str, frame: bytes) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
        await self.inner.deliver(sender, to, scope, frame)


async def boss(me: Party, mark: str) -> tuple[list[int], list[str], dict[str, str]]:
    """A server whose deadline of 8 s cannot pass before the file `mark` exists."""
    me = replace(me, clock=ClockAfterEvent(Path(mark).exists))
    outcome = await secagg.server(me.scope("round 1"), NAMES, secagg.SecAggTerms(**TERMS), within=8.0)
    return outcome.total.tolist(), list(outcome.included), outcome.dropped


async def client(me: Party, values: list[int], mark: str = "") -> bool:
    if mark and not Path(mark).exists():
        Path(mark).touch()
        me = replace(me, transport=Deadly(me.transport, 2))
    return await secagg.client(me.scope("round 1"), torch.tensor(values), secagg.SecAggTerms(**TERMS))


@pytest.mark.parametrize("killed", [False, True])
def test_the_sum_comes_out_between_processes_also_when_one_is_killed_before_its_upload(
    tmp_path: Path, killed: bool
) -> None:
    """Killed when it has shared its secrets and has not sent its vector; started again, it learns that the
    round went on without it.
    """
    programs = {
        name: functools.partial(
            client, values=VALUES[name], mark=str(tmp_path / "killed") if killed and name == "c2" else ""
        )
        for name in NAMES
    }
    server = functools.partial(boss, mark=str(tmp_path / "killed"))
    results = Processes(restart=killed).run_sync({"server": server, **programs})
    total, included, dropped = results.pop("server")
    stayed = [name for name in NAMES if not (killed and name == "c2")]
    assert included == stayed
    assert total == [sum(VALUES[name][k] for name in stayed) for k in range(6)]
    assert dropped == ({"c2": "upload"} if killed else {})
    assert results == {name: name in stayed for name in NAMES}


async def posing(me: Party, adversary: str) -> None:
    """A server that gives c0 a key of its own in the place of c3's, whose signature it passes on."""
    here, mine = me.scope("round 1"), public_of(me.secret.bytes(32))
    keys = {
        name: (m.channel, m.mask, m.signature)
        for name, m in (await here.gather(NAMES, secagg.AdvertisedKeys, within=60.0)).items()
    }
    await here.send("c0", secagg.RoundKeys(keys | {"c3": (mine, keys["c3"][1], keys["c3"][2])}))
    await here.recv("c0", secagg.SealedShares)


async def signing(me: Party, values: list[int], adversary: str) -> bool:
    threshold = 0.7 if adversary == "active" else 0.6
    return await secagg.client(
        me.scope("round 1"),
        torch.tensor(values),
        secagg.SecAggTerms(**TERMS, threshold=threshold, adversary=adversary),
    )


@pytest.mark.parametrize("adversary", ["active", "curious"])
def test_a_server_that_poses_as_a_client_to_another_is_found_out_by_the_certificates(adversary: str) -> None:
    """Across processes keys are signed by certificates, whatever the server is expected to do: c0 sends no
    share of its secrets.
    """
    programs = {name: functools.partial(signing, values=VALUES[name], adversary=adversary) for name in NAMES}
    with pytest.raises(
        PartyFailed,
        match="party 'c0' failed: ProtocolError: party 'c0' received keys of 'c3' that 'c3' did not sign",
    ):
        Processes().run_sync({"server": functools.partial(posing, adversary=adversary), **programs})
