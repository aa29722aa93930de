"""Private set intersection: CPU seconds of both roles and bytes in both directions, against OpenMined's PSI and
SPU's, in one run on the same sets.

    .venv/bin/python benchmarks/psi.py                          # 10,000, 100,000 and a million ids per side: about five minutes on an idle machine
    .venv/bin/python benchmarks/psi.py --sizes 1000000          # without Diffie-Hellman (tacit's and OpenMined's), which takes many minutes above 100,000
    .venv/bin/python benchmarks/psi.py --prepared 1000000      # a thousand ids against a prepared set: about 2 minutes
    .venv/bin/python benchmarks/psi.py --shares --sizes 10000 100000   # circuit PSI: membership stays shared
    .venv/bin/python benchmarks/psi.py --huge                   # ten million per side, for memory: only tacit, about 3 minutes
    .venv/bin/python benchmarks/psi.py --disk 10000000 10000000    # CSV files of the receiver and the sender, matched on disk
    .venv/bin/python benchmarks/psi.py --disk 1000000 1000000 1000000   # the same of three parties
    .venv/bin/python benchmarks/psi.py --disk 300000 300000 --reveal sum   # counts ("size") and sums: some 4 and 14 CPU minutes a million ids

Half of the ids are shared, and the receiver learns which. tacit's roles are two processes that communicate
through a hub with certificates and end-to-end encryption (`tacit.Processes`); the hub's CPU time is not
counted. CPU time is from ids as text to the shared rows, including helper processes; bytes are those of
messages. Loading libraries is not counted for anybody: ours include the loops that numba compiled (`load`, about
.5 CPU seconds in a process that matches for the first time). OpenMined's roles run in one process; SPU's are two
processes and read CSV files. The best of --runs by CPU time is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit.crypto import okvs, ot, vole
from tacit.data.identifiers import identify
from tacit.jobs.vertical import join_shares, psi_files
from tacit.jobs.vertical.psi_files import ValueColumn
from tacit.jobs.vertical.psi_prepared import prepare_ids
from tacit.mpc.beaver import MUL
from tacit.parties.ledger import Ledger
from tacit.parties.party import Party
from tacit.protocols import prepared_set, psi, psi_many, psi_prepared
from tacit.protocols.psi import LIMIT
from tacit.protocols.psi_policy import COUNTED
from tacit.protocols.psi_resume import Checkpoint
from tacit.runtimes.processes import Processes

PEERS = Path(__file__).parents[1] / ".venv-peers"
HERE = Path(__file__).parent / "peers"
AIMS = {1_000_000: (6.0, 40.0)}  # CPU seconds, MB: the goals of issue 29


def cpu() -> float:
    """CPU seconds of this process and its finished children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def load() -> float:
    """Load the compiled loops, by one small vector OLE and store; return the CPU seconds that this took."""
    begun, keys = cpu(), np.frombuffer(os.urandom(160), np.uint8).reshape(-1, 16)
    bits, (secret, offer) = np.zeros(vole.BASE, np.uint8), ot.offer(os.urandom)
    points, seeds = ot.choose(offer, bits, b"load", os.urandom)
    pairs = ot.pairs(secret, offer, points, vole.BASE, b"load")
    columns, pending = vole.VoleReceiver(*pairs, b"load").request(200, os.urandom)
    sender = vole.VoleSender(seeds, bits, b"load")
    sums, b = sender.answer(200, columns, os.urandom)
    mask, c = pending.finish(sums)
    sender.add_products(b, np.frombuffer(mask.tobytes(), np.uint64))
    values = np.ascontiguousarray(keys[:, :8])
    okvs.encode(keys, values, b"s" * 32, os.urandom)
    okvs.decode(c.view(np.uint8), keys, b"s" * 32)
    sender.add_products(c, values.view(np.uint64)[:, 0])
    return cpu() - begun


