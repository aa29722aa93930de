"""Anonymization: time and loss compared with anjana and the published figures of ARX, on the Adult table.

    TACIT_DATA=… .venv/bin/python benchmarks/anonymize.py [--large]

Each figure is the best of three runs, from data frame to data frame, in one process, with ARX's hierarchies.
anjana runs if `.venv-peers/anjana` is installed (benchmarks/peers/install.sh). ARX needs a Java runtime, so
its figures were measured once, warm, and are constants below. `--large` adds 10 million rows by Datafly and
by the full-domain search, with the peak memory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pandas

import tacit

HERE = Path(__file__).parent
ROOT = Path(os.environ.get("TACIT_DATA") or HERE.parents[1] / "shared" / "data") / "arx"
PEER = HERE.parent / ".venv-peers" / "anjana" / "bin" / "python"
FIVE = ["education", "native-country", "workclass", "occupation", "salary-class"]


class Job(NamedTuple):
    name: str
    excluded: list[str]  # columns that are not quasi-identifiers
    method: str
    limit: float | None  # max_suppressed
    arx_seconds: float
    arx_loss: float


JOBS = [
    Job("4 quasi-identifiers, 4%", FIVE, "optimal", 0.04, 0.105, 0.0255),
    Job("8 quasi-identifiers, 4%", ["occupation"], "optimal", 0.04, 0.768, 0.2044),
    Job("9 quasi-identifiers, 4%", [], "optimal", 0.04, 1.97, 0.2928),
    Job("9 quasi-identifiers, 0%", [], "optimal", 0.0, 0.106, 0.6355),
    Job("9 quasi-identifiers, 100%", [], "optimal", 1.0, 6.5, 0.2277),
    Job("9, local recoding", [], "cluster", None, 11.0, 0.0591),
]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--large", action="store_true", help="also run 10 million rows")
    large = parser.parse_args().large
    frame = pandas.read_csv(ROOT / "adult.csv.gz", sep=";", dtype=str, keep_default_na=False)
    print(
        f"{'':28} {'tacit s':>8} {'cpu s':>7} {'loss':>7}   {'ARX s':>6} {'loss':>7} {'ratio':>6}   "
        f"{'anjana s':>8} {'loss':>7} {'ratio':>6}"
    )
    for job in JOBS:
        quasi = [c for c in frame.columns if c not in job.excluded]
        hierarchies = {
            c: tacit.anonymity.Hierarchy.from_csv(ROOT / f"adult_hierarchy_{c}.csv") for c in quasi
        }
        options: dict[str, Any] = dict(
            quasi=quasi, k=5, hierarchies=hierarchies, method=job.method, max_suppressed=job.limit
        )
        walls, cpus, loss = [], [], 0.0
        for _ in range(3):
            wall, cpu = time.perf_counter(), time.process_time()
            loss = tacit.anonymize(frame, **options).loss
            walls.append(time.perf_counter() - wall)
            cpus.append(time.process_time() - cpu)
        seconds = min(walls)
        peer = run_anjana(quasi, job.limit) if job.method == "optimal" and job.limit == 0.04 else None
        comparison = (
            ""
            if peer is None
            else f"   {peer['seconds']:8.2f} {peer['loss']:7.4f} {peer['seconds'] / seconds:5.1f}×"
        )
        print(
            f"{job.name:28} {seconds:8.3f} {min(cpus):7.3f} {loss:7.4f}   {job.arx_seconds:6.3f} "
            f"{job.arx_loss:7.4f} {job.arx_seconds / seconds:5.1f}×{comparison}",
            flush=True,
        )
    if large:
        subprocess.run([sys.executable, str(HERE.parent / "tests" / "anonymity" / "large.py")], check=True)


def run_anjana(quasi: list[str], limit: float) -> dict[str, float] | None:
    """Run anjana in its own environment on the same table and hierarchies; its loss by tacit's measure."""
    if not PEER.exists():
        return None
    request = json.dumps({"root": str(ROOT), "quasi": quasi, "k": 5, "limit": limit})
    process = subprocess.run(
        [str(PEER), str(HERE / "peers" / "anjana_work.py"), request],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    output: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return output


if __name__ == "__main__":
    main()
