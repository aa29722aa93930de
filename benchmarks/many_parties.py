"""What a relay costs with many connected parties: seconds and CPU seconds to join and per round, and memory.

    python benchmarks/many_parties.py                    # 100, 500 and 1,000 parties, rounds of 62,006 parameters
    python benchmarks/many_parties.py --parties 200
    python benchmarks/many_parties.py --connect 10000    # connections alone: the memory of the hub
    python benchmarks/many_parties.py --connect 10000 --stay 240 --restart    # and what becomes of them
    python benchmarks/many_parties.py --nats             # the same with Debian's nats-server in place of the hub

The hub and the server are processes of their own. The parties are real ones (mutual TLS, a sealed channel to the
server each), many to a process. CPU seconds and memory are those that the kernel counts for a process: they do
not depend on what else runs on the machine, as seconds do. "waits" are the seconds of which the server's process was
ready and had no core: on a busy machine, most of the seconds are spent on that.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tacit.parties import Message
from tacit.runtimes import hub as hubs
from tacit.runtimes import open_files
from tacit.runtimes.kits import Kit, save, temporary
from tacit.runtimes.link import Link
from tacit.runtimes.nats_relay import write_config

torch.set_num_threads(1)
PARAMETERS = 62_006  # of LeNet-5 for CIFAR-10, as in the other benchmarks
TICKS = os.sysconf("SC_CLK_TCK")


class CrowdHere(Message, reveals="that a party of a benchmark is connected"):
    pass


class CrowdModel(Message, reveals="a vector of a benchmark"):
    data: torch.Tensor


def fork(work: Callable[[], Any]) -> int:
    """Run `asyncio.run(work())` in a child; this process never opens a connection, so that it may fork."""
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(work())
        except BaseException as error:
            print(type(error).__name__, error, file=sys.stderr, flush=True)
        os._exit(0)
    return pid


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def start_relay(
    hub_kit: Kit, kits: dict[str, Kit], with_nats: bool, monitor: str | None = None
) -> tuple[int, dict[str, Kit]]:
    """Start a hub or a NATS server; return its process and the kits with its address."""
    at = f"127.0.0.1:{free_port()}"
    if not with_nats:
        hub = fork(lambda: hubs.serve(replace(hub_kit, listen=at), monitor=monitor))
        return hub, {name: kit.at(at) for name, kit in kits.items()}
    folder = Path(tempfile.mkdtemp()) / "hub"
    save(hub_kit, folder)
    (folder / "nats.conf").write_text(
        write_config(hub_kit.trust, at, [(name, kit.role) for name, kit in kits.items()])
    )
    program = shutil.which("nats-server", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        sys.exit("No nats-server: install it with apt-get install nats-server")
    process = subprocess.Popen(
        [program, "-c", "nats.conf"],
        cwd=folder,
        stderr=open(folder / "log", "w"),  # noqa: SIM115
    )
    return process.pid, {name: kit.at(f"nats://{at}") for name, kit in kits.items()}


def cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def seconds_without_core() -> float:
    """Return how long the threads of this process were ready and waited for a core, by the kernel's count."""
    waited = 0
    for task in os.listdir("/proc/self/task"):
        with suppress(OSError), open(f"/proc/self/task/{task}/schedstat") as file:
            waited += int(file.read().split()[1])
    return waited / 1e9


