"""Run by test_deployed.py as a program: a hub, a server and three clients as the commands start them, each a
process, with a guard in the job file. The server is killed between the survivors' list and the shares, and
started again. Says, as JSON, what came out.

One process loads torch, then forks every role.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.utils.flop_counter

from tacit.jobs.train import deployed, member, networked  # noqa: F401  # loaded once, before the forks
from tacit.protocols import secagg
from tacit.runtimes import hub as hubs
from tacit.runtimes import kits
from tests.clinics import write_files
from tests.ports import free_port

SIZES = {"a": 40, "b": 25, "c": 12}
JOB = """
[data]
label = "sick"
labels = ["no", "yes"]
numbers = ["age", "chol"]
[model]
name = "logistic"
[algorithm]
name = "FedAvg"
lr = 0.2
[train]
rounds = 3
evaluate_every = 0
"""
GUARD = """
[[guard]]
name = "Clip"
norm = 20.0
[[guard]]
name = "Quantize"
bits = 40
stochastic = false
[[guard]]
name = "SecAgg"
threshold = 0.7
adversary = "active"
max_rows = 64
"""


class Run:
    """One job, one process a role."""

    def __init__(self, folder: Path, job: str, agreed: str):
        self.folder, self.pids = folder, dict[str, int]()
        folder.mkdir()
        write_files(folder, SIZES)
        (folder / "job.toml").write_text(job)
        (folder / "agreed.toml").write_text(agreed)
        address = f"127.0.0.1:{free_port()}"
        hub, parties = kits.temporary("clinics", ("server", *SIZES))
        self.kits = {
            name: replace(kit, directory=folder / name).at(address) for name, kit in parties.items()
        } | {"hub": replace(hub, listen=address)}

    def start(self, role: str, dies: bool = False) -> None:
        pid = os.fork()
        if pid:
            self.pids[role] = pid
            return
        try:
            log = os.open(self.folder / f"{role}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            torch.set_num_threads(1)
            self.play(role, dies)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def play(self, role: str, dies: bool) -> None:
        if role == "hub":
            asyncio.run(hubs.serve(self.kits["hub"]))
        elif role != "server":
            deployed.take_part(
                self.kits[role], self.folder / f"{role}.csv", agreed=self.folder / "agreed.toml"
            )
        else:
            if dies:
                die_before_the_shares()
            out = self.folder / "run"
            result = deployed.coordinate(
                self.kits["server"], self.folder / "job.toml", out=out, resume=(out / "job.toml").exists()
            )
            torch.save(result.model.state_dict(), self.folder / "model.pt")

    def wait(self, role: str, seconds: float = 240.0) -> int:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pids[role], os.WNOHANG)
            if pid:
                del self.pids[role]
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        raise TimeoutError(
            f"{role} did not end: "
            + "\n".join(f"{p.name}: {p.read_text()[-1500:]}" for p in self.folder.glob("*.log"))
        )

    def close(self) -> None:
        for role, pid in list(self.pids.items()):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            del self.pids[role]


def die_before_the_shares() -> None:
    """In the second round, when the survivors' list is out."""
    ask, seen = secagg.SumSteps.ask, [0]

    async def asks(self: Any, names: Any, kind: Any, step: str, *more: Any, **options: Any) -> Any:
        seen[0] += step == "consistency check"
        if seen[0] == 2 and step == "consistency check":
            await self.me.transport.drain()  # the list has reached the clients
            os.kill(os.getpid(), signal.SIGKILL)
        return await ask(self, names, kind, step, *more, **options)

    secagg.SumSteps.ask = asks  # type: ignore[method-assign]


def play(folder: Path, job: str, killed: bool) -> dict[str, Any]:
    run = Run(folder, job, job)
    try:
        for role in ("hub", *SIZES):
            run.start(role)
        run.start("server", dies=killed)
        codes = [run.wait("server")]
        if killed:
            run.start("server")
            codes.append(run.wait("server"))
        clients = [run.wait(name) for name in SIZES]
        if codes[-1]:
            raise RuntimeError((folder / "server.log").read_text()[-3000:])
        events = [json.loads(line) for line in (folder / "run" / "events.jsonl").read_text().splitlines()]
        model = torch.load(folder / "model.pt")
        return {
            "codes": codes,
            "clients": clients,
            "rounds": [e["round"] for e in events if e["kind"] == "round"],
            "seen": sorted(
                {
                    s["kind"]
                    for s in json.loads((folder / "run" / "ledger.json").read_text())["seen"]
                    if s["party"] == "server"
                }
            ),
            "model": [v for t in model.values() for v in t.flatten().tolist()],
        }
    finally:
        run.close()


def deceived(folder: Path) -> dict[str, Any]:
    """The parties agreed to a guard, and the server runs the job without one.

    One of them starts: the server gives up at the first refusal, and whoever had not been offered the job by
    then would only be told so.
    """
    run = Run(folder, JOB, JOB + GUARD)
    try:
        for role in ("hub", "a", "server"):
            run.start(role)
        return {
            "codes": [run.wait("server"), run.wait("a")],
            "client": (folder / "a.log").read_text()[-2000:],
            "server": (folder / "server.log").read_text()[-2000:],
        }
    finally:
        run.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    print(
        json.dumps(
            {
                "plain": play(place / "plain", JOB, killed=False),
                "guarded": play(place / "guarded", JOB + GUARD, killed=True),
                "deceived": deceived(place / "deceived"),
            }
        )
    )
