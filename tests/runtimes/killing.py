"""Run by test_faults.py as a program: a hub, a server and three clients as real processes; each is killed by
SIGKILL at random moments and started again.

One process loads torch, then forks every role, so that a kill is a real one and starting again costs no
import. Says, as JSON, what came out.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.flop_counter

import tacit
from tacit import aggregate, algorithms, data, pace
from tacit.jobs.train import member as members

# what a run imports when it starts: once here, not once a process
from tacit.jobs.train import networked, paced_parties, party_rows  # noqa: F401
from tacit.parties.party import Party
from tacit.runtimes import hub as hubs
from tacit.runtimes import kits
from tacit.runtimes.link import Link
from tests.clocks import ClockOfTheKilled
from tests.guard.doomed import Deadly, Marks
from tests.ports import free_port

CLIENTS = 3
ROUNDS = 25


def job(kind: str = "rounds") -> dict[str, Any]:
    """Synchronous rounds, of everyone's models or of the best party's, or asynchronous training that waits
    for all and so leaves nothing to chance.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 4))
    fed = data.from_arrays(x, (x @ rng.normal(size=(4, 3))).argmax(1), classes=3).split(
        CLIENTS, skew=data.Quantity(0.7), seed=0
    )
    how: dict[str, dict[str, Any]] = {
        "rounds": {"algorithm": algorithms.Scaffold(lr=0.1), "per_round": 2},
        "picked": {"algorithm": algorithms.FedPSO(lr=0.1), "aggregate": aggregate.Best()},
        "paced": {"algorithm": algorithms.FedAvg(lr=0.1), "pace": pace.SAFA(fraction=1.0)},
    }
    return {
        "fed": fed,
        "model": "logistic",
        "rounds": ROUNDS,
        "batch_size": 8,
        "evaluate_every": 5,
        **how[kind],
    }


