"""Computing on secret shares: CPU seconds per party, MB in total, rounds. Two parties and a dealer, each a
real process, over loopback TCP.

    .venv/bin/python benchmarks/mpc.py            # compared with CrypTen and SPU, if installed
    .venv/bin/python benchmarks/mpc.py --harder   # the cost of malicious security, and of having no dealer
    .venv/bin/python benchmarks/mpc.py --study    # MNIST: accuracy and cost by batch size (needs TACIT_DATA)

`benchmarks/peers/install.sh` installs CrypTen and SPU. *CPU s* is the process time of the busier of the two
parties, the best of three; the dealer's is listed separately, because it can be spent in advance. *MB* is
every byte of every message, of which *dealt* is the dealer's part. *again* is one more batch of a model whose
masked weights were sent already. CrypTen runs with its default provider, which has no dealer process: the first party
generates the triples and could remove every mask, and no byte is counted for them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacit.mpc import checked, functions, inference, pair, tagged
from tacit.mpc.beaver import MATMUL, MUL, Triple
from tacit.mpc.compare import Comparison
from tacit.mpc.context import RingContext
from tacit.mpc.dealer import Request, Stock, dealer, plan
from tacit.mpc.elements import TaggedShare
from tacit.mpc.extension import OTChannel
from tacit.mpc.model import compile, to_text
from tacit.mpc.tagged_context import TaggedContext
from tacit.mpc.truncate import Truncation
from tacit.parties.ledger import Ledger
from tacit.parties.mailbox import Mailbox
from tacit.parties.party import Party
from tacit.parties.secret import Secret

HERE = Path(__file__).parent
PARTIES = ("owner", "client", "helper")
BEST_OF = 3
DEALT = ("TapeKey", "Corrections")  # what the dealer sends


class Wires:
    """A party's TCP connections; each frame is preceded by its length in eight bytes."""

    def __init__(self, name: str, sockets: dict[str, socket.socket], box: Mailbox):
        self.name, self.sockets, self.box = name, sockets, box

    async def deliver(self, sender: str, to: str, scope: str, frame: bytes) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self.sockets[to], len(frame).to_bytes(8, "little"))
        await loop.sock_sendall(self.sockets[to], frame)

    async def listen(self, other: str) -> None:
        while True:
            head = await self._exactly(other, 8)
            self.box.put(
                other, "", memoryview(await self._exactly(other, int.from_bytes(head, "little"))).toreadonly()
            )

    async def _exactly(self, other: str, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while len(view):
            n = await asyncio.get_running_loop().sock_recv_into(self.sockets[other], view)
            if not n:
                raise asyncio.CancelledError
            view = view[n:]
        return data


def connect() -> dict[str, dict[str, socket.socket]]:
    sockets: dict[str, dict[str, socket.socket]] = {name: {} for name in PARTIES}
    for i, a in enumerate(PARTIES):
        for b in PARTIES[i + 1 :]:
            with socket.create_server(("127.0.0.1", 0)) as server:
                sockets[a][b] = socket.create_connection(server.getsockname())
                sockets[b][a] = server.accept()[0]
    for of_party in sockets.values():
        for s in of_party.values():
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            s.setblocking(False)
    return sockets


Programs = dict[str, Callable[[Party], Any]]


def step_programs(step: Callable[..., Any], *operands: Tensor) -> Programs:
    """One step on shared operands."""
    requests = plan(
        lambda ctx: step(ctx, *[torch.empty(x.shape, dtype=torch.int64, device="meta") for x in operands])
    )

    def computing(rank: int) -> Callable[[Party], Any]:
        async def program(me: Party) -> dict[str, Any]:
            ctx = RingContext(me, rank, PARTIES[:2], await Stock.connect(me, rank, 2, "helper"))
            await step(ctx, *operands)
            return inference.summarize_costs(costs=ctx.costs)

        return program

    async def deal(me: Party) -> None:
        await dealer(me, PARTIES[:2], requests)

    return {"owner": computing(0), "client": computing(1), "helper": deal}


def model_programs(
    model: nn.Module,
    batches: list[Tensor],
    protocol: Any = inference,
    helper: str | None = "helper",
    products: str = "he",
) -> Programs:
    layers, weights = compile(model)

    async def owner(me: Party) -> Any:
        return await protocol.owner(me, to_text(layers), weights, helper=helper, products=products)

    async def client(me: Party) -> Any:
        return await protocol.client(me, batches, helper=helper, products=products)

    return {"owner": owner, "client": client, "helper": protocol.helper if helper else idle}


async def idle(me: Party) -> None:
    """The helper's program where none is needed."""


def pair_programs(requests: list[Request]) -> Programs:
    """The randomness of a program, generated by the two parties."""

    def making(rank: int) -> Callable[[Party], Any]:
        async def program(me: Party) -> dict[str, Any]:
            channel = OTChannel(me, rank, PARTIES[:2])
            await pair.generate(channel, requests)
            return inference.summarize_costs(costs=channel.costs)

        return program

    return {"owner": making(0), "client": making(1), "helper": idle}


def checked_programs(step: Callable[..., Any], *operands: Tensor) -> Programs:
    """One step on tagged shares, with the check."""
    alphas = tagged.draw_keys(2, Secret())
    shares = [tagged.share_tagged(x, alphas, Secret()) for x in operands]
    requests = tagged.plan(
        lambda ctx: step(
            ctx,
            *[TaggedShare(torch.empty((2, *x.shape), dtype=torch.int64, device="meta")) for x in operands],
        )
    )

    def computing(rank: int) -> Callable[[Party], Any]:
        async def program(me: Party) -> dict[str, Any]:
            stock = await tagged.TaggedStock.connect(me, rank, 2, "helper")
            ctx = TaggedContext(me, rank, PARTIES[:2], stock, alpha=alphas[rank])
            await step(ctx, *[TaggedShare(s[rank]) for s in shares])
            await ctx.check()
            return inference.summarize_costs(costs=ctx.costs)

        return program

    async def deal(me: Party) -> None:
        await tagged.deal(me, PARTIES[:2], requests, alphas=alphas)

    return {"owner": computing(0), "client": computing(1), "helper": deal}


def harder(only: str = "") -> None:
    """CPU seconds of the busier party, the dealer's, wall seconds, MB, rounds, and MB of memory."""
    linear = nn.Sequential(nn.Linear(784, 10))
    x, side = torch.arange(10_000), torch.arange(128 * 128).reshape(128, 128)
    million, images = torch.arange(1_000_000), [torch.zeros(64, 1, 28, 28)]

    rows = {
        "checked ReLU 1e4": lambda: checked_programs(functions.relu, x),
        "checked ReLU 1e6": lambda: checked_programs(functions.relu, million),
        "checked mul 1e4": lambda: checked_programs(functions.mul, x, x),
        "checked matmul 128": lambda: checked_programs(
            lambda ctx, a, b: functions.mul(ctx, a, b, MATMUL), side, side
        ),
        "checked MLP batch 1": lambda: model_programs(mlp(), [torch.zeros(1, 1, 28, 28)], checked),
        "checked CNN batch 1": lambda: model_programs(cnn(), [torch.zeros(1, 1, 28, 28)], checked),
        "checked CNN batch 64": lambda: model_programs(cnn(), images, checked),
        "no dealer: 1e5 triples": lambda: pair_programs([Triple(MUL, (100_000,), (100_000,))]),
        "no dealer: matmul 128": lambda: pair_programs([Triple(MATMUL, (128, 128), (128, 128))]),
        "no dealer: product of 512": lambda: pair_programs([Triple(MATMUL, (512, 512), (512, 512))]),
        "no dealer: 1e5 truncations": lambda: pair_programs([Truncation((100_000,), 16)]),
        "no dealer: 1e5 comparisons": lambda: pair_programs([Comparison((100_000,))]),
        "no dealer: 784-10 batch 1": lambda: model_programs(linear, [torch.zeros(1, 784)], helper=None),
        "no dealer: MLP batch 1": lambda: model_programs(mlp(), [torch.zeros(1, 1, 28, 28)], helper=None),
        "no dealer: CNN batch 1": lambda: model_programs(cnn(), [torch.zeros(1, 1, 28, 28)], helper=None),
        "no dealer: CNN batch 64": lambda: model_programs(cnn(), [torch.zeros(64, 1, 28, 28)], helper=None),
        "products='ot': MLP batch 1": lambda: model_programs(
            mlp(), [torch.zeros(1, 1, 28, 28)], helper=None, products="ot"
        ),
        "products='ot': CNN batch 1": lambda: model_programs(
            cnn(), [torch.zeros(1, 1, 28, 28)], helper=None, products="ot"
        ),
    }
    for name, programs in rows.items():
        if only not in name:
            continue
        m = measure(programs())
        print(
            f"{name:28}{m['cpu']:9.3f}{m['dealer']:9.3f}{m['wall']:9.3f}{m['mb']:10.2f}{m['rounds']:6.0f}"
            f"{m['memory']:9.0f}",
            flush=True,
        )


def child(name: str, sockets: dict[str, dict[str, socket.socket]], programs: Programs, out: Any) -> None:
    torch.set_num_threads(1)

    async def life() -> None:
        best = None
        box = Mailbox(name, Ledger())
        wires = Wires(name, sockets[name], box)
        listeners = [asyncio.create_task(wires.listen(other)) for other in sockets[name]]
        for _ in range(BEST_OF):
            cpu, wall = time.process_time(), time.perf_counter()
            result = await programs[name](Party(name, wires, box))
            took = time.process_time() - cpu, time.perf_counter() - wall
            best = took if best is None else min(best, took)
        seen = sum(line.bytes for line in box.ledger.seen) / BEST_OF
        dealt = sum(line.bytes for line in box.ledger.seen if line.kind in DEALT) / BEST_OF
        rounds = (
            sum(r for which in ("costs", "offline") for r, _ in result.get(which, {}).values())
            if result
            else 0
        )
        value = result.get("value") if result else None
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6  # Linux counts in KiB
        out.put((name, best, seen, rounds, None if value is None else value.tolist(), memory, dealt))
        for task in listeners:
            task.cancel()

    asyncio.run(life())


def measure(programs: Programs) -> dict[str, Any]:
    sockets, fork = (
        connect(),
        multiprocessing.get_context("fork"),
    )  # the children inherit sockets and tensors; only figures are pickled
    out = fork.SimpleQueue()
    children = [fork.Process(target=child, args=(name, sockets, programs, out)) for name in PARTIES]
    for process in children:
        process.start()
    figures = {name: rest for name, *rest in (out.get() for _ in PARTIES)}
    for process in children:
        process.join()
    parties = [figures[n][0] for n in PARTIES[:2]]
    return {
        "cpu": max(p[0] for p in parties),
        "wall": max(p[1] for p in parties),
        "dealer": figures["helper"][0][0],
        "mb": sum(t[1] for t in figures.values()) / 1e6,
        "rounds": figures["client"][2],
        "value": figures["client"][3],
        "memory": max(figures[n][4] for n in PARTIES[:2]),
        "dealt": sum(t[5] for t in figures.values()) / 1e6,
    }


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
    )


