"""A client of a personalized algorithm ends with the common model and with its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import tacit
from tacit.jobs.train.client_work import ClientWork
from tacit.protocols import joining
from tests.security.lying_server import JOB, Attacker, play

DITTO = JOB.replace('name = "FedAvg"', 'name = "Ditto"')


def test_a_client_of_ditto_keeps_its_own_model_next_to_the_common_one(tmp_path: Path) -> None:
    """Its own model is its state after its last answer, and stays with it."""

    async def offer(server: Attacker) -> Any:
        await server.offer()
        return server.contract.text, server.down(0), server.task.initial()["w"]

    (contract, down, w), _ = play(offer, tmp_path, DITTO)
    state = tmp_path / "alone"
    work = ClientWork("a", {"table": str(tmp_path / "a.csv")}, state, "")
    work.prepare(joining.Work(contract, "run"))
    sent = work.local(0, down)[1]
    final = w + 0.5
    work.finish(joining.Final("run", {"w": final}, {}))

    def flat(folder: str) -> torch.Tensor:
        model = tacit.load(state / folder).model
        return torch.cat([v.reshape(-1) for v in model.state_dict().values()])

    assert torch.equal(flat("model"), final)
    (own,) = work.memory.now.values()
    assert torch.equal(flat("own-model"), own)
    assert not torch.equal(own, final)
    assert not any(torch.equal(v, own) for v in sent.values() if v.shape == own.shape)