def megabytes(pid: int) -> float:
    with open(f"/proc/{pid}/status") as file:
        line = next(line for line in file if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


async def server(kit: Kit, names: list[str], rounds: int, hub: int, report: Callable[[str], None]) -> None:
    """Wait for all parties, then send them a model and wait for their answers, `rounds` times."""

    async def program(me: Any) -> None:
        def state() -> tuple[float, ...]:
            return time.perf_counter(), cpu_seconds(hub), time.process_time(), seconds_without_core()

        def since(before: tuple[float, ...]) -> str:
            wall, its, mine, waits = (b - a for a, b in zip(before, state()))
            return f"{wall:6.1f} s, hub {its:6.2f} CPU s, server {mine:6.2f} CPU s and {waits:6.2f} s waits"

        before = state()
        await me.scope("door").send(names, CrowdHere())  # as a server calls its parties
        await me.gather(names, CrowdHere)
        report(f"join   {since(before)}, hub {megabytes(hub):5.0f} MB")
        w = torch.zeros(PARAMETERS)
        for _ in range(rounds):
            before = state()
            await me.send(names, CrowdModel(w))
            answers = await me.gather(names, CrowdModel)
            w = sum(a.data for a in answers.values()) / len(answers)
            report(f"round  {since(before)}, hub {megabytes(hub):5.0f} MB")
            del answers
        await me.send(names, CrowdHere())

    async with Link(kit) as link:
        await link.run(program)


async def crowd(kits: list[Kit]) -> None:
    """Many parties in one process."""

    async def program(me: Any) -> None:
        await me.send("server", CrowdHere())
        await me.scope("door").recv("server", CrowdHere)
        while isinstance(got := await me.recv("server", CrowdModel, CrowdHere), CrowdModel):
            await me.send("server", CrowdModel(got.data + 1))

    async def one(kit: Kit) -> None:
        async with Link(kit) as link:
            await link.run(program)

    await asyncio.gather(*map(one, kits))


async def connect(kits: list[Kit], report: int) -> None:
    """Connect, and stay connected; report each connection as "+", and each loss as "-" and its reason."""

    async def one(kit: Kit) -> None:
        async with Link(kit, patience=3600.0) as link:
            link.relay.note = lambda why: write_line(report, f"-{why}")
            connections = 0
            await link.connected.wait()
            while True:
                for _ in range(connections, link.connections):
                    write_line(report, "+")
                connections = link.connections
                await asyncio.sleep(1.0)

    pending: set[asyncio.Task[None]] = set()
    for kit in kits:
        pending.add(asyncio.create_task(one(kit)))
        await asyncio.sleep(0)
    await asyncio.gather(*pending)


def measure(parties: int, rounds: int, processes: int, with_nats: bool) -> None:
    names = [f"c{k}" for k in range(parties)]
    hub_kit, kits = temporary("bench", ("server", *names))
    hub, kits = start_relay(hub_kit, kits, with_nats)
    print(f"{parties} parties in {processes} processes", flush=True)
    its_server = fork(
        lambda: server(kits["server"], names, rounds, hub, lambda line: print(" ", line, flush=True))
    )
    crowds = [fork(lambda j=j: crowd([kits[name] for name in names[j::processes]])) for j in range(processes)]
    try:
        os.waitpid(its_server, 0)
        used = [os.wait4(pid, 0)[2] for pid in crowds]
        print(f"  parties {sum(u.ru_utime + u.ru_stime for u in used):6.2f} CPU s in all", flush=True)
    finally:
        os.kill(hub, signal.SIGKILL)
        os.waitpid(hub, 0)


def write_line(to: int, text: str) -> None:
    os.write(to, text.encode(errors="replace")[:400].replace(b"\n", b" ") + b"\n")


def count_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def read_metrics(port: int) -> dict[str, float]:
    """Return the hub's own figures, or {} if it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return {}
    return {name: float(value) for name, value in (x.split() for x in lines if not x.startswith("#"))}


def measure_connections(
    parties: int, processes: int, with_nats: bool, stay: float, does_restart: bool
) -> None:
    names = [f"c{k}" for k in range(parties)]
    hub_kit, kits = temporary("bench", ("server", *names))
    monitor = free_port()
    hub, kits = start_relay(hub_kit, kits, with_nats, f"127.0.0.1:{monitor}")
    read, write = os.pipe()
    began = time.perf_counter()
    pids = [
        fork(lambda j=j: connect([kits[name] for name in names[j::processes]], write))
        for j in range(processes)
    ]
    lines: list[str] = []

    def collect() -> None:
        with open(read, errors="replace") as source:
            lines.extend(line.rstrip() for line in source)

    threading.Thread(target=collect, daemon=True).start()

    def show() -> None:
        its = read_metrics(monitor)
        lost = sum(line.startswith("-") for line in lines)
        print(
            f"  {time.perf_counter() - began:6.0f} s: {len(lines) - 2 * lost:6d} connected, {lost} lost; hub "
            f"{its.get('tacit_hub_connections', -1):.0f} connected, {its.get('tacit_hub_connections_total', -1):.0f} "
            f"accepted, {cpu_seconds(hub):.1f} CPU s, {megabytes(hub):.0f} MB, {count_files(hub)} files; clients "
            f"{sum(map(cpu_seconds, pids)):.1f} CPU s, {max(map(count_files, pids))} files, load {os.getloadavg()[0]:.0f}",
            flush=True,
        )

    try:
        shown = time.perf_counter()
        while sum(line == "+" for line in lines) - sum(line.startswith("-") for line in lines) < parties:
            time.sleep(0.1)
            if time.perf_counter() - shown > 10:
                shown = time.perf_counter()
                show()
        print(
            f"{parties} connections: {time.perf_counter() - began:.1f} s, hub {cpu_seconds(hub):.1f} CPU s, "
            f"{megabytes(hub):.0f} MB"
        )
        show()
        until = time.perf_counter() + stay
        while time.perf_counter() < until:
            time.sleep(min(20.0, max(0.1, until - time.perf_counter())))
            show()
        if does_restart:
            lost = sum(line == "+" for line in lines)
            os.kill(hub, signal.SIGKILL)
            os.waitpid(hub, 0)
            at = next(iter(kits.values())).address
            began = time.perf_counter()
            hub = fork(lambda: hubs.serve(replace(hub_kit, listen=at), monitor=f"127.0.0.1:{monitor}"))
            print("the hub was killed and started again")
            while sum(line == "+" for line in lines) < lost + parties:
                time.sleep(2.0)
                show()
        for why, count in Counter(line for line in lines if line != "+").most_common(8):
            print(f"  {count} x {why}")
    finally:
        for pid in (*pids, hub):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parties", type=int, nargs="+", default=[100, 500, 1000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--connect", type=int, help="connect this many parties and measure the hub's memory")
    parser.add_argument("--stay", type=float, default=0.0, help="with --connect: watch so many seconds more")
    parser.add_argument("--restart", action="store_true", help="with --connect: kill the hub, start it again")
    parser.add_argument("--nats", action="store_true", help="a NATS server in place of the hub")
    args = parser.parse_args()
    open_files.raise_limit()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if args.connect is not None:
        measure_connections(args.connect, args.processes, args.nats, args.stay, args.restart)
        return
    for parties in args.parties:
        measure(parties, args.rounds, args.processes, args.nats)


if __name__ == "__main__":
    main()