def again(model: nn.Module, x: Tensor) -> dict[str, Any]:
    """One more batch: four batches less one, divided by three."""
    one, four = measure(model_programs(model, [x])), measure(model_programs(model, [x] * 4))
    return {k: (four[k] - one[k]) / 3 for k in ("cpu", "wall", "dealer", "mb", "rounds", "dealt")}


def ours(only: str = "") -> dict[str, dict[str, Any]]:
    """The rows whose names contain `only`."""
    million, side = torch.arange(1_000_000), torch.arange(512 * 512).reshape(512, 512)
    steps: dict[str, Callable[[], Programs]] = {
        "ReLU 1e6": lambda: step_programs(functions.relu, million),
        "mul 1e6": lambda: step_programs(functions.mul, million, million),
        "matmul 512": lambda: step_programs(lambda ctx, x, y: functions.mul(ctx, x, y, MATMUL), side, side),
        "softmax 1000×10": lambda: step_programs(functions.softmax, torch.zeros(1000, 10, dtype=torch.int64)),
    }
    rows = {name: measure(programs()) for name, programs in steps.items() if only in name}
    for name, model in (("MLP", mlp()), ("CNN", cnn())):
        for n in (1, 64):
            row, x = f"{name} batch {n}", torch.zeros(n, 1, 28, 28)
            if only in row:
                rows[row] = measure(model_programs(model, [x]))
                rows[f"{row}, again"] = again(model, x)
    return rows


