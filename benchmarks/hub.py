"""The cost of a hub: messages and MB/s through it, encrypted end to end, against a plain grpc.aio echo in the same
run.

    python benchmarks/hub.py            # everything, about three minutes
    python benchmarks/hub.py --quick    # a tenth of the work

Each side (echo server or hub, each party) is a separate process. Both use mutual TLS with the same
certificates. The echo sends a payload and gets it back over one connection. Through the hub the same payload
goes from one party to another, encrypted, and a short answer returns (for MB/s), or the payload itself returns
(for the round trip). So an echoed and a relayed megabyte both cross two TLS connections.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import socket
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import torch

from tacit.parties import Message
from tacit.runtimes import hub as hubs
from tacit.runtimes.hub_relay import CLIENT_OPTIONS
from tacit.runtimes.kits import Kit, temporary
from tacit.runtimes.link import Link

torch.set_num_threads(1)
REPEATS = 7
ECHO = "/bench.Echo/Stream"
BIG = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class BenchBytes(Message, reveals="bytes of a benchmark"):
    data: bytes


class BenchVector(Message, reveals="a vector of a benchmark"):
    data: torch.Tensor


class BenchDone(Message, reveals="that a benchmark's payload has arrived"):
    pass


def process(work: Callable[[], Any]) -> int:
    """Fork before this process has opened any connection."""
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(work())
        except BaseException as error:
            print(type(error).__name__, error, file=sys.stderr)
        os._exit(0)
    return pid


def port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


async def echo_server(kit: Kit, at: int) -> None:
    authority, key, certificate = kit.pems()
    server = grpc.aio.server(options=BIG)

    async def echo(requests: Any, context: Any) -> None:
        async for data in requests:
            await context.write(data)

    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                "bench.Echo", {"Stream": grpc.stream_stream_rpc_method_handler(echo)}
            ),
        )
    )
    server.add_secure_port(
        f"127.0.0.1:{at}",
        grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True),
    )
    await server.start()
    await server.wait_for_termination()


async def bare(kit: Kit, at: int, sizes: dict[int, int]) -> dict[int, float]:
    """Seconds per message, there and back. Large ones are sent as chunks of at most 1 MiB, all in flight at once, as
    in any streaming program.
    """
    authority, key, certificate = kit.pems()
    options = [o for o in CLIENT_OPTIONS if "message_length" not in o[0]] + BIG
    timings = {}
    async with grpc.aio.secure_channel(
        f"127.0.0.1:{at}", grpc.ssl_channel_credentials(authority, key, certificate), options=options
    ) as channel:
        call = channel.stream_stream(ECHO)()
        for size, count in sizes.items():
            chunk = bytes(min(size, 1 << 20))
            pieces = max(1, size // len(chunk))

            async def once(chunk: bytes = chunk, pieces: int = pieces) -> None:
                async def writes() -> None:
                    for _ in range(pieces):
                        await call.write(chunk)

                writer = asyncio.create_task(writes())
                for _ in range(pieces):
                    await call.read()
                await writer

            await once()
            began = time.perf_counter()
            for _ in range(count):
                await once()
            timings[size] = (time.perf_counter() - began) / count
        call.cancel()
    return timings


async def far_end(kit: Kit, rounds: int) -> None:
    async with Link(kit) as link:
        await link.run(lambda me: _answers(me, rounds))


async def _answers(me: Any, rounds: int) -> None:
    for _ in range(rounds):
        got = await me.recv("a", BenchBytes, BenchVector, BenchDone)
        if isinstance(got, BenchDone):
            return
        await me.send("a", got if isinstance(got, BenchBytes) and len(got.data) <= 1024 else BenchDone())


async def through(kit: Kit, sizes: dict[int, int]) -> dict[int, float]:
    timings = {}

    async def plays(me: Any) -> None:
        for size, count in sizes.items():
            message: Any = BenchBytes(bytes(size)) if size <= 1024 else BenchVector(torch.zeros(size // 4))

            async def once(message: Any = message) -> None:
                await me.send("b", message)
                await me.recv("b", BenchBytes, BenchDone)

            await once()
            began = time.perf_counter()
            for _ in range(count):
                await once()
            timings[size] = (time.perf_counter() - began) / count
        await me.send("b", BenchDone())

    async with Link(kit) as link:
        await link.run(plays)
    return timings


async def flat(kit: Kit, rounds: int) -> tuple[float, float, float]:
    """(kB after a tenth, kB at the end, seconds) of this process over many rounds of a small model."""
    memory: list[float] = []

    async def plays(me: Any) -> None:
        message = BenchVector(torch.zeros(1000))
        for i in range(rounds):
            await me.send("b", message)
            await me.recv("b", BenchDone)
            if i in (rounds // 10, rounds - 1):
                memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        await me.send("b", BenchDone())

    began = time.perf_counter()
    async with Link(kit) as link:
        await link.run(plays)
    return memory[0], memory[1], time.perf_counter() - began


async def one_round(kits: dict[str, Kit], clients: int, parameters: int) -> tuple[float, int]:
    """One federated round: the model to all parties, an update from each, their mean. Returns (seconds, bytes)."""
    names = [f"c{k}" for k in range(clients)]
    elapsed: list[float] = []

    async def server(me: Any) -> None:
        w = torch.zeros(parameters)
        for timed in (False, True):
            began = time.perf_counter()
            await me.send(names, BenchVector(w))
            ups = await me.gather(names, BenchVector)
            w = sum(u.data for u in ups.values()) / clients
            if timed:
                elapsed.append(time.perf_counter() - began)
        await me.send(names, BenchDone())

    async with Link(kits["server"]) as link:
        await link.run(server)
    return elapsed[0], 2 * clients * 4 * parameters


async def client(kit: Kit) -> None:
    async def program(me: Any) -> None:
        while isinstance(got := await me.recv("server", BenchVector, BenchDone), BenchVector):
            await me.send("server", BenchVector(got.data + 1))

    async with Link(kit) as link:
        await link.run(program)


async def crowd(kits: dict[str, Kit], names: list[str]) -> float:
    """Seconds until a server has a message from each of many connections."""

    async def server(me: Any) -> None:
        await me.gather(names, BenchDone)

    began = time.perf_counter()
    async with Link(kits["server"]) as link:
        await link.run(server)
    return time.perf_counter() - began


async def many(kits: list[Kit]) -> None:
    async def one(kit: Kit) -> None:
        async with Link(kit) as link:
            await link.run(lambda me: me.send("server", BenchDone()))

    await asyncio.gather(*map(one, kits))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; medians of {REPEATS} turns")
    less = 10 if parser.parse_args().quick else 1
    names = ("a", "b", "server", *(f"c{k}" for k in range(100)))
    hub_kit, kits = temporary("bench", names)
    at, echo_at = port(), port()
    kits = {name: kit.at(f"127.0.0.1:{at}") for name, kit in kits.items()}
    pids = [
        process(lambda: hubs.serve(replace(hub_kit, listen=f"127.0.0.1:{at}"))),
        process(lambda: echo_server(hub_kit, echo_at)),
    ]
    time.sleep(1.0)
    sizes = {
        1024: 1000 // less,
        1 << 20: 50 // less,
        16 << 20: 10 // min(less, 5),
        64 << 20: 3 // min(less, 3),
    }

    def measure(work: Callable[[], Any], *peers: Callable[[], Any]) -> Any:
        """Run in a child, so that this process never opens a connection and can continue to fork."""
        read, write = os.pipe()
        pids = [process(p) for p in peers]

        async def write_result() -> None:
            os.write(write, repr(await work()).encode())

        process(write_result)
        os.close(write)
        import ast

        with os.fdopen(read, "rb") as file:
            text = file.read()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        return ast.literal_eval(text.decode())

    try:
        rounds = sum(sizes.values()) + len(sizes) + 1
        turns: list[tuple[dict[int, float], dict[int, float]]] = []
        for _ in range(REPEATS):  # alternately, and the median of each, so that other load affects both
            turns.append(
                (
                    measure(lambda: bare(kits["a"], echo_at, sizes)),
                    measure(lambda: through(kits["a"], sizes), lambda: far_end(kits["b"], rounds)),
                )
            )
        echo, ours = (
            {size: statistics.median(turn[side][size] for turn in turns) for size in sizes} for side in (0, 1)
        )
        print(f"{'payload':>10} {'plain echo':>14} {'hub':>14} {'ratio':>7}")
        print(
            f"{'1 kB':>10} {1e3 * echo[1024]:>11.2f} ms {1e3 * ours[1024]:>11.2f} ms "
            f"{ours[1024] / echo[1024]:>6.2f}×   round trip (goal ≤ 3×)"
        )
        for size in list(sizes)[1:]:
            a, b = size / echo[size] / 1e6, size / ours[size] / 1e6
            print(f"{f'{size >> 20} MiB':>10} {a:>9.0f} MB/s {b:>9.0f} MB/s {b / a:>6.2f}×   (goal ≥ 0.5×)")
        print(
            f"{'':>10} {1 / echo[1024]:>9.0f} /s   {1 / ours[1024]:>9.0f} /s      messages of 1 kB, one at "
            "a time"
        )
        first, last, seconds = measure(
            lambda: flat(kits["a"], 10_000 // less), lambda: far_end(kits["b"], 10_000)
        )
        print(
            f"{10_000 // less} rounds of a small model: {seconds:.1f} s, memory {first / 1024:.0f} MB after "
            f"a tenth, {last / 1024:.0f} MB at the end"
        )
        parameters = 10_000_000 // less
        seconds, total = measure(
            lambda: one_round(kits, 10, parameters), *(lambda k=k: client(kits[f"c{k}"]) for k in range(10))
        )
        print(
            f"a round of 10 parties with {parameters / 1e6:g} million parameters: {seconds:.2f} s, "
            f"{total / 1e6:.0f} MB of numbers on the network"
        )
        clients = [f"c{k}" for k in range(100)]
        seconds = measure(
            lambda: crowd(kits, clients),
            *(lambda j=j: many([kits[c] for c in clients[j::4]]) for j in range(4)),
        )
        print(f"connections of 100 parties, one message each: {seconds:.1f} s")
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
