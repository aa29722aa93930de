"""ARGN beside Cart, the other networks and MOSTLY AI's engine, on the same rows of four tables.

    TACIT_DATA=…/data .venv/bin/python benchmarks/argn.py 4000            # rows to train on, at most
    .venv/bin/python benchmarks/argn.py 4000 --peer PEER/bin/python     # with the peer

quality, TSTR and C2ST are those of benchmarks/publish.py: the score of SDMetrics as `tacit.synth.evaluate` defines
it, the AUC of boosted trees trained on synthetic and tested on held-out rows, and the AUC of boosted trees that
tell synthetic from held-out rows (.5 is best). CPU s is for fitting and sampling with one thread.

Tables: Adult and the credit cards of Taiwan (both UCI), and from statsmodels the survey of affairs (Fair 1978) and
the health insurance experiment of RAND. The peer (`pip install mostlyai-engine`, Apache-2.0) needs an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from publish import boosted_auc
from synth import adult

from tacit import synth
from tacit.synth import fidelity
from tacit.synth.views import Views

GENERATORS = (synth.ARGN(device="cpu"), synth.Cart(), synth.TVAE(device="cpu", epochs=100))


def tables() -> dict[str, tuple[pd.DataFrame, str]]:
    """Each table in random order, with the column that models predict."""
    from statsmodels.datasets import fair, randhie

    people = pd.concat(adult(), ignore_index=True)
    data = Path(os.environ["TACIT_DATA"])
    credit = pd.read_csv(data / "fate_vfl" / "UCI_Credit_Card.csv.gz").drop(columns="ID")
    affairs = fair.load_pandas().data.assign(affairs=lambda f: np.where(f["affairs"] > 0, "yes", "no"))
    health = randhie.load_pandas().data.assign(mdvis=lambda f: np.where(f["mdvis"] > 0, "some", "none"))
    named = {
        "Adult": (people, "income" if "income" in people else str(people.columns[-1])),
        "credit cards": (credit, "default.payment.next.month"),
        "affairs": (affairs, "affairs"),
        "health insurance": (health, "mdvis"),
    }
    return {
        name: (f.sample(frac=1, random_state=0).reset_index(drop=True), t) for name, (f, t) in named.items()
    }


def measure(
    train: pd.DataFrame, made: pd.DataFrame, holdout: pd.DataFrame, target: str
) -> tuple[float, float, float]:
    """Return quality, TSTR and C2ST."""
    scores = {
        s.name: s.value for s in fidelity.measure(Views(train, made, holdout), np.random.default_rng(0))
    }
    positive = train[target].unique()[0]
    tstr = boosted_auc(
        made.drop(columns=target),
        made[target] == positive,
        holdout.drop(columns=target),
        holdout[target] == positive,
    )
    rows = min(len(made), len(holdout))
    parts = (slice(rows // 2), slice(rows // 2, rows))
    both = [pd.concat([made[s], holdout[s]], ignore_index=True) for s in parts]
    marks = [pd.Series(np.r_[np.ones(len(b) // 2), np.zeros(len(b) - len(b) // 2)]) for b in both]
    return scores[fidelity.QUALITY.name], tstr, boosted_auc(both[0], marks[0], both[1], marks[1])


def run_peer(python: str, train: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "train.parquet", Path(folder) / "made.parquet"
        train.to_parquet(source)
        work = Path(__file__).parent / "peers" / "mostlyai_work.py"
        done = subprocess.run(
            [python, str(work), str(source), str(target), str(len(train))],
            check=True,
            capture_output=True,
            text=True,
        )
        made = pd.read_parquet(target)
    made = made.astype({c: train[c].dtype for c in train if made[c].dtype != train[c].dtype})
    return made, float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", nargs="?", type=int, default=4000)
    parser.add_argument("--peer", help="the Python of an environment with mostlyai-engine")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'':20}{'':16}" + "".join(f"{h:>9}" for h in ("quality", "TSTR", "C2ST", "CPU s")))
    for name, (frame, target) in tables().items():
        rows = min(args.rows, len(frame) // 2)
        train, holdout = frame.iloc[:rows], frame.iloc[rows : 2 * rows].reset_index(drop=True)
        results = []
        for generator in GENERATORS:
            start = time.process_time()
            made = generator.fit(train).sample(rows, seed=1)
            results.append((type(generator).__name__, made, time.process_time() - start))
        if args.peer:
            results.append(("MOSTLY AI", *run_peer(args.peer, train)))
        for who, made, seconds in results:
            figures = measure(train, made, holdout, target)
            print(
                f"{name:20}{who:16}" + "".join(f"{f:9.3f}" for f in figures) + f"{seconds:9.0f}", flush=True
            )


if __name__ == "__main__":
    main()