class Cast:
    """The roles of one run, each a process."""

    def __init__(
        self, folder: Path, deadline: float | None = None, at_least: int | None = None, kind: str = "rounds"
    ):
        self.folder, self.job, self.deadline, self.at_least = folder, job(kind), deadline, at_least
        self.out = folder / "run"
        port = free_port()
        self.fed = self.job.pop("fed")
        hub, parties = kits.temporary("killing", ("server", *self.fed.parties))
        self.kits = {name: kit.at(f"127.0.0.1:{port}") for name, kit in parties.items()} | {
            "hub": replace(hub, listen=f"127.0.0.1:{port}")
        }
        for k in range(CLIENTS):
            party_rows.save_rows(self.fed, k, folder / f"rows-{k}")
        self.roles = ("hub", *self.fed.parties, "server")
        self.pids: dict[str, int] = {}
        self.doomed: dict[str, int] = {}  # {client: the upload in whose place it is killed}

    def start(self, role: str) -> None:
        pid = os.fork()
        if pid:
            self.pids[role] = pid
            return
        try:
            log = os.open(self.folder / f"{role}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
            torch.set_num_threads(1)
            self.play(role)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def play(self, role: str) -> None:
        if role == "hub":
            asyncio.run(hubs.serve(self.kits["hub"]))
        elif role == "server":
            if self.deadline is not None:
                # it passes when the killed client alone is awaited, once: the next round waits until it is back
                marks = Marks(self.folder, self.doomed)
                ClockOfTheKilled.use(pytest.MonkeyPatch(), marks.lost, marks.clear)
            through = networked.Deployed(self.kits["server"], {}, self.deadline, self.at_least)
            result = tacit.train(
                self.fed, **self.job, runtime=through, out=self.out, resume=(self.out / "job.toml").exists()
            )
            torch.save(result.model.state_dict(), self.folder / "model.pt")
        else:
            asyncio.run(self.client(role))

    async def client(self, name: str) -> None:
        k = self.fed.parties.index(name)
        async with Link(self.kits[name]) as link:

            def program(me: Party) -> Coroutine[Any, Any, None]:
                if name in self.doomed:
                    deadly = Deadly(me.transport, self.doomed[name], self.folder / name, kind="Upload")
                    me = replace(me, transport=deadly)
                return members.member(
                    me, data={"folder": str(self.folder / f"rows-{k}")}, state=str(self.folder / f"state-{k}")
                )

            await link.run(program)

    def kill(self, role: str) -> None:
        os.kill(self.pids[role], signal.SIGKILL)
        os.waitpid(self.pids.pop(role), 0)

    def ended(self, role: str) -> bool:
        if role in self.pids and os.waitpid(self.pids[role], os.WNOHANG)[0]:
            del self.pids[role]
        return role not in self.pids

    def close(self) -> None:
        for role in list(self.pids):
            if not self.ended(role):
                self.kill(role)


def wait_until(cast: Cast, has_happened: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not has_happened():
        if time.monotonic() > end:
            logs = {p.name: p.read_text()[-1500:] for p in cast.folder.glob("*.log")}
            cast.close()
            raise TimeoutError(f"the run did not end: {json.dumps(logs, indent=1)}")
        time.sleep(0.01)


def kill_at_random(base: Path, kills: int, seed: int, kind: str) -> dict[str, Any]:
    """Runs, one after the other, until so many kills have struck; whether each gave the model of a run left
    alone.
    """
    rng = random.Random(seed)
    told = job(kind)
    whole = tacit.train(told.pop("fed"), **told, runtime="inprocess")
    struck: list[str] = []
    runs = []
    while len(struck) < kills:
        folder = base / f"run-{len(runs)}"
        folder.mkdir()
        cast = Cast(folder, kind=kind)
        for role in cast.roles:
            cast.start(role)
        before = len(struck)
        while len(struck) < kills:
            time.sleep(rng.uniform(0.03, 0.3))
            role = rng.choice(cast.roles)
            if cast.ended("server"):
                break
            if not cast.ended(role):
                cast.kill(role)
                struck.append(role)
            cast.start(role)
        wait_until(cast, partial(cast.ended, "server"), 240)
        cast.close()
        if not (folder / "model.pt").exists():
            raise RuntimeError(
                f"the server ended without a model: {(folder / 'server.log').read_text()[-3000:]}"
            )
        got = torch.load(folder / "model.pt")
        off = max(
            float((v.double() - got[k].double()).abs().max()) for k, v in whole.model.state_dict().items()
        )
        events = [json.loads(line) for line in (folder / "run" / "events.jsonl").read_text().splitlines()]
        runs.append(
            {
                "kills": len(struck) - before,
                "off": off,
                "rounds": [e["round"] for e in events if e["kind"] == "round"],
                "dropped": [e["dropped"] for e in events if e.get("dropped")],
            }
        )
    return {"struck": {role: struck.count(role) for role in sorted(set(struck))}, "runs": runs}


def leave_and_return(base: Path) -> dict[str, Any]:
    """A client is killed before its third upload, rounds continue without it, and it is restarted and takes
    part again. Rounds do not wait for it meanwhile, so there are many.
    """
    cast = Cast(base, deadline=4.0, at_least=1)
    cast.job |= {"rounds": 150, "per_round": CLIENTS, "evaluate_every": 0}
    gone = cast.fed.parties[1]
    cast.doomed = {gone: 3}
    for role in cast.roles:
        cast.start(role)
    wait_until(cast, lambda: cast.ended(gone) and not (base / gone).exists(), 240)  # the deadline has passed
    cast.doomed = {}
    cast.start(gone)
    wait_until(cast, partial(cast.ended, "server"), 240)
    cast.close()
    events = base / "run" / "events.jsonl"
    found = [json.loads(line) for line in events.read_text().splitlines()]
    of_rounds = [e for e in found if e["kind"] == "round" and e["round"]]
    return {
        "gone": gone,
        "dropped": [list(e.get("dropped", {})) for e in of_rounds],
        "sampled": [e["sampled"] for e in of_rounds],
        "notes": [e["text"] for e in found if e["kind"] == "note"],
        "why": next(e["dropped"][gone] for e in of_rounds if gone in e.get("dropped", {})),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[2])
    if sys.argv[1] == "leave":
        print(json.dumps(leave_and_return(place)))
    else:
        print(json.dumps(kill_at_random(place, int(sys.argv[3]), int(sys.argv[4]), sys.argv[1])))