async def role(me: Party, start: int, n: int, method: str, reveal: str) -> dict[str, Any]:
    """The complete work of a party. Memory is the growth of its peak over that before it had any id."""
    loading = load()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun, wall = cpu(), time.perf_counter()
    held = identify(f"id{i}" for i in range(start, start + n))
    run = psi.receiver if me.name == "receiver" else psi.sender
    result = await run(me, held.digests, method=method, reveal=reveal)
    return {
        "cpu": cpu() - begun,
        "loading": loading,
        "wall": time.perf_counter() - wall,
        "shared": result["size"],
        "memory": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3,
    }


async def match_stored(me: Party, ids: Any, names: list[str], reveal: str, record: Path) -> dict[str, Any]:
    leads = me.name == names[0]
    if len(names) > 2:
        common: dict[str, Any] = {"others": names[1:], "reveal": "all" if reveal == "both" else "leader"}
        if leads:
            return await psi_many.leader(me, ids, **common)
        return await psi_many.member(me, ids, leader=names[0], **common)
    run = psi.receiver if leads else psi.sender
    if reveal in COUNTED:
        return await run(me, ids, reveal=reveal)
    return await run(me, ids, method="oprf", reveal=reveal, checkpoint=Checkpoint(record, {}))


async def disk_role(me: Party, file: str, names: list[str], reveal: str) -> dict[str, Any]:
    """What `tacit psi --kit` does with a table above four million rows: read, match, and write on disk."""
    loading, marks = load(), []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    folder = Path(file).parent
    numbers = ValueColumn("value", LIMIT) if reveal == "sum" and me.name != names[0] else None
    with psi_files.Scratch(folder, always=True) as scratch:
        marks.append(cpu())
        held = await asyncio.to_thread(
            functools.partial(psi_files.read_ids_into, scratch, Path(file), "id", None, values=numbers)
        )
        marks.append(cpu())
        result = await match_stored(me, held.digests, names, reveal, scratch.folder() / "record")
        marks.append(cpu())
        disk = sum(path.stat().st_size for path in scratch.folder().rglob("*"))
        if result["rows"] is not None:
            out = folder / f"{me.name}-out.csv"
            await asyncio.to_thread(
                psi_files.write_shared, Path(file), held, result["rows"], out, scratch, 0, False, "inner"
            )
        marks.append(cpu())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "cpu": dict(zip(("read", "match", "write"), np.diff(marks).tolist())),
        "loading": loading,
        "shared": result["size"],
        "memory": (peak - before) / 1e3,
        "peak": peak / 1e3,
        "disk": disk / 1e6,
    }


