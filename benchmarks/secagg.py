"""One round of secure aggregation: CPU seconds of a client and of the server, and bytes up, against the stage
functions of Flower's SecAgg+.

    .venv/bin/python benchmarks/secagg.py                     # 100 clients, a million numbers: about 3 minutes, 3 GB
    .venv/bin/python benchmarks/secagg.py --parties 20 --length 100000

For tacit the complete protocol runs over encoded and decoded messages: every party's program runs in one
process, and the CPU time of each is measured separately, including encoding and decoding. For Flower the
functions that its mod and its workflow call run for one client and one server, without Ray and without
serialization (its upload is counted as the bytes of the arrays). Both mask in a ring of 32 bits; Flower's masks
come from numpy's Mersenne Twister seeded with 32 bits, tacit's from AES-256. --encrypt adds the CKKS sum of ten
clients.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "protocols"))
from leaving import leaving

from tacit.crypto.digest import Digests
from tacit.parties.ledger import Ledger
from tacit.protocols import encrypted, lightsecagg, secagg
from tacit.protocols.consent import OneSum
from tacit.protocols.secagg_graph import degree
from tacit.runtimes.inprocess import InProcess

PEER = Path(__file__).parents[1] / ".venv-peers" / "flower" / "bin" / "python"


class Stopwatch:
    """Await a coroutine and add up its own CPU time."""

    def __init__(self, coroutine: Any):
        self.inner, self.seconds = coroutine, 0.0

    def __await__(self) -> Generator[Any, Any, Any]:
        steps, value = self.inner.__await__(), None
        while True:
            begun = time.process_time()
            try:
                waiting = steps.send(value)
            except StopIteration as done:
                return done.value
            finally:
                self.seconds += time.process_time() - begun
            value = yield waiting


def measure(protocol: Any, terms: Any, dropped: int) -> dict[str, Any]:
    """Run every program once. The first `dropped` clients drop out after sharing their secrets, the most expensive case
    for the server.
    """
    names = [f"c{i:04d}" for i in range(terms.parties)]
    values = torch.randint(-terms.bound, terms.bound + 1, (terms.length,))  # all equal: only the time matters
    watches: dict[str, Stopwatch] = {}

    def timed(name: str, program: Any) -> Any:
        async def run(me: Any) -> Any:
            watches[name] = Stopwatch(program(me.scope("round 0")))
            return await watches[name]

        return run

    model = torch.zeros(terms.length)

    async def client(me: Any) -> Any:
        """As in a round: bound to the digest of a model of the same length, and to a commitment."""
        return await protocol.client(
            me, values, dataclasses.replace(terms, sent=Digests({"w": model}).of()), commitment=OneSum()
        )

    programs = {
        "server": timed(
            "server",
            lambda me: protocol.server(
                me, names, dataclasses.replace(terms, sent=Digests({"w": model}).of()), within=60.0
            ),
        ),
        **{name: timed(name, client) for name in names},
    }
    ledger = Ledger()
    outcome = InProcess().run_sync(leaving(programs, {name: 2 for name in names[:dropped]}), ledger=ledger)[
        "server"
    ]
    assert torch.equal(outcome.total, values * len(outcome.included))
    assert len(outcome.included) == terms.parties - dropped
    stayed = [watches[name].seconds for name in outcome.included]
    up = sum(line.bytes for line in ledger.seen if line.sender == names[-1] and line.party == "server")
    return {
        "client_cpu_s": statistics.median(stayed),
        "server_cpu_s": watches["server"].seconds,
        "bytes_up": up,
    }


def row(name: str, figures: Mapping[str, Any], peer: Mapping[str, Any] | None = None) -> None:
    ratio = (
        ""
        if peer is None
        else "   × "
        + ", ".join(f"{peer[k] / figures[k]:.1f}" for k in ("client_cpu_s", "bytes_up", "server_cpu_s"))
    )
    print(
        f"{name:44s} {figures['client_cpu_s']:9.3f} {figures['bytes_up'] / 1e6:9.2f} "
        f"{figures['server_cpu_s']:9.3f}{ratio}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parties", type=int, default=100)
    parser.add_argument("--length", type=int, default=1_000_000)
    parser.add_argument("--encrypt", action="store_true", help="also run the encrypted sum with ten clients")
    parser.add_argument("--light", action="store_true", help="also run LightSecAgg with ten clients")
    parser.add_argument("--alone", action="store_true", help="skip the peer")
    args = parser.parse_args()
    n, d = args.parties, args.length
    torch.set_num_threads(1)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; n = {n}, {d} numbers")
    print(
        f"{'':44s} {'client s':>9s} {'MB up':>9s} {'server s':>9s}   Flower / tacit at the "
        "same graph: client, bytes, server"
    )
    peers: dict[tuple[int, int], Any] = {}
    if args.alone:
        pass
    elif PEER.exists():
        for shares, dropped in ((n, 0), (15, 0), (15, n // 20)):
            command = [
                str(x)
                for x in (PEER, Path(__file__).parent / "peers" / "flower_secagg.py", n, shares, d, dropped)
            ]
            ran = subprocess.run(command, capture_output=True, text=True)
            lines = [line for line in ran.stdout.splitlines() if line.startswith("RESULT ")]
            if not lines:
                print(f"Flower did not run: {ran.stderr.strip().splitlines()[-1:]}")
                continue
            peers[shares, dropped] = json.loads(lines[0][7:])
            row(
                f"Flower {peers[shares, dropped]['version']} SecAgg+, {shares} shares, {dropped} dropped",
                peers[shares, dropped],
            )
    else:
        print("Flower is not installed; benchmarks/peers/install.sh creates its environment")
    for bits in (32, 20, 16):
        terms = secagg.SecAggTerms("benchmark", n, d, (2**bits - 1) // (2 * n))
        row(f"SecAgg, complete graph, {bits} bits", measure(secagg, terms, 0), peers.get((n, 0)))
    row(
        f"SecAgg, the same, {n // 20} dropped",
        measure(secagg, secagg.SecAggTerms("benchmark", n, d, (2**32 - 1) // (2 * n)), n // 20),
    )
    for k, why in ((14, "Flower's default"), (degree(n, 0.6), "Bell et al.'s demands")):
        for dropped in (0, n // 20):
            terms = secagg.SecAggTerms("benchmark", n, d, (2**32 - 1) // (2 * n), 0.6, k)
            row(
                f"SecAgg, k = {k} ({why}), {dropped} dropped",
                measure(secagg, terms, dropped),
                peers.get((15, dropped)) if k == 14 else None,
            )
    if args.light:
        row(
            "LightSecAgg, 10 clients, 1 dropped",
            measure(lightsecagg, lightsecagg.LightSecAggTerms("benchmark", 10, d, (2**31 - 1) // 20), 1),
        )
    if args.encrypt:
        for bits in (32, 16):
            row(
                f"Encrypt, 10 clients, {bits} bits",
                measure(encrypted, encrypted.EncryptedSumTerms("benchmark", 10, d, (2**bits - 1) // 20), 0),
            )


if __name__ == "__main__":
    main()
