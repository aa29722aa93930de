"""Anonymous tables: how long, and at what loss, beside anjana and the published figures of ARX, on the Adult
benchmark with ARX's hierarchies.

    TACIT_DATA=… .venv/bin/python benchmarks/anonymize.py [--large]

Each figure is the best of three runs, from data frame to data frame, in one process. anjana is run beside us
where `.venv-peers/anjana` has it (benchmarks/peers/install.sh); ARX needs a Java machine, so its figures are
those measured once, warm, and are printed as such. `--large` adds 10 million rows by Datafly and by the
full-domain search, with the peak of memory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas

import tacit

HERE = Path(__file__).parent
ROOT = Path(os.environ.get("TACIT_DATA") or HERE.parents[1] / "shared" / "data") / "arx"
PEER = HERE.parent / ".venv-peers" / "anjana" / "bin" / "python"
EIGHT = ["occupation"]  # left out
FOUR = ["education", "native-country", "workclass", "occupation", "salary-class"]
WORK: list[
    tuple[str, list[str], str, float | None, float, float]
] = [  # name, left out, method, limit, ARX seconds, ARX loss
    ("4 quasi-identifiers, 4%", FOUR, "optimal", 0.04, 0.105, 0.0255),
    ("8 quasi-identifiers, 4%", EIGHT, "optimal", 0.04, 0.768, 0.2044),
    ("9 quasi-identifiers, 4%", [], "optimal", 0.04, 1.97, 0.2928),
    ("9 quasi-identifiers, 0%", [], "optimal", 0.0, 0.106, 0.6355),
    ("9 quasi-identifiers, 100%", [], "optimal", 1.0, 6.5, 0.2277),
    ("9, local recoding", [], "cluster", None, 11.0, 0.0591),
]


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--large", action="store_true", help="10 million rows too")
    large = options.parse_args().large
    frame = pandas.read_csv(ROOT / "adult.csv.gz", sep=";", dtype=str, keep_default_na=False)
    print(
        f"{'':28} {'tacit s':>8} {'cpu s':>7} {'loss':>7}   {'ARX s':>6} {'loss':>7} {'ratio':>6}   "
        f"{'anjana s':>8} {'loss':>7} {'ratio':>6}"
    )
    for name, left_out, method, limit, arx, arx_loss in WORK:
        quasi = [c for c in frame.columns if c not in left_out]
        hierarchies = {
            c: tacit.anonymity.Hierarchy.from_csv(ROOT / f"adult_hierarchy_{c}.csv") for c in quasi
        }
        ask: dict[str, Any] = dict(
            quasi=quasi, k=5, hierarchies=hierarchies, method=method, max_suppressed=limit
        )
        walls, cpus = [], []
        for _ in range(3):
            wall, cpu = time.perf_counter(), time.process_time()
            made = tacit.anonymize(frame, **ask)
            walls.append(time.perf_counter() - wall)
            cpus.append(time.process_time() - cpu)
        peer = _anjana(quasi, limit) if method == "optimal" and limit == 0.04 else None
        beside = (
            ""
            if peer is None
            else f"   {peer['seconds']:8.2f} {peer['loss']:7.4f} {peer['seconds'] / min(walls):5.1f}×"
        )
        print(
            f"{name:28} {min(walls):8.3f} {min(cpus):7.3f} {made.loss:7.4f}   {arx:6.3f} {arx_loss:7.4f} "
            f"{arx / min(walls):5.1f}×{beside}",
            flush=True,
        )
    if large:
        subprocess.run([sys.executable, str(HERE.parent / "tests" / "anonymity" / "large.py")], check=True)


def _anjana(quasi: list[str], limit: float) -> dict[str, float] | None:
    """The peer in its own environment, the same table and hierarchies; its loss by our measure of its
    table.
    """
    if not PEER.exists():
        return None
    asked = json.dumps({"root": str(ROOT), "quasi": quasi, "k": 5, "limit": limit})
    ran = subprocess.run(
        [str(PEER), str(HERE / "peers" / "anjana_work.py"), asked],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    return json.loads(ran.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
