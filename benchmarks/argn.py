"""ARGN beside Cart, the other networks and MOSTLY AI's engine, on the same rows of seven tables.

    TACIT_DATA=…/data .venv/bin/python benchmarks/argn.py 4000            # rows to train on, at most
    .venv/bin/python benchmarks/argn.py 4000 --peer PEER/bin/python     # with the peer
    .venv/bin/python benchmarks/argn.py 1500 --peer … --write           # updates docs/results/synth.md

quality, TSTR and C2ST are those of benchmarks/publish.py: the score of SDMetrics as `tacit.synth.evaluate` defines
it, the AUC of boosted trees trained on synthetic and tested on held-out rows, and the AUC of boosted trees that
tell synthetic from held-out rows (.5 is best). singling is the excess risk of singling out by three columns
(`synth/singling.py`, which agrees with Anonymeter: benchmarks/anonymeter_agree.py). CPU s is for fitting and
sampling with one thread.

Tables: Adult and the credit cards of Taiwan (both UCI), and from statsmodels the survey of affairs (Fair 1978) and
the health insurance experiment of RAND: the parameters of ARGN were chosen on these four. New in this benchmark, with nothing
changed after their figures: heart disease of four hospitals (UCI), the American election study of 1996 (statsmodels) and how long
governments last (lifelines). The peer (`pip install mostlyai-engine`, Apache-2.0) needs an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from publish import classify, tables

from tacit import synth
from tacit.synth import fidelity, singling
from tacit.synth.views import Views

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results" / "synth.md"
BEGIN, END = "<!-- figures of benchmarks/argn.py -->", "<!-- end -->"
GENERATORS = (synth.ARGN(device="cpu"), synth.Cart(), synth.TVAE(device="cpu", epochs=100))


def measure(train: pd.DataFrame, made: pd.DataFrame, holdout: pd.DataFrame, target: str) -> tuple[float, ...]:
    """Return quality, TSTR, C2ST and the risk of singling out."""
    views = Views(train, made, holdout)
    scores = {s.name: s.value for s in fidelity.measure(views, np.random.default_rng(0))}
    return (
        scores[fidelity.QUALITY.name],
        *classify(train, made, holdout, target),
        singling.measure(views, np.random.default_rng(0))[0].value,
    )


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
    for name in train:
        if pd.api.types.is_integer_dtype(train[name]) and pd.api.types.is_float_dtype(made[name]):
            made[name] = made[name].round()
    made = made.astype({c: train[c].dtype for c in train if made[c].dtype != train[c].dtype})
    return made, float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", nargs="?", type=int, default=4000)
    parser.add_argument("--peer", help="the Python of an environment with mostlyai-engine")
    parser.add_argument("--only", nargs="+", help="names of tables")
    parser.add_argument("--write", action="store_true", help="update docs/results/synth.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    heads = ("quality", "TSTR", "C2ST", "singling", "CPU s")
    print(f"{'':20}{'':16}" + "".join(f"{h:>9}" for h in heads))
    written = [f"| table (rows) | generator | {' | '.join(heads)} |", "|---|---|" + "---|" * len(heads)]
    for name, (frame, target) in tables().items():
        if args.only and name not in args.only:
            continue
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
            shown = " | ".join(f"{f:.3f}".removeprefix("0") for f in figures)
            written.append(f"| {name} ({rows:,}) | {who} | {shown} | {seconds:.0f} |")
    if args.write:
        text = RESULTS.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        RESULTS.write_text(
            before + BEGIN + "\n" + "\n".join(written) + "\n" + END + rest.partition(END)[2], encoding="utf-8"
        )


if __name__ == "__main__":
    main()