def disk(sizes: list[int], reveal: str) -> None:
    """CSV files of so many rows, of the receiver or leader first; half of the smallest set is shared."""
    receivers, others = sizes[0], sizes[1:]
    names = (
        ["receiver", "sender"]
        if len(others) == 1
        else ["leader", *(f"member{k}" for k in range(len(others)))]
    )
    with tempfile.TemporaryDirectory(dir=".") as folder:
        first = dict(zip(names, (0, *(min(receivers, size) // 2 for size in others))))
        for (name, start), count in zip(first.items(), sizes):
            with Path(folder, f"{name}.csv").open("w") as out:
                out.write("id,value\n")
                for at in range(start, start + count, 1 << 20):
                    some = range(at, min(at + (1 << 20), start + count))
                    out.write("".join(f"id{i},{i % 97}\n" for i in some))
        ledger, begun = Ledger(), time.perf_counter()
        outcomes = Processes().run_sync(
            {
                n: functools.partial(disk_role, file=f"{folder}/{n}.csv", names=names, reveal=reveal)
                for n in first
            },
            ledger=ledger,
        )
        wall = time.perf_counter() - begun
        print(
            f"on disk, {' and '.join(f'{size:,}' for size in sizes)} ids, reveal={reveal}: "
            f"{sum(line.bytes for line in ledger.seen) / 1e6:,.0f} MB, {wall:.0f} s, "
            f"{outcomes[names[0]]['shared']:,} shared"
        )
        for name, o in outcomes.items():
            stages = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in o["cpu"].items())
            print(
                f"{name}: {sum(o['cpu'].values()):.1f} CPU-s ({stages}), memory +{o['memory']:.0f} MB "
                f"(peak {o['peak']:.0f} MB), {o['disk']:,.0f} MB of files",
                flush=True,
            )


def ours(n: int, method: str, reveal: str = "receiver") -> dict[str, Any]:
    ledger = Ledger()
    outcomes = Processes().run_sync(
        {
            "receiver": functools.partial(role, start=0, n=n, method=method, reveal=reveal),
            "sender": functools.partial(role, start=n // 2, n=n, method=method, reveal=reveal),
        },
        ledger=ledger,
    )
    return {
        "cpu": outcomes["receiver"]["cpu"] + outcomes["sender"]["cpu"],
        "bytes": sum(line.bytes for line in ledger.seen),
        "shared": outcomes["receiver"]["shared"],
        "wall": outcomes["receiver"]["wall"],
        "memory": {name: round(m["memory"]) for name, m in outcomes.items()},
    }


async def shares_role(me: Party, start: int, n: int, width: int) -> dict[str, Any]:
    """A party of circuit PSI: its ids as text to its shares of membership and of the sender's columns."""
    loading = load()
    MUL.shape((1, 1), (1, 1))  # torch imports the shapes of its operators when they are first asked for
    names, begun = ("receiver", "sender"), cpu()
    ids = (f"id{i}" for i in range(start, start + n))
    if me.name == "helper":
        await join_shares.help_match(me, names)
        return {"cpu": cpu() - begun, "loading": loading}
    digests = identify(ids).digests
    if me.name == "receiver":
        found = await join_shares.match_first(me, names, "helper", digests, width)
    else:
        payload = torch.arange(n).reshape(-1, 1).repeat(1, width)
        found = await join_shares.match_second(me, names, "helper", digests, payload)
    return {"cpu": cpu() - begun, "loading": loading, "match": found["rows"][0]}


def shares(n: int, width: int) -> None:
    """Circuit PSI with `width` columns of the sender; the helper's CPU time is counted, too."""
    ledger, roles = Ledger(), {"receiver": 0, "sender": n // 2, "helper": 0}
    outcomes = Processes().run_sync(
        {name: functools.partial(shares_role, start=at, n=n, width=width) for name, at in roles.items()},
        ledger=ledger,
    )
    matched = int((outcomes["receiver"]["match"] + outcomes["sender"]["match"]).sum())
    if matched != n - n // 2:
        raise SystemExit(f"found {matched} shared ids of {n - n // 2}")
    size = sum(line.bytes for line in ledger.seen)
    seconds = sum(o["cpu"] for o in outcomes.values())
    print(
        f"circuit PSI, {n:,} ids per side, {width} columns: {seconds:.2f} CPU-s "
        f"({outcomes['helper']['cpu']:.2f} of them the helper's), {size / 1e6:.2f} MB, "
        f"{8 * size / n:,.0f} bits for each id",
        flush=True,
    )


async def prepared_role(me: Party, ids: int, folder: str) -> dict[str, Any]:
    begun = cpu()
    if me.name == "sender":
        await psi_prepared.sender(me, folder)
        return {"cpu": cpu() - begun}
    held = identify(f"id{i}" for i in range(ids // 2, ids // 2 + ids))
    result = await psi_prepared.receiver(me, held.digests, table=f"{folder}/{prepared_set.TABLE_FILE}")
    return {"cpu": cpu() - begun, "shared": result["size"]}


def prepared(large: int, small: int = 1000) -> None:
    """A small set against a large one that was prepared before, and only for the small one's cost."""
    with tempfile.TemporaryDirectory() as folder:
        before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, cpu()
        table = prepare_ids((f"id{i}" for i in range(small, small + large)), f"{folder}/set")
        offline = cpu() - begun
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3
        print(
            f"prepare {large:,} ids: {offline:.1f} CPU-s, {table.path.stat().st_size / 1e6:.1f} MB of table, "
            f"{grown:.0f} MB of memory"
        )
        ledger, programs = Ledger(), functools.partial(prepared_role, ids=small, folder=f"{folder}/set")
        outcomes = Processes().run_sync({"receiver": programs, "sender": programs}, ledger=ledger)
        print(
            f"ask about {small:,} ids: {sum(o['cpu'] for o in outcomes.values()):.2f} CPU-s, "
            f"{sum(line.bytes for line in ledger.seen) / 1e6:.3f} MB, {outcomes['receiver']['shared']} shared"
        )


def peer(environment: str, script: str, *words: str) -> dict[str, Any] | None:
    python = PEERS / environment / "bin" / "python"
    if not python.exists():
        return None
    ran = subprocess.run([str(python), str(HERE / script), *words], capture_output=True, text=True)
    if ran.returncode:
        print(f"{script} {' '.join(words)} failed: {ran.stderr.strip()[-200:]}", file=sys.stderr)
        return None
    return json.loads(ran.stdout.strip().splitlines()[-1])


def contenders(n: int) -> dict[str, Any]:
    contenders: dict[str, Any] = {"tacit oprf": functools.partial(ours, n, "oprf")}
    if n <= 100_000:
        contenders["tacit dh"] = functools.partial(ours, n, "dh")
        contenders["openmined-psi"] = functools.partial(peer, "openmined", "openmined_psi.py", str(n))
    for protocol in ("RR22", "KKRT"):
        contenders[f"SPU {protocol}"] = functools.partial(peer, "spu", "spu_psi.py", protocol, str(n))
    return contenders


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--only", nargs="+", default=[], help="contenders, like 'tacit oprf'")
    parser.add_argument("--huge", action="store_true")
    parser.add_argument("--prepared", type=int, metavar="N", help="a thousand ids against N prepared ones")
    parser.add_argument(
        "--disk", type=int, nargs="+", metavar="N", help="rows of each party, the receiver first"
    )
    parser.add_argument("--reveal", default="receiver", help="with --disk: receiver, both, size or sum")
    parser.add_argument("--shares", action="store_true", help="circuit PSI")
    args = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if args.prepared:
        prepared(args.prepared)
        return
    if args.disk:
        disk(args.disk, args.reveal)
        return
    if args.shares:
        for n in args.sizes:
            for width in (0, 1):
                shares(n, width)
        return
    if args.huge:
        figures = ours(10_000_000, "oprf")
        print(
            f"10,000,000 per side: {figures['cpu']:.0f} CPU-s, {figures['bytes'] / 1e6:,.0f} MB, "
            f"{figures['wall']:.0f} s, memory {figures['memory']} MB, "
            f"{figures['shared']:,} shared"
        )
        return
    for n in args.sizes:
        print(f"\n{n:,} ids per side\n{'':16}{'CPU-s':>9}{'MB':>9}{'CPU, oprf = 1':>15}")
        best: dict[str, dict[str, Any]] = {}
        for name, run in contenders(n).items():
            if args.only and name not in args.only:
                continue
            slow = name in ("tacit dh", "openmined-psi") and n > 10_000
            runs = [t for t in (run() for _ in range(1 if slow else args.runs)) if t is not None]
            if not runs:
                print(f"{name:16}{'not installed':>18}")
                continue
            if any(t["shared"] != n - n // 2 for t in runs):
                raise SystemExit(f"{name} found {runs[0]['shared']} shared ids of {n - n // 2}")
            best[name] = min(runs, key=lambda t: t["cpu"])
            ratio = best[name]["cpu"] / best["tacit oprf"]["cpu"] if "tacit oprf" in best else float("nan")
            size = "–" if best[name]["bytes"] is None else f"{best[name]['bytes'] / 1e6:.2f}"
            print(f"{name:16}{best[name]['cpu']:9.2f}{size:>9}{ratio:15.2f}", flush=True)
        if n in AIMS and "tacit oprf" in best:
            seconds, mb = AIMS[n]
            fine = best["tacit oprf"]["cpu"] <= seconds and best["tacit oprf"]["bytes"] / 1e6 <= mb
            print(f"the goal, {seconds:g} CPU-s and {mb:g} MB: {'reached' if fine else 'missed'}")


if __name__ == "__main__":
    main()