def peer(name: str) -> dict[str, dict[str, Any]]:
    """The measurements of a peer library, if it is installed."""
    python = HERE.parent / ".venv-peers" / name / "bin" / "python"
    if not python.exists():
        return {}
    ran = subprocess.run(
        [str(python), str(HERE / "peers" / f"{name}_mpc.py")],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if ran.returncode:
        print(f"{name} does not run here:", ran.stderr.strip().splitlines()[-1:])
        return {}
    return json.loads(ran.stdout.strip().splitlines()[-1])


def study() -> None:
    """Accuracy of two networks on 1,000 MNIST test images, on shares and in the clear."""
    from tacit import data

    rows = data.mnist()
    (x, y), (tx, ty) = rows.rows, rows.test
    x, tx = x.reshape(-1, 1, 28, 28), tx.reshape(-1, 1, 28, 28)[:1000]
    for name, model in (("MLP", mlp()), ("CNN", cnn())):
        torch.manual_seed(0)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for batch in torch.randperm(len(x))[:30_000].split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            plain = model(tx)
        shared = torch.tensor(measure(model_programs(model, list(tx.split(100))))["value"])
        differ = int((shared.argmax(-1) != plain.argmax(-1)).sum())
        clear, hidden = (float((logits.argmax(-1) == ty[:1000]).float().mean()) for logits in (plain, shared))
        print(
            f"{name}: plain {clear:.3f}, on shares {hidden:.3f}, "
            f"{differ} of 1,000 classes differ, logits by at most {float((shared - plain).abs().max()):.1e}"
        )
        for n in (1, 2, 8, 16, 64):
            with torch.no_grad():
                start = time.process_time()
                model(tx[:n])
                clear = time.process_time() - start
            m = again(model, tx[:n])
            print(
                f"| {name} | {n} | {m['cpu']:.3f} | {m['wall']:.2f} | {m['mb']:.2f} | {m['rounds']:.0f} | "
                f"{clear * 1e3:.1f} ms |"
            )


def main() -> None:
    global BEST_OF
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--study", action="store_true")
    options.add_argument("--harder", action="store_true")
    options.add_argument("--best-of", type=int, default=BEST_OF)
    options.add_argument("--only", default="", help="rows whose names contain this, without the peers")
    torch.set_num_threads(1)
    arguments = options.parse_args()
    BEST_OF = arguments.best_of
    if arguments.study:
        return study()
    if arguments.harder:
        return harder(arguments.only)
    mine = ours(arguments.only)
    theirs, spu = ({}, {}) if arguments.only else (peer("crypten"), peer("spu"))
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(
        f"{'':24}{'CPU s':>9}{'dealer':>9}{'wall s':>9}{'MB':>9}{'dealt':>9}{'rounds':>8}   "
        f"{'CrypTen CPU s':>14}{'MB':>9}{'rounds':>8}   ours / CrypTen: CPU, MB   "
        "SPU CPU s, MB"
    )
    for name, m in mine.items():
        line = f"{name:24}{m['cpu']:9.3f}{m['dealer']:9.3f}{m['wall']:9.3f}{m['mb']:9.2f}{m['dealt']:9.2f}"
        line += f"{m['rounds']:8.0f}"
        t = theirs.get(name.removesuffix(", again"))
        line += (
            f"   {t['cpu']:14.3f}{t['mb']:9.2f}{t['rounds']:8.0f}   {m['cpu'] / t['cpu']:.2f}, "
            f"{m['mb'] / t['mb']:.2f}"
            if t
            else ""
        )
        s = spu.get(name)
        line += (
            f"   {s['cpu']:.3f}, {'not counted' if s['mb'] is None else round(s['mb'], 1)}; ours / SPU CPU "
            f"{m['cpu'] / s['cpu']:.2f}"
            if s
            else ""
        )
        print(line)


if __name__ == "__main__":
    sys.exit(main())
