"""Do the exponential tails of protected numbers raise Anonymeter's risks?

    TACIT_DATA=…/data .venv/bin/python benchmarks/tails.py --seeds 6 --keep tails.jsonl

Each generator learns the same rows twice with the same seed: with the tails that replace values beyond the ends of a
column, and with these values piled up at the ends. Both tables are attacked by Anonymeter as in
benchmarks/publish.py, with as many other rows as control. Figures are differences (with − without) of the risks in
excess of the control, which are not cut off at 0; means with 95% t-intervals over the draws of rows. The last lines
are means over all draws of all tables.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from publish import JUDGES, OURS, run, tables

from tacit.synth import protect

HEADS = ("quality", "singling", "linkability", "inference")


def draw(name: str, rows: int, seed: int, who: list[str]) -> list[list[list[float]]]:
    """Return the figures of each generator on one draw of rows, without and with tails."""
    torch.set_num_threads(1)
    frame, target = tables()[name]
    frame = frame.sample(frac=1, random_state=seed).reset_index(drop=True)
    rows = min(rows, len(frame) // 2)
    train = frame.iloc[:rows].reset_index(drop=True)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        train.to_parquet(folder / "train.parquet")
        frame.iloc[rows : 2 * rows].reset_index(drop=True).to_parquet(folder / "holdout.parquet")
        for k, generator in enumerate(replace(OURS[n], seed=seed) for n in who):  # type: ignore[type-var]
            with mock.patch.object(protect, "_draw_tails", lambda x, cut, column, *rest: (cut, column)):
                generator.fit(train).sample(rows, seed=1 + seed).to_parquet(folder / f"made-{2 * k}.parquet")
            generator.fit(train).sample(rows, seed=1 + seed).to_parquet(folder / f"made-{2 * k + 1}.parquet")
        judged = run(JUDGES, "judge_work.py", str(folder), str(2 * len(who)), target, "--signed")["figures"]
    assert isinstance(judged, list)
    return [judged[2 * k : 2 * k + 2] for k in range(len(who))]


def main() -> None:
    from scipy.stats import t as student

    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=250)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument(
        "--only", nargs="+", default=["elections", "heart disease", "breast cancer", "women's insurance"]
    )
    parser.add_argument("--generators", nargs="+", default=["ARGN", "Bayes"])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="file of figures: what it has is not measured again")
    args = parser.parse_args()
    figures: dict[tuple[str, str], dict[int, list[list[float]]]] = {}
    if args.keep and args.keep.exists():
        for line in map(json.loads, args.keep.read_text(encoding="utf-8").splitlines()):
            figures.setdefault((line["table"], line["generator"]), {})[line["seed"]] = line["figures"]
    left = [
        (t, s)
        for s in range(args.seeds)
        for t in args.only
        if any(s not in figures.get((t, g), {}) for g in args.generators)
    ]
    with ProcessPoolExecutor(args.jobs) as pool:
        futures = {pool.submit(draw, t, args.rows, s, args.generators): (t, s) for t, s in left}
        for future in as_completed(futures):
            table, seed = futures[future]
            for who, pair in zip(args.generators, future.result()):
                figures.setdefault((table, who), {})[seed] = pair
                if args.keep:
                    record = {"table": table, "generator": who, "seed": seed, "figures": pair}
                    with args.keep.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(record) + "\n")

    print(f"| table | generator | draws | {' | '.join(HEADS)} |\n|---|---|---|" + "---|" * len(HEADS))
    for who in args.generators:
        parts = {table: np.array(list(figures[table, who].values())) for table in args.only}
        for table, pairs in {**parts, "all": np.concatenate(list(parts.values()))}.items():
            difference, n = pairs[:, 1] - pairs[:, 0], len(pairs)
            half = student.ppf(0.975, n - 1) * difference.std(axis=0, ddof=1) / np.sqrt(n)
            shown = [f"{m:+.3f} ± {h:.3f}" for m, h in zip(difference.mean(axis=0), half)]
            print(f"| {table} | {who} | {n} | {' | '.join(shown)} |")


if __name__ == "__main__":
    main()
