"""A malicious server against real clients: a real hub, real kits, clients started with the job file they agreed to.
The attacker has only the server's kit.

`play` runs the attack while the clients run. It ends when the attack is finished, or when a client refuses: by
that event, not by a clock.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tacit.algorithms.types import State
from tacit.jobs.train import deployed, guards
from tacit.jobs.train.client_work import ClientWork
from tacit.jobs.train.contract import Contract
from tacit.jobs.train.elsewhere import Deployed
from tacit.jobs.train.hidden_sums import HiddenSum
from tacit.jobs.train.member import member
from tacit.jobs.train.plan import make_plan, make_task
from tacit.parties.party import Party
from tacit.protocols import joining, rounds
from tacit.runtimes.kits import Kit
from tests.clinics import write_files
from tests.runtimes.net import Net

CLIENTS = ("a", "b", "c", "d")
SIZES = {"a": 40, "b": 25, "c": 12, "d": 30}
JOB = """
[data]
label = "sick"
labels = ["no", "yes"]
numbers = ["age", "chol"]
fit = "party"
held_fraction = 0.4
[model]
name = "logistic"
[algorithm]
name = "FedAvg"
lr = 0.2
[train]
rounds = 3
"""
SECAGG = """
[[guard]]
name = "Clip"
norm = 20.0
[[guard]]
name = "Quantize"
bits = 32
stochastic = false
[[guard]]
name = "SecAgg"
threshold = 0.7
adversary = "active"
max_rows = 64
"""
GUARDED = JOB + SECAGG
LOCAL_NOISE = '\n[[guard]]\nname = "Clip"\nnorm = 1.0\n[[guard]]\nname = "Noise"\nplacement = "local"\n'
WITHOUT = pytest.mark.parametrize("protected", [False, True], ids=["without", "with"])


class Attacker:
    """The server's kit, and a program of its own."""

    def __init__(self, me: Party, kit: Kit, job: Path):
        self.me, self.kit, self.door = me, kit, me.scope(joining.SCOPE)
        layout, told = deployed.read(job)
        self.fed, layout = deployed.federation(kit, layout, told), deployed.layout_of(layout, told)
        self.plan = make_plan(self.fed, **told, runtime=Deployed(kit, layout))
        self.contract = Contract.of(self.plan, layout, kit.server, list(self.fed.rows.x.shape[1:]))
        self.task = make_task(self.plan)
        self.guard = guards.fit(self.plan, self.task, self.task.initial())
        self.hidden = (
            None
            if self.guard is None or self.guard.hiding is None
            else HiddenSum(self.guard, self.contract.digest)
        )

    async def offer(
        self, names: Iterable[str] = CLIENTS, contract: str | None = None, run: str = "run"
    ) -> dict[str, Any]:
        """Offer a contract to each; {name: Ready or Unfit}."""
        text, answers, names = (
            self.contract.text if contract is None else contract,
            dict[str, Any](),
            list(names),
        )
        await self.door.send(names, joining.Call())
        while len(answers) < len(names):
            name, said = await self.door.first(joining.Join, joining.Ready, joining.Unfit, joining.Free)
            if name not in names:
                continue
            if isinstance(said, joining.Join):
                await self.door.send(name, joining.Work(text, run))
            elif isinstance(said, joining.Ready | joining.Unfit):
                answers[name] = said
        return answers

    def down(self, r: int, **more: Any) -> State:
        """What an honest server sends in round r, and `more`."""
        return {**self.task.initial(), "round": torch.tensor(float(r)), **more}

    async def ask_sum(
        self, r: int, names: Iterable[str], down: Callable[[str], State], within: float | None = None
    ) -> torch.Tensor:
        """One hidden sum of round r, in which each party is sent what `down` gives for it."""
        assert self.hidden is not None
        names, session = list(names), torch.frombuffer(bytearray(os.urandom(8)), dtype=torch.uint8)
        messages = {name: rounds.Down(r, down(name) | {rounds.SESSION: session}) for name in names}
        for name, message in messages.items():
            await self.me.send(name, message)
        some = messages[names[0]]
        with self.me.scope(rounds._tag(some)) as here:
            total, _, _ = await self.hidden.server(here, r, names, within, rounds.digest_of_request(some))
        return total

    async def stop(self) -> None:
        await self.me.send(CLIENTS, rounds.Stop())


Attack = Callable[[Attacker], Awaitable[Any]]


def play(
    attack: Attack,
    folder: Path,
    job: str,
    agreed: str | None = "same",
    state: Path | None = None,
    through: bool = False,
    reading: Mapping[str, str] | None = None,
) -> tuple[Any, dict[str, Any]]:
    """(what the attack gained or None, {client: how it ended}). `agreed`: the job file of the clients, or None. `through`:
    the attack runs to its end even if clients refuse. `reading`: how the clients read their files.
    """
    folder.mkdir(exist_ok=True)
    write_files(folder, SIZES)
    (folder / "job.toml").write_text(job)
    (folder / "agreed.toml").write_text(job if agreed in ("same", None) else agreed)

    async def run() -> tuple[Any, dict[str, Any]]:
        async with Net.of("server", *CLIENTS) as net, asyncio.timeout(300):

            def client(name: str) -> Any:
                ours = deployed.agreement(net.kits[name], None if agreed is None else folder / "agreed.toml")
                return net.party(
                    name,
                    lambda me: member(
                        me,
                        {"table": str(folder / f"{name}.csv"), **(reading or {})},
                        str((state or folder) / f"state-{name}"),
                        agreement=ours,
                    ),
                )

            clients = {name: asyncio.create_task(client(name)) for name in CLIENTS}
            attacking = asyncio.create_task(
                net.party("server", lambda me: attack(Attacker(me, net.kits["server"], folder / "job.toml")))
            )
            pending: set[asyncio.Task[Any]] = {attacking, *clients.values()}
            while attacking in pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                if not through and any(
                    task is not attacking and task.exception() is not None for task in done
                ):
                    break
            gained = attacking.result() if attacking.done() else None
            if through:  # whoever was told no has ended, or is about to
                await asyncio.wait(clients.values(), return_when=asyncio.FIRST_EXCEPTION, timeout=120)
            for task in (attacking, *clients.values()):
                task.cancel()
            ended = await asyncio.gather(*clients.values(), return_exceptions=True)
            await asyncio.gather(attacking, return_exceptions=True)
            return gained, dict(zip(clients, ended))

    return asyncio.run(run())


def refusals(ended: dict[str, Any]) -> list[str]:
    return [str(error) for error in ended.values() if isinstance(error, Exception)]


def update_of(name: str, folder: Path, attacker: Attacker, r: int, down: State) -> torch.Tensor:
    """What one party alone would contribute to a hidden sum: the number the attacker is after."""
    work = ClientWork(name, {"table": str(folder / f"{name}.csv")}, folder / f"oracle-{name}", "")
    work.prepare(joining.Work(attacker.contract.text, "oracle"))
    assert work.hidden is not None
    return work.hidden.guard.unpack(work.local(r, down)[1], r)
